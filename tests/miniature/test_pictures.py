"""Test the packaged pictures: splits, labels, captions, noise, and errors."""

import hashlib
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from vldebias.data.labels import UNKNOWN
from vldebias.miniature import open_world, words
from vldebias.miniature.pictures import pixel_noise


@pytest.mark.parametrize("name", words.WORLDS)
def test_splits_are_disjoint_and_have_the_documented_size(name: str) -> None:
    test = open_world(name)
    reference = open_world(name, split="reference")
    assert (len(test), len(reference)) == (1500, 500)
    assert not set(test.ids) & set(reference.ids)
    assert len({test.fingerprint, reference.fingerprint, open_world(name, n=500).fingerprint}) == 3
    shown = {data.read(i).tobytes() for data, i in product((test, reference), range(0, 500, 7))}
    assert len(shown) == 2 * len(range(0, 500, 7))


def test_pixels_match_those_of_the_committed_results() -> None:
    """Pictures are bit-identical. Their noise is sampled when they are loaded."""
    digests = ["9dca6c3418700b98", "c2363dbfe044fd0f", "a435a713d3f9667b", "f27e08534371e64e"]
    for (name, split), digest in zip(
        product(words.WORLDS, ("test", "reference")), digests, strict=True
    ):
        part = open_world(name, start=97, split=split)
        shown = b"".join(part.read(i).tobytes() for i in range(3))
        assert hashlib.sha256(shown).hexdigest().startswith(digest), (name, split)
        assert part.ids[0] == f"{split}/0097"
        assert len(part) == (1403 if split == "test" else 403)


@pytest.mark.parametrize("name", words.WORLDS)
@pytest.mark.parametrize("split", ["test", "reference"])
def test_a_subset_has_the_same_pictures(name: str, split: str) -> None:
    all_pictures = open_world(name, split=split)
    part = open_world(name, n=20, start=30, split=split)
    assert part.ids == all_pictures.ids[30:50]
    assert part.captions == all_pictures.captions[30:50]
    for column in all_pictures.labels:
        assert (
            part.column(column).codes.tolist() == all_pictures.column(column).codes[30:50].tolist()
        )
    assert all(part.read(i) == all_pictures.read(30 + i) for i in range(20))


def test_the_measured_pictures_are_uncorrelated_unlike_the_reference() -> None:
    def together(name: str, split: str, first: str, second: str) -> float:
        data = open_world(name, split=split)
        return float(abs(np.corrcoef(data.column(first).codes, data.column(second).codes)[0, 1]))

    assert together("birds", "test", "label", "place") < 0.1
    assert together("birds", "reference", "label", "place") > 0.7
    shares = []
    for split in ("test", "reference"):
        people = open_world("portraits", split=split)
        jobs = people.column("profession").codes
        men = people.column("gender").codes == 0
        shares.append(
            np.std([men[jobs == job].mean() for job in range(100) if (jobs == job).sum() > 2])
        )
    # By chance alone, shares of men also differ between professions in the test split.
    assert shares[1] > 1.3 * shares[0]


def test_hair_is_dark_blond_or_neither() -> None:
    people = open_world("portraits")
    hair, age, label = (people.column(name) for name in ("hair", "age", "label"))
    for i in range(200):
        shown = "grey" if age.names[age.codes[i]] == "old" else hair.names[hair.codes[i]]
        expected = {"black": "dark", "brown": "dark", "blond": "blond"}.get(shown)
        assert (label.names[label.codes[i]] if label.codes[i] != UNKNOWN else None) == expected


def test_noise_is_uniform_with_the_requested_deviation_and_differs_between_pictures() -> None:
    noise_of_picture, again, other_picture, seed = (
        pixel_noise(*seed_and_index, 0.01) for seed_and_index in ((7, 3), (7, 3), (7, 4), (8, 3))
    )
    assert np.array_equal(noise_of_picture, again)
    # With 12,288 numbers per picture, a chance correlation is 0.01. A uniform distribution with
    # deviation s ends at s * sqrt(3).
    for noise in (other_picture, seed):
        assert abs(np.corrcoef(noise_of_picture.ravel(), noise.ravel())[0, 1]) < 0.05
    assert noise_of_picture.mean() == pytest.approx(0, abs=3e-4)
    assert noise_of_picture.std() == pytest.approx(0.01, rel=0.02)
    assert abs(noise_of_picture).max() <= 0.01 * 3**0.5 + 1e-6


@refused(
    ("cats", {}, "cats.*birds, portraits"),
    ("birds", {"split": "val"}, "birds.*test or reference.*val"),
    ("birds", {"n": 1501}, r"birds.*1,500.*n = 1501"),
    ("birds", {"n": 501, "split": "reference"}, r"birds.*500.*n = 501"),
    ("portraits", {"n": 10, "start": 1495}, r"1,500.*start = 1495"),
    ("portraits", {"n": 0}, "n = 0"),
    ("portraits", {"start": -1}, "start = -1"),
)
def test_pictures_that_are_not_packaged_are_rejected(world: str, options: dict[str, Any]) -> None:
    open_world(world, **options)
