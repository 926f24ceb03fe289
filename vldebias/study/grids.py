"""Compose image grids with a row per prompt and method, and a column per seed or search result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.nn.functional import normalize

from vldebias.api import debias
from vldebias.data import ImageData
from vldebias.data.labelled_folder import images_of_folder
from vldebias.errors import (
    InvalidInputError,
    check_arguments,
    check_kind,
    did_you_mean,
    need,
    received,
)
from vldebias.hosts import Attachment
from vldebias.measure.rows import NONE
from vldebias.methods import Method, Problem, get_method
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts
from vldebias.reranking import rerank
from vldebias.reranking.report import check_count
from vldebias.study.inputs import Inputs
from vldebias.study.tasks.variants import prepared
from vldebias.utils.options import Options
from vldebias.utils.pictures import INK
from vldebias.utils.texts import checked_texts

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

    from vldebias.hosts import Host
    from vldebias.typing import AttributeLike, ModelLike, PipelineLike

# A method or its name, a fitted edit, or edits by role.
AnyMethod: TypeAlias = str | Method | Edit | Mapping[str, Edit]
RERANK = "rerank"
COLUMNS = 10
ROWS = 4
# These are sizes in pixels at the smallest font size. Labels and headings scale with the font.
CELL = 192
GAP = 6
LABEL = 150
HEAD = 26
LINE = 17  # line height in pixels
LETTERS = 13
# Maximum width of an image row in units of the font size. If the grid is scaled to a 750-pixel
# page, letters are about 12 pixels high.
WIDTH_IN_LETTERS = 48
PALE = "#52606d"


@check_arguments("seeds", "methods")
def grid(  # noqa: PLR0913 (settings of a public entry point)
    pipe: Host | ModelLike | PipelineLike,
    attribute: AttributeLike,
    *,
    methods: Sequence[AnyMethod] | Mapping[str, AnyMethod] = (NONE, "default"),
    seeds: Sequence[int] = (0, 1, 2, 3),
    prompts: str | Sequence[str] | None = None,
    steps: int = 20,
    guidance: float = 7.5,
    batch_size: int = 8,
    images: ImageData | str | Path | None = None,
    **options: Any,  # checked by `debias`
) -> Image:
    """Return an image with a row per prompt and method, and a column per seed or search result.

    See also docs/how-to/generate.md.

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` supports, without an attachment; or an
            image-text model from `vldebias.load_host`, to search `images`.
        attribute: prompt sets for the bias to mitigate.
        methods: names in `vldebias.methods.METHODS`, methods or fitted edits, or a mapping from
            titles to these. "none" is the unedited pipeline, and "default" the method that
            `vldebias.debias` attaches by default. Balanced prompts spread the values evenly over
            all images of the grid.
            For a search, "rerank" re-ranks the unedited model's results (`vldebias.rerank`).
        seeds: noise seeds; images in a column share a seed.
        prompts: prompts, or queries for a search. Default: four class prompts from the set,
            held-out ones first.
        steps: number of denoising steps.
        guidance: guidance scale.
        batch_size: number of images generated at once.
        images: images to search: a folder or a `vldebias.data` data set.
        options: further arguments for `vldebias.debias`, such as `lam`, `strength`, `keep_stated`
            and `max_loss`.

    Raises:
        InvalidInputError: If there are no prompts, methods or seeds, or an argument for
            `vldebias.debias` is invalid.

    >>> from vldebias.miniature import load_pipeline
    >>> pipe = load_pipeline()
    >>> image = grid(pipe, "professions-gender", prompts="A photo of a nurse.", steps=5)
    >>> image.save("grid.png")  # doctest: +SKIP
    >>> grid(model, "gender", images="faces/", prompts="a photo of a doctor",
    ...     methods=["none", "default", "rerank"])  # doctest: +SKIP
    """
    unknown = set(options) - set(inspect.signature(debias).parameters)
    for name in unknown:
        known = [*inspect.signature(grid).parameters, *inspect.signature(debias).parameters]
        raise TypeError(
            f"grid() got an unexpected keyword argument {name!r}; {did_you_mean(name, known)}"
        )
    is_list = isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes | Mapping)
    if not is_list or not all(isinstance(seed, Integral) for seed in seeds):
        raise InvalidInputError(
            f"seeds: got {received(seeds)}; expected a list of seeds, such as seeds=range(4)"
        )
    check_kind("methods", methods, Iterable, "a list of methods, such as ['none', 'default']")
    check_count(steps, "steps")
    chosen = prompts or _class_prompts(attribute)
    rows = [chosen] if isinstance(chosen, str) else list(checked_texts(chosen))
    if isinstance(methods, str):
        methods = [methods]
    method_of_name = methods if isinstance(methods, Mapping) else _named(methods)
    if not rows or not method_of_name or not len(seeds):
        raise InvalidInputError(
            f"grid: expected at least one of each, got prompts={rows},"
            f" methods={list(method_of_name)}, seeds={list(seeds)}"
        )
    if images is None:
        if not hasattr(pipe, "set_progress_bar_config"):
            raise InvalidInputError(
                f"pipe: got {received(pipe)}; expected a diffusers pipeline, or an image-text model"
                " with images= to search"
            )
        attach_of_name: dict[str, Callable[[], Attachment] | None] = {}
        for name, method in method_of_name.items():
            attach_of_name[name] = None
            if isinstance(method, (Edit, Mapping)):
                # Pass a fitted edit without the prompt sets, which are only needed for fitting.
                attach_of_name[name] = partial(debias, pipe, method, **options)
            elif method != NONE:
                attach_of_name[name] = partial(debias, pipe, attribute, method=method, **options)
        settings = {"num_inference_steps": steps, "guidance_scale": guidance}
        shown = _generated(pipe, attach_of_name, rows, seeds, batch_size, settings)
        return compose(rows, shown, [f"seed {seed}" for seed in seeds])
    if isinstance(images, (str, Path)):
        images = images_of_folder(Path(images))
    sources = {"model": pipe, "images": images}
    inputs = Inputs(Options(Path()), sources, needs="grid")
    shown = _searched(inputs, attribute, rows, method_of_name, options.get("lam"))
    places = range(1, min(COLUMNS, len(images)) + 1)
    return compose(rows, shown, list(map(str, places)))


def _generated(
    pipe: object,
    attach_of_name: Mapping[str, Callable[[], Attachment] | None],
    texts: Sequence[str],
    seeds: Sequence[int],
    batch_size: int,
    settings: Mapping[str, object],
) -> dict[str, list[list[Image]]]:
    """Return the images for each method name and prompt, one per seed.

    Args:
        pipe: the diffusers pipeline.
        attach_of_name: method name -> function that attaches it, or None for no method.
        texts: prompts to generate images for.
        seeds: noise seeds, one for each image of a prompt.
        batch_size: number of images generated at once.
        settings: further arguments for calling the pipeline.
    """
    # List all seeds for the first prompt, then all seeds for the second prompt, and so on.
    listed: list[str] = []
    noise: list[int] = []
    for text in texts:
        listed += [text] * len(seeds)
        noise += map(int, seeds)
    rows_of_name = {}
    for name, attach in attach_of_name.items():
        with prepared(pipe, attach, listed, noise, None, **settings) as generator:
            pictures: list[Image] = []
            for start in range(0, len(listed), batch_size):
                batch = range(start, min(start + batch_size, len(listed)))
                pictures += [image for image, _ in generator(batch)]
        starts = range(0, len(pictures), len(seeds))
        rows_of_name[name] = [pictures[start : start + len(seeds)] for start in starts]
    return rows_of_name


def _searched(
    inputs: Inputs,
    attribute: AttributeLike,
    texts: Sequence[str],
    method_of_name: Mapping[str, AnyMethod],
    lam: float | None,
) -> dict[str, list[list[Image]]]:
    """Return a row of top images for each query, by method name."""
    host = inputs.texts
    images: ImageData = inputs.sources["images"]
    embeddings = inputs["images"]
    features = embeddings.unit[:]
    # Unreadable images have no features, so look up images by id instead of position.
    place_of_id = {name: place for place, name in enumerate(images.ids)}
    role = host.roles[0]
    rows_of_name: dict[str, list[list[Image]]] = {}
    for name, method in method_of_name.items():
        edit = None
        if isinstance(method, Edit):
            edit = method
        elif isinstance(method, Mapping):
            edit = method[role]
        elif method not in (NONE, RERANK):
            chosen = get_method(None if method == "default" else method)
            edit = Problem(host, attribute, lam=lam).fit(chosen, role)
        directions = normalize(host.under(list(texts), role, edit).float(), dim=1)
        scores = directions @ features.T
        if method == RERANK:
            order = rerank(
                scores, COLUMNS, features=features, attribute=attribute, model=host
            ).tolist()
        else:
            # Images with equal scores keep their order.
            order = scores.argsort(dim=1, descending=True, stable=True)[:, :COLUMNS].tolist()
        rows_of_name[name] = []
        for row in order:
            pictures = [images.read(place_of_id[embeddings.ids[place]]) for place in row]
            rows_of_name[name].append(pictures)
    return rows_of_name


def _class_prompts(attribute: AttributeLike) -> list[str]:
    """Return up to four class prompts from one or several sets, held-out ones first."""
    sets = [attribute] if isinstance(attribute, (str, Path, PromptSet)) else list(attribute)
    texts: dict[str, None] = {}
    for loaded in map(load_prompts, sets):
        texts |= dict.fromkeys([*loaded.held_out_classes, *loaded.classes])
    return list(texts)[:ROWS]


def _named(methods: Sequence[AnyMethod]) -> dict[str, AnyMethod]:
    """Return the methods by name. An edit is named after its method."""
    method_of_name: dict[str, AnyMethod] = {}
    for method in methods:
        name = getattr(method, "name", None) or getattr(method, "method", None) or str(method)
        method_of_name[name] = method
    return method_of_name


def compose(
    texts: Sequence[str], images: Mapping[str, Sequence[Sequence[Image]]], heads: Sequence[str]
) -> Image:
    """Compose rows of images into an image, with prompts and names on the left.

    Args:
        texts: prompts, each of which gets one row per name.
        images: name -> a row of images for each prompt.
        heads: titles of the columns, such as "seed 0".
    """
    pil_image = need("PIL.Image")
    size = next(iter(images.values()))[0][0].size
    # Shrink large images to fit in a cell. Enlarge small ones, such as the miniature's 32-pixel
    # images, by an integer factor, so that all pixels have the same size.
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
    is_enlarged = cell[0] >= size[0]
    kind = pil_image.Resampling.NEAREST if is_enlarged else pil_image.Resampling.LANCZOS
    for i, text in enumerate(texts):
        for name, rows in images.items():
            # Only write the prompt next to its first row.
            is_first = name == next(iter(images))
            _write_label(pen, top, name, text if is_first else "", cell[1], letters)
            for column, image in enumerate(rows[i]):
                sheet.paste(image.resize(cell, kind), (margin + column * (cell[0] + GAP), top))
            top += cell[1] + GAP
    return sheet


def layout(row_width: int) -> tuple[int, int, int]:
    """Return the font size and the left and top margins for image rows of a given width."""
    letters = max(LETTERS, row_width // WIDTH_IN_LETTERS)
    return letters, LABEL * letters // LETTERS, HEAD * letters // LETTERS


def _write_label(pen: ImageDraw, top: int, name: str, text: str, height: int, letters: int) -> None:
    """Write a name in bold with text below it, to the left of a row of images.

    Args:
        pen: drawing context of the image.
        top: top edge of the row.
        name: name of the row, usually a method.
        text: text below the name, or "" for none.
        height: height of the row, in pixels.
        letters: font size, in pixels.
    """
    line = LINE * letters // LETTERS
    # Assume 9 pixels per bold letter and 8 per regular letter at font size 13. These are generous
    # estimates, so that no line runs into the images.
    lines = wrap(name, (LABEL - 2 * GAP) // 9, max_lines=2, placeholder="…")
    pen.multiline_text((GAP, top), "\n".join(lines), INK, _font("DejaVuSans-Bold", letters))
    if not text:
        return
    max_lines = max(1, height // line - len(lines))
    words = wrap(text, (LABEL - 2 * GAP) // 8, max_lines=max_lines, placeholder="…")
    place = (GAP, top + line * len(lines))
    pen.multiline_text(place, "\n".join(words), PALE, _font("DejaVuSans", letters))


def _font(name: str, letters: int) -> FreeTypeFont:
    """Load one of matplotlib's fonts at the given size."""
    folder = Path(need("matplotlib").get_data_path(), "fonts", "ttf")
    font: FreeTypeFont = need("PIL.ImageFont").truetype(str(folder / f"{name}.ttf"), letters)
    return font
