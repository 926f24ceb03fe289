"""Test the estimated groups of images: a naive version, laws, and known or checked groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vldebias.reranking.estimates import GroupEstimator

NAMES = ("f", "m")
TEXTS = np.eye(2)


def cosines_of(n: int, share: float, apart: float = 4.0, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return cosines (n, 2) of images, `share` of which show the first group, and their groups."""
    rng = np.random.default_rng(seed)
    codes = (np.arange(n) >= share * n).astype(int)
    side = np.where(codes == 0, apart / 2, -apart / 2) + rng.normal(size=n)
    level = 0.3 + 0.05 * rng.normal(size=n)
    return np.stack([level + 0.01 * side, level - 0.01 * side], axis=1), codes


def naive(cosines: np.ndarray) -> np.ndarray:
    """Fit two normal distributions with one variance to the difference of the cosines, in loops."""
    difference = cosines[:, 0] - cosines[:, 1]
    memberships = (difference < 0).astype(float)  # of the second group
    for _ in range(100):
        weights = [1 - memberships, memberships]
        means = [(w * difference).sum() / w.sum() for w in weights]
        shares = [w.mean() for w in weights]
        variance = sum(
            (w * (difference - m) ** 2).sum() for w, m in zip(weights, means, strict=True)
        )
        variance /= len(difference)
        first, second = (
            np.log(share) - (difference - mean) ** 2 / (2 * variance)
            for share, mean in zip(shares, means, strict=True)
        )
        memberships = 1 / (1 + np.exp(first - second))
    return 1 - memberships


@pytest.mark.parametrize("share", [0.5, 0.3, 0.1])
def test_probabilities_are_those_of_two_normal_distributions(share: float) -> None:
    cosines, codes = cosines_of(2000, share)
    estimator = GroupEstimator.fit(NAMES, TEXTS, cosines)
    labels, probabilities = estimator.predict(cosines)
    assert probabilities is not None
    assert np.abs(probabilities[:, 0] - naive(cosines)).max() < 1e-3
    assert probabilities[:, 0].mean() == pytest.approx(share, abs=0.03)
    assert (labels == codes).mean() > 0.9


def test_the_level_of_all_cosines_does_not_matter() -> None:
    cosines, _ = cosines_of(1000, 0.3)
    _, before = GroupEstimator.fit(NAMES, TEXTS, cosines).predict(cosines)
    _, after = GroupEstimator.fit(NAMES, TEXTS, cosines + 0.4).predict(cosines + 0.4)
    assert before is not None
    assert after is not None
    assert np.abs(before - after).max() < 1e-6


@pytest.mark.parametrize(
    ("n", "share", "apart"),
    [(80, 0.5, 4.0), (2000, 0.5, 1.0), (2000, 0.01, 6.0)],
    ids=["few images", "groups that overlap", "a rare group"],
)
def test_without_clear_groups_there_are_no_probabilities(
    n: int, share: float, apart: float
) -> None:
    estimator = GroupEstimator.fit(NAMES, TEXTS, cosines_of(n, share, apart)[0])
    assert estimator.slopes is None
    assert estimator.predict(cosines_of(10, 0.5)[0])[1] is None


def test_two_of_three_groups_that_overlap_have_no_probabilities() -> None:
    """All pairs of groups must be apart, not only the two that are farthest from each other."""
    rng = np.random.default_rng(0)
    codes = np.arange(3000) % 3
    noise = 0.01 * rng.normal(size=(3000, 3))
    for own, is_apart in (
        (np.array([0.05, 0.05, 0.05]), True),
        (np.array([0.05, 0.007, 0.007]), False),
    ):
        cosines = 0.3 + np.diag(own)[codes] + noise
        estimator = GroupEstimator.fit(("f", "m", "n"), np.eye(3), cosines)
        assert (estimator.slopes is not None) == is_apart


def test_a_group_with_hardly_any_similar_image_has_no_probabilities() -> None:
    cosines, _ = cosines_of(2000, 0.7)
    assert GroupEstimator.fit(NAMES, TEXTS, cosines).slopes is not None
    # The first text is closer to nearly all images, so the second label is not reliable.
    cosines[:, 0] += 0.075
    assert 0 < (cosines.argmax(axis=1) == 1).mean() < 0.02
    assert GroupEstimator.fit(NAMES, TEXTS, cosines).slopes is None


def test_many_images_are_sampled_over_the_whole_list() -> None:
    cosines = np.concatenate([cosines_of(40_000, 1.0)[0], cosines_of(20_000, 0.0, seed=1)[0]])
    estimator = GroupEstimator.fit(NAMES, TEXTS, cosines)
    probabilities = estimator.predict(cosines)[1]
    assert probabilities is not None
    assert probabilities[:, 0].mean() == pytest.approx(2 / 3, abs=0.02)


def test_known_shares_are_the_mean_of_the_probabilities() -> None:
    estimator = GroupEstimator.fit(NAMES, TEXTS, cosines_of(2000, 0.5)[0])
    filtered, codes = cosines_of(500, 0.1, seed=1)
    moved = estimator.with_known_shares(filtered, np.array([0.1, 0.9]))
    labels, probabilities = moved.predict(filtered)
    assert probabilities is not None
    assert probabilities.mean(axis=0) == pytest.approx([0.1, 0.9], abs=1e-4)
    before = np.mean(estimator.predict(filtered)[0] == codes)
    assert np.mean(labels == codes) >= before
    absent = estimator.with_known_shares(filtered, np.array([0.0, 1.0])).predict(filtered)[1]
    assert absent is not None
    assert absent[:, 0].mean() < 0.01


def test_hand_labels_correct_a_biased_offset() -> None:
    cosines, codes = cosines_of(2000, 0.5)
    estimator = GroupEstimator.fit(NAMES, TEXTS, cosines)
    biased = replace(estimator, offsets=estimator.offsets + np.array([3.0, 0.0]))
    rows = np.random.default_rng(0).permutation(2000)[:120]
    right = biased.calibrated(cosines[rows], codes[rows])
    errors = []
    for one in (biased, right):
        probabilities = one.predict(cosines)[1]
        assert probabilities is not None
        errors.append(abs(probabilities[:, 0].mean() - 0.5))
    assert errors[1] < errors[0] / 3
    assert right.by_probability
    # Labels that say what the probabilities say hardly move them.
    again = estimator.calibrated(cosines[rows], codes[rows])
    before, after = (one.predict(cosines)[1] for one in (estimator, again))
    assert np.abs(before - after).max() < 0.25


def test_separable_hand_labels_give_finite_coefficients() -> None:
    cosines, _ = cosines_of(1000, 0.5)
    estimator = GroupEstimator.fit(NAMES, TEXTS, cosines)
    labels, _ = estimator.predict(cosines)
    calibrated = estimator.calibrated(cosines[:40], labels[:40])
    assert calibrated.slopes is not None
    assert np.isfinite(calibrated.slopes).all()
    assert np.isfinite(calibrated.offsets).all()
