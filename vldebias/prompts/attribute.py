"""Find where a prompt can say a value of one attribute, and which values its images get."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from vldebias.errors import InvalidInputError
from vldebias.prompts.decisions import Decider
from vldebias.prompts.emoji import has_stating_emoji
from vldebias.prompts.english.context import is_fixed_by_context
from vldebias.prompts.english.groups import (
    Group,
    Mixture,
    can_mix,
    find_group,
    mixtures,
    names_a_group,
)
from vldebias.prompts.english.scene import Scene, read_scene
from vldebias.prompts.english.subject import Subject, find_subject
from vldebias.prompts.english.words import (
    adjective,
    classes,
    has_gendered,
    listed,
    lists,
    origins,
    person,
    religions,
)
from vldebias.prompts.prompt_set import PromptSet, StatedWords
from vldebias.prompts.syntax import UnreadableSyntaxError, is_edit, json_texts, read_alternatives

Find = Callable[[str], int | None]
Value = str | Mixture | None

GROUPS = ("mixed", "leave", "same")
NEXT_TEXT = "\x1f"  # the unit separator: between the texts of one image, for several encoders
# Kinds of adjectives as English orders them, from left to right, and their names in placeholders.
_ORDER = {
    "size": "",
    "age": "age",
    "skin": "skin_tone",
    "origin": "race",
    "nation": "",
    "gender": "gender",
}
_CACHED = 2000  # prompts
# The person is a pronoun alone, "someone at a desk": there is no noun to write before.
_PRONOUN = re.compile(r"\b(?:someone|somebody|anyone|anybody|everyone|everybody)\b", re.IGNORECASE)


class Place(NamedTuple):
    """Hold one place of a prompt in which a value can be said.

    Attributes:
        start, end: the characters that an adjective replaces; equal where it is inserted.
        behind: offset behind the noun, where a phrase is written.
        group: the persons, if the noun names several.
    """

    start: int
    end: int
    behind: int
    group: Group | None = None

    def moved(self, offset: int) -> Place:
        """Return the same place in a text that has so many characters before it."""
        return Place(self.start + offset, self.end + offset, self.behind + offset, self.group)


class Places(NamedTuple):
    """Hold the places of a prompt, and whether its context fixes the value."""

    places: tuple[Place, ...]
    is_fixed: bool = False

    def moved(self, offset: int) -> Places:
        """Return the same places in a text that has so many characters before it."""
        return Places(tuple(place.moved(offset) for place in self.places), self.is_fixed)


def in_one_line(prompt: str) -> str:
    """Return the texts of one image as one that a reader can read."""
    return prompt.replace(NEXT_TEXT, " | ")


class Attribute:
    """Hold how the values of one prompt set are said, their shares, and the places for them.

    prompt_set: the set; its values are said by adjectives or phrases. shares: value -> share; those
    of other sets are left out. find, decide, groups: as of `balance_prompts`.
    """

    def __init__(
        self,
        prompt_set: PromptSet,
        shares: Mapping[str, float],
        *,
        find: Find | None = None,
        decide: Decider | None = None,
        groups: str = "mixed",
    ) -> None:
        self.set = prompt_set
        self.words = words_of_values(prompt_set)
        self.has_phrases = bool(prompt_set.phrase)
        self.shares = _checked_shares(self.words, shares)
        last_words = {word.lower().split()[-1] for word in self.words.values()}
        self.gender = not self.has_phrases and has_gendered(last_words)
        self.kind = "gender" if self.gender else _kind(last_words)
        self.rank = _rank_of_set(self.kind, last_words)
        self.find = find
        self.decide = decide
        self.groups = groups
        self._slots = _slots(self.kind, prompt_set.name)
        self._stated = StatedWords(_stated_words(prompt_set))
        self._search = lru_cache(maxsize=_CACHED)(self._search_uncached)

    def outcomes(self, prompt: str, strength: float) -> dict[Value, float] | str:
        """Return the values of a prompt's images with their shares, or why there are none.

        strength: share of the images that get a value; the rest gets None.
        """
        found = self.place(prompt)
        if isinstance(found, str):
            return found
        shares: Mapping[Any, float] = self._allowed_shares(prompt)
        # "five engineers" get "three women and two men" in place of a value.
        group = found[0].group
        if group is not None and self._mixes(group, shares):
            shares = mixtures(group, shares)
        outcomes: dict[Value, float] = {value: share * strength for value, share in shares.items()}
        return outcomes | {None: 1 - strength}

    def place(self, prompt: str) -> tuple[Place, ...] | str:
        """Return the places of a prompt, or the reason why a value is said in none."""
        found = self._search(prompt)
        if isinstance(found, str):
            return found
        allowed = self._allowed(prompt)
        if allowed is None:
            return "context" if found.is_fixed else found.places
        total = sum(self.shares[value] for value in allowed)
        if len(allowed) < 2 or total <= 0:
            return "context"
        return found.places

    def _allowed(self, prompt: str) -> tuple[str, ...] | None:
        """Return the values that `decide` allows; None to let the word lists decide."""
        if self.decide is None:
            return None
        return self.decide.allowed(in_one_line(prompt))

    def ask(self, prompts: Sequence[str]) -> None:
        """Ask `decide` about those prompts that have a place, in one call where it takes a list."""
        if self.decide is None:
            return
        placed: list[str] = []
        for prompt in prompts:
            if isinstance(self._search(prompt), Places):
                placed.append(in_one_line(prompt))
        self.decide.ask(placed)

    def _allowed_shares(self, prompt: str) -> dict[str, float]:
        """Return the shares of the values that `decide` allows; they sum to 1."""
        allowed = self._allowed(prompt)
        if allowed is None:
            return self.shares
        total = sum(self.shares[value] for value in allowed)
        return {value: self.shares[value] / total for value in self.shares if value in allowed}

    def _mixes(self, group: Group, shares: Mapping[str, float]) -> bool:
        """Return whether the persons of a group get different values."""
        if self.groups != "mixed" or not group.mixes:
            return False
        return sum(share > 0 for share in shares.values()) > 1

    def _search_uncached(self, prompt: str) -> Places | str:
        """Return the places of a prompt; of several texts of one image, those of each."""
        results: list[Places | str] = []
        start = 0
        for text in prompt.split(NEXT_TEXT):
            result = self._search_text(text)
            # Offsets count in the whole, not in this text alone.
            results.append(result if isinstance(result, str) else result.moved(start))
            start += len(text) + len(NEXT_TEXT)
        return results[0] if len(results) == 1 else self._join(results)

    def _search_text(self, prompt: str) -> Places | str:
        slots = [Place(*match.span(), match.end()) for match in self._slots.finditer(prompt)]
        if slots:
            # A placeholder says where the value goes, so that nothing else is read.
            return Places(tuple(slots))
        if self.find is not None:
            return self._found_by_user(self.find, prompt)
        if is_edit(prompt):
            return "edit"
        # Any text of a JSON may state a value; only those of a subject are read for a person.
        is_json = json_texts(prompt) is not None
        if has_stating_emoji(prompt, self.kind) or (is_json and self._states_anywhere(prompt)):
            return "stated"
        try:
            readings = read_alternatives(prompt)
        except UnreadableSyntaxError as problem:
            return str(problem)
        return self._join([self._read(reading) for reading in readings])

    def _found_by_user(self, find: Find, prompt: str) -> Places | str:
        offset = find(prompt)
        if offset is None:
            return "find gave no place"
        is_number = isinstance(offset, int) and not isinstance(offset, bool)
        if not is_number or not 0 <= offset <= len(prompt):
            raise InvalidInputError(
                f"find: got {offset!r} for {prompt!r}; expected a character offset or None"
            )
        return Places((Place(offset, offset, offset),))

    def _join(self, readings: Sequence[Places | str]) -> Places | str:
        """Return the places of all readings; a reason for one of them counts for all, unless it is
        that there is no person: "a {nurse|lamp}"."""
        reasons: list[str] = []
        places: set[Place] = set()
        is_fixed = False
        for reading in readings:
            if isinstance(reading, str):
                reasons.append(reading)
            else:
                places.update(reading.places)
                is_fixed = is_fixed or reading.is_fixed
        for reason in reasons:
            if not reason.startswith("no person"):
                return reason
        if not places:
            return reasons[0]
        # "{five nurses|a nurse}": a mixture cannot be written into both.
        kinds_of_groups = {_kind_of_group(place.group) for place in places}
        if len(kinds_of_groups) > 1:
            return "group"
        return Places(tuple(sorted(places)), is_fixed)

    def _read(self, text: str) -> Places | str:
        """Return the place in one reading of a prompt, or the reason why there is none."""
        subject = find_subject(text, self.gender)
        if self._states(text) and not self._states_of_picture_alone(text, subject):
            return "stated"
        if isinstance(subject, str):
            return _why_nobody(subject, text)
        if self.kind and self._states_in_phrase(text, subject):
            return "stated"
        group = find_group(text, subject)
        if group is not None and self._leaves(group):
            return "group"
        start = self._place_among_adjectives(subject)
        is_fixed = is_fixed_by_context(text, subject.start, subject.end, self.set)
        behind = subject.end if group is None else group.end
        return Places((Place(start, start, behind, group),), is_fixed)

    def _place_among_adjectives(self, subject: Subject) -> int:
        """Return the offset at which English writes the value among a noun's adjectives."""
        for offset, word in subject.words[:-1]:
            if rank_of(word) >= self.rank:
                return offset
        noun_offset, _ = subject.words[-1]
        return noun_offset

    def _states_in_phrase(self, text: str, subject: Subject) -> bool:
        """Return whether an adjective of the subject's phrase states a value."""
        scene = read_scene(text, subject.start, subject.end)
        for offset, word in subject.words[:-1]:
            if self.kind == "origin" and word.endswith("skinned"):
                return True  # "a pale skinned nurse"
            if rank_of(word) != self.rank or _is_rank_at_work(word, scene):
                continue
            # "a newborn photographer" says for whom, not how old.
            position = scene.text.start.index(offset)
            if self.kind != "age" or not scene.is_for_age(position):
                return True
        return False

    def _leaves(self, group: Group) -> bool:
        """Return whether a group is left alone: it cannot be mixed, and is not of one value."""
        if self.groups == "leave":
            return True
        if self.groups == "same" or 1 in self.shares.values():
            return self.has_phrases
        if not group.mixes or not self.gender:
            return True  # only women and men have nouns in the plural
        return not can_mix(self.words.values())

    def _states(self, text: str) -> bool:
        """Return whether a text states a value; roles such as "alumnus" do so for gender alone."""
        for word in self._stated.find(text):
            is_role = self.gender and person(word.lower())
            if not is_role:
                return True
        return False

    def _states_of_picture_alone(self, text: str, subject: Subject | str) -> bool:
        """Return whether all that states a value says how a picture is made, or where a thing is
        from: "a nurse, Japanese woodblock print", "a chef in a Japanese restaurant"."""
        if isinstance(subject, str):
            return False
        scene = read_scene(text, subject.start, subject.end)
        rest = scene.without_picture(origins=self.kind == "origin", ages=self.kind == "age")
        return not self._states(rest)

    def _states_anywhere(self, prompt: str) -> bool:
        """Return whether any text of a JSON states a value; "negative": "male" asks for others."""
        words = re.findall(r"[\w'-]+", prompt.lower())
        if self._states(prompt):
            return True
        return self.gender and has_gendered(words)


def _is_rank_at_work(word: str, scene: Scene) -> bool:
    """Return whether an adjective is a rank: "a senior engineer", not "a senior couple"."""
    return word == "senior" and not listed(scene.noun, "people")


def _why_nobody(reason: str, text: str) -> str:
    """Return a reason that says more: a group is shown, or the person is a pronoun."""
    if not reason.startswith("no person"):
        return reason
    if _PRONOUN.search(text):
        return "pronoun"
    return "group" if names_a_group(text) else reason


def _kind_of_group(group: Group | None) -> tuple[int | None, bool] | None:
    return None if group is None else (group.size, group.mixes)


def _kind(last_words: set[str]) -> str:
    """Return the kind of adjectives that most words are of; "" if none of them is known."""
    likeliest = ""
    most_words = 0
    for kind in _ORDER:
        if kind == "nation":
            continue  # it has a place among adjectives, but makes no kind of attribute
        known = len(last_words & lists()[kind].keys())
        if known > most_words:
            likeliest = kind
            most_words = known
    return likeliest


def _stated_words(prompt_set: PromptSet) -> tuple[str, ...]:
    """Return the words by which a prompt states the attribute.

    If a value of the set, or a word of one, is a word for a religion or its believers ("Hindu",
    "Sikh"), then every such word states the attribute: "a Hindu priest" leaves nothing to write to
    a set of Sikhs and Muslims.
    """
    stated_words = prompt_set.stated_words
    words_of_set = chain(prompt_set.attributes, *prompt_set.attributes.values())
    casefolded = {word.casefold() for word in words_of_set}
    words_for_religions = lists()["religion"]
    if any(word.casefold() in casefolded for word in words_for_religions):
        return (*stated_words, *words_for_religions)
    return stated_words


def _slots(kind: str, name: str) -> re.Pattern[str]:
    """Return a pattern for the placeholders of a set: {gender}, {Gender}, {{gender}}."""
    names = {_ORDER.get(kind, ""), "attribute", name.replace("-", "_")} - {""}
    word = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf"\{{\{{\s*(?:{word})\s*\}}\}}|\{{\s*(?:{word})\s*\}}", re.IGNORECASE)


def _checked_shares(words: Mapping[str, str], shares: Mapping[str, float]) -> dict[str, float]:
    """Return value -> share, even where the shares are of other sets."""
    if not set(shares).intersection(words):
        return {value: 1 / len(words) for value in words}
    checked = {value: float(shares.get(value, 0)) for value in words}
    is_valid = all(0 <= share <= 1 for share in checked.values())
    if not is_valid or not math.isclose(sum(checked.values()), 1, abs_tol=1e-6):
        raise InvalidInputError(f"shares: got {checked}; expected shares in [0, 1] that sum to 1")
    return checked


def can_balance(prompts: PromptSet) -> bool:
    """Return whether a set is about persons: each value has an adjective that goes before a noun
    for a person, or a phrase that goes behind it."""
    if prompts.phrase or prompts.adjectives:
        return True
    return bool(prompts.attributes) and all(map(_adjective, prompts.attributes.values()))


def words_of_values(prompts: PromptSet) -> dict[str, str]:
    """Return value -> how it is said beside a noun: its phrase, its adjective, or the first of its
    words that is one.

    Raises:
        InvalidInputError: a value has none of them.
    """
    if prompts.phrase:
        return dict(prompts.phrase)
    if prompts.adjectives:
        return dict(prompts.adjectives)
    if not prompts.attributes:
        raise InvalidInputError(
            f"prompt set {prompts.name!r}: it has no values; expected a set about persons with"
            " `attribute`, such as 'gender'"
        )
    adjective_of_value = {value: _adjective(words) for value, words in prompts.attributes.items()}
    missing = [value for value, word in adjective_of_value.items() if not word]
    if missing:
        value = missing[0]
        raise InvalidInputError(
            f"prompt set {prompts.name!r}: no word of the value {value!r}"
            f" ({', '.join(prompts.attributes[value])}) is known as an adjective for a person; add"
            f" adjectives={{{value!r}: ...}} as in 'a blind cook', or phrase={{{value!r}: ...}} as"
            " in 'a cook who is blind', for every value"
        )
    return adjective_of_value


def _adjective(words: Sequence[str]) -> str:
    """Return the first word of a value that can stand before a noun for a person, else ""."""
    for word in words:
        last = word.lower().split()[-1]
        is_adjective_alone = adjective(last) and "n" not in classes(last)
        if is_adjective_alone or rank_of(last) >= 0:
            return word
    return ""


def rank_of(word: str) -> int:
    """Return the place of an adjective in the English order of adjectives; -1 if unknown.

    Nations and religions stand next to the noun, before a gender alone: "an old white Catholic
    priest", "a US female senator".
    """
    for rank, kind in enumerate(_ORDER):
        if word in lists()[kind]:
            return rank
    is_nation = word in origins() or word in religions()
    return list(_ORDER).index("nation") if is_nation else -1


def _rank_of_set(kind: str, last_words: set[str]) -> int:
    """Return the place of the adjectives of a set: that of their kind, or of a religion's."""
    if kind:
        return list(_ORDER).index(kind)
    rank_of_nations = list(_ORDER).index("nation")
    if rank_of_nations in map(rank_of, last_words):
        return rank_of_nations
    return list(_ORDER).index("size")
