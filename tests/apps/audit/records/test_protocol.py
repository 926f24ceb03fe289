"""Test that the prompts in the protocol follow its rule, and that the computed numbers give the
requested interval widths."""

import numpy as np
import pytest

from apps.audit.records.figures import share_with_interval
from apps.audit.records.protocol import ERROR, load_protocol, numbers_for_width
from eval import record_subjects
from vldebias.errors import InvalidInputError
from vldebias.prompts import load_prompts
from vldebias.wording import balance_prompts


def test_the_protocol_file_follows_the_rule() -> None:
    assert record_subjects.FILE.read_text(encoding="utf-8") == record_subjects.written()


def test_the_protocol_has_a_hundred_subjects_in_seven_wordings() -> None:
    protocol = load_protocol()
    prompts = protocol.prompts()
    assert len(protocol.subjects) == len(set(protocol.subjects)) == 100
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 700
    assert "A photo of an accountant." in {prompt.text for prompt in prompts}


@pytest.mark.parametrize("attribute", ["gender", "race", "age", "skin-tone"])
def test_every_prompt_is_about_one_person_and_leaves_attributes_open(attribute: str) -> None:
    prompts = load_protocol().prompts()
    if attribute == "age":  # "senior" states an age
        prompts = [prompt for prompt in prompts if prompt.qualifier != "senior"]
    texts = [prompt.text for prompt in prompts]
    reasons = balance_prompts(texts, load_prompts(attribute), seed=0, people="leave").reasons
    assert [(t, r) for t, r in zip(texts, reasons, strict=True) if r is not None] == []


@pytest.mark.parametrize("width", [0.05, 0.1])
def test_images_and_labels_give_the_requested_width_in_the_worst_case(width: float) -> None:
    prompts = 100
    error = ERROR
    numbers = numbers_for_width(width, prompts)
    half = numbers.images / 2
    counts = np.tile([half, half, 0.0], (prompts, 1))
    wrong = numbers.labels * error / 2
    right = numbers.labels * (1 - error) / 2
    people = np.array([[right, wrong, 0.0], [wrong, right, 0.0], [0.0, 0.0, 0.0]])
    _, low, high = share_with_interval(counts, 0, people)
    # One extra label per answer and Student's t add a little.
    assert 0.8 * width < high - low < 1.12 * width


@pytest.mark.parametrize("width", [0, 1])
def test_impossible_widths_are_rejected(width: float) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        numbers_for_width(width, 100)
