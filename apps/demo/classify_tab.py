"""Build the "Classify" tab, with four groups' accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from .answers import METHODS
from .engine import Engine
from .events import dim, lines, undim, with_messages
from .faces import Face, row_of_faces

if TYPE_CHECKING:
    from .search import Gallery, Group

HEADS = ("group", "images", "without", "with method")
BIRDS_SHOWN = 8
TITLE = "## Land birds and water birds: the worst of four groups"
BIRDS = """The model mistakes water birds in front of land for land birds. Each method is fitted to
text alone."""


class ClassifyTab:
    """Build the tab's components and their event."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        gr.Markdown(f"{TITLE}\n\n{BIRDS}", elem_classes="note")
        with gr.Row(elem_classes="ask"):
            self.method = gr.Dropdown(
                list(METHODS),
                value=METHODS[0],
                label="Method",
                elem_id="birds-method",
                min_width=110,
            )
            self.go = gr.Button(
                "Classify", variant="primary", elem_id="classify-button", min_width=100
            )
        with gr.Column(elem_id="classified"):
            self.worst = gr.HTML(elem_id="classify-verdict")
            self.groups = gr.HTML(visible=False, elem_id="accuracy")
            self.put_right = gr.HTML(visible=False, elem_id="put-right", elem_classes="birds")
            self.put_wrong = gr.HTML(visible=False, elem_id="put-wrong", elem_classes="birds")
        classified = self.go.click(
            with_messages(self._classify),
            [self.method],
            [self.worst, self.groups, self.put_right, self.put_wrong],
            api_name="classify",
            concurrency_id="model",
            concurrency_limit=1,
            # A second press runs after the first one, instead of being ignored.
            trigger_mode="always_last",
        )
        self.method.change(None, None, None, js=dim("classified"), api_visibility="private")
        classified.then(None, None, None, js=undim("classified"), api_visibility="private")

    def _classify(self, method: str) -> Iterator[list[Any]]:
        # Imported here, because torch takes seconds to load and the page opens without it.
        from .search import classify

        groups, put_right, put_wrong, gallery = classify(self.engine, method)
        before = min(group.before[0] for group in groups)
        after = min(group.after[0] for group in groups)
        count = sum(group.n for group in groups)
        text = f"Worst group: {before:.0%} → {after:.0%} correct ({count:,} images in total)."
        yield [
            lines([(text, "line")]),
            gr.update(value=_table(groups), visible=True),
            self._birds("Correct only with the method", put_right, gallery),
            self._birds("Wrong only with the method", put_wrong, gallery),
        ]

    def _birds(self, title: str, rows: Sequence[int], gallery: Gallery) -> Any:
        """Return the update for a row of birds, which shows the first few with their labels."""
        faces = []
        for i, row in enumerate(rows[:BIRDS_SHOWN], start=1):
            image = gallery.image(self.engine, row)
            if image is not None:
                faces.append(Face(image, f"bird {i}", str(gallery.labels["label"][row])))
        if len(rows) > len(faces):
            title = f"{title}: the first {len(faces)} of {len(rows)}"
        else:
            title = f"{title}: {len(rows)}"
        shown = row_of_faces(title, faces, len(faces), pixels=True)
        return gr.update(value=shown, visible=bool(faces))


def _table(groups: Sequence[Group]) -> str:
    """Return a table of each group's accuracy."""
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    rows = []
    for group in groups:
        after = f"<td>{_interval(group.after)}</td>"
        if group.is_worse:
            after = f'<td class="worse">{_interval(group.after)} worse</td>'
        cells = f"<td>{group.n}</td><td>{_interval(group.before)}</td>{after}"
        rows.append(f'<tr><th scope="row">{escape(group.name)}</th>{cells}</tr>')
    caption = "<caption>Share classified correctly, with 95% intervals</caption>"
    return f"<table>{caption}<tr>{heads}</tr>{''.join(rows)}</table>"


def _interval(value: tuple[float, float, float]) -> str:
    share, low, high = value
    # The no-break space makes narrow windows wrap the line before the interval.
    return f"{share:.0%} [{low:.0%},\N{NO-BREAK SPACE}{high:.0%}]"
