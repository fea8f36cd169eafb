"""Methods refuse labels they cannot learn from, with the reason."""

from __future__ import annotations

import pytest

from halflabel.errors import UserError
from halflabel.methods.base import recipe


@pytest.mark.parametrize(("name", "regime", "why"), [("role", "full", "unknown"), ("softmax", "partial", "but one")])
def test_the_reason_of_a_refusal_is_true(name: str, regime: str, why: str) -> None:
    with pytest.raises(UserError, match="cannot learn from") as caught:
        recipe(name).check_regime(regime)
    assert why in caught.value.message
    assert "nothing is known" not in caught.value.message
