"""Test that every figure has the same value on the page, in the terminal, in a pipe, in a notebook,
in JSON, in comparisons and in the README."""

import io
import json
import re
from html import unescape
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from eval.pages import front
from vldebias.cli import common
from vldebias.report.conclusion import Conclusion, with_costs
from vldebias.report.page import render
from vldebias.report.result import Result
from vldebias.report.table import readable
from vldebias.report.text import text

RESULTS = Path(__file__).parents[2] / "eval" / "results"


@pytest.fixture(scope="module", params=["quickstart", "wordings"])
def result(request: pytest.FixtureRequest) -> Result:
    return Result.read(RESULTS / f"{request.param}.json")


class Shown(NamedTuple):
    """Return the text of a result as shown in each place, with single spaces between words."""

    page: str
    notebook: str
    terminal: str


@pytest.fixture(scope="module")
def shown(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("shown")
    page = render(result, folder / "p.html", run_folder=folder).read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        terminal = printed(result, patch, color_system=None)
    return Shown(plain(page), plain(result._repr_html_()), plain(terminal))


def plain(words: str) -> str:
    """Return the words with single spaces, for any width or markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", words)).split())


def printed(result: Result, monkeypatch: pytest.MonkeyPatch, **console: object) -> str:
    """Return what a command prints about a result."""
    shown = io.StringIO()
    fields = {"file": shown, "force_terminal": True, "width": 80, **console}
    terminal = Console(**fields)
    monkeypatch.setattr(common, "out", lambda: terminal)
    common.print_result(result, as_json=False)
    return shown.getvalue()


def decimals(interval: tuple[float, float]) -> int:
    """Return the number of decimals that the page promises for a value below 10."""
    low, high = interval
    return 3 if (high - low) / 2 < 0.01 else 2


def decimals_of_change(change: tuple[float, float, float]) -> int:
    """Return the number of decimals for a change. With two, a nonzero end must not be shown as
    zero."""
    _, low, high = change
    if any(end != 0 and f"{abs(end):.2f}" == "0.00" for end in (low, high)):
        return 3
    return decimals((low, high))


def test_page_terminal_notebook_and_json_have_the_same_sentences(
    result: Result, shown: Shown, tmp_path: Path
) -> None:
    conclusions = result.conclusions()
    assert conclusions
    written = json.loads(result.write(tmp_path / "result.json").read_text())["conclusions"]
    assert [Conclusion(**content) for content in written] == conclusions
    for conclusion in conclusions:
        for page in (shown.page, shown.notebook):
            assert conclusion.sentence in page
        for terminal in (shown.terminal, plain(text(result))):
            assert conclusion.short in terminal


def test_each_output_shows_the_same_number_interval_and_verdict_for_a_row(
    result: Result, shown: Shown
) -> None:
    frame = with_costs(readable(result), result.conclusions())
    written = {}
    for row in result.rows:
        written[row.task, row.metric, row.subset, row.method] = row
    for conclusion in result.conclusions():
        is_same = (frame.task == conclusion.task) & (frame.metric == conclusion.metric)
        rows = frame[
            is_same & (frame.subset == conclusion.subset) & (frame.method == conclusion.method)
        ]
        (row,) = rows.itertuples()
        # The table and the sentence use the same rounding rule.
        value = "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(
            conclusion.after, *conclusion.interval, d=decimals(conclusion.interval)
        )
        change = "{:+.{d}f} [{:+.{d}f}, {:+.{d}f}]".format(
            *conclusion.change, d=decimals_of_change(conclusion.change)
        )
        assert (row.number, row.moved, row.verdict) == (value, change, conclusion.verdict)
        for name, text_of_place in shown._asdict().items():
            # A note about too few units, which make the interval too narrow, may come between the
            # two.
            few = rf"(?:,?\s*{re.escape(row.few)})?"
            # On the page and in a notebook, the cost comes before the verdict.
            cost = r"(?:[^;]{0,80}?)"
            line = rf"{re.escape(value)}\s*{few}\s*{re.escape(change)}{cost}{conclusion.verdict}"
            assert re.search(line, text_of_place), (name, conclusion.task)
            assert conclusion.verdict in text_of_place, (name, conclusion.task)
        in_json = written[conclusion.task, conclusion.metric, conclusion.subset, conclusion.method]
        assert (in_json.value, in_json.interval) == (conclusion.after, conclusion.interval)


def test_a_sentence_has_the_values_and_verdict_of_its_row(result: Result) -> None:
    for conclusion in result.conclusions():
        rows = {
            row.method: row
            for row in result.rows
            if (row.task, row.metric, row.subset)
            == (conclusion.task, conclusion.metric, conclusion.subset)
        }
        assert conclusion.before == rows["none"].value
        assert conclusion.after == rows[conclusion.method].value
        assert conclusion.change == rows[conclusion.method].change
        d = decimals_of_change(conclusion.change)
        assert f"{conclusion.before:.{d}f} to {conclusion.after:.{d}f}" in conclusion.sentence
        assert conclusion.sentence.startswith(f"{conclusion.task}: {conclusion.verdict}")


def test_piped_output_has_the_verdicts_and_a_tab_separated_table(
    result: Result, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(force_terminal=False)
    monkeypatch.setattr(common, "out", lambda: console)
    common.print_result(result, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    sentences = [line for line in lines if line.startswith("# ")]
    for sentence, conclusion in zip(sentences, result.conclusions(), strict=True):
        assert sentence == f"# {conclusion.short}"
        assert re.search("cost|no clear loss|too small a loss to count", sentence)
    head, *rows = [line.split("\t") for line in lines if not line.startswith("# ")]
    verdicts = {(row[0], row[1], row[2], row[3]): row[head.index("verdict")] for row in rows}
    for conclusion in result.conclusions():
        assert (
            verdicts[conclusion.task, conclusion.metric, conclusion.method, conclusion.subset]
            == conclusion.verdict
        )


def test_colour_is_disabled_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result.read(RESULTS / "wordings.json")
    colours = r"\x1b\[[0-9;]*3[0-7]"
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert re.search(colours, printed(result, monkeypatch, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(colours, printed(result, monkeypatch, color_system="standard"))


def test_the_table_in_the_readme_has_the_values_of_the_conclusions() -> None:
    lines = list(chain.from_iterable(front.WINDOW.values()))
    table = "".join(map(front.window, front.WINDOW))
    conclusions_of_file = {}
    for name in {line.result for line in lines}:
        conclusions_of_file[name] = Result.read(RESULTS / f"{name}.json").conclusions()
    compared = 0
    for line in lines:
        for conclusion in conclusions_of_file[line.result]:
            key = (conclusion.task, conclusion.metric, conclusion.subset, conclusion.method)
            if key != (line.block, line.metric, line.subset, line.row):
                continue
            (row,) = [row for row in table.splitlines() if f"| {line.how}: {line.task} (" in row]
            assert f"{conclusion.measure.split(',')[0]} {conclusion.before:.2f} [" in row
            low, high = conclusion.interval
            assert f"| {conclusion.after:.2f} [{low:.2f}, {high:.2f}]" in row
            # The cost follows on a line of its own.
            judged = conclusion.verdict.removeprefix("better").removeprefix(", at a cost")
            assert judged in row.split("|")[3].partition("<br>")[0]
            compared += 1
    assert compared >= 2


def test_counts_by_one_person_are_shown_with_their_number_and_the_interval_of_the_cost() -> None:
    rows = readable(Result.read(RESULTS / "stated_values.json"))
    is_cost = (rows.metric == "recognised") & (rows.method == "balanced-prompts")
    (cost,) = rows[is_cost & (rows.task == "professions")].itertuples()
    interval = f"{cost.value:.2f} [{cost.low:.2f}, {cost.high:.2f}]"
    table = front.window("generating")
    (row,) = [line for line in table.splitlines() if "Stable Diffusion 3.5" in line]
    assert "one person who knew the prompt" in row
    assert "12 professions, 360 images" in row
    assert interval in row
