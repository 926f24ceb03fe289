"""Bars on a terminal, a line a minute in a log, nothing where it is silent."""

import io
from typing import Any

import pytest
from rich.console import Console

from vldebias import progress as module
from vldebias.progress import SILENT, Progress


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, force_jupyter=False)


def shown(on: Console) -> str:
    file: Any = on.file
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_steps_and_lines_are_shown(terminal: bool) -> None:
    on = console(terminal=terminal)
    with Progress.on(on) as progress:
        with progress:  # one that runs is handed down and ended by who began it
            pass
        with progress.bar("drawing [b]", total=4, there=2) as bar:
            bar.advance()
            bar.advance(3, note="loss [1]")
        with progress.step("loading") as step:
            step.note("weights")
        progress.say("a line with [/b] in it")
    text = shown(on)
    assert "drawing [b] (2 of 6 there already): loss [1]" in text
    assert "4/4" in text
    assert "a line with [/b] in it\n" in text
    assert "weights" not in text.splitlines()[-1]


def test_a_bar_of_unknown_length_is_full_at_the_end_and_one_without_work_from_the_start() -> None:
    on = console(terminal=False)
    with Progress.on(on) as progress:
        with progress.bar("a") as bar:
            bar.advance(7)
        with progress.bar("b", 0, there=5):
            pass
        assert list(progress.track(iter("xyz"), "c", 3)) == ["x", "y", "z"]
    lines = shown(on).splitlines()
    assert [("7/7" in lines[0]), ("1/1" in lines[1]), ("3/3" in lines[2])] == [True] * 3
    assert "b (5 of 5 there already)" in lines[1]


def test_in_a_log_a_line_is_written_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY", 0)
    on = console(terminal=False)
    with Progress.on(on) as progress, progress.bar("training", 3, done=1) as bar:
        bar.to(2, "loss 0.5")
        assert shown(on) == "training: loss 0.5: 2 of 3\n"


def test_silence_takes_everything() -> None:
    with SILENT, SILENT.bar("a", 3) as bar, SILENT.step("b") as step:
        bar.advance(note="x")
        step.note("y")
        SILENT.say("z")
    assert list(SILENT.track([1, 2], "c")) == [1, 2]
