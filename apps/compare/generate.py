"""The tab Generate: the same noise as the model is and under up to three methods, what came of it, and runs before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from .drawing import AFTER, BEFORE, STRENGTHS, STRIP_ROWS, Comparison, compare, strip
from .engine import MINIATURE, Engine
from .form import QUEUE, Stops, cached, download, filename, mitigation_form, show_below, side_pictures, told
from .packing import about, pack, png, readings, table, unpack
from .settings import MOST_BESIDE, PRESET, Drawing, Mitigation, from_link, methods_for
from .view import HTML, title

PAUSE = 0.25  # seconds between two reports of progress
RUNS = 12  # of a visit that are remembered
PROMPT = "A photo of an editor."
NUMBER, STEPS, GUIDANCE = 8, {True: 20, False: 30}, {True: 3.0, False: 7.5}  # by whether the miniature draws
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
OPENING = Path(__file__).with_name("opening.zip")  # what it opens with: python -m eval.experiments.opening
STATED, ALONE = "stated-value", PRESET
"""What moves the shares: a value stated for each picture; and what `debias` attaches, which changes the embedding."""
OPENED = "Drawn before, not now. Press Generate for your own."
CHOSEN = "Of 20 professions that nothing was fitted on, the one that the model draws the most one-sidedly:"
SETTINGS = "Settings: whom it is about, method, what stands beside it, how many pictures"
FINDINGS: dict[str, tuple[str, list[str], str, str]] = {
    "Gender and age at once": (PROMPT, ["gender", "age"], "", STATED),
    "“female editor” is left alone": ("A photo of a female editor.", ["gender"], "", STATED),
    "The paper's settings": (PROMPT, ["gender"], "", "paper"),
    "An attribute in your own words": (PROMPT, [], "with glasses: bespectacled\nwithout: clear-eyed", STATED),
}
"""What to try first -> prompt, attributes, words and method, as the form has them."""
ADDRESS = """() => {
    const link = document.querySelector("#comparison a");
    if (link) history.replaceState(null, "", link.href);
}"""  # a page that is loaded again has the settings of what it showed


@dataclass(frozen=True)
class Run:
    """A comparison of this visit. packed: its zip, a file that the page made. rows: of the table of all runs."""

    label: str
    packed: str
    rows: list[dict[str, Any]]

    @classmethod
    def of(cls, number: int, now: Comparison, packed: str) -> Run:
        """The run with this number; the label leads with what became of it."""
        said = [
            f"{c.value} {c.before / c.pairs:.0%} → {c.after / c.pairs:.0%} ({c.verdict})" for c in now.changes.values()
        ] or [f"{now.pairs} of each"]
        return cls(f"{number}. {', '.join(said)}: “{now.drawing.prompt}”, {now.method}", packed, readings(now))


Runs = dict[str, Run]
Shown = dict[str, list[str]]
"""side -> the files of its pictures, which the page made."""


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)


@cache
def opening() -> Comparison:
    """What the page opens with on the miniature."""
    return unpack(OPENING.read_bytes())


class Generate:
    """The components of the tab, and what each event makes of them."""

    def __init__(self, engine: Engine, stops: Stops, demo: gr.Blocks) -> None:
        self.engine, self.stops = engine, stops
        self.small = engine.pipeline_name == MINIATURE
        first = opening() if self.small else None
        opened = {"1": Run.of(1, first, str(OPENING))} if first else {}
        begins = self._files(first) if first else {}
        with gr.Row(elem_id="ask"):
            self.prompt = gr.Textbox(PROMPT, label="Prompt", elem_id="prompt", max_lines=3, scale=6, min_width=220)
            self.go = gr.Button("Generate", variant="primary", elem_id="generate", min_width=110)
            self.halt = gr.Button("Stop", elem_id="stop", min_width=80)
        with gr.Accordion(SETTINGS, open=False, elem_id="settings"), gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=280):
                self.form = mitigation_form(["gender"], tab="generate", model=False, method=STATED)
            with gr.Column(scale=2, min_width=260):
                self._numbers()
        waiting = OPENED if first else "Press Generate: the same noise is drawn without and with the mitigation."
        self.status = gr.HTML(HTML.text(waiting), elem_id="status")
        self.verdict = gr.HTML(HTML.verdict(first) if first else "", elem_id="verdict")
        with gr.Row(elem_classes="twins"):
            self.sides = [
                side_pictures(f"pictures-{name}", small=self.small, **gallery)
                for name, gallery in zip(
                    (BEFORE, AFTER, "beside-1", "beside-2"), _galleries(first, begins), strict=True
                )
            ]
        tried = [self.prompt, *self.form[:3]]
        gr.Examples(
            [list(one) for one in FINDINGS.values()],
            tried,
            example_labels=list(FINDINGS),
            label="Try",
            elem_id="findings",
        )
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=280):
                self.pair = gr.ImageSlider(
                    **_pair(begins, AFTER, first.telling if first else 0, first),
                    format="png",
                    type="filepath",
                    interactive=False,
                    buttons=["fullscreen"],
                    elem_id="pair",
                    elem_classes=["pixels"] if self.small else [],
                )
            with gr.Column(scale=5, min_width=320):
                self.result = gr.HTML(HTML.comparison(first, CHOSEN) if first else "", elem_id="comparison")
        self.strengths = gr.HTML(elem_id="strengths")
        self.history = gr.Radio(_choices(opened), **_history(opened), elem_id="history")
        with gr.Row():
            self.zip = gr.DownloadButton("Pictures and metadata (zip)", elem_id="zip", **_file(first and OPENING))
            kept = cached(table({k: one.rows for k, one in opened.items()}).encode(), "vldebias-runs.csv")
            self.csv = gr.DownloadButton("Table of all runs (CSV)", elem_id="csv", **_file(first and kept))
        self.shown, self.runs = gr.State(begins), gr.State(opened)
        self._connect(demo)

    def _numbers(self) -> None:
        """What is drawn, how often, and how."""
        names = [one.name for one in methods_for(pipeline=True, model=False)]
        self.beside = gr.Dropdown(
            names,
            value=[ALONE],
            multiselect=True,
            max_choices=MOST_BESIDE,
            label="Beside it, up to two more methods",
            info="Drawn of the same noise; default changes the embedding alone.",
            elem_id="beside",
        )
        self.number = gr.Slider(1, 16, value=NUMBER, step=1, label="Pictures of each", elem_id="number")
        self.steps = gr.Slider(1, 100, value=STEPS[self.small], step=1, label="Steps", elem_id="steps")
        self.guidance = gr.Slider(0, 30, value=GUIDANCE[self.small], step=0.5, label="Guidance", elem_id="guidance")
        self.seed = gr.Number(0, precision=0, minimum=0, label="Seed", elem_id="seed")
        self.more = gr.Button("Strip over strengths 0 to 1", elem_id="strip")

    @property
    def _inputs(self) -> list[Any]:
        return [self.prompt, self.number, self.seed, self.steps, self.guidance, self.beside, *self.form]

    @property
    def _outputs(self) -> list[Any]:
        """What `_showing` gives."""
        return [self.verdict, *self.sides, self.pair, self.result, self.shown]

    def _connect(self, demo: gr.Blocks) -> None:
        show_below(self.go, "status")
        show_below(self.more, "strengths")
        # multiple: pressed again during a run, the button stops that run and starts another
        line: dict[str, Any] = {"concurrency_id": QUEUE, "concurrency_limit": 1, "trigger_mode": "multiple"} | QUIET
        kept = [self.zip, self.csv, self.history, self.runs]
        for trigger, work, read, outputs in (
            ([self.go.click, self.prompt.submit], told(self.run), [self.runs], [*self._outputs, *kept]),
            ([self.more.click], told(self.run_strip), [], [self.strengths]),
        ):
            begins: dict[str, Any] = {"trigger_mode": "multiple"} | QUIET
            started = gr.on(trigger, told(self.begin), self._inputs, [self.status, self.strengths], **begins)
            done = started.success(work, [*read, *self._inputs], [self.status, *outputs], **line)
            done.failure(self.failed, None, [self.status], **QUIET)
            done.success(None, None, None, js=ADDRESS, api_visibility="private")
        self.halt.click(self.end, None, [self.status], queue=False, **QUIET)
        for place, gallery in enumerate(self.sides):
            gallery.select(self._looking(place), [self.shown], [self.pair], **QUIET)
        self.history.input(
            told(self.again), [self.history, self.runs], [self.status, *self._outputs, self.zip], **QUIET
        )
        restored = [self.status, *self._inputs, *self._outputs]
        demo.load(told(self.restore), None, restored, **QUIET)

    # ---- events ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _asked(values: tuple[Any, ...]) -> tuple[Drawing, Mitigation]:
        prompt, number, seed, steps, guidance, beside, *rest = values
        how = Mitigation.of(*rest)
        beside = [name for name in beside or () if name != how.method]
        return Drawing.of(prompt, number, seed, steps, guidance, beside), how

    def begin(self, request: gr.Request, *values: Any) -> tuple[str, str]:
        """What is asked for joins the line."""
        self._asked(values)
        self.stops.ask(_visitor(request))
        waiting = "Waiting for its turn; the models load when they are first used."
        return HTML.progress(0, waiting), ""  # a strip of another prompt must not stay

    def run(self, request: gr.Request, runs: Runs, *values: Any) -> Iterator[list[Any]]:
        """(status, `_outputs`, zip, table, history, runs) as pictures come, not at every step."""
        drawing, mitigation = self._asked(values)
        visitor, stop = _visitor(request), self.stops.begin(_visitor(request))
        same, unkept = [gr.skip()] * len(self._outputs), [gr.skip()] * 4
        sent, last, now = -1, 0.0, None
        if not stop.is_set():
            yield [gr.skip(), *same, gr.update(interactive=False), *unkept[1:]]
        for now in compare(self.engine, drawing, mitigation, stop):
            there = sum(map(len, now.pictures.values()))
            if there == sent and time.monotonic() - last < PAUSE:
                continue
            last = time.monotonic()
            said = HTML.progress(now.share, f"{there} of {len(now.sides) * drawing.number} pictures")
            yield [said, *(same if there == sent else self._showing(now)), *unkept]
            sent = there
        if self.stops.superseded(visitor):
            return
        if now is None or not now.pairs:
            yield [HTML.text("Stopped before there was a picture."), *same, *unkept]
            return
        ending = f"Done: {drawing.number} of each." if now.whole else f"Stopped after {now.pairs} of each."
        yield [HTML.text(ending, "done"), *same, *self._keeping(now, runs)]

    def _keeping(self, now: Comparison, runs: Runs) -> list[Any]:
        """(zip, table, history, runs) with this run at the end."""
        kept = download(self.zip, pack(now), filename(now.drawing.prompt, ".zip"))
        number = 1 + max(map(int, runs), default=0)
        runs = dict([*runs.items(), (str(number), Run.of(number, now, kept["value"]))][-RUNS:])
        rows = download(self.csv, table({k: one.rows for k, one in runs.items()}).encode(), "vldebias-runs.csv")
        return [kept, rows, gr.update(choices=_choices(runs), **_history(runs)), runs]

    def run_strip(self, request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        """(status, strip) after each picture."""
        drawing, mitigation = self._asked(values)
        visitor = _visitor(request)
        total, there = min(drawing.number, STRIP_ROWS) * len(STRENGTHS), 0
        for rows in strip(self.engine, drawing, mitigation, self.stops.begin(visitor)):
            there = sum(map(len, rows))
            said = HTML.progress(there / total, f"{there} of {total} pictures")
            yield said, HTML.strengths(rows, STRENGTHS, drawing)
        if not self.stops.superseded(visitor):
            done = "Done: the strip over strengths is below." if there == total else f"Stopped after {there} pictures."
            yield HTML.text(done, "done"), gr.skip()

    def end(self, request: gr.Request) -> Any:
        """Stop what this visitor draws."""
        # What is being drawn says itself that it was stopped, and may do so before this answer arrives.
        waiting = self.stops.stop(_visitor(request))
        return HTML.text("Stopped before its turn came.") if waiting else gr.skip()

    def failed(self) -> str:
        """In the place of progress; the message goes by itself."""
        return str(HTML.text("Nothing more was drawn. Change what the message named, and press Generate."))

    def _looking(self, place: int) -> Callable[[Shown, gr.SelectData], Any]:
        def lay_over(shown: Shown, event: gr.SelectData) -> Any:
            """The chosen picture over its twin of the model as it is; beside that one the mitigated."""
            sides = list(shown)
            chosen = _pair(shown, sides[max(place, 1)], event.index) if place < len(sides) > 1 else None
            return gr.skip() if chosen is None or chosen["value"] is None else gr.update(**chosen)

        return lay_over

    def again(self, number: str, runs: Runs) -> list[Any]:
        """(status, `_outputs`, zip) of a run of this visit."""
        run = runs.get(number)
        if run is None or not Path(run.packed).is_file():
            raise gr.Error(
                "This run was cleared away after an hour; draw it again.", duration=10, print_exception=False
            )
        now = unpack(Path(run.packed).read_bytes())
        zipped = gr.update(value=run.packed, interactive=True)
        return [HTML.text(f"Run {number} of this visit.", "done"), *self._showing(now), zipped]

    def restore(self, request: gr.Request) -> list[Any]:
        """(status, `_inputs`, `_outputs`): the settings of a link; no pictures, they would be of another prompt."""
        usual = Drawing(PROMPT, NUMBER, 0, STEPS[self.small], GUIDANCE[self.small])
        found = from_link(dict(request.query_params), usual)
        if found is None:
            return [gr.skip()] * (1 + len(self._inputs) + len(self._outputs))
        one, how = found
        values = [one.prompt, one.number, one.seed, one.steps, one.guidance, list(one.beside), list(how.attributes)]
        lam = "" if how.lam is None else f"{how.lam:g}"
        values += [how.words, how.method, lam, how.strength, how.keep_stated]
        empty = [
            "",
            *({**one, "value": None} for one in map(_update, _galleries(None, {}))),
            gr.update(value=None),
            "",
            {},
        ]
        said = HTML.text(
            "The settings are those of the link: press Generate for its pictures, which are the same each time."
        )
        return [said, *values, *empty]

    # ---- what the page then looks like -----------------------------------------------------------------------------

    def _showing(self, now: Comparison) -> list[Any]:
        """The values of `_outputs`."""
        shown = self._files(now)
        pair = gr.update(**_pair(shown, AFTER, now.telling, now))
        return [HTML.verdict(now), *map(_update, _galleries(now, shown)), pair, HTML.comparison(now), shown]

    def _files(self, now: Comparison) -> Shown:
        """PNGs, with how each was made inside."""

        def file(side: str, i: int) -> str:
            made = about(now, side, i)
            return cached(png(now.pictures[side][i], made), f"{side}-{made['seed']}.png")

        return {side: [file(side, i) for i in range(len(now.pictures.get(side, ())))] for side in now.sides}


def _galleries(now: Comparison | None, shown: Shown) -> list[dict[str, Any]]:
    """Settings of the four galleries: label, value, whether it is there."""
    sides = now.sides if now else (BEFORE, AFTER)
    found: list[dict[str, Any]] = []
    for side in sides:
        seed = now.drawing.seed if now else 0
        captioned = [(file, f"seed {seed + i}") for i, file in enumerate(shown.get(side, ()))]
        found.append({"label": title(side, now), "value": captioned, "visible": True})
    return found + [{"label": "", "value": None, "visible": False}] * (2 + MOST_BESIDE - len(found))


def _update(settings: Mapping[str, Any]) -> dict[str, Any]:
    return gr.update(**settings)


def _pair(shown: Shown, side: str, index: Any, now: Comparison | None = None) -> dict[str, Any]:
    """Settings of the slider over a picture of the model as it is and its twin; no value where one is missing."""
    there = isinstance(index, int) and 0 <= index < min((len(shown.get(one, ())) for one in (BEFORE, side)), default=0)
    files = (shown[BEFORE][index], shown[side][index]) if there else None
    if files is None or not all(Path(file).is_file() for file in files):
        return {"value": None, "label": "Before and after"}
    return {"value": files, "label": f"Drag: before | {title(side, now)}, {index + 1}"}


def _choices(runs: Runs) -> list[tuple[str, str]]:
    return [(one.label, number) for number, one in runs.items()]


def _history(runs: Runs) -> dict[str, Any]:
    """Shown once there is more than one to choose from; the last is the one on the page."""
    return {"value": next(reversed(runs), None), "label": "Runs of this visit", "visible": len(runs) > 1}


def _file(path: Any) -> dict[str, Any]:
    return {"value": str(path) if path else None, "interactive": bool(path)}
