"""The declaration of training options: checks of values, and what is derived from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.fitting.config import Config, declared_options, parse_option


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", 2.5),
        ("epochs", True),
        ("lr", -1.0),
        ("lr", float("nan")),
        ("lr", "0.1"),
        ("ema", 1.5),
        ("device", "tpu"),
        ("seed", 1 << 63),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{name} cannot be"):
        Config(**{name: value})
    content = Config().as_dict()
    content[name] = value
    with pytest.raises(UserError, match=rf"config\.yaml.*{name} cannot be"):
        Config.from_dict(content)


def test_an_optimizer_that_is_not_here_stops_training_but_not_a_finished_model() -> None:
    content = Config().as_dict()
    content["optimizer"] = "lion"
    settings = Config.from_dict(content)
    with pytest.raises(UserError, match="'lion'"):
        settings.check_names()


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(UserError, match=r"config\.yaml.*colour"):
        Config.from_dict({**Config().as_dict(), "colour": "red"})


def test_numbers_get_the_declared_type() -> None:
    settings = Config(lr=1, epochs=np.int64(3), seed=np.int64(5))
    assert [type(value) for value in (settings.lr, settings.epochs, settings.seed)] == [float, int, int]


def test_config_yaml_has_the_declared_fields() -> None:
    content = Config(method="em", options={"alpha": 0.2}).as_dict()
    assert content["options"] == {"alpha": 0.2}
    assert set(content) == {field.name for field in dataclasses.fields(Config)}
    assert Config.from_dict(content) == Config(method="em", options={"alpha": 0.2})


def test_options_that_are_not_given_have_their_defaults() -> None:
    config = Config.from_options({"epochs": 3, "tune": "all", "lr": None, "images": "photos"})
    assert config == Config(tune="all", images="photos", epochs=3)


def test_every_option_is_declared_with_help_and_defaults_in_bounds() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}
    assert fields - set(declared_options()) == {
        *("method", "options", "images", "averaged_with", "candidates", "from_nothing"),
        *("targets", "linear_start", "linear_init", "linear_lr", "crop", "momentum", "step_epochs", "step_factor"),
        *("begin_from", "choose_lr"),
    }
    for declared in declared_options().values():
        assert declared.help.endswith(".")
        assert "train" in declared.commands


def test_options_are_read_from_texts() -> None:
    texts = {"epochs": "7", "deterministic": "true", "l2_strength": "0.5", "weights": "w.pt"}
    values = {name: parse_option(name, text) for name, text in texts.items()}
    assert values == {"epochs": 7, "deterministic": True, "l2_strength": 0.5, "weights": "w.pt"}
    for name, text in (
        ("epochs", "0"),
        ("epochs", "2.5"),
        ("lr", "nan"),
        ("deterministic", "perhaps"),
        ("device", "tpu"),
    ):
        with pytest.raises(UserError, match=f"{name} cannot be"):
            parse_option(name, text)


def test_fast_is_short_for_the_smaller_bundled_backbone() -> None:
    assert Config(backbone="fast").backbone == "efficientnet-lite0"
    assert Config().backbone == "efficientnet-lite2"
