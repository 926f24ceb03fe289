"""The Python in the READMEs runs as it stands, and every suite and data set is named in them."""

import re
from pathlib import Path

import pytest

from vldebias.data import list_data
from vldebias.evaluation import list_suites

ROOT = Path(__file__).parents[1]
FILES = ("README.md", "eval/README.md")
SNIPPETS = [
    pytest.param(snippet, id=f"{name}-{i}")
    for name in FILES
    for i, snippet in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    )
]


def test_snippets_are_found() -> None:
    assert len(SNIPPETS) >= 8


@pytest.mark.parametrize("name", [*list_suites(), *list_data()])
def test_suites_and_data_sets_are_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "eval" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {"__name__": "__main__"})
