"""Things by name: what is refused, and what other packages name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.registry import Registry


def _accept(given: Any) -> tuple[str, str]:
    if not isinstance(given, str):
        raise InvalidInputError(f"letter: expected a text, got {given!r}")
    return given[0], given


@pytest.fixture
def letters() -> Registry[str]:
    return Registry("letter", "vldebias.tests.letters", _accept)


def test_a_thing_is_found_by_its_name_and_another_of_the_same_name_refused(letters: Registry[str]) -> None:
    assert letters.register("alpha") == letters.named("a") == letters["a"] == "alpha"
    assert letters.register("alpha") == "alpha"
    assert repr(letters) == "letters: a"
    with pytest.raises(InvalidInputError, match="taken by 'alpha'"):
        letters.register("alif")
    with pytest.raises(InvalidInputError, match="letter: expected a text, got 3"):
        letters.register(3)
    assert dict(letters) == {"a": "alpha"}


def test_an_unknown_name_is_told_with_all_there_are(letters: Registry[str]) -> None:
    letters.register("alpha")
    letters.register("gamma")
    for name in ("A", "b", 3, None, ["a"]):
        with pytest.raises(InvalidInputError, match="letter: expected one of a, g, got"):
            letters.named(name)


def test_entry_points_are_read_once_and_a_broken_one_is_told(
    letters: Registry[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("b", "nowhere:at_all", group), EntryPoint("d", "string:digits", group)]

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    with pytest.warns(
        VldebiasWarning, match=r"entry point 'b' of vldebias.tests.letters \(nowhere:at_all\): ModuleNot"
    ):
        assert list(letters) == ["0"]
    assert len(letters) == 1
    assert asked == ["vldebias.tests.letters"]


@pytest.mark.parametrize("instances", [True, False])
def test_an_entry_point_that_names_a_class(instances: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda *, group: [EntryPoint("list", "builtins:list", group)]
    )
    things: Registry[Any] = Registry("thing", "things", lambda given: ("only", given), instances=instances)
    assert things["only"] == ([] if instances else list)


def test_registries_read_the_entry_points_of_their_kind() -> None:
    from vldebias.evaluation.judges import JUDGES
    from vldebias.evaluation.task import TASKS
    from vldebias.hosts import HOSTS
    from vldebias.methods import METHODS
    from vldebias.metrics.metric import METRICS

    kinds = {"method": METHODS, "host": HOSTS, "task": TASKS, "metric": METRICS, "judge": JUDGES}
    assert {kind: (one.kind, one.group) for kind, one in kinds.items()} == {k: (k, f"vldebias.{k}s") for k in kinds}
