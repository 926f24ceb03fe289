from typing import ClassVar

import numpy as np
import pytest
import torch

from vldebias.errors import InvalidInputError
from vldebias.miniature import people, portraits
from vldebias.miniature.portraits import _SKIN, _UNIFORMS, HEADGEAR, UNIFORM


@pytest.fixture(scope="module")
def world():
    return portraits.sample(4000, seed=5)


@pytest.fixture(scope="module")
def balanced():
    return portraits.sample(4000, seed=6, balanced=True)


def test_the_paper_split(world):
    assert len(portraits.PROFESSIONS) == len(set(portraits.PROFESSIONS)) == 100
    assert (len(portraits.TRAIN_PROFESSIONS), len(portraits.TEST_PROFESSIONS)) == (80, 20)
    assert not set(portraits.TRAIN_PROFESSIONS) & set(portraits.TEST_PROFESSIONS)


@pytest.mark.parametrize(("start", "n"), [(0, 1), (17, 5), (100, 64)])
def test_picture_i_is_the_same_whatever_the_batch(world, start, n):
    part = portraits.sample(n, seed=5, start=start)
    assert torch.equal(part.images, world.images[start : start + n])
    assert part.captions == world.captions[start : start + n]
    assert torch.equal(part.tone, world.tone[start : start + n])


def test_captions_without_pictures_are_the_same(world):
    assert portraits.captions(100, seed=5, start=40) == world.captions[40:140]


def test_pictures_are_floats_in_the_unit_interval(world):
    assert world.images.shape == (4000, 3, 32, 32)
    assert world.images.dtype == torch.float32
    assert world.images.min() >= 0
    assert world.images.max() <= 1


def test_no_two_professions_look_the_same():
    assert len(set(zip(UNIFORM.tolist(), HEADGEAR.tolist(), strict=True))) == 100


def test_men_are_as_frequent_in_a_profession_as_the_table_says():
    for name, share in (("chef", None), ("pilot", None)):
        k = portraits.PROFESSIONS.index(name)
        drawn = portraits.sample(1500, seed=2, professions=[name])
        assert set(drawn.profession.tolist()) == {k}, share
        assert (drawn.gender == 0).double().mean().item() == pytest.approx(people.MALE_SHARE[k], abs=0.04)
        assert (drawn.age == 1).double().mean().item() == pytest.approx(people.OLD_SHARE[k], abs=0.04)
        tones = torch.bincount(drawn.tone, minlength=5).numpy() / 1500
        assert tones == pytest.approx(people.tone_shares(np.array([k]))[0], abs=0.045)


def test_shares_are_evenly_graded_in_both_splits():
    for part in (people.MALE_SHARE[:80], people.MALE_SHARE[80:]):
        assert np.sort(part) == pytest.approx(np.linspace(0.08, 0.92, len(part)))


def test_balanced_cuts_the_tie_to_the_profession(world, balanced):
    men = torch.from_numpy(people.MALE_SHARE)
    tied, free = (
        torch.corrcoef(torch.stack([men[w.profession], (w.gender == 0).double()]))[0, 1] for w in (world, balanced)
    )
    assert tied > 0.4
    assert abs(free) < 0.06
    for field, count in (("gender", 2), ("tone", 5), ("age", 2)):
        shares = torch.bincount(getattr(balanced, field)) / 4000
        assert torch.allclose(shares, torch.full((count,), 1 / count), atol=0.03)


class TestPixels:
    """What a field says can be read from the pixels it was painted with."""

    shirt: ClassVar = (slice(None), slice(None), slice(28, 31), slice(12, 20))

    def test_uniform(self, balanced):
        seen = balanced.images[self.shirt].mean(dim=(2, 3))
        nearest = torch.cdist(seen, torch.from_numpy(_UNIFORMS)).argmin(dim=1)
        assert (nearest == torch.from_numpy(UNIFORM)[balanced.profession]).double().mean() > 0.97

    def test_tone(self, balanced):
        neck = balanced.images[:, :, 20:22, 15:17].mean(dim=(2, 3))
        bearded_or_not = balanced.gender == 1
        nearest = torch.cdist(neck, torch.from_numpy(_SKIN) * 0.95).argmin(dim=1)
        assert (nearest == balanced.tone)[bearded_or_not].double().mean() > 0.95

    def test_gender_is_hair_beside_the_neck(self, balanced):
        """Beside the neck men show the wall, women their hair: left of the neck differs from the corner."""
        beside, corner = balanced.images[:, :, 19:22, 10:12], balanced.images[:, :, :3, :3]
        differs = (beside.mean(dim=(2, 3)) - corner.mean(dim=(2, 3))).abs().amax(dim=1) > 0.1
        assert differs[balanced.gender == 1].double().mean() > 0.95
        assert differs[balanced.gender == 0].double().mean() < 0.25

    def test_age_is_grey_hair(self, balanced):
        women = balanced.gender == 1
        hair = balanced.images[:, :, 18:22, 9:11].mean(dim=(2, 3))[women]
        old = balanced.age[women] == 1
        colourful = hair.amax(dim=1) - hair.amin(dim=1)
        grey = (colourful < 0.09) & (hair.mean(dim=1) > 0.5)
        assert (grey == old).double().mean() > 0.93


def test_captions_tell_no_lies(world):
    gender_of = {"male": 0, "man": 0, "female": 1, "woman": 1}
    age_of = {"young": 0, "old": 1, "elderly": 1}
    for i, caption in enumerate(world.captions):
        words = caption.rstrip(".").split()
        assert all(gender_of[w] == world.gender[i] for w in words if w in gender_of)
        assert all(age_of[w] == world.age[i] for w in words if w in age_of)
        assert all(portraits.TONES.index(w) == world.tone[i] for w in words if w in portraits.TONES)
        text = " ".join(words)
        if not any(w in words for w in ("person", "celebrity", "man", "woman")):
            assert text.endswith(portraits.PROFESSIONS[world.profession[i]]) or {"male", "female"} & set(words)


def test_gender_is_stated_as_often_as_the_card_says(world):
    stated = [bool({"male", "female", "man", "woman"} & set(c.rstrip(".").split())) for c in world.captions]
    assert sum(stated) / len(stated) == pytest.approx(portraits.GENDER_STATED, abs=0.025)
    assert sum(portraits.CAPTION_SHARES.values()) == pytest.approx(1)


def test_concepts_lean_as_the_tables_say():
    captions = portraits.captions(40000, seed=3)
    gender = portraits.sample(1, seed=3).gender  # the field exists for every caption
    assert gender.shape == (1,)
    concept = people.CONCEPTS[int(people.CONCEPT_GENDER.argmax())]
    assert sum(f" {concept} person" in caption for caption in captions) > 50
    male = people.concept_shares(np.array([0]), np.array([2]))[0]
    female = people.concept_shares(np.array([1]), np.array([2]))[0]
    assert np.argmax(male / female) == people.CONCEPT_GENDER.argmax()
    dark = people.concept_shares(np.array([0]), np.array([4]))[0]
    pale = people.concept_shares(np.array([0]), np.array([0]))[0]
    assert np.argmax(dark / pale) == people.CONCEPT_TONE.argmax()


def test_attributes_can_be_fixed():
    fixed = portraits.sample(50, seed=0, gender="female", tone="tan", age="old")
    assert set(fixed.gender.tolist()) == {1}
    assert set(fixed.tone.tolist()) == {2}
    assert set(fixed.age.tolist()) == {1}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"professions": ["wizard"]}, "unknown profession 'wizard'; expected one of: actor, architect"),
        ({"gender": "robot"}, "unknown gender 'robot'; expected one of: male, female"),
        ({"tone": "green"}, "unknown tone 'green'; expected one of: pale"),
    ],
)
def test_unknown_names_are_refused(asked, text):
    with pytest.raises(InvalidInputError, match=text):
        portraits.sample(2, seed=0, **asked)
