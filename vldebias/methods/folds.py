"""Split prompts into parts for fitting and for predicting the gap.

There are five folds over the prompt groups, or the set's held-out groups. Prompts that state a
value are used instead of images. Seeds are fixed, so decisions based on folds are reproducible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from vldebias.methods.method import Problem
from vldebias.methods.predicted_gap import PredictedGap
from vldebias.methods.reference import stating
from vldebias.prompts import PromptSet

FOLDS = 5
FEWEST = 5  # resamples of fewer concepts or groups do not show how new ones would vary


Fold = tuple[Problem, list[PredictedGap]]
"""The problem that an edit is fitted to, and each attribute's gap on held-out data."""


def text_folds(problem: Problem, role: str) -> Iterator[Fold]:
    """Yield folds over the groups in which prompts state two values.

    All other groups are used for fitting in every fold. There are no folds if fewer than `FEWEST`
    groups of an attribute state two values. Folds in which some value has no prompt are skipped.

    Args:
        problem: what the method is fitted on; its prompts are split.
        role: the role of the text embeddings.
    """
    for seed, (fitted, left_out) in enumerate(_splits_of_groups(problem.attributes)):
        gaps = []
        for prompt_set in left_out:
            # Treat each group as a class, so that prompts about the same concept are compared.
            texts, values, groups = stating(prompt_set)
            rows = problem.host.embed(texts, role)
            gaps.append(PredictedGap(rows, values, groups, seed=seed, resamples_classes=True))
        yield replace(problem, sets=tuple(fitted)), gaps


def _splits_of_groups(
    sets: Sequence[PromptSet],
) -> Iterator[tuple[Sequence[PromptSet], Sequence[PromptSet]]]:
    """Yield, for each split, the prompt sets to fit on and the held-out sets."""
    held_out = []
    for prompt_set in sets:
        tested_groups = prompt_set.held_out_variants or prompt_set.variants[:1]
        held_out.append(replace(prompt_set, variants=tested_groups, held_out_variants=()))
    if all(len(_groups_of_two_values(prompt_set)) >= FEWEST for prompt_set in held_out):
        yield (
            sets,
            [_only(prompt_set, _groups_of_two_values(prompt_set)) for prompt_set in held_out],
        )
        return
    groups_of_set = [_groups_of_two_values(prompt_set) for prompt_set in sets]
    fewest = min(len(groups) for groups in groups_of_set)
    if fewest < FEWEST:
        return
    number = min(FOLDS, fewest // 2)  # a single concept has no variance
    for fold in range(number):
        fitted = []
        left_out = []
        for prompt_set, groups in zip(sets, groups_of_set, strict=True):
            # Take every k-th group, because files list similar groups (such as related professions)
            # together.
            tested = groups[fold::number]
            fitted.append(_only(prompt_set, set(range(len(prompt_set.variants))) - set(tested)))
            left_out.append(_only(prompt_set, tested))
        # Methods can only be fitted if every value still has prompts.
        if all(prompt_set.names_values for prompt_set in fitted):
            yield fitted, left_out


def _groups_of_two_values(prompt_set: PromptSet) -> list[int]:
    """Return the indices of the groups in which prompts state at least two values."""
    _, values, groups = stating(prompt_set)
    numbers = groups.unique().tolist()
    return [number for number in numbers if len(values[groups == number].unique()) > 1]


def _only(prompt_set: PromptSet, kept: Iterable[int]) -> PromptSet:
    """Return the set restricted to some of its groups."""
    return replace(
        prompt_set, variants=tuple(prompt_set.variants[number] for number in sorted(kept))
    )
