"""Decide whether the default of models may act on searches: by reference images, or by texts alone.

A default is attached by people who do not measure it, so it acts where a test on data that it was
not fitted to says that it helps, and where nothing speaks for harm that the test cannot see. On
cells of models, attributes and galleries none became worse (docs/explanation/the-default.md has the
table and its command).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from vldebias.errors import ReferenceWarning
from vldebias.methods.bounded import bounded
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.folds import FEWEST, image_folds, text_folds
from vldebias.methods.method import Method, Problem
from vldebias.methods.predicted_gap import Change, PredictedGap, draw_counts
from vldebias.methods.reference import zero_shot
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet, StatedWords

HALVINGS = 5  # of the reference images: one alone depends on chance
# Two normals nearer than two deviations have one mode together (Ashman et al., 1994), so a split of
# the images by the texts would be a split of one group.
SEPARATE = 2.0
# The most that texts which state no value may lean to one value together, as a share of their
# spread: beyond these, edits of cells made searches worse (`eval.experiments.harm`).
LEAN_OF_GENDER = 2.0
LEAN_OF_OTHERS = 0.5
MALE = StatedWords(
    ["male", "man", "men", "boy", "boys", "gentleman", "gentlemen", "father", "husband"]
)
FEMALE = StatedWords(
    ["female", "woman", "women", "girl", "girls", "lady", "ladies", "mother", "wife"]
)
EM_STEPS = 200
_TINY = torch.finfo(torch.float64).tiny


def is_for_ranking(problem: Problem) -> bool:
    """Tell whether the sets are for search.

    One to four class prompts are a classification (birds, hair), where means are equalised within
    the classes. A set without any is for search too, and cannot be tested.
    """
    fewest = min(len(prompts.classes) for prompts in problem.attributes)
    return fewest == 0 or fewest >= FEWEST


def change_on_images(problem: Problem, role: str, method: Method) -> Change:
    """Measure what a method does to the gap of the class prompts, on images it was not fitted to.

    The reference images are halved; each half is fitted on, and the gap measured on the other by
    its zero-shot values. Of `HALVINGS` halvings the one with the median upper end counts, and of
    several attributes the one that gains least.

    Raises:
        UnusableReferenceError: no class prompts; fewer than five images of a value; images that do
            not fall into the values that the texts name; or images of another model.
    """
    if not problem.neutral:
        raise UnusableReferenceError(
            f"{problem.label} has no class prompts, so nothing can be tested on the images. Add at"
            f" least {FEWEST} of what is searched (classes: in the prompt set)."
        )
    _refuse_unclear_values(problem, role)
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


def _refuse_unclear_values(problem: Problem, role: str) -> None:
    """Refuse reference images that do not show the values that the texts name."""
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
        distance = max(separation(rows @ difference) for difference in _differences(values))
        if distance < SEPARATE:
            doubt = foreign(rows, problem, prompts, role)
            if doubt:
                raise UnusableReferenceError(f"reference: {doubt}")
            raise UnusableReferenceError(
                f"The reference images do not fall into the values of {prompts.name} that texts"
                f" name (separation {distance:.1f}, {SEPARATE:g} is needed), so nothing can be"
                " tested without labels. Name a method and measure it on labelled images."
            )


def _changes_of_halving(problem: Problem, role: str, method: Method, seed: int) -> list[Change]:
    """Return the change of each attribute, averaged over the two halves of one halving."""
    rows = _reference_rows(problem)
    # `image_folds` splits by position: another order is another halving.
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    assert problem.reference is not None
    shuffled = replace(problem, reference=replace(problem.reference, features=rows[order]))
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
    assert problem.reference is not None
    return torch.cat([*problem.reference.batches()])


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


def change_on_texts(problem: Problem, role: str, method: Method) -> Change | None:
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


def fit_within_bound(problem: Problem, role: str, method: Method, neutral: Tensor) -> Edit:
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


def reason_of_texts(problem: Problem, role: str) -> str:
    """Return why texts alone do not justify an edit although they predict help; "" if they do.

    What all texts without a value have in common along an attribute is how a text states no value
    ("a person" is nearer to "a young person"), and no association with images. Where it is large,
    an edit moves every query alike, and all towards one value.
    """
    for prompts in problem.attributes:
        # Searches for age were harmed at leans that those for gender bear.
        lean = common_lean(problem, prompts, role)
        largest_lean = LEAN_OF_GENDER if is_about_gender(prompts) else LEAN_OF_OTHERS
        if lean > largest_lean:
            return (
                f"Texts that state no value of {prompts.name} lean to one value together, by"
                f" {lean:.1f} times their spread ({largest_lean:g} is the most), and texts cannot"
                " tell whether images do so too."
            )
    return ""


def common_lean(problem: Problem, prompts: PromptSet, role: str) -> float:
    """Return |mean| / deviation of the neutral texts along the difference of two values, the
    largest over the pairs."""
    rows = problem.host.embed(problem.neutral, role)
    leans = []
    for difference in _differences(problem.zero_shot(prompts, role)):
        along = rows @ difference
        spread = along.std(correction=0).clamp(min=1e-9)
        leans.append(float(along.mean().abs() / spread))
    return max(leans)


def is_about_gender(prompts: PromptSet) -> bool:
    """Tell whether one value is named by words for men and the other by words for women."""
    if len(prompts.attributes) != 2:
        return False
    sexes = []
    for words in prompts.attributes.values():
        names_men = any(MALE.find(word) for word in words)
        names_women = any(FEMALE.find(word) for word in words)
        sexes.append((names_men, names_women))
    return sorted(sexes) == [(False, True), (True, False)]
