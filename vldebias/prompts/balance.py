"""Balance prompts: state a sampled value of an attribute where the prompt leaves it open. Plain
Python, no model.

"A CEO in an office" becomes "A female CEO in an office" for one half of the images and "A male CEO
in an office" for the other; "five engineers" become "five engineers, three women and two men". A
prompt is left alone where a value is stated ("a lady editor", "his dog"), where the person is
named, where the facts of the prompt leave one value, where no person is in the picture, and
whenever that is in doubt.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from vldebias.errors import InvalidInputError
from vldebias.markup import html_table
from vldebias.prompts.attribute import (
    GROUPS,
    NEXT_TEXT,
    Attribute,
    Find,
    Place,
    Value,
    words_of_values,
)
from vldebias.prompts.attribute import can_balance as can_balance
from vldebias.prompts.dealing import Dealer, block_length, draw_seed, seed_from
from vldebias.prompts.decisions import Decide, Decider
from vldebias.prompts.english.groups import describe, fits
from vldebias.prompts.english.words import is_proper
from vldebias.prompts.prompt_set import PromptSet, append_word, load_prompts
from vldebias.prompts.syntax import is_in_capitals

Sets = (
    str
    | Path
    | PromptSet
    | Mapping[str, Any]
    | Sequence[str | Path | PromptSet | Mapping[str, Any]]
)

MOST = 10_000  # prompts that a Balancer remembers
_LONGEST_BLOCK = 1000  # images over which `Balancer.at` is even


@dataclass(frozen=True)
class BalancedPrompts:
    """Hold prompts in which values of an attribute are stated.

    Attributes:
        prompts: the prompts in their order, changed or not.
        values: the value that was written into each, or None if it was left alone. For a group with
            several values in one picture, a mapping of value -> number of persons (None where the
            prompt does not count them). For several sets, tuples of values.
        reasons: why a prompt was left alone: "stated", "named", "no person", "context", "group",
            ...; None if a value was written. For several sets, tuples of reasons.
        seed: the seed that was used: with it the same call gives the same values.
    """

    prompts: list[str]
    values: list[Any]
    reasons: list[Any]
    seed: int

    def _repr_html_(self) -> str:
        """Return what a notebook shows: each prompt, what was written, or why nothing was."""
        written = sum(value is not None for value in self.values)
        title = f"{written} of {len(self.prompts)} prompts written, seed {self.seed}"
        rows = zip(self.prompts, self.values, self.reasons, strict=True)
        return html_table(title, ("prompt", "written", "left alone because"), rows)


def balance_prompts(
    prompts: str | Iterable[str],
    sets: Sets,
    *,
    shares: Mapping[str, float] | None = None,
    seed: int | None = None,
    groups: str = "mixed",
    find: Find | None = None,
    decide: Decide | None = None,
) -> BalancedPrompts:
    """State sampled values in prompts that leave them open, in even shares or in `shares`.

    If a list has a prompt n times, each of k values is written into n / k of them (rounded up or
    down), in an order that the seed determines. Remainders are distributed as evenly as possible
    over different prompts.

    Args:
        prompts: one prompt, or one for each image.
        sets: a prompt set by name, path or as a `PromptSet`, or several: gender, age, race, skin
            tone or one of yours.
        shares: value -> share of the images; those of each set sum to 1. Sets without shares are
            balanced evenly.
        seed: decides which images get which value. None: each call draws anew, so that calls with
            one image each get different values; the seed that was drawn is in the result.
        groups: what happens to several persons: "mixed" writes the numbers of women and men behind
            the noun, so that one picture shows both (other attributes are left alone); "leave"
            leaves them alone; "same" gives all of them one value.
        find: a function of your own that says where the words go: prompt -> offset of a character,
            or None to leave it alone. None: the first person, found by English word lists.
        decide: a function of your own that says which values the facts of a prompt allow:
            (prompt, values) -> a list of values, or None to let the word lists decide. It is called
            once for each distinct prompt; if its first argument is named `prompts`, once with a
            list of them. Two or more values are balanced; with one or none the prompt is left
            alone.

    Placeholders are filled in place: "{gender}" in "A photo of a {gender} CEO", "{age}", "{race}",
    "{skin_tone}".

    Raises:
        InvalidInputError: an unknown set, one that is not about persons, or two of one attribute;
            shares that do not sum to 1; arguments of a wrong type.

    >>> balance_prompts(
    ...     ["A CEO", "a lady editor"], "gender", shares={"female": 1, "male": 0}, seed=0
    ... )
    BalancedPrompts(prompts=['A female CEO', 'a lady editor'], values=['female', None],
    reasons=[None, 'stated'], seed=0)
    """
    balancer = Balancer(sets, shares, seed, find, decide=decide, groups=groups)
    return balancer.next([prompts] if isinstance(prompts, str) else prompts)


@dataclass(repr=False, eq=False)
class Balancer:
    """Balance prompts over several calls: the shares of each prompt hold over all calls.

    Use one for the whole life of a service. It may be called from several threads.

    sets, shares, seed, find, decide, groups: as in `balance_prompts`; afterwards `seed` is the one
    that was drawn. strength: share of the images that are given a value, in [0, 1]; it may be set
    between calls. most: prompts whose counts are remembered; the one not asked for longest is
    forgotten first.

    Raises:
        InvalidInputError: as `balance_prompts`.
    """

    sets: Sets
    shares: Mapping[str, float] | None = None
    seed: int | None = None
    find: Find | None = None
    strength: float = 1.0
    decide: Decide | None = None
    groups: str = "mixed"
    most: int = MOST
    has_drawn_seed: bool = field(default=False, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        self._check_arguments()
        if self.seed is None:
            self.has_drawn_seed = True
            self.seed = draw_seed()
        is_one_set = isinstance(self.sets, str | Path | PromptSet | Mapping)
        sets: Any = [self.sets] if is_one_set else self.sets
        # A set over several attributes, such as "fairface", is balanced by each of them.
        parts: list[PromptSet] = []
        for prompt_set in map(load_prompts, sets):
            parts += prompt_set.parts or (prompt_set,)
        if not parts:
            raise InvalidInputError(f"sets: got {self.sets!r}; expected at least one prompt set")
        shares = self.shares or {}
        _check_names_of_shares(shares, parts)
        self._attributes = [self._attribute(part, shares) for part in parts]
        _check_different(self._attributes)
        self._single = is_one_set and len(parts) == 1
        self._dealers = self._new_dealers(self.seed)

    def next(self, prompts: Iterable[str]) -> BalancedPrompts:
        """Balance one prompt for each image, counting the values that earlier calls gave to the
        same prompt."""
        texts = _checked_prompts(prompts)
        with self._lock:
            return self._balance(texts, self._dealers, self._checked_seed)

    def restart(self, seed: int) -> None:
        """Forget all calls and start anew with this seed."""
        _check_whole_number("seed", seed)
        with self._lock:
            self.seed = seed
            self.has_drawn_seed = False
            self._dealers = self._new_dealers(seed)

    def at(self, prompt: str, index: int) -> BalancedPrompts:
        """Balance the image of a prompt that has this index, without remembering anything.

        The same index gives the same value in every process that has the seed, and indices from 0
        on are even: over every two images for two even values, every ten for .7 and .3. Take the
        index from a counter that all processes share, such as a row of a database.
        """
        (text,) = _checked_prompts([prompt])
        _check_whole_number("index", index, least=0)
        length = min(self._images_of_a_block(text), _LONGEST_BLOCK)
        # Every block is dealt as a call of its own, with a seed that follows from its number.
        block, row = divmod(index, length)
        seed = seed_from(self.seed, block)
        made = self._balance([text] * length, self._new_dealers(seed), seed)
        return BalancedPrompts(
            [made.prompts[row]], [made.values[row]], [made.reasons[row]], self._checked_seed
        )

    def _images_of_a_block(self, prompt: str) -> int:
        """Return over how many images of a prompt the shares of all attributes are even."""
        images = 1
        for attribute in self._attributes:
            outcomes = attribute.outcomes(prompt, self.strength)
            if not isinstance(outcomes, str):
                images *= block_length(outcomes)
        return images

    def next_texts(
        self, images: Iterable[Sequence[str]]
    ) -> tuple[list[list[str]], BalancedPrompts]:
        """Balance the texts of each image, which a pipeline with several encoders takes.

        All texts of an image get the same value, wherever a subject is found in them, and any of
        them may state it. Images with equal texts count as one prompt.

        Args:
            images: for each image its texts, as many for each.

        Returns:
            The new texts of each image, and the values and reasons of all images. Its prompts are
            the first texts.
        """
        rows = [_checked_prompts(texts) for texts in images]
        joined = [NEXT_TEXT.join(texts) for texts in rows]
        balanced = self.next(joined)
        written = [prompt.split(NEXT_TEXT) for prompt in balanced.prompts]
        first = [texts[0] for texts in written]
        return written, replace(balanced, prompts=first)

    def write(self, prompts: Sequence[str], values: Sequence[Any]) -> list[str]:
        """Write given values into prompts, such as second prompts of the same images, where they
        can be stated."""
        return [
            self._write(prompt, self._as_row(value))
            for prompt, value in zip(prompts, values, strict=True)
        ]

    @property
    def _checked_seed(self) -> int:
        assert self.seed is not None
        return self.seed

    def _as_row(self, values: Any) -> Sequence[Value]:
        """Return one value for each attribute."""
        if self._single:
            return [values]
        return values or [None] * len(self._attributes)

    def _check_arguments(self) -> None:
        _check_whole_number("seed", self.seed)
        _check_whole_number("most", self.most, least=1)
        if self.groups not in GROUPS:
            raise InvalidInputError(f"groups: got {self.groups!r}; expected one of {GROUPS}")
        for name in ("find", "decide"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise InvalidInputError(f"{name}: got {function!r}; expected a function or None")
        if self.shares is not None and not isinstance(self.shares, Mapping):
            raise InvalidInputError(
                f"shares: got {self.shares!r}; expected a mapping of value -> share, such as"
                " {'female': 0.5, 'male': 0.5}"
            )

    def _attribute(self, part: PromptSet, shares: Mapping[str, float]) -> Attribute:
        decider = None
        if self.decide is not None:
            decider = Decider(self.decide, part.attributes, self.most)
        return Attribute(part, shares, find=self.find, decide=decider, groups=self.groups)

    def _new_dealers(self, seed: int) -> list[Dealer[Value]]:
        return [Dealer(f"{seed}/{i}", self.most) for i in range(len(self._attributes))]

    def _balance(
        self, prompts: Sequence[str], dealers: Sequence[Dealer[Value]], seed: int
    ) -> BalancedPrompts:
        """Deal values to prompts and write them."""
        if not 0 <= self.strength <= 1:
            raise InvalidInputError(f"strength: got {self.strength!r}; expected a share in [0, 1]")
        for attribute in self._attributes:
            attribute.ask(prompts)
        values: list[list[Value]] = [[] for _ in prompts]
        reasons: list[list[str | None]] = [[] for _ in prompts]
        for prompt, rows in _rows_of_prompts(prompts).items():
            # Equal prompts get their values in an order that the seed decides.
            random.Random(f"{seed}/{dealers[0].images_of(prompt)}/{prompt}").shuffle(rows)
            for attribute, dealer in zip(self._attributes, dealers, strict=True):
                # Rows of equal values of the attributes before stand together: so the attributes
                # cross evenly.
                rows.sort(key=lambda row: list(map(str, values[row])))
                dealt, reason = self._deal(attribute, dealer, prompt, len(rows))
                for row, value in zip(rows, dealt, strict=True):
                    values[row].append(value)
                    reasons[row].append(reason if value is None else None)
        written = [self._write(prompt, row) for prompt, row in zip(prompts, values, strict=True)]
        form: Any = itemgetter(0) if self._single else tuple
        return BalancedPrompts(written, list(map(form, values)), list(map(form, reasons)), seed)

    def _deal(
        self, attribute: Attribute, dealer: Dealer[Value], prompt: str, images: int
    ) -> tuple[list[Value], str]:
        """Return the values of an attribute for the images of a prompt, and why some have none."""
        outcomes = attribute.outcomes(prompt, self.strength)
        if isinstance(outcomes, str):
            return [None] * images, outcomes
        return dealer.deal(prompt, images, outcomes), "strength"

    def _write(self, prompt: str, values: Sequence[Value]) -> str:
        """Write one value of each attribute into a prompt, where it can be stated."""
        words: list[_Words] = []
        for attribute, value in zip(self._attributes, values, strict=True):
            if value is None:
                continue
            places = attribute.place(prompt)
            if isinstance(places, str):
                continue  # a reason to leave the prompt alone
            for place in places:
                words += _words_for(attribute, place, value)
        written = []
        start = 0
        for text in prompt.split(NEXT_TEXT):
            end = start + len(text)
            inside: list[_Words] = []
            for word in words:
                if start <= word.start <= end:
                    inside.append(word.moved(-start))
            written.append(_insert(text, inside))
            start = end + len(NEXT_TEXT)
        return NEXT_TEXT.join(written)


def _rows_of_prompts(prompts: Iterable[str]) -> dict[str, list[int]]:
    """Return prompt -> its positions in a list."""
    rows_of_prompt = defaultdict[str, list[int]](list)
    for row, prompt in enumerate(prompts):
        rows_of_prompt[prompt].append(row)
    return rows_of_prompt


class _Words(NamedTuple):
    """Hold words for a place of a prompt.

    Attributes:
        start, end: the characters that they replace.
        kind: "before" a noun, "behind" it, or "aside" between commas.
        rank: the order of adjectives at one place.
        text: the words.
    """

    start: int
    end: int
    kind: str
    rank: int
    text: str

    def moved(self, offset: int) -> _Words:
        """Return the same words for a text that has so many characters before it."""
        return self._replace(start=self.start + offset, end=self.end + offset)


def _words_for(attribute: Attribute, place: Place, value: Value) -> list[_Words]:
    """Return the words that say a value at a place; none where they do not fit."""
    if isinstance(value, Mapping):
        # A mixture may have been made for another text of the image: "five nurses", "a nurse".
        if place.group is None or not fits(place.group, value):
            return []
        text = describe(value, attribute.words, place.group.young)
        return [_Words(place.behind, place.behind, "aside", 0, text)]
    word = attribute.words[str(value)]
    if not attribute.has_phrases:
        return [_Words(place.start, place.end, "before", attribute.rank, word)]
    start = place.start if place.start < place.end else place.behind
    return [_Words(start, place.behind, "behind", 0, word)]


def _insert(prompt: str, words: Sequence[_Words]) -> str:
    """Write words into a prompt, from its end to its start, so that offsets before them hold."""
    in_capitals = is_in_capitals(prompt)  # "A CEO IN AN OFFICE" gets "FEMALE"
    # Words for one place are written together: "an old female nurse".
    words_of_place = defaultdict[tuple[int, int, str], list[tuple[int, str]]](list)
    for start, end, kind, rank, text in words:
        words_of_place[start, end, kind].append((rank, text.upper() if in_capitals else text))
    for (start, end, kind), ranked in sorted(words_of_place.items(), reverse=True):
        texts = [text for _, text in sorted(ranked)]
        text_before = prompt[:start]
        slot = prompt[start:end]
        text_behind = prompt[end:]
        if kind == "before":
            prompt = _before(text_before, _like(slot, " ".join(texts)), text_behind.lstrip())
        elif kind == "behind":
            prompt = f"{text_before.rstrip()} {' and '.join(texts)}{_spaced(text_behind)}"
        else:
            comma = "" if re.match(r"\s*(?:[^\w\s'\"(<-]|$)", text_behind) else ","
            prompt = f"{text_before}, {', '.join(texts)}{comma}{_spaced(text_behind)}"
    return prompt


def _before(text_before: str, word: str, text_behind: str) -> str:
    """Return a prompt with a word before a noun; its first letter is a capital at the start."""
    if not text_before.strip() and re.match(r"[A-Z][a-z]", text_behind):
        word = word[0].upper() + word[1:]
        if not is_proper(text_behind.split()[0].lower()):  # "Tibetan priests"
            text_behind = text_behind[0].lower() + text_behind[1:]
    return f"{append_word(text_before, word)} {text_behind}"


def _like(slot: str, word: str) -> str:
    """Return a word in the letters of its placeholder: {gender}, {Gender} or {GENDER}."""
    letters = slot.strip("{ }")
    if len(letters) > 1 and letters.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if letters[:1].isupper() else word


def _spaced(right: str) -> str:
    """Return the rest of a prompt with a space before a word."""
    return f" {right}" if re.match(r"\w", right) else right


def _checked_prompts(prompts: Any) -> list[str]:
    """Return prompts as a list.

    Raises:
        InvalidInputError: they are no texts in an order.
    """
    # A set has no order, and the letters of a text are no prompts.
    is_no_list = isinstance(prompts, str | bytes | Mapping | set | frozenset)
    if is_no_list or not isinstance(prompts, Iterable):
        raise _no_prompts(prompts)
    texts = list(prompts)
    for text in texts:
        if not isinstance(text, str):
            raise _no_prompts(prompts)
    return texts


def _no_prompts(prompts: Any) -> InvalidInputError:
    """Return the error that says what came in place of prompts."""
    shown = repr(prompts)
    if len(shown) >= 200:
        shown = shown[:200] + "..."
    return InvalidInputError(
        f"prompts: got {shown}; expected a text or a list of texts, one for each image"
    )


def _check_whole_number(name: str, number: Any, least: int | None = None) -> None:
    """Raise InvalidInputError unless a setting is a whole number; a seed may be None."""
    if number is None and least is None:
        return
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    is_too_small = is_whole and least is not None and number < least
    if not is_whole or is_too_small:
        expected = "a whole number or None" if least is None else f"a whole number from {least} on"
        raise InvalidInputError(f"{name}: got {number!r}; expected {expected}")


def _check_names_of_shares(shares: Mapping[str, float], parts: Sequence[PromptSet]) -> None:
    """Raise InvalidInputError where shares name a value of no set, or are no numbers."""
    known = sorted(set(chain(*map(words_of_values, parts))))
    unknown = sorted(map(str, set(shares).difference(known)))
    if unknown:
        raise InvalidInputError(f"shares: got {unknown[0]!r}; expected values of the sets: {known}")
    for value, share in shares.items():
        if isinstance(share, str) or not hasattr(share, "__float__"):
            raise InvalidInputError(f"shares: got {share!r} for {value!r}; expected a number")


def _check_different(attributes: Sequence[Attribute]) -> None:
    """Raise InvalidInputError where two sets are about one attribute."""
    name_of_kind: dict[str, str] = {}
    for attribute in attributes:
        name = attribute.set.name
        kinds = {attribute.kind} if attribute.kind else set(attribute.words.values())
        for kind in kinds:
            if kind in name_of_kind:
                raise InvalidInputError(
                    f"sets: {name_of_kind[kind]!r} and {name!r} are about the same attribute"
                    f" ({kind}); expected one set for each attribute"
                )
        name_of_kind |= dict.fromkeys(kinds, name)
