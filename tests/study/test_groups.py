"""Test GroupsTask: figures against other libraries and naive versions, properties of its intervals,
counts and errors."""

import io
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame
from rich.console import Console
from sklearn.metrics import accuracy_score

from apps.baselines.classifiers import BASELINES
from tests.refusals import refused
from tests.study.groups_parts import DIM, NAMES, PLACES, PROMPTS, birds, measure, texts
from tests.study.made_figures import cell
from vldebias.data import Embeddings, Labels
from vldebias.data.labels import UNKNOWN
from vldebias.errors import InvalidInputError, ProjectionMismatchError, SuspectInputWarning
from vldebias.measure.classification import share_below, worst_areas
from vldebias.methods.reference import class_of
from vldebias.prompts import load_prompts
from vldebias.study.tasks.groups import MEDIAN, GroupsTask
from vldebias.study.tasks.images import fit_method
from vldebias.utils.options import Options
from vldebias.utils.progress import Progress

silent = ("ClassSignalWarning", "SuspectInputWarning")  # images and text are noise here
pytestmark = [pytest.mark.filterwarnings(f"ignore::vldebias.errors.{name}") for name in silent]
METHODS = ("none", "orth", "cali", "orth-cali")
GROUPS = ("landbird/land", "landbird/water", "waterbird/land", "waterbird/water")
NOWHERE = replace(
    birds(5), labels={**birds(5).labels, "place": Labels(np.full(5, UNKNOWN), PLACES)}
)
BOOT = {"resamples": 4000, "seed": 0}
evaluate = partial(measure, methods=METHODS)


def scores_of(test: Embeddings, method: str) -> torch.Tensor:
    """Return the naive result: project the class prompts, normalise, multiply."""
    side = texts()
    projection = fit_method(side, PROMPTS, method, 1000.0)
    rows = side.embed(PROMPTS.classes)
    rows = rows if projection is None else torch.nn.functional.normalize(projection(rows), dim=1)
    return test.unit[:].double() @ rows.T


@pytest.mark.parametrize("method", METHODS)
def test_figures_match_other_libraries(method: str) -> None:
    test = birds(noise=2.0)
    part = evaluate(test)[0]
    true = test.column("label").codes
    guess = scores_of(test, method).argmax(1).numpy()
    names = [
        f"{NAMES[a]}/{PLACES[b]}" for a, b in zip(true, test.column("place").codes, strict=True)
    ]
    frame = MetricFrame(metrics=accuracy_score, y_true=true, y_pred=guess, sensitive_features=names)
    for name, value in frame.by_group.items():
        row = cell(part, "accuracy", method, name)
        assert (row.value, row.n) == (pytest.approx(value), {"images": names.count(name)})
        assert row.interval[0] < value < row.interval[1]
    assert cell(part, "worst_group", method).value == pytest.approx(frame.group_min())
    assert cell(part, "average", method).value == pytest.approx(accuracy_score(true, guess))
    assert cell(part, "gap", method).value == pytest.approx(
        accuracy_score(true, guess) - frame.group_min()
    )


def test_the_unedited_model_is_also_measured_at_its_median() -> None:
    """The threshold does not depend on labels, and its assumption is stated."""
    test = birds(noise=2.0)
    part = evaluate(test)[0]
    margin = np.diff(scores_of(test, "none").numpy(), axis=1)[:, 0]
    right = (margin > np.median(margin)) == (test.column("label").codes == 1)
    assert cell(part, "average", MEDIAN).value == pytest.approx(right.mean())
    assert cell(part, "worst_group", MEDIAN).change is not None
    assert (
        "half of the images"
        in part.provenance.methods[MEDIAN]["assumes"]
        in part.provenance.description
    )
    turned = replace(
        test, labels={**test.labels, "label": Labels(1 - test.column("label").codes, NAMES)}
    )
    assert cell(evaluate(turned)[0], "average", MEDIAN).value == pytest.approx(
        1 - right.mean(), abs=0.01
    )


def test_auroc_is_the_share_of_ordered_pairs_and_invariant_to_shifts_of_a_value() -> None:
    test = birds(600, noise=1.0)
    part = evaluate(test, resamples=300)[0]
    margin = np.diff(scores_of(test, "none").numpy(), axis=1)[:, 0]
    label = test.column("label").codes == 1
    place = test.column("place").codes
    row = cell(part, "worst_group_auc", "none")
    assert row.value == pytest.approx(
        min(ordered(margin[place == v], label[place == v]) for v in (0, 1))
    )
    assert row.interval[0] < row.value < row.interval[1]
    assert not any(row.metric == "worst_group_auc" and row.method == MEDIAN for row in part.rows)
    assert worst_areas({"none": margin + 3.0 * place}, label, place, **BOOT)[0][
        "none"
    ] == pytest.approx(row.value)


def test_class_prompt_cosines_are_means_over_the_prompts_of_a_value() -> None:
    part = evaluate(birds(40), resamples=2)[1]
    side = texts()
    rows = torch.nn.functional.normalize(
        fit_method(side, PROMPTS, "cali", 1000.0)(side.embed(PROMPTS.classes)), dim=1
    )
    table = rows @ side.embed(["a land background", "a water background"]).T
    for (i, name), (j, value) in product(enumerate(NAMES), enumerate(PLACES)):
        assert cell(part, "cosine", "cali", f"{name} / {value}").value == pytest.approx(
            float(table[i, j])
        )
    spread = float((table.amax(1) - table.amin(1)).mean())
    assert cell(part, "cosine_spread", "cali").value == pytest.approx(spread)
    assert cell(part, "cosine_spread", "cali", NAMES[1]).value == pytest.approx(
        float(np.ptp(table[1].numpy()))
    )
    assert cell(part, "cosine_spread", "orth").value == pytest.approx(0, abs=1e-9)  # A^T P* = 0
    assert len(evaluate(birds(40), attribute=replace(PROMPTS, attributes={}), resamples=2)) == 1


def test_reweighted_averages_use_the_weights_of_the_training_split() -> None:
    weights = dict(zip(GROUPS, (3498.0, 184.0, 56.0, 1057.0), strict=True))
    part = evaluate(birds(), group_weights=weights)[0]
    for method in METHODS:
        rows = [cell(part, "accuracy", method, name).value for name in weights]
        expected = np.average(rows, weights=list(weights.values()))
        assert cell(part, "average_reweighted", method).value == pytest.approx(expected)
    for correlation in (0.95, 1.0):  # with images of every group, and of two groups
        part = evaluate(birds(), train=birds(600, seed=4, correlation=correlation))[0]
        assert (
            part.provenance.settings["group_weights"]
            == part.provenance.settings["train"]["images per group"]
        )
        assert (
            cell(part, "average_reweighted", "none").value
            > cell(part, "average", "none").value + 0.2
        )


def test_a_sweep_adds_rows_with_lam() -> None:
    main = evaluate(birds(), lams=(0, 10, 1000))[0]
    keys = {(f.method, f.lam) for f in main.rows if f.metric == "gap"}
    fixed = {("none", None), (MEDIAN, None), ("orth", None)}
    assert keys == fixed | {*product(("cali", "orth-cali"), (0.0, 10.0, 1000.0))}
    assert len({(f.metric, f.method, f.subset, f.lam) for f in main.rows}) == len(main.rows)
    plain = evaluate(birds())[0]
    for method in ("cali", "orth-cali"):
        assert cell(main, "worst_group", method, lam=1000.0) == cell(plain, "worst_group", method)
    for metric in ("worst_group", "average", "gap"):
        nothing = cell(main, metric, "cali", lam=0.0)
        assert (nothing.value, nothing.change) == (cell(main, metric, "none").value, (0, 0, 0))
        assert cell(main, metric, "orth-cali", lam=0.0).value == cell(main, metric, "orth").value


def test_rows_and_label_names_may_be_in_any_order() -> None:
    test = birds()
    order = np.random.default_rng(3).permutation(len(test))
    assert evaluate(test[order])[0].rows == evaluate(test)[0].rows
    label = test.column("label")
    place = test.column("place")
    turned = {
        "label": Labels(1 - label.codes, NAMES[::-1]),
        "place": Labels(1 - place.codes, PLACES[::-1]),
    }
    again = evaluate(replace(test, labels=turned))[0]
    for row in evaluate(test)[0].rows:
        assert cell(again, row.metric, row.method, row.subset).value == row.value


def test_unknown_rows_are_counted_and_excluded_and_an_empty_group_has_no_figure() -> None:
    test = birds()
    label, place = (test.column(name).codes.copy() for name in ("label", "place"))
    label[:7] = UNKNOWN
    place[5:20] = UNKNOWN
    broken = test.features.copy()
    broken[:20] = np.nan  # excluded images are never read
    holes = replace(
        test,
        features=broken,
        labels={"label": Labels(label, NAMES), "place": Labels(place, PLACES)},
    )
    part = evaluate(holes)[0]
    assert part.rows == evaluate(test[20:])[0].rows
    assert part.provenance.n == {"images": 380, "unknown": 20}
    inside = ~((test.column("label").codes == 0) & (test.column("place").codes == 1))
    part = evaluate(test[inside])[0]
    assert {f.subset for f in part.rows if f.metric == "accuracy"} == {
        "landbird/land",
        "waterbird/land",
        "waterbird/water",
    }
    facts = part.provenance.settings["data"]
    assert (facts["data"], facts["images per group"]["landbird/water"]) == ("made up", 0)
    inside[np.flatnonzero(~inside)[0]] = True  # now it contains one image
    part = evaluate(test[inside], group_weights=dict.fromkeys(GROUPS, 1.0))[0]
    assert cell(part, "gap", "none").n["smallest group"] == 1


def test_lam_strength_and_edits_affect_the_figures() -> None:
    part = evaluate(birds(), lam=0.5, strength=0.5)[0]
    settings = {f.method: (f.lam, f.strength) for f in part.rows if f.method != MEDIAN}
    assert settings == {
        "none": (None, None),
        "orth": (None, 0.5),
        "cali": (0.5, 0.5),
        "orth-cali": (0.5, 0.5),
    }
    nothing = evaluate(birds(), strength=0.0)[0]
    assert all(f.change in (None, (0, 0, 0)) for f in nothing.rows if f.method != MEDIAN)
    fitted = fit_method(texts(), PROMPTS, "cali", 1000.0)
    part = evaluate(birds(), edits={"mine": fitted})[0]
    edited = cell(part, "worst_group", "mine")
    cali = cell(part, "worst_group", "cali")
    assert edited == cali.model_copy(update={"method": "mine"})
    with pytest.raises(InvalidInputError, match="cali"):
        evaluate(birds(), edits={"cali": fitted})
    with pytest.raises(ProjectionMismatchError):
        evaluate(birds(), edits={"mine": fitted.with_provenance(space="elsewhere")})


def ordered(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the share of correctly ordered pairs of a positive and a negative row. A tie counts as
    half."""
    return float((np.sign(scores[positive][:, None] - scores[~positive]) + 1).mean() / 2)


def test_resamples_by_covariance_match_resampled_rows() -> None:
    """Compare with the plain bootstrap, which samples rows with replacement and takes the worst
    value in each resample."""
    rng = np.random.default_rng(3)
    n = 500
    ends = (0.025, 0.975)
    positive = rng.random(n) < 0.4
    codes = rng.integers(2, size=n)
    shared = rng.normal(size=n)
    scores = {
        method: positive * (1 + gain) + 0.3 * codes * positive + shared + 0.5 * rng.normal(size=n)
        for method, gain in (("none", 0.0), ("better", 0.4))
    }
    _, areas, _ = worst_areas(scores, positive, codes, **BOOT)
    resampled = {method: np.empty(1000) for method in scores}
    for b in range(1000):
        rows = rng.integers(n, size=n)
        for method, method_scores in scores.items():
            resampled[method][b] = min(
                ordered(method_scores[p], positive[p])
                for p in (rows[codes[rows] == v] for v in (0, 1))
            )
    for method in scores:
        assert np.quantile(areas[method], ends) == pytest.approx(
            np.quantile(resampled[method], ends), abs=0.012
        )
    moved, twin = (draws["better"] - draws["none"] for draws in (areas, resampled))
    assert np.quantile(moved, ends) == pytest.approx(np.quantile(twin, ends), abs=0.012)
    assert np.ptp(np.quantile(moved, ends)) > 0.02, "the tolerance is smaller than the widths"


def test_auroc_variance_matches_delong_and_is_undefined_for_a_value_with_one_class() -> None:
    positive = np.arange(6) < 3
    scores = np.array([0.4, 0.6, 0.9, 0.3, 0.5, 0.2])
    _, draws, _ = worst_areas(
        {"none": scores}, positive, np.zeros(6, int), resamples=20_000, seed=0
    )
    parts = share_below(scores[:3], scores[3:]), share_below(scores[3:], scores[:3])
    assert draws["none"].var() == pytest.approx(
        sum(part.var(ddof=1) / 3 for part in parts), rel=0.05
    )
    values = np.array([0, 0, 0, 0, 1, 1])  # the second has no positive row
    assert worst_areas({"none": scores}, positive, values, **BOOT)[::2] == (
        {"none": 1.0},
        {"images": 4, "values": 1},
    )
    assert worst_areas({"none": scores}, positive, 1 * positive, **BOOT) == ({}, {}, {})


def test_labels_are_matched_to_class_names() -> None:
    for labels in (("waterbird", "landbird"), ("Waterbird",), ("1", "0")):
        assert class_of(labels, PROMPTS) == [1, 0][: len(labels)]
    for labels in (("robin", "waterbird"), ("bird",), ("0", "2"), ("landbird", "0")):
        assert class_of(labels, PROMPTS) == []
    hair = load_prompts("celeba")
    assert class_of(("blond", "dark"), hair) == [1, 0]  # a word of the class name
    assert class_of(("hair",), hair) == []  # matches two classes


def test_baselines_that_use_labels_are_marked() -> None:
    train = birds(600, seed=4, correlation=0.95)
    val = birds(300, seed=5)
    part = evaluate(birds(), train=train, val=val, baselines=("erm-linear", "dfr-sub"))[0]
    assert {f.method for f in part.rows if f.uses_labels} == {"erm-linear", "dfr-sub"}
    assert cell(part, "worst_group", "dfr-sub").value > cell(part, "worst_group", "none").value
    chosen = part.provenance.methods["dfr-sub"]["chosen"]
    assert 0 < chosen["val_worst_group"] < chosen["val_average"] < 1
    for method in ("none", "erm-linear"):
        average, worst, gap = (
            cell(part, metric, method).value
            for metric in ("average_reweighted", "worst_group", "gap_reweighted")
        )
        assert gap == pytest.approx(average - worst)
    progress = Progress(Console(file=io.StringIO(), width=200))
    evaluate(
        birds(40), train=None, val=None, baselines=("erm-linear",), progress=progress, resamples=2
    )
    assert "birds: the file has no splits to train" in progress.console.file.getvalue()


def test_a_baseline_that_cannot_be_fitted_is_reported_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(examples: Any) -> Any:
        raise RuntimeError("the solver\ndiverged")

    monkeypatch.setitem(BASELINES, "dfr-sub", (broken, "a source"))
    progress = Progress(Console(file=io.StringIO(), width=200))
    splits = {"train": birds(100, seed=4), "val": birds(100, seed=5)}
    names = ("erm-linear", "dfr-sub")
    part = evaluate(birds(100), **splits, baselines=names, progress=progress, resamples=2)[0]
    assert part.provenance.methods["dfr-sub"]["not_fitted"] == "RuntimeError: the solver diverged"
    assert {row.method for row in part.rows if row.uses_labels} == {"erm-linear"}
    sentence = "dfr-sub could not be fitted: RuntimeError: the solver diverged"
    assert sentence in part.provenance.description
    assert f"birds: {sentence}" in progress.console.file.getvalue()


def test_lambda_is_not_swept_if_the_users_methods_do_not_take_it(tmp_path: Path) -> None:
    suite_task = GroupsTask(
        name="birds",
        title="Birds",
        attribute=PROMPTS,
        label="label",
        spurious="place",
        lams=(0, 10),
    )
    for methods, lams in ((("sage", "roboshot"), ()), (("sage", "cali"), (0, 10)), ((), (0, 10))):
        chosen = suite_task.with_options(Options(out=tmp_path, methods=methods))
        assert chosen.lams == lams
        assert [name for name in chosen.methods if name in methods] == list(methods)


def test_images_from_a_different_space_warn() -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, DIM)))[0]
    with pytest.warns(SuspectInputWarning, match="unaligned"):
        evaluate(replace(birds(), features=birds().features @ turn), resamples=2)


@refused(
    ({"spurious": "label"}, "got 'label' twice"),
    ({"methods": ("orth",), "lams": (1,)}, "lams"),
    ({"baselines": ("erm-linear",), "train": birds(40)}, "val"),
    ({"baselines": ("svm",), "train": birds(40)}, "erm-linear"),
    *(
        ({"group_weights": weights}, "group_weights")
        for weights in ({"landbird/land": 1.0}, dict.fromkeys(GROUPS, 0.0))
    ),
    ({"group_weights": dict(zip(GROUPS, (1.0, -1.0, 1.0, 1.0), strict=True))}, "group_weights"),
    (
        {"images": birds(60, correlation=1.0), "group_weights": dict.fromkeys(GROUPS, 1.0)},
        "group_weights",
    ),
    ({"images": NOWHERE}, "place"),
    error=ValueError,
)
def test_errors_name_the_invalid_argument(changes: dict[str, Any]) -> None:
    evaluate(**{"images": birds(40), **changes})


def test_lambda_is_selected_by_the_worst_group_on_the_val_split_only() -> None:
    """If different lambdas are best on the val and test splits, the one for val is selected."""
    lams = (0, 10, 1000)
    test = birds()
    chosen = []
    for seed, noise in ((1, 0.6), (1, 2.0)):
        val = birds(300, seed=seed, noise=noise)
        part = evaluate(test, methods=("cali",), lam=100.0, lams=lams, val=val)[0]
        on_val = evaluate(val, methods=("cali",), lam=100.0, lams=lams)[0]
        accuracies = {}
        for row in on_val.rows:
            if (row.metric, row.method) == ("worst_group", "cali"):
                accuracies[row.lam or 0.0] = row.value
        best = max(accuracies.values())
        expected = min(lam for lam, accuracy in accuracies.items() if accuracy == best)
        row = cell(part, "worst_group", "cali@val")
        assert (row.lam, row.uses_labels) == (expected, True)
        swept = cell(part, "worst_group", "cali", lam=expected or None)
        assert (row.value, row.interval, row.change) == (swept.value, swept.interval, swept.change)
        facts = part.provenance.methods["cali@val"]
        assert facts["chosen"]["val_worst_group"] == pytest.approx(best)
        chosen.append(row.lam)
    assert len(set(chosen)) == 2
    without_val = evaluate(test, methods=("cali",), lams=lams)[0]
    assert not [row for row in without_val.rows if row.method.endswith("@val")]
    one_lambda = evaluate(test, methods=("cali",), val=birds(300, seed=1))[0]
    assert not [row for row in one_lambda.rows if row.method.endswith("@val")]


def test_methods_are_compared_with_the_median_threshold_on_the_same_images() -> None:
    test = birds(noise=2.0)
    # Classes are uneven, so the median differs from the model's own threshold.
    test = test[(test.column("label").codes == 0) | (np.arange(len(test)) % 2 == 0)]
    part = evaluate(test, resamples=2000)[0]
    true = test.column("label").codes
    groups = 2 * true + test.column("place").codes
    margins = np.diff(scores_of(test, "none").numpy())[:, 0]
    at_median = (margins > np.median(margins)) == true
    drawn = np.random.default_rng(1).integers(len(test), size=(2000, len(test)))

    def lowest(right: np.ndarray) -> np.ndarray:
        """Return the accuracy of the worst group in each resample of the images."""
        means = [
            (right[drawn] * (groups[drawn] == group)).sum(1) / (groups[drawn] == group).sum(1)
            for group in range(4)
        ]
        return np.min(means, axis=0)

    for method in METHODS[1:]:
        right = scores_of(test, method).argmax(1).numpy() == true
        ends = np.percentile(lowest(right) - lowest(at_median), [2.5, 97.5])
        row = cell(part, "difference_to_median", method, "worst-group accuracy")
        values = [cell(part, "worst_group", name).value for name in (method, MEDIAN)]
        assert row.value == pytest.approx(values[0] - values[1])
        assert row.interval == pytest.approx(ends, abs=0.02)
    compared = {row.method for row in part.rows if row.metric == "difference_to_median"}
    assert compared == set(METHODS[1:])
