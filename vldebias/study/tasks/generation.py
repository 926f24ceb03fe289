"""Generate images with and without each method, and compare what a judge sees in them.

Source: Table 7.7 and section 7.6.4 of the thesis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, SerializeAsAny

from vldebias import programs
from vldebias.data.parallel import processes
from vldebias.data.prompt_file import read_prompts
from vldebias.errors import InvalidInputError
from vldebias.hosts import resolve
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.loading import Loaded
from vldebias.judge.judges import JUDGES, ClipJudge, Judge, JudgeSpec, checked_judge
from vldebias.judge.plan import SEED_STEP, GeneratedImages, Plan, planned_prompts
from vldebias.judge.scores import judge_images, scored
from vldebias.judge.stored import SURE
from vldebias.measure.rows import NONE, TaskResult
from vldebias.methods import get_method
from vldebias.methods.declared import PIPELINES
from vldebias.prompts import PromptSet, fill
from vldebias.study.inputs import Inputs
from vldebias.study.task import AttributeField, Task, register_task
from vldebias.study.tasks.generated_rows import GeneratedRows, image_table
from vldebias.study.tasks.share_rows import ABOUT_GAP
from vldebias.study.tasks.variants import Variant, generate
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Count, Name, Share, file_slug, one_of
from vldebias.wording import balance_prompts

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

ABOUT = (
    "Images for each prompt are generated from the same noise with and without the method. Shares"
    " are computed over the images that the judge can label; the number of other images is"
    f" reported. {ABOUT_GAP} The interval for a single prompt is computed over its images."
)
CODES = Mapping[str, Mapping[str, int]]  # attribute -> lower-case value -> the judge's code


@register_task
class GenerationTask(Task):
    """Generate images with and without edits, then judge and measure them.

    An interrupted run resumes where it stopped.

    Attributes:
        name: first word of each block name ("generation gender"). If it equals the attribute, it is
            used as the entire block name.
        attribute: the prompt set to generate images for: its class prompts, and its pairs if
            `stated` is set.
        subjects: concepts to generate instead of the set's unseen ones (section 7.6.4).
        prompts_file: file with one prompt per line, used instead of the set's concepts. Prompts
            that state a value or do not describe one person are skipped, and counted by reason in
            the settings.
        attributes: attributes to judge; "gender x race" for an intersection. If every concept is a
            value of one of the judge's attributes, the share of images that show their concept is
            also measured.
        judge: classifier that labels the images; required for measuring.
        variants: name -> how to debias, with any method that supports pipelines. The original
            pipeline, "none", is always included.
        images: number of images per prompt and seed.
        seeds: run seeds; image i of a run has the seed 10,000 x run + i.
        concepts: "train" (the prompts that an edit is fitted on), "unseen" or "both".
        stated: whether to also generate images for prompts that state the attribute, both leaving
            these prompts unchanged and editing them.
        as_written: whether to also generate images for five everyday wordings of each held-out
            concept, and for prompts about no person or a named person, which no method should
            change (`vldebias.judge.plan.WORDINGS`, `OTHERS`).
        stated_images: number of images per seed for each prompt that states a value, each wording
            and each other prompt; at most `images`.
        noun: the noun for concepts in reports.
        sure: minimum probability at which a judge's answer counts.
        steps, guidance, batch_size: pipeline settings.
        options: further pipeline arguments, such as {"height": 512}.
        clip_score, fid: whether to also measure CLIPScore and FID, with an image-text model.
    """

    task: Literal["generation"] = "generation"
    name: Name = "generation"
    title: str = "Generated images"
    attribute: AttributeField
    subjects: tuple[str, ...] = ()
    prompts_file: Path | None = None
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    judge: Annotated[SerializeAsAny[JudgeSpec], one_of(JUDGES, "kind")] | None = None
    variants: Annotated[dict[str, Variant], Field(min_length=1)]
    images: Annotated[Count, Field(le=SEED_STEP)] = 100  # more would reuse the next run's seeds
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
            inputs: the user's inputs.
            settings: task settings by name.

        Raises:
            InvalidInputError: If no folder for the images was passed.
        """
        if "images" not in inputs.sources:
            raise InvalidInputError(
                "images: got no folder; expected a folder with images, or an empty one for new ones"
            )
        fields = dict(settings)
        variants = {}
        methods = fields.pop("methods", ())
        assert isinstance(methods, Sequence)  # as passed by `vldebias.evaluate`
        for method in methods:
            name = get_method(method).name
            if name != NONE:
                variants[name] = {"method": name}
        if variants:
            fields = {"variants": variants, **fields}
        return cls.build(fields)

    @property
    def prompt_set(self) -> PromptSet:
        """Return the prompt set to generate images for.

        If the task has its own subjects or a prompt file, they replace the unseen concepts.
        """
        if self.prompts_file is not None:
            # Each prompt in the user's file is its own concept, without a class name or pairs.
            prompts, _ = self._open_prompts(self.prompts_file)
            return self._with_unseen(self.prompts_file.name, prompts, prompts, ())
        if not self.subjects:
            return self.attribute
        # The class prompt is "a photo of a waterbird"; its pair is "a photo of a waterbird with
        # water background" and the same with a land background.
        template = self.attribute.templates[0]
        words = [synonyms[0] for synonyms in self.attribute.attributes.values()]
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
        """Replace the prompt set's unseen concepts, and append `name` to its name."""
        return replace(
            self.attribute,
            name=f"{self.attribute.name}, {name}",
            held_out_class_names=names,
            held_out_classes=classes,
            held_out_variants=groups,
        )

    def _open_prompts(self, file: Path) -> tuple[tuple[str, ...], dict[str, int]]:
        """Return the prompts in a file that do not state a value, and count the skipped ones.

        Skipped prompts are counted by reason. Prompts about groups of people are skipped, because a
        judge assigns a single value to each image.

        Raises:
            InvalidInputError: If every prompt is skipped.
        """
        # Measure each prompt only once.
        texts = tuple(dict.fromkeys(read_prompts(file).prompts))
        # Apply the rules for balanced prompts, so that all methods are measured on prompts that
        # every one of them may change.
        reasons = balance_prompts(texts, self.attribute, seed=0, people="leave").reasons
        pairs = zip(texts, reasons, strict=True)
        kept = tuple(text for text, reason in pairs if reason is None)
        left_out = dict(Counter(reason for reason in reasons if reason is not None))
        if not kept:
            values = list(self.attribute.attributes)
            raise InvalidInputError(
                f"{file}: add prompts that leave {values} open; all were skipped: {left_out}"
            )
        return kept, left_out

    @property
    def needs_scorer(self) -> bool:
        """Return whether an image-text model is needed to score the images."""
        return self.clip_score or self.fid

    @property
    def resolved_variants(self) -> dict[str, Variant]:
        """Return the variants, using the task's prompt set for those that have none.

        If `stated` is set, each variant that leaves prompts with a stated value unchanged gets a
        second version that edits them.
        """
        variants = {}
        for name, variant in self.variants.items():
            has_sets = variant.attribute or variant.projection is not None
            own_set = {"attribute": (self.attribute,)}
            variants[name] = variant if has_sets else variant.model_copy(update=own_set)
        edits_stated = {"keep_stated": False, "only_stated": True}
        # Comparing the two versions shows how much a plain projection damages prompts that state a
        # value, such as "a female doctor".
        for name, variant in list(variants.items()):
            if self.stated and variant.keep_stated and not variant.assigns_values:
                variants.setdefault(
                    f"{name}, stated not kept", variant.model_copy(update=edits_stated)
                )
        return variants

    def plan(self, model: Mapping[str, object] | None = None) -> Plan:
        """Return the plan that lists the images to generate.

        Args:
            model: `identity` of the pipeline, if it is known.
        """
        prompt_set = self.prompt_set
        planned = planned_prompts(
            prompt_set, self.concepts, stated=self.stated, as_written=self.as_written
        )
        variants = {name: variant.planned for name, variant in self.resolved_variants.items()}
        fields = {
            "images": self.images,
            "steps": self.steps,
            "guidance": self.guidance,
            "batch_size": self.batch_size,
            "options": self.options,
            "model": model or {},
            "prompt_set": prompt_set.name,
            "prompt_set_hash": prompt_set.hash,
            "prompts": planned,
            "variants": {NONE: {}, **variants},
            "seeds": tuple(dict.fromkeys(self.seeds)),
            "stated_images": min(self.images, self.stated_images),
        }
        return Plan.build(fields)

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's options, and the user's methods or edits as variants.

        Methods that do not support pipelines are skipped, since other tasks in the suite use them.
        """
        if options.label_file:
            raise InvalidInputError(
                "--label-file is for data sets; to evaluate generated images by their labels, run"
                " vldebias eval human --label-file FILE"
            )
        # Several processes would write the same images to the same folder.
        if processes().world > 1:
            raise InvalidInputError(
                f"{self.name}: expected a single process to generate images; do not launch several,"
                " or exclude the task with --only"
            )
        variants = dict(self.variants)
        # Apply the other settings (strength, sets) of the suite's first variant to the user's
        # methods.
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
        """Return the inputs for `measure`.

        These are the pipeline, the plan, the image folder ("<out>/images/<task>" by default), the
        judge and the scorer (None if not needed).
        """
        judge = inputs.sources.get("judge")
        if self.judge is not None:
            judge = checked_judge(self.judge, self.judge.ready(self, inputs))
        if judge is None:
            raise InvalidInputError(
                f"{self.name}: expected a judge to label the images; add `judge:` to the suite"
            )
        # Compute CLIPScore and FID with the user's model if there is one, because the judge's model
        # would bring in its own biases. Otherwise, use the judge's model, which is loaded anyway.
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
            images: output folder; existing images are not generated again.
            judge: judge that labels the images (`vldebias.judge.judges`).
            pipe: diffusers pipeline without an attachment. If None, all images must already exist.
            scorer: image-text model for CLIPScore and FID, with its preprocessing.
            progress: object that shows progress bars.

        Returns:
            One result per attribute, followed by results for CLIPScore and FID.

        Raises:
            AlreadyAttachedError: If the pipeline has an attachment.
            InvalidInputError: If `generate` rejects the arguments, the judge does not know an
                attribute (checked before anything is generated), or the images belong to a
                different prompt set.
        """
        # Check the judge first. Otherwise, an error would only appear after hours of generation.
        self._check_judge(judge, scorer)
        codes: dict[str, dict[str, int]] = {}
        for attribute, values in judge.names.items():
            codes[attribute] = {name.casefold(): code for code, name in enumerate(values)}
        prompt_set = self.prompt_set
        stated_codes = self._stated_codes(judge, codes)
        # Generate the missing images, and let the judge label all of them.
        variants = self.resolved_variants
        if pipe is None:
            generated = GeneratedImages.open(images)
        else:
            generated = generate(pipe, self.plan(), variants, images, progress=progress)
        if prompt_set.hash != generated.plan.prompt_set_hash:
            raise InvalidInputError(
                f"{generated.folder}: got images for a different version of"
                f" {generated.plan.prompt_set!r}; expected images for {prompt_set!r}"
            )
        answers = judge_images(judge, generated, progress=progress)
        table = image_table(generated, answers, codes)
        rows = GeneratedRows(
            generated, table, answers, judge, self.sure, self.noun, self.resamples, self.seed
        )
        # Add a block for each attribute.
        settings: dict[str, object] = {
            "judge fingerprint": judge.fingerprint,
            "images that the safety checker blackened": rows.flagged,
        }
        if self.prompts_file is not None:
            _, settings["left out, by reason"] = self._open_prompts(self.prompts_file)
        results = []
        for place, attribute in enumerate(self.attributes):
            result = self._empty_result(rows, attribute, settings)
            # All attributes share the same images, so show them in the first block only.
            rows.add(result, attribute, stated_codes.get(attribute), has_pictures=place == 0)
            results.append(result)
            if attribute in judge.names:
                for handle in programs.hooks("images judged"):
                    handle(generated, judge, attribute, answers[attribute], self.sure)
        if scorer is not None and self.needs_scorer:
            encoder = image_encoder(scorer.host, scorer.preprocess, name=scorer.name)
            texts = resolve(scorer.host, tokenizer=scorer.tokenizer)
            with progress.bar(f"{self.name}: CLIPScore, FID"):
                results += scored(
                    generated,
                    encoder,
                    texts,
                    self.name,
                    clip=self.clip_score,
                    fid=self.fid,
                    resamples=self.resamples,
                    seed=self.seed,
                )
        return results

    def _empty_result(
        self, rows: GeneratedRows, attribute: str, measured: Mapping[str, object]
    ) -> TaskResult:
        """Return an attribute's result without rows.

        Args:
            rows: the judged images.
            attribute: the attribute.
            measured: settings that are known after judging.
        """
        generated = rows.generated
        judge = rows.judge.name
        values = rows.values_of(attribute)
        result = generated.result(
            task=self.name if self.name == attribute else f"{self.name} {attribute}",
            title=f"Discrepancy of generated images, {attribute} (Chuang's thesis, Table 7.7)",
            description=ABOUT,
            settings=self.settings({**measured, "judge": judge, "values": values}),
        )
        judged = list(values.values())
        variants = self.resolved_variants
        for name, facts in result.provenance.methods.items():
            if name not in variants:
                continue
            # If a method assigns the judged values to images, their shares are not random.
            if variants[name].assigns_all_of(judged):
                facts["assigns_values"] = True
            # Do not judge a method for gender, for example, by results for race.
            if not variants[name].covers(judged):
                facts["off_target"] = True
        return result

    def _stated_codes(self, judge: Judge, codes: CODES) -> dict[str, dict[str, int]]:
        """Return the judge's codes for the values stated in prompts: attribute -> value -> code.

        The mapping is empty if no prompt states a value.

        Raises:
            InvalidInputError: If no attribute of the judge has a distinct value for each value that
                the prompts state.
        """
        if not self.stated:
            return {}
        prompt_set = self.prompt_set
        for attribute, code_of_word in codes.items():
            code_of_value = {}
            for value, words in prompt_set.attributes.items():
                # Look up the value itself first, then its words in order.
                for word in (value, *words):
                    if word.casefold() in code_of_word:
                        code_of_value[value] = code_of_word[word.casefold()]
                        break
            n_different = len(set(code_of_value.values()))
            if len(code_of_value) == len(prompt_set.attributes) == n_different:
                return {attribute: code_of_value}
        raise InvalidInputError(
            f"judge {judge.name}: expected an attribute with the values"
            f" {list(prompt_set.attributes)} that {prompt_set.name!r} states; use a different"
            " judge or stated=False"
        )

    def _check_judge(self, judge: Judge, scorer: Loaded | None) -> None:
        """Reject a judge that does not know the attributes, and a missing scorer."""
        for attribute in self.attributes:
            if not set(attribute.split(" x ")) <= set(judge.names):
                raise InvalidInputError(
                    f"attributes: got {list(self.attributes)}; expected some of"
                    f" {list(judge.names)}, which judge {judge.name} recognises, or intersections"
                    " such as 'gender x race'"
                )
        if scorer is None and self.needs_scorer:
            raise InvalidInputError(
                f"{self.name}: expected an image-text model for CLIPScore and FID; pass --model"
            )
