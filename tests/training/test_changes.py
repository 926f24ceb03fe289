"""Test which scores are reported as better or worse, with paired intervals."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from vldebias.measure.resampling import wilson_interval
from vldebias.report.conclusion import Conclusion
from vldebias.training.changes import (
    change_since_start,
    conclusions_of_training,
    counted,
    deciding_score,
    fall_below_start,
    leading,
)

ACCURACY = "zero_shot_accuracy"
RECALL = "recall@1 image->text"


def rows(right: int, wrong: int) -> Tensor:
    return torch.tensor([1.0] * right + [0.0] * wrong)


def concluded(
    before: dict[str, Tensor], after: dict[str, Tensor], cells: dict[str, Tensor] | None = None
) -> dict[str, Conclusion]:
    conclusions = conclusions_of_training(before, after, cells or {})
    return {conclusion.metric: conclusion for conclusion in conclusions}


def flipped(scores: Tensor, places: Sequence[int]) -> Tensor:
    changed = scores.clone()
    changed[list(places)] = 1 - changed[list(places)]
    return changed


def test_a_clear_decrease_is_worse_and_a_clear_increase_is_better() -> None:
    before = {ACCURACY: rows(300, 100)}
    after = {ACCURACY: flipped(before[ACCURACY], range(40))}
    lost = concluded(before, after)[ACCURACY]
    assert (lost.before, lost.after) == pytest.approx((0.75, 0.65))
    assert lost.verdict == "worse"
    assert lost.change[1] < lost.change[0] < lost.change[2] < 0
    assert "held-out data: worse. Zero-shot accuracy falls from 0.75 to 0.65" in lost.sentence
    gained = concluded(after, before)[ACCURACY]
    assert gained.verdict == "better"
    assert gained.change[0] == pytest.approx(-lost.change[0])


def test_equal_numbers_of_losses_and_gains_are_not_a_clear_change() -> None:
    before = {ACCURACY: rows(300, 100)}
    after = {ACCURACY: flipped(before[ACCURACY], [*range(20), *range(300, 319)])}
    conclusion = concluded(before, after)[ACCURACY]
    assert conclusion.verdict == "no clear change"
    assert conclusion.change[0] == pytest.approx(-1 / 400)
    assert conclusion.change[1] < 0 < conclusion.change[2]


def test_the_interval_is_computed_from_paired_images() -> None:
    before = {ACCURACY: rows(5000, 5000)}
    after = {ACCURACY: flipped(before[ACCURACY], range(100))}
    conclusion = concluded(before, after)[ACCURACY]
    # One image in a hundred changed. For unpaired samples, the half-width would be 0.014.
    differences = (after[ACCURACY] - before[ACCURACY]).numpy()
    half = 1.96 * differences.std() / np.sqrt(len(differences))
    assert conclusion.change[2] - conclusion.change[1] == pytest.approx(2 * half, rel=0.1)
    assert conclusion.verdict == "worse"


def test_with_too_few_images_the_required_number_is_reported() -> None:
    before = {ACCURACY: rows(6, 4)}
    after = {ACCURACY: flipped(before[ACCURACY], [0, 1, 2, 6, 7])}
    conclusion = concluded(before, after)[ACCURACY]
    assert conclusion.verdict == "too few to tell"
    assert conclusion.enough is not None
    assert conclusion.enough > 10
    assert "about" in conclusion.sentence


def test_other_scores_that_worsen_are_the_cost_except_cosines() -> None:
    before = {ACCURACY: rows(300, 100), RECALL: rows(200, 200), "positive_score": rows(300, 100)}
    after = {
        ACCURACY: flipped(before[ACCURACY], range(300, 380)),
        RECALL: flipped(before[RECALL], range(80)),
        "positive_score": rows(0, 400),
    }
    conclusion_of_metric = concluded(before, after)
    assert list(conclusion_of_metric) == [ACCURACY, RECALL]
    assert conclusion_of_metric[ACCURACY].cost.startswith(
        "recall@1 image->text 0.50 to 0.30 (-0.20 ["
    )
    assert conclusion_of_metric[RECALL].cost == ""
    assert [lead.metric for lead in leading(list(conclusion_of_metric.values()))] == [
        ACCURACY,
        RECALL,
    ]


def test_clear_changes_are_printed_and_all_scores_are_counted() -> None:
    further = "recall@10 text->image"
    before = {ACCURACY: rows(300, 100), further: rows(200, 200)}
    after = {ACCURACY: before[ACCURACY], further: flipped(before[further], range(200, 280))}
    conclusions = list(concluded(before, after).values())
    assert [found.metric for found in leading(conclusions)] == [further]
    assert counted(conclusions).startswith(
        "Of 2 scores on held-out data, 1 improved, none worsened"
    )
    # If nothing changed, only the main scores are printed.
    unmoved = list(concluded(before, before).values())
    assert [found.metric for found in leading(unmoved)] == [ACCURACY]


def test_the_worst_group_is_determined_again_after_training() -> None:
    cells = torch.tensor([0] * 100 + [1] * 100 + [-1] * 50)
    # Number correct out of 100: first 20, then 95; in the second group 90, then 40. The third group
    # is unknown.
    before = {ACCURACY: torch.cat([rows(20, 80), rows(90, 10), rows(0, 50)])}
    after = {ACCURACY: torch.cat([rows(95, 5), rows(40, 60), rows(50, 0)])}
    conclusion = concluded(before, after, {"zero_shot_worst_group": cells})["zero_shot_worst_group"]
    assert (conclusion.before, conclusion.after) == pytest.approx((0.2, 0.4))
    assert conclusion.n == "200 images"
    assert conclusion.verdict == "better"


def test_features_that_are_not_finite_are_worse_and_rows_without_a_score_are_ignored() -> None:
    before = {ACCURACY: rows(3, 2), RECALL: torch.full((5,), torch.nan)}
    after = {ACCURACY: torch.full((5,), torch.nan), RECALL: rows(5, 0)}
    conclusion_of_metric = concluded(before, after)
    assert list(conclusion_of_metric) == [ACCURACY]
    assert conclusion_of_metric[ACCURACY].verdict == "worse"
    assert concluded({}, {}) == {}


def test_captions_are_resampled_together_with_their_image() -> None:
    """Five captions that always agree are one observation, so the interval is computed over images
    rather than captions."""
    rng = np.random.default_rng(0)
    images = 200
    right_before = torch.from_numpy(rng.random(images) < 0.5).float()
    right_after = torch.from_numpy(rng.random(images) < 0.6).float()
    name = "recall@1 text->image"
    query_images = torch.arange(images).repeat_interleave(5)
    (of_captions,) = conclusions_of_training(
        {name: right_before.repeat_interleave(5)},
        {name: right_after.repeat_interleave(5)},
        {},
        query_images,
    )
    (of_images,) = conclusions_of_training({name: right_before}, {name: right_after}, {})
    assert of_captions.n == "1,000 captions of 200 images"
    assert of_captions.change == pytest.approx(of_images.change, abs=0.03)
    # The naive implementation samples images together with all their captions.
    counts = np.array([1, 3] * 100)
    owners = np.repeat(np.arange(images), counts)
    before = rng.random(counts.sum()) < 0.4
    after = rng.random(counts.sum()) < 0.6
    (uneven,) = conclusions_of_training(
        {name: torch.from_numpy(before).float()},
        {name: torch.from_numpy(after).float()},
        {},
        torch.from_numpy(owners),
    )
    captions_of_image = [np.flatnonzero(owners == image) for image in range(images)]
    drawn = []
    for _ in range(2000):
        resample = rng.integers(images, size=images)
        rows_drawn = np.concatenate([captions_of_image[image] for image in resample])
        drawn.append(after[rows_drawn].mean() - before[rows_drawn].mean())
    assert uneven.change[0] == pytest.approx(after.mean() - before.mean())
    assert uneven.change[1:] == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.01)


def test_recall_that_does_not_vary_has_an_interval_from_the_number_of_images() -> None:
    name = "recall@1 text->image"
    query_images = torch.arange(12).repeat_interleave(5)
    all_right = torch.ones(60)
    (conclusion,) = conclusions_of_training({name: all_right}, {name: all_right}, {}, query_images)
    assert conclusion.interval == wilson_interval(12, 12)
    assert conclusion.verdict == "equal"


def test_the_history_shows_the_change_of_the_watched_score_with_its_interval() -> None:
    before = {ACCURACY: rows(300, 100), RECALL: rows(200, 200)}
    after = {ACCURACY: flipped(before[ACCURACY], range(40)), RECALL: before[RECALL]}
    entry = change_since_start(before, after)
    conclusion = concluded(before, after)[ACCURACY]
    shown = [entry[f"{ACCURACY} {name}"] for name in ("change", "change_low", "change_high")]
    assert shown == pytest.approx(conclusion.change)
    assert entry["below_start"] is True
    assert len(entry) == 4, "retrieval is not watched if there are classes"
    # Neither a decrease within its interval nor an increase counts as a drop.
    within_interval = flipped(before[ACCURACY], [*range(20), *range(300, 319)])
    assert change_since_start(before, {ACCURACY: within_interval})["below_start"] is False
    assert change_since_start(after, before)["below_start"] is False
    assert change_since_start(before, before)["below_start"] is False


def test_without_classes_retrieval_is_watched() -> None:
    before = {RECALL: rows(200, 200), "recall@1 text->image": rows(200, 200)}
    after = {RECALL: flipped(before[RECALL], range(80)), "recall@1 text->image": rows(200, 200)}
    entry = change_since_start(before, after)
    assert entry[f"{RECALL} change"] == pytest.approx(-0.2)
    assert entry["below_start"] is True
    unlabelled = {ACCURACY: torch.full((400,), torch.nan)}
    assert change_since_start(unlabelled | before, unlabelled | after) == entry
    assert change_since_start({}, {}) == {}


def test_accuracy_decides_between_checkpoints_and_the_mean_recall_without_classes() -> None:
    recalls = {RECALL: 0.25, "recall@5 text->image": 0.75, "positive_score": 0.9}
    assert deciding_score({ACCURACY: 0.3, **recalls}) == (ACCURACY, 0.3)
    assert deciding_score(recalls) == ("mean recall", 0.5)
    # No image has a class.
    assert deciding_score({ACCURACY: math.nan, **recalls}) == ("mean recall", 0.5)
    # If features are not finite, the checkpoint must not win.
    assert deciding_score({ACCURACY: math.nan})[1] == 0
    assert deciding_score({RECALL: math.nan})[1] == 0


def test_a_drop_includes_its_score_and_the_first_step_below_the_start() -> None:
    before = {ACCURACY: rows(300, 100), RECALL: rows(200, 200)}
    fallen = {ACCURACY: flipped(before[ACCURACY], range(40)), RECALL: before[RECALL]}
    history = [{"step": 0.0}, {"step": 1.0, "below_start": False}]
    history += [{"step": 2.0, "below_start": True}, {"step": 3.0, "below_start": True}]
    fall = fall_below_start(conclusions_of_training(before, fallen, {}), history)
    assert fall is not None
    assert (fall["score"], fall["first_seen"]) == (ACCURACY, 3)
    assert (fall["before"], fall["after"]) == pytest.approx((0.75, 0.65))
    # The final average may be below the start even if no step is.
    averaged = fall_below_start(conclusions_of_training(before, fallen, {}), history[:2])
    assert averaged is not None
    assert averaged["first_seen"] is None
    # Only the watched score counts, even if other scores decreased.
    other = {ACCURACY: before[ACCURACY], RECALL: flipped(before[RECALL], range(80))}
    assert fall_below_start(conclusions_of_training(before, other, {}), history) is None
    assert fall_below_start([], history) is None
