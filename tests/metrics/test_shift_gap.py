"""The distribution shift gap: against loops, and where its value is known."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.metrics.robustness import shift_distances

laws = settings(max_examples=50, deadline=None, derandomize=True)


def problem(seed: int, n: int = 12, t: int = 3, d: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, t, d)), rng.integers(3, size=n), rng.normal(size=(n, d))


def shift_gap(*features: np.ndarray, **options: Any) -> float:
    return float(shift_distances(*features, **options).mean())


def looped(views: np.ndarray, labels: np.ndarray, images: np.ndarray, norm: float, exponent: float) -> float:
    """The definition, class by class, image by image and coordinate by coordinate."""
    total = 0.0
    for c in set(labels.tolist()):
        members = [i for i in range(len(labels)) if labels[i] == c]
        share = len(members) / len(labels)
        for i in members:
            length = 0.0
            for k in range(views.shape[2]):
                centre = sum(float(images[j, k]) for j in members) / len(members)
                seen = sum(float(views[i, t, k]) for t in range(views.shape[1])) / views.shape[1]
                length += abs(centre - seen) ** norm
            total += share / len(members) * (length ** (1 / norm)) ** exponent
    return total


@laws
@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.sampled_from([0.5, 1.0, 2.0]))
def test_agrees_with_the_definition(seed: int, norm: float, exponent: float) -> None:
    views, labels, images = problem(seed)
    found = shift_gap(views, labels, images=images, norm=norm, exponent=exponent)
    assert found == pytest.approx(looped(views, labels, images, norm, exponent))
    own = shift_gap(views, labels, norm=norm, exponent=exponent)
    assert own == pytest.approx(looped(views, labels, views.mean(1), norm, exponent))


def test_the_default_is_the_proof_s_euclidean_norm() -> None:
    views, labels, images = problem(1)
    assert shift_gap(views, labels, images=images) == pytest.approx(looped(views, labels, images, 2.0, 1.0))


def test_a_class_of_one_image_is_its_own_centre() -> None:
    views, _, _ = problem(3)
    assert shift_gap(views, np.arange(len(views))) == pytest.approx(0, abs=1e-12)


def test_an_image_gives_one_value() -> None:
    views, labels, images = problem(4)
    order = np.random.default_rng(0).permutation(len(labels))
    found = shift_distances(views, labels, images=images)
    assert found.shape == (len(labels),)
    assert shift_distances(views[order], labels[order], images=images[order]) == pytest.approx(found[order])
    assert shift_distances(views[:, ::-1].copy(), labels, images=images) == pytest.approx(found)


def test_errors() -> None:
    views, labels, images = problem(5)
    with pytest.raises(InvalidInputError, match=r"finite features \(n, t, d\), got shape \(12, 5\)"):
        shift_gap(views[:, 0], labels)
    with pytest.raises(InvalidInputError, match=r"finite features \(n, t, d\), got shape \(12, 0, 5\)"):
        shift_gap(views[:, :0], labels)
    with pytest.raises(InvalidInputError, match=r"views: .* are NaN"):
        shift_gap(views * np.nan, labels)
    with pytest.raises(InvalidInputError, match=r"labels \(12,\) and images \(12, 5\) .* got \(3,\) and \(12, 5\)"):
        shift_gap(views, labels[:3])
    with pytest.raises(InvalidInputError, match=r"got \(12,\) and \(12, 4\)"):
        shift_gap(views, labels, images=images[:, :4])
    with pytest.raises(InvalidInputError, match="images: expected finite features"):
        shift_gap(views, labels, images=images + np.inf)
    for wrong in ({"norm": 0.0}, {"exponent": 0.0}, {"exponent": math.inf}, {"norm": math.nan}):
        with pytest.raises(InvalidInputError, match="norm and exponent: expected numbers > 0"):
            shift_gap(views, labels, **wrong)
