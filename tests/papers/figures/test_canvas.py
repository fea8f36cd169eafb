"""Pictures of names that the font has no letters for."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from halflabel.papers.figures import save_figure


def test_a_name_in_letters_that_the_font_lacks_is_drawn_without_a_warning(tmp_path: Path) -> None:
    figure = Figure(layout="constrained")
    figure.subplots().set_title("犬 ꧁ cat")  # warnings are errors here
    save_figure(figure, tmp_path / "a.png", caption="犬")
    assert (tmp_path / "a.png").stat().st_size > 1000
