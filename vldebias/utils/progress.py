"""Show progress: rich's bars on stderr, one line a minute in a log, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich import progress
from rich.console import Console

from vldebias.utils.markup import printable

_LINE_EVERY = 60.0  # seconds between two lines of one bar in a log, where no bar can move


class Progress(progress.Progress):
    """Show bars with the time left on a rich console, on stderr by default, or nothing on a quiet
    one.

    It may be entered again while it runs.
    """

    def __init__(self, console: Console | None = None) -> None:
        # Names come from users: brackets in them are no markup.
        columns = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn()]
        columns += [
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        ]
        if console is None:
            # Bars that move in a notebook need ipywidgets; without them a line a minute is all that
            # stays readable.
            jupyter = None if find_spec("ipywidgets") else False
            console = Console(stderr=True, force_jupyter=jupyter)
        super().__init__(
            *columns,
            console=console,
            speed_estimate_period=120,
            disable=console.quiet,
            transient=console.is_terminal,  # where bars moved, what was found stays alone
        )
        self._entered = 0

    def __enter__(self) -> Progress:
        # Nested commands share one display, and only the outermost ends it.
        self._entered += 1
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if not self._entered:
            self.stop()

    def say(self, text: str) -> None:
        """Print one line above the bars, without markup and without cutting it."""
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(
        self, title: str, total: int | None = None, *, done: int = 0, reused: int = 0
    ) -> Iterator[Callable[..., None]]:
        """Show a bar for `total` steps, `done` of which are already done; with total None the
        number is unknown and the bar is removed at the end.

        It yields `advance(count=1, note=None)`, which shows that `count` more steps are done, and a
        note next to the title such as the loss.

        reused: further steps that an earlier run has done. They are shown, and do not count for
        the time left.
        """
        if reused:
            title = f"{title} ({reused} of {reused + (total or 0)} there already)"
        title = printable(title)
        task = self.add_task(title, total=total, completed=done)
        written = time.monotonic()
        text = title

        def advance(count: int = 1, note: str | None = None) -> None:
            nonlocal done, written, text
            done = done + count
            if note is not None:
                text = f"{title}: {printable(note)}"
            self.update(task, completed=done, description=text)
            # A bar cannot move in a file, so that a line a minute says how far it is.
            is_log = not (self.console.is_terminal or self.console.is_jupyter)
            if is_log and time.monotonic() - written >= _LINE_EVERY:
                written = time.monotonic()
                end = "" if total is None else f" of {total}"
                self.say(f"{text}: {done}{end}")

        try:
            yield advance
        finally:
            if total is None or self.disable:
                self.remove_task(task)


SILENT = Progress(Console(quiet=True))
