"""Shows how a build is getting on: a bar per stage on a terminal, a line a minute in a log."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

__all__ = ["Progress"]

_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """A context manager whose `report` the stages call after every step; writes to stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._line = 0.0

    def report(self, stage: str, done: int, total: int, loss: float) -> None:
        """Step `done` of `total` of a stage has just been made."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, loss=loss)
        self._bars.update(self._tasks[stage], completed=done, loss=loss)
        now = time.monotonic()
        if self._bars.disable and (done == total or now - self._line > _SECONDS_BETWEEN_LINES):
            self._line = now
            print(f"{stage} {done}/{total} loss {loss:.3f}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
