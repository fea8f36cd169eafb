"""Durand, Mehrasa, Mori 2019 (S2): tables 1 to 8. The figures have no printed numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halflabel.papers.spec import (
    MIRROR_ONLY,
    Condition,
    MaskSpec,
    PaperMeasure,
    PaperTable,
    PaperTraining,
    TableRow,
    partial_labels,
)

# ResNet-101 with WELDON pooling. "Randomly dropping some labels per image" is read as the same number per image.
_TRAINING = PaperTraining(
    {"backbone": "resnet101.tv_in1k", "size": 448, "resize": "squash", "tune": "all"},
    {
        "epochs": 20,
        "batch_size": 16,
        "lr": 0.01,
        "backbone_lr": 1.0,
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "schedule": "step",
        "step_epochs": 10,
        "step_factor": 0.1,
    },
    weak_view=MIRROR_ONLY,
    # Images are resized to 448 x 448: squash. "The same training setting as [16] for each model and dataset" covers the
    # rest.
    unsaid=("momentum", "weight_decay", "backbone_lr", "where dropout acts in strategy [e]"),
)
_RELABEL = {"relabel_at": "10,15"}
_NO_GNN = {"gnn": False, "node_size": 32}  # its default: without the graph it does nothing
# Only strategy [e] uses dropout: "the setting used in the original paper", Kendall and Gal 2017.
_NO_DROPOUT = {"dropout": 0.0, "node_size": 0}
_DROPOUT = {"dropout": 0.2, "passes": 50, "node_size": 0}
_NO_RELABELLING = {"strategy": "none", **_NO_DROPOUT}
_BCE = _NO_RELABELLING | _NO_GNN | {"g_value": 1.0}  # turns partial-BCE into plain BCE over all classes
_DROPOUT_NOTE = (
    "only the rows of strategy [e] are trained with dropout: 50 passes at a rate of 0.2 as in Kendall and Gal 2017, as "
    "the paper states, but before the head, not after every convolution"
)

_DIFFICULT = (
    "the paper does not state how difficult objects are treated: here they are left out, as in the VOC challenge",
)


_TEN_PERCENT = (partial_labels(10, exact=True),)
_MAP = PaperMeasure("MAP", "mAP", {"kind": "sklearn"})
_EXACT_MATCH = PaperMeasure("0-1", "exact_match")
_F1 = (PaperMeasure("M-F1", "macro_f1"), PaperMeasure("m-F1", "micro_f1"))
_PRECISION_RECALL = tuple(
    PaperMeasure(name, metric) for name, metric in {"PC-P": "CP", "PC-R": "CR", "OV-P": "OP", "OV-R": "OR"}.items()
)


def _four_measures(exact_match: str, *, relative: bool = False) -> tuple[PaperMeasure, ...]:
    return (
        replace(_MAP, relative=relative),
        PaperMeasure(exact_match, "exact_match", {}, relative),
        PaperMeasure("Macro-F1", "macro_f1", {}, relative),
        PaperMeasure("Micro-F1", "micro_f1", {}, relative),
    )


def _strategy(name: str, strategy: str, theta: float, base: str = "no relabelling", **options: Any) -> TableRow:
    row_options = {
        "strategy": strategy,
        "theta": theta,
        **_RELABEL,
        **(_DROPOUT if strategy == "e" else _NO_DROPOUT),
        **options,
    }
    measured_as = {"TP": "accuracy_of_guesses"} if strategy == "c" else {}
    return TableRow(name, "plcl", row_options, relative_to=base, measured_as=measured_as)


def _without_gnn(theta: float) -> TableRow:
    name = f"[e] uncertainty θ={theta} without GNN"
    return _strategy(name, "e", theta, "no relabelling, without GNN", **_NO_GNN)


_RELABELLING = (
    TableRow("no relabelling", "plcl", _NO_RELABELLING),
    TableRow("no relabelling, without GNN", "plcl", _NO_RELABELLING | _NO_GNN),
    _strategy("2 steps", "2steps", 0.0, relabel_at="10"),
    _strategy("[a] score threshold θ=2", "a", 2.0),
    _strategy("[b] score proportion θ=0.8", "b", 0.8),
    _strategy("[c] positive only θ=5", "c", 5.0),
    _strategy("[d] ensemble score θ=2", "d", 2.0),
    _without_gnn(0.3),
    *(_strategy(f"[e] uncertainty θ={theta}", "e", theta) for theta in (0.1, 0.2, 0.3, 0.4, 0.5)),
)


def _relabelling(id: str, rows: tuple[TableRow, ...]) -> PaperTable:
    return PaperTable(
        id,
        (
            Condition(
                "VOC 2007 val",
                "voc2007",
                _TRAINING,
                {"train": "train", "test": "val", "difficult": "unknown"},
                masks=_TEN_PERCENT,
                notes=_DIFFICULT,
            ),
        ),
        (
            *_four_measures("0-1", relative=True),
            PaperMeasure("label prop.", "label_proportion"),
            PaperMeasure("TP", "tp_rate"),
            PaperMeasure("TN", "tn_rate"),
        ),
        rows,
        (
            "the paper does not state the reference of the rows without GNN: here the same model without relabelling",
            "the paper does not state when the 2 steps strategy labels: here before epoch 10",
            _DROPOUT_NOTE,
        ),
    )


_S2_TABLE2 = _relabelling("S2-table2", _RELABELLING)
_S2_TABLE8 = _relabelling(
    "S2-table8",
    (
        *_RELABELLING,
        *(_strategy(f"[a] score threshold θ={theta:g}", "a", theta) for theta in (1.0, 5.0)),
        *(_strategy(f"[b] score proportion θ={theta}", "b", theta) for theta in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
        *(_strategy(f"[c] positive only θ={theta:g}", "c", theta) for theta in (1.0, 2.0)),
        *(_strategy(f"[d] ensemble score θ={theta:g}", "d", theta) for theta in (1.0, 5.0)),
        *(_without_gnn(theta) for theta in (0.1, 0.2, 0.4, 0.5)),
    ),
)

_BCE_NOTE = ("the paper does not state the loss: tables 4 and 5 repeat these numbers for BCE",)
_COCO_NOTES = ("trained on train2014, tested on val2014",)
_S2_TABLE1 = PaperTable(
    "S2-table1",
    (Condition("MS COCO", "coco2014", _TRAINING, masks=_TEN_PERCENT, notes=_COCO_NOTES),),
    (_MAP,),
    (
        TableRow("clean", "plcl", _BCE, mask=MaskSpec()),
        TableRow("partial 10%", "plcl", _BCE),
        TableRow("noisy+", "plcl", _BCE, mask=MaskSpec("noisy+")),
    ),
    _BCE_NOTE,
)

# "Stop the training when the validation performance does not increase" is in the text; 20 epochs are those of the other
# data sets. The paper cites V4, which has a list of 600 boxable classes and 1.7 million training images.
_S2_TABLE3 = PaperTable(
    "S2-table3",
    (
        Condition(
            "Open Images",
            "open-images",
            replace(
                _TRAINING,
                settings={**_TRAINING.settings, "patience": 1},
                unsaid=("momentum", "weight_decay", "backbone_lr", "test split"),
            ),
            {"classes": "class-descriptions-boxable.csv"},
            labelled_only=True,
            select="known labels",
            validation_split="validation",
            notes=(
                "human-verified labels of the 600 boxable classes: the folder also needs their list, "
                "class-descriptions-boxable.csv",
                "the paper does not state the version; it cites V4, whose train-annotations-human-imagelabels.csv etc. "
                "are read. All images of the folder with such a label are used, 1.7 million in the paper",
                "the paper does not state what is tested: here the test split",
            ),
        ),
    ),
    (_MAP,),
    (
        TableRow("BCE", "plcl", _BCE),
        TableRow("partial-BCE", "plcl", _NO_RELABELLING | _NO_GNN),
        TableRow("GNN + partial-BCE", "plcl", _NO_RELABELLING),
    ),
)

_S2_TABLE4 = PaperTable(
    "S2-table4",
    (Condition("10 %", "coco2014", _TRAINING, masks=_TEN_PERCENT, notes=_COCO_NOTES),),
    _four_measures("0-1 exact match"),
    (
        TableRow("BCE, not fine-tuned", "plcl", _BCE, config={"tune": "head"}),
        TableRow("BCE", "plcl", _BCE),
        TableRow("partial-BCE", "plcl", _NO_RELABELLING | _NO_GNN),
        TableRow("partial-BCE + GNN", "plcl", _NO_RELABELLING),
        TableRow(
            "partial-BCE + relabeling", "plcl", {"strategy": "e", "theta": 0.3, **_DROPOUT, **_RELABEL, **_NO_GNN}
        ),
        TableRow("partial-BCE + GNN + relabeling", "plcl", {"strategy": "e", "theta": 0.3, **_DROPOUT, **_RELABEL}),
    ),
    (_DROPOUT_NOTE,),
)

_S2_TABLE5 = PaperTable(
    "S2-table5",
    tuple(
        Condition(
            f"{percent} %",
            "coco2014",
            _TRAINING,
            masks=(partial_labels(percent, exact=True),),
            notes=_COCO_NOTES,
        )
        for percent in range(10, 101, 10)
    ),
    (_MAP, *_F1, _EXACT_MATCH, *_PRECISION_RECALL),
    (TableRow("BCE", "plcl", _BCE),),
    ("the paper's numbers are means over 4 draws of the known labels: --seeds 4",),
)


def _strategies(architecture: str, backbone: str, pooling: str) -> tuple[TableRow, ...]:
    """Three ways to spend the same number of clean labels, with one network."""
    options, config = _BCE | {"pooling": pooling}, {"backbone": backbone}
    dense = {f"{share} %": MaskSpec("dense", {"share": share / 100}) for share in range(10, 100, 10)}
    # The table has no numbers where fewer than half of the labels are clean.
    noisy = {f"{share} %": MaskSpec("noisy", {"share": (100 - share) / 100}) for share in range(50, 100, 10)}
    return (
        TableRow(f"{architecture}, partial", "plcl", options, config=config),
        TableRow(
            f"{architecture}, dense", "plcl", options, config=config, masks_by_condition=dense | {"100 %": MaskSpec()}
        ),
        TableRow(
            f"{architecture}, noisy", "plcl", options, config=config, masks_by_condition=noisy | {"100 %": MaskSpec()}
        ),
    )


_S2_TABLE6 = PaperTable(
    "S2-table6",
    tuple(replace(condition, labelled_only=True) for condition in _S2_TABLE5.conditions),
    (_MAP,),
    (
        *_strategies("ResNet-50", "resnet50.tv_in1k", "mean"),
        *_strategies("ResNet-50 WELDON", "resnet50.tv_in1k", "weldon"),
        *_strategies("ResNet-101 WELDON", "resnet101.tv_in1k", "weldon"),
        *_strategies("ResNeXt-101 WELDON", "resnext101_64x4d.gluon_in1k", "weldon"),
    ),
    (
        "dense: all labels of this share of the images, no other images; noisy: all labels, this share of them clean",
        "the loss is BCE (section 4.1)",
        "the paper does not state which ResNeXt-101: here 64 x 4d",
        "at 100 % the three strategies are the same experiment",
    ),
)

_NUS_DIFFERS = (
    "the paper draws 150,000 of 216,450 photos at random for training and tests on the others; it does not list them, "
    "so the official split is used here",
)

_S2_TABLE7 = PaperTable(
    "S2-table7",
    (
        Condition("VOC 2007", "voc2007", _TRAINING, {"difficult": "unknown"}, masks=_TEN_PERCENT, notes=_DIFFICULT),
        Condition("MS COCO", "coco2014", _TRAINING, masks=_TEN_PERCENT, notes=_COCO_NOTES),
        Condition("NUS-WIDE", "nus-wide", replace(_TRAINING, differs=_NUS_DIFFERS), masks=_TEN_PERCENT),
    ),
    (
        PaperMeasure("clean label", "clean_labels"),
        PaperMeasure("noisy label", "wrong_labels"),
        *(_MAP, _EXACT_MATCH, *_F1, *_PRECISION_RECALL),
    ),
    (
        TableRow("clean", "plcl", _BCE, mask=MaskSpec()),
        TableRow("noisy+", "plcl", _BCE, mask=MaskSpec("noisy+")),
        TableRow("partial 10%", "plcl", _BCE),
    ),
    _BCE_NOTE,
)

TABLES = (_S2_TABLE1, _S2_TABLE2, _S2_TABLE3, _S2_TABLE4, _S2_TABLE5, _S2_TABLE6, _S2_TABLE7, _S2_TABLE8)
