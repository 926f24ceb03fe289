"""The paper's tables in one command, on stand-ins: tiny images in the layouts and file names of the
real data sets."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from data_parts import fairface

from vldebias.measure.report import published
from vldebias.measure.result import Result
from vldebias.options import Options
from vldebias.progress import SILENT
from vldebias.study.paper import HEAD, compared, paper, plan

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


@pytest.fixture
def many(stand_ins: Path) -> Path:
    """The stand-ins with a FairFace of more than the 1,000 images that its protocol ranks."""
    races = (
        "White",
        "Black",
        "Latino_Hispanic",
        "East Asian",
        "Southeast Asian",
        "Indian",
        "Middle Eastern",
    )
    ages = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
    rows = [(age, gender, race) for race in races for gender in ("Male", "Female") for age in ages]
    fairface(
        stand_ins / "fairface",
        "val",
        rows * 9,
        stand_ins / "fairface/fairface-img-margin025-trainval",
    )
    return stand_ins


def test_the_plan_says_what_is_there_and_what_is_missing(stand_ins: Path, tmp_path: Path) -> None:
    runs = {(run.suite.name, run.model): run for run in plan(stand_ins)}
    models = [
        "RN50:openai",
        "ViT-L-14:openai",
        "RN50:openai",
        "ViT-L-14:openai",
        "ViT-B-32:openai",
        "ViT-L-14:openai",
    ]
    assert [model for _, model in runs] == [*models, "stable-diffusion-v1-5/stable-diffusion-v1-5"]
    assert sum(runs["celeba", "RN50:openai"].sizes) == 24
    assert sum(runs["fairface", "ViT-B-32:openai"].sizes) == 14
    assert not any(run.missing for run in runs.values())
    (tmp_path / "fairface/fairface_label_val.csv").unlink()
    (left,) = plan(stand_ins, ["fairface"], ["RN50"])
    assert "fairface_label_val.csv" in left.missing
    without = plan(None, ["waterbirds", "generation"])
    assert [bool(run.missing) for run in without] == [True, True, False]


def test_every_published_figure_has_a_row_and_its_difference(
    stand_ins: Path, tmp_path: Path
) -> None:
    runs = plan(stand_ins, ["waterbirds"], ["miniature"])
    frame = paper(tmp_path / "out", runs, Options(out=tmp_path, resamples=20), SILENT)
    assert frame.empty  # the paper has no figures of this model
    assert (tmp_path / "out/waterbirds-miniature/result.json").is_file()
    (run,) = runs
    run.model = "RN50:openai"  # the same measurements beside the figures of another model
    measured = Result.read(tmp_path / "out/waterbirds-miniature/result.json")
    frame = compared([run], {run.name: measured}, tmp_path)
    assert tuple(frame) == HEAD
    expected = published("waterbirds", "RN50 openai")
    assert len(frame) == len(expected) > 20
    row = frame[(frame.metric == "worst_group") & (frame.method == "orth-cali")].iloc[0]
    assert row.published == expected["waterbirds", "worst_group", "orth-cali", ""]
    assert row.measured == measured.row("waterbirds", "worst_group", "orth-cali", lam=1000.0).value
    assert row.low <= row.measured <= row.high
    assert row.difference == pytest.approx(row.measured - row.published)
    assert all(
        text in (tmp_path / "index.html").read_text() for text in ("0.740", f"{row.measured:.3f}")
    )


@pytest.mark.slow
def test_killed_twice_it_ends_as_a_run_that_nobody_killed(many: Path, tmp_path: Path) -> None:
    def command(out: Path) -> list[str]:
        own = ["--data-root", str(many), "--only", "fairface", "--model", "miniature"]
        return [
            sys.executable,
            "-m",
            "vldebias",
            "eval",
            "paper",
            *own,
            "--device",
            "cpu",
            "--out",
            str(out),
        ]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    started = time.monotonic()
    subprocess.run(command(whole), check=True, capture_output=True)
    took = time.monotonic() - started
    for part in (0.5, 0.8):
        process = subprocess.Popen(
            command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(part * took)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command(killed), check=True, capture_output=True)
    ends = [
        Result.read(out / "fairface-miniature/result.json").to_pandas() for out in (whole, killed)
    ]
    pd.testing.assert_frame_equal(*ends)
    assert set(ends[0].task) >= {"fairface gender", "fairface race", "fairface age"}
