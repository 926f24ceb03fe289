"""The tabs Classify, Retrieve, Inspect and Export."""

from __future__ import annotations

from typing import Any

import gradio as gr

from . import compare_plots as charts
from . import compare_view as view
from .compare_classify import CLASSES, EXAMPLES, SPURIOUS, classify, example, read_upload
from .compare_engine import SIDES, Engine
from .compare_export import export
from .compare_form import download, mitigation_form, mitigation_of, refuse_links, show_below, told
from .compare_gallery import group_columns
from .compare_inspect import inspect
from .compare_retrieve import retrieve

__all__ = ["classify_tab", "export_tab", "inspect_tab", "retrieve_tab"]

PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
QUERIES = ("A photo of a doctor.", "A photo of a physicist.", "A photo of a manager.", "A photo of an interpreter.")
WHERE = {"pipeline": "what draws (pipeline)", "model": "what classifies and retrieves (model)"}


def classify_tab(engine: Engine) -> None:
    """A picture, class prompts, spurious prompts."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            chosen = gr.Radio(list(EXAMPLES), value=EXAMPLES[1], label="Example picture", elem_id="example")
            upload = refuse_links(
                gr.File(
                    label="Or your own: PNG, JPEG or WebP, up to 10 MiB",
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
            form = mitigation_form(["background"], tab="classify", method="orth")
            go = gr.Button("Classify", variant="primary", elem_id="classify")
            show_below(go, "classification")
        with gr.Column(scale=5, min_width=320):
            result = gr.HTML(
                view.text(
                    "Press Classify: the background of the example misleads the model. The spurious prompts are what "
                    "orth projects out; the pairs of the other methods come from the attributes."
                ),
                elem_id="classification",
            )

    def picture(name: str, data: bytes | None) -> Any:
        return example(name) if data is None else read_upload(data)

    @told
    def look(name: str, data: bytes | None) -> str:
        return view.preview(picture(name, data), name if data is None else "your picture")

    @told
    def run(name: str, data: bytes | None, classes: str, spurious: str, *values: Any) -> str:
        return view.classification(classify(engine, picture(name, data), classes, spurious, mitigation_of(values)))

    quiet = PRIVATE | {"show_progress": "hidden"}
    gr.on([chosen.change, upload.upload, upload.clear], look, [chosen, upload], [shown], **quiet)
    go.click(run, [chosen, upload, classes, spurious, *form], [result], **PRIVATE)


def retrieve_tab(engine: Engine) -> None:
    """A query over the gallery."""
    columns = group_columns(engine)
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            query = gr.Textbox(QUERIES[0], label="Query", max_lines=3, elem_id="query")
            gr.Examples([[one] for one in QUERIES], [query], label="Examples", elem_id="query-examples")
            column = gr.Dropdown(list(columns), value=columns[0], label="Groups", elem_id="groups")
            form = mitigation_form(["gender"], tab="retrieve", method="cali")
            go = gr.Button("Retrieve", variant="primary", elem_id="retrieve")
            show_below(go, "retrieval")
        with gr.Column(scale=5, min_width=320):
            result = gr.HTML(
                view.text("Press Retrieve: the pictures nearest to the query, without and with the projection."),
                elem_id="retrieval",
            )

    @told
    def run(query: str, column: str, *values: Any) -> str:
        found = retrieve(engine, query, column, mitigation_of(values))
        return view.retrieval(found, charts.retrieval(found))

    gr.on([go.click, query.submit], run, [query, column, *form], [result], **PRIVATE)


def inspect_tab(engine: Engine) -> None:
    """What the projection does to texts."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            side = _side_choice("inspect")
            form = mitigation_form(["gender"], tab="inspect")
            go = gr.Button("Inspect", variant="primary", elem_id="inspect")
            show_below(go, "inspection")
        with gr.Column(scale=5, min_width=320):
            result = gr.HTML(
                view.text("Press Inspect: what the projection does to texts, without any picture."),
                elem_id="inspection",
            )

    @told
    def run(side: str, *values: Any) -> str:
        mitigation, shown = mitigation_of(values), ""
        roles = engine.host(side).roles
        for role in roles:
            found = inspect(engine, side, mitigation, role)
            head = f"<h3>{role}</h3>" if len(roles) > 1 else ""
            shown += head + view.projection(found) + view.plots(charts.inspection(found))
        return shown + view.notes(found.notes)

    go.click(run, [side, *form], [result], **PRIVATE)


def export_tab(engine: Engine) -> None:
    """The projection as a file, and the line that does the same."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            side = _side_choice("export")
            form = mitigation_form(["gender"], tab="export")
            go = gr.Button("Export", variant="primary", elem_id="export")
            show_below(go, "code")
        with gr.Column(scale=5, min_width=320):
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
                view.text(
                    "One folder per projected tensor, as <code>save_pretrained</code> writes it; "
                    "<code>vldebias merge FOLDER</code> folds it into plain weights."
                )
            )

    @told
    def run(side: str, *values: Any) -> tuple[Any, ...]:
        data, line = export(engine, side, mitigation_of(values))
        return line, download(kept, data, f"vldebias-projection-{side}.zip")

    go.click(run, [side, *form], [code, kept], **PRIVATE)


def _side_choice(tab: str) -> gr.Radio:
    choices = [(WHERE[side], side) for side in SIDES]
    return gr.Radio(choices, value=SIDES[0], label="Whose texts", elem_id=f"{tab}-side")
