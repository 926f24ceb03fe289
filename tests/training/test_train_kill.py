"""`vldebias train` killed without warning goes on to identical weights; two processes end where one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vldebias.miniature import load_clip
from vldebias.training.state import read_metadata

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
COMMAND = ["train", "--cpu", "--data", "birds", "--items", "96", "--lr", "1e-3", "--workers", "0"]
SHORT = ["--loss", "nuclr", "--temperature", "0.1", "--caption-noise", "0.3", "--ema", "0.9", "--sharpness", "sam"]
EVERYTHING = [
    *SHORT,
    "--fourier",
    "0.2",
    "--jitter",
    "0.3",
    "--batch-size",
    "16",
    "--accumulation",
    "2",
    "--steps",
    "12",
]
QUIET = ["--no-score-pairs", "--val-items", "20", "--eval-every", "100"]


VLDEBIAS = ("-m", "vldebias")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
LAUNCHERS = {
    "DDP": (*ACCELERATE, "--mixed_precision", "no", "--main_process_port", "0", *VLDEBIAS),
    "FSDP": (*TORCHRUN, str(Path(__file__).with_name("fsdp_on_cpu.py"))),
}


def run(folder: Path, *arguments: str, launcher: tuple[str, ...] = VLDEBIAS) -> None:
    command = [sys.executable, *launcher, *COMMAND, *arguments, "--out", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=ONE_THREAD, timeout=540)
    assert done.returncode == 0, done.stderr[-3000:]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "clip.safetensors")


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_identical_weights(tmp_path: Path) -> None:
    arguments = [*EVERYTHING, *QUIET, "--save-every", "0"]
    run(tmp_path / "whole", *arguments)
    state = tmp_path / "killed" / "state.safetensors"
    reached = []
    for after in (2, 6):
        command = [sys.executable, *VLDEBIAS, *COMMAND, *arguments, "--out", str(tmp_path / "killed")]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=ONE_THREAD)
        until = time.monotonic() + 240
        while time.monotonic() < until and process.poll() is None:
            found = read_metadata(state)
            if found is not None and found["step"] >= after:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it must be killed while it runs"
        reached.append(read_metadata(state)["step"])  # type: ignore[index]
    assert 2 <= reached[0] < reached[1] < 12
    assert not (tmp_path / "killed" / "model").exists()
    run(tmp_path / "killed", *arguments)
    assert same(weights(tmp_path / "killed"), weights(tmp_path / "whole"))
    other = tmp_path / "other"
    run(other, *arguments, "--seed", "1")
    assert not same(weights(other), weights(tmp_path / "whole")), "the comparison can fail"


def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Distance of two sets of weights."""
    assert first.keys() == second.keys()
    return float(sum((first[name] - second[name]).double().pow(2).sum() for name in first)) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DDP", "FSDP"])
def test_two_processes_end_where_one_does_on_the_joint_batch(kind: str, tmp_path: Path) -> None:
    shared = ["--loss", "nuclr", "--temperature", "0.1", "--sharpness", "sam", "--ema", "0.5", "--steps", "3", *QUIET]
    run(tmp_path / "one", *shared, "--batch-size", "16")
    run(tmp_path / "two", *shared, "--batch-size", "8", launcher=LAUNCHERS[kind])
    told = json.loads((tmp_path / "two" / "run.json").read_text())["processes"]
    assert told == {"number": 2, "kind": {"DDP": "MULTI_CPU", "FSDP": "FSDP"}[kind]}
    model, _, _ = load_clip()
    start = {name: tensor for name, tensor in model.state_dict().items() if name != "attn_mask"}
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    # Adam's steps are near the sign of the gradient, and so not continuous where that is next to nothing.
    assert apart(one, two) < 0.02 * apart(one, start)
    run(tmp_path / "other", *shared, "--batch-size", "8")
    assert apart(weights(tmp_path / "other"), one) > 0.2 * apart(one, start), "half the batch ends elsewhere"
