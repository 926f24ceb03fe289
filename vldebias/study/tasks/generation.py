"""Compare generated images with and without methods (Table 7.7, section 7.6.4), as a judge labels
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field, SerializeAsAny

from vldebias.data import processes
from vldebias.errors import InvalidInputError
from vldebias.hosts import resolve
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.loading import Loaded
from vldebias.judge.judges import JUDGES, ClipJudge, Judge, JudgeSpec, checked_judge
from vldebias.judge.plan import SEED_STEP, GeneratedImages, Plan, planned_prompts
from vldebias.judge.scores import judge_images, scored
from vldebias.judge.stored import SURE, decide
from vldebias.methods import get_method
from vldebias.methods.declared import PIPELINES
from vldebias.prompts import PromptSet, fill
from vldebias.report.result import NONE, TaskResult
from vldebias.study.inputs import Inputs
from vldebias.study.recorded import record_of_images
from vldebias.study.shares.rows import ABOUT_GAP
from vldebias.study.task import Prompts, Task, register_task
from vldebias.study.tasks.generated_rows import GeneratedRows, image_table
from vldebias.study.tasks.variants import Variant, generate
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Count, Name, Share, file_slug, one_of
from vldebias.wording import balance_prompts
from vldebias.wording.prompt_file import read_prompts

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

ABOUT = (
    "Every prompt generated from the same noise without and with the method. Shares are those of"
    f" the images that the judge can tell; the others are counted. {ABOUT_GAP} The interval of one"
    " prompt is over its images."
)
RECORDS = "records"  # folder of the records, below that of the images
CODES = Mapping[str, Mapping[str, int]]  # attribute -> value in lower case -> code of the judge


@register_task
class GenerationTask(Task):
    """Generate images with and without edits, judge and measure them; an interrupted run resumes.

    name: first word of the blocks, "generation gender"; a task that is called like its attribute
        keeps that name.
    prompts: the set to generate: its classes, and if `stated` its pairs. subjects: generate these
        in place of its unseen concepts (section 7.6.4). prompts_file: or the prompts of this file,
        one per line, that leave the value open; the settings count the others by reason.
    attributes: of the judge; "gender x race" for their intersections. Where an attribute of the
        judge knows every concept of the prompts, the share of images that show their concept is
        measured too.
    variants: name -> how to debias, with any method for pipelines. The original pipeline, "none",
        always runs.
    images: per prompt and seed. seeds: of runs; image i of a run has the seed 10,000 x run + i.
    concepts: "train" (the prompts that an edit is fitted on), "unseen" or "both".
    stated: also generate prompts that state their attribute, with and without leaving them
        unchanged.
    as_written: also generate five everyday wordings of each concept that is not fitted on, and
        prompts without a person or with a named one, which no method should change
        (`vldebias.judge.plan.WORDINGS`, `OTHERS`).
    stated_images: per stated prompt, wording and other prompt, and seed; at most `images`.
    noun: what concepts are called in a report. sure: smallest probability with which a judge's
        answer counts. steps, guidance, batch_size, options: of the pipeline; options are further
        arguments such as {"height": 512}.
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
    images: Annotated[Count, Field(le=SEED_STEP)] = 100  # more would have the seeds of the next run
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    concepts: Literal["train", "unseen", "both"] = "both"
    stated: bool = True
    as_written: bool = False
    stated_images: Count = 8
    noun: str = "professions"
    steps: Count = 50
    guidance: float = 7.5
    batch_size: Count = 8
    options: dict[str, object] = Field(default_factory=dict)
    sure: Share = SURE
    clip_score: bool = False
    fid: bool = False

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, object]) -> Self:
        """Return the task with the user's methods as variants.

        Args:
            inputs: what the user passed.
            settings: the task's settings by name.

        Raises:
            InvalidInputError: no folder for the images.
        """
        if "images" not in inputs.sources:
            raise InvalidInputError(
                "images: expected the folder that images are generated into, or lie in"
            )
        fields = dict(settings)
        variants = {}
        methods = fields.pop("methods", ())
        assert isinstance(methods, Sequence)  # of `vldebias.evaluate`
        for method in methods:
            name = get_method(method).name
            if name != NONE:
                variants[name] = {"method": name}
        if variants:
            fields = {"variants": variants, **fields}
        return cls.build(fields)

    @property
    def prompt_set(self) -> PromptSet:
        """Return the prompt set to generate, with the task's own subjects or prompts as its unseen
        concepts."""
        if self.prompts_file is not None:
            # Each prompt of the user's file is its own concept: it has no class name, and no pair.
            prompts, _ = self._open_prompts(self.prompts_file)
            return self._with_unseen(self.prompts_file.name, prompts, prompts, ())
        if not self.subjects:
            return self.prompts
        # "a photo of a waterbird", and as pairs "a photo of a waterbird with water background", the
        # same with land
        template = self.prompts.templates[0]
        words = [synonyms[0] for synonyms in self.prompts.attributes.values()]
        classes = []
        groups = []
        for concept in self.subjects:
            classes.append(fill("a photo of a {concept}", concept=concept))
            pair = [fill(template, concept=concept, attribute=word) for word in words]
            groups.append(tuple(pair))
        name = ", ".join(self.subjects)
        return self._with_unseen(name, self.subjects, tuple(classes), tuple(groups))

    def _with_unseen(
        self,
        name: str,
        names: tuple[str, ...],
        classes: tuple[str, ...],
        groups: tuple[tuple[str, ...], ...],
    ) -> PromptSet:
        """Return the prompt set with other unseen concepts; name: what these are called."""
        return replace(
            self.prompts,
            name=f"{self.prompts.name}, {name}",
            held_out_class_names=names,
            held_out_classes=classes,
            held_out_groups=groups,
        )

    def _open_prompts(self, file: Path) -> tuple[tuple[str, ...], dict[str, int]]:
        """Return the prompts of a file that leave the value open, and reason -> number of the
        others.

        Groups are left out, because a judge sees one value in a picture.

        Raises:
            InvalidInputError: no prompt is left.
        """
        # Each prompt is measured once.
        texts = tuple(dict.fromkeys(read_prompts(file).prompts))
        # By the rules that balanced prompts follow, so that every method is measured on prompts
        # that any of them may change.
        reasons = balance_prompts(texts, self.prompts, seed=0, groups="leave").reasons
        pairs = zip(texts, reasons, strict=True)
        kept = tuple(text for text, reason in pairs if reason is None)
        left_out = dict(Counter(reason for reason in reasons if reason is not None))
        if not kept:
            values = list(self.prompts.attributes)
            raise InvalidInputError(
                f"{file}: no prompt leaves {values} open, got {left_out}; add some"
            )
        return kept, left_out

    @property
    def needs_scorer(self) -> bool:
        """Return whether an image-text model scores the images."""
        return self.clip_score or self.fid

    @property
    def ways(self) -> dict[str, Variant]:
        """Return the variants with their prompt sets; if `stated`, also without leaving stated
        prompts unchanged."""
        ways = {}
        for name, variant in self.variants.items():
            has_sets = variant.prompts or variant.projection is not None
            own_set = {"prompts": (self.prompts,)}
            ways[name] = variant if has_sets else variant.model_copy(update=own_set)
        bare = {"keep_stated": False, "only_stated": True}
        # How often a stated value comes out with and without keeping it: the damage that plain
        # projection does to "a female doctor".
        for name, variant in list(ways.items()):
            if self.stated and variant.keep_stated and not variant.samples:
                ways.setdefault(f"{name}, stated not kept", variant.model_copy(update=bare))
        return ways

    def plan(self, model: Mapping[str, object] | None = None) -> Plan:
        """Return the plan of the images; model: the `identity` of the pipeline, once it is
        known."""
        prompts = self.prompt_set
        planned = planned_prompts(
            prompts, self.concepts, stated=self.stated, as_written=self.as_written
        )
        variants = {name: variant.planned for name, variant in self.ways.items()}
        fields = {
            "images": self.images,
            "steps": self.steps,
            "guidance": self.guidance,
            "batch_size": self.batch_size,
            "options": self.options,
            "model": model or {},
            "prompt_set": prompts.name,
            "prompt_set_hash": prompts.hash,
            "prompts": planned,
            "variants": {NONE: {}, **variants},
            "seeds": tuple(dict.fromkeys(self.seeds)),
            "stated_images": min(self.images, self.stated_images),
        }
        return Plan.build(fields)

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's images, seeds, steps and lambda, and methods or edits as
        variants.

        A method that is not for pipelines is left to the other tasks of the suite.
        """
        if options.labels:
            raise InvalidInputError(
                "--labels: labels of generated images go with vldebias eval human --labels FILE"
            )
        # Images of one plan by two processes would be written into one folder.
        if processes().world > 1:
            raise InvalidInputError(
                f"{self.name}: one process generates images; launch one, or leave it out by --only"
            )
        variants = dict(self.variants)
        # The user's methods take the other settings (strength, sets) of the suite's first variant.
        first = next(iter(self.variants.values()))
        variant_of_method = {}
        for name in options.methods or ():
            if name != NONE and PIPELINES in get_method(name).declaration.hosts:
                update = {"method": name, "projection": None}
                variant_of_method[name] = first.model_copy(update=update)
        if variant_of_method:
            variants = variant_of_method
        if options.lam is not None:
            for name, variant in variants.items():
                if not variant.projection:
                    variants[name] = variant.model_copy(update={"lam": options.lam})
        for path in options.projections:
            variants[path.resolve().name] = Variant(projection=path)
        changed: dict[str, object] = {"variants": variants}
        if options.prompts_file is not None:
            changed |= {"concepts": "unseen", "stated": False, "as_written": False}
        return super().with_options(options).model_copy(update=changed)

    def prepare(self, inputs: Inputs) -> dict[str, object]:
        """Return the pipeline, the plan, the folder "<out>/images/<task>", the judge and, where
        needed, the scorer."""
        judge = inputs.sources.get("judge")
        if self.judge is not None:
            judge = checked_judge(self.judge, self.judge.ready(self, inputs))
        if judge is None:
            raise InvalidInputError(
                f"{self.name}: expected `judge:`, which reads the generated images; add one"
            )
        # The model of CLIPScore and FID is the user's, else that of the judge, which is loaded
        # anyway. Its scores have the judge's own biases, so a model of the user is preferred.
        scorer = inputs.sources.get("scorer")
        if scorer is None and self.needs_scorer:
            if inputs.options.model is None and isinstance(self.judge, ClipJudge):
                scorer = self.judge.loaded(inputs)
            else:
                scorer = inputs.model
        folder = inputs.options.out / "images" / file_slug(self.name)
        return {
            "images": inputs.sources.get("images", folder),
            "judge": judge,
            "pipe": inputs.pipeline.host,
            "pipeline": inputs.pipeline,
            "plan": self.plan().model_dump_json(),
            "scorer": scorer,
            "progress": inputs.progress,
        }

    def measure(
        self,
        images: str | Path,
        judge: Judge,
        *,
        pipe: DiffusionPipeline | None = None,
        scorer: Loaded | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Generate, judge and measure images.

        Args:
            images: the folder for the images; those that exist already are not generated again.
            judge: reads the images (`vldebias.judge.judges`).
            pipe: a diffusers pipeline without an attachment; without one all images have to be
                there.
            scorer: the image-text model of CLIPScore and FID, with its preprocessing.
            progress: shows how far it is.

        Returns:
            A result per attribute, and for CLIPScore and FID.

        Raises:
            AlreadyAttachedError, InvalidInputError: see `generate`; attributes that the judge does
                not read, before anything is generated; images of another prompt set.
        """
        # Before anything is generated: a judge that cannot read what is measured or stated would be
        # found out after hours.
        self._check_judge(judge, scorer)
        codes: dict[str, dict[str, int]] = {}
        for attribute, values in judge.names.items():
            codes[attribute] = {name.casefold(): code for code, name in enumerate(values)}
        prompts = self.prompt_set
        stated_codes = self._stated_codes(judge, codes)
        # The images, as far as they are missing, and what the judge reads in them.
        ways = self.ways
        if pipe is None:
            made = GeneratedImages.open(images)
        else:
            made = generate(pipe, self.plan(), ways, images, progress=progress)
        if prompts.hash != made.plan.prompt_set_hash:
            raise InvalidInputError(
                f"{made.folder}: got another version of {made.plan.prompt_set!r}; expected images"
                f" of {prompts!r}"
            )
        answers = judge_images(judge, made, progress=progress)
        table = image_table(made, answers, codes)
        rows = GeneratedRows(
            made, table, answers, judge, self.sure, self.noun, self.resamples, self.seed
        )
        # A block for each attribute.
        settings: dict[str, object] = {
            "judge fingerprint": judge.fingerprint,
            "images that the safety checker blackened": rows.flagged,
        }
        if self.prompts_file is not None:
            _, settings["left out, by reason"] = self._open_prompts(self.prompts_file)
        results = []
        for place, attribute in enumerate(self.attributes):
            result = made.result(
                task=self.name if self.name == attribute else f"{self.name} {attribute}",
                title=f"Discrepancy of generated images, {attribute} (Table 7.7)",
                description=ABOUT,
                settings=self.settings(
                    {**settings, "judge": judge.name, "values": rows.values_of(attribute)}
                ),
            )
            # Which methods deal the judged values to all images: their shares are not drawn.
            judged = list(rows.values_of(attribute).values())
            for name, facts in result.provenance.methods.items():
                if name in ways and ways[name].deals(judged):
                    facts["deals"] = True
                # A conclusion about race is not about a method for gender.
                if name in ways and not ways[name].covers(judged):
                    facts["off_target"] = True
            # All attributes share the images, so the first alone shows them.
            rows.add(result, attribute, stated_codes.get(attribute), has_pictures=place == 0)
            results.append(result)
            if attribute in judge.names:
                self._write_records(made, judge, attribute, answers[attribute])
        if scorer is not None and self.needs_scorer:
            encoder = image_encoder(scorer.host, scorer.preprocess, name=scorer.name)
            texts = resolve(scorer.host, tokenizer=scorer.tokenizer)
            with progress.bar(f"{self.name}: CLIPScore, FID"):
                results += scored(
                    made,
                    encoder,
                    texts,
                    self.name,
                    clip=self.clip_score,
                    fid=self.fid,
                    resamples=self.resamples,
                    seed=self.seed,
                )
        return results

    def _write_records(
        self, made: GeneratedImages, judge: Judge, attribute: str, answers: np.ndarray
    ) -> None:
        """Write the record of every variant into the folder of the images."""
        labels = decide(answers, judge.names[attribute], self.sure)
        model = str(made.plan.model.get("id") or made.plan.model["pipeline"])
        for variant in made.plan.variants:
            record = record_of_images(
                made,
                labels,
                attribute=attribute,
                judge=judge,
                model=model,
                variant=variant,
                sure=self.sure,
            )
            if record is not None:
                name = file_slug(f"{attribute} {variant}")
                record.write(made.folder / RECORDS / f"{name}.json")

    def _stated_codes(self, judge: Judge, codes: CODES) -> dict[str, dict[str, int]]:
        """Return the judge's attribute that the prompts state -> value -> the judge's code; empty
        where no prompt states a value.

        Raises:
            InvalidInputError: no attribute of the judge has all the values, each another one.
        """
        if not self.stated:
            return {}
        prompts = self.prompt_set
        for attribute, code_of_word in codes.items():
            code_of_value = {}
            for value, words in prompts.attributes.items():
                # The value itself is looked up first, then its words in their order.
                for word in (value, *words):
                    if word.casefold() in code_of_word:
                        code_of_value[value] = code_of_word[word.casefold()]
                        break
            n_different = len(set(code_of_value.values()))
            if len(code_of_value) == len(prompts.attributes) == n_different:
                return {attribute: code_of_value}
        raise InvalidInputError(
            f"judge {judge.name}: expected an attribute with the values {list(prompts.attributes)}"
            f" that {prompts.name!r} states; use another judge or stated=False"
        )

    def _check_judge(self, judge: Judge, scorer: Loaded | None) -> None:
        """Refuse a judge or a scorer that cannot read the attributes that are measured."""
        for attribute in self.attributes:
            if not set(attribute.split(" x ")) <= set(judge.names):
                raise InvalidInputError(
                    f"attributes: got {list(self.attributes)}; expected some of"
                    f" {list(judge.names)}, which judge {judge.name} reads, or intersections such"
                    " as 'gender x race'"
                )
        if scorer is None and self.needs_scorer:
            raise InvalidInputError(
                f"{self.name}: expected an image-text model for CLIPScore and FID; give --model"
            )
