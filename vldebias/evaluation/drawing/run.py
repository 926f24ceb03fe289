"""Draws the images of a plan: every variant from the same noise, each image written whole, resumed where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from vldebias.api import debias
from vldebias.attachment import Attachment, attachment_of
from vldebias.data.embed_processes import processes
from vldebias.errors import AlreadyAttachedError
from vldebias.evaluation.drawing.counter import Counter
from vldebias.evaluation.drawing.drawn import DrawnSet, read_png, write_png
from vldebias.evaluation.drawing.folder import digest, settle
from vldebias.evaluation.drawing.plan import NOT_KEPT, DrawnImage, Plan, Variant

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["draw"]


def draw(
    pipe: Any, plan: Plan, variants: Mapping[str, Variant], folder: str | Path, *, progress: Progress | None = None
) -> DrawnSet:
    """Draw what `plan` says and `folder` does not hold yet.

    Every image has a generator of its own and the plan fixes the batches, so the pixels are the same however often a
    run was killed and on however many processes it runs (`accelerate launch` or `torchrun`; each process loads the
    pipeline and takes its share of the batches). Missing and damaged files are drawn again.

    Args:
        pipe: any diffusers text-to-image pipeline that `vldebias.debias` takes, without an attachment.
        plan: from `make_plan`.
        variants: the variants of the plan by name.
        folder: made where it is missing; may hold an interrupted run of the same plan.
        progress: where to show how far it is.

    Raises:
        AlreadyAttachedError: the pipeline carries an attachment, so there would be no image without one.
        InvalidInputError: the folder belongs to another plan; the message says what differs.
    """
    if attachment_of(pipe) is not None:
        raise AlreadyAttachedError(
            f"{type(pipe).__name__} carries {attachment_of(pipe)!r}: call .remove() on it first; images are drawn "
            "without any projection and with those of the variants"
        )
    here, folder = processes(), Path(folder)
    plan = settle(plan, folder, write=here.rank == 0)
    here.wait()
    if here.world > 1 and pipe.device.type != "cpu":  # all load to the first device; an offloaded one says cpu
        pipe.to(torch.device(pipe.device.type, torch.accelerator.current_device_index()))
    drawn = DrawnSet(folder, plan, plan.all_images)
    shares = {name: list(plan.batches(name))[here.rank :: here.world] for name in plan.variants}
    tasks = {name: [_Task.of(batch, drawn) for batch in batches] for name, batches in shares.items()}
    left = sum(len(task.places) for name in tasks for task in tasks[name])
    own = sum(len(task.batch) for name in tasks for task in tasks[name])
    counter = Counter(progress if here.rank == 0 else None, "drawing", left=left, there=own - left)
    with _quiet(pipe):
        for name, batches in tasks.items():
            wanting = [task for task in batches if task.places]
            if wanting:  # else nothing needs to be fitted either
                _draw_variant(pipe, name, variants, wanting, drawn, counter)
    here.wait()
    return drawn


@dataclass(frozen=True)
class _Task:
    """A batch, and the places in it of the images that are still to be drawn."""

    batch: list[DrawnImage]
    places: list[int]

    @classmethod
    def of(cls, batch: list[DrawnImage], drawn: DrawnSet) -> _Task:
        return cls(batch, [i for i, image in enumerate(batch) if not _whole(drawn, image)])


def _whole(drawn: DrawnSet, image: DrawnImage) -> bool:
    """Is the file there, undamaged, and the image that the plan means?"""
    try:
        about = read_png(drawn.path(image))[1]
    except OSError:
        return False
    return all(about.get(key) == value for key, value in _record(drawn.plan, image).items())


def _draw_variant(
    pipe: Any,
    name: str,
    variants: Mapping[str, Variant],
    tasks: Sequence[_Task],
    drawn: DrawnSet,
    counter: Counter,
) -> None:
    with _attached(pipe, name, variants) as attachment:
        for task in tasks:
            pictures, flagged = _through(pipe, task.batch, drawn.plan)
            for i in task.places:
                image = task.batch[i]
                about = _record(drawn.plan, image) | {
                    "left_alone": attachment is not None and attachment.stated([image.prompt])[0],
                    "flagged": flagged[i],
                    "version": version("vldebias"),
                }
                write_png(pictures[i], drawn.path(image), about)
            counter.advance(len(task.places))


def _attached(pipe: Any, name: str, variants: Mapping[str, Variant]) -> AbstractContextManager[Attachment | None]:
    variant = variants.get(name.removesuffix(NOT_KEPT))
    if variant is None:
        return nullcontext()
    return debias(
        pipe,
        variant.sets,
        method=variant.method,
        lam=variant.lam,
        strength=variant.strength,
        keep_stated=variant.keep_stated and not name.endswith(NOT_KEPT),
    )


def _through(pipe: Any, batch: Sequence[DrawnImage], plan: Plan) -> tuple[list[Image.Image], list[bool]]:
    """The images of one batch, and which of them the pipeline's safety checker blackened."""
    # Pipelines want as many negative prompts as prompts.
    options = {k: [v] * len(batch) if k.startswith("negative_prompt") else v for k, v in plan.options.items()}
    done = pipe(
        [image.prompt for image in batch],
        generator=[torch.Generator("cpu").manual_seed(image.noise) for image in batch],
        num_inference_steps=plan.steps,
        guidance_scale=plan.guidance,
        output_type="pil",
        **options,
    )
    flagged = getattr(done, "nsfw_content_detected", None) or [False] * len(batch)
    return list(done.images), [bool(flag) for flag in flagged]


def _record(plan: Plan, image: DrawnImage) -> dict[str, Any]:
    """What the PNG says about how it was made, as plain JSON."""
    variant = plan.variants[image.variant]
    method = {"method": "none"} if variant is None else variant.model_dump(exclude={"only_stated"})
    return {
        "prompt": image.prompt,
        "seed": image.seed,
        "noise": image.noise,
        "variant": image.variant,
        **method,
        "steps": plan.steps,
        "guidance": plan.guidance,
        "options": plan.options,
        "model": plan.model.get("id"),
        "pipeline": plan.model.get("pipeline"),
        "fingerprint": digest(json.dumps(plan.model.get("fingerprints"), sort_keys=True)),
    }


@contextmanager
def _quiet(pipe: Any) -> Iterator[None]:
    """Without the pipeline's own bar, one for every batch."""
    before = dict(getattr(pipe, "_progress_bar_config", {}))
    pipe.set_progress_bar_config(**before | {"disable": True})
    try:
        yield
    finally:
        pipe.set_progress_bar_config(**before)
