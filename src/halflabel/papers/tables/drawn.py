"""Figures of the papers that are drawn and carry no numbers: their protocols, to be run without a published column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halflabel.papers.spec import Condition, MaskSpec, PaperMeasure, PaperTable, TableRow, partial_labels
from halflabel.papers.tables import durand_2019, huynh_2020, wang_2023, zhou_2022

_S2 = {table.id: table for table in durand_2019.TABLES}
_S2_DATA = {condition.name: condition for condition in _S2["S2-table7"].conditions}
_S2_MEASURES = _S2["S2-table5"].measures
_ROWS = {row.name: row for row in _S2["S2-table4"].rows}
_BCE, _PARTIAL_BCE = _ROWS["BCE"], _ROWS["partial-BCE"]
_GNN, _FULL = _ROWS["partial-BCE + GNN"], _ROWS["partial-BCE + GNN + relabeling"]
_DECADES = range(10, 101, 10)


def _by_share(condition: Condition, shares: Any = _DECADES, *, exact: bool = True) -> tuple[Condition, ...]:
    """One condition for each share of known labels."""
    return tuple(replace(condition, name=f"{share} %", masks=(partial_labels(share, exact=exact),)) for share in shares)


def _sweep(row: TableRow, option: str, values: Any) -> tuple[TableRow, ...]:
    return tuple(replace(row, name=f"{option}={v:g}", options={**row.options, option: v}) for v in values)


def _s2(id: str, data: str, rows: tuple[TableRow, ...], what: str, *notes: str, shares: Any = _DECADES) -> PaperTable:
    return PaperTable(id, _by_share(_S2_DATA[data], shares), _S2_MEASURES, rows, (what, *notes))


_STRATEGIES = _S2["S2-table6"].rows[6:9]  # ResNet-101 WELDON: partial, dense, noisy
_BY_STRATEGY = "Some labels of each photo, all labels of some photos, or wrong labels, by their share"
_BY_LOSS = "BCE, partial-BCE and partial-BCE with a GNN by the share of known labels"
_VALIDATED = "the paper tests on 5,000 photos of the training set, which it does not list; here on the test photos"
_RATES = tuple(
    replace(row, name=f"{row.name}, lr {lr:g}", settings={"lr": lr})
    for row in (_BCE, _PARTIAL_BCE)
    for lr in (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
)
_G_VALUES = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)

_S4_TABLE1 = wang_2023.TABLES[0]
_S4_COCO = wang_2023.TABLES[2].conditions  # 20 and 50 %
_OURS = _S4_TABLE1.rows[-1]
_S5 = zhou_2022.TABLES[0]
_S1_TABLE1 = huynh_2020.TABLES[0]
_S1_IMPROVEMENT = (replace(_S1_TABLE1.measures[-1], name="mAP", relative=True),)


def _s4_by_share(letter: str, condition: Condition) -> PaperTable:
    conditions = _by_share(condition, range(10, 91, 10), exact=False)
    notes = ("mAP of all methods by the share of known labels",)
    return PaperTable(f"S4-figure3{letter}", conditions, _S4_TABLE1.measures[:1], _S4_TABLE1.rows, notes)


def _s4_option(letter: str, option: str, values: tuple[float, ...]) -> PaperTable:
    notes = (f"mAP of the paper's method by its option {option}",)
    return PaperTable(f"S4-figure4{letter}", _S4_COCO, _S4_TABLE1.measures[:1], _sweep(_OURS, option, values), notes)


_S1_TRAINING = _S1_TABLE1.conditions[0].training
_CUB = replace(_S1_TRAINING, settings={**_S1_TRAINING.settings, "epochs": 3, "lr": 0.01}, differs=())
_COCO_SETTINGS = {"epochs": 4, "batch_size": 1, "lr": 0.01, "schedule": "step", "step_epochs": 2, "step_factor": 0.1}
_COCO = replace(
    _S1_TRAINING,
    config={**_S1_TRAINING.config, "backbone": "vgg16.tv_in1k"},
    settings={**_S1_TRAINING.settings, **_COCO_SETTINGS},
    differs=(
        "the paper also multiplies the learning rate by 0.8 whenever the validation performance falls",
        "features are the pooled maps of the convolutions of VGG-16, without its fully connected layers",
    ),
)
_OF_CUB = {"lambda_y": 2.0, "graph": "identity", "side": "^([^/]+)/"}  # the folder of a photo is its species
_OF_COCO = {"lambda_y": 0.5, "k": 3, "dictionary": 10_000}
_DICTIONARY = (
    "a batch of one image holds no similar one: IMCL searches the last 10,000 images, the number of the released code"
)


def _refined(row: TableRow) -> TableRow:
    """A row of table 1 relative to Logistic, trained for as many epochs as the others."""
    if row.name == "Logistic":
        return row
    if row.method == "curriculum":
        row = replace(row, settings={}, differs=())
    return replace(row, relative_to="Logistic")


_S1_ROWS = {row.name: _refined(row) for row in _S1_TABLE1.rows}
_IMCL = _S1_ROWS.pop("IMCL")


def _imcl(name: str, *differs: str, **options: Any) -> TableRow:
    own = {name: value for name, value in _IMCL.options.items() if name != "k_a" or "graph" not in options}
    return replace(_IMCL, name=name, options={**own, **options}, differs=(*_IMCL.differs, *differs))


TABLES = (
    PaperTable(
        "S1-figure2",
        _S1_TABLE1.conditions,
        (PaperMeasure("recognised", "OR", {"top_k": 50}),),
        _S1_TABLE1.rows,
        (
            "a figure of photos and the labels that each method recognises among its 50 highest scores: here the share "
            "of recognised labels over all test photos",
        ),
    ),
    PaperTable(
        "S1-figure3",
        _by_share(
            Condition("", "cub", _CUB, select="known labels", held_out=0.1),
            (10, 30, 50, 70, 90),
        ),
        _S1_IMPROVEMENT,
        (
            *(row for name, row in _S1_ROWS.items() if not name.startswith(("Latent Noise", "Wsabie"))),
            *(_imcl(f"IMCL, a = {a}", **_OF_CUB, side_weight=float(a)) for a in (1, 10)),
        ),
        (
            "Improvement over logistic regression by the share of known labels",
            "the shares are those of known attributes; a is the magnitude of the one-hot vector of the species",
            "the paper follows the split of [48], with its validation images; here a tenth of the training photos of "
            "the official split is held out",
        ),
    ),
    PaperTable(
        "S1-figure4",
        (
            Condition(
                "MS-COCO",
                "coco2014",
                _COCO,
                {"labels": "words"},
                notes=(
                    "trained and tested on words of captions; all of val2014 is tested, in the paper 20,000 photos",
                ),
            ),
        ),
        _S1_IMPROVEMENT,
        (*_S1_ROWS.values(), _imcl("IMCL", _DICTIONARY, **_OF_COCO)),
        (
            "Improvement over logistic regression on words of captions",
            "the paper does not say which words count: here all, also those without a visual meaning",
        ),
    ),
    _s2("S2-figure3-voc", "VOC 2007", (*_STRATEGIES, _PARTIAL_BCE), _BY_STRATEGY, shares=_DECADES[:-1]),
    _s2("S2-figure3-nus", "NUS-WIDE", (*_STRATEGIES, _PARTIAL_BCE), _BY_STRATEGY, shares=_DECADES[:-1]),
    _s2("S2-figure4", "MS COCO", (_BCE, _PARTIAL_BCE, _GNN), _BY_LOSS, "figures 4, 11 and 12"),
    _s2(
        "S2-figure5",
        "MS COCO",
        _sweep(_PARTIAL_BCE, "g_value", _G_VALUES),
        "partial-BCE by the weight g(0.1) of photos with 10 % known labels",
        _VALIDATED,
        "figures 5 and 15",
        "g(0.1) multiplies the loss of every photo: AdamW, which --tune head uses, takes the same steps in all rows",
        shares=(10,),
    ),
    _s2(
        "S2-figure6",
        "MS COCO",
        _sweep(_PARTIAL_BCE, "gamma", (-1.0, 0.5, 1.0, 2.0, 3.0)),
        "partial-BCE by γ and the share of known labels",
        _VALIDATED,
    ),
    _s2("S2-figure10", "MS COCO", _RATES, "BCE and partial-BCE by the learning rate", shares=(10, 50, 100)),
    _s2("S2-figure13", "VOC 2007", (_BCE, _PARTIAL_BCE, _GNN), _BY_LOSS, "figures 13, 14 and 16, without APG-Graph"),
    _s2("S2-figure17", "MS COCO", (_STRATEGIES[1], _BCE, _FULL), "The full method against BCE, by the share of labels"),
    *(_s4_by_share(letter, condition) for letter, condition in zip("abc", _S4_TABLE1.conditions, strict=True)),
    _s4_option("a", "alpha", (0.1, 0.2, 0.3, 0.4, 0.5)),
    _s4_option("b", "tau", (0.5, 0.6, 0.7, 0.8, 0.9)),
    PaperTable(
        "S5-mlml",
        tuple(
            replace(
                _S5.conditions[0],
                name=f"{percent} % of the positives",
                masks=(MaskSpec("positives", {"share": percent / 100}),),
            )
            for percent in (20, 40, 60, 80)
        ),
        _S5.measures,
        tuple(
            replace(row, options=row.options_by_condition.get("VOC", {}), options_by_condition={})
            for row in _S5.rows
            if row.name in ("AN loss", "LS", "ROLE", "EM loss", "EM loss+APL")
        ),
        ("mAP where a share of the positives is known and no negative, here of every photo of VOC",),
    ),
)
