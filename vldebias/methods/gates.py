"""Test on unlabelled reference images whether the default may be applied to searches.

Most people attach the default without measuring its effect, so it is applied only if it helps on
reference images that it was not fitted to. Text alone is not enough for this test. It shows which
value a query favours, but not the point at which the query treats images of two values equally, so
an edit that removes this preference may turn a balanced search into a search for a single value
(see docs/explanation/the-default.md for measurements).

For a classification, the default only needs text, and `change_on_texts` tests it if the prompt set
has enough groups.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data.labels import Labels
from vldebias.errors import ReferenceWarning
from vldebias.methods.bounded import bounded
from vldebias.methods.equalise import ImageSplit, UnusableReferenceError, foreign
from vldebias.methods.folds import FEWEST, image_folds, text_folds
from vldebias.methods.method import EditMethod, Problem
from vldebias.methods.predicted_gap import Change, PredictedGap, draw_counts
from vldebias.methods.reference import CLASS, stating, zero_shot
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

HALVINGS = 5  # number of random halvings; the result of a single one depends on chance
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
# Minimum expected cosine between the directions from two halves of the images. Below it, each
# direction contains more noise than signal.
STABLE = 0.5
ENOUGH = 100  # at least this many images are used, if there are so many
_WORDED_ROWS = 2000  # images used to measure agreement between wordings
EM_STEPS = 200
_TINY = torch.finfo(torch.float64).tiny


def is_for_ranking(problem: Problem) -> bool:
    """Return whether the sets are meant for search.

    One to four class prompts, such as those for birds or hair, indicate a classification, and
    a set whose classes label reference images does, too. A set without class prompts is for search,
    but cannot be tested.
    """
    fewest = min(len(prompt_set.classes) for prompt_set in problem.attributes)
    has_labelled_classes = False
    if problem.reference is not None and CLASS in problem.reference.labels:
        labels = Labels.from_array(problem.reference.labels[CLASS]).names
        has_labelled_classes = bool({*labels} & {*problem.sets[0].class_names})
    return (fewest == 0 or fewest >= FEWEST) and not has_labelled_classes


def showing_values(problem: Problem, role: str) -> Problem:
    """Return the problem with only the half of its reference images nearest to the values' text.

    At least `ENOUGH` images are used. An index may also contain images or documents that show none
    of the values, such as landscapes. These are also assigned to the nearest value, and would
    distort the means. Images far from every value's text are therefore excluded.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.
    """
    rows = _reference_rows(problem)
    nearness = torch.zeros(len(rows), dtype=rows.dtype)
    for prompt_set in problem.attributes:
        nearness += rows @ normalize(problem.zero_shot(prompt_set, role).mean(0), dim=0)
    number = max(-(-len(rows) // 2), min(len(rows), ENOUGH))
    nearest = nearness.argsort(descending=True, stable=True)[:number].sort().values
    reference = replace(problem.images, features=rows[nearest], labels={})
    return replace(problem, reference=reference)


def change_on_images(problem: Problem, role: str, method: EditMethod) -> Change:
    """Measure how a method changes the class prompts' gap on held-out images.

    The reference images are halved. The method is fitted on each half, and the gap is measured on
    the other half using zero-shot values. Among `HALVINGS` halvings, the one whose interval has the
    median upper end is used, and among attributes, the one with the smallest improvement.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.
        method: the method to test.

    Raises:
        UnusableReferenceError: If there are no class prompts, the images show only one value, or
            they come from a different model.
    """
    if not problem.neutral:
        raise UnusableReferenceError(
            f"{problem.label} has no class prompts, so nothing can be tested on the images. Add at"
            f" least {FEWEST} examples of searches under `classes:` in the prompt set."
        )
    changes_of_attribute: list[list[Change]] = [[] for _ in problem.attributes]
    with warnings.catch_warnings():
        # Ignore the warning about too few images, which is expected for half of the images.
        warnings.simplefilter("ignore", ReferenceWarning)
        for seed in range(HALVINGS):
            for place, change in enumerate(_changes_of_halving(problem, role, method, seed)):
                changes_of_attribute[place].append(change)
    medians = []
    for changes in changes_of_attribute:
        ordered = sorted(changes, key=lambda change: change.high)
        medians.append(ordered[len(ordered) // 2])
    # The attribute with the smallest improvement decides.
    return max(medians, key=lambda change: change.high)


def refuse_unclear_values(problem: Problem, role: str) -> None:
    """Reject reference images that do not show the values that the text names.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.

    Raises:
        UnusableReferenceError: If a value has fewer than five images, the wordings disagree about
            the images, the images do not separate into the values, or they come from a different
            model.
    """
    rows = _reference_rows(problem)
    for prompt_set in problem.attributes:
        values = problem.zero_shot(prompt_set, role)
        # (a,) number of images of each value, by nearest text.
        counts = zero_shot(rows, values).bincount(minlength=len(values)).tolist()
        if min(counts) < FEWEST:
            raise UnusableReferenceError(
                f"The reference needs {FEWEST} images of each value of {prompt_set.name}; according"
                f" to the prompt set's text, it has {counts}. Add images."
            )
        doubt = doubt_about_values(problem, prompt_set, role, rows)
        if doubt:
            # If the images come from a different model, report that instead, because it is more
            # helpful.
            doubt = foreign(rows, problem, prompt_set, role) or f"{doubt} {_MEASURE}"
            raise UnusableReferenceError(f"reference: {doubt}")


_MEASURE = (
    "So nothing can be tested without labels. Name a method (method='difference') and measure it on"
    " labelled images."
)


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
    apart = min(separation(rows @ difference) for difference in _differences(values))
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


def refuse_unstable_means(problem: Problem, role: str) -> None:
    """Reject reference images whose two halves would give different directions.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.

    Raises:
        UnusableReferenceError: If the expected cosine of the two directions is below `STABLE`.
    """
    for prompt_set in problem.attributes:
        split = ImageSplit(problem.zero_shot(prompt_set, role), None, problem.images)
        if split.stability < STABLE:
            raise UnusableReferenceError(
                "reference: two halves of the images would give different directions for"
                f" {prompt_set.name} (cosine {floored(split.stability)}; {STABLE:g} is needed)."
                " Pass more images."
            )


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
    texts, value_codes, group_codes = stating(prompt_set)
    number = len(prompt_set.attributes)
    step = -(-len(rows) // _WORDED_ROWS)  # rounded up
    sample = rows[::step]
    expected = zero_shot(sample, problem.zero_shot(prompt_set, role))
    embedded = problem.host.embed(texts, role)

    def kappa_of(is_used: Tensor) -> float | None:
        """Return the kappa for a subset of the text, or None if a value is not stated in it."""
        if len(value_codes[is_used].unique()) < number:
            return None
        means = [embedded[is_used & (value_codes == value)].mean(0) for value in range(number)]
        worded = zero_shot(sample, normalize(torch.stack(means), dim=1))
        return _kappa(worded, expected, number)

    kappas = [kappa_of(group_codes == group) for group in group_codes.unique()]
    known = [kappa for kappa in kappas if kappa is not None]
    single = sum(known) / len(known) if len(known) >= FEWEST else 0.0
    joint = kappa_of(torch.ones_like(group_codes, dtype=torch.bool))
    return single, 1.0 if joint is None else joint


def _kappa(codes: Tensor, other_codes: Tensor, number: int) -> float:
    """Return Cohen's kappa between two labellings (n,) with a given number of values."""
    observed = float((codes == other_codes).double().mean())
    share = codes.bincount(minlength=number).double() / len(codes)
    other_share = other_codes.bincount(minlength=number).double() / len(codes)
    by_chance = float(share @ other_share)
    return (observed - by_chance) / max(1 - by_chance, _TINY)


def _changes_of_halving(problem: Problem, role: str, method: EditMethod, seed: int) -> list[Change]:
    """Return each attribute's change, averaged over the two halves of one halving."""
    rows = _reference_rows(problem)
    # `image_folds` splits by position, so each order gives a different halving.
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    shuffled = replace(problem, reference=replace(problem.images, features=rows[order]))
    neutral = problem.host.embed(problem.neutral, role)
    halves = []
    for fitted, gaps in image_folds(shuffled, role):
        edited = method.fit(fitted, role)(neutral)
        changes = [gap.of_texts(edited) - gap.of_texts(neutral) for gap in gaps]
        halves.append(torch.stack(changes).mean(2))  # (attributes, 1 + resamples)
    mean = torch.stack(halves).mean(0)
    return [Change.from_resamples(resamples) for resamples in mean]


def _reference_rows(problem: Problem) -> Tensor:
    """Return the features (n, d) of the reference images."""
    return torch.cat([*problem.images.batches()])


def _differences(values: Tensor) -> Iterable[Tensor]:
    """Yield the difference (d,) between the rows of each pair of k values (k, d)."""
    for value, other_value in combinations(values, 2):
        yield value - other_value


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
