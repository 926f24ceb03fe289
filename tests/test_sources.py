"""Test that the page of sources and the docstrings agree: every paper named in one of them is also
in the other."""

import re
from pathlib import Path

import pytest

from vldebias.losses.catalog import BUILT_IN
from vldebias.methods.declared import DECLARED

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/explanation/sources.md").read_text(encoding="utf-8")

# "Gao et al., 2021", "Wang et al., NUCLR (2024)", "Zhang and Sabuncu (2018)"
YEAR = r"((?:19|20)\d\d)\b"
SEVERAL = re.compile(rf"([A-Z][\w-]+) et al\b((?:(?! et al)[^;|]){{0,140}}?)\b{YEAR}")
TWO = re.compile(rf'([A-Z][\w-]+) and [A-Z][\w-]+,? (?:"[^"]+" )?\(?{YEAR}')


def papers(text: str) -> set[tuple[str, str]]:
    """Return the first author and the year of each paper that a text cites."""
    text = re.sub(r"^\s*#+ ?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\s+", " ", text)
    several = {(author, year) for author, _, year in SEVERAL.findall(text)}
    return several | set(TWO.findall(text))


NAMED_BY_FILE = {
    path.relative_to(ROOT).as_posix(): papers(path.read_text(encoding="utf-8"))
    for folder in ("vldebias", "apps")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
NAMED_IN_CODE = set[tuple[str, str]]().union(*NAMED_BY_FILE.values())


@pytest.mark.parametrize("path", [path for path, named in NAMED_BY_FILE.items() if named])
def test_every_paper_cited_in_a_docstring_has_a_row(path: str) -> None:
    missing = NAMED_BY_FILE[path] - papers(PAGE)
    assert not missing, f"docs/explanation/sources.md has no row for {missing} of {path}"


def test_every_paper_on_the_page_is_cited_where_its_formula_is_implemented() -> None:
    # Papers without a formula in the code: tables of counts, the idea behind balanced prompts, and
    # a chapter that the docstrings cite as part of the thesis.
    counts = {("Friedrich", "2023"), ("Luccioni", "2023"), ("Kim", "2026")}
    margins = {("Bartlett", "2017"), ("Jiang", "2019")}  # in eval/experiments
    elsewhere = counts | margins | {("Bansal", "2022"), ("Chuang", "2021")}
    assert papers(PAGE) - NAMED_IN_CODE == elsewhere


def test_every_loss_and_method_from_a_paper_has_a_row_with_its_location() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for loss in BUILT_IN:
        name = str(loss.module).partition(":")[2] if loss.has_state else loss.name
        named = {paper for row in rows if f"`{name}`" in row for paper in papers(row)}
        missing = papers(loss.source) - named
        assert named, f"docs/explanation/sources.md has no row for `{name}`"
        assert not missing, f"docs/explanation/sources.md: the row of `{name}` lacks {missing}"
    for name, method in DECLARED.items():
        row = next((row for row in rows if f"`{name}`" in row), "")
        for author, year in papers(method.source) - {("Chuang", "2023")}:
            if "+" not in name:
                assert (author, year) in papers(row), name
        for place in re.findall(r"section [\d.]+\d|Lemma [\d.]+\d", method.source):
            if "+" not in name:
                assert place in row, name
