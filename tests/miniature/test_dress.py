from itertools import combinations

import numpy as np
import pytest
import torch

from vldebias.miniature import portraits
from vldebias.miniature.dress import DRESSES, GENERIC, Wardrobe
from vldebias.miniature.everyday import Scene
from vldebias.miniature.headgear import nothing
from vldebias.miniature.pen import Pen
from vldebias.miniature.people import PROFESSIONS, STUDIO


def parts(worn_by):
    """Garment, what is worn and what is held, each with its colours; no colour where there is nothing."""
    garment, cloth, trim, worn, worn_colour, thing, thing_colour = worn_by
    return (
        (garment, *cloth, *trim),
        (worn, *(() if worn is nothing else worn_colour)),
        (thing, *(() if thing is nothing else thing_colour)),
    )


def test_at_least_36_professions_are_dressed_by_hand():
    assert len(DRESSES) == len(PROFESSIONS) == 100
    assert len(PROFESSIONS) - len(GENERIC) >= 36


def test_any_two_professions_differ_in_two_of_garment_headgear_and_thing():
    for (one, a), (other, b) in combinations(zip(PROFESSIONS, map(parts, DRESSES), strict=True), 2):
        assert sum(x != y for x, y in zip(a, b, strict=True)) >= 2, f"{one} and {other} look alike"


def test_those_dressed_by_rule_hold_something_and_differ_in_their_clothes():
    dealt = [parts(DRESSES[PROFESSIONS.index(name)]) for name in GENERIC]
    assert all(thing[0] is not nothing for _, _, thing in dealt)
    assert len({clothes for clothes, _, _ in dealt}) == len(GENERIC)


@pytest.fixture(scope="module")
def average():
    """(100, 3, 64, 64): each profession's mean over eight people."""
    people = [portraits.sample(8, seed=4, professions=[name], balanced=True, life=STUDIO) for name in PROFESSIONS]
    return torch.stack([person.images.mean(dim=0) for person in people])


def test_professions_are_told_apart_by_their_pixels(average):
    """The nearest of the 100 mean pictures of other people says the profession, wherever they stand."""
    fresh = portraits.sample(300, seed=8, balanced=True, life=STUDIO)
    body = average[:, :, 40:].flatten(1)
    nearest = torch.cdist(fresh.images[:, :, 40:].flatten(1), body).argmin(dim=1)
    assert (nearest == fresh.profession).double().mean() > 0.8


def test_the_same_people_change_in_their_dress_alone():
    """Two professions on the same people: faces and walls agree but for what is worn or held."""
    judge, photographer = (
        portraits.sample(30, seed=3, professions=[p], balanced=True, gender="male", life=STUDIO)
        for p in ("judge", "photographer")
    )  # neither wears anything on the head
    changed = (judge.images - photographer.images).abs().amax(dim=1) > 0.05
    same = (judge.tone == photographer.tone) & (judge.age == photographer.age)
    assert same.all()
    assert not changed[:, :36].any()
    assert changed[:, 44:].double().mean() > 0.2


def test_light_changes_the_colours_a_little():
    pen = Pen(np.zeros((2, 64, 64, 3), np.float32), 0.5, 0.425)
    none = np.full(2, -1)
    scene = Scene(*(none for _ in Scene._fields))
    wardrobe = Wardrobe(pen, np.array([0, 0]), np.array([0.9, 1.0], np.float32), scene)
    assert wardrobe.cloth[0] == pytest.approx(0.9 * wardrobe.cloth[1])
