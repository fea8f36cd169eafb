"""Tables as people have them: the first command that a refusal proposes is run as printed, and the labels are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from label_files import follow, packed, run

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats

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
    "German": ("Bild;Hund;Katze;Breite\na.jpg;ja;nein;1,5\nb.jpg;nein;ja;2,25\n", {"a.jpg": "Hund", "b.jpg": "Katze"}),
    "a title above": ("Survey of May,,\n,,\nphoto,dog,cat\na.jpg,1,0\nb.jpg,0,1\n", {"a.jpg": "dog", "b.jpg": "cat"}),
    "remarks": ("# by a tool\n# classes: dog, cat\nphoto,dog,cat\na.jpg,1,0\n", {"a.jpg": "dog"}),
    "columns at blanks": ("file dog cat\na.jpg 1 0\nb.jpg 0 1\n", {"a.jpg": "dog", "b.jpg": "cat"}),
    "a number of lines and marks": (
        "2\nimage_name  marks\nx/a.jpg   -1 1 -1\nx/b.jpg   1 1 -1\n",
        {"x/a.jpg": "3", "x/b.jpg": "2 3"},
    ),
    "a number of lines and a class": ("2\nname  class\na.jpg   3\nb.jpg   7\n", {"a.jpg": "3", "b.jpg": "7"}),
    "numbers of classes": ("x/a.jpg 0\nx/b.jpg 2\nx/c.jpg 0\n", {"x/a.jpg": "0", "x/b.jpg": "2", "x/c.jpg": "0"}),
    "the image behind the box": (
        "cat,1,2,3,4,a.jpg,64,48\ndog,1,2,3,4,a.jpg,64,48\ncat,5,5,9,9,b.jpg,64,48\n",
        {"a.jpg": "cat dog", "b.jpg": "cat"},
    ),
    "runs of pixels": (
        "mask_path,image,runs,class\nm1.png,a.jpg,10 3 20 4,dog\nm2.png,a.jpg,7 2 30 5,cat\nm3.png,b.jpg,8 1,dog\n",
        {"a.jpg": "dog cat", "b.jpg": "dog"},
    ),
    "files of one name": (
        "filename,location,common_name\n1.jpg,gs://x/1.jpg,fox\n1.jpg,gs://y/1.jpg,owl\n2.jpg,gs://y/2.jpg,fox\n",
        {"gs://x/1.jpg": "fox", "gs://y/1.jpg": "owl", "gs://y/2.jpg": "fox"},
    ),
    "marks that say nothing": (
        "id,is_captive,votes,species\n1,false,0.2,fox\n2,false,0.5,owl\n3,false,0.5,fox\n",
        {"1": "fox", "2": "owl", "3": "fox"},
    ),
    "a comma in a name": (
        'photo,scientificName\na,"Meles meles (L., 1758)"\nb,"Turdus merula L."\nc,"Turdus merula L."\n',
        {"a": "Meles_meles_(L.,_1758)", "b": "Turdus_merula_L.", "c": "Turdus_merula_L."},
    ),
    "sets of Python": ("image,labels\na,\"{'dog', 'cat'}\"\nb,set()\n", {"a": "dog cat", "b": ""}),
    "Label Studio": (
        'annotator,choice,id,image\n1,"{""choices"": [""dog"", ""cat""]}",7,a.jpg\n1,dog,8,b.jpg\n',
        {"a.jpg": "dog cat", "b.jpg": "dog"},
    ),
    "VIA": (
        "#filename,region_id,region_shape_attributes,region_attributes\n"
        'a.jpg,0,"{""name"":""rect"",""x"":1}","{""kind"":""dog""}"\nb.jpg,0,"{}","{}"\n',
        {"a.jpg": "dog", "b.jpg": ""},
    ),
    "ticks": ("image,dog,cat\na,*,\nb,,*\nc,*,*\n", {"a": "dog", "b": "cat", "c": "dog cat"}),
    "a word that is no answer": ("image,dog,cat\na,yes,maybe\nb,no,yes\nc,no,no\n", {"a": "dog", "b": "cat", "c": ""}),
    "a fraction among marks": ("image,dog,cat\na,1,1\nb,1,0.5\n", {"a": "dog cat", "b": "dog"}),
    "counts, in every image too": (
        "image,cow,dog,cat\na,4,2,0\nb,5,0,1\nc,3,0,3\n",
        {"a": "cow dog", "b": "cow cat", "c": "cow cat"},
    ),
    "tags beside a column for each": (
        "image,classes,bus,person,red\na,bus person,1,1,0\nb,red,0,0,1\nc,bus,1,0,0\n",
        {"a": "bus person", "b": "red", "c": "bus"},
    ),
    "ranks": (
        "id,class,order,species\n1,Aves,Passeriformes,Turdus merula\n2,Aves,Passeriformes,Turdus pilaris\n"
        "3,Mammalia,Carnivora,Meles meles\n4,Mammalia,Carnivora,Meles meles\n",
        {"1": "Turdus_merula", "2": "Turdus_pilaris", "3": "Meles_meles", "4": "Meles_meles"},
    ),
    "groups and hashes": (
        "image_id,phash,label_group,label\na,94974f93,g1,dog\nb,af3f9460,g1,cat\nc,af3f9461,g2,dog\nd,00aa11,g2,dog\n",
        {"a": "dog", "b": "cat", "c": "dog", "d": "dog"},
    ),
    "list_attr of CelebA": (
        "2\nBald Bangs Big_Nose\n01.jpg -1  1 -1\n02.jpg  1 -1 -1\n",
        {"01.jpg": "Bangs", "02.jpg": "Bald"},
    ),
}


_BOX = {"bbox": [1, 2, 3, 4]}
# The records of a file, or of the files in a folder, that show dog and cat in a.jpg, dog in b.jpg.
RECORDS: dict[str, Any] = {
    "names.json": {"a.jpg": ["dog", "cat"], "b.jpg": ["dog"]},
    "name.json": {"a.jpg": [{"label": "dog", **_BOX}, {"label": "cat"}], "b.jpg": [{"label": "dog"}]},
    "marks.json": [{"image": "a.jpg", "dog": 1, "cat": 1}, {"image": "b.jpg", "dog": True, "cat": None}],
    "scores of classes.json": [
        {"image": "a.jpg", "labels": {"dog": 1, "cat": 1}},
        {"image": "b.jpg", "labels": {"dog": 1, "cat": 0}},
    ],
    "exiftool.json": [{"SourceFile": "a.jpg", "Keywords": ["dog", "cat"]}, {"SourceFile": "b.jpg", "Keywords": "dog"}],
    "JSON-MIN.json": [
        {"image": "/data/upload/1/0123abcd-a.jpg", "id": 1, "choice": {"choices": ["dog", "cat"]}, "annotator": 1},
        {"image": "/data/upload/1/4567abcd-b.jpg", "id": 2, "choice": "dog", "annotator": 1},
    ],
    "scalabel.json": [
        {"name": "a.jpg", "attributes": {"scene": "street"}, "labels": [{"category": "dog"}, {"category": "cat"}]},
        {"name": "b.jpg", "attributes": {"scene": "farm"}, "labels": [{"category": "dog", "id": 3}]},
    ],
    "scale.json": [
        {
            "params": {"attachment": "https://x/a.jpg"},
            "response": {"annotations": [{"label": "dog"}, {"label": "cat"}]},
        },
        {"params": {"attachment": "https://x/b.jpg"}, "response": {"annotations": [{"label": "dog", "left": 1}]}},
    ],
    "of a cloud.json": {
        "version": "1.0",
        "annotations": {"a.jpg": [{"x": 0.1, "label": "dog"}, {"label": "cat"}], "b.jpg": [{"label": "dog"}]},
    },
    "CreateML.json": [
        {"image": "a.jpg", "annotations": [{"label": "dog", "coordinates": {"x": 1}}, {"label": "cat"}]},
        {"image": "b.jpg", "annotations": [{"label": "dog", "coordinates": {"x": 1}}]},
    ],
    "Vertex AI.jsonl": [
        {
            "imageGcsUri": "gs://x/a.jpg",
            "classificationAnnotations": [{"displayName": "dog"}, {"displayName": "cat"}],
            "dataItemResourceLabels": {"aiplatform.googleapis.com/ml_use": "training"},
        },
        {"imageGcsUri": "gs://x/b.jpg", "classificationAnnotations": [{"displayName": "dog"}]},
    ],
    "Azure.jsonl": [
        {"image_url": "AmlDatastore://x/a.jpg", "label": ["dog", "cat"]},
        {"image_url": "AmlDatastore://x/b.jpg", "label": ["dog"]},
    ],
    "metadata.jsonl": [
        {"path": "a.jpg", "objects": {"bbox": [[1, 2]], "categories": ["dog", "cat"]}},
        {"path": "b.jpg", "objects": {"bbox": [], "categories": ["dog"]}},
    ],
    "darwin": {
        "x.json": {"item": {"name": "a.jpg"}, "annotations": [{"name": "dog", **_BOX}, {"name": "cat"}]},
        "y.json": {"item": {"name": "b.jpg"}, "annotations": [{"name": "dog", "tag": {}}]},
    },
    "supervisely": {
        "meta.json": {"classes": [{"title": "dog"}, {"title": "cat"}], "tags": []},
        "ds/ann/a.jpg.json": {"tags": [], "objects": [{"classTitle": "dog"}, {"classTitle": "cat"}]},
        "ds/ann/b.jpg.json": {"tags": [], "objects": [{"classTitle": "dog", "points": {"exterior": [[1, 2]]}}]},
    },
    "lists.parquet": {"image": ["a.jpg", "b.jpg"], "labels": [["dog", "cat"], ["dog"]]},
    "marks.parquet": {"image": ["a.jpg", "b.jpg"], "dog": [1, 1], "cat": [True, False]},
    "huggingface.parquet": {
        "image": [{"bytes": b"x", "path": "a.jpg"}, {"bytes": b"y", "path": "b.jpg"}],
        "label": [[0, 1], [0]],
    },
}


def write_records(folder: Path, name: str) -> Path:
    """Write a case of RECORDS."""
    content, path = RECORDS[name], folder / name
    if path.suffix == ".parquet":
        feature = {"feature": {"names": ["dog", "cat"], "_type": "ClassLabel"}, "_type": "Sequence"}
        info = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
        pq.write_table(pa.table(content).replace_schema_metadata(info), path)
    elif path.suffix:
        lines = path.suffix == ".jsonl"
        path.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content))
    else:
        for file, record in content.items():
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_text(json.dumps(record))
    return path


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_any_tool_are_a_table(tmp_path: Path, name: str) -> None:
    path = write_records(tmp_path, name)
    follow(["import", str(path), str(tmp_path / "out.csv")])
    for file in (path, tmp_path / "out.csv"):
        assert present(file) == {"a.jpg": {"dog", "cat"}, "b.jpg": {"dog"}}


def test_without_a_list_nothing_is_known(tmp_path: Path) -> None:
    records = [{"image": "a", "labels": ["dog"]}, {"image": "b", "labels": []}, {"image": "c", "labels": None}]
    (tmp_path / "x.json").write_text(json.dumps(records))
    (tmp_path / "x.csv").write_text("image,labels\na,['dog']\nb,[]\nc,\n")
    for name in ("x.json", "x.csv"):
        assert formats.read(tmp_path / name, unlisted="absent").table().dense().tolist() == [[1], [-1], [0]]


@pytest.mark.parametrize(
    "content",
    [
        {"a.jpg": [{"label": "dog", "score": 0.7}]},
        [{"file": "a.jpg", "prediction": "dog"}, {"file": "b.jpg", "prediction": "cat"}],
        {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "A dog."}]},
        {"images": [{"id": 1, "file_name": "a.jpg", "neg_category_ids": [3]}]},
        [{"a.jpg": ["dog"]}, ["cat"]],
    ],
)
def test_records_of_models_and_of_other_things_are_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(UserError):
        formats.read(tmp_path / "x.json", unlisted="unknown")


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
        ("id,rle_mask\na,\nb,5051 5151\nc,9 93 109 94 210 94\nd,48 54 149 54 251 53\n", "coordinates"),
        ("id,Prediction\na,n01 115 49 448 294\nb,n02 0 46 499 330 n02 1 2 3 4\n", "coordinates"),
        ('id,target\na,"[0, 1, 1]"\nb,"[1, 0, 0]"\n', "a number per class"),
        ("ID,Label\na_dog,1\na_cat,0\nb_dog,0\nb_cat,1\n", "end with a class: cat, dog"),
        ("id,x,label,is_there\na,1,dog,no\na,2,cat,yes\nb,1,dog,yes\n", "line by line"),
        ("image,top1,top1_prob\na,dog,0.9\nb,cat,0.8\nc,dog,0.7\n", "how sure a model is"),
        ("/i/1.jpg 48,24,19,37,1 8,12,35,49,4\n/i/2.jpg 13,20,20,30,2\n", "coordinates"),
        ("id,cat_p,dog_p\na,0.3,0.7\nb,0.1,0.9\n", "numbers"),
        (
            "image,caption\n1.jpg,A child in a pink dress climbs\n1.jpg,A girl goes into a building\n"
            "2.jpg,A black dog and a white one fight\n2.jpg,Two dogs of other breeds look about\n",
            "text",
        ),
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


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("cp1252", "château"),
        ("cp1252", "Bär"),
        ("cp1250", "żółw"),
        ("cp1251", "собака"),
        ("gb18030", "汽车"),
        ("big5", "汽車"),
    ],
)
def test_the_encoding_is_offered_with_what_it_reads(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(f"image,{name}\na.jpg,1\nb.jpg,0\n".encode(encoding))
    succeeded, output = run(["inspect", str(path)])
    assert not succeeded
    assert any(f"--encoding {encoding}" in line and name in line for line in output.splitlines())


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
