"""Nearly identical photos, such as bursts or views of one thing, by their features: a hint at groups nobody stated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

SIMILARITY = 0.93  # cosine; of 1,000 VOC photos 2 are as similar to any other, of slightly moved photos 9 in 10 are
_SAMPLE = 1000  # images that are compared with all others
_BLOCK = 1 << 14  # images that the sample is compared with at once
_LEAST_SHARE = 0.02


def near_copy_share(features: Tensor) -> float:
    """Return the share of the images, of a sample, that are nearly identical to another one: features (N, D)."""
    sample = normalize(features[:: -(-len(features) // _SAMPLE)].float(), dim=1) if len(features) else features
    sample = sample[~torch.isnan(sample).any(1)]
    if not len(sample):
        return 0.0
    similar = torch.zeros(len(sample), dtype=torch.int64)
    for block in torch.split(features, _BLOCK):
        similar += (sample @ normalize(block.float(), dim=1).T > SIMILARITY).sum(1)  # never with NaN
    return float((similar > 1).float().mean())  # each is similar to itself


def describe_near_copies(features: Tensor) -> str | None:
    """Return a warning where many images are nearly identical to another one, else None."""
    share = near_copy_share(features)
    if share < _LEAST_SHARE:
        return None
    return (
        f"{100 * share:.0f} % of the images are nearly identical to another one: if they are of one patient, camera or "
        "burst, state ‹group›, or the measured quality is too high"
    )
