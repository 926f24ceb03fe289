"""Skew on galleries, resampled galleries and random rankings against the functions for one query; its coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.experiments.coverage_shares import Population
from tests.refusals import refused
from vldebias.data import Labels
from vldebias.evaluation import retrieval
from vldebias.evaluation.retrieval import Gallery
from vldebias.metrics import bootstrap, max_skew, min_skew, ndkl
from vldebias.metrics.bootstrap import resampled_weights

NAMES = ("a", "b", "c", "d")


def rankings(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, Labels, int]:
    """Scores (q, n) with ties, labels with at least two groups of which some may have no image, k."""
    q, n = draw(st.integers(1, 3)), draw(st.integers(2, 20))
    scores = np.array([draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n, max_size=n)) for _ in range(q)])
    codes = [0, 2, *draw(st.lists(st.integers(0, 2), min_size=n - 2, max_size=n - 2))]
    return scores, Labels(np.array(codes), NAMES), draw(st.integers(1, n))


@pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning")  # a resample may hold one group alone
@given(problems(), st.sampled_from(["uniform", "dataset"]))
def test_galleries_and_resampled_ones_have_the_skew_of_the_naive_functions(problem, prior: str) -> None:
    scores, labels, k = problem
    gallery = Gallery(labels, [k], prior, resamples=5, seed=7)
    drawn = gallery.skews({"none": rankings(scores)})["none"]
    (weights,) = resampled_weights(len(labels), 5, 7, len(labels))
    for b, held in enumerate([np.ones(len(labels), int), *weights]):
        rows = np.repeat(np.arange(len(labels)), held)
        for i, row in enumerate(scores):
            # uniform: over the groups of the gallery, though a resample may lack one of them
            shares = prior if prior == "dataset" else np.full(len(gallery.names), 1 / len(gallery.names))
            groups = labels.codes[rows] if prior == "dataset" else gallery.codes[rows].astype(int)
            size = None if prior == "dataset" else len(gallery.names)
            one, options = (row[rows], groups, k), {"prior": shares, "n_groups": size}
            assert drawn[f"max_skew@{k}"][i, b] == pytest.approx(max_skew(*one, **options), abs=1e-12)
            assert drawn[f"min_skew@{k}"][i, b] == pytest.approx(min_skew(*one, floor=1 / (2 * k), **options))
            assert drawn[f"ndkl@{k}"][i, b] == pytest.approx(ndkl(*one, **options), abs=1e-12)


@pytest.mark.parametrize("prior", ["uniform", "dataset"])
def test_of_a_large_gallery_the_rows_that_are_read_are_drawn_as_among_all(prior: str) -> None:
    rng, n, k = np.random.default_rng(0), 2000, 10
    gallery = Gallery(Labels(rng.integers(3, size=n), ("a", "b", "c")), [k], prior, resamples=1500)
    ranked, relevant = np.stack([rng.permutation(n) for _ in range(2)]), rng.random((2, n)) < 0.4
    whole = gallery.skews({"none": ranked}, relevant)["none"]
    few = gallery.skews({"none": ranked[:, :80]}, relevant)["none"]
    for metric, values in few.items():
        assert values[:, 0] == pytest.approx(whole[metric][:, 0])  # of the gallery itself
        error = 5 * (2 / 1500) ** 0.5 * float(values.std())
        assert values.mean(axis=1) == pytest.approx(whole[metric].mean(axis=1), abs=error)
        assert values.std(axis=1) == pytest.approx(whole[metric].std(axis=1), rel=0.15)
        assert not np.array_equal(values, whole[metric])  # other draws of one distribution


def test_methods_share_their_resamples_and_memory_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    ranked = rankings(rng.normal(size=(2, 30)))
    gallery = Gallery(Labels(rng.integers(3, size=30), ("a", "b", "c")), [7], "dataset", resamples=20)
    whole, again = gallery.skews({"none": ranked, "again": ranked}).values()
    monkeypatch.setattr(bootstrap, "_WEIGHTS", 30 * 3)
    parts = gallery.skews({"none": ranked})["none"]
    assert all(np.array_equal(whole[metric], other[metric]) for metric in whole for other in (again, parts))


def test_groups_without_an_image_take_no_part() -> None:
    gallery = Gallery(Labels(np.array([0, 3, 3, 0]), NAMES), [4])
    assert (gallery.names, gallery.prior.tolist(), gallery.codes.tolist()) == (("a", "d"), [0.5, 0.5], [0, 1, 1, 0])


@pytest.mark.parametrize(("n", "k"), [(200, 20), (10_050, 200)])
def test_random_rankings_are_those_of_drawing_without_replacement(n: int, k: int, monkeypatch) -> None:
    """Of a large gallery few rows are drawn one by one."""
    gallery = Gallery(Labels((np.arange(n) < n // 4).astype(int), ("a", "b")), [k], resamples=3000)
    found = gallery.random()[f"max_skew@{k}"]
    share = np.random.default_rng(5).hypergeometric(n // 4, n - n // 4, k, size=20_000) / k
    assert found.mean() == pytest.approx(np.log(2 * np.maximum(share, 1 - share)).mean(), abs=0.005)
    assert found.std() == pytest.approx(np.log(2 * np.maximum(share, 1 - share)).std(), rel=0.1)
    each = Gallery(Labels(np.arange(n), tuple(map(str, range(n)))), [k], resamples=3)
    assert each.random()[f"max_skew@{k}"] == pytest.approx(np.log(n / k))  # no image comes twice
    monkeypatch.setattr(retrieval, "_BLOCK", 7 * n)
    assert np.array_equal(gallery.random()[f"max_skew@{k}"], found)


def test_where_nothing_is_skewed_percentiles_miss_and_recentred_ones_hold() -> None:
    population, rng = Population(np.full(8, 1 / 8), 400, lean=0.0), np.random.default_rng(0)
    truth = np.mean([population.value(*population.open(rng, 1)) for _ in range(300)])
    plain, recentred, excess = [], [], []
    for _ in range(100):
        gallery, ranked = population.open(rng, 200)
        value, *means = gallery.skews({"none": ranked})["none"][f"max_skew@{population.k}"].mean(axis=0)
        means = np.array(means)
        excess.append(means.mean() - value)  # a resampled maximum strays further up
        for held, (low, high) in (
            (plain, np.quantile(means, [0.025, 0.975])),
            (recentred, bootstrap.recentred_interval(value, means)),
        ):
            held.append(low <= truth <= high)
    assert np.mean(excess) > 0.02
    assert np.mean(plain) < 0.5
    assert np.mean(recentred) > 0.88


def test_intervals_hold_the_expected_skew_of_an_uneven_gallery() -> None:
    population, rng = Population(np.array([0.6, 0.2, 0.1, 0.07, 0.03]), 400), np.random.default_rng(0)
    truth = np.mean([population.value(*population.open(rng, 1)) for _ in range(400)])
    intervals = [population.interval(rng) for _ in range(100)]
    assert np.mean([low <= truth <= high for low, high in intervals]) > 0.88


@refused(([0, 0, 0], [1], "two or more groups"), ([0, 1, 2], [2, 4], "k: .* 3 images .* 4"))
def test_what_has_no_skew(codes: list[int], k: list[int]) -> None:
    Gallery(Labels(np.array(codes), NAMES), k)
