"""Every public layout, written small by the test itself: what is read, what the options change, what an error says."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from halflabel.data.datasets import DATASETS, Dataset, Split, dataset_layout, open_dataset
from halflabel.data.datasets.base import RawImages, single_label
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable


def put(path: Path, content: str | bytes = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_voc(folder: Path, year: int) -> None:
    base = folder / "VOCdevkit" / f"VOC{year}"
    for split, images in (("train", "ab"), ("val", "cd"), ("trainval", "abcd"), ("test", "ef")):
        put(base / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{image}\n" for image in images))
        for name, flags in (("cat", (1, -1, 0, 1, -1, 0)), ("dog", (-1, 0, 1, -1, 1, -1))):
            text = "".join(f"{image} {flags['abcdef'.index(image)]:>2}\n" for image in images)
            put(base / "ImageSets" / "Main" / f"{name}_{split}.txt", text)
    for image in "abcdef":
        put(base / "JPEGImages" / f"{image}.jpg", b"jpeg")


def write_coco(folder: Path, year: int) -> None:
    categories = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
    for part, ids, pairs in (("train", (9, 25, 30), ((9, 18), (9, 18), (30, 1))), ("val", (42,), ((42, 1),))):
        images = [{"id": k, "file_name": f"{part}{k:03}.jpg"} for k in ids]
        marks = [{"id": n, "image_id": i, "category_id": c} for n, (i, c) in enumerate(pairs)]
        content = {"images": images, "annotations": marks, "categories": categories}
        put(folder / "annotations" / f"instances_{part}{year}.json", json.dumps(content))
        for image in images:
            put(folder / f"{part}{year}" / str(image["file_name"]), b"jpeg")


def write_nus(folder: Path) -> None:
    for split, images in (("Train", ("actor\\0001_2.jpg", "bear\\0003_4.jpg")), ("Test", ("car\\0005_6.jpg",))):
        put(folder / "ImageList" / f"{split}Imagelist.txt", "".join(f"{image}\r\n" for image in images))
        for name, flags in (("sky", (1, 0)), ("lake", (0, 0))):
            text = "".join(f"{flag}\n" for flag in flags[: len(images)])
            put(folder / "Groundtruth" / "TrainTestLabels" / f"Labels_{name}_{split}.txt", text)
    put(folder / "Flickr" / "actor" / "0001_2.jpg", b"jpeg")


def write_cub(folder: Path) -> None:
    base = folder / "CUB_200_2011"
    put(base / "images.txt", "1 001.A/x.jpg\n2 001.A/y.jpg\n3 002.B/z.jpg\n")
    put(base / "train_test_split.txt", "1 1\n2 0\n3 1\n")
    put(folder / "attributes.txt", "1 has_bill_shape::curved\n2 has_eye_color::black\n")
    # image attribute present certainty time; certainty 1 is "not visible"
    lines = "1 1 1 4 2.0\n1 2 0 1 1.0\n2 1 0 3 5.1\n2 2 1 1 4.0\n3 1 0 2 1.0\n3 2 1 3 2.0\n"
    put(base / "attributes" / "image_attribute_labels.txt", lines)
    put(base / "images" / "001.A" / "x.jpg", b"jpeg")


def write_open_images(folder: Path) -> None:
    header = "ImageID,Source,LabelName,Confidence\n"
    human = {
        "train": "a,human,/m/1,1\na,human,/m/2,0\nb,human,/m/3,1\n",
        "validation": "v,human,/m/2,1\n",
        "test": "t,human,/m/1,0\nt,human,/m/9,1\n",
    }
    for split, rows in human.items():
        put(folder / split / "annotations-human.csv", header + rows)
        put(folder / split / "annotations-machine.csv", header + "a,machine,/m/2,0.9\na,machine,/m/3,0.9\n")
    put(folder / "class-descriptions.csv", '/m/1,"Cat"\n/m/2,"Dog, old"\n/m/3,"Tree"\n/m/7,"Cow"\n')
    put(folder / "classes-trainable.txt", "/m/2\n/m/7\n/m/1\n")


def write_vg(folder: Path) -> None:
    put(folder / "train_list_500.txt", "10.jpg\n11.jpg\n")
    put(folder / "test_list_500.txt", "12.jpg\n")
    put(
        folder / "vg_category_200_labels_index.json",
        json.dumps({"10.jpg": [0, 199], "11.jpg": [], "12.jpg": [5], "99.jpg": [1]}),
    )
    put(folder / "VG_100K" / "10.jpg", b"jpeg")
    put(folder / "VG_100K_2" / "11.jpg", b"jpeg")


CIFAR = ("airplane", "automobile", "bird")


def cifar_records(first: int, count: int) -> tuple[bytes, np.ndarray]:
    """Records whose pixels count upwards, written out byte by byte."""
    data, pictures = bytearray(), np.zeros((count, 3, 32, 32), np.uint8)
    for image in range(count):
        data.append((first + image) % 3)
        for colour in range(3):
            for row in range(32):
                for column in range(32):
                    value = (first + image + 7 * colour + 3 * row + column) % 256
                    pictures[image, colour, row, column] = value
                    data.append(value)
    return bytes(data), pictures


def write_cifar(folder: Path) -> None:
    base = folder / "cifar-10-batches-bin"
    put(base / "batches.meta.txt", "".join(f"{name}\n" for name in CIFAR) + "\n")
    for number in range(1, 6):
        put(base / f"data_batch_{number}.bin", cifar_records(10 * number, 4)[0])
    put(base / "test_batch.bin", cifar_records(90, 2)[0])


def stl_pictures(first: int, count: int) -> tuple[bytes, np.ndarray]:
    """Column after column of each colour, as the file has it."""
    pictures = np.zeros((count, 3, 96, 96), np.uint8)
    data = bytearray()
    for image in range(count):
        for colour in range(3):
            for column in range(96):
                for row in range(96):
                    value = (first + image + 50 * colour + 2 * row + column) % 256
                    pictures[image, colour, row, column] = value
                    data.append(value)
    return bytes(data), pictures


def write_stl(folder: Path) -> None:
    base = folder / "stl10_binary"
    put(base / "class_names.txt", "airplane\nbird\n")
    put(base / "train_X.bin", stl_pictures(0, 4)[0])
    put(base / "train_y.bin", bytes([1, 2, 2, 1]))
    put(base / "test_X.bin", stl_pictures(40, 1)[0])
    put(base / "test_y.bin", bytes([2]))
    put(base / "unlabeled_X.bin", stl_pictures(80, 2)[0])
    put(base / "fold_indices.txt", "2 0 \n1 3 \n")


WRITERS: dict[str, Callable[[Path], None]] = {
    "voc2007": lambda folder: write_voc(folder, 2007),
    "voc2012": lambda folder: write_voc(folder, 2012),
    "coco2014": lambda folder: write_coco(folder, 2014),
    "coco2017": lambda folder: write_coco(folder, 2017),
    "nus-wide": write_nus,
    "cub": write_cub,
    "open-images": write_open_images,
    "vg200": write_vg,
    "cifar10": write_cifar,
    "stl10": write_stl,
}


def opened(name: str, folder: Path, **options: object) -> Dataset:
    WRITERS[name](folder)
    return open_dataset(name, folder, **options)


def refusal(name: str, folder: Path, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        open_dataset(name, folder, **options)
    assert caught.value.fix
    return str(caught.value)


def problem(name: str, folder: Path) -> str:
    """What is wrong with the folder, "" if nothing is."""
    try:
        open_dataset(name, folder)
    except UserError as found:
        return str(found) if found.fix else "no fix is given"
    return ""


def pixels(split: Split) -> torch.Tensor:
    pictures = split.load_images()
    assert isinstance(pictures, torch.Tensor)
    return pictures


def test_every_data_set_has_a_writer() -> None:
    assert set(WRITERS) == set(DATASETS)


@pytest.mark.parametrize("name", list(DATASETS))
def test_splits_agree_and_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    dataset = opened(name, tmp_path)
    assert dataset.name == name
    assert {"train", "test"} <= set(dataset.splits)
    assert all(split.labels.classes == dataset.classes for split in dataset.splits.values())
    assert "no option 'colour'" in refusal(name, tmp_path, colour="red")
    # Every file, taken away alone, is not needed, or the error names it with the source and the layout.
    needed = 0
    for file in sorted(path for path in tmp_path.rglob("*") if path.suffix not in (".jpg", "") and path.is_file()):
        content = file.read_bytes()
        file.unlink()
        if error := problem(name, tmp_path):
            needed += 1
            # A class file that is missing takes its class away: that is what the error can name.
            of_class = file.stem.removeprefix("Labels_").partition("_")[0]
            assert file.name in error or repr(of_class) in error, (file, error)
            assert "no such file" not in error or dataset_layout(name).source in error, error
        file.write_bytes(content)
    assert needed >= 2
    assert open_dataset(name, tmp_path).train == dataset.train


@pytest.mark.parametrize("name", list(DATASETS))
def test_an_empty_folder_is_told_what_it_should_hold(name: str, tmp_path: Path) -> None:
    error = refusal(name, tmp_path)
    there = dataset_layout(name)
    assert all(line in error for line in there.tree)
    assert there.source in error
    assert there.source in refusal(name, tmp_path / "nowhere")


def test_names_and_options_are_checked(tmp_path: Path) -> None:
    assert "use one of: voc2007" in refusal("voc2010", tmp_path)
    for name, option in (("voc2007", "difficult"), ("coco2014", "unannotated"), ("nus-wide", "lists")):
        assert f"{option} 'maybe' does not exist" in refusal(name, tmp_path, **{option: "maybe"})
    assert "certainty 'maybe' does not exist" in refusal("cub", tmp_path, certainty="maybe")


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
    other = open_dataset("voc2012", tmp_path, train="trainval", test="val")
    assert (len(other.train), len(other.test)) == (4, 2)
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
        put(
            tmp_path / "annotations" / f"captions_{part}2014.json", json.dumps({"images": images, "annotations": marks})
        )
    monkeypatch.setattr("halflabel.data.datasets.coco.WORDS", 4)
    dataset = open_dataset("coco2014", tmp_path, labels="words")
    assert list(dataset.classes) == ["a", "runs", "board", "dog"]  # images with it, then the alphabet
    assert dataset.train.dense().tolist() == [[1, 1, -1, 1], [1, 1, -1, -1], [1, -1, 1, -1]]
    assert dataset.test.dense().tolist() == [[1, 1, -1, -1]]
    file = tmp_path / "annotations" / "captions_val2014.json"
    file.write_text(file.read_text().replace('"image_id": 42', '"image_id": 43'))
    assert "no image has the id 43" in refusal("coco2014", tmp_path, labels="words")
    file.unlink()
    assert "captions_val2014.json" in refusal("coco2014", tmp_path, labels="words")


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


def test_open_images_machine_labels_never_stand_against_people(tmp_path: Path) -> None:
    write_open_images(tmp_path)
    (tmp_path / "classes-trainable.txt").unlink()
    dataset = open_dataset("open-images", tmp_path, machine=0.8)
    assert sorted(dataset.classes) == ["Cat", "Dog, old", "Tree"]
    row = dict(
        zip(dataset.classes, dataset.train.rows([list(dataset.train.images).index("a")])[0].tolist(), strict=True)
    )
    assert row == {"Cat": 1, "Dog, old": -1, "Tree": 1}
    assert "no list of classes" in dataset.notes[-1]


def test_open_images_of_later_versions(tmp_path: Path) -> None:
    write_open_images(tmp_path / "v3")
    reference = open_dataset("open-images", tmp_path / "v3", classes="classes-trainable.txt")
    later = tmp_path / "v6"
    for split in ("train", "validation", "test"):
        content = (tmp_path / "v3" / split / "annotations-human.csv").read_text()
        put(later / f"oidv6-{split}-annotations-human-imagelabels.csv", content)
        (later / split).mkdir()
    put(later / "oidv6-class-descriptions.csv", (tmp_path / "v3" / "class-descriptions.csv").read_text())
    put(later / "chosen.csv", "LabelName\n/m/2,Dog\n/m/7,Cow\n/m/1,Cat\n")
    dataset = open_dataset("open-images", later, classes="chosen.csv")
    assert (dataset.train, dataset.test) == (reference.train, reference.test)
    put(later / "chosen.csv", "/m/2\n/m/2\n")
    assert "'/m/2' is listed twice" in refusal("open-images", later, classes="chosen.csv")


def test_vg200(tmp_path: Path) -> None:
    dataset = opened("vg200", tmp_path)
    assert len(dataset.classes) == 200
    labels = dataset.train.dense()
    assert np.argwhere(labels == 1).tolist() == [[0, 0], [0, 199]]
    assert (labels != 0).all()
    assert len(dataset.splits["train"].on_disk()) == 2
    put(tmp_path / "vg_category_200_labels_index.json", json.dumps({"10.jpg": [200], "11.jpg": [], "12.jpg": []}))
    assert "numbers from 0 to 199" in refusal("vg200", tmp_path)
    put(tmp_path / "vg_category_200_labels_index.json", json.dumps({"10.jpg": [], "12.jpg": []}))
    assert "'11.jpg', which has no entry" in refusal("vg200", tmp_path)


def test_cifar10_labels_and_pixels(tmp_path: Path) -> None:
    dataset = opened("cifar10", tmp_path)
    assert list(dataset.classes) == list(CIFAR)
    assert len(dataset.train) == 20
    assert dataset.train.rows([0]).tolist() == [[-1, 1, -1]]  # the first record of batch 1 is of class 10 mod 3
    for split, first, batches in ((dataset.splits["train"], 10, 5), (dataset.splits["test"], 90, 1)):
        count = len(split) // batches
        expected = np.concatenate([cifar_records(first + 10 * batch, count)[1] for batch in range(batches)])
        assert np.array_equal(pixels(split).numpy(), expected)
    some = dataset.splits["train"].take([17, 2])
    assert np.array_equal(pixels(some).numpy(), pixels(dataset.splits["train"]).numpy()[[17, 2]])


def test_cifar10_few_labels(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    dataset = open_dataset("cifar10", tmp_path, batch=3, labelled=2, seed=1)
    known = np.flatnonzero(np.diff(dataset.train.start))
    assert len(dataset.train) == 20
    assert len(known) == 2
    assert all(dataset.train.images[number].startswith("data_batch_3/") for number in known)
    only = open_dataset("cifar10", tmp_path, batch=3, labelled=2, unlabelled=False, seed=1)
    assert only.train == dataset.train.subset(known)
    assert pixels(only.splits["train"]).shape == (2, 3, 32, 32)
    assert "no batch 6" in refusal("cifar10", tmp_path, batch=6)
    assert "5 of 4 images" in refusal("cifar10", tmp_path, batch=1, labelled=5)


def test_cifar10_refuses_pickles_and_damage(tmp_path: Path) -> None:
    put(tmp_path / "py" / "cifar-10-batches-py" / "data_batch_1", pickle.dumps({"data": 1}))
    error = refusal("cifar10", tmp_path / "py")
    assert "can run code" in error
    assert "cifar-10-binary.tar.gz" in error
    write_cifar(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert "whole records of 3073" in refusal("cifar10", tmp_path)
    file.write_bytes(b"\x09" + content[1:])
    assert "a record of class 9" in refusal("cifar10", tmp_path)


def test_stl10_labels_pixels_and_folds(tmp_path: Path) -> None:
    dataset = opened("stl10", tmp_path)
    assert dataset.train.dense().tolist() == [[1, -1], [-1, 1], [-1, 1], [1, -1]]
    assert np.array_equal(pixels(dataset.splits["train"]).numpy(), stl_pictures(0, 4)[1])
    fold = open_dataset("stl10", tmp_path, fold=0, unlabelled=True)
    assert list(fold.train.images) == ["train/2", "train/0", "unlabeled/0", "unlabeled/1"]
    assert fold.train.dense().tolist() == [[-1, 1], [1, -1], [0, 0], [0, 0]]
    expected = np.concatenate([stl_pictures(0, 4)[1][[2, 0]], stl_pictures(80, 2)[1]])
    assert np.array_equal(pixels(fold.splits["train"]).numpy(), expected)
    assert "no fold 2" in refusal("stl10", tmp_path, fold=2)
    put(tmp_path / "stl10_binary" / "fold_indices.txt", "0 4\n")
    assert "within 0 to 3" in refusal("stl10", tmp_path, fold=0)
    put(tmp_path / "stl10_binary" / "train_y.bin", bytes([0, 1, 1, 2]))
    assert "outside 1 to 2" in refusal("stl10", tmp_path)
    put(tmp_path / "stl10_binary" / "train_y.bin", bytes([1, 1, 2]))
    assert "3 classes for 4 images" in refusal("stl10", tmp_path)


def test_sample_keeps_class_frequencies() -> None:
    labels = np.full((100, 2), -1, np.int8)
    labels[:30, 0] = 1
    labels[20:40, 1] = 1
    split = Split(LabelTable.from_dense(labels), Path("photos"))
    few = split.sample(0.2, seed=3)
    assert len(few) == 20
    assert (few.labels.dense() > 0).sum(0).tolist() == [6, 4]
    assert split.sample(1.0) is split
    assert few.labels != split.sample(0.2, seed=4).labels
    with pytest.raises(UserError):
        split.sample(0.0)


def test_single_label_and_pixels_of_unknown_names() -> None:
    table = single_label(Names("ab"), Names("xyz"), np.array([2, -1]))
    assert table.dense().tolist() == [[-1, -1, 1], [0, 0, 0]]
    held = RawImages(Names("ab"), lambda numbers: np.zeros((len(numbers), 3, 1, 1), np.uint8))
    with pytest.raises(UserError, match="no image 'c'"):
        held.load(Names("ac"))
