"""Find the persons of a prompt for one attribute, and which values its images get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.prompts.attribute import Attribute
from vldebias.prompts.decisions import Decider
from vldebias.prompts.emoji import has_stating_emoji
from vldebias.prompts.groups import mixtures
from vldebias.prompts.language import (
    MOST_PERSONS,
    Dealt,
    Language,
    Person,
    UnturnableError,
    Value,
)
from vldebias.prompts.languages import ENGLISH, language_of
from vldebias.prompts.syntax import (
    UnreadableSyntaxError,
    is_edit,
    json_texts,
    names_of_templates,
    read_alternatives,
    texts_of_markup,
)

Find = Callable[[str], int | None]

NEXT_TEXT = "\x1f"  # the unit separator: between the texts of one image, for several encoders
_CACHED = 2000  # prompts
# How reasons begin that leave the other texts of an image as they are.
_NOBODY = ("no person", "unknown language", "language: ")


_Mention = tuple[Person, Language]  # a place that names a person, and the language that reads it
_Reading = tuple[_Mention, ...] | str


class Shown:
    """Describe a person whom the images of a prompt show.

    Attributes:
        mentions: where the person is named, and the language that reads it: once in each
            alternative and text of an image.
        reason: why this person gets no value; "" if one is given.
        noun, start, group: of the first mention.
    """

    def __init__(self, mentions: Sequence[_Mention]) -> None:
        self.mentions = tuple(mentions)
        first, _ = self.mentions[0]
        self.noun = first.noun
        self.start = first.start
        self.group = first.group
        reasons: list[str] = []
        kinds_of_groups: set[tuple[int | None, ...]] = set()
        for person, _ in self.mentions:
            if person.reason:
                reasons.append(person.reason)
            group = person.group
            kinds_of_groups.add(() if group is None else (group.size, group.mixes))
        # "{five nurses|a nurse}": a mixture cannot be written into both.
        if len(kinds_of_groups) > 1:
            reasons.append("group")
        self.reason = reasons[0] if reasons else ""


def in_one_line(prompt: str) -> str:
    """Return the texts of one image in one line, with bars between them."""
    return prompt.replace(NEXT_TEXT, " | ")


class Finder:
    """Find the persons of prompts for one attribute, and remember them.

    find, decide: as of `balance_prompts`.
    """

    def __init__(
        self, attribute: Attribute, find: Find | None = None, decide: Decider | None = None
    ) -> None:
        self.attribute = attribute
        self._find = find
        self._decide = decide
        self._search = lru_cache(maxsize=_CACHED)(self._read)

    def open_persons(self, prompt: str) -> tuple[tuple[Shown, ...], str]:
        """Return the persons of a prompt who get a value; or nobody, and the reason why."""
        found = self._search(prompt)
        if isinstance(found, str):
            return (), found
        if not _may_get_value(found):
            return (), found[0].reason
        allowed = self._allowed(prompt)
        open_reasons: tuple[str, ...] = ("",)
        if allowed is not None:
            if len(allowed) < 2 or sum(allowed.values()) <= 0:
                return (), "context"  # no choice is left
            open_reasons = ("", "context")
        persons = [shown for shown in found if shown.reason in open_reasons]
        return tuple(persons[:MOST_PERSONS]), "" if persons else found[0].reason

    def outcomes(self, prompt: str, strength: float) -> list[dict[Value, float]]:
        """Return for each person who gets a value: value -> share of the images that get it.

        strength: share of the images in which the first person gets a value; the rest gets None.
            The others get a value where the first one does.
        """
        persons, _ = self.open_persons(prompt)
        if not persons:
            return []
        shares: Mapping[Any, float] = self.attribute.shares
        allowed = self._allowed(prompt)
        if allowed is not None:
            total = sum(allowed.values())
            shares = {value: share / total for value, share in allowed.items()}
        has_choice = sum(share > 0 for share in shares.values()) > 1
        is_mixed = has_choice and self.attribute.groups == "mixed"
        outcomes_of_persons: list[dict[Value, float]] = []
        for shown in persons:
            shares_of_person = shares
            # "five engineers" get "three women and two men" in place of a value.
            if is_mixed and shown.group is not None and shown.group.mixes:
                shares_of_person = mixtures(shown.group, shares)
            outcomes: dict[Value, float] = {}
            for value, share in shares_of_person.items():
                outcomes[value] = share * strength
            outcomes[None] = 1 - strength
            outcomes_of_persons.append(outcomes)
            strength = 1.0
        return outcomes_of_persons

    def turn(self, original: str, dealt: Sequence[Value], text: str) -> str:
        """Return a rewritten prompt with the values that were dealt to the persons of the original.

        dealt: of the open persons, in their order.

        Raises:
            UnturnableError: it states a value in a way that cannot be turned.
        """
        people = self._people(original, dealt)
        # Nothing is written into markup: "<random:male|female> astronaut" stays as it is.
        if json_texts(text) is None and self._states_in_syntax(text):
            raise UnturnableError("rewritten: stated")
        turned: list[str] = []
        nobody: list[UnturnableError] = []
        parts = text.split(NEXT_TEXT)
        for part in parts:
            language = language_of(part)
            if language is None:
                raise UnturnableError("rewritten: unknown language")
            try:
                turned.append(language.turn(part, self.attribute, people))
            except UnturnableError as problem:
                # Of several texts of an image one may be about a style alone.
                if "no person" not in str(problem) or len(parts) == 1:
                    raise
                turned.append(part)
                nobody.append(problem)
        if len(nobody) == len(parts):
            raise nobody[0]
        return NEXT_TEXT.join(turned)

    def why_not_turned(self, original: str, text: str) -> str:
        """Return why a rewritten prompt cannot be turned; "" if it can be."""
        persons, _ = self.open_persons(original)
        if not persons:
            return ""
        value = next(iter(self.attribute.words))
        try:
            self.turn(original, [value] * len(persons), text)
        except UnturnableError as problem:
            return str(problem)
        return ""

    def values_in(self, original: str, text: str) -> list[tuple[str, Value]]:
        """Return the nouns of the open persons of an original prompt, each with the value that a
        rewritten one states of them."""
        language = language_of(text)
        people = self._people(original, [None] * MOST_PERSONS)
        if language is None:
            return []
        values = language.values_in(text, self.attribute, people)
        persons, _ = self.open_persons(original)
        open_nouns = {shown.noun for shown in persons}
        pairs = zip(people, values, strict=True)
        return [(dealt.noun, value) for dealt, value in pairs if dealt.noun in open_nouns]

    def _people(self, original: str, dealt: Sequence[Value]) -> list[Dealt]:
        """Return all persons of a prompt, those who are open with their values."""
        found = self._search(original)
        if isinstance(found, str):
            return []
        value_of_start: dict[int, Value] = {}
        persons, _ = self.open_persons(original)
        for shown, value in zip(persons, dealt, strict=False):
            value_of_start[shown.start] = value
        return [Dealt(shown.noun, value_of_start.get(shown.start)) for shown in found]

    def ask(self, prompts: Sequence[str]) -> None:
        """Ask `decide` about those prompts that have a person, in one call where it takes a
        list."""
        if self._decide is None:
            return
        placed: list[str] = []
        for prompt in prompts:
            found = self._search(prompt)
            if not isinstance(found, str) and _may_get_value(found):
                placed.append(in_one_line(prompt))
        self._decide.ask(placed)

    def _allowed(self, prompt: str) -> dict[str, float] | None:
        """Return the values that `decide` allows, with their shares; None to let the word lists
        decide."""
        if self._decide is None:
            return None
        allowed = self._decide.allowed(in_one_line(prompt))
        if allowed is None:
            return None
        shares = self.attribute.shares
        return {value: shares[value] for value in shares if value in allowed}

    # ---- reading a prompt

    def _read(self, prompt: str) -> tuple[Shown, ...] | str:
        """Return the persons of a prompt, open or not, in all texts of the image; or a reason."""
        readings: list[list[_Mention]] = []
        reasons: list[str] = []
        start = 0
        for text in prompt.split(NEXT_TEXT):
            for mentions in self._find_without_reading(text) or self._find_in_alternatives(text):
                if isinstance(mentions, str):
                    reasons.append(mentions)
                else:
                    # Offsets count in the whole, not in this text alone.
                    readings.append([(person.moved(start), lang) for person, lang in mentions])
            start += len(text) + len(NEXT_TEXT)
        # A reason for one of them counts for all, unless it is that there is no person: "a
        # {nurse|lamp}".
        for reason in reasons:
            if not reason.startswith(_NOBODY):
                return reason
        return tuple(map(Shown, _same_persons(readings))) or reasons[0]

    def _find_without_reading(self, text: str) -> list[_Reading]:
        """Return what markup, emoji or `find` say of a text; [] if a language has to read it."""
        slots = list(self.attribute.slots.finditer(text))
        if slots:
            # A placeholder says where the value goes, so that nothing else is read.
            return [(_mention_at(text, *slot.span()),) for slot in slots]
        if self._find is not None:
            offset = self._find(text)
            if offset is None:
                return ["find returned no position"]
            is_number = isinstance(offset, Integral) and not isinstance(offset, bool)
            if not is_number or not 0 <= offset <= len(text):
                raise InvalidInputError(
                    f"find: got {offset!r} for {text!r}; expected a character offset or None"
                )
            return [(_mention_at(text, offset, offset),)]
        if is_edit(text):
            return ["edit"]
        if has_stating_emoji(text, self.attribute.kind) or self._states_in_syntax(text):
            return ["stated"]
        return []

    def _find_in_alternatives(self, text: str) -> list[_Reading]:
        """Return the persons of each alternative of a text, as its language finds them."""
        try:
            alternatives = read_alternatives(text)
        except UnreadableSyntaxError as problem:
            return [str(problem)]
        found: list[_Reading] = []
        for alternative in alternatives:
            language = language_of(alternative)
            if language is None:
                found.append("language")
                continue
            persons = language.find(alternative, self.attribute)
            if isinstance(persons, str):
                found.append(persons)
            else:
                found.append(tuple((person, language) for person in persons))
        return found

    def _states_in_syntax(self, text: str) -> bool:
        """Return whether a value is stated where no person is read: in a text of a JSON, in markup,
        or by a variable that is named by the attribute, {{gender}}."""
        if json_texts(text) is not None:
            return self._states(text)  # "negative": "male" asks for others
        if any(map(self._states, texts_of_markup(text))):
            return True
        return not self.attribute.names.isdisjoint(names_of_templates(text))

    def _states(self, text: str) -> bool:
        """Return whether any word of a text states a value, in a language that is known."""
        # Names of files and variables are English beside any language.
        languages = {ENGLISH, language_of(text) or ENGLISH}
        return any(language.states(text, self.attribute) for language in languages)


def _may_get_value(persons: Sequence[Shown]) -> bool:
    """Return whether a value may be given to one of the persons; `decide` overrules the context."""
    return any(shown.reason in ("", "context") for shown in persons)


def _mention_at(text: str, start: int, end: int) -> _Mention:
    """Return a mention without a noun: a placeholder, or a place that the user found."""
    return Person("", end, end, (start, end)), language_of(text) or ENGLISH


def _same_persons(readings: Sequence[Sequence[_Mention]]) -> list[list[_Mention]]:
    """Return the mentions of each person in the readings of a prompt.

    A person is the same at the same place, else by the same noun, else by the order.
    """
    mentions_of_person: list[list[_Mention]] = []
    nouns_of_person: list[set[str]] = []
    for reading in readings:
        free = list(range(len(mentions_of_person)))  # persons who are not found in this reading
        for mention in reading:
            noun = mention[0].noun.lower()
            candidates = [number for number in free if mention in mentions_of_person[number]]
            candidates += [number for number in free if noun in nouns_of_person[number]]
            candidates += free
            if not candidates:
                mentions_of_person.append([mention])
                nouns_of_person.append({noun})
                continue
            number = candidates[0]
            free.remove(number)
            if mention not in mentions_of_person[number]:
                mentions_of_person[number].append(mention)
                nouns_of_person[number].add(noun)
    return mentions_of_person
