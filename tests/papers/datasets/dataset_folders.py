"""Small copies of public data sets, in the layout that their readers expect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.papers.datasets import Dataset, open_dataset


def write_file(path: Path, content: str | bytes = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_voc(folder: Path, year: int) -> None:
    base = folder / "VOCdevkit" / f"VOC{year}"
    for split, images in (("train", "ab"), ("val", "cd"), ("trainval", "abcd"), ("test", "ef")):
        write_file(base / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{image}\n" for image in images))
        for name, flags in (("cat", (1, -1, 0, 1, -1, 0)), ("dog", (-1, 0, 1, -1, 1, -1))):
            text = "".join(f"{image} {flags['abcdef'.index(image)]:>2}\n" for image in images)
            write_file(base / "ImageSets" / "Main" / f"{name}_{split}.txt", text)
    for image in "abcdef":
        write_file(base / "JPEGImages" / f"{image}.jpg", b"jpeg")


def write_coco(folder: Path, year: int) -> None:
    categories = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
    for part, ids, pairs in (("train", (9, 25, 30), ((9, 18), (9, 18), (30, 1))), ("val", (42,), ((42, 1),))):
        images = [{"id": k, "file_name": f"{part}{k:03}.jpg"} for k in ids]
        marks = [{"id": n, "image_id": i, "category_id": c} for n, (i, c) in enumerate(pairs)]
        content = {"images": images, "annotations": marks, "categories": categories}
        write_file(folder / "annotations" / f"instances_{part}{year}.json", json.dumps(content))
        for image in images:
            write_file(folder / f"{part}{year}" / str(image["file_name"]), b"jpeg")


def write_nus(folder: Path) -> None:
    for split, images in (("Train", ("actor\\0001_2.jpg", "bear\\0003_4.jpg")), ("Test", ("car\\0005_6.jpg",))):
        write_file(folder / "ImageList" / f"{split}Imagelist.txt", "".join(f"{image}\r\n" for image in images))
        for name, flags in (("sky", (1, 0)), ("lake", (0, 0))):
            text = "".join(f"{flag}\n" for flag in flags[: len(images)])
            write_file(folder / "Groundtruth" / "TrainTestLabels" / f"Labels_{name}_{split}.txt", text)
    write_file(folder / "Flickr" / "actor" / "0001_2.jpg", b"jpeg")


def write_cub(folder: Path) -> None:
    base = folder / "CUB_200_2011"
    write_file(base / "images.txt", "1 001.A/x.jpg\n2 001.A/y.jpg\n3 002.B/z.jpg\n")
    write_file(base / "train_test_split.txt", "1 1\n2 0\n3 1\n")
    write_file(folder / "attributes.txt", "1 has_bill_shape::curved\n2 has_eye_color::black\n")
    # image attribute present certainty time; certainty 1 is "not visible"
    lines = "1 1 1 4 2.0\n1 2 0 1 1.0\n2 1 0 3 5.1\n2 2 1 1 4.0\n3 1 0 2 1.0\n3 2 1 3 2.0\n"
    write_file(base / "attributes" / "image_attribute_labels.txt", lines)
    write_file(base / "images" / "001.A" / "x.jpg", b"jpeg")


def write_open_images(folder: Path) -> None:
    header = "ImageID,Source,LabelName,Confidence\n"
    human = {
        "train": "a,human,/m/1,1\na,human,/m/2,0\nb,human,/m/3,1\n",
        "validation": "v,human,/m/2,1\n",
        "test": "t,human,/m/1,0\nt,human,/m/9,1\n",
    }
    for split, rows in human.items():
        write_file(folder / split / "annotations-human.csv", header + rows)
        write_file(folder / split / "annotations-machine.csv", header + "a,machine,/m/2,0.9\na,machine,/m/3,0.9\n")
    write_file(folder / "class-descriptions.csv", '/m/1,"Cat"\n/m/2,"Dog, old"\n/m/3,"Tree"\n/m/7,"Cow"\n')
    write_file(folder / "classes-trainable.txt", "/m/2\n/m/7\n/m/1\n")


def write_vg(folder: Path) -> None:
    write_file(folder / "train_list_500.txt", "10.jpg\n11.jpg\n")
    write_file(folder / "test_list_500.txt", "12.jpg\n")
    write_file(
        folder / "vg_category_200_labels_index.json",
        json.dumps({"10.jpg": [0, 199], "11.jpg": [], "12.jpg": [5], "99.jpg": [1]}),
    )
    write_file(folder / "VG_100K" / "10.jpg", b"jpeg")
    write_file(folder / "VG_100K_2" / "11.jpg", b"jpeg")


CIFAR = ("airplane", "automobile", "bird")


def counting_pictures(first: int, count: int, side: int, steps: tuple[int, int]) -> np.ndarray:
    """Pictures whose values count upwards, by `steps` from colour to colour and from row to row."""
    pictures = np.zeros((count, 3, side, side), np.uint8)
    for image, colour, row, column in np.ndindex(pictures.shape):
        pictures[image, colour, row, column] = (first + image + steps[0] * colour + steps[1] * row + column) % 256
    return pictures


def cifar_records(first: int, count: int) -> tuple[bytes, np.ndarray]:
    """The class of each picture, then its rows."""
    pictures = counting_pictures(first, count, 32, (7, 3))
    records = (bytes([(first + number) % 3]) + picture.tobytes() for number, picture in enumerate(pictures))
    return b"".join(records), pictures


def write_cifar(folder: Path) -> None:
    base = folder / "cifar-10-batches-bin"
    write_file(base / "batches.meta.txt", "".join(f"{name}\n" for name in CIFAR) + "\n")
    for number in range(1, 6):
        write_file(base / f"data_batch_{number}.bin", cifar_records(10 * number, 4)[0])
    write_file(base / "test_batch.bin", cifar_records(90, 2)[0])


def stl_pictures(first: int, count: int) -> tuple[bytes, np.ndarray]:
    """Column after column of each colour, as the file has it."""
    pictures = counting_pictures(first, count, 96, (50, 2))
    data = bytearray()
    for picture in pictures:
        for colour in picture:
            for column in range(96):
                data += bytes(colour[row, column] for row in range(96))
    return bytes(data), pictures


def write_stl(folder: Path) -> None:
    base = folder / "stl10_binary"
    write_file(base / "class_names.txt", "airplane\nbird\n")
    write_file(base / "train_X.bin", stl_pictures(0, 4)[0])
    write_file(base / "train_y.bin", bytes([1, 2, 2, 1]))
    write_file(base / "test_X.bin", stl_pictures(40, 1)[0])
    write_file(base / "test_y.bin", bytes([2]))
    write_file(base / "unlabeled_X.bin", stl_pictures(80, 2)[0])
    write_file(base / "fold_indices.txt", "2 0 \n1 3 \n")


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
