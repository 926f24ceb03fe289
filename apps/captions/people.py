"""Measure which values captions state about people, overall and by noun, without labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import Interval
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet
from vldebias.utils.phrases import listed_words, quantity
from vldebias.wording.english.reading import DescribedPerson

from .reading import StatementReader
from .rows import MOST_NOUNS, share_of

ALL = "all persons"
LEAST = 5  # minimum number of images with a stated value for reporting a noun's share
_ABOUT = (
    "People in captions, found with the same rules as for balanced prompts. A value may be stated"
    " by a noun, an adjective or a pronoun. Each image counts once per noun, regardless of how many"
    " captions it has. The intervals are Wilson intervals over images."
)
# The people of one noun in each image that has any.
Described = Sequence[Sequence[DescribedPerson]]


def describe_captions(captions: Sequence[Sequence[str]], prompt_set: PromptSet) -> TaskResult:
    """Measure which values captions state about people, overall and by noun.

    For example, captions with "nurse" may state "female" in 91% of cases.

    Args:
        captions: captions of each image.
        prompt_set: the attribute's prompt set.

    Returns:
        Rows `stated` (the share of people with a stated value) and `stated_share` (the share of
        each value among them) for all people, and for the most frequent nouns that do not state a
        value themselves.

    Raises:
        InvalidInputError: If no English caption describes a person.
    """
    reader = StatementReader(prompt_set)
    people, n_foreign = _people_by_noun(captions, reader)
    n_texts = sum(map(len, captions))
    if not people[ALL]:
        raise InvalidInputError(
            f"captions: none of {quantity(n_texts, 'caption')} describes a person in English;"
            " expected captions for images of people"
        )
    values = reader.values
    shares = {noun: _shares_of_values(images, values) for noun, images in people.items()}
    nouns = [noun for noun, (n, _) in shares.items() if n >= LEAST and noun != ALL]
    nouns.sort(key=lambda noun: (-shares[noun][0], noun))
    nouns = [ALL, *nouns[:MOST_NOUNS]]
    result = TaskResult(
        TaskProvenance(
            task="captions",
            title=f"What captions state about {prompt_set.name}",
            description=_ABOUT,
            attribute=prompt_set.name,
            attribute_hash=prompt_set.hash,
            split="texts",
            n={"images": len(captions), "captions": n_texts, "not in English": n_foreign},
        )
    )
    for noun in nouns:
        _add_noun(result, noun, people[noun], *shares[noun])
    overall = result.rows[0]
    which = [f"{value} {in_percent(figure)}" for value, figure in shares[ALL][1].items()]
    advice = [
        f"Captions of {quantity(len(people[ALL]), 'image')} describe people and state"
        f" {prompt_set.name} for {in_percent(Interval(overall.value, *overall.interval))} of them"
        f"{': ' if which else ''}{', '.join(which)}.",
        *_leaning({noun: shares[noun][1] for noun in nouns}),
    ]
    if n_foreign:
        advice.append(
            f"{quantity(n_foreign, 'caption')} of {n_texts:,} are not in English and were skipped."
        )
    head = f"of these, {values[0] if len(values) == 2 else 'this one'}"
    result.provenance.settings |= {
        "advice": advice,
        "by_category": {"stated": f"{prompt_set.name} stated", "stated_share": head},
        "tables": {
            "People in the captions, overall and by noun": {
                row.subset: row.subset for row in result.rows
            }
        },
        "intervals": "Wilson, 95%, over images",
    }
    return result


def _add_noun(
    result: TaskResult, noun: str, images: Described, n: int, figures: Mapping[str, Interval]
) -> None:
    """Add how often a value is stated about the people of a noun, and the share of each value."""
    stated = sum(np.mean([person.is_stated for person in described]) for described in images)
    share = share_of(float(stated), len(images))
    count = {"images": len(images)}
    result.add("stated", NONE, share.value, share[1:], n=count, subset=noun)
    # With two values, the first share determines the second.
    for name, figure in list(figures.items())[: 1 if len(figures) == 2 else None]:
        subset = noun if len(figures) == 2 else f"{noun}: {name}"
        count = {"images where one is stated": n}
        result.add("stated_share", NONE, figure.value, figure[1:], n=count, subset=subset)


def _leaning(figures: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """Return a sentence about nouns with a clearly higher share of a value than people overall."""
    leaning: list[tuple[float, str]] = []
    for noun, of_value in figures.items():
        for value, figure in of_value.items():
            if figure.low > figures[ALL][value].high:
                leaning.append((figure.low, f"{noun} {figure.value:.0%} {value}"))
    if not leaning:
        return []
    words = listed_words([text for _, text in sorted(leaning, reverse=True)[:5]])
    return [f"Nouns with a clearly higher share than people overall: {words}."]


def _people_by_noun(
    captions: Sequence[Sequence[str]], reader: StatementReader
) -> tuple[dict[str, list[list[DescribedPerson]]], int]:
    """Return noun -> the people of each image that has any, and the number of foreign captions."""
    n_foreign = 0
    people: dict[str, list[list[DescribedPerson]]] = {ALL: []}
    for texts in captions:
        statements = [reader.read(text) for text in texts]
        n_foreign += sum(not statement.is_english for statement in statements)
        of_noun: dict[str, list[DescribedPerson]] = defaultdict(list)
        for person in chain.from_iterable(statement.persons for statement in statements):
            of_noun[ALL].append(person)
            if not person.names_value:
                of_noun[person.noun].append(person)
        for noun, described in of_noun.items():
            people.setdefault(noun, []).append(described)
    return people, n_foreign


def _shares_of_values(images: Described, values: Sequence[str]) -> tuple[int, dict[str, Interval]]:
    """Return the number of images with a stated value, and the share of each value among them."""
    hits = dict.fromkeys(values, 0.0)
    n = 0
    for described in images:
        known = [str(person.value) for person in described if isinstance(person.value, str)]
        n += bool(known)
        for value in known:
            hits[value] += 1 / len(known)
    return n, {value: share_of(hits[value], n) for value in values if n}


def in_percent(figure: Interval) -> str:
    """Format a share with its interval, such as "12% [5%, 19%]"."""
    return f"{figure.value:.0%} [{figure.low:.0%}, {figure.high:.0%}]"
