"""Drawing with the same noise without and with edits, into a folder that can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.data.parallel import processes
from vldebias.errors import AlreadyAttachedError, InvalidInputError
from vldebias.evaluation.plan import NOT_KEPT, PLAN, Drawn, DrawnImage, Plan
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.evaluation.variants import NONE, Variant, hash_of, lam_of
from vldebias.hosts import Attachment
from vldebias.hosts.attachment import attachment_of
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.pictures import read_png, write_png
from vldebias.progress import SILENT, Progress

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class DrawnSet:
    """Images of a folder with their records, in the order of the plan."""

    folder: Path
    plan: Plan
    images: tuple[DrawnImage, ...]

    @classmethod
    def open(cls, folder: str | Path) -> DrawnSet:
        """The images in a folder that `draw` wrote; not all of them may be there (see `missing`).

        Raises:
            InvalidInputError: no plan in the folder, or one that cannot be read.
        """
        plan = Plan.read(Path(folder) / PLAN)
        return cls(Path(folder), plan, plan.all_images)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[DrawnImage]:
        return iter(self.images)

    @property
    def missing(self) -> list[DrawnImage]:
        """The images that are still to be drawn."""
        return [image for image in self.images if not self.path(image).is_file()]

    def path(self, image: DrawnImage) -> Path:
        """Where an image lies."""
        return self.folder / image.path

    def read(self, image: DrawnImage) -> Image:
        """The pixels, RGB; OSError where the file cannot be read."""
        return read_png(self.path(image))[0]

    def about(self, image: DrawnImage) -> dict[str, Any]:
        """What the file itself says about how it was made; OSError where it cannot be read."""
        return read_png(self.path(image), pixels=False)[1]

    def select(
        self, *, variant: str | None = None, part: str | None = None, concept: str | None = None, stated: bool = False
    ) -> DrawnSet:
        """The images of a variant, a part ("train", "unseen") or a concept; None: of any.

        stated: those of the prompts that state their attribute, else those of the prompts that do not.

        Raises:
            InvalidInputError: none is left.
        """
        criteria = {"variant": variant, "part": part, "concept": concept}
        chosen = tuple(
            image
            for image in self.images
            if (image.stated is not None) == stated
            and all(value is None or getattr(image, key) == value for key, value in criteria.items())
        )
        if not chosen:
            raise InvalidInputError(
                f"{self.folder}: no images of {criteria} with stated={stated}; there are the variants "
                f"{list(self.plan.variants)} and {len({i.concept for i in self.images})} concepts"
            )
        return DrawnSet(self.folder, self.plan, chosen)


def by_variant(records: Iterable[Drawn]) -> dict[str, dict[tuple[str, int], Drawn]]:
    """variant -> (prompt, seed) -> record, "none" first: variants can then be compared image by image.

    Raises:
        InvalidInputError: no records, or one variant has a prompt and seed twice.
    """
    variants: dict[str, dict[tuple[str, int], Drawn]] = {}
    for record in records:
        twin = variants.setdefault(record.variant, {}).setdefault((record.prompt, record.seed), record)
        if twin is not record:
            raise InvalidInputError(
                f"drawn images: {record.variant!r} has {record.prompt!r} with seed {record.seed} twice: "
                f"{twin.path} and {record.path}"
            )
    if not variants:
        raise InvalidInputError("drawn images: expected at least one record, got none; draw images first")
    return {name: variants[name] for name in sorted(variants, key=lambda name: name != NONE)}


# ---- reading them all --------------------------------------------------------------------------------------


class SharedImages:
    """Drawn images that every variant has, by prompt and seed, read batch by batch for measures that look at them once.

    Attributes:
        variants: see `by_variant`. common: prompt and seed of each image; prompts: without repeats.
        folder: where the paths of the records start. origin: provenance of the run that drew them.
    """

    def __init__(self, records: Iterable[Drawn], folder: str | Path, origin: TaskProvenance | None = None) -> None:
        self.variants, self.origin = by_variant(records), origin
        self.common = sorted(set.intersection(*(set(images) for images in self.variants.values())))
        self.prompts = list(dict.fromkeys(prompt for prompt, _ in self.common))
        self._folder = Path(folder)

    def features(self, variant: str, encode: Callable[[Sequence[Image]], Tensor], batch_size: int) -> Iterator[Tensor]:
        """Features (b, d) of each batch."""
        paths = (self._folder / self.variants[variant][key].path for key in self.common)
        return encoded(map(_read, paths), encode, batch_size)

    def result(self, **fields: Any) -> TaskResult:
        """An empty block about them; fields as of `drawn_result`."""
        return drawn_result(self.origin, self.variants, self.prompts, (seed for _, seed in self.common), **fields)


def _read(path: Path) -> Image:
    try:
        return read_png(path)[0]
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read as an image: {error}; draw it again") from error


def encoded(images: Iterable[Image], encode: Callable[[Sequence[Image]], Tensor], batch_size: int) -> Iterator[Tensor]:
    """Features (b, d) of each batch; no more images than a batch are held."""
    source = iter(images)
    while batch := list(islice(source, batch_size)):
        yield encode(batch)


# ---- whose images --------------------------------------------------------------------------------------------


def identity(pipe: Any, name: str | None = None) -> dict[str, Any]:
    """What tells one pipeline from another: class, origin, weights of every component, scheduler, adapters, precision.

    Fingerprints are None where weights are offloaded to meta tensors. `name` stands for where it came from.
    """
    modules = {n: getattr(m, "_orig_mod", m) for n, m in pipe.components.items() if isinstance(m, nn.Module)}
    # Private entries say which values were defaults, in an order that changes from process to process.
    scheduler = {key: value for key, value in pipe.scheduler.config.items() if not key.startswith("_")}
    adapters = {name for module in modules.values() for name in getattr(module, "peft_config", None) or ()}
    return {
        "pipeline": type(pipe).__name__,
        "id": name or str(getattr(pipe, "name_or_path", None) or "") or None,
        "fingerprints": {name: (f := weights_fingerprint(module)) and f.to_dict() for name, module in modules.items()},
        "scheduler": f"{type(pipe.scheduler).__name__} {hash_of(json.dumps(scheduler, sort_keys=True, default=str))}",
        "adapters": sorted(adapters),
        "precision": sorted({str(p.dtype).removeprefix("torch.") for m in modules.values() for p in m.parameters()}),
    }


def joint_fingerprint(components: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """One fingerprint from those of all components, for `Fingerprint.matches`; None where one is not known."""
    prints = [components[name] for name in sorted(components)]
    known = [fingerprint for fingerprint in prints if fingerprint is not None]
    if not known or len(known) < len(prints):
        return None
    return {
        "structure": hash_of(json.dumps([sorted(components), [fingerprint["structure"] for fingerprint in known]])),
        "norms": [norm for fingerprint in known for norm in fingerprint["norms"]],
        "waves": [wave for fingerprint in known for wave in fingerprint["waves"]],
        "tensors": [one for fingerprint in known for one in fingerprint.get("tensors", [])],
    }


def drawn_result(
    origin: TaskProvenance | None, variants: Iterable[str], prompts: Sequence[str], seeds: Iterable[int], **fields: Any
) -> TaskResult:
    """An empty block of a measure of drawn images; rows carry lam and strength, where the origin says them.

    Args:
        origin: provenance of the run that drew them; without it the model is not known.
        variants, prompts, seeds: of the images that are measured.
        fields: task, title, description, n, settings, ... of the measure.
    """
    methods = {variant: origin.methods.get(variant, {}) if origin else {} for variant in variants}
    common = {
        "model": origin.model if origin else "not said",
        "fingerprint": origin.fingerprint if origin else None,
        "prompts": origin.prompts if origin else f"the {len(prompts)} prompts of the drawn images",
        "prompts_hash": origin.prompts_hash if origin else hashlib.sha256("\0".join(prompts).encode()).hexdigest(),
        "seeds": origin.seeds if origin else sorted(set(seeds)),
        "methods": methods,
        "split": "generated",
    }
    return TaskResult(TaskProvenance(**common | fields), details=details_of(methods))


def details_of(methods: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Variant -> lam, where its method has one, and strength, as measurements carry them; from a provenance."""
    own = {
        v: {"lam": lam_of(of.get("method", ""), of.get("lam")), "strength": of.get("strength")}
        for v, of in methods.items()
    }
    return {v: {key: value for key, value in of.items() if value is not None} for v, of in own.items()}


# ---- drawing -------------------------------------------------------------------------------------------------


def draw(
    pipe: Any, plan: Plan, variants: Mapping[str, Variant], folder: str | Path, *, progress: Progress = SILENT
) -> DrawnSet:
    """Draw what `plan` says and `folder` does not hold yet.

    Every image has a generator of its own and the plan fixes the batches, so the pixels are the same however often a
    run was killed and on however many processes it runs (`accelerate launch` or `torchrun`; each process loads the
    pipeline and takes its share of the batches). Missing and damaged files are drawn again. Images of prompts that a
    variant leaves alone are those of "none" and copied.

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
    plan = plan.settle(folder, write=here.rank == 0)
    here.wait()
    if here.world > 1 and pipe.device.type != "cpu":  # all load to the first device; an offloaded one says cpu
        pipe.to(torch.device(pipe.device.type, torch.accelerator.current_device_index()))
    drawn = DrawnSet(folder, plan, plan.all_images)
    # Batches are those of "none" for every variant, so a process copies only what it has drawn itself.
    shares = {name: list(plan.batches(name))[here.rank :: here.world] for name in plan.variants}
    todo = {
        name: [(batch, [i for i, image in enumerate(batch) if not _whole(drawn, image)]) for batch in batches]
        for name, batches in shares.items()
    }
    left = sum(len(places) for tasks in todo.values() for _, places in tasks)
    own = sum(len(batch) for batches in shares.values() for batch in batches)
    shown = progress if here.rank == 0 else SILENT
    with without_own_bar(pipe), shown.bar("drawing", left, there=own - left) as bar:
        for name, tasks in todo.items():
            if not any(places for _, places in tasks):
                continue  # nothing needs to be fitted either
            variant, kept = variants.get(name.removesuffix(NOT_KEPT)), name.endswith(NOT_KEPT)
            attached: AbstractContextManager[Attachment | None] = nullcontext()
            if variant is not None:
                attached = variant.attach(pipe, keep_stated=False if kept else None)
            with attached as attachment:
                for batch, places in tasks:
                    if places:
                        _draw_batch(pipe, attachment, drawn, batch, places)
                        bar.advance(len(places))
    here.wait()
    return drawn


def _draw_batch(
    pipe: Any, attachment: Attachment | None, drawn: DrawnSet, batch: Sequence[DrawnImage], places: Sequence[int]
) -> None:
    """The images of a batch at `places`. Those that are all left alone are copied; else the whole batch is drawn."""
    alone = [False] * len(batch) if attachment is None else attachment.stated([image.prompt for image in batch])
    copies = [_copy(drawn, batch[i]) if alone[i] else None for i in places]
    values: Sequence[Any] = []
    if attachment is not None and any(edit.sampled for edit in attachment.projections.values()):
        values = attachment.values([image.prompt for image in batch], [image.seed for image in batch])
    if all(copies):
        pictures = {i: copy for i, copy in zip(places, copies, strict=True) if copy is not None}
    else:
        images, flagged = _through(pipe, batch, drawn.plan, attachment)
        pictures = {i: (images[i], flagged[i]) for i in places}
    release = version("vldebias")  # a look into the environment's folders
    for i, (picture, flag) in pictures.items():
        made = {"left_alone": alone[i], "flagged": flag, "version": release}
        made |= {"value": values[i]} if values else {}
        write_png(picture, drawn.path(batch[i]), _record(drawn.plan, batch[i]) | made)


def _copy(drawn: DrawnSet, image: DrawnImage) -> tuple[Image, bool] | None:
    """The same prompt and seed under "none", and whether the safety checker blackened it; None where it is not there.

    Both are equal pixel for pixel: the text embeddings are, and so are noise and size of the batch.
    """
    twin = image.under(NONE)
    if not _whole(drawn, twin):
        return None
    picture, about = read_png(drawn.path(twin))
    return picture, bool(about.get("flagged"))


def _whole(drawn: DrawnSet, image: DrawnImage) -> bool:
    """Is the file there, undamaged, and the image that the plan means?"""
    try:
        about = read_png(drawn.path(image))[1]
    except OSError:
        return False
    return all(about.get(key) == value for key, value in _record(drawn.plan, image).items())


def _through(
    pipe: Any, batch: Sequence[DrawnImage], plan: Plan, attachment: Attachment | None = None
) -> tuple[list[Image], list[bool]]:
    """The images of one batch, and which of them the pipeline's safety checker blackened."""
    # Pipelines want as many negative prompts as prompts.
    options = {k: [v] * len(batch) if k.startswith("negative_prompt") else v for k, v in plan.options.items()}
    if attachment is not None:
        attachment.seeds = [image.seed for image in batch]  # for edits that draw a value for each image
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
        "fingerprint": hash_of(json.dumps(plan.model.get("fingerprints"), sort_keys=True)),
    }


@contextmanager
def without_own_bar(pipe: Any) -> Iterator[None]:
    """The pipeline's own bar, one for every batch, is off inside."""
    before = dict(getattr(pipe, "_progress_bar_config", {}))
    pipe.set_progress_bar_config(**before | {"disable": True})
    try:
        yield
    finally:
        pipe.set_progress_bar_config(**before)
