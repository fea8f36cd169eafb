"""Zhou, Chen, Wang, Chen, Heng 2022 (S5)."""

from __future__ import annotations

from typing import Any

from halflabel.papers.recipes.parts import FLIP
from halflabel.papers.spec import Condition, Hiding, Measure, Row, Table, Training

__all__ = ["TABLES"]


# The poster gives the table alone; everything else is the released code. Its validation set is a fifth of the
# training images with all their labels, training stops at the first epoch that is no better on it, and a class without
# positive test image counts as 0 in the mean.
def _single_positive(name: str, dataset: str, batch: int, lr: float = 1e-5, **options: Any) -> Condition:
    training = Training(
        {"backbone": "resnet50.tv_in1k", "size": 448, "resize": "squash", "tune": "all"},
        {
            "epochs": 10,
            "batch_size": batch,
            "lr": lr,
            "backbone_lr": 1.0,
            "optimizer": "adam",
            "weight_decay": 0.0,
            "schedule": "constant",
            "patience": 1,
        },
        weak=FLIP,
        unsaid=("everything: the poster has no settings, these are of the released code",),
    )
    single = (Hiding("single-positive"),)
    return Condition(
        name,
        dataset,
        training,
        options,
        with_positives=True,
        hidings=single,
        select="all labels",
        held_out=0.2,
    )


_ALPHA = {"VOC": 0.2, "COCO": 0.1, "NUS": 0.1, "CUB": 0.01}
_BETA = {"VOC": 0.02, "COCO": 0.9, "NUS": 0.2, "CUB": 0.4}
_FROM = {"VOC": 5, "COCO": 5, "NUS": 4, "CUB": 3}
# ROLE is told how many classes an image shows; from one positive per image it could only guess 1.
_POSITIVES = {name: {"positives": k} for name, k in {"VOC": 1.5, "COCO": 2.9, "NUS": 1.9, "CUB": 31.4}.items()}
# Of ROLE's released code too.
_LINEAR_INIT = {"linear_init": 25, "linear_lr": 1e-3}

_S5_TABLE = Table(
    "S5-table",
    (
        _single_positive("VOC", "voc2012", 8, difficult="absent"),
        _single_positive("COCO", "coco2014", 16, unannotated="drop"),
        _single_positive("NUS", "nus-wide", 16, lists="formatted"),
        _single_positive("CUB", "cub", 8, lr=1e-4, certainty="ignored"),
    ),
    (Measure("mAP", "mAP", {"kind": "sklearn", "empty": "zero"}),),
    (
        Row("All P. & All N.: BCE loss", "bce", hiding=Hiding()),
        Row("1 P. & All N.: BCE loss", "bce", hiding=Hiding("1-positive+negatives")),
        Row("AN loss", "an"),
        Row("DW", "wan"),
        Row("L1R", "l1r"),
        Row("L2R", "l2r"),
        Row("LS", "an-ls"),
        Row("N-LS", "n-ls"),
        Row("EntMin", "entmin"),
        Row("Focal loss", "focal"),
        Row("ASL", "asl"),
        Row("ROLE", "role", on=_POSITIVES),
        Row("ROLE+LI", "role-li", on=_POSITIVES, config=_LINEAR_INIT),
        Row("EM loss", "em", on={name: {"alpha": alpha} for name, alpha in _ALPHA.items()}),
        Row(
            "EM loss+APL",
            "em-apl",
            on={
                name: {"alpha": alpha, "beta": _BETA[name], "theta": 0.9, "apl_from": _FROM[name]}
                for name, alpha in _ALPHA.items()
            },
        ),
    ),
    (
        "the rows between AN loss and EM loss are not in the released code: their options are this library's defaults; "
        "ROLE's positives per image, and the epochs and rate of its linear init, are those of its own released code",
        "1 P. & All N.: the positives that are not kept become unknown",
    ),
)


TABLES = (_S5_TABLE,)
