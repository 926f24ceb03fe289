"""Tables of what is refused: the calls of a test, each with what its error has to say."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from vldebias.errors import InvalidInputError


def refused(
    *rows: tuple[Any, ...], error: type[Exception] = InvalidInputError
) -> Callable[[Callable[..., Any]], Any]:
    """Every row is a test of its own: the test's last arguments, and a regular expression that the
    error matches."""

    def table(test: Callable[..., Any]) -> Any:
        told = inspect.signature(test)
        names = list(told.parameters)[1 - len(rows[0]) :]

        def checked(*given: Any, refusal: str, **named: Any) -> None:
            with pytest.raises(error, match=refusal):
                test(*given, **named)

        last = inspect.Parameter("refusal", inspect.Parameter.KEYWORD_ONLY)
        checked.__signature__ = told.replace(parameters=[*told.parameters.values(), last])  # type: ignore[attr-defined]
        for kept in ("__name__", "__qualname__", "__doc__", "__module__", "pytestmark"):
            if hasattr(test, kept):
                setattr(checked, kept, getattr(test, kept))
        return pytest.mark.parametrize((*names, "refusal"), rows)(checked)

    return table
