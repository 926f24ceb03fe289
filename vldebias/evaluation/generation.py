"""Compare generated images with and without methods (Tables 7.6 and 7.7, section 7.6.4), as a judge labels them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny

from vldebias.data import UNKNOWN, Labels, processes
from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.auditing import read_prompts
from vldebias.evaluation.drawing import Drawn, DrawnSet, draw, folder_slug, identity, make_plan
from vldebias.evaluation.grids import COLUMNS, ROWS, compose
from vldebias.evaluation.judges import (
    JUDGES,
    SURE,
    ClipJudge,
    Judge,
    JudgeSpec,
    Probabilities,
    judge_images,
    labels_of,
    stated_attribute,
)
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.scores import clip_score, fid
from vldebias.evaluation.session import Session, Texts
from vldebias.evaluation.shares import add_shares
from vldebias.evaluation.task import Count, Name, Options, Prompts, Share, Task, one_of, register_task
from vldebias.evaluation.variants import NONE, Variant, is_for_pipelines
from vldebias.hosts.images import image_encoder
from vldebias.loading import Loaded
from vldebias.methods import get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, balance_prompts, fill, load_prompts

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
SIDE = 128  # pixels to which larger images of a report are scaled: a page holds hundreds
ABOUT = (
    "Every prompt drawn from the same noise without and with the projection. Shares are those of the images that the "
    "judge can tell; the others are counted. Discrepancy is the distance of the shares from uniform (eq. 7.2), "
    "averaged over prompts and resampled over prompts with all their images; few images per prompt bias it upwards, "
    "discrepancy_squared is corrected for that. The interval of one prompt is over its images."
)


@dataclass(frozen=True, eq=False)
class Sheet:
    """Hold the prompts of one part, all of which state their attribute or none do; a row of wordings is a concept.

    first: an image of each row. rows: variant -> (rows, images), the index of each image in the set of images.
    """

    part: str
    first: tuple[Drawn, ...]
    rows: Mapping[str, Codes]

    def subset(self, noun: str) -> str:
        """Return the name of the rows about the whole sheet, such as "unseen professions"."""
        return f"{noun}, as people write them" if self.part == "wordings" else f"{self.part} {noun}"

    @property
    def concepts(self) -> list[str]:
        """Return the concept that each prompt asks for."""
        return [image.concept for image in self.first]

    def hits(self, codes: Codes, code_of: Mapping[str, int], asked: list[str]) -> dict[str, Floats] | None:
        """Return variant -> share (rows,) of images with the code that is asked for; None if one asks for none."""
        if not all(asked) or not code_of:
            return None
        wanted = np.array([code_of[one] for one in asked])[:, None]
        return {name: (codes[rows] == wanted).mean(1) for name, rows in self.rows.items()}


def sheets(drawn: DrawnSet, *, stated: bool) -> list[Sheet]:
    """Return one sheet for each part that was generated: plain prompts, or those that state their attribute."""
    places: dict[str, dict[str, dict[str, list[int]]]] = {}  # part -> variant -> row -> images
    for i, image in enumerate(drawn):
        if image.part != "others" and (image.stated is not None) == stated:
            row = image.concept if image.part == "wordings" else image.prompt
            places.setdefault(image.part, {}).setdefault(image.variant, {}).setdefault(row, []).append(i)
    return [
        Sheet(
            part,
            tuple(drawn.images[own[0]] for own in of[NONE].values()),
            {v: np.array([*r.values()]) for v, r in of.items()},
        )
        for part, of in places.items()
    ]


@register_task
class GenerationTask(Task):
    """Generate images with and without edits, judge and measure them; an interrupted run resumes.

    name: first word of the blocks: "generation" gives "generation gender" and "generation pairs"; a task that is
        called like its attribute keeps that name.
    prompts: the set to generate: its classes, and if `stated` its pairs. subjects: generate these in place of its
        unseen concepts (section 7.6.4).
    prompts_file: generate the prompts of this file, one per line, in place of its unseen concepts; prompts that do
        not leave the value open are left out, and the settings count them by reason.
    attributes: of the judge; "gender x race" for their intersections. Where an attribute of the judge knows every
        concept of the prompts, the share of images that show their concept is measured too.
    variants: name -> how to debias, with any method for pipelines. The original pipeline, "none", always runs.
    images: per prompt and seed. seeds: of runs; image i of a run has the seed 10,000 x run + i.
    concepts: "train" (the prompts that an edit is fitted on), "unseen" or "both".
    stated: also generate prompts that state their attribute, with and without leaving them unchanged.
    as_written: also generate five everyday wordings of each concept that is not fitted on, and prompts without a
        person or with a named one, which no method should change (`vldebias.evaluation.drawing.WORDINGS`, `OTHERS`).
    stated_images: per stated prompt, wording and other prompt, and seed; at most `images`.
    noun: what concepts are called in a report. sure: smallest probability with which a judge's answer counts.
    steps, guidance, batch_size, options: of the pipeline; options are further arguments such as {"height": 512}.
    """

    task: Literal["generation"] = "generation"
    name: Name = "generation"
    title: str = "Generated images"
    prompts: Prompts
    subjects: tuple[str, ...] = ()
    prompts_file: Path | None = None
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    judge: Annotated[SerializeAsAny[JudgeSpec], one_of(JUDGES, "kind")] | None = None
    variants: Annotated[dict[str, Variant], Field(min_length=1)]
    images: Count = 100
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    concepts: Literal["train", "unseen", "both"] = "both"
    stated: bool = True
    as_written: bool = False
    stated_images: Count = 8
    noun: str = "professions"
    steps: Count = 50
    guidance: float = 7.5
    batch_size: Count = 8
    options: dict[str, Any] = Field(default_factory=dict)
    sure: Share = SURE
    clip_score: bool = False
    fid: bool = False

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task with the given methods as variants.

        Raises:
            InvalidInputError: no folder for the images.
        """
        if "images" not in session.given:
            raise InvalidInputError("images: expected the folder that images are drawn into, or lie in")
        given = dict(fields)
        methods = given.pop("methods", ())
        own = {"variants": {get_method(one).name: {"method": one} for one in methods if one != NONE}} if methods else {}
        return super().of_given(session, {**own, **given})

    @property
    def drawn_set(self) -> PromptSet:
        """Return the prompt set to generate, with the task's own subjects or prompts where it names some."""
        prompts = load_prompts(self.prompts)
        if self.prompts_file is not None:
            return _of_file(self.prompts_file, prompts)[0]
        return _of_subjects(self.subjects, prompts) if self.subjects else prompts

    @property
    def drawing(self) -> dict[str, Any]:
        """Return the arguments that `make_plan` takes from the task."""
        names = ("concepts", "stated", "as_written", "images", "stated_images", "seeds", "steps", "guidance")
        own = {name: getattr(self, name) for name in (*names, "batch_size", "options")}
        of_file = {"concepts": "unseen", "stated": False, "as_written": False}
        return own | of_file if self.prompts_file is not None else own

    @property
    def attribute(self) -> str:
        """Return the first of the task's attributes."""
        return self.attributes[0].split(" x ")[0]

    @property
    def fitted(self) -> dict[str, Variant]:
        """Return the variants, each with its prompt sets."""
        return {name: variant.on(load_prompts(self.prompts)) for name, variant in self.variants.items()}

    # ---- in a suite --------------------------------------------------------------------------------------------

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's images, seeds, steps, lambda and bound, and methods or edits as variants.

        A method that is not for pipelines is left to the other tasks of the suite.
        """
        if options.labels:
            raise InvalidInputError("--labels: answers about drawn images go with vldebias eval human --labels FILE")
        if processes().world > 1:
            raise InvalidInputError(f"{self.name}: one process generates images; launch one, or leave it out by --only")
        first, variants = next(iter(self.variants.values())), dict(self.variants)
        if options.methods is not None:
            named = [name for name in options.methods if name != NONE and is_for_pipelines(name)]
            variants = {name: _changed(first, method=name) for name in named} or variants
        own = {} if options.lam is None else {"lam": options.lam}
        variants = {n: v if v.projection is not None else _changed(v, **own) for n, v in variants.items()}
        saved = {path.resolve().name: Variant(projection=path) for path in options.projections}
        return super().with_options(options).model_copy(update={"variants": variants | saved})

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the pipeline, the folder "<out>/images/<task>", the judge and, where needed, the scorer."""
        given = session.given
        return {
            "images": given.get("images", session.options.out / "images" / folder_slug(self.name)),
            "judge": given.get("judge") or self._judge(session),
            "pipe": session.pipeline.host,
            "pipeline": session.pipeline,
            "saved": {n: v.planned["projection"] for n, v in self.variants.items() if v.projection is not None},
            "prompts_file": self.prompts_file,
            "scorer": given.get("scorer") or self._scorer(session),
            "progress": session.progress,
        }

    def _judge(self, session: Session) -> Judge:
        """The judge that the suite names, or the model that the user names in its place."""
        if self.judge is None:
            raise InvalidInputError(f"{self.name}: expected `judge:`, which reads the drawn images; add one")
        return self.judge.ready(self, session)

    def judging_model(self, session: Session) -> Loaded:
        """Return the image-text model behind the judge: the user's, else the suite's."""
        own = self.judge if isinstance(self.judge, ClipJudge) else None
        model, pretrained = (None, None) if own is None else (own.model, own.pretrained)
        if session.options.judge is not None:
            model, pretrained = session.options.judge, None
        if model is None:
            raise InvalidInputError(f"{self.name}: no image-text model for the judge or for CLIPScore; give --judge")
        return session.image_text(model, pretrained)

    def _scorer(self, session: Session) -> Loaded | None:
        """The model of CLIPScore and FID, as far as asked for: the user's, else that of the judge."""
        if not (self.clip_score or self.fid):
            return None
        return session.model if session.options.model is not None else self.judging_model(session)

    # ---- drawing and measuring ---------------------------------------------------------------------------------

    def measure(
        self,
        images: str | Path,
        judge: Judge,
        *,
        pipe: Any = None,
        scorer: Loaded | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Generate, judge and measure images; gives a result per attribute, and for pair distances, CLIPScore and FID.

        Args:
            images: the folder for the images; those that exist already are not generated again (see
                `vldebias.evaluation.drawing.draw`). Without `pipe` all of them have to be there.
            judge: reads the images, see `vldebias.evaluation.judges`.
            pipe: a diffusers pipeline without an attachment.
            scorer: the image-text model of CLIPScore and FID, with its preprocessing.

        Raises:
            AlreadyAttachedError, InvalidInputError: see `draw`, `make_plan`, `judge_images`; attributes
                that the judge does not read, before anything is generated; images of another prompt set.
        """
        if any(one not in judge.names for attribute in self.attributes for one in attribute.split(" x ")):
            raise InvalidInputError(
                f"attributes: expected some of {list(judge.names)}, which judge {judge.name} reads, or intersections "
                f"such as 'gender x race', got {list(self.attributes)}"
            )
        if pipe is None:
            drawn = DrawnSet.open(images)
        else:
            if self.stated and self.prompts_file is None:
                stated_attribute(self.drawn_set, judge)  # refused before anything is drawn
            plan = make_plan(identity(pipe), self.drawn_set, self.fitted, **self.drawing)
            drawn = draw(pipe, plan, self.fitted, images, progress=progress)
        return self._judged(drawn, judge, progress) + self._scored(drawn, scorer, progress)

    def _scored(self, drawn: DrawnSet, scorer: Loaded | None, progress: Progress) -> list[TaskResult]:
        """CLIPScore and FID of the images of plain prompts, as far as the task asks for them."""
        if not (self.clip_score or self.fid):
            return []
        if scorer is None:
            raise InvalidInputError(f"{self.name}: expected scorer=, the image-text model of CLIPScore and FID")
        results, encoder = [], image_encoder(scorer.host, scorer.preprocess, name=scorer.name)
        with progress.step(f"{self.name}: CLIPScore, FID"):
            if self.clip_score:
                own: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
                texts = Texts(scorer.host, scorer.tokenizer)
                results.append(clip_score(drawn, encoder, texts, task=f"{self.name}: CLIPScore", **own))
            if self.fid:
                results.append(fid(drawn, encoder, task=f"{self.name}: FID"))
        return results

    def _judged(self, drawn: DrawnSet, judge: Judge, progress: Progress) -> list[TaskResult]:
        """Return what a judge says of images that are there: a result for each attribute."""
        prompts, boot = self.drawn_set, {"resamples": self.resamples, "seed": self.seed}
        if prompts.hash != drawn.plan.prompt_set_hash:
            raise InvalidInputError(
                f"{drawn.folder}: was drawn with another version of {drawn.plan.prompt_set!r} than {prompts!r}"
            )
        probabilities = judge_images(judge, drawn, progress=progress)
        labels = labels_of(judge, probabilities, self.attributes, self.sure)
        shows, shown_of = _shown(drawn, judge, probabilities)
        plain, stated = sheets(drawn, stated=False), sheets(drawn, stated=True)
        of_stated, code_of = stated_attribute(prompts, judge) if stated else ("", {})
        facts = [(image.variant, drawn.about(image)) for image in drawn]
        black, alone = (Counter(v for v, about in facts if about.get(key)) for key in ("flagged", "left_alone"))
        results = []
        for attribute in self.attributes:
            task, own = self.name if self.name == attribute else f"{self.name} {attribute}", labels[attribute]
            settings = {
                "judge": judge.name,
                "judge fingerprint": judge.fingerprint,
                "values": {one: list(judge.names[one]) for one in attribute.split(" x ")},
                "sure": self.sure,
                "images that the safety checker blackened": {name: black[name] for name in drawn.plan.variants},
                "images left alone, copies of none": {name: alone[name] for name in drawn.plan.variants},
            }
            if self.prompts_file is not None:
                left = _of_file(self.prompts_file, load_prompts(self.prompts))[1]
                settings |= {"prompts of the file": self.prompts_file.name, "left out, by reason": left}
            title, undecidable = f"Discrepancy of generated images, {attribute} (Table 7.7)", dict[str, Any]()
            result = drawn.result(task=task, title=title, description=ABOUT, settings=settings)
            codes = np.where(own.codes == UNKNOWN, len(own.names), own.codes)
            for sheet in plain:
                each = np.arange(len(own.names) + 1)
                counts = {name: (codes[rows][..., None] == each).sum(1) for name, rows in sheet.rows.items()}
                subset, suffix = sheet.subset(self.noun), ", as people write it" * (sheet.part == "wordings")
                names = [f"{concept}{suffix}" for concept in sheet.concepts]
                right = sheet.hits(shows, shown_of, sheet.concepts)
                add_shares(result, own.names, counts, names, subset=subset, noun=self.noun, recognised=right, **boot)
                undecidable[subset] = {name: int((of[:, :-1].sum(1) == 0).sum()) for name, of in counts.items()}
                if attribute == self.attributes[0]:  # the images, which all attributes share
                    how = "the same seeds column by column, as the pipeline is and debiased."
                    picture = side_by_side(drawn, sheet, counts[NONE])
                    name = f"{folder_slug(task)}-{sheet.part}-side-by-side"
                    result.pictures[name] = (f"{subset.capitalize()}: {how}", picture)
            for sheet in stated if attribute == of_stated else ():
                self._add_fidelity(result, sheet, own, code_of, sheet.hits(shows, shown_of, sheet.concepts))
            if attribute == self.attributes[0]:
                _add_unchanged(result, drawn, **boot)
            result.provenance.settings |= {
                "prompts where nothing can be told, with the largest discrepancy": undecidable,
                "resampled": "prompts with all their images; for one prompt its images",
                **boot,
            }
            results.append(result)
        return results

    def _add_fidelity(
        self,
        result: TaskResult,
        sheet: Sheet,
        labels: Labels,
        code_of: Mapping[str, int],
        recognised: Mapping[str, Floats] | None,
    ) -> None:
        """Add how often prompts that state their attribute get it, over all and by value.

        code_of: stated value -> its code. Unknown counts as wrong. Resampled over concepts, which share their prompts.
        """
        said = [str(image.stated) for image in sheet.first]
        stated, right = np.array([code_of[one] for one in said]), sheet.hits(labels.codes, code_of, said)
        units = np.array([image.concept or image.prompt for image in sheet.first])
        every = np.ones(len(stated), dtype=bool)
        chosen = [("stated_right", right, every, ""), ("stated_recognised", recognised, every, "")]
        chosen += [
            ("stated_right", right, stated == code, f", stated {value}")
            for code, value in enumerate(labels.names)
            if (stated == code).any()
        ]
        for metric, hits, rows, which in chosen:
            if hits is not None:
                names, index, count = np.unique(units[rows], return_inverse=True, return_counts=True)
                values = {name: np.bincount(index, weights=each[rows]) / count for name, each in hits.items()}
                n = {self.noun: len(names), "stated prompts": int(rows.sum())}
                n["images each"] = sheet.rows[NONE].shape[1]
                boot: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
                result.add_resampled(metric, values, n=n, subset=f"{sheet.subset(self.noun)}{which}", **boot)


def _add_unchanged(result: TaskResult, drawn: DrawnSet, **boot: Any) -> None:
    """Add how many images of prompts that no method should change stay as they are, bit for bit."""
    kind = {p.prompt: p.kind for p in drawn.plan.prompts if p.part == "others"}
    for which in dict.fromkeys(kind.values()):
        same: dict[str, dict[str, list[bool]]] = {}
        for image in (one for one in drawn if one.variant != NONE and kind.get(one.prompt) == which):
            equal = np.array_equal(np.asarray(drawn.read(image)), np.asarray(drawn.read(image.under(NONE))))
            same.setdefault(image.variant, {}).setdefault(image.prompt, []).append(bool(equal))
        values = {name: np.array([np.mean(one) for one in by.values()]) for name, by in same.items()}
        n = {"prompts": sum(one == which for one in kind.values())}
        if values:
            result.add_resampled("unchanged", values, n=n, subset=f"prompts {which}", **boot)


def side_by_side(drawn: DrawnSet, sheet: Sheet, counts: NDArray[Any]) -> Any:
    """Return a picture of prompts, sorted by their share of the first value, ascending; each column shares a seed.

    counts: (prompts, values + 1) of "none".
    """
    n = counts[:, :-1].sum(1)
    order = np.argsort(np.where(n > 0, counts[:, 0] / np.maximum(n, 1), 0.5), kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(ROWS, len(order))).round().astype(int)]
    images = {
        name: [[_small(drawn.read(drawn.images[place])) for place in places[i][:COLUMNS]] for i in chosen]
        for name, places in sheet.rows.items()
    }
    columns = len(next(iter(images.values()))[0])
    return compose([sheet.concepts[i] for i in chosen], images, [str(i + 1) for i in range(columns)])


def _small(image: Any) -> Any:
    image.thumbnail((SIDE, SIDE), need("PIL.Image").Resampling.LANCZOS)
    return image


def _of_file(path: Path, prompts: PromptSet) -> tuple[PromptSet, dict[str, int]]:
    """Return the prompt set with the prompts of a file whose value is open in the place of its unseen concepts.

    Also how many prompts state the value, name somebody or show nobody: why they are left out, and how many they are.
    """
    texts = read_prompts(path)
    reasons = balance_prompts(texts, prompts).reasons
    kept = tuple(text for text, reason in zip(texts, reasons, strict=True) if reason is None)
    left = Counter(reason for reason in reasons if reason is not None)
    if not kept:
        raise InvalidInputError(f"{path}: no prompt leaves {list(prompts.attributes)} open, got {dict(left)}; add some")
    own: dict[str, Any] = {"held_out_class_names": kept, "held_out_classes": kept, "held_out_groups": ()}
    return replace(prompts, name=f"{prompts.name}, {path.name}", **own), dict(left)


def _of_subjects(subjects: tuple[str, ...], prompts: PromptSet) -> PromptSet:
    """Return the prompt set with these subjects in the place of its unseen concepts (section 7.6.4).

    "a photo of a waterbird", and as unseen pairs "a photo of a waterbird with water background" and the same with land.
    """
    if known := sorted(set(subjects) & set(prompts.class_names)):
        raise InvalidInputError(f"subjects: expected some that {prompts.name!r} does not fit on, got {known}")
    values, pair = [words[0] for words in prompts.attributes.values()], prompts.templates[0]
    return replace(
        prompts,
        name=f"{prompts.name}, {', '.join(subjects)}",
        held_out_class_names=subjects,
        held_out_classes=tuple(fill("a photo of a {concept}", concept=subject) for subject in subjects),
        held_out_groups=tuple(tuple(fill(pair, concept=s, attribute=value) for value in values) for s in subjects),
    )


def _changed(variant: Variant, **fields: Any) -> Variant:
    return Variant.build({key: getattr(variant, key) for key in variant.model_fields_set} | fields)


def _shown(drawn: DrawnSet, judge: Judge, probabilities: Probabilities) -> tuple[Codes, dict[str, int]]:
    """Return what every image shows most likely, and the code of each concept; no code where no attribute knows all."""
    concepts = {prompt.concept for prompt in drawn.plan.prompts} - {""}
    for attribute, names in judge.names.items():
        codes = {name.casefold(): i for i, name in enumerate(names)}
        if all(concept.casefold() in codes for concept in concepts):
            return probabilities[attribute].argmax(axis=1), {one: codes[one.casefold()] for one in concepts}
    return np.zeros(0, dtype=np.int64), {}
