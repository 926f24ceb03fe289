"""Measure which attribute values captions state about people, overall and by noun."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import Interval, wilson_interval
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.prompts.attribute import Attribute
from vldebias.report.result import Result
from vldebias.utils.phrases import listed_words, quantity
from vldebias.wording.english.reading import English
from vldebias.wording.languages import language_of

TASK = "captions"
ALL = "all persons"
MOST_NOUNS = 20  # maximum number of nouns to report, most frequent first
LEAST = 5  # minimum number of images with a stated value for reporting a noun's share
_ABOUT = (
    "People in captions, found with the same rules as for balanced prompts. A value may be stated"
    " by a noun, an adjective or a pronoun. Each image counts once per noun, regardless of how many"
    " captions it has. The intervals are Wilson intervals over images."
)


@dataclass
class _Counts:
    """Counts of images and of the values stated in their captions.

    Attributes:
        images: number of images.
        stated: sum over images of the share of people with a stated value.
        images_stated: number of images whose captions state a value in the prompt set.
        values: value -> sum over images of its share among the stated values.
    """

    images: int = 0
    stated: float = 0.0
    images_stated: int = 0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, stated: Sequence[str | bool | None]) -> None:
        """Add the people in one image.

        Args:
            stated: the stated value for each person, None if it is not in the prompt set, or False
                if no value is stated.
        """
        self.images += 1
        described = [value for value in stated if value is not False]
        self.stated += len(described) / len(stated)
        known = [str(value) for value in described if value is not None]
        if known:
            self.images_stated += 1
            for value in known:
                self.values[value] = self.values.get(value, 0.0) + 1 / len(known)

    def share_stated(self) -> Interval:
        """Return the share of people with a stated value."""
        return _share(self.stated, self.images)

    def share_of(self, value: str) -> Interval:
        """Return a value's share among stated values."""
        return _share(self.values.get(value, 0.0), self.images_stated)


def _share(hits: float, n: int) -> Interval:
    """Return a share with its Wilson interval. The number of hits may be fractional."""
    low, high = wilson_interval(hits, n)
    share = hits / n
    return Interval(share, min(low, share), max(high, share))


def audit_captions(
    captions: Sequence[Sequence[str]], attribute_set: str | Path | PromptSet
) -> Result:
    """Measure which values training captions state about people, overall and by noun.

    For example, captions with "nurse" may state "female" in 91% of cases.

    Args:
        captions: captions for each image.
        attribute_set: the attribute's prompt set, such as "gender".

    Returns:
        Rows `stated` (the share of people with a stated value) and `stated_share` (the share of
        each value among them) for all people, and for the most frequent nouns that do not state a
        value themselves. The rows have 95% Wilson intervals over images.

    Raises:
        InvalidInputError: If no English caption describes a person.
    """
    start = time.monotonic()
    prompt_set = load_prompts(attribute_set)
    attribute = Attribute(prompt_set, {})
    english = English()
    counts_of_noun: dict[str, _Counts] = defaultdict(_Counts)
    total = _Counts()
    n_texts = n_foreign = 0
    for texts in captions:
        persons = []
        for text in texts:
            n_texts += 1
            language = language_of(text)
            if language is None or language.code != english.code:
                n_foreign += 1
                continue
            persons += english.persons_with_values(text, attribute)
        stated_of_noun: dict[str, list[str | bool | None]] = defaultdict(list)
        for person in persons:
            value = person.value if isinstance(person.value, str) else None
            stated = value if person.is_stated else False
            stated_of_noun[ALL].append(stated)
            if not person.names_value:
                stated_of_noun[person.noun].append(stated)
        for noun, values in stated_of_noun.items():
            (total if noun == ALL else counts_of_noun[noun]).add(values)
    if not total.images:
        raise InvalidInputError(
            f"captions: none of {quantity(n_texts, 'caption')} describes a person in English;"
            " expected captions for images of people"
        )
    nouns = sorted(counts_of_noun, key=lambda noun: (-counts_of_noun[noun].images_stated, noun))
    shown = [noun for noun in nouns if counts_of_noun[noun].images_stated >= LEAST][:MOST_NOUNS]
    names = list(prompt_set.attributes)
    part = TaskResult(
        TaskProvenance(
            task=TASK,
            title=f"What captions state about {prompt_set.name}",
            description=_ABOUT,
            attribute=prompt_set.name,
            attribute_hash=prompt_set.hash,
            split="texts",
            n={"images": len(captions), "captions": n_texts, "not in English": n_foreign},
            settings={
                "advice": _sentences(total, counts_of_noun, shown, prompt_set, n_texts, n_foreign),
                "by_category": {"stated": "value stated", "stated_share": _head(names)},
                "intervals": "Wilson, 95%, over images",
            },
        )
    )
    for name in (ALL, *shown):
        _add(part, name, total if name == ALL else counts_of_noun[name], names)
    return Result.from_tasks(TASK, [part], seconds=round(time.monotonic() - start, 3))


def _head(values: Sequence[str]) -> str:
    """Return the title of the share column. With two values, only the first one is shown."""
    return values[0] if len(values) == 2 else "share of the value"


def _add(part: TaskResult, name: str, counts: _Counts, values: Sequence[str]) -> None:
    """Add the rows `stated` and `stated_share` for a noun or for all people."""
    stated = counts.share_stated()
    ends = (stated.low, stated.high)
    part.add("stated", NONE, stated.value, ends, n={"images": counts.images}, subset=name)
    if not counts.images_stated:
        return
    for value in values[:1] if len(values) == 2 else values:
        share = counts.share_of(value)
        part.add(
            "stated_share",
            NONE,
            share.value,
            (share.low, share.high),
            n={"with a stated value": counts.images_stated},
            subset=name if len(values) == 2 else f"{name}: {value}",
        )


def _sentences(
    total: _Counts,
    counts_of_noun: dict[str, _Counts],
    shown: Sequence[str],
    prompt_set: PromptSet,
    n_texts: int,
    n_foreign: int,
) -> list[str]:
    """Return sentences that summarise the findings."""
    stated = total.share_stated()
    shares = []
    for value in prompt_set.attributes:
        if total.images_stated:
            share = total.share_of(value)
            shares.append(f"{value} {share.value:.0%} [{share.low:.0%}, {share.high:.0%}]")
    sentences = [
        f"Captions of {quantity(total.images, 'image')} describe people and state {prompt_set.name}"
        f" for {stated.value:.0%} [{stated.low:.0%}, {stated.high:.0%}] of them"
        + (f": {', '.join(shares)}." if shares else ".")
    ]
    leaning = []
    for noun in shown:
        counts = counts_of_noun[noun]
        for value in prompt_set.attributes:
            share = counts.share_of(value)
            if share.low > total.share_of(value).high:
                leaning.append((share.low, f"{noun} {share.value:.0%} {value}"))
    if leaning:
        nouns = [text for _, text in sorted(leaning, reverse=True)[:5]]
        sentences.append(
            f"Nouns with a clearly higher share than people overall: {listed_words(nouns)}."
        )
    if n_foreign:
        sentences.append(
            f"{quantity(n_foreign, 'caption')} of {n_texts:,} are not in English and were skipped."
        )
    return sentences
