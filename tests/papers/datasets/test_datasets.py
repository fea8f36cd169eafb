"""Every public layout, written small by the test itself: what is read, what the options change, what an error says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dataset_folders import WRITERS, opened, refusal, write_coco, write_file, write_nus, write_open_images, write_voc

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.papers.datasets import DATASETS, Split, dataset_layout, open_dataset
from halflabel.papers.datasets.base import RawImages, single_label


def problem(name: str, folder: Path) -> str:
    """The error of reading the folder, or ""."""
    try:
        open_dataset(name, folder)
    except UserError as error:
        return str(error) if error.fix else "no fix is given"
    return ""


def test_every_data_set_has_a_writer() -> None:
    assert set(WRITERS) == set(DATASETS)


@pytest.mark.parametrize("name", list(DATASETS))
def test_splits_agree_and_missing_files_are_named(name: str, tmp_path: Path) -> None:
    dataset = opened(name, tmp_path)
    assert dataset.name == name
    assert {"train", "test"} <= set(dataset.splits)
    assert all(split.labels.classes == dataset.classes for split in dataset.splits.values())
    assert "no option 'colour'" in refusal(name, tmp_path, colour="red")
    # Remove each file in turn: it is not needed, or the error names it with the source and the layout.
    needed = 0
    for file in sorted(path for path in tmp_path.rglob("*") if path.suffix not in (".jpg", "") and path.is_file()):
        content = file.read_bytes()
        file.unlink()
        if error := problem(name, tmp_path):
            needed += 1
            # Without its file a class is unknown: the error names the class.
            of_class = file.stem.removeprefix("Labels_").partition("_")[0]
            assert file.name in error or repr(of_class) in error, (file, error)
            assert "no such file" not in error or dataset_layout(name).source in error, error
        file.write_bytes(content)
    assert needed >= 2
    assert open_dataset(name, tmp_path).train == dataset.train


@pytest.mark.parametrize("name", list(DATASETS))
def test_an_empty_folder_is_refused_with_the_expected_layout(name: str, tmp_path: Path) -> None:
    error = refusal(name, tmp_path)
    layout = dataset_layout(name)
    assert all(line in error for line in layout.tree)
    assert layout.source in error
    assert layout.source in refusal(name, tmp_path / "nowhere")


def test_names_and_options_are_checked(tmp_path: Path) -> None:
    assert "use one of: voc2007" in refusal("voc2010", tmp_path)
    for name, option in (("voc2007", "difficult"), ("coco2014", "unannotated"), ("nus-wide", "lists")):
        assert f"{option} cannot be 'maybe'" in refusal(name, tmp_path, **{option: "maybe"})
    assert "certainty cannot be 'maybe'" in refusal("cub", tmp_path, certainty="maybe")


@pytest.mark.parametrize(("difficult", "value"), [("unknown", 0), ("absent", -1), ("present", 1)])
def test_voc(difficult: str, value: int, tmp_path: Path) -> None:
    dataset = opened("voc2007", tmp_path, difficult=difficult)
    assert list(dataset.classes) == ["cat", "dog"]
    assert list(dataset.train.images) == ["a", "b", "c", "d"]
    assert dataset.train.dense().tolist() == [[1, -1], [-1, value], [value, 1], [1, -1]]
    assert dataset.test.dense().tolist() == [[-1, 1], [value, -1]]
    assert dataset.splits["train"].on_disk().labels == dataset.train


def test_voc_splits_and_places(tmp_path: Path) -> None:
    write_voc(tmp_path, 2012)
    dataset = open_dataset("voc2012", tmp_path)
    assert (list(dataset.train.images), list(dataset.test.images)) == (["a", "b"], ["c", "d"])
    assert open_dataset("voc2012", tmp_path / "VOCdevkit").train == dataset.train
    assert open_dataset("voc2012", tmp_path / "VOCdevkit" / "VOC2012").train == dataset.train
    trainval = open_dataset("voc2012", tmp_path, train="trainval", test="val")
    assert (len(trainval.train), len(trainval.test)) == (4, 2)
    for file in tmp_path.rglob("*_test.txt"):
        file.unlink()
    error = refusal("voc2012", tmp_path, test="test")
    assert "aeroplane_test.txt" in error


def test_coco(tmp_path: Path) -> None:
    dataset = opened("coco2014", tmp_path)
    assert list(dataset.classes) == ["person", "dog"]
    assert dataset.train.dense().tolist() == [[-1, 1], [-1, -1], [1, -1]]
    assert dataset.splits["train"].load_images() == tmp_path / "train2014"
    dropped = open_dataset("coco2014", tmp_path, unannotated="drop")
    assert list(dropped.train.images) == ["train009.jpg", "train030.jpg"]
    assert dropped.notes == ("train: 1 images without annotation are dropped",)
    (tmp_path / "images").mkdir()
    (tmp_path / "train2014").rename(tmp_path / "images" / "train2014")
    assert open_dataset("coco2014", tmp_path).splits["train"].images == tmp_path / "images" / "train2014"


def test_coco_words_of_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_coco(tmp_path, 2014)
    captions = {
        "train": [(9, "A dog, a Dog!"), (9, "The dog runs"), (25, "A man runs"), (30, "A surfer's board")],
        "val": [(42, "a zebra runs")],
    }
    for part, rows in captions.items():
        images = json.loads((tmp_path / "annotations" / f"instances_{part}2014.json").read_text())["images"]
        marks = [{"id": n, "image_id": image, "caption": text} for n, (image, text) in enumerate(rows)]
        write_file(
            tmp_path / "annotations" / f"captions_{part}2014.json", json.dumps({"images": images, "annotations": marks})
        )
    monkeypatch.setattr("halflabel.papers.datasets.photo_folders.WORDS", 4)
    dataset = open_dataset("coco2014", tmp_path, labels="words")
    assert list(dataset.classes) == ["a", "runs", "board", "dog"]  # images with it, then the alphabet
    assert dataset.train.dense().tolist() == [[1, 1, -1, 1], [1, 1, -1, -1], [1, -1, 1, -1]]
    assert dataset.test.dense().tolist() == [[1, 1, -1, -1]]
    file = tmp_path / "annotations" / "captions_val2014.json"
    file.write_text(file.read_text().replace('"image_id": 42', '"image_id": 43'))
    assert "no entry of 'images' has the id 43" in refusal("coco2014", tmp_path, labels="words")
    file.unlink()
    assert "captions_val2014.json" in refusal("coco2014", tmp_path, labels="words")
    tree = " ".join(dataset_layout("coco2014", labels="words").tree)  # what `reproduce` says is needed
    assert "captions_train2014.json" in tree
    assert "instances" not in tree


def test_coco_refuses_splits_of_different_classes(tmp_path: Path) -> None:
    write_coco(tmp_path, 2014)
    file = tmp_path / "annotations" / "instances_val2014.json"
    file.write_text(file.read_text().replace("person", "human"))
    assert "has the class 'human'" in refusal("coco2014", tmp_path)


def test_nus_wide(tmp_path: Path) -> None:
    dataset = opened("nus-wide", tmp_path)
    assert list(dataset.classes) == ["lake", "sky"]
    assert list(dataset.train.images) == ["actor/0001_2.jpg", "bear/0003_4.jpg"]
    assert dataset.train.dense().tolist() == [[-1, 1], [-1, -1]]
    assert list(dataset.splits["train"].on_disk().labels.images) == ["actor/0001_2.jpg"]
    assert list(dataset.splits["train"].with_positives().labels.images) == ["actor/0001_2.jpg"]


def test_nus_wide_lists_of_the_single_positive_literature(tmp_path: Path) -> None:
    write_nus(tmp_path)
    error = refusal("nus-wide", tmp_path, lists="formatted")
    assert "formatted_train_labels.npy" in error
    for part, labels in (("train", [[1, 0], [0, 1]]), ("val", [[1, 1]])):
        names = [f"actor/{part}{number}.jpg" for number in range(len(labels))]
        np.save(tmp_path / f"formatted_{part}_images.npy", np.array(names))
        np.save(tmp_path / f"formatted_{part}_labels.npy", np.array(labels, float))
        np.save(tmp_path / f"formatted_{part}_labels_obs.npy", np.zeros((len(labels), 2)))
    dataset = open_dataset("nus-wide", tmp_path, lists="formatted")
    assert dataset.train.dense().tolist() == [[1, -1], [-1, 1]]
    assert dataset.test.dense().tolist() == [[1, 1]]


def test_cub_certainties(tmp_path: Path) -> None:
    used = opened("cub", tmp_path)
    assert list(used.train.images) == ["001.A/x.jpg", "002.B/z.jpg"]
    assert used.train.dense().tolist() == [[1, 0], [-1, 1]]
    assert used.test.dense().tolist() == [[-1, 0]]
    ignored = open_dataset("cub", tmp_path, certainty="ignored")
    assert ignored.train.dense().tolist() == [[1, -1], [-1, 1]]
    assert ignored.test.dense().tolist() == [[-1, 1]]
    assert ignored.train.images == used.train.images
    assert open_dataset("cub", tmp_path / "CUB_200_2011").train == used.train
    assert len(used.splits["train"].on_disk()) == 1


def test_open_images_keeps_the_listed_classes_under_their_names(tmp_path: Path) -> None:
    dataset = opened("open-images", tmp_path)
    assert set(dataset.splits) == {"train", "validation", "test"}
    assert list(dataset.classes) == ["Dog, old", "Cow", "Cat"]
    assert list(dataset.train.images) == ["a", "b"]
    assert dataset.train.dense().tolist() == [[-1, 0, 1], [0, 0, 0]]
    assert dataset.splits["validation"].labels.dense().tolist() == [[1, 0, 0]]
    assert dataset.test.dense().tolist() == [[0, 0, -1]]


def test_open_images_without_a_list_of_classes(tmp_path: Path) -> None:
    write_open_images(tmp_path)
    (tmp_path / "classes-trainable.txt").unlink()
    dataset = open_dataset("open-images", tmp_path)
    assert sorted(dataset.classes) == ["Cat", "Dog, old", "Tree"]
    assert "no list of classes" in dataset.notes[-1]


def test_open_images_of_later_versions(tmp_path: Path) -> None:
    write_open_images(tmp_path / "v3")
    reference = open_dataset("open-images", tmp_path / "v3", classes="classes-trainable.txt")
    later = tmp_path / "v6"
    for split in ("train", "validation", "test"):
        content = (tmp_path / "v3" / split / "annotations-human.csv").read_text()
        write_file(later / f"oidv6-{split}-annotations-human-imagelabels.csv", content)
        (later / split).mkdir()
    write_file(later / "oidv6-class-descriptions.csv", (tmp_path / "v3" / "class-descriptions.csv").read_text())
    write_file(later / "chosen.csv", "LabelName\n/m/2,Dog\n/m/7,Cow\n/m/1,Cat\n")
    dataset = open_dataset("open-images", later, classes="chosen.csv")
    assert (dataset.train, dataset.test) == (reference.train, reference.test)
    write_file(later / "chosen.csv", "/m/2\n/m/2\n")
    assert "'/m/2' is listed twice" in refusal("open-images", later, classes="chosen.csv")


def test_vg200(tmp_path: Path) -> None:
    dataset = opened("vg200", tmp_path)
    assert len(dataset.classes) == 200
    labels = dataset.train.dense()
    assert np.argwhere(labels == 1).tolist() == [[0, 0], [0, 199]]
    assert (labels != 0).all()
    assert len(dataset.splits["train"].on_disk()) == 2
    write_file(
        tmp_path / "vg_category_200_labels_index.json", json.dumps({"10.jpg": [200], "11.jpg": [], "12.jpg": []})
    )
    assert "numbers from 0 to 199" in refusal("vg200", tmp_path)
    write_file(tmp_path / "vg_category_200_labels_index.json", json.dumps({"10.jpg": [], "12.jpg": []}))
    assert "'11.jpg', which has no entry" in refusal("vg200", tmp_path)


def test_sample_keeps_class_frequencies() -> None:
    labels = np.full((100, 2), -1, np.int8)
    labels[:30, 0] = 1
    labels[20:40, 1] = 1
    split = Split(Table.from_dense(labels), Path("photos"))
    sample = split.sample(0.2, seed=3)
    assert len(sample) == 20
    assert (sample.labels.dense() > 0).sum(0).tolist() == [6, 4]
    assert split.sample(1.0) is split
    assert sample.labels != split.sample(0.2, seed=4).labels
    with pytest.raises(UserError):
        split.sample(0.0)


def test_single_label_and_pixels_of_unknown_names() -> None:
    table = single_label(Names("ab"), Names("xyz"), np.array([2, -1]))
    assert table.dense().tolist() == [[-1, -1, 1], [0, 0, 0]]
    raw_images = RawImages(Names("ab"), lambda numbers: np.zeros((len(numbers), 3, 1, 1), np.uint8))
    with pytest.raises(UserError, match="no image 'c'"):
        raw_images.load(Names("ac"))
