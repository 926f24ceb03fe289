"""Give the people of a rewritten English prompt the values that their original leaves open.

A language model that rewrites "a CEO in an office" may make it "a man in his fifties, in a suit".
Only the phrase that corresponds to the person of the original changes, with the pronouns that refer
to this person; everybody else stays as the rewriter wrote them. If the person or the owner of a
pronoun is not certain, the prompt is left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.words import (
    adjective,
    gendered,
    has_listed,
    kinds,
    listed,
    read_lists,
    singular,
)
from vldebias.prompts.prompt_set import append_word
from vldebias.wording.english.names import find_names
from vldebias.wording.english.scene import AGE_BEFORE_NOUN, AGE_BEHIND
from vldebias.wording.english.statements import group_mentions
from vldebias.wording.english.subject import Subject, find_subjects
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.language import (
    NounValue,
    Replacement,
    RewrittenPromptError,
    Value,
    replace_all,
)

_LISTS = read_lists(Path(__file__).with_name("pairs.txt"))
_ADJECTIVES = frozenset(word for pair in _LISTS["adjective"] for word in pair.split("/"))
_SIDES = ("female", "male")
_PRONOUNS = frozenset({"she", "her", "hers", "herself", "he", "his", "him", "himself"})
_POSSESSIVE = frozenset({"his", "her", "their", "whose"})
_CONJUNCTIONS = frozenset({"while", "as", "when", "where", "because", "but"})
_RELATIVE = frozenset({"who", "whose"})
# After such a word "her" is an object, "him", and no "his".
_NO_NOUN = frozenset({"", "the", "a", "an", "this", "these", "those", "any", "away", "off", "too"})
# Words for both genders state none: "a team of men and women".
_GENDERED = r"(?:(?:fe)?males?|(?:wo)?m[ae]n|boys?|girls?|ladies|gentlemen|he|she|his|hers?|him)"
_BOTH = re.compile(rf"\b{_GENDERED}(?:\s*/\s*|,? (?:and|or|&) ){_GENDERED}\b", re.IGNORECASE)
_DESCENT = re.compile(
    r",? (?:of|with) (?:[\w-]+ ){1,2}(?:descent|heritage|origin|ethnicity|ancestry|background)\b",
    re.IGNORECASE,
)
_AGE_PHRASE = re.compile(
    rf",? ?(?:(?:who is|who's|probably|perhaps|around|about|approximately) )*"
    rf"(?:in |at )?(?:{AGE_BEHIND.pattern})",
    re.IGNORECASE,
)
_BEARD = rf"(?:(?:an?|his) )?(?:(?!and\b)[\w-]+,? ){{0,4}}?(?:{'|'.join(_LISTS['beard'])})\b"
_WITH_BEARD = re.compile(
    rf"(?P<link>,? (?:with|and) )(?P<beard>{_BEARD})(?P<more> and )?", re.IGNORECASE
)
# "A portrait of an agent, capturing a man": the man may be the agent.
_SHOWS = frozenset({"capturing", "depicting", "featuring", "showing", "portraying", "is"})
_NOT_UNDERSTOOD = "rewritten: not understood"


@cache
def _counterparts() -> dict[str, tuple[str, str]]:
    """Return word that states a gender -> its side, "female" or "male", and the word of the other
    side."""
    words: dict[str, tuple[str, str]] = {}
    for name in ("noun", "relative", "adjective", "pronoun"):
        for pair in _LISTS[name]:
            female, male = pair.split("/")
            words.setdefault(female, ("female", male))
            # A tailor is of either gender: nobody is made a seamstress.
            if gendered(male):
                words.setdefault(male, ("male", female))
    return words


def _side_and_counterpart(word: str) -> tuple[str, str]:
    """Return the side of a word in lower case, "female" or "male", and the word of the other side;
    two empty texts if it states none, or has no counterpart."""
    known = _counterparts().get(word)
    if known is not None:
        return known
    for female, male in (("woman", "man"), ("women", "men")):
        if word.endswith(female):
            return "female", word.removesuffix(female) + male
        if word.endswith(male) and gendered(word):
            return "male", word.removesuffix(male) + female
    return "", ""


def _side_of(word: str) -> str:
    side, _ = _side_and_counterpart(word)
    return side


def is_pronoun(word: str) -> bool:
    """Return whether a word in lower case is a pronoun that states a gender."""
    return word in _PRONOUNS


def _without_ending(word: str) -> str:
    """Return a word without what an apostrophe adds to it: "man" of "man's"."""
    return re.sub(r"'(?:s|d|ll)?$", "", word)


# ---- who is in the text


class _Figure:
    """Represent somebody whom a text mentions, or an animal.

    Attributes:
        words: positions of the words that name this one or refer to this one.
        first: position of the first of them. heads: positions of the nouns.
        number: of the corresponding person of the original; None if there is none.
        side: the gender that the text states, "female" or "male"; "" if none.
        is_plural, is_possessed, is_animal: of "three cooks", "his wife", "a dog".
        is_certain: whether no pronoun may refer to this one or to somebody else.
        mentions: position of each mention -> whether it is the subject of its clause.
    """

    def __init__(
        self, text: Text, words: Sequence[int], heads: Sequence[int], *, is_plural: bool
    ) -> None:
        self.number: int | None = None
        self.words = [i for i in words if not is_pronoun(text.low[i])]
        self.first = min(words)
        self.heads = heads
        sides = [_side_of(_without_ending(text.low[i])) for i in self.words]
        self.side = next(filter(None, sides), "")
        self.is_plural = is_plural
        opening = text.low[max(0, self.first - 2) : self.first + 1]
        self.is_possessed = not _POSSESSIVE.isdisjoint(opening)
        self.is_animal = False
        self.is_certain = True
        self.mentions: dict[int, bool] = {}

    def last_mention(self, i: int, *, as_subject: bool = False) -> int:
        """Return the position of the last mention before word i; -1 if there is none."""
        places = [place for place in self.mentions if place < i]
        if as_subject:
            places = [place for place in places if self.mentions[place]]
        return max(places, default=-1)


def match(
    text: Text, persons: Sequence[Sequence[Subject]], people: Sequence[NounValue]
) -> list[int | None]:
    """Return for each person of a text the number of the corresponding one of the original.

    They have the same noun. If one person of the original remains, this is the only "man" or
    "woman" of the text, or else the only person left in it.
    """
    matched: list[int | None] = [None] * len(persons)
    for number, (noun, _) in enumerate(people):
        last_word = singular(noun.lower().split()[-1])
        for place, mentions in enumerate(persons):
            nouns = {singular(_without_ending(text.low[subject.head])) for subject in mentions}
            if matched[place] is None and last_word in nouns:
                matched[place] = number
                break
    remaining = [number for number in range(len(people)) if number not in matched]
    candidates: list[int] = []
    for place, mentions in enumerate(persons):
        first = mentions[0]
        is_other = first.plural or first.named or text.low[first.opening] in _POSSESSIVE
        if matched[place] is None and not is_other:
            candidates.append(place)
    of_gender = [place for place in candidates if gendered(text.low[persons[place][0].head])]
    candidates = of_gender or candidates
    if len(remaining) == 1 and len(candidates) == 1:
        matched[candidates[0]] = remaining[0]
    return matched


def _find_figures(text: Text, people: Sequence[NounValue]) -> list[_Figure]:
    """Return everybody whom a text mentions, each with the pronouns that refer to this one."""
    subjects = find_subjects(text.prompt)
    persons = [] if isinstance(subjects, str) else group_mentions(text, subjects)
    figures: list[_Figure] = []
    for mentions, number in zip(persons, match(text, persons, people), strict=True):
        # Of somebody who is not of the original, each phrase may be about the original's person.
        parts = [[mention] for mention in mentions] if number is None else [mentions]
        for part in parts:
            words = [i for mention in part for i in range(mention.opening, mention.head + 1)]
            heads = [mention.head for mention in part]
            figures.append(_Figure(text, words, heads, is_plural=part[0].plural))
            figures[-1].number = number
    known = {i for figure in figures for i in figure.words}
    spans_of_both = [found.span() for found in _BOTH.finditer(text.prompt)]
    pronouns: list[int] = []
    repeated: dict[int, int] = {}  # noun of "the man" -> the position of "the"
    for i, word in enumerate(map(_without_ending, text.low)):
        is_of_both = any(start <= text.start[i] < end for start, end in spans_of_both)
        if i in known or text.silent[i] or is_of_both:
            continue
        named = [figure for figure in figures if word in [text.low[k] for k in figure.heads]]
        is_animal = listed(singular(word), "animal")
        if is_pronoun(word):
            pronouns.append(i)
        elif len(named) == 1 and (start := _start_of_definite(text, named[0], i)) is not None:
            repeated[i] = start
            named[0].words.append(i)
        elif is_animal or (_side_of(word) and word not in _ADJECTIVES):
            figures.append(_Figure(text, [i], [i], is_plural=singular(word) != word))
            figures[-1].is_animal = is_animal
    figures = _merged(text, figures, known, repeated)
    figures.sort(key=lambda figure: figure.first)
    for figure in figures:
        is_shown = figure.number is None and text.low[figure.first - 1] in _SHOWS
        if is_shown and figure.side:
            for other in figures:
                other.is_certain = False
        for i in figure.words:
            figure.mentions[i] = _is_subject(text, figures, repeated.get(i, figure.first))
    _attach_pronouns(text, figures, pronouns)
    return figures


def _attach_pronouns(text: Text, figures: Sequence[_Figure], pronouns: Sequence[int]) -> None:
    """Add pronouns to the figures to whom they refer; mark the figures of whom that is not
    certain."""
    for i in pronouns:
        owner = _owner(text, [figure for figure in figures if not figure.is_plural], i)
        if owner is not None:
            owner.words.append(i)
            owner.mentions[i] = text.low[i] in ("he", "she")
            owner.side = _side_of(text.low[i])
            continue
        for figure in figures:
            figure.is_certain = figure.is_certain and not figure.is_plural  # "one of them ... his"


def _merged(
    text: Text, figures: Sequence[_Figure], known: Collection[int], repeated: Mapping[int, int]
) -> list[_Figure]:
    """Return figures without those that say who another one is.

    known: positions of the words of phrases. repeated: nouns that name somebody again.
    """
    merged = list(figures)
    for figure in figures:
        is_noun = figure.first not in known
        before = [other for other in merged if other.first < figure.first]
        previous = max(before, key=lambda other: other.first, default=figure)
        if _is_apposition(text, previous, figure):
            figure.words += previous.words
            figure.side = previous.side
            figure.first = previous.first
            merged.remove(previous)
        if figure.number is not None or figure.is_plural or figure.is_animal:
            continue
        remaining = [other for other in merged if other is not figure]
        described = _described(text, remaining, figure.first, None if is_noun else repeated)
        if described is not None and described.side in ("", figure.side):
            described.words += figure.words
            described.side = figure.side
            merged.remove(figure)
    return merged


def _is_apposition(text: Text, previous: _Figure, figure: _Figure) -> bool:
    """Return whether a person of the original is named behind a comma: "a woman in her fifties, a
    librarian, at a desk"."""
    if figure.number is None or figure.side or not previous.side or previous.is_possessed:
        return False
    is_between_commas = text.opens[figure.first] and text.opens[max(figure.heads) + 1]
    is_in_sentence = not any(text.sentence[previous.first + 1 : figure.first + 1])
    return previous.number is None and is_between_commas and is_in_sentence


def _start_of_definite(text: Text, figure: _Figure, i: int) -> int | None:
    """Return the position of the article if noun i names a figure again: "the civil engineer", or
    "A civil engineer" at the start of a sentence."""
    phrase = {text.low[k] for k in figure.words}
    while not text.opens[i]:
        i -= 1
        if text.low[i] == "the" or (text.sentence[i] and text.low[i] in ("a", "an")):
            return i
        if text.low[i] not in phrase:
            return None
    return None


def _described(
    text: Text, figures: Sequence[_Figure], i: int, nouns: Collection[int] | None
) -> _Figure | None:
    """Return the figure of whom a phrase that begins at word i says who this is: "the optician, a
    middle-aged man", "the optician is a man"; None if it is of nobody else.

    nouns: positions of the nouns behind which it may stand; None: any.
    """
    while not text.sentence[i]:
        i -= 1
        for figure in figures:
            if i in figure.words:
                is_other = (
                    figure.is_plural or figure.is_animal or (nouns is not None and i not in nouns)
                )
                return None if is_other else figure
        if not adjective(text.low[i]) and text.low[i] not in ("a", "an", "is", "was"):
            return None
    return None


def _is_subject(text: Text, figures: Sequence[_Figure], first: int) -> bool:
    """Return whether a phrase stands where a clause has its subject."""
    if text.opens[first]:
        return True
    if text.low[first - 1] == "and":  # "the bride and groom" are one phrase
        return not any(first - 2 in figure.words for figure in figures)
    return text.low[first - 1] in _CONJUNCTIONS


def _owner(text: Text, figures: Sequence[_Figure], i: int) -> _Figure | None:
    """Return to whom pronoun i refers; None if that is not certain, or nobody is mentioned."""
    side = _side_of(text.low[i])
    figures = [figure for figure in figures if figure.side in ("", side)]
    before = [figure for figure in figures if figure.first < i]
    if not before:
        # "In her studio, a painter ..."
        same = [figure for figure in figures if not any(text.sentence[i + 1 : figure.first + 1])]
        return same[0] if same else None
    opening = i
    while not text.opens[opening] and text.low[opening] not in _CONJUNCTIONS | _RELATIVE:
        opening -= 1
    nearest = max(before, key=lambda figure: figure.last_mention(i))
    if text.low[opening] in _RELATIVE and nearest.last_mention(i) == opening - 1:
        is_object = text.low[i] in ("him", "her") and not text.after(i)
        if not is_object:
            return nearest
        before.remove(nearest)  # "a guest who looks at him"
        if not before:
            return None
    inside = [figure for figure in before if figure.last_mention(i) >= opening]
    # A phrase behind a comma without a person of its own is about the subject: "kneels before the
    # bride and groom, his camera raised".
    is_clause = text.low[i] in ("he", "she") or text.low[opening] in ("and", *_CONJUNCTIONS)
    is_behind_comma = text.prompt[: text.start[opening]].endswith(", ")
    if not inside and is_behind_comma and not is_clause:
        last = max(before, key=lambda figure: figure.last_mention(i, as_subject=True))
        if last.last_mention(i, as_subject=True) >= 0:
            return last
    remaining = inside or before
    for is_likely in (
        lambda figure: figure.side == side,
        lambda figure: not figure.is_animal,
        lambda figure: not figure.is_possessed,
    ):
        remaining = list(filter(is_likely, remaining)) or remaining
    if len(remaining) == 1:
        return remaining[0]
    for figure in remaining:
        figure.is_certain = False
    return None


def sides_in(text: str, attribute: Attribute, people: Sequence[NounValue]) -> list[Value]:
    """Return for each person of the original the value that a text states, if it states one."""
    value_of_side = {word.lower(): value for value, word in attribute.words.items()}
    values: list[Value] = [None] * len(people)
    for figure in _find_figures(read_text(text), people):
        if figure.number is not None:
            values[figure.number] = value_of_side.get(figure.side)
    return values


# ---- gender, which is replaced


def replace_gender(
    text: str, attribute: Attribute, people: Sequence[NounValue]
) -> tuple[str, list[bool]]:
    """Return a text with the gender of the people replaced; and for each of them, whether a noun
    or an adjective states the value.

    Raises:
        RewrittenPromptError: a person or the owner of a pronoun is not certain, a word that states
            a gender cannot be replaced, or somebody is named.
    """
    sides: dict[int | None, str] = {}
    for number, (_, value) in enumerate(people):
        if value is not None:
            sides[number] = attribute.words[value].lower() if isinstance(value, str) else "mixed"
    words = read_text(text)
    _check_names(words)
    text = _without_beards(words, _find_figures(words, people), sides)
    words = read_text(text)
    figures = [figure for figure in _find_figures(words, people) if figure.number in sides]
    _check_all_found(words, {figure.number for figure in figures}, people)
    replacements: list[Replacement] = []
    is_said = [False] * len(people)
    for figure in figures:
        side = sides[figure.number]
        if figure.side and (figure.is_plural or side == "mixed"):
            raise RewrittenPromptError("rewritten: group")
        if not figure.is_certain or (figure.side and side not in _SIDES):
            raise RewrittenPromptError(_NOT_UNDERSTOOD)
        for i in figure.words:
            if not _side_of(_without_ending(words.low[i])):
                continue
            new = _word_of_side(words, i, side)
            replacements.append(_replace(words, i, new))
            if figure.number is not None and gendered(new) and not is_pronoun(new):
                is_said[figure.number] = True
    return replace_all(text, replacements), is_said


def _check_names(words: Text) -> None:
    """Raise RewrittenPromptError if a text names a person: a name states a gender, and has no
    counterpart."""
    for first, stop in find_names(words):
        is_word = stop - first == 1 and words.sentence[first]  # "Rich colors."
        is_silent = words.credited[first] or words.silent[first] or is_word
        if not is_silent and "f" in kinds(words.bare[first]):
            raise RewrittenPromptError(f"rewritten: names {' '.join(words.words[first:stop])}")


def _check_all_found(
    text: Text, found: Collection[int | None], people: Sequence[NounValue]
) -> None:
    """Raise RewrittenPromptError if a text does not show everybody who gets a value."""
    for number, (noun, value) in enumerate(people):
        if value is not None and number not in found:
            if isinstance(find_subjects(text.prompt), str):
                raise RewrittenPromptError(f"rewritten: no person named {noun}")
            raise RewrittenPromptError(_NOT_UNDERSTOOD)


def _without_beards(text: Text, figures: Sequence[_Figure], sides: Mapping[int | None, str]) -> str:
    """Return a text without the beards of those who are to be women.

    sides: number of a person -> the gender that this one gets.

    Raises:
        RewrittenPromptError: a word states the gender of one of these people and cannot be left
            out: "strokes his beard", "shirtless".
    """
    figure_of_word = {i: figure for figure in figures for i in figure.words}
    singles = [figure for figure in figures if not figure.is_plural and not figure.is_animal]
    spans: list[tuple[int, int]] = []
    for i, word in enumerate(map(_without_ending, text.low)):
        is_listed = word in _LISTS["beard"] or word in _LISTS["bearded"]
        states = gendered(word) and (not _side_of(word) or word in _ADJECTIVES)
        if text.silent[i] or not (is_listed or states):
            continue
        nearest = max(singles, key=lambda figure: figure.last_mention(i), default=None)
        figure = figure_of_word.get(i, nearest)
        if figure is None:
            continue
        is_in_phrase = i in figure.words
        is_of_noun = word in _LISTS["of-noun"] and text.after(i)  # "a male voice", "blonde hair"
        if figure.number not in sides or is_of_noun or (is_in_phrase and _side_of(word)):
            continue
        span = None
        if is_in_phrase and word in _LISTS["bearded"]:
            start = text.start[i]
            # Of "a tall, bearded man" the comma goes too.
            span = (start - 2 * text.prompt[:start].endswith(", "), start + len(text.words[i]))
        elif word in _LISTS["beard"]:
            span = _span_of_beard(text, i)
        if span is None:
            raise RewrittenPromptError(f"rewritten: {word}")
        if sides[figure.number] == "female":
            spans.append(span)
    return _take_out(text.prompt, spans)


def _span_of_beard(text: Text, i: int) -> tuple[int, int] | None:
    """Return the characters of "with a beard"; None if something else is said of the beard."""
    start = text.start[i]
    if text.after(i) and kinds(text.after(i)).startswith("n"):
        return None  # "a beard trimmer"
    for found in _WITH_BEARD.finditer(text.prompt):
        words = re.findall(r"[\w-]+", found["beard"].lower())
        if found.start() < start < found.end("beard") and not has_listed(words, "preposition"):
            if found["more"] and "with" in found["link"]:
                return found.start("beard"), found.end()  # "with a beard and kind eyes"
            return found.start(), found.end("beard")
    return None


def _word_of_side(words: Text, i: int, side: str) -> str:
    """Return what word i is for a side, "female" or "male"."""
    word = _without_ending(words.low[i])
    current, counterpart = _side_and_counterpart(word)
    if word in ("his", "her"):
        after = words.after(i)
        is_before_noun = after not in _NO_NOUN and not listed(after, "preposition", "function")
        if not words.after(i + 1) and "n" in kinds(after):
            is_before_noun = True  # a preposition needs a noun after it: "a nurse on her round"
        if after == "next":
            is_before_noun = words.after(i + 1) != "to"
        is_adverb = after.endswith("ly") and not set(kinds(after)) & set("anp")
        if is_before_noun and not is_adverb:
            counterpart = "her" if word == "his" else "his"
    return word if side == current else counterpart


def _replace(words: Text, i: int, new: str) -> Replacement:
    """Return the replacement that writes a new word in place of word i, with its capitals and its
    ending; "a" or "an" before it is changed to what fits."""
    old = words.words[i]
    new = new.replace("_", " ")
    if len(old) > 1 and old.isupper():
        new = new.upper()
    elif old[0].isupper():
        new = new[0].upper() + new[1:]
    new += old[len(_without_ending(words.low[i])) :]
    start = words.start[i]
    end = start + len(old)
    article = re.search(r"\ban? $", words.prompt[:start], re.IGNORECASE)
    if article is not None:
        new = append_word(words.prompt[article.start() : start], new)
        start = article.start()
    return Replacement(start, end, new)


# ---- other attributes, which are taken out


def strip(text: str, attribute: Attribute, people: Sequence[NounValue]) -> str:
    """Return a text without the words that state another attribute than gender of the people.

    Raises:
        RewrittenPromptError: somebody who gets a value is not found.
    """
    words = read_text(text)
    subjects = find_subjects(text)
    persons = [] if isinstance(subjects, str) else group_mentions(words, subjects)
    numbers = match(words, persons, people)
    _check_all_found(words, numbers, people)
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
    """Return a text without some of its characters, with one space or the comma in their place, and
    with the article that fits what follows.

    >>> _take_out("an old nurse, in her forties, at work", [(3, 6), (12, 28)])
    'a nurse, at work'
    """
    for start, end in sorted(set(spans), reverse=True):
        before = text[:start]
        behind = text[end:]
        if behind.startswith((",", " ")) and not before.endswith(","):
            if behind.startswith(","):
                before = before.rstrip()
            if before.endswith(" ") or not before:
                behind = behind.lstrip()
        following = re.match(r"[\w-]+", behind)
        if following:
            before = append_word(before, following[0])
            behind = behind[following.end() :]
        text = before + behind
    return text
