"""A run that is killed without warning goes on; two processes draw what one does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import json, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.judges import MiniatureJudge
from vldebias.miniature import load_pipeline

task = GenerationTask(
    prompts="professions-gender", attributes=["gender"], variants={"cali": {}}, images=2, stated_images=1, steps=2,
    guidance=3.0, batch_size=6, resamples=50, concepts="unseen",
)
parts = task.measure(sys.argv[1], MiniatureJudge(), pipe=load_pipeline())
Path(sys.argv[1], "figures.json").write_text(json.dumps([row.model_dump() for part in parts for row in part.rows]))
"""


def pngs(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.png")}


def run(script: Path, folder: Path, *launcher: str) -> None:
    subprocess.run([sys.executable, *launcher, str(script), str(folder)], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "run.py"
    path.write_text(RUN)
    return path


@pytest.fixture(scope="module")
def whole(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(script, folder)
    return folder


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_the_same_pixels_and_figures(
    script: Path, whole: Path, tmp_path: Path
) -> None:
    for stop in (15, 110):  # without the projection, and with it
        started = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stderr=subprocess.DEVNULL)
        until = time.monotonic() + 240
        while len(list(tmp_path.rglob("[0-9]*.png"))) < stop and started.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(started.pid, signal.SIGKILL)
        assert started.wait() == -signal.SIGKILL
        there = len(list(tmp_path.rglob("[0-9]*.png")))
        assert stop <= there < len(pngs(whole))
    first = next(tmp_path.glob("none/*/0.png"))
    times = first.stat().st_mtime_ns
    run(script, tmp_path)
    assert first.stat().st_mtime_ns == times  # what was there is not drawn again
    assert pngs(tmp_path) == pngs(whole)
    assert (tmp_path / "figures.json").read_text() == (whole / "figures.json").read_text()


@pytest.mark.slow
def test_two_processes_draw_and_judge_what_one_does(script: Path, whole: Path, tmp_path: Path) -> None:
    run(script, tmp_path, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29517")
    assert pngs(tmp_path) == pngs(whole)
    assert len(list((tmp_path / "judgements").glob("*/*.jsonl"))) == 2
    assert (tmp_path / "figures.json").read_text() == (whole / "figures.json").read_text()
