"""What comes from elsewhere: actions by the digest of their commit, dependencies under licences that are known."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LICENCES = runpy.run_path(str(ROOT / ".ci" / "licences.py"))
PAGE = LICENCES["PAGE"].read_text(encoding="utf-8")
USES = re.compile(r"^\s*(?:- )?uses:\s*(.+?)\s*$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+(\.\d+)*")


def movable(text: str) -> list[str]:
    """The actions of a workflow that are named by what can be moved, or without the tag that a reader knows."""
    return [one for one in USES.findall(text) if not PINNED.fullmatch(one)]


def test_every_action_is_pinned_to_a_commit_and_says_its_tag() -> None:
    used = [one for path in WORKFLOWS for one in USES.findall(path.read_text(encoding="utf-8"))]
    assert used
    assert [one for path in WORKFLOWS for one in movable(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", ["actions/checkout@v4", "actions/checkout@main", f"actions/checkout@{'0' * 40}"])
def test_a_tag_a_branch_and_a_bare_digest_are_found(name: str) -> None:
    assert movable(f"    steps:\n      - uses: {name}\n") == [name]


def test_known_vulnerabilities_are_looked_up_beside_the_offline_checks() -> None:
    assert any("pip-audit" in path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert "pip-audit" not in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_dependency_here_is_on_the_page_under_its_licence() -> None:
    assert LICENCES["problems"](PAGE) == []


def test_a_dependency_that_came_or_changed_its_licence_is_found() -> None:
    without = PAGE.replace(", numpy", "").replace("| numpy |", "| |")
    assert any(line.startswith("numpy: ") for line in LICENCES["problems"](without))
    assert any(line.startswith("pillow: MIT-CMU") for line in LICENCES["problems"](PAGE.replace("MIT-CMU", "MIT")))


def test_copyleft_that_nobody_decided_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LICENCES["problems"].__globals__, "STRONG", set())
    (line,) = LICENCES["problems"](PAGE)
    assert "krippendorff: GPL-3.0-or-later is copyleft" in line
