"""Test whether a classification may be edited, and whether images show the values of an attribute.

Most people attach the default without measuring its effect. For a classification, the default only
needs text, and `change_on_texts` tests it if the prompt set has enough groups.
`doubt_about_values` tests the zero-shot labels of searches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data.label_values import CLASS
from vldebias.data.labels import Labels
from vldebias.methods.bounded import bounded
from vldebias.methods.folds import FEWEST, text_folds
from vldebias.methods.method import EditMethod, Problem
from vldebias.methods.predicted_gap import Change, PredictedGap, draw_counts
from vldebias.methods.reference import stating, zero_shot
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

# Two normals less than two deviations apart have a single mode (Ashman et al., 1994), so splitting
# the images by text may split one group.
SEPARATE = 2.0
# Minimum Cohen's kappa between image labels from individual wordings and from all wordings. Above
# 0.8, Landis and Koch (1977) call agreement "almost perfect".
AGREE = 0.8
# Minimum kappa between labels from text that names only the values and from text that also names a
# concept. Up to 0.6, which Landis and Koch call "moderate", the two detect different things in the
# images.
CONTRADICT = 0.6
_WORDED_ROWS = 2000  # images used to measure agreement between wordings
EM_STEPS = 200
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


def doubt_about_values(
    problem: Problem, prompt_set: PromptSet, role: str, rows: Tensor
) -> str | None:
    """Return why images (n, d) do not show an attribute's values, or None if they do.

    The images show the values if they form separate groups along the text direction, or if all
    wordings assign the same values. The distance between groups depends on a few images in the
    tails and may shrink with more images, but the agreement between wordings is not affected.

    Args:
        problem: the model that embeds the texts.
        prompt_set: prompt set of the attribute.
        role: role of the text embeddings.
        rows: unit features (n, d) of the images.
    """
    values = problem.zero_shot(prompt_set, role)
    pairs = combinations(values, 2)
    apart = min(separation(rows @ (value - other_value)) for value, other_value in pairs)
    single, joint = agreement_of_wordings(problem, prompt_set, role, rows)
    if joint < CONTRADICT:
        return (
            f"text that names only the values of {prompt_set.name} and text that also names a"
            f" concept disagree about the images (kappa {floored(joint)}; {CONTRADICT:g} is"
            " needed)."
        )
    if apart < SEPARATE and single < AGREE:
        return (
            f"the images do not fall into the values of {prompt_set.name}: the groups are"
            f" {floored(apart)} standard deviations apart ({SEPARATE:g} are enough), and"
            f" different templates for the values agree with a kappa of {floored(single)}"
            f" ({AGREE:g} is enough)."
        )
    return None


def floored(value: float) -> str:
    """Return a number with two decimals, rounded down.

    This prevents 1.998 from being shown as 2, a threshold that it misses.
    """
    return f"{math.floor(value * 100) / 100:.2f}"


def agreement_of_wordings(
    problem: Problem, prompt_set: PromptSet, role: str, rows: Tensor
) -> tuple[float, float]:
    """Return how well individual wordings agree with the zero-shot values of images.

    Args:
        problem: what the method is fitted on.
        prompt_set: the prompt set of the attribute.
        role: the role of the text embeddings.
        rows: unit image rows (n, d).

    Returns:
        Two values of Cohen's kappa. The first is the mean over the prompt groups that state every
        value, each of which labels the images with its own text, or 0 if there are fewer than
        `FEWEST` such groups. The second is for the mean text over all groups, or 1 if no group
        states every value.
    """
    sample = rows[:: -(-len(rows) // _WORDED_ROWS)]
    values = problem.zero_shot(prompt_set, role)
    wordings, joint = wordings_of(problem, prompt_set, role)
    single = mean_kappa(sample, values, wordings) if len(wordings) else 0.0
    return single, 1.0 if joint is None else mean_kappa(sample, values, joint[None])


def wordings_of(problem: Problem, prompt_set: PromptSet, role: str) -> tuple[Tensor, Tensor | None]:
    """Return the unit text embeddings of the values by single prompt groups, and by all groups.

    Args:
        problem: the model that embeds the texts.
        prompt_set: prompt set of the attribute.
        role: role of the text embeddings.

    Returns:
        Embeddings (w, a, d) of the w groups that state every value, or of none if there are fewer
        than `FEWEST`, and (a, d) of the mean texts, or None if no prompt states one of the values.
    """
    texts, value_codes, group_codes = stating(prompt_set)
    number = len(prompt_set.attributes)
    embedded = problem.host.embed(texts, role).double()

    def means(is_used: Tensor) -> Tensor | None:
        """Return the mean texts for a subset of the text, or None if a value is not stated."""
        if len(value_codes[is_used].unique()) < number:
            return None
        rows = [embedded[is_used & (value_codes == value)].mean(0) for value in range(number)]
        return normalize(torch.stack(rows), dim=1)

    listed = [means(group_codes == group) for group in group_codes.unique()]
    wordings = [texts for texts in listed if texts is not None]
    none = torch.empty(0, number, embedded.shape[-1], dtype=torch.float64)
    every = means(torch.ones_like(group_codes, dtype=torch.bool))
    return torch.stack(wordings) if len(wordings) >= FEWEST else none, every


def mean_kappa(rows: Tensor, values: Tensor, wordings: Tensor) -> float:
    """Return the mean Cohen's kappa between the labels of images and those by each wording.

    Args:
        rows: unit image rows (n, d).
        values: unit text embeddings (a, d) of the values.
        wordings: unit text embeddings (w, a, d) of the wordings.
    """
    labels = zero_shot(rows, values)
    kappas = [_kappa(zero_shot(rows, texts), labels, len(values)) for texts in wordings]
    return sum(kappas) / len(kappas)


def _kappa(codes: Tensor, other_codes: Tensor, number: int) -> float:
    """Return Cohen's kappa between two labellings (n,) with a given number of values."""
    observed = float((codes == other_codes).double().mean())
    share = codes.bincount(minlength=number).double() / len(codes)
    other_share = other_codes.bincount(minlength=number).double() / len(codes)
    by_chance = float(share @ other_share)
    return (observed - by_chance) / max(1 - by_chance, _TINY)


def separation(margins: Tensor) -> float:
    """Return the distance between two normals fitted to margins (n,), in standard deviations.

    The normals share a variance, have free weights, and are fitted by expectation-maximisation,
    starting from the quintiles.
    """
    # Standardise, so that the initial values suit every scale.
    x = (margins - margins.mean()) / margins.std().clamp(min=1e-9)
    low = x.quantile(0.2)
    high = x.quantile(0.8)
    scale = x.new_tensor(0.7)
    share = x.new_tensor(0.5)
    for _ in range(EM_STEPS):
        distance = ((x - low).square() - (x - high).square()) / (2 * scale.square())
        # E step: the probability (n,) that an image belongs to the upper normal.
        upper = ((share / (1 - share)).log() + distance).sigmoid()
        lower = 1 - upper
        # M step: weights, means and the common variance, weighted by these probabilities.
        share = upper.mean().clamp(1e-6, 1 - 1e-6)
        low = (lower @ x) / lower.sum().clamp(min=1e-9)
        high = (upper @ x) / upper.sum().clamp(min=1e-9)
        variance = (lower * (x - low).square() + upper * (x - high).square()).mean()
        scale = variance.sqrt().clamp(min=1e-6)
    return float((high - low).abs() / scale)


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
