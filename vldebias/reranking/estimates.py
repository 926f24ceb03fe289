"""Estimate the group of images from their features, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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

# Prior precisions of the slope (1, with a standard deviation of 1/3) and of the offsets (0 and 1),
# which are fitted to hand labels.
_SLOPE_PRECISION = 9.0
_OFFSET_PRECISION = 1.0
_HALVINGS = 40
_LEAST_PROBABILITY = 1e-3


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
        by_probability: whether labels are the most likely groups instead of the most similar texts.

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
    by_probability: bool = False

    @classmethod
    def fit(cls, names: Sequence[str], texts: Floats, cosines: Floats) -> GroupEstimator:
        """Fit the probabilities to unlabelled images.

        Args:
            names: names of the groups (g,).
            texts: unit text embeddings (g, d) of the groups.
            cosines: cosines (n, g) of the images with these texts. A sample is used if there are
                many.
        """
        g = len(names)
        without = cls(tuple(names), texts, None, np.zeros(g))
        cosines = cosines[:: len(cosines) // _MOST_ROWS + 1]
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

    def predict(self, cosines: Floats) -> tuple[NDArray[np.intp], Floats | None]:
        """Return the label (n,) of each image, and the probabilities (n, g) if available.

        Args:
            cosines: cosines (n, g) of the images with the groups' texts.
        """
        if self.slopes is None:
            return cosines.argmax(axis=1), None
        probabilities = _softmax(cosines @ self.slopes + self.offsets)
        by = probabilities if self.by_probability else cosines
        return by.argmax(axis=1), probabilities

    def with_known_shares(self, cosines: Floats, shares: Floats) -> GroupEstimator:
        """Return the estimator with offsets that give some images a known mean probability.

        Args:
            cosines: cosines (n, g) of the images with the groups' texts.
            shares: the groups' shares (g,) among these images.
        """
        if self.slopes is None:
            return self
        target = np.maximum(shares, _LEAST_PROBABILITY)
        offsets = self.offsets
        for _ in range(_STEPS):
            means = _softmax(cosines @ self.slopes + offsets).mean(axis=0)
            step = np.log(target) - np.log(np.maximum(means, _LEAST_PROBABILITY))
            offsets = offsets + step
            if np.abs(step).max() < 1e-6:
                break
        return replace(self, offsets=offsets, by_probability=True)

    def calibrated(self, cosines: Floats, codes: NDArray[np.integer]) -> GroupEstimator:
        """Return the estimator with log odds that are scaled and shifted to fit hand labels.

        Only one slope and an offset per group are fitted. More coefficients, such as weights for
        image features, overfit a hundred labels.

        Args:
            cosines: cosines (n, g) of the labelled images with the groups' texts.
            codes: their true groups (n,).
        """
        if self.slopes is None:
            return self
        log_odds = cosines @ self.slopes + self.offsets
        log_odds = log_odds - log_odds.mean(axis=1, keepdims=True)
        slope, offsets = _slope_and_offsets(log_odds, np.eye(len(self.names))[codes])
        return replace(
            self,
            slopes=slope * self.slopes,
            offsets=slope * self.offsets + offsets,
            by_probability=True,
        )


def _slope_and_offsets(log_odds: Floats, truth: Floats) -> tuple[float, Floats]:
    """Fit a slope and an offset (g,) per group by Newton's method, with normal priors.

    Args:
        log_odds: log odds (n, g), up to a constant per row.
        truth: one-hot true groups (n, g).
    """
    n, g = log_odds.shape
    precision = np.diag([_SLOPE_PRECISION] + [_OFFSET_PRECISION] * g)
    # inputs: (n, g, 1 + g), the derivatives of the log odds by the slope and by each offset
    inputs = np.concatenate(
        [log_odds[:, :, None], np.broadcast_to(np.eye(g), (n, g, g))],
        axis=2,
    )
    change = np.zeros(1 + g)  # of the slope from 1, and of the offsets from 0

    def loss(change: Floats) -> float:
        scores = log_odds + inputs @ change
        log_likelihood = (truth * scores).sum() - np.logaddexp.reduce(scores, axis=1).sum()
        return float(change @ precision @ change / 2 - log_likelihood)

    for _ in range(_STEPS):
        p = _softmax(log_odds + inputs @ change)
        gradient = np.einsum("nga,ng->a", inputs, p - truth) + precision @ change
        # (n, g, g) covariance of the one-hot groups
        covariance = p[:, :, None] * np.eye(g) - p[:, :, None] * p[:, None]
        curvature = np.einsum("nga,ngh,nhb->ab", inputs, covariance, inputs) + precision
        step = np.linalg.solve(curvature, gradient)
        if np.abs(step).max() < 1e-8:
            break
        # A Newton step may overshoot, so halve it until the convex loss decreases.
        for _ in range(_HALVINGS):
            if loss(change - step) <= loss(change):
                break
            step = step / 2
        change = change - step
    return 1 + float(change[0]), change[1:]


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
