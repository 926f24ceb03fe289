"""The first screen of a page: a sentence per task that says what was gained and what it cost, and how it was made."""

from typing import Any

import pytest
from made_figures import figure, protocol, result

from vldebias.evaluation.report.front import conclusion, evidence, forest, in_short, opening, overall
from vldebias.evaluation.report.tables import blocks
from vldebias.evaluation.report.words import metric_title
from vldebias.evaluation.result import Measurement

BETTER, WORSE, UNCLEAR, SAME = (0.2, 0.1, 0.3), (-0.2, -0.3, -0.1), (0.1, -0.1, 0.3), (0.0, 0.0, 0.0)
GAIN = "orth improves worst-group accuracy, from 0.500 by +0.200 [+0.100, +0.300];"


def said(**changes: Any) -> str:
    rows = [figure("none", 0.5, metric="worst_group")]
    rows += [figure(m, 0.5 + bias[0], metric="worst_group", change=bias) for m, (bias, _) in changes.items()]
    rows += [figure(m, 0.9, change=cost) for m, (_, cost) in changes.items() if cost is not None]
    (block,) = blocks(result(rows))
    return conclusion(block)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"orth": (BETTER, WORSE)}, f"{GAIN} it costs average accuracy: -0.200 [-0.300, -0.100]."),
        (
            {"orth": (BETTER, SAME), "cali": ((0.3, 0.1, 0.5), UNCLEAR), "x": (WORSE, SAME)},
            "cali improves worst-group accuracy most, from 0.500 by +0.300 [+0.100, +0.500]; "
            "average accuracy is not clearly changed: +0.100 [-0.100, +0.300]; worse: x.",
        ),
        ({"orth": (BETTER, BETTER)}, f"{GAIN} average accuracy improves too: +0.200 [+0.100, +0.300]."),
        (
            {"orth": (WORSE, None), "cali": (UNCLEAR, None)},
            "No method improves worst-group accuracy; orth makes it worse most, by -0.200 [-0.300, -0.100].",
        ),
        (
            {"orth": (UNCLEAR, None)},
            "No method clearly changes worst-group accuracy; orth moves it, by +0.100 [-0.100, +0.300].",
        ),
        ({"orth": (SAME, SAME)}, "No method moves worst-group accuracy."),
        ({"orth": (BETTER, None)}, f"{GAIN} no utility is measured here."),
    ],
)
def test_one_sentence_says_gain_and_cost(changes: dict[str, Any], sentence: str) -> None:
    assert said(**changes) == sentence


@pytest.mark.parametrize(
    ("default", "sentence"),
    [
        (BETTER, "improves worst-group accuracy, from 0.500 by +0.200 [+0.100, +0.300]"),
        (UNCLEAR, "does not clearly change worst-group accuracy, from 0.500 by +0.100 [-0.100, +0.300]"),
        (WORSE, "makes worst-group accuracy worse, from 0.500 by -0.200 [-0.300, -0.100]"),
        (SAME, "does not move worst-group accuracy"),
    ],
)
def test_the_method_that_is_attached_by_default_is_named_first(default: Any, sentence: str) -> None:
    changes = {"orth": (WORSE, SAME), "cali": ((0.3, 0.2, 0.4), SAME), "default": (default, WORSE)}
    text = said(**changes)
    assert text.startswith(f"default {sentence}; it costs")
    assert "cali improves it most, by +0.300 [+0.200, +0.400]; average accuracy stays the same; worse: orth." in text


def test_a_page_opens_with_the_method_that_is_attached_by_default() -> None:
    rows = [
        figure("default", 0.4, metric="worst_group", change=WORSE),
        figure("cali", 0.7, metric="worst_group", change=BETTER),
        figure("default", 0.8, change=WORSE),
        figure("cali", 0.5, change=WORSE),
    ]
    assert opening(blocks(result(rows))) == [
        "With the default, the method that debias attaches: bias fell nowhere beyond its interval.",
        "It did not clearly fall: worst-group accuracy (birds) from 0.60 to 0.40.",
        "It cost: average accuracy (birds) from 1.00 to 0.80.",
    ]
    assert opening(blocks(result(rows[1:2]))) == [overall(blocks(result(rows[1:2])))]
    assert "in 1 of 1 tasks by a method without labels" in overall(blocks(result(rows[1:2])))
    assert opening(blocks(result([figure("none", 0.5, metric="worst_group")]))) == []


@pytest.mark.parametrize("method", ["default", "cali"])
def test_texts_that_moved_are_no_task_won(method: str) -> None:
    rows = [figure(method, 0.7, metric="worst_group", change=BETTER)]
    cosines = figure(method, 0.2, task="birds: cosines", metric="cosine_spread", better="lower", change=WORSE)
    told = opening(blocks(result([*rows, cosines])))
    assert "cosines" not in " ".join(told)
    assert told[0].endswith("in 1 of 1 tasks by a method without labels.") == (method == "cali")


def test_a_long_opening_counts_what_it_leaves_out() -> None:
    rows = [figure("default", 0.7, task=f"task {i}", metric="worst_group", change=BETTER) for i in range(9)]
    assert opening(blocks(result(rows)))[0].endswith("; and 3 more.")


def ranked(none: float, **fields: Any) -> list[Measurement]:
    """MaxSkew of none and of a method that lessens it, beside rankings at random: 0.15, mostly 0.10 to 0.20."""
    skew = {"metric": "max_skew@20", "better": "lower"}
    return [
        figure("none", none, **skew),
        figure("default", none - 0.1, **skew, change=(-0.1, -0.15, -0.05)),
        figure("random", 0.15, **skew, interval=(0.10, 0.20)),
        figure("default", 0.8, metric="precision@20", change=WORSE),
    ]


@pytest.mark.parametrize("none", [0.2, 0.15, 0.05])
def test_no_verdict_where_none_is_no_more_biased_than_chance(none: float) -> None:
    made = result(ranked(none))
    (block,) = blocks(made)
    assert [block.verdict(row) for row in block.rows if row.metric == "max_skew@20" and row.change] == [""]
    assert conclusion(block).startswith(f"Nothing to remove here: MaxSkew@20 of none is {none:.3f}")
    assert in_short(made, [("birds", "max_skew@20")])[0] == conclusion(block)
    assert "MaxSkew" not in " ".join(in_short(made, [("birds", "max_skew@20")])[-3:])


def test_a_verdict_where_none_is_more_biased_than_chance() -> None:
    (block,) = blocks(result(ranked(0.21)))
    assert [block.verdict(row) for row in block.rows if row.metric == "max_skew@20" and row.change] == ["better"]
    assert conclusion(block).startswith("default improves MaxSkew@20")


def test_three_sentences_say_what_fell_what_did_not_and_what_it_cost() -> None:
    rows = [*ranked(0.5), figure("none", 0.4, task="drawn", metric="discrepancy", better="lower")]
    rows.append(figure("default", 0.35, task="drawn", metric="discrepancy", better="lower", change=(-0.05, -0.1, 0.1)))
    measures = [("birds", "max_skew@20"), ("birds", "precision@20"), ("drawn", "discrepancy")]
    assert in_short(result(rows), measures) == [
        "Bias fell: MaxSkew@20 (birds) from 0.50 to 0.40 under default (chance 0.15).",
        "It did not clearly fall: parity gap (L2) (drawn) from 0.40 to 0.35 under default.",
        "It cost: precision@20 (birds) from 1.00 to 0.80 under default.",
    ]


def test_the_cost_is_the_average_of_the_training_groups_where_it_is_known() -> None:
    """An average over equal groups rises with the group that was mended, and would tell a cost as a gain."""
    rows = [figure("none", 0.5, metric="worst_group"), figure("orth", 0.7, metric="worst_group", change=BETTER)]
    rows += [figure("orth", 0.7, change=BETTER), figure("orth", 0.7, metric="average_reweighted", change=WORSE)]
    (block,) = blocks(result(rows))
    assert "it costs average accuracy, reweighted to training groups: -0.200 [-0.300, -0.100]" in conclusion(block)


def at_a_cost(**costs: tuple[float, float, float]) -> Any:
    """A task in which "orth" lessens skew at these costs."""
    made = [figure("none", 0.5, metric="max_skew@20", better="lower")]
    made += [figure("orth", 0.3, metric="max_skew@20", better="lower", change=WORSE)]
    for metric, change in costs.items():
        better = "lower" if metric == "unknown" else "higher"
        made += [figure(m, 0.9, metric=metric, better=better, change=c) for m, c in (("none", None), ("orth", change))]
    return result(made)


@pytest.mark.parametrize("metric", ["accuracy", "recall", "signal_kept"])
def test_a_conclusion_names_every_cost_behind_a_first_that_did_not_move(metric: str) -> None:
    made = at_a_cost(query_cosine=SAME, **{metric: WORSE})
    (block,) = blocks(made)
    assert conclusion(block).startswith("orth improves MaxSkew@20, from 0.500 by -0.200 [-0.300, -0.100]; it costs ")
    assert conclusion(block).endswith(f"it costs {metric_title(metric)}: -0.200 [-0.300, -0.100].")
    assert overall([block]).endswith("of 1 of these that measure utility, it falls beyond its interval in 1.")
    drawn = forest(block)
    assert drawn is not None
    assert drawn.heads[1][0].lower() == metric_title(metric)


def test_pictures_that_can_no_longer_be_read_are_a_cost() -> None:
    (block,) = blocks(at_a_cost(recognised=SAME, unknown=BETTER))
    assert conclusion(block).endswith("it costs unknown attribute: +0.200 [+0.100, +0.300].")


def test_several_costs_are_all_named_and_of_several_k_one() -> None:
    (block,) = blocks(at_a_cost(**{"recall@1": WORSE, "recall@5": WORSE, "accuracy": WORSE, "query_cosine": BETTER}))
    assert conclusion(block).count("-0.300, -0.100]") == 3  # the gain, recall@1 and accuracy
    assert "it costs recall@1: -0.200 [-0.300, -0.100], and accuracy: -0.200 [-0.300, -0.100]." in conclusion(block)


def test_the_forest_draws_intervals_around_zero() -> None:
    rows = [figure("none", 0.5, metric="worst_group"), figure("none", 0.9)]
    rows += [figure("orth", 0.7, metric="worst_group", change=BETTER), figure("orth", 0.7, change=WORSE)]
    rows += [figure("cali", 0.6, metric="worst_group", change=(0.15, 0.0, 0.3))]
    (block,) = blocks(result(rows))
    drawn = forest(block)
    assert drawn is not None
    assert drawn.heads == (
        ("Worst-group accuracy", "higher is better, from -0.3 to +0.3"),
        ("Average accuracy", "higher is better, from -0.3 to +0.3"),
    )
    (orth, (gain, cost)), (cali, (other, nothing)) = drawn.lines
    assert (orth, cali, nothing, drawn.more) == ("orth", "cali", None, 0)
    assert gain is not None
    assert cost is not None
    assert other is not None
    assert (gain.low, gain.point, gain.width) == (66.0, 82.0, 32.0)
    assert (cost.low, cost.point, cost.width) == (2.0, 18.0, 32.0)
    assert (other.low, other.width, other.text) == (50.0, 48.0, "+0.150")


def test_nothing_is_drawn_where_nothing_was_compared() -> None:
    (block,) = blocks(result([figure()]))
    assert forest(block) is None


def test_evidence_says_what_is_not_recorded() -> None:
    made = result([figure()], protocol())
    assert dict(evidence(made, blocks(made))) == {
        "measured": "date not recorded, 1 s",
        "command": "not recorded",
        "machine": "not recorded",
        "code": "commit not recorded",
        "packages": "vldebias 1",
        "weights": "ViT-L-14/openai: fingerprint not known",
        "prompts": "waterbirds 000000000000",
        "data": "no digest recorded",
        "counted": "test: 100 images",
    }


@pytest.mark.parametrize(
    ("groups", "counted"),
    [
        ({"a/b": 60, "c/d": 40}, "birds test: 100 images (a/b 60, c/d 40)"),
        ({"one query": 100, "another": 100}, "birds test: 100 images"),  # they overlap
        ({"a/b": 60}, "birds test: 100 images"),
    ],
)
def test_evidence_counts_each_group(groups: dict[str, int], counted: str) -> None:
    rows = [figure("none", 0.5, subset=name, metric="accuracy", n={"images": n}) for name, n in groups.items()]
    told = protocol(split="birds test", data={"birds.npz": "0123456789abcdef"})
    made = result(rows, told, date="2026-11-20", command="vldebias eval x", platform="Linux")
    lines = dict(evidence(made, blocks(made)))
    assert lines["counted"] == counted
    assert lines["data"] == "birds.npz: 0123456789ab"
    assert (lines["measured"], lines["command"], lines["machine"]) == ("2026-11-20, 1 s", "vldebias eval x", "Linux")
    told.settings["groups"] = {"m": 70, "f": 30}
    assert dict(evidence(made, blocks(made)))["counted"] == "birds test: 100 images (m 70, f 30)"
