"""The checkout keeps its budgets, and a budget that is broken is seen."""

from pathlib import Path

import yaml

from tests.robust.budgets import BUDGETS, ROOT, count, over


def test_the_checkout_keeps_its_budgets() -> None:
    budgets = yaml.safe_load((ROOT / BUDGETS).read_text(encoding="utf-8"))
    assert over(count(ROOT), budgets) == []


def test_every_room_of_tests_has_a_budget_of_seconds() -> None:
    budgets = yaml.safe_load((ROOT / BUDGETS).read_text(encoding="utf-8"))
    rooms = {f"seconds {file.parent.relative_to(ROOT).as_posix()}" for file in (ROOT / "tests").glob("*/test_*.py")}
    assert rooms <= set(budgets)


def test_what_is_over_its_budget_or_has_none_is_named() -> None:
    wrong = over({"lines a": 3, "lines b": 2, "lines c": 1}, {"lines a": 2, "lines b": 2})
    assert [line.split(":")[0] for line in wrong] == ["lines a", "lines c"]


def test_counts_of_a_small_checkout(tmp_path: Path) -> None:
    files = {
        "vldebias/__init__.py": "__all__ = ['f', 'g']\n",
        "vldebias/hosts/a.py": "def f(): ...\nclass _B: ...\nasync def g(): ...\n",
        "eval/miniature/painter.py": "x = 1\n",
        "tests/test_a.py": "x = 1\n\n",
        "docs/index.md": "# A page\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    lines = {"lines eval/miniature": 1, "lines tests": 2, "lines vldebias": 4, "lines vldebias/hosts": 3}
    docs = {"pages docs": 1, "words docs": 3, "words docs, longest page": 3}
    assert count(tmp_path) == {"exported names": 2, "files vldebias": 2, "public definitions": 2} | lines | docs
