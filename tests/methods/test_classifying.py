"""Test when the default fits a classifier's edit to reference images, and when to text alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.methods.made import normal
from tests.methods.test_folds import CONCEPT, DIM, GENDER, HELPED, LEAN, PERSON, world
from vldebias.errors import AutoDeclinedWarning, ReferenceWarning
from vldebias.hosts import TextTable
from vldebias.methods import Problem, Reference, get_method, presets
from vldebias.methods.classifying import (
    MOST_LOST,
    _largest_loss,
    change_in_class_shares,
    labelled_groups,
    refuse_unclear_groups,
)
from vldebias.methods.closed_form import CALI, DIFFERENCE, EQUALISE
from vldebias.methods.equalise import UnusableReferenceError
from vldebias.methods.folds import FEWEST
from vldebias.methods.predicted_gap import Change
from vldebias.prompts import PromptSet

VALUES = ("male", "female")
BOTH = CALI + EQUALISE


def jobs(lean: float = 0.0) -> tuple[TextTable, PromptSet]:
    """Return a classifier of two jobs whose first class prompt leans towards men, or to LEAN."""
    texts, prompt_set = world(*HELPED)
    rows = {text: texts.embed([text], "text")[0] for text in prompt_set.texts}
    classes = prompt_set.classes[:2]
    rows[classes[0]] = PERSON + 0.4 * CONCEPT[0] + 0.2 * GENDER + lean * LEAN
    rows[classes[1]] = PERSON + 0.4 * CONCEPT[1] - 0.2 * GENDER - lean * LEAN
    two = replace(prompt_set, classes=classes, class_names=prompt_set.class_names[:2])
    return TextTable(rows), two


def pictures(n: int, seed: int, lean: float = 0.0) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Return images of two jobs and two values with the codes of both."""
    generator = torch.Generator().manual_seed(seed)
    job, value = torch.randint(2, (2, n), generator=generator)
    sign = (1.0 - 2 * value)[:, None]
    shown = PERSON + 0.2 * CONCEPT[job] + sign * (0.3 * GENDER + lean * LEAN)
    rows = normalize(shown + 0.06 * normal(n, DIM, seed=seed), dim=1)
    return rows, job.numpy(), value.numpy()


def lowest(texts: TextTable, prompt_set: PromptSet, edit: Any, lean: float = 0.0) -> float:
    """Return the worst group's accuracy on new images."""
    rows, job, value = pictures(2000, 77, lean)
    classes = texts.embed(prompt_set.classes, "text")
    classes = classes if edit is None else edit(classes)
    is_right = (rows @ normalize(classes, dim=1).T).argmax(1).numpy() == job
    return min(is_right[(job == i) & (value == j)].mean() for i in (0, 1) for j in (0, 1))


def labels_of(job: np.ndarray, value: np.ndarray) -> dict[str, np.ndarray]:
    return {"job": np.array(["job0", "job1"])[job], "gender": np.array(VALUES)[value]}


@pytest.mark.parametrize("is_labelled", [False, True])
def test_images_are_used_if_they_show_the_values_and_no_class_is_lost(is_labelled: bool) -> None:
    lean = 0.2 if is_labelled else 0.1
    texts, prompt_set = jobs(lean)
    rows, job, value = pictures(1000, 1, lean)
    labels = labels_of(job, value) if is_labelled else {}
    reference = Reference(rows, labels=labels)
    edit = vldebias.fit_projections(texts, prompt_set, reference=reference).only
    expected = BOTH.fit(Problem(texts, prompt_set, lam=100.0, reference=rows), "text")
    assert edit.method == "cali+equalise"
    assert torch.equal(edit.matrix(), expected.matrix())
    by_text = vldebias.fit_projections(texts, prompt_set).only
    assert lowest(texts, prompt_set, edit, lean) > lowest(texts, prompt_set, by_text, lean) + 0.02
    choice = edit.provenance.choice
    if is_labelled:
        assert "the worst group's accuracy rises by +" in choice.reason
        assert choice.change[1] > 0
    else:
        assert "unknown without labels" in choice.reason
        assert choice.change[1] >= -MOST_LOST


def test_unclear_images_give_the_edit_of_text_alone_and_say_why() -> None:
    texts, prompt_set = jobs()
    noise = torch.randn(200, DIM, generator=torch.Generator().manual_seed(0))
    alone = vldebias.fit_projections(texts, prompt_set).only
    with pytest.warns(ReferenceWarning, match="'difference', fitted to text alone. reference: .*"):
        edit = vldebias.fit_projections(texts, prompt_set, reference=noise).only
    assert edit.method == "difference"
    assert torch.equal(edit.matrix(), alone.matrix())
    reason = edit.provenance.choice.reason
    assert "So the reference images are not used. Held-out prompts come closer" in reason
    assert edit.provenance.choice.change == alone.provenance.choice.change


def test_a_set_too_small_to_test_on_text_also_says_why_images_are_not_used() -> None:
    texts, prompt_set = jobs()
    few = replace(prompt_set, variants=prompt_set.variants[: FEWEST - 1])
    with pytest.warns(ReferenceWarning, match="Too few prompts state two values"):
        edit = vldebias.fit_projections(texts, few, reference=pictures(9, 1)[0]).only
    assert (edit.method, edit.provenance.choice.change) == ("difference", None)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")
@pytest.mark.parametrize(("low", "is_used"), [(-0.34, False), (-0.33, True)])
def test_images_are_not_used_if_a_class_may_lose_more_than_a_third(
    monkeypatch: pytest.MonkeyPatch, low: float, is_used: bool
) -> None:
    texts, prompt_set = jobs(lean=0.1)
    change = Change(-0.1, low, 0.0)
    monkeypatch.setattr(presets, "change_in_class_shares", lambda *_: change)
    rows, _, _ = pictures(1000, 1, lean=0.1)
    edit = vldebias.fit_projections(texts, prompt_set, reference=rows).only
    assert (edit.method == "cali+equalise") == is_used
    assert is_used or "a third of its images (-0.10 [-0.34" in edit.provenance.choice.reason


TEXT_HARMS = (Change(-0.2, -0.3, -0.1), Change(-0.1, -0.2, 0.1))
IMAGES_HARM = (Change(0.1, 0.0, 0.2), Change(-0.2, -0.3, -0.1))
UNCLEAR = (Change(-0.1, -0.3, 0.1), Change(-0.1, -0.3, 0.1))


@pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")
@pytest.mark.parametrize(
    ("changes", "method", "reason"),
    [
        (TEXT_HARMS, "default: none", "Keep the model as it is"),
        (IMAGES_HARM, "difference", "fitting it to images changes the worst group's accuracy"),
        (UNCLEAR, "cali+equalise", "unknown without labels"),
    ],
)
def test_a_clear_change_of_the_labelled_worst_group_decides(
    monkeypatch: pytest.MonkeyPatch, changes: tuple[Change, Change], method: str, reason: str
) -> None:
    texts, prompt_set = jobs(lean=0.1)
    monkeypatch.setattr(presets, "change_on_labels", lambda *_: changes)
    rows, job, value = pictures(1000, 1, lean=0.1)
    problem = Problem(texts, prompt_set, reference=Reference(rows, labels=labels_of(job, value)))
    if method == "default: none":
        with pytest.warns(AutoDeclinedWarning):
            edit = problem.fit("default+reference", "text")
    else:
        edit = problem.fit("default+reference", "text")
    assert edit.method == method
    assert reason in edit.provenance.choice.reason


def test_groups_need_labels_of_classes_and_values_and_a_few_images() -> None:
    texts, prompt_set = jobs()
    rows, job, value = pictures(40, 1)
    labels = labels_of(job, value)

    def groups_of(**columns: Any) -> Any:
        problem = Problem(texts, prompt_set, reference=Reference(rows, labels=columns))
        return labelled_groups(problem, prompt_set)

    assert groups_of(**labels).known.all()
    assert groups_of(gender=labels["gender"]) is None
    assert groups_of(job=labels["job"]) is None
    # A group of four images is left out, and so are unknown labels.
    rare = np.flatnonzero((job == 0) & (value == 0))[4:]
    labels["job"] = labels["job"].astype(object)
    labels["job"][rare] = ""
    groups = groups_of(**labels)
    assert len(groups.names) == 3
    assert not groups.known[(job == 0) & (value == 0)].any()
    assert groups.known[~((job == 0) & (value == 0))].all()


def test_the_change_of_the_worst_group_equals_a_plain_computation() -> None:
    texts, prompt_set = jobs()
    rows, job, value = pictures(200, 1)
    reference = Reference(rows, labels=labels_of(job, value))
    groups = labelled_groups(Problem(texts, prompt_set, reference=reference), prompt_set)
    generator = np.random.default_rng(0)
    before, after = generator.integers(2, size=(2, 200))

    def worst(predicted: np.ndarray) -> float:
        cells = [(job == i) & (value == j) for i in (0, 1) for j in (0, 1)]
        return min((predicted == job)[cell].mean() for cell in cells)

    change = groups.change(before, after)
    assert change.value == pytest.approx(worst(after) - worst(before))
    assert change.low < change.value < change.high


def test_the_largest_loss_averages_shares_over_values() -> None:
    generator = np.random.default_rng(0)
    value, before, after = generator.integers(3, size=(3, 500))
    value %= 2
    counts = np.zeros((2, 3, 3), dtype=np.int64)
    np.add.at(counts, (value, before, after), 1)
    losses = []
    for code in range(3):
        shares = [
            np.mean([(codes[value == v] == code).mean() for v in (0, 1)])
            for codes in (before, after)
        ]
        losses.append(shares[1] / shares[0] - 1)
    assert _largest_loss(counts) == pytest.approx(min(losses))
    assert _largest_loss(np.zeros((2, 3, 3), dtype=np.int64)) == 0


def test_an_edit_that_moves_the_boundary_is_found_on_held_out_images() -> None:
    texts, prompt_set = jobs(lean=0.1)
    rows, _, _ = pictures(1000, 1, lean=0.1)
    problem = Problem(texts, prompt_set, lam=100.0, reference=rows)
    by_text = Problem(texts, prompt_set).fit(DIFFERENCE, "text")

    class Shifted(type(BOTH)):  # type: ignore[misc]
        """Move the first class prompt away from all images."""

        def fit(self, problem: Problem, role: str) -> Any:
            first = texts.embed(prompt_set.classes, "text")[0]
            return lambda rows: torch.where((rows == first).all(1, keepdim=True), -rows, rows)

    shifted = Shifted(BOTH.declaration, BOTH.terms)
    assert change_in_class_shares(problem, "text", BOTH, by_text).low > -MOST_LOST
    assert change_in_class_shares(problem, "text", shifted, by_text).value == -1


@pytest.mark.parametrize("kind", ["one class", "disagreeing wordings"])
def test_zero_shot_groups_must_be_trusted(kind: str) -> None:
    texts, prompt_set = jobs()
    rows, job, _ = pictures(400, 1)
    reason = "images of each class and value"
    if kind == "one class":
        rows = rows[job == 0]
        rows = rows[(rows @ texts.embed(prompt_set.classes, "text").T).argmax(1) == 0]
    else:
        reason = r"agree about the images with a kappa of 0\.7"
        table = {text: texts.embed([text], "text")[0] for text in prompt_set.texts}
        noise = normal(len(table), DIM, seed=3)
        for row, text in enumerate(table):
            if text not in prompt_set.classes:
                table[text] = table[text] + 0.1 * noise[row]
        texts = TextTable(table)
    problem = Problem(texts, prompt_set, reference=rows)
    with pytest.raises(UnusableReferenceError, match=reason):
        refuse_unclear_groups(problem, "text")


def test_the_variant_with_images_is_chosen_by_reference() -> None:
    assert get_method("default", reference=pictures(9, 1)[0]).name == "default+reference"
