"""Protocols, label masks and measures in words, for the output of `halflabel reproduce`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from halflabel.comparison.bench import Start
from halflabel.comparison.grid import LabelMask
from halflabel.fitting.config import Settings
from halflabel.papers.measure import LABEL_METRICS, METRICS, RELABEL_METRICS
from halflabel.papers.spec import InitialModel, PaperMeasure, PaperTable, TableRow
from halflabel.system.format import counted

_OPTIONS = {
    ("kind", "sklearn"): "not interpolated",
    ("kind", "interpolated"): "interpolated at all points",
    ("empty", "zero"): "a class without a positive test image counts as 0",
    ("no_negative", "one"): "a class without a negative test label counts as 1",
}
_MASKS = {
    "": "all labels",
    "dense": "all labels of {} % of the images",
    "noisy": "all labels, {} % of each image's wrong",
    "noisy+": "one positive label of each image, all others negative",
    "positives": "{} % of the positives, no negatives",
}


def describe_table(table: PaperTable) -> list[str]:
    """How the paper ran its table: each line once, with the conditions or rows it is about."""
    lines: dict[str, list[str]] = {}
    for condition in table.conditions:
        training = condition.training
        sample = f", {100 * condition.sample:g} % of the training images" if condition.sample < 1 else ""
        split = f"the images of the split {condition.test_split}; " if condition.test_split != "test" else ""
        from_random = training.backbone_weights == "random"
        lines[condition.name] = [
            f"data set {condition.dataset}{sample}",
            f"labels that training sees: {describe_masks([mask.label_mask() for mask in condition.masks])}",
            describe_training({**training.config, **training.settings}, from_random, training.initial_model),
            f"tested: {split}{condition.describe_selection()}",
            *(["images without a known label are not used for training"] if condition.labelled_only else []),
            *([f"not stated in the paper: {', '.join(training.unsaid)}"] if training.unsaid else []),
            *(f"not as in the paper: {line}" for line in training.differs),
            *condition.notes,
        ]
    rows = [row for row in table.rows if row.method]
    return [
        *group_lines(lines, most=3),
        *group_lines({row.name: _own_settings(row) for row in rows}, "all rows"),
        *(f"not as in the paper: {line}" for line in group_lines({row.name: row.differs for row in rows}, "all rows")),
    ]


def _own_settings(row: TableRow) -> list[str]:
    """What one row is trained with instead of the condition's settings, in one line."""
    parts = [f"{name.replace('_', ' ')} {value}" for name, value in {**row.config, **row.settings}.items()]
    if row.mask is not None:
        parts.append(f"labels that training sees: {describe_masks([row.mask.label_mask()])}")
    if row.masks_by_condition:
        masks = [mask.label_mask() for mask in row.masks_by_condition.values()]
        parts.append(f"labels that training sees, by condition: {describe_masks(masks)}")
    if row.labelled_only:
        parts.append("images without a known label are not used for training")
    if row.initial_model is not None:
        parts.append(_describe_initial(row.initial_model))
    return ["; ".join(parts)] if parts else []


def describe_training(settings: Mapping[str, Any], from_random: bool, initial: InitialModel | Start | None) -> str:
    """Backbone, image size, optimizer, epochs and so on, from fields of `Config` and `Settings`.

    >>> describe_training({"backbone": "tiny", "tune": "head", "optimizer": "adam", "batch_size": 8}, False, None)
    'tiny, native px, head on frozen features, 10 epochs of adam, batches of 8'
    """
    parts = [
        f"{settings['backbone']}{' from random weights' if from_random else ''}",
        f"{settings.get('size') or 'native'} px",
        "head on frozen features" if settings["tune"] == "head" else "all tuned",
        f"{counted(settings.get('epochs', Settings.epochs), 'epoch')} of {settings['optimizer']}"
        + (f" at a rate of {settings['lr']:g}" if "lr" in settings else ""),
        f"batches of {settings['batch_size']}",
    ]
    if patience := settings.get("patience"):
        parts.append(f"stopped after {counted(patience, 'epoch')} without improvement")
    if linear_init := settings.get("linear_init"):
        parts.append(f"after {counted(linear_init, 'epoch')} of the head alone")
    if initial is not None:
        parts.append(_describe_initial(initial))
    return ", ".join(parts)


def _describe_initial(model: InitialModel | Start) -> str:
    images = " on the labelled images only" if model.labelled_only else ""
    return f"from the weights of the model {model.method} after {counted(model.epochs, 'epoch')}{images}"


def describe_masks(masks: Sequence[LabelMask]) -> str:
    """The labels that masks leave known; shares of the same protocol are listed together.

    >>> describe_masks([LabelMask("partial", (("exact", False), ("share", share))) for share in (0.1, 0.2, 0.3)])
    '10, 20 and 30 % of the labels, drawn one by one'
    >>> describe_masks([LabelMask("partial", (("exact", True), ("share", 0.1)))])
    "10 % of each image's labels"
    >>> describe_masks([LabelMask("dense", (("share", share),)) for share in (0.1, 0.2)])
    'all labels of 10 and 20 % of the images'
    >>> describe_masks([LabelMask(), LabelMask("single-positive"), LabelMask("corrupt", (("share", 0.5),))])
    'all labels, single-positive, corrupt at 50 %'
    """
    shares: dict[str, dict[str, None]] = {}
    for mask in masks:
        options = dict(mask.options)
        share = f"{100 * options.pop('share'):g}" if isinstance(options.get("share"), float) else ""
        if mask.protocol in _MASKS:
            text = _MASKS[mask.protocol]
        elif mask.protocol == "partial":
            is_exact = options.get("exact", True)
            text = "{} % of each image's labels" if is_exact else "{} % of the labels, drawn one by one"
        else:
            text = ", ".join([mask.protocol, *(f"{name} {value}" for name, value in options.items())])
            text += " at {} %" if share else ""
        shares.setdefault(text, {})[share] = None
    return ", ".join(text.format(_join(list(each))) for text, each in shares.items())


def _join(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def describe_measure(measure: PaperMeasure) -> str:
    options = ", ".join(_OPTIONS.get((name, value), f"{name} {value}") for name, value in measure.options.items())
    text = {**METRICS, **RELABEL_METRICS, **LABEL_METRICS}[measure.metric].partition(";")[0]
    relative = "; the difference to another row" if measure.relative else ""
    return f"{measure.name}: {text}" + (f" ({options})" if options else "") + relative


def group_lines(lines: Mapping[str, Sequence[str]], all_names: str = "", most: int | None = None) -> list[str]:
    """Each line once, after the names of the conditions or rows it is about, of which at most `most` are listed.

    A line that is about all names comes first, after `all_names`, or alone if that is empty.

    >>> group_lines({"10 %": ["a", "b"], "20 %": ["a", "b"], "30 %": ["a"], "40 %": ["c"]}, most=2)
    ['10 % and 2 others: a', '10 %; 20 %: b', '40 %: c']
    >>> group_lines({"x": ["a"], "y": ["a"]}), group_lines({"x": ["a"], "y": ["a"]}, "all rows")
    (['a'], ['all rows: a'])
    """
    names_by_line: dict[str, list[str]] = {}
    for name, own_lines in lines.items():
        for line in dict.fromkeys(own_lines):
            names_by_line.setdefault(line, []).append(name)
    grouped = []
    for line, names in sorted(names_by_line.items(), key=lambda item: len(item[1]) < len(lines)):
        prefix = "; ".join(names) if most is None or len(names) <= most else f"{names[0]} and {len(names) - 1} others"
        if len(names) == len(lines) and (len(lines) > 1 or not all_names):
            prefix = all_names
        grouped.append(f"{prefix}: {line}" if prefix else line)
    return grouped
