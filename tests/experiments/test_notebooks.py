"""The notebooks of the documentation run from top to bottom, in as few lines as they promise."""

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
LINES = {
    "load_pipeline()": 3,  # mitigate
    '"people"': 6,  # own images
    "texts, features": 6,  # own embeddings
    "vldebias.compare": 4,
    "vldebias.grid": 3,
}


def sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def test_no_output_is_committed() -> None:
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert not any(cell.get("outputs") for cell in nbformat.read(path, 4).cells)


@pytest.mark.parametrize("mark", LINES)
def test_a_task_is_a_few_lines(mark: str) -> None:
    (first, *_) = [text for text in sources(NOTEBOOKS[0]) if mark in text and "import" not in text]
    assert len(first.splitlines()) <= LINES[mark]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_makes(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, 4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    last: list[dict[str, Any]] = [
        output["data"] for cell in notebook.cells for output in cell.get("outputs", ()) if output.get("data")
    ]
    assert sum("image/png" in data for data in last) >= 3  # a picture, a plot, a grid
    assert sum("<table" in data.get("text/html", "") for data in last) >= 3  # two results, one comparison
