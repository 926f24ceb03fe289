"""What somebody sees who waits: bars, steps of unknown length, and lines above them, on stderr; or nothing at all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

T = TypeVar("T")

_LINE_EVERY = 60.0  # seconds between two lines of one bar in a log, where no bar can move


class Progress:
    """Bars with the time left, on a terminal or in a notebook; in a pipe or a log a line a minute.

    A context manager, which may be entered again inside itself (the outermost one ends the bars), so that whoever
    has one hands it down and whoever has none makes one:

        with Progress.on() as progress:
            with progress.bar("drawing", total=200) as bar:
                bar.advance()

    Args:
        bars: where to draw, such as a `rich.progress.Progress` that runs already; None: nothing is shown.
    """

    def __init__(self, bars: RichProgress | None = None) -> None:
        self._bars = bars
        self._entered = 0

    @classmethod
    def on(cls, console: Console | None = None) -> Progress:
        """Make bars on a rich console; None: on stderr."""
        from rich import progress
        from rich.console import Console

        # Names come from users: brackets in them are no markup.
        columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn())
        clock = (progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
        # Bars that move in a notebook need ipywidgets; without them a line a minute is all that stays readable.
        plain = False if find_spec("ipywidgets") is None else None
        console = console or Console(stderr=True, force_jupyter=plain)
        return cls(progress.Progress(*columns, *clock, console=console, speed_estimate_period=120))

    def __enter__(self) -> Progress:
        if self._bars is not None and not self._entered:
            self._bars.start()
        self._entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if self._bars is not None and not self._entered:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Print one line above the bars, as it is: no markup, not cut."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: float | None = None, *, done: int = 0, there: int = 0) -> Iterator[Bar]:
        """Show a bar that stays when its work has ended.

        Args:
            title: what is being done.
            total: steps of the work; None: unknown, known at the end.
            done: steps made before, as in a run that is resumed.
            there: what an earlier run has done of the same work beside `total`: told, but not counted, so that it
                does not flatter the time left.
        """
        if there:
            title = f"{title} ({there} of {there + (total or 0):.0f} there already)"
        if total == 0:
            total = done = 1  # nothing left to do: a full bar
        bar = Bar(self, title, total, done)
        yield bar
        if total is None:
            bar.update(total=bar.done)

    @contextmanager
    def step(self, title: str) -> Iterator[Bar]:
        """Show a line for work of unknown length, which goes when it has ended; `Bar.note` tells what is being done."""
        bar = Bar(self, title, None, 0)
        try:
            yield bar
        finally:
            bar.update(visible=False)

    def track(self, items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
        """Yield the items, one after the other, with a bar; `total`: how many, where they have no length."""
        length = getattr(items, "__len__", None)
        with self.bar(title, length() if length is not None else total) as bar:
            for item in items:
                yield item
                bar.advance()


class Bar:
    """One line of a `Progress`, which makes it: does nothing where that is silent."""

    def __init__(self, progress: Progress, title: str, total: float | None, done: int) -> None:
        self._progress, self._bars, self._title, self._total = progress, progress._bars, title, total
        self._line, self._note, self.done = time.monotonic(), "", done
        self._task = None if self._bars is None else self._bars.add_task(title, total=total, completed=done)

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Show that `count` more steps are done."""
        self.to(self.done + count, note)

    def note(self, text: str) -> None:
        """Show something beside the title, in the place of what was there."""
        self.to(self.done, text)

    def to(self, done: int, note: str | None = None) -> None:
        """Show that `done` steps are done in all; `note`: something to know beside the title, such as the loss."""
        self.done, self._note = done, self._note if note is None else note
        text = f"{self._title}: {self._note}" if self._note else self._title
        self.update(completed=done, description=text)
        if self._bars is not None and time.monotonic() - self._line >= _LINE_EVERY:
            self._line, console = time.monotonic(), self._bars.console
            if not (console.is_terminal or console.is_jupyter):
                self._progress.say(f"{text}: {done}{'' if self._total is None else f' of {self._total:.0f}'}")

    def update(self, **fields: Any) -> None:
        """Change the task of rich."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, **fields)


SILENT = Progress()
