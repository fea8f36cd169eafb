"""A transformer decoder as classification head (Ridnik 2021, ML-Decoder; Liu 2021, Query2Label)."""

from __future__ import annotations

from functools import partial

from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.methods.parts.query_head import QueryHead
from halflabel.methods.parts.ranking import UnknownAs
from halflabel.system.validate import MAX_SIZE, below_one, between


@method(
    serves=REGIMES,
    paper="Ridnik, Sharir, Ben-Cohen, Ben-Baruch, Noy 2021: ML-Decoder; Liu, Zhang, Yang, Su, Zhu 2021: Query2Label",
    lr=3e-4,
    tune={"width": (128, 256)},
)
def ml_decoder(
    queries: int = 0, width: int = 256, heads: int = 4, dropout: float = 0.1, unknown: str = "auto"
) -> Method:
    """Each class, or group of classes, has a query that attends to the places of the image where it may be.

    Use it if objects are small or many in a picture, with many labelled images or --tune all. It needs features with
    places (maps). Its class maps show the attention of each class.

        o_k = decoder layer of query k over the places,   x_c = w_c · o_k + b_c   (`halflabel.methods.parts.query_head`)
        L = BCE on known labels, divided by their number in the batch

    queries: 0 = one per class (Query2Label); otherwise classes share so many (ML-Decoder uses 100 from 100 classes on).
    width: of queries and places, 768 in ML-Decoder; heads: attention heads, 8 in both papers; dropout: of attended and
    hidden values; unknown: ignore leaves unknown labels out, negative takes them as absent, auto means negative if no
    label is known to be absent.

    With few labels it is below `bce`: on frozen maps of 1,000 photos of VOC 2012 with 2 of 20 labels (in batches, 40
    epochs, two draws) it has 39.0 mAP, `bce` on the same maps 47.1. With more labels it has not been measured.

    Differs from the papers: one decoder layer without attention between queries, and learned queries, where Query2Label
    has two layers with it and ML-Decoder fixed random queries; both train with `asl`.
    """
    between(0, MAX_SIZE, queries=queries)
    between(1, MAX_SIZE, width=width, heads=heads)
    below_one(dropout=dropout)
    head = partial(QueryHead, queries=queries, width=width, heads=heads, dropout=dropout)
    return Method(BCE(), UnknownAs(unknown), head=head, reduce=over_known)
