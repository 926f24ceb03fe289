"""Balance prompts: state a sampled value of an attribute where the prompt leaves it open. Plain
Python, no model.

"A CEO in an office" becomes "A female CEO in an office" for one half of the images and "A male CEO
in an office" for the other; "five engineers" become "five engineers, three women and two men". A
prompt is left alone where a value is stated ("a lady editor", "his dog"), where the person is
named, where the facts of the prompt leave one value, where no person is in the picture, and
whenever that is in doubt.
"""

from __future__ import annotations

import math
import os
import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral, Real
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, cast
from weakref import WeakSet

from vldebias.errors import InvalidInputError
from vldebias.markup import html_table
from vldebias.prompts.attribute import GROUPS, Attribute, words_of_values
from vldebias.prompts.attribute import can_balance as can_balance
from vldebias.prompts.dealing import Dealer, block_length, draw_seed, seed_from
from vldebias.prompts.decisions import Decide, Decider
from vldebias.prompts.language import (
    MOST_PERSONS,
    Language,
    Replacement,
    Saying,
    Value,
    replace_all,
)
from vldebias.prompts.persons import NEXT_TEXT, Find, Finder
from vldebias.prompts.prompt_file import checked_texts
from vldebias.prompts.prompt_set import PromptSet, load_prompts

Sets = (
    str
    | Path
    | PromptSet
    | Mapping[str, Any]
    | Sequence[str | Path | PromptSet | Mapping[str, Any]]
)

_Hand = tuple[Value, ...]  # the values of one attribute, one for each person of an image

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
        people: for each image its persons who were given a value, in their order, each as (noun,
            value): `values` is of the first of them. For several sets, (noun, tuple of values).
    """

    prompts: list[str]
    values: list[Any]
    reasons: list[Any]
    seed: int
    people: list[list[tuple[str, Any]]] = field(default_factory=list)

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
    original: str | Iterable[str] | None = None,
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
        seed: decides which images get which value. None: each call draws a new one, so that calls
            with one image each get different values; the seed that was drawn is in the result.
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
        original: what the user wrote, where a language model rewrote it to `prompts`: one text for
            each of them. It decides what is open, and which images are of one prompt. What the
            rewriter added about the attribute becomes the value that is dealt, all through the
            text; a prompt that cannot be turned is left alone, as "rewritten: ...".

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
    return balancer.next(_as_list(prompts), None if original is None else _as_list(original))


def _as_list(prompts: str | Iterable[str]) -> Iterable[str]:
    return [prompts] if isinstance(prompts, str) else prompts


@dataclass(repr=False, eq=False)
class Balancer:
    """Balance prompts over several calls: the shares of each prompt hold over all calls.

    Use one for the whole life of a service. It may be called from several threads. In a forked
    child one that drew its seed draws another, so that workers do not deal in step; one that was
    given a seed keeps it: workers that share a seed share a counter too, and call `at`.

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
        _BALANCERS.add(self)
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
        self._finders: list[Finder] = []
        for part in parts:
            decider = None
            if self.decide is not None:
                decider = Decider(self.decide, part.attributes, self.most)
            attribute = Attribute(part, shares, self.groups)
            self._finders.append(Finder(attribute, self.find, decider))
        _check_different(self._finders)
        self._single = is_one_set and len(parts) == 1
        self._dealers = self._new_dealers(self.seed)

    def next(
        self, prompts: Iterable[str], original: Iterable[str] | None = None
    ) -> BalancedPrompts:
        """Balance one prompt for each image, counting the values that earlier calls gave to the
        same prompt.

        original: as in `balance_prompts`; then it is the original prompts that are counted.
        """
        received = checked_texts(prompts)
        texts = _composed(received)
        sources = texts if original is None else _checked_originals(original, texts)
        unturned = self._why_not_turned(sources, texts)
        with self._lock:
            hands = self._hands(sources, self._dealers, self.seed, unturned)
            return self._write_images(sources, texts, hands, unturned, received)

    def restart(self, seed: int) -> None:
        """Forget all calls and start again with this seed."""
        with self._lock:
            self.seed = _whole_number("seed", seed)
            self.has_drawn_seed = False
            self._dealers = self._new_dealers(self.seed)

    def at(
        self,
        prompts: str | Sequence[str],
        index: int | Iterable[int],
        original: str | Sequence[str] | None = None,
    ) -> BalancedPrompts:
        """Balance the image of a prompt that has this index, without remembering anything.

        The same index gives the same value in every process that has the seed, and indices from 0
        on are even: over every two images for two even values, every ten for .7 and .3. Take the
        index from a counter that all processes share, such as a row of a database.

        Lists of prompts and indices are the images of one call, which is even in itself: where the
        indices alone would make it uneven, they decide its values together.

        original: as in `balance_prompts`.
        """
        received = checked_texts(_as_list(prompts))
        texts = _composed(received)
        numbers = index if isinstance(index, Iterable) else [index]
        indices = [_whole_number("index", number, least=0) for number in numbers]
        if len(indices) != len(texts):
            raise InvalidInputError(
                f"index: got {len(indices)} for {len(texts)} prompts; expected one for each"
            )
        sources = texts
        if original is not None:
            sources = _checked_originals(_as_list(original), texts)
        hands = self._hands_at(sources, indices)
        if len(texts) > 1:
            seed = seed_from(self.seed, *indices)
            even = self._hands(sources, self._new_dealers(seed), seed)
            if not _are_as_even(sources, hands, even):
                hands = even
        unturned = self._why_not_turned(sources, texts)
        for hand, reasons in zip(hands, unturned, strict=True):
            for number, reason in enumerate(reasons):
                if reason:
                    hand[number] = ()
        return self._write_images(sources, texts, hands, unturned, received)

    def _hands_at(self, prompts: Sequence[str], indices: Sequence[int]) -> list[list[_Hand]]:
        """Return the values of each image by its index alone."""
        hands: list[list[_Hand]] = []
        hands_of_block: dict[tuple[str, int], list[list[_Hand]]] = {}
        for prompt, index in zip(prompts, indices, strict=True):
            # The number of images over which the shares of all persons are even.
            length = 1
            for finder in self._finders:
                for outcomes in finder.outcomes(prompt, self.strength):
                    length *= block_length(outcomes)
            length = min(length, _LONGEST_BLOCK)
            block, row = divmod(index, length)
            if (prompt, block) not in hands_of_block:
                # Every block is dealt as a call of its own, with a seed that follows from its
                # number.
                seed = seed_from(self.seed, block)
                dealers = self._new_dealers(seed)
                hands_of_block[prompt, block] = self._hands([prompt] * length, dealers, seed)
            hands.append(list(hands_of_block[prompt, block][row]))
        return hands

    def next_texts(
        self,
        images: Iterable[Sequence[str]],
        indices: Sequence[int] | None = None,
        original: Sequence[str] | None = None,
    ) -> tuple[list[list[str]], BalancedPrompts]:
        """Balance the texts of each image, which a pipeline with several encoders takes.

        All texts of an image get the same value, wherever a subject is found in them, and any of
        them may state it. Images with equal texts count as one prompt.

        Args:
            images: for each image its texts, as many for each.
            indices: of the images, as of `at`; None: calls before are counted, as by `next`.
            original: one for each image, as in `balance_prompts`.

        Returns:
            The new texts of each image, and the values and reasons of all images. Its prompts are
            the first texts.
        """
        rows = [checked_texts(texts) for texts in images]
        joined = [NEXT_TEXT.join(texts) for texts in rows]
        if indices is None:
            balanced = self.next(joined, original)
        else:
            balanced = self.at(joined, indices, original)
        written = [prompt.split(NEXT_TEXT) for prompt in balanced.prompts]
        first = [texts[0] for texts in written]
        return written, replace(balanced, prompts=first)

    def write(
        self,
        prompts: Sequence[str],
        values: Sequence[Any],
        original: Sequence[str] | None = None,
    ) -> list[str]:
        """Write given values into prompts, such as second prompts of the same images.

        Args:
            prompts: one for each image.
            values: for each image a list of the values of its open persons, in their order, as
                `people` of a result has them; or a single value, which is that of the first person.
                Of several sets tuples take the place of values. None leaves a person alone.
            original: one for each image, as in `balance_prompts`.
        """
        received = checked_texts(prompts)
        texts = _composed(received)
        if isinstance(values, str) or len(values) != len(texts):
            raise InvalidInputError(
                f"values: got {values!r} for {len(texts)} prompts; expected a list, one for each"
            )
        sources = texts if original is None else _checked_originals(original, texts)
        unturned = self._why_not_turned(sources, texts)
        written: list[str] = []
        for source, text, value, reasons in zip(sources, texts, values, unturned, strict=True):
            hand = self._hand_of(source, value)
            dealt = [() if reason else row for row, reason in zip(hand, reasons, strict=True)]
            written.append(self._write(source, text, dealt))
        return _where_written(written, texts, received)

    def _hand_of(self, prompt: str, values: Any) -> list[_Hand]:
        """Return for each attribute the given values of the persons who are open for it."""
        if not isinstance(values, list):
            return [(value,) for value in self._as_row(values)]
        # A person may be open for one attribute and stated for another.
        places: set[tuple[int, str]] = set()
        for finder in self._finders:
            persons, _ = finder.open_persons(prompt)
            places.update((shown.start, shown.noun) for shown in persons)
        value_of_place = dict(zip(sorted(places), values, strict=False))
        hand: list[_Hand] = []
        for number, finder in enumerate(self._finders):
            dealt: list[Value] = []
            persons, _ = finder.open_persons(prompt)
            for shown in persons:
                row = self._as_row(value_of_place.get((shown.start, shown.noun)))
                dealt.append(row[number])
            hand.append(tuple(dealt))
        return hand

    def _as_row(self, values: Any) -> Sequence[Value]:
        """Return one value for each attribute.

        Raises:
            InvalidInputError: there are fewer or more, or an attribute has no such value.
        """
        row = [values] if self._single or values is None else values
        if values is None:
            row = [None] * len(self._finders)
        if not isinstance(row, list | tuple) or len(row) != len(self._finders):
            raise InvalidInputError(
                f"values: got {values!r} for a person; expected a tuple with a value for each of"
                f" the {len(self._finders)} prompt sets, or None"
            )
        for finder, value in zip(self._finders, row, strict=True):
            known = list(finder.attribute.words)
            if value not in (None, *known) and not isinstance(value, Mapping):
                raise InvalidInputError(
                    f"values: got {value!r} for a person; expected one of {known}, or None"
                )
        return row

    def _check_arguments(self) -> None:
        if self.seed is not None:
            self.seed = _whole_number("seed", self.seed)
        self.most = _whole_number("most", self.most, least=1)
        if not isinstance(self.sets, Iterable | PromptSet | Path):
            raise InvalidInputError(
                f"sets: got {self.sets!r}; expected a prompt set by name or path, or a list of them"
            )
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

    def _new_dealers(self, seed: int) -> list[list[Dealer[Value]]]:
        """Return for each attribute one dealer for each person: persons are independent."""
        dealers: list[list[Dealer[Value]]] = []
        for number in range(len(self._finders)):
            names = [f"{seed}/{number}"]
            names += [f"{seed}/{number}/{person}" for person in range(1, MOST_PERSONS)]
            dealers.append([Dealer(name, self.most) for name in names])
        return dealers

    def _hands(
        self,
        prompts: Sequence[str],
        dealers: Sequence[Sequence[Dealer[Value]]],
        seed: int | None,
        unturned: Sequence[Sequence[str]] | None = None,
    ) -> list[list[_Hand]]:
        """Deal values to prompts; return for each image and attribute the values of its persons.

        unturned: for each image and attribute why its rewritten text gets none; "" if it does.
        """
        if not isinstance(self.strength, Real) or not 0 <= self.strength <= 1:
            raise InvalidInputError(f"strength: got {self.strength!r}; expected a share in [0, 1]")
        for finder in self._finders:
            finder.ask(prompts)
        hands: list[list[_Hand]] = [[] for _ in prompts]
        rows_of_prompt = defaultdict[str, list[int]](list)
        for row, prompt in enumerate(prompts):
            rows_of_prompt[prompt].append(row)
        for prompt, rows in rows_of_prompt.items():
            # Equal prompts get their values in an order that the seed decides.
            images = dealers[0][0].images_of(prompt)
            random.Random(f"{seed}/{images}/{prompt}").shuffle(rows)
            for number, finder in enumerate(self._finders):
                for row in rows:
                    hands[row].append(())
                rows_dealt = [row for row in rows if not unturned or not unturned[row][number]]
                outcomes_of_persons = finder.outcomes(prompt, self.strength)
                for outcomes, dealer in zip(outcomes_of_persons, dealers[number], strict=False):
                    _deal(dealer, prompt, outcomes, rows_dealt, hands)
        return hands

    def _write_images(
        self,
        prompts: Sequence[str],
        texts: Sequence[str],
        hands: Sequence[Sequence[_Hand]],
        unturned: Sequence[Sequence[str]],
        received: Sequence[str],
    ) -> BalancedPrompts:
        """Write the values of all images into their texts: the prompts, or what a rewriter made of
        them. A text without a value stays as it was received."""
        form: Any = itemgetter(0) if self._single else tuple
        seed = cast(int, self.seed)  # `__post_init__` has drawn it
        images = BalancedPrompts([], [], [], seed)
        for prompt, text, hand, unturned_of_image in zip(
            prompts, texts, hands, unturned, strict=True
        ):
            values: list[Value] = []
            reasons: list[str | None] = []
            values_of_person: dict[tuple[int, str], list[Value]] = {}
            for number, finder in enumerate(self._finders):
                persons, why_nobody = finder.open_persons(prompt)
                value_of_first = _value_of_first(hand[number])
                values.append(value_of_first)
                reason = why_nobody or unturned_of_image[number] or "strength"
                reasons.append(reason if value_of_first is None else None)
                for shown, value in zip(persons, hand[number], strict=False):
                    if value is not None:
                        place = (shown.start, shown.noun)
                        row = values_of_person.setdefault(place, [None] * len(hand))
                        row[number] = value
            images.prompts.append(self._write(prompt, text, hand))
            images.values.append(form(values))
            images.reasons.append(form(reasons))
            people = sorted(values_of_person.items(), key=itemgetter(0))
            images.people.append([(noun, form(row)) for (_, noun), row in people])
        return replace(images, prompts=_where_written(images.prompts, texts, received))

    def _why_not_turned(self, prompts: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
        """Return for each image and attribute why its rewritten text cannot be turned; "" if it can
        be, or is no other than the prompt."""
        reasons_of_pair: dict[tuple[str, str], list[str]] = {}
        for prompt, text in set(zip(prompts, texts, strict=True)):
            reasons = [""] * len(self._finders)
            if prompt != text:
                reasons = [finder.why_not_turned(prompt, text) for finder in self._finders]
            reasons_of_pair[prompt, text] = reasons
        return [reasons_of_pair[pair] for pair in zip(prompts, texts, strict=True)]

    def _write(self, prompt: str, text: str, hand: Sequence[_Hand]) -> str:
        """Write the values of an image into its prompt, wherever a person is mentioned, or into
        what a rewriter made of it."""
        if prompt != text:
            for finder, dealt in zip(self._finders, hand, strict=True):
                if _value_of_first(dealt) is not None:
                    text = finder.turn(prompt, dealt, text)
            return text
        sayings: list[tuple[Language, Saying]] = []
        for finder, dealt in zip(self._finders, hand, strict=True):
            persons, _ = finder.open_persons(prompt)
            for shown, value in zip(persons, dealt, strict=False):
                for person, language in shown.mentions:
                    if value is not None and person.can_be(value):
                        sayings.append((language, Saying(person, finder.attribute, value)))
        written = []
        start = 0
        for part in prompt.split(NEXT_TEXT):
            end = start + len(part)
            sayings_of_language = defaultdict[Language, list[Saying]](list)
            for language, saying in sayings:
                if start <= saying.person.place[0] <= end:
                    moved = saying._replace(person=saying.person.moved(-start))
                    sayings_of_language[language].append(moved)
            replacements: list[Replacement] = []
            for language, sayings_of_part in sayings_of_language.items():
                replacements += language.write(part, sayings_of_part)
            written.append(replace_all(part, replacements))
            start = end + len(NEXT_TEXT)
        return NEXT_TEXT.join(written)


def _are_as_even(
    prompts: Sequence[str], hands: Sequence[Sequence[_Hand]], even: Sequence[Sequence[_Hand]]
) -> bool:
    """Return whether values are spread over images as evenly as values that were dealt in one call:
    over those of each prompt, and over all."""
    counts = _counts(prompts, hands)
    even_counts = _counts(prompts, even)
    for group in counts.keys() | even_counts.keys():
        count_of_value = counts[group]
        even_count_of_value = even_counts[group]
        # Three images of two values are even either way round.
        if sorted(count_of_value.values()) != sorted(even_count_of_value.values()):
            return False
        for value in count_of_value | even_count_of_value:
            if abs(count_of_value[value] - even_count_of_value[value]) > 1:
                return False
    return True


def _counts(
    prompts: Sequence[str], hands: Sequence[Sequence[_Hand]]
) -> dict[tuple[Any, ...], Counter[str]]:
    """Return (attribute, person, prompt) -> how many images got which value; the prompt None is
    all of them."""
    counts = defaultdict[tuple[Any, ...], Counter[str]](Counter)
    for prompt, hand in zip(prompts, hands, strict=True):
        for attribute, dealt in enumerate(hand):
            for person, value in enumerate(dealt):
                counts[attribute, person, prompt][str(value)] += 1
                counts[attribute, person, None][str(value)] += 1
    return counts


def _deal(
    dealer: Dealer[Value],
    prompt: str,
    outcomes: Mapping[Value, float],
    rows: list[int],
    hands: list[list[_Hand]],
) -> None:
    """Deal the values of a person to the images of a prompt, in the rows of a list."""
    # Rows of equal values dealt before stand together: so persons and attributes cross evenly.
    rows.sort(key=lambda row: list(map(str, chain(*hands[row]))))
    # Where the first person got nothing, the image is left as it is.
    skipped = {row for row in rows if hands[row][-1] and hands[row][-1][0] is None}
    dealt = iter(dealer.deal(prompt, len(rows) - len(skipped), outcomes))
    for row in rows:
        value = None if row in skipped else next(dealt)
        hands[row][-1] = (*hands[row][-1], value)


def _value_of_first(dealt: _Hand) -> Value:
    """Return the value of the first person; None if nobody has one."""
    return dealt[0] if dealt else None


_BALANCERS: WeakSet[Balancer] = WeakSet()


def _draw_new_seeds() -> None:
    """Draw new seeds for the balancers of a forked child."""
    for balancer in list(_BALANCERS):
        balancer._lock = Lock()  # another thread of the parent may have held it
        if balancer.has_drawn_seed:
            balancer.restart(draw_seed())
            balancer.has_drawn_seed = True


# Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_draw_new_seeds)


def _checked_originals(original: Any, texts: Sequence[str]) -> list[str]:
    """Return original prompts as a list.

    Raises:
        InvalidInputError: they are no texts in an order, or not one for each prompt.
    """
    originals = list(checked_texts(original))
    if len(originals) != len(texts):
        raise InvalidInputError(
            f"original: got {len(originals)} texts for {len(texts)} prompts; expected one for each,"
            " in their order"
        )
    return _composed(originals)


def _composed(texts: Iterable[str]) -> list[str]:
    """Return texts with each accent and letter in one character, as the word lists have them.

    macOS, and files that were named there, have "e" and an accent apart: "un me\u0301decin".
    """
    return [unicodedata.normalize("NFC", text) for text in texts]


def _where_written(
    written: Sequence[str], texts: Sequence[str], received: Sequence[str]
) -> list[str]:
    """Return what was written where it differs from the text that was read, else what was
    received, character for character."""
    prompts: list[str] = []
    for new, text, prompt in zip(written, texts, received, strict=True):
        prompts.append(prompt if new == text else new)
    return prompts


def _whole_number(name: str, number: Any, least: float = -math.inf) -> int:
    """Return a whole number, of Python or of numpy, as an int.

    Raises:
        InvalidInputError: something else, or a number less than the least.
    """
    is_whole = isinstance(number, Integral) and not isinstance(number, bool)
    if not is_whole or number < least:
        smallest = "" if least == -math.inf else f" from {least} on"
        raise InvalidInputError(f"{name}: got {number!r}; expected a whole number{smallest}")
    return int(number)


def _check_names_of_shares(shares: Mapping[str, float], parts: Sequence[PromptSet]) -> None:
    """Raise InvalidInputError where shares name a value of no set, or are no numbers."""
    known = sorted(set(chain(*map(words_of_values, parts))))
    unknown = sorted(map(str, set(shares).difference(known)))
    if unknown:
        raise InvalidInputError(f"shares: got {unknown[0]!r}; expected values of the sets: {known}")
    for value, share in shares.items():
        if isinstance(share, str) or not hasattr(share, "__float__"):
            raise InvalidInputError(f"shares: got {share!r} for {value!r}; expected a number")


def _check_different(finders: Sequence[Finder]) -> None:
    """Raise InvalidInputError where two sets are about one attribute."""
    name_of_kind: dict[str, str] = {}
    for finder in finders:
        attribute = finder.attribute
        name = attribute.set.name
        kinds = {attribute.kind} if attribute.kind else set(attribute.words.values())
        for kind in kinds:
            if kind in name_of_kind:
                raise InvalidInputError(
                    f"sets: {name_of_kind[kind]!r} and {name!r} are about the same attribute"
                    f" ({kind}); expected one set for each attribute"
                )
        name_of_kind |= dict.fromkeys(kinds, name)
