"""Nearly identical photos by their features."""

import torch

from halflabel.features.near_copies import describe_near_copies, near_copy_share


def test_bursts_are_found_and_other_photos_are_not() -> None:
    generator = torch.manual_seed(0)
    alone = torch.rand(300, 64, generator=generator).pow(4)
    burst = alone[:30] * (1 + 0.05 * torch.randn(30, 64, generator=generator))
    unreadable = torch.full((1, 64), torch.nan)
    assert describe_near_copies(torch.cat([alone, unreadable])) is None
    together = torch.cat([alone, unreadable, burst])
    assert abs(near_copy_share(together) - 60 / 330) < 0.02
    assert "‹group›" in str(describe_near_copies(together))
