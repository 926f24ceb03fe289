"""Put the boundary between two classes back where a projection has moved it, from the images that are classified.

A projection of the class texts changes every image's margin, and their mean with them: one class gains what the other
loses, and a group that was served well becomes the worst. The midpoint of the mean margins of the images that the model
as it is calls the one and the other class moves along, and needs no label. What other offsets do, and what this one
costs, is measured in eval/results/offsets.json.
"""

from __future__ import annotations

from torch import Tensor

from vldebias.errors import InvalidInputError

__all__ = ["class_offset"]


def class_offset(before: Tensor, after: Tensor) -> float:
    """What to subtract from the scores of the second class: (mean margin of first + mean margin of second) / 2.

    Args:
        before: (n, 2) scores of the images that are classified, without an edit: they say which class an image is
            taken for. after: (n, 2) with it. Take the images that are to be classified: others, in which the classes go
            with the attribute in another way, moved the boundary of four of seven methods the wrong way on the birds.

    Returns:
        The offset; 0 where all images are taken for one class.

    Raises:
        InvalidInputError: shapes other than (n, 2), or two that differ.

    >>> before = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.1, 0.7]])  # doctest: +SKIP
    >>> class_offset(before, before + torch.tensor([0.0, 1.0]))  # margins were -.6 and .6 on average  # doctest: +SKIP
    1.0
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
