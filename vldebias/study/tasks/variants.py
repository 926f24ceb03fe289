"""Debias a pipeline with a method or a saved edit, and generate the images in a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from vldebias.judge.plan import Facts, GeneratedImages, Plan, PlannedImage, hash_of, identity
from vldebias.measure.rows import NONE
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
from vldebias.study.task import AttributeFields
from vldebias.utils.files import digest
from vldebias.utils.pictures import read_png, write_png
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Lam, Share, Strict

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from PIL.Image import Image


class Variant(Strict):
    """One way to debias a pipeline: arguments of `vldebias.debias`, or a saved edit.

    Attributes:
        attribute: prompt sets, solved jointly. If empty, the set that images are generated for.
        method: name of a method that supports pipelines.
        lam: weight of the prompt pairs; 500 in the paper (section 7.6).
        strength: strength of the edit; for "balanced-prompts", the share of images that change.
        keep_stated: whether to leave prompts that state a value unchanged.
        projection: folder created by `save_pretrained` or `vldebias debias --out`.
        only_stated: whether to only generate images for prompts that state a value.
    """

    attribute: AttributeFields = ()
    method: str = "cali"
    lam: Annotated[Lam, Field(allow_inf_nan=False)] = 500.0
    strength: Share = 1.0
    keep_stated: bool = True
    projection: Path | None = None
    only_stated: bool = False

    @model_validator(mode="after")
    def _check_method(self) -> Variant:
        if PIPELINES not in get_method(self.method).declaration.hosts:
            expected = [name for name in METHODS if PIPELINES in METHODS[name].declaration.hosts]
            raise ValueError(
                f"method {self.method!r} does not support pipelines; expected one of"
                f" {', '.join(expected)}"
            )
        # Check which fields were set explicitly, even to their defaults. A user who sets lam: 500
        # together with a saved projection expects it to be used.
        clash = self.model_fields_set & {"attribute", "method", "lam"}
        if self.projection is not None and clash:
            raise ValueError(
                f"a saved projection already determines {', '.join(sorted(clash))}; remove these"
                " settings"
            )
        return self

    @property
    def _parts(self) -> list[PromptSet]:
        """Return the prompt sets, with sets for several attributes split into their parts."""
        parts: list[PromptSet] = []
        for prompt_set in self.attribute:
            parts += prompt_set.parts or (prompt_set,)
        return parts

    @property
    def rewrites(self) -> bool:
        """Return whether the variant balances prompts instead of fitting an edit."""
        if self.projection is not None:
            return False
        if isinstance(get_method(self.method), Balanced):
            return True
        parts = self._parts
        # As in `vldebias.debias`, the default balances prompts for sets about people, and fits
        # "cali" for other sets, such as backgrounds.
        return self.method == "default" and bool(parts) and all(map(can_balance, parts))

    @property
    def assigns_values(self) -> bool:
        """Return whether each image is assigned a value, in its prompt or in cross-attention.

        Variants that assign values always leave prompts that state a value unchanged.
        """
        if self.projection is not None:
            saved = load_edit(self.projection)
            edits = saved.values() if isinstance(saved, Mapping) else [saved]
            return all(edit.side == "denoiser" for edit in edits)
        return self.rewrites or "shares" in get_method(self.method).declaration.settings

    def assigns_all_of(self, judged: Sequence[Sequence[str]]) -> bool:
        """Return whether every image is assigned a value of each attribute.

        The shares are then equal by construction, so the gap that random draws would have does not
        apply.

        Args:
            judged: values of each judged attribute.
        """
        is_each = bool(self._parts) and self.covers(judged)
        return self.assigns_values and self.strength == 1 and is_each

    def covers(self, judged: Sequence[Sequence[str]]) -> bool:
        """Return whether the prompt sets cover every judged attribute (True for saved edits).

        Args:
            judged: values of each judged attribute.
        """
        covered = [_casefolded(prompt_set.attributes) for prompt_set in self._parts]
        return not covered or all(_casefolded(values) in covered for values in judged)

    @property
    def _lam(self) -> float | None:
        return self.lam if get_method(self.method).declaration.has_lam else None

    def check_pipeline(self, pipe: DiffusionPipeline) -> None:
        """Raise an error if balanced prompts are planned but the pipeline's default is an edit.

        Raises:
            InvalidInputError: If the pipeline cannot use balanced prompts.
        """
        if self.method != "default" or not self.rewrites:
            return
        reason = why_not_balanced(Problem(pipe, list(self.attribute)))
        if reason is not None:
            raise InvalidInputError(
                f"method 'default': {reason}, so the default is an edit; choose the method to"
                " measure explicitly, 'cali' or 'balanced-prompts'"
            )

    def attach(self, pipe: DiffusionPipeline) -> Attachment:
        """Attach the variant to a pipeline."""
        if self.projection:
            edit = load_edit(self.projection)
            return debias(pipe, edit, strength=self.strength, keep_stated=self.keep_stated)
        return debias(
            pipe,
            list(self.attribute),
            method=self.method,
            lam=self._lam,
            strength=self.strength,
            keep_stated=self.keep_stated,
        )

    @property
    def planned(self) -> Facts:
        """Describe the variant for a plan, with hashes of its prompt sets and files."""
        description = self.model_dump(include={"strength", "keep_stated", "only_stated"})
        if self.projection is None:
            return {
                **description,
                "sets": {prompt_set.name: prompt_set.hash for prompt_set in self.attribute},
                "method": "balanced-prompts" if self.rewrites else self.method,
                "lam": self._lam,
            }
        saved = load_edit(self.projection)
        # Edits for several roles were fitted by one call, so the first one describes all of them.
        edit = next(iter(saved.values())) if isinstance(saved, Mapping) else saved
        origin = edit.provenance
        lam: float | tuple[float, ...] | None = origin.lam
        # Assume that an unregistered method may have used lambda.
        has_lam = origin.method not in METHODS or METHODS[origin.method].declaration.has_lam
        if not has_lam or not isinstance(lam, float):
            lam = None
        files = sorted(self.projection.rglob("*.safetensors"))
        return {
            **description,
            "sets": {origin.attribute or "projection": origin.attribute_hash or ""},
            "method": origin.method,
            "lam": lam,
            # Hash the content, since a folder with the same name may contain a newer edit.
            "projection": hash_of(list(map(digest, files))),
        }


def _casefolded(values: Iterable[str]) -> set[str]:
    return {value.casefold() for value in values}


@dataclass(frozen=True)
class Generator:
    """Generates images by index, each with its own random number generator.

    Attributes:
        pipe: the diffusers pipeline.
        texts: prompt for each image.
        noise: noise seed for each image.
        options: further arguments for calling the pipeline.
        values: value inserted into each image's prompt or set in cross-attention, or None.
        left_unchanged: whether each prompt is left unchanged.
        attachment: attachment that sets values in cross-attention, or None.
    """

    pipe: DiffusionPipeline
    texts: Sequence[str]
    noise: Sequence[int]
    options: Mapping[str, object]
    values: Sequence[object]
    left_unchanged: Sequence[bool]
    attachment: DenoiserAttachment | None = None

    def __call__(self, numbers: Sequence[int]) -> list[tuple[Image, bool]]:
        """Return the images at the given indices, and whether the safety checker blackened them."""
        options = dict(self.options)
        for name, value in options.items():
            if name.startswith("negative_prompt"):
                # Pipelines expect as many negative prompts as prompts.
                options[name] = [value] * len(numbers)
        with ExitStack() as stack:
            if self.attachment is not None:
                stack.enter_context(self.attachment.giving([self.values[i] for i in numbers]))
            output = self.pipe(
                [self.texts[i] for i in numbers],
                # Use one generator per image, always on the CPU, so that the noise only depends on
                # the image, and not on the batch or the machine.
                generator=[torch.Generator("cpu").manual_seed(self.noise[i]) for i in numbers],
                output_type="pil",
                **options,
            )
        flagged = getattr(output, "nsfw_content_detected", None) or [False] * len(numbers)
        return [(image, bool(flag)) for image, flag in zip(output.images, flagged, strict=True)]


@contextmanager
def prepared(
    pipe: DiffusionPipeline,
    attach: Callable[[], Attachment] | None,
    prompts: Sequence[str],
    noise: Sequence[int],
    seeds: Sequence[int] | None = None,
    **options: object,
) -> Iterator[Generator]:
    """Attach a method within the context, and yield an image generator.

    All prompts are rewritten at once, so that values are balanced over all images.

    Args:
        pipe: a diffusers pipeline.
        attach: function that attaches the method, or None for the unedited pipeline.
        prompts: prompt for each image.
        noise: noise seed for each image.
        seeds: seed for each image, which determines its value. If None, values are balanced over
            all images.
        options: further arguments for calling the pipeline.

    Raises:
        AlreadyAttachedError: If the pipeline has an attachment.
    """
    current = attachment_of(pipe)
    if current is not None:
        raise AlreadyAttachedError(
            f"{type(pipe).__name__} already has the attachment {current!r}; call .remove() on it"
            " first"
        )
    with ExitStack() as stack:
        before = dict(getattr(pipe, "_progress_bar_config", {}))
        # Disable the progress bar that the pipeline shows for each batch.
        pipe.set_progress_bar_config(**{**before, "disable": True})
        stack.callback(pipe.set_progress_bar_config, **before)
        attachment = None if attach is None else stack.enter_context(attach())
        texts = list(prompts)
        values: list[object] = [None] * len(texts)
        left_unchanged = [False] * len(texts)
        denoiser = None
        if isinstance(attachment, SamplingAttachment) and attachment.balancer.has_drawn_seed:
            # A fixed seed makes the run reproducible.
            attachment.seed = 0
        # An unchanged prompt gives the same image as "none", which is copied instead of generated
        # again.
        if isinstance(attachment, PromptAttachment):
            texts = attachment.rewrite(prompts, seeds=seeds)
            values = list(attachment.sampled)
            left_unchanged = [text == prompt for text, prompt in zip(texts, prompts, strict=True)]
            # The prompts are already rewritten, so the pipeline must not rewrite them again.
            stack.enter_context(attachment.disabled())
        elif isinstance(attachment, DenoiserAttachment):
            # Values are set in cross-attention, so prompts are unchanged.
            denoiser = attachment
            values = list(attachment.sample(prompts, seeds=seeds))
            for place, value in enumerate(values):
                parts = value if isinstance(value, tuple) else (value,)
                has_value = any(part is not None for part in parts)
                left_unchanged[place] = not attachment.strength or not has_value
        elif isinstance(attachment, EditAttachment):
            left_unchanged = attachment.stated(prompts)
        yield Generator(pipe, texts, noise, options, values, left_unchanged, denoiser)


def generate(
    pipe: DiffusionPipeline,
    plan: Plan,
    variants: Mapping[str, Variant],
    folder: str | Path,
    *,
    follow_seeds: bool = False,
    progress: Progress = SILENT,
) -> GeneratedImages:
    """Generate the planned images that are missing from `folder`.

    Every image has its own random number generator, and the plan determines the batches, so a
    resumed run generates the same pixels as an uninterrupted one. Missing and damaged files are
    generated again. If a variant leaves a prompt unchanged, its images are copied from "none".
    Variants without missing images are not fitted.

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` supports.
        plan: plan from a `GenerationTask`.
        variants: variants from a `GenerationTask`.
        folder: output folder.
        follow_seeds: if True, the seed of each image determines its value; otherwise, values are
            balanced over all images.
        progress: object that shows progress bars.

    Raises:
        InvalidInputError: If the folder contains a different plan (the message lists the
            differences), or a variant is "default" and the pipeline's default is an edit.
    """
    for variant in variants.values():
        variant.check_pipeline(pipe)
    identified = plan.model_copy(update={"model": plan.model or identity(pipe)})
    generated = identified.settle(Path(folder), follow_seeds=follow_seeds)
    unfinished = _unfinished(generated)
    n_missing = sum(len(missing) for _, missing in chain(*unfinished.values()))
    options = {
        "num_inference_steps": plan.steps,
        "guidance_scale": plan.guidance,
        **plan.options,
    }
    with progress.bar("generating", n_missing, reused=len(generated) - n_missing) as advance:
        # "none" is the first variant in a plan, because other variants copy images from it.
        for name, batches in unfinished.items():
            images = generated.of_variant(name)
            attach = None if name == NONE else partial(variants[name].attach, pipe)
            # Include the prompts of finished batches, so that a resumed run assigns the same
            # values.
            prompts = [image.prompt for image in images]
            noise = [image.noise for image in images]
            seeds = [image.seed for image in images] if follow_seeds else None
            with prepared(pipe, attach, prompts, noise, seeds, **options) as generator:
                for batch, missing in batches:
                    _write_batch(generated, images, generator, batch, missing)
                    advance(len(missing))
    return generated


def _unfinished(generated: GeneratedImages) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Return the unfinished batches of each variant.

    Each batch is a pair: the positions of all its images, and those of the missing images. Images
    that are damaged or belong to a different plan count as missing. Finished variants are left out,
    since fitting takes minutes on a large pipeline.
    """
    missing_paths = set()
    for image in generated:
        with suppress(OSError):
            _, metadata = read_png(generated.path(image))
            # The stored metadata also contains facts that are only known after generation, such as
            # the value.
            if metadata.items() >= _record(generated, image).items():
                continue
        missing_paths.add(image.path)
    batches_of_variant: dict[str, list[tuple[list[int], list[int]]]] = {}
    for name in generated.plan.variants:
        images = generated.of_variant(name)
        for batch in generated.plan.batches(images):
            missing = [i for i in batch if images[i].path in missing_paths]
            if missing:
                batches_of_variant.setdefault(name, []).append((batch, missing))
    return batches_of_variant


def _record(generated: GeneratedImages, image: PlannedImage) -> Facts:
    """Return the metadata by which an image is recognised as part of its plan."""
    plan = generated.plan
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
    generated: GeneratedImages,
    images: Sequence[PlannedImage],
    generator: Generator,
    batch: Sequence[int],
    missing: Sequence[int],
) -> None:
    """Write the images that are missing from a batch.

    The entire batch is generated even if some of its images exist, since pixels depend on the
    batch. An image whose prompt is left unchanged is copied from "none", which uses the same text
    embeddings, noise and batch size.
    """
    # If all missing images are copies, the pipeline does not need to run.
    new_images: dict[int, tuple[Image, bool]] = {}
    if not all(generator.left_unchanged[i] for i in missing):
        new_images = dict(zip(batch, generator(batch), strict=True))
    for i in missing:
        if generator.left_unchanged[i]:
            picture, metadata = read_png(generated.path(images[i].under(NONE)))
            is_flagged = bool(metadata.get("flagged"))
        else:
            picture, is_flagged = new_images[i]
        metadata_of_image = {
            "left_unchanged": generator.left_unchanged[i],
            "flagged": is_flagged,
            "version": version("vldebias"),
            "value": generator.values[i],
            "generated prompt": generator.texts[i],
        }
        write_png(
            picture,
            generated.path(images[i]),
            {**_record(generated, images[i]), **metadata_of_image},
        )
