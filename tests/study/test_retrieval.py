"""Test retrieval and its galleries against plain loops: every figure, convention, coverage and
error."""

import json
import warnings
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score
from torch.nn.functional import normalize
from torchmetrics.retrieval import RetrievalHitRate

from tests.refusals import refused
from tests.study.made_figures import cell
from vldebias import fit_projections, make_prompt_set
from vldebias.data import Embeddings, Labels, cross
from vldebias.data.labels import UNKNOWN
from vldebias.errors import SuspectInputWarning
from vldebias.hosts import TextTable
from vldebias.measure import resampling
from vldebias.measure.metric import get_metric
from vldebias.measure.resampling import recentred_interval, resampled_weights
from vldebias.measure.rows import TaskResult
from vldebias.metrics import max_skew, min_skew, ndkl
from vldebias.study.split import Data
from vldebias.study.tasks import gallery as gallery_module
from vldebias.study.tasks import retrieval
from vldebias.study.tasks.images import fit_method
from vldebias.study.tasks.retrieval import Gallery, RetrievalTask, relevance

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
    # Images and text are noise here.
    pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning"),
]
JOBS = ("doctor", "nurse", "pilot", "police officer", "officer")
QUERIES = tuple(f"A photo of a {job}." for job in JOBS)
GENDER = make_prompt_set("g", {"male": ["male"], "female": ["female"]}, JOBS)
TONE = make_prompt_set("t", {"pale": ["pale"], "brown": ["brown"], "dark": ["dark"]}, JOBS)
CAPTIONS = tuple(f"caption {i}" for i in range(12))
CLASSES = {
    "hair": {"dark": "dark hair", "blond": "blond hair"},
    "hat": {"hat": "a hat", "none": "no hat"},
}
N = 90
D = 16
K = 20


def rankings(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")


OTHERS = list(chain(*(column.values() for column in CLASSES.values())))
PROMPTS = list(dict.fromkeys([*GENDER.texts, *TONE.texts, *QUERIES, *CAPTIONS, *OTHERS]))
ROWS = torch.randn(len(PROMPTS), D, generator=torch.Generator().manual_seed(1)).double() + 0.8
TEXTS = TextTable(dict(zip(PROMPTS, ROWS, strict=True)), "made up")


def make_gallery(empty: int = 0) -> Embeddings:
    """Return images close to their captions, some of which several images share. Some labels are
    unknown."""
    rng = np.random.default_rng(0)
    gender = rng.integers(2, size=N)
    tone = rng.integers(3, size=N)
    hat = rng.integers(2, size=N)
    tone[:7] = UNKNOWN
    hat[:5] = UNKNOWN
    caption = rng.integers(len(CAPTIONS), size=N)
    near = np.stack([TEXTS.embed([CAPTIONS[i]], "text")[0].numpy() for i in caption])
    features = near + 0.8 * gender[:, None] * rng.normal(size=D) + 1.5 * rng.normal(size=(N, D))
    return Embeddings(
        features=features.astype(np.float32),
        ids=tuple(f"image {i}" for i in range(N)),
        labels={
            "gender": Labels(gender, ("male", "female")),
            "tone": Labels(tone, ("pale", "brown", "dark")),
            "hair": Labels(rng.integers(2, size=N), ("blond", "dark")),
            "hat": Labels(hat, ("hat", "none")),
            "job": Labels(rng.integers(5, size=N), JOBS),
        },
        captions=("",) * empty + tuple(CAPTIONS[i] for i in caption[empty:]),
        about={"model": "made up", "data": "noise", "split": "test"},
    )


GALLERY = make_gallery()
BARE = replace(
    GALLERY,
    captions=(),
    labels={name: labels for name, labels in GALLERY.labels.items() if name != "job"},
)


def evaluate(
    gallery: Embeddings = BARE,
    texts: TextTable = TEXTS,
    reference: Embeddings | None = None,
    **options,
) -> list[TaskResult]:
    fields = {
        "name": "noise",
        "title": "Noise",
        "data": Data(name="given"),
        "k": K,
        "resamples": 50,
    }
    fields |= {"attribute": {"gender": GENDER}, "queries": list(QUERIES), "resample": "queries"}
    return RetrievalTask.build({**fields, **options}).measure(gallery, texts, reference=reference)


def naive_scores(method: str, sets, strength: float = 1.0, **how) -> np.ndarray:
    rows = TEXTS.embed(QUERIES, "text")
    if method != "none":
        projection = fit_projections(TEXTS, sets, method=method, **how).only
        rows = normalize((1 - strength) * rows + strength * projection(rows), dim=1)
    images = normalize(torch.tensor(GALLERY.features), dim=1).double()
    return (rows @ images.T).numpy()


@pytest.mark.parametrize("method", ["none", "orth-cali"])
def test_figures_match_plain_loops(method: str) -> None:
    (part,) = evaluate(strength=0.7)
    scores = naive_scores(method, GENDER, 0.7)
    groups = GALLERY.column("gender").codes
    naive = {
        "max_skew": (max_skew, {}),
        "min_skew": (min_skew, {"floor": 1 / (2 * K)}),
        "ndkl": (ndkl, {}),
    }
    for metric, (measure, options) in naive.items():
        skews = [measure(row, groups, K, **options) for row in scores]
        assert cell(part, f"{metric}@{K}", method).value == pytest.approx(np.mean(skews))
        for query, value in zip(QUERIES, skews, strict=True):
            assert cell(part, f"{metric}@{K}", method, query).value == pytest.approx(value)


def test_an_intersection_is_solved_jointly_and_images_of_unknown_groups_are_counted() -> None:
    images = replace(BARE, about={**BARE.about, "data_fingerprint": "abc", "cache": "a folder"})
    (part,) = evaluate(
        images, attribute={"gender x tone": [GENDER, TONE]}, k=[K, N - 7], prior="dataset", lam=30.0
    )
    assert cell(part, f"max_skew@{N - 7}", "cali").value == pytest.approx(0, abs=1e-12)
    assert part.provenance.n == {"images": N - 7, "unknown": 7, "queries": 5, "groups": 6}
    labels = cross(GALLERY.column("gender"), GALLERY.column("tone"))
    scores = naive_scores("orth-cali", [GENDER, TONE], lam=30.0)[:, labels.known]
    groups = labels.codes[labels.known]
    expected = np.mean([max_skew(row, groups, K, prior="dataset") for row in scores])
    assert cell(part, f"max_skew@{K}", "orth-cali").value == pytest.approx(expected)
    assert (part.provenance.task, part.provenance.attribute) == ("noise gender x tone", "g+t")
    settings = json.loads(part.provenance.model_dump_json())["settings"]
    expected = {"k": [K, N - 7], "prior": "dataset", "queries": list(QUERIES)}
    assert {name: settings[name] for name in expected} == expected
    assert settings["gallery"] == {**BARE.about, "data_fingerprint": "abc"}
    assert part.provenance.data["images"] == "abc"
    assert None not in settings.values()
    assert set(settings["prior shares"]) == set(labels.names)
    assert sum(settings["prior shares"].values()) == pytest.approx(1)


def test_intervals_over_queries_match_those_of_the_query_means() -> None:
    (part,) = evaluate(methods=("cali",), resamples=300, seed=6)
    metric = f"max_skew@{K}"
    values = {
        m: np.array([cell(part, metric, m, q).value for q in QUERIES]) for m in ("none", "cali")
    }
    expected = TaskResult(part.provenance)
    expected.add_resampled(metric, values, n={}, resamples=300, seed=6)
    for expected_row in expected.rows:
        row = cell(part, metric, expected_row.method)
        assert (row.interval, row.change) == (expected_row.interval, expected_row.change)


def test_intervals_over_images_describe_the_gallery() -> None:
    (queries,) = evaluate(resamples=400)
    (images,) = evaluate(resamples=400, resample="images")
    metric = f"max_skew@{K}"
    gallery = Gallery(GALLERY.column("gender"), [K], resamples=400)
    ranked = {m: rankings(naive_scores(m, GENDER).round(12)) for m in ("none", "cali")}
    none, cali = (skew_of_metric[metric] for skew_of_metric in gallery.skews(ranked).values())
    for query, a, b in (("", none.mean(0), cali.mean(0)), *zip(QUERIES, none, cali, strict=True)):
        row = cell(images, metric, "cali", query)
        assert row.value == pytest.approx(b[0])
        low, high = recentred_interval(b[0], b[1:])
        assert row.interval == pytest.approx((max(low, 0), high))
        assert row.change == pytest.approx(
            (b[0] - a[0], *recentred_interval(b[0] - a[0], b[1:] - a[1:]))
        )
    assert cell(queries, metric, "cali").interval != cell(images, metric, "cali").interval
    # The queries are fixed, so their cosine does not depend on the images.
    exact = cell(images, "query_cosine", "cali")
    assert exact.interval == (exact.value, exact.value)
    for query in QUERIES:  # with a single query, the figure is resampled over images in both cases
        assert cell(queries, metric, "cali", query) == cell(images, metric, "cali", query)


def test_random_rankings_are_the_baseline() -> None:
    (part,) = evaluate(resamples=3000)
    row = cell(part, f"max_skew@{K}", "random")
    drawn = Gallery(GALLERY.column("gender"), [K], seed=1).random()
    skews = np.random.default_rng(1).choice(drawn[f"max_skew@{K}"], (20_000, len(QUERIES))).mean(1)
    assert row.value == pytest.approx(skews.mean(), abs=0.01)
    assert row.interval == pytest.approx(np.quantile(skews, [0.025, 0.975]), abs=0.02)
    assert row.change is None
    assert "uneven" not in part.provenance.description


def test_query_cosine_measures_how_far_queries_move_and_stated_ones_do_not() -> None:
    (part,) = evaluate()
    before = TEXTS.embed(QUERIES)
    after = TEXTS.under(QUERIES, "text", fit_method(TEXTS, GENDER, "orth-cali"))
    expected = float((before * after).sum(1).mean())
    assert cell(part, "query_cosine", "orth-cali").value == pytest.approx(expected)
    assert cell(part, "query_cosine", "none").value == pytest.approx(1)
    stated = tuple(GENDER.variants[0])
    (kept,) = evaluate(queries=list(stated))
    assert cell(kept, "query_cosine", "cali").value == pytest.approx(1)


@pytest.mark.parametrize(("method", "k"), [("none", 1), ("cali", 5)])
def test_recall_agrees_with_torchmetrics(method: str, k: int) -> None:
    (part,) = evaluate(GALLERY)
    texts = TEXTS.under(CAPTIONS, "text", fit_method(TEXTS, GENDER, method))
    scores = GALLERY.unit[:].double() @ texts.T  # (images, captions)
    code = torch.tensor([CAPTIONS.index(caption) for caption in GALLERY.captions])
    is_caption = torch.nn.functional.one_hot(code, len(CAPTIONS))
    image = torch.arange(N)[:, None]
    recalls = []
    # There is one query for each image.
    ways = {
        "image to text": (scores, is_caption),
        "text to image": (scores.T[code], is_caption.T[code]),
    }
    for way, (queries, relevant) in ways.items():
        hits = RetrievalHitRate(top_k=k)(
            queries.flatten(), relevant.flatten(), image.expand_as(queries).flatten()
        )
        recalls.append(cell(part, f"recall@{k}", method, way).value)
        assert recalls[-1] == pytest.approx(float(hits))
    both = cell(part, f"recall@{k}", method)
    assert both.value == pytest.approx(np.mean(recalls))
    assert both.n == {"images": N, "captions": len(set(GALLERY.captions))}


def test_images_that_share_a_caption_are_resampled_together() -> None:
    """From text to image, images with the same caption are hit or missed together. There are as
    many units as captions, so intervals are wide."""
    (part,) = evaluate(GALLERY, resamples=4000)
    row = cell(part, "recall@1", "none", "text to image")
    captions = sorted(set(GALLERY.captions))
    sizes = np.array([GALLERY.captions.count(caption) for caption in captions])
    best = (TEXTS.embed(captions) @ GALLERY.unit[:].double().T).argmax(1)
    hits = np.array([GALLERY.captions[i] == c for i, c in zip(best, captions, strict=True)])
    drawn = np.random.default_rng(0).integers(len(sizes), size=(4000, len(sizes)))
    means = (hits * sizes)[drawn].sum(1) / sizes[drawn].sum(1)
    assert row.value == pytest.approx((hits * sizes).sum() / N)
    assert row.interval[1] - row.interval[0] == pytest.approx(
        np.ptp(np.quantile(means, [0.025, 0.975])), rel=0.15
    )
    (part,) = evaluate(make_gallery(empty=20))
    assert cell(part, "recall@1", "cali").n["images"] == N - 20


@pytest.mark.parametrize("method", ["none", "cali"])
def test_accuracy_matches_scikit_learn(method: str) -> None:
    (part,) = evaluate(classes={**CLASSES, "gender": {"male": "caption 0", "female": "caption 1"}})
    known = GALLERY.column("hat").known
    projection = fit_method(TEXTS, GENDER, method)
    images = GALLERY.unit[:].double()[torch.tensor(known)]
    accuracies = []
    for column, prompts in CLASSES.items():
        labels = GALLERY.column(column)
        rows = TEXTS.under([prompts[name] for name in labels.names], "text", projection)
        accuracies.append(accuracy_score(labels.codes[known], (images @ rows.T).argmax(1)))
        assert cell(part, "accuracy", method, column).value == pytest.approx(accuracies[-1])
    mean = cell(part, "accuracy", method)
    assert mean.value == pytest.approx(np.mean(accuracies))
    assert mean.n == {"images": N - 5, "without a label": 5}
    assert mean.interval[0] < mean.value < mean.interval[1]
    # The attribute's own column is not used.
    assert {f.subset for f in part.rows if f.metric == "accuracy"} == {
        "",
        *CLASSES,
    }


def test_precision_counts_the_images_named_by_the_query() -> None:
    (part,) = evaluate(GALLERY)
    scores = TEXTS.embed(QUERIES) @ GALLERY.unit[:].double().T
    wanted = GALLERY.column("job").codes
    for i, (query, row) in enumerate(zip(QUERIES, scores, strict=True)):
        expected = (wanted[row.topk(K).indices.numpy()] == i).mean()
        assert cell(part, f"precision@{K}", "none", query).value == pytest.approx(expected)
    assert not [f for f in part.rows if f.metric == f"precision@{K}" and f.method == "random"]
    labels = Labels(np.array([3, 4, UNKNOWN, 3]), JOBS)  # the longest of several overlapping names
    columns = {"place": Labels.from_values(["office"] * 4), "job": labels}
    column, relevant = relevance(columns, ["A photo of a police officer.", "An Officer at work."])
    assert column == "job", "the first column whose labels all queries name"
    assert relevance(columns, ["A photo of a doctor and a nurse."]) == ("", None)
    assert relevant.tolist() == [[True, False, False, True], [False, True, False, False]]


def test_precision_needs_a_label_column_that_queries_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Captions and a column that every query names are part of the gallery. A cosine is not a
    utility."""
    skews = {
        f"{name}@{K}"
        for name in ("max_skew", "min_skew", "ndkl", "mpr", "awrf", "retained", "stay")
    }
    skews |= {"query_cosine", f"queries_worse@{K}"}
    requested = {"recall@1", "recall@5", "recall@10", f"precision@{K}"}
    assert [{f.metric for f in evaluate(gallery)[0].rows} for gallery in (GALLERY, BARE)] == [
        skews | requested,
        skews,
    ]
    without_classes = TextTable(
        {text: row for text, row in zip(PROMPTS, ROWS, strict=True) if text not in CAPTIONS}
    )
    assert "recall@1" not in {row.metric for row in evaluate(GALLERY, without_classes)[0].rows}
    for limit, measured in ((N, True), (N - 1, False)):
        monkeypatch.setattr(retrieval, "MOST_CAPTIONS", limit)
        assert ("recall@1" in {row.metric for row in evaluate(GALLERY)[0].rows}) == measured
    assert get_metric("query_cosine").kind == "similarity"
    assert get_metric("recall@5").kind == "utility"


@pytest.mark.parametrize("resample", ["queries", "images"])
def test_retained_hits_are_those_among_the_results_averaged_over_values(resample: str) -> None:
    (part,) = evaluate(methods=["cali"], resample=resample)
    first = K // 2
    codes = GALLERY.labels["gender"].codes
    before = naive_scores("none", GENDER)
    orders = {"none": rankings(before)[:, :K]}
    orders["cali"] = rankings(naive_scores("cali", GENDER))[:, :K]
    hits = []
    for group in (0, 1):
        members = np.flatnonzero(codes == group)
        hits.append(members[rankings(before[:, members])[:, :first]])
    for method, results in orders.items():
        shares = []
        for own in hits:
            shares += [len(set(a) & set(b)) / first for a, b in zip(own, results, strict=True)]
        stay = [len(set(a) & set(b)) / K for a, b in zip(orders["none"], results, strict=True)]
        for metric, values in ((f"retained@{K}", shares), (f"stay@{K}", stay)):
            row = cell(part, metric, method)
            assert row.value == pytest.approx(np.mean(values))
            assert row.interval[0] <= row.value <= row.interval[1]
            chance = cell(part, metric, "random").value
            assert chance == pytest.approx(K / len(codes), abs=0.03)
    assert cell(part, f"stay@{K}", "none").value == 1
    assert cell(part, f"retained@{K}", "none").value < 1


@pytest.mark.parametrize("resample", ["queries", "images"])
def test_the_resampled_unit_comes_first(resample: str) -> None:
    """The first unit is the one counted for "too few" and in the column n."""
    (part,) = evaluate(methods=["cali"], resample=resample)
    for row in part.rows:
        expected = resample if not row.subset else "images"
        if set(row.n) == {"queries", "images"}:
            assert next(iter(row.n)) == expected, (row.metric, row.subset)
    assert {row.subset != "" for row in part.rows if row.metric.startswith("max_skew")} == {
        True,
        False,
    }


def uneven_gallery() -> Embeddings:
    """Return three men for each woman."""
    codes = BARE.column("gender").codes
    women = np.flatnonzero(codes == 1)
    men = np.flatnonzero(codes == 0)
    return BARE[np.sort(np.concatenate([men, women[: len(men) // 3]]))]


@pytest.mark.parametrize(("prior", "other_prior"), [("uniform", "dataset"), ("dataset", "uniform")])
def test_an_uneven_gallery_is_measured_against_both_priors(prior: str, other_prior: str) -> None:
    gallery = uneven_gallery()
    (part,) = evaluate(gallery, prior=prior, methods=["cali"])
    (swapped,) = evaluate(gallery, prior=other_prior, methods=["cali"])
    for method in ("none", "cali", "random"):
        beside = cell(part, f"max_skew_{other_prior}@{K}", method)
        asked_for = cell(swapped, f"max_skew@{K}", method)
        assert beside.value == pytest.approx(asked_for.value)
        assert beside.interval == pytest.approx(asked_for.interval)
    groups = gallery.column("gender").codes
    rows = TEXTS.embed(QUERIES, "text")
    scores = (rows @ normalize(torch.tensor(gallery.features), dim=1).double().T).numpy()
    naive = [max_skew(row, groups, K, prior=other_prior) for row in scores]
    assert cell(part, f"max_skew_{other_prior}@{K}", "none").value == pytest.approx(np.mean(naive))
    sizes = np.bincount(groups)
    assert f"{sizes[0]} male, {sizes[1]} female" in part.provenance.description


def test_uneven_reference_images_are_reported() -> None:
    values = normalize(TEXTS.embed(list(GENDER.texts), "text").mean(0), dim=0)
    nearest_women = TEXTS.embed(GENDER.by_value()["female"], "text").mean(0)
    noise = np.random.default_rng(0).normal(size=(40, D))
    rows = (nearest_women - values).numpy() * 5 + 0.01 * noise
    reference = Embeddings(rows.astype(np.float32), tuple(f"other {i}" for i in range(40)), {})
    (part,) = evaluate(reference=reference, methods=["cali"])
    assert "reference images are uneven" in part.provenance.description
    assert "0 male, 40 female" in part.provenance.description


def test_a_skewed_gallery_warns(recwarn: pytest.WarningsRecorder) -> None:
    gallery = uneven_gallery()
    (part,) = evaluate(gallery, methods=["cali"])
    none = cell(part, f"max_skew@{K}", "none").value
    chance = cell(part, f"max_skew@{K}", "random").value
    messages = [str(warning.message) for warning in recwarn]
    assert any("gallery itself is skewed" in words for words in messages) == (chance > none)
    held = Gallery(gallery.column("gender"), [K])
    with pytest.warns(SuspectInputWarning, match=r"0\.400.*0\.100.*prior='dataset'"):
        held.warn_if_uneven(K, model_skew=0.1, chance=0.4)
    even = Gallery(GALLERY.column("gender"), [K])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held.warn_if_uneven(K, model_skew=0.5, chance=0.4)
        even.warn_if_uneven(K, model_skew=0.1, chance=0.4)


NOBODY = {**GALLERY.labels, "nobody": Labels(np.full(N, UNKNOWN), ("a", "b"))}


@refused(
    ({"k": N + 1}, "k: .* 90, .* 91"),
    *(({"queries": queries}, "queries: ") for queries in ([], [QUERIES[0]] * 2)),
    *(({"k": k}, "k") for k in ((), (0,), (2.5,), (3, 3))),
    ({"prior": "flat"}, "prior"),
    ({"attribute": {"height": GENDER}}, "height"),
    ({"gallery": GALLERY[GALLERY.column("gender").codes == 1]}, "two or more groups"),
    ({"gallery": Embeddings(np.ones((3, 4)), tuple("abc"), {})}, "width 4 .* 16"),
    ({"queries": ["A photo of a unicorn."]}, "1 of 1 prompts"),
    ({"classes": {"hair": {"dark": "x"}}}, "hair"),
    (
        {
            "classes": {"nobody": dict(zip("ab", OTHERS, strict=False))},
            "gallery": replace(GALLERY, labels=NOBODY),
        },
        "no image has",
    ),
    error=ValueError,
)
def test_invalid_retrieval_inputs_are_rejected(options: dict) -> None:
    evaluate(**options)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, Labels, int]:
    """Draw scores (q, n) with ties, labels with at least two groups, some of which may be empty,
    and k."""
    q = draw(st.integers(1, 3))
    n = draw(st.integers(2, 20))
    scores = np.array(
        [draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n, max_size=n)) for _ in range(q)]
    )
    codes = [0, 2, *draw(st.lists(st.integers(0, 2), min_size=n - 2, max_size=n - 2))]
    return scores, Labels(np.array(codes), tuple("abcd")), draw(st.integers(1, n))


@given(problems(), st.sampled_from(["uniform", "dataset"]))
def test_skew_of_galleries_and_resamples_matches_naive_functions(problem, prior: str) -> None:
    scores, labels, k = problem
    gallery = Gallery(labels, [k], prior, resamples=5, seed=7)
    present = np.unique(labels.codes)
    # "d" is not included.
    assert gallery.names == tuple("abcd"[i] for i in present)
    assert len(gallery.prior) == len(present)
    drawn = gallery.skews({"none": rankings(scores)})["none"]
    (weights,) = resampled_weights(len(labels), 5, 7, len(labels))
    for b, held in enumerate([np.ones(len(labels), int), *weights]):
        rows = np.repeat(np.arange(len(labels)), held)
        for i, row in enumerate(scores):
            # Uniform over the groups in the gallery, even if one of them is missing from a
            # resample.
            shares = (
                prior if prior == "dataset" else np.full(len(gallery.names), 1 / len(gallery.names))
            )
            groups = labels.codes[rows] if prior == "dataset" else gallery.codes[rows].astype(int)
            size = None if prior == "dataset" else len(gallery.names)
            arguments = (row[rows], groups, k)
            options = {"prior": shares, "n_groups": size}
            assert drawn[f"max_skew@{k}"][i, b] == pytest.approx(
                max_skew(*arguments, **options), abs=1e-12
            )
            assert drawn[f"min_skew@{k}"][i, b] == pytest.approx(
                min_skew(*arguments, floor=1 / (2 * k), **options)
            )
            assert drawn[f"ndkl@{k}"][i, b] == pytest.approx(ndkl(*arguments, **options), abs=1e-12)


@pytest.mark.parametrize("prior", ["uniform", "dataset"])
def test_resampled_rows_of_a_large_gallery_have_the_same_distribution(prior: str) -> None:
    rng = np.random.default_rng(0)
    n = 2000
    k = 10
    gallery = Gallery(Labels(rng.integers(3, size=n), ("a", "b", "c")), [k], prior, resamples=1500)
    ranked = np.stack([rng.permutation(n) for _ in range(2)])
    relevant = rng.random((2, n)) < 0.4
    skew_of_metric = gallery.skews({"none": ranked}, relevant)["none"]
    few = gallery.skews({"none": ranked[:, :80]}, relevant)["none"]
    for metric, values in few.items():
        assert values[:, 0] == pytest.approx(skew_of_metric[metric][:, 0])  # for the gallery itself
        error = 5 * (2 / 1500) ** 0.5 * float(values.std())
        assert values.mean(axis=1) == pytest.approx(skew_of_metric[metric].mean(axis=1), abs=error)
        assert values.std(axis=1) == pytest.approx(skew_of_metric[metric].std(axis=1), rel=0.15)
        # The draws are different but have the same distribution.
        assert not np.array_equal(values, skew_of_metric[metric])


def test_methods_share_their_resamples_and_memory_does_not_affect_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    ranked = rankings(rng.normal(size=(2, 30)))
    gallery = Gallery(
        Labels(rng.integers(3, size=30), ("a", "b", "c")), [7], "dataset", resamples=20
    )
    skew_of_metric, again = gallery.skews({"none": ranked, "again": ranked}).values()
    monkeypatch.setattr(resampling, "_WEIGHTS", 30 * 3)
    parts = gallery.skews({"none": ranked})["none"]
    for metric, skews in skew_of_metric.items():
        assert np.array_equal(skews, again[metric])
        assert np.array_equal(skews, parts[metric])


@pytest.mark.parametrize(("n", "k"), [(200, 20), (10_050, 200)])
def test_random_rankings_match_sampling_without_replacement(n: int, k: int, monkeypatch) -> None:
    """In a large gallery, only a few rows are sampled individually."""
    gallery = Gallery(Labels((np.arange(n) < n // 4).astype(int), ("a", "b")), [k], resamples=3000)
    random_skews = gallery.random()[f"max_skew@{k}"]
    share = np.random.default_rng(5).hypergeometric(n // 4, n - n // 4, k, size=20_000) / k
    assert random_skews.mean() == pytest.approx(
        np.log(2 * np.maximum(share, 1 - share)).mean(), abs=0.005
    )
    assert random_skews.std() == pytest.approx(
        np.log(2 * np.maximum(share, 1 - share)).std(), rel=0.1
    )
    single = Gallery(Labels(np.arange(n), tuple(map(str, range(n)))), [k], resamples=3)
    # No image appears twice.
    assert single.random()[f"max_skew@{k}"] == pytest.approx(np.log(n / k))
    monkeypatch.setattr(gallery_module, "_BLOCK", 7 * n)
    assert np.array_equal(gallery.random()[f"max_skew@{k}"], random_skews)


class Population:
    """Galleries with given group shares, and queries that lean to random groups."""

    def __init__(self, truth: np.ndarray, n: int, lean: float = 0.3) -> None:
        self.truth, self.n, self.k = truth, n, n // 5
        self.leans = lean * np.random.default_rng(5).normal(size=(8, len(truth)))

    def open(self, rng: np.random.Generator, resamples: int) -> tuple[Gallery, np.ndarray]:
        """Sample a gallery with images from all groups, and return it with the rankings (q, n)."""
        group = rng.choice(len(self.truth), size=self.n, p=self.truth)
        while len(np.unique(group)) < len(self.truth):
            group = rng.choice(len(self.truth), size=self.n, p=self.truth)
        scores = self.leans[:, group] + 0.7 * rng.normal(size=self.n) + rng.normal(size=(8, self.n))
        labels = Labels(group, tuple(map(str, range(len(self.truth)))))
        gallery = Gallery(labels, [self.k], resamples=resamples, seed=int(rng.integers(1 << 31)))
        return gallery, np.argsort(-scores, axis=1, kind="stable")

    def value(self, gallery: Gallery, ranked: np.ndarray) -> float:
        """Return the mean MaxSkew over queries."""
        return float(gallery.skews({"none": ranked})["none"][f"max_skew@{self.k}"][:, 0].mean())


@pytest.mark.parametrize("shares", [np.full(8, 1 / 8), np.array([0.6, 0.2, 0.1, 0.07, 0.03])])
def test_recentred_intervals_cover_the_expected_skew_and_percentiles_do_not(
    shares: np.ndarray,
) -> None:
    even = len(shares) == 8
    rng = np.random.default_rng(0)
    population = Population(shares, 200, **({"lean": 0.0} if even else {}))
    held = []
    truth = np.mean([population.value(*population.open(rng, 1)) for _ in range(100)])
    for _ in range(50):
        gallery, ranked = population.open(rng, 100)
        value, *means = gallery.skews({"none": ranked})["none"][f"max_skew@{population.k}"].mean(
            axis=0
        )
        intervals = np.quantile(means, [0.025, 0.975]), recentred_interval(value, np.array(means))
        held.append([low <= truth <= high for low, high in intervals])
    plain, recentred = np.mean(held, axis=0)
    assert plain < 0.5 or not even  # resampled maxima are biased upwards
    assert recentred > 0.88
