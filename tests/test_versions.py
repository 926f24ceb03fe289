"""Test that the bounds in pyproject.toml match what CI tests: .ci/lowest.txt contains the lowest
version of each dependency."""

import re
import tomllib
from itertools import chain
from pathlib import Path

from vldebias.errors import EXTRA_OF

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(*extras: str) -> dict[str, str]:
    """Return package -> bound for the requirements of these extras beyond the core. Extras may
    refer to other extras."""
    bounds_of_name: dict[str, str] = {}
    for requirement in chain(*(EXTRAS[extra] for extra in extras)):
        extras_of_ours = re.fullmatch(r"vldebias\[(.+)\]", requirement)
        name, _, bound = requirement.partition(">=")
        bounds_of_name |= (
            needed(*extras_of_ours[1].split(",")) if extras_of_ours else {plain(name): bound}
        )
    return bounds_of_name


def test_the_core_only_handles_text_and_all_includes_the_extras_for_users() -> None:
    core = {plain(requirement.partition(">=")[0]) for requirement in PROJECT["dependencies"]}
    assert core == {"pydantic", "pyyaml", "typer", "rich", "charset-normalizer"}
    assert needed("all") == needed("clip", "diffusers", "eval", "train", "serve", "demo")
    for extra in ("clip", "diffusers", "eval", "train"):
        assert needed("torch").items() <= needed(extra).items()
    assert "torch" not in needed("serve")


def test_the_extra_named_in_an_error_includes_the_package() -> None:
    called = {"open_clip": "open-clip-torch", "PIL": "pillow", "sklearn": "scikit-learn"}
    assert all(
        called.get(package, plain(package)) in needed(extra) for package, extra in EXTRA_OF.items()
    )
