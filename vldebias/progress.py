"""Show progress: rich's bars on stderr, one line a minute in a log, or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_LINE_EVERY = 60.0  # seconds between two lines of one bar in a log, where no bar can move


class Progress:
    """Show bars with the time left, or nothing without `bars` (a `rich.progress.Progress`); it may be entered again."""

    def __init__(self, bars: Any = None) -> None:
        self.bars, self._entered = bars, 0

    @classmethod
    def on(cls, console: Console | None = None) -> Progress:
        """Return progress bars on a rich console; None: on stderr."""
        from rich import progress
        from rich.console import Console

        # Names come from users: brackets in them are no markup.
        columns = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn()]
        columns += [progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn()]
        # Bars that move in a notebook need ipywidgets; without them a line a minute is all that stays readable.
        console = console or Console(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False)
        return cls(progress.Progress(*columns, console=console, speed_estimate_period=120))

    def __enter__(self) -> Progress:
        if self.bars is not None:
            self.bars.start()
        self._entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if self.bars is not None and not self._entered:
            self.bars.stop()

    def say(self, text: str) -> None:
        """Print one line above the bars, without markup and without cutting it."""
        if self.bars is not None:
            self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: float | None = None, *, done: int = 0, there: int = 0) -> Iterator[Bar]:
        """Show a bar for `total` steps, `done` of which are already done; None: unknown number.

        there: further steps that an earlier run has done. They are shown, and do not count for the time left.
        """
        if there:
            title = f"{title} ({there} of {there + (total or 0):.0f} there already)"
        if total == 0:
            total = done = 1  # nothing left to do: a full bar
        bar = Bar(self.bars, title, total, done)
        yield bar
        bar.show(total=bar.done if total is None else total)

    @contextmanager
    def step(self, title: str) -> Iterator[Bar]:
        """Show a line for work of unknown length, and remove it when the work has ended."""
        bar = Bar(self.bars, title)
        try:
            yield bar
        finally:
            bar.show(visible=False)

    def track(self, items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
        """Yield the items and show a bar; `total` is their number if they have no length."""
        with self.bar(title, len(items) if isinstance(items, Sized) else total) as bar:
            for item in items:
                yield item
                bar.advance()


class Bar:
    """Update one line of a `Progress`; made by `Progress.bar`."""

    def __init__(self, bars: Any, title: str, total: float | None = None, done: int = 0) -> None:
        self._bars, self._title, self._note, self.total, self.done = bars, title, "", total, done
        self._written = time.monotonic()
        self._task = bars and bars.add_task(title, total=total, completed=done)

    def advance(self, count: int = 1) -> None:
        """Show that `count` more steps are done."""
        self.to(self.done + count, self._note)

    def note(self, text: str) -> None:
        """Show a note next to the title."""
        self.to(self.done, text)

    def to(self, done: int, note: str) -> None:
        """Set the number of steps done, and show a note such as the loss."""
        self.done, self._note = done, note
        text = f"{self._title}: {note}" if note else self._title
        self.show(completed=done, description=text)
        if self._bars is not None and time.monotonic() - self._written >= _LINE_EVERY:
            self._written, console = time.monotonic(), self._bars.console
            if not (console.is_terminal or console.is_jupyter):
                of = "" if self.total is None else f" of {self.total:.0f}"
                console.print(f"{text}: {done}{of}", markup=False, highlight=False, soft_wrap=True)

    def show(self, **fields: Any) -> None:
        """Update fields of the underlying task of rich."""
        if self._bars is not None:
            self._bars.update(self._task, **fields)


SILENT = Progress()
