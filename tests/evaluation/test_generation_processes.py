"""Two processes draw and judge what one does."""

import subprocess
import sys
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


@pytest.mark.slow
def test_two_processes_draw_and_judge_what_one_does(tmp_path: Path) -> None:
    script, one, two = tmp_path / "run.py", tmp_path / "one", tmp_path / "two"
    script.write_text(RUN)
    run(script, one)
    run(script, two, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29517")
    assert pngs(two) == pngs(one)
    assert len(list((two / "judgements").glob("*/*.jsonl"))) == 2
    assert (two / "figures.json").read_text() == (one / "figures.json").read_text()
