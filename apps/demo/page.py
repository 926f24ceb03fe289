"""The page of `vldebias demo`: the tabs "Generate" and "Search and classify", laid out and wired.

Text that a visitor sends is shown by components that escape it, or escaped here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from vldebias.cli.common import err
from vldebias.errors import VldebiasError
from vldebias.pictures import open_image

from ..serving import credentials, serve
from . import search
from .engine import MINIATURE, Engine
from .generate import BALANCED, PLAIN, PROJECTED, Result, Row, generate
from .request import ATTRIBUTES, NUMBERS, Request

HERE = Path(__file__).parent
OPENING = HERE / "opening.json"
PROMPT = "A photo of an editor."
STEPS, GUIDANCE = (
    {True: 20, False: 30},
    {True: 3.0, False: 7.5},
)  # by whether the miniature generates
ROWS = (PLAIN, BALANCED, PROJECTED)
TRY = (
    PROMPT,
    "A photo of a smiling pharmacist in a shop.",
    "A photo of a female editor.",
    "A photo of a bird.",
)
QUERIES = (
    "A photo of a doctor.",
    "A photo of a manager.",
    "A photo of an interpreter.",
    "A photo of a nurse.",
)
TOY = "A toy world of cartoons: its figures say nothing about another model. "
HEAD = """<h1>What does a model generate when you do not say who?</h1>
<p>{toy}Images in the same place start from the same noise. Balanced prompts name a value for each
image; the projection changes the text embedding alone. Neither makes a model fair.</p>"""
DIM = "() => document.getElementById('{}')?.classList.add('stale')"
CLEAR = "() => document.getElementById('{}')?.classList.remove('stale')"
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def style() -> str:
    """Return the style sheet of the page's own parts."""
    return (HERE / "style.css").read_text(encoding="utf-8")


def said(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a generator: an error becomes a message, in which what a visitor sent is escaped."""

    @wraps(function)
    def generator(*values: Any) -> Iterator[Any]:
        try:
            yield from function(*values)
        except VldebiasError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from None

    return generator


def build_demo(engine: Engine) -> gr.Blocks:
    """Return the page. It loads no model; what it opens with was generated before."""
    with gr.Blocks(title="vldebias", analytics_enabled=False, delete_cache=(600, 3600)) as demo:
        gr.HTML(
            HEAD.format(toy=TOY if engine.pipeline_name == MINIATURE else ""), elem_classes="head"
        )
        with gr.Tabs():
            with gr.Tab("Generate", id="generate"):
                _generate_tab(engine)
            with gr.Tab("Search and classify", id="search"):
                _search_tab(engine)
    return demo


def serve_demo(options: Mapping[str, Any], **where: Any) -> None:
    """Serve the page of `Engine(**options)` until it is stopped; `where`: port and public, as of
    `serve`.

    Raises:
        InvalidInputError: options that do not go together, a port that is taken, no password for a
            public page.
    """
    credentials(public=where.get("public", False))  # refused before anything is built
    engine = Engine(**options)
    engine.warm()
    serve(
        build_demo(engine),
        css=style(),
        say=lambda address: err.print(
            f"vldebias demo: {address} (Ctrl-C ends it)", highlight=False
        ),
        **where,
    )


# ---- generate
# --------------------------------------------------------------------------------------------------


def opening() -> Result:
    """Return what the page opens with on the miniature, made by `python -m eval.opening`."""
    kept = json.loads(OPENING.read_text(encoding="utf-8"))
    request, values = Request(**kept["request"]), tuple(kept["values"])
    with open_image(OPENING.with_suffix(".png")) as sheet:
        side = sheet.width // request.number
        rows = tuple(
            Row(
                row["name"],
                tuple(
                    sheet.crop((i * side, at * side, (i + 1) * side, (at + 1) * side)).convert(
                        "RGB"
                    )
                    for i in range(request.number)
                ),
                tuple(row["codes"]),
                tuple(row["recognised"]),
                tuple(row["dealt"]),
            )
            for at, row in enumerate(kept["rows"])
        )
    return Result(request, values, rows, share=1.0)


def _generate_tab(engine: Engine) -> None:
    small = engine.pipeline_name == MINIATURE
    first = opening() if small else None
    if first is not None:
        engine.keep(
            ("rows", first.request), first
        )  # the first click shows what the page opened with
    with gr.Row(elem_id="ask"):
        prompt = gr.Textbox(
            PROMPT, label="Prompt", elem_id="prompt", max_lines=3, scale=6, min_width=220
        )
        attribute = gr.Dropdown(
            list(ATTRIBUTES), label="Attribute", elem_id="attribute", min_width=120
        )
        go = gr.Button("Generate", variant="primary", elem_id="generate-button", min_width=110)
        halt = gr.Button("Stop", elem_id="stop", min_width=70)
    with gr.Row(elem_id="more"):
        projection = gr.Checkbox(
            False, label="Add the projection as a third row", elem_id="projection"
        )
        strength = gr.Slider(0, 1, 1, step=0.05, label="Strength", elem_id="strength")
    with gr.Accordion("Settings", open=False, elem_id="settings"), gr.Row():
        number = gr.Dropdown(list(NUMBERS), value=NUMBERS[-1], label="Images of a row")
        seed = gr.Number(0, label="Seed", precision=0)
        steps = gr.Number(STEPS[small], label="Steps", precision=0)
        guidance = gr.Number(GUIDANCE[small], label="Guidance")
    form = [prompt, attribute, number, strength, projection, seed, steps, guidance]
    status = gr.Markdown(_status(first), elem_id="status")
    with gr.Column(elem_id="rows"):
        verdict = gr.HTML(_verdict(first), elem_id="verdict")
        galleries = [
            gr.Gallery(
                value=_images(first, at),
                label=name.capitalize(),
                visible=first is not None and at < len(first.rows),
                columns=8,
                object_fit="contain",
                format="png",
                interactive=False,
                buttons=["fullscreen"],
                elem_id=f"row-{at}",
                elem_classes=["images", *(["pixels"] if small else [])],
            )
            for at, name in enumerate(ROWS)
        ]
    gr.Markdown("Try:", elem_classes="try")
    with gr.Row(elem_classes="try"):
        tried = [gr.Button(one, size="sm", min_width=120) for one in TRY]
    usual = Request(PROMPT, steps=STEPS[small], guidance=GUIDANCE[small])
    with gr.Accordion("The same in Python", open=False):
        code = gr.Code(
            usual.code(engine.pipeline_name), language="python", elem_id="code", interactive=False
        )

    outputs = [status, verdict, *galleries]

    @said
    def run(*values: Any) -> Iterator[list[Any]]:
        request, stop = Request.of(*values), threading.Event()
        now = None
        # Gradio closes this generator when the visitor stops it or leaves, and that stops the work.
        for now in generate(engine, request, stop):
            yield [
                _status(now),
                _verdict(now),
                *(
                    gr.update(value=_images(now, at), visible=at < len(now.rows))
                    for at in range(len(ROWS))
                ),
            ]

    running: dict[str, Any] = {
        "concurrency_limit": 1,
        "concurrency_id": "pipeline",
        "trigger_mode": "once",
    }
    running["show_progress"] = "hidden"
    works = [go.click(run, form, outputs, api_name="generate", **running)]
    works.append(prompt.submit(run, form, outputs, api_visibility="private", **running))
    for button, text in zip(tried, TRY, strict=True):
        filled = button.click(lambda text=text: text, None, [prompt], **QUIET)
        works.append(filled.then(run, form, outputs, api_visibility="private", **running))
    for event in (go.click, prompt.submit, *(work.then for work in works)):
        event(None, None, None, js=CLEAR.format("rows"), api_visibility="private")
    halt.click(lambda: "Stopped.", None, [status], cancels=works, queue=False, **QUIET)

    def show_code(*values: Any) -> Any:
        try:
            return Request.of(*values).code(engine.pipeline_name)
        except VldebiasError:
            return gr.skip()  # the button says what is wrong

    for part in form:
        part.change(None, None, None, js=DIM.format("rows"), api_visibility="private")
        part.change(show_code, form, [code], queue=False, trigger_mode="always_last", **QUIET)


def _status(now: Result | None) -> str:
    if now is None:
        return (
            "Press Generate: one row as the model is, one with balanced prompts, from the same"
            " noise."
        )
    done, asked = sum(len(row.images) for row in now.rows), now.request.number * len(now.rows)
    return f"{asked} images." if now.whole else f"{done} of {asked} images …"


def _verdict(now: Result | None) -> str:
    if now is None or not now.whole:
        return ""
    lines = [
        f'<p class="{"warning" if red else "line"}">{escape(text)}</p>'
        for text, red in now.sentences()
    ]
    return (
        '<div role="status"><p'
        f' class="about">“{escape(now.request.prompt)}”</p>{"".join(lines)}</div>'
    )


def _images(now: Result | None, at: int) -> list[tuple[Image.Image, str]] | None:
    if now is None or at >= len(now.rows):
        return None
    return [(image, f"seed {now.request.seed + i}") for i, image in enumerate(now.rows[at].images)]


# ---- search and classify
# ---------------------------------------------------------------------------------------


def _search_tab(engine: Engine) -> None:
    gr.Markdown("## One query, two rows")
    with gr.Row(elem_classes="ask"):
        query = gr.Textbox(
            QUERIES[0], label="Query", elem_id="query", max_lines=3, scale=4, min_width=220
        )
        column = gr.Dropdown(
            ["gender", "age"],
            label="Groups",
            elem_id="groups",
            min_width=110,
            allow_custom_value=True,
        )
        method = gr.Dropdown(list(search.METHODS), label="Method", elem_id="method", min_width=110)
        strength = gr.Slider(0, 1, 1, step=0.05, label="Strength", min_width=140)
        go = gr.Button("Search", variant="primary", elem_id="search-button", min_width=100)
    with gr.Row():
        tried = [gr.Button(one, size="sm", min_width=120) for one in QUERIES]
    with gr.Column(elem_id="results"):
        told = gr.HTML(elem_id="search-verdict")
        rows = [
            gr.Gallery(
                label=label,
                columns=12,
                object_fit="contain",
                format="png",
                interactive=False,
                visible=False,
                buttons=["fullscreen"],
                elem_id=f"search-{at}",
                elem_classes=["images", "pixels"],
            )
            for at, label in enumerate(("Original", "Mitigated"))
        ]
    gr.Markdown("## Land birds and water birds: the worst of four groups")
    gr.Markdown(
        "The model takes land behind a bird for a land bird. Each method is fitted to texts alone."
    )
    check = gr.Button("Classify", variant="primary", elem_id="classify-button", min_width=100)
    with gr.Column(elem_id="classified"):
        worst = gr.HTML(elem_id="classify-verdict")
        groups = gr.Dataframe(
            headers=["group", "pictures", "before", "after"],
            interactive=False,
            visible=False,
            elem_id="accuracy",
        )
        mended = gr.Gallery(
            label="Put right",
            columns=8,
            object_fit="contain",
            format="png",
            interactive=False,
            visible=False,
            buttons=["fullscreen"],
            elem_id="mended",
            elem_classes=["images", "pixels"],
        )

    @said
    def run(query: str, column: str, method: str, strength: float) -> Iterator[list[Any]]:
        before, after, gallery = search.search(engine, query, column, method, strength)
        why = search.abstention(engine, column, method)
        line = _skews(before, after) + _abstained(why)
        yield [line, *(_found(engine, gallery, found) for found in (before, after))]

    @said
    def classified(method: str, strength: float) -> Iterator[list[Any]]:
        found, rows, gallery = search.classify(engine, method, strength)
        table = [[one.name, one.n, _share(one.before), _share(one.after)] for one in found]
        pictures = [gallery.picture(engine, row) for row in rows]
        least = [min(getattr(one, side)[0] for one in found) for side in ("before", "after")]
        line = (
            f"Worst group: {least[0]:.0%} → {least[1]:.0%} of {sum(one.n for one in found):,}"
            " pictures in all."
        )
        yield [
            f'<p class="line">{line}</p>',
            gr.update(value=table, visible=True),
            gr.update(value=[one for one in pictures if one is not None], visible=bool(pictures)),
        ]

    form, one = (
        [query, column, method, strength],
        {"concurrency_id": "model", "concurrency_limit": 1},
    )
    works = [go.click(run, form, [told, *rows], api_name="search", **one)]
    works.append(query.submit(run, form, [told, *rows], api_visibility="private", **one))
    for button, text in zip(tried, QUERIES, strict=True):
        filled = button.click(lambda text=text: text, None, [query], **QUIET)
        works.append(filled.then(run, form, [told, *rows], api_visibility="private", **one))
    checked = check.click(
        classified, [method, strength], [worst, groups, mended], api_name="classify", **one
    )
    for part in form:
        part.change(None, None, None, js=DIM.format("results"), api_visibility="private")
    for part in (method, strength):
        part.change(None, None, None, js=DIM.format("classified"), api_visibility="private")
    for work in works:
        work.then(None, None, None, js=CLEAR.format("results"), api_visibility="private")
    checked.then(None, None, None, js=CLEAR.format("classified"), api_visibility="private")


def _share(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.0%} [{value[1]:.0%}, {value[2]:.0%}]"


def _skews(before: search.Found, after: search.Found) -> str:
    shares = ", ".join(
        f"{escape(name)} {before.shares[name]:.0%} → {after.shares[name]:.0%}"
        for name in before.shares
    )
    skews = f"MaxSkew@{before.top} {before.skew:.2f} → {after.skew:.2f}"
    return f'<p class="line">Of the first {before.top}: {shares}. {skews}; 0 is even.</p>'


def _abstained(why: str) -> str:
    """Write that the method changed nothing, and why; nothing where it acted."""
    if not why:
        return ""
    return (
        f'<p class="line">Both rows are the same: the default attaches nothing. {escape(why)}</p>'
    )


def _found(engine: Engine, gallery: search.Gallery, found: search.Found) -> Any:
    pictures = [gallery.picture(engine, row) for row in found.rows]
    return gr.update(value=[one for one in pictures if one is not None], visible=any(pictures))
