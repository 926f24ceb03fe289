"""Define the batch computations and options shared by all losses, and their base class.

The loss for n pairs is a function of s+ (n,), the similarity of each pair, and of sums (2, n) over
its negatives. Row 0 uses the images as anchors, row 1 the texts. `Contrast` computes s+ and the
sums. It also handles negatives within a view, gathering across processes, and computation in
blocks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, Required, Self, TypedDict, TypeVar, Unpack

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.losses.checks import (
    check_count,
    check_temperature,
    matched,
    warn_of_norms,
)
from vldebias.losses.processes import gather_rows, mean_over_processes, rank
from vldebias.losses.sums import (
    Gradient,
    SoftplusTotal,
    Sums,
    matrix_sums,
    product,
    row_blocks,
    rows_at_once,
    slope_dtype,
)
from vldebias.utils.registry import check_choice

_PRECISIONS = {
    "autocast": None,
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def _factor_dtype(precision: str, device: str) -> torch.dtype | None:
    """Return the dtype to which the factors of similarities are rounded, or None for no rounding.

    With "autocast", they are rounded only on GPUs, because few CPUs multiply faster in half
    precision.
    """
    if precision == "autocast" and device == "cuda" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return _PRECISIONS[precision]


Settings = TypeVar("Settings", bound=BaseModel)


class BatchOptions(TypedDict, total=False):
    """Options that control how a loss uses its batch, as described in `info_nce`."""

    reduction: Literal["mean", "none"]
    chunk_size: int | None
    gather: bool
    within_view: bool
    precision: Literal["autocast", "float32", "bfloat16", "float16"]


class ModuleOptions(BatchOptions, total=False):
    """Options that every loss module accepts, as described in `ContrastiveLoss`."""

    temperature: Required[float]
    learnable_temperature: bool
    minimum_temperature: float


class Contrast:
    """Compute the similarities of n pairs and sums over their negatives.

    The options, and the errors that invalid ones raise, are those of `vldebias.losses.info_nce`.

    Attributes:
        joint: images and texts from all processes, (N, d) each.
        rows: slice of `joint` that contains the rows of this process.
        whole: whether this process contains all rows of the joint batch.
        count: K, the number of negatives per anchor.
        expects_unit_rows: whether features that are not normalised cause a warning.
    """

    expects_unit_rows = True

    def __init__(
        self,
        image_features: Tensor,
        text_features: Tensor,
        *,
        temperature: float | Tensor,
        reduction: str = "mean",
        chunk_size: int | None = None,
        gather: bool = False,
        within_view: bool = False,
        precision: str = "autocast",
    ) -> None:
        check_temperature(temperature)
        check_choice("precision", precision, tuple(_PRECISIONS))
        check_choice("reduction", reduction, ("mean", "none"))
        if chunk_size is not None:
            check_count("chunk_size", chunk_size, 1)
        self.reduction = reduction
        self.chunk_size = chunk_size
        self.gather = gather
        self.within_view = within_view
        image, text = matched(image_features, text_features)
        if self.expects_unit_rows:
            warn_of_norms(image, text)
        self._device = image.device.type
        self._dtype = _factor_dtype(precision, self._device)
        with self.precise():
            self.joint = [gather_rows(image), gather_rows(text)] if self.gather else [image, text]
            self._rows = [image, text]
            self._temperature = temperature
            joint = len(self.joint[0])
            if joint < 2:
                raise InvalidInputError(
                    "expected n >= 2 rows, because the other rows are the negatives, got"
                    f" n = {joint}"
                )
            self.whole = joint == len(image)
            start = 0 if self.whole else rank() * len(image)
            self.rows = slice(start, start + len(image))
        self.count = (joint - 1) * (2 if self.within_view else 1)
        self._gradient = Gradient()
        self._anchors: dict[int, Tensor] = {}

    @cached_property
    def positive(self) -> Tensor:
        """s+ (n,), the scaled similarity of each pair."""
        with self.precise():
            return (self._rows[0] * self.joint[1][self.rows]).sum(1) / self._temperature

    def anchor(self, side: int) -> Tensor:
        """Return this process's images (side 0) or texts (n, d), divided by the temperature."""
        if side not in self._anchors:
            # Only one factor of each product is divided by t, which gives s = <x, y> / t.
            self._anchors[side] = self._rows[side] / self._temperature
        return self._anchors[side]

    @property
    def anchors(self) -> list[Tensor]:
        """Images and texts from this process, (n, d) each, divided by the temperature."""
        return [self.anchor(side) for side in (0, 1)]

    @cached_property
    def both_views(self) -> Tensor:
        """Images and texts from all processes (2 N, d), divided by the root of the temperature.

        If both factors of a product are these rows, its entries are similarities.
        """
        # In place, because the rows of both views take much memory.
        return torch.cat(self.joint).div_(self._temperature**0.5)

    def precise(self) -> torch.autocast:
        """Return a context that disables autocast.

        Autocast would round the similarities, which are large after division by t.
        """
        return torch.autocast(self._device, enabled=False)

    def how(self, scales: Sequence[float]) -> Sums:
        """Return the sums for the options of this batch."""
        return Sums(scales, chunk_size=self.chunk_size, dtype=self._dtype, gradient=self._gradient)

    def sums(
        self,
        *scales: float,
        margin: Tensor | None = None,
        labels: Tensor | None = None,
        positives: Tensor | None = None,
    ) -> list[Tensor]:
        """Return log sum_j e^{scale s_j} (2, n) over each anchor's negatives, for every scale.

        Args:
            scales: factors by which the similarities are multiplied.
            margin: (2, N), subtracted from the similarity of an anchor to each row of the joint
                batch. Row 0 is used with images as anchors, row 1 with texts. Only allowed with
                scale 1.
            labels: (N,), the classes of the joint batch. If given, the sum over only the negatives
                of the anchor's own class, with scale 1, is appended.
            positives: (N,), the classes of the joint batch. If given, the sum of the similarities
                to the rows of the anchor's class, without itself and its pair, is appended. Only
                with both views, and if this process has all rows.
        """
        if not scales:
            raise InvalidInputError("sums: expected one scale or more, such as sums(1.0), got none")
        classes = None if labels is None else (labels, labels)
        how = self.how(scales)._replace(classes=classes)
        with self.precise():
            if self.whole and self.within_view and margin is None and labels is None:
                # The rows of both views are anchors and negatives, so one matrix contains all sums.
                n = len(self._rows[0])
                how = how._replace(diagonals=(0, n, -n))
                if positives is not None:
                    how = how._replace(positives=positives.repeat(2).to(self.joint[0].dtype))
                sums, positive, *of_positives = matrix_sums(self.both_views, None, how)
                if self._dtype is None:
                    # The matrix also contains s+, so it need not be computed from the features.
                    self.positive = positive
                return [row.unflatten(0, (2, n)) for row in (*sums, *of_positives)]
            if self.whole:
                # Images are the rows of the matrix and texts its columns, so one matrix contains
                # the anchors of both directions.
                margins = (None, None) if margin is None else margin.unbind()
                both = matrix_sums(self.anchor(0), self.joint[1], how, *margins)
                sums = torch.stack(both, dim=1)
                if margin is not None:
                    # Both directions use s_ij - m_0j - m_1i, so add the anchor's own margin back.
                    sums = sums + margin.flip(0)
            else:
                # This process has only some of the rows, so each direction needs its own matrix.
                directions = [self._row_sums(k, 1 - k, margin, how) for k in (0, 1)]
                sums = torch.stack(directions, dim=1)
            if self.within_view:
                # Within a view, the diagonal compares each anchor with itself, so it is excluded,
                # as pairs are.
                within = [self._row_sums(k, k, margin, how) for k in (0, 1)]
                sums = torch.logaddexp(sums, torch.stack(within, dim=1))
            return list(sums)

    def margin_gradient(self, value: Tensor, margin: Tensor) -> Tensor:
        """Return the gradient of `value` (), computed from `sums`, with respect to its margin.

        The gradient with respect to the features, which takes most of the time, is not computed.

        Args:
            value: a function () of `sums`.
            margin: the margin, which requires a gradient.
        """
        self._gradient.only_margins = True
        try:
            return torch.autograd.grad(value, margin, retain_graph=True)[0]
        finally:
            self._gradient.only_margins = False

    def mean_total(self, bias: Tensor) -> Tensor:
        """Return the sum of log(1 + e^{-z_j (s_j + bias)}), averaged over all anchors ().

        z is 1 for the anchor's pair and -1 for its negatives j.
        """
        # If this process has all rows, both directions share a matrix, in which rows and columns
        # are anchors, so each entry counts twice. Otherwise, each direction needs its own.
        sides = [(0, 1)] if self.whole else [(0, 1), (1, 0)]
        if self.within_view:
            sides += [(0, 0), (1, 1)]
        with self.precise():
            mean = torch.zeros_like(bias)
            for k, j in sides:
                factors = self.anchor(k), self.joint[j]
                size = self.chunk_size or rows_at_once(*factors)
                total = SoftplusTotal.apply(
                    *factors, bias, self.rows.start, k != j, size, self._dtype
                )
                count = 1 if self.whole and k != j else 2
                mean = mean + total / (count * len(self._rows[0]))
            return mean_over_processes(mean) if self.gather else mean

    def _row_sums(self, k: int, j: int, margin: Tensor | None, how: Sums) -> Tensor:
        """Return the sums (T, n) over the joint rows of side j, for the anchors of side k.

        Side 0 is images, and side 1 is texts.
        """
        how = how._replace(diagonals=(self.rows.start,), both=False)
        of_columns = None if margin is None else margin[k]
        if how.classes is not None:
            _, columns = how.classes
            how = how._replace(classes=(columns[self.rows], columns))
        return matrix_sums(self.anchor(k), self.joint[j], how, of_columns)[0]

    def each_row(self, row_loss: Callable[[int, Tensor, slice], Tensor]) -> Tensor:
        """Return a loss (2, n) that needs each similarity, not only the sums over negatives.

        Args:
            row_loss: function that takes the side of the anchors (0 for images, 1 for texts), the
                similarities (c, N) of a block of them and the block's slice of this process's
                anchors, and returns their losses (c,). The columns are the rows of the other view,
                followed, with `within_view`, by the rows of the anchor's own view. Entries that are
                not negatives are -inf.
        """
        with self.precise():
            n = len(self._rows[0])
            # Computed once, outside the blocks, which the backward pass recomputes.
            anchors_of_side = self.anchors
            # Without blocks or other processes, both directions share one matrix product.
            shared: tuple[Tensor, Tensor] | None = None
            if self.chunk_size is None and self.whole:
                scores = _Scores.apply(anchors_of_side[0], self.joint[1], 0, self._dtype)
                shared = (scores, scores.T)

            def loss_of_block(k: int, block: slice) -> Tensor:
                anchors = anchors_of_side[k][block]
                pair = self.rows.start + block.start
                if shared is None:
                    columns = _Scores.apply(anchors, self.joint[1 - k], pair, self._dtype)
                else:
                    columns = shared[k]
                if self.within_view:
                    within = _Scores.apply(anchors, self.joint[k], pair, self._dtype)
                    columns = torch.cat([columns, within], dim=1)
                return row_loss(k, columns, block)

            if self.chunk_size is None:
                return torch.stack([loss_of_block(k, slice(0, n)) for k in (0, 1)])
            # Recompute each block in the backward pass, because autograd would otherwise keep all
            # (n, N) similarities.
            losses = [
                checkpoint(loss_of_block, k, block, use_reentrant=False)
                for k in (0, 1)
                for block in row_blocks(n, self.chunk_size)
            ]
            return torch.cat(losses).view(2, n)

    def products(self, anchors: Tensor, columns: Tensor) -> Tensor:
        """Return <anchor_i, column_j> (c, N) in the precision of this batch.

        Args:
            anchors: (c, k), one row for each of some pairs of this process.
            columns: (N, k), one row for each pair of the joint batch.
        """
        # No row forms a pair with a column beyond the last.
        return _Scores.apply(anchors, columns, len(columns), self._dtype)

    def samples(self, features: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Return the similarities (2, n, M) between each anchor and its own M rows.

        Args:
            features: one tensor (n, M, d) for both directions, or a tuple of two.
        """
        sides = features if isinstance(features, tuple) else (features, features)
        with self.precise():
            moved = [side.to(self._rows[0].dtype) for side in sides]
            pairs = zip(self.anchors, moved, strict=True)
            return torch.stack(
                [torch.einsum("nd,nmd->nm", anchors, side) for anchors, side in pairs]
            )

    def reduce(self, losses: Tensor) -> Tensor:
        """Reduce the losses of both directions (2, n) according to the option `reduction`.

        The result is the losses of all pairs (n,), or their mean () over the joint batch of all
        processes.
        """
        # Some losses return one row that already combines both directions.
        if losses.ndim != 2 or losses.shape[1] != len(self._rows[0]):
            raise InvalidInputError(
                f"reduce: expected losses (2, {len(self._rows[0])}) of both directions, got"
                f" {tuple(losses.shape)}; compute them from `positive` and `sums`"
            )
        pairs = losses.mean(0)
        if self.reduction == "none":
            return pairs
        # Gradients are only correct if all processes return the same mean, as the docstring of
        # `processes` explains.
        return mean_over_processes(pairs.mean()) if self.gather else pairs.mean()


class _Scores(torch.autograd.Function):
    """Compute S = A B^T (n, N), with -inf for pairs (row i and column `pair` + i).

    The factors are rounded to `dtype`, as in `product`. Autocast affects neither this product nor
    the products in the gradient.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, pair: int, dtype: torch.dtype | None) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.pair = pair
        ctx.dtype = dtype
        s = product(a, b.T, dtype)
        s.diagonal(pair).fill_(-torch.inf)
        return s

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b = ctx.saved_tensors
        slope = outer[0].clone()
        # Pairs have a constant score of -inf, for which the incoming gradient may be NaN.
        slope.diagonal(ctx.pair).zero_()
        dtype = slope_dtype(ctx.dtype)
        with torch.autocast(a.device.type, enabled=False):
            slope_of_a = product(slope, b, dtype)
            slope_of_b = product(slope.T, a, dtype)
        return slope_of_a, slope_of_b, None, None


class Temperature(nn.Module):
    """Store a fixed temperature, or learn one through its logarithm as in CLIP.

    A learned temperature is bounded below by `minimum`. The parameter is clamped before use,
    outside the graph. If it were clamped inside the graph, its gradient would stay zero once it had
    crossed the bound. Exclude the parameter from weight decay, which would pull the temperature
    towards 1.

    Args:
        temperature: the temperature, or its initial value if it is learned.
        learnable: whether to learn the temperature.
        minimum: lower bound of a learned temperature.
    """

    def __init__(
        self, temperature: float, *, learnable: bool = False, minimum: float = 0.01
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        # CLIP's 0.01 may be read as 0.009997, because models store its logarithm in float32.
        if learnable and temperature < 0.99 * minimum:
            raise InvalidInputError(
                f"temperature: expected at least the minimum {minimum}, got {temperature}"
            )
        self.fixed = temperature
        self.minimum = minimum
        self.log_temperature = (
            nn.Parameter(torch.tensor(math.log(temperature))) if learnable else None
        )

    def forward(self) -> float | Tensor:
        """Return the temperature, a number if it is fixed or a tensor () if it is learned."""
        if self.log_temperature is None:
            return self.fixed
        with torch.no_grad():
            self.log_temperature.clamp_(min=math.log(self.minimum))
        return self.log_temperature.exp()


class ContrastiveLoss(nn.Module, Generic[Settings]):
    """Base class for loss modules, which store a loss function's settings.

    The settings are the keyword arguments of `function` and the arguments below. They are stored as
    attributes and may be changed between steps. With DistributedDataParallel, make this module part
    of the wrapped module; otherwise, each process learns its own temperature.

    Attributes:
        function: the loss function, set by subclasses.
        reads_labels: whether the function takes one integer per row after the features.

    Args:
        temperature: t, or its initial value if it is learned. CLIP starts from 0.07, and SigLIP
            from 0.1.
        learnable_temperature: whether to learn t.
        minimum_temperature: lower bound of a learned t. The default of 0.01 corresponds to CLIP,
            which clips 1/t at 100.
        settings: keyword arguments of `function`, plus the options of `vldebias.losses.info_nce`:
            reduction, chunk_size, gather, within_view and precision.
    """

    function: ClassVar[Callable[..., Tensor]]
    reads_labels: ClassVar[bool] = False
    temperature: Temperature

    def __init__(
        self,
        *,
        temperature: float,
        learnable_temperature: bool = False,
        minimum_temperature: float = 0.01,
        **settings: object,
    ) -> None:
        super().__init__()
        # The function's own keywords come first, followed by those that it passes to `Contrast`.
        defaults = {**keywords_of(self.function), **keywords_of(Contrast)}
        unknown = [name for name in settings if name not in defaults]
        if unknown:
            known = ("temperature", "learnable_temperature", "minimum_temperature", *defaults)
            raise TypeError(
                f"{type(self).__name__} has no {unknown[0]!r}; {did_you_mean(unknown[0], known)}"
            )
        values = defaults | settings
        for name, value in values.items():
            if value is inspect.Parameter.empty:
                raise TypeError(f"{type(self).__name__}: pass {name}=, which has no default")
        self.temperature = Temperature(
            temperature, learnable=learnable_temperature, minimum=minimum_temperature
        )
        self.keywords = tuple(defaults)
        for name, value in values.items():
            setattr(self, name, value)
        # The function validates its settings, so call it once on a dummy batch of two rows.
        rows = torch.eye(2)
        labels = (torch.arange(2),) if self.reads_labels else ()
        self.function(rows, rows, *labels, **{**values, "gather": False}, temperature=1.0)

    @classmethod
    def from_settings(cls, settings: Settings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss for a training run.

        Override this if a setting's name differs from the function's keyword.

        Args:
            settings: settings as declared in `Loss.settings`.
            options: further keyword arguments for the constructor, such as temperature.
        """
        known = keywords_of(cls.function)
        values = {name: value for name, value in settings if name in known}
        return cls(**values, **options)

    def schedule(self, settings: Settings, step: int, steps: int) -> None:
        """Update scheduled settings before a training step.

        The default does nothing. Losses with a schedule override it.

        Args:
            settings: settings as declared in `Loss.settings`.
            step: index of the next update, from 0.
            steps: total number of updates.
        """

    def forward(
        self, image_features: Tensor, text_features: Tensor, *values: object, **named: object
    ) -> Tensor:
        """Return the loss for a batch.

        Args:
            image_features: (n, d), rows of norm 1.
            text_features: (n, d), rows of norm 1.
            values: further positional arguments of the function, such as labels.
            named: further keyword arguments of the function.
        """
        settings = {name: getattr(self, name) for name in self.keywords}
        return self.function(
            image_features,
            text_features,
            *values,
            **named,
            **settings,
            temperature=self.temperature(),
        )

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.keywords)


def keywords_of(function: Callable[..., object]) -> dict[str, Any]:
    """Return the defaults of all keyword-only parameters except the temperature."""
    defaults = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "temperature":
            defaults[parameter.name] = parameter.default
    return defaults
