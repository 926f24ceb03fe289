"""Build the "Generate" tab, with a prompt and rows of images from the same noise."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from vldebias.errors import VldebiasError
from vldebias.utils.phrases import in_words, person

from .engine import MINIATURE, Engine
from .events import QUIET, announce, dim, lines, retract, undim, with_messages
from .faces import Face, row_of_faces
from .generate import Result, Row, generate
from .opening import saved_result
from .request import ATTRIBUTES, NUMBERS, THIRD_ROWS, Request, check_choice

PROMPT = "A photo of an editor."
TRY = (
    PROMPT,
    "A photo of a smiling pharmacist in a shop.",
    "A photo of a female editor.",
    "A photo of a gull on water.",
)
# Default steps and guidance, with and without the miniature.
STEPS = {True: 20, False: 30}
GUIDANCE = {True: 3.0, False: 7.5}
MOST_ROWS = 3
EMPTY = "Press Generate for two rows from the same noise: with and without balanced prompts."
SAVED = "This is a saved example. Change the prompt or a setting, and press Generate."
STARTING = "Starting …"
SCRIPT = announce("status", STARTING, "#generate-button, #examples button", "#prompt")
LOADING = "Loading the model …"
STOPPED = "Stopped. Press Generate to start again."
ABOUT = """Images in the same position start from the same noise. Balanced prompts name a value
for each image. The projection only changes the text embedding. Cross-attention sets a value inside
the model without changing the prompt. None of these methods makes a model fair."""


NO_SECOND = "none"
# A pipeline's name and its images. The name is "" if there is only one pipeline.
Sides = Sequence[tuple[str, Result | None]]


class GenerateTab:
    """Build the tab's components and their events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_small = engine.pipeline_name == MINIATURE
        first = saved_result() if self.is_small else None
        if first is not None:
            # The first click reproduces the saved example.
            engine.keep(("rows", first.request), first)
        with gr.Row(elem_id="ask"):
            self.prompt = gr.Textbox(
                PROMPT, label="Prompt", elem_id="prompt", max_lines=3, scale=6, min_width=140
            )
            self.attribute = gr.Dropdown(
                list(ATTRIBUTES), label="Attribute", elem_id="attribute", min_width=130
            )
            self.go = gr.Button(
                "Generate", variant="primary", elem_id="generate-button", min_width=90
            )
            self.halt = gr.Button("Stop", elem_id="stop", min_width=60)
        self.status = gr.HTML(_status(first), elem_id="status")
        opened = [("", first)]
        with gr.Column(elem_id="rows"):
            self.verdict = gr.HTML(_verdict(opened), elem_id="verdict")
            # Create three rows and hide unused ones, so that the layout does not shift.
            self.rows = [
                gr.HTML(
                    self._row(opened, row_number),
                    visible=_has(opened, row_number),
                    elem_id=f"row-{row_number}",
                )
                for row_number in range(MOST_ROWS)
            ]
        gr.Markdown("Try:", elem_classes="note")
        with gr.Row(elem_classes="try", elem_id="examples"):
            self.examples = [gr.Button(text, size="sm", min_width=120) for text in TRY]
        with gr.Accordion("Settings", open=False, elem_id="settings"):
            with gr.Row(elem_id="more"):
                self.third_row = gr.Dropdown(
                    list(THIRD_ROWS),
                    label="Third row (cross-attention takes a minute to fit)",
                    elem_id="third-row",
                    min_width=260,
                )
                self.strength = gr.Slider(
                    0, 1, 1, step=0.05, label="Strength", elem_id="strength", min_width=260
                )
            with gr.Row():
                self.number = gr.Dropdown(list(NUMBERS), value=NUMBERS[-1], label="Images per row")
                self.seed = gr.Number(0, label="Seed", precision=0)
                self.steps = gr.Number(STEPS[self.is_small], label="Steps", precision=0)
                self.guidance = gr.Number(GUIDANCE[self.is_small], label="Guidance")
                seconds = list(self.engine.pipelines)[1:]
                self.second = gr.Dropdown(
                    [NO_SECOND, *seconds],
                    label="Second pipeline",
                    elem_id="second",
                    visible=bool(seconds),
                )
        usual = Request(PROMPT, steps=STEPS[self.is_small], guidance=GUIDANCE[self.is_small])
        with gr.Accordion("The same in Python", open=False):
            self.code = gr.Code(
                usual.code(self.engine.shown_source),
                language="python",
                elem_id="code",
                interactive=False,
                # On a phone, the end of a long line would be hidden.
                wrap_lines=True,
            )
        gr.HTML(f"<p>{ABOUT}</p>", elem_classes="head")
        self._connect()

    @property
    def _form(self) -> list[Any]:
        """Return the components that provide the arguments of `Request.from_form`."""
        row = [self.prompt, self.attribute, self.number, self.strength]
        return [*row, self.third_row, self.seed, self.steps, self.guidance, self.second]

    def _connect(self) -> None:
        outputs = [self.status, self.verdict, *self.rows]
        # Allow one generation at a time, because only one edit can be attached to the pipeline.
        running: dict[str, Any] = {
            "concurrency_limit": 1,
            "concurrency_id": "pipeline",
            # A second press runs after the first one, instead of being ignored.
            "trigger_mode": "always_last",
            "show_progress": "hidden",
        }
        private = running | {"api_visibility": "private"}
        form = self._form
        run = with_messages(self._run)
        works = [
            self.go.click(run, form, outputs, api_name="generate", **running),
            self.prompt.submit(run, form, outputs, **private),
        ]
        for button, text in zip(self.examples, TRY, strict=True):
            filled = button.click(lambda text=text: text, None, [self.prompt], **QUIET)
            works.append(filled.then(run, form, outputs, **private))
        for work in works:
            work.then(None, None, None, js=retract("status", STARTING), api_visibility="private")
        for event in (self.status.change, *(work.then for work in works)):
            event(None, None, None, js=undim("rows"), api_visibility="private")
        self.halt.click(
            lambda: lines([(STOPPED, "about")]),
            None,
            [self.status],
            # Gradio then closes the generators, which stops generation.
            cancels=works,
            queue=False,
            **QUIET,
        )
        # Dim the images if a setting changes, until they are generated again.
        for part in form:
            part.change(None, None, None, js=dim("rows"), api_visibility="private")
            part.change(
                self._show_code, form, [self.code], queue=False, trigger_mode="always_last", **QUIET
            )

    def _run(self, *values: Any) -> Iterator[list[Any]]:
        """Yield the outputs as images are completed.

        Gradio closes this generator when the visitor presses Stop or leaves, which ends generation.
        """
        *form, second = values
        request = Request.from_form(*form)
        first_name, *seconds = self.engine.pipelines
        check_choice(second, (NO_SECOND, *seconds), "second pipeline")
        requests = {"": request}
        if second != NO_SECOND:
            requests = {first_name: request, str(second): replace(request, pipeline=str(second))}
        results: dict[str, Result | None] = dict.fromkeys(requests)
        for name, part in requests.items():
            is_known = self.engine.known(("rows", part)) is not None
            if not is_known and not self.engine.has_loaded(f"pipeline {part.pipeline}".strip()):
                # Loading takes seconds, so show a message immediately.
                yield [lines([(LOADING, "about")]), *[gr.skip()] * (1 + MOST_ROWS)]
            for number, result in enumerate(generate(self.engine, part, threading.Event())):
                results[name] = result
                sides = list(results.items())
                # If the first result is complete, it was generated for an earlier request.
                is_remembered = number == 0 and result.whole
                rows = [
                    gr.update(value=self._row(sides, place), visible=_has(sides, place))
                    for place in range(MOST_ROWS)
                ]
                status = _status(result, name, is_remembered=is_remembered)
                yield [status, _verdict(sides), *rows]

    def _show_code(self, *values: Any) -> Any:
        try:
            return Request.from_form(*values[:-1]).code(self.engine.shown_source)
        except VldebiasError:
            return gr.skip()  # the button explains the problem

    def _row(self, sides: Sides, row_number: int) -> str:
        """Return a row of images, or of several pipelines' images side by side."""
        parts = [self._faces(name, result, row_number) for name, result in sides]
        if len(parts) == 1:
            return parts[0]
        cells = "".join(f"<div>{part}</div>" for part in parts)
        return f'<div class="sides">{cells}</div>'

    def _faces(self, name: str, result: Result | None, row_number: int) -> str:
        """Return a pipeline's images, with empty boxes for images that are not ready yet."""
        if result is None or row_number >= len(result.rows):
            return row_of_faces(f"{name}: waiting", (), 0, pixels=False) if name else ""
        row = result.rows[row_number]
        title = f"{name}, {row.name}" if name else row.name.capitalize()
        # If the prompt does not mention a person, do not count people, since the judge would assign
        # a gender even to a gull. If it mentions several, the judge would count only one of them.
        if row.images and result.is_counted:
            title = f"{title}: {in_words(result.seen(row))}"
            unclear = row.codes.count(-1)
            title += f", {unclear} unclear" if unclear else ""
        faces = [Face(image, _named(result, row, i)) for i, image in enumerate(row.images)]
        return row_of_faces(title, faces, result.request.number, pixels=self.is_small)


def _has(sides: Sides, row_number: int) -> bool:
    """Return whether a pipeline has a row."""
    results = [result for _, result in sides if result is not None]
    return any(row_number < len(result.rows) for result in results)


def _named(result: Result, row: Row, place: int) -> str:
    """Return an image's name: its seed and the judge's answer."""
    seed = f"seed {result.request.seed + place}"
    if not result.is_counted:
        return seed
    code = row.codes[place]
    return f"{seed}: {person(result.values[code]) if code >= 0 else 'unclear'}"


def _status(result: Result | None, name: str = "", *, is_remembered: bool = False) -> str:
    """Describe the progress and the time per image.

    Args:
        result: the images, or None before the first request.
        name: name of the pipeline, or "" if there is only one.
        is_remembered: whether the images were generated for an earlier request.
    """
    start = f"{name}: " if name else ""
    if result is None:
        return lines([(EMPTY, "about")])
    if result.seconds is None:
        return lines([(SAVED, "about")])
    requested = result.request.number * len(result.rows)
    if not result.images:
        return lines([(f"{start}0 of {requested} images; generating the first ones …", "about")])
    pace = result.seconds / result.generated
    if not result.whole:
        remaining = result.seconds / result.images * (requested - result.images)
        text = f"{result.images} of {requested} images, {pace:.2f} s each; {remaining:.0f} s left"
        return lines([(start + text, "about")])
    counted = f"{requested} images"
    if result.generated < requested:
        # A row identical to the first one takes no time.
        counted += f", {result.generated} of them generated,"
    text = f"{counted} in {result.seconds:.1f} s, {pace:.2f} s each."
    if is_remembered:
        text = f"From an earlier request: {text}"
    return lines([(start + text, "about")])


def _verdict(sides: Sides) -> str:
    """Return the prompt and, for each complete result, one sentence per method and the time."""
    first = sides[0][1]
    if first is None:
        return ""
    texts = [(f"“{first.request.prompt}”", "about")]
    for name, result in sides:
        if result is None or not result.whole:
            continue
        start = f"{name}: " if name else ""
        for sentence, is_warning in result.sentences():
            texts.append((start + sentence, "warning" if is_warning else "line"))
        if name and result.generated and result.seconds is not None:
            texts.append((f"{start}{result.seconds / result.generated:.2f} s per image.", "about"))
    return lines(texts)
