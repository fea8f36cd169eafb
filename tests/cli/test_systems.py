"""`halflabel train --method NAME` runs every part of the paper's system, with an effect, without another option."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TINY, done

from halflabel.features.heads import Weldon
from halflabel.methods import imcl, rml
from halflabel.methods.em import APL
from halflabel.methods.parts.curriculum import Curriculum
from halflabel.methods.parts.label_graph import LabelGraph
from halflabel.methods.plcl import GnnHead
from halflabel.methods.srcr import SaliencyHead, SelfTraining

Effect = Callable[[tuple[Any, ...], Any], bool]  # of the arguments of a call and its result


def ran(*_: object) -> bool:
    return True


def passes_differ(arguments: tuple[Any, ...], _: Any) -> bool:
    return bool((arguments[1].spread > 0).any())


def labels_added(_: tuple[Any, ...], counts: dict[str, float]) -> bool:
    return counts["weak_positives"] + counts["weak_negatives"] > 0


def views_differ(arguments: tuple[Any, ...], _: Any) -> bool:
    weak, strong = arguments[2].views
    return not torch.equal(weak, strong)


def is_learned(arguments: tuple[Any, ...], _: Any) -> bool:
    return bool(arguments[0].weights.requires_grad)


def images_labelled(_: tuple[Any, ...], counts: dict[str, float]) -> bool:
    return counts.get("propagated_images", counts.get("pseudo_labels", 0)) > 0


PLCL = [(Weldon, "forward", ran), (GnnHead, "propagate", ran)]
# What is given beside the method, the protocol that hides labels, and the functions that must have their effect.
SYSTEMS: dict[str, tuple[str, str, list[tuple[Any, str, Effect]]]] = {
    "plcl": ("", "partial:share=0.4", [*PLCL, (Curriculum, "absorb", passes_differ)]),
    **{
        f"plcl {letter}": (
            f"strategy={letter} theta=0.05 epochs=4",
            "partial:share=0.4",
            [(Curriculum, "absorb", labels_added)],
        )
        for letter in "abcd"
    },
    "plcl e": ("theta=9 epochs=4", "partial:share=0.4", [(Curriculum, "absorb", labels_added)]),
    "imcl": ("", "partial:share=0.4", [(imcl, "joint_omp", ran), (LabelGraph, "forward", is_learned)]),
    "srcr": ("", "partial:share=0.4", [(SaliencyHead, "forward", ran), (SelfTraining, "step", views_differ)]),
    "ss-rml": ("", "semi-supervised:share=0.5", [(rml.PropagateLabels, "absorb", images_labelled)]),
    "em-apl": ("", "single-positive", [(APL, "absorb", images_labelled)]),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_plain_command_runs_the_system(
    system: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, protocol, parts = SYSTEMS[system]
    effects: Counter[str] = Counter()

    def watch(owner: Any, name: str, has_effect: Effect) -> None:
        function = getattr(owner, name)

        def watched(*arguments: Any, **more: Any) -> Any:
            result = function(*arguments, **more)
            effects[name] += has_effect(arguments, result)
            return result

        monkeypatch.setattr(owner, name, watched)

    for part in parts:
        watch(*part)
    done("drop", data / "train.csv", tmp_path / "labels.csv", protocol)
    given = [word for option in options.split() for word in ("--set", option)]
    method = system.split()[0]
    command = ("train", tmp_path / "labels.csv", data / "images", "--out", tmp_path / "run", "--method", method)
    done(*command, *given, *TINY)
    assert all(effects[name] for _, name, _ in parts)
