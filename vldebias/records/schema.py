"""Define records: one attribute's counts in a model's images, and their origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from vldebias.errors import InvalidInputError
from vldebias.report.result import format_json
from vldebias.utils.files import explain, read_bytes, write_atomically
from vldebias.utils.schema import Name, Strict

NEUTRAL = ""  # the wording without a qualifier
Metric = Literal["share", "discrepancy", "unknown"]
Images = Annotated[int, Field(ge=0, strict=True)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Model(Strict):
    """Describe what generated the images.

    Attributes:
        name: model name in tables.
        id: model name on a hub or at an API.
        weights: digest of the weights; None for models known only by an API or a publication.
        pipeline: pipeline class, or the name of the API.
        scheduler: scheduler class and settings.
        precision: number format of the weights, such as "float16".
        method: the debiasing method that was attached; "none" for the model as released.
        is_plain: whether this is the model as released by its developers.
    """

    name: str
    id: str | None = None
    weights: str | None = None
    pipeline: str | None = None
    scheduler: str | None = None
    precision: str | None = None
    method: str = "none"
    is_plain: bool = True


class Generation(Strict):
    """Describe how the images were generated; None for details that a publication omits.

    Attributes:
        guidance: classifier-free guidance scale.
        steps: number of denoising steps.
        seeds: how the noise of each image was chosen.
        options: further arguments of the pipeline or API, such as the image size.
    """

    guidance: float | None = None
    steps: int | None = None
    seeds: str | None = None
    options: dict[str, str | int | float | bool | None] = Field(default_factory=dict)


class Judge(Strict):
    """Describe who or what judged the images.

    Attributes:
        kind: "model" for a classifier, "people" for human annotators.
        name: the classifier, or the annotators.
        fingerprint: changes whenever the answers of a classifier may change.
        threshold: probability below which the value is unknown.
    """

    kind: Literal["model", "people"]
    name: str
    fingerprint: str | None = None
    threshold: Fraction | None = None


class PromptCounts(Strict):
    """Store the image counts for one prompt.

    Attributes:
        subject: subject of the prompt, such as "nurse".
        qualifier: qualifier of the subject; "" for the neutral wording.
        prompt: the text that was sent to the model.
        counts: number of images that show each value, in the order of the record's values.
        unknown: number of images with unknown value, or None if not published.
    """

    subject: str
    qualifier: str = NEUTRAL
    prompt: str
    counts: tuple[Images, ...]
    unknown: Images | None = None


class LabelCounts(Strict):
    """Store the human labels of images with the same answer from the judge.

    The labelled images must be a random sample of all images with this answer and weight.

    Attributes:
        qualifier: wording of the images; "" for the neutral one.
        judged: the judge's answer, a value or "unknown".
        counts: number of images with each value as the human label.
        unknown: number of images whose human label is none of the values.
        weight: inverse probability that such an image is sampled for labelling, if it differs
            between images.
    """

    qualifier: str = NEUTRAL
    judged: str
    counts: tuple[Images, ...]
    unknown: Images = 0
    weight: Annotated[float, Field(gt=0)] = 1.0


class Published(Strict):
    """Store a figure as printed in a publication.

    Attributes:
        metric: "share" (of a value), "discrepancy" (mean over prompts) or "unknown" (rate).
        value: attribute value, for a share.
        subject: prompt subject, or None for the mean over all prompts.
        qualifier: the wording.
        figure: the printed number.
        tolerance: maximum difference from the recomputed figure: half a unit in the last printed
            digit.
        where: page, table or file in the source.
    """

    metric: Metric
    value: str = ""
    subject: str | None = None
    qualifier: str = NEUTRAL
    figure: float
    tolerance: float = 0.0
    where: str


class Figure(Strict):
    """Store a figure that follows from a record's counts.

    Attributes:
        metric: "share" of a value among images with known value, "discrepancy" (mean over prompts
            of the distance from even shares), or "unknown", the share of images with unknown value.
        value: attribute value, for a share.
        qualifier: the wording.
        estimate, low, high: the figure with its 95% interval.
        images, prompts: number of images and prompts.
        labels: number of human labels that correct the figure; 0 if it is uncorrected.
    """

    metric: Metric
    value: str = ""
    qualifier: str = NEUTRAL
    estimate: float
    low: float
    high: float
    images: int
    prompts: int
    labels: int = 0


class Record(Strict):
    """Store one run: a model, an attribute, counts by prompt, and the origin of the counts.

    Attributes:
        version: version of this schema.
        name: file name of the record, without its suffix.
        origin: "measured" if this package counted the images, "published" if the record was made
            by hand or converted from published counts.
        protocol: the protocol that was followed, such as "who-appears-1", or None for any other.
        attribute, values: the attribute that was counted, and its values.
        counts: one entry per prompt; empty if no counts are available.
        labels: human labels, which correct the judge; may be empty.
        annotators: number of people who labelled, or who counted if people are the judge.
        published: figures in the source, which the counts must reproduce.
        figures: figures that follow from the counts; `vldebias records check` recomputes them.
        versions, commit: versions of the software that counted.
        date: date on which the images were judged or published (ISO 8601).
        measured_by: person or group.
        source: citation or address.
        source_files: commit or files of the source.
        licence: licence of the counts.
        notes: further information for readers.
    """

    version: Literal[1] = 1
    name: Name
    origin: Literal["measured", "published"]
    protocol: str | None = None
    model: Model
    generation: Generation = Generation()
    attribute: str
    values: Annotated[tuple[str, ...], Field(min_length=2)]
    judge: Judge | None = None
    counts: tuple[PromptCounts, ...] = ()
    labels: tuple[LabelCounts, ...] = ()
    annotators: int | None = None
    published: tuple[Published, ...] = ()
    figures: tuple[Figure, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    commit: str | None = None
    date: str
    measured_by: str
    source: str | None = None
    source_files: str | None = None
    licence: str
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Reject counts that do not match the values, and prompts that are counted twice."""
        n_values = len(self.values)
        seen = set[tuple[str, str]]()
        for row in self.counts:
            key = (row.subject.casefold(), row.qualifier)
            if len(row.counts) != n_values:
                raise ValueError(
                    f"counts of {row.prompt!r}: got {len(row.counts)} numbers; expected one for"
                    f" each of {list(self.values)}"
                )
            if key in seen:
                raise ValueError(f"counts: {row.prompt!r} is listed twice; add up its counts")
            seen.add(key)
        for label in self.labels:
            if len(label.counts) != n_values or label.judged not in (*self.values, "unknown"):
                raise ValueError(
                    f"labels: got {label.judged!r} with {len(label.counts)} numbers; expected one"
                    f" of {[*self.values, 'unknown']} with one number per value"
                )
        if self.counts and self.judge is None:
            raise ValueError("judge: expected who or what counted the images")
        if self.origin == "measured" and (not self.counts or not self.versions):
            raise ValueError("a measured record needs counts and versions")
        if self.origin == "published" and not self.source:
            raise ValueError("source: a published record must name the source of its counts")
        return self

    @property
    def qualifiers(self) -> list[str]:
        """Return the wordings that were counted, in order."""
        return list(dict.fromkeys(row.qualifier for row in self.counts))

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Load a record from its JSON file, without recomputing its figures.

        Raises:
            InvalidInputError: If the file is missing or is not a record; the message names the
                field.
        """
        try:
            return cls.model_validate_json(read_bytes(Path(path)))
        except ValidationError as error:
            raise InvalidInputError(
                f"{path}: {explain(error)}; expected a record (vldebias records schema)"
            ) from None

    def write(self, path: str | Path) -> Path:
        """Write the record as JSON with one line per prompt."""
        content = json.loads(self.model_dump_json())
        return write_atomically(path, format_json(content) + "\n")
