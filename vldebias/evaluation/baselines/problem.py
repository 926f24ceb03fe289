"""What every baseline is: settings, and a `fit` that turns labelled features into a predictor; and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses.checks import check_choice, check_interval
from vldebias.metrics import group_accuracy

Select = Literal["worst_group", "average"]
Score = tuple[float, float]  # compares as what was selected by, then the other one
Codes = NDArray[np.int64]
Allowed = Mapping[str, str | tuple[str, ...]]  # setting -> interval that it or each of several is in, or its words
OnStep = Callable[[str], None]  # told in words what has just been done, such as "epoch 3 of 100"
_CHUNK = 16384  # rows per product


@dataclass(frozen=True, eq=False)
class Split:
    """features (n, d), labels (n,) and groups (n,) or None; groups are numbered 0 .. g - 1 and lie within a class."""

    features: Tensor
    labels: Codes
    groups: Codes | None

    @classmethod
    def of(cls, name: str, features: Tensor, labels: Any, groups: Any, like: Tensor) -> Split:
        """Check the arguments of one split against the class texts `like` (k, d)."""
        _check_features(f"{name} features", features, like.shape[1])
        classes = _codes(f"{name} labels", labels, len(features))
        if classes.min() < 0 or classes.max() >= len(like):
            outside = np.unique(classes[(classes < 0) | (classes >= len(like))])[:8].tolist()
            raise InvalidInputError(
                f"{name} labels: expected classes 0 .. {len(like) - 1}, one per row of zero_shot, got {outside}; "
                "leave out the rows whose class is unknown"
            )
        if groups is None:
            return cls(features, classes, None)
        codes = _codes(f"{name} groups", groups, len(features))
        if codes.min() < 0:
            raise InvalidInputError(
                f"{name} groups: expected integers >= 0, got {np.unique(codes[codes < 0])[:8].tolist()}; "
                "leave out the rows whose group is unknown"
            )
        return cls(features, classes, _crossed(classes, codes))


@dataclass(frozen=True, eq=False)
class RobustnessProblem:
    """A training split, the zero-shot classifier (k, d), and perhaps a validation split to select on."""

    train: Split
    zero_shot: Tensor
    val: Split | None
    select: Select

    @classmethod
    def of(
        cls, features: Tensor, labels: Any, zero_shot: Tensor, *, groups: Any = None, val: Any = None, select: Select
    ) -> RobustnessProblem:
        """Check the arguments of `Baseline.fit`, which describes them."""
        _check_features("zero_shot", zero_shot, None)
        train = Split.of("train", features, labels, groups, zero_shot)
        rows = np.bincount(train.labels, minlength=len(zero_shot))
        if not rows.all() or len(rows) < 2:
            raise InvalidInputError(
                f"train labels: expected rows of every class and at least two classes, got {rows.tolist()} rows"
            )
        held_out = None
        if val is not None:
            if not isinstance(val, (tuple, list)) or len(val) != 3:
                raise InvalidInputError(
                    "val: expected (features, labels, groups), with None for groups that nobody knows"
                )
            held_out = Split.of("val", val[0], val[1], val[2], zero_shot)
            if held_out.groups is None and select == "worst_group":
                raise InvalidInputError(
                    "val groups: expected groups, since the baseline selects by the worst group; "
                    'pass them, or use the baseline with select="average"'
                )
        return cls(train, zero_shot.to(features.device), held_out, select)

    @property
    def n_classes(self) -> int:
        """k."""
        return len(self.zero_shot)

    @cached_property
    def predicted(self) -> Codes:
        """(n,) classes that the zero-shot classifier gives to the training rows."""
        return argmax_in_chunks(self.train.features, lambda x: x @ self.zero_shot.to(x.dtype).T)

    @cached_property
    def groups(self) -> Codes:
        """(n,) groups of the training rows to balance: those given, or class x zero-shot prediction where it occurs.

        Raises:
            InvalidInputError: given groups that cannot be balanced.
        """
        if self.train.groups is None:
            return _crossed(self.train.labels, self.predicted)
        per_class = np.bincount(np.unique(np.stack([self.train.labels, self.train.groups]), axis=1)[0])
        if len(set(per_class.tolist())) > 1 or per_class.max() == 1:  # one without a row, or the classes over again
            raise InvalidInputError(
                "train groups: expected every class in the same number of groups, at least two, so that they can be "
                f"balanced; the classes occur in {per_class.tolist()} groups. A group without a row? "
                "Leave groups out to use zero-shot predictions"
            )
        return self.train.groups

    def score(self, predict: Callable[[Tensor], Tensor]) -> Score | None:
        """Accuracies of a predictor on the validation split, what is selected by first; None without such a split."""
        if self.val is None:
            return None
        predicted = argmax_in_chunks(self.val.features, predict)
        groups = np.zeros_like(predicted) if self.val.groups is None else self.val.groups
        accuracy = group_accuracy(predicted, self.val.labels, groups)
        both = (accuracy.worst, accuracy.average)
        return both if self.select == "worst_group" else (both[1], both[0])

    def describe(self, score: Score | None) -> dict[str, float]:
        """A score in words, for `Predictor.chosen`: the accuracies on the validation split, if there is one."""
        if score is None or self.val is None:
            return {}
        worst, average = score if self.select == "worst_group" else (score[1], score[0])
        known = {} if self.val.groups is None else {"val_worst_group": worst}
        return known | {"val_average": average}


class Predictor(Protocol):
    """A fitted classifier: features (m, d) to logits (m, k)."""

    @property
    def chosen(self) -> Mapping[str, Any]:
        """What was selected on the way, in plain values for a protocol: c, alpha, epoch, accuracies on validation."""
        ...

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (m, k), float32 or float64, of features (m, d) with rows of norm 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class Baseline(ABC):
    """A method that learns from images with class labels, on features that a frozen model has computed.

    Attributes:
        name: how it is called on the command line and in results.
        title: how Table 7.2 calls it.
        source: the paper that proposed it.
        select: what a validation split chooses settings and epochs by, where one is given: "worst_group" or
            "average", ties broken by the other one. Selecting by the worst group needs the groups of the validation
            split, and is what the authors' code of Zhang and Ré (2022) reports, whose numbers Table 7.2 adopts.
    """

    name: str
    title: str
    source: str
    select: Select = "worst_group"

    uses_labels: ClassVar[bool] = True
    allowed: ClassVar[Allowed] = {"select": ("worst_group", "average")}

    def __post_init__(self) -> None:
        for name, among in [one for kind in type(self).__mro__ for one in vars(kind).get("allowed", {}).items()]:
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if isinstance(among, str):
                    check_interval(name, value, among)
                else:
                    check_choice(name, value, among)

    @torch.inference_mode(False)
    def fit(
        self,
        train_features: Tensor,
        labels: NDArray[Any] | Tensor,
        zero_shot: Tensor,
        *,
        groups: NDArray[Any] | Tensor | None = None,
        val: tuple[Tensor, NDArray[Any] | Tensor, NDArray[Any] | Tensor | None] | None = None,
        seed: int = 0,
        on_step: OnStep | None = None,
    ) -> Predictor:
        """Fit to the features of a training split. The same arguments and seed give the same predictor.

        Args:
            train_features: (n, d) image features, rows of norm 1, of any floating dtype, on any device.
            labels: (n,) classes 0 .. k - 1, all of which occur.
            zero_shot: (k, d) text features of the classes, rows of norm 1: the zero-shot classifier.
            groups: (n,) groups, or spurious attributes, as integers >= 0; crossed with the labels, so that both mean
                the same. None: the zero-shot prediction stands for the attribute, as in Zhang and Ré (2022), who
                assume that nobody knows the groups of the training images. Read by the methods that balance groups.
            val: features, labels and groups (or None) of a validation split, to select settings and epochs on.
            seed: of every random draw; the global generators are neither read nor moved.
            on_step: called with a few words after each step.

        Raises:
            InvalidInputError: shapes, labels or groups that do not fit; the message says which.
        """
        problem = RobustnessProblem.of(train_features, labels, zero_shot, groups=groups, val=val, select=self.select)
        return self._fit(problem, seed, on_step or (lambda _: None))

    @abstractmethod
    def _fit(self, problem: RobustnessProblem, seed: int, on_step: OnStep) -> Predictor:
        """The method itself, on arguments that were checked."""


def argmax_in_chunks(features: Tensor, logits: Callable[[Tensor], Tensor]) -> Codes:
    """(n,) column of the largest logit of each row, with memory for a chunk of rows at a time."""
    with torch.no_grad():
        columns = [logits(promoted(x)).argmax(1).cpu() for x in features.split(_CHUNK)]
    return torch.cat(columns).numpy()


def promoted(features: Tensor) -> Tensor:
    """Half precision as float32, else the tensor itself."""
    return features if features.dtype in (torch.float32, torch.float64) else features.float()


def _crossed(classes: Codes, groups: Codes) -> Codes:
    """class x group, renumbered to those that occur."""
    names, index = np.unique(groups, return_inverse=True)
    return np.unique(classes * len(names) + index.reshape(-1), return_inverse=True)[1].reshape(-1).astype(np.int64)


def _check_features(name: str, features: Any, dim: int | None) -> None:
    """A finite tensor (n, d) with rows of norm 1."""
    if not isinstance(features, Tensor) or features.ndim != 2 or not features.is_floating_point():
        got = f"{features.dtype} {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise InvalidInputError(f"{name}: expected a floating point tensor (n, d), got {got}")
    if len(features) == 0 or (dim is not None and features.shape[1] != dim):
        raise InvalidInputError(f"{name}: expected (n, {dim or 'd'}) with n > 0, got {tuple(features.shape)}")
    norms = torch.cat([x.float().norm(dim=1) for x in features.split(_CHUNK)])
    off = (norms - 1).abs()
    if not bool((off < 0.02).all()):  # bfloat16 keeps a norm to .004
        raise InvalidInputError(
            f"{name}: expected rows of norm 1, got norms from {float(norms.min()):.3g} to {float(norms.max()):.3g}; "
            "normalise first"
        )


def _codes(name: str, values: Any, n: int) -> Codes:
    """(n,) integers."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "iu" or array.shape != (n,):
        raise InvalidInputError(f"{name}: expected {n} integers, one per row, got {array.shape} of {array.dtype}")
    return array.astype(np.int64)
