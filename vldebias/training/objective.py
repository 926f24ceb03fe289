"""Create the loss for a training run, and combine the model and the loss in one module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vldebias import losses
from vldebias.errors import InvalidInputError
from vldebias.hosts.clip.towers import Towers
from vldebias.losses import LOSSES
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.batches import Batch
from vldebias.training.optim import still
from vldebias.training.settings import LossSettings, refuse_unread

_LEAST_WEIGHT = 1e-3  # mean weight below which a batch counts less, because no caption is right


class Objective(nn.Module):
    """The loss of a training run, with its schedule.

    Args:
        settings: name and settings of the loss.
        temperature: the model's temperature, which is used if the settings contain none. If it is
            below the loss's `least_temperature`, the latter is used.
        items: number of rows in the data set, or None for a stream.
        bias: the model's bias, used as the initial value for losses with a bias. Default: the
            loss's own initial value.
        two_views: whether to also use the other rows of the anchor's own view as negatives.
        gather: whether to use negatives from all processes.
        groups: number of groups, for group DRO.
        is_weighted: whether batches contain weights of the pairs.

    Raises:
        InvalidInputError: If the loss does not use one of the settings, or if the data are streamed
            and the loss stores a state per item.
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
        is_weighted: bool = False,
    ) -> None:
        super().__init__()
        refuse_unread(settings)
        self.declaration = LOSSES[settings.loss]
        declared = self.declaration.settings
        values = {name: getattr(settings, name) for name in declared.model_fields}
        self.loss_settings = declared.model_validate(values)
        self.positives = int(values.get("positives", 1))
        self.two_views = two_views
        if settings.temperature is not None:
            temperature = settings.temperature
        elif self.declaration.least_temperature is not None:
            temperature = max(temperature, self.declaration.least_temperature)
        options: dict[str, Any] = {
            "temperature": temperature,
            "chunk_size": settings.chunk_size,
            "gather": gather,
            "within_view": two_views,
        }
        if not self.declaration.fixed_temperature:
            options["learnable_temperature"] = settings.learn_temperature
        if self.declaration.reads == "index":
            if items is None:
                raise InvalidInputError(
                    f"{settings.loss}: expected data with a known number of pairs, got a stream; do"
                    " not stream, or choose another loss"
                )
            options["dataset_size"] = items
        self.groups: losses.GroupWeights | None = None
        if settings.group_dro is not None:
            if groups is None:
                raise InvalidInputError("group_dro: expected the number of groups, got none")
            self.groups = losses.GroupWeights(groups, step=settings.group_dro_step, gather=gather)
        self.is_weighted = is_weighted
        self.is_per_pair = is_weighted or self.groups is not None
        if self.is_per_pair:
            options["reduction"] = "none"
        module: Any = self.declaration.load_module()
        self.loss: Any = module.from_settings(self.loss_settings, **options)
        learned_bias = getattr(self.loss, "bias", None)
        if bias is not None and isinstance(learned_bias, nn.Parameter):
            with torch.no_grad():
                learned_bias.fill_(bias)

    def forward(
        self, first: Tensor, second: Tensor, batch: Batch, further_features: Tensor | None = None
    ) -> Tensor:
        """Return the loss for a batch.

        Args:
            first: features (b, d) of the images, rows of norm 1.
            second: features (b, d) of the captions or of a second view, rows of norm 1.
            batch: the batch, from which the loss may use columns.
            further_features: (b, M - 1, d), features of further views of each image, for losses
                with M positives.
        """
        values: list[Tensor | tuple[Tensor, Tensor]] = []
        name = self.declaration.name
        if self.declaration.reads:
            values.append(_batch_column(batch, self.declaration.reads, reader=name))
        if self.positives > 1:
            values.append(self._positives(first, second, further_features))
        loss: Tensor = self.loss(first, second, *values)
        shape = (len(first),) if self.is_per_pair else ()
        if not isinstance(loss, Tensor) or tuple(loss.shape) != shape:
            received = tuple(loss.shape) if isinstance(loss, Tensor) else loss
            raise InvalidInputError(
                f"loss {name!r}: got {received} from its forward method; expected a tensor of shape"
                f" {shape}, such as the result of Contrast.reduce"
            )
        if self.is_weighted:
            weights = _batch_column(batch, "weights", reader="keep")
            # The weights of a batch have a mean of 1, so that they do not change the step size.
            loss = loss * weights / weights.mean().clamp(min=_LEAST_WEIGHT)
        if self.groups is None:
            return loss.mean()
        weighted: Tensor = self.groups(loss, _batch_column(batch, "groups", reader="group_dro"))
        return weighted

    def _positives(
        self, first: Tensor, second: Tensor, further_features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return M positives (b, M, d) for the first features and M for the second.

        The first positive is the other half of the pair. The others are further views of the image.
        The first features are only compared with further views if the second features come from
        images too, because image-image cosines and image-caption cosines are on different scales.
        """
        if further_features is None:
            raise InvalidInputError(
                f"positives: expected a batch with {self.positives - 1} further views of each"
                " image, got none"
            )
        of_second = torch.cat([first[:, None], further_features], dim=1)
        if self.two_views:
            return torch.cat([second[:, None], further_features], dim=1), of_second
        # The M positives of an image are copies of its caption.
        return second[:, None].expand_as(of_second), of_second

    def schedule(self, step: int, steps: int) -> None:
        """Update the loss's scheduled settings.

        Args:
            step: index of the next update, from 0.
            steps: total number of updates.
        """
        self.loss.schedule(self.loss_settings, step, steps)

    @property
    def temperature(self) -> float:
        """Return the current temperature."""
        temperature = self.loss.temperature
        if isinstance(temperature, nn.Module):
            with torch.no_grad():
                return float(temperature())
        return float(temperature)

    @property
    def bias(self) -> float | None:
        """Return the current bias, or None if the loss has none."""
        bias = getattr(self.loss, "bias", None)
        if bias is None:
            return None
        return float(bias.detach())


def _batch_column(batch: Batch, name: str, *, reader: str) -> Tensor:
    """Return a column of the batch, or raise an error if the data do not have it."""
    column: Tensor | None = getattr(batch, name)
    if column is None:
        raise InvalidInputError(f"{reader}: expected data with {name} for every pair, got none")
    return column


class Trainee(nn.Module):
    """Combine the model and the loss in one module, so that both are wrapped together.

    Args:
        towers: the model.
        objective: the loss.
        fourier: alpha for mixing image amplitudes (SSA-CLR, Tran et al., 2023, section 4.3). 0.2 is
            best in the paper's Table 3. If 0, images are not mixed.
    """

    def __init__(self, towers: Towers, objective: Objective, *, fourier: float = 0.0) -> None:
        super().__init__()
        self.model = towers.model
        self.objective = objective
        self.towers = towers
        self.fourier = fourier

    def train(self, mode: bool = True) -> Self:
        """Set training mode, except for modules whose weights are all frozen."""
        super().train(mode)
        for part in self.modules():
            # Frozen batch norms must not update their statistics, and frozen towers must not use
            # dropout.
            weights = list(part.parameters())
            if weights and not any(weight.requires_grad for weight in weights):
                part.eval()
        return self

    def forward(self, batch: Batch, features: bool = False) -> object:
        """Return the loss () for a batch, or its features by name.

        This method computes both, because processes only synchronise in calls to `forward`.

        Args:
            batch: images or features with their texts and labels.
            features: whether to return the features instead of the loss.
        """
        views = [batch.images]
        if batch.views is not None:
            views.append(batch.views)
        contrasted = len(views)
        if batch.more_views is not None:
            views += batch.more_views.unbind(1)
        images = torch.cat(views)
        if self.fourier:
            images = self._mixed(images)
        # Encode all views (v b, 3, h, w) in one pass, so that batch norms see them together.
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
        """Return caption features (b, d), encoding equal captions only once."""
        # Captions are equal if all their token ids and masks (b, all tokens) are equal.
        rows = torch.cat([tokens.long() for tokens in texts.values()], dim=1)
        unique, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(unique) == len(rows):
            return self.towers.text(texts)
        # Find the first row of each caption, which torch.unique does not return.
        first = torch.full((len(unique),), len(rows), device=rows.device)
        first = first.scatter_reduce(0, place, torch.arange(len(rows), device=rows.device), "amin")
        return self.towers.text({name: tokens[first] for name, tokens in texts.items()})[place]

    def _mixed(self, images: Tensor) -> Tensor:
        """Mix each image's amplitudes with its partner's, with a weight of up to `fourier`.

        Pixels are mixed in the range [0, 1], because the phase of normalised pixels would include
        the sign of the brightness.
        """
        mean = images.new_tensor(self.towers.mean)[:, None, None]
        std = images.new_tensor(self.towers.std)[:, None, None]
        # This pass only finds partners, so it must not compute gradients or update statistics.
        with torch.no_grad(), still(self.model):
            features = unit(self.towers.image(images))
            # Use the CPU generator, so that all devices get the same numbers.
            weight = self.fourier * torch.rand(len(images)).to(images.device)
            partner = most_similar(features)
            return (mix_amplitudes(images * std + mean, partner, weight) - mean) / std


def unit(features: Tensor) -> Tensor:
    """Normalise features (n, d) to norm 1, in float32 or higher precision.

    In bfloat16, the rounding error of a logit at t = 0.01 could be 0.25.
    """
    if features.dtype in (torch.bfloat16, torch.float16):
        features = features.float()
    return F.normalize(features, dim=-1)
