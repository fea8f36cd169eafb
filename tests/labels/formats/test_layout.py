"""Tables as people have them: the first command that a refusal proposes is run as printed, and the labels are right."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.labels import formats

MOST_STEPS = 2
_ROADS = (
    "clear primary|cloudy|haze primary|agriculture clear primary road|clear primary water|agriculture clear primary"
    "|clear primary road|haze primary water|agriculture haze primary|primary|clear primary road water|haze primary road"
)

# Content, and the present classes of each image.
TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "blanks between tags": (
        "image_name,tags\n" + "".join(f"t{n},{tags}\n" for n, tags in enumerate(_ROADS.split("|"))),
        {f"t{n}": tags for n, tags in enumerate(_ROADS.split("|"))},
    ),
    "numbers without a header": (
        "1000,1 2 3\n1001,2\n1002,1 3\n1003,2 3\n",
        {"1000": "1 2 3", "1001": "2", "1002": "1 3", "1003": "2 3"},
    ),
    "names with blanks": ("image,label\na.jpg,traffic light\nb.jpg,dog\n", {"a.jpg": "traffic_light", "b.jpg": "dog"}),
    "a split": (
        "filepath,label,split\nx/a.avi,duiker,train\nx/b.mp4,elephant,val\nx/c.avi,duiker,holdout\n",
        {"x/a.avi": "duiker", "x/b.mp4": "elephant", "x/c.avi": "duiker"},
    ),
    "a title": (
        "Id,Genre,Title\n1,Action|Comedy,The Mask of Zorro\n2,Drama,Heat of the Night\n3,Comedy,Big\n4,Drama,Up\n",
        {"1": "Action Comedy", "2": "Drama", "3": "Comedy", "4": "Drama"},
    ),
    "a list of Python beside a column per class": (
        "Id,Genre,Action,Comedy\ntt1,\"['Action', 'Comedy']\",1,1\ntt2,['Comedy'],0,1\n",
        {"tt1": "Action Comedy", "tt2": "Comedy"},
    ),
    "a list of JSON": (
        'file,objects\na.jpg,"[""dog"", ""cat""]"\nb.jpg,"[""dog""]"\n',
        {"a.jpg": "dog cat", "b.jpg": "dog"},
    ),
    "hashtags": ("photo;text\na.jpg;#dog #cat\nb.jpg;#cat\n", {"a.jpg": "dog cat", "b.jpg": "cat"}),
    "no header, a class per row": (
        "a.jpg,dog\nb.jpg,cat\nc.jpg,dog\n",
        {"a.jpg": "dog", "b.jpg": "cat", "c.jpg": "dog"},
    ),
    "no header, a value per row": ("a.jpg,dog,1\nb.jpg,cat,1\n", {"a.jpg": "dog", "b.jpg": "cat"}),
    "no header, a column per class": ("a.PNG,1,0\nb.png,0,1\n", {"a.PNG": "2", "b.png": "3"}),
    "no header, lists": ('a.jpg,"dog;cat"\n', {"a.jpg": "dog cat"}),
    "row numbers of pandas": (",image,dog\n0,a.jpg,1\n1,b.jpg,0\n", {"a.jpg": "dog", "b.jpg": ""}),
    "named row numbers of pandas": ("Unnamed: 0,image,dog\n0,a.jpg,1\n1,b.jpg,0\n", {"a.jpg": "dog", "b.jpg": ""}),
    "row numbers of R": ('"image","dog"\n"1","a.jpg",1\n"2","b.jpg",0\n', {"a.jpg": "dog", "b.jpg": ""}),
    "images as the nameless index": (",dog,cat\na.jpg,1,0\nb.jpg,0,1\n", {"a.jpg": "dog", "b.jpg": "cat"}),
    "columns about the photo": (
        "image,date,photographer,width,dog,cat\na.jpg,2024-05-01,Ann,640,1,0\nb.jpg,2024-05-02,Ben,800,0,1\n",
        {"a.jpg": "dog", "b.jpg": "cat"},
    ),
    "boxes": (
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,9,9,dog,1,1,2,2\na.jpg,9,9,cat,1,1,2,2\nb.jpg,9,9,dog,0,0,1,1\n",
        {"a.jpg": "dog cat", "b.jpg": "dog"},
    ),
    "codes beside names": (
        "image,class_id,class_name\na.jpg,3,dog\nb.jpg,7,cat\nc.jpg,3,dog\n",
        {"a.jpg": "dog", "b.jpg": "cat", "c.jpg": "dog"},
    ),
}


def run(words: list[str]) -> tuple[bool, str]:
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 2), (words, result.output, result.exception)
    return result.exit_code == 0, result.output


def follow(words: list[str]) -> int:
    """The number of refusals until a command succeeds; each next command is the first that the refusal proposes."""
    for step in range(MOST_STEPS + 1):
        succeeded, output = run(words)
        if succeeded:
            return step
        _, mark, fix = output.partition("fix: halflabel ")
        assert mark, output
        words = shlex.split(fix.splitlines()[0], comments=True)
    raise AssertionError(output)


@pytest.mark.parametrize("name", TABLES)
def test_the_first_proposed_command_reads_the_labels(tmp_path: Path, name: str) -> None:
    content, expected = TABLES[name]
    path, out = tmp_path / "labels.csv", tmp_path / "out.csv"
    path.write_text(content)
    follow(["import", str(path), str(out)])
    labels = {image: {label.replace("_", " ") for label in names.split()} for image, names in expected.items()}
    assert present(out) == labels
    assert present(path) == labels  # what was stated is kept beside the file


def present(path: Path) -> dict[str, set[str]]:
    """The present classes of each image of a label file."""
    table = formats.read(path).table()
    rows = zip(table.images, table.dense() > 0, strict=True)
    return {image: {table.classes[column] for column in row.nonzero()[0]} for image, row in rows}
