"""What one call asks of an attachment: how strong, and by which of its methods.

Held in context variables: every thread and every task of asyncio has its own, and a model that many share is never
switched for one of them. `asyncio.to_thread` hands them on to its thread; a bare thread or executor starts without, and
runs what `Attachment.bind` gives with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.hosts.base import Texts

DEFAULT, NONE = "default", "none"
"""Names of what was attached first, and of leaving a row alone."""


@dataclass(frozen=True)
class Use:
    """Methods and strengths of a call: one for all of its rows, or one per prompt."""

    strength: float | tuple[float, ...] | None = None
    method: str | tuple[str, ...] = DEFAULT
    paused: bool = False

    @contextmanager
    def hold(self, key: object) -> Iterator[None]:
        """Inside, in this thread or task, `use_of(key)` is this."""
        token = _USES.set({**_USES.get(), key: self})
        try:
            yield
        finally:
            _USES.reset(token)

    def changed(self, **given: Any) -> Use:
        """With what is given; None leaves as it is."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def groups(self, strength: float, rows: int, texts: Texts | None) -> list[tuple[str, float, list[int] | None]]:
        """(method, strength, its rows) of all that changes anything; rows are None where it is all of them.

        Args:
            strength: where the call asks for none. rows: number of embeddings. texts: of its prompts.

        Raises:
            InvalidInputError: methods or strengths that do not fit the prompts.
        """
        methods, strengths = self.method, strength if self.strength is None else self.strength
        if isinstance(methods, str) and isinstance(strengths, float):
            return [(methods, strengths, None)] if methods != NONE and strengths else []
        prompts = rows if texts is None else len(texts())
        spread = (_spread("method", methods, rows, prompts), _spread("strength", strengths, rows, prompts))
        places: dict[tuple[str, float], list[int]] = {}
        for row, pair in enumerate(zip(*spread, strict=True)):
            places.setdefault(pair, []).append(row)
        whole = len(places) == 1
        return [(m, s, None if whole else at) for (m, s), at in places.items() if m != NONE and s]


def _spread(name: str, values: Any, rows: int, prompts: int) -> Sequence[Any]:
    """One value per row: images of one prompt stand together."""
    if not isinstance(values, tuple):
        return [values] * rows
    if len(values) not in (rows, prompts) or rows % len(values):
        of = f"{rows} embeddings" if prompts == rows else f"{prompts} prompts and {rows} embeddings"
        raise InvalidInputError(f"using({name}=...): got {len(values)} for {of}; expected one for each prompt")
    return [value for value in values for _ in range(rows // len(values))]


_USES: ContextVar[dict[object, Use]] = ContextVar("vldebias_uses", default={})  # noqa: B039 - never changed in place


def use_of(key: object) -> Use:
    """What is asked of the attachment with this key, here and now."""
    return _USES.get().get(key, _PLAIN)


_PLAIN = Use()


def checked_strength(value: Any) -> float:
    """A strength as a float.

    Raises:
        InvalidInputError: no number in [0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise InvalidInputError(f"strength: expected a number in [0, 1], got {value!r}")
    return float(value)


def checked_method(value: Any, known: Sequence[str]) -> str:
    """The name of an attached method, or "none".

    Raises:
        InvalidInputError: another one.
    """
    names = (*known, NONE)
    if value not in names:
        raise InvalidInputError(
            f"using(method=...): got {value!r}; expected one of {', '.join(names)}; "
            + did_you_mean(value, names, f"attach it first: attachment.add({value!r}, edits).")
        )
    return str(value)
