"""Test whether a classification may be edited.

Most people attach the default without measuring its effect. For a classification, the default only
needs text, and `change_on_texts` tests it if the prompt set has enough groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vldebias.data.label_values import CLASS
from vldebias.data.labels import Labels
from vldebias.methods.bounded import bounded
from vldebias.methods.folds import FEWEST, text_folds
from vldebias.methods.method import EditMethod, Problem
from vldebias.methods.predicted_gap import Change, PredictedGap, draw_counts
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection, NothingToRemoveError

_TINY = torch.finfo(torch.float64).tiny


def is_for_ranking(problem: Problem) -> bool:
    """Return whether the sets are meant for search.

    One to four class prompts, such as those for birds or hair, indicate a classification, and
    a set whose classes label reference images does, too. A set without class prompts is for search.
    """
    fewest = min(len(prompt_set.classes) for prompt_set in problem.attributes)
    has_labelled_classes = False
    if problem.reference is not None and CLASS in problem.reference.labels:
        labels = Labels.from_array(problem.reference.labels[CLASS]).names
        has_labelled_classes = bool({*labels} & {*problem.sets[0].class_names})
    return (fewest == 0 or fewest >= FEWEST) and not has_labelled_classes


def change_on_texts(problem: Problem, role: str, method: EditMethod) -> Change | None:
    """Predict how a method changes the class prompts' gap, using held-out groups.

    Prompts that state a value are used in place of images. The change is relative to the gap
    without an edit, averaged over folds and attributes; class prompts are resampled together with
    the groups.

    Args:
        problem: what the method is fitted on; its prompts are split.
        role: the role of the text embeddings.
        method: the method to test.

    Returns:
        The change, or None if it cannot be predicted because there are no class prompts or fewer
        than `FEWEST` groups that state two values.
    """
    folds = list(text_folds(problem, role))
    if not folds or not problem.neutral:
        return None
    neutral = problem.host.embed(problem.neutral, role)
    drawn = draw_counts(len(neutral))
    before = [_mean_gaps(gaps, neutral, drawn) for _, gaps in folds]
    after = []
    for fitted, gaps in folds:
        edit = fit_within_bound(fitted, role, method, neutral)
        after.append(_mean_gaps(gaps, edit(neutral), drawn))
    # Changes are relative to the sample's gap, because a resample's gap may be near 0.
    gap_before = torch.stack(before)  # (folds, attributes, 1 + b)
    gap_after = torch.stack(after)
    sample = gap_before[..., :1].clamp(min=_TINY)
    changes = (gap_after - gap_before) / sample
    return Change.from_resamples(changes.mean((0, 1)))


def fit_within_bound(problem: Problem, role: str, method: EditMethod, neutral: Tensor) -> Edit:
    """Fit a method within the problem's bound on the loss of neutral text.

    Args:
        problem: what the method is fitted on, with the bound `max_loss`.
        role: the host tensor to edit.
        method: the method to fit; its edit is weakened if it exceeds the bound.
        neutral: embeddings (q, d) of the neutral text.

    Returns:
        The edit, or the identity if the model embeds the text for all values identically.
    """
    try:
        edit = method.fit(problem, role)
    except NothingToRemoveError:
        return CalibratedProjection.identity(problem.host.dim(role), method.name)
    if problem.max_loss is None:
        return edit
    return bounded(edit, neutral, problem.max_loss)


def _mean_gaps(gaps: Sequence[PredictedGap], texts: Tensor, drawn: Tensor) -> Tensor:
    """Return the mean gap (attributes, 1 + b) over texts.

    Args:
        gaps: the predicted gap for each attribute.
        texts: embeddings (q, d).
        drawn: counts (1 + b, q) of each text in each resample.
    """
    gaps_of_texts = torch.stack([gap.of_texts(texts) for gap in gaps])
    return (gaps_of_texts * drawn).sum(2) / drawn.sum(1)
