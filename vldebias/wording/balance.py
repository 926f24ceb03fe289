"""Balance prompts by adding sampled attribute values to those that do not state one.

"A CEO in an office" becomes "A female CEO in an office" for half of the images and "A male CEO in
an office" for the other half, and "five engineers" becomes "five engineers, three women and two
men". A prompt stays unchanged if it states a value ("a lady editor", "his dog"), names the person,
contains facts that allow only one value, or does not show a person. If any of this is uncertain,
the prompt also stays unchanged. The rules are word lists; no model is used.
"""

from __future__ import annotations

import math
import os
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import chain
from numbers import Integral, Real
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Never, cast
from weakref import WeakSet

from vldebias.errors import (
    InvalidInputError,
    UnseenValueWarning,
    check_arguments,
    warn,
    warn_of_input,
)
from vldebias.prompts.attribute import PEOPLE, SLOTS, Attribute, words_of_values
from vldebias.prompts.english.words import lists
from vldebias.prompts.prompt_set import PromptSet, append_word, load_prompts
from vldebias.utils.markup import html_table
from vldebias.utils.texts import checked_texts
from vldebias.wording.assignment import EvenSampler, block_length, draw_seed, seed_from
from vldebias.wording.decisions import Decide, UserDecisions
from vldebias.wording.language import Assignment, Language, Replacement, Value, replace_all
from vldebias.wording.marks import Find, UserMarks
from vldebias.wording.persons import NEXT_FACE, NEXT_TEXT, PersonReader

if TYPE_CHECKING:
    from vldebias.typing import AttributeLike

# The values for the people in one image who can get one, per attribute.
_Values = list[list[Value]]

# Number of prompts whose counts a Balancer keeps. It drops the least recently used one first.
_MOST = 10_000
# Words, without hyphens, for values that image models are known not to show in images of
# professions (`eval/results/stated_values.json`).
_UNSEEN = frozenset({"nonbinary"})
# Maximum number of consecutive images over which `Balancer.at` guarantees the shares.
_LONGEST_BLOCK = 1000
# "{age}", "[age]" or "$age", but not "{{age}}" and "${age}", which other tools fill.
_PLACEHOLDER = re.compile(
    r"(?<![\w{$\[(])(\{\s*[\w-]+\s*\}(?!\})|\[\s*[\w-]+\s*\](?!\])|\$[A-Za-z]\w*)"
)
# Invisible characters to remove: the soft hyphen, the zero-width space, the word joiner and the
# byte order mark. The joiners in emoji and Persian words are kept because they change the meaning.
_INVISIBLE = dict.fromkeys((0x00AD, 0x200B, 0x2060, 0xFEFF))


@dataclass(frozen=True)
class BalancedPrompts:
    """Prompts to which attribute values were added.

    Attributes:
        prompts: All prompts in their original order, including the unchanged ones.
        values: The value added to each prompt, or None if the prompt is unchanged. For a group of
            people with different values, a mapping from value to number of people (None if the
            prompt does not give a number). For several sets, tuples of values.
        reasons: Why each prompt is unchanged, such as "stated", "named", "no person", "not
            understood" or "context: pregnant" (the words that fix the value), or None if a value
            was added. For several sets, tuples of reasons.
        seed: The seed that was used. The same call with this seed returns the same values.
        people: For each image, the people who received a value, as pairs (noun, value). The first
            pair corresponds to the entry in `values`. For several sets, (noun, tuple of values).

    >>> import vldebias
    >>> balanced = vldebias.balance_prompts(["A CEO", "a lady editor"], "gender", seed=0)
    >>> balanced.prompts
    ['A female CEO', 'a lady editor']
    >>> balanced.values, balanced.reasons
    (['female', None], [None, 'stated'])
    """

    prompts: list[str]
    values: list[Any]
    reasons: list[Any]
    seed: int
    people: list[list[tuple[str, Any]]] = field(default_factory=list)

    def __iter__(self) -> Never:
        raise InvalidInputError(
            "balance_prompts: got the result as a list; its texts are in `.prompts`, and the values"
            " added to them in `.values`"
        )

    def __len__(self) -> Never:
        iter(self)

    def __getitem__(self, place: object) -> Never:
        iter(self)

    def __bool__(self) -> bool:
        return True

    def _repr_html_(self) -> str:
        """Return an HTML table of the prompts, the added values and the reasons."""
        written = sum(value is not None for value in self.values)
        title = f"{written} of {len(self.prompts)} prompts changed, seed {self.seed}"
        rows = zip(self.prompts, self.values, self.reasons, strict=True)
        return html_table(title, ("prompt", "value added", "unchanged because"), rows)


@check_arguments()
def balance_prompts(
    prompts: str | Iterable[str],
    attribute: AttributeLike | Mapping[str, object],
    *,
    shares: Mapping[str, float] | None = None,
    seed: int | None = None,
    people: str = "mixed",
    find: Find | None = None,
    decide: Decide | None = None,
) -> BalancedPrompts:
    """Add sampled attribute values to prompts that do not state one, in equal or given shares.

    If a list contains a prompt n times and there are k values, each value is added to n / k copies
    (rounded up or down), in an order determined by the seed. Remainders are spread as evenly as
    possible over different prompts. If a prompt contains a placeholder ("{gender}", "{age}",
    "{race}" or "{skin_tone}"), as in "A photo of a {gender} CEO", the value replaces it.

    See also docs/how-to/balance-prompts.md.

    Args:
        prompts: One prompt, or one per image.
        attribute: One or more prompt sets, each given as a name, a path or a `PromptSet`: gender,
            age, race, skin tone or your own.
        shares: A mapping from value to its share of the images. The shares in each set must sum
            to 1. Default: equal shares.
        seed: The seed that determines which image gets which value. If None, each call draws a new
            seed, so that calls with one image get different values. The result contains the seed.
        people: How to treat groups of people. "mixed" adds the numbers of women and men after the
            noun, so that one picture shows both, and leaves groups unchanged for other attributes.
            "leave" leaves all groups unchanged. "same" gives everybody in a group the same value.
        find: Your own function, such as a `ChatFinder`, that says who is shown if the word lists
            are in doubt. It takes a prompt and returns the character offset of the noun for the
            person whose value is open, a list of offsets, one for each person, or None if there is
            nobody. It is asked once about each English prompt that has a word for a person and
            would stay unchanged as "not plain", "named" or "no person". Stated values, facts, names
            and groups are treated as usual. If it raises an exception, the word lists decide.
        decide: Your own function that takes a list of prompts and the values, and returns a list
            with one answer per prompt: the values that the facts in the prompt allow, or None to
            let the word lists decide. It is asked about each distinct prompt once. A prompt with
            fewer than two allowed values stays unchanged.

    Returns:
        The prompts with their values and reasons.

    Raises:
        InvalidInputError: If a set is unknown or not about people, two sets are about the same
            attribute, shares do not sum to 1, or an argument has the wrong type.

    >>> balance_prompts(
    ...     ["A CEO", "a lady editor"], "gender", shares={"female": 1, "male": 0}, seed=0
    ... )
    BalancedPrompts(prompts=['A female CEO', 'a lady editor'], values=['female', None],
    reasons=[None, 'stated'], seed=0, people=[[('ceo', 'female')], []])
    """
    balancer = Balancer(attribute, shares, seed, find, decide=decide, people=people)
    return balancer._next(_as_list(prompts))


def _as_list(prompts: str | Iterable[str]) -> Iterable[str]:
    if not isinstance(prompts, str):
        return prompts
    if re.fullmatch(r"\S+\.(txt|csv|tsv|jsonl?|parquet)", prompts):
        warn_of_input(
            f"prompts: got the file name {prompts!r}, which is balanced as a prompt; pass its"
            " lines, or use `vldebias prompts balance`",
        )
    return [prompts]


@dataclass
class _Image:
    """An image whose prompt is being balanced.

    Attributes:
        prompt: The prompt. The shares apply to all images with the same prompt.
        received: The prompt exactly as the user passed it.
        values: For each attribute, the values for the people who can get one, in text order.
    """

    prompt: str
    received: str = ""
    values: _Values = field(default_factory=list)


@dataclass(repr=False, eq=False)
class Balancer:
    """Balance prompts over several calls, so that each prompt gets its shares across all calls.

    Use one instance for the lifetime of a service. It is thread-safe. An instance that drew its own
    seed draws a new one in every forked child process, so that workers do not produce the same
    sequence. An instance with a given seed keeps it. Workers that share a seed should share a
    counter and call `at`.

    Args:
        attribute, shares, find, decide, people: See `balance_prompts`.
        seed: See `balance_prompts`. If None, the attribute is set to the seed that was drawn.
        strength: The share of images that receive a value, in [0, 1]. It may be changed between
            calls.
        one_person: Whether to leave prompts that show more than one person unchanged, with the
            reason "not plain". Use it for methods that set one value for the entire picture.

    Raises:
        InvalidInputError: See `balance_prompts`.

    >>> balancer = Balancer("gender", seed=0)
    >>> balancer.next(["A photo of a CEO"]).prompts
    ['A photo of a female CEO']
    >>> balancer.next(["A photo of a CEO"]).prompts  # the next request for the same prompt
    ['A photo of a male CEO']
    """

    attribute: AttributeLike | Mapping[str, object]
    shares: Mapping[str, float] | None = None
    seed: int | None = None
    find: Find | None = None
    strength: float = 1.0
    decide: Decide | None = None
    people: str = "mixed"
    one_person: bool = False
    has_drawn_seed: bool = field(default=False, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        self._check_arguments()
        if self.seed is None:
            self.has_drawn_seed = True
            self.seed = draw_seed()
        _BALANCERS.add(self)
        is_list = isinstance(self.attribute, Iterable)
        is_one_set = not is_list or isinstance(self.attribute, str | Mapping)
        sets: Any = [self.attribute] if is_one_set else self.attribute
        # A set with several attributes, such as "fairface", is balanced for each attribute.
        parts: list[PromptSet] = []
        for prompt_set in map(load_prompts, sets):
            parts += prompt_set.parts or (prompt_set,)
        if not parts:
            raise InvalidInputError(
                f"attribute: got {self.attribute!r}; expected at least one prompt set"
            )
        shares = self.shares or {}
        _check_names_of_shares(shares, parts)
        marks = None if self.find is None else UserMarks(self.find, _MOST)
        self._readers: list[PersonReader] = []
        for part in parts:
            decisions = None
            if self.decide is not None:
                decisions = UserDecisions(self.decide, part.attributes, _MOST)
            attribute = Attribute(part, shares, self.people)
            reader = PersonReader(attribute, marks, decisions, one_person=self.one_person)
            self._readers.append(reader)
        _check_different(self._readers)
        for reader in self._readers:
            _warn_of_unseen_values(reader.attribute)
        self._single = is_one_set and len(parts) == 1
        self._sampler = EvenSampler[Value](self.seed, _MOST)

    @property
    def fixed_seed(self) -> int:
        """Return the given seed, or else one that is derived from the values of the attributes.

        It is the same in every process and after every restart.
        """
        if not self.has_drawn_seed:
            return cast(int, self.seed)  # set by `__post_init__`
        return seed_from(*chain(*(reader.attribute.words for reader in self._readers)))

    @check_arguments()
    def next(self, prompts: Iterable[str]) -> BalancedPrompts:
        """Balance one prompt per image, continuing the counts from earlier calls.

        Args:
            prompts: One prompt per image.

        Warns:
            VldebiasWarning: Once, if this is one of several processes and the seed was given.
        """
        if not self.has_drawn_seed:
            _warn_of_processes(os.environ.get("WORLD_SIZE", ""))
        return self._next(prompts)

    def _next(self, prompts: Iterable[str]) -> BalancedPrompts:
        images = self._read(prompts)
        with self._lock:
            self._assign(images, self._sampler)
            return self._result(images)

    def _read(self, prompts: Any) -> list[_Image]:
        """Create an `_Image` without values for each prompt in a call."""
        # The user may have changed the strength since the last call.
        if not isinstance(self.strength, Real) or not 0 <= self.strength <= 1:
            raise InvalidInputError(f"strength: got {self.strength!r}; expected a share in [0, 1]")
        images = [_Image(_readable(text), text) for text in checked_texts(prompts)]
        attributes = [reader.attribute for reader in self._readers]
        for prompt in dict.fromkeys(image.prompt for image in images):
            _warn_of_unfilled(prompt, attributes)
        if self.find is not None or self.decide is not None:
            # Ask about all prompts in one call.
            for reader in self._readers:
                reader.ask([image.prompt for image in images])
        return images

    def _assign(self, images: Iterable[_Image], sampler: EvenSampler[Value]) -> None:
        """Assign values for all attributes to the images."""
        images_of_prompt = defaultdict[str, list[_Image]](list)
        for image in images:
            image.values = [[] for _ in self._readers]
            images_of_prompt[image.prompt].append(image)
        for prompt, equal_images in images_of_prompt.items():
            # The seed determines the order in which equal prompts receive their values.
            generator = random.Random(f"{sampler.seed}/{sampler.images_of(prompt)}/{prompt}")
            generator.shuffle(equal_images)
            for number in range(len(self._readers)):
                self._assign_attribute(number, prompt, equal_images, sampler)

    def _assign_attribute(
        self, number: int, prompt: str, images: list[_Image], sampler: EvenSampler[Value]
    ) -> None:
        """Assign the values of one attribute to the images of one prompt."""
        for person, outcomes in enumerate(self._readers[number].outcomes(prompt, self.strength)):
            # Sort images with equal values next to each other, so that the next values are spread
            # evenly over each combination of the previous ones.
            images.sort(key=lambda image: list(map(str, chain(*image.values))))
            # If the first person received no value, the others receive none either.
            open_images = [image for image in images if image.values[number][:1] != [None]]
            values = sampler.assign(number, person, prompt, len(open_images), outcomes)
            for image in images:
                image.values[number].append(None)
            for image, value in zip(open_images, values, strict=True):
                image.values[number][person] = value

    def _result(self, images: Sequence[_Image]) -> BalancedPrompts:
        """Insert the values into the texts and collect the values, reasons and people."""
        form: Any = itemgetter(0) if self._single else tuple
        result = BalancedPrompts([], [], [], cast(int, self.seed))  # set by `__post_init__`
        for image in images:
            values: list[Value] = []
            reasons: list[str | None] = []
            values_of_place: dict[tuple[Any, ...], list[Value]] = {}
            for number, reader in enumerate(self._readers):
                persons, why_nobody = reader.open_persons(image.prompt)
                value_of_first = next(iter(image.values[number]), None)
                values.append(value_of_first)
                reason = why_nobody or "strength"
                reasons.append(reason if value_of_first is None else None)
                for person, value in zip(persons, image.values[number], strict=False):
                    if value is not None:
                        row = values_of_place.setdefault(person.place, [None] * len(self._readers))
                        row[number] = value
            result.prompts.append(self._write(image))
            result.values.append(form(values))
            result.reasons.append(form(reasons))
            people = [(place[-1], form(row)) for place, row in sorted(values_of_place.items())]
            result.people.append(people)
        return result

    def _write(self, image: _Image) -> str:
        """Insert an image's values into its prompt wherever the person is mentioned.

        If there is nothing to insert, the prompt is returned exactly as received.
        """
        # An image's texts, and the alternatives in one text, may be in different languages.
        assignments_of_text = defaultdict[tuple[int, Language], list[Assignment]](list)
        for reader, values in zip(self._readers, image.values, strict=True):
            persons, _ = reader.open_persons(image.prompt)
            for person, value in zip(persons, values, strict=False):
                for number_of_text, mention, language in person.mentions:
                    if mention.can_be(value):
                        assignment = (mention, reader.attribute, value)
                        assignments_of_text[number_of_text, language].append(assignment)
        texts = image.prompt.split(NEXT_TEXT)
        replacements = [list[Replacement]() for _ in texts]
        for (number_of_text, language), assignments in assignments_of_text.items():
            replacements[number_of_text] += language.write(texts[number_of_text], assignments)
        written = NEXT_TEXT.join(map(replace_all, texts, replacements))
        for reader in self._readers:
            written = _without_slots(written, reader.attribute.slots)
        return image.received if written == image.prompt else _joined(written)

    def restart(self, seed: int) -> None:
        """Reset all counts and start again with a given seed."""
        with self._lock:
            self.seed = _whole_number("seed", seed)
            self.has_drawn_seed = False
            self._sampler = EvenSampler[Value](self.seed, _MOST)

    @check_arguments()
    def at(self, prompts: str | Sequence[str], index: int | Iterable[int]) -> BalancedPrompts:
        """Balance images by their index among the images of a prompt, without counting the call.

        The same index gives the same value in every process with the same seed. The shares are
        exact over blocks of consecutive indices: two images for equal shares of two values, ten
        images for shares of 0.7 and 0.3. Take the index from a counter that all processes share,
        such as a database row.

        Args:
            prompts: One prompt, or one per image in the call. If a call has several images and
                choosing each value by its index would make the call unbalanced, all indices
                together determine the values instead.
            index: The index of the image, or one index per prompt.
        """
        images = self._read(_as_list(prompts))
        numbers = index if isinstance(index, Iterable) else [index]
        indices = [_whole_number("index", number, least=0) for number in numbers]
        if len(indices) != len(images):
            raise InvalidInputError(
                f"index: got {len(indices)} for {len(images)} prompts; expected one per prompt"
            )
        sources = [image.prompt for image in images]
        values_of_images: list[_Values] = []
        values_of_block: dict[tuple[str, int], list[_Values]] = {}
        for prompt, number in zip(sources, indices, strict=True):
            length = self._length_of_block(prompt)
            block, row = divmod(number, length)
            # Each block is sampled like a separate call, with a seed derived from the block number.
            if (prompt, block) not in values_of_block:
                seed = seed_from(self.seed, block)
                values_of_block[prompt, block] = self._values_of_call([prompt] * length, seed)
            values_of_images.append(values_of_block[prompt, block][row])
        if len(images) > 1:
            even = self._values_of_call(sources, seed_from(self.seed, *indices))
            if not _are_as_even(sources, values_of_images, even):
                values_of_images = even
        for image, values in zip(images, values_of_images, strict=True):
            image.values = values
        return self._result(images)

    def indices_of_run(self, prompt: str, run: range) -> list[int]:
        """Return the indices to pass to `at` for a run of images, so that its shares are exact.

        Consecutive indices only give exact shares over the blocks described in `at`, but a run may
        start inside a block. In that case, its blocks start at its first image and get values of
        their own. The remaining images keep their own indices, so that consecutive runs with fewer
        images than a block are even together.

        Args:
            prompt: The prompt of the images.
            run: The consecutive indices of the images.

        >>> Balancer("gender", seed=0).indices_of_run("A photo of a CEO", range(4, 7))
        [4, 5, 6]
        """
        indices = list(run)
        length = self._length_of_block(_readable(prompt))
        # The run already has exact blocks if one of them starts or ends with the run.
        if run.start % length == 0 or run.stop % length == 0:
            return indices
        for row in range(0, len(run) - len(run) % length, length):
            block = seed_from("run", run[row])
            indices[row : row + length] = range(block * length, (block + 1) * length)
        return indices

    def _length_of_block(self, prompt: str) -> int:
        """Return the number of images over which the shares are exact for all people."""
        length = 1
        for reader in self._readers:
            for outcomes in reader.outcomes(prompt, self.strength):
                length *= block_length(outcomes)
        return min(length, _LONGEST_BLOCK)

    def _values_of_call(self, prompts: Sequence[str], seed: int) -> list[_Values]:
        """Return the values for a call that does not depend on earlier calls."""
        images = [_Image(prompt) for prompt in prompts]
        self._assign(images, EvenSampler(seed, _MOST))
        return [image.values for image in images]

    def next_texts(
        self, images: Iterable[Sequence[str]], indices: Sequence[int] | None = None
    ) -> tuple[list[list[str]], BalancedPrompts]:
        """Balance several texts per image, as used by pipelines with several text encoders.

        All texts for an image get the same value wherever they mention the person. If one of the
        texts states a value, all of them stay unchanged. Images with the same texts count as images
        of the same prompt.

        Args:
            images: The texts for each image, the same number for every image.
            indices: The image indices, see `at`. If None, earlier calls are counted, see `next`.

        Returns:
            The new texts for each image, and a result with the values and reasons, whose prompts
            are the first texts.
        """
        rows = [checked_texts(texts) for texts in images]
        joined = [NEXT_TEXT.join(texts) for texts in rows]
        balanced = self.next(joined) if indices is None else self.at(joined, indices)
        written = [prompt.split(NEXT_TEXT) for prompt in balanced.prompts]
        first = [texts[0] for texts in written]
        return written, replace(balanced, prompts=first)

    @check_arguments("values")
    def write(self, prompts: Sequence[str], values: Sequence[Any]) -> list[str]:
        """Insert given values into prompts, such as second prompts for the same images.

        Args:
            prompts: One prompt per image.
            values: For each image, either a value for the first person or a list of values for all
                people who can get one, in the order of a result's `people`. For several sets,
                each value is a tuple. None leaves a person unchanged.
        """
        images = self._read(prompts)
        if isinstance(values, str) or len(values) != len(images):
            raise InvalidInputError(
                f"values: got {values!r} for {len(images)} prompts; expected a list with"
                " one entry per prompt"
            )
        for image, received in zip(images, values, strict=True):
            image.values = self._values_of_people(image.prompt, received)
        return list(map(self._write, images))

    def _values_of_people(self, prompt: str, values: Any) -> _Values:
        """Return, for each attribute, the given values for the people open to it."""
        if not isinstance(values, list):
            return [[value] for value in self._as_row(values)]
        # The prompt may state one attribute of a person and not another.
        persons_of_attributes = [reader.open_persons(prompt)[0] for reader in self._readers]
        places = {person.place for person in chain(*persons_of_attributes)}
        value_of_place = dict(zip(sorted(places), values, strict=False))
        values_of_attributes: _Values = []
        for number, persons in enumerate(persons_of_attributes):
            rows = [self._as_row(value_of_place.get(person.place)) for person in persons]
            values_of_attributes.append([row[number] for row in rows])
        return values_of_attributes

    def _as_row(self, values: Any) -> Sequence[Value]:
        """Validate a person's values and return one value per attribute.

        Raises:
            InvalidInputError: If the number of values is wrong or an attribute does not have the
                given value.
        """
        if values is None:
            return [None] * len(self._readers)
        row = [values] if self._single else values
        if not isinstance(row, list | tuple) or len(row) != len(self._readers):
            raise InvalidInputError(
                f"values: got {values!r} for a person; expected a tuple with one value for each of"
                f" the {len(self._readers)} prompt sets, or None"
            )
        for reader, value in zip(self._readers, row, strict=True):
            known = list(reader.attribute.words)
            if value not in (None, *known) and not isinstance(value, Mapping):
                raise InvalidInputError(
                    f"values: got {value!r} for a person; expected one of {known}, or None"
                )
        return row

    def _check_arguments(self) -> None:
        if self.seed is not None:
            self.seed = _whole_number("seed", self.seed)
        if self.people not in PEOPLE:
            raise InvalidInputError(f"people: got {self.people!r}; expected one of {PEOPLE}")
        for name in ("find", "decide"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise InvalidInputError(f"{name}: got {function!r}; expected a function or None")
        if self.shares is not None and not isinstance(self.shares, Mapping):
            raise InvalidInputError(
                f"shares: got {self.shares!r}; expected a mapping from value to share, such as"
                " {'female': 0.5, 'male': 0.5}"
            )


def _are_as_even(
    prompts: Sequence[str], values_of_images: Sequence[_Values], even: Sequence[_Values]
) -> bool:
    """Return whether values are spread as evenly as in a single call, per prompt and overall.

    Args:
        prompts: The prompt for each image.
        values_of_images: The values to check for each image.
        even: The values that a single call assigns to each image.
    """
    counts = _counts(prompts, values_of_images)
    even_counts = _counts(prompts, even)
    for group in counts.keys() | even_counts.keys():
        count_of_value = counts[group]
        even_count_of_value = even_counts[group]
        # With three images and two values, either value may be the one that appears twice.
        if sorted(count_of_value.values()) != sorted(even_count_of_value.values()):
            return False
        for value in count_of_value | even_count_of_value:
            if abs(count_of_value[value] - even_count_of_value[value]) > 1:
                return False
    return True


def _counts(
    prompts: Sequence[str], values_of_images: Sequence[_Values]
) -> dict[tuple[Any, ...], Counter[str]]:
    """Count the images with each value, by attribute, person and prompt.

    The keys (attribute, person, prompt) with the prompt None contain the counts for all prompts.
    """
    counts = defaultdict[tuple[Any, ...], Counter[str]](Counter)
    for prompt, values_of_image in zip(prompts, values_of_images, strict=True):
        for attribute, values in enumerate(values_of_image):
            for person, value in enumerate(values):
                counts[attribute, person, prompt][str(value)] += 1
                counts[attribute, person, None][str(value)] += 1
    return counts


_BALANCERS: WeakSet[Balancer] = WeakSet()


def _draw_new_seeds() -> None:
    """Draw new seeds for the balancers in a forked child process."""
    for balancer in list(_BALANCERS):
        balancer._lock = Lock()  # another thread in the parent process may have held it
        if balancer.has_drawn_seed:
            balancer.restart(draw_seed())
            balancer.has_drawn_seed = True


# This function does not exist on Windows, where processes are not forked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_draw_new_seeds)


def _readable(text: str) -> str:
    """Normalize text to match the word lists: NFC form without invisible characters.

    macOS encodes "é" as a letter and a combining accent: "un me\u0301decin". Text copied from web
    pages and documents may contain soft hyphens and zero-width spaces: "a doc\u00adtor". The
    prompt for each face becomes a text of its own.
    """
    readable = unicodedata.normalize("NFC", text).translate(_INVISIBLE)
    return readable.replace(NEXT_FACE, NEXT_TEXT + NEXT_FACE)


def _without_slots(text: str, slots: re.Pattern[str]) -> str:
    """Remove placeholders that no value has replaced, and correct the articles before them."""
    while slot := slots.search(text):
        text = append_word(text[: slot.start()], text[slot.end() :].lstrip())
    return text


@cache
def _names_of_placeholders() -> tuple[str, ...]:
    """Return the names of the placeholders for all attributes, and similar names of variables."""
    variables = (words for name, words in lists().items() if name.endswith("-variable"))
    return ("attribute", *SLOTS.values(), *chain(*variables))


def _warn_of_unfilled(prompt: str, attributes: Sequence[Attribute]) -> None:
    """Warn about placeholders that nobody fills: of another attribute, or with a typing error."""
    for match in _PLACEHOLDER.finditer(prompt):
        name = match[1].strip("{[$ ]}").lower()
        is_filled = any(attribute.slots.fullmatch(match[1]) for attribute in attributes)
        if not is_filled and get_close_matches(name, _names_of_placeholders(), 1, 0.8):
            ours = ", ".join(attribute.title.replace(" ", "_") for attribute in attributes)
            warn_of_input(
                f"{match[1]} in {prompt[:80]!r} is not filled; expected {{name}} with a name that"
                f" this call balances: {ours}"
            )


def _joined(text: str) -> str:
    """Join the prompts for the faces in a text again."""
    return text.replace(NEXT_TEXT + NEXT_FACE, NEXT_FACE)


def _whole_number(name: str, number: Any, least: float = -math.inf) -> int:
    """Convert a whole number, such as a NumPy integer, to int.

    Raises:
        InvalidInputError: If it is not a whole number, or is less than `least`.
    """
    is_whole = isinstance(number, Integral) and not isinstance(number, bool)
    if not is_whole or number < least:
        smallest = "" if least == -math.inf else f" >= {least}"
        raise InvalidInputError(f"{name}: got {number!r}; expected a whole number{smallest}")
    return int(number)


def _check_names_of_shares(shares: Mapping[str, float], parts: Sequence[PromptSet]) -> None:
    """Raise InvalidInputError if a share is not a number or its value is unknown."""
    known = sorted(set(chain(*map(words_of_values, parts))))
    unknown = sorted(map(str, set(shares).difference(known)))
    if unknown:
        raise InvalidInputError(f"shares: got {unknown[0]!r}; expected values of the sets: {known}")
    for value, share in shares.items():
        if isinstance(share, str) or not hasattr(share, "__float__"):
            raise InvalidInputError(f"shares: got {share!r} for {value!r}; expected a number")


@cache  # warns once per process
def _warn_of_processes(world_size: str) -> None:
    """Warn if this is one of several processes, which may all assign the same values.

    Only the warning depends on the environment: processes that generate one image together need
    the same prompt.
    """
    if world_size.isdecimal() and int(world_size) > 1:
        warn(
            f"this is one of {world_size} processes (WORLD_SIZE), and each of them assigns the same"
            " values to its images, because the seed was given without indices. If the processes"
            " generate different images, balance all prompts before you split them, or call"
            " Balancer.at(prompts, index) with each image's index in the whole list"
        )


def _warn_of_unseen_values(attribute: Attribute) -> None:
    """Warn about values that image models rarely show even if the prompt states them."""
    for value, word in attribute.words.items():
        names = {value.casefold().replace("-", ""), word.casefold().replace("-", "")}
        if names & _UNSEEN and attribute.shares[value] > 0:
            warn(
                f"prompt set {attribute.set.name!r}: {value!r} may never appear in your images."
                " Human raters saw it in 0 of 120 images that Stable Diffusion 3.5 generated for"
                " prompts with this value. Look at a few images from your model first",
                UnseenValueWarning,
            )


def _check_different(readers: Sequence[PersonReader]) -> None:
    """Raise InvalidInputError if two sets are about the same attribute."""
    name_of_kind: dict[str, str] = {}
    for reader in readers:
        attribute = reader.attribute
        name = attribute.set.name
        kinds = {attribute.kind} if attribute.kind else set(attribute.words.values())
        for kind in kinds:
            if kind in name_of_kind:
                raise InvalidInputError(
                    f"attribute: {name_of_kind[kind]!r} and {name!r} are about the same attribute"
                    f" ({kind}); expected one set for each attribute"
                )
            name_of_kind[kind] = name
