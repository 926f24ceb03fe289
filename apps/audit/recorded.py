"""Create records from judged images, and add human labels to records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.judge.judges import Judge
from vldebias.judge.plan import GeneratedImages, Plan, hash_of
from vldebias.judge.stored import NO_VALUE, SURE, decide, last_judgements
from vldebias.measure.rows import NONE
from vldebias.utils.files import commit, versions
from vldebias.utils.schema import file_slug

from ..shares.answers import Answer, read_answers
from .records import schema
from .records.check import with_figures
from .records.protocol import PROTOCOL, ProtocolPrompt, load_protocol
from .records.schema import NEUTRAL, LabelCounts, PromptCounts, Record

RECORDS = "records"  # record folder inside the image folder
NOT_STATED = "not stated"  # placeholder for fields that a record's publisher fills in


def record_of_images(
    generated: GeneratedImages,
    labels: Labels,
    *,
    attribute: str,
    judge: Judge,
    model: str,
    variant: str = NONE,
    sure: float = SURE,
) -> Record | None:
    """Create a record of one variant's images.

    Protocol prompts are recorded with their subject and qualifier. Only prompts that do not state
    the attribute are counted.

    Args:
        generated: the generated images and their plan.
        labels: the judge's answer for each image.
        attribute: what the judge was asked about, such as "gender".
        judge: the classifier that labelled the images.
        model: name of the generator in tables.
        variant: name of the variant to record; "none" for the unedited model.
        sure: probability below which an answer counts as unknown.

    Returns:
        The record with its results, or None if every prompt states the attribute.
    """
    answers_of_prompt: dict[str, Counter[int]] = defaultdict(Counter)
    concept_of_prompt: dict[str, str] = {}
    for image, code in zip(generated, labels.codes.tolist(), strict=True):
        is_open = image.stated is None and image.part in ("train", "unseen")
        if image.variant == variant and is_open:
            answers_of_prompt[image.prompt][code] += 1
            concept_of_prompt[image.prompt] = image.concept
    if not answers_of_prompt:
        return None
    protocol = {prompt.text: prompt for prompt in load_protocol().prompts()}
    neutral = {text for text, prompt in protocol.items() if prompt.qualifier == NEUTRAL}
    counts = []
    for text, answers in answers_of_prompt.items():
        default = ProtocolPrompt(concept_of_prompt[text] or text, NEUTRAL, text)
        prompt = protocol.get(text, default)
        known = tuple(answers[code] for code in range(len(labels.names)))
        counts.append(
            PromptCounts(
                subject=prompt.subject,
                qualifier=prompt.qualifier,
                prompt=text,
                counts=known,
                unknown=answers.total() - sum(known),
            )
        )
    name = f"{model} {attribute}"
    if variant != NONE:
        name += f" {variant}"
    record = Record(
        name=file_slug(name),
        origin="measured",
        protocol=PROTOCOL if neutral <= answers_of_prompt.keys() else None,
        model=_model_of_plan(generated.plan, model, variant),
        generation=_generation_of_plan(generated.plan),
        attribute=attribute,
        values=tuple(labels.names),
        judge=schema.Judge(
            kind="model", name=judge.name, fingerprint=judge.fingerprint, threshold=sure
        ),
        counts=tuple(counts),
        versions=versions(),
        commit=commit(),
        date=datetime.now(UTC).date().isoformat(),
        measured_by=NOT_STATED,
        licence=NOT_STATED,
    )
    return with_figures(record)


def write_records(
    generated: GeneratedImages, judge: Judge, attribute: str, answers: np.ndarray, sure: float
) -> None:
    """Write a record of each variant's images to the folder "records" inside the image folder.

    Args:
        generated: the generated images and their plan.
        judge: the classifier that labelled the images.
        attribute: what the judge was asked about, such as "gender".
        answers: the judge's answers, as for `vldebias.judge.stored.decide`.
        sure: probability below which an answer counts as unknown.
    """
    labels = decide(answers, judge.names[attribute], sure)
    model = str(generated.plan.model.get("id") or generated.plan.model["pipeline"])
    for variant in generated.plan.variants:
        record = record_of_images(
            generated,
            labels,
            attribute=attribute,
            judge=judge,
            model=model,
            variant=variant,
            sure=sure,
        )
        if record is not None:
            name = file_slug(f"{attribute} {variant}")
            record.write(generated.folder / RECORDS / f"{name}.json")


def _model_of_plan(plan: Plan, name: str, variant: str) -> schema.Model:
    """Describe the pipeline in a plan for a record."""
    facts = plan.model
    weights = None
    if facts.get("fingerprint") is not None:
        weights = hash_of(facts["fingerprint"])
    precision = facts.get("precision")
    fields = {
        "name": name,
        "id": facts.get("id"),
        "weights": weights,
        "pipeline": facts.get("pipeline"),
        "scheduler": facts.get("scheduler"),
        "precision": ", ".join(precision) or None if isinstance(precision, list) else None,
        "method": variant,
        "is_plain": variant == NONE,
    }
    return schema.Model.model_validate(fields)


def _generation_of_plan(plan: Plan) -> schema.Generation:
    """Describe the generation settings in a plan for a record."""
    options: dict[str, str | int | float | bool | None] = {}
    for name, value in plan.options.items():
        if value is None or isinstance(value, (str, int, float, bool)):
            options[name] = value
        else:
            options[name] = str(value)
    return schema.Generation(
        guidance=plan.guidance,
        steps=plan.steps,
        seeds=f"SHA-256 of seed and prompt; runs {', '.join(map(str, plan.seeds))}",
        options=options,
    )


def with_labels(record: Record, folder: Path, files: Sequence[Path]) -> Record:
    """Add human image labels to a record, and recompute its results.

    Args:
        record: a record written by `vldebias audit --measure` or `vldebias eval generation`.
        folder: folder that contains the record's images and the judge's stored answers.
        files: answer files from `vldebias label`. If annotators disagree, the value is unknown.

    Raises:
        InvalidInputError: If no judge with these values has judged the images, or no answer is
            about an image that the record counts.
    """
    generated = GeneratedImages.open(folder)
    judged = last_judgements(generated, record.attribute, record.values)
    if judged is None:
        raise InvalidInputError(
            f"{folder}: no judge has judged {record.attribute} with the values"
            f" {list(record.values)}; expected the folder whose images the record counts"
        )
    _, answers, _ = judged
    qualifier_of_prompt = {row.prompt: row.qualifier for row in record.counts}
    people = _by_image(read_answers(files), record.attribute)
    # (qualifier, the judge's answer, weight) -> human answers
    values_of_group: dict[tuple[str, str, float], Counter[str]] = defaultdict(Counter)
    annotators: set[str] = set()
    for image, answer in zip(generated, answers, strict=True):
        if image.variant != record.model.method or image.path not in people:
            continue
        if image.prompt not in qualifier_of_prompt:
            continue
        labels = people[image.path]
        annotators |= {label.annotator for label in labels}
        named = {label.value for label in labels}
        value = named.pop() if len(named) == 1 else NO_VALUE
        key = (qualifier_of_prompt[image.prompt], answer, labels[0].weight or 1.0)
        values_of_group[key][value] += 1
    if not values_of_group:
        raise InvalidInputError(
            f"labels: none of the answers is about an image in {folder} that the record"
            f" {record.name!r} counts; pass answers about these images"
        )
    rows = []
    for (qualifier, answer, weight), values in values_of_group.items():
        known = tuple(values[value] for value in record.values)
        rows.append(
            LabelCounts(
                qualifier=qualifier,
                judged=answer,
                counts=known,
                unknown=values.total() - sum(known),
                weight=weight,
            )
        )
    labelled = record.model_copy(update={"labels": tuple(rows), "annotators": len(annotators)})
    return with_figures(labelled)


def _by_image(answers: Sequence[Answer], attribute: str) -> Mapping[str, list[Answer]]:
    """Group the answers about an attribute by image path."""
    answers_of_image: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.attribute == attribute:
            answers_of_image[answer.image].append(answer)
    return answers_of_image
