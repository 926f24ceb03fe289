"""Find the people in a prompt who can get a value, and their possible values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from vldebias.prompts.attribute import SLOTS, Attribute
from vldebias.wording.absent import without_absent
from vldebias.wording.decisions import UserDecisions
from vldebias.wording.emoji import has_stating_emoji
from vldebias.wording.groups import mixtures
from vldebias.wording.language import MOST_PERSONS, Language, Mention, Value
from vldebias.wording.languages import ENGLISH, language_of
from vldebias.wording.marks import UserMarks
from vldebias.wording.reasons import CONTEXT, EDIT, NAMED, NO_ANSWER, NO_PERSON, NOT_PLAIN
from vldebias.wording.syntax import (
    has_syntax,
    is_code,
    is_edit,
    json_texts,
    names_a_model,
    names_of_templates,
    picture_of,
    read_alternatives,
    texts_of_markup,
)

# The unit separator character, which separates an image's texts for different encoders.
NEXT_TEXT = "\x1f"
# The prompt for the next face, which shows the same people, begins with this token.
NEXT_FACE = "[SEP]"
_CACHED = 10_000  # Number of prompts whose people are cached, as many as a Balancer counts.
# Prefixes of reasons that apply to one text and do not affect the other texts for an image.
_NOBODY = (NO_PERSON, NOT_PLAIN, "not understood", "unknown language", "language: ", NO_ANSWER)
# The placeholders of all kinds of attributes.
_SLOTS = re.compile(rf"\{{\s*(?:{'|'.join(SLOTS.values())}|attribute)\s*\}}", re.IGNORECASE)
# The reasons of doubts, which a mark of the user's `find` lifts.
_DOUBTS = (NO_PERSON, NOT_PLAIN, NAMED)


class DepictedPerson:
    """A person shown in the images for a prompt, to whom one value is assigned.

    Attributes:
        mentions: A tuple (text number, mention, language) for each alternative and each text that
            mentions the person.
        reason: Why this person cannot get a value, or "" if they can.
        noun, group: The noun and the group of the first mention.
        place: The text number, offset and noun of the first mention. Places sort in text order.
    """

    def __init__(self, mentions: Sequence[tuple[int, Mention, Language]]) -> None:
        self.mentions = tuple(mentions)
        number_of_text, first, _ = self.mentions[0]
        self.noun = first.noun
        self.group = first.group
        self.place = (number_of_text, first.start, first.noun)
        reasons = [person.reason for _, person, _ in self.mentions if person.reason]
        groups = [person.group for _, person, _ in self.mentions]
        kinds_of_groups = {group and (group.size, group.mixes) for group in groups}
        # In "{five nurses|a nurse}", a mixture would not fit both alternatives.
        if len(kinds_of_groups) > 1:
            reasons.append(NOT_PLAIN)
        self.reason = reasons[0] if reasons else ""


class PersonReader:
    """Find the people in prompts and their possible values for one attribute.

    Args:
        attribute: The attribute whose values are assigned.
        find, decide: See `balance_prompts`.
        one_person: Whether to leave prompts with more than one person unchanged, see `Balancer`.
    """

    def __init__(
        self,
        attribute: Attribute,
        find: UserMarks | None = None,
        decide: UserDecisions | None = None,
        *,
        one_person: bool = False,
    ) -> None:
        self.attribute = attribute
        self._one_person = one_person
        self._find = find
        self._decide = decide
        self._read = lru_cache(maxsize=_CACHED)(self._read_image)
        self._readings = lru_cache(maxsize=_CACHED)(self._read_text)
        self._may_be_marked = lru_cache(maxsize=_CACHED)(self._is_doubtful)

    def persons(self, prompt: str) -> tuple[DepictedPerson, ...] | str:
        """Return all people in a prompt, or the reason why there are none."""
        return self._read(prompt, tuple(map(self._marks, prompt.split(NEXT_TEXT))))

    def open_persons(self, prompt: str) -> tuple[tuple[DepictedPerson, ...], str]:
        """Return the people in a prompt who can get a value, and the reason if there are none."""
        persons = self.persons(prompt)
        if isinstance(persons, str):
            return (), persons
        if self._one_person and len(persons) > 1:
            return (), NOT_PLAIN if self._may_get_value(prompt) else persons[0].reason
        open_persons = [person for person in persons if not person.reason]
        allowed = self._allowed(prompt)
        if allowed is not None:
            if len(allowed) < 2 or sum(allowed.values()) <= 0:
                return (), CONTEXT  # there is no choice left
            # `decide` overrules the word lists.
            open_persons = [person for person in persons if _is_open_or_fixed(person)]
        return tuple(open_persons[:MOST_PERSONS]), "" if open_persons else persons[0].reason

    def outcomes(self, prompt: str, strength: float) -> list[dict[Value, float]]:
        """Return, for each person who can get a value, the share of the images per value.

        Args:
            prompt: The prompt.
            strength: The share of images in which the first person gets a value. In the remaining
                images, nobody gets a value.
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
        is_mixed = has_choice and self.attribute.people == "mixed"
        outcomes_of_persons: list[dict[Value, float]] = []
        for person in persons:
            shares_of_person = shares
            # The outcomes for "five engineers" are mixtures such as "three women and two men".
            if is_mixed and person.group is not None and person.group.mixes:
                shares_of_person = mixtures(person.group, shares)
            outcomes = {value: share * strength for value, share in shares_of_person.items()}
            outcomes_of_persons.append(outcomes | {None: 1 - strength})
            strength = 1.0
        return outcomes_of_persons

    # ---- user-supplied decisions

    def ask(self, prompts: Sequence[str]) -> None:
        """Ask `find` about all doubtful prompts, and then `decide` about all with people."""
        if self._find is not None:
            texts = [text for prompt in prompts for text in prompt.split(NEXT_TEXT)]
            self._find.ask(filter(self._may_be_marked, texts), self.attribute.title)
        if self._decide is not None:
            self._decide.ask([_in_one_line(text) for text in prompts if self._may_get_value(text)])

    def _allowed(self, prompt: str) -> dict[str, float] | None:
        """Return the values that `decide` allows, with their shares, or None.

        None means that the word lists decide.
        """
        if self._decide is None or not self._may_get_value(prompt):
            return None
        text = _in_one_line(prompt)
        allowed = self._decide.ask([text])[text]
        if allowed is None:
            return None
        shares = self.attribute.shares
        return {value: shares[value] for value in shares if value in allowed}

    def _may_get_value(self, prompt: str) -> bool:
        """Return whether anybody in a prompt may get a value if `decide` overrules the facts."""
        persons = self.persons(prompt)
        return not isinstance(persons, str) and any(map(_is_open_or_fixed, persons))

    # ---- reading a prompt

    def _marks(self, text: str) -> tuple[int, ...] | str:
        """Return the offsets of the nouns that `find` marks, or why it gave no answer."""
        if self._find is None or not self._may_be_marked(text):
            return ()
        return self._find.known(text, self.attribute.title)

    def _is_doubtful(self, text: str) -> bool:
        """Return whether the rules leave a text because of a doubt, but it may show somebody."""
        if not all(reading in _DOUBTS for reading in self._readings(text)):
            return False
        return any(
            language.may_be_marked(shown)
            for shown, language in _alternatives(text)
            if language is not None
        )

    def _read_image(
        self, prompt: str, marks: Sequence[tuple[int, ...] | str]
    ) -> tuple[DepictedPerson, ...] | str:
        """Return all people in the texts for an image, or the reason why there are none."""
        readings: list[list[tuple[int, Mention, Language]]] = []
        reasons: list[str] = []
        for number, (text, found) in enumerate(zip(prompt.split(NEXT_TEXT), marks, strict=True)):
            if isinstance(found, str):
                reasons.append(found)
                found = ()
            for reading in self._readings(text, found):
                if isinstance(reading, str):
                    reasons.append(reading)
                else:
                    readings.append([(number, person, language) for person, language in reading])
        # A reason for one text applies to the image, unless it only means that this text or
        # alternative shows nobody, as in "a {nurse|lamp}".
        for reason in reasons:
            if not reason.startswith(_NOBODY):
                return reason
        return tuple(map(DepictedPerson, _merge_mentions(readings))) or reasons[0]

    def _read_text(
        self, text: str, marks: tuple[int, ...] = ()
    ) -> list[list[tuple[Mention, Language]] | str]:
        """Return the people in each reading of a text, or the reason why there are none.

        A text with alternatives, such as "a {nurse|doctor}", has one reading for each of them.
        """
        if spans := [slot.span() for slot in self.attribute.slots.finditer(text)]:
            return self._read_placeholders(text, spans)
        if reason := self._why_unread(picture_of(text)):
            return [reason]
        readings: list[list[tuple[Mention, Language]] | str] = []
        for shown, language in _alternatives(text):
            if language is None:
                readings.append("language")
                continue
            marked = language.find_marked(shown, self.attribute, marks) if marks else ()
            persons = marked or language.find(shown, self.attribute)
            if isinstance(persons, str):
                readings.append(persons)
            else:
                readings.append([(person, language) for person in persons])
        return readings or ["too many alternatives"]

    def _read_placeholders(
        self, text: str, spans: Sequence[tuple[int, int]]
    ) -> list[list[tuple[Mention, Language]] | str]:
        """Return the people at placeholders. Those before the same noun are one person."""
        reader = language_of(text) or ENGLISH
        blank = _SLOTS.sub(lambda slot: " " * len(slot[0]), text)
        firsts: dict[str, Mention] = {}
        further: list[Mention] = []
        for span in spans:
            mention = Mention("", span[1], span[1], span)
            rest = blank[span[1] :]
            next_word = rest.lstrip()
            is_word = next_word[:1].isalnum() and next_word != rest
            if is_word and not self.attribute.has_phrases:
                place = len(blank) - len(next_word)
                for person in reader.find_marked(blank, self.attribute, [place]):
                    mention = person._replace(place=span)
            first = firsts.setdefault(mention.noun.lower(), mention)
            further += [mention] * (first is not mention)
        if len(firsts) > 1 and "" in firsts:
            further.append(firsts.pop(""))  # it describes one of the others
        # Each further mention is a reading of its own, which is matched by its noun.
        readings = [list(firsts.values()), *([mention] for mention in further)]
        return [[(mention, reader) for mention in mentions] for mentions in readings]

    def _why_unread(self, text: str) -> str:
        """Return why no person in a text is looked for, or ""."""
        if is_edit(text):
            return EDIT
        if is_code(text):
            return NOT_PLAIN
        if not text.isascii() and has_stating_emoji(text, self.attribute.kind):
            return "stated"
        if self.states_in_syntax(text):
            return "stated"
        if not self.attribute.gender and names_a_model(text):
            return "named"  # The model shows a certain person: "<lora:ada:1>, a girl".
        return ""

    def states_in_syntax(self, text: str) -> bool:
        """Return whether JSON, markup or a variable states a value.

        A variable states one if it is named after the attribute, such as {{gender}}.
        """
        if not has_syntax(text):
            return False
        if json_texts(text) is not None:
            return self._states(text.replace('"', " "))  # "negative": "male" asks for women
        markup = texts_of_markup(text)
        if any(map(self._states, markup)):
            return True
        names = [*names_of_templates(text), *markup, *" ".join(markup).split()]
        return not self.attribute.names.isdisjoint(names)

    def _states(self, text: str) -> bool:
        """Return whether any word in a text states a value, in English or the text's language."""
        # File and variable names are usually English, whatever the language of the prompt.
        languages = {ENGLISH, language_of(text) or ENGLISH}
        return any(language.states(text, self.attribute) for language in languages)


def _is_open_or_fixed(person: DepictedPerson) -> bool:
    """Return whether a person can get a value, or could if `decide` overruled the facts."""
    return not person.reason or person.reason.startswith(CONTEXT)


def _in_one_line(prompt: str) -> str:
    """Join the texts for one image into one line, separated by vertical bars."""
    return prompt.replace(NEXT_TEXT, " | ")


def _alternatives(text: str) -> Iterator[tuple[str, Language | None]]:
    """Yield each alternative of a text without what the picture must not show, and its language."""
    for alternative in read_alternatives(picture_of(text)):
        language = language_of(alternative)
        shown = alternative if language is None else without_absent(alternative, language.code)
        yield shown, language


def _merge_mentions(
    readings: Sequence[Sequence[tuple[int, Mention, Language]]],
) -> list[list[tuple[int, Mention, Language]]]:
    """Collect the mentions of each person from all readings of a prompt.

    Each reading mentions a person at most once. Mentions are matched by place, then by noun, and
    then by order.
    """
    mentions_of_person: list[list[tuple[int, Mention, Language]]] = []
    for reading in readings:
        free = list(mentions_of_person)  # people not yet found in this reading
        for mention in reading:
            if not free:
                mentions_of_person.append([mention])
                continue
            noun = mention[1].noun.lower()
            same = [known for known in free if mention in known]
            for known in free:
                if noun in [person.noun.lower() for _, person, _ in known]:
                    same.append(known)
            mentions = (same or free)[0]
            free.remove(mentions)
            if mention not in mentions:
                mentions.append(mention)
    return mentions_of_person
