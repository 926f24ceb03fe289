"""Two processes and one, killed and not: states, averages and weights are those of the joint batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from vldebias.errors import InvalidInputError
from vldebias.losses import GlobalContrastiveLoss
from vldebias.miniature import load_clip
from vldebias.training.optim import Average, Sharpness
from vldebias.training.sharded import parameters_of, whole
from vldebias.training.state import load_state, read_metadata, save_state

WORLD, N, MICRO, STEPS, STOP, ITEMS = 2, 6, 2, 5, 3, 10
CASES = [(wrapping, method) for wrapping in ("ddp", "fsdp") for method in ("sam", "asam")]


class Trainee(nn.Module):
    """Two towers, of odd sizes that do not divide evenly, with a frozen layer and a loss that keeps a state."""

    def __init__(self, gather: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.image = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        self.text = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        self.text[0].requires_grad_(False)
        self.loss = GlobalContrastiveLoss(ITEMS, temperature=0.3, popularity_lr=0.2, gather=gather)
        self.double()

    def forward(self, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        value: Tensor = self.loss(normalize(self.image(x), dim=1), normalize(self.text(y), dim=1), index)
        return value


def _wrap(wrapping: str) -> nn.Module:
    trainee = Trainee(gather=wrapping != "one")
    if wrapping == "ddp":
        return DistributedDataParallel(trainee)
    if wrapping == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (WORLD,))
        fully_shard(trainee.image, mesh=mesh)
        fully_shard(trainee, mesh=mesh)
    return trainee


def _batch(number: int, own: slice) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(2, N, 3, generator=generator, dtype=torch.float64)
    return x[own], y[own], torch.randperm(ITEMS, generator=generator)[:N][own]


class Run:
    def __init__(self, wrapping: str, method: str, own: slice) -> None:
        self.wrapping, self.own = wrapping, own
        self.module = _wrap(wrapping)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.05, weight_decay=0.1)
        self.average = Average(self.module, decay=0.8)
        self.sharpness = Sharpness(method, rho=0.5, eta=0.1)  # type: ignore[arg-type]
        self.seen: list[Tensor] = []

    def steps(self, first: int, last: int) -> Run:
        for step in range(first, last):
            self.seen.append(
                self.sharpness.gradients(self.module, self.parameters, lambda step=step: self._passes(step))
            )
            self.optimizer.step()
            self.average.update(step)
            with torch.no_grad(), self.average.applied():
                self.module.eval()
                self.seen.append(self.module(*_batch(1000, self.own)))
                self.module.train()
        return self

    def _passes(self, step: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(MICRO):
            last = micro == MICRO - 1
            if self.wrapping == "fsdp":
                self.module.set_requires_gradient_sync(last)
            apart = self.module.no_sync() if self.wrapping == "ddp" and not last else nullcontext()
            with apart:
                loss = self.module(*_batch(step * MICRO + micro, self.own)) / MICRO
                loss.backward()
            total += loss.detach()
        return total

    def everything(self) -> dict[str, Tensor]:
        """Weights, averages, moments and state, whole, and what was seen."""
        named = parameters_of(self.module)
        inner = self.module.module if isinstance(self.module, DistributedDataParallel) else self.module
        found = {f"weight {name}": parameter for name, parameter in named.items()}
        found |= {f"average {name}": mean for name, mean in self.average.means.items()}
        found |= {f"buffer {name}": buffer for name, buffer in inner.named_buffers()}
        for name, parameter in named.items():
            found |= {f"moment {name} {key}": value for key, value in self.optimizer.state.get(parameter, {}).items()}
        found["seen"] = torch.stack(self.seen)
        return {name: whole(tensor.detach()).clone().contiguous() for name, tensor in found.items()}


def _outcome(wrapping: str, method: str, own: slice, folder: Path) -> dict[str, Tensor]:
    """Stopped in the middle, saved, loaded into fresh objects and gone on."""
    path = folder / f"{wrapping} {method}.safetensors"
    first = Run(wrapping, method, own).steps(0, STOP)
    save_state(path, first.module, first.optimizer, metadata={"step": STOP}, averages={"average": first.average})
    fresh = Run(wrapping, method, own)
    assert load_state(path, fresh.module, fresh.optimizer, averages={"average": fresh.average}) == {"step": STOP}
    fresh.seen = first.seen
    resumed = fresh.steps(STOP, STEPS).everything()
    through = Run(wrapping, method, own).steps(0, STEPS).everything()
    assert resumed.keys() == through.keys()
    same = torch.tensor([torch.equal(resumed[name], through[name]) for name in through])
    if wrapping == "fsdp":
        same = torch.cat([same, _from_one(method, own, folder, first, through)])
    return {**through, "resumed as never stopped": same}


def _from_one(method: str, own: slice, folder: Path, first: Run, through: dict[str, Tensor]) -> Tensor:
    """The same from what one process wrote alone before."""
    path, fresh = folder / f"alone {method}.safetensors", Run("fsdp", method, own)
    told = load_state(path, fresh.module, fresh.optimizer, averages={"average": fresh.average})
    assert told == read_metadata(path) == {"step": STOP}
    fresh.seen = first.seen[: 2 * STOP]
    resumed = fresh.steps(STOP, STEPS).everything()
    return torch.tensor([torch.allclose(resumed[name], through[name], rtol=1e-8, atol=1e-10) for name in through])


def _refusals(folder: Path) -> list[str]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    module = FullyShardedDataParallel(nn.Linear(3, 3), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(module.parameters())
    tries: list[Any] = [
        lambda: Average(module),
        lambda: save_state(folder / "flat", module, optimizer, metadata={}),
        lambda: Sharpness("sam").gradients(module, list(module.parameters()), lambda: torch.zeros(())),
    ]
    said = []
    for attempt in tries:
        try:
            attempt()
        except InvalidInputError as error:
            said.append(str(error))
    return said


def _work(own_rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=own_rank, world_size=WORLD)
    own = slice(own_rank * N // WORLD, (own_rank + 1) * N // WORLD)
    found: dict[str, Tensor] = {}
    for wrapping, method in CASES:
        outcome = _outcome(wrapping, method, own, Path(folder))
        found |= {f"{wrapping} {method} {name}": tensor for name, tensor in outcome.items()}
    save_file(found, Path(folder, f"{own_rank}.safetensors"), metadata=dict(enumerate_text(_refusals(Path(folder)))))
    dist.barrier()  # neither may close its sockets while the other still reads
    dist.destroy_process_group()


def enumerate_text(texts: list[str]) -> list[tuple[str, str]]:
    return [(str(number), text) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two processes left what they found."""
    path = tmp_path_factory.mktemp("step_processes")
    for method in ("sam", "asam"):
        alone = Run("one", method, slice(None)).steps(0, STOP)
        given: dict[str, Any] = {"metadata": {"step": STOP}, "averages": {"average": alone.average}}
        save_state(path / f"alone {method}.safetensors", alone.module, alone.optimizer, **given)
    multiprocessing.spawn(_work, args=(str(path),), nprocs=WORLD)
    return path


def _found(folder: Path, own_rank: int, prefix: str) -> dict[str, Tensor]:
    tensors = load_file(folder / f"{own_rank}.safetensors")
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


@pytest.mark.slow
@pytest.mark.parametrize(("wrapping", "method"), CASES)
def test_two_processes_are_one_on_the_joint_batch(wrapping: str, method: str, folder: Path) -> None:
    """Weights to the last bit on both; and a run that was resumed is one that never stopped."""
    joint = Run("one", method, slice(None)).steps(0, STEPS).everything()
    both = [_found(folder, own_rank, f"{wrapping} {method} ") for own_rank in range(WORLD)]
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0] if name.startswith("weight "))
    for found in both:
        assert found["resumed as never stopped"].all()
        assert found.keys() == joint.keys() | {"resumed as never stopped"}
        for name, expected in joint.items():
            torch.testing.assert_close(found[name], expected, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("wrapping", "method"), CASES)
def test_a_state_may_be_read_by_one_process(wrapping: str, method: str, folder: Path) -> None:
    path = folder / f"{wrapping} {method}.safetensors"
    run = Run("one", method, slice(None))
    assert (
        read_metadata(path)
        == load_state(path, run.module, run.optimizer, averages={"average": run.average})
        == {"step": STOP}
    )
    run.seen = [torch.zeros(())]
    joint = Run("one", method, slice(None)).steps(0, STOP).everything()
    for name, tensor in run.everything().items():
        if name != "seen":
            torch.testing.assert_close(tensor, joint[name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.slow
def test_the_first_version_of_fsdp_is_refused(folder: Path) -> None:
    from safetensors import safe_open

    with safe_open(folder / "0.safetensors", framework="pt") as file:
        said = list(file.metadata().values())
    assert len(said) == 3
    assert set(said) == {
        "FSDP: expected its second version (fully_shard), got FullyShardedDataParallel; launch with "
        "`accelerate launch --use_fsdp --fsdp_version 2`"
    }


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


@pytest.mark.slow
def test_a_signal_to_all_processes_of_the_run_saves_the_step(tmp_path: Path) -> None:
    """As a scheduler, or a terminal, sends it: to the processes that read images too."""
    arguments = [*SHORT, *QUIET, "--batch-size", "8", "--steps", "400", "--workers", "2"]
    state = tmp_path / "state.safetensors"
    command = [sys.executable, *VLDEBIAS, *COMMAND, *arguments, "--out", str(tmp_path), "--save-every", "60"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ONE_THREAD, start_new_session=True)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None and not (tmp_path / "history.jsonl").exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, told[-3000:]
    assert "Traceback" not in told
    done = read_metadata(state)["step"]  # type: ignore[index]
    assert 1 <= done < 400
    assert f"goes on after step {done} of 400" in " ".join(told.split())
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == done


def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Distance of two sets of weights."""
    assert first.keys() == second.keys()
    return float(sum((first[name] - second[name]).double().pow(2).sum() for name in first)) ** 0.5


@pytest.mark.slow
def test_two_processes_end_where_one_does_on_the_joint_batch(tmp_path: Path) -> None:
    shared = ["--loss", "nuclr", "--temperature", "0.1", "--sharpness", "sam", "--ema", "0.5", "--steps", "3", *QUIET]
    run(tmp_path / "one", *shared, "--batch-size", "16")
    run(tmp_path / "other", *shared, "--batch-size", "8")
    model, _, _ = load_clip()
    start = {name: tensor for name, tensor in model.state_dict().items() if name != "attn_mask"}
    one = weights(tmp_path / "one")
    assert apart(weights(tmp_path / "other"), one) > 0.2 * apart(one, start), "half the batch ends elsewhere"
    for kind, launcher in LAUNCHERS.items():
        run(tmp_path / kind, *shared, "--batch-size", "8", launcher=launcher)
        told = json.loads((tmp_path / kind / "run.json").read_text())["processes"]
        assert told == {"number": 2, "kind": {"DDP": "MULTI_CPU", "FSDP": "FSDP"}[kind]}
        # Adam's steps are near the sign of the gradient, and so not continuous where that is next to nothing.
        assert apart(one, weights(tmp_path / kind)) < 0.02 * apart(one, start), kind
