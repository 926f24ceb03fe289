"""Measures of a folder of drawn images: one Part for each attribute, from what a judge says about every image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.drawn import DrawnSet
from vldebias.evaluation.drawing.folder import joint_fingerprint
from vldebias.evaluation.drawing.plan import Plan, slug
from vldebias.evaluation.generation.figures import Bias, Fidelity, details
from vldebias.evaluation.generation.plots import share_plots, side_by_side
from vldebias.evaluation.generation.sheets import Sheet, sheets
from vldebias.evaluation.judging.judgements import judge_images, labels_of
from vldebias.evaluation.judging.judges import Judge
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Protocol
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from rich.progress import Progress

__all__ = ["check_attributes", "measure_drawn", "protocol_of", "stated_attribute"]

BIAS_TOLD = (
    "Every prompt drawn from the same noise without and with the projection. Shares are those of the images that the "
    "judge can tell; the others are counted. Discrepancy is the distance of the shares from uniform (eq. 7.2), "
    "averaged over prompts and resampled over prompts with all their images; few images per prompt bias it upwards, "
    "discrepancy_squared is corrected for that. The interval of one prompt is over its images."
)


def measure_drawn(
    drawn: DrawnSet,
    judge: Judge,
    prompts: PromptSet,
    *,
    task: str,
    attributes: Sequence[str],
    noun: str = "professions",
    sure: float = 0.8,
    resamples: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Part]:
    """Judge and measure images that are there, such as `DrawnSet.open(folder)`; arguments as `evaluate_generation`.

    Raises:
        InvalidInputError: `prompts` is not the set that was drawn, an attribute that the judge does not read, images
            that are missing.
    """
    if prompts.hash != drawn.plan.prompt_set_hash:
        raise InvalidInputError(
            f"{drawn.folder}: was drawn with another version of {drawn.plan.prompt_set!r} than {prompts!r}"
        )
    check_attributes(judge, attributes)
    probabilities = judge_images(judge, drawn, progress=progress)
    labels = labels_of(judge, probabilities, attributes, sure)
    shown = _shown(drawn, judge, probabilities)
    measure = _Measure(drawn, judge, shown, _flagged(drawn), task, noun, sure, resamples, seed)
    stated = stated_attribute(prompts, judge) if sheets(drawn, stated=True) else ("", {})
    return [
        measure.part(attribute, labels[attribute], stated, pictures=attribute == attributes[0])
        for attribute in attributes
    ]


@dataclass(frozen=True, eq=False)
class _Measure:
    """What the measures of all attributes share.

    shown: what each image shows, and the code of each concept. flagged: variant -> images without a picture.
    """

    drawn: DrawnSet
    judge: Judge
    shown: tuple[NDArray[np.int64], dict[str, int]] | None
    flagged: dict[str, int]
    task: str
    noun: str
    sure: float
    resamples: int
    seed: int

    def part(
        self, attribute: str, labels: Labels, stated: tuple[str, dict[str, int]], *, pictures: bool = True
    ) -> Part:
        """The figures, protocol and plots of one attribute; pictures: also the images, which all attributes share."""
        bias = [self._bias(sheet, attribute, labels) for sheet in sheets(self.drawn, stated=False)]
        found = [figure for one in bias for figure in one.figures()]
        if attribute == stated[0]:
            for sheet in sheets(self.drawn, stated=True):
                found += self._fidelity(sheet, attribute, labels, stated[1]).figures()
        return Part(found, self._protocol(attribute, bias), self._plots(attribute, labels, bias, pictures))

    def _bias(self, sheet: Sheet, attribute: str, labels: Labels) -> Bias:
        told = details(self.drawn.plan)
        return Bias(
            self._task(attribute),
            self.noun,
            sheet,
            labels,
            self._concepts(sheet),
            told,
            self.resamples,
            self.seed,
            crossed=" x " in attribute,
        )

    def _fidelity(self, sheet: Sheet, attribute: str, labels: Labels, codes: Mapping[str, int]) -> Fidelity:
        wanted = np.array([codes[str(prompt.stated)] for prompt in sheet.prompts])
        return Fidelity(
            self._task(attribute),
            self.noun,
            sheet,
            labels,
            wanted,
            self._concepts(sheet),
            details(self.drawn.plan),
            self.resamples,
            self.seed,
        )

    def _concepts(self, sheet: Sheet) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """What every image shows, and what each prompt of the sheet asks for; None where the judge cannot tell."""
        if self.shown is None or not all(sheet.concepts):
            return None
        return self.shown[0], np.array([self.shown[1][concept] for concept in sheet.concepts])

    def _task(self, attribute: str) -> str:
        return self.task if self.task == attribute else f"{self.task} {attribute}"

    def _protocol(self, attribute: str, bias: Sequence[Bias]) -> Protocol:
        undecidable = {one.subset: {name: counts.undecidable for name, counts in one.counts.items()} for one in bias}
        return protocol_of(
            self.drawn.plan,
            self._task(attribute),
            f"Discrepancy of generated images, {attribute} (Table 7.7)",
            BIAS_TOLD,
            "generated",
            {
                "judge": self.judge.name,
                "judge fingerprint": self.judge.fingerprint,
                "values": {one: list(self.judge.names[one]) for one in attribute.split(" x ")},
                "sure": self.sure,
                "images that the safety checker blackened": self.flagged,
                "prompts where nothing can be told, with the largest discrepancy": undecidable,
                "resampled": "prompts with all their images; for one prompt its images",
                "resamples": self.resamples,
                "seed": self.seed,
            },
        )

    def _plots(
        self, attribute: str, labels: Labels, bias: Sequence[Bias], pictures: bool
    ) -> dict[str, tuple[str, Plot]]:
        stem, found = slug(self._task(attribute)), {}
        for one in bias:
            sheet = one.sheet
            if pictures:
                told = f"{one.subset.capitalize()}: the same seeds column by column, as the pipeline is and debiased."
                found[f"{stem}-{sheet.part}-side-by-side"] = (told, side_by_side(self.drawn, sheet, labels))
            title = f"share of {labels.names[0]}, {one.subset}"
            for name, plot in share_plots(sheet, labels, title).items():
                told = f"Share of {labels.names[0]} for each of the {one.subset}, without and with {name}."
                found[f"{stem}-{sheet.part}-shares-{slug(name)}"] = (told, plot)
        return found


def _flagged(drawn: DrawnSet) -> dict[str, int]:
    """Variant -> images that the pipeline's safety checker replaced by black ones; none can be told."""
    flagged = Counter(image.variant for image in drawn if drawn.about(image).get("flagged"))
    return {name: flagged[name] for name in drawn.plan.variants}


def _shown(
    drawn: DrawnSet, judge: Judge, probabilities: Mapping[str, NDArray[np.float64]]
) -> tuple[NDArray[np.int64], dict[str, int]] | None:
    """What every image shows most likely, and the code of each concept; None where no attribute knows all concepts."""
    wanted = {prompt.concept for prompt in drawn.plan.prompts} - {""}
    for attribute, names in judge.names.items():
        codes = {name.casefold(): i for i, name in enumerate(names)}
        if all(concept.casefold() in codes for concept in wanted):
            return probabilities[attribute].argmax(axis=1), {concept: codes[concept.casefold()] for concept in wanted}
    return None


def stated_attribute(prompts: PromptSet, judge: Judge) -> tuple[str, dict[str, int]]:
    """The judge's attribute that a prompt set states, and the judge's code of each of its values."""
    for attribute, names in judge.names.items():
        codes = {name.casefold(): i for i, name in enumerate(names)}
        found = {
            value: next((codes[w.casefold()] for w in (value, *words) if w.casefold() in codes), -1)
            for value, words in prompts.attributes.items()
        }
        if -1 not in found.values() and len(set(found.values())) == len(found):
            return attribute, found
    raise InvalidInputError(
        f"judge {judge.name}: none of its attributes has the values {list(prompts.attributes)} that prompts of "
        f"{prompts.name!r} state; expected values of these names, or stated=False"
    )


def check_attributes(judge: Judge, attributes: Sequence[str]) -> None:
    """Refuse attributes that the judge does not read, before anything is drawn."""
    strangers = [one for attribute in attributes for one in attribute.split(" x ") if one not in judge.names]
    if strangers or not attributes or isinstance(attributes, str):
        raise InvalidInputError(
            f"attributes: expected some of {list(judge.names)}, which judge {judge.name} reads, or intersections such "
            f"as 'gender x race', got {attributes!r}"
        )


def protocol_of(plan: Plan, task: str, title: str, told: str, split: str, settings: Mapping[str, Any]) -> Protocol:
    """The protocol of one task on images, or texts, of a plan."""
    model = {key: value for key, value in plan.model.items() if key != "fingerprints"}
    drawing = {"steps": plan.steps, "guidance": plan.guidance, "batch size": plan.batch_size, "options": plan.options}
    prompts = {
        "prompts": sum(p.stated is None for p in plan.prompts),
        "stated": sum(p.stated is not None for p in plan.prompts),
    }
    return Protocol(
        task=task,
        title=title,
        description=told,
        model=str(plan.model.get("id") or plan.model["pipeline"]),
        fingerprint=joint_fingerprint(plan.model["fingerprints"]),
        prompts=plan.prompt_set,
        prompts_hash=plan.prompt_set_hash,
        split=split,
        methods={name: {} if v is None else v.model_dump() for name, v in plan.variants.items()},
        seeds=list(plan.seeds),
        n={**prompts, "images": len(plan.all_images)},
        settings={**model, **drawing, **settings},
    )
