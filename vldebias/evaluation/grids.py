"""Generate a few images for inspection: the same seeds under several methods, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vldebias.api import debias
from vldebias.edit import Edit
from vldebias.errors import AlreadyAttachedError, InvalidInputError, need
from vldebias.evaluation.drawing import through, without_own_bar
from vldebias.evaluation.result import NONE
from vldebias.hosts.attachment import attachment_of
from vldebias.methods import Method
from vldebias.pictures import INK, font
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from PIL.Image import Image

    from vldebias.methods import Prompts

COLUMNS, ROWS = 10, 4
CELL, GAP, LABEL, HEAD = 192, 6, 150, 26  # pixels of a grid


def grid(
    pipe: Any,
    prompts: Prompts,
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
        several = prompts if isinstance(prompts, Sequence) and not isinstance(prompts, str) else [prompts]
        sets = map(load_prompts, several)
        texts = list(dict.fromkeys(p for one in sets for p in (*one.held_out_classes, *one.classes)))[:ROWS]
    rows = [texts] if isinstance(texts, str) else list(texts)
    named = dict(methods) if isinstance(methods, Mapping) else {_called(method): method for method in methods}
    if not rows or not named or not len(seeds):
        raise InvalidInputError(f"grid: expected texts, methods and seeds, got {rows}, {list(named)} and {list(seeds)}")
    flat, noise = zip(*[(text, int(seed)) for text in rows for seed in seeds], strict=True)
    images: dict[str, list[list[Image]]] = {}
    how = {"num_inference_steps": steps, "guidance_scale": guidance}
    with without_own_bar(pipe):
        for name, method in named.items():
            attached: AbstractContextManager[Any] = nullcontext()
            if isinstance(method, (Edit, Mapping)):
                attached = debias(pipe, method, **options)
            elif method != NONE:
                attached = debias(pipe, prompts, method=method, **options)
            with attached as attachment:
                written = flat if attachment is None else attachment.rewrite(flat)
                # what is written already is not to be written again
                again = attachment is not None and not attachment.projections
                with attachment.disabled() if again else nullcontext():
                    drawn = [
                        image
                        for i in range(0, len(flat), batch_size)
                        for image in through(pipe, written[i : i + batch_size], noise[i : i + batch_size], how)[0]
                    ]
            images[name] = [drawn[i : i + len(seeds)] for i in range(0, len(drawn), len(seeds))]
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
        for j, (name, drawn) in enumerate(images.items()):
            top = HEAD + (i * len(images) + j) * (cell[1] + GAP)
            lines = wrap(name, (LABEL - 2 * GAP) // 9, max_lines=2, placeholder="…")
            pen.multiline_text((GAP, top), "\n".join(lines), INK, bold)
            if j == 0:
                most = max(1, cell[1] // 16 - len(lines))
                words = wrap(text, (LABEL - 2 * GAP) // 8, max_lines=most, placeholder="…")
                pen.multiline_text((GAP, top + 17 * len(lines)), "\n".join(words), "#52606d", face)
            for column, image in enumerate(drawn[i]):
                sheet.paste(image.resize(cell, kind), (LABEL + column * (cell[0] + GAP), top))
    return sheet
