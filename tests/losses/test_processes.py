"""Two processes and one: a gathered loss is the loss of the joint batch, in value, gradient and state."""

from __future__ import annotations

import json
import os
from pathlib import Path
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

WORLD, N, D = 2, 6, 4  # N rows in the joint batch
LABELS = torch.tensor([0, 1, 0, 1, 2, 0])
POSITIVES = unit_rows(N * 2, D, seed=5).reshape(N, 2, D)
LEARNED = {"temperature": 0.3, "learnable_temperature": True}
STEPS = [torch.tensor([0, 1, 2, 3, 4, 5]), torch.tensor([7, 3, 8, 0, 6, 1]), torch.tensor([5, 2, 0, 9, 1, 4])]

CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "info_nce": (losses.InfoNCELoss, LEARNED, ""),
    "info_nce-chunks-within": (losses.InfoNCELoss, LEARNED | {"chunk_size": 2, "within_view": True}, ""),
    "rince": (losses.RINCELoss, LEARNED | {"q": 0.5, "chunk_size": 2}, ""),
    "dcl": (losses.DebiasedContrastiveLoss, LEARNED | {"tau_plus": 0.2}, "positives"),
    "hcl": (losses.HardNegativeContrastiveLoss, LEARNED | {"beta": 0.5, "chunk_size": 2}, "positives"),
    "spread": (losses.SpreadLoss, LEARNED | {"alpha": 0.4, "chunk_size": 2}, "labels"),
    "gce": (losses.GCELoss, LEARNED | {"q": 0.5, "smoothing": 0.1}, "labels"),
    "sigmoid": (losses.SigmoidLoss, {"bias": -1.0}, ""),
    "sogclr": (losses.GlobalContrastiveLoss, {"dataset_size": 10, "temperature": 0.3}, "index"),
    "nuclr": (
        losses.GlobalContrastiveLoss,
        {"dataset_size": 10, "temperature": 0.3, "popularity_lr": 0.5, "chunk_size": 2},
        "index",
    ),
}


class Towers(nn.Module):
    """Two linear encoders and the loss, as one module for DistributedDataParallel."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.image, self.text, self.loss = nn.Linear(D, D).double(), nn.Linear(D, D).double(), loss.double()
        with torch.no_grad():
            self.image.weight.copy_(unit_rows(D, D, seed=11))
            self.text.weight.copy_(unit_rows(D, D, seed=12))
            self.image.bias.zero_()
            self.text.bias.zero_()

    def forward(self, images: Tensor, texts: Tensor, *extra: Tensor) -> Tensor:
        value: Tensor = self.loss(normalize(self.image(images), dim=1), normalize(self.text(texts), dim=1), *extra)
        return value


def _extra(kind: str, step: int) -> list[Tensor]:
    """What the loss takes beside the features, for the joint batch."""
    return {"": [], "labels": [LABELS], "positives": [POSITIVES], "index": [STEPS[step]]}[kind]


def _outcome(name: str, own: slice, gather: bool) -> dict[str, list[float]]:
    """Three steps of gradient descent on the rows `own`; values, last gradients, per-sample losses and state."""
    loss_type, options, kind = CASES[name]
    towers = Towers(loss_type(**options, gather=gather))
    model: nn.Module = DistributedDataParallel(towers) if gather else towers
    values = []
    for step in range(len(STEPS)):
        model.zero_grad()
        rows = (unit_rows(N, D, seed=20 + step), unit_rows(N, D, seed=30 + step), *_extra(kind, step))
        value = model(*(row[own] for row in rows))
        value.backward()
        values.append(value.item())
        with torch.no_grad():
            for parameter in towers.parameters():
                parameter -= 0.1 * parameter.grad
    gradients = {f"gradient {key}": p.grad.flatten().tolist() for key, p in towers.named_parameters()}
    state = {f"state {key}": value.flatten().tolist() for key, value in towers.state_dict().items()}
    towers.loss.reduction = "none"
    with torch.no_grad():
        samples = towers(*(row[own] for row in rows)).tolist()
    return {"values": values, "samples": samples, **gradients, **state}


def _refusal(own_rank: int) -> str:
    x = unit_rows(2 + own_rank, D)
    try:
        losses.info_nce(x, x, temperature=0.1, gather=True)
    except InvalidInputError as error:
        return str(error)
    return "nothing was refused"


def _work(own_rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=own_rank, world_size=WORLD)
    own = slice(own_rank * N // WORLD, (own_rank + 1) * N // WORLD)
    outcomes: dict[str, Any] = {name: _outcome(name, own, gather=True) for name in CASES}
    outcomes["refusal"] = _refusal(own_rank)
    Path(folder, f"{own_rank}.json").write_text(json.dumps(outcomes))
    dist.barrier()  # neither may close its sockets while the other still reads
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(_work, args=(str(folder),), nprocs=WORLD)
    return [json.loads(Path(folder, f"{own_rank}.json").read_text()) for own_rank in range(WORLD)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one_on_the_joint_batch(name: str, outcomes: list[dict[str, Any]]) -> None:
    """Values, per-sample losses of the own rows, gradients after DDP's averaging, and the state, over three steps."""
    joint = _outcome(name, slice(None), gather=False)
    assert outcomes[0][name]["samples"] + outcomes[1][name]["samples"] == pytest.approx(joint.pop("samples"), rel=1e-9)
    for own in outcomes:
        for key, expected in joint.items():
            assert own[name][key] == pytest.approx(expected, rel=1e-8, abs=1e-10), key


@pytest.mark.slow
def test_rows_that_differ_in_number_are_refused_on_every_process(outcomes: list[dict[str, Any]]) -> None:
    expected = "gather: expected as many rows on every process, got [2, 3]; drop the last incomplete batch"
    assert [own["refusal"] for own in outcomes] == [expected] * WORLD


def test_gathered_rows_without_a_process_group_are_the_rows() -> None:
    x = unit_rows(5, 3, seed=1)
    assert losses.gather_rows(x) is x
