"""Represent the attribute to balance, with its values' words and shares."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain

from vldebias.errors import InvalidInputError
from vldebias.prompts.english.adjectives import ORDER, kind_of_words, rank_of
from vldebias.prompts.english.words import adjective, classes, has_gendered, lists, person
from vldebias.prompts.prompt_set import PromptSet, StatedWords

PEOPLE = ("mixed", "leave", "same")
# Names of placeholders by kind of attribute.
SLOTS = {"age": "age", "skin": "skin_tone", "origin": "race", "gender": "gender"}


class Attribute:
    """Store a prompt set's values with their words and shares.

    Prompt sets contain English words. For other languages, the words depend on the kind of
    attribute.

    Args:
        prompt_set: the values, with the adjective or phrase of each.
        shares: the share of the images for each value. Values from other sets are ignored. If no
            value in this set is included, all shares are equal.
        people: how groups of people are treated, one of `PEOPLE`.

    Attributes:
        set: the prompt set.
        words: the English adjective or phrase for each value.
        has_phrases: whether values are phrases after the noun.
        shares: the share of the images for each value.
        kind: "gender", "age", "skin", "origin" (race) or "size", or "" for any other attribute.
        gender: whether the adjectives express a gender.
        rank: the position of its adjectives in English adjective order.
        stated: a matcher for the words that state a value in English text.
        title: its name in a sentence, such as "gender" or "skin tone".
        slots: a pattern that matches its placeholders, such as {gender}.
        names: its names for variables and wildcards, such as "gender" or "sex".
        people: how groups of people are treated, one of `PEOPLE`.

    Raises:
        InvalidInputError: If the shares do not sum to 1, or a value has no adjective or phrase.
    """

    def __init__(
        self, prompt_set: PromptSet, shares: Mapping[str, float], people: str = "mixed"
    ) -> None:
        self.set = prompt_set
        self.words = words_of_values(prompt_set)
        self.has_phrases = bool(prompt_set.phrase)
        self.shares = {value: 1 / len(self.words) for value in self.words}
        # If all shares are for values in other sets, this set keeps equal shares.
        if set(shares).intersection(self.words):
            self.shares = {value: float(shares.get(value, 0)) for value in self.words}
        is_valid = all(0 <= share <= 1 for share in self.shares.values())
        if not is_valid or not math.isclose(sum(self.shares.values()), 1, abs_tol=1e-6):
            raise InvalidInputError(
                f"shares: got {self.shares}; expected shares in [0, 1] that sum to 1"
            )
        self.people = people
        last_words = {word.lower().split()[-1] for word in self.words.values()}
        self.gender = not self.has_phrases and has_gendered(last_words)
        self.kind = "gender" if self.gender else kind_of_words(last_words)
        is_nation = ORDER.index("nation") in map(rank_of, last_words)
        self.rank = ORDER.index(self.kind or ("nation" if is_nation else "size"))
        self.stated = StatedWords(_stated_words(prompt_set))
        # Match {gender}, {Gender} and { gender }, but not "${gender}" and "{{gender}}", which are
        # variables in other tools.
        self.title = re.sub("[-_]", " ", SLOTS.get(self.kind, prompt_set.name))
        slots = {SLOTS.get(self.kind, ""), "attribute", prompt_set.name.replace("-", "_")} - {""}
        name = "|".join(map(re.escape, sorted(slots)))
        self.slots = re.compile(rf"(?<![{{$])\{{\s*(?:{name})\s*\}}(?!\}})", re.IGNORECASE)
        self.names = frozenset({prompt_set.name, *lists().get(f"{self.kind}-variable", ())})


def _stated_words(prompt_set: PromptSet) -> tuple[str, ...]:
    """Return the words a prompt uses to state the attribute.

    If a value of the set, or one of its words, names a religion or its believers ("Hindu", "Sikh"),
    every such word states the attribute: "a Hindu priest" must stay unchanged even if the set only
    contains Sikhs and Muslims.
    """
    words_of_set = chain(prompt_set.attributes, *prompt_set.attributes.values())
    casefolded = {word.casefold() for word in words_of_set}
    words_for_religions = lists()["religion"]
    if any(word.casefold() in casefolded for word in words_for_religions):
        return (*prompt_set.stated_words, *words_for_religions)
    return prompt_set.stated_words


def can_balance(prompt_set: PromptSet) -> bool:
    """Return whether a prompt set describes people.

    Each value needs an adjective that can precede a noun for people, or a phrase that can follow
    such a noun.
    """
    with suppress(InvalidInputError):
        return bool(words_of_values(prompt_set))
    return False


def _declared(prompt_set: PromptSet) -> dict[str, str]:
    """Return adjectives by value, if one of the set's templates contains "{attribute} {concept}".

    The result is empty if any value has only phrases, or if a concept is not a person.
    """
    if not any("{attribute} {concept}" in template for template in prompt_set.templates):
        return {}
    concepts = [*prompt_set.class_names, *prompt_set.held_out_class_names]
    if not all(person(concept.lower().split()[-1]) for concept in concepts):
        return {}
    declared: dict[str, str] = {}
    for value, words in prompt_set.attributes.items():
        single = [word for word in words if word.replace("-", "").isalpha()]
        if not single:
            return {}
        declared[value] = single[0]
    return declared


def words_of_values(prompt_set: PromptSet) -> dict[str, str]:
    """Return the phrase, adjective or first adjectival word for each value.

    Raises:
        InvalidInputError: If a value has no adjective or phrase.
    """
    if prompt_set.phrase:
        return dict(prompt_set.phrase)
    if prompt_set.adjectives:
        return dict(prompt_set.adjectives)
    if not prompt_set.attributes:
        raise InvalidInputError(
            f"prompt set {prompt_set.name!r}: the set has no values; expected a set about people"
            " with `attribute`, such as 'gender'"
        )
    adjective_of_value = {
        value: _adjective(words) for value, words in prompt_set.attributes.items()
    }
    if not all(adjective_of_value.values()):
        adjective_of_value = _declared(prompt_set) or adjective_of_value
    for value, word in adjective_of_value.items():
        if not word:
            raise InvalidInputError(
                f"prompt set {prompt_set.name!r}: no word for the value {value!r}"
                f" ({', '.join(prompt_set.attributes[value])}) is known as an adjective for a"
                f" person; if the set is about people, add `adjectives` ({value}: ..., as in 'a"
                f" blind cook') or `phrase` ({value}: ..., as in 'a cook who is blind') with every"
                " value to its file, or to make_prompt_set"
            )
    return adjective_of_value


def _adjective(words: Sequence[str]) -> str:
    """Return the first word that can precede a noun for people, or ""."""
    for word in words:
        last = word.lower().split()[-1]
        is_adjective_alone = adjective(last) and "n" not in classes(last)
        if is_adjective_alone or rank_of(last) >= 0:
            return word
    return ""
