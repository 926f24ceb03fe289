"""A few images to look at: the same seeds under several methods, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vldebias.api import debias
from vldebias.edit import Edit
from vldebias.errors import AlreadyAttachedError, InvalidInputError, need
from vldebias.evaluation.drawing import without_own_bar
from vldebias.evaluation.variants import NONE, Variant
from vldebias.hosts.attachment import attachment_of
from vldebias.methods import Method
from vldebias.pictures import INK, font, wrap_lines
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from PIL.Image import Image

    from vldebias.methods.problem import Prompts

SIDE = 128  # pixels to which larger images of a report are scaled: a page holds hundreds
COLUMNS, ROWS = 10, 4
CELL, GAP, LABEL, HEAD = 192, 6, 150, 26  # pixels of a grid


def generate(
    pipe: Any,
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    steps: int = 20,
    guidance: float = 3.0,
    batch_size: int = 64,
) -> Tensor:
    """Return one image per (prompt, seed) of the two equally long lists: (n, 3, height, width) in [0, 1] on the CPU.

    Every image has a generator of its own, so an image depends on its prompt and seed and not on its batch:
    methods are compared on the same initial noise. Balanced prompts are balanced over all images at once.
    """
    images, attachment = [], attachment_of(pipe)
    texts = list(prompts) if attachment is None else attachment.rewrite(prompts)
    # what is written already is not to be written again
    bare = nullcontext() if attachment is None or attachment.projections else attachment.disabled()
    with bare:
        for start in range(0, len(prompts), batch_size):
            done = pipe(
                texts[start : start + batch_size],
                generator=[torch.Generator("cpu").manual_seed(int(s)) for s in seeds[start : start + batch_size]],
                num_inference_steps=steps,
                guidance_scale=guidance,
                output_type="pt",
            )
            images.append(done.images.float().cpu().clamp(0, 1))
    return torch.cat(images)


def grid(
    pipe: Any,
    prompts: Prompts,
    *,
    methods: Sequence[str | Method | Variant | Edit] | Mapping[str, str | Method | Variant | Edit] = (NONE, "cali"),
    seeds: Sequence[int] = (0, 1, 2, 3),
    texts: Sequence[str] | None = None,
    steps: int = 20,
    guidance: float = 7.5,
    batch_size: int = 8,
    **options: Any,
) -> Image:
    """Draw one picture: a row for each text and method, a column for each seed, all of a column from the same noise.

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` takes, without an attachment.
        prompts: what is mitigated, as for `vldebias.debias`.
        methods: names of `vldebias.methods.METHODS`, methods, fitted edits or `Variant`s, or what to call them -> one
            of these; "none" is the pipeline as it is.
        seeds: of the noise.
        texts: prompts to draw; by default the first four class prompts of the set that it was not fitted on.
        steps, guidance, batch_size: of the pipeline.
        options: further arguments of `vldebias.debias`: lam, strength, keep_stated, max_loss, negative.

    Raises:
        AlreadyAttachedError: the pipeline carries an attachment; see `vldebias.debias` for the others.
        InvalidInputError: no text, method or seed.

    >>> vldebias.grid(pipe, "professions-gender", methods=["none", "default"]).save("grid.png")  # doctest: +SKIP
    """
    if attachment_of(pipe) is not None:
        raise AlreadyAttachedError(f"{type(pipe).__name__} carries {attachment_of(pipe)!r}: call .remove() on it first")
    if texts is None or texts == "":
        sets = map(load_prompts, _listed(prompts))
        texts = list(dict.fromkeys(p for one in sets for p in (*one.held_out_classes, *one.classes)))[:ROWS]
    rows = [texts] if isinstance(texts, str) else list(texts)
    named = dict(methods) if isinstance(methods, Mapping) else {_called(method): method for method in methods}
    if not rows or not named or not len(seeds):
        raise InvalidInputError(f"grid: expected texts, methods and seeds, got {rows}, {list(named)} and {list(seeds)}")
    flat, noise = zip(*[(text, int(seed)) for text in rows for seed in seeds], strict=True)
    images = {}
    with without_own_bar(pipe):
        for name, method in named.items():
            with _attached(pipe, prompts, method, options):
                drawn = generate(pipe, flat, noise, steps=steps, guidance=guidance, batch_size=batch_size)
            images[name] = drawn.unflatten(0, (len(rows), len(seeds)))
    return compose(rows, images, [f"seed {seed}" for seed in seeds])


def _listed(prompts: Prompts) -> Sequence[Any]:
    return [prompts] if isinstance(prompts, str) or not isinstance(prompts, Sequence) else prompts


def _called(method: str | Method | Variant | Edit) -> str:
    if isinstance(method, Variant):
        return _called(method.method)
    return method if isinstance(method, str) else method.name if isinstance(method, Method) else method.method


def _attached(pipe: Any, prompts: Prompts, method: Any, options: Mapping[str, Any]) -> AbstractContextManager[Any]:
    if method == NONE:
        return nullcontext()
    if isinstance(method, Variant):
        return method.on(*_listed(prompts)).attach(pipe)
    if isinstance(method, (Edit, Mapping)):
        return debias(pipe, method, **options)
    return debias(pipe, prompts, method=method, **options)


def compose(texts: Sequence[str], images: Mapping[str, Sequence[Sequence[Tensor]]], heads: Sequence[str]) -> Image:
    """Draw images (3, h, w) in [0, 1] by name, text and column under one another, with names to the left."""
    Image, ImageDraw = need("PIL.Image"), need("PIL.ImageDraw")

    height, width = next(iter(images.values()))[0][0].shape[-2:]
    scale = max(1, CELL // max(height, width)) if max(height, width) < CELL else CELL / max(height, width)
    cell = round(width * scale), round(height * scale)
    size = (LABEL + len(heads) * (cell[0] + GAP), HEAD + len(texts) * len(images) * (cell[1] + GAP))
    sheet = Image.new("RGB", size, "white")
    pen, face, bold = ImageDraw.Draw(sheet), font(13), font(13, bold=True)
    for column, head in enumerate(heads):
        pen.text((LABEL + column * (cell[0] + GAP), 5), head, INK, face)
    kind = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    for i, text in enumerate(texts):
        for j, (name, drawn) in enumerate(images.items()):
            top = HEAD + (i * len(images) + j) * (cell[1] + GAP)
            lines = [*wrap_lines(name, bold, LABEL - 2 * GAP, 2)]
            pen.multiline_text((GAP, top), "\n".join(lines), INK, bold)
            if j == 0:
                words = wrap_lines(text, face, LABEL - 2 * GAP, max(1, cell[1] // 16 - len(lines)))
                pen.multiline_text((GAP, top + 17 * len(lines)), "\n".join(words), "#52606d", face)
            for column, image in enumerate(drawn[i]):
                shown = Image.fromarray((image.permute(1, 2, 0) * 255).round().byte().numpy()).resize(cell, kind)
                sheet.paste(shown, (LABEL + column * (cell[0] + GAP), top))
    return sheet


def pixels(image: Image) -> Tensor:
    """Return an image as (3, h, w) in [0, 1], at most SIDE high and wide."""
    image.thumbnail((SIDE, SIDE), need("PIL.Image").Resampling.LANCZOS)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
