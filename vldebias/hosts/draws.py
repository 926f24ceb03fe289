"""Numbers in [0, 1) that decide what is drawn for an image: a hash of its seed, or evenly spread ones, call by call."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any
from weakref import WeakKeyDictionary

from vldebias.errors import InvalidInputError

_BY_CALL, _BY_PROMPT = (sqrt(5) - 1) / 2, sqrt(2) - 1  # multiples of an irrational are spread evenly, however many
_REMEMBERED = 10_000  # prompts; one that was forgotten starts again like a new one


def uniform_number(*parts: object) -> float:
    """A number in [0, 1) from the text of `parts`."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / 2**48  # 48 bits: a float holds them exactly


@lru_cache(maxsize=4096)
def permutation(n: int, *parts: object) -> tuple[int, ...]:
    """A permutation of 0 .. n - 1 that `parts` decide; two of them stand before, the others after the place."""
    first, rest = parts[:2], parts[2:]
    return tuple(sorted(range(n), key=lambda i: uniform_number(*first, i, *rest)))


class Numbers:
    """Numbers for the images of one call after the other.

    Of the n images of a prompt in a call each has another part of the n parts [i/n, (i + 1)/n), in an order of its own.
    Where in the parts moves by an irrational step from call to call of a prompt and from prompt to prompt: single
    images of many calls, or of many prompts, are spread evenly as well. The same calls after the same seed have the
    same numbers.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._lock = threading.Lock()
        self._prompts: dict[str, tuple[int, int]] = {}  # prompt -> its place among all, calls so far
        self._count = 0

    def take(self, prompts: Sequence[str]) -> tuple[float, ...]:
        """One for each image of a call, given the prompt of each."""
        each = {prompt: self._parts(prompt, n) for prompt, n in Counter(prompts).items()}
        return tuple(each[prompt].pop() for prompt in prompts)

    def _parts(self, prompt: str, n: int) -> list[float]:
        with self._lock:
            if prompt not in self._prompts:
                self._prompts[prompt] = (self._count, 0)
                self._count += 1
                if len(self._prompts) > _REMEMBERED:
                    del self._prompts[next(iter(self._prompts))]
            place, calls = self._prompts[prompt]
            self._prompts[prompt] = (place, calls + 1)
        offset = (uniform_number(self.seed, "start") + place * _BY_PROMPT + calls * _BY_CALL) % 1
        return [(part + offset) / n for part in permutation(n, self.seed, calls, prompt)]


# ---- what belongs to one call of a pipeline ------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """The images of one call.

    Attributes:
        seeds: one per image, where they were told before it. prompts: one per image, once they are known.
        numbers: one per image, where no seeds were told. served: roles that have asked; each asks once a call.
        drawn: the value of each image, None where the prompt states its own.
    """

    seeds: tuple[int, ...] | None = None
    prompts: tuple[str, ...] | None = None
    numbers: tuple[float, ...] | None = None
    served: frozenset[str] = frozenset()
    drawn: tuple[str | None, ...] = ()


_CALLS: ContextVar[WeakKeyDictionary[Calls, Call] | None] = ContextVar("vldebias_calls", default=None)


class Calls:
    """The calls of one attachment: every thread, and every task of asyncio, has its own."""

    def __init__(self, seed: int = 0) -> None:
        self._numbers = Numbers(seed)
        self._last = Call()

    @property
    def seed(self) -> int:
        """Decides what is drawn where no seeds are told; setting it begins anew."""
        return self._numbers.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidInputError(f"seed: expected an integer, got {seed!r}")
        self._numbers = Numbers(seed)

    @property
    def now(self) -> Call:
        """The last call of this thread or task."""
        held = _CALLS.get()
        return Call() if held is None else held.get(self, Call())

    @property
    def last(self) -> Call:
        """The same; where there was none, the last of any: a call may have run in a thread of its own."""
        here = self.now
        return here if here.drawn else self._last

    def tell(self, seeds: Sequence[int]) -> None:
        """Seeds of the images of the next call.

        Raises:
            InvalidInputError: not one integer or more.
        """
        images = list(seeds)
        if not images or not all(isinstance(s, int) and not isinstance(s, bool) for s in images):
            raise InvalidInputError(f"seeds: expected one integer per image, got {seeds!r}")
        self._keep(Call(tuple(images)))

    def take(
        self, role: str, prompts: Sequence[str], stated: Sequence[bool], values: Callable[[Call], Sequence[str]]
    ) -> Call:
        """The call that a role asks for: the one under way, or, where that has served it, the next.

        Args:
            prompts, stated: of each image. values: what the images of a call are given.

        Raises:
            InvalidInputError: seeds were told for another number of images.
        """
        call, texts = self.now, tuple(prompts)
        explicit = call.seeds is not None and not call.served
        if explicit and len(call.seeds or ()) != len(texts):
            raise InvalidInputError(
                f"{len(call.seeds or ())} seeds for {len(texts)} images; expected one for each, in the order of the "
                "call: images of one prompt stand together"
            )
        if explicit:
            call = replace(call, prompts=texts)
        elif role in call.served or call.prompts != texts:
            free = iter(self._numbers.take([text for text, kept in zip(texts, stated, strict=True) if not kept]))
            call = Call(prompts=texts, numbers=tuple(0.0 if kept else next(free) for kept in stated))
        if not call.drawn:
            drawn = tuple(None if kept else value for kept, value in zip(stated, values(call), strict=True))
            call = replace(call, drawn=drawn)
        return self._keep(replace(call, served=call.served | {role}))

    def _keep(self, call: Call) -> Call:
        held: WeakKeyDictionary[Calls, Call] = WeakKeyDictionary(_CALLS.get() or {})
        held[self] = self._last = call
        _CALLS.set(held)
        return call

    def __deepcopy__(self, memo: dict[int, Any]) -> Calls:
        return self
