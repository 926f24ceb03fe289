"""The budgets of the house hold, and a budget that is broken or raised in silence is seen."""

import subprocess
from pathlib import Path

import pytest

from tests.robust import house

BUDGETS = house.read_budgets("lines: {vldebias/hosts: 100, tests: 50}\ncircles: 0\n")


def test_the_house_keeps_its_budgets() -> None:
    budgets = house.read_budgets((house.ROOT / house.BUDGETS).read_text(encoding="utf-8"))
    assert house.over(house.count(house.ROOT), budgets) == []


def test_no_commit_raised_a_budget_in_silence() -> None:
    assert house.raised_in_silence(house.ROOT) == []


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"lines": {"vldebias/hosts": 101, "tests": 50}}, "lines of vldebias/hosts: 101, the budget is 100"),
        ({"circles": {"": 1}}, "circles: 1, the budget is 0"),
        ({"lines": {"vldebias/brand_new": 3}}, "lines of vldebias/brand_new: 3 and no budget; write one into"),
    ],
)
def test_what_is_over_its_budget_is_named(counts: house.Counts, text: str) -> None:
    (found,) = house.over(counts, BUDGETS)
    assert text in found


def test_tightening_only_lowers() -> None:
    counts = {"lines": {"vldebias/hosts": 90, "tests": 60, "new": 4}}
    tight = house.tightened(counts, BUDGETS)
    assert tight["lines"] == {"vldebias/hosts": 90, "tests": 50, "new": 4}
    assert tight["circles"] == {"": 0}


def test_what_is_counted(tmp_path: Path) -> None:
    """A small checkout whose numbers can be counted by eye."""
    files = {
        "pyproject.toml": "[project]\ndependencies = ['torch']\n",
        "vldebias/__init__.py": "__all__ = ['f', 'g']\n",
        "vldebias/a.py": "from vldebias.b import B\ndef f(x, *, y=1):\n    return _once(_twice()) + _twice()\n"
        "def _once(z): ...\ndef _twice(): ...\n",
        "vldebias/b.py": "class B:\n    def m(self, p, q, r):\n        from vldebias.a import f\n",
        "eval/results/one.json": '{"name": 1, "figures": [], "protocols": [], "more": 2}',
        "eval/results/two.json": '{"figures": [], "name": 1, "protocols": []}',
        "eval/results/three.json": '{"rows": []}',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    counts = house.count(tmp_path)
    assert counts["lines"] == {"vldebias": 9}
    single = {name: parts[""] for name, parts in counts.items() if name != "lines"}
    assert single["most parameters of a function"] == 3
    assert single["private functions used once"] == 1
    assert (single["public definitions"], single["exported names"]) == (2, 2)
    assert (single["circles"], single["shapes of results"], single["hard dependencies"]) == (1, 2, 1)


def test_seconds_are_added_up_by_folder(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    case = '<testcase classname="tests.{}" time="{}"/>'
    cases = [("hosts.test_seam", 1.5), ("hosts.test_table.TestA", 0.5), ("test_api", 2)]
    skipped = '<testcase classname="" name="tests.hosts.test_on_ray" time="0.25"/>'  # a file that is skipped whole
    path.write_text(f"<testsuites>{''.join(case.format(*one) for one in cases)}{skipped}</testsuites>")
    assert house.seconds_of(path) == {"tests": 4.2, "tests/hosts": 2.2}


@pytest.mark.parametrize(
    ("message", "silent"), [("Add a thing", True), ("Add a thing\n\nBudget: it serves all\n", False)]
)
def test_a_raise_needs_its_reason(tmp_path: Path, message: str, silent: bool) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], check=True)

    git("init", "--quiet")
    (tmp_path / ".ci").mkdir()
    for number, said in ((3, "Begin"), (2, "Tighten"), (4, message)):
        (tmp_path / house.BUDGETS).write_text(f"circles: {number}\n")
        git("add", "-A")
        git("commit", "--quiet", "-m", said)
    found = house.raised_in_silence(tmp_path)
    assert [one.partition(" ")[2] for one in found] == silent * [
        "raises circles; say why on a line that begins with 'Budget: '"
    ]
