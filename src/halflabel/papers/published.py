"""What the papers published: all their tables by id. Figures that only a diagram shows are not here."""

from __future__ import annotations

from halflabel.errors import UserError
from halflabel.papers.papers import cevikalp_2019, durand_2019, huynh_2020, wang_2023, zhou_2022
from halflabel.papers.printed import Column, Number, Published

__all__ = ["PAPERS", "PUBLISHED", "Column", "Number", "Published", "paper_of", "published"]

PAPERS = {
    "S1": "Huynh, Elhamifar 2020: Interactive Multi-Label CNN Learning with Partial Labels",
    "S2": "Durand, Mehrasa, Mori 2019: Learning a Deep ConvNet for Multi-label Classification with Partial Labels",
    "S3": "Cevikalp, Benligiray, Gerek, Saribas 2019: Semi-Supervised Robust Deep Neural Networks for Multi-Label "
    "Classification",
    "S4": "Wang, Wan, Xiang, Zeng 2023: Saliency Regularization for Self-Training with Partial Annotations",
    "S5": "Zhou, Chen, Wang, Chen, Heng 2022: Acknowledging the Unknown for Multi-label Learning with Single Positive "
    "Labels",
}

_MODULES = (huynh_2020, durand_2019, cevikalp_2019, wang_2023, zhou_2022)
PUBLISHED: dict[str, Published] = {found.id: found for module in _MODULES for found in module.TABLES}


def published(id: str) -> Published:
    """The printed table of that id, such as S2-table4."""
    if id not in PUBLISHED:
        raise UserError(f"no published table is called {id!r}", f"use one of: {', '.join(PUBLISHED)}")
    return PUBLISHED[id]


def paper_of(id: str) -> str:
    """
    >>> paper_of("S4-table2")
    'Wang, Wan, Xiang, Zeng 2023: Saliency Regularization for Self-Training with Partial Annotations'
    """
    return PAPERS[id.split("-")[0]]
