"""Features of a label in one image are blended into another where it is unknown (Pu 2022: SARB, SARB*)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halflabel.methods.base import AfterEpoch, Duration, Method, method
from halflabel.methods.parts.blending import Blending
from halflabel.methods.parts.semantic import semantic_parts
from halflabel.methods.ssgrl import ssgrl
from halflabel.system.validate import MAX_SIZE, at_least, between


def _tune(options: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {"warm": (2, 5, 10)} if options["instance_weight"] or options["prototype_weight"] else {}


@method(
    serves=("full", "partial"),
    paper="Pu, Chen, Wu, Lu, Lin 2022 (arXiv 2205.13092), later Dual-Perspective Semantic-Aware Representation "
    "Blending, 2024: SARB*",
    lr=1e-3,
    tune=_tune,
    name="sarb*",
    options_of=ssgrl,
)
def sarb_star(
    share: float = 0.5,
    learn: bool = True,
    warm: AfterEpoch = 5,
    instance_weight: float = 1.0,
    prototype_weight: float = 1.0,
    contrast_weight: float = 0.05,
    every: Duration = 5,
    blends: int = 1,
    bank: int = 100,
    **head: Any,
) -> Method:
    """`sarb` with one prototype per quarter of the picture, blended into another quarter than its own.

    Quote the star in a shell, or write sarb-star. Use it where `sarb` is suitable.

        prototypes of c: the mean f_c of images that show c with the peak of its attention in one quarter (of all images
        if there are none);   f_c ← β f_c + (1 − β) (a prototype of c from another quarter than its own)

    All options are those of `sarb`, except that there are four prototypes: share, learn, warm, instance_weight,
    prototype_weight, contrast_weight, every, blends, bank, steps, dropout, width, rank, graph, vectors, vector_size.

    What the star means: Wang 2023 calls SARB* an extension of SARB and cites the arXiv version of the same title, no
    more. That extension blends prototypes "in a location-sensitive manner", and its code does it by quarters, on
    attended maps before they are summed over places. The sum is linear, so blending the sums is the same with a
    fraction of the memory; the place of the peak is read from the attention.

    Figures of Wang 2023 (ResNet-101, averages over 10 to 90 % known, mAP): COCO 78.4, VG-200 46.0, VOC 2007 91.5.
    """
    options = locals()
    return _blending("quadrants", 4, **options.pop("head"), **options)


@method(
    serves=("full", "partial"),
    paper="Pu, Chen, Wu, Lin 2022: Semantic-Aware Representation Blending for Multi-Label Image Recognition with "
    "Partial Labels (SARB)",
    lr=1e-3,
    tune=_tune,
    options_of=sarb_star,
)
def sarb(prototypes: int = 10, **options: Any) -> Method:
    """Features of a label in images that show it are blended into images where it is unknown, with a soft label.

    The head is that of `ssgrl`, whose per-label features can be exchanged between images. Unlike in `sst` nothing is
    guessed: the blended label is known to be partly present. Use it for partly known ± labels, above all if few are
    known. It needs features with places (maps); once blending has started, a step takes up to three times as long.

        instance: where y_c^n is unknown and y_c^m = 1:  f_c ← α f_c^n + (1 − α) f_c^m,  y_c ← 1 − α            (ILRB)
        prototype: for unknown labels drawn at random:  f_c ← β f_c + (1 − β) prototype_c,  y_c ← 1 − β         (PLRB)
        L = ℓ(y) + instance_weight · ℓ(instance) + prototype_weight · ℓ(prototype) + contrast_weight · L_cos
        ℓ = BCE divided by the entries used, with soft labels where blended;  L_cos as in `sst`

    share: α and β at the start; learn: learn both, through features and labels. warm: epochs before blending.
    prototypes: number of cluster centres of a label's features, recomputed every `every` epochs from the last `bank`
    images that showed it. blends: number of unknown labels of an image that get a prototype. The partner m of an image
    is drawn at random from the batch. width, rank: of the head; 1,024 and 512 in the released code. steps, dropout,
    graph, vectors, vector_size: as in `ssgrl`.

    Figures of Wang 2023 (ResNet-101, averages over 10 to 90 % known, mAP): COCO 77.9, VG-200 45.6, VOC 2007 90.7.

    Differs from the released code: partners are drawn, instead of reversing the batch; each entry draws its own
    prototype; an image with all labels known gets none; prototypes come from a bank of training features instead of a
    pass over all images.
    """
    return _blending("clusters", prototypes, **options)


def _blending(by: str, prototypes: int, **options: Any) -> Method:
    between(0, 1, share=options["share"])
    between(1, MAX_SIZE, bank=options["bank"], width=options["width"], prototypes=prototypes)
    at_least(1, blends=options["blends"], every=options["every"])
    at_least(0, **{name: options[name] for name in ("warm", "instance_weight", "prototype_weight", "contrast_weight")})
    head = {name: options.pop(name) for name in ("rank", "steps", "dropout", "graph", "vectors", "vector_size")}
    return Blending(by=by, prototypes=prototypes, **options, **semantic_parts(width=options["width"], **head))
