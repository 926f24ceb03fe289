"""The bounds in pyproject.toml are those that CI tries: .ci/lowest.txt holds the lowest version of each."""

import re
import tomllib
from pathlib import Path

import pytest

from vldebias.errors import EXTRA_OF

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(*extras: str) -> dict[str, str]:
    """Package -> bound of what these extras need beyond the core; an extra may name others."""
    found: dict[str, str] = {}
    for requirement in (one for extra in extras for one in EXTRAS[extra]):
        others = re.fullmatch(r"vldebias\[(.+)\]", requirement)
        name, _, bound = requirement.partition(">=")
        found |= needed(*others[1].split(",")) if others else {plain(name): bound}
    return found


def test_a_bound_is_the_version_that_is_tried() -> None:
    """After a bound has moved: `.ci/environments lock`; where another package asks for more, so does the bound."""
    lines = (line.partition("==") for line in (ROOT / ".ci/lowest.txt").read_text().splitlines())
    lowest = {plain(name): version for name, _, version in lines}
    core = dict(one.split(">=") for one in PROJECT["dependencies"])
    bounds = {plain(name): bound for name, bound in core.items()} | needed("all") | needed("dev")
    release = lambda version: re.sub(r"(\.0)+$", "", version)  # noqa: E731
    assert {name: lowest[name] for name in bounds if release(lowest[name]) != release(bounds[name])} == {}


def test_the_core_needs_eight_packages_and_all_brings_the_extras_of_users() -> None:
    expected = {"torch", "numpy", "safetensors", "pydantic", "pyyaml", "typer", "rich", "huggingface-hub"}
    assert {plain(one.partition(">=")[0]) for one in PROJECT["dependencies"]} == expected
    assert needed("all") == needed("clip", "diffusers", "eval", "train", "demo")


@pytest.mark.parametrize(("package", "extra"), EXTRA_OF.items())
def test_the_extra_that_is_named_brings_the_package(package: str, extra: str) -> None:
    called = {"open_clip": "open-clip-torch", "PIL": "pillow", "sklearn": "scikit-learn"}
    assert called.get(package, plain(package)) in needed(extra)
