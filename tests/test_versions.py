"""The bounds in pyproject.toml are those that CI tries: .ci/lowest.txt holds the lowest version of
each."""

import re
import tomllib
from pathlib import Path

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


def test_the_core_needs_eight_packages_and_all_brings_the_extras_of_users() -> None:
    expected = {
        "torch",
        "numpy",
        "safetensors",
        "pydantic",
        "pyyaml",
        "typer",
        "rich",
        "huggingface-hub",
    }
    assert {plain(one.partition(">=")[0]) for one in PROJECT["dependencies"]} == expected
    assert needed("all") == needed("clip", "diffusers", "eval", "train", "demo")


def test_the_extra_that_is_named_brings_the_package() -> None:
    called = {"open_clip": "open-clip-torch", "PIL": "pillow", "sklearn": "scikit-learn"}
    assert all(
        called.get(package, plain(package)) in needed(extra) for package, extra in EXTRA_OF.items()
    )
