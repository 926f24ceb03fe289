"""Test that the documentation notebooks run from top to bottom and show their actual output."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from eval.notebooks import NOTEBOOKS, differences, executed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_reproduces_its_saved_output(path: Path, tmp_path: Path) -> None:
    assert list(differences(nbformat.read(path, 4), executed(path, tmp_path))) == []


def test_changed_text_changed_numbers_and_missing_pictures_are_differences() -> None:
    def notebook(*outputs: Any) -> Any:
        return nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell("1", outputs=list(outputs))]
        )

    def shown(**data: str) -> Any:
        return nbformat.v4.new_output(
            "display_data", {name.replace("_", "/"): text for name, text in data.items()}
        )

    kept = notebook(shown(text_plain="skew 0.30"), shown(image_png="AAAA"))
    assert (
        list(differences(kept, notebook(shown(text_plain="skew  0.31"), shown(image_png="BBBB"))))
        == []
    )
    for changed in (
        notebook(shown(text_plain="skew 0.40"), shown(image_png="AAAA")),
        notebook(shown(text_plain="gap 0.30"), shown(image_png="AAAA")),
        notebook(shown(text_plain="skew 0.30")),
    ):
        assert len(list(differences(kept, changed))) == 1
