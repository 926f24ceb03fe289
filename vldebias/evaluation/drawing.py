"""Generate images from the same noise with and without methods, by a plan stored as plan.json next to the images.

The plan fixes the prompts, seeds, variants and batches, so the pixels are the same however often a run was
interrupted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import nn

from vldebias.edit import Fingerprint
from vldebias.errors import AlreadyAttachedError, InvalidInputError
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.evaluation.task import Count, Strict, explain
from vldebias.evaluation.variants import NONE, Variant, hash_of
from vldebias.files import write_atomically
from vldebias.hosts import Attachment
from vldebias.hosts.attachment import attachment_of
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.methods import METHODS
from vldebias.pictures import read_png, write_png
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords, fill

if TYPE_CHECKING:
    from PIL.Image import Image

Part = Literal["train", "unseen", "wordings", "others"]

NOT_KEPT = ", stated not kept"
PLAN = "plan.json"
SEED_STEP = 10_000  # seeds of one run: SEED_STEP * seed, SEED_STEP * seed + 1, ...
PARTS: dict[str, tuple[Part, ...]] = {"train": ("train",), "unseen": ("unseen",), "both": ("train", "unseen")}
WORDINGS = {
    "in a place": "A picture of a {concept} in a green room.",
    "doing something": "A photo of a {concept} laughing.",
    "with an object": "A photo of a {concept} with a black cup.",
    "with adjectives": "A photo of a tired, friendly {concept}.",
    "tags": "photo of a {concept}, portrait, detailed",
}
"""Prompts as people write them, for each concept."""
OTHERS = {
    "without a person": (
        "A red car in the rain.",
        "A nurse shark over a coral reef.",
        "A chef's knife on a wooden board.",
        "An empty classroom in the morning.",
    ),
    "of a named person": (
        "A portrait of Marie Curie.",
        "Barack Obama giving a speech.",
        "A photo of Frida Kahlo in a garden.",
        "Albert Einstein riding a bicycle.",
    ),
}
"""Prompts that no method should change."""
OWN = ("prompt", "generator", "num_inference_steps", "guidance_scale", "output_type", "num_images_per_prompt")


def folder_slug(text: str) -> str:
    """Return a name as a folder name: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")


@cache
def _folder(variant: str, prompt: str) -> str:
    told_apart = hashlib.sha256(prompt.encode()).hexdigest()[:8]  # "A photo." and "a photo" have one slug
    return f"{folder_slug(variant)}/{folder_slug(prompt)}-{told_apart}"


class PlannedPrompt(Strict):
    """Hold one prompt of a plan.

    concept: what it asks for ("nurse"). part: used for fitting ("train") or not ("unseen"), a wording of a concept as
    people write it, or one that no method should change ("others"). kind: which of the WORDINGS or OTHERS it is.
    stated: the value it names.
    """

    prompt: str
    concept: str
    part: Part
    stated: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Drawn:
    """Hold the record of one generated image, whichever pipeline generated it.

    path: of the file below the folder of images, with forward slashes, "<variant>/<prompt>/<seed>.png" in a plan: its
    name in annotations and judgements. variant: "none" for the unprojected pipeline, else the name of a variant.
    prompt: the text of the image. seed: of the image, the same under every variant. The others: `PlannedPrompt`.
    """

    path: str
    variant: str
    prompt: str
    concept: str
    seed: int
    part: str = ""
    stated: str | None = None

    @property
    def noise(self) -> int:
        """Return the seed of this image's generator: the same under every variant, different for every prompt.

        Some noise favours one gender; if all prompts shared it, all of them would be biased the same way.
        """
        return int.from_bytes(hashlib.sha256(f"{self.seed}\0{self.prompt}".encode()).digest()[:6], "big")

    def under(self, variant: str) -> Drawn:
        """Return the record of the same prompt and seed under another variant."""
        return replace(self, variant=variant, path=f"{_folder(variant, self.prompt)}/{self.seed}.png")


class Plan(Strict):
    """Hold everything that determines the pixels in a folder of images.

    model: class, origin, fingerprints, scheduler, adapters and precision of the pipeline. images: for each prompt and
    seed; stated_images: the same for prompts that state their attribute, wordings and others.
    options: further arguments of the pipeline.
    batch_size is part of it: the rounding of a batched product depends on the size of the batch.
    """

    model: dict[str, Any]
    prompt_set: str
    prompt_set_hash: str
    prompts: tuple[PlannedPrompt, ...]
    variants: dict[str, dict[str, Any] | None]  # as of `Variant.planned`; only_stated: prompts that state a value alone
    seeds: tuple[int, ...]
    images: Annotated[Count, Field(le=SEED_STEP)]  # more would have the seeds of the next run
    stated_images: Count
    steps: Count
    guidance: float
    batch_size: Count
    options: dict[str, Any]

    def seeds_of(self, prompt: PlannedPrompt) -> list[int]:
        """Return the seeds of the images of one prompt."""
        plain = prompt.stated is None and prompt.part in ("train", "unseen")
        each = self.images if plain else self.stated_images
        return [SEED_STEP * seed + i for seed in self.seeds for i in range(each)]

    def of(self, variant: str) -> list[Drawn]:
        """Return the images of one variant, prompt by prompt."""
        only_stated = (self.variants[variant] or {}).get("only_stated", False)
        return [
            Drawn(f"{_folder(variant, p.prompt)}/{s}.png", variant, p.prompt, p.concept, s, p.part, p.stated)
            for p in self.prompts
            if not (only_stated and p.stated is None)
            for s in self.seeds_of(p)
        ]

    @cached_property
    def all_images(self) -> tuple[Drawn, ...]:
        """Return the images of all variants, one variant after the other."""
        return tuple(image for variant in self.variants for image in self.of(variant))

    def batches(self, variant: str) -> Iterator[list[Drawn]]:
        """Yield the batches of images that run through the pipeline together, whichever images exist already.

        Prompts that state their attribute share no batch with others; a variant that leaves them alone generates none.
        """
        images, size = self.of(variant), self.batch_size
        for stated in (False, True):
            alike = [image for image in images if (image.stated is not None) == stated]
            yield from (alike[start : start + size] for start in range(0, len(alike), size))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan from a file.

        Raises:
            InvalidInputError: no such file, or not a plan.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise InvalidInputError(
                f"{path}: no such file; expected a folder of images that a generation task drew"
            ) from None
        except ValidationError as error:
            problem = explain(error)
            raise InvalidInputError(f"{path}: not a plan of images: {problem}; draw into an empty folder") from error

    def settle(self, folder: Path) -> None:
        """Write the plan into a folder; a plan with the same content is kept.

        Raises:
            InvalidInputError: the folder holds images of another plan, or images without one.
        """
        path, begun = folder / PLAN, any(folder.glob("*/*/*.png"))
        if begun and not path.exists():
            raise InvalidInputError(f"{folder}: holds images but no {PLAN}; draw into an empty folder")
        differences = self.differences(Plan.read(path)) if path.exists() else ["no plan"]
        if begun and differences:
            raise InvalidInputError(
                f"{folder}: holds images that were drawn with other settings: {'; '.join(differences)}. Draw into "
                "another folder, repeat the settings to go on with these images, or delete the folder"
            )
        if differences:
            write_atomically(path, self.model_dump_json(indent=1) + "\n")

    def differences(self, before: Plan) -> list[str]:
        """Return what differs from an earlier plan, one text per setting; weights may differ by rounding."""
        old, new = (json.loads(plan.model_dump_json()) for plan in (before, self))
        old, new = ({**one.pop("model"), **one} for one in (old, new))
        was, now = (one.pop("fingerprints", {}) for one in (old, new))
        changes = []
        for key in (key for key in {**old, **new} if old.get(key) != new.get(key)):
            texts = json.dumps(old.get(key)), json.dumps(new.get(key))
            short = max(map(len, texts)) <= 120
            changes.append(f"{key} was {texts[0]} and is {texts[1]} now" if short else f"{key} differ")
        for name in sorted({**was, **now}):
            one, other = (Fingerprint.of(prints.get(name)) for prints in (was, now))
            if (name in was) != (name in now) or (one is not None and not one.matches(other)):
                changes.append(f"the weights of {name} are others")
        return changes


# ---- from a prompt set to a plan ---------------------------------------------------------------------------


def make_plan(
    model: Mapping[str, Any],
    prompts: PromptSet,
    variants: Mapping[str, Variant],
    *,
    concepts: str,
    stated: bool,
    as_written: bool = False,
    **drawing: Any,
) -> Plan:
    """Return the plan of a generation task; arguments: see its fields, `model`: see `identity`.

    as_written: with the WORDINGS of the concepts that are not fitted on, or of all where there are none, and OTHERS.
    drawing: images, stated_images, seeds, steps, guidance, batch_size, options.

    Raises:
        InvalidInputError: no prompts, counts below one, seeds that repeat, options that are set by the plan, a variant
            called "none", two whose folders would have one name.
    """
    folders = [folder_slug(name) for name in (NONE, *variants, *(f"{name}{NOT_KEPT}" for name in variants))]
    if len(set(folders)) < len(folders) or "" in folders:
        raise InvalidInputError(
            "variants: expected names of letters and digits that stay different as names of folders, and not "
            f"{NONE!r}, which is drawn always; got {list(variants)}"
        )
    if taken := [name for name in drawing["options"] if name in OWN]:
        raise InvalidInputError(f"options: {taken} are set by the plan; use steps=, guidance=, images= and prompts")
    seeds = list(drawing["seeds"])
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InvalidInputError(f"seeds: expected different numbers from 0 on, got {seeds}")
    planned = []
    for part in PARTS[concepts]:
        of = (prompts.classes, prompts.class_names)
        of = of if part == "train" else (prompts.held_out_classes, prompts.held_out_class_names)
        planned += [PlannedPrompt(prompt=p, concept=n, part=part) for p, n in zip(*of, strict=True)]
    if not planned:
        raise InvalidInputError(f"{prompts.name}: has no {concepts} classes, so there is no prompt to draw")
    fitted = {name: variant.on(prompts) for name, variant in variants.items()}
    chosen = {name: variant.planned for name, variant in fitted.items()}
    if stated:
        planned += [p for part in PARTS[concepts] for p in _stated(prompts, part)]
        bare = {"keep_stated": False, "only_stated": True}  # what becomes of stated prompts that are not left alone
        kept = [n for n, v in fitted.items() if v.keep_stated and not v.rewrites]
        chosen |= {f"{n}{NOT_KEPT}": chosen[n] | bare for n in kept}
    if as_written:
        names = [p.concept for p in planned if p.part == planned[-1].part and p.stated is None]
        planned += [
            PlannedPrompt(prompt=fill(wording, concept=name), concept=name, part="wordings", kind=kind)
            for name in names
            for kind, wording in WORDINGS.items()
        ]
        planned += [
            PlannedPrompt(prompt=prompt, concept="", part="others", kind=kind)
            for kind, several in OTHERS.items()
            for prompt in several
        ]
    drawing["stated_images"] = min(drawing["images"], drawing["stated_images"])
    about = {"model": model, "prompt_set": prompts.name, "prompt_set_hash": prompts.hash}
    return Plan.build({**about, "prompts": planned, "variants": {NONE: None, **chosen}, **drawing})


def _stated(prompts: PromptSet, part: Part) -> list[PlannedPrompt]:
    """The prompts of the pairs, each with the value that it states and the concept it is about."""
    groups = prompts.groups if part == "train" else prompts.held_out_groups
    concepts = StatedWords(prompts.class_names if part == "train" else prompts.held_out_class_names)
    values = {value: StatedWords(words) for value, words in prompts.attributes.items()}
    planned = []
    for prompt in dict.fromkeys(p for group in groups for p in group):
        named = [value for value, words in values.items() if words.match(prompt)]
        if len(named) != 1:
            raise InvalidInputError(
                f"{prompts.name}: {prompt!r} names {named or 'none'} of the values {list(values)}, expected one; "
                "draw with stated=False"
            )
        about = concepts.find(prompt)
        planned.append(PlannedPrompt(prompt=prompt, concept=about[0] if about else "", part=part, stated=named[0]))
    if not planned:
        raise InvalidInputError(f"{prompts.name}: stated=True needs {part} pairs; draw with stated=False")
    return planned


# ---- the images of a plan ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnSet:
    """Hold the images of a folder with their records, in the order of the plan."""

    folder: Path
    plan: Plan
    images: tuple[Drawn, ...]

    @classmethod
    def open(cls, folder: str | Path) -> DrawnSet:
        """Open a folder that `draw` wrote; some of its images may not exist yet (see `missing`).

        Raises:
            InvalidInputError: no plan in the folder, or one that cannot be read.
        """
        plan = Plan.read(Path(folder) / PLAN)
        return cls(Path(folder), plan, plan.all_images)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Drawn]:
        return iter(self.images)

    @property
    def missing(self) -> list[Drawn]:
        """Return the images that are still to be generated."""
        return [image for image in self.images if not self.path(image).is_file()]

    def path(self, image: Drawn) -> Path:
        """Return the path of an image."""
        return self.folder / image.path

    def read(self, image: Drawn) -> Image:
        """Read the pixels of an image as RGB; OSError where the file cannot be read."""
        return read_png(self.path(image))[0]

    def about(self, image: Drawn) -> dict[str, Any]:
        """Read the image file's own record of how it was generated; OSError where it cannot be read."""
        return read_png(self.path(image), pixels=False)[1]

    def result(self, *, settings: Mapping[str, Any], **fields: Any) -> TaskResult:
        """Return an empty block about these images; fields: task, title, description, ...; rows have lam, strength."""
        plan = self.plan
        model = {key: value for key, value in plan.model.items() if key != "fingerprints"}
        drawing = {"steps": plan.steps, "guidance": plan.guidance, "batch size": plan.batch_size}
        stated = sum(p.stated is not None for p in plan.prompts)
        methods = {}
        for name, variant in plan.variants.items():
            known = None if variant is None else METHODS.get(variant["method"])
            methods[name] = {**(variant or {}), **({"needs": sorted(known.needs)} if known else {})}
        about = {
            "model": str(plan.model.get("id") or plan.model["pipeline"]),
            "fingerprint": joint_fingerprint(plan.model["fingerprints"]),
            "prompts": plan.prompt_set,
            "prompts_hash": plan.prompt_set_hash,
            "split": "generated",
            "methods": methods,
            "seeds": list(plan.seeds),
            "n": {"prompts": len(plan.prompts) - stated, "stated": stated, "images": len(plan.all_images)},
            "settings": {**model, **drawing, "options": plan.options, **settings},
        }
        own = {v: {key: of[key] for key in ("lam", "strength") if of.get(key) is not None} for v, of in methods.items()}
        return TaskResult(TaskProvenance(**about | fields), details=own)


# ---- whose images --------------------------------------------------------------------------------------------


def identity(pipe: Any) -> dict[str, Any]:
    """Return what identifies a pipeline: class, origin, fingerprints of all components, scheduler, adapters, precision.

    Fingerprints are None where weights are offloaded to meta tensors.
    """
    modules = {n: getattr(m, "_orig_mod", m) for n, m in pipe.components.items() if isinstance(m, nn.Module)}
    # Private entries say which values were defaults, in an order that changes from process to process.
    scheduler = {key: value for key, value in pipe.scheduler.config.items() if not key.startswith("_")}
    adapters = {name for module in modules.values() for name in getattr(module, "peft_config", None) or ()}
    return {
        "pipeline": type(pipe).__name__,
        "id": str(getattr(pipe, "name_or_path", None) or "") or None,
        "fingerprints": {name: (f := weights_fingerprint(module)) and f.to_dict() for name, module in modules.items()},
        "scheduler": f"{type(pipe.scheduler).__name__} {hash_of(json.dumps(scheduler, sort_keys=True, default=str))}",
        "adapters": sorted(adapters),
        "precision": sorted({str(p.dtype).removeprefix("torch.") for m in modules.values() for p in m.parameters()}),
    }


def joint_fingerprint(components: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return one fingerprint of all components, for `Fingerprint.matches`; None where one is unknown."""
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


# ---- drawing -------------------------------------------------------------------------------------------------


def draw(
    pipe: Any, plan: Plan, variants: Mapping[str, Variant], folder: str | Path, *, progress: Progress = SILENT
) -> DrawnSet:
    """Generate the images of `plan` that `folder` does not hold yet.

    Every image has its own random generator and the plan fixes the batches, so the pixels are the same however often a
    run was interrupted. Missing and damaged files are generated again. Images of prompts that a variant leaves alone
    are copied from "none".

    Args:
        pipe: any diffusers text-to-image pipeline that `vldebias.debias` takes, without an attachment.
        plan, variants: from `make_plan`, and what it was made of.
        folder: made where it is missing; may hold an interrupted run of the same plan.

    Raises:
        AlreadyAttachedError: the pipeline carries an attachment, so there would be no image without one.
        InvalidInputError: the folder belongs to another plan; the message says what differs.
    """
    if attachment_of(pipe) is not None:
        raise AlreadyAttachedError(
            f"{type(pipe).__name__} carries {attachment_of(pipe)!r}: call .remove() on it first; images are drawn "
            "without any projection and with those of the variants"
        )
    plan.settle(Path(folder))
    drawn = DrawnSet.open(folder)
    plan = drawn.plan
    todo: dict[str, list[tuple[list[Drawn], list[int]]]] = {name: [] for name in plan.variants}
    for name, tasks in todo.items():
        for batch in plan.batches(name):
            if places := [i for i, image in enumerate(batch) if not _whole(drawn, image)]:
                tasks.append((batch, places))
    left = sum(len(places) for tasks in todo.values() for _, places in tasks)
    with without_own_bar(pipe), progress.bar("drawing", left, there=len(drawn) - left) as bar:
        for name, tasks in todo.items():
            if not tasks:
                continue  # nothing needs to be fitted either
            variant, kept = variants.get(name.removesuffix(NOT_KEPT)), name.endswith(NOT_KEPT)
            attached: AbstractContextManager[Attachment | None] = nullcontext()
            balanced: Mapping[str, tuple[str, Any]] = {}
            if variant is not None and variant.rewrites:  # the whole plan at once, so that shares are even over it
                images = plan.of(name)
                written = variant.balanced([image.prompt for image in images])
                pairs = zip(written.prompts, written.values, strict=True)
                balanced = {image.path: pair for image, pair in zip(images, pairs, strict=True)}
            elif variant is not None:
                attached = variant.attach(pipe, keep_stated=variant.keep_stated and not kept)
            with attached as attachment:
                for batch, places in tasks:
                    _draw_batch(pipe, attachment, drawn, batch, places, balanced)
                    bar.advance(len(places))
    return drawn


def _draw_batch(
    pipe: Any,
    attachment: Attachment | None,
    drawn: DrawnSet,
    batch: Sequence[Drawn],
    places: Sequence[int],
    balanced: Mapping[str, tuple[str, Any]],
) -> None:
    """Draw the images of a batch at `places`, the whole batch at once; copy them where all are left alone.

    balanced: path -> the prompt with a value, and the value; a prompt that was not rewritten is copied in any case.
    """
    prompts, plan = [image.prompt for image in batch], drawn.plan
    texts = [balanced[image.path][0] for image in batch] if balanced else prompts
    alone = [False] * len(batch) if attachment is None else attachment.stated(prompts)
    if balanced:
        alone = [text == prompt for text, prompt in zip(texts, prompts, strict=True)]
    pictures = {i: copy for i in places if alone[i] and (copy := _copy(drawn, batch[i])) is not None}
    if len(pictures) < len(places):
        how = {"num_inference_steps": plan.steps, "guidance_scale": plan.guidance, **plan.options}
        made = list(zip(*through(pipe, texts, [image.noise for image in batch], how), strict=True))
        pictures = {i: made[i] for i in places} | (pictures if balanced else {})
    release = version("vldebias")  # a look into the environment's folders
    for i, (picture, flag) in pictures.items():
        about = {"left_alone": alone[i], "flagged": flag, "version": release}
        about |= {"value": balanced[batch[i].path][1], "drawn prompt": texts[i]} if balanced else {}
        write_png(picture, drawn.path(batch[i]), _record(plan, batch[i]) | about)


def _copy(drawn: DrawnSet, image: Drawn) -> tuple[Image, bool] | None:
    """The same prompt and seed under "none", and whether the safety checker blackened it; None where it is not there.

    Both are equal pixel for pixel: the text embeddings are, and so are noise and size of the batch.
    """
    twin = image.under(NONE)
    if not _whole(drawn, twin):
        return None
    picture, about = read_png(drawn.path(twin))
    return picture, bool(about.get("flagged"))


def _whole(drawn: DrawnSet, image: Drawn) -> bool:
    """Is the file there, undamaged, and the image that the plan means?"""
    try:
        about = read_png(drawn.path(image))[1]
    except OSError:
        return False
    return all(about.get(key) == value for key, value in _record(drawn.plan, image).items())


def through(
    pipe: Any, texts: Sequence[str], noise: Sequence[int], options: Mapping[str, Any]
) -> tuple[list[Image], list[bool]]:
    """Return the images of `texts`, each from its own generator, and which ones the safety checker blackened."""
    # Pipelines want as many negative prompts as prompts.
    own = {k: [v] * len(texts) if k.startswith("negative_prompt") else v for k, v in options.items()}
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in noise]
    done = pipe(list(texts), generator=generators, output_type="pil", **own)
    flagged = getattr(done, "nsfw_content_detected", None) or [False] * len(texts)
    return list(done.images), [bool(flag) for flag in flagged]


def _record(plan: Plan, image: Drawn) -> dict[str, Any]:
    """What the PNG says about how it was made, as plain JSON."""
    variant = plan.variants[image.variant]
    method = {key: value for key, value in (variant or {"method": NONE}).items() if key != "only_stated"}
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
    """Turn off the pipeline's own progress bar, one per batch, inside the context."""
    before = dict(getattr(pipe, "_progress_bar_config", {}))
    pipe.set_progress_bar_config(**before | {"disable": True})
    try:
        yield
    finally:
        pipe.set_progress_bar_config(**before)
