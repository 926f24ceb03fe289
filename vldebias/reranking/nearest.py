"""Label images with the nearest text, and find those near the border between two labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vldebias.reranking.candidates import Floats, Mask

Labels = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class NearestText:
    """Label images with the group whose text, or learned vector, is most similar.

    An image's margin is the difference between its two highest cosines. It is near the border if
    the margin is below half of its label's median margin. Labels are wrong most often there.

    Attributes:
        names: names of the groups (g,).
        texts: unit text embeddings (g, d) of the groups, or vectors learned from labelled images.
        borders: margin (g,) below which images with each label are near the border.

    >>> import numpy as np
    >>> labels = NearestText(("f", "m"), np.eye(2), np.array([0.1, 0.1]))
    >>> codes, is_near = labels.predict(np.array([[0.6, 0.8], [0.75, 0.7]]))
    >>> codes.tolist(), is_near.tolist()
    ([1, 0], [False, True])
    """

    names: tuple[str, ...]
    texts: Floats
    borders: Floats

    def predict(self, cosines: Floats) -> tuple[Labels, Mask]:
        """Return the label (n,) of each image, and a mask (n,) of the images near the border.

        Args:
            cosines: cosines (n, g) of the images with the groups' texts.
        """
        codes, margins = labels_and_margins(cosines)
        return codes, margins < self.borders[codes]

    def with_borders_of(self, cosines: Floats) -> NearestText:
        """Return the labels with borders that are measured on images with cosines (n, g)."""
        codes, margins = labels_and_margins(cosines)
        return replace(self, borders=borders_of(codes, margins, len(self.names)))


def labels_and_margins(table: Floats) -> tuple[Labels, Floats]:
    """Return the column (n,) of each row's largest number, and its margin (n,) over the next.

    Args:
        table: cosines or probabilities (n, g), with g of at least 2.
    """
    largest = np.partition(table, -2, axis=1)[:, -2:]
    return table.argmax(axis=1), largest[:, 1] - largest[:, 0]


def borders_of(codes: NDArray[np.integer], margins: Floats, g: int) -> Floats:
    """Return half of each group's median margin (g,), or 0 for groups without images.

    Args:
        codes: label of each image (n,), or -1 if unknown.
        margins: margin of each image (n,).
        g: number of groups.
    """
    borders = np.zeros(g)
    for group in range(g):
        of_group = margins[codes == group]
        if len(of_group):
            borders[group] = np.median(of_group) / 2
    return borders


def shares_near(codes: NDArray[np.integer], is_near: Mask, g: int) -> Floats:
    """Return the share (g,) of each group's images that are near the border.

    Args:
        codes: label of each image (n,), or -1 if unknown.
        is_near: mask (n,) of the images near the border.
        g: number of groups.
    """
    totals = np.bincount(codes + 1, minlength=g + 1)[1:]
    near = np.bincount(codes[is_near] + 1, minlength=g + 1)[1:]
    shares: Floats = near / np.maximum(totals, 1)
    return shares
