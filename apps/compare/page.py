"""The page of `vldebias demo`: its tabs Generate, Classify, Retrieve, Inspect and Export, laid out and wired.

The layout computes nothing: models are loaded when a visitor first needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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
from .drawing import STRENGTHS, STRIP_ROWS, Comparison, about, compare, pack, png, strip, unpack
from .engine import MINIATURE, SIDES, Engine
from .export import export
from .form import QUEUE, Stops, download, filename, kept_picture, mitigation_form, show_below, told, uploads_alone
from .inspect import inspect
from .retrieve import group_columns, retrieve
from .settings import PRESET, Drawing, Mitigation, from_link
from .view import HTML, TITLES

SWEEP, OLD = 600, 3600  # seconds: how often downloads are looked through, and how old they get
PAUSE = 0.25  # seconds between two reports of progress
PROMPT = "A photo of an editor."
QUERIES = ("A photo of a doctor.", "A photo of a physicist.", "A photo of a manager.", "A photo of an interpreter.")
WHERE = {"pipeline": "what draws (pipeline)", "model": "what classifies and retrieves (model)"}
NUMBER, STEPS, GUIDANCE = 8, {True: 20, False: 30}, {True: 3.0, False: 7.5}  # by whether the miniature draws
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# What it opens with, and the same noise under the embedding alone: python -m eval.experiments.opening
OPENING, BESIDE = (Path(__file__).with_name(name) for name in ("opening.zip", "opening-embedding.zip"))
STATED = "stated-value"
OPENED = (
    "Drawn before, not now: of the 20 professions that nothing was fitted on, the one that the model draws the most "
    "one-sidedly. Press Generate for your own."
)
FINDINGS: dict[str, tuple[str, list[str], str, str]] = {
    "The embedding alone": (PROMPT, ["gender"], "", PRESET),
    "Gender and age at once": (PROMPT, ["gender", "age"], "", STATED),
    "“female editor” is left alone": ("A photo of a female editor.", ["gender"], "", STATED),
    "The paper's settings": (PROMPT, ["gender"], "", "paper"),
    "An attribute in your own words": (PROMPT, [], "with glasses: bespectacled\nwithout: clear-eyed", PRESET),
}
"""What to try first -> prompt, attributes, words and method, as the form has them."""
OFFSET = (
    "A projection can push every picture towards one class. This takes a number from the score of the second class, so "
    "that the boundary lies midway between what the model as it is takes for either; found from unlabelled pictures: "
    "several uploads, else those around the example, or the gallery. Where we measured it some worst groups gained and "
    "others lost: look at both. It does not help where pictures show one class alone, or are unlike those to classify."
)
HEAD = """
<div class="vd-head"><h1>What does a model draw when you do not say who?</h1>
<p>{world}Each picture on the left has a twin on the right: the same noise under a mitigation. A value stated for each
picture moves the shares; the embedding alone is gentler, and often moves nothing that can be seen. The bars measure it;
neither makes a model fair.</p></div>
"""
TOY = """<strong>A toy world: cartoon people and birds, drawn by a small model that comes with this page.</strong> The
figures show the method at work and say nothing about another model. """


def style() -> str:
    """The style sheet of the page's own parts."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def build_demo(engine: Engine) -> gr.Blocks:
    """The page; no model is loaded and nothing drawn: what it opens with was drawn before."""
    stops = Stops()
    with gr.Blocks(title="vldebias", analytics_enabled=False, delete_cache=(SWEEP, OLD)) as demo:
        tabs: dict[str, Callable[[gr.Tab], None]] = {
            "Generate": lambda _: _generate(engine, stops, demo),
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
            stops.leave(_visitor(request))

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


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)


def _left() -> Any:
    """The column of what is asked; on a wide screen it stands left of the result."""
    return gr.Column(scale=2, min_width=300)


def _right() -> Any:
    return gr.Column(scale=5, min_width=320)


def _shown(said: str, name: str) -> gr.HTML:
    """Where a result will be, with what to do until then."""
    return gr.HTML(HTML.text(said), elem_id=name)


# ---- generate --------------------------------------------------------------------------------------------------


def _generate(engine: Engine, stops: Stops, demo: gr.Blocks) -> None:
    """The same noise without and with the projection, as it is drawn; stop, download, strip."""
    small = engine.pipeline_name == MINIATURE
    first = unpack(OPENING.read_bytes()) if small else None
    alone = unpack(BESIDE.read_bytes()) if small else None
    verdict = gr.HTML(
        HTML.verdict(first, OPENED, alone) if first else "", elem_id="verdict"
    )  # a telephone shows it first
    with gr.Row(equal_height=False):
        with _left():
            prompt = gr.Textbox(PROMPT, label="Prompt", elem_id="prompt", max_lines=3)
            with gr.Row():
                go = gr.Button("Generate", variant="primary", elem_id="generate", min_width=110)
                halt = gr.Button("Stop", elem_id="stop", min_width=80)
            findings = gr.Column()
            form = mitigation_form(["gender"], tab="generate", model=False, method=STATED if small else PRESET)
            with findings:
                gr.Examples(
                    [list(one) for one in FINDINGS.values()],
                    [prompt, *form[:3]],
                    example_labels=list(FINDINGS),
                    label="Try",
                    elem_id="findings",
                )
            number = gr.Slider(1, 16, value=NUMBER, step=1, label="Pictures on each side", elem_id="number")
            with gr.Accordion("Steps, guidance, seed", open=False):
                steps = gr.Slider(1, 100, value=STEPS[small], step=1, label="Steps", elem_id="steps")
                guidance = gr.Slider(0, 30, value=GUIDANCE[small], step=0.5, label="Guidance", elem_id="guidance")
                seed = gr.Number(0, precision=0, minimum=0, label="Seed", elem_id="seed")
            more = gr.Button("Strip over strengths 0 to 1", elem_id="strip")
        with _right():
            status = _shown("Press Generate: the same noise is drawn twice, without and with the mitigation.", "status")
            with gr.Row(elem_classes="twins"):
                sides = [_pictures(side, f"pictures-{side}", first, small=small) for side in TITLES]
            shown = HTML.comparison(first) + HTML.beside(alone) if first else ""
            result = gr.HTML(shown, elem_id="comparison")
            kept = gr.DownloadButton(
                "Download pictures and metadata (zip)", OPENING if first else None, interactive=small, elem_id="zip"
            )
            strengths = gr.HTML(elem_id="strengths")
    inputs = [prompt, number, seed, steps, guidance, *form]

    def asked(values: tuple[Any, ...]) -> tuple[Drawing, Mitigation]:
        prompt, number, seed, steps, guidance, *rest = values
        return Drawing.of(prompt, number, seed, steps, guidance), Mitigation.of(*rest)

    @told
    def begin(request: gr.Request, *values: Any) -> tuple[str, str]:
        asked(values)
        stops.ask(_visitor(request))
        waiting = "Waiting for its turn; the models load when they are first used."
        return HTML.progress(0, waiting), ""  # a strip of another prompt must not stay

    @told
    def run(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        yield from _comparing(engine, *asked(values), stops, _visitor(request), kept)

    @told
    def run_strip(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        yield from _stripping(engine, *asked(values), stops, _visitor(request))

    def end(request: gr.Request) -> Any:
        # What is being drawn says itself that it was stopped, and may do so before this answer arrives.
        waiting = stops.stop(_visitor(request))
        return HTML.text("Stopped before its turn came.") if waiting else gr.skip()

    def failed() -> str:
        return str(HTML.text("Nothing more was drawn; the message says why."))

    show_below(go, "status")
    show_below(more, "status")
    # multiple: pressed again during a run, the button stops that run and starts another
    line: dict[str, Any] = {"concurrency_id": QUEUE, "concurrency_limit": 1, "trigger_mode": "multiple"} | QUIET
    for trigger, work, outputs in (
        ([go.click, prompt.submit], run, [verdict, *sides, result, kept]),
        ([more.click], run_strip, [strengths]),
    ):
        started = gr.on(trigger, begin, inputs, [status, strengths], trigger_mode="multiple", **QUIET)
        started.success(work, inputs, [status, *outputs], **line).failure(failed, None, [status], **QUIET)
    halt.click(end, None, [status], queue=False, **QUIET)

    @told
    def restore(request: gr.Request) -> list[Any]:
        usual = Drawing(PROMPT, NUMBER, 0, STEPS[small], GUIDANCE[small])
        found = from_link(dict(request.query_params), usual)
        if found is None:
            return [gr.skip()] * (len(inputs) + 1)
        one, how = found
        values = [one.prompt, one.number, one.seed, one.steps, one.guidance, list(how.attributes), how.words]
        lam = "" if how.lam is None else f"{how.lam:g}"
        said = HTML.text("The settings are those of the link; press Generate.")
        return [said, *values, how.method, lam, how.strength, how.keep_stated]

    demo.load(restore, None, [status, *inputs], **QUIET)


def _pictures(side: str, name: str, first: Comparison | None = None, *, small: bool) -> gr.Gallery:
    """The pictures of a side: a press enlarges one, which can then be stepped through and downloaded."""
    return gr.Gallery(
        _files(first, side) if first else None,
        label=TITLES[side],
        columns=4,
        height="auto",
        object_fit="contain",
        format="png",
        buttons=["download", "fullscreen"],
        interactive=False,
        min_width=150,
        elem_id=name,
        elem_classes=["pixels"] if small else [],
    )


def _files(now: Comparison, side: str) -> list[tuple[str, str]]:
    """(PNG, caption) of each picture; how it was made is inside."""
    told = [about(now, side, i) for i in range(len(now.pictures[side]))]
    pictures = zip(now.pictures[side], told, strict=True)
    return [
        (kept_picture(png(picture, one), f"{side}-{one['seed']}.png"), f"seed {one['seed']}")
        for picture, one in pictures
    ]


def _comparing(
    engine: Engine, drawing: Drawing, mitigation: Mitigation, stops: Stops, visitor: str, kept: gr.DownloadButton
) -> Iterator[tuple[Any, ...]]:
    """(status, verdict, pictures of both sides, measures, download) as pictures come, not at every step."""
    stop = stops.begin(visitor)
    sent, last, now = -1, 0.0, None
    same = (gr.skip(),) * 4
    if not stop.is_set():
        yield gr.skip(), *same, gr.update(interactive=False)
    for now in compare(engine, drawing, mitigation, stop):
        there = sum(map(len, now.pictures.values()))
        if there == sent and time.monotonic() - last < PAUSE:
            continue
        last = time.monotonic()
        said = HTML.progress(now.share, f"{there} of {2 * drawing.number} pictures")
        if there == sent:
            yield said, *same, gr.skip()
            continue
        sent = there
        yield said, HTML.verdict(now), *(_files(now, side) for side in TITLES), HTML.comparison(now), gr.skip()
    if stops.superseded(visitor):
        return
    if now is None or not now.pairs:
        yield HTML.text("Stopped before there was a picture."), *same, gr.skip()
        return
    ending = f"Done: {drawing.number} on each side." if now.whole else f"Stopped after {now.pairs} on both sides."
    yield HTML.text(ending, "done"), *same, download(kept, pack(now), filename(drawing.prompt, ".zip"))


def _stripping(
    engine: Engine, drawing: Drawing, mitigation: Mitigation, stops: Stops, visitor: str
) -> Iterator[tuple[Any, ...]]:
    """(status, strip) after each picture."""
    total, there = min(drawing.number, STRIP_ROWS) * len(STRENGTHS), 0
    for rows in strip(engine, drawing, mitigation, stops.begin(visitor)):
        there = sum(map(len, rows))
        said = HTML.progress(there / total, f"{there} of {total} pictures")
        yield said, HTML.strengths(rows, STRENGTHS, drawing)
    if not stops.superseded(visitor):
        ending = "Done: the strip over strengths is below." if there == total else f"Stopped after {there} pictures."
        yield HTML.text(ending, "done"), gr.skip()


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
                sides = [_pictures(side, f"album-{side}", small=False) for side in TITLES]
            table = gr.HTML(elem_id="album-table")

    def look(*asked: Any) -> tuple[Any, ...]:
        try:
            page = album.page(*asked)
        except VldebiasError as error:
            return HTML.text(str(error), "error"), [], [], ""
        shown = [
            [(kept_picture(path.read_bytes(), path.name), path.stem) for path in one]
            for one in zip(*page.pairs, strict=True)
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
            result = _shown("Press Inspect: what the projection does to texts, without any picture.", "inspection")

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
