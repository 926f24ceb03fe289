"""Test the text that summarises human labels."""

import pandas as pd
import pytest

from apps.shares.by_people import (
    how_people_agree,
    how_the_judge_errs,
    more_labels,
    who_appears,
)
from vldebias.measure.classification import Agreement
from vldebias.measure.resampling import Interval

VALUES = ("male", "female")


def images(people: list[str], judge: list[str], **columns: object) -> pd.DataFrame:
    usual = {"method": "none", "weight": 1.0}
    return pd.DataFrame({"people": people, "value": judge, **usual, **columns})


def test_shares_of_each_method_are_weighted_and_unclear_images_are_counted() -> None:
    people = ["female", "male", "cannot tell", "female"]
    methods = ["none"] * 3 + ["balanced-prompts"]
    rows = images(people, [""] * 4, method=methods, weight=[3.0, 1.0, 9.0, 1.0])
    assert who_appears(rows, VALUES) == [
        "As generated: people see 75% women and 25% men (3 labelled images, 1 unclear).",
        "Balanced prompts: people see 100% women (1 labelled images).",
    ]


def test_judge_errors_are_described_by_true_and_predicted_value() -> None:
    people = ["female"] * 4 + ["male"] * 3 + ["no person"]
    judge = ["female", "male", "male", "unknown", "male", "male", "female", "male"]
    assert how_the_judge_errs(images(people, judge), VALUES, "clip") == (
        "The judge (clip) agrees with people on 3 of 7 images; it mistakes 2 of 4 women for men and"
        " 1 of 3 men for women; it cannot label 1 of 4 women."
    )
    right = how_the_judge_errs(images(["male"], ["male"]), VALUES, "clip")
    assert right == "The judge (clip) agrees with people on 1 of 1 images."


def test_agreement_is_reported_with_its_intervals() -> None:
    agreed = Agreement(Interval(0.5, 0.4, 0.6), Interval(0.8, 0.7, 0.9), 20, 40)
    sentence = how_people_agree(agreed, 2)
    assert "2 annotators give the same answer in 80% [70%, 90%] of pairs about 20" in sentence
    assert "alpha 0.50 [0.40, 0.60]" in sentence


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (
            {"none": 20, "balanced-prompts": 18},
            "Label 38 more images to halve the interval: 20 as generated and 18 balanced prompts.",
        ),
        ({"none": 20, "cali": "more than there are images"}, "generate more images"),
    ],
)
def test_the_number_of_further_labels_that_halves_the_interval_is_reported(
    labels: dict[str, int | str], expected: str
) -> None:
    assert expected in more_labels(labels)
