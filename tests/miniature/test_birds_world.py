from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.miniature.vocabulary import bird_prompts
from tests.refusals import refused
from vldebias import load_prompts
from vldebias.miniature import birds, plumage, scenery
from vldebias.miniature.birds import BACKGROUNDS, CLASSES, KINDS, LEAN, PLACES, SPECIES, Lean
from vldebias.miniature.world import SIZE, Draws

SIDES = (" with land background", " in the land", " on land", " on the land")
SIDES += tuple(end.replace("land", "water") for end in SIDES)


@pytest.fixture(scope="module")
def world():
    return birds.sample(1000, seed=5)


def told(caption):
    """What a caption says besides its template: (species or class or None, place or background or None)."""
    words = caption.rstrip(".").replace("moutain", "mountain").split()
    birds_named = [word for word in words if word in (*SPECIES, *CLASSES)]
    scenes_named = [word for word in words if word in (*PLACES, *BACKGROUNDS)]
    assert len(birds_named) <= 1
    assert len(scenes_named) <= 1
    return birds_named[0] if birds_named else None, scenes_named[0] if scenes_named else None


def kind(caption):
    bird, scene = told(caption)
    if bird is None:
        return "scene"
    return ("class" if bird in CLASSES else "species") + (" in a scene" if scene else "")


def test_the_same_seed_gives_the_same_pictures(world):
    again = birds.sample(40, seed=5)
    assert torch.equal(again.images, world.images[:40])
    assert again.captions == world.captions[:40]
    assert not torch.equal(birds.sample(40, seed=6).images, world.images[:40])
    assert birds.sample(0, seed=5).images.shape == (0, 3, SIZE, SIZE)


@pytest.mark.parametrize(("start", "n"), [(0, 1), (17, 5), (100, 64), *((k, 1) for k in range(200, 210))])
def test_picture_i_is_the_same_whatever_the_batch(world, start, n):
    part = birds.sample(n, seed=5, start=start)
    assert torch.equal(part.images, world.images[start : start + n])
    assert part.captions == world.captions[start : start + n]
    assert torch.equal(part.group, world.group[start : start + n])


def test_pictures_are_floats_in_the_unit_interval(world):
    assert world.images.shape == (1000, 3, SIZE, SIZE)
    assert world.images.dtype == torch.float32
    assert world.images.min() >= 0
    assert world.images.max() <= 1


def test_fields_agree_with_each_other(world):
    assert torch.equal(world.label, world.species // plumage.PER_CLASS)
    assert torch.equal(world.background, world.place // scenery.PER_BACKGROUND)
    assert torch.equal(world.group, 2 * world.label + world.background)
    assert len(world) == 1000


def test_species_and_places_are_equally_likely():
    species, place = birds._birds_in_places(Draws(5, 0, 20_000), replace(LEAN, correlation=(0.5, 0.5)))
    assert np.bincount(species, minlength=48) / 20_000 == pytest.approx(np.full(48, 1 / 48), abs=0.005)
    assert np.bincount(place, minlength=8) / 20_000 == pytest.approx(np.full(8, 1 / 8), abs=0.01)


@pytest.mark.parametrize("correlation", [(0.0, 1.0), (0.3, 0.3), LEAN.correlation])
def test_each_class_stands_on_its_ground_as_often_as_asked(correlation):
    species, place = birds._birds_in_places(Draws(8, 0, 20_000), Lean(correlation=correlation))
    own = species // plumage.PER_CLASS == place // scenery.PER_BACKGROUND
    for label, share in enumerate(correlation):
        assert own[species // plumage.PER_CLASS == label].mean() == pytest.approx(share, abs=0.015)


def test_one_correlation_holds_for_both_classes():
    one = birds.sample(60, seed=8, correlation=0.3, lean=Lean(hasty=(0.0, 0.0)))
    other = birds.sample(60, seed=8, lean=Lean(correlation=(0.3, 0.3), hasty=(0.0, 0.0)))
    assert torch.equal(one.images, other.images)
    assert one.captions == other.captions


def test_balanced_makes_the_groups_equally_likely():
    world = birds.sample(800, seed=1, balanced=True, correlation=0.9)
    shares = torch.bincount(world.group) / len(world)
    assert torch.allclose(shares, torch.full((4,), 0.25), atol=0.05)


def test_fog_hides_the_place_and_not_the_bird(world):
    veiled = birds.sample(60, seed=5, lean=Lean(veiled=1.0))
    clear = birds.sample(60, seed=5)
    assert torch.equal(veiled.species, clear.species)
    corners = [one.images[:, :, :8, :8].mean(dim=(2, 3)) for one in (clear, veiled)]
    assert corners[1].std(dim=0).max() < 0.3 * corners[0].std(dim=0).max()
    changed = (veiled.images - clear.images).abs().amax(dim=1) > 0.05
    assert changed[:, :8].double().mean() > 0.5
    assert changed[:, 36:40, 28:34].double().mean() < 0.2


def test_the_lean_leaves_species_and_pictures_alone(world):
    """Only birds that changed sides look different; captions may."""
    leaning = birds.sample(150, seed=5, lean=Lean((0.5, 0.6), (1.0, 0.0), (0.1, 0.2, 0.3, 0.2, 0.2)))
    assert torch.equal(leaning.species, world.species[:150])
    stayed = leaning.place == world.place[:150]
    assert 60 < stayed.sum() < 150
    same = (leaning.images == world.images[:150]).flatten(1).all(dim=1)
    assert torch.equal(same, stayed)
    assert leaning.captions != world.captions[:150]


def test_hasty_writers_alone_change_class_captions_alone():
    plain, hasty = (birds.captions(3000, seed=2, lean=Lean(hasty=share)) for share in ((0.0, 0.0), (1.0, 1.0)))
    changed = [(one, other) for one, other in zip(plain, hasty, strict=True) if one != other]
    assert changed
    assert {kind(caption) for pair in changed for caption in pair} == {"class"}


def test_the_background_shows_in_the_pixels(world):
    """Water is bluer than land below the horizon and beside the bird."""
    strip = world.images[:, :, 34:38, :4].mean(dim=(2, 3))
    bluish = strip[:, 2] - strip[:, 1]
    assert bluish[world.background == 1].mean() > bluish[world.background == 0].mean() + 0.2


def test_the_species_shows_in_the_pixels():
    """The mean of the middle of the picture follows the colour of the wing."""
    world = birds.sample(1200, seed=2, balanced=True)
    middle = world.images[:, :, 36:42, 28:36].mean(dim=(2, 3))
    means = torch.stack([middle[world.species == k].mean(dim=0) for k in range(48)])
    wing = torch.from_numpy(plumage.PLUMAGE[:, plumage.PARTS.index("wing")])
    for channel in range(3):
        assert torch.corrcoef(torch.stack([means[:, channel], wing[:, channel]]))[0, 1] > 0.8


def test_every_species_looks_unlike_the_others_of_its_class():
    looks = plumage.PLUMAGE.reshape(2, plumage.PER_CLASS, -1)
    apart = np.sqrt(((looks[:, :, None] - looks[:, None]) ** 2).sum(axis=-1))
    assert (apart + 9 * np.eye(plumage.PER_CLASS)).min() > 0.4


@pytest.mark.parametrize("parts", [2, len(plumage.PARTS)], ids=["body and head", "all parts"])
def test_colour_does_not_tell_the_class(parts):
    """Species left out one by one: neither the nearest mean nor a linear rule nor neighbours beat chance.

    Of 48 fair coins a share outside of [.35, .65] falls once in 30 times.
    """
    colour = plumage.PLUMAGE[:, :parts].reshape(48, -1) - 0.5
    label = np.repeat([-1.0, 1.0], 24)
    right = {"mean": 0, "ridge": 0, "neighbours": 0}
    for k in range(48):
        x, y, new = np.delete(colour, k, axis=0), np.delete(label, k), colour[k]
        to_land, to_water = (((new - x[y == side].mean(axis=0)) ** 2).sum() for side in (-1, 1))
        features = np.c_[x, np.ones(47)]
        weights = np.linalg.solve(features.T @ features + 0.1 * np.eye(features.shape[1]), features.T @ y)
        near = y[((x - new) ** 2).sum(axis=1).argsort()[:3]]
        guesses = {"mean": to_land - to_water, "ridge": np.append(new, 1) @ weights, "neighbours": near.sum()}
        for rule, guess in guesses.items():
            right[rule] += int(guess * label[k] > 0)
    assert all(0.35 <= count / 48 <= 0.65 for count in right.values()), right


def test_captions_are_those_of_the_pictures(world):
    assert birds.captions(100, seed=5, start=30) == world.captions[30:130]
    lean = Lean((0.1, 0.2), (0.3, 0.4), (0.2, 0.2, 0.2, 0.2, 0.2))
    assert birds.captions(30, seed=5, lean=lean) == birds.sample(30, seed=5, lean=lean).captions
    balanced = birds.sample(30, seed=5, balanced=True)
    assert birds.captions(30, seed=5, balanced=True) == balanced.captions


def test_captions_tell_no_lies_but_hasty_ones(world):
    for i, caption in enumerate(world.captions):
        bird, scene = told(caption)
        assert bird in (None, SPECIES[world.species[i]], *CLASSES)
        if kind(caption) == "class in a scene":
            assert bird == CLASSES[world.label[i]]
        assert scene in (None, PLACES[world.place[i]], BACKGROUNDS[world.background[i]])


@pytest.mark.parametrize("hasty", [(0.0, 1.0), LEAN.hasty])
def test_the_class_word_goes_by_the_background_as_often_as_asked(hasty):
    """Seen where bird and background disagree; where they agree the word is right."""
    lean, draws = Lean((0.5, 0.5), hasty, (0.0, 0.0, 0.0, 1.0, 0.0)), Draws(9, 0, 8000)
    species, place = birds._birds_in_places(draws, lean)
    label, background = species // plumage.PER_CLASS, place // scenery.PER_BACKGROUND
    said = np.array([CLASSES.index(told(caption)[0]) for caption in birds.captions(8000, seed=9, lean=lean)])
    assert np.array_equal(said[label == background], label[label == background])
    for side, share in enumerate(hasty):
        apart = (label != background) & (background == side)
        assert (said[apart] == side).mean() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("shares", [LEAN.shares, (0.1, 0.2, 0.3, 0.4, 0.0)])
def test_captions_say_what_the_shares_say(shares):
    kinds = [kind(caption) for caption in birds.captions(6000, seed=3, lean=Lean(shares=shares))]
    for name, share in zip(KINDS, shares, strict=True):
        assert kinds.count(name) / len(kinds) == pytest.approx(share, abs=0.02)


def test_scenes_are_named_in_every_way():
    said = birds.captions(3000, seed=4, lean=Lean(shares=(0.0, 0.5, 0.0, 0.0, 0.5)))
    ends = [caption.rstrip(".") for caption in said]
    by_side = [sum(text.endswith(end) for text in ends) for end in SIDES]
    assert min(by_side) > 0.03 * len(said)
    assert sum(by_side) / len(said) == pytest.approx(birds.SIDE_SHARE, abs=0.03)
    assert {told(caption)[1] for caption in said} == {*PLACES, *BACKGROUNDS}


def test_the_vocabulary_has_every_caption_and_every_word_of_the_papers_prompts(world):
    prompts = bird_prompts()
    contents = {prompt.rstrip(".").replace(" an ", " a ") for prompt in prompts}
    for caption in (*world.captions, "a photo of a duck on land", "this is a picture of a landbird on the water"):
        assert caption.rstrip(".").replace("moutain", "mountain").replace(" an ", " a ") in contents
    words = {word.rstrip(".") for prompt in prompts for word in prompt.split()}
    paper = load_prompts("waterbirds")
    asked = [*paper.classes, *paper.spurious, *(prompt for group in paper.groups for prompt in group)]
    assert {word.rstrip(".").lower() for prompt in asked for word in prompt.split()} <= words


@refused(
    ({"correlation": (0.85, 95)}, r"correlation must be 2 numbers in \[0, 1\], got \(0.85, 95\)"),
    ({"correlation": (0.85,)}, "correlation must be 2 numbers"),
    ({"hasty": (-0.1, 0.0)}, "hasty must be 2 numbers"),
    ({"shares": (0.5, 0.5)}, "shares must be 5 numbers"),
    ({"shares": (0.5, 0.5, 0.5, 0.0, 0.0)}, "shares must sum to 1"),
)
def test_knobs_that_are_no_shares_are_refused(knobs):
    Lean(**knobs)
