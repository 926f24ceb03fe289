"""Registries: lookup by name, entry points of other packages, and errors."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from vldebias.errors import InvalidInputError
from vldebias.utils.registry import Registry


class Letter:
    def __init__(self, name: str = "z") -> None:
        self.name = name


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Registry[Letter]:
    """Entry points: a broken one, one that names a class, and one with the name of a built-in
    object."""

    def points(*, group: str) -> list[EntryPoint]:
        groups_read.append(group)
        return [EntryPoint(name, value, group) for name, value in named.items()]

    named = {
        "broken": "nowhere:at_all",
        "class": f"{__name__}:Letter",
        "taken": f"{__name__}:OTHER_A",
    }
    monkeypatch.setattr("importlib.metadata.entry_points", points)
    groups_read.clear()
    return Registry("letter", "letters", Letter)


A = Letter("a")
OTHER_A = Letter("a")
groups_read: list[str] = []
quiet = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


def test_a_name_is_found_without_entry_points_and_is_never_replaced(
    letters: Registry[Letter],
) -> None:
    assert letters.register(A) is letters.register(A) is letters["a"] is A
    assert "a" in letters
    assert groups_read == []
    with pytest.raises(InvalidInputError, match="name is taken"):
        letters.register(OTHER_A)


class Nameless(Letter):
    def __init__(self) -> None:
        pass


@dataclass
class Card:
    name: str


def a_function() -> None:
    pass


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, r"derives from .*Letter, got 3"),
        (a_function, r"derives from .*Letter, got the function a_function"),
        (Letter, r"got the class Letter; expected an instance of it: register Letter\(\)"),
        (Nameless(), "has the name None; expected a text without spaces and commas"),
        (Letter("two words"), "has the name 'two words'; expected"),
        (Letter("a,b"), "has the name 'a,b'; expected"),
        (Letter(""), "has the name ''; expected"),
    ],
)
def test_a_first_mistake_is_answered_with_the_object_to_register(
    letters: Registry[Letter], wrong: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"^letter: .*{message}"):
        letters.register(wrong)


def test_a_function_instead_of_a_declaration_is_answered_with_how_to_make_one() -> None:
    cards: Registry[Any] = Registry("card", "cards", Card)
    with pytest.raises(InvalidInputError, match=r"got the function a_function; register Card\("):
        cards.register(a_function)


LOOKS: dict[str, Callable[[Registry[Letter]], Any]] = {
    "list": list,
    "len": len,
    "in": lambda registry: "z" in registry,
    "by name": lambda registry: registry["z"],
    "dict": dict,
}


@pytest.mark.parametrize("find", LOOKS.values(), ids=LOOKS)
def test_entry_points_are_loaded_once_and_broken_ones_are_reported(
    letters: Registry[Letter], find: Any
) -> None:
    letters.register(A)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        find(letters)
    assert [*letters] == [*dict(letters)] == ["a", "z"]
    assert [str(warning.message).split("'")[1] for warning in caught] == ["broken", "taken"]
    assert (letters["a"], type(letters["z"]), groups_read) == (A, Letter, ["letters"])


@quiet
def test_an_unknown_name_is_refused_with_the_known_ones(letters: Registry[Letter]) -> None:
    letters.register(Letter("alpha"))
    for name in ("alphe", 3, None):
        with pytest.raises(InvalidInputError, match="letter: expected one of alpha, z, a, got"):
            letters[name]
    with pytest.raises(InvalidInputError, match="did you mean 'alpha'"):
        letters["alphe"]
    assert "alphe" not in letters


@quiet
def test_a_registry_of_classes_stores_the_class(letters: Registry[Letter]) -> None:
    classes: Registry[type] = Registry("class", "classes", lambda kind: kind.__name__)
    assert classes["Letter"] is Letter


def test_registries_read_the_entry_points_of_their_kind() -> None:
    from vldebias.data import DATA
    from vldebias.hosts import HOSTS
    from vldebias.judge.judges import JUDGES
    from vldebias.losses import LOSSES
    from vldebias.measure.metric import METRICS
    from vldebias.methods import METHODS
    from vldebias.study.task import TASKS

    registries = (LOSSES, METHODS, DATA, TASKS, HOSTS, METRICS, JUDGES)
    assert [(registry.kind, registry.group) for registry in registries] == [
        ("loss", "vldebias.losses"),
        ("method", "vldebias.methods"),
        ("data set", "vldebias.data"),
        ("task", "vldebias.tasks"),
        ("host", "vldebias.hosts"),
        ("metric", "vldebias.metrics"),
        ("judge", "vldebias.judges"),
    ]
