"""Which prompts of a set describe which value of its attribute: the texts of a zero-shot attribute classifier."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from vldebias.errors import PromptSetError
from vldebias.prompts import PromptSet
from vldebias.stated import StatedWords

__all__ = ["value_prompts"]


def value_prompts(prompt_set: PromptSet) -> dict[str, tuple[str, ...]]:
    """Attribute value -> prompts that name a word of this value and of no other.

    The spurious prompts where they cover every value, since they are about the attribute alone, else the pairs.

    Raises:
        PromptSetError: the set has no attribute words or several attributes, or a value has no prompt of its own.
    """
    if prompt_set.parts or len(prompt_set.attributes) < 2:
        kind = f"{len(prompt_set.parts)} attributes" if prompt_set.parts else "no words for its attribute"
        raise PromptSetError(
            f"prompt set {prompt_set.name!r}: expected one attribute with words for each value, got {kind}; "
            "use the sets of one attribute, or give the set an `attribute` mapping"
        )
    found = _sorted_by_value(prompt_set, prompt_set.spurious)
    if not all(found.values()):
        found = _sorted_by_value(prompt_set, chain.from_iterable(prompt_set.groups))
    empty = [value for value, prompts in found.items() if not prompts]
    if empty:
        raise PromptSetError(
            f"prompt set {prompt_set.name!r}: no prompt names a word of {empty} alone; add one under `spurious`"
        )
    return found


def _sorted_by_value(prompt_set: PromptSet, prompts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    words = {value: StatedWords(words) for value, words in prompt_set.attributes.items()}
    found: dict[str, list[str]] = {value: [] for value in words}
    for prompt in dict.fromkeys(prompts):
        named = [value for value, matcher in words.items() if matcher.match(prompt)]
        if len(named) == 1:
            found[named[0]].append(prompt)
    return {value: tuple(prompts) for value, prompts in found.items()}
