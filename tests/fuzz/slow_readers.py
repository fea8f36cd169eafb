"""Slow, plain readers of label files with the csv and json modules alone: what a file says, for comparison.

Nothing of halflabel is imported. `labels_of` returns {(image, class): 1, -1 or 2 for uncertain}, or None where these
readers have no opinion. `MustRefuse` means that a file must not be read at all.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

__all__ = ["MustRefuse", "labels_of"]

csv.field_size_limit(1 << 30)

Labels = dict[tuple[str, str], int]
PRESENT = {"1", "1.0", "+1", "true", "t", "yes", "y", "present", "x", "positive", "pos", "✓"}
ABSENT = {"false", "f", "no", "n", "absent", "negative", "neg", "✗"}
UNKNOWN = {"", "?", "nan", "na", "n/a", "null", "none", "unknown"}
ZERO, MINUS_ONE = {"0", "0.0", "-0.0"}, {"-1", "-1.0", "−1"}
IMAGE = ("image", "image_id", "imageid", "id", "file", "filename", "file_name", "path", "photo", "img")
MODELS = ("model", "machine", "ai", "auto", "automatic", "algorithm", "prediction", "predicted")
CLASS = ("class", "label", "tag", "category", "class_name", "label_name")
LISTS = ("tags", "labels", "classes", "categories", "keywords", "hashtags", "keyword", "hashtag")
NEGATIVE = ("absent", "negatives")


class MustRefuse(Exception):
    """A file that says nothing definite."""


def labels_of(path: Path, format: str, policy: dict[str, Any]) -> Labels | None:
    """The labels of a file or folder; None without an opinion."""
    reader = READERS.get(format)
    return None if reader is None else reader(path, policy)


def csv_rows(path: Path, policy: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    raw = path.read_bytes()
    marks = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    marked = next((name for mark, name in marks.items() if raw.startswith(mark)), "utf-8")
    text = raw.decode(policy.get("encoding") or marked).removeprefix("\ufeff")
    # Only \r, \n and \r\n end a line of a CSV file.
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)
    delimiter = None
    if lines and (sep := re.fullmatch(r"sep=([,;\t|])\s*", lines[0])):
        delimiter, lines = sep[1], lines[1:]
    first = next((line for line in lines if line.strip("\r\n")), "")
    if delimiter is None:
        bare = re.sub(r'"[^"]*("|$)', "", first.rstrip("\r\n"))
        delimiter = max(",;\t|", key=bare.count)
    try:
        rows = [row for row in csv.reader(lines, delimiter=delimiter, strict=True) if row]
    except csv.Error as error:
        raise MustRefuse(str(error)) from None
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header) or "" in header:
        raise MustRefuse("header")
    if any(len(row) != len(header) for row in rows):
        raise MustRefuse("fields")
    return header, rows[1:]


def meaning(text: str, policy: dict[str, Any], has_minus_one: bool) -> int:
    """1, -1, 0 for unknown or 2 for uncertain."""
    words = {"present": 1, "absent": -1, "unknown": 0, "uncertain": 2}
    text = text.strip()
    if text in MINUS_ONE:
        if policy.get("minus_one") is None:
            raise MustRefuse("-1")
        return words[policy["minus_one"]]
    if text in ZERO:
        if policy.get("zero") is not None:
            return words[policy["zero"]]
        if has_minus_one and policy.get("minus_one") == "absent":
            raise MustRefuse("0")
        return -1
    for cells, value in ((PRESENT, 1), (ABSENT, -1), (UNKNOWN, 0), ({"uncertain", "unsure"}, 2)):
        if text.lower() in cells:
            return value
    raise MustRefuse(text)


def is_model(source: str) -> bool:
    name = source.strip().lower()
    return name.startswith("model:") or name in MODELS


def resolve(entries: list[tuple[str, str, int, str]]) -> Labels:
    """Later entries win, but a model's never over a person's, unless the person was uncertain; 0 retracts."""
    held: dict[tuple[str, str], tuple[int, bool]] = {}
    for image, label, value, source in entries:
        before = held.get((image, label))
        if before is not None and is_model(source) and not before[1] and before[0] != 2:
            continue
        held.pop((image, label), None)
        if value:
            held[image, label] = value, is_model(source)
    return {pair: value for pair, (value, _) in held.items()}


def mark_unlisted(labels: Labels, pairs: set[tuple[str, str]], images: list[str], policy: dict[str, Any]) -> Labels:
    """With unlisted=absent, every pair without a row is absent."""
    if policy.get("unlisted") == "absent":
        classes = {label for _, label in pairs}
        labels = {**{(i, c): -1 for i in images for c in classes if (i, c) not in pairs}, **labels}
    return labels


def long(path: Path, policy: dict[str, Any]) -> Labels | None:
    if path.suffix == ".parquet" or path.is_dir():
        return None
    header, rows = csv_rows(path, policy)
    lower = {}
    for number, name in enumerate(header):
        lower.setdefault(name.lower(), number)

    def find(names: tuple[str, ...]) -> int | None:
        return next((lower[name] for name in names if name in lower), None)

    image_at, class_at = _image_at(header, policy, find(IMAGE)), find(CLASS)
    value_at = find(("value", "present", "presence", "is_present"))
    source_at = find(("source", "annotator", "tag_source", "label_source"))
    if policy.get("machine") is not None:
        return None
    if image_at is None or class_at is None:
        raise MustRefuse("columns")
    is_own = {"image", "class", "value", "source", "score"} <= set(header)
    if value_at is None and policy.get("unlisted") is None:
        raise MustRefuse("unlisted")
    named = [row for row in rows if row[image_at].strip() and row[class_at].strip()]
    values = {row[value_at].strip() for row in named} if value_at is not None else set()
    stated = dict(policy)
    if is_own:
        stated |= {"minus_one": "absent", "zero": "unknown"}
    own = {"image", "class", "value", "source", "score", "inclusion_weight", "probability", "why"}
    is_like_own = {"image", "class", "value"} <= set(header) <= own
    unanswered = {""} if "inclusion_weight" in header else set()
    if not is_own and is_like_own and values <= {"1", "1.0", *MINUS_ONE, *unanswered}:
        stated.setdefault("minus_one", "absent")
    entries, silent, images, classes = [], set(), [], []
    for row in rows:
        image, label = (row[image_at], row[class_at]) if is_own else (row[image_at].strip(), row[class_at].strip())
        images += [image] if image else []
        classes += [label] if label else []
        if not image or not label:
            continue
        text = "1" if value_at is None else row[value_at].strip()
        if not is_own and text in ZERO and policy.get("zero") is None:
            raise MustRefuse("0")
        value = meaning(text, stated, bool(values & MINUS_ONE))
        if value == 0 and not (is_own and text in ZERO):
            silent.add((image, label))
        else:
            entries.append((image, label, value, row[source_at] if source_at is not None else ""))
    pairs = {(image, label) for image, label, _, _ in entries} | silent
    if policy.get("unlisted") == "absent":
        every = {(image, label) for image in images for label in classes}
        return {**dict.fromkeys(every - pairs, -1), **resolve(entries)}
    return resolve(entries)


def wide(path: Path, policy: dict[str, Any]) -> Labels:
    header, rows = csv_rows(path, policy)
    image_at = _image_at(header, policy, next((n for n, name in enumerate(header) if name.lower() in IMAGE), 0)) or 0
    columns = [n for n, name in enumerate(header) if n != image_at and name not in policy.get("ignore", ())]
    has_minus_one = any(row[n].strip() in MINUS_ONE for row in rows for n in columns)
    seen: dict[str, list[int]] = {}
    for row in rows:
        values = [meaning(row[n], policy, has_minus_one) for n in columns]
        if seen.setdefault(row[image_at], values) != values or not row[image_at]:
            raise MustRefuse("image")
    return {
        (image, header[n]): value
        for image, values in seen.items()
        for n, value in zip(columns, values, strict=True)
        if value
    }


def _image_at(header: list[str], policy: dict[str, Any], usual: int | None) -> int | None:
    stated = policy.get("image_column")
    return header.index(stated) if stated in header else usual


def tags(path: Path, policy: dict[str, Any]) -> Labels | None:
    header, rows = csv_rows(path, policy)
    lower = [name.lower() for name in header]
    listed = [n for n, name in enumerate(lower) if name in LISTS]
    negative = [n for n, name in enumerate(lower) if name in NEGATIVE]
    if len(listed) != 1 or len(negative) > 1:
        return None
    usual = next((lower.index(name) for name in IMAGE if name in lower), int(listed[0] == 0))
    image_at = _image_at(header, policy, usual)
    assert image_at is not None
    if any({"source", "annotator", "labeler", "origin", "method"} & set(re.findall("[a-z]+", name)) for name in lower):
        return None
    cells = {row[n].strip() for row in rows for n in (*listed, *negative)} - {""}
    if any(cell.startswith(("[", "#")) for cell in cells):
        return None
    counts = {mark: sum(mark in cell for cell in cells) for mark in ",;|"}
    winners = [mark for mark, count in counts.items() if count == max(counts.values())]
    if not any(counts.values()):
        pattern = r"[\r\n]+" if any(re.search(r"[\r\n]", cell) for cell in cells) else None
    else:
        pattern = re.escape(winners[0]) if len(winners) == 1 else None
    labels: Labels = {}
    images = []
    for sign, columns in ((-1, negative), (1, listed)):
        for row in rows:
            image = row[image_at].strip()
            images.append(image)
            for n in columns:
                for tag in re.split(pattern, row[n]) if pattern else [row[n]]:
                    if tag.strip():
                        labels[image, tag.strip()] = sign
    return mark_unlisted(labels, set(labels), images, policy)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise MustRefuse("a key occurs twice")
    return dict(pairs)


def load(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(raw.decode(json.detect_encoding(raw)).removeprefix("\ufeff"), object_pairs_hook=unique_keys)


def coco(path: Path, policy: dict[str, Any]) -> Labels:
    content = load(path)
    names: dict[Any, str] = {}
    for record in content["images"]:
        name = record.get("file_name") or (record.get("coco_url") or "").rsplit("/", 1)[-1] or str(record["id"])
        names[type(record["id"]), record["id"]] = name
    classes = {(type(record["id"]), record["id"]): record["name"] for record in content["categories"]}
    entries: list[tuple[str, str, int, str]] = []
    for record in content["images"]:
        for number in record.get("neg_category_ids") or []:
            image = names[type(record["id"]), record["id"]]
            entries.append((image, classes[type(number), number], -1, ""))
    for record in content["annotations"]:
        image, source = record["image_id"], record.get("source")
        for part in record.get("segments_info", [record]):
            label = part["category_id"]
            entry = names[type(image), image], classes[type(label), label], 1, source if isinstance(source, str) else ""
            entries.append(entry)
    if policy.get("unlisted") == "absent":
        listed = {(image, label) for image, label, _, _ in entries}
        every = {(image, label) for image in names.values() for label in classes.values()}
        return {**dict.fromkeys(every - listed, -1), **resolve(entries)}
    return resolve(entries)


def open_images(path: Path, policy: dict[str, Any]) -> Labels | None:
    if path.is_dir() or policy.get("machine") is not None or list(path.parent.glob("*class-descriptions*.csv")):
        return None
    header, rows = csv_rows(path, {})
    at = {name: header.index(name) for name in ("ImageID", "LabelName", "Confidence")}
    source_at = header.index("Source") if "Source" in header else None
    labels: Labels = {}
    for row in rows:
        confidence = float(row[at["Confidence"]])
        by_machine = source_at is not None and row[source_at] == "machine"
        if confidence in (0, 1) and not by_machine:
            labels[row[at["ImageID"]], row[at["LabelName"]]] = 1 if confidence else -1
    return labels if source_at is None or not any(is_model(row[source_at]) for row in rows) else None


def voc(path: Path, policy: dict[str, Any]) -> Labels:
    main = path / "ImageSets" / "Main" if (path / "ImageSets" / "Main").is_dir() else path
    splits = {file.stem.rpartition("_")[2] for file in main.glob("?*_?*.txt") if file.is_file()}
    split = policy.get("split") or next(iter(splits))
    difficult = {"present": 1, "absent": -1}.get(policy.get("difficult"), 0)
    labels: Labels = {}
    for file in main.glob(f"?*_{split}.txt"):
        if not file.is_file():
            continue
        name = file.stem.rpartition("_")[0]
        for line in re.split(r"[\r\n]+", file.read_bytes().decode().removeprefix("\ufeff")):
            if fields := line.split():
                image, flag = fields
                if value := {"1": 1, "+1": 1, "-1": -1, "0": difficult}[flag]:
                    labels[image, name] = value
    return labels


def camtrap(path: Path, policy: dict[str, Any]) -> Labels | None:
    folder = path if path.is_dir() else path.parent
    tables = []
    for name in ("media.csv", "observations.csv"):
        header, rows = csv_rows(folder / name, {})
        tables.append([dict(zip(header, row, strict=True)) for row in rows])
    media, observations = tables
    ids = [medium["mediaID"] for medium in media]
    if len(set(ids)) < len(ids) or "" in ids:
        raise MustRefuse("media")
    names = [medium["filePath"] for medium in media]
    if any("://" in name for name in names):
        names = [medium.get("fileName", "") for medium in media]
    names = names if all(names) and len(set(names)) == len(names) else ids
    seen, open_, entries, classes = set(), set(), [], set()
    observed = {row["mediaID"] for row in observations}
    for row in observations:
        about = [
            name
            for name, medium in zip(names, media, strict=True)
            if (row["mediaID"] == medium["mediaID"])
            or (
                not row["mediaID"]
                and medium["mediaID"] not in observed
                and row.get("deploymentID", "") == medium.get("deploymentID", "")
                and row.get("eventStart", "") <= medium.get("timestamp", "") <= row.get("eventEnd", "")
            )
        ]
        if not row["mediaID"] and "timestamp" not in media[0]:
            raise MustRefuse("timestamp")
        if row["mediaID"] and not about:
            raise MustRefuse("mediaID")
        kind = row["observationType"]
        name = row.get("scientificName", "") or (kind if kind in ("human", "vehicle") else "")
        if not name and kind not in ("blank", "animal", "unknown", "unclassified"):
            raise MustRefuse(kind)
        (seen if name or kind == "blank" else open_).update(about)
        classes |= {name} - {""}
        by = row.get("classifiedBy", "")
        is_machine = row.get("classificationMethod") == "machine"
        entries += [(image, name, 1, f"model:{by}" if is_machine else by) for image in about if name]
    labels = resolve(entries)
    if policy.get("unlisted") != "unknown":
        labels = {**{(image, name): -1 for image in seen - open_ for name in classes}, **labels}
    return labels


def bigearthnet(path: Path, policy: dict[str, Any]) -> Labels | None:
    if not path.is_dir() or any(path.glob("*.parquet")):
        return None
    labels: Labels = {}
    patches = list(path.glob("*/*_labels_metadata.json"))
    for file in patches:
        labels |= {(file.parent.name, name): 1 for name in load(file)["labels"]}
    return mark_unlisted(labels, set(labels), [file.parent.name for file in patches], {"unlisted": "absent", **policy})


READERS = {
    "long": long,
    "wide": wide,
    "tags": tags,
    "coco": coco,
    "lvis": coco,
    "open-images": open_images,
    "voc": voc,
    "camtrap-dp": camtrap,
    "bigearthnet": bigearthnet,
}
