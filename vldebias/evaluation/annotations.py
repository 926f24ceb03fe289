"""Human evaluation of drawn images (section 7.6.3, A.4.3, Table 7.8): shares, discrepancy, agreement of annotators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import (
    CANNOT_TELL,
    NO_PERSON,
    NOT_ANSWERED,
    Annotations,
    read_annotations,
    sample_weights,
)
from vldebias.evaluation.corrected import JudgedImages, corrected_block
from vldebias.evaluation.drawing import DrawnSet, by_variant, drawn_result
from vldebias.evaluation.grids import share_plots
from vldebias.evaluation.judges import NO_VALUE, SURE, kept_judge, kept_judges
from vldebias.evaluation.plan import Drawn
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.task import Session, Task, register_task
from vldebias.files import digest
from vldebias.metrics import agreement
from vldebias.metrics.discrepancy import discrepancies, shares_radius
from vldebias.progress import SILENT, Progress

NO_MAJORITY = "no majority"
VOTES = ("majority", "each")
EVERYTHING = "all images"

Counts = NDArray[np.float64]  # (..., c): how often each value was said, then the three ways to be unknown
Measure = Callable[[Counts], NDArray[np.float64]]


@register_task
class AnnotationsTask(Task):
    """Discrepancy from labels that people gave (Table 7.8); in a suite the files come with --labels and --drawn.

    One block, with a method per variant. Metrics: `discrepancy` (mean over prompts; subset = concept for one prompt),
    `unknown` and its kinds `cannot_tell`, `no_person`, `no_majority`, `share` (subset = value), `alpha` and
    `percent_agreement` of the annotators, and `judge_agreement`. Changes to "none" are paired by prompt.

    attribute, names: what was labelled, and its values: "gender", ("male", "female").
    votes: how the annotators of one image are combined, see `count_votes`.
    """

    task: Literal["annotations"] = "annotations"
    name: str
    attribute: str
    names: Annotated[list[str], Field(min_length=2)]
    votes: Literal["majority", "each"] = "majority"

    @model_validator(mode="after")
    def _different(self) -> Self:
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"names: expected two or more different values of {self.attribute}, got {self.names}")
        return self

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """The files of the annotators and the plan of the images."""
        labels, folder = self._files(session)
        return {"labels": [digest(path) for path in labels], "drawn": digest(folder / "plan.json")}

    def inputs(self, session: Session) -> dict[str, Any]:
        """The images of prompts that state no value, the answers of the annotators, and how the images were drawn."""
        labels, folder = self._files(session)
        drawn = DrawnSet.open(folder)
        judges = [one.name for one in kept_judges(drawn)]
        if len(judges) > 1:
            session.say(
                f"{self.name}: judged by {', '.join(judges)}; corrected is the last that knows {self.attribute}"
            )
        return {
            "images": [image for image in drawn if image.stated is None],
            "labels": read_labels(labels, self.attribute),
            **kept_judgements(drawn, self.attribute, self.names),
            "origin": _provenance_of(folder, drawn.plan.prompt_set_hash),
            "progress": session.progress,
        }

    def measure(
        self,
        images: Iterable[Drawn],
        labels: Annotations,
        *,
        judged: Mapping[str, str] | None = None,
        judge: str = "judge",
        origin: TaskProvenance | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure answers; no block where nobody labelled the attribute.

        Args:
            images: the drawn images; annotations of other images are counted and left out.
            labels: from `read_annotations`.
            judged: path of image -> what a classifier said, a name or "unknown"; compared with the majority of people.
            judge: name of that classifier.
            origin: provenance of the run that drew the images; its model, prompts, methods and seeds are taken over.

        Raises:
            InvalidInputError: no labelled image, no prompt labelled under every variant, values that are not in
                `names`.
        """
        if self.attribute not in labels.attributes:
            progress.say(f"{self.name}: nobody labelled {self.attribute}, so it is left out")
            return []
        records = list(images)
        labelled = _Labelled.of(labels, records, self.attribute, tuple(self.names), self.votes)
        settings: dict[str, Any] = {
            "values": list(self.names),
            "resampled": "images of the one prompt that were labelled under every variant"
            if len(labelled.prompts) == 1
            else "prompts with all their images; a discrepancy of redrawn images would be biased upwards a second time",
            "prompts whose images name no value": "have the largest discrepancy",
            "annotators": list(labelled.annotators),
            "answers count": "one over the probability of being asked" if labelled.weighted else "one each",
            "answers replaced by a later one": labels.replaced,
            "torn last lines": dict(labels.torn),
            "labelled images that were not drawn here": len(labelled.others),
            "prompts left out (not labelled under every variant)": labelled.left_out,
            "standard deviation of the discrepancy over prompts": labelled.spread(),
            "attribute": self.attribute,
            "votes": self.votes,
            "resamples": self.resamples,
            "seed": self.seed,
        }
        result = drawn_result(
            origin,
            labelled.variants,
            list(labelled.prompts),
            (seed for images in labelled.variants.values() for _, seed in images),
            task=self.name,
            title="Human evaluation of drawn images (Table 7.8)",
            description="People labelled the attribute of drawn images without knowing the variant. Discrepancy (eq. "
            "7.2) of each prompt, then the mean; answers that name no value are left out of it and counted. Few images "
            "per prompt bias it upwards, under every variant alike.",
            split="generated, labelled by people",
            n=labelled.sizes(),
            settings=settings,
        )
        boot: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
        with progress.step(self.name):
            labelled.add_measures(result, boot)
            settings["agreement"] = labelled.add_agreement(result, boot)
        if judged is not None:
            confusion = labelled.add_judge(result, judged, boot)
            settings |= {"judge": judge, "people (rows) and judge (columns), images": confusion}
        result.provenance.settings.update(settings)
        result.pictures.update(labelled.pictures(self.name))
        if judged is None:
            return [result]
        parts = {"": _judged_images(records, labelled, judged)}
        mended = corrected_block(result, self.names, parts, **boot)
        return [result] if mended is None else [result, mended]

    def _files(self, session: Session) -> tuple[list[Path], Path]:
        """Of the annotators, and the folder of images."""
        files = session.given.get("labels", session.options.labels)
        labels = [Path(files)] if isinstance(files, (str, Path)) else [Path(path) for path in files]
        folder = session.given.get("images", session.options.drawn)
        if not labels or folder is None:
            raise InvalidInputError(f"expected labels and the folder of drawn images; this suite needs {session.needs}")
        return labels, Path(folder)


def read_labels(paths: Sequence[Path], attribute: str) -> Annotations:
    """`read_annotations`; of tables that do not say what they are about, about this attribute."""
    return read_annotations(paths, attribute=attribute if all(map(_unnamed, paths)) else None)


def labelled_images(
    annotations: Annotations, attribute: str, names: Sequence[str], paths: Sequence[str]
) -> tuple[Counts, Counts]:
    """What most annotators say of each image (n, values + 3), zeros where nobody was asked, and the weights (n,).

    "cannot tell", "no person" and "no majority" follow the values: they are answers, and name none.
    """
    table, _, _ = annotations.table(attribute, names, paths)
    return count_votes(table, len(names)), sample_weights(annotations, attribute, paths)


def kept_judgements(drawn: DrawnSet, attribute: str, names: Sequence[str]) -> dict[str, Any]:
    """What the judge of the run that drew the images said, the last of several, where it lies beside them: inputs of
    `AnnotationsTask.measure`."""
    judge = kept_judge(drawn, attribute, names)
    if judge is None:
        return {}
    values, _ = judge.said(attribute, names, SURE)
    return {"judged": dict(zip((image.path for image in drawn), values, strict=True)), "judge": judge.name}


def _judged_images(records: Sequence[Drawn], labelled: _Labelled, judged: Mapping[str, str]) -> dict[str, JudgedImages]:
    """Variant -> its images that the judge answered about, those of people with their counts.

    Of a part of the plan of which nobody was asked, such as concepts that a projection was fitted on, labels of the
    other say nothing: it is left out.
    """
    row = {path: i for i, path in enumerate(labelled.paths)}
    code = {value: i for i, value in enumerate((*labelled.names, NO_VALUE))}
    prompt = {name: i for i, name in enumerate(dict.fromkeys(record.prompt for record in records))}
    parts = {getattr(record, "part", "") for record in records if labelled.counts[row[record.path]].any()}
    images_of = {}
    for variant, images in by_variant(records).items():
        chosen = [one for one in images.values() if one.path in judged and getattr(one, "part", "") in parts]
        if chosen:
            rows = np.array([row[record.path] for record in chosen])
            images_of[variant] = JudgedImages(
                np.array([prompt[record.prompt] for record in chosen]),
                np.array([code[judged[record.path]] for record in chosen]),
                labelled.counts[rows],
                labelled.weights[rows],
            )
    return images_of


def _unnamed(path: Path) -> bool:
    """Whether a file is a table whose rows need not say which attribute they are about."""
    if path.suffix.lower() != ".csv":
        return False
    with path.open(encoding="utf-8-sig") as file:
        return "attribute" not in file.readline()


def _provenance_of(folder: Path, prompts_hash: str) -> TaskProvenance | None:
    """How the images were drawn, from the result of the run that drew them (<out>/images/<task>), if it is there."""
    path = folder.resolve().parents[1] / "result.json"
    if not path.is_file():
        return None
    drawn = [p for p in Result.read(path).provenance if p.prompts_hash == prompts_hash and p.split == "generated"]
    return drawn[0] if drawn else None


# ---- from answers to counts ------------------------------------------------------------------------------------


def count_votes(table: NDArray[np.int64], n_names: int, votes: str = "majority") -> Counts:
    """Counts (images, c) from codes (annotators, images) as of `Annotations.table`; a row of zeros was not labelled.

    votes: "majority": one count per image, for what most annotators said; a tie is "no majority".
        "each": one count per answer, so an image that three people labelled weighs three times.
    """
    answers = (table[:, :, None] == np.arange(n_names + 2)).sum(0).astype(np.float64)
    if votes == "each":
        return np.concatenate([answers, np.zeros((len(answers), 1))], axis=1)
    most = answers.max(1, keepdims=True)
    winners = (answers == most) & (most > 0)
    tie = winners.sum(1, keepdims=True) > 1
    return np.concatenate([winners & ~tie, tie], axis=1).astype(np.float64)


def _measures(names: Sequence[str]) -> list[tuple[str, str, Measure]]:
    """(metric, subset, function from counts (..., c) to values (...)) of each measure, the discrepancy first.

    It is eq. 7.2 among the answers that name a value; the others are shares of all answers, so that those of the values
    and `unknown` add up to 1.
    """
    k = len(names)

    def share(columns: slice) -> Measure:
        return lambda counts: counts[..., columns].sum(-1) / counts.sum(-1)

    kinds = [(name, "", i) for i, name in enumerate(("cannot_tell", "no_person", "no_majority"), start=k)]
    values = [("share", name, i) for i, name in enumerate(names)]
    return [
        ("discrepancy", "", lambda counts: discrepancies(counts[..., :k])),
        ("unknown", "", share(slice(k, None))),
        *((metric, subset, share(slice(i, i + 1))) for metric, subset, i in kinds + values),
    ]


# ---- from counts to rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Counts of the answers of people, by variant, prompt and seed.

    variants: name -> (prompt, seed) -> row of `counts` (images, c) and column of `table` (annotators, images).
    weights: (images,) what the answers about an image count, in `counts` already. prompts: those labelled under every
    variant, with their concept.
    """

    names: tuple[str, ...]
    variants: dict[str, dict[tuple[str, int], int]]
    paths: tuple[str, ...]
    counts: Counts
    weights: Counts
    table: NDArray[np.int64]
    annotators: tuple[str, ...]
    others: tuple[str, ...]
    prompts: dict[str, str]
    left_out: int

    @classmethod
    def of(
        cls, annotations: Annotations, records: Sequence[Drawn], attribute: str, names: tuple[str, ...], votes: str
    ) -> _Labelled:
        """Join annotations and drawn images by the paths of the images.

        Raises:
            InvalidInputError: no drawn image was labelled, or no prompt under every variant; see also
                `Annotations.table` and `by_variant`.
        """
        drawn = by_variant(records)
        paths = tuple(record.path for record in records)
        table, annotators, others = annotations.table(attribute, names, paths)
        weights = sample_weights(annotations, attribute, paths)
        counts = count_votes(table, len(names), votes) * weights[:, None]
        row = {path: i for i, path in enumerate(paths) if counts[i].any()}
        if not row:
            raise InvalidInputError(
                f"annotations: none of {len(paths)} drawn images was labelled; the annotations are about "
                f"{list(others[:3])}, the drawn images are {list(paths[:3])}: paths are below the folder of images"
            )
        variants = {
            name: {key: row[record.path] for key, record in images.items() if record.path in row}
            for name, images in drawn.items()
        }
        concepts = {record.prompt: record.concept for record in records}
        everywhere = set.intersection(*({prompt for prompt, _ in images} for images in variants.values()))
        if not everywhere:
            raise InvalidInputError(
                f"annotations: no prompt is labelled under every variant {list(variants)}; label more images, or leave "
                "out the records of a variant"
            )
        some = {prompt for images in variants.values() for prompt, _ in images}
        prompts = {prompt: concept for prompt, concept in concepts.items() if prompt in everywhere}
        left_out = len(some) - len(everywhere)
        return cls(names, variants, paths, counts, weights, table, annotators, others, prompts, left_out)

    @property
    def weighted(self) -> bool:
        """Whether some images were likelier to be asked about than others."""
        return bool((self.weights != 1).any())

    def sizes(self) -> dict[str, int]:
        """Prompts, images, annotators and answers."""
        return {
            "prompts": len(self.prompts),
            "drawn images": len(self.paths),
            "annotators": len(self.annotators),
            "answers": int((self.table != NOT_ANSWERED).sum()),
            **{f"labelled images, {variant}": len(images) for variant, images in self.variants.items()},
        }

    def by_prompt(self, variant: str) -> Counts:
        """Counts (prompts, c) of all labelled images of each prompt."""
        number = {prompt: i for i, prompt in enumerate(self.prompts)}
        total = np.zeros((len(number), self.counts.shape[1]))
        for (prompt, _), row in self.variants[variant].items():
            if prompt in number:
                total[number[prompt]] += self.counts[row]
        return total

    def of_prompt(self, prompt: str) -> dict[str, list[int]]:
        """variant -> rows of the images of one prompt whose seeds are labelled under every variant; of a sample that
        was drawn under each variant by itself, of all its labelled images."""
        seeds = {v: {s: row for (p, s), row in images.items() if p == prompt} for v, images in self.variants.items()}
        shared = set.intersection(*map(set, seeds.values()))
        return {v: [own[s] for s in sorted(own) if self.weighted or s in shared] for v, own in seeds.items()}

    def spread(self) -> dict[str, float]:
        """Standard deviation of the discrepancy over prompts: what the paper's tables print after plus-minus."""
        of = _measures(self.names)[0][2]
        return {v: float(of(self.by_prompt(v)).std(ddof=1)) for v in self.variants if len(self.prompts) > 1}

    def pictures(self, task: str) -> dict[str, tuple[str, Any]]:
        """Share of the first of two values for each prompt, before and after."""
        if len(self.names) != 2 or NONE not in self.variants:
            return {}
        with np.errstate(invalid="ignore"):  # of a prompt that shows neither
            shares = {v: (rows := self.by_prompt(v)[:, :2])[:, 0] / rows.sum(1) for v in self.variants}
        title = f"share of {self.names[0]} among images whose value can be told"
        plots = share_plots(list(self.prompts.values()), shares, title)
        return {
            f"{task} {variant}".replace(" ", "-"): (f"{task}: before and after {variant}, by people.", plot)
            for variant, plot in plots.items()
        }

    def add_measures(self, result: TaskResult, boot: Mapping[str, Any]) -> None:
        """Rows of the whole first, then the discrepancy of each prompt.

        Means are resampled over prompts, each with all its images: the noise of few images is part of the spread
        between prompts, and drawing images anew as well would count it twice. Where there is one prompt its images are
        resampled.

        Raises:
            InvalidInputError: one prompt, and no seed of it is labelled under every variant.
        """
        if len(self.prompts) > 1:
            totals = {variant: self.by_prompt(variant) for variant in self.variants}
            n = {"prompts": len(self.prompts), "labelled images": sum(map(len, self.variants.values()))}
            for metric, subset, of in _measures(self.names):
                values = {variant: of(counts) for variant, counts in totals.items()}
                result.add_resampled(metric, values, n=n, subset=subset, **boot)
        for prompt, concept in self.prompts.items():
            self._add_discrepancy(result, prompt, concept if len(self.prompts) > 1 else "", boot)
        if len(self.prompts) == 1 and not self.weighted:
            (prompt,) = self.prompts
            rows = {variant: self.counts[own] for variant, own in self.of_prompt(prompt).items()}
            n = {"images": len(next(iter(rows.values())))}
            if not n["images"]:
                raise InvalidInputError(
                    f"annotations: no image of {prompt!r} is labelled under every variant; label the same seeds"
                )
            for metric, subset, of in _measures(self.names)[1:]:  # linear in the images: may be drawn anew
                summed = partial(lambda of, drawn: of(drawn.sum(1)), of)
                result.add_resampled(metric, rows, n=n, subset=subset, statistic=summed, **boot)

    def _add_discrepancy(self, result: TaskResult, prompt: str, subset: str, boot: Mapping[str, Any]) -> None:
        """Discrepancy of one prompt, if images of it are labelled under every variant."""
        k, values, by = len(self.names), {}, {}
        for variant, rows in (chosen := self.of_prompt(prompt)).items():
            known = self.counts[rows, :k]
            weights = self.weights[rows] * known.any(1)
            worth = weights.sum() ** 2 / max((weights**2).sum(), 1e-12)  # as many images as they are worth
            values[variant] = float(discrepancies(known.sum(0, keepdims=True))[0])
            by[variant] = float(shares_radius(known.sum(0, keepdims=True), np.array([worth + 1e-9]), **boot)[0])
        n = {"images": min(map(len, chosen.values()))}
        if n["images"]:
            result.add_within("discrepancy", values, by, most=float(np.sqrt(1 - 1 / k)), n=n, subset=subset)

    def add_agreement(self, result: TaskResult, boot: Mapping[str, Any]) -> dict[str, str]:
        """alpha and percent agreement of all images and of each variant; returns why where there is none."""
        about = {"level": "nominal; 'cannot tell' and 'no person' are answers too", "resampled": "images"}
        for method in (EVERYTHING, *self.variants):
            chosen = self.variants.values() if method == EVERYTHING else [self.variants[method]]
            codes = self.table[:, sorted({row for images in chosen for row in images.values()})]
            try:
                agreed = agreement(codes, missing=NOT_ANSWERED, **boot)
            except InvalidInputError as error:
                about[method] = f"not measured: {error}"
                continue
            if agreed.undefined:
                about[method] = f"{agreed.undefined} of {boot['resamples']} resamples hold one value and have no alpha"
            n = {"images with two answers": agreed.alpha.n, "annotators": len(codes), "answers": agreed.answers}
            for metric, one in (("alpha", agreed.alpha), ("percent_agreement", agreed.percent)):
                result.add(metric, method, one.value, (one.low, one.high), n=n, lam=None, strength=None)
        return about

    def add_judge(
        self, result: TaskResult, judged: Mapping[str, str], boot: Mapping[str, Any]
    ) -> dict[str, dict[str, int]]:
        """How often a classifier says what most people say, of the images where both name a value; all counts."""
        judged_values, values = (*self.names, NO_VALUE), (*self.names, CANNOT_TELL, NO_PERSON, NO_MAJORITY)
        strangers = sorted({str(value) for value in judged.values()} - set(judged_values))
        if strangers:
            raise InvalidInputError(f"judged: expected one of {list(judged_values)}, got {strangers[:8]}")
        people = count_votes(self.table, len(self.names)).argmax(1)
        confusion = {value: dict.fromkeys(judged_values, 0) for value in values}
        for variant, images in self.variants.items():
            hits: dict[str, list[bool]] = {}
            for (prompt, _), row in images.items():
                machine, person = judged.get(self.paths[row]), values[people[row]]
                if machine is not None:
                    confusion[person][machine] += 1
                    if machine != NO_VALUE and person in self.names:
                        hits.setdefault(prompt, []).append(machine == person)
            if hits:  # resampled over prompts with their images; over images where there is one prompt
                each = [(sum(h), len(h)) for h in hits.values()]
                rows = each if len(hits) > 1 else [(h, 1) for h in next(iter(hits.values()))]
                result.add_resampled(
                    "judge_agreement",
                    {variant: np.array(rows, dtype=np.float64)},
                    n={"prompts": len(hits), "images": sum(map(len, hits.values()))},
                    statistic=lambda drawn: drawn[..., 0].sum(1) / drawn[..., 1].sum(1),
                    **boot,
                )
        return confusion
