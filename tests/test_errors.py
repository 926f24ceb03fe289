"""Test that errors state what was passed, what was expected and how to fix it, and that warnings
point at the user's line."""

import inspect
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vldebias import errors
from vldebias.errors import (
    Lazily,
    VldebiasWarning,
    did_you_mean,
    lazy_names,
    need,
    shortened,
    warn,
)


def test_close_names_are_suggested() -> None:
    assert did_you_mean("ag", ["age", "aged"]) == "did you mean 'age' or 'aged'?"
    assert did_you_mean(7, (), "take it out") == "take it out"
    assert [shortened("abcde", limit) for limit in (5, 4)] == ["abcde", "a..."]


def test_a_missing_package_is_reported_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_there.py").write_text("import no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    installs = {
        "peft.no_such": r"peft is .*'\.\[lora\]'",
        "no_such_name": "pip install no_such_name$",
    }
    for module, message in (installs | {"half_there": "^No module named 'no_such_name'"}).items():
        with pytest.raises(ModuleNotFoundError, match=message):
            need(module)
    assert Lazily("json").dumps is json.dumps


def place_of_warning(call: Callable[[], Any]) -> tuple[str, int]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert [warning.category for warning in caught] == [VldebiasWarning]
    return caught[0].filename, caught[0].lineno


def inside(source: str) -> Any:
    """Return a function `f` that claims to be defined in a module of the package."""
    names: dict[str, Any] = {"warn": warn, "__name__": "m"}
    exec(compile(source, str(Path(errors.__file__).parent / "m.py"), "exec"), names)
    return names["f"]


def test_warnings_point_at_the_users_line_below_package_and_library_frames() -> None:
    deep = inside("def f(n):\n    return f(n - 1) if n else warn('x')")
    user = lambda: deep(5)  # noqa: E731
    assert place_of_warning(user) == (__file__, inspect.getsourcelines(user)[1])
    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(inside("def f(*_):\n    warn('x')"))
    through = lambda: model(torch.zeros(1, 1))  # noqa: E731
    assert place_of_warning(through) == (__file__, inspect.getsourcelines(through)[1])


def test_a_lazily_imported_name_reports_the_extra_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_peft.py").write_text("import peft\n")
    (tmp_path / "is_broken.py").write_text("import no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    get, _, names = lazy_names(__name__, {"a": "needs_peft", "b": "is_broken", "dumps": "json"})
    assert names == []
    with pytest.raises(errors.MissingPackageError, match=r"\.\[lora\]"):
        get("a")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_name'"):
        get("b")
    with pytest.raises(AttributeError, match="has no attribute 'c'"):
        get("c")
    assert get("dumps") is json.dumps
    assert vars(sys.modules[__name__]).pop("dumps") is json.dumps  # cached for the next lookup
