"""The loss of a run by its name, moved along its schedule; and model and loss as one module to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
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
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.batches import Batch
from vldebias.training.optim import frozen_statistics
from vldebias.training.settings import LossSettings

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["Objective", "Trainee", "build_objective"]


MILD = 0.1  # temperature of rince where nobody says one


@dataclass(frozen=True)
class _Kind:
    """How a loss is built.

    build: its class. settings: those that it reads, ours -> its own. columns: of the batch that it wants.
    scheduled: settings that it reads by its schedule.
    """

    build: Callable[..., nn.Module]
    settings: dict[str, str]
    columns: tuple[str, ...] = ()
    scheduled: tuple[str, ...] = ()


_HARD = {"tau_plus": "tau_plus", "beta": "beta", "form": "form"}
_POPULARITY = ("popularity_lr", "popularity_start")
_KINDS: dict[str, _Kind] = {
    "info_nce": _Kind(InfoNCELoss, {}),
    "rince": _Kind(RINCELoss, {"q": "q", "lam": "lam"}, scheduled=("q_start",)),
    "debiased": _Kind(DebiasedContrastiveLoss, {"tau_plus": "tau_plus"}),
    "hard_negative": _Kind(HardNegativeContrastiveLoss, _HARD, scheduled=("beta_changes",)),
    "sogclr": _Kind(GlobalContrastiveLoss, {"gamma": "gamma"}, ("index",)),
    "nuclr": _Kind(GlobalContrastiveLoss, {"gamma": "gamma", "zeta_init": "zeta_init"}, ("index",), _POPULARITY),
    "sigmoid": _Kind(SigmoidLoss, {}),
    "spread": _Kind(SpreadLoss, {"spread_alpha": "alpha"}, ("labels",)),
}
_SHARED = ("loss", "temperature", "learn_temperature", "chunk_size")


class Objective(nn.Module):
    """A loss with its schedule. Build it with `build_objective`."""

    def __init__(self, loss: nn.Module, settings: LossSettings) -> None:
        super().__init__()
        self.loss: Any = loss
        self.settings = settings

    def forward(self, first: Tensor, second: Tensor, batch: Batch) -> Tensor:
        """Loss of features (b, d) of norm 1; the columns that the loss reads are taken from the batch."""
        columns = {name: getattr(batch, name) for name in _KINDS[self.settings.loss].columns}
        for name, column in columns.items():
            if column is None:
                raise InvalidInputError(
                    f"{self.settings.loss}: reads the {name} of every pair, and these data have none"
                )
        loss: Tensor = self.loss(first, second, *columns.values())
        return loss

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
        temperature: the model's own, taken where the settings give none; by rince only down to .1, since its pairs
            weigh e^(q s / t), which CLIP's .01 turns into a choice of a few.
        items: rows of the data set; None for a stream.
        bias: the model's own, where sigmoid starts from; None is that loss's default.
        two_views: the pairs are two views of an image, so that the other rows of the own view are negatives too.
        gather: negatives from all processes.

    Raises:
        InvalidInputError: a setting that this loss does not read, or a loss with a state per item over a stream.
    """
    kind = _KINDS[settings.loss]
    read = {*kind.settings, *kind.scheduled, *_SHARED}
    unread = sorted(set(LossSettings.model_fields) & settings.model_fields_set - read)
    if unread:  # it would be taken for a setting that does something
        raise InvalidInputError(
            f"{settings.loss} does not read {', '.join(unread)}; it reads {', '.join(sorted(read - {'loss'}))}"
        )
    options: dict[str, Any] = {theirs: getattr(settings, ours) for ours, theirs in kind.settings.items()}
    own = max(temperature, MILD) if settings.loss == "rince" else temperature
    options |= {"temperature": settings.temperature or own, "chunk_size": settings.chunk_size}
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


class Trainee(nn.Module):
    """Model and loss as one module, so that wrapping it for several processes wraps both: batch -> loss.

    Args:
        towers: the model, seen as functions.
        objective: the loss; its parameters (a learned temperature) train with the model's.
        fourier: alpha of the amplitude mixing of images (SSA-CLR, section 4.3; .2 is best in its Table 3); 0 is none.
    """

    def __init__(self, towers: Towers, objective: Objective, *, fourier: float = 0.0) -> None:
        super().__init__()
        self.model = towers.model
        self.objective = objective
        self.towers = towers
        self.fourier = fourier

    def forward(self, batch: Batch, features: bool = False) -> Any:
        """The loss () of a batch: of images and captions, or of two views; or their features (b, d) of norm 1 each.

        One method for both, since what wraps this module for several processes follows calls of `forward` alone.
        """
        first, second = self._features(batch)
        return (first, second) if features else self.objective(first, second, batch)

    def _features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if batch.views is None:
            images = self._mixed(batch.images)
            first, second = self.towers.image(images), self.text_features(batch.texts)
        else:
            views = self._mixed(torch.cat([batch.images, batch.views]))
            first, second = self.towers.image(views).chunk(2)
        return unit(first), unit(second)

    def text_features(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Features (b, d) of captions; those that say the same go through the tower once."""
        rows = torch.cat([tokens.long() for tokens in texts.values()], dim=1)
        unique, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(unique) == len(rows):
            return self.towers.text(texts)
        first = torch.full((len(unique),), len(rows), device=rows.device)
        first = first.scatter_reduce(0, place, torch.arange(len(rows), device=rows.device), "amin")
        return self.towers.text({name: tokens[first] for name, tokens in texts.items()})[place]

    def _mixed(self, images: Tensor) -> Tensor:
        """Images whose amplitudes lean towards those of the most similar image, by up to `fourier`.

        Mixed are pixels in [0, 1]: of pixels with their mean taken off the brightness has a sign, which is a phase,
        and a darker partner would brighten an image.
        """
        if not self.fourier:
            return images
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.towers.mean, self.towers.std))
        with torch.no_grad(), frozen_statistics(self.model):
            features = unit(self.towers.image(images))
            weight = self.fourier * torch.rand(len(images)).to(images.device)
            return (mix_amplitudes(images * std + mean, most_similar(features), weight) - mean) / std


def unit(features: Tensor) -> Tensor:
    """Features (n, d) of norm 1, in single precision at least: in bfloat16 a logit at t = .01 is off by .25."""
    return F.normalize(features.float() if features.dtype in (torch.bfloat16, torch.float16) else features, dim=-1)
