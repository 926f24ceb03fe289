"""Test that the committed terminal outputs are current, fit the width, and do not break words."""

import pytest

from eval import terminal


@pytest.mark.parametrize("width", terminal.WIDTHS)
@pytest.mark.parametrize("name", terminal.CHEAP)
def test_the_committed_text_matches_current_output(name: str, width: int) -> None:
    file = terminal.FOLDER / f"{name}-{width}.txt"
    expected = file.read_text(encoding="utf-8")
    assert terminal.shown(name, width) == expected, "run `python -m eval.terminal`"


@pytest.mark.parametrize(("name", "width"), terminal.TEXTS)
def test_lines_are_few_and_fit_the_width(name: str, width: int) -> None:
    lines = (terminal.FOLDER / f"{name}-{width}.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    assert max(map(len, lines)) <= width
    # quickstart has four conclusions, each with its cost.
    assert len(lines) <= (44 if name == "quickstart" else 32)
    assert not any("\x1b" in line for line in lines)
