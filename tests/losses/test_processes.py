"""Compare the loss of two processes, or threads, with the loss of a single process on the joint
batch."""

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from slow_losses import unit_rows
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from vldebias import losses
from vldebias.errors import InvalidInputError
from vldebias.losses import processes
from vldebias.losses.catalog import BUILT_IN

WORLD = 2
N = 6  # rows in the joint batch
D = 4
OWN = [slice(0, 3), slice(3, 6)]
LABELS = torch.tensor([0, 1, 0, 1, 2, 0])
POSITIVES = unit_rows(N * 2, D, seed=5).reshape(N, 2, D)
LEARNED = {"temperature": 0.3, "learnable_temperature": True}
NUCLR = {"dataset_size": 10, "temperature": 0.3, "popularity_lr": 0.5, "chunk_size": 2}
STEPS = [
    torch.tensor([0, 1, 2, 3, 4, 5]),
    torch.tensor([7, 3, 8, 0, 6, 1]),
    torch.tensor([5, 2, 0, 9, 1, 4]),
]


class WeightedLoss(nn.Module):
    """InfoNCE weighted by group DRO."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.each = losses.InfoNCE(reduction="none", **LEARNED, **options)
        self.reduction = "mean"
        self.groups = losses.GroupWeights(3, step=0.5, **options)

    def forward(self, x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
        loss_of_rows: Tensor = self.each(x, y)
        return self.groups(loss_of_rows, labels) if self.reduction == "mean" else loss_of_rows


# Options of losses whose defaults skip a branch.
OPTIONS: dict[str, dict[str, Any]] = {
    "rince": LEARNED | {"q": 0.5, "chunk_size": 2},
    "hard_negative": LEARNED | {"beta": 0.5, "chunk_size": 2},
    "spread": LEARNED | {"alpha": 0.4, "chunk_size": 2},
    "supcon": LEARNED | {"chunk_size": 2},
    "gce": LEARNED | {"q": 0.5, "smoothing": 0.1},
    "sigmoid": LEARNED | {"bias": -1.0},
    "sogclr": {"dataset_size": 10, "temperature": 0.3},
    "nuclr": NUCLR,
    "isogclr": {"dataset_size": 10, "temperature": 0.3, "kl_radius": 0.5, "temperature_lr": 0.1},
    "cyclip": LEARNED | {"chunk_size": 2},
}
CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    **{
        loss.name: (loss.load_module(), OPTIONS.get(loss.name, LEARNED), loss.reads)
        for loss in BUILT_IN
    },
    "info_nce-chunks-within": (
        losses.InfoNCE,
        LEARNED | {"chunk_size": 2, "within_view": True},
        "",
    ),
    "debiased-positives": (
        losses.Debiased,
        LEARNED | {"tau_plus": 0.2},
        "positives",
    ),
    "hard_negative-positives": (
        losses.HardNegative,
        OPTIONS["hard_negative"],
        "positives",
    ),
    "group_dro": (WeightedLoss, {}, "labels"),
}


class Towers(nn.Module):
    """Two matrices as encoders and a loss, in one module for DistributedDataParallel."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss.double()
        self.image, self.text = (nn.Parameter(unit_rows(D, D, seed=seed)) for seed in (11, 12))

    def forward(self, images: Tensor, texts: Tensor, *extra: Tensor) -> Tensor:
        return self.loss(
            normalize(images @ self.image, dim=1), normalize(texts @ self.text, dim=1), *extra
        )


def _outcome(
    name: str, process_rows: slice, wrap: Callable[[nn.Module], nn.Module] | None = None
) -> dict[str, list[float]]:
    """Run three steps of gradient descent on some rows. Return the values, the last gradients, the
    per-pair losses, and the state."""
    loss_type, options, kind = CASES[name]
    towers = Towers(loss_type(**options, **({"gather": True} if wrap else {})))
    model = wrap(towers) if wrap else towers
    values = []
    for step in range(len(STEPS)):
        model.zero_grad()
        extra_of_kind = {
            "": [],
            "labels": [LABELS],
            "captions": [LABELS],
            "positives": [POSITIVES],
            "index": [STEPS[step]],
        }
        extra = extra_of_kind[kind]
        rows = (unit_rows(N, D, seed=20 + step), unit_rows(N, D, seed=30 + step), *extra)
        value = model(*(row[process_rows] for row in rows))
        value.backward()
        values.append(value.item())
        with torch.no_grad():
            for parameter in towers.parameters():
                parameter -= 0.1 * parameter.grad
    gradients = {
        f"gradient {key}": p.grad.flatten().tolist() for key, p in towers.named_parameters()
    }
    state = {f"state {key}": value.flatten().tolist() for key, value in towers.state_dict().items()}
    towers.loss.reduction = "none"
    with torch.no_grad():
        samples = towers(*(row[process_rows] for row in rows)).tolist()
    return {"values": values, "samples": samples, **gradients, **state}


def _refusal(own_rank: int) -> str:
    x = unit_rows(2 + own_rank, D)
    with pytest.raises(InvalidInputError) as refused:
        losses.info_nce(x, x, temperature=0.1, gather=True)
    return str(refused.value)


def _outcomes(own_rank: int, wrap: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    apart = {f"{name}, apart": _outcome(name, OWN[own_rank]) for name in CASES}
    return {
        **{name: _outcome(name, OWN[own_rank], wrap) for name in CASES},
        **apart,
        "refusal": _refusal(own_rank),
    }


def _work(own_rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=own_rank, world_size=WORLD
    )
    Path(folder, f"{own_rank}.json").write_text(
        json.dumps(_outcomes(own_rank, DistributedDataParallel))
    )
    dist.barrier()  # neither may close its sockets while the other is still reading
    dist.destroy_process_group()


def _in_threads(patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    met = threading.Barrier(WORLD, timeout=20)
    thread_state = threading.local()
    gathered = [torch.empty(0)] * WORLD

    def exchanged(tensor: Tensor) -> list[Tensor]:
        gathered[thread_state.rank] = tensor.clone()
        met.wait()
        everyone = list(gathered)
        met.wait()
        return everyone

    def all_gather(parts: list[Tensor], rows: Tensor) -> None:
        for part, theirs in zip(parts, exchanged(rows), strict=True):
            part.copy_(theirs)

    def all_reduce(total: Tensor) -> None:
        total.copy_(sum(exchanged(total)))

    def averaging(module: nn.Module) -> nn.Module:
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: all_reduce(p.grad.div_(WORLD)))
        return module

    def work(rank: int) -> dict[str, Any]:
        thread_state.rank = rank
        try:
            return _outcomes(rank, averaging)
        except BaseException:
            met.abort()  # otherwise, the other process would wait
            raise

    patched = {
        "is_available": lambda: True,
        "is_initialized": lambda: hasattr(thread_state, "rank"),
        "get_rank": lambda: thread_state.rank,
    }
    collective = {
        "get_world_size": lambda: WORLD,
        "all_gather": all_gather,
        "all_reduce": all_reduce,
    }
    patch.setattr(processes, "dist", SimpleNamespace(**patched, **collective))
    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(work, range(WORLD)))


@pytest.fixture(
    scope="module", params=["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Return the results of both processes."""
    if request.param == "threads":
        with pytest.MonkeyPatch.context() as patch:
            return _in_threads(patch)
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(_work, args=(str(folder),), nprocs=WORLD)
    return [json.loads(Path(folder, f"{own_rank}.json").read_text()) for own_rank in range(WORLD)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_match_one_process_with_the_joint_batch(
    name: str, outcomes: list[dict[str, Any]]
) -> None:
    """Compare values, per-pair losses, gradients averaged by DDP, and state over three steps."""
    joint = _outcome(name, slice(None))
    assert outcomes[0][name]["samples"] + outcomes[1][name]["samples"] == pytest.approx(
        joint.pop("samples"), rel=1e-9
    )
    for rank, outcome in enumerate(outcomes):
        for key, expected in joint.items():
            assert outcome[name][key] == pytest.approx(expected, rel=1e-8, abs=1e-10), key
        assert outcome[f"{name}, apart"] == _outcome(name, OWN[rank]), (
            "without `gather`, the loss is computed from the rows of each process"
        )


def test_different_numbers_of_rows_raise_errors_on_all_processes(
    outcomes: list[dict[str, Any]],
) -> None:
    expected = (
        "gather: expected the same number of rows on every process, got [2, 3]; drop the last"
        " incomplete batch"
    )
    assert [outcome["refusal"] for outcome in outcomes] == [expected] * WORLD
    assert losses.gather_rows(LABELS) is LABELS, "without a process group"
