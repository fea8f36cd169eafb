"""A label format of your own: lines such as `1.jpg: dog(yes) cat(no)`. HALFLABEL_PLUGINS=new_format.py makes it known.

python examples/new_format.py
"""

import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from halflabel.errors import LabelError
from halflabel.labels import formats
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import first_line, read_lines
from halflabel.labels.formats._write import keeps_no_provenance
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.system.files import atomic_write

USES = ("encoding",)  # the options of Policy that the reader takes
keeps_provenance = keeps_no_provenance  # it holds neither sources nor scores
_LINE = re.compile(r"([^:]+):((?: \S+\((?:yes|no)\))+)")


def sniff(path: Path) -> bool:
    return path.suffix == ".txt" and _LINE.fullmatch(first_line(path)) is not None


def read(path: Path, policy: Policy) -> LabelImport:
    images, classes, entries = dict[str, int](), dict[str, int](), []
    for number, line in enumerate(read_lines(path, policy.encoding or "utf-8"), 1):
        if (match := _LINE.fullmatch(line.rstrip())) is None:
            raise LabelError("not an image and its labels", "write 1.jpg: dog(yes) cat(no)", path, line=number)
        image = images.setdefault(match[1], len(images))
        for name, answer in re.findall(r" (\S+)\((yes|no)\)", match[2]):
            entries.append((image, classes.setdefault(name, len(classes)), 1 if answer == "yes" else -1))
    image_of, column, value = np.array(entries).reshape(-1, 3).T
    audit = Audit("yes-no", [str(path)])
    audit.add("yes", "present", int((value > 0).sum()))
    audit.add("no", "absent", int((value < 0).sum()))
    return LabelImport(Labels.build(Names(images), Names(classes), image_of, column, value), audit)


def write(rows: Labels, path: Path) -> None:
    table = rows.training  # the labels that hold
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for name, labels in zip(table.images, table.dense(), strict=True):
            known = [f" {c}({'yes' if v > 0 else 'no'})" for c, v in zip(table.classes, labels, strict=True) if v]
            file.write(f"{name}:{''.join(known)}\n" if known else "")


formats.add_format("yes-no", "one line per image: 1.jpg: dog(yes) cat(no)", sys.modules[__name__])

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        labels = Path(folder) / "labels.txt"
        labels.write_text("1.jpg: dog(yes) cat(no)\n2.jpg: cat(yes)\n", encoding="utf-8")
        print(formats.read(labels).table())
