"""How the time of a call grows with the length of its input, as a ratio measured in one run."""

import time
from collections.abc import Callable

_ROUNDS = 5
_SURELY_LINEAR = 2.2


def growth(run: Callable[[int], object], length: int) -> float:
    """Return the time at twice the length, relative to the time at a length.

    The fastest time of each is taken. Both take turns, and a ratio that is not clearly linear is
    measured five times as often, because other processes slow down single rounds.
    """
    fastest = [float("inf"), float("inf")]
    for number in range(5 * _ROUNDS):
        for which, size in enumerate((length, 2 * length)):
            begin = time.process_time()
            run(size)
            fastest[which] = min(fastest[which], time.process_time() - begin)
        if number + 1 >= _ROUNDS and fastest[1] < _SURELY_LINEAR * fastest[0]:
            break
    return fastest[1] / max(fastest[0], 1e-4)
