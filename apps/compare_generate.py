"""The tab Generate: the same noise without and with the projection, as it is drawn; stop, download, strip."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from . import compare_view as view
from .compare_draw import STRENGTHS, STRIP_ROWS, compare, pack, strip
from .compare_engine import MINIATURE, Engine
from .compare_form import Stops, download, filename, mitigation_form, mitigation_of, show_below, told, told_while
from .compare_settings import Drawing, Mitigation

__all__ = ["EXAMPLES", "QUEUE", "generate_tab"]

EXAMPLES = ("A photo of a doctor.", "A photo of a carpenter.", "A photo of a nurse.", "A photo of a female doctor.")
QUEUE = "pipeline"  # what draws waits in one line, whoever asks
PAUSE = 0.25  # seconds between two reports of progress
WAITING = "Waiting for its turn; the models load when they are first used."
DEFAULT_NUMBER, DEFAULT_STEPS, DEFAULT_GUIDANCE = 6, {True: 20, False: 30}, {True: 3.0, False: 7.5}


def generate_tab(engine: Engine, stops: Stops) -> None:
    """Lay out the tab and wire it."""
    small = engine.pipeline_name == MINIATURE
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            prompt = gr.Textbox(EXAMPLES[0], label="Prompt", elem_id="prompt", max_lines=3)
            with gr.Row():
                go = gr.Button("Generate", variant="primary", elem_id="generate", min_width=110)
                halt = gr.Button("Stop", elem_id="stop", min_width=80)
            gr.Examples([[one] for one in EXAMPLES], [prompt], label="Examples", elem_id="prompt-examples")
            form = mitigation_form(["gender"], tab="generate")
            number = gr.Slider(1, 16, value=DEFAULT_NUMBER, step=1, label="Pictures on each side", elem_id="number")
            with gr.Accordion("Steps, guidance, seed", open=False):
                steps = gr.Slider(1, 100, value=DEFAULT_STEPS[small], step=1, label="Steps", elem_id="steps")
                guidance = gr.Slider(
                    0, 30, value=DEFAULT_GUIDANCE[small], step=0.5, label="Guidance", elem_id="guidance"
                )
                seed = gr.Number(0, precision=0, minimum=0, label="Seed", elem_id="seed")
            more = gr.Button("Strip over strengths 0 to 1", elem_id="strip")
        with gr.Column(scale=5, min_width=320):
            status = gr.HTML(
                view.text("Press Generate: the same noise is drawn twice, without and with the projection."),
                elem_id="status",
            )
            result = gr.HTML(elem_id="comparison")
            kept = gr.DownloadButton("Download pictures and metadata (zip)", interactive=False, elem_id="zip")
            strengths = gr.HTML(elem_id="strengths")
    inputs = [prompt, number, seed, steps, guidance, *form]

    @told
    def begin(request: gr.Request, *values: Any) -> str:
        asked(values)
        stops.ask(_visitor(request))
        return view.progress(0, WAITING)

    @told_while
    def run(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        yield from _comparing(engine, *asked(values), stops, _visitor(request), kept)

    @told_while
    def run_strip(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        yield from _stripping(engine, *asked(values), stops, _visitor(request))

    def end(request: gr.Request) -> Any:
        # What is being drawn says itself that it was stopped, and may do so before this answer arrives.
        waiting = stops.stop(_visitor(request))
        return view.text("Stopped before its turn came.") if waiting else gr.skip()

    def failed() -> str:
        return view.text("Nothing more was drawn; the message says why.")

    common: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    line: dict[str, Any] = {"concurrency_id": QUEUE, "concurrency_limit": 1}
    show_below(go, "status")
    show_below(more, "status")
    started = gr.on([go.click, prompt.submit], begin, inputs, [status], **common)
    started.success(run, inputs, [status, result, kept], **common, **line).failure(failed, None, [status], **common)
    started = more.click(begin, inputs, [status], **common)
    started.success(run_strip, inputs, [status, strengths], **common, **line).failure(failed, None, [status], **common)
    halt.click(end, None, [status], queue=False, **common)


def asked(values: tuple[Any, ...]) -> tuple[Drawing, Mitigation]:
    """The drawing and the mitigation in the values of the form."""
    prompt, number, seed, steps, guidance, *rest = values
    return Drawing.of(prompt, number, seed, steps, guidance), mitigation_of(rest)


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)


def _comparing(
    engine: Engine, drawing: Drawing, mitigation: Mitigation, stops: Stops, visitor: str, kept: gr.DownloadButton
) -> Iterator[tuple[Any, ...]]:
    """(status, comparison, download) as pictures come; pictures are sent when there is a new one, not at every step."""
    stop = stops.begin(visitor)
    shown, last, now = -1, 0.0, None
    yield gr.skip(), gr.skip(), gr.update(interactive=False)
    for now in compare(engine, drawing, mitigation, stop):
        there = sum(map(len, now.pictures.values()))
        if there == shown and time.monotonic() - last < PAUSE:
            continue
        last = time.monotonic()
        said = f"{there} of {2 * drawing.number} pictures"
        yield view.progress(now.share, said), view.comparison(now) if there != shown else gr.skip(), gr.skip()
        shown = there
    if now is None or not now.pairs:
        yield view.text("Stopped before there was a picture."), gr.skip(), gr.skip()
        return
    ending = f"Done: {drawing.number} on each side." if now.whole else f"Stopped after {now.pairs} on both sides."
    name = filename(drawing.prompt, ".zip")
    yield view.text(ending, "done"), gr.skip(), download(kept, pack(now), name)


def _stripping(
    engine: Engine, drawing: Drawing, mitigation: Mitigation, stops: Stops, visitor: str
) -> Iterator[tuple[Any, ...]]:
    """(status, strip) after each picture."""
    total, there = min(drawing.number, STRIP_ROWS) * len(STRENGTHS), 0
    for rows in strip(engine, drawing, mitigation, stops.begin(visitor)):
        there = sum(map(len, rows))
        yield view.progress(there / total, f"{there} of {total} pictures"), view.strengths(rows, drawing.seed)
    ending = "Done: the strip over strengths is below." if there == total else f"Stopped after {there} pictures."
    yield view.text(ending, "done"), gr.skip()
