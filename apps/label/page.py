"""Build the labelling page, which asks for a name and then shows one image at a time."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import jinja2

from vldebias.cli.common import err
from vldebias.errors import InvalidInputError
from vldebias.utils.phrases import quantity

from ..serving import serve
from .engine import Labelling, Place, View
from .study import KEYS


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = lambda value, spec: format(float(value), spec)
    return environment


STYLE = Path(__file__).with_name("style.css")
HTML: Any = _templates().get_template("view.html").module  # macros, which escape their arguments
SMALL = 128  # width in pixels below which images are enlarged without smoothing
LOST = (
    "The page has lost your position, for example because the server was restarted. Enter your name"
    " again to continue where you left off."
)

# Keys work regardless of the focus, except in text fields. A key that is held down counts once.
# Keys that are pressed before the image is visible do not count as answers.
HEAD = """
<script>
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
  const choice = "%s".indexOf(event.key);
  const names = { ArrowLeft: "back", Backspace: "back", ArrowRight: "forward" };
  const name = event.key.length === 1 && choice >= 0 ? `choice-${choice}` : names[event.key];
  const button = name && document.getElementById(name);
  if (!button) return;
  event.preventDefault();
  const image = document.querySelector("#image img");
  if (!button.disabled && (!image || image.complete)) button.click();
});
</script>
""".replace("%s", KEYS)


def build_demo(engine: Labelling) -> gr.Blocks:
    """Build the page for a study, without revealing variants, prompts or file names."""
    with gr.Blocks(title="Label images", analytics_enabled=False) as demo:
        Page(engine)
    return demo


class Page:
    """The page's components and events. The visitor's session stores the position."""

    def __init__(self, engine: Labelling) -> None:
        self.engine = engine
        self.place = gr.State(None)
        self.shown = gr.Textbox(visible=False)  # the step on the screen, which is sent with answers
        with gr.Column() as self.entry:
            folder = engine.folder
            examples = [base64.b64encode(png).decode() for png in engine.examples()]
            intro = len(folder.records), engine.questions, examples, folder.is_generated
            _html(HTML.intro(*intro), elem_classes="intro")
            if engine.annotators:
                # If there is only one annotator, preselect the name.
                first = engine.annotators[0] if len(engine.annotators) == 1 else None
                self.name: gr.Radio | gr.Textbox = gr.Radio(
                    list(engine.annotators), value=first, label="Your name", elem_id="name"
                )
            else:
                self.name = gr.Textbox(
                    label="Your name", elem_id="name", autofocus=True, max_lines=1
                )
            self.entry_note = _html(elem_id="entry-note")
            self.begin = gr.Button("Start", variant="primary", elem_id="start")
        with gr.Column(visible=False) as self.work:
            self.where = _html(elem_id="where")
            self.image = _html(elem_id="image")
            self.question = _html(
                elem_id="question", js_on_load="element.setAttribute('aria-live', 'polite')"
            )
            with gr.Row(elem_id="choices"):
                count = max(len(question.choices) for question in engine.questions)
                self.choices = [
                    gr.Button("", elem_id=f"choice-{i}", min_width=100) for i in range(count)
                ]
            self.note = _html(elem_id="note")
        with gr.Column(visible=False) as self.thanks:
            self.end = _html(elem_id="thanks")
        with gr.Column(visible=False) as self.moving:
            with gr.Row(elem_id="moves"):
                self.back = gr.Button("← Back", elem_id="back", min_width=100)
                self.forward = gr.Button("Next →", elem_id="forward", min_width=100)
            _html(HTML.hint(), elem_id="hint")
        self._connect()

    def _connect(self) -> None:
        settings: dict[str, object] = {
            "outputs": self._outputs,
            "show_progress": "hidden",
            # Only the page itself may call these handlers.
            "api_visibility": "private",
            # Process events in order, so that the second of two key presses applies to the new
            # position.
            "concurrency_limit": 1,
            "concurrency_id": "page",
            # With "once", the page would hang after the server is killed.
            "trigger_mode": "multiple",
        }
        self.begin.click(self._start, [self.name], **settings)
        if not self.engine.annotators:
            self.name.submit(self._start, [self.name], **settings)
        for i, button in enumerate(self.choices):
            button.click(self._answering(i), [self.place, self.shown], **settings)
        self.back.click(self._move(self.engine.back), [self.place], **settings)
        self.forward.click(self._move(self.engine.forward), [self.place], **settings)

    def _start(self, name: str | None) -> list[object]:
        try:
            return self._show(self.engine.start("" if name is None else name))
        except InvalidInputError as error:
            return self._ask_name(str(error))

    def _answering(self, choice: int) -> Callable[[Place | None, str], list[object]]:
        def press(place: Place | None, shown: object) -> list[object]:
            if place is None:
                return self._ask_name(LOST)
            step = -1  # the page does not show a valid step
            if isinstance(shown, str) and shown.isascii() and shown.isdigit():
                step = int(shown)
            try:
                return self._show(self.engine.answer(place, choice, step))
            except (InvalidInputError, OSError) as error:
                return self._show(
                    place,
                    f"Not saved: {error}. Tell the organiser of the study, then choose again.",
                )

        return press

    def _move(self, go: Callable[[Place], Place]) -> Callable[[Place | None], list[object]]:
        def move(place: Place | None) -> list[object]:
            if place is None:
                return self._ask_name(LOST)
            return self._show(go(place))

        return move

    @property
    def _outputs(self) -> list[object]:
        screens = [self.entry, self.work, self.thanks, self.moving]
        texts = [self.entry_note, self.where, self.image, self.question, self.note, self.end]
        return [self.place, self.shown, *screens, *texts, self.back, self.forward, *self.choices]

    def _ask_name(self, remark: str) -> list[object]:
        """Return the first screen, which asks for a name, with a message."""
        screens = [gr.update(visible=visible) for visible in (True, False, False, False)]
        texts = [HTML.said(remark), "", "", "", "", ""]
        buttons = [gr.skip() for _ in (self.back, self.forward, *self.choices)]
        return [None, "", *screens, *map(str, texts), *buttons]

    def _show(self, place: Place, remark: str = "") -> list[object]:
        view = self.engine.view(place)
        screens = [
            gr.update(visible=v) for v in (False, view.step is not None, view.step is None, True)
        ]
        png = view.png
        data = None
        is_small = False
        if png:
            # Embed the image, because a URL could reveal the file name and would be cached.
            data = base64.b64encode(png).decode()
            # These bytes of a PNG contain its width.
            is_small = int.from_bytes(png[16:20], "big") < SMALL
        shown = HTML.where(view), HTML.image(view, data, is_small), HTML.question(view)
        texts = ["", *shown, HTML.said(remark), HTML.thanks(view, self.engine.next_command())]
        moves = [gr.update(interactive=view.can_go_back), gr.update(interactive=view.can_go_on)]
        return [place, str(view.step), *screens, *map(str, texts), *moves, *self._buttons(view)]

    def _buttons(self, view: View) -> list[object]:
        """Return updates that show one button per choice and hide the others."""
        if view.question is None:
            return [gr.skip() for _ in self.choices]
        updates = []
        for number, choice in enumerate(view.question.choices):
            is_chosen = choice == view.answer
            # The last two choices are not values, so they are styled differently.
            names_value = number < len(view.question.values)
            mark = "  ✓" if is_chosen else ""
            update = gr.update(
                value=f"{KEYS[number]}   {choice}{mark}",
                variant="primary" if is_chosen else "secondary",
                elem_classes=[] if names_value else ["unsure"],
                visible=True,
            )
            updates.append(update)
        hidden = [gr.update(visible=False) for _ in self.choices[len(updates) :]]
        return updates + hidden


def _html(value: str = "", **settings: Any) -> gr.HTML:
    return gr.HTML(str(value), apply_default_css=False, **settings)


def serve_study(engine: Labelling, **where: Any) -> None:
    """Print a summary of the study and serve the page until it is stopped.

    Args:
        engine: the study.
        where: `port` and `public`, which are passed to `serve`.

    Raises:
        OSError: If the answers cannot be written.
    """
    folder = engine.folder
    engine.log.path.parent.mkdir(parents=True, exist_ok=True)
    # Open the file now, so that missing permissions are reported before anyone answers.
    with engine.log.path.open("ab"):
        pass
    number = len(folder.records)
    variants = {record.variant for record in folder.records}
    prompts = {record.prompt for record in folder.records}
    images = f"{quantity(number, 'image')} in {folder.root}/"
    if len(prompts) > 1 or len(variants) > 1:
        images += f" ({quantity(len(prompts), 'prompt')}, {quantity(len(variants), 'variant')})"
    lines = [f"Each answer is saved immediately to {engine.log.path}."]
    if folder.weights:
        lines.append(
            f"Images that the {folder.judge} is unsure about were sampled more often. Answers are"
            " weighted to correct for this."
        )
    if folder.missing:
        lines.append(f"{folder.missing} more images in the plan have not been generated yet.")
    for name, done in engine.progress().items():
        lines.append(f"{name}: {done} of {number} images done.")

    def announce(address: str) -> None:
        first = (
            f"Open {address} in a browser to label {images}. Press Ctrl-C to stop; run the command"
            " again to continue."
        )
        err().print("\n".join([first, *lines]), markup=False, highlight=False)

    serve(
        build_demo(engine),
        css=STYLE.read_text(encoding="utf-8"),
        head=HEAD,
        announce=announce,
        finish=engine.finish,
        **where,
    )
