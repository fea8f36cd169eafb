"""The commands inspect, import, convert and drop."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import TINY, done, flat, refused, run


def test_inspect_prints_counts_and_a_method(data: Path, tmp_path: Path) -> None:
    text = done("inspect", data / "train.csv", "--plot", tmp_path / "labels.html")
    assert "48 images, 10 classes" in flat(text)
    assert "bce smoothing=0.1 and bce are measured" in flat(text)
    assert len(text.splitlines()) <= 25
    details = done("inspect", data / "train.csv", "--details")
    assert "bce" in details
    assert "<svg" in (tmp_path / "labels.html").read_text(encoding="utf-8")


def test_import_convert_and_back_keep_every_label(data: Path, tmp_path: Path) -> None:
    from halflabel.labels import formats

    before = formats.read(data / "train.csv").table()
    done("import", data / "train.csv", tmp_path / "long.csv", "--images", data / "images")
    done("convert", tmp_path / "long.csv", tmp_path / "wide.csv", "--to", "wide")
    done("convert", tmp_path / "wide.csv", tmp_path / "long.parquet")
    for name in ("long.csv", "wide.csv", "long.parquet"):
        assert formats.read(tmp_path / name).table() == before


def test_drop_hides_labels_by_the_seed(data: Path, tmp_path: Path) -> None:
    from halflabel.labels import formats

    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        done("drop", data / "train.csv", tmp_path / f"{name}.csv", "partial:share=0.3", "--seed", str(seed))
    a, b, c = (formats.read(tmp_path / f"{name}.csv").table() for name in "abc")
    assert a == b
    assert a != c
    assert 0.15 < a.known / 480 < 0.45
    done("drop", data / "train.csv", tmp_path / "single.csv", "single-positive")
    assert formats.read(tmp_path / "single.csv").table().stats.regime == "single-positive"


SOURCES = "image,class,value,source,score\n" + "".join(
    f"{n}.jpg,{name},{1 if n % 2 else -1},{source},{score}\n"
    for n in range(8)
    for name, source, score in (("dog", "alice", ""), ("cat", "model:bce:runs/1", "0.75"))
)


@pytest.mark.parametrize("protocol", ["partial:share=0.5", "noisy:share=0.5", "corrupt:share=1"])
def test_drop_keeps_the_sources(protocol: str, tmp_path: Path) -> None:
    from halflabel.labels import formats

    (tmp_path / "labels.csv").write_text(SOURCES)
    done("drop", tmp_path / "labels.csv", tmp_path / "less.csv", protocol)
    rows = formats.read(tmp_path / "less.csv").rows
    assert len(rows)
    for k in range(len(rows)):
        is_dog, value = rows.classes[rows.column[k]] == "dog", 1 if int(rows.images[rows.image[k]][0]) % 2 else -1
        assert rows.sources[rows.source[k]] == ("alice" if is_dog else "model:bce:runs/1")
        assert rows.score[k] == 0.75 or is_dog or rows.value[k] != value


def test_convert_loses_sources_only_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(SOURCES)
    text = refused("convert", tmp_path / "labels.csv", tmp_path / "wide.csv", "--to", "wide")
    assert "16 labels ('alice', 'model:bce:runs/1')" in text
    assert "made 8 of them" in text
    assert not (tmp_path / "wide.csv").exists()
    done("convert", tmp_path / "labels.csv", tmp_path / "wide.csv", "--to", "wide", "--without-sources")
    assert (tmp_path / "wide.csv").read_text().startswith("image,dog,cat\n")


def test_names_that_are_formulas_are_made_safe_on_request(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text('image,class,value,source,score\n"=cmd(1,2)",+a,1,@b,\nx.jpg,-c,-1,,\n')
    done("convert", tmp_path / "labels.csv", tmp_path / "plain.csv")
    assert '"=cmd(1,2)",+a,1,@b' in (tmp_path / "plain.csv").read_text()
    done("convert", tmp_path / "labels.csv", tmp_path / "safe.csv", "--excel-safe")
    assert (tmp_path / "safe.csv").read_text().splitlines()[1:] == ["\"'=cmd(1,2)\",'+a,1,'@b,", "x.jpg,'-c,-1,,"]
    assert "--excel-safe" in refused(
        "convert", tmp_path / "labels.csv", tmp_path / "x.json", "--to", "lvis", "--excel-safe"
    )


@pytest.mark.parametrize("name", ["\x1b]0;PWNED\x1b\\\x1b[2J\x1b[31mdog", "a\rb", "c\x9b31m", "d\u202ecod"])
def test_control_characters_in_names_are_never_printed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(f'image,class,value\na.jpg,"{name}",1\nb.jpg,cat,1\n', encoding="utf-8", newline="")
    texts = [done("inspect", path)]
    path.write_text(f'image,class,value\na.jpg,dog,"{name}"\n', encoding="utf-8", newline="")
    texts.append(refused("inspect", path))
    for text in texts:
        assert not set(text) & set("\x1b\r\x9b\u202e")


BROKEN: dict[str, tuple[bytes, list[str], str]] = {
    "missing column": (b"image,value\na,1\n", ["--format", "long"], "column"),
    "another image column": (b"image,cat\na,1\n", ["--image-column", "photo"], "photo"),
    "unknown value": (b"image,cat\na,maybe\nb,1\n", [], "line 2, column 'cat': value 'maybe' is not a label"),
    "duplicate id": (b"image,cat\na,1\na,0\n", [], "line 3, column 'image': image 'a' has other labels on line 2"),
    "duplicate column": (b"image,cat,cat\na,1,1\n", [], "column 'cat' occurs twice"),
    "latin-1": ("image,café\na,1\n".encode("latin-1"), [], "byte 0xe9 is not UTF-8"),
    "bytes": (b"image,cat\na,1\x00\n", [], "byte 0x00"),
    "empty": (b"", [], "the file is empty"),
    "header only": (b"image,cat\n", [], "a header but no rows"),
    "ragged, short": (b"image,cat,dog\na,1\n", [], "line 2: 2 fields where the first line has 3"),
    "ragged, long": (b"image,cat\na,1\nb,1,0\n", [], "line 3: 3 fields where the first line has 2"),
    "minus one": (b"image,cat\na,-1\n", [], "--minus-one absent"),
    "no name": (b"image,\na,1\n", [], "column 2 has no name"),
    "no format": (b"\n\n", [], "label format is not recognized"),
    "wrong format": (b"image,cat\na,1\n", ["--format", "excel"], "no label format is called 'excel'"),
    "idle option": (b"image,cat\na,1\n", ["--difficult", "absent"], "--difficult means nothing"),
    "odd pair": (b"image,cat\na,1\n", ["--value", "maybe"], "--value 'maybe' cannot be read"),
}


@pytest.mark.parametrize(("content", "options", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_label_file_is_named_and_nothing_is_written(
    tmp_path: Path, data: Path, content: bytes, options: list[str], says: str
) -> None:
    source = tmp_path / "in" / "labels.csv"
    source.parent.mkdir()
    source.write_bytes(content)
    out = tmp_path / "out"
    out.mkdir()
    assert says in refused("inspect", source, *options)
    assert says in refused("import", source, out / "new.csv", *options)
    assert says in refused("convert", source, out / "new.csv", "--to", "wide", *options)
    assert says in refused("drop", source, out / "new.csv", "partial:share=0.5", *options)
    assert says in refused("train", source, data / "images", "--out", out / "run", *TINY, *options)
    assert list(out.iterdir()) == []
    assert list(source.parent.iterdir()) == [source]


def test_a_format_that_would_lose_labels_is_refused(tmp_path: Path, data: Path) -> None:
    done("drop", data / "train.csv", tmp_path / "half.csv", "partial:share=0.5")
    assert "coco" in refused("convert", tmp_path / "half.csv", tmp_path / "out.json", "--to", "coco").lower()
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("form", ["coco", "label-studio"])
def test_other_tools_get_the_names_of_files(tmp_path: Path, form: str) -> None:
    (tmp_path / "photos" / "b").mkdir(parents=True)
    for name in ("1.jpg", "b/2.JPEG"):
        (tmp_path / "photos" / name).touch()
    (tmp_path / "labels.csv").write_text("image,class,value\n1,dog,1\n2,dog,1\n")
    out = tmp_path / "out.json"
    done("convert", tmp_path / "labels.csv", out, "--to", form, "--images", tmp_path / "photos")
    assert "1.jpg" in out.read_text()
    assert "b/2.JPEG" in out.read_text()
    (tmp_path / "labels.csv").write_text("image,class,value\n1,dog,1\n1.jpg,dog,1\n")
    words = ["convert", tmp_path / "labels.csv", out, "--to", form, "--images", tmp_path / "photos", "--force"]
    assert "the images '1' and '1.jpg' are the same file" in refused(*words)
    (tmp_path / "labels.csv").write_text("image,class,value\n7,dog,1\n")
    assert "1 of 1 images have no file" in refused(*words)


def test_a_seed_of_many_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image,class,value\na.jpg,dog,1\nb.jpg,dog,-1\n")
    words = ["drop", tmp_path / "labels.csv", tmp_path / "less.csv", "partial:share=0.5", "--seed"]
    assert "too large" in refused(*words, "9" * 30)
    done(*words, str(2**63 - 1))


def test_a_policy_is_stated_once(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("image,dog,cat\na.jpg,1,-1\nb.jpg,-1,0\n")
    first = run("inspect", labels, "--minus-one", "absent", "--zero", "unknown")
    assert "later commands read these options" in first.stderr
    again = run("inspect", labels)
    assert again.exit_code == 0
    assert "minus_one=absent, zero=unknown" in again.stderr
    assert again.stdout == first.stdout.replace(" --minus-one absent --zero unknown", "")
    assert "leave --zero out; or add --forget-policy" in refused("inspect", labels, "--zero", "absent")
    assert "-1 may mean" in refused("inspect", labels, "--forget-policy")
    assert list(tmp_path.iterdir()) == [labels]
