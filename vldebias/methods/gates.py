"""Decide whether the default may act on searches, by tests on unlabelled reference images.

Most people attach a default without measuring it, so it acts only if reference images show that it
helps on images that it was not fitted to. Texts alone cannot show that: they tell how a query
leans, but not where the images of two values are level, and an edit that removes the lean of a text
may move an even search to one value (docs/explanation/the-default.md has the measurements).

A classification is another case. Its default acts with texts alone, and `change_on_texts` tests it
if the prompt set has enough groups.
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

from vldebias.errors import ReferenceWarning
from vldebias.methods.bounded import bounded
from vldebias.methods.equalise import ImageSplit, UnusableReferenceError, foreign
from vldebias.methods.folds import FEWEST, image_folds, text_folds
from vldebias.methods.method import EditMethod, Problem
from vldebias.methods.predicted_gap import Change, PredictedGap, draw_counts
from vldebias.methods.reference import stating, zero_shot
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

HALVINGS = 5  # of the reference images: the result of a single one depends on chance
# Two normals nearer than two deviations have one mode together (Ashman et al., 1994), so a split of
# the images by the texts may be a split of one group.
SEPARATE = 2.0
# Cohen's kappa of what single wordings of the values read in the images with what all of them read.
# From .8 on it is "almost perfect" in the terms of Landis and Koch (1977).
AGREE = 0.8
# The same for the texts that name the values alone and those that name them with a concept. Below
# .6, which Landis and Koch call "moderate", the two name different things in the images.
CONTRADICT = 0.6
# Cosine expected between the directions of two halves of the images: below, each of them holds more
# noise than signal.
STABLE = 0.5
ENOUGH = 100  # images that are used at least, if there are so many
_WORDED_ROWS = 2000  # images that are enough for the agreement of wordings
EM_STEPS = 200
_TINY = torch.finfo(torch.float64).tiny


def is_for_ranking(problem: Problem) -> bool:
    """Tell whether the sets are for search.

    One to four class prompts are a classification (birds, hair), where means are equalised within
    the classes. A set without any is for search too, and cannot be tested.
    """
    fewest = min(len(prompts.classes) for prompts in problem.attributes)
    return fewest == 0 or fewest >= FEWEST


def showing_values(problem: Problem, role: str) -> Problem:
    """Return the problem with the half of its reference images that is nearest to the texts of the
    values, at least `ENOUGH` images.

    An index holds images, or documents, that show none of the values: a landscape, say. Texts read
    a value in them all the same, and the means of such values differ in whatever tells landscapes
    apart. What is far from the texts of all values is left out.
    """
    rows = _reference_rows(problem)
    nearness = torch.zeros(len(rows), dtype=rows.dtype)
    for prompts in problem.attributes:
        nearness += rows @ normalize(problem.zero_shot(prompts, role).mean(0), dim=0)
    number = max(-(-len(rows) // 2), min(len(rows), ENOUGH))
    nearest = nearness.argsort(descending=True, stable=True)[:number].sort().values
    reference = replace(problem.images, features=rows[nearest], labels={})
    return replace(problem, reference=reference)


def change_on_images(problem: Problem, role: str, method: EditMethod) -> Change:
    """Measure what a method does to the gap of the class prompts, on images it was not fitted to.

    The reference images are halved; each half is fitted on, and the gap measured on the other by
    its zero-shot values. Of `HALVINGS` halvings the one with the median upper end counts, and of
    several attributes the one that gains least.

    Raises:
        UnusableReferenceError: no class prompts; images of one value alone; or images of another
            model.
    """
    if not problem.neutral:
        raise UnusableReferenceError(
            f"{problem.label} has no class prompts, so nothing can be tested on the images. Add at"
            f" least {FEWEST} of what is searched (classes: in the prompt set)."
        )
    changes_of_attribute: list[list[Change]] = [[] for _ in problem.attributes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceWarning)  # half of the images are less certain
        for seed in range(HALVINGS):
            for place, change in enumerate(_changes_of_halving(problem, role, method, seed)):
                changes_of_attribute[place].append(change)
    medians = []
    for changes in changes_of_attribute:
        ordered = sorted(changes, key=lambda change: change.high)
        medians.append(ordered[len(ordered) // 2])
    # The attribute of which the least can be promised decides.
    return max(medians, key=lambda change: change.high)


def refuse_unclear_values(problem: Problem, role: str) -> None:
    """Refuse reference images that do not show the values that the texts name.

    Raises:
        UnusableReferenceError: fewer than five images of a value; wordings that disagree about the
            images; images that do not fall into the values; or images of another model.
    """
    rows = _reference_rows(problem)
    for prompts in problem.attributes:
        values = problem.zero_shot(prompts, role)
        # (a,) images of each value, by the nearest text.
        counts = zero_shot(rows, values).bincount(minlength=len(values)).tolist()
        if min(counts) < FEWEST:
            raise UnusableReferenceError(
                f"The reference needs {FEWEST} images of each value of {prompts.name}; by the texts"
                f" it has {counts}. Add images."
            )
        doubt = _doubt_about_values(problem, prompts, role, rows)
        if doubt:
            # Images of another model would fail for that reason, which is more helpful to know.
            doubt = foreign(rows, problem, prompts, role) or f"{doubt} {_MEASURE}"
            raise UnusableReferenceError(f"reference: {doubt}")


_MEASURE = (
    "So nothing can be tested without labels. Name a method (method='difference') and measure it on"
    " labelled images."
)


def _doubt_about_values(
    problem: Problem, prompts: PromptSet, role: str, rows: Tensor
) -> str | None:
    """Return why images (n, d) do not show the values of an attribute; None if they do.

    They show them if they fall into separate groups along the texts, or if every wording of the
    values reads them alike. The distance of the groups depends on the tails of few images, and may
    shrink if there are more of them; the agreement of wordings does not.
    """
    values = problem.zero_shot(prompts, role)
    apart = min(separation(rows @ difference) for difference in _differences(values))
    single, joint = agreement_of_wordings(problem, prompts, role, rows)
    if joint < CONTRADICT:
        return (
            f"texts that name the values of {prompts.name} alone and with a concept disagree about"
            f" the images (kappa {_floored(joint)}, {CONTRADICT:g} is needed)."
        )
    if apart < SEPARATE and single < AGREE:
        return (
            f"the images do not fall into the values of {prompts.name} that texts name: they are"
            f" {_floored(apart)} deviations apart ({SEPARATE:g} are enough), and wordings of the"
            f" values agree on them with a kappa of {_floored(single)} ({AGREE:g} is enough)."
        )
    return None


def refuse_unstable_means(problem: Problem, role: str) -> None:
    """Refuse reference images of which two halves would give different directions.

    Raises:
        UnusableReferenceError: the expected cosine of the two is below `STABLE`.
    """
    for prompts in problem.attributes:
        split = ImageSplit(problem.zero_shot(prompts, role), None, problem.images)
        if split.stability < STABLE:
            raise UnusableReferenceError(
                "reference: two halves of the images would give different directions for"
                f" {prompts.name} (cosine {_floored(split.stability)}, {STABLE:g} is needed). Pass"
                " more images."
            )


def _floored(value: float) -> str:
    """Return a number with two decimals, rounded down, so that 1.998 is not shown as the 2 that it
    falls short of."""
    return f"{math.floor(value * 100) / 100:.2f}"


def agreement_of_wordings(
    problem: Problem, prompts: PromptSet, role: str, rows: Tensor
) -> tuple[float, float]:
    """Return Cohen's kappa of what wordings of the values read in images (n, d) with the zero-shot
    values.

    Returns:
        The mean over the prompt groups that state every value, each of which reads the images by
        its own texts, 0 with fewer than `FEWEST` such groups; and the kappa of what the mean texts
        of all groups read, 1 without such a group.
    """
    texts, value_codes, group_codes = stating(prompts)
    number = len(prompts.attributes)
    step = -(-len(rows) // _WORDED_ROWS)  # rounded up
    sample = rows[::step]
    expected = zero_shot(sample, problem.zero_shot(prompts, role))
    embedded = problem.host.embed(texts, role)

    def kappa_of(is_used: Tensor) -> float | None:
        """Return the kappa of some of the texts; None if they do not state every value."""
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
    """Return Cohen's kappa of two codings (n,) into a number of values."""
    observed = float((codes == other_codes).double().mean())
    share = codes.bincount(minlength=number).double() / len(codes)
    other_share = other_codes.bincount(minlength=number).double() / len(codes)
    by_chance = float(share @ other_share)
    return (observed - by_chance) / max(1 - by_chance, _TINY)


def _changes_of_halving(problem: Problem, role: str, method: EditMethod, seed: int) -> list[Change]:
    """Return the change of each attribute, averaged over the two halves of one halving."""
    rows = _reference_rows(problem)
    # `image_folds` splits by position: another order is another halving.
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    shuffled = replace(problem, reference=replace(problem.images, features=rows[order]))
    neutral = problem.host.embed(problem.neutral, role)
    halves = []
    for fitted, gaps in image_folds(shuffled, role):
        edited = method.fit(fitted, role)(neutral)
        changes = [gap.of_texts(edited) - gap.of_texts(neutral) for gap in gaps]
        halves.append(torch.stack(changes).mean(2))  # (attributes, 1 + resamples)
    mean = torch.stack(halves).mean(0)
    return [Change.of_resamples(resamples) for resamples in mean]


def _reference_rows(problem: Problem) -> Tensor:
    """Return the features (n, d) of the reference images."""
    return torch.cat([*problem.images.batches()])


def _differences(values: Tensor) -> Iterable[Tensor]:
    """Yield the difference (d,) of each pair of values (k, d)."""
    for value, other_value in combinations(values, 2):
        yield value - other_value


def separation(margins: Tensor) -> float:
    """Return the distance, in deviations, of the means of two normals fitted to margins (n,).

    The two have one variance and free shares, and are fitted by expectation-maximisation from the
    quintiles.
    """
    # Standardised, so that first guesses fit every scale.
    x = (margins - margins.mean()) / margins.std().clamp(min=1e-9)
    low = x.quantile(0.2)
    high = x.quantile(0.8)
    scale = x.new_tensor(0.7)
    share = x.new_tensor(0.5)
    for _ in range(EM_STEPS):
        distance = ((x - low).square() - (x - high).square()) / (2 * scale.square())
        # E step: the probability (n,) that an image is of the upper normal.
        of_high = ((share / (1 - share)).log() + distance).sigmoid()
        of_low = 1 - of_high
        # M step: shares, means and the common variance, weighted by these probabilities.
        share = of_high.mean().clamp(1e-6, 1 - 1e-6)
        low = (of_low @ x) / of_low.sum().clamp(min=1e-9)
        high = (of_high @ x) / of_high.sum().clamp(min=1e-9)
        variance = (of_low * (x - low).square() + of_high * (x - high).square()).mean()
        scale = variance.sqrt().clamp(min=1e-6)
    return float((high - low).abs() / scale)


def change_on_texts(problem: Problem, role: str, method: EditMethod) -> Change | None:
    """Predict what a method does to the gap of the class prompts, from groups it was not fitted to.

    Prompts that state a value stand for images. The change is a share of the gap without an edit,
    averaged over folds and attributes; class prompts are resampled with the groups.

    Returns:
        The change, or None where it cannot be predicted: no class prompts, or fewer than `FEWEST`
        groups that state two values.
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
    # A change is a share of the gap of the sample, and not of each resample, which may be near 0.
    gap_before = torch.stack(before)  # (folds, attributes, 1 + b)
    gap_after = torch.stack(after)
    sample = gap_before[..., :1].clamp(min=_TINY)
    changes = (gap_after - gap_before) / sample
    return Change.of_resamples(changes.mean((0, 1)))


def fit_within_bound(problem: Problem, role: str, method: EditMethod, neutral: Tensor) -> Edit:
    """Fit a method within the problem's bound on the loss of the neutral texts (q, d); the identity
    where the model embeds the texts of all values alike."""
    try:
        edit = method.fit(problem, role)
    except NothingToRemoveError:
        return CalibratedProjection.identity(problem.host.dim(role), method.name)
    if problem.max_loss is None:
        return edit
    return bounded(edit, neutral, problem.max_loss)


def _mean_gaps(gaps: Sequence[PredictedGap], texts: Tensor, drawn: Tensor) -> Tensor:
    """Return the mean gap (attributes, 1 + b) of texts that are resampled by counts (1 + b, q)."""
    gaps_of_texts = torch.stack([gap.of_texts(texts) for gap in gaps])
    return (gaps_of_texts * drawn).sum(2) / drawn.sum(1)
