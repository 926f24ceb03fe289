"""The notebooks of the documentation show what they make, run from top to bottom, in as few lines as they promise."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import nbformat
import pytest
from packaging.requirements import Requirement

import vldebias
from eval.notebooks import NOTEBOOKS, ROOT, differences, executed

LINES = {
    "load_pipeline()": 3,  # mitigate
    '"people"': 6,  # own images
    "texts, features": 6,  # own embeddings
    "vldebias.compare": 4,
    "vldebias.grid": 3,
}
SERVED = [ROOT / "apps" / "space.py", *NOTEBOOKS]  # what runs elsewhere as it is


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def sources(path: Path) -> list[str]:
    return [cell.source for cell in cells(path)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_small_and_of_no_machine(path: Path) -> None:
    outputs = [one for cell in cells(path) for one in cell.outputs]
    assert [one for one in outputs if one.output_type == "error" or one.get("name") == "stderr"] == []
    data = [one["data"] for one in outputs if one.get("data")]
    assert sum("image/png" in one for one in data) >= 3  # a picture, a plot, a grid
    assert sum("<table" in one.get("text/html", "") for one in data) >= 3  # two results, one comparison
    text = path.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert not any(place in text for place in ("/tmp/", "/home/", "/root/", str(ROOT)))


@pytest.mark.parametrize("mark", LINES)
def test_a_task_is_a_few_lines(mark: str) -> None:
    (first, *_) = [text for text in sources(NOTEBOOKS[0]) if mark in text and "import" not in text]
    assert len(first.splitlines()) <= LINES[mark]


def test_two_different_models_are_compared() -> None:
    (cell,) = (one for one in cells(NOTEBOOKS[0]) if "vldebias.compare" in one.source)
    assert '("miniature", "trained/model")' in cell.source
    assert all(name in str(cell.outputs) for name in ("max_skew", "verdict"))


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.name)
def test_what_is_imported_is_what_the_wheel_brings(path: Path) -> None:
    text = path.read_text(encoding="utf-8") if path.suffix == ".py" else "\n".join(sources(path))
    given = "demo" if path.suffix == ".py" else text.partition(".whl[")[2].partition("]")[0]
    if path.suffix != ".py":
        assert f"vldebias-{vldebias.__version__}-py3-none-any.whl[" in text
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("%"))
    named = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(code.replace("  # on Colab\n", "\n    pass\n")))
        for name in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    others = named - set(sys.stdlib_module_names) - {"vldebias"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought, left = set(), [f"vldebias[{given}]"]
    while left:
        asked = Requirement(left.pop())
        if asked.name != "vldebias":
            brought.add(asked.name.lower())
        left += [one for extra in asked.extras for one in project["optional-dependencies"][extra]]
    of = packages_distributions()
    known = brought | {"starlette"}  # which gradio is made of
    assert {one for one in others if not known & {name.lower() for name in of.get(one, [])}} == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_kept(path: Path, tmp_path: Path) -> None:
    assert list(differences(nbformat.read(path, 4), executed(path, tmp_path))) == []


def test_another_text_another_number_and_a_picture_less_are_differences() -> None:
    def notebook(*outputs: Any) -> Any:
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=list(outputs))])

    def shown(**data: str) -> Any:
        return nbformat.v4.new_output("display_data", {name.replace("_", "/"): text for name, text in data.items()})

    kept = notebook(shown(text_plain="skew 0.30"), shown(image_png="AAAA"))
    assert list(differences(kept, notebook(shown(text_plain="skew  0.31"), shown(image_png="BBBB")))) == []
    for other in (
        notebook(shown(text_plain="skew 0.40"), shown(image_png="AAAA")),
        notebook(shown(text_plain="gap 0.30"), shown(image_png="AAAA")),
        notebook(shown(text_plain="skew 0.30")),
    ):
        assert len(list(differences(kept, other))) == 1
