"""What somebody sees who waits for a run: the stage, how far it is, when it ends, the loss and the last scores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vldebias.training.loop import Entry

__all__ = ["Display"]

_LINE_EVERY = 60.0  # seconds; into a file, where no bar can move
_SHOWN = ("zero_shot_accuracy", "recall@1 image->text", "recall@1 text->image")


class Display:
    """A progress bar and lines of scores on a console; as a context it ends the bar."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        told = (TextColumn("{task.fields[told]}"), TimeElapsedColumn(), TimeRemainingColumn())
        self.console = console
        self.progress = Progress(*columns, *told, console=console, disable=quiet, speed_estimate_period=120)
        self._quiet = quiet
        self._bar: TaskID | None = None
        self._told = time.monotonic()

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        """One line above the bar."""
        if not self._quiet:
            self.console.print(text, markup=False, highlight=False)

    def step(self, entry: Entry, steps: int) -> None:
        """Moves the bar to a step of the loop; where there is no bar, as in a log, a line says so now and then."""
        done, loss = int(entry["step"]) + 1, f"loss {entry['loss']:.4g}"
        if self._bar is None:
            self._bar = self.progress.add_task("training", total=steps, completed=done - 1, told="")
        self.progress.update(self._bar, completed=done, told=loss)
        scores = [f"{name} {entry[name]:.3f}" for name in _SHOWN if name in entry]
        if scores or (not self.console.is_terminal and time.monotonic() - self._told >= _LINE_EVERY):
            self.say(f"step {done} of {steps}: {', '.join([loss, *scores])}")
            self._told = time.monotonic()

    @contextmanager
    def other(self) -> Iterator[Progress]:
        """A plain bar for what comes after training."""
        self.progress.stop()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        clock = (TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, *clock, console=self.console, disable=self._quiet) as progress:
            yield progress
