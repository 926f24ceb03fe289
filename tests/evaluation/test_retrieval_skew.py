"""Skew on galleries, resampled galleries and random rankings against the functions for one query."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torchmetrics.retrieval import RetrievalPrecision

from vldebias.data import UNKNOWN, Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.gallery import Gallery, SkewOptions
from vldebias.metrics import max_skew, min_skew, ndkl
from vldebias.metrics.bootstrap import resampled_weights
from vldebias.metrics.rankings import rankings

laws = settings(max_examples=40, deadline=None, derandomize=True)
NAMES = ("a", "b", "c", "d")


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, Labels, int]:
    """Scores (q, n) with ties, labels with at least two groups of which some may have no image, k."""
    q, n = draw(st.integers(1, 3)), draw(st.integers(2, 20))
    scores = np.array([draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n, max_size=n)) for _ in range(q)])
    codes = [0, 2, *draw(st.lists(st.integers(0, 2), min_size=n - 2, max_size=n - 2))]
    return scores, Labels(np.array(codes), NAMES), draw(st.integers(1, n))


@laws
@given(problems(), st.sampled_from(["uniform", "dataset"]), st.sampled_from([None, 0.2]))
def test_every_query_has_the_skew_of_the_naive_functions(problem, prior: str, floor: float | None) -> None:
    scores, labels, k = problem
    found = Gallery(labels, SkewOptions(k=[k], prior=prior, floor=floor)).values(rankings(scores))
    for i, row in enumerate(scores):
        one = (row, labels.codes, k)
        assert found[f"max_skew@{k}"][i] == pytest.approx(max_skew(*one, prior=prior, floor=floor or 0.0))
        assert found[f"min_skew@{k}"][i] == pytest.approx(min_skew(*one, prior=prior, floor=floor or 1 / (2 * k)))
        assert found[f"ndkl@{k}"][i] == pytest.approx(ndkl(*one, prior=prior), abs=1e-12)


@pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning")  # a resample may hold one group alone
@laws
@given(problems(), st.sampled_from(["uniform", "dataset"]))
def test_resampled_galleries_have_the_skew_of_the_naive_functions(problem, prior: str) -> None:
    scores, labels, k = problem
    gallery = Gallery(labels, SkewOptions(k=[k], prior=prior, resamples=5, seed=7))
    drawn = gallery.resampled({"none": rankings(scores)})["none"]
    (weights,) = resampled_weights(len(labels), 5, 7)
    for b, held in enumerate(weights):
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


@laws
@given(problems())
def test_the_whole_gallery_is_as_the_gallery_is(problem) -> None:
    scores, labels, _ = problem
    n = len(labels)
    gallery = Gallery(labels, SkewOptions(k=[n], prior="dataset", resamples=3))
    ranked = rankings(scores)
    drawn = gallery.resampled({"none": ranked})["none"]
    for found in (gallery.values(ranked), drawn, gallery.random()):
        assert found[f"max_skew@{n}"] == pytest.approx(0, abs=1e-12)
        assert found[f"min_skew@{n}"] == pytest.approx(0, abs=1e-12)


def test_several_k_are_several_metrics() -> None:
    scores, labels = np.array([[4.0, 3.0, 2.0, 1.0]]), Labels(np.array([0, 0, 1, 1]), ("a", "b"))
    found = Gallery(labels, SkewOptions(k=[2, 4])).values(rankings(scores))
    assert found["max_skew@2"] == pytest.approx(math.log(2))
    assert found["max_skew@4"] == 0
    assert found["min_skew@2"] == pytest.approx(math.log(0.25 / 0.5))
    assert set(found) == {f"{metric}@{k}" for metric in ("max_skew", "min_skew", "ndkl") for k in (2, 4)}


def test_precision_agrees_with_torchmetrics() -> None:
    rng = np.random.default_rng(0)
    scores, relevant = rng.normal(size=(5, 40)), rng.random((5, 40)) < 0.3
    gallery = Gallery(Labels(rng.integers(2, size=40), ("a", "b")), SkewOptions(k=[10], resamples=4, seed=2))
    ranked = rankings(scores)
    metric = RetrievalPrecision(top_k=10)
    rows = np.repeat(np.arange(5), 40)
    expected = metric(tensor(scores.ravel()), tensor(relevant.ravel()), indexes=tensor(rows))
    assert gallery.values(ranked, relevant)["precision@10"].mean() == pytest.approx(float(expected))
    drawn = gallery.resampled({"none": ranked}, relevant)["none"]["precision@10"]
    (weights,) = resampled_weights(40, 4, 2)
    for b, held in enumerate(weights):
        for i in range(5):
            top = np.repeat(ranked[i], held[ranked[i]])[:10]
            assert drawn[i, b] == relevant[i, top].mean()


@pytest.mark.parametrize("prior", ["uniform", "dataset"])
def test_of_a_large_gallery_the_rows_that_are_read_are_drawn_as_among_all(prior: str) -> None:
    rng = np.random.default_rng(0)
    n, k = 2000, 10
    gallery = Gallery(Labels(rng.integers(3, size=n), ("a", "b", "c")), SkewOptions(k=[k], prior=prior, resamples=1500))
    ranked, relevant = np.stack([rng.permutation(n) for _ in range(2)]), rng.random((2, n)) < 0.4
    whole = gallery.resampled({"none": ranked}, relevant)["none"]
    few = gallery.resampled({"none": ranked[:, :80]}, relevant)["none"]
    for metric, values in few.items():
        error = 5 * (2 / 1500) ** 0.5 * float(values.std())
        assert values.mean(axis=1) == pytest.approx(whole[metric].mean(axis=1), abs=error)
        assert values.std(axis=1) == pytest.approx(whole[metric].std(axis=1), rel=0.15)
        assert not np.array_equal(values, whole[metric])  # other draws of one distribution


def test_methods_share_their_resamples_and_memory_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    ranked = rankings(rng.normal(size=(2, 30)))
    options = SkewOptions(k=[7], prior="dataset", resamples=20)
    gallery = Gallery(Labels(rng.integers(3, size=30), ("a", "b", "c")), options)
    whole, again = gallery.resampled({"none": ranked, "again": ranked}).values()
    monkeypatch.setattr("vldebias.metrics.bootstrap._WEIGHTS", 30 * 3)
    parts = gallery.resampled({"none": ranked})["none"]
    assert all(np.array_equal(whole[metric], other[metric]) for metric in whole for other in (again, parts))


def test_groups_without_an_image_take_no_part() -> None:
    gallery = Gallery(Labels(np.array([0, 3, 3, 0]), NAMES), SkewOptions(k=[4]))
    assert gallery.names == ("a", "d")
    assert gallery.prior().tolist() == [0.5, 0.5]
    assert gallery.codes.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("codes", "k", "text"),
    [
        ([0, 0, 0], (1,), r"skew needs images of two groups, got {'a': 3, 'b': 0, 'c': 0, 'd': 0}"),
        ([0, 1, 2], (2, 4), r"k: expected at most the 3 images whose group is known, got 4; choose a smaller k"),
        ([0, 1, UNKNOWN], (1,), r"gallery: 1 images have no known group"),
    ],
)
def test_galleries_without_skew_are_refused(codes: list[int], k: tuple[int, ...], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Gallery(Labels(np.array(codes), NAMES), SkewOptions(k=k))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"k": ()}, r"k: expected one or more different ones, got \[\]"),
        ({"k": (0,)}, r"k.0: .* greater than or equal to 1, got 0"),
        ({"k": (True,)}, r"k.0: expected a number, got True"),
        ({"k": (2.5,)}, r"k.0: .* valid integer, .*got 2.5"),
        ({"k": (3, 3)}, r"k: .* got \[3, 3\]"),
        ({"prior": "flat"}, r"prior: .* 'uniform' or 'dataset', got 'flat'"),
        ({"ties": "best"}, r"ties: .* 'stable' or 'random', got 'best'"),
        ({"floor": 0.0}, r"floor: .* greater than 0, got 0.0"),
        ({"floor": 1.5}, r"floor: .* got 1.5"),
        ({"resamples": 0}, r"resamples: .* greater than or equal to 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(change: dict, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        SkewOptions.build({"k": (5,), **change})
