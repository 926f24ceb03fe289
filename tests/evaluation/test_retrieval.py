"""The retrieval evaluator against plain loops: every figure, every convention, every refusal."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from made_figures import cell
from torch.nn.functional import normalize

from vldebias import fit_projection, load_prompts, make_prompt_set
from vldebias.data import UNKNOWN, Embeddings, Labels, cross
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.task import Data
from vldebias.evaluation.texts import Texts, TextTable
from vldebias.metrics import max_skew, min_skew, ndkl

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
    pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning"),  # images and texts are noise here
]
ROOT = Path(__file__).parents[2]
JOBS = ("doctor", "nurse", "pilot", "clerk", "cook")
QUERIES = tuple(f"A photo of a {job}." for job in JOBS)
GENDER = make_prompt_set("g", {"male": ["male"], "female": ["female"]}, JOBS)
TONE = make_prompt_set("t", {"pale": ["pale"], "brown": ["brown"], "dark": ["dark"]}, JOBS)
N, D, K = 90, 16, 20


def prompts_of(*sets) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(chain(s.classes, s.spurious, *s.groups) for s in sets)))


def table_of(prompts: list[str], width: int = D) -> TextTable:
    rows = torch.randn(len(prompts), width, generator=torch.Generator().manual_seed(1)).double()
    return TextTable(dict(zip(prompts, rows + 0.8, strict=True)), "made up")


TABLE = table_of(prompts_of(GENDER, TONE))
TEXTS = Texts(TABLE)


def make_gallery(seed: int = 0) -> Embeddings:
    rng = np.random.default_rng(seed)
    gender, tone = rng.integers(2, size=N), rng.integers(3, size=N)
    tone[:7] = UNKNOWN
    features = rng.normal(size=(N, D)) + 0.8 * gender[:, None] * rng.normal(size=D)
    return Embeddings(
        features=features.astype(np.float32),
        ids=tuple(f"image {i}" for i in range(N)),
        labels={
            "gender": Labels(gender, ("male", "female")),
            "tone": Labels(tone, ("pale", "brown", "dark")),
        },
        about={"model": "made up", "data": "noise", "split": "test"},
    )


GALLERY = make_gallery()


def evaluate(
    gallery: Embeddings = GALLERY, prompts=None, queries=QUERIES, texts: Texts = TEXTS, **options
) -> list[TaskResult]:
    fields = {"name": "noise", "title": "Noise", "data": Data(name="given"), "k": K, "resamples": 50}
    fields |= {"prompts": {"gender": GENDER} if prompts is None else prompts, "queries": list(queries)}
    return RetrievalTask.build({**fields, "resample": "queries", **options}).measure(gallery, texts)


def naive_scores(method: str, sets, strength: float = 1.0) -> np.ndarray:
    rows = TABLE.embed(QUERIES, "joint")
    if method != "none":
        projection = fit_projection(TABLE, sets, method=method)
        rows = normalize((1 - strength) * rows + strength * projection(rows), dim=1)
    images = normalize(torch.tensor(GALLERY.features), dim=1).double()
    return (rows @ images.T).numpy()


@pytest.mark.parametrize("method", ["none", "orth", "orth-cali", "cali"])
def test_figures_agree_with_plain_loops(method: str) -> None:
    (part,) = evaluate(strength=0.7)
    scores, groups = naive_scores(method, GENDER, 0.7), GALLERY.column("gender").codes
    naive = {"max_skew": {}, "min_skew": {"floor": 1 / (2 * K)}, "ndkl": {}}
    for metric, options in naive.items():
        measure = {"max_skew": max_skew, "min_skew": min_skew, "ndkl": ndkl}[metric]
        each = [measure(row, groups, K, **options) for row in scores]
        assert cell(part, f"{metric}@{K}", method).value == pytest.approx(np.mean(each))
        for query, value in zip(QUERIES, each, strict=True):
            assert cell(part, f"{metric}@{K}", method, query).value == pytest.approx(value)


def test_unknown_images_are_left_out_and_counted() -> None:
    (part,) = evaluate(prompts={"tone": TONE})
    known = GALLERY.column("tone").known
    scores, groups = naive_scores("cali", TONE)[:, known], GALLERY.column("tone").codes[known]
    expected = np.mean([max_skew(row, groups, K) for row in scores])
    assert cell(part, f"max_skew@{K}", "cali").value == pytest.approx(expected)
    assert part.provenance.n == {"images": N - 7, "unknown": 7, "queries": 5, "groups": 3}
    assert part.provenance.settings["images left out, group unknown"] == 7


def test_an_intersection_is_measured_on_its_groups_and_solved_jointly() -> None:
    (part,) = evaluate(prompts={"gender x tone": [GENDER, TONE]}, prior="dataset", ties="random", seed=3)
    labels = cross(GALLERY.column("gender"), GALLERY.column("tone"))
    scores, groups = naive_scores("orth-cali", [GENDER, TONE])[:, labels.known], labels.codes[labels.known]
    expected = np.mean([max_skew(row, groups, K, prior="dataset") for row in scores])
    assert cell(part, f"max_skew@{K}", "orth-cali").value == pytest.approx(expected)
    assert part.provenance.task == "noise gender x tone"
    assert part.provenance.prompts == "g+t"
    assert set(part.provenance.settings["groups"]) == set(labels.names)
    assert sum(part.provenance.settings["prior shares"].values()) == pytest.approx(1)
    assert cell(part, f"max_skew@{K}", "cali").lam == 1000


def test_each_attribute_has_a_part_and_a_projection_of_its_own() -> None:
    parts = evaluate(prompts={"gender": GENDER, "tone": TONE})
    assert [part.provenance.task for part in parts] == ["noise gender", "noise tone"]
    assert [part.provenance.prompts_hash for part in parts] == [GENDER.hash, TONE.hash]
    assert all(f.task == part.provenance.task for part in parts for f in part.rows)
    alone = evaluate(prompts={"tone": TONE})[0]
    assert alone.rows == parts[1].rows


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = np.random.default_rng(5).permutation(N)
    (one,), (other,) = evaluate(), evaluate(GALLERY[rows])
    for a, b in zip(one.rows, other.rows, strict=True):
        assert (a.metric, a.method, a.subset) == (b.metric, b.method, b.subset)
        if a.method != "random":
            assert a.value == pytest.approx(b.value)


def test_ties_follow_the_rule() -> None:
    flat = Embeddings(np.ones((N, D), np.float32), GALLERY.ids, GALLERY.labels)
    groups = GALLERY.column("gender").codes
    (stable,), (drawn,) = evaluate(flat, k=10), evaluate(flat, k=10, ties="random", seed=4)
    assert cell(stable, "max_skew@10", "cali").value == pytest.approx(max_skew(np.zeros(N), groups, 10))
    order = np.random.default_rng(4).permutation(N)
    assert cell(drawn, "max_skew@10", "cali").value == pytest.approx(max_skew(np.zeros(N), groups[order], 10))
    assert drawn.provenance.settings["ties"] == "random"
    assert drawn.provenance.settings["seed"] == 4


def test_several_k_and_what_is_printed() -> None:
    (part,) = evaluate(k=[5, N], prior="dataset", floor=0.01)
    assert cell(part, f"max_skew@{N}", "cali").value == pytest.approx(0, abs=1e-12)
    settings = json.loads(part.provenance.model_dump_json())["settings"]
    assert settings["k"] == [5, N]
    assert settings["prior"] == "dataset"
    assert settings["ties"] == "stable"
    assert settings["floor"] == dict.fromkeys(["max_skew@5", "max_skew@90", "min_skew@5", "min_skew@90"], 0.01)
    assert settings["queries"] == list(QUERIES)
    assert settings["resample"] == "queries"
    assert evaluate()[0].provenance.settings["floor"] == {"max_skew@20": 0.0, "min_skew@20": 0.025}


def test_strength_zero_changes_nothing() -> None:
    (part,) = evaluate(strength=0.0, resample="images")
    changes = [f.change for f in part.rows if f.method not in ("none", "random")]
    assert changes
    assert set(changes) == {(0.0, 0.0, 0.0)}


def test_methods_and_their_details() -> None:
    (part,) = evaluate(methods=("cali", "orth"), lam=30.0, strength=0.5)
    assert list(dict.fromkeys(f.method for f in part.rows)) == ["none", "cali", "orth", "random"]
    assert (cell(part, f"ndkl@{K}", "cali").lam, cell(part, f"ndkl@{K}", "cali").strength) == (30.0, 0.5)
    assert (cell(part, f"ndkl@{K}", "orth").lam, cell(part, f"ndkl@{K}", "none").strength) == (None, None)
    assert part.provenance.methods["cali"]["lam"] == 30.0
    assert part.provenance.methods["none"] == {}
    assert {f.better for f in part.rows if f.metric.startswith("min_skew")} == {"higher"}
    assert {f.better for f in part.rows if f.metric.startswith(("max_skew", "ndkl"))} == {"lower"}


def test_intervals_over_queries_are_those_of_the_query_means() -> None:
    (part,) = evaluate(methods=("cali",), resamples=300, seed=6)
    metric = f"max_skew@{K}"
    values = {m: np.array([cell(part, metric, m, q).value for q in QUERIES]) for m in ("none", "cali")}
    expected = TaskResult(part.provenance)
    expected.add_resampled(metric, values, n={}, resamples=300, seed=6)
    for found in expected.rows:
        own = cell(part, metric, found.method)
        assert (own.interval, own.change) == (found.interval, found.change)


def test_intervals_over_images_are_about_the_gallery() -> None:
    (queries,), (images,) = evaluate(resamples=400), evaluate(resamples=400, resample="images")
    metric = f"max_skew@{K}"
    one, other = cell(queries, metric, "cali"), cell(images, metric, "cali")
    assert one.value == other.value
    assert one.interval != other.interval
    assert other.interval[0] < other.value < other.interval[1]
    assert other.change[0] == pytest.approx(other.value - cell(images, metric, "none").value)
    assert other.change[1] < other.change[0] < other.change[2]
    exact = cell(images, "query_cosine", "cali")  # fixed queries: no image changes it
    assert exact.interval == (exact.value, exact.value)
    for query in QUERIES:  # a figure of one query is about images in both
        assert cell(queries, metric, "cali", query) == cell(images, metric, "cali", query)
    assert "given the queries" in images.provenance.description


def test_random_rankings_are_the_floor() -> None:
    (part,) = evaluate(resamples=3000)
    found = cell(part, f"max_skew@{K}", "random")
    men = int((GALLERY.column("gender").codes == 0).sum())
    share = np.random.default_rng(1).hypergeometric(men, N - men, K, size=(20_000, len(QUERIES))) / K
    skews = np.log(2 * np.maximum(share, 1 - share)).mean(1)
    assert found.value == pytest.approx(skews.mean(), abs=0.01)
    assert found.interval == pytest.approx(np.quantile(skews, [0.025, 0.975]), abs=0.02)
    assert found.change is None


def test_query_cosine_says_what_is_lost() -> None:
    (part,) = evaluate()
    before, after = TEXTS.embed(QUERIES), TEXTS.under(QUERIES, TEXTS.fit(GENDER, "orth-cali"))
    expected = float((before * after).sum(1).mean())
    assert cell(part, "query_cosine", "orth-cali").value == pytest.approx(expected)
    assert cell(part, "query_cosine", "none").value == pytest.approx(1)


def test_stated_queries_are_left_alone_unless_told_otherwise() -> None:
    stated = ("A photo of a male doctor.", "A photo of a female nurse.")
    (kept,), (not_kept,) = evaluate(queries=stated), evaluate(queries=stated, keep_stated=False)
    assert cell(kept, "query_cosine", "cali").value == pytest.approx(1)
    assert cell(not_kept, "query_cosine", "cali").value < 0.999
    assert kept.provenance.settings["keep_stated"] is True


def test_the_protocol_says_what_was_measured() -> None:
    (part,) = evaluate()
    protocol = TaskProvenance.model_validate_json(part.provenance.model_dump_json())
    assert protocol == part.provenance
    assert (protocol.model, protocol.split, protocol.prompts) == ("made up", "noise test", "g")
    assert "gender" in protocol.title
    bare = Embeddings(GALLERY.features, GALLERY.ids, GALLERY.labels)
    assert evaluate(bare)[0].provenance.split == "unnamed split"
    assert evaluate(bare)[0].provenance.model == "made up"  # of the texts
    about = {**GALLERY.about, "data_fingerprint": "abc", "preprocessing": "resize", "cache": "a folder"}
    about["skipped"] = [{"id": "image 91", "reason": "truncated"}]
    settings = evaluate(Embeddings(GALLERY.features, GALLERY.ids, GALLERY.labels, about=about))[0].provenance.settings
    assert settings["gallery"] == {"data_fingerprint": "abc", "preprocessing": "resize"}
    assert settings["images left out, not readable"] == 1


def test_the_fairface_protocol_is_complete() -> None:
    """Ten queries, three attributes and an intersection, each with pairs of its own, k = 1000, uniform prior."""
    sets = {name: load_prompts(f"fairface-{name}") for name in ("gender", "race", "age")}
    rng = np.random.default_rng(0)
    sizes = {"gender": 2, "race": 7, "age": 9}
    labels = {name: Labels(rng.integers(n, size=1200), tuple(map(str, range(n)))) for name, n in sizes.items()}
    gallery = Embeddings(rng.normal(size=(1200, 64)).astype(np.float16), tuple(map(str, range(1200))), labels)
    texts = Texts(table_of(prompts_of(*sets.values()), 64))
    queries = sets["gender"].classes
    prompts = {**sets, "gender x race": [sets["gender"], sets["race"]]}
    parts = evaluate(gallery, prompts, queries, texts, k=1000, resample="images", resamples=20)
    assert len(queries) == 10
    assert "A photo of an evil person." in queries
    assert [part.provenance.n["groups"] for part in parts] == [2, 7, 9, 14]
    for part in parts:
        assert len(part.rows) == 3 * (4 * 11 + 1) + 4
        assert all(f.interval[0] <= f.value <= f.interval[1] for f in part.rows)
        assert part.provenance.settings["prior"] == "uniform"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"k": N + 1}, r"noise gender: k: expected at most the 90 images whose group is known, got 91"),
        ({"queries": ()}, r"queries: expected one or more different ones, got \[\]"),
        ({"queries": QUERIES[:1] * 2}, r"queries: expected one or more different ones"),
        ({"resample": "pixels"}, r"resample: Input should be 'queries' or 'images'"),
        ({"prompts": {"height": GENDER}}, r"no column 'height'; there are \['gender', 'tone'\]"),
        ({"prompts": {"gender x height": GENDER}}, r"no column 'height'"),
        ({"methods": ("magic",)}, r"method: expected one of .* got 'magic'"),
        ({"prompts": {}}, r"prompts: Dictionary should have at least 1 item"),
        ({"gallery": GALLERY[GALLERY.column("gender").codes == 1]}, r"noise gender: skew needs images of two groups"),
        ({"gallery": Embeddings(np.ones((3, 4)), tuple("abc"), {})}, r"features have width 4, text embeddings 16"),
        ({"queries": ("A photo of a unicorn.",)}, r"1 of 1 prompts are not in the file"),
    ],
)
def test_errors(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        evaluate(**options)
