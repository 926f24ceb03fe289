"""Generated images before and after (Tables 7.6 and 7.7, section 7.6.4): a pipeline draws, a judge reads, figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, SerializeAsAny

from vldebias.data import UNKNOWN, Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.annotations import labelled_images, read_labels
from vldebias.evaluation.backgrounds import subject_prompts
from vldebias.evaluation.clip_score import ClipScore
from vldebias.evaluation.confused import confused_block, confused_values, read_confusion
from vldebias.evaluation.corrected import JudgedImages, corrected_block
from vldebias.evaluation.discrepancies import Counts, Shown, add_agreement, add_bias, add_fidelity, sheets
from vldebias.evaluation.drawing import DrawnSet, SharedImages, details_of, draw, identity, joint_fingerprint
from vldebias.evaluation.fid import Fid, InceptionFeatures
from vldebias.evaluation.grids import class_prompts_of, draw_strengths, share_plots, side_by_side
from vldebias.evaluation.images import names_of
from vldebias.evaluation.judge_kinds import JUDGES, JudgeSpec, ZeroShotSpec, judge_to_compare
from vldebias.evaluation.judges import Judge, judge_images, labels_of, stated_attribute
from vldebias.evaluation.pairs import add_pair_distances
from vldebias.evaluation.plan import Plan, folder_slug, make_plan
from vldebias.evaluation.readings import Drawing, read_judged
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.evaluation.task import Count, Name, Options, Prompts, Session, Share, Strict, Task, one_of, register_task
from vldebias.evaluation.texts import Texts
from vldebias.evaluation.variants import NONE, Variant, is_for_pipelines, lam_of
from vldebias.files import digest
from vldebias.hosts import resolve
from vldebias.hosts.images import image_encoder
from vldebias.loading import Loaded
from vldebias.methods import METHODS, Need, get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

ABOUT = (
    "Every prompt drawn from the same noise without and with the projection. Shares are those of the images that the "
    "judge can tell; the others are counted. Discrepancy is the distance of the shares from uniform (eq. 7.2), "
    "averaged over prompts and resampled over prompts with all their images; few images per prompt bias it upwards, "
    "discrepancy_squared is corrected for that. The interval of one prompt is over its images."
)
ABOUT_PAIRS = (
    "Mean distance of two prompts that differ in the attribute alone, without and with the projection; pairs that it "
    "was fitted on and pairs of concepts that it was not. Resampled over concepts."
)


class Strips(Strict):
    """Pictures at several strengths: these concepts of the prompt set, this many seeds each."""

    concepts: Annotated[list[str], Field(min_length=1)]
    strengths: tuple[Share, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    seeds: Count = 2


@register_task
class GenerationTask(Task):
    """Draw with and without edits, judge, measure; resumes where a run stopped.

    name: first word of the blocks: "generation" gives "generation gender" and "generation pairs"; a task that is
        called like its attribute keeps that name.
    prompts: what is drawn: its classes, and where `stated` its pairs. subjects: draw these in the place of its unseen
        concepts (section 7.6.4).
    attributes: of the judge; "gender x race" for their intersections. Where an attribute of the judge knows every
        concept of the prompts, the share of images that show their concept is measured too.
    variants: name -> how to debias, with any method for pipelines. The bare pipeline, "none", is drawn always.
    images: per prompt and seed. seeds: of runs; image i of a run has the seed 10,000 x run + i.
    fit_images: of each prompt of the fit and round, for methods that need judged images ("uce"): drawn by the bare
        method into the folder's "_readings", from noise that is not measured, and read by the same judge.
    concepts: "train" (the prompts that an edit is fitted on), "unseen" or "both".
    stated: draw prompts that state their attribute as well, with and without keeping them as they are.
    stated_images: per such prompt and seed; at most `images`.
    noun: what concepts are called in a report. sure: smallest probability with which a judge's answer counts.
    steps, guidance, batch_size, options: of the pipeline; options are further arguments such as {"height": 512}.
    pair_table: measure the distances of pairs too, from texts alone.
    second_judge: reads the same images: how often both name the same value is a figure of the attribute.
    judge_confusion: a table of how often the judge is wrong, in counts: a column "true", then one for each value of an
        attribute, whose shares are solved for (`vldebias.metrics.confusion`), in blocks of their own.
    labels: files with what people say of some of the images (`vldebias.evaluation.answers`): the judge's figures are
        corrected by them, in blocks of their own.
    """

    task: Literal["generation"] = "generation"
    name: Name = "generation"
    title: str = "Generated images"
    prompts: Prompts
    subjects: tuple[str, ...] = ()
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    judge: Annotated[SerializeAsAny[JudgeSpec], one_of(JUDGES, "kind")] | None = None
    second_judge: Annotated[SerializeAsAny[JudgeSpec], one_of(JUDGES, "kind")] | None = None
    variants: Annotated[dict[str, Variant], Field(min_length=1)]
    images: Count = 100
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    fit_images: Count = 4
    concepts: Literal["train", "unseen", "both"] = "both"
    stated: bool = True
    stated_images: Count = 8
    noun: str = "professions"
    steps: Count = 50
    guidance: float = 7.5
    batch_size: Count = 8
    options: dict[str, Any] = Field(default_factory=dict)
    sure: Share = 0.8
    strips: Strips | None = None
    clip_score: ClipScore | None = None
    fid: Fid | None = None
    pair_table: bool = False
    judge_confusion: Path | None = None
    labels: tuple[Path, ...] = ()

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Of methods as variants.

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
        """The prompt set that is drawn, with the task's own subjects where it names some."""
        return subject_prompts(self.subjects, self.prompts) if self.subjects else load_prompts(self.prompts)

    @property
    def scored_by_model(self) -> bool:
        """Whether CLIPScore or an FID on features of an image-text model is asked for."""
        return self.clip_score is not None or (self.fid is not None and self.fid.features == "clip")

    @property
    def fitted(self) -> dict[str, Variant]:
        """The variants, each with its prompt sets."""
        return {name: variant.on(load_prompts(self.prompts)) for name, variant in self.variants.items()}

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """What is drawn, and what the variants are fitted on."""
        return names_of((self.prompts, *(one for variant in self.variants.values() for one in variant.prompts)))

    # ---- in a suite --------------------------------------------------------------------------------------------

    def with_options(self, options: Options) -> Self:
        """With what the user chose of images, seeds, steps, lambda and bound; methods and saved edits are variants.

        A method that is not for pipelines is left to the other tasks of the suite.
        """
        keys = ("images", "fit_images", "steps", "seeds", "labels", "judge_confusion")
        changed = {key: value for key in keys if (value := getattr(options, key)) not in (None, ())}
        first, variants = next(iter(self.variants.values())), dict(self.variants)
        if options.methods is not None:
            named = [name for name in options.methods if name != NONE and is_for_pipelines(name)]
            variants = {name: _changed(first, method=name) for name in named} or variants
        own = {key: value for key in ("lam", "max_loss") if (value := getattr(options, key)) is not None}
        variants = {n: v if v.projection is not None else _changed(v, **own) for n, v in variants.items()}
        saved = {path.resolve().name: Variant(projection=path) for path in options.projections}
        changed["variants"] = variants | saved
        return super().with_options(options).model_copy(update=changed)

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """The weights of the pipeline, of the judge and of the scorer, and saved edits."""
        scorer = resolve(self._scorer(session).host).fingerprint() if self.scored_by_model else None
        pipeline = resolve(session.pipeline.host).fingerprint()
        saved = {n: v.planned.projection for n, v in self.variants.items() if v.projection is not None}
        judge = self._judge(session)
        second = self._second(session, judge)
        return {
            "pipeline": pipeline and pipeline.to_dict(),
            "judge": judge.fingerprint,
            "scored by": scorer and scorer.to_dict(),
            **({"saved": saved} if saved else {}),
            **({"second judge": second.fingerprint} if second else {}),
            **{f"confusion of {one}": digest(path) for one, path in self._confused(judge).items()},
            **({"labels": [digest(path) for path in self.labels]} if self.labels else {}),
        }

    def inputs(self, session: Session) -> dict[str, Any]:
        """The pipeline, the folder "<out>/images/<task>", the judge and what scores, as far as the task asks for it."""
        given, scored = session.given, self.scored_by_model
        judge = given.get("judge") or self._judge(session)
        return {
            "images": given.get("images", session.options.out / "images" / folder_slug(self.name)),
            "judge": judge,
            "second": given.get("second") or self._second(session, judge),
            "pipe": session.pipeline.host,
            "scorer": given.get("scorer") or (self._scorer(session) if scored else None),
            "device": session.options.device,
            "progress": session.progress,
        }

    def _judge(self, session: Session) -> Judge:
        """The judge that the suite names, or the model that the user names in its place."""
        if self.judge is None:
            raise InvalidInputError(f"{self.name}: expected `judge:`, which reads the drawn images; add one")
        return self.judge.open(self, session)

    def _second(self, session: Session, judge: Judge) -> Judge | None:
        """The judge that the user names to compare with, else the suite's."""
        spec, name = self.second_judge, session.options.second_judge
        if name is not None:
            spec = judge_to_compare(name, self.judge, judge, self.attributes)
            if spec is None:
                session.say(
                    f"{self.name}: {name} has no column for {', '.join(self.attributes)}, so it is not compared"
                )
        return None if spec is None else spec.open(self, session)

    def judging_model(self, session: Session, judge: JudgeSpec | None = None) -> Loaded:
        """The image-text model behind a judge, by default the first: the user's, else the suite's."""
        own = judge or self.judge
        chosen = (own.model, own.pretrained) if isinstance(own, ZeroShotSpec) else (None, None)
        if session.options.judge is not None and own is self.judge:
            chosen = (session.options.judge, session.options.judge_pretrained)
        if chosen[0] is None:
            raise InvalidInputError(f"{self.name}: no image-text model for the judge or for CLIPScore; give --judge")
        return session.image_text(chosen[0], chosen[1])

    def _scorer(self, session: Session) -> Loaded:
        """The model of CLIPScore: the task's, else the user's, else that of the judge."""
        if self.clip_score is not None and self.clip_score.model is not None:
            return session.image_text(self.clip_score.model, self.clip_score.pretrained)
        return session.model if session.options.model is not None else self.judging_model(session)

    # ---- drawing and measuring ---------------------------------------------------------------------------------

    def measure(
        self,
        images: DrawnSet | str | Path,
        judge: Judge,
        *,
        second: Judge | None = None,
        pipe: Any = None,
        model: str | None = None,
        scorer: Loaded | None = None,
        device: str = "cpu",
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Draw, judge and measure: a result for each attribute, for the distances of pairs, CLIPScore and FID.

        In several processes all return the same: let the first one write it.

        Args:
            images: the folder that images are drawn into; what lies there already is not drawn again (see
                `vldebias.evaluation.drawing.draw`). Without `pipe` all of them have to be there.
            judge: reads the images, see `vldebias.evaluation.judges`.
            second: another judge of the same images, with whom the first is compared.
            pipe: a diffusers pipeline without an attachment.
            model: what the pipeline is called; by default where it came from.
            scorer: the image-text model of CLIPScore and FID, with its preprocessing.
            device: where the Inception of an FID computes.

        Raises:
            AlreadyAttachedError, InvalidInputError: see `draw`, `make_plan`, `judge_images`, `read_judged`; attributes
                that the judge does not read, before anything is drawn; images of another prompt set.
        """
        if any(one not in judge.names for attribute in self.attributes for one in attribute.split(" x ")):
            raise InvalidInputError(
                f"attributes: expected some of {list(judge.names)}, which judge {judge.name} reads, or intersections "
                f"such as 'gender x race', got {list(self.attributes)}"
            )
        for attribute, path in self._confused(judge).items():
            read_confusion(path, judge.names[attribute])  # refused before anything is drawn
        if pipe is None:
            drawn = images if isinstance(images, DrawnSet) else DrawnSet.open(images)
            return self._judged(drawn, judge, second, progress) + self._scored(drawn, scorer, device, progress)
        if isinstance(images, DrawnSet):
            raise InvalidInputError("images: expected a folder where a pipeline draws, got images that are there")
        task = self._fitted_to_judged(pipe, judge, Path(images), model, progress)
        settings = (
            "concepts",
            "stated",
            "images",
            "stated_images",
            "seeds",
            "steps",
            "guidance",
            "batch_size",
            "options",
        )
        same = {key: getattr(self, key) for key in settings}
        plan = make_plan(identity(pipe, model), self.drawn_set, task.fitted, **same)
        drawn = draw(pipe, plan, task.fitted, images, progress=progress)
        results = self._judged(drawn, judge, second, progress)
        if self.strips is not None:
            results[0].pictures[f"{folder_slug(self.name)}-strengths"] = task._strips(pipe, self.strips, progress)
        if self.pair_table:
            results.append(task._pairs(pipe, drawn))
        return results + self._scored(drawn, scorer, device, progress)

    def _fitted_to_judged(self, pipe: Any, judge: Judge, folder: Path, model: str | None, progress: Progress) -> Self:
        """The task with the variants that need judged images fitted to them."""
        if self.stated:
            stated_attribute(self.drawn_set, judge)
        how = {key: getattr(self, key) for key in ("steps", "guidance", "batch_size", "options")}
        variants = dict(self.variants)
        for name, variant in self.fitted.items():
            if variant.projection is None and Need.JUDGED in get_method(variant.method).needs:
                if len(variant.sets) > 1:
                    raise InvalidInputError(f"{name}: is fitted on one prompt set, got {len(variant.sets)}")
                method, images = read_judged(
                    pipe,
                    variant.sets[0],
                    judge,
                    folder / "_readings" / folder_slug(name),  # no variant has a folder of this name
                    method=variant.method,
                    lam=variant.lam,
                    drawing=Drawing(images=self.fit_images, **how),
                    model=model,
                    progress=progress,
                )
                variants[name] = _changed(variant, method=method, judged=images)
        return self.model_copy(update={"variants": variants})

    def _strips(self, pipe: Any, strips: Strips, progress: Progress) -> tuple[str, Any]:
        """The first variant at several strengths, with what the picture shows."""
        name, variant = next(iter(self.fitted.items()))
        with progress.step(f"{self.name}: strengths"):
            plot = draw_strengths(
                pipe,
                class_prompts_of(self.drawn_set, strips.concepts),
                variant,
                strengths=strips.strengths,
                seeds=range(strips.seeds),
                steps=self.steps,
                guidance=self.guidance,
            )
        return f"The same noise at several strengths of {name}, row by row; strength 0 is the pipeline as it is.", plot

    def _pairs(self, pipe: Any, drawn: DrawnSet) -> TaskResult:
        """The distances of pairs, from texts alone."""
        boot, title = {"resamples": self.resamples, "seed": self.seed}, "Distance of pairs (Table 7.6)"
        about = _provenance(drawn.plan, f"{self.name} pairs", title, ABOUT_PAIRS, "texts", boot)
        pairs = TaskResult(about, details=details_of(about.methods))
        add_pair_distances(pairs, resolve(pipe), self.drawn_set, self.fitted, noun=self.noun, **boot)
        return pairs

    def _scored(self, drawn: DrawnSet, scorer: Loaded | None, device: str, progress: Progress) -> list[TaskResult]:
        """CLIPScore and FID of the images of plain prompts, as far as the task asks for them."""
        origin = _provenance(drawn.plan, self.name, "", "", "generated", {})
        images = SharedImages((image for image in drawn if image.stated is None), drawn.folder, origin)
        results: list[TaskResult] = []
        if scorer is None and self.scored_by_model:
            raise InvalidInputError(f"{self.name}: expected scorer=, the image-text model of CLIPScore and FID")
        encoder = None if scorer is None else image_encoder(scorer.host, scorer.preprocess, name=scorer.name)
        if self.clip_score is not None and scorer is not None and encoder is not None:
            task, texts = f"{self.name}: CLIPScore", Texts(scorer.host, scorer.tokenizer)
            with progress.step(task):
                own: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
                results.append(self.clip_score.measure(images, encoder, texts, task=task, **own))
        if self.fid is not None:
            task = f"{self.name}: FID"
            with progress.step(task):
                own_features = encoder if encoder is not None and self.fid.features == "clip" else None
                results.append(self.fid.measure(images, own_features or InceptionFeatures(device=device), task=task))
        return results

    def _judged(self, drawn: DrawnSet, judge: Judge, second: Judge | None, progress: Progress) -> list[TaskResult]:
        """What a judge says of images that are there: a result for each attribute."""
        prompts = self.drawn_set
        if prompts.hash != drawn.plan.prompt_set_hash:
            raise InvalidInputError(
                f"{drawn.folder}: was drawn with another version of {drawn.plan.prompt_set!r} than {prompts!r}"
            )
        probabilities = judge_images(judge, drawn, progress=progress)
        labels = labels_of(judge, probabilities, self.attributes, self.sure)
        shown, stated = _shown(drawn, judge, probabilities), sheets(drawn, stated=True)
        of_stated, code_of = stated_attribute(prompts, judge) if stated else ("", {})
        facts = [(image.variant, drawn.about(image)) for image in drawn]
        black = Counter(variant for variant, about in facts if about.get("flagged"))
        alone = Counter(variant for variant, about in facts if about.get("left_alone"))
        common: dict[str, Any] = {"noun": self.noun, "resamples": self.resamples, "seed": self.seed}
        results = []
        for attribute in self.attributes:
            task = self.name if self.name == attribute else f"{self.name} {attribute}"
            settings = {
                "judge": judge.name,
                "judge fingerprint": judge.fingerprint,
                "values": {one: list(judge.names[one]) for one in attribute.split(" x ")},
                "sure": self.sure,
                "images that the safety checker blackened": {name: black[name] for name in drawn.plan.variants},
                "images left alone, copies of none": {name: alone[name] for name in drawn.plan.variants},
            }
            title = f"Discrepancy of generated images, {attribute} (Table 7.7)"
            provenance = _provenance(drawn.plan, task, title, ABOUT, "generated", settings)
            result, own = TaskResult(provenance, details=details_of(provenance.methods)), labels[attribute]
            said_of: dict[str, dict[str, Counts]] = {}
            for sheet in sheets(drawn, stated=False):
                counts, subset = add_bias(result, sheet, own, shown, **common), f"{sheet.part} {self.noun}"
                said_of[subset] = counts
                if attribute == self.attributes[0]:  # the images, which all attributes share
                    how = "the same seeds column by column, as the pipeline is and debiased."
                    caption = f"{subset.capitalize()}: {how}"
                    picture = f"{folder_slug(task)}-{sheet.part}-side-by-side"
                    result.pictures[picture] = (caption, side_by_side(drawn, sheet, own))
                shares = {name: one.shares[:, 0] for name, one in counts.items() if len(own.names) == 2}
                for name, plot in share_plots(sheet.concepts, shares, f"share of {own.names[0]}, {subset}").items():
                    caption = f"Share of {own.names[0]} for each of the {subset}, without and with {name}."
                    result.pictures[f"{folder_slug(task)}-{sheet.part}-shares-{folder_slug(name)}"] = (caption, plot)
            for sheet in stated if attribute == of_stated else ():
                add_fidelity(result, sheet, own, code_of, shown, **common)
            undecidable = {part: {n: one.undecidable for n, one in each.items()} for part, each in said_of.items()}
            provenance.settings |= {
                "prompts where nothing can be told, with the largest discrepancy": undecidable,
                "resampled": "prompts with all their images; for one prompt its images",
                "resamples": self.resamples,
                "seed": self.seed,
            }
            if second is not None and all(one in second.names for one in attribute.split(" x ")):
                other = judge_images(second, drawn, progress=progress)
                provenance.settings["second judge"] = second.name
                add_agreement(result, drawn, own, labels_of(second, other, [attribute], self.sure)[attribute])
            results.append(result)
            if (path := self._confused(judge).get(attribute)) is not None:
                known = {part: {n: one.known.sum(0) for n, one in each.items()} for part, each in said_of.items()}
                results.append(confused_block(result, own.names, path, known, seed=self.seed))
            if self.labels and " x " not in attribute:
                results += self._corrected(drawn, attribute, own, result, progress)
        return results

    def _confused(self, judge: Judge) -> dict[str, Path]:
        """Attribute -> the confusion table, where it is about its values; of another attribute it is left to its task.

        Raises:
            InvalidInputError: the judge reads no attribute with the values of the table.
        """
        if self.judge_confusion is None:
            return {}
        values = sorted(confused_values(self.judge_confusion))
        about = [one for one, names in judge.names.items() if sorted(names) == values]
        if not about:
            read = {one: list(judge.names[one]) for one in self.attributes if one in judge.names}
            raise InvalidInputError(
                f"{self.judge_confusion}: expected a row for each value of an attribute that judge {judge.name} reads, "
                f"{read}, in the column 'true', got {values}"
            )
        return {one: self.judge_confusion for one in about if one in self.attributes}

    def _corrected(
        self, drawn: DrawnSet, attribute: str, judged: Labels, raw: TaskResult, progress: Progress
    ) -> list[TaskResult]:
        """The figures of an attribute corrected by people, if they labelled it."""
        annotations = read_labels(self.labels, attribute)
        if attribute not in annotations.attributes:
            progress.say(f"{self.name}: nobody labelled {attribute}, so the judge stands alone")
            return []
        people, weights = labelled_images(annotations, attribute, judged.names, [image.path for image in drawn])
        codes, parts = np.where(judged.codes == UNKNOWN, len(judged.names), judged.codes), {}
        for sheet in sheets(drawn, stated=False):
            prompts = np.repeat(np.arange(len(sheet.prompts)), sheet.images_each)
            flat = {name: rows.ravel() for name, rows in sheet.rows.items()}
            images = {n: JudgedImages(prompts, codes[rows], people[rows], weights[rows]) for n, rows in flat.items()}
            parts[f"{sheet.part} {self.noun}"] = images
        mended = corrected_block(raw, judged.names, parts, resamples=self.resamples, seed=self.seed)
        if mended is None:
            progress.say(f"{self.name}: the labels of {attribute} are about none of these images")
        return [] if mended is None else [mended]


def _changed(variant: Variant, **fields: Any) -> Variant:
    return Variant.build({key: getattr(variant, key) for key in variant.model_fields_set} | fields)


def _provenance(
    plan: Plan, task: str, title: str, description: str, split: str, settings: Mapping[str, Any]
) -> TaskProvenance:
    """The provenance of one task on images, or texts, of a plan."""
    model = {key: value for key, value in plan.model.items() if key != "fingerprints"}
    drawing = {"steps": plan.steps, "guidance": plan.guidance, "batch size": plan.batch_size, "options": plan.options}
    stated = sum(p.stated is not None for p in plan.prompts)
    return TaskProvenance(
        task=task,
        title=title,
        description=description,
        model=str(plan.model.get("id") or plan.model["pipeline"]),
        fingerprint=joint_fingerprint(plan.model["fingerprints"]),
        prompts=plan.prompt_set,
        prompts_hash=plan.prompt_set_hash,
        split=split,
        methods={
            name: {}
            if v is None
            else {**v.model_dump(), "lam": lam_of(v.method, v.lam), **({"needs": sorted(m.needs)} if m else {})}
            for name, v in plan.variants.items()
            for m in [METHODS.get(v.method) if v is not None else None]
        },
        seeds=list(plan.seeds),
        n={"prompts": len(plan.prompts) - stated, "stated": stated, "images": len(plan.all_images)},
        settings={**model, **drawing, **settings},
    )


def _shown(drawn: DrawnSet, judge: Judge, probabilities: Mapping[str, np.ndarray]) -> Shown | None:
    """What every image shows most likely; None where no attribute of the judge knows all concepts."""
    concepts = {prompt.concept for prompt in drawn.plan.prompts} - {""}
    for attribute, names in judge.names.items():
        codes = {name.casefold(): i for i, name in enumerate(names)}
        if all(concept.casefold() in codes for concept in concepts):
            code_of = {concept: codes[concept.casefold()] for concept in concepts}
            return Shown(probabilities[attribute].argmax(axis=1), code_of)
    return None
