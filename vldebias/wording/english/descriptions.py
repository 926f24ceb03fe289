"""Read the values that English descriptions state, and replace them by neutral words.

A description is a caption, or a prompt that a language model rewrote. The phrase for a person and
the pronouns that refer to them state one value together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.words import (
    STOPS,
    base,
    classes,
    gendered,
    has_gendered,
    is_inflected,
    kinds,
    listed,
    read_lists,
    singular,
)
from vldebias.prompts.english.words import person as is_person
from vldebias.prompts.prompt_set import StatedWords, append_word
from vldebias.wording.english.dates import AGE_BEFORE_NOUN, AGE_BEHIND
from vldebias.wording.english.names import find_names
from vldebias.wording.english.people import find_persons
from vldebias.wording.english.phrases import Persons
from vldebias.wording.english.stated import names_thing
from vldebias.wording.english.text import Text, read_text, with_capitals_of
from vldebias.wording.language import (
    NounValue,
    Replacement,
    Value,
    replace_all,
)

_LISTS = read_lists(Path(__file__).with_name("pairs.txt"))
_ADJECTIVES = frozenset(word for pair in _LISTS["adjective"] for word in pair.split("/"))
# A word before a gendered noun, such as "teenage" -> the noun that replaces both.
_NOUNS_ALONE = {
    word: noun or word for word, _, noun in (entry.partition("/") for entry in _LISTS["noun-alone"])
}
_PLURAL_VERBS = dict(pair.split("/") for pair in _LISTS["plural-verb"])
_FORMS_FOR_WOMEN = {male: female for female, male in (pair.split("/") for pair in _LISTS["origin"])}
_DESCENT = re.compile(
    r",? (?:of|with) (?:[\w-]+ ){1,2}(?:descent|heritage|origin|ethnicity|ancestry|background)\b",
    re.IGNORECASE,
)
_AGE_PHRASE = re.compile(
    rf",? ?(?:(?:who is|who's|probably|perhaps|around|about|approximately) ){{0,4}}"
    rf"(?:in |at )?(?:{AGE_BEHIND.pattern})",
    re.IGNORECASE,
)


class _Gendered(NamedTuple):
    """The gender that a word states, and the neutral word or ""."""

    side: str
    neutral: str


@cache
def _gendered_words() -> dict[str, _Gendered]:
    """Return a mapping from each listed gendered word to its gender and its neutral form."""
    words: dict[str, _Gendered] = {}
    for name in ("noun", "relative", "adjective", "pronoun"):
        for pair in _LISTS[name]:
            female, male, *rest = pair.split("/")
            neutral = "".join(rest)
            words.setdefault(female, _Gendered("female", neutral))
            # A tailor can be a woman.
            if gendered(male):
                words.setdefault(male, _Gendered("male", neutral))
    return words


def _side_of(word: str) -> str:
    """Return the gender that a lower-case word states, or ""."""
    known = _gendered_words().get(word)
    if known is not None:
        return known.side
    if word.endswith(("woman", "women")):
        return "female"
    return "male" if word.endswith(("man", "men")) and gendered(word) else ""


def agreeing_form(word: str, text: str, end: int) -> str:
    """Return the form of an adjective that fits a person: "Latina" for a woman, else "Latino".

    Args:
        word: The adjective.
        text: The text, which may state that the person is female.
        end: The offset of the end of the person's noun, or of a placeholder before it.
    """
    words = read_text(text)
    noun = re.split(r"[^a-z]", text[:end].lower())[-1]
    if listed(noun, "female-noun"):
        return _FORMS_FOR_WOMEN.get(word, word)
    if word not in _FORMS_FOR_WOMEN or not has_gendered(words.low):
        return word
    for figure in sorted(_find_figures(words, ()), key=attrgetter("first")):
        head = figure.heads[0]
        if words.start[head] + len(words.words[head]) >= end:
            return _FORMS_FOR_WOMEN[word] if figure.side == "female" else word
    return word


def _without_ending(word: str) -> str:
    """Remove an ending with an apostrophe, as in "man's"."""
    return re.sub(r"'(?:s|d|ll)?$", "", word)


# ---- finding people and animals


@dataclass(eq=False)
class _Figure:
    """A person or an animal mentioned in a text.

    Attributes:
        text: The text.
        words: The positions of the words that refer to the figure.
        heads: The positions of its nouns.
        number: The index of the same person among the given people, or None.
        is_plural, is_animal: Whether it is like "three cooks" or "a dog".
        side: The gender stated in the text, "female" or "male", or "" if none is stated.
    """

    text: Text
    words: list[int]
    heads: Sequence[int]
    number: int | None = None
    is_plural: bool = False
    is_animal: bool = False
    side: str = field(init=False)

    def __post_init__(self) -> None:
        low = self.text.low
        self.words = [i for i in self.words if not listed(low[i], "gendered-pronoun")]
        sides = [_side_of(_without_ending(low[i])) for i in self.words]
        self.side = next(filter(None, sides), "")

    @property
    def first(self) -> int:
        """The position of the first word."""
        return min(self.words, default=self.heads[0])

    def can_be(self, side: str) -> bool:
        """Return whether a singular pronoun of the given gender may refer to this figure."""
        return not self.is_plural and self.side in ("", side)

    def last_mention(self, i: int) -> int:
        """Return the position of the last mention before word i, or -1 if there is none."""
        return max((place for place in self.words if place < i), default=-1)


def match(text: Text, persons: Persons, people: Sequence[NounValue]) -> list[int | None]:
    """Return, for each person in a text, the index of the same person among the given people.

    People match if they have the same noun. If one given person is left, they match the only "man"
    or "woman" left in the text. If only one person is given and the text is about one person, the
    nouns may differ, as in "a doctor" and "a surgeon".

    Args:
        text: The text.
        persons: The noun phrases for each person in the text.
        people: The noun of each given person, see `values_of_persons`.
    """
    matched: list[int | None] = [None] * len(persons)
    for number, (noun, _) in enumerate(people):
        last_word = singular(noun.lower().split()[-1])
        for place, mentions in enumerate(persons):
            nouns = [singular(_without_ending(text.low[mention.head])) for mention in mentions]
            if matched[place] is None and last_word in nouns:
                matched[place] = number
                break
    remaining = [number for number in range(len(people)) if number not in matched]
    candidates: list[int] = []
    for place, (first, *_) in enumerate(persons):
        # Groups and relatives ("his wife") are somebody else.
        is_other = first.plural or listed(text.low[first.opening], "possessor")
        if matched[place] is None and not is_other:
            candidates.append(place)
    of_gender = [place for place in candidates if gendered(text.low[persons[place][0].head])]
    if len(people) > 1 or of_gender:
        candidates = of_gender
    if len(remaining) == 1 and len(candidates) == 1:
        matched[candidates[0]] = remaining[0]
    return matched


def _find_figures(text: Text, people: Sequence[NounValue]) -> list[_Figure]:
    """Return all people and animals in a text, each with the pronouns that refer to them."""
    figures = _figures_of_phrases(text, people)
    pronouns = _add_other_words(text, figures)
    for i in pronouns:
        candidates = _referents(text, figures, i)
        if len(candidates) == 1:
            candidates[0].words.append(i)
            candidates[0].side = _side_of(text.low[i])
    return figures


def _figures_of_phrases(text: Text, people: Sequence[NounValue]) -> list[_Figure]:
    """Return the figures described by noun phrases in a text."""
    persons = find_persons(text.prompt)
    numbers = match(text, persons, people)
    figures: list[_Figure] = []
    for mentions, number in zip(persons, numbers, strict=True):
        # Each phrase for a person who is not given may describe someone who is.
        parts = [[mention] for mention in mentions] if number is None else [mentions]
        for part in parts:
            words = {i for mention in part for i in range(mention.opening, mention.head + 1)}
            heads = [mention.head for mention in part]
            figures.append(_Figure(text, list(words), heads, number, is_plural=part[0].plural))
    return figures


def _add_other_words(text: Text, figures: list[_Figure]) -> list[int]:
    """Add nouns outside of noun phrases to the figures, and return the positions of pronouns."""
    known = {i for figure in figures for i in figure.words}
    pronouns: list[int] = []
    for i, word in enumerate(map(_without_ending, text.low)):
        if i in known or text.silent[i]:
            continue
        if listed(word, "gendered-pronoun"):
            pronouns.append(i)
            continue
        # The same noun with "the" is the same person.
        again = [f for f in figures if word in [text.low[k] for k in f.heads]]
        if len(again) == 1 and text.before(i) == "the":
            again[0].words.append(i)
            continue
        is_animal = listed(singular(word), "animal")
        is_person = bool(_side_of(word)) and word not in _ADJECTIVES
        if is_animal or is_person:
            is_plural = singular(word) != word
            figures.append(_Figure(text, [i], [i], is_plural=is_plural, is_animal=is_animal))
    return pronouns


def _referents(text: Text, figures: Sequence[_Figure], i: int) -> Sequence[_Figure]:
    """Return the figures to which pronoun i may refer."""
    figures = [figure for figure in figures if figure.can_be(_side_of(text.low[i]))]
    earlier = [figure for figure in figures if figure.first < i]
    if text.after(i):
        earlier = _figures_of_clause(text, earlier, i) or earlier
    return [figure for figure in earlier if not figure.is_animal] or earlier


def _figures_of_clause(text: Text, figures: Sequence[_Figure], i: int) -> list[_Figure]:
    """Return the figures in the clause of word i, to which a pronoun refers preferentially."""
    opening = i  # the first word of the clause, such as "while" or "who"
    while not text.opens[opening] and not listed(text.low[opening], "opens-clause"):
        opening -= 1
    if text.low[opening] == "who":
        # A relative clause is about the noun before it: "a woman who wrings her hands".
        return [figure for figure in figures if figure.last_mention(i) >= opening - 1]
    # This applies to "leans over the bed of an old woman and holds her hand", but not to "while the
    # coach tapes her gloves", where the gloves may belong to anybody.
    return [figure for figure in figures if figure.side and figure.last_mention(i) >= opening]


def values_of_persons(text: str, attribute: Attribute, people: Sequence[NounValue]) -> list[Value]:
    """Return the value that a text states for each given person, or None.

    A value of another attribute than gender is returned for the first person.

    Args:
        text: The text.
        attribute: The attribute.
        people: The noun of each person in the text, or in the prompt of which it is a rewritten
            version.
    """
    values: list[Value] = [None] * len(people)
    if not attribute.gender:
        stated = values_of_words(text, attribute)
        values[0] = stated[0] if len(stated) == 1 else None
        return values
    value_of_side = {word.lower(): value for value, word in attribute.words.items()}
    for figure in _find_figures(read_text(text), people):
        if figure.number is not None:
            values[figure.number] = value_of_side.get(figure.side)
    return values


def values_of_words(text: str, attribute: Attribute) -> list[str]:
    """Return the values whose words a text contains.

    A gendered word does not count in quotations and names of things.

    Args:
        text: The text.
        attribute: The attribute.
    """
    if not attribute.gender:
        words_of_value = attribute.set.attributes.items()
        matchers = {v: StatedWords((*words, attribute.words[v])) for v, words in words_of_value}
        return [value for value, matcher in matchers.items() if matcher.find(text)]
    words = read_text(text)
    sides = set()
    for i, word in enumerate(words.low):
        if not words.silent[i] and not names_thing(words, i):
            sides.add(_side_of(_without_ending(word)))
    return [value for value, word in attribute.words.items() if word.lower() in sides]


# ---- neutral words


def _is_before_noun(words: Text, i: int) -> bool:
    """Return whether "her" is a determiner: "her coat", but not "next to her on a bench"."""
    after = words.after(i)
    following = words.after(i + 1)
    if listed(after, "preposition-or-adjective") and following and not listed(following, *STOPS):
        return not listed(following, "determiner")
    if after == "next":
        return following != "to"
    if after.endswith("ly") and not set(kinds(after)) & set("anp"):
        return False
    if not following and "n" in kinds(after):
        return True  # in "a nurse on her round", "round" cannot be a preposition without an object
    return bool(after) and not listed(after, "no-noun", "preposition", "function")


def _replace(words: Text, i: int, new: str) -> Replacement:
    """Replace word i, keeping its capitalization and ending, and fix the article before it."""
    old = words.words[i]
    ending = old[len(_without_ending(words.low[i])) :]
    if new == "they" and ending == "'s":
        ending = "'re"  # "he's riding"
    new = with_capitals_of(old, new.replace("_", " ")) + ending
    start = words.start[i]
    end = start + len(old)
    article = re.search(r"\ban? $", words.prompt[:start], re.IGNORECASE)
    if article is not None:
        new = append_word(article[0], new)
        start = article.start()
    return Replacement(start, end, new)


def _neutral_word(word: str) -> str:
    """Return the neutral form of a lower-case word, or "" if it has none."""
    listed_word = _gendered_words().get(word)
    known = listed_word.neutral if listed_word else ""
    compound = re.fullmatch(r"(\w{3,}?)(?:wo)?(man|men)", word)
    # "doberman" is no compound of "dober".
    if known or compound is None or not classes(compound[1]) or word in _LISTS["no-compound"]:
        return known
    return compound[1] + ("person" if compound[2] == "man" else "people")


def neutral_text(prompt: str, attribute: Attribute, people: Sequence[NounValue]) -> str:
    """Replace or remove the words that state values of unnamed people.

    Genders become neutral words ("a person", "their"); words for other attributes are removed.

    Args:
        prompt: The text, such as a caption.
        attribute: The attribute.
        people: The noun of each person in the text, with a value for those who are not named.
    """
    if not attribute.gender:
        return _strip(prompt, attribute, people)
    words = read_text(prompt)
    forms = _neutral_forms(words)
    text = prompt
    # From the end to the start, so that the offsets of earlier words stay valid.
    for i in sorted(forms, reverse=True):
        if forms[i]:
            text = replace_all(text, [_replace(words, i, forms[i])])
        else:
            start = words.start[i]
            text = _take_out(text, [(start, start + len(words.words[i]))])
    if forms.get(0) == "" and words.words[0][0].isupper():
        text = text[:1].upper() + text[1:]
    return _without_repetition(text)


def _neutral_forms(words: Text) -> dict[int, str]:
    """Return the position of each word that states a gender, with its neutral form.

    The form is "" if the word is left out, as in "a female cyclist".
    """
    figures = _find_figures(words, ())
    kept = _words_of_named(words, figures)
    kept.update(i for figure in figures if figure.is_animal for i in figure.words)
    # word of a noun phrase for a person -> its last noun, or the word itself for others
    head_of = {i: max(figure.heads) for figure in figures for i in figure.words}
    new: dict[int, str] = {}
    for i, word in enumerate(map(_without_ending, words.low)):
        is_thing = words.silent[i] or names_thing(words, i)
        if i in kept or i in new or is_thing or not _side_of(word):
            continue
        if listed(word, "gendered-pronoun"):
            form: str | None = _neutral_pronoun(words, i, new)
        else:
            form = _neutral_noun(words, i, new, is_head=head_of.get(i, i) <= i)
        if form is not None:
            new[i] = form
    return new


def _words_of_named(words: Text, figures: Sequence[_Figure]) -> set[int]:
    """Return the positions of all words in a text with names, except those about other people."""
    named = {i for first, stop in find_names(words) for i in range(first, stop)}
    if not named:
        return named
    unnamed: set[int] = set()
    for figure in figures:
        if named.isdisjoint(figure.words) and not _describes_named(words, figure, named):
            unnamed.update(figure.words)
    return set(range(len(words.low))) - unnamed


def _describes_named(words: Text, figure: _Figure, named: Collection[int]) -> bool:
    """Return whether a figure is a named person, as in "Ada, a mother" and "he's a cook"."""
    first = figure.first
    if first - 1 in named:
        return True
    start = words.clause_start(first)
    subject = words.low[start].removesuffix("'s")
    is_about_named = start in named or listed(subject, "gendered-pronoun")
    clause = words.low[start:first]
    return is_about_named and any(word.endswith("'s") or listed(word, "copula") for word in clause)


def _neutral_noun(words: Text, i: int, new: dict[int, str], is_head: bool) -> str | None:
    """Return the neutral form of a gendered noun or adjective, "", or None if it is unknown.

    `is_head` is False if the word describes a later noun for the same person.
    """
    word = _without_ending(words.low[i])
    if _describes_noun(words, i, is_head):
        return ""
    after = words.after(i)
    if word in _ADJECTIVES and kinds(after)[:1] == "n" and not is_inflected(after, "s", "ing"):
        return None  # "a male voice" is about a thing
    alone = _NOUNS_ALONE.get(words.before(i))
    if alone is not None:
        new[i - 1] = alone + "s" * (singular(word) != word)
        return ""  # "baby girl", "teenage boys"
    return _neutral_word(word) or None


def _describes_noun(words: Text, i: int, is_head: bool) -> bool:
    """Return whether word i only describes a noun, which says enough without it."""
    word = _without_ending(words.low[i])
    after = words.after(i)
    if word != words.low[i] or not after:
        # "a women's match", but "the man's hat"
        return bool(after) and words.low[i].endswith(("men's", "s'"))
    if not is_head or is_person(after):
        return True  # "a female softball player", "a woman doctor"
    if singular(word) != word and words.before(i) == "a":
        return True  # "a girls soccer game"
    return word in _ADJECTIVES and is_person(words.after(i + 1))  # "male baseball player"


def _neutral_pronoun(words: Text, i: int, new: dict[int, str]) -> str:
    """Return the form of "they" for a gendered pronoun, and add the verb of a subject to `new`."""
    word = _without_ending(words.low[i])
    if word in ("his", "her"):
        if _is_before_noun(words, i) or words.after(i) == "or":  # "his or her hands"
            return "their"
    if word in ("he", "she"):
        verb = i + 1
        while re.fullmatch(r"\w+ly|also|then|just|still|never", words.after(verb - 1)):
            verb += 1
        form = _plural_verb(words.after(verb - 1))
        if form:
            new[verb] = form
    return _gendered_words()[word].neutral


def _plural_verb(verb: str) -> str:
    """Return the plural of a verb in the third person singular, or "" for other words."""
    if verb in _PLURAL_VERBS:
        return _PLURAL_VERBS[verb]
    return base(verb) if is_inflected(verb, "s") and "v" in kinds(base(verb)) else ""


# "a young man and woman" -> "two young people"
_PLURAL = {"person": "people", "child": "children"}
_COUPLE = re.compile(
    r"(?:\b(an?|one|the) ([\w-]+ )?|(?<![\w-] )\b)(person|child|newlywed|parent|spouse|sibling)"
    r" and (?:(?:an?|one|the) (?(2)\2))?\3\b",
    re.IGNORECASE,
)
_AGAIN = re.compile(r"\b(people|children|their|they)( and | or )\1\b", re.IGNORECASE)


def _without_repetition(text: str) -> str:
    """Join people who have the same description after their gender was replaced."""
    text = _AGAIN.sub(lambda found: found[1], _COUPLE.sub(_joined, text))
    first = re.search(r"\b(?:an?|one) (?:[\w-]+ )?person\b|\bpeople\b", text, re.IGNORECASE)
    if first is None:
        return text
    return text[: first.end()] + re.sub(r"\ba person\b", "another person", text[first.end() :])


def _joined(found: re.Match[str]) -> str:
    """Return "two people" for "a person and a person"."""
    number, described, noun = (group or "" for group in found.groups())
    two = "the two" if number.lower() == "the" else "two"
    plural = _PLURAL.get(noun.lower(), f"{noun.lower()}s")
    return with_capitals_of(found[0], f"{two} {described}{plural}")


# ---- removing other attributes


def _strip(text: str, attribute: Attribute, people: Sequence[NounValue]) -> str:
    """Remove words that state a different attribute of the people, such as their age.

    Args:
        text: The text.
        attribute: Any attribute except gender.
        people: See `neutral_text`.
    """
    words = read_text(text)
    persons = find_persons(text)
    numbers = match(words, persons, people)
    openings = [words.start[mentions[0].opening] for mentions in persons]
    patterns = {"age": (_AGE_PHRASE, AGE_BEFORE_NOUN), "origin": (_DESCENT,), "skin": (_DESCENT,)}
    spans: list[tuple[int, int]] = []
    for place, (mentions, number) in enumerate(zip(persons, numbers, strict=True)):
        if number is None or people[number][1] is None:
            continue
        for subject in mentions:
            for offset, word in subject.words[:-1]:
                if rank_of(word) == attribute.rank:
                    spans.append((offset, offset + len(word)))
        end = min(openings[place + 1 :], default=len(text))
        for pattern in patterns.get(attribute.kind, ()):
            spans += [found.span() for found in pattern.finditer(text, openings[place], end)]
    return _take_out(text, spans)


def _take_out(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Remove parts of a text and adjust the spaces, commas and articles around them.

    >>> _take_out("an old nurse, in her forties, at work", [(3, 6), (12, 28)])
    'a nurse, at work'
    """
    for start, end in sorted(set(spans), reverse=True):
        before = text[:start]
        behind = text[end:]
        if not re.match(r"[\w ]", behind):
            before = before.rstrip()
        if not before or before[-1] in " ([":
            behind = behind.lstrip()
        following = re.match(r"[\w-]+", behind)
        if following:
            before = append_word(before, following[0])
            behind = behind[following.end() :]
        text = before + behind
    return text
