"""Build the loss of a run by name, with its schedule, and join model and loss in one module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

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


class Objective(nn.Module):
    """Hold the loss that the settings name, with its schedule.

    Args:
        settings: which loss, and its settings.
        temperature: the model's, used if the settings give none; at least the loss's
            `least_temperature`.
        items: rows of the data set; None for a stream.
        bias: the model's own, from which a loss with a bias starts; None is that loss's default.
        two_views: the other rows of the anchor's own view are negatives too.
        gather: take negatives from all processes.
        groups: number of groups, for group DRO.

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
        refuse_unread(settings)
        self.declaration = LOSSES[settings.loss]
        declared = self.declaration.settings
        values = {name: getattr(settings, name) for name in declared.model_fields}
        self.loss_settings = declared.model_validate(values)
        self.positives: int = values.get("positives", 1)
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
        module: Any = self.declaration.load_module()
        self.loss: Any = module.from_settings(self.loss_settings, **options)
        learned_bias = getattr(self.loss, "bias", None)
        if bias is not None and isinstance(learned_bias, nn.Parameter):
            with torch.no_grad():
                learned_bias.fill_(bias)

    def forward(
        self, first: Tensor, second: Tensor, batch: Batch, further_features: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            first: features (b, d) of the images, rows of norm 1.
            second: features (b, d) of the captions or of a second view, rows of norm 1.
            batch: the batch, of which the loss may read a column.
            further_features: (b, M - 1, d), other views of each image, if the settings ask for M
                positives.
        """
        values: list[Tensor | tuple[Tensor, Tensor]] = []
        name = self.declaration.name
        if self.declaration.reads:
            values.append(_batch_column(batch, self.declaration.reads, reader=name))
        if self.positives > 1:
            values.append(self._positives(first, second, further_features))
        loss: Tensor = self.loss(first, second, *values)
        shape = () if self.groups is None else (len(first),)
        if not isinstance(loss, Tensor) or tuple(loss.shape) != shape:
            received = tuple(loss.shape) if isinstance(loss, Tensor) else loss
            raise InvalidInputError(
                f"loss {name!r}: got {received} from its forward; expected a tensor of shape"
                f" {shape}, such as the result of Contrast.reduce"
            )
        if self.groups is None:
            return loss
        weighted: Tensor = self.groups(loss, _batch_column(batch, "groups", reader="group_dro"))
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
                f" {self.positives - 1} of each image"
            )
        of_second = torch.cat([first[:, None], further_features], dim=1)
        if self.two_views:
            return torch.cat([second[:, None], further_features], dim=1), of_second
        # An image's positives are M times its one caption, which weighs as one.
        return second[:, None].expand_as(of_second), of_second

    def schedule(self, step: int, steps: int) -> None:
        """Set the scheduled values of the loss.

        Args:
            step: the update that comes next, from 0.
            steps: number of updates of the whole training.
        """
        self.loss.schedule(self.loss_settings, step, steps)

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


def _batch_column(batch: Batch, name: str, *, reader: str) -> Tensor:
    """Return a column of the batch; refuse data without it, naming what would read it."""
    column: Tensor | None = getattr(batch, name)
    if column is None:
        raise InvalidInputError(
            f"{reader}: reads the {name} of every pair, and these data have none"
        )
    return column


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

    def forward(self, batch: Batch, features: bool = False) -> object:
        """Return the loss () of a batch; or its features, since processes synchronise in calls of
        `forward` alone.

        Args:
            batch: the batch.
            features: return the features instead of the loss.
        """
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
