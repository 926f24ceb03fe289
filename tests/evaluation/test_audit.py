"""`vldebias.audit`: predictions from texts alone, their intervals, calibrations, what is refused, the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import vldebias
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.evaluation.auditing import (
    FOREIGN,
    LEVEL,
    PUBLISHED,
    ShareLine,
    ShareTable,
    build_task,
    read_prompts,
    subject,
)
from vldebias.evaluation.run import verify
from vldebias.prompts import PromptSet, load_prompts

pytestmark = pytest.mark.usefixtures("no_charts")

Texts = Mapping[str, torch.Tensor]
JOBS = [f"job{i}" for i in range(40)]
ABOUT = {"model": "a pipeline", "ids": "own/pipeline"}


def lean_of(job: str) -> float:
    return (int(job[3:]) - 20) / 20


@pytest.fixture(scope="module")
def texts() -> Texts:
    """Texts of 40 jobs on one line between the values of gender, near to each other but for one stranger."""
    prompts, rows = load_prompts("gender"), {}
    rng = np.random.default_rng(0)
    for text in (*prompts.texts, *(f"A photo of a {job}." for job in JOBS), "A photo of a castle.", "a female job3"):
        row = 0.05 * rng.standard_normal(16) + np.eye(16)[2]
        named = prompts.values_in(text)
        row[0] = {("male",): 1.0, ("female",): -1.0}.get(named, 0.0)
        if "job" in text and not named:
            row[0] = 0.4 * lean_of(subject(text))
        rows[text] = torch.from_numpy(row)
    rows["A photo of a castle."] = torch.from_numpy(np.eye(16)[7])
    return rows


@pytest.fixture(scope="module")
def judged() -> ShareTable:
    """Shares that follow the lean but for noise, of every second job."""
    rng = np.random.default_rng(1)
    share = {job: np.clip(0.5 + 0.4 * lean_of(job) + 0.08 * rng.standard_normal(), 0, 1) for job in JOBS[::2]}
    return ShareTable.of_counts({job: (100 * s, 100 * (1 - s)) for job, s in share.items()}, ("male", "female"), ABOUT)


def asked_of(texts: Texts) -> list[str]:
    return [f"A photo of a {job}." for job in JOBS[1::2]] + ["A photo of a castle.", "a female job3"]


@pytest.fixture(scope="module")
def result(texts: Texts, judged: ShareTable) -> vldebias.evaluation.Result:
    return vldebias.audit(asked_of(texts), "gender", texts=texts, calibration=judged)


class TestShareLine:
    def test_left_out_is_what_refitting_without_it_gives(self) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal(12), rng.uniform(size=12)
        line = ShareLine(x, y)
        for i in range(12):
            kept = np.arange(12) != i
            slope, intercept = np.polyfit(x[kept], y[kept], 1)
            assert line.left_out[i] == pytest.approx(np.clip(slope * x[i] + intercept, 0, 1))

    def test_interval_is_jackknife_plus_of_the_paper(self) -> None:
        rng = np.random.default_rng(1)
        x, y = rng.standard_normal(30), rng.uniform(0.3, 0.7, size=30)
        at, line = np.array([0.3]), ShareLine(x, y)
        ends = []
        for i in range(30):  # eq. 1.4, refitting every line
            kept = np.arange(30) != i
            slope, intercept = np.polyfit(x[kept], y[kept], 1)
            off = abs(y[i] - np.clip(slope * x[i] + intercept, 0, 1))
            ends.append((slope * 0.3 + intercept - off, slope * 0.3 + intercept + off))
        lows, highs = (sorted(end) for end in zip(*ends, strict=True))
        rank = int(np.ceil(LEVEL * 31))
        low, high = line.interval(at)
        assert (low[0], high[0]) == (pytest.approx(lows[30 - rank]), pytest.approx(highs[rank - 1]))

    def test_intervals_cover(self) -> None:
        rng, inside = np.random.default_rng(2), []
        for _ in range(300):
            x = rng.standard_normal(31)
            y = np.clip(0.5 + 0.15 * x + 0.1 * rng.standard_normal(31), 0, 1)
            low, high = ShareLine(x[:30], y[:30]).interval(x[30:])
            inside.append(low[0] <= y[30] <= high[0])
        assert np.mean(inside) == pytest.approx(LEVEL, abs=0.04)

    def test_wider_residuals_hold_narrower_ones_and_pull_chances_to_the_middle(self) -> None:
        rng = np.random.default_rng(3)
        x = rng.standard_normal(30)
        line, at = ShareLine(x, np.clip(0.5 + 0.2 * x + 0.05 * rng.standard_normal(30), 0, 1)), np.array([1.0, -1.0])
        (low, high), (wide_low, wide_high) = line.interval(at), line.interval(at, FOREIGN)
        assert (wide_low < low).all()
        assert (wide_high > high).all()
        assert line.chance(at, 0.5)[0] > 0.9 > 0.1 > line.chance(at, 0.5)[1]

    def test_few_prompts_say_nothing_and_fewer_are_refused(self) -> None:
        x = np.arange(10.0)
        low, high = ShareLine(x, x / 10).interval(np.array([3.0]))
        assert (low[0], high[0]) == (0, 1)
        with pytest.raises(InvalidInputError, match="8 prompts or more"):
            ShareLine(x[:7], x[:7])
        with pytest.raises(InvalidInputError, match="lean alike"):
            ShareLine(np.zeros(10), x / 10)


class TestShareTable:
    @pytest.mark.parametrize(
        ("text", "about"),
        [
            ("A photo of the face of a nurse.", "nurse"),
            ("a portrait of an Actor", "actor"),
            ("A photo of administrative assistant", "administrative assistant"),
            ("the nurse", "nurse"),
        ],
    )
    def test_subject(self, text: str, about: str) -> None:
        assert subject(text) == about

    def test_published_counts(self) -> None:
        table = ShareTable.read(PUBLISHED, load_prompts("gender"))
        assert len(table.concepts) == 153
        assert table.shares[table.concepts.index("accountant")] == pytest.approx([166 / 250, 84 / 250])
        assert {"source", "licence", "model", "prompt"} <= set(table.about)
        with pytest.raises(InvalidInputError, match="calibrate on some images of your own"):
            build_task(["nurse"], "race").needed()

    @pytest.mark.parametrize(
        "content",
        [
            "prompt,value\n" + "nurse,female\n" * 3 + "nurse,Man\nnurse,cannot tell\n",
            "prompt,men,women\nnurse,1,3\n",
            "# source: somewhere\nconcept,male,female\nnurse,0.25,0.75\n",
        ],
    )
    def test_every_form_of_a_file_reads_alike(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "t.csv").write_text(content)
        found = ShareTable.read(tmp_path / "t.csv", load_prompts("gender"))
        assert found.concepts == ("nurse",)
        assert found.shares[0] == pytest.approx([0.25, 0.75])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("a,b\n1,2\n", "expected `prompt`, and `value`"),
            ("prompt,value\nnurse,cat\n", "not all 0"),
            ("prompt,male,female\nnurse,x,1\n", "expected numbers"),
            ("prompt,male,female\nnurse,1,1\nNurse,1,1\n", "stands there twice"),
            ('# source: x\nprompt,male,female,note\nnurse,1,1,"a\npilot,1,1,b\n', "line 3: got a cell whose quotes"),
            ("prompt,male,male\nnurse,1,1\n", "a column stands twice"),
            ("prompt,male,female\nnur\x08se,1,1\n", "control character"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "t.csv").write_text(content)
        with pytest.raises(InvalidInputError, match=message):
            ShareTable.read(tmp_path / "t.csv", load_prompts("gender"))


class TestAudit:
    def test_unseen_prompts_are_predicted(self, result: Any) -> None:
        rows = {row.subset: row for row in result.rows if row.metric == "predicted_share"}
        for job in JOBS[1::2]:
            row = rows[f"A photo of a {job}.: male"]
            assert row.value == pytest.approx(0.5 + 0.4 * lean_of(job), abs=0.15)
            assert row.interval[0] <= row.value <= row.interval[1]
        assert result.row("audit", "lean_r2", "none").value > 0.8

    def test_stated_and_strange_prompts_are_named(self, result: Any) -> None:
        settings = result.provenance[0].settings
        assert settings["stated"] == ["a female job3"]
        assert "A photo of a castle." in settings["not covered"]
        assert not any("female job3" in row.subset for row in result.rows)

    def test_another_pipeline_has_wider_intervals_and_is_told(self, texts: Texts, judged: ShareTable) -> None:
        task = build_task(["A photo of a job21."], "gender", judged)
        host = vldebias.evaluation.Texts(texts).host
        own, other = (task.measure(host, tuple(texts), name)[0] for name in ("hub/own/pipeline-1", "other"))
        ends = [row.interval for part in (own, other) for row in part.rows if row.metric == "predicted_share"]
        assert ends[1][1] - ends[1][0] > 1.1 * (ends[0][1] - ends[0][0])
        assert "was not made for other" in other.provenance.description
        assert "was not made for" not in own.provenance.description

    def test_several_values_sum_to_one(self) -> None:
        prompts = PromptSet(
            name="tones",
            groups=(("a pale one", "a tan one", "a dark one"),),
            attributes={"pale": ("pale",), "tan": ("tan",), "dark": ("dark",)},
            spurious=("pale", "tan", "dark"),
        )
        rng = np.random.default_rng(0)
        rows = {
            text: torch.from_numpy(np.eye(8)[i % 3]) for i, text in enumerate((*prompts.spurious, *prompts.groups[0]))
        }
        counts = {}
        for i in range(30):
            share = rng.dirichlet((1, 1, 1))
            rows[f"thing{i}"] = torch.from_numpy(np.concatenate([share, 0.1 * rng.standard_normal(5)]))
            counts[f"thing{i}"] = 100 * share
        table = ShareTable.of_counts(counts, ("pale", "tan", "dark"))
        found = vldebias.audit(["thing0", "thing1"], prompts, texts=rows, calibration=table)
        shares = [row.value for row in found.rows if row.metric == "predicted_share"]
        assert len(shares) == 6
        assert sum(shares) == pytest.approx(2)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "expected one of model=, pipe= and texts="),
            ({"texts": "given", "prompts": ["A photo of a stranger."]}, "not in the file"),
        ],
    )
    def test_what_cannot_be_asked_is_refused(
        self, texts: Texts, judged: ShareTable, options: dict[str, Any], message: str
    ) -> None:
        given = {"calibration": judged, **options} | ({"texts": texts} if options else {})
        with pytest.raises(InvalidInputError, match=message):
            vldebias.audit(given.pop("prompts", ["A photo of a job1."]), "gender", **given)


@pytest.fixture(scope="module")
def files(texts: Texts, judged: ShareTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "prompts.txt").write_text("# mine\n" + "\n".join([*asked_of(texts), ""]))
    np.savez(folder / "texts.npz", text=np.stack([row.numpy() for row in texts.values()]), prompts=list(texts))
    rows = zip(judged.concepts, judged.shares, strict=True)
    lines = [f"A photo of a {job}.,{round(100 * s[0])},{round(100 * s[1])}" for job, s in rows]
    (folder / "judged.csv").write_text("prompt,male,female\n" + "\n".join(lines) + "\n")
    return folder


class TestCommand:
    def test_page_result_and_list(self, files: Path, tmp_path: Path) -> None:
        asked = ["audit", str(files / "prompts.txt"), "--prompts", "gender", "--texts", str(files / "texts.npz")]
        asked += ["--calibrate", str(files / "judged.csv"), "--out", str(tmp_path)]
        done = CliRunner().invoke(app, [*asked, "--json"])
        assert done.exit_code == 0, done.output
        assert {"figures", "protocols", "files"} <= set(json.loads(done.stdout))
        page = (tmp_path / "index.html").read_text()
        assert "Look first at" in page
        assert "Bias is lessened" not in page
        listed = pd.read_csv(tmp_path / "prompts.csv")
        assert set(listed.prompt) == set(read_prompts(files / "prompts.txt"))
        assert listed.advice.iloc[-1].startswith("states female")
        assert listed.male.iloc[0] > 0.7 or listed.male.iloc[0] < 0.3
        again = CliRunner().invoke(app, asked)
        assert "taken over from a run before" in again.output
        assert not any(verify(tmp_path).values())

    def test_texts_to_embed_are_listed(self, files: Path) -> None:
        done = CliRunner().invoke(app, ["audit", str(files / "prompts.txt"), "--prompts", "gender", "--list-texts"])
        lines = done.stdout.splitlines()
        assert {"A photo of a job1.", "A photo of an accountant.", "A photo of a male person."} <= set(lines)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "expected one of --model, --pipeline and --texts"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, files: Path, options: list[str], message: str) -> None:
        done = CliRunner().invoke(app, ["audit", str(files / "prompts.txt"), "--prompts", "gender", *options])
        assert message in str(done.exception)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read as text in UTF-8: .*No such file.* expected a file with one prompt a line"),
        (b"", "expected prompts, one a line, got none"),
        (b"\x89PNG\r\n\x1a\n\x00", "cannot be read as text in UTF-8"),
    ],
)
def test_files_that_are_no_prompts_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        read_prompts(tmp_path / "p.txt")
