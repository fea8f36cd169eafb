"""How tables are run, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from halflabel.experiments.grid import LabelMask
from halflabel.experiments.shared_start import Start
from halflabel.papers.measure import GIVEN, GUESSES, METRICS
from halflabel.papers.spec import Begin, Measure, Row, Table
from halflabel.system.format import counted
from halflabel.training.config import Settings

__all__ = [
    "begins",
    "by_condition",
    "described",
    "joined",
    "labels_seen",
    "protocol_of",
    "rows_differ",
    "stops",
]

_OPTIONS = {
    ("kind", "sklearn"): "not interpolated",
    ("kind", "interpolated"): "interpolated at all points",
    ("empty", "zero"): "a class without positive test image counts as 0",
}


def protocol_of(table: Table) -> list[str]:
    """How the paper runs its table, in words: each line once, with the conditions it is about."""
    lines: dict[str, list[str]] = {}
    for one in table.conditions:
        config, settings = one.training.config, one.training.settings
        rate = f" at a rate of {settings['lr']:g}" if "lr" in settings else ""
        hidden = [LabelMask(each.protocol, tuple(sorted(each.options.items()))) for each in one.hidings]
        lines[one.name] = [
            f"data set {one.dataset}" + (f", {100 * one.sample:g} % of the training images" if one.sample < 1 else ""),
            f"labels that training sees: {labels_seen(hidden)}",
            f"{config['backbone']}{' from random weights' if one.training.start == 'random' else ''}, "
            f"{config.get('size') or 'native'} px, {'head only' if config['tune'] == 'head' else 'all tuned'}, "
            f"{counted(settings.get('epochs', Settings.epochs), 'epoch')} of {settings['optimizer']}{rate}, "
            f"batches of {settings['batch_size']}{stops(settings.get('patience', 0))}{begins(one.training.begin)}",
            f"tested: {f'the images of the split {one.test}; ' if one.test != 'test' else ''}{one.tested}",
        ]
        lines[one.name] += ["images of which nothing is known are not trained on"] if one.labelled_only else []
        lines[one.name] += [f"left open by the paper: {', '.join(one.training.unsaid)}"] if one.training.unsaid else []
        lines[one.name] += [f"not as in the paper: {line}" for line in one.training.differs]
        lines[one.name] += one.notes
    rows = [f"not as in the paper: {line}" for line in rows_differ(row for row in table.rows if row.method)]
    return [*by_condition(lines, most=3), *_rows_own(table), *rows]


def _rows_own(table: Table) -> list[str]:
    """What single rows are trained with in place of what the conditions say: each line once, with its rows."""
    about: dict[str, list[str]] = {}
    for row in table.rows:
        own = [f"{name.replace('_', ' ')} {value}" for name, value in {**row.config, **row.settings}.items()]
        if row.hiding is not None:
            hiding = LabelMask(row.hiding.protocol, tuple(sorted(row.hiding.options.items())))
            own.append(f"labels that training sees: {labels_seen([hiding])}")
        if row.hidings:
            seen = [LabelMask(one.protocol, tuple(sorted(one.options.items()))) for one in row.hidings.values()]
            own.append(f"labels that training sees, by condition: {labels_seen(seen)}")
        if row.labelled_only:
            own.append("images of which nothing is known are not trained on")
        if row.begin is not None:
            own.append(begins(row.begin).removeprefix(", "))
        if own and row.method is not None:
            about.setdefault("; ".join(own), []).append(row.name)
    return [f"{'; '.join(names)}: {line}" for line, names in about.items()]


def rows_differ(rows: Iterable[Row]) -> list[str]:
    """What is not as in the paper about rows of their own: each line once, with the rows it is about."""
    about: dict[str, list[str]] = {}
    every = list(rows)
    for row in every:
        for line in row.differs:
            about.setdefault(line, []).append(row.name)
    return [
        f"{'all rows' if len(names) == len(every) > 1 else ', '.join(names)}: {line}" for line, names in about.items()
    ]


def labels_seen(hidings: Sequence[LabelMask]) -> str:
    """What hiding leaves of the labels; shares that are hidden alike come together.

    >>> labels_seen([LabelMask("partial", (("exact", False), ("share", share))) for share in (0.1, 0.2, 0.3)])
    '10, 20 and 30 % of the labels, drawn one by one'
    >>> labels_seen([LabelMask("partial", (("exact", True), ("share", 0.1)))])
    "10 % of each image's labels"
    >>> labels_seen([LabelMask("dense", (("share", share),)) for share in (0.1, 0.2)])
    'all labels of 10 and 20 % of the images'
    >>> labels_seen([LabelMask(), LabelMask("single-positive"), LabelMask("corrupt", (("share", 0.5),))])
    'all labels, single-positive, corrupt at 50 %'
    """
    shares: dict[str, list[str]] = {}
    for one in hidings:
        options = dict(one.options)
        share = f"{100 * options.pop('share'):g}" if isinstance(options.get("share"), float) else ""
        if not one.protocol:
            text = "all labels"
        elif one.protocol == "partial" and options.get("exact", True):
            text = "{} % of each image's labels"
        elif one.protocol == "partial":
            text = "{} % of the labels, drawn one by one"
        elif one.protocol == "dense":
            text = "all labels of {} % of the images"
        elif one.protocol == "noisy":
            text = "all labels, {} % of each image's wrong"
        elif one.protocol == "noisy+":
            text = "one positive label of each image, all others negative"
        else:
            text = ", ".join([one.protocol, *(f"{name} {value}" for name, value in options.items())])
            text += " at {} %" if share else ""
        shares.setdefault(text, []).append(share)
    return ", ".join(text.format(_and(list(dict.fromkeys(found)))) for text, found in shares.items())


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def described(one: Measure) -> str:
    options = ", ".join(_OPTIONS.get((name, value), f"{name} {value}") for name, value in one.options.items())
    text = {**METRICS, **GUESSES, **GIVEN}[one.metric].partition(";")[0]
    relative = "; the difference to another row" if one.relative else ""
    return f"{one.name}: {text}" + (f" ({options})" if options else "") + relative


def stops(patience: int) -> str:
    """When training ends before its last epoch.

    >>> stops(1)
    ', ended after 1 epoch without a better one'
    """
    return f", ended after {patience} epoch{'s' if patience > 1 else ''} without a better one" if patience else ""


def begins(start: Begin | Start | None) -> str:
    """What rows begin with.

    >>> begins(Begin("logistic", 2))
    ', from the weights of the model logistic after 2 epochs of the same'
    >>> begins(Begin("rml", 1, labelled_only=True))
    ', from the weights of the model rml after 1 epoch of the same on the labelled images alone'
    """
    if start is None:
        return ""
    where = " on the labelled images alone" if start.labelled_only else ""
    return f", from the weights of the model {start.method} after {counted(start.epochs, 'epoch')} of the same{where}"


def joined(words: Sequence[str]) -> list[str]:
    return [", ".join(words)] if words else []


def by_condition(lines: Mapping[str, Sequence[str]], most: int | None = None) -> list[str]:
    """Each line once, with the conditions it is about, at most so many by name, unless it is about all."""
    about: dict[str, list[str]] = {}
    for name, said in lines.items():
        for line in dict.fromkeys(said):
            about.setdefault(line, []).append(name)
    return [line if len(names) == len(lines) else f"{_listed(names, most)}: {line}" for line, names in about.items()]


def _listed(names: Sequence[str], most: int | None) -> str:
    """
    >>> _listed(["10 %", "20 %", "30 %"], 2), _listed(["10 %", "20 %"], 2)
    ('10 % and 2 others', '10 %, 20 %')
    """
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} others"
