"""Test that the package can be installed next to ComfyUI and Forge Neo without changing the
versions that they pin.

Their pins are stored with the date on which they were read (tests/neighbours/). These tests compare
all of our bounds with them. `.ci/environments oldhosts` runs a resolver on the package index.
"""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The demo needs a Gradio version that requires huggingface_hub 1. Both neighbours have their own
# user interfaces.
BESIDE_OTHERS = ("torch", "clip", "diffusers", "eval", "train", "serve", "lora")
NEIGHBOURS = sorted((ROOT / "tests/neighbours").glob("*.txt"))


def requirements_of(lines: list[str]) -> list[Requirement]:
    """Return the requirements in the lines of a file or table, without comments and our own
    extras."""
    written = [line.partition("#")[0].strip() for line in lines]
    requirements = [Requirement(line) for line in written if line]
    return [requirement for requirement in requirements if requirement.name != "vldebias"]


def ours() -> list[Requirement]:
    extras = []
    for name in BESIDE_OTHERS:
        extras += PROJECT["optional-dependencies"][name]
    return requirements_of([*PROJECT["dependencies"], *extras])


def lowest(requirement: Requirement) -> str:
    """Return the version that a pin names, or the lowest version that a bound allows."""
    (specifier,) = requirement.specifier
    return specifier.version


@pytest.mark.parametrize("file", NEIGHBOURS, ids=lambda file: file.stem)
def test_the_file_states_its_source_and_date(file: Path) -> None:
    head = file.read_text().splitlines()[0]
    assert re.search(r"commit [0-9a-f]{12}, read on \d{4}-\d\d-\d\d", head)


@pytest.mark.parametrize("extra", ["", *BESIDE_OTHERS])
def test_none_of_our_dependencies_has_an_upper_bound(extra: str) -> None:
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    for requirement in requirements_of(lines):
        assert [specifier.operator for specifier in requirement.specifier] == [">="], requirement


def test_every_forge_neo_pin_is_within_our_bounds() -> None:
    lines = (ROOT / "tests/neighbours/forge-neo.txt").read_text().splitlines()
    pins = {canonicalize_name(pin.name): lowest(pin) for pin in requirements_of(lines)}
    compared = [
        requirement for requirement in ours() if canonicalize_name(requirement.name) in pins
    ]
    assert {requirement.name for requirement in compared} >= {
        "pydantic",
        "rich",
        "huggingface_hub",
        "transformers",
    }
    for requirement in compared:
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} beside {pin}"


@pytest.mark.parametrize("pins", [ROOT / "tests/neighbours/comfyui.txt", ROOT / ".ci/oldhosts.txt"])
def test_installing_into_comfyui_with_transformers_4_keeps_its_versions(pins: Path) -> None:
    """The versions installed with transformers 4 are within its bounds and ours."""
    bounds = {
        canonicalize_name(requirement.name): requirement
        for requirement in requirements_of(pins.read_text().splitlines())
    }
    installed = {
        canonicalize_name(requirement.name): lowest(requirement)
        for requirement in requirements_of((ROOT / ".ci/oldhosts.txt").read_text().splitlines())
    }
    for requirement in ours():
        name = canonicalize_name(requirement.name)
        if name in installed:
            assert requirement.specifier.contains(installed[name]), requirement
            assert name not in bounds or bounds[name].specifier.contains(installed[name])
