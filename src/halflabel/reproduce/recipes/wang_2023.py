"""Wang, Wan, Xiang, Zeng 2023 (S4)."""

from __future__ import annotations

from halflabel.reproduce.protocol import Condition, Measure, Row, Table, Training
from halflabel.reproduce.recipes.parts import partial

__all__ = ["TABLES"]

# The text has neither image size nor rate, epochs, augmentations or what is tested; 448 px is the size of the
# literature it follows. Labels are dropped one by one with the same chance, and difficult objects are absent, as in the
# released code of that literature (SST, SARB).
_S4 = Training(
    {"backbone": "resnet101.tv_in1k", "size": 448, "resize": "squash", "tune": "all"},
    {
        "epochs": 20,
        "batch_size": 32,
        "lr": 0.01,
        "backbone_lr": 1.0,
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "schedule": "cosine",
    },
    unsaid=("size", "resize", "epochs", "lr", "backbone_lr", "schedule", "weak", "select"),
)
_S4_MEASURES = (Measure("mAP", "mAP", {"kind": "sklearn"}), Measure("OF1", "OF1"), Measure("CF1", "CF1"))
_SHARES = tuple(partial(percent, exact=False) for percent in range(10, 91, 10))

_SEMANTIC = {"width": 1024, "rank": 512, "warm": 5}  # sizes of their released code

_S4_TABLE1 = Table(
    "S4-table1",
    (
        Condition("MS-COCO", "coco2014", _S4, hidings=_SHARES),
        Condition("VG-200", "vg200", _S4, hidings=_SHARES),
        Condition("Pascal VOC 2007", "voc2007", _S4, {"difficult": "absent"}, hidings=_SHARES),
    ),
    _S4_MEASURES,
    (
        Row("SSGRL", "ssgrl", {"width": 0, "rank": 1024}),
        *(Row(name, name.lower()) for name in ("GCN-ML", "PLCL", "SPLC")),
        *(Row(name, name.lower(), _SEMANTIC) for name in ("SST", "HST", "SARB", "SARB*")),
        Row("CSL", "csl"),
        Row("Ours", "srcr"),
    ),
    (
        "each figure is the mean over 10 %, 20 %, … 90 % of known labels",
        "SSGRL, GCN-ML, SST, HST, SARB, SARB*: label vectors come from co-occurrence, the papers' are GloVe",
    ),
)

_OFF = {"saliency": "none", "consistency": "none"}
_S4_TABLE2 = Table(
    "S4-table2",
    tuple(
        Condition(f"{percent} %", "coco2014", _S4, hidings=(partial(percent, exact=False),))
        for percent in (10, 30, 50, 70, 90)
    ),
    _S4_MEASURES,
    (
        Row("S-BCE", "srcr", _OFF | {"normalise": "entries"}),
        Row("BN-BCE", "srcr", _OFF),
        Row("BN-BCE + PL", "srcr", _OFF | {"consistency": "pl"}),
        Row("BN-BCE + CR (w/o SR)", "srcr", _OFF | {"consistency": "cr"}),
        Row("BN-BCE + SR", "srcr", {"consistency": "none"}),
        Row("BN-BCE + SR + CR (w/o SR)", "srcr", {"saliency": "known"}),
        Row("BN-BCE + SR + CR (w/ SR)", "srcr"),
    ),
)


TABLES = (
    _S4_TABLE1,
    _S4_TABLE2,
)
