"""Define the data flow and the options of every loss, and the modules that hold the settings of
one.

A loss of n pairs is a function of s+ (n,), the similarity of each pair, and of sums over its
negatives, (2, n): row 0 with the images as anchors, row 1 with the texts. `Contrast` has both, with
what is the same for all losses: both directions, the negatives within a view, the gathering of all
processes, the blocks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, Required, Self, TypedDict, TypeVar

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.losses.checks import check_choice, check_count, check_temperature, matched
from vldebias.losses.processes import gather_rows, mean_over_processes, rank
from vldebias.losses.sums import matrix_sums, matrix_total, product, row_blocks, slope_dtype

_PRECISIONS = {
    "autocast": None,
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def _factor_dtype(precision: str, device: str) -> torch.dtype | None:
    """Return the dtype to which the factors of similarities are rounded; None: they are not.

    Autocast rounds them on a GPU alone: few CPUs multiply half precision faster.
    """
    if precision == "autocast" and device == "cuda" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return _PRECISIONS[precision]


Settings = TypeVar("Settings", bound=BaseModel)


class BatchOptions(TypedDict, total=False):
    """Hold how a loss reads its batch; see `vldebias.losses.info_nce`."""

    reduction: Literal["mean", "none"]
    chunk_size: int | None
    gather: bool
    within_view: bool
    precision: Literal["autocast", "float32", "bfloat16", "float16"]


class LossOptions(BatchOptions, total=False):
    """Hold the options of every loss; see `vldebias.losses.info_nce`."""

    temperature: Required[float | Tensor]


class Contrast:
    """Hold n pairs and their negatives. Options and Raises: see `vldebias.losses.info_nce`.

    Attributes:
        anchors: the images and the texts of this process, (n, d) each, divided by the temperature.
        joint: the images and the texts of all processes, (N, d) each.
        rows: the rows of `joint` that this process holds. whole: they are all of them.
        positive: (n,) s+, the scaled similarity of each pair.
        count: K, the number of negatives of an anchor.
    """

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
        if reduction not in ("mean", "none"):
            raise InvalidInputError(f"reduction: expected 'mean' or 'none', got {reduction!r}")
        if chunk_size is not None:
            check_count("chunk_size", chunk_size, 1)
        self.reduction = reduction
        self.chunk_size = chunk_size
        self.gather = gather
        self.within_view = within_view
        image, text = matched(image_features, text_features)
        self._device = image.device.type
        self._dtype = _factor_dtype(precision, self._device)
        with self.precise():
            self.joint = [gather_rows(image), gather_rows(text)] if self.gather else [image, text]
            # One factor alone is divided by t, so that a product is s = <x, y> / t.
            self.anchors = [image / temperature, text / temperature]
            joint = len(self.joint[0])
            if joint < 2:
                raise InvalidInputError(
                    f"expected n >= 2 rows, since the other rows are the negatives, got n = {joint}"
                )
            self.whole = joint == len(image)
            start = 0 if self.whole else rank() * len(image)
            self.rows = slice(start, start + len(image))  # of this process
            self.positive = (self.anchors[0] * self.joint[1][self.rows]).sum(1)
        self.count = (joint - 1) * (2 if self.within_view else 1)

    def precise(self) -> torch.autocast:
        """Switch autocast off, since it would round the similarities, which the division by t makes
        large."""
        return torch.autocast(self._device, enabled=False)

    def sums(self, *scales: float, margin: Tensor | None = None) -> list[Tensor]:
        """Return log sum_j e^{scale s_j} (2, n) over the negatives of every anchor, for each scale.

        margin: (2, N), with the scale 1 alone: taken from the similarity to each row of the joint
        batch as a negative;
            row 0 from those of the texts to images, row 1 from those of the images to texts.
        """
        with self.precise():
            if self.whole and margin is None:
                # Images over texts are the rows of one matrix, texts over images its columns.
                both = matrix_sums(
                    scales,
                    self.anchors[0],
                    self.joint[1],
                    chunk_size=self.chunk_size,
                    dtype=self._dtype,
                )
                sums = torch.stack(both, dim=1)
            elif self.whole and margin is not None:
                # s_ij - m_0j - m_1i serves both: an anchor's own comes back outside of the sum. A
                # margin is not part of a unit row, so it is not rounded.
                images = _extended(self.anchors[0], 1.0, -margin[1])
                texts = _extended(self.joint[1], -margin[0], 1.0)
                both = matrix_sums(scales, images, texts, chunk_size=self.chunk_size)
                sums = torch.stack(both, dim=1) + margin.flip(0)
            else:
                # The rows of this process over all: each direction has a matrix.
                directions = [self._row_sums(scales, k, 1 - k, margin) for k in (0, 1)]
                sums = torch.stack(directions, dim=1)
            if self.within_view:
                # In its own view, the anchor itself stands at the pair's place, and is left out.
                within = [self._row_sums(scales, k, k, margin) for k in (0, 1)]
                sums = torch.logaddexp(sums, torch.stack(within, dim=1))
            return list(sums)

    def mean_total(self, bias: Tensor) -> Tensor:
        """Return the mean () over the anchors of both directions of sum_j log(1 + e^{s_j + bias})
        over negatives j."""
        x, y = self.anchors
        start = self.rows.start
        matrices = [(x, self.joint[1])]
        if not self.whole:
            # Of all rows one matrix serves both directions; of a part each has its own.
            matrices.append((y, self.joint[0]))
        if self.within_view:
            matrices += [(x, self.joint[0]), (y, self.joint[1])]
        with self.precise():
            parts = [
                matrix_total(a, b, bias, pair=start, chunk_size=self.chunk_size, dtype=self._dtype)
                for a, b in matrices
            ]
            if self.whole:
                # It is the sum over the rows' negatives and, seen from the columns, over theirs.
                parts[0] = 2 * parts[0]
            return torch.stack(parts).sum() / (2 * len(x))

    def _row_sums(self, scales: tuple[float, ...], k: int, j: int, margin: Tensor | None) -> Tensor:
        """Return the sums (T, n) of the anchors k over the joint rows j: 0 images, 1 texts."""
        a = self.anchors[k]
        b = self.joint[j]
        dtype = self._dtype
        if margin is not None:
            a = _extended(a, 1.0)
            b = _extended(b, -margin[k])
            dtype = None
        pair = self.rows.start
        size = self.chunk_size
        return matrix_sums(scales, a, b, pair=pair, chunk_size=size, both=False, dtype=dtype)[0]

    def each_row(self, row_loss: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Return a loss (2, n) that is not a function of sums: `row_loss` of the similarities (c,
        N) of some anchors.

        The columns are the rows of the other view, followed with `within_view` by those of the
        anchor's own view; -inf where they are no negatives. The slice selects these anchors among
        those of this process.
        """
        with self.precise():
            n = len(self.positive)
            # Without blocks and with all rows here, one product serves both directions.
            shared: tuple[Tensor, Tensor] | None = None
            if self.chunk_size is None and self.whole:
                scores = _Scores.apply(self.anchors[0], self.joint[1], 0, self._dtype)
                shared = (scores, scores.T)

            def loss_of_block(k: int, block: slice) -> Tensor:
                anchors = self.anchors[k][block]
                pair = self.rows.start + block.start
                if shared is None:
                    columns = _Scores.apply(anchors, self.joint[1 - k], pair, self._dtype)
                else:
                    columns = shared[k]
                if self.within_view:
                    within = _Scores.apply(anchors, self.joint[k], pair, self._dtype)
                    columns = torch.cat([columns, within], dim=1)
                return row_loss(columns, block)

            if self.chunk_size is None:
                return torch.stack([loss_of_block(k, slice(0, n)) for k in (0, 1)])
            losses = []
            for k in (0, 1):
                blocks = []
                for block in row_blocks(n, self.chunk_size):
                    # A block is computed again backward, or all (n, N) similarities were kept.
                    blocks.append(checkpoint(loss_of_block, k, block, use_reentrant=False))
                losses.append(torch.cat(blocks))
            return torch.stack(losses)

    def samples(self, features: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Return similarities (2, n, M) of the anchors to M further rows each, (n, M, d), or two
        for both sides."""
        sides = features if isinstance(features, tuple) else (features, features)
        with self.precise():
            moved = [side.to(self.positive.dtype) for side in sides]
            pairs = zip(self.anchors, moved, strict=True)
            return torch.stack(
                [torch.einsum("nd,nmd->nm", anchors, side) for anchors, side in pairs]
            )

    def reduce(self, losses: Tensor) -> Tensor:
        """Return the means (n,) of both directions (2, n) or, by `reduction`, the mean over the
        joint batch."""
        # (2, n) losses of images and of texts -> (n,) of pairs.
        pairs = losses.mean(0)
        if self.reduction == "none":
            return pairs
        # All processes hold the same value, as the convention of `processes` expects.
        return mean_over_processes(pairs.mean()) if self.gather else pairs.mean()


def _extended(rows: Tensor, *columns: float | Tensor) -> Tensor:
    """Return the rows (n, d) with further columns, each a number or (n,)."""
    further = [
        torch.as_tensor(c, dtype=rows.dtype, device=rows.device).expand(len(rows))[:, None]
        for c in columns
    ]
    return torch.cat([rows, *further], dim=1)


class _Scores(torch.autograd.Function):
    """Compute S = A B^T (n, N), with -inf where row i meets column `pair` + i, which is no negative
    of it.

    dtype: to which the factors are rounded, see `product`. Autocast rounds neither this product nor
    those of the gradient.
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
        # The pair's score is a constant; where it was used as -inf, NaN may have come back.
        slope.diagonal(ctx.pair).zero_()
        dtype = slope_dtype(ctx.dtype)
        with torch.autocast(a.device.type, enabled=False):
            slope_of_a = product(slope, b, dtype)
            slope_of_b = product(slope.T, a, dtype)
        return slope_of_a, slope_of_b, None, None


class Temperature(nn.Module):
    """Hold a temperature, fixed or learned as CLIP learns it: in the logarithm, and never below
    `minimum`.

    The parameter is put back into its range before it is used; a clamp inside the graph would stop
    its gradient for good once it had crossed the bound. Keep it out of weight decay, which would
    pull the temperature towards 1.
    """

    def __init__(
        self, temperature: float, *, learnable: bool = False, minimum: float = 0.01
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        if learnable and temperature < minimum:
            raise InvalidInputError(
                f"temperature: expected at least the minimum {minimum}, got {temperature}"
            )
        self.fixed = temperature
        self.minimum = minimum
        self.log_temperature = (
            nn.Parameter(torch.tensor(math.log(temperature))) if learnable else None
        )

    def forward(self) -> float | Tensor:
        """Return the number, or the tensor () to differentiate."""
        if self.log_temperature is None:
            return self.fixed
        with torch.no_grad():
            self.log_temperature.clamp_(min=math.log(self.minimum))
        return self.log_temperature.exp()


class ContrastiveLoss(nn.Module, Generic[Settings]):
    """Hold a loss function's settings, which are attributes and may change from step to step.

    The settings are the keywords of `function` and those below. Put it inside the module that
    DistributedDataParallel wraps, or each process learns a temperature of its own.

    Attributes:
        function: the loss function, which a subclass sets. reads_labels: it takes an integer of
            each row after the features.

    Args:
        temperature: t, or its first value if it is learned; .07, where CLIP begins.
        learnable_temperature: t becomes a parameter, kept at or above `minimum_temperature`, .01,
            as CLIP clips its scale 1/t at 100.
        reduction, chunk_size, gather, within_view, precision: see `vldebias.losses.info_nce`.
    """

    function: ClassVar[Callable[..., Tensor]]
    reads_labels: ClassVar[bool] = False
    temperature: Temperature

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        learnable_temperature: bool = False,
        minimum_temperature: float = 0.01,
        **settings: object,
    ) -> None:
        super().__init__()
        # The function's own keywords come first, then those that every loss passes to `Contrast`.
        defaults = {**_keywords(self.function), **_keywords(Contrast)}
        unknown = [name for name in settings if name not in defaults]
        if unknown:
            known = ("temperature", "learnable_temperature", "minimum_temperature", *defaults)
            raise TypeError(
                f"{type(self).__name__} has no {unknown[0]!r}; {did_you_mean(unknown[0], known)}"
            )
        self.temperature = Temperature(
            temperature, learnable=learnable_temperature, minimum=minimum_temperature
        )
        self.keywords = tuple(defaults)
        for name, value in (defaults | settings).items():
            setattr(self, name, value)
        # The function itself refuses settings: it is called once on two rows.
        rows = torch.eye(2)
        labels = (torch.arange(2),) if self.reads_labels else ()
        self.function(
            rows, rows, *labels, **{**defaults, **settings, "gather": False}, temperature=1.0
        )

    @classmethod
    def from_settings(cls, settings: Settings, **options: Any) -> Self:
        """Build the loss of a training run.

        Override it if a setting has another name than the keyword of the function.

        Args:
            settings: the settings that the loss declares, `Loss.settings`.
            options: the other keywords of the constructor, such as temperature and chunk_size.
        """
        known = _keywords(cls.function)
        values = {name: value for name, value in settings if name in known}
        return cls(**values, **options)

    def schedule(self, settings: Settings, step: int, steps: int) -> None:
        """Set what changes in the course of a training; nothing, unless a loss overrides it.

        Args:
            settings: the settings that the loss declares.
            step: the update that comes next, from 0.
            steps: number of updates of the whole training.
        """

    def forward(
        self, image_features: Tensor, text_features: Tensor, *values: object, **named: object
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            image_features: (n, d), rows of norm 1.
            text_features: (n, d), rows of norm 1.
            values: further positional arguments of the function, such as labels.
            named: further keywords of the function.
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
        """Return the settings."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.keywords)


def _keywords(function: Callable[..., object]) -> dict[str, Any]:
    """Return the keyword-only parameters of a function or class and their defaults, without the
    temperature."""
    defaults = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "temperature":
            defaults[parameter.name] = parameter.default
    return defaults
