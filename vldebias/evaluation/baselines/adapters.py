"""The two-layer adapter on frozen features, how it is trained, and the ERM adapter."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vldebias.evaluation.baselines.problem import Allowed, Baseline, OnStep, RobustnessProblem, promoted

_CHUNK = 16384  # rows per product


class Adapter(nn.Module):
    """x (n, d) to the normalised sum (1 - share) x + share W2 relu(W1 x + b1) + share b2, with W1 (hidden, d).

    share = 1 is the adapter without a residual connection. The weights come from `generator`, as nn.Linear draws
    its own.
    """

    def __init__(self, dim: int, hidden: int, share: float, generator: torch.Generator) -> None:
        super().__init__()
        self.share = share
        self.down = _linear(dim, hidden, generator)
        self.up = _linear(hidden, dim, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Adapted features (n, d) of norm 1."""
        adapted = self.up(F.relu(self.down(x)))
        return F.normalize(self.share * adapted + (1 - self.share) * x, dim=-1)


def _linear(rows: int, columns: int, generator: torch.Generator) -> nn.Linear:
    """nn.Linear with its usual distribution, drawn from a generator of its own."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, rows, columns)
    bound = 1 / math.sqrt(rows)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


@dataclass(frozen=True, eq=False)
class AdapterHead:
    """Logits logit_scale cos(adapter(x), class text) of features x."""

    adapter: Adapter
    zero_shot: Tensor
    logit_scale: float
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Logits (m, k) of features (m, d), float32, as the adapter is."""
        return torch.cat([self.train_logits(x) for x in features.split(_CHUNK)])

    def train_logits(self, features: Tensor) -> Tensor:
        """The same in one piece, with gradients in the adapter."""
        zero_shot = self.zero_shot.float()
        return self.logit_scale * self.adapter(features.to(zero_shot.device).float()) @ zero_shot.T


@dataclass(frozen=True, kw_only=True)
class AdapterBaseline(Baseline):
    """Settings of a trained adapter: class weights are the text features, only the adapter learns.

    The defaults are those of the authors' code of Zhang and Ré (2022): hidden width 128, no residual connection,
    SGD with momentum .9, weight decay 5e-5, 100 epochs, batches of 128, cosines times 100. CLIP-Adapter itself
    (Gao et al. 2021) has hidden = d / 4 and share = .2.

    Attributes:
        hidden: width of the bottleneck.
        share: of the adapter in its sum with the features; 1 is no residual connection.
        logit_scale: what cosines are multiplied by.
        learning_rate, momentum, weight_decay: of SGD.
        epochs: at most; with a validation split the best of them is kept.
        patience: epochs without a better one on the validation split before training stops.
        batch_size: rows per step.
    """

    hidden: int = 128
    share: float = 1.0
    logit_scale: float = 100.0
    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-5
    epochs: int = 100
    patience: int = 20
    batch_size: int = 128

    allowed: ClassVar[Allowed] = {
        **dict.fromkeys(("hidden", "epochs", "patience", "batch_size"), "[1, inf)"),
        **{"share": "(0, 1]", "logit_scale": "(0, inf)", "learning_rate": "(0, inf)"},
        **{"momentum": "[0, 1)", "weight_decay": "[0, inf)"},
    }

    @abstractmethod
    def _losses(
        self, epoch: int, head: AdapterHead, problem: RobustnessProblem, data: Any, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """The loss of each step of an epoch, counted from 0; a step is taken before the next one is asked for."""

    def _prepare(self, problem: RobustnessProblem, on_step: OnStep) -> Any:
        """What `_losses` needs and is computed once; handed to it as `data`."""
        return None

    @torch.enable_grad()
    def _fit(self, problem: RobustnessProblem, seed: int, on_step: OnStep) -> AdapterHead:
        generator = torch.Generator().manual_seed(seed)
        data = self._prepare(problem, on_step)
        zero_shot = problem.zero_shot.detach().clone()
        adapter = Adapter(zero_shot.shape[1], self.hidden, self.share, generator).to(zero_shot.device)
        head = AdapterHead(adapter, zero_shot, self.logit_scale)
        optimizer = torch.optim.SGD(
            adapter.parameters(), lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )
        best, score, weights = -1, None, None  # the best epoch on the validation split, the earliest on a tie
        for epoch in range(self.epochs):
            for loss in self._losses(epoch, head, problem, data, generator):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            now = problem.score(head)
            if now is None:
                best = epoch
            elif score is None or now > score:
                best, score, weights = epoch, now, copy.deepcopy(adapter.state_dict())
            on_step(f"epoch {epoch + 1} of {self.epochs}")
            if epoch - best >= self.patience:
                break
        if weights is not None:
            adapter.load_state_dict(weights)
        adapter.requires_grad_(False)
        return replace(head, chosen={"epoch": best + 1, **problem.describe(score)})


def batches(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """`rows` in random order, `size` at a time."""
    yield from rows[torch.randperm(len(rows), generator=generator)].split(size)


def classification_loss(head: AdapterHead, problem: RobustnessProblem, rows: Tensor) -> Tensor:
    """Mean cross-entropy of some training rows."""
    features = promoted(problem.train.features[rows.to(problem.train.features.device)])
    labels = torch.from_numpy(problem.train.labels)[rows].to(features.device)
    return F.cross_entropy(head.train_logits(features), labels)


@dataclass(frozen=True, kw_only=True)
class ERMAdapter(AdapterBaseline):
    """An adapter that minimises cross-entropy over the training rows: the adapter of Gao et al. (2021) with ERM.

    As Zhang and Ré (2022) train it for Table 7.2; see `AdapterBaseline` for what follows whom.
    """

    name: str = "erm-adapter"
    title: str = "ERM Adapter"
    source: str = "Gao et al. 2021"

    def _losses(
        self, epoch: int, head: AdapterHead, problem: RobustnessProblem, data: Any, generator: torch.Generator
    ) -> Iterator[Tensor]:
        for rows in batches(torch.arange(len(problem.train.labels)), self.batch_size, generator):
            yield classification_loss(head, problem, rows)
