"""WordNet's own files: a small made-up one, and the real one where it is installed."""

from pathlib import Path

import pytest

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.methods.parts.label_graph import WordNet, from_wordnet

PARENTS = {
    "entity": [],
    "animal": ["entity"],
    "dog": ["animal"],
    "cat": ["animal"],
    "toy": ["entity"],
    "toy_dog": ["dog", "toy"],
}


def write(folder: Path) -> Path:
    """The two files, with offsets as WordNet has them."""
    offsets, content = {}, ""
    for name, parents in PARENTS.items():
        offsets[name] = len(content.encode())
        pointers = "".join(f" @ {offsets[parent]:08d} n 0000" for parent in parents)
        count = len(parents) + 1
        content += f"{offsets[name]:08d} 03 n 01 {name} 0 {count:03d}{pointers} ~ 00000099 n 0000 | a {name}\n"
    (folder / "data.noun").write_text(content)
    index = [f"{name} n 1 1 @ 1 0 {offset:08d}" for name, offset in offsets.items()]
    (folder / "index.noun").write_text("  1 a licence\n" + "  \n".join(index) + "  \n")
    return folder


def test_similarity_is_that_of_wu_and_palmer(tmp_path, monkeypatch):
    monkeypatch.setenv("WNSEARCHDIR", str(write(tmp_path)))
    wordnet = WordNet.find()
    dog, cat, toy, small, none = wordnet.meanings(["Dogs", "cat", "toy", "toy dog", "xyz"])
    assert none is None
    assert wordnet.similarity(dog, dog) == 1
    assert wordnet.similarity(dog, cat) == pytest.approx(2 * 2 / (3 + 3))  # animal is at depth 2
    assert wordnet.similarity(dog, toy) == pytest.approx(2 * 1 / (3 + 2))
    assert wordnet.similarity(small, toy) == pytest.approx(2 * 2 / (3 + 2))  # by its second parent
    assert wordnet.similarity(small, dog) == pytest.approx(2 * 3 / (4 + 3))


def test_a_missing_wordnet_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    with pytest.raises(UserError, match="apt install wordnet-base"):
        WordNet.find()


def test_the_real_wordnet():
    try:
        wordnet = WordNet.find()
    except UserError as error:
        pytest.skip(f"{error.message}: apt install wordnet-base")
    dog, cat, car = wordnet.meanings(["dog", "cat", "cars"])
    assert wordnet.similarity(dog, cat) == pytest.approx(6 / 7)  # the published value for WordNet 3
    assert wordnet.similarity(dog, car) < 0.5
    classes = Names(["aeroplane", "boat", "bus", "car", "cat", "cow", "dog", "horse", "sheep", "train"])
    nearest = from_wordnet(classes, 1)
    neighbour = {classes[row]: classes[col] for row, col in zip(nearest.rows, nearest.cols, strict=True)}
    assert neighbour["cat"] == "dog"
    assert neighbour["boat"] == "aeroplane"
