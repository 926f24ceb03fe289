"""A few images to look at: the same seeds under several methods, at several strengths, and beside one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vldebias.api import debias
from vldebias.data import Labels
from vldebias.edit import Edit
from vldebias.errors import AlreadyAttachedError, InvalidInputError, need
from vldebias.evaluation.discrepancies import Counts, Floats, Sheet
from vldebias.evaluation.drawing import DrawnSet, without_own_bar
from vldebias.evaluation.report.charts import contact_sheet, dumbbells
from vldebias.evaluation.variants import NONE, Variant
from vldebias.hosts.attachment import attachment_of
from vldebias.methods import Method
from vldebias.pictures import INK, font, wrap_lines
from vldebias.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

    from vldebias.methods.method import Prompts

SIDE = 128  # pixels to which larger images of a sheet are scaled: a page holds hundreds
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
    """One image per (prompt, seed) of the two equally long lists: (n, 3, height, width) in [0, 1] on the CPU.

    Every image has a generator of its own, so an image depends on its prompt and seed and not on its batch:
    methods are compared on the same initial noise. An attachment that draws a value for each image is told the seeds.
    """
    images, attachment = [], attachment_of(pipe)
    for start in range(0, len(prompts), batch_size):
        batch = [int(seed) for seed in seeds[start : start + batch_size]]
        if attachment is not None:
            attachment.seeds = batch
        done = pipe(
            list(prompts[start : start + batch_size]),
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in batch],
            num_inference_steps=steps,
            guidance_scale=guidance,
            output_type="pt",
        )
        images.append(done.images.float().cpu().clamp(0, 1))
    return torch.cat(images)


# ---- methods side by side ------------------------------------------------------------------------------------


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
    """One picture: a row for each text and method, a column for each seed, all of a column from the same noise.

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

    >>> vldebias.grid(pipe, "professions-gender", methods=["none", "cali", "steer"]).save("grid.png")  # doctest: +SKIP
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
    return _composed(rows, images, [f"seed {seed}" for seed in seeds])


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


def _composed(texts: Sequence[str], images: Mapping[str, Tensor], heads: Sequence[str]) -> Image:
    """Images (texts, columns, 3, h, w) of each row under one another, with names to the left and heads on top."""
    Image, ImageDraw = need("PIL.Image"), need("PIL.ImageDraw")

    first = next(iter(images.values()))
    height, width = first.shape[-2:]
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
                pixels = (image.permute(1, 2, 0) * 255).round().byte().numpy()
                place = (LABEL + column * (cell[0] + GAP), top)
                sheet.paste(Image.fromarray(pixels).resize(cell, kind), place)
    return sheet


# ---- strengths side by side ----------------------------------------------------------------------------------


def draw_strengths(
    pipe: Any,
    prompts: Sequence[tuple[str, str]],
    variant: Variant,
    *,
    strengths: Sequence[float],
    seeds: Sequence[int],
    steps: int,
    guidance: float,
) -> Image:
    """One row per (name, prompt) and seed, one column per strength. Strength 0 is the pipeline as it is.

    The variant's own strength does not count; it is fitted once.
    """
    texts, noise = zip(*[(prompt, seed) for _, prompt in prompts for seed in seeds], strict=True)
    columns = []
    with variant.attach(pipe) as attachment:
        for strength in strengths:
            attachment.strength = strength
            columns.append(generate(pipe, texts, noise, steps=steps, guidance=guidance, batch_size=len(texts)))
    images = torch.stack(columns, dim=1).unflatten(0, (len(prompts), len(seeds)))  # of (strengths, 3, h, w) each
    heads = ["as it is" if strength == 0 else f"strength {strength:g}" for strength in strengths]
    rows = {f"seed {seed}": images[:, i] for i, seed in enumerate(seeds)}
    return _composed([name for name, _ in prompts], rows, heads)


def class_prompts_of(prompts: PromptSet, concepts: Sequence[str]) -> list[tuple[str, str]]:
    """(concept, its class prompt) of concepts of a prompt set, held out or not.

    Raises:
        InvalidInputError: a concept that the set does not have.
    """
    there = dict(zip(prompts.class_names, prompts.classes, strict=True))
    there |= zip(prompts.held_out_class_names, prompts.held_out_classes, strict=True)
    missing = [concept for concept in concepts if concept not in there]
    if missing:
        raise InvalidInputError(f"strips: {prompts.name!r} has no {missing}; its concepts are {list(there)}")
    return [(concept, there[concept]) for concept in concepts]


# ---- of a drawn folder ---------------------------------------------------------------------------------------


def side_by_side(drawn: DrawnSet, sheet: Sheet, labels: Labels) -> Plot:
    """Some prompts, from those with the smallest share of the first value to the largest; columns share a seed."""
    shares = Counts.of(labels.codes[sheet.rows[NONE]], len(labels.names)).shares[:, 0]
    order = np.argsort(np.nan_to_num(shares, nan=0.5), kind="stable")
    rows = []
    for i in order[np.linspace(0, len(order) - 1, min(ROWS, len(order))).round().astype(int)]:
        for name, places in sheet.rows.items():
            label = sheet.concepts[i] if name == NONE else name
            rows.append((label, torch.stack([_pixels(drawn, place) for place in places[i][:COLUMNS]])))
    return contact_sheet(rows)


def _pixels(drawn: DrawnSet, place: int) -> Tensor:
    """(3, h, w) in [0, 1], at most SIDE high and wide."""
    Resampling = need("PIL.Image").Resampling

    image = drawn.read(drawn.images[place])
    image.thumbnail((SIDE, SIDE), Resampling.LANCZOS)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def share_plots(concepts: Sequence[str], shares: Mapping[str, Floats], title: str) -> dict[str, Plot]:
    """Variant -> a plot of its shares (prompts,) beside those of "none"; prompts with NaN on one side are left out."""
    plots = {}
    for name in shares:
        known = np.isfinite(shares[NONE]) & np.isfinite(shares[name])
        if name != NONE and known.any():
            names = [concept for concept, there in zip(concepts, known, strict=True) if there]
            plots[name] = dumbbells(names, shares[NONE][known], shares[name][known], f"{title}, {name}", name)
    return plots
