"""What every baseline is: settings, and a `fit` that turns labelled features into a predictor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray
from torch import Tensor

from vldebias.baselines.problem import Problem, Select
from vldebias.losses.checks import check_choice

__all__ = ["Baseline", "OnStep", "Predictor", "quiet"]

OnStep = Callable[[str], None]  # told in words what has just been done, such as "epoch 3 of 100"


def quiet(_: str) -> None:
    """The `OnStep` that tells nobody."""


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

    def __post_init__(self) -> None:
        check_choice("select", self.select, ("worst_group", "average"))

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
        problem = Problem.of(train_features, labels, zero_shot, groups=groups, val=val, select=self.select)
        return self._fit(problem, seed, on_step or quiet)

    @abstractmethod
    def _fit(self, problem: Problem, seed: int, on_step: OnStep) -> Predictor:
        """The method itself, on arguments that were checked."""

    def settings(self) -> dict[str, Any]:
        """Every setting by name, for the protocol of a result."""
        described = {"name", "title", "source"}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in described}
