"""Test that the walkthroughs in CONTRIBUTING name existing definitions, at most six each."""

import ast
import re
from pathlib import Path

import pytest

import vldebias

ROOT = Path(vldebias.__file__).parent
CONTRIBUTING = ROOT.parent / ".github" / "CONTRIBUTING.md"
STATION = re.compile(r"^(\d)\. `([\w/]+\.py)`, `([\w.]+)`", re.MULTILINE)


def ways() -> list[str]:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    return re.split(r"^### ", text.partition("## Recipes")[0], flags=re.MULTILINE)[1:]


def definitions(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{x.name}" for x in node.body if isinstance(x, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("way", ways(), ids=lambda way: way.split("`")[1].split("(")[0])
def test_each_step_of_a_walkthrough_is_a_definition(way: str) -> None:
    stations = STATION.findall(way)
    assert stations
    assert max(int(number) for number, _, _ in stations) <= 6
    for _, path, name in stations:
        assert name in definitions(ROOT / path), f"{path} has no {name}"


def test_there_are_five_walkthroughs() -> None:
    assert len(ways()) == 5
