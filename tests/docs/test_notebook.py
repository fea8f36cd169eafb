"""The notebook of the tutorial runs from top to bottom, and is stored without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from halflabel.papers.datasets import birds

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


def test_notebook_has_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.slow
@pytest.mark.skipif(birds.photo_folder() is None, reason=f"needs the photos of {birds.PACKAGE}")
def test_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = "\n".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )
    score = re.search(r"mAP (\d+\.\d)", text)
    assert score is not None
    assert float(score[1]) > 40  # the share of positives, which guessing reaches, is 14 %
    filled = re.search(r"(\d+) of (\d+) unknown labels filled, (\d+\.\d)% right", text)
    assert filled is not None
    assert int(filled[1]) > 0.3 * int(filled[2])
    assert float(filled[3]) > 88
    assert (tmp_path / "runs" / "birds" / "best.safetensors").exists()
