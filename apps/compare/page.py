"""The page of `vldebias demo`: its tabs Generate, Classify, Retrieve, Inspect and Export, laid out and wired.

The layout computes nothing: models are loaded when a visitor first needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from vldebias.cli.common import err
from vldebias.errors import VldebiasError

from ..serving import credentials, serve
from . import plots
from .api import Programs
from .classify import CLASSES, SPURIOUS, batch, classify, example, read_upload
from .classify import EXAMPLES as PICTURES
from .drawing import AFTER, BEFORE
from .engine import MINIATURE, SIDES, Engine
from .export import export
from .form import Stops, cached, download, mitigation_form, show_below, side_pictures, told, uploads_alone
from .generate import QUIET, Generate
from .inspect import inspect
from .retrieve import group_columns, retrieve
from .settings import Mitigation
from .view import HTML, title

SWEEP, OLD = 600, 3600  # seconds: how often downloads are looked through, and how old they get
QUERIES = ("A photo of a doctor.", "A photo of a physicist.", "A photo of a manager.", "A photo of an interpreter.")
WHERE = {"pipeline": "what draws (pipeline)", "model": "what classifies and retrieves (model)"}
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
OFFSET = (
    "A projection can push every picture towards one class. This takes a number from the score of the second class, so "
    "that the boundary lies midway between what the model as it is takes for either; found from unlabelled pictures: "
    "several uploads, else those around the example, or the gallery. Where we measured it some worst groups gained and "
    "others lost: look at both. It does not help where pictures show one class alone, or are unlike those to classify."
)
HEAD = """
<div class="vd-head"><h1>What does a model draw when you do not say who?</h1>
<p>{world}<span>Pictures in the same place come from the same noise. A value stated for each picture moves the shares;
the embedding alone is gentler, and often moves nothing that can be seen. Neither makes a model fair.</span></p></div>
"""
TOY = "<strong>A toy world of cartoons: its figures say nothing about another model.</strong> "


def style() -> str:
    """The style sheet of the page's own parts."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def build_demo(engine: Engine) -> gr.Blocks:
    """The page; no model is loaded and nothing drawn: what it opens with was drawn before."""
    stops = Stops()
    with gr.Blocks(title="vldebias", analytics_enabled=False, delete_cache=(SWEEP, OLD)) as demo:
        tabs: dict[str, Callable[[gr.Tab], object]] = {
            "Generate": lambda _: Generate(engine, stops, demo),
            **({"Gallery": lambda tab: _gallery(engine, tab)} if engine.album else {}),
            "Classify": lambda tab: _classify(engine, tab),
            "Retrieve": lambda _: _retrieve(engine),
            "Inspect": lambda _: _inspect(engine),
            "Export": lambda _: _export(engine),
        }
        gr.HTML(HEAD.format(world=TOY if engine.pipeline_name == MINIATURE else ""))
        with gr.Tabs():
            for name, lay_out in tabs.items():
                with gr.Tab(name, id=name.lower()) as tab:
                    lay_out(tab)
        Programs(engine).add()

        def leave(request: gr.Request) -> None:
            stops.leave(str(request.session_hash))

        demo.unload(leave)
    return demo


def serve_demo(options: Mapping[str, Any], **where: Any) -> None:
    """Serve the page of `Engine(**options)` until it is told to end; `where`: port, public, auth, proxy as of `serve`.

    Raises:
        InvalidInputError: options that do not go together, a port that is taken, no password for a public page.
    """
    credentials(where.get("auth"), public=where.get("public", False))  # refused before anything is built
    serve(
        build_demo(Engine(**options)),
        css=style(),
        uploads="10mb",
        say=lambda address: err.print(f"vldebias demo: {address} (ctrl-c ends it)", highlight=False),
        **where,
    )


def _left() -> Any:
    """The column of what is asked; on a wide screen it stands left of the result."""
    return gr.Column(scale=2, min_width=300)


def _right() -> Any:
    return gr.Column(scale=5, min_width=320)


def _shown(said: str, name: str) -> gr.HTML:
    """Where a result will be, with what to do until then."""
    return gr.HTML(HTML.text(said), elem_id=name)


def _gallery(engine: Engine, tab: gr.Tab) -> None:
    """What was drawn before: a profession, a model, a method."""
    album = engine.album
    assert album is not None  # or there is no such tab
    with gr.Row(equal_height=False):
        with _left():
            concept = gr.Dropdown(list(album.concepts), label="Profession", elem_id="album-concept")
            model = gr.Dropdown(list(album.sets), label="Model and prompts", elem_id="album-model")
            method = gr.Dropdown(list(album.methods), label="Method", elem_id="album-method")
        with _right():
            verdict = gr.HTML(elem_id="album-verdict")
            with gr.Row(elem_classes="twins"):
                sides = [side_pictures(f"album-{side}", label=title(side), small=False) for side in (BEFORE, AFTER)]
            table = gr.HTML(elem_id="album-table")

    def look(*asked: Any) -> tuple[Any, ...]:
        try:
            page = album.page(*asked)
        except VldebiasError as error:
            return HTML.text(str(error), "error"), [], [], ""
        shown = [
            [(cached(path.read_bytes(), path.name), path.stem) for path in one] for one in zip(*page.pairs, strict=True)
        ]
        return HTML.album(page), *shown, HTML.album_table(page)

    changed = [tab.select, model.change, concept.change, method.change]
    gr.on(
        changed,
        look,
        [model, concept, method],
        [verdict, *sides, table],
        trigger_mode="always_last",
        queue=False,
        **QUIET,
    )


# ---- the other tabs --------------------------------------------------------------------------------------------


def _classify(engine: Engine, tab: gr.Tab) -> None:
    """A picture, class prompts, spurious prompts."""
    with gr.Row(equal_height=False):
        with _left():
            chosen = gr.Radio(list(PICTURES), value=PICTURES[2], label="Example picture", elem_id="example")
            upload = uploads_alone(
                gr.File(
                    label="Or your own, the first of which is shown: PNG, JPEG or WebP, up to 10 MiB each",
                    file_count="multiple",
                    file_types=[".png", ".jpg", ".jpeg", ".webp"],
                    type="binary",
                    elem_id="upload",
                    height=120,
                )
            )
            shown = gr.HTML(elem_id="preview")
            classes = gr.Textbox(CLASSES, lines=2, max_lines=8, label="Class prompts, one per line", elem_id="classes")
            spurious = gr.Textbox(
                SPURIOUS, lines=2, max_lines=8, label="Spurious prompts, one per line", elem_id="spurious"
            )
            form = mitigation_form(["background"], tab="classify", method="orth", pipeline=False)
            offset = gr.Checkbox(
                False, label="Put the boundary between the two classes back", info=OFFSET, elem_id="offset"
            )
            go = gr.Button("Classify", variant="primary", elem_id="classify")
            show_below(go, "classification")
        with _right():
            result = _shown(
                "Press Classify: the background of the example misleads the model. The spurious prompts are what "
                "orth projects out; the pairs of the other methods come from the attributes.",
                "classification",
            )

    def picture(name: str, data: list[bytes] | None) -> Any:
        return read_upload(data[0]) if data else example(name)

    def preview(name: str, data: list[bytes] | None) -> str:
        said = (
            "your picture" if data and len(data) == 1 else f"the first of your {len(data)} pictures" if data else name
        )
        return str(HTML.preview(picture(name, data), said))

    def look(name: str, data: list[bytes] | None) -> str:
        try:
            return preview(name, data)
        except VldebiasError as error:
            return str(HTML.text(str(error), "error"))

    @told
    def run(
        name: str, data: list[bytes] | None, offset: bool, classes: str, spurious: str, *values: Any
    ) -> tuple[str, str]:
        others = batch(engine, data or ()) if offset else None
        scored = classify(engine, picture(name, data), classes, spurious, Mitigation.of(*values), others)
        return preview(name, data), HTML.classification(scored)

    seen = [tab.select, chosen.change, upload.upload, upload.clear]
    # "once" would lose an upload. Beside the queue: Gradio's page closes its stream of answers after each one, and a
    # press in that moment would wait for ever; without the queue it shows no message of an error.
    gr.on(seen, look, [chosen, upload], [shown], trigger_mode="always_last", queue=False, **QUIET)
    go.click(run, [chosen, upload, offset, classes, spurious, *form], [shown, result], **PRIVATE)


def _retrieve(engine: Engine) -> None:
    """A query over the gallery."""
    columns = group_columns(engine)
    with gr.Row(equal_height=False):
        with _left():
            query = gr.Textbox(QUERIES[0], label="Query", max_lines=3, elem_id="query")
            gr.Examples([[one] for one in QUERIES], [query], label="Examples", elem_id="query-examples")
            column = gr.Dropdown(list(columns), value=columns[0], label="Groups", elem_id="groups")
            form = mitigation_form(["gender"], tab="retrieve", method="cali", pipeline=False)
            go = gr.Button("Retrieve", variant="primary", elem_id="retrieve")
            show_below(go, "retrieval")
        with _right():
            result = _shown(
                "Press Retrieve: the pictures nearest to the query, without and with the projection.", "retrieval"
            )

    @told
    def run(query: str, column: str, *values: Any) -> str:
        ranked = retrieve(engine, query, column, Mitigation.of(*values))
        return str(HTML.retrieval(ranked, plots.retrieval(ranked)))

    gr.on([go.click, query.submit], run, [query, column, *form], [result], **PRIVATE)


def _inspect(engine: Engine) -> None:
    """What the projection does to texts."""
    with gr.Row(equal_height=False):
        with _left():
            side = _side_choice("inspect")
            form = mitigation_form(["gender"], tab="inspect")
            go = gr.Button("Inspect", variant="primary", elem_id="inspect")
            show_below(go, "inspection")
        with _right():
            result = _shown("Press Inspect: what the method does to texts alone, without any picture.", "inspection")

    @told
    def run(side: str, *values: Any) -> str:
        mitigation = Mitigation.of(*values)
        found = [inspect(engine, side, mitigation, role) for role in engine.host(side).roles]
        shown = [HTML.inspection(one, plots.inspection(one), len(found) == 1) for one in found]
        return "".join([*shown, HTML.notes(found[0].notes)])

    go.click(run, [side, *form], [result], **PRIVATE)


def _export(engine: Engine) -> None:
    """The projection as a file, and the lines that do the same."""
    with gr.Row(equal_height=False):
        with _left():
            side = _side_choice("export")
            form = mitigation_form(["gender"], tab="export")
            go = gr.Button("Export", variant="primary", elem_id="export")
            show_below(go, "code")
        with _right():
            code = gr.Textbox(
                label="The same in your own code",
                lines=3,
                max_lines=12,
                interactive=False,
                buttons=["copy"],
                elem_id="code",
            )
            kept = gr.DownloadButton("Download the projection (zip)", interactive=False, elem_id="projection")
            gr.HTML(
                '<p class="vd-note">One folder per projected tensor, as <code>save_pretrained</code> writes it; '
                "<code>vldebias merge FOLDER</code> folds it into plain weights.</p>"
            )

    @told
    def run(side: str, *values: Any) -> tuple[Any, ...]:
        data, lines = export(engine, side, Mitigation.of(*values))
        return lines, download(kept, data, f"vldebias-projection-{side}.zip")

    go.click(run, [side, *form], [code, kept], **PRIVATE)


def _side_choice(tab: str) -> gr.Radio:
    choices = [(WHERE[side], side) for side in SIDES]
    return gr.Radio(choices, value=SIDES[0], label="Whose texts", elem_id=f"{tab}-side")
