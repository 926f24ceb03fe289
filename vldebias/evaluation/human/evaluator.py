"""Human evaluation of drawn images (section 7.6.3, A.4.3, Table 7.8): shares, discrepancy, agreement of annotators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.protocol import drawn_details, drawn_protocol
from vldebias.evaluation.drawing.record import DrawnRecord
from vldebias.evaluation.human.annotations import NOT_ANSWERED, Annotations
from vldebias.evaluation.human.figures import HumanFigures
from vldebias.evaluation.human.labelled import Labelled
from vldebias.evaluation.human.votes import count_votes, options
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.part import Part
from vldebias.evaluation.report.pictures import dumbbells
from vldebias.evaluation.result import Figure, Protocol
from vldebias.metrics import agreement

__all__ = ["UNKNOWN_TO_JUDGE", "evaluate_annotations"]

UNKNOWN_TO_JUDGE = "unknown"
EVERYTHING = "all images"
TOLD = (
    "People labelled the attribute of drawn images without knowing the variant. Discrepancy (eq. 7.2) of each prompt, "
    "then the mean; answers that name no value are left out of it and counted. Few images per prompt bias it upwards, "
    "under every variant alike."
)
OVER_PROMPTS = "prompts with all their images; a discrepancy of redrawn images would be biased upwards a second time"
OVER_IMAGES = "images of the one prompt that were labelled under every variant"


def evaluate_annotations(
    annotations: Annotations,
    records: Iterable[DrawnRecord],
    *,
    attribute: str,
    names: Sequence[str],
    task: str,
    votes: str = "majority",
    judged: Mapping[str, str] | None = None,
    judge: str = "judge",
    drawn: Protocol | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Part]:
    """Figures of Table 7.8 from human labels: one Part, with a method per variant.

    Metrics: `discrepancy` (mean over prompts; subset = concept for one prompt), `unknown` and its kinds `cannot_tell`,
    `no_person`, `no_majority`, `share` (subset = value), `alpha` and `percent_agreement` of the annotators, and
    `judge_agreement`. Changes to "none" are paired by prompt.

    Args:
        annotations: from `read_annotations`.
        records: the drawn images; annotations of other images are counted and left out.
        attribute, names: what was labelled, and its values: "gender", ("male", "female").
        task: name of the block in the result.
        votes: how the annotators of one image are combined, see `count_votes`.
        judged: path of image -> what a classifier said, a name or "unknown"; compared with the majority of people.
        judge: name of that classifier.
        drawn: protocol of the run that drew the images; its model, prompts, methods and seeds are taken over.

    Raises:
        InvalidInputError: no labelled image, no prompt labelled under every variant, values that are not in `names`.
    """
    if len(names) < 2 or len(set(names)) < len(names):
        raise InvalidInputError(f"names: expected two or more different values of {attribute}, got {list(names)}")
    labelled = Labelled.of(annotations, list(records), attribute, tuple(names), votes)
    details = drawn_details(drawn, labelled.variants)
    common: dict[str, Any] = {"task": task, "details": details}
    found = HumanFigures(labelled, task, resamples, seed, details).all()
    agreed, about_agreement = _agreement(labelled, task, resamples, seed)
    compared, about_judge = _against(labelled, judged, common, resamples, seed)
    settings = _settings(annotations, labelled) | {
        "attribute": attribute,
        "votes": votes,
        "resamples": resamples,
        "seed": seed,
        "agreement": about_agreement,
    }
    if about_judge is not None:
        settings |= {"judge": judge, "people (rows) and judge (columns), images": about_judge}
    return [Part(found + agreed + compared, _protocol(labelled, task, settings, drawn), _plots(labelled, task))]


def _settings(annotations: Annotations, labelled: Labelled) -> dict[str, Any]:
    return {
        "values": list(labelled.names),
        "resampled": OVER_IMAGES if len(labelled.prompts) == 1 else OVER_PROMPTS,
        "prompts whose images name no value": "have the largest discrepancy",
        "annotators": list(labelled.annotators),
        "answers replaced by a later one": annotations.replaced,
        "torn last lines": dict(annotations.torn or {}),
        "labelled images that were not drawn here": len(labelled.others),
        "prompts left out (not labelled under every variant)": labelled.left_out,
        "standard deviation of the discrepancy over prompts": labelled.spread(),
    }


def _agreement(labelled: Labelled, task: str, resamples: int, seed: int) -> tuple[list[Figure], dict[str, str]]:
    """alpha and percent agreement of all images and of each variant, and why where there is none."""
    found, about = (
        [],
        {"level": "nominal; 'cannot tell' and 'no person' are answers too", "resampled": "images"},
    )
    for method, codes in {EVERYTHING: labelled.codes(), **{v: labelled.codes(v) for v in labelled.variants}}.items():
        try:
            agreed = agreement(codes, missing=NOT_ANSWERED, resamples=resamples, seed=seed)
        except InvalidInputError as error:
            about[method] = f"not measured: {error}"
            continue
        if agreed.undefined:
            about[method] = f"{agreed.undefined} of {resamples} resamples hold one value and have no alpha"
        n = {"images with two answers": agreed.alpha.n, "annotators": len(codes), "answers": agreed.answers}
        found += [
            Figure(
                task=task,
                metric=metric,
                method=method,
                value=one.value,
                interval=(one.low, one.high),
                better="higher",
                n=n,
                change=None,
            )
            for metric, one in (("alpha", agreed.alpha), ("percent_agreement", agreed.percent))
        ]
    return found, about


def _against(
    labelled: Labelled, judged: Mapping[str, str] | None, common: Mapping[str, Any], resamples: int, seed: int
) -> tuple[list[Figure], dict[str, dict[str, int]] | None]:
    """How often a classifier says what most people say, of the images where both name a value; and all counts."""
    if judged is None:
        return [], None
    said = options(labelled.names)
    strangers = sorted({str(value) for value in judged.values()} - {*labelled.names, UNKNOWN_TO_JUDGE})
    if strangers:
        raise InvalidInputError(f"judged: expected one of {[*labelled.names, UNKNOWN_TO_JUDGE]}, got {strangers[:8]}")
    people = count_votes(labelled.table, len(labelled.names)).argmax(1)
    confusion = {value: dict.fromkeys((*labelled.names, UNKNOWN_TO_JUDGE), 0) for value in said}
    found: list[Figure] = []
    for variant, images in labelled.variants.items():
        hits: dict[str, list[bool]] = {}
        for (prompt, _), row in images.items():
            machine, person = judged.get(labelled.paths[row]), said[people[row]]
            if machine is not None:
                confusion[person][machine] += 1
                if machine != UNKNOWN_TO_JUDGE and person in labelled.names:
                    hits.setdefault(prompt, []).append(machine == person)
        if hits:
            found += figures(_hits(variant, hits, common), resamples=resamples, seed=seed)
    return found, confusion


def _hits(variant: str, hits: Mapping[str, Sequence[bool]], common: Mapping[str, Any]) -> Measured:
    """Share of hits, resampled over prompts with their images; over images where there is one prompt."""
    rows = [(sum(h), len(h)) for h in hits.values()] if len(hits) > 1 else [(h, 1) for h in next(iter(hits.values()))]
    return Measured(
        metric="judge_agreement",
        better="higher",
        n={"prompts": len(hits), "images": sum(map(len, hits.values()))},
        values={variant: np.array(rows, dtype=np.float64)},
        statistic=lambda drawn: drawn[..., 0].sum(1) / drawn[..., 1].sum(1),
        **common,
    )


def _plots(labelled: Labelled, task: str) -> dict[str, tuple[str, Any]]:
    """Share of the first of two values for each prompt, before and after."""
    if len(labelled.names) != 2 or "none" not in labelled.variants:
        return {}
    found = {}
    for variant in [name for name in labelled.variants if name != "none"]:
        before, after = labelled.by_prompt("none")[:, :2], labelled.by_prompt(variant)[:, :2]
        told = (before.sum(1) > 0) & (after.sum(1) > 0)
        if told.any():
            concepts = [c for c, known in zip(labelled.prompts.values(), told, strict=True) if known]
            first, second = (rows[told, 0] / rows[told].sum(1) for rows in (before, after))
            plot = dumbbells(
                concepts, first, second, f"share of {labelled.names[0]} among images whose value can be told"
            )
            found[f"{task} {variant}".replace(" ", "-")] = (f"{task}: before and after {variant}, by people.", plot)
    return found


def _protocol(labelled: Labelled, task: str, settings: dict[str, Any], drawn: Protocol | None) -> Protocol:
    n = {
        "prompts": len(labelled.prompts),
        "drawn images": len(labelled.paths),
        "annotators": len(labelled.annotators),
        "answers": int((labelled.table != NOT_ANSWERED).sum()),
        **{f"labelled images, {variant}": len(images) for variant, images in labelled.variants.items()},
    }
    return drawn_protocol(
        drawn,
        task=task,
        title="Human evaluation of drawn images (Table 7.8)",
        told=TOLD,
        prompts=list(labelled.prompts),
        variants=labelled.variants,
        seeds=(seed for images in labelled.variants.values() for _, seed in images),
        split="generated, labelled by people",
        n=n,
        settings=settings,
    )
