import numpy as np
import pytest

from vldebias.errors import InvalidInputError
from vldebias.miniature.world import Draws, shuffled, splitmix64


def test_splitmix64_gives_the_published_sequence():
    # First outputs of the reference generator seeded with 0 and with its step.
    assert splitmix64(0)[0] == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15)[0] == 0x6E789E6AA1B965F4


def test_image_i_draws_the_same_whatever_the_batch():
    whole, part = Draws(7, 0, 50), Draws(7, 20, 5)
    for draw in (lambda d: d.uniform("a"), lambda d: d.integers("b", 9), lambda d: d.noise("c", 30, 1.0)):
        assert np.array_equal(draw(whole)[20:25], draw(part))


@pytest.mark.parametrize(("one", "other"), [((1, "a"), (2, "a")), ((1, "a"), (1, "b"))])
def test_seed_and_slot_both_matter(one, other):
    first, second = (Draws(seed, 0, 2000).uniform(slot) for seed, slot in (one, other))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08


def test_neighbouring_images_are_independent():
    values = Draws(0, 0, 4000).uniform("x")
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.06


def test_uniform_noise_and_choice_have_the_stated_moments():
    draws = Draws(3, 0, 20000)
    values = draws.uniform("x", 2, 4)
    assert values.min() >= 2
    assert values.max() < 4
    assert values.mean() == pytest.approx(3, abs=0.02)
    noise = draws.noise("n", 6, 0.5)
    assert noise.shape == (20000, 6)
    assert noise.mean() == pytest.approx(0, abs=0.01)
    assert noise.std() == pytest.approx(0.5, rel=0.01)
    shares = np.bincount(draws.choice("c", np.array([1.0, 0.0, 3.0])), minlength=3) / 20000
    assert shares == pytest.approx([0.25, 0, 0.75], abs=0.015)


def test_choice_follows_each_images_own_weights():
    weights = np.eye(4)[np.arange(400) % 4]
    assert np.array_equal(Draws(0, 0, 400).choice("c", weights), np.arange(400) % 4)


def test_shuffled_is_a_permutation_that_depends_on_the_name():
    assert sorted(shuffled(50, "a")) == list(range(50))
    assert not np.array_equal(shuffled(50, "a"), shuffled(50, "b"))


def test_negative_numbers_are_refused():
    with pytest.raises(InvalidInputError, match="must not be negative, got 0, -1 and 3"):
        Draws(0, -1, 3)
