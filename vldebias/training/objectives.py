"""The loss of a run by its name: built from settings, moved along its schedule, given what it reads of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses import (
    DebiasedContrastiveLoss,
    GlobalContrastiveLoss,
    HardNegativeContrastiveLoss,
    InfoNCELoss,
    RINCELoss,
    SigmoidLoss,
    SpreadLoss,
    beta_annealing,
    q_warmup,
)
from vldebias.training.batch import Batch
from vldebias.training.settings import LossSettings

__all__ = ["Objective", "build_objective"]


@dataclass(frozen=True)
class _Kind:
    """How a loss is built: its class, the settings that it reads (ours -> its own), and the columns it wants."""

    build: Callable[..., nn.Module]
    settings: dict[str, str]
    columns: tuple[str, ...] = ()


_KINDS: dict[str, _Kind] = {
    "info_nce": _Kind(InfoNCELoss, {}),
    "rince": _Kind(RINCELoss, {"q": "q", "lam": "lam"}),
    "debiased": _Kind(DebiasedContrastiveLoss, {"tau_plus": "tau_plus"}),
    "hard_negative": _Kind(HardNegativeContrastiveLoss, {"tau_plus": "tau_plus", "beta": "beta", "form": "form"}),
    "sogclr": _Kind(GlobalContrastiveLoss, {"gamma": "gamma"}, ("index",)),
    "nuclr": _Kind(GlobalContrastiveLoss, {"gamma": "gamma", "zeta_init": "zeta_init"}, ("index",)),
    "sigmoid": _Kind(SigmoidLoss, {}),
    "spread": _Kind(SpreadLoss, {"spread_alpha": "alpha"}, ("labels",)),
}
# Settings beside those of the table that a loss reads by its schedule.
_SCHEDULED = {
    "rince": ("q_start",),
    "hard_negative": ("beta_changes",),
    "nuclr": ("popularity_lr", "popularity_start"),
}
_SHARED = ("loss", "temperature", "learn_temperature", "chunk_size")


class Objective(nn.Module):
    """A loss with its schedule. Build it with `build_objective`."""

    def __init__(self, loss: nn.Module, settings: LossSettings) -> None:
        super().__init__()
        self.loss: Any = loss
        self.settings = settings
        self._columns = _KINDS[settings.loss].columns

    def forward(self, first: Tensor, second: Tensor, batch: Batch) -> Tensor:
        """Loss of features (b, d) of norm 1; the columns that the loss reads are taken from the batch."""
        return self.loss(first, second, *(_column(batch, name, self.settings.loss) for name in self._columns))

    def at(self, step: int, steps: int) -> None:
        """Moves q, beta or the popularity's step size to where they are at a step.

        beta falls at equal distances of steps, where the thesis counts epochs.
        """
        settings, loss = self.settings, self.loss
        if settings.loss == "rince" and settings.q_start is not None:
            loss.q = q_warmup(step, steps, start=settings.q_start, end=settings.q)
        elif settings.loss == "hard_negative":
            loss.beta = beta_annealing(step, steps, beta=settings.beta, changes=settings.beta_changes)
        elif settings.loss == "nuclr":
            waiting = step < settings.popularity_start * steps
            loss.popularity_lr = 0.0 if waiting else settings.popularity_lr

    @property
    def temperature(self) -> float:
        """t of now."""
        temperature: Any = self.loss.temperature
        with torch.no_grad():
            return float(temperature() if isinstance(temperature, nn.Module) else temperature)

    @property
    def bias(self) -> float | None:
        """SigLIP's bias of now; None of a loss without."""
        bias = getattr(self.loss, "bias", None)
        return None if bias is None else float(bias.detach())


def _column(batch: Batch, name: str, loss: str) -> Tensor:
    found = getattr(batch, name)
    if found is None:
        raise InvalidInputError(f"{loss}: reads the {name} of every pair, and these data have none")
    return found


def build_objective(
    settings: LossSettings,
    *,
    temperature: float,
    items: int | None,
    bias: float | None = None,
    two_views: bool = False,
    gather: bool = False,
) -> Objective:
    """The loss that the settings name.

    Args:
        temperature: the model's own, taken where the settings give none.
        items: rows of the data set; None for a stream.
        bias: the model's own, where sigmoid starts from; None is that loss's default.
        two_views: the pairs are two views of an image, so that the other rows of the own view are negatives too.
        gather: negatives from all processes.

    Raises:
        InvalidInputError: a setting that this loss does not read, or a loss with a state per item over a stream.
    """
    kind = _KINDS[settings.loss]
    _refuse_unread(settings, kind)
    options: dict[str, Any] = {theirs: getattr(settings, ours) for ours, theirs in kind.settings.items()}
    options |= {"temperature": settings.temperature or temperature, "chunk_size": settings.chunk_size}
    options |= {"gather": gather}
    if settings.loss != "sigmoid":
        options["within_view"] = two_views
    elif bias is not None:
        options["bias"] = bias
    if "index" in kind.columns:
        if items is None:
            raise InvalidInputError(
                f"{settings.loss}: keeps a running average per pair and so must know how many there are, which a "
                "stream does not say; read the data without streaming, or choose another loss"
            )
        options["dataset_size"] = items
    else:
        options["learnable_temperature"] = settings.learn_temperature
    return Objective(kind.build(**options), settings)


def _refuse_unread(settings: LossSettings, kind: _Kind) -> None:
    """A setting that does nothing would be taken for one that did something."""
    read = {*kind.settings, *_SCHEDULED.get(settings.loss, ()), *_SHARED}
    unread = sorted(set(LossSettings.model_fields) & settings.model_fields_set - read)
    if unread:
        raise InvalidInputError(
            f"{settings.loss} does not read {', '.join(unread)}; it reads {', '.join(sorted(read - {'loss'}))}"
        )
