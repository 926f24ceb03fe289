"""Measure how the cost of a function grows with the length of its input."""

import time
from collections.abc import Callable


def growth(run: Callable[[int], object], length: int) -> float:
    """Return the time at twice the length, relative to the time at a length (the best of five)."""
    fastest = []
    for size in (length, 2 * length):
        seconds = []
        for _ in range(5):
            begin = time.process_time()
            run(size)
            seconds.append(time.process_time() - begin)
        fastest.append(min(seconds))
    return fastest[1] / max(fastest[0], 1e-4)
