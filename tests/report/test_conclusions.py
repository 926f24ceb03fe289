"""Test verdicts, and the sentence that concludes a task, on constructed rows."""

from typing import Any

import pytest

from tests.study.made_figures import DOWN, STILL, UP, bias, figure, protocol, result
from vldebias.report.conclusion import Conclusion, conclusions
from vldebias.report.page import (
    front_groups,
    front_rows,
    grids,
)
from vldebias.report.result import Result
from vldebias.report.table import moved, readable, verdict
from vldebias.report.text import text


@pytest.mark.parametrize(
    ("change", "better", "expected"),
    [
        (UP, "higher", "better"),
        (UP, "lower", "worse"),
        (DOWN, "lower", "better"),
        (UP, "neither", "changed"),
        (STILL, "higher", "no clear change"),
        ((0.0, 0.0, 0.0), "lower", "equal"),
        ((8.5e-16, 8.5e-16, 8.5e-16), "lower", "equal"),
        ((0.1, 8.5e-16, 0.2), "higher", "no clear change"),
        ((0.1, 0.1, 0.1), "higher", "changed"),
        (None, "higher", ""),
        ((0.1, float("nan"), float("nan")), "lower", ""),
    ],
)
def test_a_verdict_needs_an_interval_that_excludes_zero_beyond_float_noise(
    change: Any, better: str, expected: str
) -> None:
    assert verdict(change, better) == expected


@pytest.mark.parametrize(
    ("none", "width", "after", "expected"),
    [
        (0.05, 0.1, 0.15, "nothing to remove"),
        (0.2, 0.05, 0.15, "nothing to remove"),
        (0.2, 0.4, 0.15, "better"),  # within chance, but too wide to exclude a large bias
        (0.5, 0.1, 0.15, "better"),
        (0.1, 0.1, 0.3, "worse"),  # harm beyond chance
    ],
)
def test_nothing_to_remove_is_the_verdict_at_chance_if_the_interval_is_narrow(
    none: float, width: float, after: float, expected: str
) -> None:
    # The chance level is 0.0 to 0.2.
    rows = [
        bias("none", none, interval=(none - width, none + width)),
        bias("default", after, change=UP if after > none else DOWN),
        bias("random", 0.1),
    ]
    measured = result(rows, protocol("search"))
    assert readable(measured).query("method == 'default'").verdict.tolist() == [expected]
    (conclusion,) = measured.conclusions()
    assert (conclusion.verdict, conclusion.chance) == (expected, 0.1)
    assert f"search: {expected}" in text(measured)


def test_an_interval_as_wide_as_the_bias_is_inconclusive_and_the_required_n_is_given() -> None:
    def concluded(none: float, change: tuple[float, float, float]) -> Conclusion:
        rows = [bias("none", none), bias("default", none, change=change), bias("random", 0.1)]
        (conclusion,) = result(rows, protocol("search")).conclusions()
        return conclusion

    # The interval is 0.6 wide, but the bias exceeds its random level by only 0.4.
    wide = concluded(0.5, (0.0, -0.3, 0.3))
    assert wide.verdict == "too few to tell"
    assert wide.enough == 900, "(2 * .6 / .4)^2 times 100 images"
    assert "too few to tell from 100 images, about 900 would do" in wide.sentence
    narrow = concluded(0.9, (0.0, -0.3, 0.3))
    assert (narrow.verdict, narrow.enough) == ("no clear change", None)


@pytest.mark.parametrize(
    ("uniform_change", "expected"), [(UP, "no verdict"), (STILL, "no verdict"), (DOWN, "better")]
)
def test_there_is_no_verdict_if_the_two_priors_of_an_uneven_gallery_disagree(
    uniform_change: tuple[float, float, float], expected: str
) -> None:
    """Both verdicts are shown next to each other in the table."""
    rows = [bias("none", 0.9), bias("default", 0.4, change=DOWN)]
    rows += [
        figure("none", 0.9, metric="max_skew_dataset@10", better="lower", task="search"),
        figure(
            "default",
            0.9 + uniform_change[0],
            metric="max_skew_dataset@10",
            better="lower",
            task="search",
            change=uniform_change,
        ),
    ]
    made = result(rows, protocol("search"))
    (conclusion,) = made.conclusions()
    assert conclusion.verdict == expected
    assert conclusion.metric == "max_skew@10"
    assert "against the gallery's own shares" in conclusion.other_prior
    assert conclusion.other_prior in conclusion.sentence
    frame = readable(made).query("method == 'default'")
    against = {"better": DOWN, "worse": UP}
    wanted = [word for word, change in against.items() if change == uniform_change] or [
        "no clear change"
    ]
    assert frame.verdict.tolist() == ["better", *wanted]


def test_one_image_per_prompt_is_inconclusive() -> None:
    rows = [
        figure(m, 0.707, metric="discrepancy", better="lower", interval=(0.707, 0.707), change=c)
        for m, c in (("none", None), ("default", (0.0, 0.0, 0.0)), ("random", None))
    ]
    (conclusion,) = result(rows, protocol()).conclusions()
    assert (conclusion.verdict, conclusion.enough) == ("too few to tell", None)


def test_a_conclusion_names_the_method_its_cost_chance_and_what_got_worse(made: Result) -> None:
    assert [caption for caption, *_ in grids(readable(made))] == [
        "By method",
        "MaxSkew@10 by part",
    ]
    (conclusion,) = made.conclusions()
    assert (conclusion.before, conclusion.after, conclusion.verdict, conclusion.method) == (
        0.5,
        0.3,
        "better, at a cost",
        "default",
    )
    assert (
        conclusion.cost == "matches that are found (recall@5) 0.90 to 0.80 (-0.10 [-0.20, -0.05])"
    )
    for word in ("a nurse", "1 of 2", "+0.20"):
        assert word in conclusion.worse
    for word in ("MaxSkew@10", "search", "better", "0.50", "0.30", "chance 0.10", "-0.10"):
        assert word in conclusion.sentence
    assert made.to_dict()["conclusions"] == [conclusion.model_dump(mode="json")]


def test_without_the_default_the_conclusion_is_about_the_first_method_without_labels(
    made: Result,
) -> None:
    further = [
        bias("cali", 0.9, change=STILL, metric=name, better="higher")
        for name in ("average", "precision@5")
    ]
    best = [bias("roboshot", 0.01, change=(-0.4, -0.5, -0.3))]
    rows = [row for row in made.rows if row.method != "default"] + further + best
    (conclusion,) = made.model_copy(update={"rows": rows}).conclusions()
    assert conclusion.method == "cali", "the best of several methods is not a headline"
    assert conclusion.cost == (
        "no clear loss of matches that are found, accuracy over all images or results that match"
        " the query"
    )


def sweep(*methods: str) -> Result:
    """Return methods at their own setting, followed by several lambdas, one of which is best on the
    measured images."""
    rows = [figure("none", 0.2, metric="worst_group")]
    for method in methods:
        lam = 1000.0 if method == "orth-cali" else None
        rows.append(figure(method, 0.6, metric="worst_group", change=UP, lam=lam))
    if "orth-cali" in methods:
        best = {"change": (0.6, 0.5, 0.7), "metric": "worst_group"}
        rows.append(figure("orth-cali", 0.8, lam=400.0, **best))
        rows.append(figure("orth-cali@val", 0.7, lam=200.0, uses_labels=True, **best))
    return result(rows, protocol())


def test_a_conclusion_is_about_the_default_and_the_papers_setting() -> None:
    (both,) = sweep("orth", "default", "orth-cali").conclusions()
    assert both.method == "default"
    assert both.paper == "0.60 (orth-cali, λ = 1000; +0.20 [+0.10, +0.30])"
    assert "with an edit from text (change" in both.sentence
    assert both.sentence.index(both.paper) < both.sentence.index("Cost:")
    (paper,) = sweep("orth", "orth-cali").conclusions()
    assert (paper.method, paper.paper) == ("orth-cali, λ = 1000", "")
    assert "+0.30]; the paper's setting)" in paper.sentence


@pytest.mark.parametrize("split", ["generated", "generated, labelled by people"])
def test_generated_images_use_the_papers_setting_for_pipelines(split: str) -> None:
    rows = [figure("none", 0.5), figure("cali", 0.4, change=DOWN)]
    methods = {"cali": {"method": "paper", "lam": None}}
    made = protocol().model_copy(update={"split": split, "methods": methods})
    frame = readable(result(rows, made))
    assert frame.paper.tolist() == ["", "cali, λ = 500"]


def test_a_default_that_declines_is_reported_to_attach_nothing() -> None:
    same = (0.0, 0.0, 0.0)
    rows = [bias("none", 0.5), bias("default", 0.5, change=same)]
    declined = protocol("search", methods={"none": {}, "default": {"rank": 0}})
    (conclusion,) = result(rows, declined).conclusions()
    assert "no edit is attached" in conclusion.sentence
    (attached,) = result(rows, protocol("search")).conclusions()
    assert "no edit is attached" not in attached.sentence


def test_the_best_lambda_of_a_sweep_is_reported_only_if_it_was_chosen_on_val() -> None:
    measured = sweep("orth", "default", "orth-cali")
    (conclusion,) = measured.conclusions()
    assert "λ = 400" not in conclusion.sentence
    assert "chosen on val: 0.70 [0.60, 0.80] with orth-cali, λ = 200." in (conclusion.sentence)
    names = readable(measured)["name"].tolist()
    assert names[-1] == "orth-cali, λ = 200 chosen on val†"


@pytest.mark.parametrize(
    ("method", "change", "is_edit"),
    [("cali", (0.0, 0.0, 0.0), False), ("orth-cali", (0.0, -0.1, 0.1), True)],
)
def test_a_lambda_of_0_is_said_to_be_no_edit_if_it_changes_nothing(
    method: str, change: tuple[float, float, float], is_edit: bool
) -> None:
    rows = [figure("none", 0.2, metric="worst_group")]
    rows.append(figure(method, 0.6, metric="worst_group", change=UP, lam=1000.0))
    rows.append(figure(f"{method}@val", 0.2, metric="worst_group", change=change, lam=0.0))
    made = result(rows, protocol())
    (conclusion,) = made.conclusions()
    note = "" if is_edit else " (no edit)"
    assert f"with {method}, λ = 0{note}." in conclusion.sentence
    assert readable(made)["name"].iloc[-1] == f"{method}, λ = 0{note} chosen on val"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            (-0.64, -0.66, -0.62),
            "best matches that are kept (retained hits@10) 1.00 to 0.36 (-0.64 [-0.66, -0.62])",
        ),
        ((-0.64, -1.0, 0.1), "no clear loss of best matches that are kept"),
        (
            (-0.64, -0.64, -0.64),
            "best matches that are kept (retained hits@10) 1.000 to 0.360 (-0.640 [-0.640, -0.640]"
            ")",
        ),
    ],
)
def test_a_utility_that_starts_at_its_optimum_has_a_cost(change: Any, expected: str) -> None:
    """The share of retained hits may be 1 without a method, so a method can only reduce it."""
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    kept = {"metric": "retained@10", "better": "higher"}
    rows += [
        bias("none", 1.0, interval=(1.0, 1.0), **kept),
        bias("default", 0.36, change=change, **kept),
        bias("random", 0.03, interval=(0.02, 0.04), **kept),
    ]
    measured = result(rows, protocol("search"))
    (conclusion,) = measured.conclusions()
    assert conclusion.cost.startswith(expected)
    verdicts = readable(measured).query("metric == 'retained@10' and method == 'default'").verdict
    assert "nothing to remove" not in verdicts.tolist()


def test_a_utility_at_several_k_is_reported_for_the_largest_loss() -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    for k, change in ((1, (-0.02, -0.03, -0.01)), (5, (-0.1, -0.12, -0.08)), (10, STILL)):
        recall = {"metric": f"recall@{k}", "better": "higher"}
        rows += [bias("none", 0.9, **recall), bias("default", 0.8, change=change, **recall)]
    (conclusion,) = result(rows, protocol("search")).conclusions()
    assert (
        conclusion.cost == "matches that are found (recall@5) 0.90 to 0.80 (-0.10 [-0.12, -0.08])"
    )


def test_the_average_weighted_by_training_frequencies_precedes_the_plain_one() -> None:
    average = [figure("x", 0.9, metric=m, change=DOWN) for m in ("average", "average_reweighted")]
    alone = [figure("x", 10.0, metric="pair_distance", better="lower", change=DOWN)]
    (plain_cost,), (both,) = (result(alone + rows).conclusions() for rows in (average[:1], average))
    assert plain_cost.before == pytest.approx(10.2), (
        "without a row for none, compute value minus change"
    )
    assert plain_cost.cost.startswith("accuracy over all images (average accuracy) 1.10")
    assert both.cost.startswith("average accuracy (reweighted average accuracy) ")


def gaps(change: Any, squared: Any, assigns_values: bool) -> Result:
    rows = [
        figure("none", 0.37, metric="discrepancy", better="lower"),
        figure("default", 0.03, metric="discrepancy", better="lower", change=change),
        figure("random", 0.11, metric="discrepancy", better="lower", interval=(0.08, 0.15)),
        figure("none", 0.16, metric="discrepancy_squared", better="lower"),
        figure("default", -0.02, metric="discrepancy_squared", better="lower", change=squared),
    ]
    if assigns_values:
        rows.append(
            figure(
                "even assignment", 0.01, metric="discrepancy", better="lower", interval=(0, 0.02)
            )
        )
    methods = {"none": {}, "default": {"assigns_values": True} if assigns_values else {}}
    return result(rows, protocol(methods=methods))


def test_the_plain_gap_leads_and_assigned_values_have_their_own_chance() -> None:
    (conclusion,) = gaps(DOWN, DOWN, assigns_values=True).conclusions()
    assert (conclusion.measure, conclusion.before, conclusion.after) == (
        "gap from even shares",
        0.37,
        0.03,
    )
    assert (conclusion.chance, conclusion.chance_after, conclusion.verdict) == (
        0.11,
        0.01,
        "better",
    )
    assert "square" not in conclusion.sentence, "assigned values have no sampling noise"
    frame = readable(gaps(DOWN, DOWN, assigns_values=True))
    squares = frame[(frame.metric == "discrepancy_squared") & (frame.method == "default")]
    assert squares.verdict.tolist() == [""]


@pytest.mark.parametrize(
    ("change", "squared", "is_better"),
    [
        pytest.param(DOWN, DOWN, True, id="gap and square"),
        pytest.param(STILL, DOWN, False, id="square alone: the interval beside it holds zero"),
        pytest.param(DOWN, STILL, False, id="gap alone: that may be the noise of few images"),
        pytest.param(UP, DOWN, False, id="gap and square say the opposite"),
        pytest.param((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), False, id="nothing changed"),
    ],
)
def test_a_gap_of_sampled_images_is_judged_by_its_own_interval_and_its_unbiased_square(
    change: Any, squared: Any, is_better: bool
) -> None:
    drawn = gaps(change, squared, assigns_values=False)
    (conclusion,) = drawn.conclusions()
    assert (conclusion.verdict == "better") == is_better
    assert conclusion.change == change, "the gap itself is shown"
    frame = readable(drawn)
    (group,) = front_groups(front_rows(frame, conclusions(frame)))
    # The square is mentioned if it contradicts the interval of the gap.
    is_contradicted = (change, squared) == (DOWN, STILL)
    (row,) = group["rows"]
    assert row.square_moved == (moved(squared) if is_contradicted else "")
    assert ("square" in conclusion.sentence) == is_contradicted
    rows = [line for line in text(drawn).splitlines() if line.startswith("    squared,")]
    assert len(rows) == is_contradicted, "the terminal shows it too"


def test_priors_disagree_if_only_one_of_them_is_conclusive() -> None:
    wide = (-0.1, -1.0, 0.8)
    rows = [bias("none", 0.5), bias("default", 0.4, change=wide)]
    names = {"metric": "max_skew_dataset@10", "better": "lower", "task": "search"}
    rows += [figure("none", 0.5, **names), figure("default", 0.3, change=DOWN, **names)]
    (conclusion,) = result(rows, protocol("search")).conclusions()
    assert (conclusion.verdict, conclusion.enough) == ("no verdict", None)
    assert "the two priors disagree" in conclusion.sentence


def test_a_task_with_only_simple_baselines_gets_a_conclusion() -> None:
    rows = [figure("none", 0.5, metric="worst_group")]
    rows.append(figure("none@median", 0.7, metric="worst_group", change=UP))
    (conclusion,) = result(rows, protocol()).conclusions()
    assert (conclusion.method, conclusion.verdict) == ("median threshold", "better")


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        ((-0.17, -0.25, -0.09), {"higher": "which is better", "lower": "which is worse"}),
        ((0.17, 0.09, 0.25), {"higher": "which is worse", "lower": "which is better"}),
        ((-0.17, -0.4, 0.1), dict.fromkeys(("higher", "lower"), "no clear difference")),
        ((0.0, 0.0, 0.0), dict.fromkeys(("higher", "lower"), "the same")),
        (None, dict.fromkeys(("higher", "lower"), "")),
    ],
)
def test_a_baseline_is_better_or_worse_only_by_the_paired_difference(
    difference: Any, expected: dict[str, str], better: str
) -> None:
    values = {"none": 0.5, "default": 0.6, "none@median": 0.77}
    fields = {"metric": "worst_group", "better": better}
    rows = [figure(m, v, change=None if m == "none" else UP, **fields) for m, v in values.items()]
    if difference is not None:
        value, *interval = difference
        rows.append(
            figure(
                "default",
                value,
                metric="difference_to_median",
                interval=tuple(interval),
                subset="worst-group accuracy",
            )
        )
    (conclusion,) = result(rows, protocol()).conclusions()
    assert conclusion.method == "default"
    start, _, comparison = conclusion.baseline.partition("0.77 [0.67, 0.87]")
    assert "threshold at the median" in start
    assert comparison.removeprefix(", ").partition(" (")[0] == expected[better]
    assert conclusion.baseline[1:] in conclusion.sentence


def test_changed_text_is_not_an_improved_task(made: Result) -> None:
    texts = [
        figure(m, v, task="a", metric="cosine_spread", better="lower", change=c)
        for m, v, c in (("none", 0.5, None), ("default", 0.1, DOWN))
    ]
    both = result([*made.rows, *texts], protocol("search"), protocol("a"))
    assert [conclusion.task for conclusion in both.conclusions()] == ["search"]
    assert "cosines" in result(texts, protocol("a")).conclusions()[0].sentence
    assert result([figure()], protocol()).conclusions() == []


@pytest.mark.parametrize(
    ("metric", "change", "verdict", "cost"),
    [
        ("recall@5", (-0.02, -0.03, -0.01), "better, at a cost", "recall@5 -0.020 ["),
        ("recall@5", (-0.02, -0.05, 0.01), "better", "no clear loss"),
        ("retained@10", (-0.09, -0.1, -0.08), "better", "retained hits@10 -0.09 ["),
        ("retained@10", (-0.2, -0.3, -0.1), "better, at a cost", "retained hits@10 -0.20 ["),
    ],
)
def test_a_clear_cost_is_part_of_the_verdict_in_the_first_table(
    metric: str, change: Any, verdict: str, cost: str
) -> None:
    utility = {"metric": metric, "better": "higher", "task": "search"}
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    rows += [figure("none", 0.9, **utility), figure("default", 0.8, change=change, **utility)]
    frame = readable(result(rows, protocol("search")))
    (group,) = front_groups(front_rows(frame, conclusions(frame)))
    (row,) = group["rows"]
    assert row.verdict == conclusions(frame)[0].verdict == verdict
    assert row.cost.startswith(cost)


def test_the_largest_cost_is_shown_and_retained_hits_only_if_nothing_else_fell() -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    for metric, loss in (("recall@5", -0.02), ("retained@10", -0.09), ("average", -0.05)):
        names = {"metric": metric, "better": "higher", "task": "search"}
        change = (loss, loss - 0.01, loss + 0.01)
        rows += [figure("none", 0.9, **names), figure("default", 0.8, change=change, **names)]
    frame = readable(result(rows, protocol("search")))
    (group,) = front_groups(front_rows(frame, conclusions(frame)))
    assert group["rows"][0].cost.startswith("average accuracy -0.05 [")


def test_parts_and_costs_belong_to_the_setting_that_the_conclusion_is_about() -> None:
    # Several lambdas were measured for all images, but only one of them for each part, so the
    # names of the parts' rows do not contain it.
    rows = [figure("none", 0.2, metric="worst_group"), figure("none", 0.9)]
    for lam in (10.0, 1000.0):
        rows.append(figure("cali", 0.5, metric="worst_group", change=UP, lam=lam))
    rows.append(figure("cali", 0.7, change=DOWN, lam=10.0))
    parts = {"metric": "accuracy", "change": DOWN}
    rows.append(figure("cali", 0.4, subset="water", lam=10.0, **parts))
    (conclusion,) = result(rows, protocol()).conclusions()
    assert conclusion.method == "cali, λ = 10"
    assert conclusion.worse == "accuracy in 1 of 1 parts, most in water: -0.20 [-0.30, -0.10]"
    assert conclusion.cost.startswith("accuracy over all images (average accuracy) 0.90 to 0.70")
    assert conclusion.verdict == "better, at a cost"
    rows[-1] = figure("cali", 0.4, subset="A photo of a lumberjack.", lam=10.0, **parts)
    (conclusion,) = result(rows, protocol()).conclusions()
    assert 'most in "A photo of a lumberjack": -0.20' in conclusion.worse
