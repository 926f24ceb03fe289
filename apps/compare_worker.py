"""Work in a thread of its own that tells how far it is, and stops when nobody listens any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Stopped", "followed"]

Said = TypeVar("Said")


class Stopped(Exception):  # noqa: N818  (no error: somebody pressed a button)
    """The work was told to stop."""


def followed(
    work: Callable[[Callable[[Said], None]], None], stop: threading.Event, *, name: str = "work"
) -> Iterator[Said]:
    """Run `work(say)` in a thread and give what it says, as it says it; what it raises is raised here.

    Ends quietly where the work raises `Stopped`. Closing the iterator sets `stop`, which the work has to look at.
    """
    said: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def run() -> None:
        try:
            work(lambda what: said.put(("said", what)))
            said.put(("done", None))
        except Stopped:
            said.put(("done", None))
        except BaseException as error:  # handed to the one who listens
            said.put(("failed", error))

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        while (event := said.get())[0] == "said":
            yield event[1]
        if event[0] == "failed":
            raise event[1]
    finally:
        stop.set()  # not joined: whoever closes this must not wait for the step that is under way
