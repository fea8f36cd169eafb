"""Pictures of names that the font has no letters for."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from halflabel.papers.figures.canvas import save_figure


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_name_in_letters_that_the_font_lacks_is_drawn_without_a_warning(tmp_path: Path, kind: str) -> None:
    figure = Figure(layout="constrained")
    figure.subplots().set_title("犬 ꧁ cat")  # warnings are errors here
    save_figure(figure, tmp_path / f"a.{kind}", caption="犬", kind=kind)
    assert (tmp_path / f"a.{kind}").stat().st_size > 1000
