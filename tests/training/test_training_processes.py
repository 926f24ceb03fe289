"""Compare two processes with a single one on the joint batch, with and without kills, started with
common launchers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from training_parts import equal, weights
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.miniature import load_clip
from vldebias.training.loop import read_state

# A few steps with a high learning rate make the small model worse, which triggers a warning.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:training made the model worse"),
]

HISTORY = "history.jsonl"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
COMMAND = ["train", "--cpu", "--data", "birds", "--lr", "1e-3"]
SHORT = {
    "loss": "nuclr",
    "temperature": "0.1",
    "caption_noise": "0.3",
    "ema": "0.9",
    "sharpness": "sam",
    "items": "96",
}
QUIET = {"score_pairs": "false", "val_items": "20", "eval_every": "100", "workers": "0"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
LAUNCH = (
    "-m",
    "accelerate.commands.launch",
    "--num_processes",
    "2",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
)


def command(folder: Path, settings: dict[str, str]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flags += ["--set", f"{name}={value}"]
    return [*COMMAND, *flags, "--out", str(folder)]


def of_processes(
    folder: Path, settings: dict[str, str], launcher: tuple[str, ...] = ()
) -> list[str]:
    return [sys.executable, *launcher, "-m", "vldebias", *command(folder, settings)]


def run(folder: Path, settings: dict[str, str]) -> None:
    """Train in the test process, which has already imported the slow modules."""
    done = CliRunner().invoke(app, command(folder, settings))
    assert done.exit_code == 0, (done.output, done.exception)


def launch(
    folder: Path, settings: dict[str, str], launcher: tuple[str, ...], fails: bool = False
) -> str:
    how = {"check": False, "capture_output": True, "text": True, "env": ONE_THREAD, "timeout": 540}
    done = subprocess.run(of_processes(folder, settings, launcher), **how)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return " ".join(done.stderr.split())


def wait_for_steps(process: subprocess.Popen[Any], folder: Path) -> None:
    """Wait until two steps of a run are recorded and the first one has its checkpoint."""
    history = folder / HISTORY
    until = time.monotonic() + 240
    while not history.exists() or history.read_text().count("\n") < 2:
        assert process.poll() is None, "the run ended before its second step"
        assert time.monotonic() < until, "the run did not reach two steps in four minutes"
        time.sleep(0.02)


def start() -> dict[str, Tensor]:
    """Return the initial weights."""
    state = load_clip()[0].state_dict()
    return {name: tensor for name, tensor in state.items() if name != "attn_mask"}


def steps_in(folder: Path) -> int:
    state = read_state(folder / "state.pt")
    return 0 if state is None else int(state["step"])


def test_a_killed_run_resumes_to_identical_weights(tmp_path: Path) -> None:
    settings = {
        **SHORT,
        **QUIET,
        "fourier": "0.2",
        "jitter": "0.3",
        "batch_size": "16",
        "accumulation": "2",
    }
    settings |= {"steps": "8", "save_every": "0"}
    run(tmp_path / "whole", settings)
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        of_processes(killed, settings), stderr=subprocess.DEVNULL, env=ONE_THREAD
    )
    wait_for_steps(process, killed)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the process must be killed while it is running"
    assert 1 <= steps_in(killed) < 8
    assert not (killed / "model").exists()
    run(killed, settings)
    assert equal(weights(killed), weights(tmp_path / "whole"))
    assert not equal(start(), weights(tmp_path / "whole")), (
        "the runs differ, so the comparison can fail"
    )


def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Return the distance between two sets of weights."""
    assert first.keys() == second.keys()
    return float(sum((first[name] - second[name]).double().pow(2).sum() for name in first)) ** 0.5


JOINT = {
    **QUIET,
    "val_items": "100",  # enough to choose between the end and half way
    "items": "96",
    "loss": "nuclr",
    "temperature": "0.1",
    "sharpness": "sam",
    "ema": "0.5",
    "steps": "3",
}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Return the weights from a single process on the joint batch, which differ from those on half
    the batch."""
    folder = tmp_path_factory.mktemp("single")
    for name, size in (("joint", "16"), ("half", "8")):
        run(folder / name, {**JOINT, "batch_size": size})
    joint = weights(folder / "joint")
    assert apart(weights(folder / "half"), joint) > 0.2 * apart(joint, start()), (
        "training on half the batch ends with other weights"
    )
    return joint


@pytest.mark.parametrize(
    "launcher", [TORCHRUN, (*LAUNCH, "--multi_gpu", "--main_process_port", "0")]
)
def test_two_processes_end_with_the_weights_of_one_process_with_the_joint_batch(
    launcher: tuple[str, ...], single: dict[str, Tensor], tmp_path: Path
) -> None:
    launch(tmp_path, {**JOINT, "batch_size": "8"}, launcher)
    outcome = json.loads((tmp_path / "run.json").read_text())
    assert outcome["processes"] == {"number": 2, "kind": "MULTI_CPU"}
    assert outcome["checkpoints"]["saved"] == "half way"
    # Adam's steps depend on the sign of the gradient and are therefore discontinuous near 0.
    assert apart(weights(tmp_path), single) < 0.02 * apart(single, start())


def test_a_signal_to_all_processes_of_the_run_saves_the_step(tmp_path: Path) -> None:
    """Schedulers and terminals also send the signal to the processes that read images."""
    settings = {
        **SHORT,
        **QUIET,
        "batch_size": "8",
        "steps": "400",
        "workers": "2",
        "save_every": "60",
    }
    how = {"stderr": subprocess.PIPE, "text": True, "env": ONE_THREAD, "start_new_session": True}
    process = subprocess.Popen(of_processes(tmp_path, settings), **how)
    wait_for_steps(process, tmp_path)
    os.killpg(process.pid, signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, log[-3000:]
    assert "Traceback" not in log
    done = steps_in(tmp_path)
    assert 1 <= done < 400
    assert f"after step {done} of 400" in " ".join(log.split())
    assert len((tmp_path / HISTORY).read_text().splitlines()) == done


def test_torchrun_without_a_gpu_needs_no_flag(tmp_path: Path) -> None:
    """The tutorial, the help and the error name this command without `--cpu`."""
    settings = {**QUIET, "items": "48", "batch_size": "8", "steps": "1", "tune": "heads"}
    launched = of_processes(tmp_path, settings, TORCHRUN)
    launched.remove("--cpu")
    environment = {**ONE_THREAD, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(launched, check=True, capture_output=True, env=environment, timeout=540)
    processes = json.loads((tmp_path / "run.json").read_text())["processes"]
    assert processes == {"number": 2, "kind": "MULTI_CPU"}


def test_a_single_process_instead_of_two_is_detected(tmp_path: Path) -> None:
    """`accelerate launch --cpu --num_processes 2` starts a process that trains alone."""
    settings = {**QUIET, "items": "48", "batch_size": "8", "steps": "1", "tune": "heads"}
    log = launch(tmp_path, settings, (*LAUNCH, "--cpu"), fails=True)
    assert "several processes were launched without a process group" in log
    assert not (tmp_path / "model").exists()
