"""Pictures of neighbours are written, and the strongest edges are the strongest."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from halflabel.labels.names import Names
from halflabel.methods.parts.label_graph import Edges, identity
from halflabel.methods.parts.matching_pursuit import Similar
from halflabel.papers.figures import (
    FigureUnavailable,
    draw_image_neighbours,
    draw_label_neighbours,
    spread_queries,
    strongest_edges,
)

EDGES = Edges(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 2, 0, 1]), np.array([9.0, 0.5, 0.5, 2.0, 0.0, 1.0]))
START = EDGES._replace(weights=np.array([0.9, 0.1, 0.2, 0.3, 0.4, 0.5]))
CLASSES = Names(["dog", "cat", "sofa"])


def is_picture(path):
    head = path.read_bytes()[:24]
    width, height = struct.unpack(">II", head[16:24])
    return head[:8] == b"\x89PNG\r\n\x1a\n" and width > 200 and height > 100


def test_strongest_edges():
    edges = strongest_edges(START, EDGES, CLASSES, 3)
    expected = [("cat", "sofa", 2.0, 0.3), ("sofa", "cat", 1.0, 0.5), ("dog", "cat", 0.5, 0.1)]
    assert [tuple(edge) for edge in edges] == expected
    assert len(strongest_edges(START, EDGES, CLASSES)) == 4  # no loop, no edge of weight 0


def test_label_neighbours_are_drawn(tmp_path):
    draw_label_neighbours(START, EDGES, ["d$^$g", "cat", "so$a"], tmp_path / "labels.png", n=3, caption="whose")
    assert is_picture(tmp_path / "labels.png")
    with pytest.raises(FigureUnavailable, match="no label is connected"):
        draw_label_neighbours(identity(3), identity(3), CLASSES, tmp_path / "none.png")


def test_image_neighbours_are_drawn(tmp_path):
    rng = np.random.default_rng(0)
    photos = {i: rng.integers(0, 256, (16 + 2 * i, 20, 3), dtype=np.uint8) for i in range(4)}  # one cannot be read
    index = torch.tensor([[1, 2], [0, -1], [-1, -1], [4, 0], [3, 1]])
    similar = Similar(index, (torch.rand(5, 2), torch.rand(5, 2)))
    assert spread_queries(similar) == [0, 1, 3, 4]
    assert spread_queries(similar, 2) == [0, 4]
    titles = {i: f"a class of a long name $^$ {i}" for i in range(5)}
    draw_image_neighbours(photos, similar, [0, 1, 3, 4], titles, tmp_path / "all.png")
    draw_image_neighbours(photos, similar, [3], titles, tmp_path / "some.png", "whose it is")
    assert is_picture(tmp_path / "all.png")
    assert is_picture(tmp_path / "some.png")
    assert (tmp_path / "all.png").read_bytes()[16:24] != (tmp_path / "some.png").read_bytes()[16:24]
    with pytest.raises(FigureUnavailable, match="not one image has a neighbour"):
        spread_queries(Similar(torch.full((5, 2), -1), similar.weights))
