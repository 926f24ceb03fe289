"""The images that people label, drawn by lot: known probabilities, estimates without bias, samples that only grow."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import LEAST, LabelSample
from vldebias.metrics import corrected_shares

NAMES = ("male", "female", "unknown")
SETS = 200


def world(rng, n=800):
    """What is true, what a judge says, and its confidence: of women it is less sure, and then it calls them men."""
    truth = rng.choice(2, size=n, p=(0.4, 0.6))
    sure = np.where(rng.random(n) < np.where(truth == 1, 0.3, 0.1), 0.6, 0.99)
    wrong = rng.random(n) < np.where(truth == 1, np.where(sure > 0.9, 0.02, 0.6), 0.02)
    said = np.where(wrong, 1 - truth, truth)
    return truth, np.where(rng.random(n) < 0.05, 2, said), sure


def drawn(said, sure, labels, seed=0, within=""):
    paths = [f"{i}.png" for i in range(len(said))]
    within = [within] * len(said) if isinstance(within, str) else within
    names = [NAMES[code] for code in said]
    return LabelSample.draw(paths, within, names, sure, labels, attribute="gender", judge="one", seed=seed)


def of_sample(sample, truth):
    """What people say of the images of the sample, and the weights, in the order of the images."""
    weights = np.array([sample.weights.get(f"{i}.png", 0.0) for i in range(len(truth))])
    return np.where(weights > 0, truth, -1), weights


def test_every_image_is_drawn_with_the_probability_that_its_weight_says():
    _, said, sure = world(np.random.default_rng(0), 120)
    weights, hits = {}, np.zeros(120)
    for seed in range(SETS):
        sample = drawn(said, sure, 30, seed)
        weights |= sample.weights
        hits[[int(path[:-4]) for path in sample.weights]] += 1
    chance = np.array([1 / weights[f"{i}.png"] for i in range(120)])
    assert chance.max() > 2 * chance.min()  # some are asked about far more often, so that the test can fail
    off = np.abs(hits / SETS - chance)
    assert (off <= 4 * np.sqrt(chance * (1 - chance) / SETS)).all()


def test_weighted_estimates_have_no_bias_and_are_narrower_and_unweighted_ones_are_wrong():
    rng, rows = np.random.default_rng(1), []
    for seed in range(SETS):
        truth, said, sure = world(rng)
        people, weights = of_sample(drawn(said, sure, 100, seed), truth)
        one = corrected_shares(said, people, 2, weights=weights)
        interval, asked = one.interval(1), people >= 0
        by_lot = np.where(rng.permutation(len(truth)) < 100, truth, -1)
        rows.append(
            (
                one.shares[1],
                np.average(truth[asked], weights=weights[asked]),
                truth[asked].mean(),
                interval.low <= 0.6 <= interval.high,
                corrected_shares(said, by_lot, 2).shares[1],
            )
        )
    corrected, alone, bare, held, by_lot = np.array(rows).T
    for values in (corrected, alone, by_lot):
        assert abs(values.mean() - 0.6) < 4 * values.std() / SETS**0.5
    assert abs(bare.mean() - 0.6) > 5 * bare.std() / SETS**0.5
    assert 0.91 <= held.mean() <= 0.99
    assert corrected.std() < 0.9 * by_lot.std()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(0, 40), st.integers(0, 5))
def test_a_larger_sample_holds_the_smaller_one_and_weights_add_up(labels, more, seed):
    rng = np.random.default_rng(seed)
    _, said, sure = world(rng, 100)
    within = rng.choice(["none, unseen", "cali, unseen"], 100).tolist()
    small = drawn(said, sure, labels, seed, within)
    large = small.of_size(labels + more)
    assert set(small.weights) <= set(large.weights)
    least = sum(min(LEAST, len(one.images)) for one in small.strata)
    assert len(small.weights) == max(labels, least)
    assert large == drawn(said, sure, labels + more, seed, within)
    assert sum(small.weights.values()) == pytest.approx(100)
    assert {*small.population} == {f"{i}.png" for i in range(100)}


def test_it_is_kept(tmp_path: Path):
    sample = drawn(*world(np.random.default_rng(0), 50)[1:], 20)
    sample.write(tmp_path / "s.json")
    assert LabelSample.read(tmp_path / "s.json") == sample


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), ("", "is no sample for labelling"), ('{"version": 1, "judge": "x"}', "attribute")],
)
def test_another_file_is_refused(tmp_path: Path, content, said):
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    with pytest.raises(InvalidInputError, match=said):
        LabelSample.read(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("paths", "sure", "said"), [([], [], "got 0 different"), (["a", "a"], [1, 1], "got 1 diff"), (["a"], [2], "probab")]
)
def test_what_cannot_be_drawn_from_is_refused(paths, sure, said):
    same = ["x"] * len(paths)
    with pytest.raises(InvalidInputError, match=said):
        LabelSample.draw(paths, same, same, np.array(sure), 1, attribute="a", judge="j")
