"""CheXpert CSV: a wide table of findings from X-ray reports, beside columns about the patient.

1 is present, 0 absent, blank not mentioned (unknown) and −1 uncertain, unless `minus_one` states otherwise. Files of
the same layout, such as those of MIMIC-CXR-JPG with a Path column, are read too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from halflabel.labels.audit import LabelImport
from halflabel.labels.formats import wide
from halflabel.labels.formats._csv import first_line, header_fields
from halflabel.labels.policy import Policy

USES = ("minus_one", "zero", "values", "image_column", "ignore", "where", "encoding", "repeats")

_FINDINGS = {"No Finding", "Cardiomegaly", "Lung Opacity", "Support Devices"}  # their presence is proof enough
_ABOUT_PATIENT = ("Sex", "Age", "Frontal/Lateral", "AP/PA", "subject_id", "study_id")


def sniff(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and {"Path", *_FINDINGS} <= set(header_fields(first_line(path)))


def read(path: Path, policy: Policy) -> LabelImport:
    header = header_fields(first_line(path))
    ignore = dict.fromkeys((*(name for name in _ABOUT_PATIENT if name in header), *policy.ignore))
    ignored = tuple(name for name in ignore if name not in policy.where)
    result = wide.read(path, replace(policy, ignore=ignored, minus_one=policy.minus_one or "uncertain"))
    result.audit.format = "chexpert"
    return result
