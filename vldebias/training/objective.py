"""Build the loss of a run by name, with its schedule, and join model and loss in one module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vldebias import losses
from vldebias.errors import InvalidInputError, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.batches import Batch
from vldebias.training.optim import still
from vldebias.training.settings import LossSettings

MILD = 0.1  # lowest default temperature of rince, whose pairs weigh e^(q s / t)
STEEP = 20  # q / t above which rince warns
# Temperature under which many rows of a batch lie below the floor of the debiased estimate.
FLOORED = 0.05


# loss -> the settings that it, its schedule or its batches read, besides those that all losses do.
_ESTIMATE = ("tau_plus", "floor", "below_floor", "positives")
_SETTINGS_OF_LOSS = {
    "info_nce": (),
    "rince": ("q", "lam", "q_start"),
    "debiased": _ESTIMATE,
    "hard_negative": (*_ESTIMATE, "beta", "beta_changes"),
    "sogclr": ("gamma",),
    "nuclr": ("gamma", "zeta_init", "popularity_lr", "popularity_wait"),
    "sigmoid": (),
    "spread": ("spread_alpha",),
    "gce": ("gce_q", "smoothing"),
}
_SHARED = {"loss", "temperature", "learn_temperature", "chunk_size", "group_dro", "group_dro_step"}
# loss -> the column of the batch that it reads besides the features.
_COLUMN_OF_LOSS = {"sogclr": "index", "nuclr": "index", "spread": "labels", "gce": "captions"}


class Objective(nn.Module):
    """Hold the loss that the settings name, with its schedule.

    Args:
        temperature: of the model, used where the settings give none; with rince at least .1, since
            pairs weigh e^(q s / t), and at CLIP's .01 a few would outweigh all others.
        items: rows of the data set; None for a stream.
        bias: the model's own, from which sigmoid starts; None is that loss's default.
        two_views: the other rows of the anchor's own view are negatives too.
        gather: negatives from all processes. groups: how many there are, for group DRO.

    Raises:
        InvalidInputError: a setting that the loss does not read, or a state per item of a stream.
    """

    def __init__(
        self,
        settings: LossSettings,
        *,
        temperature: float,
        items: int | None,
        bias: float | None = None,
        two_views: bool = False,
        gather: bool = False,
        groups: int | None = None,
    ) -> None:
        super().__init__()
        read = {*_SETTINGS_OF_LOSS[settings.loss], *_SHARED}
        unread = sorted(set(LossSettings.model_fields) & settings.model_fields_set - read)
        if unread:
            known = ", ".join(sorted(read - {"loss"}))
            raise InvalidInputError(
                f"{settings.loss} does not read {', '.join(unread)}; it reads {known}"
            )
        self.settings = settings
        self.two_views = two_views
        if settings.temperature is not None:
            temperature = settings.temperature
        elif settings.loss == "rince":
            temperature = max(temperature, MILD)
        _warn_of_low_temperature(settings, temperature)
        options: dict[str, Any] = {
            "temperature": temperature,
            "learnable_temperature": settings.learn_temperature,
            "chunk_size": settings.chunk_size,
            "gather": gather,
            "within_view": two_views,
        }
        estimate = {
            "tau_plus": settings.tau_plus,
            "floor": settings.floor,
            "below_floor": settings.below_floor,
        }
        running = {"gamma": settings.gamma, "zeta_init": settings.zeta_init}
        # Each loss with its own settings.
        modules: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
            "rince": (losses.RINCELoss, {"q": settings.q, "lam": settings.lam}),
            "info_nce": (losses.InfoNCELoss, {}),
            "debiased": (losses.DebiasedContrastiveLoss, estimate),
            "hard_negative": (
                losses.HardNegativeContrastiveLoss,
                {**estimate, "beta": settings.beta},
            ),
            "spread": (losses.SpreadLoss, {"alpha": settings.spread_alpha}),
            "gce": (losses.GCELoss, {"q": settings.gce_q, "smoothing": settings.smoothing}),
            "sigmoid": (losses.SigmoidLoss, {}),
            "sogclr": (losses.GlobalContrastiveLoss, running),
            "nuclr": (losses.GlobalContrastiveLoss, running),
        }
        module, values = modules[settings.loss]
        if settings.loss == "sigmoid":
            # SigLIP has no negatives within a view.
            options["within_view"] = False
            if bias is not None:
                options["bias"] = bias
        elif settings.loss in ("sogclr", "nuclr"):
            del options["learnable_temperature"]
            if items is None:
                raise InvalidInputError(
                    f"{settings.loss}: needs the number of pairs; do not stream, or choose another"
                    " loss"
                )
            options["dataset_size"] = items
        self.groups: losses.GroupWeights | None = None
        if settings.group_dro is not None:
            if groups is None:
                raise InvalidInputError("group_dro: expected groups, the number of them")
            self.groups = losses.GroupWeights(groups, step=settings.group_dro_step, gather=gather)
            # The weights of groups need the loss of every pair.
            options["reduction"] = "none"
        self.loss: Any = module(**values, **options)

    def forward(
        self, first: Tensor, second: Tensor, batch: Batch, further_features: Tensor | None = None
    ) -> Tensor:
        """Return the loss of features (b, d) of norm 1; the loss also reads its column of the
        batch.

        further_features: (b, M - 1, d), of other views of each image, where the settings ask for M
        positives.
        """
        values = list[Any]()
        column = _COLUMN_OF_LOSS.get(self.settings.loss)
        if column is not None:
            values.append(self._batch_column(batch, column))
        if self.settings.positives > 1:
            values.append(self._positives(first, second, further_features))
        loss: Tensor = self.loss(first, second, *values)
        if self.groups is None:
            return loss
        weighted: Tensor = self.groups(loss, self._batch_column(batch, "groups"))
        return weighted

    def _positives(
        self, first: Tensor, second: Tensor, further_features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the M positives (b, M, d) of the first rows and those of the second.

        The first is the row that a row belongs with. The others are further views of the image; to
        an image they are compared with only where both sides are images, for cosines of two images
        lie elsewhere than those with captions, of which there is one.
        """
        if further_features is None:
            raise InvalidInputError(
                f"positives: got a batch without further views; expected"
                f" {self.settings.positives - 1} of each image"
            )
        of_second = torch.cat([first[:, None], further_features], dim=1)
        if self.two_views:
            return torch.cat([second[:, None], further_features], dim=1), of_second
        # An image's positives are M times its one caption, which weighs as one.
        return second[:, None].expand_as(of_second), of_second

    def _batch_column(self, batch: Batch, name: str) -> Tensor:
        column: Tensor | None = getattr(batch, name)
        if column is None:
            reader = "group_dro" if name == "groups" else self.settings.loss
            raise InvalidInputError(
                f"{reader}: reads the {name} of every pair, and these data have none"
            )
        return column

    def schedule(self, step: int, steps: int) -> None:
        """Set q, beta or the popularity's step size to its scheduled value at one of `steps`."""
        settings = self.settings
        loss = self.loss
        if settings.loss == "rince" and settings.q_start is not None:
            loss.q = losses.q_warmup(step, steps, start=settings.q_start, end=settings.q)
        elif settings.loss == "nuclr":
            is_waiting = step < settings.popularity_wait * steps
            loss.popularity_lr = 0.0 if is_waiting else settings.popularity_lr
        elif settings.loss == "hard_negative" and settings.beta_changes is not None:
            # Appendix A.2.2: beta falls by its share once in every `steps / changes` steps.
            changes = step * settings.beta_changes // steps
            loss.beta = settings.beta * (1 - changes / settings.beta_changes)

    @property
    def temperature(self) -> float:
        """Return the current t."""
        temperature: Any = self.loss.temperature
        if isinstance(temperature, nn.Module):
            with torch.no_grad():
                temperature = temperature()
        return float(temperature)

    @property
    def bias(self) -> float | None:
        """Return SigLIP's current bias; None of a loss without."""
        bias = getattr(self.loss, "bias", None)
        if bias is None:
            return None
        return float(bias.detach())


def _warn_of_low_temperature(settings: LossSettings, temperature: float) -> None:
    """Warn of a temperature that is too low for the loss."""
    if settings.loss == "rince":
        # A few pairs would outweigh all others: at t = .01 and q = .4 a cosine that is lower by .1
        # weighs 55 times less.
        steepness = settings.q / temperature
        if steepness > STEEP:
            warn(
                f"rince at temperature {temperature:.3g} and q {settings.q} weighs close pairs up"
                f" to e^{steepness:.0f} times more; raise temperature to 0.1"
            )
    elif settings.loss in ("debiased", "hard_negative"):
        has_floor = settings.below_floor == "floor" and settings.floor != 0
        # Without tau_plus nothing is estimated.
        if has_floor and settings.tau_plus > 0 and temperature < FLOORED:
            warn(
                f"{settings.loss} at temperature {temperature:.3g}: the debiased estimate of many"
                " rows lies below its floor, and their negatives have no gradient; set"
                " below_floor=biased (the authors' rule) or a temperature of 0.1"
            )


class Trainee(nn.Module):
    """Join model and loss in one module, so that wrapping it for several processes wraps both:
    batch -> loss.

    Args:
        towers: the model.
        objective: the loss.
        fourier: alpha of the amplitude mixing of images (SSA-CLR, Tran et al., 2023, section
            4.3; .2 is best in its Table 3); 0 is none.
        partner: "any" mixes with the most similar image of the batch as in the paper, with two
            views mostly the other view of the image itself; "other" with the most similar view of
            another image.
    """

    def __init__(
        self,
        towers: Towers,
        objective: Objective,
        *,
        fourier: float = 0.0,
        partner: Literal["any", "other"] = "any",
    ) -> None:
        super().__init__()
        self.model = towers.model
        self.objective = objective
        self.towers = towers
        self.fourier = fourier
        self.partner = partner

    def train(self, mode: bool = True) -> Self:
        """Set the mode of what is trained; parts whose weights are all frozen stay in evaluation
        mode."""
        super().train(mode)
        for part in self.modules():
            # A frozen batch norm must not update its statistics, nor a frozen tower apply dropout.
            weights = list(part.parameters())
            if weights and not any(weight.requires_grad for weight in weights):
                part.eval()
        return self

    def forward(self, batch: Batch, features: bool = False) -> Any:
        """Return the loss () of a batch; or its features, since processes synchronise in calls of
        `forward` alone."""
        views = [batch.images]
        if batch.views is not None:
            views.append(batch.views)
        contrasted = len(views)
        if batch.more_views is not None:
            views += batch.more_views.unbind(1)
        images = torch.cat(views)
        if self.fourier:
            images = self._mixed(images, views=len(views))
        # One pass for all views, (v b, 3, h, w): batch norms see them together.
        features_of_views = unit(self.towers.image(images)).chunk(len(views))
        if batch.views is None:
            second = unit(self.text_features(batch.texts))
        else:
            second = features_of_views[1]
        parts = {"first": features_of_views[0], "second": second}
        if batch.more_views is not None:
            parts["further_features"] = torch.stack(features_of_views[contrasted:], dim=1)
        if features:
            return parts
        return self.objective(**parts, batch=batch)

    def text_features(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Return features (b, d) of captions; equal captions go through the tower once."""
        # (b, all tokens): two captions are equal where ids and mask are.
        rows = torch.cat([tokens.long() for tokens in texts.values()], dim=1)
        unique, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(unique) == len(rows):
            return self.towers.text(texts)
        # The first row of each text, since torch.unique says only which text a row has.
        first = torch.full((len(unique),), len(rows), device=rows.device)
        first = first.scatter_reduce(0, place, torch.arange(len(rows), device=rows.device), "amin")
        return self.towers.text({name: tokens[first] for name, tokens in texts.items()})[place]

    def _mixed(self, images: Tensor, views: int) -> Tensor:
        """Return images whose amplitudes lean towards those of the most similar image, by up to
        `fourier`.

        Pixels are mixed in [0, 1]: of normalised ones the phase would hold the sign of the
        brightness.
        """
        mean = images.new_tensor(self.towers.mean)[:, None, None]
        std = images.new_tensor(self.towers.std)[:, None, None]
        source = None
        if self.partner == "other":
            numbers = torch.arange(len(images) // views, device=images.device)
            # Views follow each other as whole batches: image i is at i, b + i, ...
            source = numbers.repeat(views)
        # This pass only finds partners: no gradient, and no running statistics.
        with torch.no_grad(), still(self.model):
            features = unit(self.towers.image(images))
            # The numbers come from the CPU's generator, so that they are the same on any device.
            weight = self.fourier * torch.rand(len(images)).to(images.device)
            partner = most_similar(features, source)
            return (mix_amplitudes(images * std + mean, partner, weight) - mean) / std


def unit(features: Tensor) -> Tensor:
    """Return features (n, d) of norm 1, in single precision at least: in bfloat16 a logit at t =
    .01 is off by .25."""
    if features.dtype in (torch.bfloat16, torch.float16):
        features = features.float()
    return F.normalize(features, dim=-1)
