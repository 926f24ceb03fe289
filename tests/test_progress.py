"""Bars on a terminal, a line a minute in a log, nothing where it is silent."""

import io

import pytest
from rich.console import Console

from vldebias import progress as module
from vldebias.progress import SILENT, Progress


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100, force_jupyter=False), file


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_steps_and_lines_are_shown(terminal: bool) -> None:
    on, file = console(terminal=terminal)
    with Progress.on(on) as progress:
        with progress:  # one that runs is handed down and ended by who began it
            pass
        with progress.bar("drawing [b]", total=4, there=2) as bar:
            bar.advance()
            bar.to(4, "loss [1]")
        with progress.step("loading") as step:
            step.note("weights")
        with progress.bar("unknown") as bar:
            bar.advance(7)
        assert list(progress.track(iter("xyz"), "c", 3)) == ["x", "y", "z"]
        progress.say("a line with [/b] in it")
    text = file.getvalue()
    for shown in ("drawing [b] (2 of 6 there already): loss [1]", "4/4", "7/7", "3/3", "a line with [/b] in it\n"):
        assert shown in text
    assert "weights" not in text.splitlines()[-1]


def test_in_a_log_a_line_is_written_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY", 0)
    on, file = console(terminal=False)
    with Progress.on(on) as progress, progress.bar("training", 3, done=1) as bar:
        bar.to(2, "loss 0.5")
        assert file.getvalue() == "training: loss 0.5: 2 of 3\n"


def test_silence_takes_everything() -> None:
    with SILENT, SILENT.bar("a", 3) as bar, SILENT.step("b") as step:
        bar.advance()
        step.note("y")
        SILENT.say("z")
    assert list(SILENT.track([1, 2], "c")) == [1, 2]
