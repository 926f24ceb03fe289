"""Debias a pipeline with any method or a saved edit, and generate the images of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, model_validator

from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, InvalidInputError
from vldebias.hosts import (
    Attachment,
    DenoiserAttachment,
    EditAttachment,
    PromptAttachment,
    SamplingAttachment,
    attachment_of,
)
from vldebias.judge.plan import GeneratedImages, Plan, PlannedImage, hash_of, identity
from vldebias.methods import (
    METHODS,
    Balanced,
    Problem,
    get_method,
    load_edit,
)
from vldebias.methods.balanced import why_not_balanced
from vldebias.methods.declared import PIPELINES
from vldebias.prompts import PromptSet, can_balance
from vldebias.report.result import NONE
from vldebias.study.task import SeveralPrompts
from vldebias.utils.files import digest
from vldebias.utils.pictures import read_png, write_png
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Lam, Share, Strict

if TYPE_CHECKING:
    from PIL.Image import Image


class Variant(Strict):
    """Hold one way to debias a pipeline: the arguments of `vldebias.debias`, or a saved edit.

    prompts: sets that are solved jointly; none: the set that is generated. lam = 500 is the paper's
        (section 7.6).
    strength: share of the edit, and of "balanced-prompts" share of the images.
    projection: a folder that `save_pretrained` or `vldebias debias --out` wrote.
    only_stated: generate the prompts that state a value alone.
    """

    prompts: SeveralPrompts = ()
    method: str = "cali"
    lam: Annotated[Lam, Field(allow_inf_nan=False)] = 500.0
    strength: Share = 1.0
    keep_stated: bool = True
    projection: Path | None = None
    only_stated: bool = False

    @model_validator(mode="after")
    def _check_method(self) -> Variant:
        if PIPELINES not in get_method(self.method).declaration.hosts:
            expected = []
            for name, method in METHODS.items():
                if PIPELINES in method.declaration.hosts:
                    expected.append(name)
            raise ValueError(
                f"method {self.method!r} is not for pipelines; expected one of"
                f" {', '.join(expected)}"
            )
        # Fields that were set, not fields that differ from a default: a user who writes lam: 500
        # beside a saved projection expects it to be used.
        clash = self.model_fields_set & {"prompts", "method", "lam"}
        if self.projection is not None and clash:
            raise ValueError(
                f"a saved projection carries its own {', '.join(sorted(clash))}; leave them out"
            )
        return self

    @property
    def _parts(self) -> list[PromptSet]:
        """Return the prompt sets, those of several attributes in parts."""
        parts: list[PromptSet] = []
        for prompts in self.prompts:
            parts += prompts.parts or (prompts,)
        return parts

    @property
    def rewrites(self) -> bool:
        """Return whether it balances prompts, as the default does for sets about persons, and fits
        no edit."""
        if self.projection is not None:
            return False
        if isinstance(get_method(self.method), Balanced):
            return True
        parts = self._parts
        # The default of a pipeline balances prompts where a set is about persons, and fits "cali"
        # where it is not, as for backgrounds: the same rule as `vldebias.debias`.
        return self.method == "default" and bool(parts) and all(map(can_balance, parts))

    @property
    def samples(self) -> bool:
        """Return whether it gives each image a value of its own, in its prompt or in
        cross-attention; prompts that state one are always kept."""
        if self.projection is not None:
            saved = load_edit(self.projection)
            edits = saved.values() if isinstance(saved, Mapping) else [saved]
            return all(edit.side == "denoiser" for edit in edits)
        return self.rewrites or "shares" in get_method(self.method).declaration.settings

    def deals(self, judged: Sequence[Sequence[str]]) -> bool:
        """Return whether every image is dealt a value of each attribute.

        judged: the values of each attribute.
        """
        # A deal makes shares even by construction, so its chance is not that of random draws. It
        # counts only if every attribute that is judged was dealt, and on all images.
        is_each = bool(self._parts) and self.covers(judged)
        return self.samples and self.strength == 1 and is_each

    def covers(self, judged: Sequence[Sequence[str]]) -> bool:
        """Return whether its prompt sets are about every judged attribute; True for a saved edit,
        whose sets are not known here.

        judged: the values of each attribute.
        """
        covered = [_casefolded(prompts.attributes) for prompts in self._parts]
        return not covered or all(_casefolded(values) in covered for values in judged)

    @property
    def _lam(self) -> float | None:
        return self.lam if get_method(self.method).declaration.has_lam else None

    def check_pipeline(self, pipe: Any) -> None:
        """Refuse a pipeline on which the default is an edit, where the plan says that it balances
        prompts, as where it changes given images."""
        if self.method != "default" or not self.rewrites:
            return
        reason = why_not_balanced(Problem(pipe, list(self.prompts)))
        if reason is not None:
            raise InvalidInputError(
                f"method 'default': {reason}, so that the default is an edit; name the method that"
                " is measured, 'cali' or 'balanced-prompts'"
            )

    def attach(self, pipe: Any) -> Attachment:
        """Attach the variant to a pipeline."""
        common: dict[str, Any] = {"strength": self.strength, "keep_stated": self.keep_stated}
        if self.projection:
            return debias(pipe, load_edit(self.projection), **common)
        return debias(pipe, list(self.prompts), method=self.method, lam=self._lam, **common)

    @property
    def planned(self) -> dict[str, Any]:
        """Return the description of the variant in a plan; sets: name -> hash, projection: digest
        of its files."""
        description = self.model_dump(include={"strength", "keep_stated", "only_stated"})
        if self.projection is None:
            return {
                **description,
                "sets": {prompts.name: prompts.hash for prompts in self.prompts},
                "method": "balanced-prompts" if self.rewrites else self.method,
                "lam": self._lam,
            }
        saved = load_edit(self.projection)
        # Edits of several roles were fitted by one call: what is said of the first is true of all.
        edit = next(iter(saved.values())) if isinstance(saved, Mapping) else saved
        origin = edit.provenance
        lam: float | tuple[float, ...] | None = origin.lam
        # An edit of a method that this machine does not know may have used its lambda.
        has_lam = origin.method not in METHODS or METHODS[origin.method].declaration.has_lam
        if not has_lam or not isinstance(lam, float):
            lam = None
        files = sorted(self.projection.rglob("*.safetensors"))
        return {
            **description,
            "sets": {origin.prompts or "projection": origin.prompts_hash or ""},
            "method": origin.method,
            "lam": lam,
            # By content: a folder that was fitted again under the same name is another variant.
            "projection": hash_of(list(map(digest, files))),
        }


def _casefolded(values: Any) -> set[str]:
    return {value.casefold() for value in values}


@dataclass(frozen=True)
class Generator:
    """Generate images by their numbers, each from a random generator of its own.

    texts, noise: of each image; noise are seeds. options: of the pipeline. values: what was written
    into the text of each image or is set in cross-attention, None where nothing is. left_alone:
    whether the variant does not change the prompt. attachment: gives images their values in
    cross-attention; None where nothing is set there.
    """

    pipe: Any
    texts: Sequence[str]
    noise: Sequence[int]
    options: Mapping[str, Any]
    values: Sequence[Any]
    left_alone: Sequence[bool]
    attachment: DenoiserAttachment | None = None

    def __call__(self, numbers: Sequence[int]) -> list[tuple[Image, bool]]:
        """Return each image, and whether the safety checker replaced it by black."""
        options = dict(self.options)
        for name, value in options.items():
            if name.startswith("negative_prompt"):
                # Pipelines want as many negative prompts as prompts.
                options[name] = [value] * len(numbers)
        with ExitStack() as stack:
            if self.attachment is not None:
                stack.enter_context(self.attachment.giving([self.values[i] for i in numbers]))
            output = self.pipe(
                [self.texts[i] for i in numbers],
                # A generator for each image, on the CPU whatever the device: noise then depends on
                # the image alone, not on its place in a batch nor on the machine.
                generator=[torch.Generator("cpu").manual_seed(self.noise[i]) for i in numbers],
                output_type="pil",
                **options,
            )
        flagged = getattr(output, "nsfw_content_detected", None) or [False] * len(numbers)
        return [(image, bool(flag)) for image, flag in zip(output.images, flagged, strict=True)]


@contextmanager
def prepared(
    pipe: Any,
    attach: Callable[[], Attachment] | None,
    prompts: Sequence[str],
    noise: Sequence[int],
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[Generator]:
    """Attach a method for the context; yield what generates images by their numbers.

    Prompts are rewritten all at once, so values are balanced over all of them.

    Args:
        pipe: a diffusers pipeline.
        attach: attaches the method; None for the pipeline as it is.
        prompts: one per image.
        noise: seeds of the generators, one per image.
        seeds: one per image, which decide the values that are dealt; None: they are dealt over all
            images at once.
        options: of the pipeline.

    Raises:
        AlreadyAttachedError: the pipeline carries an attachment.
    """
    carried = attachment_of(pipe)
    if carried is not None:
        raise AlreadyAttachedError(
            f"{type(pipe).__name__} carries {carried!r}: call .remove() on it first"
        )
    with ExitStack() as stack:
        before = dict(getattr(pipe, "_progress_bar_config", {}))
        # The pipeline would show a bar for each batch.
        pipe.set_progress_bar_config(**{**before, "disable": True})
        stack.callback(pipe.set_progress_bar_config, **before)
        attachment = None if attach is None else stack.enter_context(attach())
        texts = list(prompts)
        values: list[Any] = [None] * len(texts)
        left_alone = [False] * len(texts)
        giving = None
        if isinstance(attachment, SamplingAttachment) and attachment.balancer.has_drawn_seed:
            # What is measured can be measured again.
            attachment.seed = 0
        # A prompt that is left unchanged gives the picture of "none", which is copied and not
        # generated again.
        if isinstance(attachment, PromptAttachment):
            texts = attachment.rewrite(prompts, seeds=seeds)
            values = attachment.sampled
            left_alone = [text == prompt for text, prompt in zip(texts, prompts, strict=True)]
            # Batches are not rewritten again.
            stack.enter_context(attachment.disabled())
        elif isinstance(attachment, DenoiserAttachment):
            # A value is set in cross-attention, and the prompt stays as it is.
            giving = attachment
            values = attachment.sample(prompts, seeds=seeds)
            for place, value in enumerate(values):
                parts = value if isinstance(value, tuple) else (value,)
                has_value = any(part is not None for part in parts)
                left_alone[place] = not attachment.strength or not has_value
        elif isinstance(attachment, EditAttachment):
            left_alone = attachment.stated(prompts)
        yield Generator(pipe, texts, noise, options, values, left_alone, giving)


def generate(
    pipe: Any,
    plan: Plan,
    variants: Mapping[str, Variant],
    folder: str | Path,
    *,
    follow_seeds: bool = False,
    progress: Progress = SILENT,
) -> GeneratedImages:
    """Generate the images of `plan` that `folder` does not hold yet.

    Every image has its own random generator and the plan fixes the batches, so the pixels are the
    same however often a run was interrupted. Missing and damaged files are generated again. Images
    of prompts that a variant leaves alone are copied from "none". Nothing is fitted where no image
    of a variant is missing.

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` takes.
        plan: plan of a `GenerationTask`.
        variants: variants of a `GenerationTask`.
        folder: for the images.
        follow_seeds: whether the values that are dealt follow from the seed of each image, or are
            dealt over all of them at once.
        progress: shows how far it is.

    Raises:
        InvalidInputError: the folder holds another plan; the message says what differs. A variant
            "default" on a pipeline whose default is an edit.
    """
    for variant in variants.values():
        variant.check_pipeline(pipe)
    identified = plan.model_copy(update={"model": plan.model or identity(pipe)})
    made = identified.settle(Path(folder))
    unfinished = _unfinished(made)
    n_missing = sum(len(missing) for _, missing in chain(*unfinished.values()))
    options = {
        "num_inference_steps": plan.steps,
        "guidance_scale": plan.guidance,
        **plan.options,
    }
    with progress.bar("generating", n_missing, reused=len(made) - n_missing) as advance:
        # "none" is the first variant of a plan: others copy images from it.
        for name, batches in unfinished.items():
            images = made.of_variant(name)
            attach = None if name == NONE else partial(variants[name].attach, pipe)
            # All prompts of the variant, also of finished batches: balanced prompts are even over
            # all of them, so a resumed run has to deal the same values again.
            prompts = [image.prompt for image in images]
            noise = [image.noise for image in images]
            seeds = [image.seed for image in images] if follow_seeds else None
            with prepared(pipe, attach, prompts, noise, seeds, **options) as generator:
                for batch, missing in batches:
                    _write_batch(made, images, generator, batch, missing)
                    advance(len(missing))
    return made


def _unfinished(made: GeneratedImages) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Return variant -> its batches of which an image is missing, damaged or of another plan, as
    positions among the images of the variant: of the whole batch, and of the missing images.

    Finished variants are left out: fitting takes minutes on a large pipeline, and nothing would be
    generated.
    """
    missing_paths = set()
    for image in made:
        with suppress(OSError):
            _, metadata = read_png(made.path(image))
            # A superset: a file also holds what only generating knows, such as the value that was
            # dealt.
            if metadata.items() >= _record(made, image).items():
                continue
        missing_paths.add(image.path)
    batches_of_variant: dict[str, list[tuple[list[int], list[int]]]] = {}
    for name in made.plan.variants:
        images = made.of_variant(name)
        for batch in made.plan.batches(images):
            missing = [i for i in batch if images[i].path in missing_paths]
            if missing:
                batches_of_variant.setdefault(name, []).append((batch, missing))
    return batches_of_variant


def _record(made: GeneratedImages, image: PlannedImage) -> dict[str, Any]:
    """Return what the file of an image says of how it was generated; one that says something else
    belongs to another plan."""
    plan = made.plan
    return {
        **vars(image),
        "noise": image.noise,
        "method": NONE,
        **plan.variants[image.variant],
        "steps": plan.steps,
        "guidance": plan.guidance,
        "options": plan.options,
        "model": plan.model.get("id"),
        "pipeline": plan.model.get("pipeline"),
        "fingerprint": hash_of(plan.model.get("fingerprint")),
    }


def _write_batch(
    made: GeneratedImages,
    images: Sequence[PlannedImage],
    generator: Generator,
    batch: Sequence[int],
    missing: Sequence[int],
) -> None:
    """Write the missing images of a batch.

    The whole batch is generated, even where some of its images exist: pixels depend on the batch.
    An image whose prompt is left alone is that of "none": text embeddings, noise and size of the
    batch are equal.
    """
    # Where all missing images are copies, the pipeline need not run.
    generated: dict[int, tuple[Image, bool]] = {}
    if not all(generator.left_alone[i] for i in missing):
        generated = dict(zip(batch, generator(batch), strict=True))
    for i in missing:
        if generator.left_alone[i]:
            picture, metadata = read_png(made.path(images[i].under(NONE)))
            is_flagged = bool(metadata.get("flagged"))
        else:
            picture, is_flagged = generated[i]
        metadata_of_image = {
            "left_alone": generator.left_alone[i],
            "flagged": is_flagged,
            "version": version("vldebias"),
            "value": generator.values[i],
            "generated prompt": generator.texts[i],
        }
        write_png(picture, made.path(images[i]), {**_record(made, images[i]), **metadata_of_image})
