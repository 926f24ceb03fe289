"""Measure an edit's effect on text without images: pair distances and class signal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.hosts import Host
from vldebias.methods.method import class_signal
from vldebias.projection.edit import Edit, Rewording
from vldebias.prompts import PromptSet


def spread_along(images: Tensor, texts: Tensor) -> tuple[float, float]:
    """Return the images' variance along text directions, divided by that along all directions.

    For images embedded by the same model, the ratio is well above 1. For noise, or images from a
    different model, it is 1 on average. Let S be the images' covariance, scaled to trace d, and M
    the projector on the k principal directions that explain 99% of the texts' variance, scaled to
    trace 1. Over random rotations R, the variance of the ratio is (Schur's lemma on symmetric
    matrices)

        var tr(M R S R^T) = 2 (1 / k - 1 / d) (tr S^2 - d) / ((d - 1) (d + 2)).

    Args:
        images: image features (n, d).
        texts: text embeddings (m, d).

    Returns:
        The ratio, and how many standard deviations it is above 1; (0, 0) for fewer than two
        distinct images or texts.
    """
    rows = images.double() - images.double().mean(0)
    text_rows = texts.double() - texts.double().mean(0)
    dim = rows.shape[1]
    total = float(rows.square().sum())
    _, singular, directions = torch.linalg.svd(text_rows, full_matrices=False)
    # Equal rows do not differ in any direction.
    if total <= 1e-12 * len(rows) or float(singular.sum()) <= 1e-9:
        return 0.0, 0.0
    share_of_variance = singular.square().cumsum(0) / singular.square().sum()
    k = int((share_of_variance < 0.99).sum()) + 1
    # Variance per text direction, divided by the variance per direction of the space.
    spread = float((rows @ directions[:k].T).square().sum()) / k * dim / total
    gram = rows @ rows.T if len(rows) < dim else rows.T @ rows  # both products have the same norm
    # This is tr S^2 - d, with S scaled to the trace d.
    concentration = float(gram.square().sum()) * dim**2 / total**2 - dim
    variance = 2 * (1 / k - 1 / dim) * concentration / ((dim - 1) * (dim + 2))
    return spread, (spread - 1) / max(variance, 1e-12) ** 0.5


@dataclass(frozen=True)
class Diagnostics:
    """Store measures of an edit's effect on a prompt set's text.

    A measure is None if the set lacks the text for it.

    Attributes:
        pair_distance: mean L2 distance between the prompts of a pair, (before, after) (Table 7.6).
        held_out_distance: mean L2 distance between the prompts of a held-out pair, (before, after).
        spurious_spread: mean range of a class's cosines with the spurious text, (before, after)
            (Table 7.1).
        signal_kept: share of the distance between classes that remains.
        class_cosine: mean cosine between a class prompt and its edited embedding.

    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> import vldebias
    >>> diagnostics = vldebias.text_diagnostics(
    ...     model, "gender", method="cali", tokenizer=tokenizer
    ... )
    >>> before, after = diagnostics["text"].held_out_distance  # the pairs moved together
    >>> after < before / 4
    True
    >>> diagnostics["text"].class_cosine > 0.99  # the class prompts hardly moved
    True
    """

    pair_distance: tuple[float, float]
    held_out_distance: tuple[float, float] | None = None
    spurious_spread: tuple[float, float] | None = None
    signal_kept: float | None = None
    class_cosine: float | None = None

    @classmethod
    def from_edit(cls, host: Host, role: str, edit: Edit, prompt_set: PromptSet) -> Diagnostics:
        """Measure an edit's effect on a prompt set's text, as embedded by the host.

        Args:
            host: the host of the model or pipeline.
            role: the tensor that is edited.
            edit: the fitted edit.
            prompt_set: the prompt set.

        Raises:
            InvalidInputError: If the edit rewrites prompts, so it cannot be applied to embeddings.
        """
        if edit.side == "denoiser":
            raise InvalidInputError(
                f"{edit.method} acts inside a denoiser and does not change text, so there is"
                " nothing to inspect. Look at generated images instead: vldebias generate PROMPT"
                " --method cross-attention"
            )
        if isinstance(edit, Rewording):
            raise InvalidInputError(
                f"{edit!r} rewrites prompts, so it cannot be inspected; pass an embedding edit"
            )
        rows = host.embed(list(chain.from_iterable(prompt_set.pairs)), role)
        pair_distance = (_mean_distance(rows), _mean_distance(edit(rows)))
        held_out_distance = None
        if prompt_set.held_out_pairs:
            rows = host.embed(list(chain.from_iterable(prompt_set.held_out_pairs)), role)
            held_out_distance = (_mean_distance(rows), _mean_distance(edit(rows)))
        signal_kept = None
        class_cosine = None
        spurious_spread = None
        if prompt_set.classes:
            classes = host.embed(prompt_set.classes, role)
            signal_kept, class_cosine = class_signal(classes, edit)
            if prompt_set.spurious:
                # Only edit the class prompts: editing both sides could hide differences between the
                # cosines.
                spurious = host.embed(prompt_set.spurious, role)
                spurious_spread = (
                    _mean_range(classes, spurious),
                    _mean_range(edit(classes), spurious),
                )
        return cls(pair_distance, held_out_distance, spurious_spread, signal_kept, class_cosine)


def _mean_distance(rows: Tensor) -> float:
    """Return the mean distance between adjacent rows (2n, d), which form pairs."""
    return float((rows[0::2] - rows[1::2]).norm(dim=-1).mean())


def _mean_range(classes: Tensor, spurious: Tensor) -> float:
    """Return the mean range of a class's cosines with spurious text.

    Args:
        classes: embeddings (k, d) of the class prompts.
        spurious: embeddings (m, d) of the spurious text.
    """
    cosines = normalize(classes, dim=-1) @ spurious.T
    return float((cosines.amax(1) - cosines.amin(1)).mean())
