"""The paper's tables in one command, on stand-ins: tiny images in the layouts and file names of the real data sets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from data_parts import fairface

from vldebias.errors import InvalidInputError
from vldebias.evaluation.paper import HEAD, Run, compared, estimate, paper, plan
from vldebias.evaluation.report import published
from vldebias.evaluation.result import Measurement, Result
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.task import load_suite
from vldebias.loading import Loaded
from vldebias.options import Options
from vldebias.progress import SILENT

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


@pytest.fixture
def many(stand_ins: Path) -> Path:
    """The stand-ins with a FairFace of more than the 1,000 images that its protocol ranks."""
    races = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")
    ages = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
    rows = [(age, gender, race) for race in races for gender in ("Male", "Female") for age in ages]
    fairface(stand_ins / "fairface", "val", rows * 9, stand_ins / "fairface/fairface-img-margin025-trainval")
    return stand_ins


def test_the_plan_says_what_is_there_and_what_is_missing(stand_ins: Path, tmp_path: Path) -> None:
    runs = {run.model: run for run in plan(stand_ins)}
    assert list(runs) == [
        "RN50:openai",
        "ViT-L-14:openai",
        "ViT-B-32:openai",
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
    ]
    assert runs["ViT-L-14:openai"].parts == ["waterbirds", "celeba", "fairface"]
    assert runs["RN50:openai"].images == 24 + 24
    assert runs["ViT-B-32:openai"].images == 14
    assert not any(run.missing for run in runs.values())
    (tmp_path / "fairface/fairface_label_val.csv").unlink()
    (left,) = plan(stand_ins, ["fairface"], ["RN50"])
    assert "fairface_label_val.csv" in left.missing["fairface"]
    assert left.tasks == []
    without = plan(None, ["waterbirds", "generation"])
    assert [sorted(run.missing) for run in without] == [["waterbirds"], ["waterbirds"], []]


def test_every_published_figure_has_a_row_and_its_difference(stand_ins: Path, tmp_path: Path) -> None:
    runs = plan(stand_ins, ["waterbirds"], ["miniature"])
    frame = paper(tmp_path / "out", runs, Options(out=tmp_path, resamples=20), SILENT)
    assert frame.empty  # the paper has no figures of this model
    assert (tmp_path / "out/miniature/result.json").is_file()
    (run,) = runs
    run.model = "RN50:openai"  # the same measurements beside the figures of another model
    frame = compared([run], {run.name: Result.read(tmp_path / "out/miniature/result.json")}, tmp_path)
    assert tuple(frame) == HEAD
    expected = published("waterbirds", "RN50 openai")
    assert len(frame) == len(expected) > 20
    row = frame[(frame.metric == "worst_group") & (frame.method == "orth-cali")].iloc[0]
    assert row.published == expected["waterbirds", "worst_group", "orth-cali", ""]
    assert row.low <= row.measured <= row.high
    assert row.difference == pytest.approx(row.measured - row.published)
    assert all(text in (tmp_path / "index.html").read_text() for text in ("0.740", f"{row.measured:.3f}"))


def test_the_estimate_of_a_pipeline_is_linear_in_images_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds for each batch and two for each step, as a clock says that goes on by them."""
    now = [0.0]

    class Pipe:
        def __call__(self, prompts: list[str], *, num_inference_steps: int) -> None:
            now[0] += 5 + 2 * num_inference_steps

        def set_progress_bar_config(self, **_: bool) -> None: ...

    monkeypatch.setattr("vldebias.evaluation.paper.time.monotonic", lambda: now[0])
    (run,) = plan(None, ["generation"])
    run.sizes, (_, task, *_) = [400], run.tasks
    seconds = estimate(run, Loaded(Pipe(), "p"), Options(out=Path()))
    assert seconds == pytest.approx(400 / min(task.batch_size, 4) * (5 + 2 * task.steps))


def test_the_estimate_of_a_model_is_linear_in_images_and_its_samples_rank_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds for each call and two for each image; a split of 50 has no sample of 128."""
    now, asked = [0.0], []

    def measure(run: Run, loaded: Loaded, options: Options) -> None:
        now[0] += 3 + 2 * sum(min(options.limit, size) for size in run.sizes)
        asked.extend(task.k for task in run.tasks if isinstance(task, RetrievalTask))

    monkeypatch.setattr("vldebias.evaluation.paper.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Run, "measure", measure)
    run = Run("ViT-B-32:openai", False, tasks=[*load_suite("fairface").tasks], sizes=[50, 1000])
    assert estimate(run, Loaded(None, "m"), Options(out=Path())) == pytest.approx(3 + 2 * 1050)
    assert {max(ks) for ks in asked} == {16, 64}


def test_generated_people_stand_beside_the_published_figures(tmp_path: Path) -> None:
    (run,) = plan(None, ["generation"], pipeline="own/pipe")
    how = {"interval": (0.3, 0.5), "better": "lower", "n": {"professions": 20, "images each": 1000}}
    names = {"task": "gender", "metric": "discrepancy", "method": "cali", "subset": "unseen professions"}
    result = Result(
        rows=[Measurement(**names, value=0.4, **how)], provenance=[], name="x", versions={}, commit=None, seconds=0
    )
    t = compared([run], {run.name: result}, tmp_path).set_index(["data", "metric", "method"])
    assert (run.generates, run.model, len(t), t.table.unique().tolist()) == (True, "own/pipe", 8, ["7.6 and 7.7"])
    row = t.loc["gender", "discrepancy, unseen professions", "cali"]
    assert (row.published, row.measured, row.low, row.high) == (0.354, 0.4, 0.3, 0.5)
    assert (row.difference, row.n) == (pytest.approx(0.046), "20 professions, 1,000 images each")
    assert t.loc["pairs race", "pair_distance, unseen", "none"].published == 0.69
    assert t.measured.isna().sum() == 7


def test_a_part_that_is_not_there_is_not_run_and_a_time_is_measured_once(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match="celebs"):
        plan(None, ["celebs"])
    spent, runs = [], [*plan(None, ["celeba"]), *plan(stand_ins, ["waterbirds"], ["miniature"])]
    monkeypatch.setattr("vldebias.evaluation.paper.estimate", lambda *_: spent.append(1) or 12.34)
    for _ in range(2):
        assert paper(tmp_path, runs, Options(out=tmp_path), SILENT, stop_after_estimate=True).measured.isna().all()
    assert (len(spent), [run.seconds for run in runs]) == (1, [None, None, 12.3])
    assert not (tmp_path / "miniature").exists()


@pytest.mark.slow
def test_killed_twice_it_ends_as_a_run_that_nobody_killed(many: Path, tmp_path: Path) -> None:
    def command(out: Path) -> list[str]:
        own = ["--data-root", str(many), "--only", "fairface", "--model", "miniature"]
        return [sys.executable, "-m", "vldebias", "eval", "paper", *own, "--device", "cpu", "--out", str(out)]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    started = time.monotonic()
    subprocess.run(command(whole), check=True, capture_output=True)
    took = time.monotonic() - started
    killed.mkdir()
    shutil.copy(whole / "estimate.json", killed)  # not timed again
    for part in (0.5, 0.8):
        process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(part * took)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command(killed), check=True, capture_output=True)
    ends = [Result.read(out / "miniature/result.json").to_pandas() for out in (whole, killed)]
    pd.testing.assert_frame_equal(*ends)
    assert set(ends[0].task) >= {"fairface gender", "fairface race", "fairface age"}
