"""The recipes: how each published table is to be run, in the words of `protocol`.

Where a value is not in a paper's text, `unsaid` names it and the comment says where it comes from. "Released code" is
what the authors, or the authors of the literature they follow, have published; only facts about it are used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halflabel.errors import UserError
from halflabel.reproduce.protocol import Condition, Hiding, Measure, Row, Table, Training

__all__ = ["TABLES", "recipe_for"]


def recipe_for(id: str) -> Table:
    """The recipe of a table, such as S2-table4."""
    if id not in TABLES:
        raise UserError(f"no recipe is called {id!r}", f"use one of: {', '.join(TABLES)}")
    return TABLES[id]


_FLIP = {"least": 1.0, "flip": 0.5}  # a mirror image of the whole picture, no crop


def _partial(percent: int, *, exact: bool) -> Hiding:
    return Hiding("partial", {"share": percent / 100, "exact": exact})


# S1. All methods start from the logistic model and are refined for one epoch; how long that model is trained is not
# said: here one epoch more. In the released code a class without positive test image counts as 0 in the mean.
def _open_images(name: str, tune: str) -> Condition:
    training = Training(
        {"backbone": "resnet101", "tune": tune},
        {
            "epochs": 2,
            "batch_size": 32,
            "lr": 1e-3,
            "backbone_lr": 1.0,
            "optimizer": "rmsprop",
            "schedule": "plateau",
            "step_factor": 0.8,
        },
        unsaid=("size", "resize", "weight_decay", "momentum", "weak", "epochs of the logistic model"),
        differs=(
            "the paper's ResNet-101 is pre-trained on Open Images (a TensorFlow checkpoint): give its weights yourself",
            "the paper lowers the rate whenever the validation mAP falls, several times per epoch",
            "the released code trains end to end with a rate of 1e-5, the text says 0.001",
        ),
    )
    return Condition(name, "open-images", training, select="known labels", validation="validation")


def _group(name: str, group: int | None) -> Measure:
    return Measure(name, "mAP", {"kind": "sklearn", "empty": "zero"} | ({"group": group} if group else {}))


_S1_TABLE1 = Table(
    "S1-table1",
    (_open_images("end to end", "all"), _open_images("fixed features", "head")),
    (*(_group(f"Group {number}", number) for number in range(1, 6)), _group("All classes", None)),
    (
        Row("Logistic", "logistic"),
        # Two classifiers of one model.
        Row("Latent Noise (relevance)", "latent-noise", {"score": "relevance"}),
        Row("Latent Noise (visual)", "latent-noise", {"score": "visual"}),
        Row("CNN-RNN", "cnn-rnn"),
        Row("LSEP", "lsep"),
        Row("Fast0Tag", "fast0tag"),
        Row("Wsabie", "wsabie"),
        Row("Curriculum Labeling", "curriculum", {"relabel_at": "2"}),
        Row("IMCL", "imcl", {"lambda_y": 1.0, "lambda_f": 0.5, "k": 5, "k_a": 50, "logistic_share": 0.5}),
    ),
    (
        "Open Images V3, 5,000 trainable classes, human-verified labels only",
        "groups: classes by number of training annotations, G1 the fewest",
    ),
)


# S2. ResNet-101 with WELDON pooling; "randomly dropping some labels per image" is read as the same number per image.
_S2 = Training(
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
    weak=_FLIP,
    # Resized to 448 x 448: squash. "The same training setting as [16] for each model and dataset" covers the rest.
    unsaid=("momentum", "weight_decay", "backbone_lr"),
)
_RELABEL = {"relabel_at": "10,15"}
_NO_GNN = {"gnn": False}
_NONE = {"strategy": "none"}


def _f1s(prefix: str, *, relative: bool = False) -> tuple[Measure, ...]:
    return (
        Measure("MAP", "mAP", {"kind": "sklearn"}, relative),
        Measure(prefix, "exact_match", {}, relative),
        Measure("Macro-F1", "macro_f1", {}, relative),
        Measure("Micro-F1", "micro_f1", {}, relative),
    )


def _strategy(name: str, strategy: str, theta: float, base: str = "no relabelling", **options: Any) -> Row:
    chosen = {"strategy": strategy, "theta": theta, **_RELABEL, **options}
    return Row(name, "plcl", chosen, relative_to=base)


_S2_TABLE2 = Table(
    "S2-table2",
    (
        Condition(
            "VOC 2007 val",
            "voc2007",
            _S2,
            {"train": "train", "test": "val", "difficult": "unknown"},
            hidings=(_partial(10, exact=True),),
        ),
    ),
    (
        *_f1s("0-1", relative=True),
        Measure("label prop.", "label_proportion"),
        Measure("TP", "tp_rate"),
        Measure("TN", "tn_rate"),
    ),
    (
        Row("no relabelling", "plcl", _NONE),
        Row("no relabelling, without GNN", "plcl", _NONE | _NO_GNN),
        _strategy("2 steps", "2steps", 0.0, relabel_at="10"),
        _strategy("[a] score threshold θ=2", "a", 2.0),
        _strategy("[b] score proportion θ=0.8", "b", 0.8),
        replace(_strategy("[c] positive only θ=5", "c", 5.0), measured_as={"TP": "accuracy_of_guesses"}),
        _strategy("[d] ensemble score θ=2", "d", 2.0),
        _strategy("[e] uncertainty θ=0.3 without GNN", "e", 0.3, "no relabelling, without GNN", gnn=False),
        *(_strategy(f"[e] uncertainty θ={theta}", "e", theta) for theta in (0.1, 0.2, 0.3, 0.4, 0.5)),
    ),
    (
        "how objects marked difficult are treated is not said: here as the VOC challenge does, left out",
        "which model the row without GNN is relative to is not said: here the same without relabelling",
        "when the 2 steps strategy labels is not said: here before epoch 10",
    ),
)

_S2_TABLE4 = Table(
    "S2-table4",
    (Condition("10 %", "coco2014", _S2, hidings=(_partial(10, exact=True),)),),
    _f1s("0-1 exact match"),
    (
        # g_value 1 makes partial-BCE the plain BCE over all classes.
        Row("BCE, not fine-tuned", "plcl", _NONE | _NO_GNN | {"g_value": 1.0}, config={"tune": "head"}),
        Row("BCE", "plcl", _NONE | _NO_GNN | {"g_value": 1.0}),
        Row("partial-BCE", "plcl", _NONE | _NO_GNN),
        Row("partial-BCE + GNN", "plcl", _NONE),
        Row("partial-BCE + relabeling", "plcl", {"strategy": "e", "theta": 0.3, **_RELABEL, **_NO_GNN}),
        Row("partial-BCE + GNN + relabeling", "plcl", {"strategy": "e", "theta": 0.3, **_RELABEL}),
    ),
    ("trained on train2014, tested on val2014",),
)


# S3. mAP with all-point interpolation, as in the released code. F1-C is the mean of the classes' F1: in the tables
# it is not the harmonic mean of P-C and R-C.
def _s3(size: int, start: str, **settings: Any) -> Training:
    return Training(
        {"backbone": "resnet101.tv_in1k", "size": size, "resize": "squash", "tune": "all"},
        {"batch_size": 96, "backbone_lr": 1.0, "optimizer": "sgd", "momentum": 0.9, "schedule": "constant", **settings},
        start="random" if start == "random" else "pretrained",
        unsaid=("epochs", "weak"),
        differs=("the backbone's random weights are the same for every seed and trial",) if start == "random" else (),
    )


_SEMI = {"lr": 1e-4, "weight_decay": 5e-4}
_SUPERVISED = {"lr": 5e-5, "weight_decay": 5e-5}
_BATCHES = tuple({"batch": number} for number in range(1, 6))
_FOLDS = tuple({"fold": number} for number in range(10))
_S3_ROWS = (Row("RML-CNN", "rml"), Row("SS-RML-CNN", "ss-rml"), Row("WARP", "warp"), Row("Softmax", "softmax"))
_RANDOM = {"lr": 1e-3, "weight_decay": 5e-4}
_ACCURACY = (Measure("Accuracy", "accuracy"),)
_TOP_3 = (
    *(
        Measure(name, metric, {"top_k": 3})
        for name, metric in zip(
            ("P-C", "R-C", "F1-C", "P-O", "R-O", "F1-O"), ("CP", "CR", "macro_f1", "OP", "OR", "OF1"), strict=True
        )
    ),
    Measure("mAP", "mAP", {"kind": "interpolated"}),
)

_S3_TABLE1 = Table(
    "S3-table1",
    (
        Condition("ILSVRC init.", "cifar10", _s3(256, "ILSVRC", **_SEMI), {"labelled": 4000}, _BATCHES),
        Condition("random init.", "cifar10", _s3(256, "random", **_RANDOM), {"labelled": 4000}, _BATCHES),
    ),
    _ACCURACY,
    _S3_ROWS,
    ("4,000 labelled images of one batch, the other 46,000 unlabelled; the mean over the five batches",),
)

_S3_TABLE2 = Table(
    "S3-table2",
    (
        Condition("ILSVRC init.", "stl10", _s3(256, "ILSVRC", **_SEMI), {"unlabelled": True}, _FOLDS),
        Condition("random init.", "stl10", _s3(256, "random", **_RANDOM), {"unlabelled": True}, _FOLDS),
    ),
    _ACCURACY,
    _S3_ROWS,
    ("the 1,000 labelled images of each fold and all 100,000 unlabelled ones; the image size is not said",),
)


def _top_3_table(id: str, name: str, dataset: str, rows: tuple[Row, ...]) -> Table:
    # The rate is divided by 10 at iterations 10,000 and 16,000, and weights start from ILSVRC.
    training = replace(
        _s3(224, "ILSVRC", **_SUPERVISED),
        unsaid=("size", "epochs", "weak"),
        differs=("the paper divides the rate by 10 at iterations 10,000 and 16,000; here it is constant",),
    )
    return Table(id, (Condition(name, dataset, training),), _TOP_3, rows)


_OTHERS = (Row("WARP [9]", None), Row("CNN+RNN", "cnn-rnn"), Row("RLSD", None))
_S3_TABLE3 = _top_3_table(
    "S3-table3",
    "NUS-WIDE",
    "nus-wide",
    (
        Row("RML-CNN", "rml"),
        Row("WARP", "warp"),
        Row("Softmax", None),
        *_OTHERS,
        Row("ResNet-107 (binary relevance)", None),
        Row("ResNet-101 (binary relevance)", "bce"),
        Row("CNN+RMLC", "rmlc", config={"tune": "head"}),
    ),
)
_S3_TABLE4 = _top_3_table(
    "S3-table4",
    "MS-COCO",
    "coco2014",
    (
        Row("RML-CNN", "rml"),
        Row("WARP", "warp"),
        *_OTHERS,
        Row("ResNet-101 (binary relevance)", "bce"),
        Row("CNN+RMLC", "rmlc", config={"tune": "head"}),
    ),
)


def _corrupted() -> tuple[Condition, ...]:
    found = []
    cifar = {"labelled": 4000, "unlabelled": False}
    for percent in (10, 20, 30, 40, 50):
        hidings = (Hiding("corrupt", {"share": percent / 100}),)
        name = f"CIFAR-10, {percent} % corrupted"
        found.append(Condition(name, "cifar10", _s3(256, "ILSVRC", **_SUPERVISED), cifar, _BATCHES, hidings=hidings))
        for dataset, title in (("coco2014", "MS-COCO"), ("nus-wide", "NUS-WIDE")):
            for sample in (10, 20):
                name = f"{title} {sample} %, {percent} % corrupted"
                training = _s3(224, "ILSVRC", **_SUPERVISED)
                found.append(Condition(name, dataset, training, sample=sample / 100, hidings=hidings))
    return tuple(found)


_S3_NOISE = Table(
    "S3-noise",
    _corrupted(),
    (Measure("Accuracy", "accuracy"), *_TOP_3),
    (Row("RML-CNN", "rml"), Row("WARP", "warp")),
    (
        "figure 3 of the paper: it prints no number, and says that RML-CNN outperforms WARP everywhere",
        "which measures the figure shows is not in the text: accuracy is meant for CIFAR-10, the others for the rest",
        "rates are optimised per measure in the paper, to values it does not give",
        "the released code draws corrupted labels uniformly; the text keeps the class frequencies, and so does this",
    ),
)


# S4. The text has neither image size nor rate, epochs, augmentations or what is tested; 448 px is the size of the
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
_SHARES = tuple(_partial(percent, exact=False) for percent in range(10, 91, 10))

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
        Condition(f"{percent} %", "coco2014", _S4, hidings=(_partial(percent, exact=False),))
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


# S5. The poster gives the table alone; everything else is the released code. Its validation set is a fifth of the
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
        weak=_FLIP,
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
        Row("ROLE", "role"),
        Row("ROLE+LI", "role-li"),
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
        "the rows between AN loss and ROLE+LI are not in the released code: their options are this library's defaults",
        "1 P. & All N.: the positives that are not kept become unknown",
    ),
)

TABLES: dict[str, Table] = {
    table.id: table
    for table in (
        _S1_TABLE1,
        _S2_TABLE2,
        _S2_TABLE4,
        _S3_TABLE1,
        _S3_TABLE2,
        _S3_TABLE3,
        _S3_TABLE4,
        _S3_NOISE,
        _S4_TABLE1,
        _S4_TABLE2,
        _S5_TABLE,
    )
}
