"""Test the figures in a record: shares, their intervals, and the correction by human labels."""

import numpy as np
import pytest

from apps.audit.records.check import problems_of, recomputed, with_figures
from apps.audit.records.figures import figures_of, share_with_interval
from apps.audit.records.schema import (
    Figure,
    Judge,
    LabelCounts,
    Model,
    PromptCounts,
    Published,
    Record,
)
from vldebias.measure.resampling import wilson_interval

SUBJECTS = ("nurse", "pilot", "baker", "judge")


def made(triples: list[tuple[int, int, int]], **fields: object) -> Record:
    """Return a record with counts (women, men, unknown) for the first subjects."""
    rows = [
        PromptCounts(subject=s, prompt=f"A photo of a {s}.", counts=(women, men), unknown=unknown)
        for s, (women, men, unknown) in zip(SUBJECTS, triples, strict=False)
    ]
    content = {
        "name": "model",
        "origin": "measured",
        "model": Model(name="model", weights="1", pipeline="p"),
        "attribute": "gender",
        "values": ("female", "male"),
        "judge": Judge(kind="model", name="judge", fingerprint="1"),
        "counts": tuple(rows),
        "versions": {"vldebias": "0"},
        "date": "2026-01-01",
        "measured_by": "us",
        "licence": "CC0-1.0",
    }
    return with_figures(Record.model_validate({**content, **fields}))


def figure(record: Record, metric: str, value: str = "") -> Figure:
    (found,) = (f for f in record.figures if (f.metric, f.value) == (metric, value))
    return found


def test_all_prompts_have_the_same_weight() -> None:
    record = made([(10, 0, 0), (0, 100, 0)])
    assert figure(record, "share", "female").estimate == pytest.approx(0.5)
    assert figure(record, "share", "female").images == 110


def test_unknown_images_are_counted_but_excluded_from_shares() -> None:
    record = made([(5, 5, 10), (5, 5, 10)])
    assert figure(record, "share", "female").estimate == pytest.approx(0.5)
    assert figure(record, "unknown").estimate == pytest.approx(0.5)


def test_a_single_prompt_has_a_wilson_interval() -> None:
    counts = np.array([[30.0, 70.0, 0.0]])
    _, low, high = share_with_interval(counts, 0)
    # The variance uses n - 1, and so does the effective number of images.
    assert (low, high) == pytest.approx(wilson_interval(0.3 * 99, 99), abs=2e-3)


def test_identical_images_have_an_interval_that_shrinks_with_their_number() -> None:
    widths = []
    for images in (10, 100):
        share, low, high = share_with_interval(np.array([[images, 0.0, 0.0]] * 2), 0)
        assert share == high == 1.0
        widths.append(high - low)
    assert 0 < widths[1] < widths[0] / 5


def test_a_biased_judge_is_corrected_by_labels_and_the_interval_widens() -> None:
    plain = made([(50, 150, 0), (50, 150, 0)])
    # The judge labels every third woman as a man: of 300 images labelled as men, 100 show women.
    labels = (
        LabelCounts(judged="female", counts=(30, 0)),
        LabelCounts(judged="male", counts=(30, 60)),
    )
    corrected = with_figures(plain.model_copy(update={"labels": labels}))
    share = figure(corrected, "share", "female")
    assert share.labels == 120
    assert share.estimate == pytest.approx(0.25 + 0.75 / 3)
    assert share.low <= 0.5 <= share.high
    bare = figure(plain, "share", "female")
    assert bare.high < 0.5
    assert share.high - share.low > bare.high - bare.low


def test_fewer_than_ten_labels_do_not_correct_the_shares() -> None:
    labels = (LabelCounts(judged="female", counts=(0, 9)),)
    record = made([(50, 50, 0), (50, 50, 0)], labels=labels)
    assert figure(record, "share", "female").labels == 0
    assert figure(record, "share", "female").estimate == pytest.approx(0.5)


def test_unequal_weights_reduce_the_effective_number_of_labels() -> None:
    # Rare images were labelled ten times as often. After weighting, the judge is correct.
    weighted = (
        LabelCounts(judged="female", counts=(20, 0), weight=10.0),
        LabelCounts(judged="female", counts=(0, 20), weight=1.0),
        LabelCounts(judged="male", counts=(0, 40)),
    )
    record = made([(50, 50, 0), (50, 50, 0)], labels=weighted)
    share = figure(record, "share", "female")
    assert share.estimate == pytest.approx(0.5 * 200 / 220)
    unweighted = [label.model_copy(update={"weight": 1.0}) for label in weighted]
    other = figure(made([(50, 50, 0), (50, 50, 0)], labels=tuple(unweighted)), "share", "female")
    assert other.estimate == pytest.approx(0.25)


@pytest.mark.parametrize("labels", [0, 60])
def test_intervals_contain_the_true_share_in_most_samples(labels: int) -> None:
    rng = np.random.default_rng(labels)
    shares = rng.beta(0.4, 0.6, size=20)
    answers = np.array([[0.8, 0.15, 0.05], [0.02, 0.93, 0.05]])
    if not labels:
        answers = np.array([[0.95, 0.0, 0.05], [0.0, 0.95, 0.05]])
    inside = 0
    for _ in range(200):
        truth = (rng.random((20, 10)) > shares[:, None]).astype(int)
        judged = (rng.random((20, 10, 1)) > answers.cumsum(1)[truth]).sum(-1)
        counts = np.stack([np.bincount(row, minlength=3) for row in judged]).astype(float)
        people = None
        if labels:
            chosen = rng.choice(200, labels, replace=False)
            people = np.zeros((3, 3))
            np.add.at(people, (judged.ravel()[chosen], truth.ravel()[chosen]), 1)
        _, low, high = share_with_interval(counts, 0, people)
        inside += low <= shares.mean() <= high
    assert inside >= 180


def test_a_changed_figure_count_or_label_is_detected() -> None:
    record = made([(5, 5, 0), (9, 1, 0)])
    assert problems_of(record) == []
    first, *rest = record.figures
    forged = first.model_copy(update={"estimate": first.estimate + 0.01})
    (problem,) = problems_of(record.model_copy(update={"figures": (forged, *rest)}))
    assert "got estimate 0.71; the counts give 0.7" in problem
    for number, shown in ((first.estimate - 0.01, "0.69"), (np.nan, "nan")):
        forged = first.model_copy(update={"estimate": number})
        (problem,) = problems_of(record.model_copy(update={"figures": (forged, *rest)}))
        assert f"got estimate {shown}; the counts give 0.7" in problem
    row = record.counts[0].model_copy(update={"counts": (6, 4)})
    assert problems_of(record.model_copy(update={"counts": (row, record.counts[1])}))
    (missing,) = problems_of(record.model_copy(update={"figures": tuple(rest)}))
    assert "share female is missing" in missing
    labels = (LabelCounts(judged="female", counts=(20, 0)),)
    found = problems_of(record.model_copy(update={"labels": labels}))
    assert any("got 20 for female, but only 14 images have this answer" in text for text in found)


def test_labels_of_images_that_the_judge_could_not_judge_are_counted_as_well() -> None:
    record = made([(5, 5, 3), (9, 1, 1)])
    labels = (LabelCounts(judged="unknown", counts=(2, 1), unknown=1),)
    assert problems_of(record.model_copy(update={"labels": labels})) == []
    labels = (LabelCounts(judged="unknown", counts=(2, 1), unknown=2),)
    (problem,) = problems_of(record.model_copy(update={"labels": labels}))
    assert "got 5 for unknown, but only 4 images have this answer" in problem


def test_one_image_per_prompt_does_not_make_the_interval_shrink_to_a_point() -> None:
    """The variance within a prompt is unknown then, so that of all images is used."""
    single = np.tile([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], (10, 1))
    share, low, high = share_with_interval(single, 0)
    expected = wilson_interval(10, 20)
    assert share == 0.5
    assert (low, high) == pytest.approx(expected, abs=0.01)


def test_published_figures_must_be_reproduced() -> None:
    printed = Published(metric="share", value="female", figure=0.7, where="Table 1")
    of_prompt = Published(
        metric="share", value="male", subject="pilot", figure=0.1, where="Table 2"
    )
    record = made([(5, 5, 0), (9, 1, 0)], published=(printed, of_prompt))
    assert problems_of(record) == []
    assert recomputed(record, of_prompt) == pytest.approx(0.1)
    wrong = printed.model_copy(update={"figure": 0.72, "tolerance": 0.005})
    (problem,) = problems_of(record.model_copy(update={"published": (wrong,)}))
    assert "the source prints 0.72; the counts give 0.7000" in problem
    unknown_subject = printed.model_copy(update={"subject": "sailor"})
    (problem,) = problems_of(record.model_copy(update={"published": (unknown_subject,)}))
    assert "do not determine share female sailor" in problem


def test_figures_do_not_depend_on_the_order_of_the_prompts() -> None:
    record = made([(5, 5, 0), (9, 1, 0), (2, 8, 1), (0, 10, 0)])
    turned = record.model_copy(update={"counts": record.counts[::-1]})
    for first, second in zip(figures_of(record), figures_of(turned), strict=True):
        if first.metric != "discrepancy":  # its interval resamples prompts in their given order
            assert first.estimate == pytest.approx(second.estimate)
            assert (first.low, first.high) == pytest.approx((second.low, second.high))
