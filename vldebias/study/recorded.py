"""Write records of generated images that a judge has read, and add what people say about them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.judge.answers import Answer, read_answers
from vldebias.judge.judges import Judge
from vldebias.judge.plan import GeneratedImages, PlannedImage, hash_of
from vldebias.judge.stored import NO_VALUE, SURE, last_judgements
from vldebias.records import schema
from vldebias.records.check import with_figures
from vldebias.records.protocol import PROTOCOL, load_protocol
from vldebias.records.schema import NEUTRAL, LabelCounts, PromptCounts, Record
from vldebias.report.result import NONE
from vldebias.utils.files import commit, versions
from vldebias.utils.schema import file_slug

NOT_STATED = "not stated"  # fields that whoever publishes a record fills in


def record_of_images(
    made: GeneratedImages,
    labels: Labels,
    *,
    attribute: str,
    judge: Judge,
    model: str,
    variant: str = NONE,
    sure: float = SURE,
) -> Record | None:
    """Return the record of the images of one variant.

    Prompts of the protocol get its subjects and qualifiers. Only prompts that leave the attribute
    open are counted.

    Args:
        made: the images.
        labels: the judge's answer about each of them, in their order.
        attribute: what the judge read.
        judge: who read them.
        model: what tables call the generator.
        variant: name of the variant, "none" for the model as it is.
        sure: smallest probability with which an answer counted.

    Returns:
        The record with its figures; None if no image of the variant leaves the attribute open.
    """
    answers_of_prompt: dict[str, Counter[int]] = defaultdict(Counter)
    image_of_prompt: dict[str, PlannedImage] = {}
    for image, code in zip(made, labels.codes.tolist(), strict=True):
        is_open = image.stated is None and image.part in ("train", "unseen")
        if image.variant == variant and is_open:
            answers_of_prompt[image.prompt][code] += 1
            image_of_prompt[image.prompt] = image
    if not answers_of_prompt:
        return None
    planned = {prompt.text: prompt for prompt in load_protocol().prompts()}
    counts = []
    for prompt, answers in answers_of_prompt.items():
        known = tuple(answers[code] for code in range(len(labels.names)))
        subject = image_of_prompt[prompt].concept or prompt
        qualifier = NEUTRAL
        if prompt in planned:
            subject = planned[prompt].subject
            qualifier = planned[prompt].qualifier
        counts.append(
            PromptCounts(
                subject=subject,
                qualifier=qualifier,
                prompt=prompt,
                counts=known,
                unknown=answers.total() - sum(known),
            )
        )
    neutral = {text for text, prompt in planned.items() if prompt.qualifier == NEUTRAL}
    plan = made.plan
    seeds = ", ".join(map(str, plan.seeds))
    fingerprint = plan.model.get("fingerprint")
    record = Record(
        name=file_slug(f"{model} {attribute}" + ("" if variant == NONE else f" {variant}")),
        origin="measured",
        protocol=PROTOCOL if neutral <= answers_of_prompt.keys() else None,
        model=schema.Model(
            name=model,
            id=plan.model.get("id"),
            weights=None if fingerprint is None else hash_of(fingerprint),
            pipeline=plan.model.get("pipeline"),
            scheduler=plan.model.get("scheduler"),
            precision=", ".join(plan.model.get("precision", ())) or None,
            method=variant,
            is_plain=variant == NONE,
        ),
        generation=schema.Generation(
            guidance=plan.guidance,
            steps=plan.steps,
            seeds=f"SHA-256 of seed and prompt; runs {seeds}",
            options={name: _plain_option(value) for name, value in plan.options.items()},
        ),
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


def _plain_option(value: object) -> str | int | float | bool | None:
    """Return an option of a pipeline as JSON holds it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def with_labels(record: Record, folder: Path, files: Sequence[Path]) -> Record:
    """Return a record with people's labels of its images, and the figures that follow.

    Args:
        record: what `vldebias audit --measure` or `vldebias eval generation` wrote.
        folder: of its images, with the judge's stored answers.
        files: answers of `vldebias label`; annotators who disagree name no value.

    Raises:
        InvalidInputError: images that no judge of these values has read, or answers about none of
            the record's images.
    """
    made = GeneratedImages.open(folder)
    judged = last_judgements(made, record.attribute, record.values)
    if judged is None:
        raise InvalidInputError(
            f"{folder}: no judge has read {record.attribute} with the values"
            f" {list(record.values)}; expected the folder whose images the record counts"
        )
    _, answers, _ = judged
    qualifier_of_prompt = {row.prompt: row.qualifier for row in record.counts}
    people = _by_image(read_answers(files), record.attribute)
    # (qualifier, the judge's answer, weight) -> what people say
    values_of_group: dict[tuple[str, str, float], Counter[str]] = defaultdict(Counter)
    annotators: set[str] = set()
    for image, answer in zip(made, answers, strict=True):
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
            f"labels: got answers about none of the images in {folder} that the record"
            f" {record.name!r} counts"
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
    """Return path of an image -> its answers about an attribute."""
    answers_of_image: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.attribute == attribute:
            answers_of_image[answer.image].append(answer)
    return answers_of_image
