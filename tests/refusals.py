"""Build tables of test cases with invalid inputs, and name the cases in the test report."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vldebias.errors import InvalidInputError

_LONGEST_NAME = 60  # characters; a longer value is truncated


def case_name(value: Any) -> str:
    """Return the name of a value in the report: `k=90`, `cali, 20.0`, `float32 (3, 4)`, or "" for a
    value without a short name, such as a lambda function."""
    if isinstance(value, Mapping):
        entries = [f"{key}={case_name(item)}" for key, item in value.items()]
        text = ", ".join(entries) or "nothing"
    elif isinstance(value, (tuple, list)):
        text = ", ".join(case_name(item) for item in value) or "nothing"
    elif isinstance(value, type):
        text = value.__name__
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        text = f"{value.dtype} {tuple(value.shape)}".removeprefix("torch.")
    elif value is None or isinstance(value, (str, int, float)):
        text = str(value)
    else:
        text = str(getattr(value, "__name__", getattr(value, "name", "")))
    text = " ".join(text.split())
    return "" if "<lambda>" in text else text[:_LONGEST_NAME]


def refused(
    *rows: tuple[Any, ...], error: type[Exception] = InvalidInputError
) -> Callable[[Callable[..., Any]], Any]:
    """Turn each row into a test case: the last arguments, and a regular expression that the error
    message matches.

    Together, they form the name of the case.
    """

    def table(test: Callable[..., Any]) -> Any:
        signature = inspect.signature(test)
        names = list(signature.parameters)[1 - len(rows[0]) :]

        def checked(*arguments: Any, refusal: str, **named: Any) -> None:
            with pytest.raises(error, match=refusal):
                test(*arguments, **named)

        last = inspect.Parameter("refusal", inspect.Parameter.KEYWORD_ONLY)
        parameters = [*signature.parameters.values(), last]
        checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__", "pytestmark"):
            if hasattr(test, attribute):
                setattr(checked, attribute, getattr(test, attribute))
        cases = [pytest.param(*row, id=_row_name(row)) for row in rows]
        return pytest.mark.parametrize((*names, "refusal"), cases)(checked)

    return table


def _row_name(row: tuple[Any, ...]) -> str:
    *values, refusal = row
    words = re.sub(r"\\(.)|[\^$]", r"\1", refusal)  # the pattern without escapes
    names = [case_name(value) for value in values]
    return "-".join(name for name in (*names, words) if name)
