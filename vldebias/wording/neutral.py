"""Replace the values that texts state about unnamed people by neutral words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vldebias.prompts import PromptSet, load_prompts
from vldebias.prompts.attribute import Attribute
from vldebias.utils.texts import checked_texts
from vldebias.wording.languages import language_of


def neutral_texts(
    texts: str | Iterable[str], attribute: str | Path | PromptSet = "gender"
) -> list[str]:
    """Replace stated values of unnamed people by neutral words, for training captions or alt texts.

    For gender, nouns and pronouns become neutral ("a man" -> "a person", "her" -> "their"). For
    other attributes, such as age, the adjectives are removed. Names, quotations, animals and texts
    in other languages than English stay unchanged.

    See also docs/how-to/captions.md.

    Args:
        texts: one or more texts, such as captions.
        attribute: prompt set of the attribute.

    Returns:
        One text for each text.

    >>> neutral_texts(["A man riding his horse", "a boy and a girl", "Ada and her dog"])
    ['A person riding their horse', 'two children', 'Ada and her dog']
    """
    read = Attribute(load_prompts(attribute), {})
    neutral = []
    for text in [texts] if isinstance(texts, str) else checked_texts(texts, "texts"):
        language = language_of(text)
        neutral.append(text if language is None else language.neutral(text, read))
    return neutral
