"""Which methods `auto` picks for which labels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.fitting import auto
from halflabel.fitting.auto import RULES, SHORT_LIST, Choice, Rule, choose, epochs_for, short_list, whole_settings
from halflabel.fitting.config import Config
from halflabel.labels import drop
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, recipe, recipes


def full(images: int = 200, classes: int = 12) -> Table:
    present = np.random.default_rng(0).random((images, classes)) < 0.3
    present[:, 0] |= ~present.any(1)
    return Table.from_dense(np.where(present, 1, -1))


TABLES = {
    "full": full(),
    "nearly full": drop.partial(full(), 0.95),
    "tenth": drop.partial(full(), 0.25),
    "single": drop.single_positive(full()),
    "positives": drop.positives(full(), number=2),
    "mostly unlabelled": drop.semi_supervised(full(), share=0.8),
    "unlabelled and partial": drop.partial(drop.semi_supervised(full(), share=0.8), 0.3),
    "unlabelled and single": drop.single_positive(drop.semi_supervised(full(), share=0.8)),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_kind_of_labels_has_a_short_list_that_can_learn_from_them(name: str) -> None:
    stats = TABLES[name].stats
    choices = short_list(stats)
    assert 2 <= len(choices) <= SHORT_LIST
    assert len({choice.method for choice in choices}) == len(choices)
    assert all(stats.regime in recipe(choice.method).serves and choice.why for choice in choices)
    best = choose(stats)
    assert best.method == choices[0].method
    recipe(best.method).make(**best.options)
    dataclasses.replace(Config(), **best.config)


def test_few_known_negatives_do_not_change_the_method() -> None:
    dense = TABLES["single"].dense()
    dense[0][dense[0] == 0] = -1
    with_answers = Table.from_dense(dense).stats
    assert with_answers.regime == "partial"
    assert choose(with_answers).method == choose(TABLES["single"].stats).method


def test_methods_depend_on_the_number_of_known_positives() -> None:
    small, large = full(200), full(4_000)
    assert choose(drop.single_positive(small).stats).method == "n-ls"
    assert choose(drop.single_positive(large).stats).method == "em"
    assert choose(drop.single_positive(full(20_000, 250)).stats).method == "n-ls"  # not measured with so many classes
    assert choose(drop.partial(small, 0.25).stats).options == {"strategy": "c"}
    assert choose(drop.partial(large, 0.25).stats).options == {"smoothing": 0.05, "theta": 1.5}
    assert choose(drop.semi_supervised(large, share=0.8).stats).method == "curriculum"


def test_several_tables_get_methods_that_learn_from_each() -> None:
    tables = [TABLES[name].stats for name in ("full", "single")]
    choices = short_list(*tables)
    assert all({"full", "single-positive"} <= set(recipe(choice.method).serves) for choice in choices)
    # The table with the fewest labels is the hard one: its methods come first.
    hard = [choice.method for choice in short_list(tables[1])]
    assert choices[0].method == next(name for name in hard if "full" in recipe(name).serves)


def test_the_first_rule_that_fits_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = (
        Rule(("full",), (Choice("asl", "few"),), unlabelled=(0.0, 0.5)),
        Rule(("full",), (Choice("em", "many"),)),
    )
    monkeypatch.setattr(auto, "RULES", rules)
    tables = [drop.semi_supervised(full(), share=share) for share in (0.25, 0.75)]
    assert [choose(table.stats).method for table in tables] == ["asl", "em"]


def test_few_images_get_more_epochs_where_only_the_head_is_tuned() -> None:
    counts = [epochs_for(images) for images in (10, 499, 500, 1_000_000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]
    assert choose(full().stats).config["epochs"] == epochs_for(200)
    tuned = choose(full().stats, tune="all")
    assert tuned.config["epochs"] == epochs_for(200, "all") > epochs_for(5000, "all")
    assert tuned.method == choose(full().stats).method
    assert tuned.config["targets"] == "soft"  # of the frozen recipe; a method that is named trains by its own
    assert "targets" not in choose(full().stats, tune="all", method="rml").config
    assert choose(full().stats, method="rml") == Choice("rml", config={"epochs": epochs_for(200)})


def test_a_whole_network_has_the_rate_and_size_of_its_type() -> None:
    rates = {name: whole_settings(5000, name, on_gpu=True)["lr"] for name in ("efficientnet-lite2", "resnet50")}
    assert rates["efficientnet-lite2"] > rates["resnet50"]
    vits = (
        "vit_small_patch14_dinov2.lvd142m",
        "vit_small_patch16_dinov3.lvd1689m",
        "vit_base_patch16_siglip_224.v2_webli",
    )
    for each in (*vits, "vit_tiny_patch16_224", "open-clip:ViT-B-32/laion2b_s34b_b79k"):
        settings = whole_settings(5000, each, on_gpu=True)
        assert settings["lr"] < rates["resnet50"]
        assert "size" not in settings  # that of its position embedding
    assert "precision" not in whole_settings(5000, "resnet50", on_gpu=False)


def test_no_labels_are_refused() -> None:
    with pytest.raises(UserError, match="no label is known"):
        choose(Table.from_dense(np.zeros((3, 2))).stats)


def test_the_rules_cover_all_regimes_and_name_existing_options() -> None:
    known = recipes()
    for regime in REGIMES:
        assert any(regime in rule.regimes for rule in RULES)
    for choice in (choice for rule in RULES for choice in rule.choices if choice.method in known):
        known[choice.method].make(**choice.options)
        dataclasses.replace(Config(), **choice.config)
