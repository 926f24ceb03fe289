"""Show generated images in a grid: a row per text and method, a column per seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vldebias.api import debias
from vldebias.edits.edit import Edit
from vldebias.errors import InvalidInputError, need
from vldebias.measure.result import NONE
from vldebias.methods import Method
from vldebias.pictures import INK
from vldebias.prompts import load_prompts
from vldebias.study.variants import prepared

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = 10
ROWS = 4
# Pixels of a grid.
CELL = 192
GAP = 6
LABEL = 150
HEAD = 26
LINE = 17  # pixels from a line of text to the next
PALE = "#52606d"


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

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` takes, without an attachment.
        prompts: what is mitigated.
        methods: names of `vldebias.methods.METHODS`, methods or fitted edits, or what to call them
            -> one of these; "none" is the pipeline as it is, "default" what `vldebias.debias`
            attaches. Balanced prompts are balanced over all images at once.
        seeds: of the noise.
        texts: prompts to generate; by default four class prompts of the set, held-out ones first.
        steps, guidance, batch_size: of the pipeline.
        options: of `vldebias.debias`: lam, strength, keep_stated, max_loss.

    Raises:
        InvalidInputError: no text, method or seed; and what `vldebias.debias` raises.

    >>> methods = ["none", "default", "cali"]
    >>> picture = vldebias.grid(pipe, "professions-gender", methods=methods)  # doctest: +SKIP
    >>> picture.save("grid.png")  # doctest: +SKIP
    """
    if not texts:
        texts = _class_prompts(prompts)
    rows = [texts] if isinstance(texts, str) else list(texts)
    method_of_name = methods if isinstance(methods, Mapping) else _named(methods)
    if not rows or not method_of_name or not len(seeds):
        raise InvalidInputError(
            f"grid: expected texts, methods and seeds, got {rows}, {list(method_of_name)} and"
            f" {list(seeds)}"
        )
    # An image for each text and seed, texts first.
    listed = [text for text in rows for _ in seeds]
    noise = [int(seed) for _ in rows for seed in seeds]
    images: dict[str, list[list[Image]]] = {}
    for name, method in method_of_name.items():
        if method == NONE:
            attach = None
        elif isinstance(method, (Edit, Mapping)):
            attach = partial(debias, pipe, method, **options)
        else:
            attach = partial(debias, pipe, prompts, method=method, **options)
        made: list[Image] = []
        with prepared(
            pipe, attach, listed, noise, num_inference_steps=steps, guidance_scale=guidance
        ) as (_, generator):
            for start in range(0, len(listed), batch_size):
                batch = range(start, min(start + batch_size, len(listed)))
                made += [image for image, _ in generator(batch)]
        images[name] = [made[i : i + len(seeds)] for i in range(0, len(made), len(seeds))]
    return compose(rows, images, [f"seed {seed}" for seed in seeds])


def _class_prompts(prompts: Any) -> list[str]:
    """Return the first class prompts of one or several sets, held-out ones first."""
    is_one = isinstance(prompts, str) or not isinstance(prompts, Sequence)
    texts: dict[str, None] = {}
    for loaded in map(load_prompts, [prompts] if is_one else prompts):
        texts |= dict.fromkeys([*loaded.held_out_classes, *loaded.classes])
    return list(texts)[:ROWS]


def _named(methods: Sequence[Any]) -> dict[str, Any]:
    """Return name -> method: a method has a name, an edit that of its method."""
    return {
        getattr(method, "name", getattr(method, "method", method)): method for method in methods
    }


def compose(
    texts: Sequence[str], images: Mapping[str, Sequence[Sequence[Image]]], heads: Sequence[str]
) -> Image:
    """Return a picture of images by name, text and column, stacked, with the names on the left.

    texts: of the rows. images: name -> a row of images for each text. heads: of the columns.
    """
    pil_image = need("PIL.Image")
    width, height = next(iter(images.values()))[0][0].size
    larger = max(height, width)
    scale = CELL / larger if larger >= CELL else CELL // larger
    cell = (round(width * scale), round(height * scale))
    right = LABEL + len(heads) * (cell[0] + GAP)
    bottom = HEAD + len(texts) * len(images) * (cell[1] + GAP)
    sheet = pil_image.new("RGB", (right, bottom), "white")
    pen = need("PIL.ImageDraw").Draw(sheet)
    for column, head in enumerate(heads):
        pen.text((LABEL + column * (cell[0] + GAP), 5), head, INK, _font("DejaVuSans"))
    # Small pictures keep their pixels when they are enlarged.
    kind = pil_image.Resampling.NEAREST if scale >= 1 else pil_image.Resampling.LANCZOS
    top = HEAD
    for i, text in enumerate(texts):
        for name, rows in images.items():
            # The text stands once, beside the first of its rows.
            is_first = name == next(iter(images))
            _write_label(pen, top, name, text if is_first else "", cell[1])
            for column, image in enumerate(rows[i]):
                sheet.paste(image.resize(cell, kind), (LABEL + column * (cell[0] + GAP), top))
            top += cell[1] + GAP
    return sheet


def _write_label(pen: Any, top: int, name: str, text: str, height: int) -> None:
    """Write a name in bold and a text below it, left of a row of images of this height."""
    lines = wrap(name, (LABEL - 2 * GAP) // 9, max_lines=2, placeholder="…")
    pen.multiline_text((GAP, top), "\n".join(lines), INK, _font("DejaVuSans-Bold"))
    if not text:
        return
    max_lines = max(1, height // 16 - len(lines))
    words = wrap(text, (LABEL - 2 * GAP) // 8, max_lines=max_lines, placeholder="…")
    place = (GAP, top + LINE * len(lines))
    pen.multiline_text(place, "\n".join(words), PALE, _font("DejaVuSans"))


def _font(name: str) -> Any:
    """Return a font that comes with matplotlib."""
    folder = Path(need("matplotlib").get_data_path(), "fonts", "ttf")
    return need("PIL.ImageFont").truetype(str(folder / f"{name}.ttf"), 13)
