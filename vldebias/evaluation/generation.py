"""Generated images before and after (Tables 7.6 and 7.7, section 7.6.4): a pipeline draws, a judge reads, figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from vldebias.errors import InvalidInputError
from vldebias.evaluation.backgrounds import background_judge, subject_prompts
from vldebias.evaluation.clip_score import evaluate_clip_score
from vldebias.evaluation.discrepancies import Shown, add_bias, add_fidelity, sheets
from vldebias.evaluation.drawing import DrawnSet, draw, identity, joint_fingerprint
from vldebias.evaluation.fid import InceptionFeatures, evaluate_fid
from vldebias.evaluation.grids import draw_strengths, prompts_of, share_plots, side_by_side
from vldebias.evaluation.judges import (
    ClassifierJudge,
    ClipJudge,
    Judge,
    MiniatureJudge,
    Question,
    judge_images,
    labels_of,
    stated_attribute,
)
from vldebias.evaluation.pairs import add_pair_distances
from vldebias.evaluation.plan import Plan, make_plan, slug
from vldebias.evaluation.readings import Drawing, read_judged
from vldebias.evaluation.result import Provenance, TaskResult
from vldebias.evaluation.similarity import Dino, Likeness, Lpips, evaluate_similarity
from vldebias.evaluation.task import Count, Name, OneOrMore, Options, Session, Share, Strict, Task
from vldebias.evaluation.texts import Texts
from vldebias.evaluation.variants import NONE, Prompts, Variant, draws
from vldebias.hosts import resolve
from vldebias.hosts.images import image_encoder
from vldebias.loading import Loaded
from vldebias.methods import METHODS, Need, get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    import numpy as np

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


class JudgeSpec(Strict):
    """Who reads attributes from drawn images.

    kind: "clip" (zero-shot, prompts: attribute -> value -> its prompts; reject: prompts for images that show none of
    them), "backgrounds" (the same for land and water behind an animal), "classifier" (a transformers image classifier
    for one attribute), "miniature" (the classifier of the embedded world: profession, gender, tone and age of people;
    species, bird, place and background of birds).
    model, pretrained: of all kinds but the last; --judge takes their place.
    """

    kind: Literal["clip", "backgrounds", "classifier", "miniature"]
    model: str | None = None
    pretrained: str | None = None
    prompts: dict[str, dict[str, OneOrMore]] = Field(default_factory=dict)
    reject: tuple[str, ...] = ()
    attribute: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> JudgeSpec:
        if self.kind == "clip" and not self.prompts:
            raise ValueError("a clip judge needs `prompts`: attribute -> value -> prompt")
        if self.kind == "classifier" and not (self.model and self.attribute):
            raise ValueError("a classifier needs `model` and the `attribute` that it reads")
        return self


class Strips(Strict):
    """Pictures at several strengths: these concepts of the prompt set, this many seeds each."""

    concepts: Annotated[list[str], Field(min_length=1)]
    strengths: tuple[Share, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    seeds: Count = 2


class ClipScore(Strict):
    """CLIPScore of the images against their prompts. The model: this one, else --model, else that of the judge."""

    model: str | None = None
    pretrained: str | None = None


class Fid(Strict):
    """FID of each variant against the images of none.

    features: "clip" (the model of CLIPScore) or "inception" (needs torch-fidelity, and downloads its weights).
    """

    features: Literal["clip", "inception"] = "clip"


class Similarity(Strict):
    """How much of the rest of the picture stays, image by image (vldebias.evaluation.similarity).

    measure: "lpips" (torchmetrics; model: the backbone, "alex", "squeeze" or "vgg") or "dino" (model: a folder or a
    name for transformers). Both need pretrained weights.
    """

    measure: Literal["lpips", "dino"]
    model: str | None = None

    def load(self, device: str) -> Likeness:
        """What compares."""
        if self.measure == "dino":
            return Dino(self.model or "facebook/dinov2-base", device=device)
        return Lpips(self.model or "alex", device=device)


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
    """

    task: Literal["generation"] = "generation"
    name: Name = "generation"
    title: str = "Generated images"
    prompts: Prompts
    subjects: tuple[str, ...] = ()
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    judge: JudgeSpec | None = None
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
    similarity: Similarity | None = None
    pair_table: bool = False

    @property
    def drawn_set(self) -> PromptSet:
        """The prompt set that is drawn, with the task's own subjects where it names some."""
        return subject_prompts(self.subjects, self.prompts) if self.subjects else load_prompts(self.prompts)

    @property
    def fitted(self) -> dict[str, Variant]:
        """The variants, each with its prompt sets."""
        return {name: variant.on(load_prompts(self.prompts)) for name, variant in self.variants.items()}

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """What is drawn, and what the variants are fitted on."""
        given = (self.prompts, *(prompts for variant in self.variants.values() for prompts in variant.prompts))
        return tuple(str(prompts) for prompts in given if not isinstance(prompts, PromptSet))

    # ---- in a suite --------------------------------------------------------------------------------------------

    def with_options(self, options: Options) -> Self:
        """With what the user chose of images, seeds, steps, lambda and bound; methods and saved edits are variants.

        A method that is not for pipelines is left to the other tasks of the suite.
        """
        changed: dict[str, Any] = {}
        if options.seeds is not None:
            changed["seeds"] = tuple(options.seeds)
        for key in ("images", "fit_images", "steps"):
            if (value := getattr(options, key)) is not None:
                changed[key] = value
        first, variants = next(iter(self.variants.values())), dict(self.variants)
        if options.methods is not None:
            named = [name for name in options.methods if name != NONE and draws(name)]
            variants = {name: _changed(first, method=name) for name in named} or variants
        own = {key: value for key in ("lam", "max_loss") if (value := getattr(options, key)) is not None}
        variants = {n: v if v.projection is not None else _changed(v, **own) for n, v in variants.items()}
        saved = {path.resolve().name: Variant(projection=path) for path in options.projections}
        changed["variants"] = variants | saved
        return super().with_options(options).model_copy(update=changed)

    def inputs(self, session: Session) -> dict[str, Any]:
        """The weights of the pipeline, of the judge and of the scorer, and saved edits."""
        scored = self.clip_score is not None or (self.fid is not None and self.fid.features == "clip")
        scorer = resolve(self._scorer(session).host).fingerprint() if scored else None
        pipeline = resolve(session.pipeline.host).fingerprint()
        saved = {n: v.planned.projection for n, v in self.variants.items() if v.projection is not None}
        return {
            "pipeline": pipeline and pipeline.to_dict(),
            "judge": self._judge(session).fingerprint,
            "scored by": scorer and scorer.to_dict(),
            **({"saved": saved} if saved else {}),
        }

    def run(self, session: Session) -> list[TaskResult]:
        """Draw into "<out>/images/<task>" and measure; CLIPScore, FID and strips as far as the task asks for them."""
        pipe, folder = session.pipeline.host, session.options.out / "images" / slug(self.name)
        judge = self._judge(session)
        fitted = self.judged(pipe, judge, folder, progress=session.progress)
        results = fitted.evaluate(pipe, judge, folder, progress=session.progress)
        if self.strips is not None:
            name, variant = next(iter(fitted.fitted.items()))
            with session.step(f"{self.name}: strengths") as on_step:
                plot = draw_strengths(
                    pipe,
                    prompts_of(self.drawn_set, self.strips.concepts),
                    variant,
                    strengths=self.strips.strengths,
                    seeds=range(self.strips.seeds),
                    steps=self.steps,
                    guidance=self.guidance,
                    on_step=on_step,
                )
            caption = f"The same noise at several strengths of {name}, row by row; strength 0 is the pipeline as it is."
            results[0].pictures[f"{slug(self.name)}-strengths"] = (caption, plot)
        images = [image for image in DrawnSet.open(folder) if image.stated is None]
        drawn = results[0].provenance
        boot: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
        if self.clip_score is not None:
            loaded, task = self._scorer(session), f"{self.name}: CLIPScore"
            encoder, texts = _encoder(loaded), Texts(loaded.host, loaded.tokenizer)
            with session.step(task):
                results.append(evaluate_clip_score(images, folder, encoder, texts, task=task, drawn=drawn, **boot))
        if self.fid is not None:
            task, inception = f"{self.name}: FID", self.fid.features == "inception"
            with session.step(task):
                device = session.options.device
                extractor = InceptionFeatures(device=device) if inception else _encoder(self._scorer(session))
                results.append(evaluate_fid(images, folder, extractor, task=task, drawn=drawn))
        if self.similarity is not None:
            task, likeness = f"{self.name}: {self.similarity.measure}", self.similarity.load(session.options.device)
            with session.step(task):
                results.append(evaluate_similarity(images, folder, likeness, task=task, drawn=drawn, **boot))
        return results

    def _judge(self, session: Session) -> Judge:
        """The judge that the suite names, or the model that the user names in its place."""
        spec = self.judge
        if spec is None:
            raise InvalidInputError(f"{self.name}: expected `judge:`, which reads the drawn images; add one")
        if spec.kind == "miniature":
            return MiniatureJudge()
        if spec.kind == "classifier":
            assert spec.model is not None
            assert spec.attribute is not None
            return ClassifierJudge.load(spec.model, spec.attribute, device=session.options.device)
        loaded = self._judging_model(session)
        given: dict[str, Any] = {
            "model": loaded.host,
            "preprocess": loaded.preprocess,
            "tokenizer": loaded.tokenizer,
            "name": loaded.name,
        }
        prompts = self.drawn_set
        if spec.kind == "backgrounds":
            return background_judge(**given, subjects=prompts.held_out_class_names)
        questions = {attribute: Question(values, spec.reject) for attribute, values in spec.prompts.items()}
        # Which concept an image shows, by the class prompts themselves: whether the subject is kept.
        names = [*prompts.class_names, *prompts.held_out_class_names]
        classes = [*prompts.classes, *prompts.held_out_classes]
        questions.setdefault(self.noun, Question({n: (text,) for n, text in zip(names, classes, strict=True)}))
        return ClipJudge(**given, questions=questions)

    def _judging_model(self, session: Session) -> Loaded:
        """The image-text model behind the judge: the user's, else the suite's."""
        chosen = (self.judge.model, self.judge.pretrained) if self.judge is not None else (None, None)
        if session.options.judge is not None:
            chosen = (session.options.judge, session.options.judge_pretrained)
        if chosen[0] is None:
            raise InvalidInputError(f"{self.name}: no image-text model for the judge or for CLIPScore; give --judge")
        return session.image_text(chosen[0], chosen[1])

    def _scorer(self, session: Session) -> Loaded:
        """The model of CLIPScore: the task's, else the user's, else that of the judge."""
        if self.clip_score is not None and self.clip_score.model is not None:
            return session.image_text(self.clip_score.model, self.clip_score.pretrained)
        return session.model if session.options.model is not None else self._judging_model(session)

    # ---- with a pipeline and a judge at hand ---------------------------------------------------------------------

    def evaluate(
        self, pipe: Any, judge: Judge, folder: str | Path, *, model: str | None = None, progress: Progress = SILENT
    ) -> list[TaskResult]:
        """Draw and measure: a result for each attribute, and one for the distances of pairs.

        In several processes all return the same: let the first one write it.

        Args:
            pipe: a diffusers pipeline without an attachment.
            judge: reads the images, see `vldebias.evaluation.judges`.
            folder: for the images; see `vldebias.evaluation.drawing.draw`.
            model: what the pipeline is called; by default where it came from.

        Raises:
            AlreadyAttachedError, InvalidInputError: see `draw`, `make_plan`, `judge_images`.
        """
        task = self.judged(pipe, judge, folder, model=model, progress=progress)
        prompts, variants = task.drawn_set, task.fitted
        settings = ("concepts", "stated", "images", "stated_images", "seeds", "steps", "guidance", "batch_size")
        given = {key: getattr(self, key) for key in (*settings, "options")}
        plan = make_plan(identity(pipe, model), prompts, variants, **given)
        drawn = draw(pipe, plan, variants, folder, progress=progress)
        results = self.measure(drawn, judge, progress=progress)
        if self.pair_table:
            boot, title = {"resamples": self.resamples, "seed": self.seed}, "Distance of pairs (Table 7.6)"
            about = _provenance(drawn.plan, f"{self.name} pairs", title, ABOUT_PAIRS, "texts", boot)
            pairs = TaskResult(about, details=drawn.plan.details)
            add_pair_distances(pairs, resolve(pipe), prompts, variants, noun=self.noun, **boot)
            results.append(pairs)
        return results

    def judged(
        self, pipe: Any, judge: Judge, folder: str | Path, *, model: str | None = None, progress: Progress = SILENT
    ) -> Self:
        """The task with the variants that need judged images fitted to them; arguments as of `evaluate`.

        Raises:
            InvalidInputError: see `read_judged`; attributes that the judge does not read, before anything is drawn.
        """
        _check_attributes(judge, self.attributes)
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
                    Path(folder) / "_readings" / slug(name),  # no variant has a folder of this name
                    method=variant.method,
                    lam=variant.lam,
                    drawing=Drawing(images=self.fit_images, **how),
                    model=model,
                    progress=progress,
                )
                variants[name] = _changed(variant, method=method, judged=images)
        return self.model_copy(update={"variants": variants})

    def measure(self, drawn: DrawnSet, judge: Judge, *, progress: Progress = SILENT) -> list[TaskResult]:
        """Judge and measure images that are there, such as `DrawnSet.open(folder)`: a result for each attribute.

        Raises:
            InvalidInputError: `prompts` is not the set that was drawn, an attribute that the judge does not read,
                images that are missing.
        """
        prompts = self.drawn_set
        if prompts.hash != drawn.plan.prompt_set_hash:
            raise InvalidInputError(
                f"{drawn.folder}: was drawn with another version of {drawn.plan.prompt_set!r} than {prompts!r}"
            )
        _check_attributes(judge, self.attributes)
        probabilities = judge_images(judge, drawn, progress=progress)
        labels = labels_of(judge, probabilities, self.attributes, self.sure)
        shown, stated = _shown(drawn, judge, probabilities), sheets(drawn, stated=True)
        of_stated, code_of = stated_attribute(prompts, judge) if stated else ("", {})
        said = [(image.variant, drawn.about(image)) for image in drawn]
        black = Counter(variant for variant, about in said if about.get("flagged"))
        alone = Counter(variant for variant, about in said if about.get("left_alone"))
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
            result, own, undecidable = TaskResult(provenance, details=drawn.plan.details), labels[attribute], {}
            for sheet in sheets(drawn, stated=False):
                counts, subset = add_bias(result, sheet, own, shown, **common), f"{sheet.part} {self.noun}"
                undecidable[subset] = {name: one.undecidable for name, one in counts.items()}
                if attribute == self.attributes[0]:  # the images, which all attributes share
                    how = "the same seeds column by column, as the pipeline is and debiased."
                    caption = f"{subset.capitalize()}: {how}"
                    picture = f"{slug(task)}-{sheet.part}-side-by-side"
                    result.pictures[picture] = (caption, side_by_side(drawn, sheet, own))
                for name, plot in share_plots(sheet, own, f"share of {own.names[0]}, {subset}").items():
                    caption = f"Share of {own.names[0]} for each of the {subset}, without and with {name}."
                    result.pictures[f"{slug(task)}-{sheet.part}-shares-{slug(name)}"] = (caption, plot)
            for sheet in stated if attribute == of_stated else ():
                add_fidelity(result, sheet, own, code_of, shown, **common)
            provenance.settings |= {
                "prompts where nothing can be told, with the largest discrepancy": undecidable,
                "resampled": "prompts with all their images; for one prompt its images",
                "resamples": self.resamples,
                "seed": self.seed,
            }
            results.append(result)
        return results


def _changed(variant: Variant, **fields: Any) -> Variant:
    try:
        return Variant(**{key: getattr(variant, key) for key in variant.model_fields_set} | fields)
    except ValidationError as error:
        raise InvalidInputError(f"variant: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _encoder(loaded: Loaded) -> Any:
    return image_encoder(loaded.host, loaded.preprocess, name=loaded.name)


def _provenance(
    plan: Plan, task: str, title: str, description: str, split: str, settings: Mapping[str, Any]
) -> Provenance:
    """The provenance of one task on images, or texts, of a plan."""
    model = {key: value for key, value in plan.model.items() if key != "fingerprints"}
    drawing = {"steps": plan.steps, "guidance": plan.guidance, "batch size": plan.batch_size, "options": plan.options}
    stated = sum(p.stated is not None for p in plan.prompts)
    return Provenance(
        task=task,
        title=title,
        description=description,
        model=str(plan.model.get("id") or plan.model["pipeline"]),
        fingerprint=joint_fingerprint(plan.model["fingerprints"]),
        prompts=plan.prompt_set,
        prompts_hash=plan.prompt_set_hash,
        split=split,
        methods={
            name: {} if v is None else {**v.model_dump(), **v.details, **_needs(v.method)}
            for name, v in plan.variants.items()
        },
        seeds=list(plan.seeds),
        n={"prompts": len(plan.prompts) - stated, "stated": stated, "images": len(plan.all_images)},
        settings={**model, **drawing, **settings},
    )


def _needs(method: str) -> dict[str, list[str]]:
    """What a method needs, where it is known here; how many images it was fitted to is with the variant."""
    known = METHODS.get(method)
    return {} if known is None else {"needs": sorted(known.needs)}


def _check_attributes(judge: Judge, attributes: Sequence[str]) -> None:
    """Refuse attributes that the judge does not read, before anything is drawn."""
    if any(one not in judge.names for attribute in attributes for one in attribute.split(" x ")):
        raise InvalidInputError(
            f"attributes: expected some of {list(judge.names)}, which judge {judge.name} reads, or intersections such "
            f"as 'gender x race', got {list(attributes)}"
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
