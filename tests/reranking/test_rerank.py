"""Test the inputs and outputs of `rerank`, and errors that name the cause."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import vldebias
import vldebias.reranking
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.hosts import resolve
from vldebias.miniature import load_clip
from vldebias.reranking import Candidates, quota
from vldebias.reranking.candidates import Rows, unit_products

SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
LABELS = ["m", "m", "m", "f", "m", "f", "f", "f"]


def test_positions_are_returned_as_an_array_with_a_report() -> None:
    positions = vldebias.rerank(SCORES, 4, labels=LABELS)
    assert isinstance(positions, np.ndarray)
    assert positions.dtype == np.int64
    assert positions.tolist() == [0, 3, 1, 5]
    assert np.array(LABELS)[positions].tolist() == ["m", "f", "m", "f"]
    assert torch.from_numpy(SCORES)[positions].tolist() == [0.9, 0.6, 0.8, 0.4]
    assert positions[:2].reports == ()  # a slice has no report
    report = positions.report
    assert (report.counts_before, report.counts) == ({"f": 1, "m": 3}, {"f": 2, "m": 2})
    assert report.kept == 0.75
    assert report.score_lost == pytest.approx((0.7 - 0.4) / 4)
    assert report.moved == pytest.approx((0 + 2 + 1 + 2) / 4)


@pytest.mark.parametrize(
    "scores", [SCORES.tolist(), SCORES.astype(np.float16), torch.tensor(SCORES, requires_grad=True)]
)
def test_scores_are_accepted_in_every_form(scores: object) -> None:
    assert vldebias.rerank(scores, 4, labels=LABELS).tolist() == [0, 3, 1, 5]


@pytest.mark.parametrize(
    "labels",
    [
        np.array(LABELS),
        np.array([label == "m" for label in LABELS]).astype(int),
        torch.tensor([int(label == "m") for label in LABELS]),
        {"gender": LABELS},
    ],
)
def test_labels_are_accepted_in_every_form(labels: object) -> None:
    assert vldebias.rerank(SCORES, 4, labels=labels).tolist() == [0, 3, 1, 5]


@pytest.mark.parametrize("unknown", [None, "", float("nan"), "unknown", pd.NA, pd.NaT])
def test_unknown_labels_keep_their_positions(unknown: object) -> None:
    labels = [*LABELS[:1], unknown, *LABELS[2:]]
    positions = vldebias.rerank(SCORES, 5, labels=labels)
    assert positions[1] == 1
    assert positions.report.unknown == 1
    assert sum(positions.report.counts.values()) == 4


def test_several_queries_are_reranked() -> None:
    table = np.stack([SCORES, np.roll(SCORES, 3)])
    positions = vldebias.rerank(table, 4, labels=LABELS)
    assert positions.shape == (2, 4)
    for row, scores in zip(positions, table, strict=True):
        assert row.tolist() == vldebias.rerank(scores, 4, labels=LABELS).tolist()
    assert len(positions.reports) == 2


def test_k_none_or_a_large_k_returns_all_candidates() -> None:
    every = vldebias.rerank(SCORES, labels=LABELS)
    assert sorted(every.tolist()) == list(range(8))
    assert vldebias.rerank(SCORES, 99, labels=LABELS).tolist() == every.tolist()


def test_reading_only_some_of_many_candidates_gives_the_same_result() -> None:
    """Only some of many candidates are read, and the result is the same as if all of them were."""
    rng = np.random.default_rng(0)
    n = 3000
    scores = rng.normal(size=n).round(1)  # with ties
    codes = rng.choice([-1, 0, 1, 2], size=n)
    labels = ["" if code < 0 else f"g{code}" for code in codes]
    candidates = Candidates(scores, codes, ["g0", "g1", "g2"], np.full(3, 1 / 3))
    positions = vldebias.rerank(scores, 60, labels=labels, shares="even")
    assert positions.tolist() == quota(candidates, 60).tolist()


def test_a_mapping_provides_the_ids() -> None:
    names = [f"doc {place}" for place in range(8)]
    scores = dict(zip(names, SCORES, strict=True))
    expected = [names[row] for row in (0, 3, 1, 5)]
    by_row = vldebias.rerank(scores, 4, labels=LABELS)
    by_id = vldebias.rerank(scores, 4, labels=dict(zip(names, LABELS, strict=True)))
    assert by_row.tolist() == by_id.tolist() == expected


def test_index_ids_may_have_gaps() -> None:
    """The input is what faiss returns: rows of the index, with -1 at the end of shorter lists."""
    labels = np.array(["m", "f"])[np.arange(20) % 2]
    ids = np.array([[2, 4, 6, 7, 9, 11], [1, 3, 0, -1, -1, -1]])
    scores = np.array([SCORES[:6], [0.9, 0.8, 0.7, -1e38, -1e38, -1e38]])
    found = vldebias.rerank(scores, 4, labels=labels, shares="even", ids=ids)
    assert found.tolist() == [[2, 7, 4, 9], [1, 0, 3, -1]]


def test_requested_shares_are_applied() -> None:
    positions = vldebias.rerank(SCORES, 4, labels=LABELS, shares={"m": 0.75, "f": 0.25})
    assert positions.report.counts == {"f": 1, "m": 3}


def test_shares_may_be_given_for_numeric_labels() -> None:
    labels = [int(label == "m") for label in LABELS]
    positions = vldebias.rerank(SCORES, 4, labels=labels, shares={0: 0.25, 1: 0.75})
    assert positions.report.counts == {"0": 1, "1": 3}


def test_the_shares_of_the_pool_are_the_default() -> None:
    labels = ["m"] * 6 + ["f"] * 2
    positions = vldebias.rerank(SCORES, 4, labels=labels)
    assert positions.report.counts == {"f": 1, "m": 3}
    assert positions.tolist() == vldebias.rerank(SCORES, 4, labels=labels, shares="pool").tolist()
    even = vldebias.rerank(SCORES, 4, labels=labels, shares="even")
    assert even.report.counts == {"f": 2, "m": 2}


def test_the_first_line_of_the_report_names_method_target_and_source() -> None:
    positions = vldebias.rerank(SCORES, 4, labels=LABELS)
    line = "first 4 by quota, pool shares, given labels: 1 f, 3 m -> 2 f, 2 m"
    assert str(positions.report).splitlines()[0] == line
    positions = vldebias.rerank(SCORES, 4, labels=LABELS, shares={"m": 0.75, "f": 0.25})
    assert "first 4 by quota, requested shares, given labels" in str(positions.report)
    table = np.eye(2)[[int(label == "m") for label in LABELS]]
    positions = vldebias.rerank(SCORES, 4, probabilities=table, shares="even")
    assert "first 4 by quota, even shares, given probabilities" in str(positions.report)


def doubtful(n: int = 400, k: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Return scores (n,) that prefer the first group, and probabilities (n, 2) of both groups."""
    rng = np.random.default_rng(k)
    is_first = np.arange(n) % 2 == 0
    margins = rng.normal(size=n) + np.where(is_first, 1.0, -1.0)
    first = 1 / (1 + np.exp(-2 * margins))
    return rng.normal(size=n) + margins, np.stack([first, 1 - first], axis=1)


def near(table: np.ndarray) -> np.ndarray:
    """Return a mask of the rows with a margin under half of their group's median margin."""
    codes = table.argmax(axis=1)
    margins = np.sort(table, axis=1)[:, -1] - np.sort(table, axis=1)[:, -2]
    half = np.array([np.median(margins[codes == code]) / 2 for code in range(table.shape[1])])
    return margins < half[codes]


@pytest.mark.parametrize("g", [2, 3])
def test_doubtful_candidates_have_their_share_of_each_groups_places(g: int) -> None:
    scores, table = doubtful()
    if g == 3:
        table = np.random.default_rng(3).dirichlet([0.8, 0.8, 0.8], size=400)
    codes = table.argmax(axis=1)
    is_near = near(table)
    found = vldebias.rerank(scores, 60, probabilities=table, shares="pool")
    counts = np.bincount(codes[found], minlength=g)
    np.testing.assert_allclose(counts, 60 * np.bincount(codes, minlength=g) / 400, atol=1)
    for code in range(g):
        if counts[code]:
            share = is_near[codes == code].mean()
            assert abs(is_near[found[codes[found] == code]].sum() - counts[code] * share) < 1


def test_certain_probabilities_give_the_quota() -> None:
    scores, table = doubtful()
    certain = np.eye(2)[table.argmax(axis=1)]
    for k in (1, 20, 400, None):
        by_labels = vldebias.rerank(scores, k, labels=table.argmax(axis=1))
        assert vldebias.rerank(scores, k, probabilities=certain).tolist() == by_labels.tolist()


def test_reading_only_some_of_doubtful_candidates_gives_the_same_result() -> None:
    scores, table = doubtful(n=2000)
    first = vldebias.rerank(scores, 60, probabilities=table)
    every = vldebias.rerank(scores, probabilities=table)
    assert first.tolist() == every[:60].tolist()


def test_constant_scores_and_all_candidates_are_accepted() -> None:
    _, table = doubtful()
    for k in (10, 400, 500, None):
        positions = vldebias.rerank(np.zeros(400), k, probabilities=table)
        assert len(set(positions.tolist())) == min(k or 400, 400)


def test_the_nearest_shares_are_returned_with_a_warning_if_they_cannot_be_reached() -> None:
    scores, _ = doubtful()
    table = np.tile([0.1, 0.9], (400, 1))
    table[:3] = [0.9, 0.1]
    with (
        pytest.warns(SuspectInputWarning, match="too few candidates: 7 of '0' missing"),
        pytest.warns(SuspectInputWarning, match="the candidates are 3 0, 397 1"),
    ):
        found = vldebias.rerank(scores, 20, probabilities=table, shares="even")
    assert {0, 1, 2} <= set(found.tolist())


def test_a_share_of_zero_leaves_a_group_out() -> None:
    scores, table = doubtful()
    positions = vldebias.rerank(scores, 20, probabilities=table, shares={"0": 0, "1": 1})
    assert (table[positions].argmax(axis=1) == 1).all()


def test_zero_shot_labels_are_dealt_by_quota_unless_they_cannot_be_trusted() -> None:
    rng = np.random.default_rng(0)
    man, woman = np.eye(32)[:2] + 0.1
    jobs = ["nurse", "cook", "judge", "pilot", "baker"]
    prompts = vldebias.make_prompt_set("gender", {"male": ["man"], "female": ["woman"]}, jobs)
    table = {text: woman if "woman" in text else man for text in prompts.texts}
    side = np.where(np.arange(300) % 2, 1.0, -1.0)[:, None]
    scores = rng.normal(size=300)
    features = rng.normal(size=(300, 32)) + 1.5 * side * (man - woman)
    # If fewer than five images look like a group, the labels are not trusted.
    alike = np.tile(features[:2], (150, 1))
    absent = rng.normal(size=(300, 32)) + 5 * (man - woman)
    rare = np.concatenate([absent[:295], features[features @ (woman - man) > 0][:5]])
    for rows, method, target in (
        (features, "quota", "pool shares"),
        (features[:80], "quota", "pool shares"),
        (alike, "quota", "pool shares"),
        (rare, "quota", "pool shares"),
        (absent, "none", "unreliable labels"),
    ):
        positions = vldebias.rerank(
            scores[: len(rows)], 20, features=rows, attribute=prompts, model=table
        )
        assert positions.report.about == (method, target, "predicted groups")


def test_intersections_are_balanced() -> None:
    age = ["old", "young"] * 4
    labels = {"gender": LABELS, "age": age}
    positions = vldebias.rerank(SCORES, 4, labels=labels, shares="even")
    groups = {f"{LABELS[row]}/{age[row]}" for row in positions}
    assert groups == {"m/old", "m/young", "f/old", "f/young"}


def test_the_most_likely_group_is_the_label() -> None:
    table = np.array([[0.9, 0.1], [0.8, 0.2]] * 4)
    table[4:] = table[4:, ::-1]
    positions = vldebias.rerank(SCORES, 4, probabilities={"m": table[:, 0], "f": table[:, 1]})
    assert positions.tolist() == [0, 4, 1, 5]
    assert positions.report.expected is None  # their calibration is unknown


def test_features_are_labelled_with_text_from_a_mapping_or_a_model() -> None:
    model, _, tokenize = load_clip()
    prompts = vldebias.load_prompts("gender")
    texts = list(prompts.texts)
    with torch.no_grad():
        rows = model.encode_text(tokenize(texts))
    mapping = dict(zip(texts, rows, strict=True))
    named = prompts.by_value()
    features = []
    for value in ["male"] * 6 + ["female"] * 5:
        features.append(torch.stack([mapping[text] for text in named[value]]).mean(0))
    x = torch.stack(features)
    scores = list(range(11, 0, -1))
    by_mapping = vldebias.rerank(
        scores, 2, features=x, attribute="gender", model=mapping, shares="even"
    )
    assert by_mapping.tolist() == [0, 6]
    host = resolve(model, tokenizer=tokenize)
    by_model = vldebias.rerank(scores, 2, features=x, attribute="gender", model=host, shares="even")
    assert by_model.tolist() == [0, 6]


def test_a_function_can_be_a_method() -> None:
    def after(candidates: Candidates, k: int, *, skipped: int) -> Rows:
        return candidates.ranked[skipped:k]

    found = vldebias.rerank(SCORES, 5, labels=LABELS, method=partial(after, skipped=1))
    assert found.tolist() == [1, 2, 3, 4]
    assert found.report.about[0] == "after"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scores": [np.nan, 1.0], "labels": ["a", "b"]}, "NaN or infinite"),
        ({"scores": [], "labels": []}, "scores: expected"),
        ({"scores": ["a"], "labels": ["a"]}, "expected numbers"),
        ({"scores": [1j, 0.0], "labels": ["a", "b"]}, r"expected numbers, got \[1j"),
        ({"probabilities": np.full((8, 2), 0.475)}, "expected rows that sum to 1"),
        ({"labels": ["a", "b"]}, "got 2 groups for 8 candidates"),
        ({"labels": LABELS, "k": 0}, "k: expected a whole number"),
        ({"labels": LABELS, "k": True}, "k: expected a whole number .* got True"),
        ({"labels": LABELS, "shares": {"m": 0.5}}, "that sum to 1"),
        ({"labels": LABELS, "shares": "census"}, "'pool'"),
        ({"labels": LABELS, "shares": {"m": np.nan, "f": 1}}, "that sum to 1"),
        ({"labels": LABELS, "method": ["quota"]}, "method: got"),
        ({"labels": 3}, "labels: expected a string or number"),
        ({"labels": {}}, "labels: got an empty mapping"),
        ({"probabilities": np.empty((0, 2))}, "got 0 groups for 8 candidates"),
        ({"labels": [None] * 8}, "all are unknown"),
        ({}, "expected labels="),
        ({"labels": LABELS, "probabilities": np.ones((8, 2)) / 2}, "got labels and probabilities"),
        ({"probabilities": np.ones((8, 1))}, r"\(n, groups\), .* shape \(8, 1\)"),
        ({"probabilities": np.ones(8)}, r"\(n, groups\), .* shape \(8,\)"),
        ({"probabilities": np.tile([1.5, -0.5], (8, 1))}, "expected non-negative"),
        ({"attribute": "gender"}, "features="),
        ({"labels": LABELS, "ids": [1, 2]}, "one per score"),
        ({"labels": LABELS, "method": "fair"}, "one order, the quota; see fairsearch-core"),
        ({"features": np.eye(8)}, "the groups are missing"),
        ({"labels": LABELS, "shares": None}, "got None; expected 'pool', 'even' or"),
    ],
)
def test_invalid_inputs_are_rejected_by_name(arguments: dict[str, object], words: str) -> None:
    call = {"scores": SCORES, "k": 4, **arguments}
    with pytest.raises(InvalidInputError, match=words):
        vldebias.rerank(**call)  # type: ignore[arg-type]


def test_too_few_candidates_in_a_group_are_reported_with_the_query_only_among_several() -> None:
    with pytest.warns(SuspectInputWarning, match="1 of 'f' missing") as caught:
        positions = vldebias.rerank(SCORES[:4], 4, labels=LABELS[:4], shares="even")
    assert positions.report.short == {"f": 1}
    assert sorted(positions.tolist()) == [0, 1, 2, 3]
    assert "query" not in str(caught[0].message)
    scores = np.stack([SCORES, SCORES])
    shares = {"f": 0.9, "m": 0.1}
    with pytest.warns(SuspectInputWarning, match=r"\(query 0; 2 of 2 queries\)"):
        vldebias.rerank(scores, 8, labels=LABELS, shares=shares)


def test_labels_do_not_need_torch() -> None:
    code = (
        "import sys, vldebias; vldebias.rerank([3, 2, 1], 2, labels=['a', 'a', 'b']);"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_group_in_upper_and_lower_case_triggers_a_warning() -> None:
    with pytest.warns(SuspectInputWarning, match="'Male' and 'male' differ only in case") as caught:
        vldebias.rerank([0.9, 0.8, 0.7, 0.6, 0.5], 2, labels=["Male", "male", "x", "male", "x"])
    # There is no flag to suggest here.
    assert "--rename" not in str(caught[0].message)


def test_an_unknown_group_is_not_taken_for_a_different_one() -> None:
    labels = ["male", "other"] * 4
    shares = {"female": 0.5, "other": 0.5}
    with pytest.raises(InvalidInputError, match=r"the groups are \['male', 'other'\]; use these"):
        vldebias.rerank(list(range(8)), 4, labels=labels, shares=shares)
    with pytest.raises(InvalidInputError, match=r"expected one of \['male', 'other'\]; correct it"):
        vldebias.rerank(list(range(8)), 4, labels=labels, checked={0: "female"})


def test_answers_that_are_not_groups_are_unknown() -> None:
    labels = ["male", "N/A", "cannot tell", "female", "male", "female"]
    positions = vldebias.rerank([6, 5, 4, 3, 2, 1], 6, labels=labels)
    assert positions.report.candidates.names == ("female", "male")
    assert positions.tolist()[1:3] == [1, 2]


@pytest.mark.parametrize("labels", [["34", "57", "23", "61"], [*"abcdefghi", "a"]])
def test_as_many_groups_as_rows_are_rejected(labels: list[str]) -> None:
    with pytest.raises(InvalidInputError, match=f"groups in {len(labels)} rows"):
        vldebias.rerank(list(range(len(labels))), 2, labels={"age": labels})
    # Labels in three groups of three candidates are not ids.
    assert len(vldebias.rerank([3, 2, 1], 2, labels=["a", "b", "c"])) == 2


def test_distances_passed_as_scores_trigger_one_warning_per_call() -> None:
    distances = np.array([[0.11, 0.14, 0.19, 0.27, 0.33], [0.2, 0.3, 0.4, 0.5, 0.6]])
    labels = ["male", "male", "female", "female", "male"]
    with pytest.warns(SuspectInputWarning, match="the scores ascend.*-distances") as caught:
        vldebias.rerank(distances, 4, labels=labels)
    assert len(caught) == 1
    # Fewer than five scores may ascend by chance, and so may those of some queries.
    vldebias.rerank(distances[0, :4], 2, labels=labels[:4])
    vldebias.rerank(np.stack([distances[0], -distances[1]]), 4, labels=labels)
    vldebias.rerank(-distances, 4, labels=labels)


def test_a_query_that_finds_one_group_only_gives_a_page_and_a_note() -> None:
    shares = {"f": 0.5, "m": 0.5}
    with pytest.warns(SuspectInputWarning, match="2 of 'm' missing in the first 4"):
        found = vldebias.rerank(range(5, 0, -1), 4, labels=["f"] * 5, shares=shares)
    assert found.tolist() == [0, 1, 2, 3]
    assert found.report.short == {"m": 2}
    assert "all candidates with a known group are f" in str(found.report)
    # A group that candidates have, but that has no share, is a mistake in a name.
    with pytest.raises(InvalidInputError, match="the groups are"):
        vldebias.rerank(range(5, 0, -1), 4, labels=["w"] * 5, shares=shares)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_probabilities_are_unknown_and_keep_their_places(broken: float) -> None:
    scores, table = doubtful()
    order = np.argsort(-scores, kind="stable")
    table[order[[2, 7]]] = broken
    first = min(order[[2, 7]])
    message = f"probabilities: 2 of 400 rows are NaN or infinite, the first in row {first};"
    with pytest.warns(SuspectInputWarning, match=message) as caught:
        found = vldebias.rerank(scores, 20, probabilities=table)
    assert len(caught) == 1
    assert found[[2, 7]].tolist() == order[[2, 7]].tolist()
    assert found.report.unknown == 2
    without = np.delete(np.arange(400), order[[2, 7]])
    again = vldebias.rerank(scores[without], 18, probabilities=table[without])
    assert np.delete(found, [2, 7]).tolist() == without[again].tolist()


def test_candidates_without_any_known_group_keep_their_order() -> None:
    with pytest.warns(SuspectInputWarning, match="3 of 3 rows are NaN"):
        found = vldebias.rerank([3, 2, 1], 2, probabilities=np.full((3, 2), np.nan))
    assert found.tolist() == [0, 1]


def test_labels_in_candidate_order_are_accepted_with_the_ids_of_a_store() -> None:
    ids = [1003, 7, 2**63 + 5, 41, 12, 18, 99, 8]
    found = vldebias.rerank(SCORES, 4, ids=ids, labels=LABELS)
    assert found.tolist() == [ids[row] for row in (0, 3, 1, 5)]
    small = [row + 1 for row in range(8)]
    assert vldebias.rerank(SCORES, 4, ids=small, labels=LABELS).tolist() == [1, 4, 2, 6]
    table = np.eye(2)[[int(label == "m") for label in LABELS]]
    by_table = vldebias.rerank(SCORES, 4, ids=small, probabilities=table, method="quota")
    assert by_table.tolist() == [1, 4, 2, 6]


def test_a_permutation_of_the_rows_is_ambiguous() -> None:
    ids = [3, 0, 1, 2, 7, 6, 5, 4]
    with pytest.raises(InvalidInputError, match="label of id 3 could be the first one or"):
        vldebias.rerank(SCORES, 4, ids=ids, labels=LABELS)
    by_id = vldebias.rerank(SCORES, 4, ids=ids, labels=dict(zip(ids, LABELS, strict=True)))
    assert by_id.tolist() == [ids[row] for row in (0, 3, 1, 5)]
    # If both readings give the same labels, there is nothing to ask.
    assert vldebias.rerank(SCORES, 4, ids=range(8), labels=LABELS).tolist() == [0, 3, 1, 5]


def test_even_shares_of_an_uneven_collection_trigger_a_warning() -> None:
    labels = ["m"] * 100 + ["f"] * 50
    scores = np.linspace(1, 0, 150)
    with pytest.warns(SuspectInputWarning, match="the candidates are 50 f, 100 m"):
        vldebias.rerank(scores, 20, labels=labels, shares="even")
    vldebias.rerank(scores, 20, labels=labels)
    vldebias.rerank(scores[30:], 20, labels=labels[30:], shares="even")


@pytest.mark.parametrize("share", [1e-4, 1e-7, 1e-15])
def test_a_rare_group_does_not_take_longer(share: float) -> None:
    shares = {"m": 0.5, "f": 0.5 - share, "x": share}
    begin = time.process_time()
    found = vldebias.rerank(range(120, 0, -1), 60, labels=list("mfx") * 40, shares=shares)
    assert time.process_time() - begin < 0.5
    counts = [(np.array(list("mfx") * 40)[found[:n]] == "m").sum() for n in range(1, 61)]
    assert np.abs(np.array(counts) - 0.5 * np.arange(1, 61)).max() <= 1


def test_the_report_says_whose_shares_were_used() -> None:
    few = vldebias.rerank(range(40, 0, -1), 4, labels=["m", "f"] * 20)
    note = "the shares are those of these 40 candidates; if they are the first results of an index"
    assert note in str(few.report)
    assert few.report.to_dict()["notes"] == few.report.notes
    for found in (
        vldebias.rerank(range(8, 0, -1), 4, labels=LABELS),
        vldebias.rerank(range(40, 0, -1), 4, labels=["m", "f"] * 20, shares="even"),
    ):
        assert "the shares are those of" not in str(found.report)


def test_every_loop_has_a_bound() -> None:
    """A loop that ends on a comparison would run forever if a number is NaN."""
    for file in Path(vldebias.reranking.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.While):
                names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
                assert names, f"{file.name}: while True"
                # Integers that the loop changes, which cannot be NaN.
                assert names & {"different", "n"}, f"{file.name}:{node.lineno}"


def test_padding_is_no_candidate_if_labels_are_listed_by_id() -> None:
    labels = np.array(["m", "f"])[np.arange(20) % 2]
    ids = np.array([[2, 4, 7, 9], [1, 0, -1, -1]])
    scores = np.array([[0.9, 0.8, 0.7, 0.6], [0.9, 0.8, -np.inf, -np.inf]])
    by_row = vldebias.rerank(scores, 3, ids=ids, labels=labels)
    by_id = vldebias.rerank(scores, 3, ids=ids, labels=dict(enumerate(labels.tolist())))
    assert by_id.tolist() == by_row.tolist()


def test_masked_scores_and_shares_of_an_unknown_group_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="scores: got a masked array"):
        vldebias.rerank(np.ma.array(SCORES, mask=np.arange(8) == 2), 4, labels=LABELS)
    shares = {"m": 0.4, "f": 0.4, "unknown": 0.2}
    with pytest.raises(InvalidInputError, match="'unknown', which is read as an unknown group"):
        vldebias.rerank(SCORES, 4, labels=LABELS, shares=shares)


def test_the_report_says_how_many_candidates_of_a_group_are_missing() -> None:
    labels = ["m"] * 7 + ["f"]
    with pytest.warns(SuspectInputWarning, match="too few candidates"):
        found = vldebias.rerank(SCORES, 6, labels=labels, shares={"m": 0.5, "f": 0.5})
    assert "f: 2 fewer than requested; there are no more candidates" in str(found.report)


def test_features_of_one_image_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"expected \(n, d\), got shape \(8,\)"):
        unit_products(np.ones(8), np.eye(8))
