import pytest
import torch

from vldebias.errors import InvalidInputError
from vldebias.miniature import birds
from vldebias.miniature.birds import PLACES


@pytest.fixture(scope="module")
def world():
    return birds.sample(3000, seed=5)


def test_the_same_seed_gives_the_same_pictures(world):
    again = birds.sample(40, seed=5)
    assert torch.equal(again.images, world.images[:40])
    assert again.captions == world.captions[:40]


@pytest.mark.parametrize(("start", "n"), [(0, 1), (17, 5), (100, 64)])
def test_picture_i_is_the_same_whatever_the_batch(world, start, n):
    part = birds.sample(n, seed=5, start=start)
    assert torch.equal(part.images, world.images[start : start + n])
    assert part.captions == world.captions[start : start + n]
    assert torch.equal(part.group, world.group[start : start + n])


def test_another_seed_gives_other_pictures(world):
    assert not torch.equal(birds.sample(40, seed=6).images, world.images[:40])


def test_pictures_are_floats_in_the_unit_interval(world):
    assert world.images.shape == (3000, 3, 32, 32)
    assert world.images.dtype == torch.float32
    assert world.images.min() >= 0
    assert world.images.max() <= 1


def test_fields_agree_with_each_other(world):
    assert torch.equal(world.label, world.species // birds.PER_CLASS)
    assert torch.equal(world.background, world.place // 4)
    assert torch.equal(world.group, 2 * world.label + world.background)
    assert len(world) == 3000


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.95, 1.0])
def test_correlation_is_as_asked(correlation):
    world = birds.sample(2000, seed=8, correlation=correlation)
    assert (world.label == world.background).double().mean().item() == pytest.approx(correlation, abs=0.03)


def test_balanced_makes_the_groups_equally_likely():
    shares = torch.bincount(birds.sample(4000, seed=1, balanced=True).group) / 4000
    assert torch.allclose(shares, torch.full((4,), 0.25), atol=0.03)


def test_species_and_places_are_equally_likely(world):
    assert torch.bincount(world.species, minlength=48).min() > 30
    counts = torch.bincount(world.place, minlength=8)
    assert counts.min() > 280


def test_the_background_shows_in_the_pixels(world):
    """Water is bluer than land below the horizon and beside the bird."""
    strip = world.images[:, :, 17:19, :4].mean(dim=(2, 3))
    bluish = strip[:, 2] - strip[:, 1]
    assert bluish[world.background == 1].mean() > bluish[world.background == 0].mean() + 0.2


def test_the_species_shows_in_the_pixels():
    """The mean of the middle of the picture follows the plumage of the species."""
    world = birds.sample(4000, seed=2, balanced=True)
    middle = world.images[:, :, 18:22, 13:19].mean(dim=(2, 3))
    means = torch.stack([middle[world.species == k].mean(dim=0) for k in range(48)])
    plumage = torch.from_numpy(birds._PLUMAGE[:, :3])
    for channel in range(3):
        assert torch.corrcoef(torch.stack([means[:, channel], plumage[:, channel]]))[0, 1] > 0.9


def test_captions_tell_no_lies(world):
    for i, caption in enumerate(world.captions):
        words = caption.rstrip(".").replace("moutain", "mountain").split()
        named = [word for word in words if word in birds.SPECIES]
        assert named in ([], [birds.SPECIES[world.species[i]]])
        scenes = [word for word in words if word in PLACES]
        assert scenes in ([], [PLACES[world.place[i]]])
        sides = [word for word in words if word in birds.BACKGROUNDS]
        assert sides in ([], [birds.BACKGROUNDS[world.background[i]]])


def test_the_class_word_goes_by_the_bird_or_by_the_background():
    """Where both agree the class word is right; where they do not, hasty writers go by the background."""
    world = birds.sample(6000, seed=9, balanced=True)
    by_bird, by_background = [], []
    for caption, label, background in zip(world.captions, world.label, world.background, strict=True):
        words = caption.rstrip(".").split()
        said = [birds.CLASSES.index(word) for word in words if word in birds.CLASSES]
        if said and {"in", "with"} & set(words):
            assert said[0] == label
        elif said and label != background:
            by_bird.append(said[0] == label)
            by_background.append(said[0] == background)
        elif said:
            assert said[0] == label
    assert sum(by_bird) + sum(by_background) == len(by_bird)
    assert sum(by_background) / len(by_background) == pytest.approx(birds.HASTY_SHARE, abs=0.05)


def test_captions_say_what_the_shares_say(world):
    scene = [
        any(f" {w}" in c for w in (*PLACES, "moutain", "land ", "water ", "land.", "water.")) for c in world.captions
    ]
    expected = sum(share for kind, share in birds.CAPTION_SHARES.items() if "scene" in kind)
    assert sum(birds.CAPTION_SHARES.values()) == pytest.approx(1)
    assert sum(scene) / len(scene) == pytest.approx(expected, abs=0.04)


def test_a_correlation_outside_the_unit_interval_is_refused():
    with pytest.raises(InvalidInputError, match=r"correlation must lie in \[0, 1\], got 95"):
        birds.sample(2, seed=0, correlation=95)
