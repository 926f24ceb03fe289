"""Test that every committed result is readable, consistent and quoted on a page, and that pages
show its current figures."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import readme
from eval.conclude import conclude
from eval.tables import place_of, subset
from tests.study.made_figures import figure
from vldebias.report.conclusion import Conclusion
from vldebias.report.result import Result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "eval" / "results"
COUNTS = {"prompt_readings", "reader_questions"}  # counts of labels, and no results of tasks
COMMITTED = sorted(path for path in RESULTS.glob("*.json") if path.stem not in COUNTS)
# Results of an earlier commit, which are compared with those of the same experiment.
EARLIER = {"search_before": "search_index"}
# Every task in these results compares methods by a bias measure and therefore has a conclusion.
CONCLUDED = {
    "quickstart": 4,
    "miniature": 10,
    "generation": 1,
    "wordings": 1,
    "rivals_miniature": 2,
    "rivals_real": 2,
}


def problems(result: Result) -> list[str]:
    """Return the problems found in rows and protocol."""
    messages = []
    tasks = {protocol.task for protocol in result.provenance}
    for row in result.rows:
        where = f"{row.task}, {row.metric}, {row.method}, {row.subset}"
        for interval, value in (
            (row.interval, row.value),
            *([(row.change[1:], row.change[0])] if row.change else []),
        ):
            if not interval[0] - 1e-9 <= value <= interval[1] + 1e-9:
                messages.append(f"{where}: {value} is not in {interval}")
        if min(row.n.values(), default=0) < 0 or (
            row.interval[0] < row.interval[1] and not any(row.n.values())
        ):
            messages.append(f"{where}: n is {row.n}")
        if row.task not in tasks and len(result.provenance) != 1:
            messages.append(f"{where}: no protocol of its task")
    keys = Counter((r.task, r.metric, r.method, r.subset, r.lam, r.strength) for r in result.rows)
    messages += [f"{key} stands {count} times" for key, count in keys.items() if count > 1]
    messages += [
        f"{protocol.task}: a protocol without words"
        for protocol in result.provenance
        if not protocol.description
    ]
    if re.search(
        r'"(/|[A-Za-z]:\\\\|~)|/(home|tmp|root|Users|mnt|work)/', result.model_dump_json()
    ):
        messages.append("a path of a machine")
    return messages


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_rows_and_protocol_are_consistent(path: Path) -> None:
    result = Result.read(path)
    assert result.name.replace(" ", "_") == EARLIER.get(path.stem, path.stem)
    assert result.rows
    assert problems(result) == []


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_file_contains_the_conclusions_of_its_rows(path: Path) -> None:
    written = [Conclusion(**facts) for facts in json.loads(path.read_text())["conclusions"]]
    conclusions = Result.read(path).conclusions()
    shown = [(conclusion.task, conclusion.verdict, conclusion.sentence) for conclusion in written]
    assert shown == [
        (conclusion.task, conclusion.verdict, conclusion.sentence) for conclusion in conclusions
    ], "run python -m eval.conclude"
    assert len(written) >= CONCLUDED.get(path.stem, 0)


def test_rewriting_conclusions_changes_nothing_else(tmp_path: Path) -> None:
    for name in ("quickstart.json", "steer_models.json", "steer_models.parquet"):
        (tmp_path / name).write_bytes((RESULTS / name).read_bytes())
    for name in ("quickstart.json", "steer_models.json"):
        path = tmp_path / name
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"conclusions": []}))
        assert conclude(path) == len(content["conclusions"])
        assert path.read_text() == (RESULTS / name).read_text()


def test_a_result_states_its_command_date_and_clean_commit_and_is_quoted_by_a_page() -> None:
    pages = [ROOT / "README.md", ROOT / "eval" / "README.md", *(ROOT / "docs").rglob("*.md")]
    quoted = " ".join(path.read_text(encoding="utf-8") for path in pages)
    for path in (path for path in RESULTS.iterdir() if path.is_file()):
        used = (
            path.stem in code.read_text(encoding="utf-8") for code in (ROOT / "eval").rglob("*.py")
        )
        assert path.name in quoted or (path.with_suffix(".json").exists() and any(used)), path
    for path in COMMITTED:
        result = Result.read(path)
        assert result.command, path
        assert result.date, path
        # Repeating the benchmark at full size needs a GPU.
        is_dirty = (result.commit or "").endswith("-dirty")
        assert not is_dirty or path.stem == "bench_full_size", path


def test_tables_and_the_picture_match_the_committed_results() -> None:
    for name, text in readme.everything().items():
        assert text == (ROOT / name).read_text(encoding="utf-8"), "run python -m eval.readme"


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.one_of(st.floats(0, 1), st.integers(0, 9), st.just("as it is"))
    )
)
def test_the_columns_of_a_row_are_parsed_from_its_subset(place: dict[str, Any]) -> None:
    names = {"task": "birds", "metric": "average", "method": "none"}
    assert place_of(figure(subset=subset(place))) == place | names
