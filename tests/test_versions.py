"""The bounds in pyproject.toml are those that CI tries: .ci/lowest.txt holds the lowest version of each."""

import re
import tomllib
from pathlib import Path

import pytest

from vldebias.errors import EXTRA_OF
from vldebias.hosts import LOWEST

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def needed(*extras: str) -> list[str]:
    """What these extras need beyond the core, in the order of pyproject.toml; an extra may name others."""
    found: dict[str, None] = {}
    for requirement in (one for extra in extras for one in EXTRAS[extra]):
        others = re.fullmatch(r"vldebias\[(.+)\]", requirement)
        found |= dict.fromkeys(needed(*others[1].split(",")) if others else [requirement])
    return list(found)


DECLARED = [*PROJECT["dependencies"], *needed("all"), *(one for one in needed("dev") if one not in needed("all"))]


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
    asked = (one.partition(">=") for one in dict.fromkeys([*PROJECT["dependencies"], *needed("all", "lora")]))
    rows = [f"| {name} | {bound} | {locked('constraints.txt')[plain(name)]} |" for name, _, bound in asked]
    page = (ROOT / "docs" / "explanation" / "evidence.md").read_text(encoding="utf-8")
    assert "\n".join(["| package | lowest | with all tests |", "| --- | --- | --- |", *rows]) in page


def test_what_is_optional_has_one_bound() -> None:
    """The extras of users and of development name the same lowest version of a package."""
    bounds: dict[str, set[str]] = {}
    for requirement in needed(*EXTRAS):
        name, _, bound = requirement.partition(">=")
        bounds.setdefault(plain(name), set()).add(bound)
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


def test_hosts_are_warned_of_below_the_bound() -> None:
    bounds = {plain(one.partition(">=")[0]): one.partition(">=")[2] for one in needed("all")}
    assert {library: bounds[{"open_clip": "open-clip-torch"}.get(library, library)] for library in LOWEST} == LOWEST


def test_the_core_needs_eight_packages() -> None:
    expected = {"torch", "numpy", "safetensors", "pydantic", "pyyaml", "typer", "rich", "huggingface-hub"}
    assert {plain(one.partition(">=")[0]) for one in PROJECT["dependencies"]} == expected


def test_all_brings_the_extras_of_users() -> None:
    assert set(needed("all")) == set(needed("clip", "diffusers", "eval", "train", "demo"))


@pytest.mark.parametrize(("package", "extra"), EXTRA_OF.items())
def test_the_extra_that_is_named_brings_the_package(package: str, extra: str) -> None:
    called = {"open_clip": "open-clip-torch", "PIL": "pillow", "sklearn": "scikit-learn"}
    assert called.get(package, plain(package)) in {plain(one.partition(">=")[0]) for one in needed(extra)}
