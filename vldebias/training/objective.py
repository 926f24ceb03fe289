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
    GCELoss,
    GlobalContrastiveLoss,
    GroupWeights,
    HardNegativeContrastiveLoss,
    InfoNCELoss,
    NegativeQueue,
    RINCELoss,
    SigmoidLoss,
    SpreadLoss,
    beta_annealing,
    distillation,
    q_warmup,
)
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.batches import Batch
from vldebias.training.optim import frozen_statistics
from vldebias.training.settings import LossSettings, Partner

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers
    from vldebias.training.debiasing import TextDebias

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
    queued: bool = False


_HARD = {"tau_plus": "tau_plus", "beta": "beta", "form": "form"}
_POPULARITY = ("popularity_lr", "popularity_start")
_KINDS: dict[str, _Kind] = {
    "info_nce": _Kind(InfoNCELoss, {}, queued=True),
    "rince": _Kind(RINCELoss, {"q": "q", "lam": "lam"}, scheduled=("q_start",), queued=True),
    "debiased": _Kind(DebiasedContrastiveLoss, {"tau_plus": "tau_plus"}, scheduled=("positives",), queued=True),
    "hard_negative": _Kind(HardNegativeContrastiveLoss, _HARD, scheduled=("beta_changes", "positives"), queued=True),
    "sogclr": _Kind(GlobalContrastiveLoss, {"gamma": "gamma"}, ("index",)),
    "nuclr": _Kind(GlobalContrastiveLoss, {"gamma": "gamma", "zeta_init": "zeta_init"}, ("index",), _POPULARITY),
    "sigmoid": _Kind(SigmoidLoss, {}),
    "spread": _Kind(SpreadLoss, {"spread_alpha": "alpha"}, ("labels",)),
    "gce": _Kind(GCELoss, {"gce_q": "q", "smoothing": "smoothing"}, ("captions",)),
}
_SHARED = ("loss", "temperature", "learn_temperature", "chunk_size", "distill", "keep_pairs", "group_dro",
           "group_dro_step")  # fmt: skip

FROZEN = ("frozen_first", "frozen_second")
"""Features by a frozen model, which get no gradient."""


class Objective(nn.Module):
    """A loss with its schedule. Build it with `build_objective`."""

    def __init__(
        self,
        loss: nn.Module,
        settings: LossSettings,
        queue: NegativeQueue | None = None,
        frozen_at: float = 1.0,
        groups: GroupWeights | None = None,
    ) -> None:
        super().__init__()
        self.loss: Any = loss
        self.groups = groups
        self.settings, self.queue, self.frozen_at = settings, queue, frozen_at

    def forward(
        self,
        first: Tensor,
        second: Tensor,
        batch: Batch,
        positives: Tensor | None = None,
        further_texts: Tensor | None = None,
        frozen_first: Tensor | None = None,
        frozen_second: Tensor | None = None,
    ) -> Tensor:
        """Loss of features (b, d) of norm 1; the columns that the loss reads are taken from the batch.

        positives: (b, M, d), further samples of each pair's class; with `further_texts` those of the texts alone.
        further_texts: (b, M, d), those of the images.
        frozen_first, frozen_second: (b, d') by the model as it was loaded, to be stayed near to.
        """
        columns = {name: getattr(batch, name) for name in _KINDS[self.settings.loss].columns}
        for name, column in columns.items():
            if column is None:
                text = f"{self.settings.loss}: reads the {name} of every pair, and these data have none"
                raise InvalidInputError(text)
        both = positives if further_texts is None else (further_texts, positives)
        more = {} if positives is None else {"positives": both}
        queue = {} if self.queue is None else {"queue": self.queue.negatives()}
        loss: Tensor = self.loss(first, second, *columns.values(), **more, **queue)
        if self.groups is not None:
            if batch.groups is None:
                raise InvalidInputError("group_dro: reads the group of every pair, and these data have none")
            loss = self.groups(loss, batch.groups)
        if frozen_first is None or frozen_second is None:
            return loss
        how = {"temperature": self.frozen_at, "gather": self.loss.gather}
        return loss + self.settings.distill * distillation(first, second, frozen_first, frozen_second, **how)

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
        return None if getattr(self.loss, "bias", None) is None else float(self.loss.bias.detach())


def build_objective(
    settings: LossSettings,
    *,
    temperature: float,
    items: int | None,
    bias: float | None = None,
    two_views: bool = False,
    gather: bool = False,
    dim: int | None = None,
    groups: int | None = None,
) -> Objective:
    """The loss that the settings name.

    Args:
        temperature: the model's own, taken where the settings give none; by rince only down to .1, since its pairs
            weigh e^(q s / t), which CLIP's .01 turns into a choice of a few.
        items: rows of the data set; None for a stream.
        bias: the model's own, where sigmoid starts from; None is that loss's default.
        two_views: so that the other rows of the own view are negatives too.
        gather: negatives from all processes.
        dim: of the features, for a queue of them.
        groups: how many there are, for group DRO.

    Raises:
        InvalidInputError: a setting that this loss does not read, a loss with a state per item over a stream, a queue
            without dim or longer than the data set.
    """
    kind = _KINDS[settings.loss]
    read = {*kind.settings, *kind.scheduled, *_SHARED, *(("queue",) if kind.queued else ())}
    unread = sorted(set(LossSettings.model_fields) & settings.model_fields_set - read)
    if unread:  # it would be taken for a setting that does something
        raise InvalidInputError(
            f"{settings.loss} does not read {', '.join(unread)}; it reads {', '.join(sorted(read - {'loss'}))}"
        )
    options: dict[str, Any] = {theirs: getattr(settings, ours) for ours, theirs in kind.settings.items()}
    own = max(temperature, MILD) if settings.loss == "rince" else temperature
    options |= {"temperature": settings.temperature or own, "chunk_size": settings.chunk_size, "gather": gather}
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
    queue = None
    if settings.queue is not None:
        if dim is None:
            raise InvalidInputError("queue: expected dim, the dimension of the features that it holds")
        if items is not None and settings.queue.rows >= items:
            raise InvalidInputError(
                f"queue: {settings.queue.rows} rows of {items} pairs: each would meet itself as a negative; expected "
                "fewer rows than pairs"
            )
        queue = NegativeQueue(settings.queue.rows, dim)
    weights = None
    if settings.group_dro is not None:
        if groups is None:
            raise InvalidInputError("group_dro: expected groups, the number of them")
        weights = GroupWeights(groups, step=settings.group_dro_step, gather=gather)
        options["reduction"] = "none"
    return Objective(kind.build(**options), settings, queue, frozen_at=temperature, groups=weights)


class Trainee(nn.Module):
    """Model and loss as one module, so that wrapping it for several processes wraps both: batch -> loss.

    Args:
        objective: the loss; its parameters (a learned temperature) train with the model's.
        fourier: alpha of the amplitude mixing of images (SSA-CLR, section 4.3; .2 is best in its Table 3); 0 is none.
        rates: of some parameters, times the learning rate of the others.
        frozen: the model as it was loaded, where the settings of the objective ask to stay near it.
        debias: the projection that the texts go through, and the pair differences to keep.
        partner: "any" is the most similar row of the batch as in the paper, with two views mostly the other view of the
            image itself; "other" is the most similar view of another image.
    """

    def __init__(
        self,
        towers: Towers,
        objective: Objective,
        *,
        fourier: float = 0.0,
        partner: Partner = "any",
        rates: Mapping[nn.Parameter, float] | None = None,
        frozen: Towers | None = None,
        debias: TextDebias | None = None,
    ) -> None:
        super().__init__()
        self.model, self.objective, self.towers = towers.model, objective, towers
        self.debias = debias
        self.fourier, self.partner, self.rates = fourier, partner, rates or {}
        self.frozen = frozen  # no module of this one: it is neither trained nor saved nor split

    def forward(self, batch: Batch, features: bool = False) -> Any:
        """The loss () of a batch; or what it reads beside the batch's columns, by the names of `Objective`.

        One method for both, since what wraps this module for several processes follows calls of `forward` alone.
        """
        parts = self._features(batch)
        if features:
            return parts
        loss: Tensor = self.objective(**parts, batch=batch)
        if self.debias is not None and self.debias.keep:
            loss = loss + self.debias.keep * self.debias.drift()
        return loss

    def at(self, step: int, steps: int) -> None:
        """Moves what follows a schedule to where it is at a step."""
        self.objective.at(step, steps)
        if self.debias is not None:
            self.debias.at(step)

    def _features(self, batch: Batch) -> dict[str, Tensor]:
        shown = [batch.images, *(() if batch.views is None else (batch.views,))]
        images = self._mixed(torch.cat(shown), views=len(shown))
        further = batch.images[:0] if batch.further is None else batch.further.flatten(0, 1)
        seen = self.towers.image(torch.cat([images, further])) if len(further) else self.towers.image(images)
        first, *others = unit(seen[: len(images)]).chunk(len(shown))
        features = {"first": first}
        if others:
            features["second"] = others[0]
        else:
            more = {name: tokens.flatten(0, 1) for name, tokens in batch.further_texts.items()}
            every = {name: torch.cat([tokens, more[name]]) if more else tokens for name, tokens in batch.texts.items()}
            texts = self.text_features(every)
            said = unit(texts if self.debias is None else self.debias(texts))
            features["second"] = said[: len(batch)]
            if more:
                features["further_texts"] = said[len(batch) :].unflatten(0, (len(batch), -1))
        if len(further):
            features["positives"] = unit(seen[len(images) :]).unflatten(0, (len(batch), -1))
        if self.frozen is not None:
            with torch.no_grad():
                before = unit(self.frozen.image(images)).chunk(len(shown))
                texts = before[1] if others else unit(self.frozen.text(batch.texts))
                features |= dict(zip(FROZEN, (before[0], texts), strict=True))
        return features

    def text_features(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Features (b, d) of captions; those that say the same go through the tower once."""
        rows = torch.cat([tokens.long() for tokens in texts.values()], dim=1)
        unique, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(unique) == len(rows):
            return self.towers.text(texts)
        first = torch.full((len(unique),), len(rows), device=rows.device)
        first = first.scatter_reduce(0, place, torch.arange(len(rows), device=rows.device), "amin")
        return self.towers.text({name: tokens[first] for name, tokens in texts.items()})[place]

    def _mixed(self, images: Tensor, views: int = 1) -> Tensor:
        """Images whose amplitudes lean towards those of the most similar image, by up to `fourier`.

        views: how often each image is among them. Mixed are pixels in [0, 1]: of pixels with their mean taken off the
        brightness has a sign, which is a phase, and a darker partner would brighten an image.
        """
        if not self.fourier:
            return images
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.towers.mean, self.towers.std))
        with torch.no_grad(), frozen_statistics(self.model):
            features = unit(self.towers.image(images))
            weight = self.fourier * torch.rand(len(images)).to(images.device)
            source = None if self.partner == "any" else torch.arange(len(images) // views).repeat(views)
            partner = most_similar(features, None if source is None else source.to(images.device))
            return (mix_amplitudes(images * std + mean, partner, weight) - mean) / std


def unit(features: Tensor) -> Tensor:
    """Features (n, d) of norm 1, in single precision at least: in bfloat16 a logit at t = .01 is off by .25."""
    return F.normalize(features.float() if features.dtype in (torch.bfloat16, torch.float16) else features, dim=-1)
