"""Create records from the logs of the inspect-ai task, without importing inspect-ai."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError
from vldebias.judge.stored import SURE
from vldebias.utils.files import versions

from ..audit.recorded import NOT_STATED
from ..audit.records import schema
from ..audit.records.check import with_figures
from ..audit.records.protocol import PROTOCOL, load_protocol
from ..audit.records.schema import PromptCounts, Record

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog
    from inspect_ai.scorer import Score


def record_of_scores(scores: Sequence[Score], generator: str = "generator") -> Record:
    """Create a record from a run's scores.

    Args:
        scores: the scores of all images.
        generator: name of the generator.
    """
    answers: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    facts: dict[str, Any] = {}
    for score in scores:
        facts = score.metadata or {}
        answers[facts["subject"], facts["qualifier"], facts["prompt"]][str(score.value)] += 1
    counts = []
    for (subject, qualifier, prompt), answer in answers.items():
        known = tuple(answer[value] for value in facts["values"])
        counts.append(
            PromptCounts(
                subject=subject,
                qualifier=qualifier,
                prompt=prompt,
                counts=known,
                unknown=answer.total() - sum(known),
            )
        )
    return Record(
        name="inspect",
        origin="measured",
        model=schema.Model(name=generator, id=generator, pipeline=generator),
        attribute=facts["attribute"],
        values=tuple(facts["values"]),
        judge=schema.Judge(
            kind="model", name=facts["judge"], fingerprint=facts["fingerprint"], threshold=SURE
        ),
        counts=tuple(counts),
        versions=versions(),
        date=datetime.now(UTC).date().isoformat(),
        measured_by=NOT_STATED,
        licence=NOT_STATED,
    )


def record_of_log(log: EvalLog, name: str) -> Record:
    """Create a record from the log of a finished evaluation.

    Args:
        log: a log from `inspect_ai.eval` or `inspect_ai.log.read_eval_log`.
        name: name of the record.

    Returns:
        The record with its results. Before publishing it, add the licence and who measured it.

    Raises:
        InvalidInputError: If the evaluation did not succeed, or there are no samples.
    """
    if log.status != "success" or not log.samples:
        raise InvalidInputError(f"log: got status {log.status}; expected a finished evaluation")
    scores = []
    for sample in log.samples:
        scores += list((sample.scores or {}).values())
    provenance = log.eval.metadata or {}
    generator = str(provenance.get("generator"))
    subjects = {(score.metadata or {})["subject"] for score in scores}
    is_complete = subjects >= set(load_protocol().subjects)
    record = record_of_scores(scores, generator)
    update = {
        "name": name,
        "protocol": PROTOCOL if is_complete else None,
        "date": log.eval.created[:10],
        "model": record.model.model_copy(
            update={"pipeline": provenance.get("api") or "diffusers pipeline"}
        ),
        "versions": {**record.versions, **log.eval.packages},
    }
    return with_figures(record.model_copy(update=update))
