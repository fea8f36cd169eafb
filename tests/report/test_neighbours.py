"""Pictures of neighbours are written, and the strongest edges are the strongest."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.label_graph import Edges, identity
from halflabel.labels.names import Names
from halflabel.omp import Similar
from halflabel.report.neighbours import draw_image_neighbours, draw_label_neighbours, strongest_edges

EDGES = Edges(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 2, 0, 1]), np.array([9.0, 0.5, 0.5, 2.0, 0.0, 1.0]))
CLASSES = Names(["dog", "cat", "sofa"])


def is_picture(path):
    head = path.read_bytes()[:24]
    width, height = struct.unpack(">II", head[16:24])
    return head[:8] == b"\x89PNG\r\n\x1a\n" and width > 200 and height > 100


def test_strongest_edges():
    found = strongest_edges(EDGES, CLASSES, 3)
    assert [tuple(edge) for edge in found] == [("cat", "sofa", 2.0), ("sofa", "cat", 1.0), ("dog", "cat", 0.5)]
    assert len(strongest_edges(EDGES, CLASSES)) == 4  # no loop, no edge of weight 0


def test_label_neighbours_are_drawn(tmp_path):
    draw_label_neighbours(EDGES, list(CLASSES), tmp_path / "labels.png", n=3)
    assert is_picture(tmp_path / "labels.png")
    with pytest.raises(UserError, match="no label is connected"):
        draw_label_neighbours(identity(3), CLASSES, tmp_path / "none.png")


def test_image_neighbours_are_drawn(tmp_path):
    images = torch.randint(0, 256, (5, 3, 16, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    index = torch.tensor([[1, 2], [0, -1], [-1, -1], [4, 0], [3, 1]])
    similar = Similar(index, (torch.rand(5, 2), torch.rand(5, 2)))
    draw_image_neighbours(images, similar, tmp_path / "all.png")
    names = [f"a/long/path/to/photo-{i}.jpg" for i in range(5)]
    draw_image_neighbours(images, similar, tmp_path / "some.png", queries=[3], names=names)
    assert is_picture(tmp_path / "all.png")
    assert is_picture(tmp_path / "some.png")
    assert (tmp_path / "all.png").read_bytes()[16:24] != (tmp_path / "some.png").read_bytes()[16:24]
    nothing = Similar(torch.full((5, 2), -1), similar.weights)
    with pytest.raises(UserError, match="not one image has a neighbour"):
        draw_image_neighbours(images, nothing, tmp_path / "none.png")
    with pytest.raises(UserError, match="shape"):
        draw_image_neighbours(images[:4], similar, tmp_path / "none.png")
