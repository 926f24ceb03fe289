"""Schema for records, which contain the counts for an attribute in a model's images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from vldebias.errors import InvalidInputError
from vldebias.report.result import format_json
from vldebias.utils.files import explain, read_bytes, write_atomically
from vldebias.utils.formats import check_format
from vldebias.utils.json_tables import parsed
from vldebias.utils.schema import Name, Strict
from vldebias.utils.text_tables import decoded

NEUTRAL = ""  # qualifier of the neutral wording
Metric = Literal["share", "discrepancy", "unknown"]
# More images than any study can have; larger counts would overflow in floating-point sums.
MOST_IMAGES = 10**9
MOST_WEIGHT = 1e6
# Half a unit in the first decimal, the coarsest rounding that a publication uses. With a larger
# tolerance, the counts would reproduce any published number.
MOST_TOLERANCE = 0.05
Images = Annotated[int, Field(ge=0, le=MOST_IMAGES, strict=True)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Model(Strict):
    """The model that generated the images.

    Attributes:
        name: model name in tables.
        id: model name on a hub or in an API.
        weights: digest of the weights. None for models that are only known from an API or a
            publication.
        pipeline: pipeline class, or the name of the API.
        scheduler: scheduler class and settings.
        precision: number format of the weights, such as "float16".
        method: debiasing method that was attached; "none" for the model as released.
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
    """How the images were generated. Details that a publication omits are None.

    Attributes:
        guidance: classifier-free guidance scale.
        steps: number of denoising steps.
        seeds: how the noise of each image was chosen.
        options: further arguments of the pipeline or API, such as the image size.
    """

    guidance: Finite | None = None
    steps: Annotated[int, Field(ge=1)] | None = None
    seeds: str | None = None
    options: dict[str, str | int | Finite | bool | None] = Field(default_factory=dict)


class Judge(Strict):
    """The classifier or the people who judged the images.

    Attributes:
        kind: "model" for a classifier, "people" for human annotators.
        name: name of the classifier, or description of the annotators.
        fingerprint: fingerprint of a classifier, which changes whenever its answers may change.
        threshold: probability below which the value is unknown.
    """

    kind: Literal["model", "people"]
    name: str
    fingerprint: str | None = None
    threshold: Fraction | None = None


class PromptCounts(Strict):
    """The image counts for one prompt.

    Attributes:
        subject: subject of the prompt, such as "nurse".
        qualifier: qualifier of the subject; "" for the neutral wording.
        prompt: text that was passed to the model.
        counts: number of images that show each value, in the order of the record's values.
        unknown: number of images whose value is unknown, or None if it was not published.
    """

    subject: str
    qualifier: str = NEUTRAL
    prompt: str
    counts: tuple[Images, ...]
    unknown: Images | None = None


class LabelCounts(Strict):
    """The human labels of images for which the judge gave the same answer.

    The labelled images must be a random sample of all images with this answer and weight.

    Attributes:
        qualifier: wording of the images; "" for the neutral one.
        judged: the judge's answer, a value or "unknown".
        counts: number of images that people labelled with each value.
        unknown: number of images whose human label is none of the values.
        weight: inverse probability that such an image was sampled for labelling, if it differs
            between images.
    """

    qualifier: str = NEUTRAL
    judged: str
    counts: tuple[Images, ...]
    unknown: Images = 0
    weight: Annotated[float, Field(ge=1 / MOST_WEIGHT, le=MOST_WEIGHT, allow_inf_nan=False)] = 1.0


class Published(Strict):
    """A number as printed in a publication.

    Attributes:
        metric: "share" of a value, "discrepancy" (the mean over prompts) or "unknown" (the share of
            images whose value is unknown).
        value: attribute value, for a share.
        subject: prompt subject, or None for the mean over all prompts.
        qualifier: qualifier of the wording.
        figure: printed number.
        tolerance: maximum difference from the recomputed number, usually half a unit in the last
            printed digit; at most MOST_TOLERANCE.
        where: page, table or file in the source.
    """

    metric: Metric
    value: str = ""
    subject: str | None = None
    qualifier: str = NEUTRAL
    figure: Fraction
    tolerance: Annotated[float, Field(ge=0, le=MOST_TOLERANCE, allow_inf_nan=False)] = 0.0
    where: str


class Figure(Strict):
    """A number computed from a record's counts, with its interval.

    Attributes:
        metric: "share" of a value among images whose value is known, "discrepancy" (the distance
            from equal shares, averaged over prompts), or "unknown" (the share of images whose value
            is unknown).
        value: attribute value, for a share.
        qualifier: qualifier of the wording.
        estimate, low, high: the computed number and its 95% interval.
        images, prompts: number of images and prompts.
        labels: number of human labels that correct the number, or 0 if it is not corrected.
    """

    metric: Metric
    value: str = ""
    qualifier: str = NEUTRAL
    estimate: Fraction
    low: Fraction
    high: Fraction
    images: Annotated[int, Field(ge=0)]
    prompts: Annotated[int, Field(ge=0)]
    labels: Annotated[int, Field(ge=0)] = 0


class Record(Strict):
    """The result of one run: counts by prompt for a model and an attribute, and their origin.

    Attributes:
        format_version: version of this schema. A record without it has version 1.
        name: file name of the record, without its suffix.
        origin: "measured" if this package counted the images, "published" if the record was written
            by hand or converted from published counts.
        protocol: name of the protocol that was followed, such as "who-appears-1", or None.
        attribute, values: the attribute that was counted, and its values.
        counts: one entry per prompt; empty if no counts are available.
        labels: human labels, which correct the judge; may be empty.
        annotators: number of people who labelled the images, or who counted them if people are the
            judge.
        published: numbers in the source, which the counts must reproduce.
        figures: numbers computed from the counts; `vldebias records check` recomputes them.
        versions, commit: versions of the software that counted the images.
        date: date on which the images were judged or published (ISO 8601).
        measured_by: person or group who measured the record.
        source: citation or address of the source.
        source_files: commit or files in the source.
        licence: licence of the counts.
        notes: further information for readers.
    """

    format_version: Literal[1] = 1
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
    annotators: Annotated[int, Field(ge=1)] | None = None
    published: tuple[Published, ...] = ()
    figures: tuple[Figure, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    commit: str | None = None
    date: Annotated[str, Field(pattern=r"^\d{4}(-\d\d(-\d\d)?)?$")]
    measured_by: str
    source: str | None = None
    source_files: str | None = None
    licence: str
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Reject counts that do not match the values, and prompts that are counted twice."""
        n_values = len(self.values)
        names = [value.strip().casefold() for value in self.values]
        if len({*names, "", "unknown"}) < n_values + 2:
            raise ValueError(
                f"values: got {list(self.values)}; expected different names other than 'unknown',"
                " which is counted separately"
            )
        seen = set[tuple[str, str]]()
        for row in self.counts:
            key = (row.subject.casefold(), row.qualifier)
            if len(row.counts) != n_values:
                raise ValueError(
                    f"counts for {row.prompt!r}: got {len(row.counts)} numbers; expected one for"
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
            raise ValueError("judge: a record with counts must name who or what judged the images")
        if self.origin == "measured" and (not self.counts or not self.versions):
            raise ValueError("a record with origin 'measured' needs counts and versions")
        if self.origin == "published" and not self.source:
            raise ValueError("source: a published record must name the source of its counts")
        return self

    @property
    def qualifiers(self) -> list[str]:
        """Return the wordings that were counted, in order."""
        return list(dict.fromkeys(row.qualifier for row in self.counts))

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Load a record from its JSON file, without recomputing its results.

        Raises:
            InvalidInputError: If the file is missing or is not a record. The message names the
                field.
        """
        text = decoded(read_bytes(path), str(path))
        # `parsed` refuses repeated names, of which pydantic keeps the last.
        check_format(parsed(text, str(path)), path, missing=1)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidInputError(
                f"{path}: {explain(error)}; expected a record (vldebias records schema)"
            ) from None

    def write(self, path: str | Path) -> Path:
        """Write the record as JSON with one line per prompt."""
        content = json.loads(self.model_dump_json())
        return write_atomically(path, format_json(content) + "\n")
