"""Test the groups of an index's vectors against a naive version, with two crossed attributes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import vldebias
from vldebias.reranking.candidates import unit_products
from vldebias.reranking.index import NOBODY, IndexGroups

D = 12
GENDERS = vldebias.make_prompt_set("gender", {"male": ["man"], "female": ["woman"]}, ["pilot"])
AGES = vldebias.make_prompt_set(
    "age", {"young": ["child"], "middle": ["adult"], "old": ["elder"]}, ["pilot", "nurse"]
)
SETS = (GENDERS, AGES)
AXES = {"woman": 0, "man": 1, "child": 2, "adult": 3, "elder": 4}
PERSON, THING = 5, 6


def embed(texts: list[str]) -> np.ndarray:
    """Return one vector per text: an axis per value, one for people, and noise of its own."""
    rows = []
    for text in texts:
        row = 0.05 * np.random.default_rng([*text.encode()]).normal(size=D)
        word = next((word for word in AXES if word in text), "")
        if word:
            row[AXES[word]] += 1
        row[THING if text in NOBODY else PERSON] += 1
        rows.append(row)
    return np.stack(rows)


TEXTS = [text for s in SETS for texts in s.by_value().values() for text in texts]
MODEL = dict(zip([*TEXTS, *NOBODY], embed([*TEXTS, *NOBODY]), strict=True))


class Pictures:
    """Vectors of pictures with known genders and ages, some of which show nobody."""

    def __init__(self, scenes: float, n: int = 900, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.genders = rng.choice(2, n, p=[0.7, 0.3])  # male, female
        self.ages = rng.choice(3, n, p=[0.5, 0.3, 0.2])
        self.are_people = np.arange(n) >= scenes * n
        vectors = 0.3 * rng.normal(size=(n, D))
        rows = np.arange(n)
        vectors[rows, 1 - self.genders] += self.are_people
        vectors[rows, 2 + self.ages] += self.are_people
        vectors[rows, np.where(self.are_people, PERSON, THING)] += 1
        self.vectors = vectors * rng.uniform(0.5, 2, (n, 1))
        self.vectors[-3:] = np.nan
        self.vectors[-4] = 0


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.sqrt(sum(value * value for value in vector))


def naive_texts() -> list[list[np.ndarray]]:
    """Return the unit mean of the unit embeddings of each value's texts, by attribute."""
    attributes = []
    for prompt_set in SETS:
        values = []
        for texts in prompt_set.by_value().values():
            values.append(unit(sum(unit(embed([text])[0]) for text in texts)))
        attributes.append(values)
    return attributes


def naive_people(vectors: np.ndarray) -> list[bool | None]:
    """Return whether each vector shows a person, or None for one that is zero or not finite."""
    of_people = unit(sum(value for values in naive_texts() for value in values))
    of_things = unit(sum(unit(embed([text])[0]) for text in NOBODY))
    shown: list[bool | None] = []
    for vector in vectors:
        if not np.isfinite(vector).all() or not vector.any():
            shown.append(None)
        else:
            shown.append(bool(unit(vector) @ of_people > unit(vector) @ of_things))
    return shown


def naive_probabilities(cosines: np.ndarray) -> np.ndarray:
    """Fit one normal distribution per group, all with one covariance, to cosines (n, g)."""
    g = cosines.shape[1]
    points = np.stack([cosines[:, place] - cosines[:, -1] for place in range(g - 1)], axis=1)
    memberships = np.stack([cosines.argmax(axis=1) == place for place in range(g)], axis=1) * 1.0
    for _ in range(100):
        means = [(column[:, None] * points).sum(0) / column.sum() for column in memberships.T]
        covariance = sum(
            ((points - mean) * column[:, None]).T @ (points - mean)
            for mean, column in zip(means, memberships.T, strict=True)
        ) / len(points)
        densities = [
            column.mean() * multivariate_normal(mean, covariance).pdf(points)
            for mean, column in zip(means, memberships.T, strict=True)
        ]
        memberships = np.stack(densities, axis=1)
        memberships /= memberships.sum(axis=1, keepdims=True)
    return memberships


def naive(vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the group of each vector, "" without one, and the mean probability of each group."""
    shown = naive_people(vectors)
    counted = [row for row in range(len(vectors)) if shown[row]]
    if 3 * len(counted) > 2 * len([row for row in shown if row is not None]):
        counted = [row for row in range(len(vectors)) if shown[row] is not None]
    labels = [""] * len(vectors)
    probabilities = np.ones((len(counted), 1))
    for prompt_set, values in zip(SETS, naive_texts(), strict=True):
        cosines = np.array([[unit(vectors[row]) @ value for value in values] for row in counted])
        names = list(prompt_set.attributes)
        for row, of_row in zip(counted, cosines, strict=True):
            name = names[max(range(len(names)), key=lambda place: of_row[place])]
            labels[row] = f"{labels[row]}/{name}" if labels[row] else name
        table = naive_probabilities(cosines)
        probabilities = np.array(
            [[p * q for p, q in product(*pair)] for pair in zip(probabilities, table, strict=True)]
        )
    return labels, probabilities.mean(axis=0)


def test_products_do_not_depend_on_the_order_of_summation() -> None:
    """Otherwise, equal pictures would not tie."""
    rng = np.random.default_rng(0)
    rows, directions = rng.normal(size=(40, 512)), rng.normal(size=(3, 512))
    columns = rng.permutation(512)
    products = unit_products(rows, directions)
    assert np.array_equal(unit_products(rows[:, columns], directions[:, columns]), products)
    np.testing.assert_allclose(
        products, [unit(row) @ directions.T for row in rows], rtol=0, atol=1e-11
    )


def labels_of(groups: IndexGroups, vectors: np.ndarray) -> list[str]:
    codes = groups.predict(vectors).codes
    return [groups.names[code] if code >= 0 else "" for code in codes]


@pytest.mark.parametrize("scenes", [0.0, 0.2, 0.5])
def test_groups_and_shares_are_those_of_a_naive_version(scenes: float) -> None:
    vectors = Pictures(scenes).vectors
    labels, expected = naive(vectors)
    blocks = [vectors[:100], vectors[100:130], vectors[130:]]
    for features in (vectors, blocks, iter(blocks)):
        groups = IndexGroups.fit(MODEL, SETS, features)
        assert groups.names == tuple(map("/".join, product(*(s.attributes for s in SETS))))
        assert labels_of(groups, vectors) == labels
        assert (groups.person is None) == (scenes < 1 / 3)
        known = [label for label in labels if label]
        shares = [known.count(name) / len(known) for name in groups.names]
        np.testing.assert_allclose(groups.shares, shares)
        assert groups.expected_shares is not None
        np.testing.assert_allclose(groups.expected_shares, expected, atol=2e-3)


@pytest.mark.parametrize("scenes", [0.0, 0.5])
def test_shares_behind_a_filter_are_those_of_a_naive_version(scenes: float) -> None:
    groups = IndexGroups.fit(MODEL, SETS, Pictures(scenes).vectors)
    others = Pictures(scenes, n=1200, seed=1)
    is_listed = (others.genders == 1) | (np.arange(1200) % 3 == 0)
    listed = others.vectors[is_listed]
    within = groups.within(listed)
    labels, expected = naive(listed)
    known = [label for label in labels if label]
    np.testing.assert_allclose(
        within.shares, [known.count(name) / len(known) for name in within.names]
    )
    assert within.expected_shares is not None
    np.testing.assert_allclose(within.expected_shares, expected, atol=2e-3)


def test_known_shares_behind_a_filter_are_the_mean_probabilities() -> None:
    pictures = Pictures(0.0)
    groups = IndexGroups.fit(MODEL, SETS, pictures.vectors)
    # The attributes are independent here, so the shares of the crossed groups are products.
    table = np.outer([0.72, 0.28], [0.45, 0.32, 0.23])
    known = dict(zip(groups.names, table.ravel().tolist(), strict=True))
    within = groups.within(pictures.vectors, known)
    p = within.predict(pictures.vectors[:-4]).probabilities
    assert p is not None
    of_groups = p.mean(axis=0).reshape(2, 3)
    np.testing.assert_allclose(of_groups.sum(axis=1), [0.72, 0.28], atol=1e-3)
    np.testing.assert_allclose(of_groups.sum(axis=0), [0.45, 0.32, 0.23], atol=1e-3)


def test_hand_labels_of_crossed_groups_calibrate_each_attribute() -> None:
    pictures = Pictures(0.0)
    groups = IndexGroups.fit(MODEL, SETS, pictures.vectors)
    rows = np.arange(0, 890)
    genders, ages = (list(prompt_set.attributes) for prompt_set in SETS)
    true = [f"{genders[pictures.genders[row]]}/{ages[pictures.ages[row]]}" for row in rows]
    calibrated = groups.calibrated(pictures.vectors[rows], true)
    p = calibrated.predict(pictures.vectors[rows]).probabilities
    assert p is not None
    shares = [true.count(name) / len(true) for name in groups.names]
    np.testing.assert_allclose(p.mean(axis=0), shares, atol=0.02)
    assert (
        np.mean(
            [
                name == label
                for name, label in zip(labels_of(calibrated, pictures.vectors), true, strict=False)
            ]
        )
        > 0.97
    )


def test_probabilities_that_contradict_the_labels_are_not_used() -> None:
    """Two normal distributions separate the pictures that are far from the others on one side, and
    not the two groups."""
    rng = np.random.default_rng(0)
    vectors = 0.05 * rng.normal(size=(1000, D))
    sides = np.repeat([-0.2, 0.2, 1.2], [300, 500, 200])
    vectors[:, 0] += 1 - sides
    vectors[:, 1] += 1 + sides
    vectors[:, PERSON] += 1
    groups = IndexGroups.fit(MODEL, GENDERS, vectors)
    assert dict(zip(groups.names, groups.shares, strict=True)) == {"male": 0.7, "female": 0.3}
    assert groups.expected_shares is None
    assert groups.predict(vectors).probabilities is None
    assert groups.share_of_name() == {"male": 0.7, "female": 0.3}


def test_groups_behind_a_filter_are_only_fitted_again_to_enough_people() -> None:
    groups = IndexGroups.fit(MODEL, GENDERS, Pictures(0.0).vectors)
    others = Pictures(0.0, n=2000, seed=1)
    others.genders[-4:] = 0
    men = others.vectors[others.genders == 0][:400]
    women = others.vectors[others.genders == 1]
    few, many = (groups.within(np.concatenate([men, women[:n]])) for n in (25, 200))
    assert few.estimators[0] is groups.estimators[0]
    assert few.shares[1] == pytest.approx(25 / 425, abs=0.03)
    assert many.estimators[0] is not groups.estimators[0]


def test_hand_labels_also_hold_behind_a_filter() -> None:
    pictures = Pictures(0.0)
    groups = IndexGroups.fit(MODEL, GENDERS, pictures.vectors)
    genders = np.array(list(GENDERS.attributes))[pictures.genders[:200]]
    calibrated = groups.calibrated(pictures.vectors[:200], genders)
    within = calibrated.within(Pictures(0.0, seed=1).vectors)
    assert within.estimators[0] is calibrated.estimators[0]


def test_shares_by_name_are_the_mean_probabilities() -> None:
    groups = IndexGroups.fit(MODEL, SETS, Pictures(0.0).vectors)
    assert groups.expected_shares is not None
    assert not np.array_equal(groups.expected_shares, groups.shares)
    expected = dict(zip(groups.names, groups.expected_shares.tolist(), strict=True))
    assert groups.share_of_name() == expected


def test_a_group_with_exactly_the_least_number_of_images_is_enough() -> None:
    vectors = Pictures(0.0).vectors
    labels = labels_of(IndexGroups.fit(MODEL, GENDERS, vectors), vectors)
    least = labels.count("female")
    assert least < labels.count("male")
    for number, is_lacking in ((least, False), (least + 1, True)):
        doubt = IndexGroups.fit(MODEL, GENDERS, vectors, least=number).doubt
        assert (f"fewer than {number} of 896 images look like female" in doubt) == is_lacking
