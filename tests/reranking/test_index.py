"""Test the groups of an index's vectors against a naive version, with two crossed attributes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import vldebias
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.reranking.candidates import unit_products
from vldebias.reranking.index import NOBODY, IndexGroups, _digest, _read
from vldebias.reranking.nearest import NearestText, labels_and_margins, shares_near

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


def naive(vectors: np.ndarray) -> tuple[list[str], list[bool]]:
    """Return the group of each vector, "" without one, and whether it is near the border."""
    shown = naive_people(vectors)
    counted = [row for row in range(len(vectors)) if shown[row]]
    if 3 * len(counted) > 2 * len([row for row in shown if row is not None]):
        counted = [row for row in range(len(vectors)) if shown[row] is not None]
    labels = [""] * len(vectors)
    are_near = [False] * len(vectors)
    for prompt_set, values in zip(SETS, naive_texts(), strict=True):
        margins: dict[str, dict[int, float]] = {name: {} for name in prompt_set.attributes}
        for row in counted:
            cosines = [float(unit(vectors[row]) @ value) for value in values]
            last, best = sorted(cosines)[-2:]
            name = list(prompt_set.attributes)[cosines.index(best)]
            margins[name][row] = best - last
            labels[row] = f"{labels[row]}/{name}" if labels[row] else name
        for margin_of_row in margins.values():
            ordered = sorted(margin_of_row.values())
            n = len(ordered)
            border = (ordered[(n - 1) // 2] + ordered[n // 2]) / 4
            for row, margin in margin_of_row.items():
                are_near[row] |= margin < border
    return labels, are_near


def naive_near_shares(
    labels: list[str], are_near: list[bool], names: tuple[str, ...]
) -> list[float]:
    """Return the share of each group's images near the border."""
    shares = []
    for name in names:
        members = [near for label, near in zip(labels, are_near, strict=True) if label == name]
        shares.append(sum(members) / len(members))
    return shares


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
    labels, are_near = naive(vectors)
    blocks = [vectors[:100], vectors[100:130], vectors[130:]]
    for features in (vectors, blocks, iter(blocks)):
        groups = IndexGroups.fit(MODEL, SETS, features)
        assert groups.names == tuple(map("/".join, product(*(s.attributes for s in SETS))))
        assert labels_of(groups, vectors) == labels
        assert (groups.person is None) == (scenes < 1 / 3)
        known = [label for label in labels if label]
        shares = [known.count(name) / len(known) for name in groups.names]
        np.testing.assert_allclose(groups.shares, shares)
        near_shares = naive_near_shares(labels, are_near, groups.names)
        np.testing.assert_allclose(groups.near_shares, near_shares)
        predicted = groups.predict(vectors).is_near
        assert predicted is not None
        assert [near for near, label in zip(predicted, labels, strict=True) if label] == [
            near for near, label in zip(are_near, labels, strict=True) if label
        ]


@pytest.mark.parametrize("scenes", [0.0, 0.5])
def test_shares_behind_a_filter_are_those_of_a_naive_version(scenes: float) -> None:
    groups = IndexGroups.fit(MODEL, SETS, Pictures(scenes).vectors)
    others = Pictures(scenes, n=1200, seed=1)
    is_listed = (others.genders == 1) | (np.arange(1200) % 3 == 0)
    listed = others.vectors[is_listed]
    within = groups.within(listed)
    labels, are_near = naive(listed)
    known = [label for label in labels if label]
    np.testing.assert_allclose(
        within.shares, [known.count(name) / len(known) for name in within.names]
    )
    near_shares = naive_near_shares(labels, are_near, within.names)
    np.testing.assert_allclose(within.near_shares, near_shares)


def test_the_places_of_small_and_large_groups_are_divided_alike() -> None:
    codes = np.arange(1000)
    is_near = codes % 4 == 0
    for share in (0.02, 0.19, 0.5):
        shares = shares_near((codes >= share * 1000).astype(int), is_near, 2)
        np.testing.assert_allclose(shares, [0.25, 0.25], atol=0.01)
    assert shares_near(np.array([-1, -1]), np.array([True, False]), 2).tolist() == [0, 0]


def test_margins_of_three_groups_are_over_the_second_highest_number() -> None:
    codes, margins = labels_and_margins(
        np.array([[0.5, 0.3, 0.4], [0.1, 0.7, 0.2], [0.2, 0.2, 0.1]])
    )
    assert codes.tolist() == [0, 1, 0]
    np.testing.assert_allclose(margins, [0.1, 0.5, 0.0])
    codes, margins = labels_and_margins(np.array([[0.5, 0.3], [0.2, 0.2]]))
    assert codes.tolist() == [0, 0]
    np.testing.assert_allclose(margins, [0.2, 0.0])


def test_a_filter_with_random_vectors_raises_no_doubt() -> None:
    groups = IndexGroups.fit(MODEL, GENDERS, Pictures(0.0).vectors)
    others = Pictures(0.0, seed=1).vectors
    within = groups.within(others[:300])  # a warning would be an error
    assert within.doubt == ""


def test_vectors_in_the_order_of_a_store_are_told_from_random_ones() -> None:
    groups = IndexGroups.fit(MODEL, GENDERS, Pictures(0.0).vectors)
    others = Pictures(0.0, n=1200, seed=1)
    ordered = others.vectors[np.argsort(others.genders[:1190], kind="stable")]
    # The first rows only show men, so nothing is known about women behind the filter.
    with pytest.warns(SuspectInputWarning, match="fewer than 5 of 300 images look like female"):
        within = groups.within(ordered[:300])
    assert "behind this filter" in within.doubt
    with pytest.warns(SuspectInputWarning, match="share of .* in the first half.* in the second"):
        within = groups.within(ordered[700:1000])
    assert within.doubt == ""


@pytest.mark.parametrize("factor", [1e30, 1e-30, 1e200, 1e-200])
def test_very_large_and_small_vectors_have_a_direction(factor: float) -> None:
    vectors = Pictures(0.0).vectors[:-4]
    groups = IndexGroups.fit(MODEL, GENDERS, vectors)
    labels = labels_of(groups, vectors)
    assert labels_of(groups, factor * vectors) == labels
    with np.errstate(over="ignore", under="ignore"):
        single = (factor * vectors).astype(np.float32)
    is_used = np.isfinite(single).all(axis=1) & single.any(axis=1)
    found = np.array(labels_of(groups, single))
    if factor in (1e30, 1e-30):
        assert is_used.all()
        assert (found == labels).mean() > 0.99
    else:
        assert (found[~is_used] == "").all()


def test_a_group_with_exactly_the_least_number_of_images_is_enough() -> None:
    vectors = Pictures(0.0).vectors
    labels = labels_of(IndexGroups.fit(MODEL, GENDERS, vectors), vectors)
    least = labels.count("female")
    assert least < labels.count("male")
    for number, is_lacking in ((least, False), (least + 1, True)):
        doubt = IndexGroups.fit(MODEL, GENDERS, vectors, least=number).doubt
        assert (f"fewer than {number} of 896 images look like female" in doubt) == is_lacking


def test_an_image_exactly_on_the_border_is_not_near_it() -> None:
    labels = NearestText(("f", "m"), np.eye(2), np.array([0.5, 0.5]))
    _, is_near = labels.predict(np.array([[0.75, 0.25], [0.75, 0.5]]))
    assert is_near.tolist() == [False, True]


def test_the_sample_of_a_stream_is_regular_and_bounded() -> None:
    number_of_row = np.arange(60_000.0)
    vectors = np.stack([np.ones(60_000), number_of_row], axis=1)
    blocks = list(vectors.reshape(60, 1000, 2))
    labels = np.where(number_of_row % 20_000 == 7, 1, -1)
    products, sample, found = _read(blocks, np.eye(2)[:1], [None, labels])
    none, (labelled, codes) = found
    assert none is None
    assert codes.tolist() == [1, 1, 1]
    assert products.shape == (60_000, 1)
    assert len(sample) <= 20_000
    numbers = (sample[:, 1] / sample[:, 0]).round().astype(int)
    assert set(np.diff(numbers)) == {4}
    np.testing.assert_allclose(labelled[:, 1] / labelled[:, 0], [7, 20_007, 40_007])
    with pytest.raises(InvalidInputError, match="got 59999 for 60000 vectors"):
        _read(blocks, np.eye(2)[:1], [labels[:-1]])


def test_saved_groups_of_format_2_act_by_gender_alone(tmp_path: Path) -> None:
    for prompt_set, acts in ((GENDERS, True), (AGES, False)):
        groups = IndexGroups.fit(MODEL, prompt_set, Pictures(0.0).vectors)
        file = tmp_path / f"{prompt_set.name}.safetensors"
        replace(groups, doubt="").save(file)
        assert IndexGroups.load(file).doubt == ""  # format 3 states its own doubt
        with safe_open(file, "np") as opened:
            header = {**opened.metadata(), "format_version": "2"}
        del header["sha256"], header["basis"]
        tensors = load_file(file) | {"0.wordings": groups.attributes[0].texts[None]}
        save_file(tensors, file, {**header, "sha256": _digest(header, tensors)})
        assert ("without labels" not in IndexGroups.load(file).doubt) == acts


def labels_of_some(pictures: Pictures, n: int) -> list[str]:
    """Return the ages of the first n pictures, and "" for the others."""
    names = [list(AGES.attributes)[age] for age in pictures.ages]
    return [*names[:n], *[""] * (len(names) - n)]


def test_labels_of_another_attribute_act_and_are_named() -> None:
    pictures = Pictures(0.0)
    assert "--attribute age" in IndexGroups.fit(MODEL, AGES, pictures.vectors).doubt
    labels = {"age": labels_of_some(pictures, 40)}
    blocks = iter(np.array_split(pictures.vectors, 7))
    groups = IndexGroups.fit(MODEL, AGES, blocks, labels=labels)
    assert groups.doubt == ""
    assert groups.used.startswith("search by age: 40 labels, ")
    assert "of 40 right when left out; young " in groups.used
    true = np.bincount(pictures.ages) / len(pictures.ages)
    np.testing.assert_allclose(groups.shares, true, atol=0.05)
    crossed = IndexGroups.fit(MODEL, SETS, pictures.vectors, labels=labels)
    assert crossed.doubt == ""  # gender needs no labels
    assert "gender: predicted without labels, age: 40 labels" in crossed.used


def test_labels_that_are_random_keep_the_order_or_fall_back_to_gender() -> None:
    pictures = Pictures(0.0)
    rng = np.random.default_rng(1)
    ages = {"age": [*rng.permutation(labels_of_some(pictures, 40)[:40]), *[""] * 860]}
    assert "40 labelled images" in IndexGroups.fit(MODEL, AGES, pictures.vectors, labels=ages).doubt
    genders = {"gender": [*rng.permutation(["male", "female"] * 10), *[""] * 880]}
    with pytest.warns(SuspectInputWarning, match="labels of 'gender' are not used: of 20"):
        groups = IndexGroups.fit(MODEL, GENDERS, pictures.vectors, labels=genders)
    plain = IndexGroups.fit(MODEL, GENDERS, pictures.vectors)
    assert groups.doubt == ""
    np.testing.assert_array_equal(groups.attributes[0].texts, plain.attributes[0].texts)


def test_labelled_candidates_keep_their_label_and_the_others_are_predicted() -> None:
    pictures = Pictures(0.0)
    rows = slice(0, -4)  # the last vectors are broken
    labels = labels_of_some(pictures, 60)[rows]
    labels[0] = "old" if labels[0] == "young" else "young"  # not what the picture shows
    scores = np.arange(len(labels))[::-1]
    positions = vldebias.rerank(
        scores,
        100,
        features=pictures.vectors[rows],
        attribute=AGES,
        model=MODEL,
        labels=labels,
    )
    candidates = positions.report.candidates
    names = list(AGES.attributes)
    assert [names[code] for code in candidates.codes[:60]] == labels[:60]
    assert candidates.is_near is not None
    assert not candidates.is_near[:60].any()
    assert (candidates.codes[60:] == pictures.ages[60:-4]).mean() > 0.8
    assert str(positions.report).startswith("search by age: 60 labels")


def test_requested_shares_need_labels() -> None:
    pictures = Pictures(0.0)
    how = {"features": pictures.vectors[:100], "attribute": GENDERS, "model": MODEL}
    shares = {"male": 0.5, "female": 0.5}
    with pytest.raises(InvalidInputError, match="shares: got shares of groups that are predicted"):
        vldebias.rerank(np.arange(100), 10, shares=shares, **how)
    labels = [["male", "female"][gender] for gender in pictures.genders[:100]]
    found = vldebias.rerank(np.arange(100)[::-1], 10, shares=shares, labels=labels, **how)
    assert found.report.counts == {"male": 5, "female": 5}
