"""Pairs without class names (Table A.9): the words of the spurious attribute alone say what should not matter.

Source: section A.4.2 of the thesis, which takes "a photo of a [spurious attribute]" in the place of "a photo of a
[class name] with [spurious attribute]" and finds that robustness drops: class names matter.

Why not simply pair the spurious prompts of the set? Their differences lie in the span of A, where P0 is zero, and so
P0 (I + lam M)^-1 = P0 exactly: "orth-cali" would be "orth" under another name. The paper's rows differ, so its pairs
were other sentences, which it does not print; these are the quoted template, filled with the words of the set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet
from vldebias.templates import fill

__all__ = ["TEMPLATE", "class_agnostic"]

TEMPLATE = "a photo of a {attribute}"


def class_agnostic(prompts: PromptSet) -> PromptSet:
    """The set with pairs of "a photo of a [attribute word]", which name no class; all else stays.

    Values with as many words each are paired word by word, in their order (CelebA: male and female, man and woman).
    Otherwise all words are one group, every two of them a pair, as Table A.5 has it for Waterbirds. A set over several
    attributes is changed part by part.

    Raises:
        InvalidInputError: the set names no words of its attribute.
    """
    if prompts.parts:
        parts = tuple(class_agnostic(part) for part in prompts.parts)
        groups = tuple(dict.fromkeys(chain.from_iterable(part.groups for part in parts)))
        return replace(prompts, name=_name(prompts), parts=parts, groups=groups, held_out_groups=())
    if not prompts.attributes:
        raise InvalidInputError(
            f"{prompts.name}: class-agnostic pairs are made of the words of the attribute and the set names none; "
            "give it `attribute: {value: [word, ...], ...}`"
        )
    return replace(prompts, name=_name(prompts), groups=_groups(prompts.attributes), held_out_groups=())


def _groups(attributes: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    said = [[fill(TEMPLATE, attribute=word) for word in words] for words in attributes.values()]
    if len(set(map(len, said))) == 1:
        return tuple(zip(*said, strict=True))
    return (tuple(dict.fromkeys(chain.from_iterable(said))),)


def _name(prompts: PromptSet) -> str:
    return f"{prompts.name}, class-agnostic"
