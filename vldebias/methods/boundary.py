"""Put the boundary between two classes back where a projection has moved it, from the images that are classified.

A projection of the class texts changes every image's margin, and their mean with them: one class gains what the other
loses, and a group that was served well becomes the worst. The midpoint of the mean margins of the images that the model
as it is calls the one and the other class moves along, and needs no label. What other offsets do, and what this one
costs, is measured in eval/results/offsets.json.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from vldebias.errors import InvalidInputError


def class_offset(before: Tensor, after: Tensor) -> float:
    """What to subtract from the scores of the second class: (mean margin of first + mean margin of second) / 2.

    0 where all images are taken for one class. Take the images that are to be classified: others, in which the classes
    go with the attribute in another way, move the boundary of some methods the wrong way.

    Args:
        before: (n, 2) scores without an edit: they say which class an image is taken for. after: (n, 2) with it.

    Raises:
        InvalidInputError: shapes other than (n, 2), or two that differ.
    """
    if before.ndim != 2 or before.shape[1] != 2 or before.shape != after.shape:
        raise InvalidInputError(
            f"scores: expected two of shape (n, 2), of two classes, got {tuple(before.shape)} and {tuple(after.shape)}"
        )
    second = before[:, 1] > before[:, 0]
    if bool(second.all()) or not bool(second.any()):
        return 0.0
    margins = (after[:, 1] - after[:, 0]).double()
    return float((margins[second].mean() + margins[~second].mean()) / 2)


def with_offset(scores: Tensor, offset: float) -> Tensor:
    """Scores (n, 2) with the offset taken from those of the second class."""
    return scores - scores.new_tensor([0.0, offset])


@dataclass(frozen=True)
class Boundary:
    """Where the boundary between two classes lies among unlabelled images, without and with an edit.

    A margin is the score of the second class minus that of the first, in cosines; the boundary is at 0.

    Attributes:
        classes: their names. images: how many say it.
        middle: of the mean margins of the images that the model as it is takes for the one and the other class.
        offset: the same with the edit; taken from the scores of the second class it puts the boundary into the middle.
        second: share of the images that is taken for the second class: without the edit, with it, with the offset too.
    """

    classes: tuple[str, str]
    images: int
    middle: float
    offset: float
    second: tuple[float, float, float]

    @classmethod
    def of(cls, classes: tuple[str, str], before: Tensor, after: Tensor) -> Boundary:
        """From scores (n, 2) of the images without and with the edit.

        Raises:
            InvalidInputError: as of `class_offset`; no image.
        """
        offset = class_offset(before, after)
        if not len(before):
            raise InvalidInputError("images: expected at least one to say where the boundary lies, got none")
        shares = [float(one.argmax(1).double().mean()) for one in (before, after, with_offset(after, offset))]
        return cls(classes, len(before), class_offset(before, before), offset, (shares[0], shares[1], shares[2]))

    @property
    def told(self) -> bool:
        """Whether the images say anything: the model as it is takes them for both classes."""
        return 0 < self.second[0] < 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Before, after and with the offset, in two sentences."""
        first, second = self.classes
        if not self.told:
            return (
                f"boundary between {first} and {second}: the model as it is takes all {self.images} images for "
                f"{second if self.second[0] else first}, so they do not say where it lies"
            )
        before, after, back = (f"{share:.0%}" for share in self.second)
        return (
            f"boundary between {first} and {second}, by {self.images} images: taken for {second} are {before} without "
            f"the edit, {after} with it, {back} with the offset {self.offset:+.4f} taken from its scores. The middle "
            f"of the two classes lies at a margin of {self.middle:+.4f} without the edit, {self.offset:+.4f} with it; "
            "the boundary is at 0"
        )
