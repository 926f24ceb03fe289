"""Test registries: lookup by name, entry points in other packages, and errors."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from vldebias.errors import InvalidInputError
from vldebias.utils.registry import Registry


class Letter:
    def __init__(self, name: str = "z") -> None:
        self.name = name


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Registry[Letter]:
    """Provide three entry points: one is broken, one names a class, and one has the name of a
    built-in object."""

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
        (Letter, r"got the class Letter; expected an instance, so register Letter\(\)"),
        (Nameless(), "has the name None; expected a string without spaces or commas"),
        (Letter("two words"), "has the name 'two words'; expected"),
        (Letter("a,b"), "has the name 'a,b'; expected"),
        (Letter(""), "has the name ''; expected"),
    ],
)
def test_a_common_mistake_raises_an_error_that_names_the_object_to_register(
    letters: Registry[Letter], wrong: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"^letter: .*{message}"):
        letters.register(wrong)


def test_a_function_instead_of_a_declaration_raises_an_error_with_instructions() -> None:
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
    letters: Registry[Letter], find: Any, recwarn: pytest.WarningsRecorder
) -> None:
    letters.register(A)
    find(letters)
    assert [*letters] == [*dict(letters)] == ["a", "z"]
    assert [str(warning.message).split("'")[1] for warning in recwarn] == ["broken", "taken"]
    assert (letters["a"], type(letters["z"]), groups_read) == (A, Letter, ["letters"])


def test_an_entry_point_that_its_package_also_registers_is_ignored_silently(
    letters: Registry[Letter], recwarn: pytest.WarningsRecorder
) -> None:
    mine = letters.register(Letter())  # the entry point "class" refers to this object
    assert letters["z"] is mine
    list(letters)
    assert "class" not in [str(warning.message).split("'")[1] for warning in recwarn]


BUILT_IN = """
from {test} import Letter, built_in
built_in.register(Letter("one"))
built_in.register(Letter("two"))
"""
built_in: Registry[Letter] = Registry(
    "letter", "letters", Letter, {"one": "built_in_letters", "two": "built_in_letters"}, ["three"]
)


def test_the_name_of_a_built_in_object_is_rejected_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built_in_letters.py").write_text(BUILT_IN.format(test=__name__))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one", "two", "three"):
        with pytest.raises(InvalidInputError, match=f"^letter '{name}': this name is taken by"):
            built_in.register(Letter(name))
    assert [letter.name for letter in built_in.values()] == ["one", "two"]


@quiet
def test_an_unknown_name_is_rejected_with_a_list_of_known_names(letters: Registry[Letter]) -> None:
    letters.register(Letter("alpha"))
    for name in ("alphe", 3, None):
        with pytest.raises(InvalidInputError, match=r"letter: got .*expected one of alpha, z, a"):
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
