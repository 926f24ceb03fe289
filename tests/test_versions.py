"""The bounds in pyproject.toml are those that CI tries: .ci/lowest.txt holds the lowest version of each."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [*PROJECT["dependencies"], *EXTRAS["demo"], *EXTRAS["dev"]]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / ".ci" / name).read_text().splitlines()
    return {plain(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def release(version: str) -> list[int]:
    numbers = [int(part) for part in version.split(".")]
    while numbers[-1] == 0:
        numbers.pop()
    return numbers


@pytest.mark.parametrize("requirement", DECLARED)
def test_a_bound_is_the_version_that_is_tried(requirement: str) -> None:
    """After a bound has moved: `.ci/environments lock`; where another package asks for more, so does the bound."""
    name, _, bound = requirement.partition(">=")
    assert release(locked("lowest.txt")[plain(name)]) == release(bound)


def test_the_documentation_names_the_versions_that_are_tried() -> None:
    asked = (one.partition(">=") for one in [*PROJECT["dependencies"], *EXTRAS["demo"], *EXTRAS["lora"]])
    rows = [f"| {name} | {bound} | {locked('constraints.txt')[plain(name)]} |" for name, _, bound in asked]
    page = (ROOT / "docs" / "explanation" / "evidence.md").read_text(encoding="utf-8")
    assert "\n".join(["| package | lowest | with all tests |", "| --- | --- | --- |", *rows]) in page


def test_what_is_optional_has_one_bound() -> None:
    """The extras of users and of development name the same lowest version of a package."""
    bounds: dict[str, set[str]] = {}
    for requirement in (one for extra in EXTRAS.values() for one in extra):
        name, _, bound = requirement.partition(">=")
        bounds.setdefault(plain(name), set()).add(bound)
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}
