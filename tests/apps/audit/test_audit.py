"""Test `vldebias.audit`: counts of the prompts' subjects, verdicts on them, and errors."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import vldebias
from apps.audit.counts import (
    CALIBRATIONS,
    FOLDER,
    MINIATURE,
    MOST_MORE,
    PUBLISHED,
    exact_interval,
    images_to_settle,
    is_clearly_above,
    known_calibrations,
    read_counts,
    subject,
)
from apps.audit.section import audited_prompts
from tests.cli.conftest import call
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.prompts import load_prompts
from vldebias.report.result import Result
from vldebias.report.table import readable

pytestmark = pytest.mark.usefixtures("no_charts")
GENDER = load_prompts("gender")
NURSE = "A photo of a nurse."
WRITER = "A photo of a writer."
SAILOR = "A photo of a sailor."
CHAIR = "A red chair"
PAIR = "A photo of a doctor and a nurse."
STATED = "A photo of a female doctor."


def advice_of(result: Result) -> dict[str, str]:
    return dict(result.provenance[0].settings["prompts"])


def counts(prompt: str, male: float, female: float) -> pd.DataFrame:
    return pd.DataFrame({"prompt": [prompt], "male": [male], "female": [female]})


def test_the_subject_of_a_prompt_is_recognised() -> None:
    assert subject("A photo of the face of a nurse.") == "nurse"
    assert subject("a portrait of an Actor") == "actor"
    assert subject("A photo of administrative assistant") == "administrative assistant"
    # Counts from photographs do not apply to paintings, nor to a nurse in a different scene.
    assert subject("A painting of a nurse") != "nurse"
    assert subject("A photo of a nurse at night") != "nurse"


def test_published_counts_of_a_subject_are_read() -> None:
    table = read_counts(PUBLISHED, GENDER)
    assert len(table) == 153
    assert table.loc["accountant"].tolist() == [166, 84]
    with pytest.raises(InvalidInputError, match="only cover male and female"):
        read_counts(PUBLISHED, load_prompts("race"))
    several: Any = ["sd15", "sd3"]
    with pytest.raises(InvalidInputError, match="a file or a pandas"):
        read_counts(several, GENDER)
    # From the source's rows for the writer with SD 3 and guidance 7.5: 96 of 98, 94 of 96 and 96 of
    # 97 are women.
    (sd3,) = known_calibrations("stabilityai/stable-diffusion-3-medium-diffusers")
    table = read_counts(sd3, GENDER)
    assert table.loc["writer"].to_dict() == {"male": 5, "female": 286}
    assert table.shape == (33, 2)


def test_every_file_format_is_read_and_invalid_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    women = "prompt,value\n" + "nurse,female\n" * 3
    for content, male in (
        (women, 0),
        (f"{women}nurse,Man\nnurse,cannot tell\n", 1),
        ("prompt,men,women\nnurse,1,3\npilot,0,0\n", 1),
    ):
        path.write_text(content)
        assert read_counts(path, GENDER).to_dict("index") == {"nurse": {"male": male, "female": 3}}
    for content in (
        "a,b\n1,2\n",
        "prompt,value\nnurse,cat\n",
        "prompt,male,female\nnurse,x,1\n",
        "prompt,male,female\nnurse,-1,2\n",
        "prompt,male,female\nnurse,1,1\nNurse,1,1\n",
        'prompt,male,female,note\nnurse,1,1,"a\npilot,1,1,b\n',
        "prompt,male,men,female\nnurse,1,2,1\n",
    ):
        path.write_text(content)
        with pytest.raises(InvalidInputError, match=r"t\.csv"):
            read_counts(path, GENDER)


def test_each_table_states_its_source_and_licence() -> None:
    assert len({calibration.name for calibration in CALIBRATIONS}) == len(CALIBRATIONS)
    for calibration in CALIBRATIONS:
        head = (FOLDER / calibration.file).read_text().partition("\nprompt")[0]
        for fact in ("# source:", "# prompt:", "# judge:"):
            assert fact in head, (calibration.name, fact)
    for name in ("fair-diffusion.csv", "stay-fair.csv", "sd35.csv"):
        head = (FOLDER / name).read_text()
        assert "# commit:" in head
        assert "# licence:" in head


def test_a_pipeline_without_counts_gets_the_counts_of_every_base_model() -> None:
    assert known_calibrations("miniature") == [MINIATURE]
    for name in ("acme/painter-xl", ""):
        known = [calibration.name for calibration in known_calibrations(name)]
        assert known == ["fair-diffusion", "sd3", "sd35", "flux2"]
    (own,) = known_calibrations("stabilityai/stable-diffusion-3.5-large-turbo")
    assert own.name == "sd35"


def test_counts_of_released_models_never_make_a_prompt_of_another_model_lean() -> None:
    result = vldebias.audit([NURSE, WRITER, SAILOR], "gender", pipe="acme/painter-xl")
    advice = advice_of(result)
    assert advice == {
        NURSE: "counted in 4 released models, all lean female: add --pipeline DIR --measure 8",
        WRITER: "counted in 3 released models, which differ: add --pipeline DIR --measure 8",
        SAILOR: "not counted: add --pipeline DIR --measure 8",
    }
    for name in ("sd3", "flux2"):
        (calibration,) = [one for one in CALIBRATIONS if one.name == name]
        row = read_counts(calibration, GENDER).loc["writer"]
        found = result.row("audit", "counted_share", name, subset=f"{WRITER}: male")
        assert found.value == pytest.approx(row.male / row.sum())
        assert found.n == {"images": row.sum()}
        assert found.interval == pytest.approx(exact_interval(row.male, row.sum()))
    _, writer, sailor = audited_prompts(result, readable(result))
    assert writer.share.endswith("% female")
    assert {part.split()[0] for part in writer.models.split(", ")} == {
        "fair-diffusion",
        "sd3",
        "flux2",
    }
    assert sailor.share == ""
    sentences = result.provenance[0].settings["advice"]
    assert sentences[-1].endswith("acme/painter-xl has no counts, and may lean the other way.")


def test_the_first_line_says_so_if_most_subjects_were_never_counted() -> None:
    few = vldebias.audit([NURSE, WRITER, SAILOR], "gender").provenance[0].settings["advice"]
    most = vldebias.audit([NURSE, SAILOR, "A diver"], "gender").provenance[0].settings["advice"]
    missing = "of 3 prompts, no released model was counted, such as"
    assert [missing in sentence for sentence in few[:2]] == [False, True]
    assert [missing in sentence for sentence in most[:2]] == [True, False]
    assert most[0].endswith("add --pipeline DIR --measure 8.")
    # No counts for this attribute were published.
    race = vldebias.audit([NURSE], "race")
    assert advice_of(race) == {NURSE: "not counted: add --pipeline DIR --measure 8"}


def test_prompts_that_are_not_measured_come_last_with_the_reason() -> None:
    prompts = [CHAIR, PAIR, STATED, SAILOR, NURSE]
    advice = advice_of(vldebias.audit(prompts, "gender", pipe="miniature"))
    assert list(advice)[2:] == [CHAIR, PAIR, STATED]
    assert advice[PAIR] == "not measured: shows several people"
    assert advice[STATED] == "not measured: states female"
    assert advice[CHAIR] == "not measured: no person is asked for"
    rows = vldebias.audit(prompts, "gender", pipe="miniature").rows
    assert {row.subset for row in rows} == {f"{NURSE}: male", f"{SAILOR}: male"}


@pytest.mark.parametrize(
    ("hits", "n", "leans"),
    [(4, 4, False), (5, 5, False), (6, 6, True), (8, 10, False), (9, 10, True), (61, 100, True)],
)
def test_counted_shares_lean_if_even_shares_would_rarely_give_them(
    hits: int, n: int, leans: bool
) -> None:
    """This uses the two-sided exact binomial test at the 5% level, with tails from tables."""
    result = vldebias.audit([SAILOR], "gender", counts=counts(SAILOR, n - hits, hits))
    assert advice_of(result)[SAILOR].startswith("counted, leans female: ") == leans
    row = result.row("audit", "counted_share", "none", subset=f"{SAILOR}: male")
    assert row.value == pytest.approx(1 - hits / n)


def test_too_few_images_say_how_many_are_missing() -> None:
    few = advice_of(vldebias.audit([SAILOR], "gender", counts=counts(SAILOR, 2, 6)))
    more = images_to_settle(6 / 8, 8, 0.5)
    assert few[SAILOR] == f"too few images ({more} more): generate {more} more"
    even = advice_of(vldebias.audit([SAILOR], "gender", counts=counts(SAILOR, 5, 5)))
    assert even[SAILOR] == "too few images (64 more): generate 64 more"
    enough = advice_of(vldebias.audit([SAILOR], "gender", counts=counts(SAILOR, 50, 50)))
    assert enough[SAILOR] == "counted, no clear lean: nearly even so far"


@pytest.mark.parametrize(
    ("hits", "n", "is_above"),
    [(515, 1030, False), (549, 1030, True), (500_900, 10**6, False), (501_000, 10**6, True)],
)
def test_any_number_of_judged_images_is_tested(hits: int, n: int, is_above: bool) -> None:
    """The exact test is close to the normal one here: hits > n / 2 + 0.98 sqrt(n)."""
    assert is_clearly_above(0.5, hits, n) == is_above


def test_several_values_are_all_listed() -> None:
    table = pd.DataFrame({"prompt": [NURSE] * 12, "value": ["White"] * 10 + ["Black", "Asian"]})
    result = vldebias.audit([NURSE], "race", counts=table)
    shares = {row.subset.rpartition(": ")[2]: row.value for row in result.rows}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["White"] == pytest.approx(10 / 12)
    assert advice_of(result)[NURSE].startswith("counted, leans White")


def test_the_prompt_column_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "listed.csv"
    path.write_text(f"id,text\n1,{NURSE}\n2,{WRITER}\n")
    (protocol,) = vldebias.audit(path, "gender").provenance
    assert protocol.description.endswith("Read: 2 prompts from column 'text'.")
    (protocol,) = vldebias.audit([NURSE], "gender").provenance
    assert "Read:" not in protocol.description


def test_invalid_requests_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    (tmp_path / "q.txt").touch()
    prompts: Any
    for prompts, refusal in (
        ([], "one or more"),
        *((tmp_path / f"{name}.txt", rf"{name}\.txt") for name in ("no such", "p", "q")),
    ):
        with pytest.raises(InvalidInputError, match=refusal):
            vldebias.audit(prompts, "gender")


@pytest.mark.parametrize(
    "line",
    [
        "audit prompts.txt --attribute gender --texts texts.npz",
        "audit prompts.txt --attribute gender --model miniature",
        "audit prompts.txt --attribute gender --calibration sd3",
        "records predict --model m",
    ],
)
def test_predictions_were_removed_and_this_says_what_to_do(line: str) -> None:
    printed = " ".join(call(line, code=2, with_stderr=True).split())
    assert "counts images and no longer predicts shares: add --pipeline DIR --measure 8" in printed


def test_values_that_are_not_counted_are_named() -> None:
    values = ["woman", "man", "unclear", "alien", None]
    table = pd.DataFrame({"prompt": ["a nurse"] * 5, "value": values})
    with pytest.warns(SuspectInputWarning, match="1 row with values such as 'alien' .* expected"):
        found = read_counts(table, GENDER)
    assert found.to_numpy().tolist() == [[1, 1]]
    judged = pd.DataFrame({"prompt": ["a nurse"] * 5, "value": ["neither"] * 5})
    with pytest.raises(InvalidInputError, match=r"'value'\], but no value such as 'male';"):
        read_counts(judged, GENDER)


def test_the_images_that_settle_a_lean_are_counted_in_exact_fractions() -> None:
    # 34 of 58 is a share for which rounding would add two images.
    for n in (*range(1, 25), 58):
        for hits in range(n // 2 + 1, n + 1) if n < 58 else (34,):
            share = Fraction(hits, n)
            expected = None
            for more in range(1, MOST_MORE + 1):
                if is_clearly_above(0.5, math.floor(share * (n + more)), n + more):
                    expected = more
                    break
            assert images_to_settle(hits / n, n, 0.5) == expected
