"""Test the "rerank" row of retrieval tables, which uses zero-shot labels and no edit."""

import re
from typing import Any

import numpy as np
import pytest
import torch

import vldebias
from vldebias import make_prompt_set
from vldebias.measure.rankings import resampled_places, resampled_quota
from vldebias.measure.resampling import resampled_weights
from vldebias.methods import Rerank
from vldebias.metrics import max_skew
from vldebias.report.result import Result

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning")
JOBS = ("doctor", "nurse", "pilot")
SET = make_prompt_set("gender", {"male": ["male"], "female": ["female"]}, JOBS)
QUERIES = [f"A photo of a {job}." for job in JOBS]
N = 400
D = 24
K = 40


@pytest.fixture(scope="module")
def world() -> dict[str, Any]:
    """Return text and images with a gender direction, in which every query leans towards one
    side."""
    rng = np.random.default_rng(0)
    gender = rng.normal(size=D)
    gender /= np.linalg.norm(gender)
    texts = {}
    for text in dict.fromkeys([*SET.texts, *QUERIES]):
        sign = 1.0 if " male" in text else -1.0 if "female" in text else 1.0
        job = np.random.default_rng([ord(text.split()[-1][0]), len(text.split()[-1])])
        texts[text] = torch.from_numpy(job.normal(size=D) * 0.2 + sign * gender)
    codes = np.arange(N) % 2
    features = rng.normal(size=(N, D)) * 0.25 + np.where(codes, 1.0, -1.0)[:, None] * gender
    labels = np.where(codes, "male", "female")
    return {"texts": texts, "features": features, "labels": labels}


def measured(world: dict[str, Any], methods: list[Any], rows: Any = ..., **options: Any) -> Result:
    """Evaluate the queries on some rows of the images."""
    options = {"attribute": SET, "queries": QUERIES, "k": K, "resamples": 50, **options}
    features, labels = world["features"][rows], world["labels"][rows]
    return vldebias.evaluate(world["texts"], features, labels=labels, methods=methods, **options)


@pytest.fixture(scope="module")
def result(world: dict[str, Any]) -> Result:
    methods = ["none", "default", "rerank", "default+rerank"]
    return measured(world, methods, resamples=200)


def naive_skews(world: dict[str, Any], edit: Any = None) -> list[float]:
    """Compute the skew query by query: label by the nearest value, alternate, and count the true
    groups."""
    unit = world["features"] / np.linalg.norm(world["features"], axis=1, keepdims=True)
    values = []
    for texts in SET.by_value().values():
        rows = torch.stack([world["texts"][text] for text in texts])
        mean = torch.nn.functional.normalize(rows, dim=1).mean(0)
        values.append((mean / mean.norm()).numpy())
    zero_shot = (unit @ np.stack(values).T).argmax(axis=1)
    skews = []
    for query in QUERIES:
        text = world["texts"][query] / world["texts"][query].norm()
        if edit is not None:
            text = edit(text[None].double())[0]
        scores = unit @ (text / text.norm()).numpy()
        order = np.argsort(-scores, kind="stable")
        first = [[row for row in order if zero_shot[row] == label][: K // 2] for label in (0, 1)]
        skews.append(max_skew([1.0] * K, world["labels"][[*first[0], *first[1]]], K))
    return skews


def test_the_row_is_a_quota_by_zero_shot_labels(world: dict[str, Any], result: Result) -> None:
    task = "retrieval gender"
    for query, skew in zip(QUERIES, naive_skews(world), strict=True):
        row = result.row(task, f"max_skew@{K}", "rerank", subset=query)
        assert row.value == pytest.approx(skew, abs=1e-9)
    row = result.row(task, f"max_skew@{K}", "rerank")
    assert row.value == pytest.approx(np.mean(naive_skews(world)))
    assert row.change[2] < 0, "re-ranking leaning queries helps beyond chance"


def test_images_and_queries_are_read_in_parts(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vldebias.study.tasks.rankings.BLOCK", 150)
    monkeypatch.setattr("vldebias.study.tasks.rankings.QUERIES_AT_ONCE", 2)
    found = measured(world, ["rerank"])
    for query, skew in zip(QUERIES, naive_skews(world), strict=True):
        row = found.row("retrieval gender", f"max_skew@{K}", "rerank", subset=query)
        assert row.value == pytest.approx(skew, abs=1e-9)


def test_the_combined_row_is_a_quota_on_the_results_of_the_default(
    world: dict[str, Any], result: Result
) -> None:
    task = "retrieval gender"
    edit = vldebias.fit_projections(world["texts"], SET).only
    for query, skew in zip(QUERIES, naive_skews(world, edit), strict=True):
        row = result.row(task, f"max_skew@{K}", "default+rerank", subset=query)
        assert row.value == pytest.approx(skew, abs=1e-9)
    # Its queries are those of the default, so it no longer finds what the original model finds.
    cosine = result.row(task, "query_cosine", "default+rerank").value
    assert cosine == result.row(task, "query_cosine", "default").value


def test_any_edit_can_precede_a_reranking(world: dict[str, Any]) -> None:
    found = measured(world, [Rerank("difference")])
    edit = vldebias.fit_projections(world["texts"], SET, method="difference").only
    row = found.row("retrieval gender", f"max_skew@{K}", "difference+rerank")
    assert row.value == pytest.approx(np.mean(naive_skews(world, edit)))
    for method, name in (("difference", "difference+equalise"), ("default", "default+reference")):
        assert Rerank(method).with_images().name == f"{name}+rerank"


def test_every_ranking_metric_and_cost_is_measured(result: Result) -> None:
    metrics = {row.metric for row in result.rows if row.method == "rerank" and not row.subset}
    for name in ("max_skew", "min_skew", "ndkl", "mpr", "awrf", "retained", "stay"):
        assert f"{name}@{K}" in metrics
    retained = result.row("retrieval gender", f"retained@{K}", "rerank").value
    assert 0.5 < retained <= 1
    assert retained > result.row("retrieval gender", f"retained@{K}", "none").value
    assert "re-ranked" in str(result.provenance[0].methods["rerank"]["title"])


def test_each_resample_is_reranked() -> None:
    """In every resample, each label keeps the places it has in the gallery."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=600)
    members = [np.flatnonzero(labels == label) for label in (0, 1)]
    length = min(map(len, members))
    order = np.stack([rows[:length] for rows in members], axis=1).ravel()
    weights = np.concatenate(list(resampled_weights(600, 50, 0, 600)))
    top = resampled_quota(order, weights, 30, labels[order])
    assert (labels[order][top] == labels[order[:30]]).all()
    for resample, places in zip(weights, top, strict=True):
        for label in (0, 1):
            repeated = [row for row in order if labels[row] == label for _ in range(resample[row])]
            assert order[places][0::1][labels[order[places]] == label].tolist() == repeated[:15]
    plain = resampled_places(order, weights, 30)
    assert (labels[order][plain].sum(axis=1) != 15).any()


def test_labelled_images_of_other_attributes_are_drawn_and_not_measured(
    world: dict[str, Any],
) -> None:
    ages = make_prompt_set("age", {"young": ["young"], "senior": ["senior"]}, JOBS)
    renamed = {}
    for text, row in world["texts"].items():
        renamed[text.replace(" male", " young").replace("female", "senior")] = row
    labels = np.where(world["labels"] == "male", "young", "senior")
    mine = {**world, "texts": renamed, "labels": labels}
    found = measured(mine, ["none", "rerank"], attribute=ages)
    (provenance,) = found.provenance
    drawn = np.random.default_rng(0).permutation(N)[:20]
    assert (provenance.n["labelled, not measured"], provenance.n["images"]) == (20, N - 20)
    assert re.search(r"age: 20 labels, \d+ of 20 right when left out", provenance.description)
    # The other rows are measured on the same images, and the drawn labels correct the border.
    rest = measured(mine, ["none"], np.setdiff1d(np.arange(N), drawn), attribute=ages)
    for query in QUERIES:
        row, other = (
            one.row(provenance.task, f"max_skew@{K}", "none", subset=query) for one in (found, rest)
        )
        assert row.value == pytest.approx(other.value)
    assert found.row(provenance.task, f"max_skew@{K}", "rerank").change[2] < 0
    assert "labelled, not measured" not in rest.provenance[0].n


def test_gallery_shares_are_used_if_they_are_the_prior(world: dict[str, Any]) -> None:
    rows = np.flatnonzero((np.arange(N) % 2 == 1) | (np.arange(N) % 6 == 0))
    found = measured(world, ["rerank"], rows, prior="dataset")
    none = found.row("retrieval gender", "max_skew@40", "none").value
    assert found.row("retrieval gender", "max_skew@40", "rerank").value < none
