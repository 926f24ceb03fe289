"""The data flow and the options under every loss, and the modules that hold the settings of one.

A loss of n pairs is a function of s+ (n,), the similarity of each pair, and of sums over its negatives, (2, n): row 0
with the images as anchors, row 1 with the texts. `Contrast` has both. What surrounds them is the same for all losses
and written once here: both directions, the negatives within a view, the gathering of all processes, the blocks.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NotRequired, Required, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.losses.checks import check_choice, check_temperature, matched
from vldebias.losses.processes import gather_rows, mean_over_processes, own_rows
from vldebias.losses.sums import Reduction, matrix_sums, matrix_total, row_blocks, score_block


class Flow(TypedDict, total=False):
    """How a loss is computed; see `vldebias.losses.info_nce`."""

    reduction: Literal["mean", "none"]
    chunk_size: int | None
    gather: bool
    within_view: bool


class LossOptions(Flow):
    """What every loss takes; see `vldebias.losses.info_nce`."""

    temperature: Required[float | Tensor]
    queue: NotRequired[tuple[Tensor, Tensor] | None]


FLOW: Flow = {"reduction": "mean", "chunk_size": None, "gather": False, "within_view": False}


def complete(flow: Flow) -> Flow:
    """The options with their defaults.

    Raises:
        InvalidInputError: an unknown reduction, chunk_size < 1.
        TypeError: an option that there is not.
    """
    unknown = [name for name in flow if name not in FLOW]
    if unknown:
        raise TypeError(f"a loss has no option {unknown[0]!r}; {did_you_mean(unknown[0], ['temperature', *FLOW])}")
    every: Flow = {**FLOW, **flow}
    check_choice("reduction", every["reduction"], ("mean", "none"))
    chunk_size = every["chunk_size"]
    if chunk_size is not None and chunk_size < 1:
        raise InvalidInputError(f"chunk_size: expected a positive number of rows or None, got {chunk_size}")
    return every


class Contrast:
    """n pairs and their negatives. Options and Raises: see `vldebias.losses.info_nce`.

    Attributes:
        anchors: the images and the texts of this process, (n, d) each, divided by the temperature.
        joint: the images and the texts of all processes, (N, d) each.
        rows: which of them are those of this process.
        queue: images and texts that are negatives and no more, (Q, d) each; Q may be 0.
        positive: (n,) s+, the scaled similarity of each pair.
        count: K, how many negatives an anchor has.
    """

    def __init__(
        self,
        image_features: Tensor,
        text_features: Tensor,
        *,
        temperature: float | Tensor,
        bias: float | Tensor | None = None,
        queue: tuple[Tensor, Tensor] | None = None,
        **flow: Unpack[Flow],
    ) -> None:
        check_temperature(temperature)
        flow = complete(flow)
        self.reduction, self.chunk_size = flow["reduction"], flow["chunk_size"]
        self.gather, self.within_view = flow["gather"], flow["within_view"]
        image, text = matched(image_features, text_features)
        self._device = image.device.type
        with self.precise():
            self.joint = [gather_rows(image), gather_rows(text)] if self.gather else [image, text]
            self.queue = [_further(rows, image) for rows in queue or (image[:0], text[:0])]
            self.anchors = [image / temperature, text / temperature]
            if bias is not None:  # as one more dimension, so that it is part of every similarity and gets its gradient
                own = torch.as_tensor(bias, dtype=image.dtype, device=image.device).expand(len(image))
                self.anchors = [_beside(rows, own) for rows in self.anchors]
                self.joint = [_beside(rows, 1.0) for rows in self.joint]
                self.queue = [_beside(rows, 1.0) for rows in self.queue]
            joint = len(self.joint[0])
            if joint < 2:
                raise InvalidInputError(
                    f"expected n >= 2 rows, since the other rows are the negatives, got n = {joint}"
                )
            self.rows = own_rows(len(image), joint)
            self.positive = (self.anchors[0] * self.joint[1][self.rows]).sum(1)
        self.count = (joint - 1 + len(self.queue[0])) * (2 if self.within_view else 1)

    def precise(self) -> torch.autocast:
        """Autocast off: it would round the similarities to half precision, which the division by t makes large."""
        return torch.autocast(self._device, enabled=False)

    def sums(self, *terms: Reduction, margin: Tensor | None = None) -> list[Tensor]:
        """(2, n) of each term, over the negatives of every anchor.

        margin: (2, N), for `LogSum()`: taken from the similarity to each row of the joint batch as a negative; row 0
            from those of the texts to images, row 1 from those of the images to texts.
        """
        with self.precise():
            if len(self.anchors[0]) < len(self.joint[0]):
                sums = torch.stack([self._of_rows(terms, k, 1 - k, margin) for k in (0, 1)], dim=1)
            else:
                sums = self._of_both(terms, margin)
            parts = [sums]
            if self.within_view:
                parts.append(torch.stack([self._of_rows(terms, k, k, margin) for k in (0, 1)], dim=1))
            if len(self.queue[0]):
                parts += [self._of_queue(terms, across) for across in (True, False)[: 1 + self.within_view]]
            return [functools.reduce(term.merged, each) for term, *each in zip(terms, *parts, strict=True)]

    def mean_total(self, bias: Tensor) -> Tensor:
        """() mean over the anchors of both directions of sum_j log(1 + e^{s_j + bias}) over their negatives."""
        (x, y), start = self.anchors, self.rows.start
        whole = len(x) == len(self.joint[0])  # one matrix serves both directions
        matrices = (
            [(x, self.joint[1], start, 2)] if whole else [(x, self.joint[1], start, 1), (y, self.joint[0], start, 1)]
        )
        if self.within_view:
            matrices += [(x, self.joint[0], start, 1), (y, self.joint[1], start, 1)]
        if none := len(self.queue[0]):  # no column of it is the pair of a row
            matrices += [(x, self.queue[1], none, 1), (y, self.queue[0], none, 1)]
            matrices += [(x, self.queue[0], none, 1), (y, self.queue[1], none, 1)] if self.within_view else []
        with self.precise():
            of = functools.partial(matrix_total, bias=bias, chunk_size=self.chunk_size)
            parts = [times * of(a, b, pair=pair) for a, b, pair, times in matrices]
            return torch.stack(parts).sum() / (2 * len(x))

    def _of_queue(self, terms: tuple[Reduction, ...], across: bool) -> Tensor:
        """(T, 2, n) of the anchors over the queue of the other view, or of their own."""
        views = self.queue[::-1] if across else self.queue
        none = len(views[0])  # no column of it is the pair of a row
        pairs = zip(self.anchors, views, strict=True)
        how: Any = {"pair": none, "chunk_size": self.chunk_size, "both": False}
        return torch.stack([matrix_sums(terms, anchors, rows, **how)[0] for anchors, rows in pairs], dim=1)

    def _of_both(self, terms: tuple[Reduction, ...], margin: Tensor | None) -> Tensor:
        """(T, 2, n) of images over texts and of texts over images, from one matrix."""
        a, b = self.anchors[0], self.joint[1]
        if margin is not None:  # s_ij - m_0j - m_1i serves both: an anchor's own comes back outside of the sum
            a, b = _beside(a, 1.0, -margin[1]), _beside(b, -margin[0], 1.0)
        sums = torch.stack(matrix_sums(terms, a, b, chunk_size=self.chunk_size), dim=1)
        return sums if margin is None else sums + margin.flip(0)

    def _of_rows(self, terms: tuple[Reduction, ...], k: int, j: int, margin: Tensor | None) -> Tensor:
        """(T, n) of the anchors k over the joint rows j: 0 images, 1 texts."""
        a, b = self.anchors[k], self.joint[j]
        if margin is not None:
            a, b = _beside(a, 1.0), _beside(b, -margin[k])
        return matrix_sums(terms, a, b, pair=self.rows.start, chunk_size=self.chunk_size, both=False)[0]

    def each_row(self, row_loss: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """(2, n) of a loss that is no function of sums: `row_loss` of the similarities (c, N) of some anchors.

        The columns are the rows of the other view and, with `within_view`, those of the own view behind them; -inf
        where they are no negatives. The slice says which anchors of this process they are.

        Raises:
            InvalidInputError: a queue, of whose rows such a loss knows nothing.
        """
        if len(self.queue[0]):
            raise InvalidInputError("queue: this loss asks for the labels of its rows, and those of a queue have none")
        with self.precise():
            n, whole = len(self.positive), self.chunk_size is None and len(self.positive) == len(self.joint[0])
            shared = score_block(self.anchors[0], self.joint[1], 0) if whole else None

            def one(k: int, block: slice) -> Tensor:
                anchors, pair = self.anchors[k][block], self.rows.start + block.start
                across = score_block(anchors, self.joint[1 - k], pair) if shared is None else (shared, shared.T)[k]
                own = [score_block(anchors, self.joint[k], pair)] if self.within_view else []
                return row_loss(torch.cat([across, *own], dim=1) if own else across, block)

            if self.chunk_size is None:
                return torch.stack([one(k, slice(0, n)) for k in (0, 1)])
            cut = list(row_blocks(n, self.chunk_size))
            parts = [[checkpoint(one, k, block, use_reentrant=False) for block in cut] for k in (0, 1)]
            return torch.stack([torch.cat(of_side) for of_side in parts])

    def samples(self, features: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """(2, n, M) similarities of the anchors to M further rows each, features (n, M, d), or two for both sides."""
        sides = features if isinstance(features, tuple) else (features, features)
        with self.precise():
            moved = [side.to(self.positive.dtype) for side in sides]
            pairs = zip(self.anchors, moved, strict=True)
            return torch.stack([torch.einsum("nd,nmd->nm", anchors, side) for anchors, side in pairs])

    def reduce(self, losses: Tensor) -> Tensor:
        """(n,) means of both directions (2, n) or, by `reduction`, their mean, over the joint batch if gathered."""
        pairs = losses.mean(0)
        if self.reduction == "none":
            return pairs
        return mean_over_processes(pairs.mean()) if self.gather else pairs.mean()


def _further(rows: Tensor, like: Tensor) -> Tensor:
    """Rows (Q, d) of a queue as the features are that they are compared with."""
    if rows.ndim != 2 or rows.shape[1] != like.shape[1]:
        raise InvalidInputError(f"queue: expected images and texts (Q, {like.shape[1]}), got {tuple(rows.shape)}")
    return rows.detach().to(like)


def _beside(rows: Tensor, *columns: float | Tensor) -> Tensor:
    """Rows (n, d) with more columns, each a number or (n,)."""
    more = [torch.as_tensor(c, dtype=rows.dtype, device=rows.device).expand(len(rows))[:, None] for c in columns]
    return torch.cat([rows, *more], dim=1)


class Temperature(nn.Module):
    """A temperature, fixed or learned as CLIP learns it: in the logarithm, and never below `minimum`.

    The parameter is put back into its range before it is used; a clamp inside the graph would stop its gradient for
    good once it had crossed the bound. Keep it out of weight decay, which would pull the temperature towards 1.

    Raises:
        InvalidInputError: temperature not positive, or learnable and below `minimum`.
    """

    def __init__(self, temperature: float, *, learnable: bool = False, minimum: float = 0.01) -> None:
        super().__init__()
        check_temperature(temperature)
        if learnable and temperature < minimum:
            raise InvalidInputError(f"temperature: expected at least the minimum {minimum}, got {temperature}")
        self.fixed, self.minimum = temperature, minimum
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature))) if learnable else None

    def forward(self) -> float | Tensor:
        """The number, or the tensor () to differentiate."""
        if self.log_temperature is None:
            return self.fixed
        with torch.no_grad():
            self.log_temperature.clamp_(min=math.log(self.minimum))
        return self.log_temperature.exp()

    def extra_repr(self) -> str:
        """The value of now, and whether it learns."""
        value = self.fixed if self.log_temperature is None else math.exp(self.log_temperature.detach())
        return f"{value:.4g}, learnable={self.log_temperature is not None}"


_TEMPERATURE = {"temperature": 0.07, "learnable_temperature": False, "minimum_temperature": 0.01}


class ContrastiveLoss(nn.Module):
    """A loss function with its settings: the function holds the mathematics, the module what is set once.

    The settings are the keywords of the function and those below; they are attributes, and may be set anew every step.
    Put it inside the module that DistributedDataParallel wraps, or each process learns a temperature of its own.

    Args:
        temperature: t, or its first value if it is learned; .07.
        learnable_temperature: t becomes a parameter, kept at or above `minimum_temperature`, .01.
        reduction, chunk_size, gather, within_view: see `vldebias.losses.info_nce`.

    Raises:
        InvalidInputError: a setting that the function refuses.
    """

    function: ClassVar[Callable[..., Tensor]]
    check: ClassVar[Callable[..., None] | None] = None
    keywords: ClassVar[tuple[str, ...]] = tuple(FLOW)
    defaults: ClassVar[dict[str, Any]] = {**_TEMPERATURE, **FLOW}
    temperature: Temperature

    def __init_subclass__(
        cls, function: Callable[..., Tensor] | None = None, check: Callable[..., None] | None = None, **defaults: Any
    ) -> None:
        """Makes the module of a function.

        check: refuses settings of the function's own. defaults: others than the function's, or all losses'.
        """
        super().__init_subclass__()
        if function is None:
            return
        every = inspect.signature(function).parameters.values()
        own = {p.name: p.default for p in every if p.kind is p.KEYWORD_ONLY}
        cls.function, cls.check = staticmethod(function), None if check is None else staticmethod(check)
        cls.keywords, cls.defaults = (*own, *cls.keywords), own | cls.defaults | defaults
        kind = inspect.Parameter.KEYWORD_ONLY
        shown = [inspect.Parameter(name, kind, default=default) for name, default in cls.defaults.items()]
        cls.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        unknown = [name for name in settings if name not in self.defaults]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {unknown[0]!r}; {did_you_mean(unknown[0], self.defaults)}")
        settings = self.defaults | settings
        temperature, learnable, minimum = (settings.pop(name) for name in _TEMPERATURE)
        complete(cast(Flow, {name: settings[name] for name in FLOW}))
        own = {name: settings[name] for name in self.keywords if name not in FLOW}
        if self.check is not None:
            self.check(**own)
        self.temperature = Temperature(temperature, learnable=learnable, minimum=minimum)
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, image_features: Tensor, text_features: Tensor, *values: Any, **named: Any) -> Tensor:
        """Loss of image_features (n, d) and text_features (n, d), with what else the function takes of a batch."""
        return type(self).function(image_features, text_features, *values, **named, **self.options())

    def options(self) -> dict[str, Any]:
        """The keywords of the loss function, with the temperature of this step."""
        return {"temperature": self.temperature(), **{name: getattr(self, name) for name in self.keywords}}

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_") and k != "training")
