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


def registries() -> dict[str, tuple[Registry[Any], Any]]:
    from vldebias.evaluation.judges import JUDGES, register_judge
    from vldebias.evaluation.task import TASKS, register_task
    from vldebias.hosts import HOSTS, register_host
    from vldebias.methods import METHODS, register_method
    from vldebias.metrics import register_metric
    from vldebias.metrics.metric import METRICS

    return {
        "method": (METHODS, register_method),
        "host": (HOSTS, register_host),
        "task": (TASKS, register_task),
        "metric": (METRICS, register_metric),
        "judge": (JUDGES, register_judge),
    }


def test_everything_that_can_be_added_is_added_in_the_same_words() -> None:
    for kind, (registry, register) in registries().items():
        assert (registry.kind, registry.group) == (kind, f"vldebias.{kind}s")
        assert repr(registry) == f"{kind}s: {', '.join(registry)}"
        with pytest.raises(InvalidInputError, match=f"^{kind}: expected one of "):
            registry.named("no such thing")
        with pytest.raises(InvalidInputError, match=kind):
            register(3)
