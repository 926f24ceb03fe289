"""A text that is worked out when it is first asked for, because most who hold its owner never ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

__all__ = ["LazyText"]


class LazyText:
    """The type of a dataclass field: takes a text or a function that gives one, reads as a text.

    The function is called once, at the first read; its owner may be frozen.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._slot = f"_{name}"

    @overload
    def __get__(self, holder: None, owner: type) -> LazyText: ...
    @overload
    def __get__(self, holder: object, owner: type) -> str: ...
    def __get__(self, holder: Any, owner: type) -> Any:
        if holder is None:  # dataclasses look here for a default, and there is none
            raise AttributeError(self._name)
        value = holder.__dict__[self._slot]
        if callable(value):
            value = holder.__dict__[self._slot] = value()
        return value

    def __set__(self, holder: Any, value: str | Callable[[], str]) -> None:
        holder.__dict__[self._slot] = value
