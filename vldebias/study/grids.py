"""Show images in a grid: a row per text and method, a column per seed or per place in a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from torch.nn.functional import normalize

from vldebias.api import debias
from vldebias.data import ImageData
from vldebias.errors import InvalidInputError, need
from vldebias.hosts import Attachment
from vldebias.methods import Method, Problem, get_method
from vldebias.projection.edit import Edit
from vldebias.prompts import load_prompts
from vldebias.report.result import NONE
from vldebias.reranking import rerank
from vldebias.study.inputs import Inputs, images_of_folder
from vldebias.study.tasks.variants import prepared
from vldebias.utils.options import Options
from vldebias.utils.pictures import INK

if TYPE_CHECKING:
    from PIL.Image import Image

RERANK = "rerank"
COLUMNS = 10
ROWS = 4
# Pixels of a grid, at the smallest letters; with larger letters labels and heads grow by the same
# factor.
CELL = 192
GAP = 6
LABEL = 150
HEAD = 26
LINE = 17  # pixels from a line of text to the next
LETTERS = 13
# Letters of a row of images, so many times as wide as they are high: a page of 750 pixels that
# shows the whole grid shows its letters at 12 pixels.
WIDTH_IN_LETTERS = 48
PALE = "#52606d"


def grid(  # noqa: PLR0913 (settings of a public entry point)
    pipe: Any,
    prompts: Any,
    *,
    methods: Sequence[str | Method | Edit] | Mapping[str, str | Method | Edit] = (NONE, "default"),
    seeds: Sequence[int] = (0, 1, 2, 3),
    texts: Sequence[str] | None = None,
    steps: int = 20,
    guidance: float = 7.5,
    batch_size: int = 8,
    images: ImageData | str | Path | None = None,
    **options: Any,
) -> Image:
    """Return a picture with a row per text and method and a column per seed, which shares its
    noise; or of a search, with the first results of each text from left to right.

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` takes, without an attachment; or an
            image-text model of `vldebias.load_host`, for a search of `images`.
        prompts: what is mitigated.
        methods: names of `vldebias.methods.METHODS`, methods or fitted edits, or what to call them
            -> one of these; "none" is the pipeline as it is, "default" what `vldebias.debias`
            attaches. Balanced prompts are balanced over all images at once. Of a search also
            "rerank": the results of the model as it is, re-ranked (`vldebias.rerank`).
        seeds: of the noise.
        texts: prompts to generate; by default four class prompts of the set, held-out ones first.
        steps: denoising steps.
        guidance: guidance scale.
        batch_size: images that are generated at once.
        images: what is searched: a folder of images, or a data set of `vldebias.data`.
        options: of `vldebias.debias`: lam, strength, keep_stated, max_loss.

    Raises:
        InvalidInputError: no text, method or seed; and what `vldebias.debias` raises.

    >>> methods = ["none", "default", "cali"]
    >>> picture = vldebias.grid(pipe, "professions-gender", methods=methods)  # doctest: +SKIP
    >>> picture.save("grid.png")  # doctest: +SKIP
    >>> vldebias.grid(model, "gender", images="faces/", texts="a photo of a doctor",
    ...     methods=["none", "default", "rerank"])  # doctest: +SKIP
    """
    chosen = texts or _class_prompts(prompts)
    rows = [chosen] if isinstance(chosen, str) else list(chosen)
    method_of_name = methods if isinstance(methods, Mapping) else _named(methods)
    if not rows or not method_of_name or not len(seeds):
        raise InvalidInputError(
            f"grid: expected texts, methods and seeds, got {rows}, {list(method_of_name)} and"
            f" {list(seeds)}"
        )
    if images is None:
        settings = {"num_inference_steps": steps, "guidance_scale": guidance}
        shown = _generated(
            pipe, prompts, rows, method_of_name, options, seeds, batch_size, settings
        )
        return compose(rows, shown, [f"seed {seed}" for seed in seeds])
    if isinstance(images, (str, Path)):
        images = images_of_folder(Path(images))
    sources = {"model": pipe, "images": images}
    inputs = Inputs(Options(Path()), sources, needs="grid")
    shown = _searched(inputs, prompts, rows, method_of_name, options)
    places = range(1, min(COLUMNS, len(images)) + 1)
    return compose(rows, shown, list(map(str, places)))


def _generated(
    pipe: Any,
    prompts: Any,
    texts: Sequence[str],
    method_of_name: Mapping[str, Any],
    options: Mapping[str, Any],
    seeds: Sequence[int],
    batch_size: int,
    settings: Mapping[str, Any],
) -> dict[str, list[list[Image]]]:
    """Return name of a method -> the images of each text, one for each seed.

    options: of `debias`. settings: of the call of the pipeline.
    """
    # An image for each text and seed, texts first: with two texts and three seeds the order is
    # (text 0, seed 0), (text 0, seed 1), (text 0, seed 2), (text 1, seed 0), ...
    listed: list[str] = []
    noise: list[int] = []
    for text in texts:
        listed += [text] * len(seeds)
        noise += map(int, seeds)
    rows_of_name = {}
    for name, method in method_of_name.items():
        attach: Callable[[], Attachment] | None = None
        if isinstance(method, (Edit, Mapping)):
            # A fitted edit stands where `debias` expects prompt sets: it carries its own.
            attach = partial(debias, pipe, method, **options)
        elif method != NONE:
            attach = partial(debias, pipe, prompts, method=method, **options)
        with prepared(pipe, attach, listed, noise, **settings) as generator:
            pictures: list[Image] = []
            for start in range(0, len(listed), batch_size):
                batch = range(start, min(start + batch_size, len(listed)))
                pictures += [image for image, _ in generator(batch)]
        starts = range(0, len(pictures), len(seeds))
        rows_of_name[name] = [pictures[start : start + len(seeds)] for start in starts]
    return rows_of_name


def _searched(
    inputs: Inputs,
    prompts: Any,
    texts: Sequence[str],
    method_of_name: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, list[list[Image]]]:
    """Return name of a method -> the first results of each text."""
    host = inputs.texts
    images: ImageData = inputs.sources["images"]
    embeddings = inputs["images"]
    features = embeddings.unit[:]
    # Images that cannot be read have no features.
    place_of_id = {name: place for place, name in enumerate(images.ids)}
    role = host.roles[0]
    rows_of_name: dict[str, list[list[Image]]] = {}
    for name, method in method_of_name.items():
        edit = method if isinstance(method, Edit) else None
        if edit is None and method not in (NONE, RERANK):
            problem = Problem(host, prompts, lam=options.get("lam"))
            edit = problem.fit(get_method(None if method == "default" else method), role)
        directions = normalize(host.under(list(texts), role, edit).float(), dim=1)
        scores = directions @ features.T
        order: Any
        if method == RERANK:
            order = rerank(scores, COLUMNS, features=features, prompts=prompts, model=host)
        else:
            # Equal scores stay in the order of the images.
            order = scores.argsort(dim=1, descending=True, stable=True)[:, :COLUMNS]
        rows_of_name[name] = []
        for row in order.tolist():
            pictures = [images.read(place_of_id[embeddings.ids[place]]) for place in row]
            rows_of_name[name].append(pictures)
    return rows_of_name


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

    Args:
        texts: of the rows.
        images: name -> a row of images for each text.
        heads: of the columns.
    """
    pil_image = need("PIL.Image")
    size = next(iter(images.values()))[0][0].size
    # Large pictures are shrunk to a cell; small ones, as the miniature's 32 pixels, are enlarged by
    # a whole factor, so that every pixel stays a square.
    larger = max(size)
    scale = CELL / larger if larger >= CELL else CELL // larger
    cell = round(size[0] * scale), round(size[1] * scale)
    row_width = len(heads) * (cell[0] + GAP)
    letters, margin, top = layout(row_width)
    bottom = top + len(texts) * len(images) * (cell[1] + GAP)
    sheet = pil_image.new("RGB", (margin + row_width, bottom), "white")
    pen = need("PIL.ImageDraw").Draw(sheet)
    for column, head in enumerate(heads):
        place = (margin + column * (cell[0] + GAP), 5)
        pen.text(place, head, INK, _font("DejaVuSans", letters))
    # Small pictures keep their pixels when they are enlarged.
    is_enlarged = cell[0] >= size[0]
    kind = pil_image.Resampling.NEAREST if is_enlarged else pil_image.Resampling.LANCZOS
    for i, text in enumerate(texts):
        for name, rows in images.items():
            # The text stands once, next to the first of its rows.
            is_first = name == next(iter(images))
            _write_label(pen, top, name, text if is_first else "", cell[1], letters)
            for column, image in enumerate(rows[i]):
                sheet.paste(image.resize(cell, kind), (margin + column * (cell[0] + GAP), top))
            top += cell[1] + GAP
    return sheet


def layout(row_width: int) -> tuple[int, int, int]:
    """Return the height of letters, and the margins on the left of a row of images of this width
    and above it."""
    letters = max(LETTERS, row_width // WIDTH_IN_LETTERS)
    return letters, LABEL * letters // LETTERS, HEAD * letters // LETTERS


def _write_label(pen: Any, top: int, name: str, text: str, height: int, letters: int) -> None:
    """Write a name in bold and a text below it, left of a row of images of this height.

    letters: their height in pixels.
    """
    line = LINE * letters // LETTERS
    # About 9 pixels a letter in bold and 8 in plain where letters are 13 high, on the wide side: a
    # name that is broken early can be read, one that runs into the images cannot.
    lines = wrap(name, (LABEL - 2 * GAP) // 9, max_lines=2, placeholder="…")
    pen.multiline_text((GAP, top), "\n".join(lines), INK, _font("DejaVuSans-Bold", letters))
    if not text:
        return
    max_lines = max(1, height // line - len(lines))
    words = wrap(text, (LABEL - 2 * GAP) // 8, max_lines=max_lines, placeholder="…")
    place = (GAP, top + line * len(lines))
    pen.multiline_text(place, "\n".join(words), PALE, _font("DejaVuSans", letters))


def _font(name: str, letters: int) -> Any:
    """Return a font that comes with matplotlib, with letters of this height in pixels."""
    folder = Path(need("matplotlib").get_data_path(), "fonts", "ttf")
    return need("PIL.ImageFont").truetype(str(folder / f"{name}.ttf"), letters)
