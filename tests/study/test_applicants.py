"""Test `vldebias eval shares --impact-ratio`: rates and ratios of applicants by sex, race and
both."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.refusals import refused
from vldebias.cli import app
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.report.result import Result
from vldebias.study.shares.impact import measure_impact

# The columns are sex, race, applicants and selected.
COUNTS = (
    ("female", "White", 100, 20),
    ("male", "White", 100, 40),
    ("female", "Black", 100, 10),
    ("male", "Black", 100, 30),
    ("male", "Samoan", 3, 1),
)


def applicants(path: Path, *more: str) -> Path:
    lines = ["sex,race,hired"]
    for sex, race, number, selected in COUNTS:
        lines += [f"{sex},{race},yes"] * selected + [f"{sex},{race},no"] * (number - selected)
    path.write_text("\n".join([*lines, *more]))
    return path


def figures(result: Result) -> dict[tuple[str, str, str], tuple[float, dict[str, int]]]:
    return {(row.task, row.metric, row.subset): (row.value, row.n) for row in result.rows}


def test_rates_and_ratios_are_computed_by_sex_race_and_both(tmp_path: Path) -> None:
    path = applicants(tmp_path / "a.csv", "female,N/A,yes", "unknown,White,no", "male,White,")
    result = measure_impact(path, "hired", "sex", "race")
    found = figures(result)
    assert found["by sex", "selection_rate", "male"] == (
        71 / 203,
        {"applicants": 203, "selected": 71},
    )
    # The woman whose race is missing is only counted by sex.
    assert found["by sex", "impact_ratio", "female"][0] == pytest.approx((31 / 201) / (71 / 203))
    assert found["by race", "impact_ratio", "Black"][0] == pytest.approx(0.2 / (60 / 201))
    both = "by sex and race"
    assert found[both, "impact_ratio", "female/Black"][0] == pytest.approx(0.25)
    # Categories with fewer than 2% of applicants are listed with their rate, but without a ratio.
    assert found[both, "selection_rate", "male/Samoan"][0] == 1 / 3
    assert (both, "impact_ratio", "male/Samoan") not in found
    sentences = result.provenance[2].settings["advice"]
    assert "0.25 [" in sentences[0]
    assert "for female/Black (10 of 100 selected) against male/White (40 of 100" in sentences[0]
    assert "the entire interval is below 0.8 (four-fifths rule)" in sentences[0]
    assert "male/Samoan (1 of 3 selected)" in sentences[1]
    assert "3 applicants of 406 are not included" in sentences[2]


def test_two_spellings_of_a_category_warn_and_can_be_joined(tmp_path: Path) -> None:
    path = applicants(tmp_path / "a.csv", *["F,White,True"] * 20)
    with pytest.warns(SuspectInputWarning, match="sex: 'F' and 'female' .*--rename F=female"):
        measure_impact(path, "hired", "sex", "race")
    joined = measure_impact(path, "hired", "sex", "race", rename={"F": "female"})
    assert figures(joined)["by sex", "selection_rate", "female"][0] == 50 / 220


@refused(
    (("hired", "sex", "sex"), "expected three different columns"),
    (("sex", "hired", "race"), "sex: row 1: expected yes or no, got 'female'"),
    (("hired", "sex", "nothing"), "expected a column 'nothing'"),
)
def test_unsupported_columns_are_rejected(tmp_path: Path, columns: tuple[str, str, str]) -> None:
    measure_impact(applicants(tmp_path / "a.csv"), *columns)


def test_a_column_of_numbers_of_applicants_is_reported(tmp_path: Path) -> None:
    lines = ["yes,female,White,90", "no,male,White,10", "yes,male,Black,10", "no,female,Black,90"]
    (tmp_path / "a.csv").write_text("\n".join(["hired,sex,race,count", *lines]))
    with pytest.warns(SuspectInputWarning, match="'count' are not used.*a row per applicant"):
        measure_impact(tmp_path / "a.csv", "hired", "sex", "race")


def test_ids_and_scores_are_rejected(tmp_path: Path) -> None:
    lines = [f"{number},White,0.{number}" for number in range(1, 9)]
    (tmp_path / "a.csv").write_text("\n".join(["id,race,score", *lines]))
    with pytest.raises(InvalidInputError, match="turn scores into selections first"):
        measure_impact(tmp_path / "a.csv", "score", "id", "race")
    lines = [f"{number},White,yes" for number in range(1, 9)]
    (tmp_path / "a.csv").write_text("\n".join(["id,race,hired", *lines]))
    with pytest.raises(InvalidInputError, match="8 groups in 8 rows"):
        measure_impact(tmp_path / "a.csv", "hired", "id", "race")


def test_the_command_writes_a_page_with_a_table_of_categories(tmp_path: Path) -> None:
    path = applicants(tmp_path / "a.csv")
    command = ["eval", "shares", str(path), "--impact-ratio", "--out", str(tmp_path / "out")]
    columns = [
        "--selected-column",
        "hired",
        "--sex-column",
        "sex",
        "--race-column",
        "race",
        "--json",
    ]
    done = CliRunner().invoke(app, [*command, *columns])
    assert done.exit_code == 0
    assert len(json.loads(done.stdout)["figures"]) == 18
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Impact ratios by sex and race" in page
    assert "The mark is at 0.8, the EEOC's four-fifths rule of thumb." in page
    # The lowest ratio comes first, and categories without a ratio come last.
    table = page.rpartition('<table class="front categories">')[2].partition("</table>")[0]
    names = re.findall(r'<th scope="row">([^<]+)</th>', table)
    assert (names[0], names[-1]) == ("female/Black", "male/Samoan")
    assert table.count('<span class="range ruled"') == 4
    row = page[page.index("male/Samoan</th>") :].partition("</tr>")[0]
    assert 'data-label="applicants">3<' in row
    assert "excluded" in row
    for wrong, words in (
        (
            ["--prompt-column", "race"],
            "expected --selected-column COLUMN, --sex-column COLUMN, --race-column COLUMN",
        ),
        ([*columns, "--groups", "gender"], "to tables of images"),
        ([*columns, "--prompt-column", "race"], "got --prompt-column"),
    ):
        error = CliRunner().invoke(app, [*command, *wrong]).exception
        assert isinstance(error, InvalidInputError)
        assert words in str(error)
