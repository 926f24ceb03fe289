"""Estimate the group of images from their features, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.reranking.candidates import Floats

# Minimum number of images per group, minimum distance between the groups' means in standard
# deviations, and minimum share of a group. Below any of these, there are no probabilities.
_ENOUGH_ROWS = 50
_APART = 1.5
_LEAST_SHARE = 0.02

_STEPS = 100
_MOST_ROWS = 20_000


@dataclass(frozen=True, eq=False)
class GroupEstimator:
    """Estimate groups from cosines with the texts for their values.

    The label is the group whose text is most similar. For the probabilities, the cosines of
    unlabelled images are modelled as a mixture of g normal distributions with one covariance, which
    starts from these labels. The groups' log odds are then linear in the cosines.

    Attributes:
        names: names of the groups (g,).
        texts: unit text embeddings (g, d) of the groups.
        slopes: slopes (g, g) of the log odds, or None if there are no probabilities, because there
            were too few images or the groups' cosines hardly differ.
        offsets: offsets (g,) of the log odds.

    >>> import numpy as np
    >>> estimator = GroupEstimator(("f", "m"), np.eye(2), 5 * np.eye(2), np.zeros(2))
    >>> codes, probabilities = estimator.predict(np.array([[0.6, 0.8], [1.0, 0.0]]))
    >>> codes.tolist(), probabilities.round(2).tolist()
    ([1, 0], [[0.27, 0.73], [0.99, 0.01]])
    """

    names: tuple[str, ...]
    texts: Floats
    slopes: Floats | None
    offsets: Floats

    @classmethod
    def fit(cls, names: Sequence[str], texts: Floats, features: Floats) -> GroupEstimator:
        """Fit the probabilities to unlabelled images.

        Args:
            names: names of the groups (g,).
            texts: unit text embeddings (g, d) of the groups.
            features: unit features (n, d) of the images. A sample is used if there are many.
        """
        g = len(names)
        without = cls(tuple(names), texts, None, np.zeros(g))
        cosines = features[:: len(features) // _MOST_ROWS + 1] @ texts.T
        n = len(cosines)
        labels = cosines.argmax(axis=1)
        if n < g * _ENOUGH_ROWS or np.bincount(labels, minlength=g).min() < _LEAST_SHARE * n:
            return without
        # Differences between cosines have g - 1 dimensions. Scale each of them to variance 1.
        centring = np.eye(g) - 1 / g
        mean = (cosines @ centring).mean(axis=0)
        _, spread, axes = np.linalg.svd(cosines @ centring - mean, full_matrices=False)
        if spread[g - 2] < 1e-6 * np.sqrt(n):
            return without
        scaling = axes[: g - 1].T * np.sqrt(n) / spread[: g - 1]
        means, precision, shares = _mixture((cosines @ centring - mean) @ scaling, labels, g)
        if _distance(means, precision) < _APART or shares.min() <= _LEAST_SHARE:
            return without
        slopes = scaling @ precision @ means.T
        offsets = np.log(shares) - ((means @ precision) * means).sum(axis=1) / 2 - mean @ slopes
        return cls(tuple(names), texts, centring @ slopes, offsets)

    def predict(self, features: Floats) -> tuple[NDArray[np.intp], Floats | None]:
        """Return the label (n,) of each image, and the probabilities (n, g) if available.

        Args:
            features: unit features (n, d) of the images.
        """
        # Round cosines, so that identical rows tie regardless of the summation order.
        cosines = (features @ self.texts.T).round(12)
        if self.slopes is None:
            return cosines.argmax(axis=1), None
        return cosines.argmax(axis=1), _softmax(cosines @ self.slopes + self.offsets)


def _softmax(scores: Floats) -> Floats:
    likelihoods = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: Floats = likelihoods / likelihoods.sum(axis=1, keepdims=True)
    return probabilities


def _mixture(points: Floats, labels: NDArray[np.intp], g: int) -> tuple[Floats, Floats, Floats]:
    """Fit normal distributions with one covariance by expectation-maximisation.

    Args:
        points: points (n, g - 1).
        labels: first assignment (n,) of the points.
        g: number of distributions.

    Returns:
        The means (g, g - 1), the precision matrix and the shares (g,).
    """
    memberships = np.eye(g)[labels]
    scatter = points.T @ points / len(points)
    for _ in range(_STEPS):
        shares = np.clip(memberships.mean(axis=0), _LEAST_SHARE, None)
        shares /= shares.sum()
        means = memberships.T @ points / np.maximum(memberships.sum(axis=0), 1e-9)[:, None]
        covariance = scatter - (means.T * memberships.mean(axis=0)) @ means
        precision = np.linalg.inv(covariance + 1e-6 * np.eye(g - 1))
        slopes = precision @ means.T
        memberships = _softmax(
            np.log(shares) - (means.T * slopes).sum(axis=0) / 2 + points @ slopes
        )
    return means, precision, shares


def _distance(means: Floats, precision: Floats) -> float:
    """Return the smallest Mahalanobis distance between two means."""
    differences = means[:, None] - means[None]
    squares = np.einsum("abi,ij,abj->ab", differences, precision, differences)
    return float(np.sqrt(squares[~np.eye(len(means), dtype=bool)].min()))
