"""The split of an evaluation by groups: features, which class prompt is right, and the group of every image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data import Embeddings, Labels, cross
from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet
from vldebias.stated import StatedWords

__all__ = ["GroupSplit", "class_of"]


@dataclass(frozen=True, eq=False)
class GroupSplit:
    """The images of a split whose label and spurious value are both known.

    Attributes:
        features: (n, d) float32, L2-normalised.
        target: (n,) index of the right class prompt.
        groups: Labels of n rows, label x spurious value ("landbird/water"), none unknown.
        unknown: images left out because label or spurious value is unknown.
        about: where the embeddings come from.
    """

    features: Tensor
    target: NDArray[np.int64]
    groups: Labels
    unknown: int
    about: dict[str, Any]

    @classmethod
    def of(cls, data: Embeddings, prompts: PromptSet, label: str, spurious: str) -> GroupSplit:
        """The split of two label columns, the first of which the class prompts name.

        Raises:
            InvalidInputError: no such column, one column twice, no image with both known, labels that the class
                prompts do not name.
        """
        if label == spurious:
            raise InvalidInputError(f"label and spurious: expected two columns, got {label!r} twice")
        names, values = data.column(label), data.column(spurious)
        known = names.known & values.known
        if not known.any():
            raise InvalidInputError(f"no image has both {label!r} and {spurious!r}; are the columns the right ones?")
        kept = data if known.all() else data[known]
        target = np.array(class_of(names.names, prompts), dtype=np.int64)[names.codes[known]]
        groups = cross(names[known], values[known])
        return cls(kept.normalised(), target, groups, int((~known).sum()), dict(data.about))

    def __len__(self) -> int:
        return len(self.target)

    @property
    def facts(self) -> dict[str, Any]:
        """What a protocol says about these images; where their features were kept is nobody else's business."""
        about = {key: value for key, value in self.about.items() if key != "cache"}
        return {**about, "images": len(self), "unknown": self.unknown, "images per group": self.groups.counts}

    def right(self, scores: Tensor) -> NDArray[np.bool_]:
        """(n,) mask of the images that scores (n, k) classify right; the first of equal scores wins."""
        return np.asarray(scores.argmax(1).cpu().numpy() == self.target)

    def codes_in(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """The group of every image (n,) as an index into `names`, the groups of another split.

        Raises:
            InvalidInputError: a group that occurs here is not among them.
        """
        strangers = [name for name, n in self.groups.counts.items() if n and name not in names]
        if strangers:
            raise InvalidInputError(f"groups: expected those of the test split {list(names)}, got {strangers} too")
        code = np.array([names.index(name) if name in names else -1 for name in self.groups.names], dtype=np.int64)
        return code[self.groups.codes]


def class_of(labels: tuple[str, ...], prompts: PromptSet) -> list[int]:
    """For each label the index of the class prompt that names it.

    By name, in any case: the class of that name ("landbird"), or the only class whose name contains it as a word
    ("dark" in "dark hair"). Labels that are all digits are indices. By name, because labels in alphabetical order
    ("blond", "dark") would otherwise be the wrong way round without a sign of it.

    Raises:
        InvalidInputError: a label that names no class or several, or two labels that name one.
    """
    names = [name.casefold() for name in prompts.class_names]
    if len(names) < 2:
        raise InvalidInputError(f"{prompts.name}: expected prompts for two or more classes, got {len(names)}")
    found = [_matches(label.casefold(), names) for label in labels]
    wrong = [label for label, matches in zip(labels, found, strict=True) if len(matches) != 1]
    chosen = [matches[0] for matches in found if len(matches) == 1]
    if wrong or len(set(chosen)) < len(labels):
        raise InvalidInputError(
            f"{prompts.name}: expected labels that each name one of the classes {list(prompts.class_names)}, "
            f"got {list(labels)}; rename the labels, or use class indices 0 .. {len(names) - 1}"
        )
    return chosen


def _matches(label: str, names: list[str]) -> list[int]:
    if label in names:
        return [names.index(label)]
    if label.isdecimal():
        return [int(label)] if int(label) < len(names) else []
    word = StatedWords([label]) if any(map(str.isalnum, label)) else StatedWords([])
    return [i for i, name in enumerate(names) if word.match(name)]
