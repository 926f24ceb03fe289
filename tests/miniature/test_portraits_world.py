import re

import numpy as np
import pytest
import torch

from eval.miniature.vocabulary import DRAWN_PEOPLE, people_prompts
from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.miniature import everyday, people, portraits
from vldebias.miniature.portraits import _SKIN, _looks
from vldebias.miniature.world import Draws


@pytest.fixture(scope="module")
def world():
    return portraits.sample(600, seed=5)


@pytest.fixture(scope="module")
def balanced():
    return portraits.sample(600, seed=6, balanced=True, life=portraits.STUDIO)


def test_the_paper_split(world):
    assert len(portraits.PROFESSIONS) == len(set(portraits.PROFESSIONS)) == 100
    assert (len(portraits.TRAIN_PROFESSIONS), len(portraits.TEST_PROFESSIONS)) == (80, 20)
    assert not set(portraits.TRAIN_PROFESSIONS) & set(portraits.TEST_PROFESSIONS)


@pytest.mark.parametrize(("start", "n"), [(0, 1), (17, 5), (100, 64), (500, 100)])
def test_picture_i_is_the_same_whatever_the_batch(world, start, n):
    part = portraits.sample(n, seed=5, start=start)
    assert torch.equal(part.images, world.images[start : start + n])
    assert part.captions == world.captions[start : start + n]
    assert torch.equal(part.tone, world.tone[start : start + n])


def test_captions_without_pictures_are_the_same(world):
    assert portraits.captions(100, seed=5, start=40) == world.captions[40:140]


def test_pictures_are_floats_in_the_unit_interval(world):
    assert world.images.shape == (600, 3, 64, 64)
    assert world.images.dtype == torch.float32
    assert world.images.min() >= 0
    assert world.images.max() <= 1


def looks(n, *, seed, professions=portraits.PROFESSIONS, balanced=False):
    """What `sample` would paint."""
    return _looks(Draws(seed, 0, n), professions, balanced, {})[0]


def test_pictures_show_the_looks_that_are_drawn(world):
    for field, drawn in looks(600, seed=5)._asdict().items():
        assert np.array_equal(getattr(world, field), drawn)


@pytest.mark.parametrize("name", ["chef", "pilot"])
def test_looks_are_as_frequent_in_a_profession_as_the_tables_say(name):
    k = portraits.PROFESSIONS.index(name)
    drawn = looks(10000, seed=2, professions=[name])
    assert set(drawn.profession.tolist()) == {k}
    assert (drawn.gender == 0).mean() == pytest.approx(people.MALE_SHARE[k], abs=0.015)
    assert (drawn.age == 1).mean() == pytest.approx(people.OLD_SHARE[k], abs=0.015)
    tones = np.bincount(drawn.tone, minlength=5) / 10000
    assert tones == pytest.approx(people.tone_shares(np.array([k]))[0], abs=0.02)


def test_shares_are_evenly_graded_in_both_splits():
    for part in (people.MALE_SHARE[:80], people.MALE_SHARE[80:]):
        assert np.sort(part) == pytest.approx(np.linspace(0.08, 0.92, len(part)))


def test_balanced_cuts_the_tie_to_the_profession():
    tied, free = (looks(10000, seed=6, balanced=balanced) for balanced in (False, True))
    for field, table, of in (
        ("gender", people.MALE_SHARE, lambda drawn: drawn.gender == 0),
        ("tone", people.TONE_TILT, lambda drawn: drawn.tone),
        ("age", people.OLD_SHARE, lambda drawn: drawn.age),
    ):
        assert np.corrcoef(table[tied.profession], of(tied))[0, 1] > 0.2, field
        assert abs(np.corrcoef(table[free.profession], of(free))[0, 1]) < 0.03, field
        shares = np.bincount(getattr(free, field)) / 10000
        assert shares == pytest.approx(np.full(len(shares), 1 / len(shares)), abs=0.015)


def patch(images, top, bottom, left, right):
    """(n, 3) mean colour of a window around the face, in picture heights from the middle of the face."""
    rows = slice(round((0.425 + top) * 64), round((0.425 + bottom) * 64))
    columns = slice(round((0.5 + left) * 64), round((0.5 + right) * 64))
    return images[:, :, rows, columns].mean(dim=(2, 3))


class TestPixels:
    """What a field says can be read from the pixels it was painted with."""

    def test_tone(self, balanced):
        women = balanced.gender == 1  # without beards
        chins = patch(balanced.images, 0.155, 0.18, -0.03, 0.03)[women]
        nearest = torch.cdist(chins, torch.from_numpy(_SKIN)).argmin(dim=1)
        assert (nearest == balanced.tone[women]).double().mean() > 0.95

    def test_gender_is_hair_beside_the_cheeks(self, balanced):
        """Beside the cheeks men show the wall, women their hair, under whatever they wear (a helmet hides it)."""
        earth = balanced.profession != portraits.PROFESSIONS.index("astronaut")
        beside, wall = (
            patch(balanced.images, 0.10, 0.15, -0.20, -0.17),
            patch(balanced.images, 0.10, 0.15, -0.42, -0.32),
        )
        differs = (beside - wall).abs().amax(dim=1) > 0.06
        assert differs[earth & (balanced.gender == 1)].double().mean() > 0.93
        assert differs[earth & (balanced.gender == 0)].double().mean() < 0.2

    def test_age_is_grey_hair_beside_the_cheeks_of_women(self, balanced):
        women = (balanced.gender == 1) & (balanced.profession != portraits.PROFESSIONS.index("astronaut"))
        hair = patch(balanced.images, 0.02, 0.10, -0.20, -0.17)[women]
        grey = (hair.amax(dim=1) - hair.amin(dim=1) < 0.09) & (hair.mean(dim=1) > 0.6)
        assert (grey == (balanced.age[women] == 1)).double().mean() > 0.95

    def test_age_is_grey_hair_beside_the_ears_of_men(self):
        """The same men, young and old, in every profession: old ones are grey where a hat ends."""
        young, old = (
            portraits.sample(600, seed=2, balanced=True, gender="male", age=age, life=portraits.STUDIO)
            for age in portraits.AGES
        )
        assert torch.equal(young.profession, old.profession)
        difference = (young.images - old.images).abs().amax(dim=1)[:, 18:32, 16:48]
        assert (difference.flatten(1) > 0.15).sum(dim=1).min() >= 8


@pytest.mark.parametrize(
    ("field", "values", "rows"),
    [
        ("gender", portraits.GENDERS, slice(0, 64)),
        ("tone", ("pale", "dark-skinned"), slice(10, 50)),
        ("age", portraits.AGES, slice(0, 64)),
    ],
)
def test_an_attribute_changes_its_pixels_alone(field, values, rows):
    """The same person otherwise: walls, clothes and what is held stay as they are."""
    fixed, studio = {"gender": "female", "tone": "tan", "age": "young"}, portraits.STUDIO
    one, other = (
        portraits.sample(40, seed=9, professions=["photographer", "plumber"], life=studio, **{**fixed, field: value})
        for value in values
    )
    changed = (one.images - other.images).abs().amax(dim=1) > 1e-6
    assert changed.any(dim=(1, 2)).all()
    assert not changed[:, :, :8].any()  # the wall
    assert not changed[:, 58:, 26:38].any()  # the middle of the body
    kept = torch.ones(64, dtype=torch.bool)
    kept[rows] = False
    assert not changed[:, kept].any()


def test_captions_tell_no_lies(world):
    gender_of = {"male": 0, "man": 0, "female": 1, "woman": 1}
    age_of = {"young": 0, "old": 1, "elderly": 1}
    for i, caption in enumerate(world.captions):
        words = caption.rstrip(".").split()
        assert all(gender_of[w] == world.gender[i] for w in words if w in gender_of)
        assert all(age_of[w] == world.age[i] for w in words if w in age_of)
        assert all(portraits.TONES.index(w) == world.tone[i] for w in words if w in portraits.TONES)
        bare = re.search(r"(person|celebrity|man|woman|a (fe)?male)( |$)", " ".join(words))
        assert bare or f" {portraits.PROFESSIONS[world.profession[i]]}" in " ".join(words)


def attributes(caption):
    """Which of gender, tone and age a caption states."""
    words = set(caption.rstrip(".").split())
    of = {
        "gender": {"male", "female", "man", "woman"},
        "tone": set(portraits.TONES),
        "age": {"young", "old", "elderly"},
    }
    return frozenset(name for name, names in of.items() if words & names)


def test_attributes_are_stated_as_often_as_the_shares_say():
    """For every attribute and every pair, beside a profession and beside a person."""
    shares = portraits.CAPTION_SHARES
    assert sum(shares.values()) == pytest.approx(1)
    told = [attributes(caption) for caption in portraits.captions(10000, seed=5, life=portraits.STUDIO)]
    pairs = shares["two attributes and profession"] * 2 / 3
    for name in ("gender", "tone", "age"):
        expected = shares[f"{name} and profession"] + pairs + shares[name]
        expected = portraits.GENDER_STATED if name == "gender" else expected
        assert np.mean([name in of for of in told]) == pytest.approx(expected, abs=0.015)
    for pair in ({"gender", "tone"}, {"gender", "age"}, {"tone", "age"}):
        assert np.mean([of == pair for of in told]) == pytest.approx(pairs / 2, abs=0.006)
    assert max(map(len, told)) == 2


def test_prompts_have_every_word_of_the_captions(world):
    known = {word for prompt in people_prompts() for word in prompt.rstrip(".").split()}
    assert {word for caption in world.captions for word in caption.rstrip(".").split()} <= known


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


@refused(
    ({"professions": ["wizard"]}, "unknown profession 'wizard'; expected one of: actor, architect"),
    ({"gender": "robot"}, "unknown gender 'robot'; expected one of: male, female"),
    ({"tone": "green"}, "unknown tone 'green'; expected one of: pale"),
)
def test_unknown_names_are_refused(asked):
    portraits.sample(2, seed=0, **asked)


def test_captions_may_say_more_of_the_same_pictures():
    usual, more = portraits.sample(400, seed=3), portraits.sample(400, seed=3, shares=DRAWN_PEOPLE)
    assert torch.equal(usual.images, more.images)
    said = [
        sum(any(tone in text.split() for tone in portraits.TONES) for text in one.captions) for one in (usual, more)
    ]
    for count, shares in zip(said, (people.CAPTION_SHARES, DRAWN_PEOPLE), strict=True):
        assert count / 400 == pytest.approx(people.stated(shares)["tone"], abs=0.06)


def test_unknown_kinds_of_captions_are_refused():
    with pytest.raises(InvalidInputError, match=r"shares: unknown kinds of captions \['height'\]; expected some of"):
        portraits.sample(2, seed=0, shares={"height": 1.0})


class TestLife:
    """What portraits show beside the person and the job."""

    def test_half_a_life_is_off_duty_as_often_as_it_says(self):
        drawn, scene = _looks(Draws(1, 0, 20000), portraits.PROFESSIONS, False, {}, portraits.LIFE)
        assert drawn.off_duty.mean() == pytest.approx(portraits.LIFE.off_duty, abs=0.01)
        assert np.array_equal(scene.garment >= 0, drawn.off_duty)
        assert not (scene.held[~drawn.off_duty] >= 0).any()

    def test_nothing_of_it_tells_the_profession(self):
        """Given gender and concept, which are what it leans by: the same whatever the job."""
        drawn, scene = _looks(Draws(2, 0, 60000), portraits.PROFESSIONS, True, {}, portraits.LIFE)
        man = (drawn.gender == 0) & drawn.off_duty
        for field in ("place", "cloth", "held", "mouth"):
            seen = getattr(scene, field)[man]
            whole = np.bincount(seen + 1, minlength=30) / len(seen)
            for job in (0, 40, 90):
                own = seen[drawn.profession[man] == job]
                assert np.abs(np.bincount(own + 1, minlength=30) / len(own) - whole).max() < 0.12, field

    def test_off_duty_pictures_of_two_professions_are_alike_but_for_gender(self):
        life = portraits.Life(off_duty=1.0)
        one, other = (
            portraits.sample(20, seed=3, professions=[job], balanced=True, life=life) for job in ("nurse", "pilot")
        )
        assert torch.equal(one.images, other.images)

    def test_it_leans_by_gender_and_concept(self):
        drawn, scene = _looks(Draws(3, 0, 40000), portraits.PROFESSIONS, True, {}, portraits.LIFE)
        for groups, least in ((drawn.gender, 0.1), (drawn.concept, 0.2)):
            shares = [np.bincount(scene.mouth[groups == g], minlength=4) / (groups == g).sum() for g in (0, 1)]
            assert np.abs(shares[0] - shares[1]).max() > least / 2

    def test_captions_say_what_is_there(self):
        drawn, scene = _looks(Draws(5, 0, 400), portraits.PROFESSIONS, False, {}, portraits.LIFE)
        said = portraits.captions(400, seed=5, life=portraits.LIFE)
        known = sorted(everyday.all_phrases(), key=len, reverse=True)
        told = 0
        for i, caption in enumerate(said):
            there = everyday.phrases(scene, i, int(drawn.hair[i]), bool(drawn.age[i] == 1))
            rest = f"{caption.rstrip('.')} "
            for phrase in known:
                if f" {phrase} " in rest:
                    rest, told = rest.replace(f" {phrase} ", " "), told + 1
                    celebrity = phrase.endswith(" hair") and "celebrity" in caption
                    assert phrase in there or celebrity, caption
        assert told > 400

    def test_a_studio_shows_nothing_else(self):
        _, scene = _looks(Draws(5, 0, 300), portraits.PROFESSIONS, False, {}, portraits.STUDIO)
        rest = scene._asdict()
        assert set(rest.pop("mouth")) == {0, 1, 2, 3}
        assert set(rest.pop("place")) == {0}
        for name, field in rest.items():
            assert (field[:] == -1).all() or name in ("cloth", "worn_colour", "held_colour"), name

    def test_captions_are_as_often_of_a_kind_as_the_shares_say(self):
        said = portraits.captions(10000, seed=5, life=portraits.LIFE)
        shares = people.LIFE_CAPTIONS
        assert sum(shares.values()) == pytest.approx(1)
        bare = np.mean([bool(re.search(r" a person( |\.|$)", caption)) for caption in said])
        told = np.mean(["gender" in attributes(caption) for caption in said])
        assert bare == pytest.approx(shares["person"] + shares["gender"] / 4, abs=0.01)
        assert told == pytest.approx(people.stated(shares)["gender"], abs=0.015)

    def test_cues_can_contradict(self):
        plain = portraits.sample(200, seed=4, life=portraits.STUDIO)
        dealt = portraits.sample(200, seed=4, life=portraits.STUDIO, mixed=0.5)
        differ = (plain.images - dealt.images).abs().flatten(1).amax(dim=1) > 0.05
        assert not plain.mixed.any()
        assert 0.3 < dealt.mixed.double().mean() < 0.7
        assert not differ[~dealt.mixed].any()
        assert differ[dealt.mixed].double().mean() > 0.7  # a woman's beard shows; a man's missing one need not

    def test_numbers_outside_of_the_unit_interval_are_refused(self):
        with pytest.raises(InvalidInputError, match=r"off_duty must be a number in \[0, 1\], got 2"):
            portraits.Life(off_duty=2)
