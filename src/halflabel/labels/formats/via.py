"""VGG Image Annotator JSON: a project, or its annotations (versions 1 and 2). The class is an attribute of regions.

Where several attributes have values, `tag_column` states which one is the class; it may also be one of the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, load_document, reader, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted", "tag_column")

sniff = sniffer("[.]json", "{", '"regions"', '"filename"', '"file_attributes"|"shape_attributes"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The attribute of all regions of each image."""
    document = load_document(path)
    images = document["_via_img_metadata"] if "_via_img_metadata" in document.object() else document
    regions = [[region["region_attributes"] for region in image["regions"].each()] for image in images.each()]
    column = policy.tag_column
    if column is None:
        with_values = {node.key for each in regions for region in each for node in region.each() if _classes(node)}
        if len(with_values) != 1:
            choice = sorted(
                map(str, with_values or {n.key for i in images.each() for n in i["file_attributes"].each()})
            )
            fix = "add " + " or ".join(f"‹tag_column={name}›" for name in choice[:4])
            found = ", ".join(map(repr, choice)) or "none"
            raise images.error(
                f"which attribute is the class? Of regions: {found}",
                fix if choice else "annotate in VIA with an attribute",
            )
        column = str(with_values.pop())
    for image, of_regions in zip(images.each(), regions, strict=True):
        labels = [Label(name, "region") for region in of_regions for name in _classes(region[column])]
        labels += [Label(name, "attribute of the file") for name in _classes(image["file_attributes"][column])]
        yield ImageRecord(image["filename"], labels)


def _classes(node: Node) -> list[str]:
    """The classes in a value: a text, or an object whose keys are those of ticked boxes."""
    if isinstance(node.value, dict):
        return [name for name, is_ticked in node.value.items() if is_ticked is True]
    return [] if node.value in (None, "", "undefined") else [node.name().strip()]


read = reader("via", entries)
