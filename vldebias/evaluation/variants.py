"""Debias a pipeline with any method or a saved edit, and compare a few images of several methods in a grid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from vldebias.api import debias
from vldebias.edit import Edit
from vldebias.errors import AlreadyAttachedError, InvalidInputError, need
from vldebias.evaluation.result import NONE
from vldebias.evaluation.task import Lam, Prompts, SeveralPrompts, Share, Strict
from vldebias.files import add_tensors
from vldebias.hosts import Attachment, attachment_of
from vldebias.hosts.base import weights_fingerprint
from vldebias.methods import METHODS, Method, Need, get_method, load_edit, load_edits
from vldebias.pictures import INK, font
from vldebias.prompts import can_balance, load_prompts

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS, ROWS = 10, 4
CELL, GAP, LABEL, HEAD = 192, 6, 150, 26  # pixels of a grid


def is_for_pipelines(method: str) -> bool:
    """Return whether a method is for pipelines; InvalidInputError if no method has this name."""
    return get_method(method).pipelines and not get_method(method).uses_images


class Variant(Strict):
    """Hold one way to debias a pipeline: the arguments of `vldebias.debias`, or a saved edit.

    prompts: sets that are solved jointly; none: the set that is generated. method: its name.
    lam = 500 is the paper's (section 7.6); "default" chooses its own.
    strength: share of the edit, and of "balanced-prompts" share of the images. projection: a folder that
    `save_pretrained` or `vldebias debias --out` wrote, in place of prompts, method and lam.
    only_stated: generate the prompts that state a value alone.
    """

    prompts: SeveralPrompts = ()
    method: str = "cali"
    lam: Annotated[Lam, Field(allow_inf_nan=False)] = 500.0
    strength: Share = 1.0
    keep_stated: bool = True
    projection: Path | None = None
    only_stated: bool = False

    @field_validator("method")
    @classmethod
    def _known(cls, given: str) -> str:
        if not is_for_pipelines(given):
            expected = ", ".join(filter(is_for_pipelines, METHODS))
            raise ValueError(f"method {given!r} is not for pipelines; expected one of {expected}")
        return given

    @model_validator(mode="after")
    def _fits(self) -> Variant:
        clash = self.model_fields_set & {"prompts", "method", "lam"}
        if self.projection is not None and clash:
            raise ValueError(f"a saved projection carries its own {', '.join(sorted(clash))}; leave them out")
        sets = [part for one in map(load_prompts, self.prompts) for part in one.parts or (one,)]
        if sets and Need.SPURIOUS in get_method(self.method).needs and not any(part.spurious for part in sets):
            raise ValueError(f"method {self.method!r} needs spurious prompts, the sets have none; use method='cali'")
        return self

    @property
    def rewrites(self) -> bool:
        """Return whether it balances prompts, as the default does for sets about persons, and fits no edit."""
        if self.projection is not None:
            return False
        sets = [part for one in map(load_prompts, self.prompts) for part in one.parts or (one,)]
        stands_for = self.method == "default" and bool(sets) and all(map(can_balance, sets))
        return stands_for or get_method(self.method).rewrites

    @property
    def _lam(self) -> float | None:
        return self.lam if get_method(self.method).has_lam else None

    @property
    def _saved(self) -> Mapping[str, Edit] | Edit:
        assert self.projection is not None
        single = (self.projection / "config.json").is_file()
        return load_edit(self.projection) if single else load_edits(self.projection)

    def on(self, *prompts: Prompts) -> Variant:
        """Return the variant for a task that generates `prompts`; it is fitted on them if it names no sets."""
        return self if self.prompts or self.projection is not None else self.model_copy(update={"prompts": prompts})

    def attach(self, pipe: Any) -> Attachment:
        """Attach the variant to a pipeline."""
        common: dict[str, Any] = {"strength": self.strength, "keep_stated": self.keep_stated}
        if self.projection is not None:
            return debias(pipe, self._saved, **common)
        return debias(pipe, list(self.prompts), method=self.method, lam=self._lam, **common)

    @property
    def planned(self) -> dict[str, Any]:
        """Return the description of the variant in a plan; sets: name -> hash, projection: digest of its tensors."""
        told: dict[str, Any] = {key: getattr(self, key) for key in ("strength", "keep_stated", "only_stated")}
        if self.projection is None:
            sets = {one.name: one.hash for one in map(load_prompts, self.prompts)}
            name = "balanced-prompts" if self.rewrites else get_method(self.method).name
            return told | {"sets": sets, "method": name, "lam": self._lam}
        edits, state = self._saved, hashlib.sha256()
        every = list(edits.values()) if isinstance(edits, Mapping) else [edits]
        for edit in every:
            add_tensors(state, sorted(edit.tensors().items()))
        of = every[0].provenance
        lam = of.lam if isinstance(of.lam, float) and (of.method not in METHODS or METHODS[of.method].has_lam) else None
        told |= {"sets": {of.prompts or "projection": of.prompts_hash or ""}, "method": of.method, "lam": lam}
        return told | {"projection": state.hexdigest()[:16]}


def hash_of(value: Any) -> str:
    """Return a short hash of a JSON value; the order of keys counts."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


# ---- generating ----------------------------------------------------------------------------------------------


def identity(pipe: Any) -> dict[str, Any]:
    """Return what identifies a pipeline: class, origin, fingerprints of all components, scheduler, adapters, precision.

    Fingerprints are None where weights are offloaded to meta tensors.
    """
    modules = {n: getattr(m, "_orig_mod", m) for n, m in pipe.components.items() if isinstance(m, nn.Module)}
    # Private entries say which values were defaults, in an order that changes from process to process.
    scheduler = sorted((key, value) for key, value in pipe.scheduler.config.items() if not key.startswith("_"))
    adapters = {name for module in modules.values() for name in getattr(module, "peft_config", None) or ()}
    return {
        "pipeline": type(pipe).__name__,
        "id": str(getattr(pipe, "name_or_path", None) or "") or None,
        "fingerprints": {name: (f := weights_fingerprint(module)) and f.to_dict() for name, module in modules.items()},
        "scheduler": f"{type(pipe.scheduler).__name__} {hash_of(scheduler)}",
        "adapters": sorted(adapters),
        "precision": sorted({str(p.dtype).removeprefix("torch.") for m in modules.values() for p in m.parameters()}),
    }


def joint_fingerprint(components: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return one fingerprint of all components, for `Fingerprint.matches`; None where one is unknown."""
    prints = [one for _, one in sorted(components.items()) if one is not None]
    if not prints or len(prints) < len(components):
        return None
    lists = {key: [x for one in prints for x in one.get(key, [])] for key in ("norms", "waves", "tensors")}
    return {"structure": hash_of([sorted(components), [one["structure"] for one in prints]]), **lists}


@contextmanager
def ready(pipe: Any) -> Iterator[None]:
    """Turn off the pipeline's own progress bar, one per batch, inside the context.

    Raises:
        AlreadyAttachedError: it carries an attachment, and "none" is generated without one.
    """
    if attachment_of(pipe) is not None:
        raise AlreadyAttachedError(f"{type(pipe).__name__} carries {attachment_of(pipe)!r}: call .remove() on it first")
    before = dict(getattr(pipe, "_progress_bar_config", {}))
    pipe.set_progress_bar_config(**before | {"disable": True})
    try:
        yield
    finally:
        pipe.set_progress_bar_config(**before)


class Row(NamedTuple):
    """Hold the text of one image, the value that was written into it, and whether the image is left unchanged."""

    text: str
    value: Any
    alone: bool


@contextmanager
def rewritten(attachment: Attachment | None, prompts: Sequence[str]) -> Iterator[list[Row]]:
    """Rewrite all prompts at once, so that values are balanced over all; batches are not rewritten in the context."""
    if attachment is None:
        yield [Row(prompt, None, False) for prompt in prompts]
    elif attachment.projections:
        yield [Row(prompt, None, alone) for prompt, alone in zip(prompts, attachment.stated(prompts), strict=True)]
    else:
        written = zip(prompts, attachment.rewrite(prompts), attachment.sampled, strict=True)
        rows = [Row(text, value, text == prompt) for prompt, text, value in written]
        with attachment.disabled():
            yield rows


def through(
    pipe: Any, texts: Sequence[str], noise: Sequence[int], options: Mapping[str, Any]
) -> list[tuple[Image, bool]]:
    """Return the image of each text, from its own generator, and whether the safety checker replaced it by black."""
    # Pipelines want as many negative prompts as prompts.
    own = {k: [v] * len(texts) if k.startswith("negative_prompt") else v for k, v in options.items()}
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in noise]
    done = pipe(list(texts), generator=generators, output_type="pil", **own)
    flagged = getattr(done, "nsfw_content_detected", None) or [False] * len(texts)
    return [(image, bool(flag)) for image, flag in zip(done.images, flagged, strict=True)]


def grid(
    pipe: Any,
    prompts: Any,
    *,
    methods: Sequence[str | Method | Edit] | Mapping[str, str | Method | Edit] = (NONE, "cali"),
    seeds: Sequence[int] = (0, 1, 2, 3),
    texts: Sequence[str] | None = None,
    steps: int = 20,
    guidance: float = 7.5,
    batch_size: int = 8,
    **options: Any,
) -> Image:
    """Return a picture with a row per text and method and a column per seed; a column shares the same noise.

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` takes, without an attachment.
        prompts: what is mitigated, as for `vldebias.debias`.
        methods: names of `vldebias.methods.METHODS`, methods or fitted edits, or what to call them -> one of these;
            "none" is the pipeline as it is. Balanced prompts are balanced over all images at once.
        seeds: of the noise.
        texts: prompts to generate; by default four class prompts of the set, held-out ones first.
        steps, guidance, batch_size: of the pipeline.
        options: further arguments of `vldebias.debias`: lam, strength, keep_stated, max_loss, negative.

    Raises:
        AlreadyAttachedError: the pipeline carries an attachment; see `vldebias.debias` for the others.
        InvalidInputError: no text, method or seed.

    >>> vldebias.grid(pipe, "professions-gender", methods=["none", "default"]).save("grid.png")  # doctest: +SKIP
    """
    if not texts:
        several = prompts if isinstance(prompts, Sequence) and not isinstance(prompts, str) else [prompts]
        sets = map(load_prompts, several)
        texts = list(dict.fromkeys(p for one in sets for p in (*one.held_out_classes, *one.classes)))[:ROWS]
    rows = [texts] if isinstance(texts, str) else list(texts)
    named = dict(methods) if isinstance(methods, Mapping) else {_called(method): method for method in methods}
    if not rows or not named or not len(seeds):
        raise InvalidInputError(f"grid: expected texts, methods and seeds, got {rows}, {list(named)} and {list(seeds)}")
    flat, noise = zip(*[(text, int(seed)) for text in rows for seed in seeds], strict=True)
    how = {"num_inference_steps": steps, "guidance_scale": guidance}
    images: dict[str, list[list[Image]]] = {}
    with ready(pipe):
        for name, method in named.items():
            attached: AbstractContextManager[Any] = nullcontext()
            if isinstance(method, (Edit, Mapping)):
                attached = debias(pipe, method, **options)
            elif method != NONE:
                attached = debias(pipe, prompts, method=method, **options)
            with attached as attachment, rewritten(attachment, flat) as told:
                written = [row.text for row in told]
                batches = [slice(start, start + batch_size) for start in range(0, len(flat), batch_size)]
                made = [image for at in batches for image, _ in through(pipe, written[at], noise[at], how)]
            images[name] = [made[i : i + len(seeds)] for i in range(0, len(made), len(seeds))]
    return compose(rows, images, [f"seed {seed}" for seed in seeds])


def _called(method: str | Method | Edit) -> str:
    return method if isinstance(method, str) else method.name if isinstance(method, Method) else method.method


def compose(texts: Sequence[str], images: Mapping[str, Sequence[Sequence[Image]]], heads: Sequence[str]) -> Image:
    """Return a picture of images by name, text and column, stacked, with the names on the left."""
    Image, ImageDraw = need("PIL.Image"), need("PIL.ImageDraw")
    width, height = next(iter(images.values()))[0][0].size
    scale = max(1, CELL // max(height, width)) if max(height, width) < CELL else CELL / max(height, width)
    cell = round(width * scale), round(height * scale)
    size = (LABEL + len(heads) * (cell[0] + GAP), HEAD + len(texts) * len(images) * (cell[1] + GAP))
    sheet = Image.new("RGB", size, "white")
    pen, face, bold = ImageDraw.Draw(sheet), font(13), font(13, bold=True)
    for column, head in enumerate(heads):
        pen.text((LABEL + column * (cell[0] + GAP), 5), head, INK, face)
    kind = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    for i, text in enumerate(texts):
        for j, (name, shown) in enumerate(images.items()):
            top = HEAD + (i * len(images) + j) * (cell[1] + GAP)
            lines = wrap(name, (LABEL - 2 * GAP) // 9, max_lines=2, placeholder="…")
            pen.multiline_text((GAP, top), "\n".join(lines), INK, bold)
            if j == 0:
                most = max(1, cell[1] // 16 - len(lines))
                words = wrap(text, (LABEL - 2 * GAP) // 8, max_lines=most, placeholder="…")
                pen.multiline_text((GAP, top + 17 * len(lines)), "\n".join(words), "#52606d", face)
            for column, image in enumerate(shown[i]):
                sheet.paste(image.resize(cell, kind), (LABEL + column * (cell[0] + GAP), top))
    return sheet
