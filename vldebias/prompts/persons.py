"""Find the persons of a prompt for one attribute, and which values its images get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from vldebias.errors import InvalidInputError
from vldebias.prompts.attribute import Attribute
from vldebias.prompts.decisions import Decider
from vldebias.prompts.emoji import has_stating_emoji
from vldebias.prompts.groups import Group, mixtures
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


class Mention(NamedTuple):
    """Hold a place of a prompt at which a person is named, and the language that reads it."""

    person: Person
    language: Language

    def moved(self, offset: int) -> Mention:
        """Return the same mention in a text that has so many characters before it."""
        return Mention(self.person.moved(offset), self.language)


class Shown(NamedTuple):
    """Hold a person whom the images of a prompt show.

    Attributes:
        mentions: where the person is named: once in each alternative and text of an image.
        reason: why this person gets no value; "" if one is given.
    """

    mentions: tuple[Mention, ...]
    reason: str

    @property
    def noun(self) -> str:
        """The noun of the first mention."""
        return self.mentions[0].person.noun

    @property
    def start(self) -> int:
        """Where the first mention stands."""
        return self.mentions[0].person.start

    @property
    def group(self) -> Group | None:
        """The persons of a noun in the plural."""
        return self.mentions[0].person.group


_Reading = tuple[Mention, ...] | str


def in_one_line(prompt: str) -> str:
    """Return the texts of one image as one that a reader can read."""
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

    def persons(self, prompt: str) -> tuple[Shown, ...] | str:
        """Return the persons of a prompt who get a value, or the reason why nobody does."""
        found = self._search(prompt)
        if isinstance(found, str):
            return found
        if not _may_get_value(found):
            return found[0].reason
        allowed = self._allowed(prompt)
        if allowed is not None:
            share = sum(self.attribute.shares[value] for value in allowed)
            if len(allowed) < 2 or share <= 0:
                return "context"  # no choice is left
        persons: list[Shown] = []
        for shown in found:
            is_open = not shown.reason or (shown.reason == "context" and allowed is not None)
            if is_open:
                persons.append(shown)
        return tuple(persons[:MOST_PERSONS]) or found[0].reason

    def open_persons(self, prompt: str) -> tuple[Shown, ...]:
        """Return the persons of a prompt who get a value; none where nobody does."""
        persons = self.persons(prompt)
        return () if isinstance(persons, str) else persons

    def outcomes(self, prompt: str, shown: Shown, strength: float) -> dict[Value, float]:
        """Return the values of a person in the images of a prompt, with their shares.

        strength: share of the images that get a value; the rest gets None.
        """
        shares: Mapping[Any, float] = self.attribute.shares
        allowed = self._allowed(prompt)
        if allowed is not None:
            total = sum(shares[value] for value in allowed)
            shares = {value: shares[value] / total for value in shares if value in allowed}
        # "five engineers" get "three women and two men" in place of a value.
        group = shown.group
        if group is not None and group.mixes and self.attribute.groups == "mixed":
            values = [value for value, share in shares.items() if share > 0]
            if len(values) > 1:
                shares = mixtures(group, shares)
        outcomes: dict[Value, float] = {value: share * strength for value, share in shares.items()}
        return outcomes | {None: 1 - strength}

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
        open_persons = self.open_persons(original)
        if not open_persons:
            return ""
        value = next(iter(self.attribute.words))
        try:
            self.turn(original, [value] * len(open_persons), text)
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
        open_nouns = {shown.noun for shown in self.open_persons(original)}
        pairs = zip(people, values, strict=True)
        return [(dealt.noun, value) for dealt, value in pairs if dealt.noun in open_nouns]

    def _people(self, original: str, dealt: Sequence[Value]) -> list[Dealt]:
        """Return all persons of a prompt, those who are open with their values."""
        found = self._search(original)
        if isinstance(found, str):
            return []
        value_of_start: dict[int, Value] = {}
        for shown, value in zip(self.open_persons(original), dealt, strict=False):
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

    def _allowed(self, prompt: str) -> tuple[str, ...] | None:
        """Return the values that `decide` allows; None to let the word lists decide."""
        if self._decide is None:
            return None
        return self._decide.allowed(in_one_line(prompt))

    # ---- reading a prompt

    def _read(self, prompt: str) -> tuple[Shown, ...] | str:
        """Return the persons of a prompt, open or not; of several texts of one image, of all."""
        found: list[_Reading] = []
        start = 0
        for text in prompt.split(NEXT_TEXT):
            found_in_text = self._find_without_reading(text)
            readings: list[str] = []
            if not found_in_text:
                try:
                    readings = read_alternatives(text)
                except UnreadableSyntaxError as problem:
                    found_in_text.append(str(problem))
            for reading in readings:
                language = language_of(reading)
                if language is None:
                    found_in_text.append("language")
                    continue
                persons = language.find(reading, self.attribute)
                if isinstance(persons, str):
                    found_in_text.append(persons)
                else:
                    found_in_text.append(tuple(Mention(person, language) for person in persons))
            for mentions in found_in_text:
                if isinstance(mentions, str):
                    found.append(mentions)
                else:
                    # Offsets count in the whole, not in this text alone.
                    found.append(tuple(mention.moved(start) for mention in mentions))
            start += len(text) + len(NEXT_TEXT)
        return _join(found)

    def _find_without_reading(self, text: str) -> list[_Reading]:
        """Return what is known of a text before a language reads it; none if it has to."""
        slots = [match.span() for match in self.attribute.slots.finditer(text)]
        if slots:
            # A placeholder says where the value goes, so that nothing else is read.
            return [(_mention_at(text, *slot),) for slot in slots]
        if self._find is not None:
            offset = self._find(text)
            if offset is None:
                return ["find returned no position"]
            is_number = isinstance(offset, int) and not isinstance(offset, bool)
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


def _mention_at(text: str, start: int, end: int) -> Mention:
    """Return a mention without a noun: a placeholder, or a place that the user found."""
    language = language_of(text) or ENGLISH
    return Mention(Person("", end, end, (start, end)), language)


def _join(readings: Sequence[_Reading]) -> tuple[Shown, ...] | str:
    """Return the persons of all readings.

    A reason for one of them counts for all, unless it is that there is no person: "a {nurse|lamp}".
    """
    for reading in readings:
        if isinstance(reading, str) and not reading.startswith(_NOBODY):
            return reading
    mentions_of_person: list[list[Mention]] = []
    for reading in readings:
        if not isinstance(reading, str):
            _add(mentions_of_person, reading)
    if not mentions_of_person:
        return str(readings[0])
    persons: list[Shown] = []
    for mentions in mentions_of_person:
        # "{five nurses|a nurse}": a mixture cannot be written into both.
        kinds_of_groups: set[tuple[int | None, ...]] = set()
        for mention in mentions:
            group = mention.person.group
            kinds_of_groups.add(() if group is None else (group.size, group.mixes))
        reasons = [mention.person.reason for mention in mentions if mention.person.reason]
        if len(kinds_of_groups) > 1:
            reasons.append("group")
        persons.append(Shown(tuple(mentions), reasons[0] if reasons else ""))
    return tuple(persons)


def _add(mentions_of_person: list[list[Mention]], reading: Sequence[Mention]) -> None:
    """Add the mentions of a reading to the persons of the readings before.

    A person is the same at the same place, else by the same noun, else by the order.
    """
    known = len(mentions_of_person)
    free = list(range(known))
    for mention in reading:
        number = _same_person(mentions_of_person, free, mention)
        if number is None:
            mentions_of_person.append([mention])
            continue
        free.remove(number)
        if mention not in mentions_of_person[number]:
            mentions_of_person[number].append(mention)


def _same_person(
    mentions_of_person: list[list[Mention]], free: list[int], mention: Mention
) -> int | None:
    """Return which of the persons that are free a mention names; None if it is a new one."""
    for number in free:
        if mention in mentions_of_person[number]:
            return number
    noun = mention.person.noun.lower()
    for number in free:
        if noun in {known.person.noun.lower() for known in mentions_of_person[number]}:
            return number
    return free[0] if free else None
