"""Test progress: bars on a terminal, one line per minute in a log, and nothing if silent."""

import io

import pytest
from rich.console import Console

from vldebias.utils import progress as module
from vldebias.utils.progress import SILENT, Progress


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100, force_jupyter=False), file


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_steps_and_lines_are_shown(terminal: bool) -> None:
    screen, file = console(terminal=terminal)
    long = 90 * "."
    with Progress(screen) as progress:
        with progress:  # a running bar is passed on and closed by its creator
            pass
        with progress.bar("drawing [b]", total=4, reused=2) as advance:
            advance()
            advance(3, "loss [1]")
        with progress.bar("loading") as advance:
            advance(0, "weights")
        assert list(progress.track(iter("xyz"), 3, description="c")) == ["x", "y", "z"]
        progress.print_line(f"a line with [/b] in it{long}")
    text = file.getvalue()
    for shown in (
        "drawing [b] (2 of 6 already done): loss [1]",
        "4/4",
        "3/3",
        f"a line with [/b] in it{long}\n",
    ):
        assert shown in text
    assert "already): 1 of 4" not in text
    assert "weights" not in text.splitlines()[-1]


def test_a_log_gets_one_line_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    screen, file = console(terminal=False)
    with Progress(screen) as progress, progress.bar("training", 9, done=1) as advance:
        for now[0], note in ((159.0, "early"), (160.0, "loss 0.5"), (219.0, "late"), (220.0, None)):
            advance(note=note)
        assert file.getvalue() == "training: loss 0.5: 3 of 9\ntraining: late: 5 of 9\n"


def test_silent_progress_accepts_all_calls_without_storing_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with SILENT, SILENT.bar("a", 3) as advance:
        advance()
        advance(0, "y")
        SILENT.print_line("z")
    assert not SILENT.tasks
    assert (Progress().console.stderr, Progress().console.is_jupyter) == (True, False)
    assert not any(capsys.readouterr())
