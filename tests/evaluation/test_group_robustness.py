"""GroupsTask: figures against fairlearn and scikit-learn, laws, what is counted and told, what is refused."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame
from groups_parts import DIM, NAMES, PLACES, PROMPTS, birds, measure, texts
from made_figures import cell
from sklearn.metrics import accuracy_score

import vldebias
from vldebias.data import UNKNOWN, Embeddings, Labels
from vldebias.errors import InvalidInputError, ProjectionMismatchError
from vldebias.evaluation.groups import AGNOSTIC
from vldebias.evaluation.result import TaskResult
from vldebias.metrics import group_accuracy

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
    pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning"),  # images and texts are noise here
]
METHODS = ("none", "orth", "cali", "orth-cali")


def evaluate(test: Embeddings, **given: Any) -> list[TaskResult]:
    return measure(test, **{"methods": METHODS, **given})


def predicted(test: Embeddings, method: str) -> np.ndarray:
    """The plain way: project the class prompts, normalise, multiply, take the largest."""
    side = texts()
    projection = side.fit(PROMPTS, method, 1000.0)
    rows = side.embed(PROMPTS.classes)
    rows = rows if projection is None else torch.nn.functional.normalize(projection(rows), dim=1)
    return (torch.from_numpy(test.features).double() @ rows.T).argmax(1).numpy()


@pytest.mark.parametrize("method", METHODS)
def test_figures_are_those_of_other_libraries(method: str) -> None:
    test = birds(noise=2.0)
    part = evaluate(test)[0]
    true, guess = test.column("label").codes, predicted(test, method)
    names = [f"{NAMES[a]}/{PLACES[b]}" for a, b in zip(true, test.column("place").codes, strict=True)]
    frame = MetricFrame(metrics=accuracy_score, y_true=true, y_pred=guess, sensitive_features=names)
    for name, value in frame.by_group.items():
        found = cell(part, "accuracy", method, name)
        assert found.value == pytest.approx(value)
        assert found.n == {"images": names.count(name)}
        assert found.interval[0] < value < found.interval[1]
    assert cell(part, "worst_group", method).value == pytest.approx(frame.group_min())
    assert cell(part, "average", method).value == pytest.approx(accuracy_score(true, guess))
    expected = group_accuracy(guess, true, np.array(names)).gap
    assert cell(part, "gap", method).value == pytest.approx(expected)


def test_the_world_has_a_bias_that_the_methods_mitigate() -> None:
    part = evaluate(birds(2000))[0]
    assert cell(part, "worst_group", "none").value < 0.3
    for method in METHODS[1:]:
        value, low, _ = cell(part, "worst_group", method).change or (0, 0, 0)
        assert value > low > 0.3
    assert cell(part, "gap", "cali").better == "lower"


def test_changes_are_differences_to_none() -> None:
    part = evaluate(birds())[0]
    for found in part.rows:
        base = cell(part, found.metric, "none", found.subset)
        assert (found.change is None) == (found.method == "none")
        if found.change:
            assert found.change[0] == pytest.approx(found.value - base.value)
            assert found.change[1] <= found.change[0] <= found.change[2]


def test_rows_may_come_in_any_order() -> None:
    test = birds()
    order = np.random.default_rng(3).permutation(len(test))
    assert evaluate(test[order])[0].rows == evaluate(test)[0].rows


def test_names_of_labels_may_come_in_any_order() -> None:
    """Labels in alphabetical order of another language must not be the wrong way round."""
    test = birds()
    label, place = test.column("label"), test.column("place")
    turned = {"label": Labels(1 - label.codes, NAMES[::-1]), "place": Labels(1 - place.codes, PLACES[::-1])}
    again = evaluate(replace(test, labels=turned))[0]
    for found in evaluate(test)[0].rows:
        assert cell(again, found.metric, found.method, found.subset).value == found.value


def test_unknown_rows_are_counted_and_left_out() -> None:
    test = birds()
    label, place = (test.column(name).codes.copy() for name in ("label", "place"))
    label[:7], place[5:20] = UNKNOWN, UNKNOWN
    broken = test.features.copy()
    broken[:20] = np.nan  # what is left out is not even read
    holes = replace(test, features=broken, labels={"label": Labels(label, NAMES), "place": Labels(place, PLACES)})
    part, expected = evaluate(holes)[0], evaluate(test[20:])[0]
    assert part.rows == expected.rows
    assert part.provenance.n == {"images": 380, "unknown": 20}
    assert part.provenance.settings["data"]["unknown"] == 20
    assert sum(part.provenance.settings["data"]["images per group"].values()) == 380


def test_an_empty_group_has_no_figure() -> None:
    test = birds()
    inside = ~((test.column("label").codes == 0) & (test.column("place").codes == 1))
    part = evaluate(test[inside])[0]
    subsets = {f.subset for f in part.rows}
    assert subsets == {"", "landbird/land", "waterbird/land", "waterbird/water"}
    assert part.provenance.settings["data"]["images per group"]["landbird/water"] == 0
    alone = evaluate(test[(test.column("label").codes == 0) & (test.column("place").codes == 0)])[0]
    assert cell(alone, "worst_group", "cali").value == cell(alone, "average", "cali").value
    assert cell(alone, "gap", "cali").value == 0


def test_weights_reweight() -> None:
    weights = {"landbird/land": 3498.0, "landbird/water": 184.0, "waterbird/land": 56.0, "waterbird/water": 1057.0}
    part = evaluate(birds(), group_weights=weights)[0]
    for method in METHODS:
        rows = [cell(part, "accuracy", method, name).value for name in weights]
        expected = np.average(rows, weights=list(weights.values()))
        found = cell(part, "average_reweighted", method)
        assert found.value == pytest.approx(expected)
        assert found.interval[0] <= found.value <= found.interval[1]
    assert part.provenance.settings["group_weights"] == weights
    assert not any(f.metric == "average_reweighted" for f in evaluate(birds())[0].rows)


def test_a_training_split_gives_the_weights() -> None:
    train = birds(600, seed=4, correlation=0.95)
    part = evaluate(birds(), train=train)[0]
    assert part.provenance.settings["group_weights"] == part.provenance.settings["train"]["images per group"]
    assert cell(part, "average_reweighted", "none").value > cell(part, "average", "none").value + 0.2
    test = birds()
    small = test[test.column("place").codes == 0]
    assert evaluate(small, train=train)[0].provenance.settings["group_weights"] is None


def test_sweep() -> None:
    _, sweep, _ = evaluate(birds(), lams=(0, 10, 1000))
    assert sweep.provenance.task == "birds: lambda"
    assert {f.task for f in sweep.rows} == {"birds: lambda"}
    keys = {(f.method, f.lam) for f in sweep.rows}
    fixed = {("none", None), ("orth", None)}
    assert keys == fixed | {(method, lam) for method in ("cali", "orth-cali") for lam in (0.0, 10.0, 1000.0)}
    main = evaluate(birds())[0]
    for method in ("cali", "orth-cali"):
        same = cell(sweep, "worst_group", method, lam=1000.0)
        assert same.model_copy(update={"task": "birds"}) == cell(main, "worst_group", method)
    for metric in ("worst_group", "average", "gap"):
        nothing = cell(sweep, metric, "cali", lam=0.0)
        assert nothing.value == cell(sweep, metric, "none").value
        assert nothing.change == (0, 0, 0)
        assert cell(sweep, metric, "orth-cali", lam=0.0).value == cell(sweep, metric, "orth").value


def test_lam_and_strength_reach_the_figures_and_the_texts() -> None:
    part = evaluate(birds(), lam=50.0, strength=0.5)[0]
    found = {f.method: (f.lam, f.strength) for f in part.rows}
    assert found == {"none": (None, None), "orth": (None, 0.5), "cali": (50.0, 0.5), "orth-cali": (50.0, 0.5)}
    assert part.provenance.methods["cali"]["lam"] == 50.0
    nothing = evaluate(birds(), strength=0.0)[0]
    assert all(f.change in (None, (0, 0, 0)) for f in nothing.rows)
    weaker = cell(evaluate(birds(), lam=0.1)[0], "worst_group", "cali").value
    assert weaker < cell(evaluate(birds())[0], "worst_group", "cali").value


def test_an_offset_is_a_row_beside_each_method_and_needs_no_label() -> None:
    """The boundary goes back to the middle of what the model takes for the one and the other class."""
    test = birds(noise=2.0)
    main = evaluate(test, offset=True)[0]
    before, after = (scores_of(test, method) for method in ("none", "cali"))
    second = before[:, 1] > before[:, 0]
    margins = after[:, 1] - after[:, 0]
    by = float(margins[second].mean() + margins[~second].mean()) / 2
    assert main.provenance.methods["cali, offset"]["offset"] == pytest.approx(by, abs=1e-5)
    right = (margins > by).numpy() == (test.column("label").codes == 1)
    assert cell(main, "average", "cali, offset").value == pytest.approx(right.mean())
    assert cell(main, "average", "cali, offset").lam == cell(main, "average", "cali").lam
    assert {f.method for f in main.rows if "offset" in f.method} == {f"{m}, offset" for m in METHODS[1:]}
    turned = replace(test, labels={**test.labels, "label": Labels(1 - test.column("label").codes, NAMES)})
    assert evaluate(turned, offset=True)[0].provenance.methods["cali, offset"]["offset"] == pytest.approx(by, abs=1e-5)
    assert "offset" not in str(evaluate(test)[0].provenance.methods)


@pytest.mark.parametrize("method", [*METHODS[1:], "difference", "roboshot"])
def test_inspect_tells_the_same_offset_as_evaluate(method: str) -> None:
    """Of methods that move texts, and of the last, which moves images."""
    test = birds(noise=2.0)
    main = evaluate(test, offset=True, methods=(method,), lam=1000.0)[0]
    report = vldebias.inspect(texts().host, PROMPTS, method=method, lam=1000.0, images=test.features)
    found = report["joint"].boundary
    assert found is not None
    assert found.offset == pytest.approx(main.provenance.methods[f"{method}, offset"]["offset"], abs=1e-5)
    assert found.classes == PROMPTS.class_names
    rights = {f.method: f.value for f in main.rows if f.metric == "average"}
    assert set(rights) == {"none", method, f"{method}, offset"}
    second = test.column("label").codes == 1
    for share, right in zip(found.second, rights.values(), strict=True):
        assert abs(share - second.mean()) <= 1 - right + 1e-6  # no more can differ than are wrong


def scores_of(test: Embeddings, method: str) -> torch.Tensor:
    side = texts()
    projection, rows = side.fit(PROMPTS, method, 1000.0), side.embed(PROMPTS.classes)
    rows = rows if projection is None else torch.nn.functional.normalize(projection(rows), dim=1)
    return test.normalised().double() @ rows.T


def test_class_agnostic_pairs_are_a_row_of_their_own() -> None:
    part = evaluate(birds(), class_agnostic=True)[0]
    assert [f.method for f in part.rows if f.metric == "average"] == [*METHODS, AGNOSTIC]
    about = part.provenance.methods
    assert about[AGNOSTIC]["prompts_hash"] != about["orth-cali"]["prompts_hash"]
    assert cell(part, "average", AGNOSTIC).lam == 1000.0


def test_fitted_projections_are_measured_like_methods() -> None:
    fitted = texts().fit(PROMPTS, "cali", 1000.0)
    assert fitted is not None
    part = evaluate(birds(), edits={"mine": fitted})[0]
    mine, cali = cell(part, "worst_group", "mine"), cell(part, "worst_group", "cali")
    assert mine == cali.model_copy(update={"method": "mine"})
    with pytest.raises(InvalidInputError, match=r"\['cali'\] are names of methods"):
        evaluate(birds(), edits={"cali": fitted})
    with pytest.raises(ProjectionMismatchError, match="belongs to space"):
        evaluate(birds(), edits={"mine": fitted.stamped(space="elsewhere")})


def test_protocol_says_what_was_done() -> None:
    parts = evaluate(birds(), lams=(1,), seed=3, resamples=77)
    assert [part.provenance.task for part in parts] == ["birds", "birds: lambda", "birds: cosines"]
    told = parts[0].provenance
    assert (told.model, told.split, told.prompts) == ("a made-up model", "made up test", "birds")
    assert (told.prompts_hash, told.seeds, set(told.methods)) == (PROMPTS.hash, [3], set(METHODS))
    assert (told.settings["resamples"], told.settings["seed"]) == (77, 3)
    assert "7.2" in told.title
    json.dumps([part.provenance.model_dump() for part in parts])


def test_class_prompts_that_state_the_attribute_are_named() -> None:
    stated = replace(PROMPTS, stated_words=("landbird",))
    told = evaluate(birds(), prompts=stated)[0].provenance.settings
    assert told["class prompts left alone, they state the attribute"] == ["a landbird"]
    assert evaluate(birds())[0].provenance.settings["class prompts left alone, they state the attribute"] == []


def test_baselines_use_labels_and_say_so() -> None:
    train, val = birds(600, seed=4, correlation=0.95), birds(300, seed=5)
    part = evaluate(birds(), train=train, val=val, baselines=("erm-linear", "dfr-sub"))[0]
    assert {f.method for f in part.rows if f.uses_labels} == {"erm-linear", "dfr-sub"}
    erm, dfr = (cell(part, "worst_group", name) for name in ("erm-linear", "dfr-sub"))
    assert erm.change is not None
    assert erm.lam is erm.strength is None
    assert dfr.value > cell(part, "worst_group", "none").value
    told = part.provenance
    assert told.settings["train"]["images"] == 600
    assert told.settings["val"]["images per group"].keys() == told.settings["data"]["images per group"].keys()
    assert told.methods["dfr-sub"]["uses_labels"] is True
    assert told.methods["dfr-sub"]["true_groups"] is False
    json.dumps(told.model_dump())


def test_true_groups_reach_the_baselines() -> None:
    """On a split whose zero-shot predictions are poor stand-ins for the groups, knowing them changes the fit."""
    train = birds(600, seed=4, correlation=0.9, noise=1.5)
    runs = [evaluate(birds(), train=train, baselines=("dfr-sub",), true_groups=t)[0] for t in (False, True)]
    values = [cell(run, "average", "dfr-sub").value for run in runs]
    assert values[0] != values[1]
    assert runs[1].provenance.methods["dfr-sub"]["true_groups"] is True


WIDE = replace(birds(40), features=np.pad(birds(40).features, ((0, 0), (0, 2))))
NOWHERE = replace(birds(5), labels={**birds(5).labels, "place": Labels(np.full(5, UNKNOWN), PLACES)})


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"label": "species"}, "no column 'species'; there are"),
        ({"spurious": "label"}, "two columns, got 'label' twice"),
        ({"methods": ("none", "equalise")}, r"method 'equalise' uses unlabelled images: pass reference="),
        ({"methods": "kali"}, "method: expected one of .* got 'kali'; did you mean 'cali'"),
        ({"methods": ("orth",), "lams": (1,)}, "lams: expected a method that has a lambda"),
        ({"baselines": ("erm-linear",)}, "baselines are trained: name the split under `train`"),
        ({"baselines": ("svm",), "train": birds(40)}, "expected one of .*erm-linear.*, got 'svm'"),
        ({"group_weights": {"landbird/land": 1.0}}, "group weights: expected one for each"),
        ({"prompts": replace(PROMPTS, classes=(), class_names=())}, "two or more classes, got 0"),
        (
            {"prompts": replace(PROMPTS, class_names=("robin", "gull"))},
            r"labels that each name one of .*'robin', 'gull'",
        ),
        ({"resamples": 0}, "greater than or equal to 1"),
        ({"test": WIDE}, f"image features have width {DIM + 2}, text embeddings {DIM}"),
        ({"test": NOWHERE}, "no image has both 'label' and 'place'"),
    ],
)
def test_refusals(more: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        evaluate(**{"test": birds(40), **more})
