"""Finish the page of what was read after Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from vldebias.errors import InvalidInputError, warn

T = TypeVar("T")
_signals: list[int] = []


@contextmanager
def page_after_interrupt() -> Iterator[list[int]]:
    """Let the first Ctrl-C in the block end `until_interrupted`, and the second one the command.

    Yields:
        A list that receives the first signal. It is empty after the block.

    Raises:
        KeyboardInterrupt: After the second Ctrl-C, or if too little was read for a page.
    """

    def note(number: int, _: object) -> None:
        if _signals:
            raise KeyboardInterrupt
        _signals.append(number)
        warn("interrupted: finishing the page of what was read; press Ctrl-C again to stop")

    handler = signal.signal(signal.SIGINT, note)
    try:
        yield _signals
    except InvalidInputError:
        if _signals:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
        _signals.clear()


def until_interrupted(items: Iterable[T]) -> Iterator[T]:
    """Yield the first item, and the others until Ctrl-C is pressed in `page_after_interrupt`."""
    for item in items:
        yield item
        if _signals:
            return
