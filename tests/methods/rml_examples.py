"""Inputs for the tests of the ranking methods."""

from pathlib import Path

import torch

from halflabel.types import Batch

TESTS = Path(__file__).parent.parent


def make_example(images, classes, seed, unknown=0.3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, classes, generator=generator, dtype=torch.float64) * 2
    labels = torch.where(torch.rand(images, classes, generator=generator) < 0.3, 1, -1).to(torch.int8)
    labels[torch.rand(images, classes, generator=generator) < unknown] = 0
    return x, labels


def make_batch(labels, index=None):
    labels = torch.as_tensor(labels, dtype=torch.int8)
    return Batch(torch.arange(len(labels)) if index is None else index, (), labels)
