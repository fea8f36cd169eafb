"""Tables as people have them: the first command that a refusal proposes is run as printed, and the labels are right."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from label_files import packed
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import LabelError
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
        "image,date,photographer,sex,width,dog,cat\na.jpg,2024-05-01,Ann,F,640,1,0\nb.jpg,2024-05-02,Ben,F,800,0,1\n",
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
    "two columns of addresses": (
        "id,observed_on,url,image_url,scientific_name,common_name\n1,2020-01-02,https://i/1,https://s/1.jpg,Vulpes,Fox\n"
        "2,2020-01-03,https://i/2,https://s/2.jpg,Meles,Badger\n3,2020-01-03,https://i/2,https://s/3.jpg,Meles,Badger\n",
        {"https://s/1.jpg": "Vulpes", "https://s/2.jpg": "Meles", "https://s/3.jpg": "Meles"},
    ),
    "lines that differ": ("image,dog,cat\na.jpg,1,0\na.jpg,0,1\nb.jpg,0,1\n", {"a.jpg": "dog cat", "b.jpg": "cat"}),
    "lines that are the same": ("image,dog,cat\na.jpg,1,0\na.jpg,1,0\nb.jpg,0,1\n", {"a.jpg": "dog", "b.jpg": "cat"}),
    "counts": (
        "image,dog,cat\na.jpg,2,0\nb.jpg,0,1\nc.jpg,1,7\n",
        {"a.jpg": "dog", "b.jpg": "cat", "c.jpg": "dog cat"},
    ),
    "words": ("image,dog,cat\na.jpg,positive,neg\nb.jpg,negative,pos\n", {"a.jpg": "dog", "b.jpg": "cat"}),
    "yes and no beside a list": (
        "Image Index,Finding Labels,Age,Fracture,Nodule,Set Id\na.png,Mass|Edema,60,NO,YES,test\n"
        "b.png,Mass,0,YES,NO,test\n",
        {"a.png": "Nodule", "b.png": "Fracture"},
    ),
    "scores": ("image,class,confidence\na.jpg,dog,0.9\nb.jpg,cat,0.3\n", {"a.jpg": "dog", "b.jpg": ""}),
    "Vertex AI": (
        "TRAIN,gs://b/a.jpg,dog,cat\nTEST,gs://b/b.jpg,dog\nTRAIN,gs://b/c.jpg,cat\n",
        {"gs://b/a.jpg": "dog cat", "gs://b/b.jpg": "dog", "gs://b/c.jpg": "cat"},
    ),
    "AutoML with boxes": (
        "TRAIN,gs://b/a.jpg,dog,0.1,0.1,,,0.3,0.3,,\nTEST,gs://b/a.jpg,cat,0.1,0.1,,,0.3,0.3,,\n"
        "TEST,gs://b/b.jpg,cat,0.1,0.1,,,0.3,0.3,,\n",
        {"gs://b/a.jpg": "dog cat", "gs://b/b.jpg": "cat"},
    ),
    "fields without a header": ("a.jpg,dog,cat\nb.jpg,dog\n", {"a.jpg": "dog cat", "b.jpg": "dog"}),
    "image and label": ("a.jpg dog\nb.jpg cat\nc.jpg dog\n", {"a.jpg": "dog", "b.jpg": "cat", "c.jpg": "dog"}),
    "image and numbers": (
        "a.jpg 3 5\nb.jpg 5\nc.jpg 3 5 7\nd.jpg 7 3\n",
        dict(zip(("a.jpg", "b.jpg", "c.jpg", "d.jpg"), ("3 5", "5", "3 5 7", "7 3"), strict=True)),
    ),
    "image and marks": ("a.jpg 1 0 1\nb.jpg 0 1 1\n", {"a.jpg": "2 4", "b.jpg": "3 4"}),
    "numbers of two classes": ("a.jpg 0\nb.jpg 1\nc.jpg 1\n", {"a.jpg": "", "b.jpg": "2", "c.jpg": "2"}),
    "a flag of training": (
        "name,is_train,cat,dog\na,True,True,False\nb,False,False,True\n",
        {"a": "cat", "b": "dog"},
    ),
    "names and codes of a diagnosis": (
        "lesion_id,image_id,dx,dx_type,source,project_id\nH1,I1,bkl,histo,x,1\nH1,I2,bkl,histo,x,1\nH2,I3,nv,histo,y,1\n",
        {"I1": "bkl", "I2": "bkl", "I3": "nv"},
    ),
    "list_attr of CelebA": (
        "2\nBald Bangs Big_Nose\n01.jpg -1  1 -1\n02.jpg  1 -1 -1\n",
        {"01.jpg": "Bangs", "02.jpg": "Bald"},
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


@pytest.mark.parametrize("kind", ["gz", "zip", "xlsx"])
def test_tables_in_archives_and_workbooks(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"labels.csv.{kind}"
    path.write_bytes(packed(kind, "image,dog,cat\na.jpg,1,0\nb.jpg,,1\n"))
    assert present(path) == {"a.jpg": {"dog"}, "b.jpg": {"cat"}}
    assert formats.read(path).table().known == 3
    path.write_bytes(packed(kind, "image,dog,cat\na.jpg,1,maybe\nb.jpg,,1\n"))
    with pytest.raises(LabelError, match=rf"{kind}, line 2, column 'cat': value 'maybe'"):
        formats.read(path)
    path.write_bytes(packed(kind, "image,dog\na.jpg,1\n")[:-10])
    with pytest.raises(LabelError, match="unpack"):
        formats.read(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("image,x,y,w,h\na.jpg,0,1,1,1\nb.jpg,1,0,1,1\n", "coordinates"),
        ("GalaxyID,Class1.1,Class1.2\n100008,0.383147,0.616853\n100023,0.327001,0.663777\n", "numbers"),
        ("image|comment_number|comment\n1.jpg|0|Two guys with hats\n1.jpg|1|Two men in a park\n", "comment"),
        ('subject_ids,user_name,annotations,subject_data\n9,ann,"[{}]","{}"\n', "Zooniverse"),
    ],
)
def test_tables_without_labels_are_refused_with_the_reason(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(LabelError, match=reason) as refusal:
        formats.read(tmp_path / "labels.csv")
    assert "‹" not in refusal.value.fix or reason == "comment"


@pytest.mark.parametrize("content", ["image,tags,tag_source\na,dog;cat,ai\nb,cat,ann\na,cow,ann\n"])
def test_a_column_may_say_that_a_model_made_the_labels(tmp_path: Path, content: str) -> None:
    (tmp_path / "labels.csv").write_text(content)
    rows = formats.read(tmp_path / "labels.csv", unlisted="unknown").rows
    model = rows.select(rows.is_model_made())
    by_model = {(model.images[i], model.classes[c]) for i, c in zip(model.image, model.column, strict=True)}
    assert by_model == {("a", "dog"), ("a", "cat")}
    assert len(rows) == 4
    (tmp_path / "scores.csv").write_text("image,class,score\na,dog,0.9\nb,dog,0.2\n")
    rows = formats.read(tmp_path / "scores.csv", machine=0.5).rows
    assert (rows.is_model_made().tolist(), len(rows.images), rows.score.round(1).tolist()) == (
        [True],
        2,
        [np.float32(0.9)],
    )


@pytest.mark.parametrize(("repeats", "labels"), [("present", [1, 1]), ("last", [-1, 1]), ("unknown", [0, 1])])
def test_lines_of_an_image_that_disagree(tmp_path: Path, repeats: str, labels: list[int]) -> None:
    (tmp_path / "labels.csv").write_text("image,dog,cat\na,1,\nb,0,0\na,0,1\n")
    table = formats.read(tmp_path / "labels.csv", repeats=repeats).table()
    assert table.dense().tolist() == [labels, [-1, -1]]


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


def test_classes_may_be_called_like_coordinates(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image,left,right,top\na.jpg,0,1,1\nb.jpg,1,0,1\n")
    assert list(formats.read(tmp_path / "labels.csv").table().classes) == ["left", "right", "top"]
