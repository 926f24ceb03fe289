import inspect
import threading
import warnings
from pathlib import Path

import pytest
import torch

from vldebias import errors
from vldebias.errors import InvalidInputError, PromptSetError, VldebiasWarning, did_you_mean, fail, warn


def test_an_error_says_what_came_what_was_expected_and_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match=r"^k: got 3; expected 1 or 2; take one\.$"):
        fail("k", "3", "1 or 2", "take one")
    with pytest.raises(PromptSetError, match=r"^k: got 'gendre'; expected a name; did you mean 'gender'\?$"):
        fail("k", "'gendre'", "a name", did_you_mean("gendre", ["gender"]), PromptSetError)


def test_what_is_close_is_asked_for_and_else_an_advice_is_given() -> None:
    assert did_you_mean("Gendre", ["age", "gender"]) == "did you mean 'gender'?"
    assert did_you_mean("ag", ["age", "aged"]) == "did you mean 'age' or 'aged'?"
    assert did_you_mean("xyz", ["age"]) == "choose one of them."
    assert did_you_mean(7, (), "take it out") == "take it out"


def line_of_warning(call: object) -> tuple[str, int]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()  # type: ignore[operator]
    assert [one.category for one in caught] == [VldebiasWarning]
    return caught[0].filename, caught[0].lineno


def compiled(folder: Path, source: str) -> dict[str, object]:
    """Names of a module that believes to lie in `folder`."""
    names: dict[str, object] = {"warn": warn, "__name__": "m"}
    exec(compile(source, str(folder / "m.py"), "exec"), names)
    return names


@pytest.mark.parametrize("depth", [1, 5])
def test_a_warning_points_at_the_line_of_the_user(depth: int) -> None:
    inside = compiled(Path(errors.__file__).parent, "def f(n):\n    return f(n - 1) if n else warn('x')")
    user = lambda: inside["f"](depth)  # noqa: E731
    assert line_of_warning(user) == (__file__, inspect.getsourcelines(user)[1])


def test_frames_of_libraries_between_are_passed_over() -> None:
    inside = compiled(Path(errors.__file__).parent, "def hook(*_):\n    warn('x')")
    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(inside["hook"])
    user = lambda: model(torch.zeros(1, 1))  # noqa: E731
    assert line_of_warning(user) == (__file__, inspect.getsourcelines(user)[1])


def test_without_a_user_it_points_at_the_library_that_called() -> None:
    inside = compiled(Path(errors.__file__).parent, "def hook(*_):\n    warn('x')")

    def user() -> None:
        thread = threading.Thread(target=inside["hook"])
        thread.start()
        thread.join()

    assert Path(line_of_warning(user)[0]).name == "threading.py"
