"""Test `vldebias.audit`: predictions from text alone, their intervals, calibrations, and errors."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vldebias
from apps.audit.line import (
    CALIBRATIONS,
    FOLDER,
    LEVEL,
    MINIATURE,
    PUBLISHED,
    ShareLine,
    find_calibration,
    known_calibrations,
    read_counts,
    read_shares,
)
from apps.audit.prediction import (
    MOST_MORE,
    Prediction,
    exact_interval,
    images_to_settle,
    is_clearly_above,
    subject,
)
from apps.audit.section import audited_prompts
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.hosts.loading import Loaded
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.page import title_of
from vldebias.report.result import Result
from vldebias.report.table import readable
from vldebias.report.text import text as in_terminal
from vldebias.wording import balance_prompts

pytestmark = pytest.mark.usefixtures("no_charts")

Texts = Mapping[str, torch.Tensor]
GENDER = load_prompts("gender")
_ALL = [f"A photo of a {profession}." for profession in read_shares(PUBLISHED, GENDER).index]
_REASONS = balance_prompts(_ALL, GENDER, seed=0).reasons
JOBS = [text for text, reason in zip(_ALL, _REASONS, strict=True) if reason is None][:40]
CHAIR = "A red chair"
CASTLE = "A doctor in a castle."
STATED = "a female doctor"
AUDITED = [*JOBS[1::2], CHAIR, CASTLE, STATED]


def lean_of(text: str) -> float:
    return (JOBS.index(text) - 20) / 20


@pytest.fixture(scope="module")
def texts() -> Texts:
    """Return text embeddings of 40 jobs along a line between the gender values, close together
    except for one outlier."""
    rows = {}
    rng = np.random.default_rng(0)
    for text in (*GENDER.texts, *JOBS, CHAIR, STATED):
        row = 0.05 * rng.standard_normal(16) + np.eye(16)[2]
        row[0] = {("male",): 1.0, ("female",): -1.0}.get(GENDER.values_in(text), 0.0)
        if text in JOBS:
            row[0] = 0.4 * lean_of(text)
        rows[text] = torch.from_numpy(row)
    return rows | {
        CASTLE: torch.from_numpy(np.eye(16)[2] + 0.01 * np.eye(16)[0] + 0.45 * np.eye(16)[7])
    }


@pytest.fixture(scope="module")
def judged() -> pd.DataFrame:
    """Return counts for every second job that follow the job's lean, with noise."""
    rng = np.random.default_rng(1)
    share = [
        np.clip(0.5 + 0.4 * lean_of(job) + 0.08 * rng.standard_normal(), 0, 1) for job in JOBS[::2]
    ]
    male = np.round(100 * np.array(share))
    return pd.DataFrame({"prompt": JOBS[::2], "male": male, "female": 100 - male})


@pytest.fixture(scope="module")
def result(texts: Texts, judged: pd.DataFrame) -> Result:
    return vldebias.audit(AUDITED, "gender", texts=texts, calibration=judged)


class TestShareLine:
    def test_leave_one_out_matches_a_refit_without_the_prompt(self) -> None:
        rng = np.random.default_rng(0)
        x = 0.01 * rng.standard_normal(12)
        y = rng.uniform(size=12)
        line = ShareLine(x, y)
        fits = [np.polyfit(np.delete(x, i), np.delete(y, i), 1) for i in range(12)]
        predictions = [
            np.clip(np.polyval(fit, place), 0, 1) for fit, place in zip(fits, x, strict=True)
        ]
        assert (line.left_out, line.at(x)) == (
            pytest.approx(predictions),
            pytest.approx(np.polyval(np.polyfit(x, y, 1), x)),
        )
        assert line.r2 == pytest.approx(
            1 - np.sum((y - predictions) ** 2) / np.sum((y - y.mean()) ** 2)
        )

    def test_interval_matches_the_jackknife_plus_in_the_paper(self) -> None:
        rng = np.random.default_rng(1)
        x = rng.standard_normal(30)
        y = rng.uniform(0.3, 0.7, size=30)
        ends = []
        for i in range(30):  # eq. 1.4, refitting every line
            slope, intercept = np.polyfit(np.delete(x, i), np.delete(y, i), 1)
            off = abs(y[i] - np.clip(slope * x[i] + intercept, 0, 1))
            ends.append((slope * 0.3 + intercept - off, slope * 0.3 + intercept + off))
        lows, highs = (sorted(end) for end in zip(*ends, strict=True))
        rank = int(np.ceil(LEVEL * 31))
        low, high = ShareLine(x, y).interval(np.array([0.3]))
        assert (low[0], high[0]) == (pytest.approx(lows[30 - rank]), pytest.approx(highs[rank - 1]))

    def test_chances_are_the_share_of_refitted_lines_above_parity(self) -> None:
        rng = np.random.default_rng(3)
        x = rng.standard_normal(30)
        line = ShareLine(x, np.clip(0.5 + 0.2 * x + 0.05 * rng.standard_normal(30), 0, 1))
        high, middle, low = line.chance(np.array([1.0, 0.0, -1.0]), 0.5)
        # If all or none of 30 refitted lines are above, (count + 1/2) / (30 + 1) is still not 0 or
        # 1.
        assert (high, low) == (pytest.approx(30.5 / 31), pytest.approx(0.5 / 31))
        assert 0.2 < middle < 0.8
        far = np.array([9.0, -9.0])
        low_ends, high_ends = line.interval(far)
        assert line.at(far).tolist() == [1, 0], "shares are clipped to 0 and 1"
        assert (high_ends[0], low_ends[1]) == (1, 0)
        assert 0 < high_ends[1] < 0.2 < 0.8 < low_ends[0] < 1

    def test_few_prompts_give_full_intervals_and_too_few_are_rejected(self) -> None:
        x = np.arange(19) / 1000
        # Each end leaves out 1 in 20, so the ends are 0 and 1 with fewer than 19 prompts.
        for n, ends in (
            (8, (0, 1)),
            (18, (0, 1)),
            (19, (pytest.approx(0.003), pytest.approx(0.003))),
        ):
            low, high = ShareLine(x[:n], x[:n]).interval(x[3:4])
            assert (low[0], high[0]) == ends
        for few, alike in ((x[:7], x[:7]), (np.zeros(10), x[:10])):
            with pytest.raises(InvalidInputError, match="calibration"):
                ShareLine(few, alike)


class TestCalibration:
    def test_the_subject_of_a_prompt_is_recognised(self) -> None:
        assert subject("A photo of the face of a nurse.") == "nurse"
        assert subject("a portrait of an Actor") == "actor"
        assert subject("A photo of administrative assistant") == "administrative assistant"
        # Counts from photographs do not apply to paintings, nor to a nurse in a different scene.
        assert subject("A painting of a nurse") != "nurse"
        assert subject("A photo of a nurse at night") != "nurse"

    def test_a_table_without_a_known_value_names_the_values(self) -> None:
        judged = pd.DataFrame({"prompt": ["a nurse"] * 5, "value": ["neither"] * 5})
        with pytest.raises(InvalidInputError, match=r"'value'\], but no value such as 'male';"):
            read_counts(judged, GENDER)

    def test_published_counts_of_a_subject_are_read_by_name(self) -> None:
        table = read_shares(PUBLISHED, GENDER)
        assert len(table) == 153
        assert table.loc["accountant"].tolist() == pytest.approx([166 / 250, 84 / 250])
        with pytest.raises(InvalidInputError, match="calibration"):
            read_shares(PUBLISHED, load_prompts("race"))
        several: Any = ["sd15", "sd3"]
        with pytest.raises(InvalidInputError, match="a file or a pandas"):
            read_shares(several, GENDER)

    def test_every_file_format_is_read_and_invalid_files_are_rejected(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        women = "prompt,value\n" + "nurse,female\n" * 3
        men = f"{women}nurse,Man\nnurse,cannot tell\n"
        for content, male in (
            (women, 0),
            (men, 0.25),
            ("prompt,men,women\nnurse,1,3\npilot,0,0\n", 0.25),
        ):
            path.write_text(content)
            assert read_shares(path, GENDER).to_dict("index") == {
                "nurse": {"male": male, "female": 1 - male}
            }
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
                read_shares(path, GENDER)


@pytest.mark.parametrize(
    ("low", "chance", "is_sure"),
    [
        pytest.param(0.6, 0.99, True, id="beyond its interval"),
        pytest.param(0.0, 0.99, False, id="likely, and any share is within the interval"),
        pytest.param(0.6, 0.80, False, id="not likely enough"),
    ],
)
def test_a_prompt_leans_if_its_interval_excludes_even_shares(
    low: float, chance: float, is_sure: bool
) -> None:
    shares = np.array([[[0.7], [0.3]], [[low], [0.0]], [[1.0], [1.0]]])  # (3, values, prompts)
    prediction = Prediction(
        values=["male", "female"],
        shares=shares,
        chance=np.array([[chance], [1 - chance]]),
        covered=np.array([True]),
        lines=[],
        judged=[],
        n_judged=0,
        model="",
        calibration=None,
        fingerprint=None,
        source="",
        n_images={},
    )
    assert prediction.is_sure(0, 0) is is_sure


class TestCalibrationsByName:
    def test_counts_are_pooled_over_seeds_by_model_and_guidance_scale(self) -> None:
        # From the source's rows for the writer with SD 3 and guidance 7.5: 96 of 98, 94 of 96 and
        # 96 of 97 are women.
        counts = read_counts(find_calibration("sd3"), GENDER)
        assert counts.loc["writer"].to_dict() == {"male": 5, "female": 286}
        assert counts.shape == (33, 2)
        # For the doctor with FLUX.2, guidance 4: 8, 10 and 10 of 100; guidance 1: 31 of 98, 42 of
        # 92, 35 of 97.
        assert read_counts(find_calibration("flux2"), GENDER).loc["doctor"].tolist() == [272, 28]
        at_one = read_counts(find_calibration("flux2@1"), GENDER)
        assert at_one.loc["doctor"].tolist() == [179, 108]

    def test_each_table_states_its_source_and_licence(self) -> None:
        assert len({calibration.name for calibration in CALIBRATIONS}) == len(CALIBRATIONS)
        for calibration in CALIBRATIONS:
            head = (FOLDER / calibration.file).read_text().partition("\nprompt")[0]
            for fact in ("# source:", "# prompt:", "# judge:"):
                assert fact in head, (calibration.name, fact)
        for name in ("fair-diffusion.csv", "stay-fair.csv", "sd35.csv"):
            head = (FOLDER / name).read_text()
            assert "# commit:" in head
            assert "# licence:" in head

    def test_a_pipeline_without_counts_gets_the_counts_of_every_base_model(
        self,
    ) -> None:
        own = known_calibrations("stabilityai/stable-diffusion-3-medium-diffusers")
        assert [calibration.name for calibration in own] == ["sd3"]
        assert known_calibrations("miniature") == [MINIATURE]
        known = known_calibrations("acme/painter-xl")
        assert [calibration.name for calibration in known] == [
            "fair-diffusion",
            "sd3",
            "sd35",
            "flux2",
        ]
        own = known_calibrations("stabilityai/stable-diffusion-3.5-large-turbo")
        assert [calibration.name for calibration in own] == ["sd35"]

    @pytest.mark.parametrize("name", ["sdxl", "sd3@9", "fair-diffusion@3", "no-such.csv"])
    def test_an_unknown_name_lists_the_known_names(self, name: str) -> None:
        with pytest.raises(InvalidInputError, match="expected one of") as problem:
            find_calibration(name)
        if "@" not in name:
            for calibration in CALIBRATIONS:
                assert calibration.name in str(problem.value)


AGREED = ["A photo of a nurse.", "A photo of a receptionist", "A photo of an engineer."]
OPPOSED = ["A photo of a writer.", "A photo of a doctor.", "A photo of an author."]


@pytest.fixture(scope="module")
def unknown_model() -> Result:
    """Return an audit of a pipeline without counts."""
    pipe = Loaded(vldebias.load_host(pipeline="miniature").host, "acme/painter-xl")
    prompts = [*OPPOSED, *AGREED, "A CEO in an office", STATED]
    return vldebias.audit(prompts, "gender", pipe=pipe)


class TestUnknownModel:
    def test_the_advice_starts_with_the_missing_counts(self, unknown_model: Any) -> None:
        advice = advice_of(unknown_model)
        assert advice[0].startswith("There are no counts for images from this model (acme/p")
        assert "the audit cannot tell which way they lean" in advice[0]
        assert advice[1] == "Without a prediction: 1 states female."
        models = (
            "Stable Diffusion 1.5",
            "Stable Diffusion 3 medium",
            "Stable Diffusion 3.5 Large Turbo",
            "FLUX.2 [klein] base 9B",
        )
        assert all(model in advice[2] for model in models)
        assert advice[2].startswith("For comparison")

    def test_counts_from_other_models_never_make_a_prompt_lean(self, unknown_model: Any) -> None:
        prompts = unknown_model.provenance[0].settings["prompts"]
        assert not [advice for advice in prompts.values() if advice.startswith("leans")]
        shares: dict[str, list[tuple[float, float]]] = {}
        for row in unknown_model.rows:
            if row.metric == "predicted_share":
                shares.setdefault(row.subset.rpartition(": ")[0], []).append(row.interval)
        for prompt, advice in prompts.items():
            intervals = shares.get(prompt, [])
            male = [low > 0.5 for low, _ in intervals]
            female = [high < 0.5 for _, high in intervals]
            if "others lean" in advice:
                assert all(male if "lean male" in advice else female), prompt
                assert intervals
            if "others disagree" in advice:
                assert any(male)
                assert any(female)
            if "not counted" in advice:
                assert not intervals
        assert list(prompts)[: len(AGREED)] == sorted(AGREED, key=list(prompts).index), (
            "what all other models agree on comes first"
        )
        assert {text for text in prompts if "disagree" in prompts[text]} == set(OPPOSED)
        assert prompts["A CEO in an office"].startswith("cannot tell (not counted)")

    def test_shares_match_the_counts_and_span_the_displayed_range(self, unknown_model: Any) -> None:
        writer: dict[str, tuple[float, int, int]] = {}
        for name in ("fair-diffusion", "sd3", "flux2"):
            counts = read_counts(find_calibration(name), GENDER).loc["writer"]
            writer[name] = (counts.female / counts.sum(), int(counts.male), int(counts.sum()))
            row = unknown_model.row(
                "audit", "predicted_share", name, subset="A photo of a writer.: male"
            )
            assert row.value == pytest.approx(1 - writer[name][0])
            assert row.interval == pytest.approx(exact_interval(*writer[name][1:]))
        (shown,) = [
            row
            for row in audited_prompts(unknown_model, readable(unknown_model))
            if "writer" in row.prompt
        ]
        shares = [share for share, _, _ in writer.values()]
        assert shown.share == f"{min(shares):.0%} to {max(shares):.0%} female"
        assert shown.models == ", ".join(f"{n} {share:.0%}" for n, (share, _, _) in writer.items())
        line = rf"{re.escape(shown.share)} +A photo of a writer\."
        assert re.search(line, in_terminal(unknown_model))

    def test_a_calibration_given_by_name_is_used(self) -> None:
        pipe = Loaded(vldebias.load_host(pipeline="miniature").host, "acme/painter-xl")
        for name, verdict in (("sd3", "leans female in sd3:"), ("flux2", "leans male in flux2:")):
            named = vldebias.audit(OPPOSED, "gender", pipe=pipe, calibration=name)
            advice = named.provenance[0].settings["prompts"]
            assert all(text.startswith(verdict) for text in advice.values())
            first = advice_of(named)[0]
            assert first.startswith("These counts are for ")
            assert "not for acme/painter-xl" in first

    def test_few_judged_prompts_give_counts_but_no_regression_line(self) -> None:
        judged = pd.DataFrame({"prompt": OPPOSED, "male": [8, 4, 0], "female": [0, 4, 8]})
        pipe = vldebias.load_host(pipeline="miniature")
        prompts = [*OPPOSED, "A photo of a baker."]
        result = vldebias.audit(prompts, "gender", pipe=pipe, calibration=judged)
        shares = {row.subset: row.value for row in result.rows if row.metric == "counted_share"}
        assert shares == {
            f"{p}: male": share for p, share in zip(OPPOSED, (1, 0.5, 0), strict=True)
        }
        advice = result.provenance[0].settings["prompts"]
        assert advice["A photo of a baker."].startswith("cannot tell")

    def test_a_measured_audit_shows_the_counts_next_to_the_prediction(self) -> None:
        pipe = vldebias.load_host(pipeline="miniature")
        prompts = OPPOSED[:2]
        judged = pd.DataFrame({"prompt": prompts, "male": [6, 4], "female": [2, 4]})
        result = vldebias.audit(prompts, "gender", pipe=pipe, calibration=judged)
        (provenance,) = result.provenance
        assert provenance.title == "What the prompts showed: 8 images each"
        assert title_of(result) == f"{provenance.title} (the miniature pipeline)"
        assert "2 shares were counted in 16 given labels." in provenance.settings["advice"]
        before = vldebias.audit(prompts, "gender", pipe=pipe)
        expected = {row.subset: row.value for row in before.rows if row.subset}
        predicted = {
            row.subset: row.value for row in result.rows if row.metric == "predicted_share"
        }
        assert predicted == expected, "the packaged counts predict as without a measurement"
        first, second = audited_prompts(result, readable(result))
        assert (first.share.partition(" [")[0], first.n_images) == ("75% male", 8)
        # 15 of 20 images are the fewest that a two-sided test at 5% calls clear: P = 0.041.
        assert first.remedy == "generate 12 more"
        # With 4 of 8 images, the share may be anything from 22 to 78%.
        assert (second.verdict, second.remedy) == ("too few images (8)", "generate 64 more")
        text = str(result)
        assert "counted share [95%]" in text
        assert "  expected   " in text


@pytest.mark.parametrize(
    ("hits", "n", "leans"),
    [(4, 4, False), (5, 5, False), (6, 6, True), (8, 10, False), (9, 10, True), (61, 100, True)],
)
def test_counted_shares_lean_if_even_shares_would_rarely_give_them(
    texts: Texts, hits: int, n: int, leans: bool
) -> None:
    """This uses the two-sided exact binomial test at the 5% level, with tails from tables."""
    judged = pd.DataFrame({"prompt": JOBS[:1], "male": [n - hits], "female": [hits]})
    result = vldebias.audit(JOBS[:1], "gender", texts=texts, calibration=judged)
    advice = result.provenance[0].settings["prompts"][JOBS[0]]
    assert advice.startswith("leans female: ") == leans
    assert "R2" not in result.provenance[0].description, "no share comes from the regression line"


@pytest.mark.parametrize(
    ("hits", "n", "is_above"),
    [(515, 1030, False), (549, 1030, True), (500_900, 10**6, False), (501_000, 10**6, True)],
)
def test_any_number_of_judged_images_is_tested(hits: int, n: int, is_above: bool) -> None:
    """The exact test is close to the normal one here: hits > n / 2 + 0.98 sqrt(n)."""
    assert is_clearly_above(0.5, hits, n) == is_above


def advice_of(result: Result) -> list[str]:
    return result.provenance[0].settings["advice"]


@pytest.fixture(scope="module")
def of_a_nurse() -> Result:
    """Generate an English prompt about one person, from the packaged counts."""
    return vldebias.audit(["a photo of a nurse"], "gender", model="miniature")


def test_prompts_in_other_languages_are_reported(of_a_nurse: Result) -> None:
    """The packaged counts are for English prompts, so other prompts need a warning."""
    assert not any("English" in sentence for sentence in advice_of(of_a_nurse))
    prompts = ["a photo of a nurse", "Ein Arzt im Krankenhaus", "一位医生"]
    mixed = vldebias.audit(prompts, "gender", model="miniature")
    expected = "2 of 3 prompts are not in English; these counts only predict English prompts."
    assert expected in advice_of(mixed)


def test_only_the_first_of_several_people_is_predicted_and_this_is_reported(
    of_a_nurse: Result,
) -> None:
    assert not any("several people" in sentence for sentence in advice_of(of_a_nurse))
    prompts = ["a photo of a nurse", "a photo of a doctor and a nurse", "a woman and her nurse"]
    judged = pd.DataFrame({"prompt": prompts[:2], "male": [1, 4], "female": [7, 4]})
    several = vldebias.audit(prompts, "gender", model="miniature", calibration=judged)
    expected = (
        "1 of 2 predicted prompts show several people, such as “a photo of a doctor and a nurse”;"
        " the share is for the first person."
    )
    assert expected in advice_of(several)


def test_a_model_may_be_given_by_name(of_a_nurse: Result) -> None:
    loaded = vldebias.audit(
        ["a photo of a nurse"], "gender", model=vldebias.load_host(model="miniature")
    )
    assert [row.value for row in of_a_nurse.rows] == [row.value for row in loaded.rows]
    with pytest.raises(InvalidInputError, match="no-such"):
        vldebias.audit(["a photo of a nurse"], "gender", pipe="no-such/pipeline")


class TestAudit:
    def test_shares_of_unseen_prompts_are_predicted(self, result: Any) -> None:
        rows = {row.subset: row for row in result.rows if row.metric == "predicted_share"}
        # The last job leans further than any judged one, so there is no prediction.
        assert f"{JOBS[39]}: male" not in rows
        assert f"{CASTLE}: male" not in rows
        advice = result.provenance[0].settings["prompts"]
        covered = [job for job in JOBS[1::2] if not advice[job].startswith("cannot tell")]
        assert len(covered) == 18
        for job in covered:
            row = rows[f"{job}: male"]
            assert row.value == pytest.approx(0.5 + 0.4 * lean_of(job), abs=0.15)
            assert row.interval[0] <= row.value <= row.interval[1]
        assert result.row("audit", "lean_r2", "none").value > 0.8

    def test_urgent_prompts_come_first_and_unpredicted_prompts_last(self, result: Any) -> None:
        advice = result.provenance[0].settings["prompts"]
        rows = {row.subset: row.value for row in result.rows}
        sure = [
            abs(rows[f"{text}: male"] - 0.5)
            for text, advised in advice.items()
            if advised.startswith("leans")
        ]
        assert (np.diff(sure) < 1e-9).all()
        for row in result.rows:
            text, _, value = row.subset.rpartition(": ")
            if advice.get(text, "").startswith(f"leans {value}:"):
                assert row.interval[0] > 0.5, "a prompt leans beyond its interval"
        starts = {JOBS[1]: "leans female", JOBS[37]: "leans male", JOBS[21]: "no clear lean"}
        starts |= {
            CASTLE: "cannot tell (not judged)",
            STATED: "states female",
            CHAIR: "no person is asked for",
        }
        assert all(advice[text].startswith(start) for text, start in starts.items())
        assert set(list(advice)[-2:]) == {STATED, CHAIR}
        order = {"leans": 0, "cannot": 1, "no": 2}
        kinds = [order[line.split()[0]] for line in list(advice.values())[:-2]]
        assert kinds == sorted(kinds), "prompts that lean, then those not covered, then the others"
        description = result.provenance[0].description
        leaning = sum(line.startswith("leans") for line in advice.values())
        assert description.startswith(f"{len(advice)} prompts: ")
        counts = re.findall(r"(\d+) leans? ", description)
        assert sum(map(int, counts)) == leaning
        assert "3 are unlike the judged prompts" in description
        assert "1 asks for no person, 1 states female." in description
        assert f"a line fitted to {len(JOBS[::2])} prompts" in description
        assert "(given labels)" in description
        assert description.count("Look first at") == 1
        first, verdict = next(iter(advice.items()))
        advice_to_look = (
            f"Look first at “{first}”: {verdict.partition(':')[0]}, {0.5 + sure[0]:.0%} "
        )
        assert advice_to_look in description
        assert not any(STATED in name or CHAIR in name for name in rows), (
            "no share if no image is needed"
        )

    def test_few_judged_prompts_still_give_a_share(
        self, texts: Texts, judged: pd.DataFrame
    ) -> None:
        result = vldebias.audit(JOBS[1:2], "gender", texts=texts, calibration=judged[:10])
        (row,) = [row for row in result.rows if row.metric == "predicted_share"]
        assert row.interval == (0, 1)
        (protocol,) = result.provenance
        assert protocol.seeds == [0]
        assert protocol.description.startswith("1 prompt: 1 has no clear lean.")
        assert "Look first at" not in protocol.description

    def test_the_prompt_column_is_reported(
        self, texts: Texts, judged: pd.DataFrame, tmp_path: Path
    ) -> None:
        path = tmp_path / "listed.csv"
        path.write_text(f"id,text\n1,{JOBS[1]}\n2,{JOBS[3]}\n")
        (protocol,) = vldebias.audit(path, "gender", texts=texts, calibration=judged).provenance
        assert protocol.description.endswith("Read: 2 prompts from column 'text'.")
        (protocol,) = vldebias.audit(
            [JOBS[1], JOBS[3]], "gender", texts=texts, calibration=judged
        ).provenance
        assert "Read:" not in protocol.description

    def test_embedded_models_are_predicted_from_images_by_the_embedded_pipeline(self) -> None:
        (provenance,) = vldebias.audit(
            ["A photo of a nurse."], "gender", model="miniature"
        ).provenance
        assert provenance.n["calibration prompts"] == 100
        assert MINIATURE.source in provenance.description
        assert "These counts are for" not in provenance.description

    def test_a_poor_fit_is_reported(self, texts: Texts, judged: pd.DataFrame, result: Any) -> None:
        order = np.random.default_rng(0).permutation(len(judged))
        shuffled = judged.assign(
            male=judged.male.to_numpy()[order], female=judged.female.to_numpy()[order]
        )
        # 60% of each share comes from a different prompt, so text predicts little. With 100%, it
        # would predict nothing.
        shares = {kind: 0.4 * judged[kind] + 0.6 * shuffled[kind] for kind in ("male", "female")}
        faint = vldebias.audit(AUDITED, "gender", texts=texts, calibration=judged.assign(**shares))
        assert 0.1 < faint.row("audit", "lean_r2", "none").value < 0.25
        assert "hardly better" not in faint.provenance[0].description
        blind = vldebias.audit(AUDITED, "gender", texts=texts, calibration=shuffled)
        assert blind.row("audit", "lean_r2", "none").value <= 0
        first = blind.provenance[0].settings["advice"][0]
        assert first.startswith("What these prompts will show cannot be predicted from text")
        assert str(blind).startswith("What these prompts will show cannot be predicted")
        assert not [row for row in blind.rows if row.metric == "predicted_share"]
        advice = blind.provenance[0].settings["prompts"]
        assert advice[JOBS[1]].startswith("cannot tell from text")
        assert advice[STATED].startswith("states female")

    def test_printing_shows_each_prompt_with_its_share_and_advice(self, result: Any) -> None:
        lines = str(result).splitlines()
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 80
        row = result.row("audit", "predicted_share", "none", subset=f"{JOBS[1]}: male")
        low, high = row.interval
        # A long prompt is truncated to its first words.
        start = f"  {JOBS[1][:20]}"
        (line,) = [line for line in lines if start in line and line.startswith("  leans")]
        # Most of its images will show women, so the printed share is women's, 1 minus men's.
        assert line.startswith("  leans female ")
        assert f"  {1 - row.value:.0%} female [{1 - high:.0%}, {1 - low:.0%}]  " in line

    def test_several_values_sum_to_one(self) -> None:
        values = ("pale", "tan", "dark")
        words_of_value = {value: (value,) for value in values}
        group = tuple(f"a {value} one" for value in values)
        prompts = PromptSet(
            name="tones", variants=(group,), attributes=words_of_value, spurious=values
        )
        rng = np.random.default_rng(0)
        counts = []
        rows = {
            text: torch.from_numpy(np.eye(8)[i % 3]) for i, text in enumerate((*values, *group))
        }
        for i in range(30):
            share = rng.dirichlet((1, 1, 1))
            concept, text = (
                (f"thing{i} of stone", "A photo of a {}.")
                if i % 2
                else (f"thing{i} with four words", "{}")
            )
            row = np.concatenate([share, 0.1 * rng.standard_normal(5)])
            # A concept of four words or more is treated as a prompt.
            rows[text.format(concept)] = torch.from_numpy(row)
            counts.append({"prompt": concept, **dict(zip(values, 100 * share, strict=True))})
        audited = ["thing0 with four words", "A photo of a thing1 of stone."]
        audited_prompts = vldebias.audit(
            audited, prompts, texts=rows, calibration=pd.DataFrame(counts)
        )
        shares = [row.value for row in audited_prompts.rows if row.metric == "counted_share"]
        assert (len(shares), sum(shares)) == (6, pytest.approx(2))
        assert audited_prompts.provenance[0].n["calibration prompts"] == 30
        assert audited_prompts.row("audit", "lean_r2", "none", subset="pale").value > 0.9

    def test_invalid_requests_are_rejected(
        self, texts: Texts, judged: pd.DataFrame, tmp_path: Path
    ) -> None:
        (tmp_path / "p.txt").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
        (tmp_path / "q.txt").touch()
        men = {text: row for text, row in texts.items() if "wom" not in text and "fem" not in text}
        for prompts, how, refusal in (
            ([JOBS[0]], {}, "model=, pipe= and texts="),
            (["A photo of a stranger."], {"texts": texts}, "stranger"),
            ([], {"texts": texts}, "one or more"),
            ([JOBS[0]], {"texts": men}, "no embedded prompt states only female"),
            *(
                (tmp_path / f"{name}.txt", {"texts": texts}, rf"{name}\.txt")
                for name in ("no such", "p", "q")
            ),
        ):
            with pytest.raises(InvalidInputError, match=refusal):
                vldebias.audit(prompts, "gender", calibration=judged, **how)


def test_values_that_are_not_counted_are_named() -> None:
    values = ["woman", "man", "unclear", "alien", None]
    table = pd.DataFrame({"prompt": ["a nurse"] * 5, "value": values})
    with pytest.warns(SuspectInputWarning, match="1 row with values such as 'alien' .* expected"):
        counts = read_counts(table, GENDER)
    assert counts.to_numpy().tolist() == [[1, 1]]


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
