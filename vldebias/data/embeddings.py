"""Image embeddings with labels: all that an evaluation needs, from a model's cache or from a file of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError

__all__ = ["Embeddings"]


@dataclass(frozen=True, eq=False)
class Embeddings:
    """n image embeddings and what is known about each image.

    Attributes:
        features: (n, d) floats as stored, not normalised, perhaps memory-mapped and of half precision.
        ids: n names of images.
        labels: column -> Labels of n rows.
        captions: n texts, or none.
        about: where they come from: data set, split, model, fingerprints, preprocessing, images that were skipped.

    Raises:
        InvalidInputError: shapes or lengths that do not fit.
    """

    features: NDArray[Any]
    ids: tuple[str, ...]
    labels: Mapping[str, Labels]
    captions: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.features.dtype.kind != "f":
            raise InvalidInputError(
                f"features: expected floats (n, d), got {self.features.shape} of {self.features.dtype}"
            )
        lengths = {"ids": len(self.ids), **{name: len(labels) for name, labels in self.labels.items()}}
        if self.captions:
            lengths["captions"] = len(self.captions)
        wrong = {name: n for name, n in lengths.items() if n != len(self)}
        if wrong:
            raise InvalidInputError(f"embeddings: expected {len(self)} rows in every column, got {wrong}")

    def __len__(self) -> int:
        return len(self.features)

    @property
    def dim(self) -> int:
        """Width d."""
        return int(self.features.shape[1])

    def normalised(self) -> Tensor:
        """L2-normalised features (n, d) in float32.

        Raises:
            InvalidInputError: a row that is not finite or zero.
        """
        rows = torch.from_numpy(np.array(self.features, dtype=np.float32))
        norms = rows.norm(dim=1, keepdim=True)
        bad = ~(torch.isfinite(norms) & (norms > 0)).squeeze(1)
        if bad.any():
            first = [self.ids[i] for i in torch.nonzero(bad).flatten()[:5].tolist()]
            raise InvalidInputError(f"features: {int(bad.sum())} rows are zero or not finite, such as {first}")
        return rows / norms

    def column(self, name: str) -> Labels:
        """The labels of a column.

        Raises:
            InvalidInputError: no such column; the message lists those there are.
        """
        if name not in self.labels:
            raise InvalidInputError(f"embeddings: no column {name!r}; there are {sorted(self.labels)}")
        return self.labels[name]

    def __getitem__(self, rows: ArrayLike | slice) -> Embeddings:
        """Some of the rows, in the given order: a slice, indices or a mask."""
        index = np.arange(len(self))[rows if isinstance(rows, slice) else np.asarray(rows)]
        return replace(
            self,
            features=self.features[index],
            ids=tuple(self.ids[i] for i in index),
            labels={name: labels[index] for name, labels in self.labels.items()},
            captions=tuple(self.captions[i] for i in index) if self.captions else (),
        )
