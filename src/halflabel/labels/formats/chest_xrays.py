"""Tables of chest X-rays: CheXpert, and NIH ChestX-ray14, as wide tables and tables of tags whose meaning is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from halflabel.labels.audit import LabelImport
from halflabel.labels.formats import tags, wide
from halflabel.labels.formats._csv import first_line, header_fields
from halflabel.labels.policy import Policy

_PATIENT = ("Sex", "Age", "Frontal/Lateral", "AP/PA", "subject_id", "study_id")  # columns of CheXpert
_IMAGE, _FINDINGS = "Image Index", "Finding Labels"
_NIH = {
    *("", _IMAGE, _FINDINGS, "Follow-up #", "Patient ID", "Patient Age", "Patient Gender", "View Position"),
    *("OriginalImage[Width", "Height]", "OriginalImage[Width,Height]"),
    *("OriginalImagePixelSpacing[x", "y]", "OriginalImagePixelSpacing[x,y]"),
}


class TableFormat(NamedTuple):
    """A table of a known form; it has what the module of a format has."""

    USES: tuple[str, ...]
    sniff: Callable[[Path], bool]
    read: Callable[[Path, Policy], LabelImport]


def _columns(path: Path) -> list[str]:
    return header_fields(first_line(path)) if path.suffix.lower() == ".csv" else []


def _read_chexpert(path: Path, policy: Policy) -> LabelImport:
    """Read −1 as uncertain; the columns about the patient are ignored."""
    ignore = dict.fromkeys((*(name for name in _PATIENT if name in _columns(path)), *policy.ignore))
    ignored = tuple(name for name in ignore if name not in policy.where)
    result = wide.read(path, replace(policy, ignore=ignored, minus_one=policy.minus_one or "uncertain"))
    result.audit.format = "chexpert"
    return result


def _read_nih(path: Path, policy: Policy) -> LabelImport:
    """Read findings such as `Mass|Nodule`; those not listed are absent, as the authors of the data set use them."""
    others = {*_columns(path)} - {"", _IMAGE, _FINDINGS, *policy.where}
    stated = replace(policy, image_column=_IMAGE, tag_column=_FINDINGS, ignore=tuple(sorted(others)), separator="|")
    result = tags.read(path, replace(stated, unlisted=policy.unlisted or "absent"))
    result.audit.format = "nih-chestxray"
    if "Patient ID" in others:
        result.audit.note("images of one patient look alike: train with ‹group=Patient ID›")
    if policy.unlisted is None:
        result.audit.note("findings that are not listed are read as absent; ‹unlisted=unknown› reads them otherwise")
    return result


chexpert = TableFormat(
    ("minus_one", "zero", "values", "image_column", "ignore", "where", "encoding", "repeats"),
    lambda path: {"Path", "No Finding", "Cardiomegaly", "Lung Opacity", "Support Devices"} <= set(_columns(path)),
    _read_chexpert,
)
nih_chestxray = TableFormat(
    ("unlisted", "where", "encoding"),
    lambda path: {_IMAGE, _FINDINGS} <= set(_columns(path)) <= _NIH,
    _read_nih,
)
