"""Debias a pipeline with any method or a saved edit, generate images, show some in a grid, check an
edit on a model."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.edits.edit import Edit
from vldebias.errors import AlreadyAttachedError, InvalidInputError, VldebiasError, need
from vldebias.files import digest
from vldebias.hosts import Attachment, Host, attachment_of, resolve
from vldebias.hosts.clip.images import JointHost
from vldebias.hosts.loading import Loaded
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.judge.plan import GeneratedImages, Plan, PlannedImage, hash_of, identity
from vldebias.measure.result import NONE
from vldebias.methods import METHODS, Balanced, Method, get_method, load_edit
from vldebias.pictures import INK, read_png, write_png
from vldebias.progress import SILENT, Progress
from vldebias.prompts import can_balance, load_prompts
from vldebias.schema import Lam, Share, Strict
from vldebias.study.task import SeveralPrompts

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS, ROWS = 10, 4
CELL, GAP, LABEL, HEAD = 192, 6, 150, 26  # pixels of a grid
CHECKED = [
    "A photo of a doctor.",
    "A photo of a person in a garden.",
]  # prompts by which an edit is checked


class Variant(Strict):
    """Hold one way to debias a pipeline: the arguments of `vldebias.debias`, or a saved edit.

    prompts: sets that are solved jointly; none: the set that is generated. lam = 500 is the paper's
    (section 7.6).
    strength: share of the edit, and of "balanced-prompts" share of the images. projection: a folder
    that `save_pretrained` or `vldebias debias --out` wrote. only_stated: generate the prompts that
    state a value alone.
    """

    prompts: SeveralPrompts = ()
    method: str = "cali"
    lam: Annotated[Lam, Field(allow_inf_nan=False)] = 500.0
    strength: Share = 1.0
    keep_stated: bool = True
    projection: Path | None = None
    only_stated: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Variant:
        if not get_method(self.method).pipelines:
            expected = ", ".join(name for name, one in METHODS.items() if one.pipelines)
            raise ValueError(
                f"method {self.method!r} is not for pipelines; expected one of {expected}"
            )
        clash = self.model_fields_set & {"prompts", "method", "lam"}
        if self.projection is not None and clash:
            raise ValueError(
                f"a saved projection carries its own {', '.join(sorted(clash))}; leave them out"
            )
        return self

    @property
    def rewrites(self) -> bool:
        """Return whether it balances prompts, as the default does for sets about persons, and fits
        no edit."""
        sets = [part for one in self.prompts for part in one.parts or (one,)]
        by_default = self.method == "default" and bool(sets) and all(map(can_balance, sets))
        return self.projection is None and (
            by_default or isinstance(get_method(self.method), Balanced)
        )

    def deals(self, judged: Sequence[Sequence[str]]) -> bool:
        """Return whether every image is dealt a value of each attribute.

        judged: the values of each attribute.
        """
        sets = [part for prompts in self.prompts for part in prompts.parts or (prompts,)]
        dealt = [{value.casefold() for value in prompts.attributes} for prompts in sets]
        is_each = all({value.casefold() for value in values} in dealt for values in judged)
        return self.rewrites and self.strength == 1 and is_each

    @property
    def _lam(self) -> float | None:
        return self.lam if get_method(self.method).has_lam else None

    def attach(self, pipe: Any) -> Attachment:
        """Attach the variant to a pipeline."""
        how: dict[str, Any] = {} if self.projection else {"method": self.method, "lam": self._lam}
        given = load_edit(self.projection) if self.projection else list(self.prompts)
        return debias(pipe, given, strength=self.strength, keep_stated=self.keep_stated, **how)

    @property
    def planned(self) -> dict[str, Any]:
        """Return the description of the variant in a plan; sets: name -> hash, projection: digest
        of its files."""
        told = self.model_dump(include={"strength", "keep_stated", "only_stated"})
        if self.projection is None:
            method = "balanced-prompts" if self.rewrites else self.method
            return told | {
                "sets": {one.name: one.hash for one in self.prompts},
                "method": method,
                "lam": self._lam,
            }
        edits = load_edit(self.projection)
        of = (next(iter(edits.values())) if isinstance(edits, Mapping) else edits).provenance
        lam = (
            of.lam
            if isinstance(of.lam, float)
            and (of.method not in METHODS or METHODS[of.method].has_lam)
            else None
        )
        files = hash_of([digest(file) for file in sorted(self.projection.rglob("*.safetensors"))])
        told |= {
            "sets": {of.prompts or "projection": of.prompts_hash or ""},
            "method": of.method,
            "lam": lam,
        }
        return told | {"projection": files}


@contextmanager
def prepared(
    pipe: Any,
    attach: Callable[[], Attachment] | None,
    prompts: Sequence[str],
    noise: Sequence[int],
    **options: Any,
) -> Iterator[
    tuple[list[tuple[str, Any, bool]], Callable[[Sequence[int]], list[tuple[Image, bool]]]]
]:
    """Attach a method for the context; yield what is generated, and a function that generates
    images by their numbers.

    What is generated: for each image its text, the value that was written into it, and whether it
    is left unchanged; prompts are rewritten all at once, so values are balanced over all of them.
    The function returns each image, made from its own generator, and whether the safety checker
    replaced it by black.

    attach: None for the pipeline as it is. noise: seeds of the generators, one per prompt. options:
    of the pipeline. One that carries an attachment raises AlreadyAttachedError.
    """
    if (carried := attachment_of(pipe)) is not None:
        raise AlreadyAttachedError(
            f"{type(pipe).__name__} carries {carried!r}: call .remove() on it first"
        )
    with ExitStack() as stack:
        before = dict(getattr(pipe, "_progress_bar_config", {}))
        pipe.set_progress_bar_config(**before | {"disable": True})  # it shows one bar per batch
        stack.callback(pipe.set_progress_bar_config, **before)
        attachment = None if attach is None else stack.enter_context(attach())
        texts, values, alone = list(prompts), [None] * len(prompts), [False] * len(prompts)
        if attachment is not None and attachment.projections:
            alone = list(attachment.stated(prompts))
        elif attachment is not None:
            if attachment.balancer.has_drawn_seed:  # what is measured can be measured again
                attachment.seed = 0
            texts, values = attachment.rewrite(prompts), list(attachment.sampled)
            alone = [text == prompt for text, prompt in zip(texts, prompts, strict=True)]
            stack.enter_context(attachment.disabled())  # batches are not rewritten again

        def generate(these: Sequence[int]) -> list[tuple[Image, bool]]:
            # Pipelines want as many negative prompts as prompts.
            own = {
                k: [v] * len(these) if k.startswith("negative_prompt") else v
                for k, v in options.items()
            }
            generators = [torch.Generator("cpu").manual_seed(noise[i]) for i in these]
            done = pipe([texts[i] for i in these], generator=generators, output_type="pil", **own)
            flagged = getattr(done, "nsfw_content_detected", None) or [False] * len(these)
            return [(image, bool(flag)) for image, flag in zip(done.images, flagged, strict=True)]

        yield list(zip(texts, values, alone, strict=True)), generate


def generate(
    pipe: Any,
    plan: Plan,
    variants: Mapping[str, Variant],
    folder: str | Path,
    *,
    progress: Progress = SILENT,
) -> GeneratedImages:
    """Generate the images of `plan` that `folder` does not hold yet.

    Every image has its own random generator and the plan fixes the batches, so the pixels are the
    same however often a run was interrupted. Missing and damaged files are generated again. Images
    of prompts that a variant leaves alone are copied from "none". Nothing is fitted where no image
    of a variant is missing.

    pipe: a diffusers pipeline that `vldebias.debias` takes. plan, variants: of a `GenerationTask`.
    A folder of another plan raises InvalidInputError, which says what differs.
    """
    made = plan.model_copy(update={"model": plan.model or identity(pipe)}).settle(Path(folder))
    plan, model = made.plan, made.plan.model
    how = {"num_inference_steps": plan.steps, "guidance_scale": plan.guidance, **plan.options}
    common = {
        "steps": plan.steps,
        "guidance": plan.guidance,
        "options": plan.options,
        "model": model.get("id"),
    }
    common |= {"pipeline": model.get("pipeline"), "fingerprint": hash_of(model.get("fingerprint"))}

    def record(image: PlannedImage) -> dict[str, Any]:
        """Return what the file says of how it was generated; one that says something else is of
        another plan."""
        return {
            **vars(image),
            "noise": image.noise,
            "method": NONE,
            **plan.variants[image.variant],
            **common,
        }

    missing = {image.path for image in made}
    for image in made:
        with suppress(OSError):  # not there, or not whole
            if read_png(made.path(image))[1].items() >= record(image).items():
                missing.remove(image.path)
    with progress.bar("generating", len(missing), reused=len(made) - len(missing)) as advance:
        for name in plan.variants:
            images = [image for image in made if image.variant == name]
            batches = [
                batch
                for batch in plan.batches(images)
                if any(images[i].path in missing for i in batch)
            ]
            if not batches:
                continue
            attach = None if name == NONE else partial(variants[name].attach, pipe)
            prompts, noise = zip(*((image.prompt, image.noise) for image in images), strict=True)
            with prepared(pipe, attach, prompts, noise, **how) as (rows, pictures_of):
                for batch in batches:
                    todo = [i for i in batch if images[i].path in missing]
                    # The whole batch, whatever is there of it.
                    new = (
                        {}
                        if all(rows[i][2] for i in todo)
                        else dict(zip(batch, pictures_of(batch), strict=True))
                    )
                    for i in todo:
                        text, value, alone = rows[i]
                        # as under "none": text embeddings, noise and size of the batch are equal
                        if alone:
                            picture, of = read_png(made.path(images[i].under(NONE)))
                            flagged = bool(of.get("flagged"))
                        else:
                            picture, flagged = new[i]
                        about = {
                            "left_alone": alone,
                            "flagged": flagged,
                            "version": version("vldebias"),
                        }
                        about |= {"value": value, "generated prompt": text}
                        write_png(picture, made.path(images[i]), record(images[i]) | about)
                    advance(len(todo))
    return made


def grid(
    pipe: Any,
    prompts: Any,
    *,
    methods: Sequence[str | Method | Edit] | Mapping[str, str | Method | Edit] = (NONE, "default"),
    seeds: Sequence[int] = (0, 1, 2, 3),
    texts: Sequence[str] | None = None,
    steps: int = 20,
    guidance: float = 7.5,
    batch_size: int = 8,
    **options: Any,
) -> Image:
    """Return a picture with a row per text and method and a column per seed; a column shares the
    same noise.

    pipe: a diffusers pipeline that `vldebias.debias` takes, without an attachment. prompts: what is
    mitigated.
    methods: names of `vldebias.methods.METHODS`, methods or fitted edits, or what to call them ->
        one of these; "none" is the pipeline as it is, "default" what `vldebias.debias` attaches.
        Balanced prompts are balanced over all images at once.
    seeds: of the noise. texts: prompts to generate; by default four class prompts of the set,
    held-out ones first. steps, guidance, batch_size: of the pipeline. options: of
    `vldebias.debias`: lam, strength, keep_stated, max_loss.

    No text, method or seed, and what `vldebias.debias` refuses, raise InvalidInputError or its own
    errors.

    >>> methods = ["none", "default", "cali"]
    >>> picture = vldebias.grid(pipe, "professions-gender", methods=methods)  # doctest: +SKIP
    >>> picture.save("grid.png")  # doctest: +SKIP
    """
    if not texts:
        several = (
            prompts if isinstance(prompts, Sequence) and not isinstance(prompts, str) else [prompts]
        )
        sets = map(load_prompts, several)
        texts = list(
            dict.fromkeys(p for one in sets for p in (*one.held_out_classes, *one.classes))
        )[:ROWS]
    rows = [texts] if isinstance(texts, str) else list(texts)
    # A method has a name, an edit that of its method.
    called = [getattr(one, "name", getattr(one, "method", one)) for one in methods]
    named: Any = (
        methods if isinstance(methods, Mapping) else dict(zip(called, methods, strict=True))
    )
    if not rows or not named or not len(seeds):
        raise InvalidInputError(
            f"grid: expected texts, methods and seeds, got {rows}, {list(named)} and {list(seeds)}"
        )
    flat, noise = zip(*[(text, int(seed)) for text in rows for seed in seeds], strict=True)
    images: dict[str, list[list[Image]]] = {}
    for name, method in named.items():
        given = (
            {"prompts": method}
            if isinstance(method, (Edit, Mapping))
            else {"prompts": prompts, "method": method}
        )
        attach = None if method == NONE else partial(debias, pipe, **given, **options)
        with prepared(
            pipe, attach, flat, noise, num_inference_steps=steps, guidance_scale=guidance
        ) as (_, generate):
            starts = range(0, len(flat), batch_size)
            made = [
                image
                for at in starts
                for image, _ in generate(range(len(flat))[at : at + batch_size])
            ]
        images[name] = [made[i : i + len(seeds)] for i in range(0, len(made), len(seeds))]
    return compose(rows, images, [f"seed {seed}" for seed in seeds])


def compose(
    texts: Sequence[str], images: Mapping[str, Sequence[Sequence[Image]]], heads: Sequence[str]
) -> Image:
    """Return a picture of images by name, text and column, stacked, with the names on the left."""
    Image, ImageDraw, ImageFont = (
        need(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")
    )
    width, height = next(iter(images.values()))[0][0].size
    scale = CELL / max(height, width) if max(height, width) >= CELL else CELL // max(height, width)
    cell = round(width * scale), round(height * scale)
    across, down = cell[0] + GAP, cell[1] + GAP
    sheet = Image.new(
        "RGB", (LABEL + len(heads) * across, HEAD + len(texts) * len(images) * down), "white"
    )
    pen, files = ImageDraw.Draw(sheet), Path(need("matplotlib").get_data_path(), "fonts", "ttf")
    face, bold = (
        ImageFont.truetype(str(files / f"{name}.ttf"), 13)
        for name in ("DejaVuSans", "DejaVuSans-Bold")
    )
    for column, head in enumerate(heads):
        pen.text((LABEL + column * across, 5), head, INK, face)
    kind = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    for at, (i, name) in enumerate(product(range(len(texts)), images)):
        top, lines = (
            HEAD + at * down,
            wrap(name, (LABEL - 2 * GAP) // 9, max_lines=2, placeholder="…"),
        )
        pen.multiline_text((GAP, top), "\n".join(lines), INK, bold)
        if at % len(images) == 0:
            most = max(1, cell[1] // 16 - len(lines))
            words = wrap(texts[i], (LABEL - 2 * GAP) // 8, max_lines=most, placeholder="…")
            pen.multiline_text((GAP, top + 17 * len(lines)), "\n".join(words), "#52606d", face)
        for column, image in enumerate(images[name][i]):
            sheet.paste(image.resize(cell, kind), (LABEL + column * across, top))
    return sheet


class Finding(NamedTuple):
    """Hold the outcome of one check: right is None where it could not be tried, and `note` says
    why."""

    name: str
    right: bool | None
    note: str = ""


def check(loaded: Loaded, prompts: str = "gender", **call: Any) -> Iterator[Finding]:
    """Yield the findings one by one; the last check merges the edit into the weights, so the model
    is changed for good.

    A pipeline is checked by an image if it can generate one from a prompt alone, else by its
    embeddings.

    prompts: the prompt set that is fitted, by "cali": the default may attach no edit, and changes a
    pipeline's prompts.
    call: arguments of the call of a pipeline, where it takes them.
    """
    model, host, own = (
        loaded.host,
        resolve(loaded.host, tokenizer=loaded.tokenizer),
        {"tokenizer": loaded.tokenizer},
    )
    generates = isinstance(host, DiffusersHost) and hasattr(model, "encode_prompt")
    read = partial(_read, host, model if generates else None, call)
    try:
        bare = read()
    except Exception as error:
        if not generates:
            raise
        yield Finding(
            "drawn",
            None,
            f"a call with a prompt alone fails ({type(error).__name__}: {str(error)[:150]})",
        )
        read = partial(_read, host)
        bare = read()

    def as_before(tensors: list[Tensor]) -> bool:
        return all(map(torch.equal, tensors, read()))

    yield Finding("the same twice", as_before(bare))
    edits = fit_projections(model, prompts, method="cali", **own)
    attachment = debias(model, edits, **own)
    attached = read()
    yield Finding("attached: changed", not as_before(bare))
    attachment.strength = 0.0
    yield Finding("strength 0: as without", as_before(bare))
    attachment.strength = 1.0
    with attachment.disabled():
        yield Finding("disabled: as without", as_before(bare))
    yield Finding("attached again: the same", as_before(attached))
    attachment.remove()
    yield Finding("removed: as without", as_before(bare))
    with tempfile.TemporaryDirectory() as folder:
        for role, edit in edits.items():
            edit.save_pretrained(Path(folder) / role)
        with debias(model, load_edit(folder), **own):
            yield Finding("saved and loaded: the same", as_before(attached))
    # Weights that hold the edit against the attachment, all prompts changed alike: how far apart
    # what is read is.
    attachment = debias(model, edits, keep_stated=False, negative=generates, **own)
    expected = read()
    try:
        attachment.merge()
    except VldebiasError as error:
        attachment.remove()
        yield Finding("merged: as attached", None, str(error))
        return
    merged = read()
    off, moved = (
        float(
            torch.cat(
                [(a - b).float().flatten() for a, b in zip(one, expected, strict=True)]
            ).norm()
        )
        for one in (merged, bare)
    )
    right: bool | None = off <= 0.05 * moved
    note = f"off by {off / max(moved, 1e-12):.1%} of the edit"
    if generates and all(map(torch.equal, merged, bare)):
        right, note = None, "the denoiser holds it now, and nothing was generated"
    yield Finding("merged: as attached", right, note)


@torch.no_grad()
def _read(host: Host, pipe: Any = None, call: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Return what a pipeline generates from one seed, not decoded where that can be; else
    embeddings of two prompts."""
    if pipe is not None:
        given = {
            "output_type": "latent",
            "generator": torch.Generator().manual_seed(0),
            **(call or {}),
        }
        takes = inspect.signature(type(pipe).__call__).parameters
        found = pipe(
            prompt=CHECKED[0], return_dict=False, **{k: v for k, v in given.items() if k in takes}
        )
    elif isinstance(host, DiffusersHost):
        found = [host.call(prompt) for prompt in CHECKED]
    else:
        found = [
            (
                host.encode(CHECKED)
                if isinstance(host, JointHost)
                else host.embed(CHECKED, role=host.roles[0])
            )
        ]
    return list(_tensors(found))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nest of lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    for one in (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, list | tuple)
        else ()
    ):
        yield from _tensors(one)
