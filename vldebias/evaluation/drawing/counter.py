"""One line of a progress bar that may not be there: counts what is done of what was left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Counter"]


class Counter:
    """Counts images on a rich progress bar; does nothing without one.

    Only work that is left counts, so that the remaining time is not flattered by what a run before this one did.
    """

    def __init__(self, progress: Progress | None, name: str, *, left: int, there: int) -> None:
        self._progress = progress
        if progress is not None:
            told = f"{name} ({there} of {left + there} there already)" if there else name
            nothing = left == 0
            self._task = progress.add_task(told, total=1 if nothing else left, completed=int(nothing))

    def advance(self, count: int) -> None:
        """`count` more are done."""
        if self._progress is not None:
            self._progress.advance(self._task, count)
