"""Balance prompts: state a sampled value of an attribute where the prompt leaves it open. Plain
Python, no model.

"A CEO in an office" becomes "A female CEO in an office" for one half of the images and "A male CEO
in an office" for the other. A prompt is left alone where a value is stated ("a lady editor", "his
dog"), where the person is named, where no person is in the picture, and whenever that is in doubt.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.prompts.context import is_fixed_by_context
from vldebias.prompts.english import adjective, classes, find_subject, gendered, lists, person
from vldebias.prompts.prompt_set import PromptSet, StatedWords, append_word, load_prompts

# Kinds of adjectives as English orders them, from left to right, and their names in placeholders.
_ORDER = {"size": "", "age": "age", "skin": "skin_tone", "origin": "race", "gender": "gender"}

Find = Callable[[str], int | None]
Sets = str | Path | PromptSet | Sequence[str | Path | PromptSet]


@dataclass(frozen=True)
class BalancedPrompts:
    """Hold prompts in which values of an attribute are stated.

    Attributes:
        prompts: the prompts in their order, changed or not.
        values: the value that was written into each, or None if it was left alone. For several
            sets, tuples of values.
        reasons: why a prompt was left alone: "stated", "named", "no person", ...; None if a value
            was written. For several sets, tuples of reasons.
    """

    prompts: list[str]
    values: list[Any]
    reasons: list[Any]


def balance_prompts(
    prompts: str | Sequence[str],
    sets: Sets,
    *,
    shares: Mapping[str, float] | None = None,
    seed: int = 0,
    find: Find | None = None,
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
        seed: decides the order of the values.
        find: a function of your own that says where the words go: prompt -> offset of a character,
            or None to leave it alone. None: the first person, found by English word lists.

    Placeholders are filled in place: "{gender}" in "A photo of a {gender} CEO", "{age}", "{race}",
    "{skin_tone}".

    Raises:
        InvalidInputError: an unknown set, or one that is not about persons; shares that do not sum
            to 1.

    >>> balance_prompts(["A CEO", "a lady editor"], "gender", shares={"female": 1, "male": 0})
    BalancedPrompts(prompts=['A female CEO', 'a lady editor'], values=['female', None],
    reasons=[None, 'stated'])
    """
    balancer = Balancer(sets, shares=shares, seed=seed, find=find)
    return balancer.next([prompts] if isinstance(prompts, str) else prompts)


def can_balance(prompts: PromptSet) -> bool:
    """Return whether a set is about persons: each value has an adjective that goes before a noun
    for a person."""
    return bool(prompts.attributes) and all(map(_adjective, prompts.attributes.values()))


@dataclass(repr=False, eq=False)
class Balancer:
    """Balance prompts over several calls: the shares of each prompt hold over all calls.

    sets, shares, seed, find: as in `balance_prompts`. strength: share of the images that are given
    a value, in [0, 1]; it may be set between calls.

    Raises:
        InvalidInputError: as `balance_prompts`.
    """

    sets: Sets
    shares: Mapping[str, float] | None = None
    seed: int = 0
    find: Find | None = None
    strength: float = 1.0

    def __post_init__(self) -> None:
        given, asked = (
            [self.sets] if isinstance(self.sets, str | Path | PromptSet) else self.sets,
            self.shares or {},
        )
        parts = [part for one in map(load_prompts, given) for part in one.parts or (one,)]
        find = self.find and cache(self.find)
        self._attributes = [
            _Attribute(part, asked, f"{self.seed}/{at}", find) for at, part in enumerate(parts)
        ]
        self._single = given is not self.sets and len(parts) == 1
        known = sorted({value for own in self._attributes for value in own.words})
        if not known:
            raise InvalidInputError(f"sets: got {self.sets!r}; expected at least one prompt set")
        if unknown := set(asked).difference(known):
            raise InvalidInputError(
                f"shares: got {min(unknown)!r}; expected values of the sets: {known}"
            )

    def next(self, prompts: Sequence[str]) -> BalancedPrompts:
        """Balance one prompt for each image, counting the values that earlier calls gave to the
        same prompt."""
        if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
            raise InvalidInputError(
                f"prompts: got {prompts!r}; expected a list of texts, one for each image"
            )
        if not 0 <= self.strength <= 1:
            raise InvalidInputError(f"strength: got {self.strength!r}; expected a share in [0, 1]")
        values: list[list[str | None]] = [[None] * len(self._attributes) for _ in prompts]
        reasons: list[list[str | None]] = [[] for _ in prompts]
        for prompt in dict.fromkeys(prompts):
            rows = [row for row, one in enumerate(prompts) if one == prompt]
            random.Random(
                f"{self.seed}/{self._attributes[0].given[prompt].total()}/{prompt}"
            ).shuffle(rows)
            for at, attribute in enumerate(self._attributes):
                reason = place if isinstance(place := attribute.place(prompt), str) else None
                # Rows of equal values of the attributes before stand together: so the attributes
                # cross evenly.
                rows.sort(key=lambda row: [str(value) for value in values[row][:at]])
                dealt = (
                    [None] * len(rows)
                    if reason
                    else attribute.deal(prompt, len(rows), self.strength)
                )
                for row, value in zip(rows, dealt, strict=True):
                    values[row][at] = value
                    reasons[row].append(reason or (None if value is not None else "strength"))
        form = itemgetter(0) if self._single else tuple
        stated = list(map(form, values))
        return BalancedPrompts(self.write(prompts, stated), stated, list(map(form, reasons)))

    def write(self, prompts: Sequence[str], values: Sequence[Any]) -> list[str]:
        """Write given values into prompts, such as second prompts of the same images, where they
        can be stated."""
        written = []
        for prompt, given in zip(prompts, values, strict=True):
            own = [given] if self._single else given or [None] * len(self._attributes)
            words = defaultdict[tuple[int, int], list[tuple[int, str]]](list)
            for attribute, value in zip(self._attributes, own, strict=True):
                place = attribute.place(prompt)
                for span in place if isinstance(place, list) and value is not None else ():
                    words[span].append((attribute.rank, attribute.words[value]))
            for (start, end), stated in sorted(words.items(), reverse=True):
                left, right = prompt[:start], prompt[end:].lstrip()
                word = " ".join(word for _, word in sorted(stated))
                if not left.strip() and re.match(r"[A-Z][a-z]", right):
                    word, right = word[0].upper() + word[1:], right[0].lower() + right[1:]
                prompt = f"{append_word(left, word)} {right}"
            written.append(prompt)
        return written


class _Attribute:
    """Hold the words for the values of an attribute, find the places for them in prompts, and deal
    the values."""

    def __init__(
        self, prompts: PromptSet, shares: Mapping[str, float], seed: str, find: Find | None
    ) -> None:
        if not can_balance(prompts):
            raise InvalidInputError(
                f"prompt set {prompts.name!r}: got {dict(prompts.attributes) or 'no words'};"
                " expected a set about persons, with an adjective for each value, such as 'female'"
            )
        self.set = prompts
        self.words = {value: _adjective(own) for value, own in prompts.attributes.items()}
        asked = set(shares).intersection(self.words)
        self.shares = {
            v: float(shares.get(v, 0)) if asked else 1 / len(self.words) for v in self.words
        }
        if min(self.shares.values()) < 0 or not math.isclose(
            sum(self.shares.values()), 1, abs_tol=1e-6
        ):
            raise InvalidInputError(
                f"shares: got {self.shares}; expected shares in [0, 1] that sum to 1"
            )
        last = {word.lower().split()[-1] for word in self.words.values()}
        self.gender = any(map(gendered, last))
        kind = (
            "gender"
            if self.gender
            else max(_ORDER, key=lambda kind: len(last & lists()[kind].keys()))
        )
        self.rank = list(_ORDER).index(kind)
        slots = filter(None, (_ORDER[kind], "attribute", prompts.name.replace("-", "_")))
        self._slots = re.compile(rf"\{{(?:{'|'.join(map(re.escape, slots))})\}}")
        self._stated, self._seed, self._find = StatedWords(prompts.stated_words), seed, find
        self.given: dict[str, Counter[str | None]] = defaultdict(
            Counter
        )  # prompt -> values that it was given
        self._all = Counter[str | None]()

    def place(self, prompt: str) -> list[tuple[int, int]] | str:
        """Return the spans of a prompt that the words replace, or the reason why there are none."""
        if spans := [slot.span() for slot in self._slots.finditer(prompt)]:
            return spans
        if self._find is not None:
            at = self._find(prompt)
            if at is not None and not 0 <= at <= len(prompt):
                raise InvalidInputError(
                    f"find: got {at!r} for {prompt!r}; expected a character offset or None"
                )
            return "find gave no place" if at is None else [(at, at)]
        if not all(self.gender and person(word.lower()) for word in self._stated.find(prompt)):
            return "stated"
        if isinstance(subject := find_subject(prompt, self.gender), str):
            return subject
        if is_fixed_by_context(prompt, subject.start, subject.end, self.set):
            return "context"
        *adjectives, (noun, _) = subject.words
        later = {at: rank for at, word in adjectives if (rank := _rank(word)) >= self.rank}
        at = min(later, default=noun)
        return "stated" if self.rank in later.values() else [(at, at)]

    def deal(self, prompt: str, n: int, strength: float) -> list[str | None]:
        """Return n values for one prompt, spread evenly: its shares rounded down, or up where all
        prompts lack them."""
        shares = {value: share * strength for value, share in self.shares.items()} | {
            None: 1 - strength
        }
        given, total, everything = (
            self.given[prompt],
            self.given[prompt].total() + n,
            self._all.total() + n,
        )
        rng = random.Random(f"{self._seed}/{total}/{prompt}")
        counts = {value: math.floor(share * n + 1e-9) for value, share in shares.items()}
        luck = {value: rng.random() for value in shares}

        def behind(value: str | None) -> tuple[float, float, float]:
            own = round(shares[value] * total - given[value] - counts[value], 9)
            overall = shares[value] * everything - self._all[value] - counts[value]
            return (own > 0) + (own >= 1), round(overall, 9), luck[value]

        fractional = [value for value, share in shares.items() if share * n - counts[value] > 1e-9]
        for value in sorted(fractional, key=behind, reverse=True)[: n - sum(counts.values())]:
            counts[value] += 1
        given.update(counts)
        self._all.update(counts)
        spread = [
            ((k + luck[value]) / count, value)
            for value, count in counts.items()
            for k in range(count)
        ]
        return [value for _, value in sorted(spread, key=lambda own: own[0])]


def _adjective(own: Sequence[str]) -> str:
    """Return the first word of a value that can stand before a noun for a person, else ""."""
    for word in own:
        last = word.lower().split()[-1]
        if _rank(last) >= 0 or (adjective(last) and "n" not in classes(last)):
            return word
    return ""


def _rank(word: str) -> int:
    return next((rank for rank, kind in enumerate(_ORDER) if word in lists()[kind]), -1)
