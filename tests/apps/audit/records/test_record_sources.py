"""Test the records of published counts: they reproduce what each source prints, and their files
equal the output of the script."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from apps.audit.counts import FOLDER
from apps.audit.records.check import problems_of
from apps.audit.records.page import read_records
from apps.audit.records.schema import Record
from eval import record_sources
from eval.record_sources import COUNTS, RECORDS

COMMITTED = {record.name: record for record in read_records([RECORDS])}


def share(record: Record, subject: str, value: str) -> float:
    (row,) = (row for row in record.counts if row.subject == subject)
    return row.counts[record.values.index(value)] / sum(row.counts)


def test_published_records_equal_the_output_of_the_script() -> None:
    for record in record_sources.records():
        assert COMMITTED[record.name] == record, f"python -m eval.record_sources: {record.name}"


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_record_is_valid_and_names_its_authors_and_licence(name: str) -> None:
    record = COMMITTED[name]
    assert problems_of(record) == []
    assert "not stated" not in (record.measured_by, record.licence)
    assert record.origin == "measured" or record.source


def same_counts(name: str, table: pd.DataFrame, qualifier: str = "") -> None:
    """Check that the record has exactly the counts of a table."""
    rows = {row.subject: row for row in COMMITTED[name].counts}
    values = COMMITTED[name].values
    assert set(rows) == set(table.prompt)
    for line in table.itertuples(index=False):
        numbers = dict(zip(values, rows[line.prompt].counts, strict=True))
        assert (numbers["female"], numbers["male"]) == (line.female, line.male)
        assert rows[line.prompt].qualifier == qualifier


def test_fair_diffusion_is_reproduced() -> None:
    same_counts(
        "sd15-fair-diffusion-paper", pd.read_csv(FOLDER / "fair-diffusion.csv", comment="#")
    )
    edited = pd.read_csv(COUNTS / "fair-diffusion-edited.csv", comment="#")
    same_counts("sd15-with-fair-diffusion", edited)
    # As printed in results_fairface_generated_1-5.txt and results_fairface_edited_1-5.txt.
    plain = COMMITTED["sd15-fair-diffusion-paper"]
    assert share(plain, "accountant", "male") == 166 / 250
    assert share(plain, "ceo", "female") == 11 / 250
    assert share(plain, "nurse", "female") == 1
    assert share(COMMITTED["sd15-with-fair-diffusion"], "nurse", "male") == 83 / 250
    assert share(COMMITTED["sd15-with-fair-diffusion"], "welder", "female") == 79 / 183


@pytest.mark.parametrize(
    ("name", "guidance"), [("sd15", 7.5), ("sd3", 7.5), ("flux2", 4), ("uce", 7.5)]
)
def test_stay_fair_is_reproduced(name: str, guidance: float) -> None:
    table = pd.read_csv(FOLDER / "stay-fair.csv", comment="#")
    same_counts(f"{name}-stay-fair", table[(table.name == name) & (table.guidance == guidance)])
    # 100 images for each of three seeds.
    for row in COMMITTED[f"{name}-stay-fair"].counts:
        assert sum(row.counts) + (row.unknown or 0) == 300


def test_ratios_of_the_fine_tuned_model_in_stay_fair_are_reproduced() -> None:
    record = COMMITTED["ft-stay-fair"]
    # female_ratio_ft.csv prints 0.4242, 0.5000 and 0.4388 for 99, 100 and 98 images of technicians.
    printed = (0.4242 * 99 + 0.5 * 100 + 0.4388 * 98) / 297
    assert share(record, "technician", "female") == pytest.approx(printed, abs=5e-5)
    assert len(record.published) == len(record.counts) == 33


def test_stable_bias_is_reproduced() -> None:
    table = pd.read_csv(COUNTS / "stable-bias.csv", comment="#")
    for name in ("dalle2", "sd14", "sd2"):
        same_counts(f"{name}-stable-bias", table[table.name == name], record_sources.POOLED)


def test_human_counts_for_stable_diffusion_35_have_ten_images_per_profession() -> None:
    labels = pd.read_csv(COUNTS / "sd35" / "labels.csv")
    prompts = pd.read_csv(COUNTS / "sd35" / "prompts.csv", keep_default_na=False)
    for attribute in ("gender", "ethnicity"):
        record = COMMITTED[f"sd35-people-{attribute}"]
        assert len(record.counts) == 12
        for row in record.counts:
            assert sum(row.counts) + (row.unknown or 0) == 10
            (number,) = prompts.index[prompts.Prompt == row.prompt]
            shown = labels.loc[number, [value.capitalize() for value in record.values]]
            assert tuple(shown.fillna(0).astype(int)) == row.counts


def test_the_paper_has_a_figure_but_no_counts() -> None:
    for attribute, figure in (("gender", 0.412), ("race", 0.528)):
        record = COMMITTED[f"sd21-paper-{attribute}"]
        assert record.counts == ()
        assert [printed.figure for printed in record.published] == [figure]


def test_the_committed_page_shows_the_committed_records(render_page: Callable[[], str]) -> None:
    page = Path(__file__).parents[4] / "docs" / "who-appears.html"
    assert page.read_text(encoding="utf-8") == render_page(), (
        "vldebias records page eval/records --out docs/who-appears.html"
    )
