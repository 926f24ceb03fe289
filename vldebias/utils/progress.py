"""Show progress: bars on stderr, one line per minute in a log file, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich import progress
from rich.console import Console

from vldebias.utils.markup import printable

_LINE_EVERY = 60.0  # seconds between lines in a log file


class Progress(progress.Progress):
    """Show progress bars on a rich console, by default on stderr, unless the console is quiet.

    The context manager is reentrant.
    """

    def __init__(self, console: Console | None = None) -> None:
        # Disable markup, because names come from users and may contain brackets.
        columns = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn()]
        columns += [
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        ]
        if console is None:
            # Bars in notebooks require ipywidgets. If it is not installed, print a line per minute
            # instead.
            jupyter = None if find_spec("ipywidgets") else False
            console = Console(stderr=True, force_jupyter=jupyter)
        super().__init__(
            *columns,
            console=console,
            speed_estimate_period=120,
            disable=console.quiet,
            transient=console.is_terminal,  # remove finished bars on a terminal
        )
        self._entered = 0

    def __enter__(self) -> Progress:
        # Nested blocks share one display, which the outermost block stops.
        self._entered += 1
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if not self._entered:
            self.stop()

    def print_line(self, text: str) -> None:
        """Print one line above the bars, without markup or truncation."""
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(
        self, title: str, total: int | None = None, *, done: int = 0, reused: int = 0
    ) -> Iterator[Callable[..., None]]:
        """Show a progress bar.

        Args:
            title: the title of the bar.
            total: the number of steps. If None, the number is unknown, and the bar is removed at
                the end.
            done: the number of finished steps.
            reused: the number of additional steps that an earlier run finished, which do not affect
                the estimated time.

        Yields:
            `advance(count=1, note=None)`, which marks `count` steps as finished and shows a note,
            such as the loss, next to the title.
        """
        if reused:
            title = f"{title} ({reused} of {reused + (total or 0)} already done)"
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
            # Bars cannot be updated in a log file, so print a line per minute.
            is_log = not (self.console.is_terminal or self.console.is_jupyter)
            if is_log and time.monotonic() - written >= _LINE_EVERY:
                written = time.monotonic()
                end = "" if total is None else f" of {total}"
                self.print_line(f"{text}: {done}{end}")

        try:
            yield advance
        finally:
            if total is None or self.disable:
                self.remove_task(task)


SILENT = Progress(Console(quiet=True))
