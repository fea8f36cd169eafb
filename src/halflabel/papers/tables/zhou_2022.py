"""Zhou, Chen, Wang, Chen, Heng 2022 (S5): the table of the poster."""

from __future__ import annotations

from typing import Any

from halflabel.papers.spec import (
    MIRROR_ONLY,
    Condition,
    MaskSpec,
    PaperMeasure,
    PaperTable,
    PaperTraining,
    TableRow,
)


# The poster has only the table; all settings are those of the released code. Its validation set is a fifth of the
# training images with all their labels. Training stops at the first epoch that is not better on it. A class without a
# positive test image counts as 0 in the mean.
def _single_positive(name: str, dataset: str, batch_size: int, lr: float = 1e-5, **dataset_options: Any) -> Condition:
    training = PaperTraining(
        {"backbone": "resnet50.tv_in1k", "size": 448, "resize": "squash", "tune": "all"},
        {
            "epochs": 10,
            "batch_size": batch_size,
            "lr": lr,
            "backbone_lr": 1.0,
            "optimizer": "adam",
            "weight_decay": 0.0,
            "schedule": "constant",
            "patience": 1,
        },
        weak_view=MIRROR_ONLY,
        unsaid=("everything: the poster has no settings, these are of the released code",),
    )
    return Condition(
        name,
        dataset,
        training,
        dataset_options,
        with_positives=True,
        masks=(MaskSpec("single-positive"),),
        select="all labels",
        held_out=0.2,
    )


_ALPHA = {"VOC": 0.2, "COCO": 0.1, "NUS": 0.1, "CUB": 0.01}
_BETA = {"VOC": 0.02, "COCO": 0.9, "NUS": 0.2, "CUB": 0.4}
_APL_FROM = {"VOC": 5, "COCO": 5, "NUS": 4, "CUB": 3}
# ROLE needs the mean number of positives per image; from labels with one positive per image it could only estimate 1.
_POSITIVES = {name: {"positives": k} for name, k in {"VOC": 1.5, "COCO": 2.9, "NUS": 1.9, "CUB": 31.4}.items()}
# These two are of ROLE's released code as well.
_LINEAR_INIT = {"linear_init": 25, "linear_lr": 1e-3}

_S5_TABLE = PaperTable(
    "S5-table",
    (
        _single_positive("VOC", "voc2012", 8, difficult="absent"),
        _single_positive("COCO", "coco2014", 16, unannotated="drop"),
        _single_positive("NUS", "nus-wide", 16, lists="formatted"),
        _single_positive("CUB", "cub", 8, lr=1e-4, certainty="ignored"),
    ),
    (PaperMeasure("mAP", "mAP", {"kind": "sklearn", "empty": "zero"}),),
    (
        TableRow("All P. & All N.: BCE loss", "bce", mask=MaskSpec()),
        TableRow("1 P. & All N.: BCE loss", "bce", mask=MaskSpec("1-positive+negatives")),
        TableRow("AN loss", "an"),
        TableRow("DW", "wan"),
        TableRow("L1R", "l1r"),
        TableRow("L2R", "l2r"),
        TableRow("LS", "an-ls"),
        TableRow("N-LS", "n-ls"),
        TableRow("EntMin", "entmin"),
        TableRow("Focal loss", "focal"),
        TableRow("ASL", "asl"),
        TableRow("ROLE", "role", options_by_condition=_POSITIVES),
        TableRow("ROLE+LI", "role-li", options_by_condition=_POSITIVES, config=_LINEAR_INIT),
        TableRow("EM loss", "em", options_by_condition={name: {"alpha": alpha} for name, alpha in _ALPHA.items()}),
        TableRow(
            "EM loss+APL",
            "em-apl",
            options_by_condition={
                name: {"alpha": alpha, "beta": _BETA[name], "theta": 0.9, "apl_from": _APL_FROM[name]}
                for name, alpha in _ALPHA.items()
            },
        ),
    ),
    (
        "the rows between AN loss and EM loss are not in the released code: their options are this library's defaults; "
        "ROLE's positives per image, and the epochs and rate of its linear init, are of its own released code",
        "1 P. & All N.: the positives that are not kept become unknown",
    ),
)

TABLES = (_S5_TABLE,)
