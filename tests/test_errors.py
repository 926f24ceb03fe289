"""Errors say what came, what was expected and what to do; warnings point at the line of the user."""

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vldebias import errors
from vldebias.errors import VldebiasWarning, did_you_mean, warn


def test_close_names_are_offered() -> None:
    assert did_you_mean("ag", ["age", "aged"]) == "did you mean 'age' or 'aged'?"
    assert did_you_mean(7, (), "take it out") == "take it out"


def place_of_warning(call: Callable[[], Any]) -> tuple[str, int]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert [one.category for one in caught] == [VldebiasWarning]
    return caught[0].filename, caught[0].lineno


def inside(source: str) -> Any:
    """A function `f` of a module that believes to lie in the package."""
    names: dict[str, Any] = {"warn": warn, "__name__": "m"}
    exec(compile(source, str(Path(errors.__file__).parent / "m.py"), "exec"), names)
    return names["f"]


def test_a_warning_points_at_the_line_of_the_user_over_frames_of_the_package_and_of_libraries() -> None:
    deep = inside("def f(n):\n    return f(n - 1) if n else warn('x')")
    user = lambda: deep(5)  # noqa: E731
    assert place_of_warning(user) == (__file__, inspect.getsourcelines(user)[1])
    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(inside("def f(*_):\n    warn('x')"))
    through = lambda: model(torch.zeros(1, 1))  # noqa: E731
    assert place_of_warning(through) == (__file__, inspect.getsourcelines(through)[1])
