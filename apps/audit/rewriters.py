"""Measure which attribute values a prompt rewriter adds, without generating images."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from vldebias.errors import InvalidInputError
from vldebias.measure.metric import Metric
from vldebias.measure.resampling import wilson_interval
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.prompts.attribute import Attribute
from vldebias.report.result import Result
from vldebias.utils.phrases import quantity
from vldebias.wording.language import NounValue
from vldebias.wording.languages import language_of
from vldebias.wording.persons import PersonReader

METHOD = "rewriter"
INVENTED = Metric("invented", "prompts to which a value was added", "bias", "lower", (0.0, 1.0))
_MOST_NOUNS = 20  # maximum number of nouns to report, most frequent first


def audit_rewriter(
    original: Sequence[str], rewritten: Sequence[str], attribute_set: str | Path | PromptSet
) -> Result:
    """Measure how often a prompt rewriter adds an attribute value, which one, and for which nouns.

    No images are generated.

    Args:
        original: the users' prompts.
        rewritten: each prompt as rewritten by a language model.
        attribute_set: the attribute's prompt set, such as "gender".

    Returns:
        Rows `invented` for any value, for each value, and for the nouns that were changed most
        often. They have 95% Wilson intervals over people whose value the original leaves open.

    Raises:
        InvalidInputError: If there are not as many rewritten prompts as originals, a rewritten
            prompt is not in English, or no original leaves the attribute open.
    """
    start = time.monotonic()
    if len(original) != len(rewritten):
        raise InvalidInputError(
            f"rewritten: got {len(rewritten)} prompts for {len(original)} originals; expected one"
            " per original, in the same order"
        )
    prompt_set = load_prompts(attribute_set)
    reader = PersonReader(Attribute(prompt_set, {}))
    written: list[tuple[str, object]] = []
    for texts in zip(original, rewritten, strict=True):
        try:
            written += _values_of_open_people(reader, *texts)
        except NotImplementedError as problem:
            raise InvalidInputError(
                f"rewritten: {texts[1]!r}: {problem}; expected English, the only language that is"
                " supported"
            ) from None
    if not written:
        raise InvalidInputError(
            f"original: none of {quantity(len(original), 'prompt')} leaves {prompt_set.name} open;"
            " add prompts about people that do not state it"
        )
    counts = Counter(str(value) for _, value in written if value is not None)
    low, high = wilson_interval(counts.total(), len(written))
    values = ", ".join(f"{value} {count:,}" for value, count in counts.most_common())
    sentence = (
        f"The rewriter states the {prompt_set.name} of {counts.total():,} of {len(written):,}"
        f" people for whom the original prompts leave it open ({low:.0%} to {high:.0%}):"
        f" {values or 'none'}."
    )
    part = TaskResult(
        TaskProvenance(
            task="rewriter",
            title="What a rewriter adds to prompts",
            description=sentence,
            attribute=prompt_set.name,
            attribute_hash=prompt_set.hash,
            split="texts",
            seeds=[0],
            n={"prompts": len(original), "open persons": len(written)},
            settings={"intervals": "Wilson, 95%", "advice": [sentence]},
        )
    )
    for title, hits, number in _rows(written, counts):
        interval = wilson_interval(hits, number)
        part.add(INVENTED, METHOD, hits / number, interval, n={"persons": number}, subset=title)
    seconds = round(time.monotonic() - start, 3)
    return Result.from_tasks("rewriter", [part], seconds=seconds)


def _values_of_open_people(
    reader: PersonReader, original: str, rewritten: str
) -> list[tuple[str, object]]:
    """Return pairs (noun, value) with the value that a rewritten prompt states, or None.

    There is a pair for each person in the original prompt whose value it leaves open.
    """
    persons = reader.persons(original)
    language = language_of(rewritten)
    if isinstance(persons, str) or language is None:
        return []
    people: list[NounValue] = [(person.noun, None) for person in persons]
    values = language.values_in(rewritten, reader.attribute, people)
    open_persons, _ = reader.open_persons(original)
    open_nouns = {person.noun for person in open_persons}
    pairs = zip(people, values, strict=True)
    return [(noun, value) for (noun, _), value in pairs if noun in open_nouns]


def _rows(
    written: Sequence[tuple[str, object]], counts: Counter[str]
) -> Iterator[tuple[str, int, int]]:
    """Yield the title, the number of hits and the number of people for each row."""
    yield "any value", counts.total(), len(written)
    for value, count in counts.most_common():
        yield value, count, len(written)
    persons_of_noun = Counter(noun for noun, _ in written)
    hits_of_noun = Counter(noun for noun, value in written if value is not None)
    for noun, hits in hits_of_noun.most_common(_MOST_NOUNS):
        yield f"noun: {noun}", hits, persons_of_noun[noun]
