"""Test whether the default may fit a classifier's edit to reference images instead of to text.

An edit that equalises image means can also move the boundary between the classes, which lowers the
accuracy of the group that ends up on the wrong side. With labels of classes and values, the worst
group's accuracy on held-out rows decides. Without labels, accuracy is unknown, so the images are
only used if their zero-shot groups can be trusted and no class loses a large share of its images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data.labels import Labels
from vldebias.errors import ReferenceWarning
from vldebias.measure.classification import lowest_accuracy
from vldebias.measure.resampling import resampled_counts
from vldebias.methods.equalise import UnusableReferenceError
from vldebias.methods.folds import FEWEST, image_halves
from vldebias.methods.gates import (
    AGREE,
    HALVINGS,
    agreement_of_wordings,
    floored,
    refuse_unclear_values,
    refuse_unstable_means,
)
from vldebias.methods.method import EditMethod, Problem
from vldebias.methods.predicted_gap import RESAMPLES, Change
from vldebias.methods.reference import class_of, place_of, zero_shot
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet
from vldebias.utils.arrays import Counts, Floats

# A debiasing edit moves images between classes in opposite directions for different values. If a
# class loses more than this share of its images, averaged over the values, the edit has moved the
# boundary instead.
MOST_LOST = 1 / 3
_TINY = np.finfo(np.float64).tiny


def refuse_unclear_groups(problem: Problem, role: str) -> None:
    """Reject reference images whose zero-shot groups (class and value) cannot be trusted.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.

    Raises:
        UnusableReferenceError: If the values are unclear (`refuse_unclear_values`), the wordings
            disagree about the images, a group has fewer than five images, or two halves of the
            images would give different directions.
    """
    refuse_unclear_values(problem, role)
    rows = torch.cat([*problem.images.batches()])
    for prompt_set in problem.attributes:
        single, joint = agreement_of_wordings(problem, prompt_set, role, rows)
        # Sets for classification often have few groups, whose kappas are not averaged (0).
        agreement = single or joint
        if agreement < AGREE:
            raise UnusableReferenceError(
                f"reference: different templates for the values of {prompt_set.name} agree about"
                f" the images with a kappa of {floored(agreement)} ({AGREE:g} is needed), so its"
                " groups cannot be told apart without labels."
            )
        values = zero_shot(rows, problem.zero_shot(prompt_set, role))
        classes = _predicted(problem.host.embed(prompt_set.classes, role), rows)
        counts = torch.zeros(len(prompt_set.classes), len(prompt_set.attributes), dtype=torch.long)
        counts.index_put_((classes, values), torch.ones_like(values), accumulate=True)
        if int(counts.min()) < FEWEST:
            raise UnusableReferenceError(
                f"reference: expected at least {FEWEST} images of each class and value; according"
                f" to the text, got {counts.tolist()} (classes {list(prompt_set.class_names)},"
                f" values {list(prompt_set.attributes)}). Add images."
            )
    refuse_unstable_means(problem, role)


def change_in_class_shares(
    problem: Problem, role: str, method: EditMethod, text_edit: Edit
) -> Change:
    """Measure the largest relative loss of a class on held-out images, compared with `text_edit`.

    A class's share is its share of the images of a zero-shot value, averaged over the values.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.
        method: the method to test, which is fitted on half of the images.
        text_edit: the edit that would be attached without images.

    Returns:
        The change of the class that loses most, such as -0.1 if it loses a tenth of its images.
            Among `HALVINGS` halvings, the one with the median lower end is used, and among
            attributes, the one with the largest loss.
    """
    changes = []
    for prompt_set in problem.attributes:
        rows = torch.cat([*problem.images.batches()])
        values = zero_shot(rows, problem.zero_shot(prompt_set, role)).numpy()
        shape = (len(prompt_set.attributes), len(prompt_set.classes), len(prompt_set.classes))
        before = _predicted(text_edit(problem.host.embed(prompt_set.classes, role)), rows).numpy()
        changes_of_halvings = []
        for after in _held_out_predictions(problem, role, method, prompt_set):
            counts = np.zeros(shape, dtype=np.int64)
            np.add.at(counts, (values, before, after), 1)
            changes_of_halvings.append(_change_of(_largest_loss, counts))
        changes_of_halvings.sort(key=lambda change: change.low)
        changes.append(changes_of_halvings[HALVINGS // 2])
    return min(changes, key=lambda change: change.low)


def _largest_loss(counts: Counts) -> Floats:
    """Return the lowest relative change (...) of a class's share.

    Args:
        counts: images (..., values, classes, classes) by value, and class before and after.
    """
    images_of_value = np.maximum(counts.sum((-1, -2)), 1)[..., None]
    before = (counts.sum(-1) / images_of_value).mean(-2)
    after = (counts.sum(-2) / images_of_value).mean(-2)
    lost = after / np.maximum(before, _TINY) - 1
    # A class that is never predicted cannot lose images.
    relative: Floats = np.where(before > 0, lost, 0.0).min(-1)
    return relative


class LabelledGroups:
    """Compare the worst group's accuracy of several predictions on labelled reference images.

    Args:
        classes: (n,), class of each image, or -1 if unknown.
        values: (n,), value of each image, or -1 if unknown.
    """

    def __init__(self, classes: Tensor, values: Tensor) -> None:
        self.classes = classes.numpy()
        groups = self.classes * (int(values.max()) + 1) + values.numpy()
        groups = np.where((classes.numpy() < 0) | (values.numpy() < 0), -1, groups)
        self.known = groups >= 0
        # A group of very few images would decide by chance.
        self.names, sizes = np.unique(groups[self.known], return_counts=True)
        self.names = self.names[sizes >= FEWEST]
        self.known &= np.isin(groups, self.names)
        self.groups = np.searchsorted(self.names, groups)

    def change(self, before: Counts, after: Counts) -> Change:
        """Return the change of the worst group's accuracy, with its interval.

        Args:
            before: predicted class (n,) of each image.
            after: predicted class (n,) of each image with an edit.
        """
        counts = np.zeros((len(self.names), 2, 2), dtype=np.int64)
        is_right = [(codes == self.classes)[self.known].astype(int) for codes in (before, after)]
        np.add.at(counts, (self.groups[self.known], *is_right), 1)
        return _change_of(_change_of_lowest, counts)


def _change_of_lowest(counts: Counts) -> Floats:
    """Return the change (...) of the lowest accuracy, given counts (..., g, 2, 2)."""
    size = counts.sum((-1, -2))
    after = lowest_accuracy(counts.sum(-2)[..., 1], size)
    change: Floats = after - lowest_accuracy(counts.sum(-1)[..., 1], size)
    return change


def labelled_groups(problem: Problem, prompt_set: PromptSet) -> LabelledGroups | None:
    """Return the reference's groups, or None unless both classes and values are labelled.

    Args:
        problem: the problem with reference images.
        prompt_set: the prompt set whose class prompts and values the label columns must name.
    """
    classes: Tensor | None = None
    values: Tensor | None = None
    for column_labels in problem.images.labels.values():
        column = Labels.from_array(column_labels)
        found = class_of(column.names, prompt_set)
        places = [place_of(name, prompt_set) for name in column.names]
        if found and classes is None:
            classes = torch.tensor([*found, -1])[column.codes]
        elif None not in places and len({*places}) > 1 and values is None:
            values = torch.tensor([*places, -1])[column.codes]
    if classes is None or values is None:
        return None
    groups = LabelledGroups(classes, values)
    return groups if len(groups.names) > 1 else None


def change_on_labels(
    problem: Problem, role: str, method: EditMethod, text_edit: Edit, groups: LabelledGroups
) -> tuple[Change, Change]:
    """Measure the change in the worst group's accuracy on labelled images.

    Args:
        problem: the problem with reference images and one attribute.
        role: the role of the text embeddings.
        method: the method to test, which is fitted on half of the images.
        text_edit: the edit that would be attached without images.
        groups: the labelled groups.

    Returns:
        The change from no edit to `text_edit`, and the change on held-out images from the better of
            the two to the method, in the halving with the median change.
    """
    (prompt_set,) = problem.attributes
    rows = torch.cat([*problem.images.batches()])
    classes = problem.host.embed(prompt_set.classes, role)
    unedited = _predicted(classes, rows).numpy()
    by_text = _predicted(text_edit(classes), rows).numpy()
    of_text = groups.change(unedited, by_text)
    simpler = by_text if of_text.value > 0 else unedited
    changes = [
        groups.change(simpler, after)
        for after in _held_out_predictions(problem, role, method, prompt_set)
    ]
    return of_text, sorted(changes)[HALVINGS // 2]


def _held_out_predictions(
    problem: Problem, role: str, method: EditMethod, prompt_set: PromptSet
) -> Iterator[Counts]:
    """Yield, for each halving, the class (n,) of each image with the edit of the other half."""
    rows = torch.cat([*problem.images.batches()])
    classes = problem.host.embed(prompt_set.classes, role)
    with warnings.catch_warnings():
        # Ignore the warning about too few images, which is expected for half of the images.
        warnings.simplefilter("ignore", ReferenceWarning)
        for seed in range(HALVINGS):
            predicted = torch.zeros(len(rows), dtype=torch.long)
            for fitted, held_out in image_halves(problem, seed):
                edit = method.fit(fitted, role)
                predicted[held_out] = _predicted(edit(classes), rows[held_out])
            yield predicted.numpy()


def _predicted(classes: Tensor, rows: Tensor) -> Tensor:
    """Return the class (n,) of each image, given class embeddings (k, d) and rows (n, d)."""
    return zero_shot(rows, normalize(classes, dim=1))


def _change_of(statistic: Callable[[Counts], Floats], counts: Counts) -> Change:
    """Return a change with its interval over resampled images."""
    drawn = np.concatenate(list(resampled_counts(counts, RESAMPLES, seed=0)))
    values = np.concatenate([[statistic(counts)], statistic(drawn)])
    return Change.from_resamples(torch.from_numpy(values))
