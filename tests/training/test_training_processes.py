"""Two processes and one, killed and not, by the launchers that people use: weights are those of the
joint batch."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import Tensor
from training_parts import equal, weights

from vldebias.miniature import load_clip
from vldebias.training.loop import read_state

pytestmark = pytest.mark.slow

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
COMMAND = ["-m", "vldebias", "train", "--cpu", "--data", "birds", "--lr", "1e-3"]
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


def command(folder: Path, settings: dict[str, str], launcher: tuple[str, ...] = ()) -> list[str]:
    flags = []
    for name, value in settings.items():
        flags += ["--set", f"{name}={value}"]
    return [sys.executable, *launcher, *COMMAND, *flags, "--out", str(folder)]


def run(
    folder: Path, settings: dict[str, str], launcher: tuple[str, ...] = (), fails: bool = False
) -> str:
    how = {"check": False, "capture_output": True, "text": True, "env": ONE_THREAD, "timeout": 540}
    done = subprocess.run(command(folder, settings, launcher), **how)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return " ".join(done.stderr.split())


def steps_in(folder: Path) -> int:
    state = read_state(folder / "state.pt")
    return 0 if state is None else int(state["step"])


def test_killed_in_the_middle_it_goes_on_to_identical_weights(tmp_path: Path) -> None:
    settings = {
        **SHORT,
        **QUIET,
        "fourier": "0.2",
        "jitter": "0.3",
        "batch_size": "16",
        "accumulation": "2",
    }
    settings |= {"steps": "12", "save_every": "0"}
    run(tmp_path / "whole", settings)
    killed = tmp_path / "killed"
    reached = []
    for after in (2, 6):
        process = subprocess.Popen(
            command(killed, settings), stderr=subprocess.DEVNULL, env=ONE_THREAD
        )
        until = time.monotonic() + 240
        while time.monotonic() < until and process.poll() is None and steps_in(killed) < after:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it must be killed while it runs"
        reached.append(steps_in(killed))
    assert 2 <= reached[0] < reached[1] < 12
    assert not (killed / "model").exists()
    run(killed, settings)
    assert equal(weights(killed), weights(tmp_path / "whole"))
    run(tmp_path / "other", {**settings, "seed": "1"})
    assert not equal(weights(tmp_path / "other"), weights(tmp_path / "whole")), (
        "the comparison can fail"
    )


def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Distance of two sets of weights."""
    assert first.keys() == second.keys()
    return float(sum((first[name] - second[name]).double().pow(2).sum() for name in first)) ** 0.5


@pytest.mark.parametrize(
    "launcher", [TORCHRUN, (*LAUNCH, "--multi_gpu", "--main_process_port", "0")]
)
def test_two_processes_end_where_one_does_on_the_joint_batch(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    shared = {
        **QUIET,
        "items": "96",
        "loss": "nuclr",
        "temperature": "0.1",
        "sharpness": "sam",
        "ema": "0.5",
    }
    shared["steps"] = "3"
    for name, size, launched in (("one", "16", ()), ("half", "8", ()), ("two", "8", launcher)):
        run(tmp_path / name, {**shared, "batch_size": size}, launched)
    assert json.loads((tmp_path / "two" / "run.json").read_text())["processes"] == {
        "number": 2,
        "kind": "MULTI_CPU",
    }
    start = {
        name: tensor for name, tensor in load_clip()[0].state_dict().items() if name != "attn_mask"
    }
    single = weights(tmp_path / "one")
    assert apart(weights(tmp_path / "half"), single) > 0.2 * apart(single, start), (
        "half the batch ends elsewhere"
    )
    # Adam's steps are near the sign of the gradient, and so not continuous where that is next to
    # nothing.
    assert apart(weights(tmp_path / "two"), single) < 0.02 * apart(single, start)


def test_a_signal_to_all_processes_of_the_run_saves_the_step(tmp_path: Path) -> None:
    """As a scheduler, or a terminal, sends it: to the processes that read images too."""
    settings = {
        **SHORT,
        **QUIET,
        "batch_size": "8",
        "steps": "400",
        "workers": "2",
        "save_every": "60",
    }
    how = {"stderr": subprocess.PIPE, "text": True, "env": ONE_THREAD, "start_new_session": True}
    process = subprocess.Popen(command(tmp_path, settings), **how)
    history = tmp_path / "history.jsonl"
    until = time.monotonic() + 120
    while (
        time.monotonic() < until
        and process.poll() is None
        and not (history.exists() and history.read_text())
    ):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, log[-3000:]
    assert "Traceback" not in log
    done = steps_in(tmp_path)
    assert 1 <= done < 400
    assert f"after step {done} of 400" in " ".join(log.split())
    assert len(history.read_text().splitlines()) == done


def test_a_process_that_should_be_two_is_noticed(tmp_path: Path) -> None:
    """`accelerate launch --cpu --num_processes 2` starts one that trains alone."""
    settings = {**QUIET, "items": "48", "batch_size": "8", "steps": "1", "tune": "heads"}
    log = run(tmp_path, settings, (*LAUNCH, "--cpu"), fails=True)
    assert "launched as several processes, but this one sees itself alone" in log
    assert not (tmp_path / "model").exists()
