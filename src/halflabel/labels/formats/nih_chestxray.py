"""NIH ChestX-ray14 CSV: `Image Index,Finding Labels,…` with findings such as `Mass|Nodule`, or `No Finding`.

Every finding that is not listed is absent, as the authors of the data set use it, unless `unlisted` states otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from halflabel.labels.audit import LabelImport
from halflabel.labels.formats import tags
from halflabel.labels.formats._csv import first_line, header_fields
from halflabel.labels.policy import Policy

USES = ("unlisted", "where", "encoding")

_IMAGE, _FINDINGS = "Image Index", "Finding Labels"
_OTHERS = (
    *("Follow-up #", "Patient ID", "Patient Age", "Patient Gender", "View Position"),
    *("OriginalImage[Width", "Height]", "OriginalImage[Width,Height]"),
    *("OriginalImagePixelSpacing[x", "y]", "OriginalImagePixelSpacing[x,y]"),
)


def sniff(path: Path) -> bool:
    header = header_fields(first_line(path))
    return path.suffix.lower() == ".csv" and {_IMAGE, _FINDINGS} <= set(header) <= {_IMAGE, _FINDINGS, *_OTHERS, ""}


def read(path: Path, policy: Policy) -> LabelImport:
    others = {*header_fields(first_line(path))} - {"", _IMAGE, _FINDINGS, *policy.where}
    stated = replace(
        policy,
        image_column=_IMAGE,
        tag_column=_FINDINGS,
        ignore=tuple(sorted(others)),
        separator="|",
        unlisted=policy.unlisted or "absent",
    )
    result = tags.read(path, stated)
    result.audit.format = "nih-chestxray"
    if "Patient ID" in others:
        result.audit.note("images of one patient look alike: train with ‹group=Patient ID›")
    if policy.unlisted is None:
        result.audit.note("findings that are not listed are read as absent; ‹unlisted=unknown› reads them otherwise")
    return result
