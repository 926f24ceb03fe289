"""Test the rule for a few labelled images against a naive version, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import vldebias
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.methods import few_labels
from vldebias.methods.few_labels import (
    ABOVE_CHANCE,
    as_texts,
    class_means,
    discriminant,
    is_gender,
    labelled_groups,
    left_out_labels,
    offsets,
    taught,
    taught_texts,
)

D = 24
AGES = vldebias.make_prompt_set(
    "age", {"young": ["young"], "middle": ["adult"], "old": ["old"]}, ["pilot", "nurse"]
)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def world(g: int, seed: int = 0, n: int = 600, wrong: float = 0.5) -> tuple[np.ndarray, ...]:
    """Return texts, images and groups; the texts point partly along another direction."""
    rng = np.random.default_rng(seed)
    codes = rng.choice(g, n, p=np.arange(1, g + 1)[::-1] / np.arange(1, g + 1).sum())
    axes = np.eye(D)
    rows = axes[0] + 0.35 * axes[1 + codes] + 0.25 * rng.normal(size=(n, D)) / np.sqrt(D)
    rows += 0.2 * rng.normal(size=(n, 1)) * axes[10]
    texts = axes[0] + 0.3 * axes[1 : 1 + g] + wrong * np.linspace(-0.5, 1, g)[:, None] * axes[10]
    return unit(texts), unit(rows), codes


def naive(texts: np.ndarray, sample: np.ndarray, rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the scores of images by the rule as its docstring describes it."""
    g = len(texts)
    mean = sample.mean(0)

    def moved(directions: np.ndarray) -> np.ndarray:
        directions = np.stack([one - (one @ mean) / (mean @ mean) * mean for one in directions])
        moves = offsets(class_means(rows @ directions.T, codes))
        return np.stack(
            [one - o * mean / (mean @ mean) for one, o in zip(directions, moves, strict=True)]
        )

    def lda(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        means = np.stack([images[labels == code].mean(0) for code in range(g)])
        within = images - means[labels]
        covariance = within.T @ within / len(images)
        shrunk = 0.7 * covariance + 0.3 * np.trace(covariance) / D * np.eye(D)
        found = np.stack([np.linalg.inv(shrunk) @ (m - means.mean(0)) for m in means])
        return found / (sample @ found.T).std(0).mean()

    start = sample @ moved(texts).T
    chosen: list[int] = []
    for code in range(g):
        members = [row for row in range(len(sample)) if start[row].argmax() == code]
        best = sorted(members, key=lambda row: -np.diff(np.sort(start[row]))[-1])
        chosen += best[: max(5, len(members) // 2)]
    turned = lda(sample[chosen], start[chosen].argmax(1))
    return moved(turned + min(1, len(codes) / 100) * lda(rows, codes))


@pytest.mark.parametrize("g", [2, 3, 4])
@pytest.mark.parametrize("n", [20, 60, 150])
def test_the_vectors_rank_groups_as_a_naive_version_does(g: int, n: int) -> None:
    texts, images, codes = world(g)
    expected = images @ naive(texts, images, images[:n], codes[:n]).T
    vectors = taught_texts(texts, images, images[:n], codes[:n])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    scores = images @ vectors.T
    # The differences between scores are those of the rule, up to one factor.
    ours, theirs = (table - table.mean(1, keepdims=True) for table in (scores, expected))
    factor = (ours * theirs).sum() / (theirs**2).sum()
    assert factor > 0
    np.testing.assert_allclose(ours, factor * theirs, atol=1e-9)


@pytest.mark.parametrize("n", [12, 200])
def test_the_discriminant_is_that_of_scikit_learn(n: int) -> None:
    """For two groups of equal size, scikit-learn's covariance is the pooled one."""
    _, images, codes = world(2)
    rows = np.concatenate([images[codes == code][: n // 2] for code in (0, 1)])
    labels = np.repeat([0, 1], n // 2)
    centred = np.concatenate([part - part.mean(0) for part in (rows[: n // 2], rows[n // 2 :])])
    covariance = 0.7 * centred.T @ centred / n + 0.3 * (centred**2).sum() / n / D * np.eye(D)
    made = LinearDiscriminantAnalysis(
        solver="lsqr", priors=[0.5, 0.5], covariance_estimator=Fixed(covariance)
    )
    made.fit(rows, labels)
    first, second = discriminant(rows, labels)
    np.testing.assert_allclose(second - first, made.coef_[0], rtol=1e-6)
    np.testing.assert_allclose(first + second, 0, atol=1e-9)


class Fixed:
    """A covariance estimator that always returns the same matrix."""

    def __init__(self, covariance: np.ndarray) -> None:
        self.covariance_ = covariance

    def fit(self, rows: np.ndarray) -> Fixed:
        return self


def accuracy(vectors: np.ndarray, images: np.ndarray, codes: np.ndarray) -> float:
    right = (images @ vectors.T).argmax(1) == codes
    return float(np.mean([right[codes == code].mean() for code in np.unique(codes)]))


@pytest.mark.parametrize("g", [2, 3])
def test_labels_correct_texts_that_point_elsewhere(g: int) -> None:
    texts, images, codes = world(g, wrong=1.0)
    held_out = slice(300, None)
    before = accuracy(texts, images[held_out], codes[held_out])
    found = taught(texts, images[:300], images[:20], codes[:20])
    assert found.doubt == ""
    assert found.how.startswith("20 labels, ")
    after = accuracy(found.texts, images[held_out], codes[held_out])
    assert after > before + 0.1


def test_the_margins_are_those_of_the_texts() -> None:
    texts, images, codes = world(3, wrong=0.0)
    vectors = taught_texts(texts, images, images[:40], codes[:40])
    deviations = [
        ((table - table.mean(0)) @ images.T).std(axis=1).mean() for table in (texts, vectors)
    ]
    assert deviations[1] == pytest.approx(deviations[0], rel=1e-6)


def test_directions_that_are_too_long_still_give_unit_vectors() -> None:
    texts, images, _ = world(3)
    directions = 1e6 * np.random.default_rng(0).normal(size=(3, D))
    vectors = as_texts(directions, texts, images)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)


def test_an_image_that_is_left_out_does_not_change_its_own_prediction() -> None:
    texts, images, codes = world(2)
    predicted = left_out_labels(texts, images, images[:20], codes[:20])
    for row in range(20):
        changed = codes[:20].copy()
        changed[row] = 1 - changed[row]
        assert left_out_labels(texts, images, images[:20], changed)[row] == predicted[row]


def test_random_labels_are_seldom_accepted() -> None:
    texts, images, _ = world(2)
    accepted = []
    for seed in range(60):
        labels = np.random.default_rng(seed).permutation(np.repeat([0, 1], 10))
        accepted.append(not taught(texts, images, images[:20], labels).doubt)
    assert np.mean(accepted) <= 0.1
    doubt = taught(texts, images, images[:20], np.arange(20) % 2).doubt
    assert f"({0.5 + ABOVE_CHANCE:.0%} are needed)" in doubt


def test_a_group_without_confident_images_keeps_the_direction_of_the_texts() -> None:
    texts, images, codes = world(2)
    sample = images[:8]  # too few for self-training
    vectors = taught_texts(texts, sample, images[:20], codes[:20])
    assert accuracy(vectors, images, codes) > 0.7


def test_only_names_of_two_genders_stand_for_gender() -> None:
    for values in (
        {"male": (), "female": ()},
        {"Man": (), "Woman": ()},
        {"women": ("woman",), "men": ("man",)},
    ):
        assert is_gender(values), values
    for other in (["young", "old"], ["female", "male", "other"], ["female", "woman"]):
        assert not is_gender(dict.fromkeys(other, ())), other
    assert not is_gender({"old woman": (), "young man": ()})


def test_labels_are_read_under_the_name_of_the_set() -> None:
    values = ["young", "", "OLD", None, "adult", "unknown", "old", "young", "middle"]
    (codes,) = labelled_groups({"age": values, "folder": ["x"] * 9}, [AGES])
    assert codes is not None
    assert codes.tolist() == [0, -1, 2, -1, 1, -1, 2, 0, 1]
    assert labelled_groups({}, [AGES]) == [None]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"ages": ["young"] * 3}, r"no label column 'age'; got 'ages'\. Labels are used under"),
        ({"age": ["young"] * 3}, "are 3 young, 0 middle, 0 old; label at least 2 of middle and of"),
        ({"age": ["young", "old"] * 2 + ["adult"]}, "label at least 2 of middle$"),
    ],
)
def test_labels_that_are_not_used_are_named(labels: dict[str, list[str]], message: str) -> None:
    with pytest.warns(SuspectInputWarning, match=message):
        assert labelled_groups(labels, [AGES]) == [None]


def test_a_label_that_names_no_value_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"got 'yung'; expected one of .* did you mean 'y"):
        labelled_groups({"age": ["yung", "old"]}, [AGES])


def test_the_sample_is_not_changed() -> None:
    texts, images, codes = world(2)
    before = images.copy()
    taught(texts, images, images[:20], codes[:20])
    np.testing.assert_array_equal(images, before)
    assert few_labels.FULL_WEIGHT == 100
