"""Build the "Search" tab, with results as found, re-ranked and, if asked for, edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr
from PIL import Image

from vldebias.miniature.photographs import GALLERY, read_table, read_thumbnail
from vldebias.utils.phrases import person

from .answers import ROWS, SEARCH_METHODS, Answer, Found
from .engine import MINIATURE, PHOTOGRAPHS, Engine
from .events import QUIET, dim, lines, undim, with_messages
from .faces import Face, row_of_faces, thumbnails
from .opening import saved_search

QUERIES = {
    PHOTOGRAPHS: (
        "A photo of an aircraft worker.",
        "A photo of a cook.",
        "A photo of a welder.",
        "A photo of a farmer.",
    ),
    MINIATURE: (
        "A photo of a nurse.",
        "A photo of a doctor.",
        "A photo of an interpreter.",
        "A photo of a manager.",
    ),
}
"""Maps a gallery to queries to try. Users' own models have the miniature's queries.

The first query of the photographs is the first in alphabetical order whose results as found show at
least 16 of 20 of one gender, and whose re-ranked results show fewer (`eval.opening.first_gain`).
"""
KIND_OF_GALLERY = {PHOTOGRAPHS: "photographs", MINIATURE: "cartoons"}
SAVED = "This is a saved example. Change the query or a setting, and press Search."
TITLES = (
    "As found",
    "Re-ranked: to the gallery's shares, as the model predicts them",
    "Edited: the method “{}” changes the query (this makes more searches worse)",
)
WORSE = "{}: this query got worse: it is further from the shares of the gallery than as found."
NO_GAIN = "{}: no gain for this query, because the model predicts some of the groups wrongly."


class SearchTab:
    """Build the tab's components and their events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        first = engine.galleries[0]
        queries = QUERIES.get(first, QUERIES[MINIATURE])
        opening_lines = ""
        opening_rows = ["", "", ""]
        opening_source = ""
        # The saved example uses the photographs, which are only shown with their own model.
        if first == PHOTOGRAPHS:
            answer = saved_search()
            shown = [row for row in read_table() if row["part"] == GALLERY]
            titles = [row["title"] for row in shown]
            opening_lines = _lines(answer)
            opening_source = _source(answer, SAVED)
            images = {row: read_thumbnail(shown[row]["file"]) for row in _rows_of(answer)}
            for i, found in enumerate(answer.rows):
                opening_rows[i] = _row(TITLES[i], answer, found, images, titles)
        with gr.Row(elem_classes="ask"):
            self.query = gr.Textbox(
                queries[0], label="Query", elem_id="query", max_lines=3, scale=4, min_width=170
            )
            self.gallery = gr.Dropdown(
                [(KIND_OF_GALLERY.get(name, name), name) for name in engine.galleries],
                label="Images",
                elem_id="gallery",
                min_width=175,
                visible=len(engine.galleries) > 1,
            )
            self.column = gr.Dropdown(
                ["gender"] if first == PHOTOGRAPHS else ["gender", "age"],
                label="Groups",
                elem_id="groups",
                min_width=130,
                # The columns in a user's file are unknown until it is loaded, which happens after
                # the page is built.
                allow_custom_value=True,
            )
            self.go = gr.Button("Search", variant="primary", elem_id="search-button", min_width=100)
        with gr.Column(elem_id="results"):
            self.verdict = gr.HTML(opening_lines, elem_id="search-verdict")
            self.rows = [
                gr.HTML(value, elem_id=f"search-{row_number}", visible=bool(value))
                for row_number, value in enumerate(opening_rows)
            ]
            self.source = gr.HTML(opening_source, elem_id="search-source")
        with gr.Row(elem_classes="try"):
            self.examples = [gr.Button(text, size="sm", min_width=120) for text in queries]
        with gr.Accordion("Settings", open=False):
            self.edits = gr.Checkbox(
                label="Also show the edited query", elem_id="edits", value=False
            )
            self.method = gr.Dropdown(
                list(SEARCH_METHODS),
                value=SEARCH_METHODS[0],
                label="Method of the edit",
                elem_id="method",
            )
            self.strength = gr.Slider(0, 1, 1, step=0.05, label="Strength of the edit")
        self._connect()

    def search_on(self, opened: Any) -> None:
        """Search when the tab is opened, unless it shows the saved example.

        Args:
            opened: the listener of the event.
        """
        if not self.verdict.value:
            opened(with_messages(self._search), *self._search_parts, api_visibility="private")

    def _connect(self) -> None:
        limits: dict[str, Any] = {
            "concurrency_id": "model",
            "concurrency_limit": 1,
            # A second press runs after the first one, instead of being ignored.
            "trigger_mode": "always_last",
        }
        private = limits | {"api_visibility": "private"}
        form = [
            self.query,
            self.column,
            self.edits,
            self.method,
            self.strength,
            self.gallery,
        ]
        outputs = [self.verdict, *self.rows, self.source]
        self._search_parts = form, outputs
        run = with_messages(self._search)
        works = [
            self.go.click(run, form, outputs, api_name="search", **limits),
            self.query.submit(run, form, outputs, **private),
        ]
        for button in self.examples:
            filled = button.click(lambda text: text, [button], [self.query], **QUIET)
            works.append(filled.then(run, form, outputs, **private))
        chosen = self.gallery.input(
            _settings_of,
            [self.gallery],
            [self.query, self.column, *self.examples],
            **QUIET,
        )
        works.append(chosen.then(run, form, outputs, **private))
        for part in form:
            part.change(None, None, None, js=dim("results"), api_visibility="private")
        for work in works:
            work.then(None, None, None, js=undim("results"), api_visibility="private")

    def _search(
        self,
        query: str,
        column: str,
        edits: bool,
        method: str,
        strength: float,
        gallery_name: str,
    ) -> Iterator[list[Any]]:
        # Imported here, because torch takes seconds to load and the page opens without it.
        from .search import search

        chosen = method if edits else None
        answer, gallery = search(self.engine, query, column, chosen, strength, gallery_name)
        images = {row: gallery.image(self.engine, row) for row in _rows_of(answer)}
        rows = [gr.update(value="", visible=False)] * len(TITLES)
        for i, found in enumerate(answer.rows):
            text = _row(TITLES[i].format(method), answer, found, images, gallery.titles)
            rows[i] = gr.update(value=text, visible=True)
        yield [_lines(answer), *rows, _source(answer)]


def _settings_of(gallery_name: str) -> list[Any]:
    """Return the query, groups and examples for the selected gallery."""
    queries = QUERIES.get(gallery_name, QUERIES[MINIATURE])
    columns = ["gender"] if gallery_name == PHOTOGRAPHS else ["gender", "age"]
    return [
        queries[0],
        gr.update(choices=columns, value=columns[0]),
        *queries,
    ]


def _rows_of(answer: Answer) -> set[int]:
    """Return the rows of the gallery that are shown in any row of results."""
    return {row for found in answer.rows for row in found.rows}


def _row(
    title: str,
    answer: Answer,
    found: Found,
    images: Mapping[int, Image.Image | None],
    titles: Sequence[str] = (),
) -> str:
    """Return a row of results, each with its rank, its group and, if available, its title.

    Below the first row, a line counts the near-duplicates that are left out. Below the other rows,
    a line lists the images of the first row that are missing, with thumbnails.

    Args:
        title: heading of the row.
        answer: the results of all rows.
        found: the results of this row.
        images: rows of the gallery to images.
        titles: titles of all images in the gallery, or none.
    """
    faces = []
    for place, (row, group) in enumerate(zip(found.rows, found.groups, strict=True), start=1):
        image = images[row]
        if image is not None:
            name = person(group)
            text = titles[row] if titles else ""
            caption = f"{place}. {name}{answer.movement(found, row)}"
            faces.append(Face(image, f"result {place}: {name}", caption, text))
    if not faces:
        return ""
    left = answer.near_duplicates() if found is answer.before else answer.left_in_words(found)
    below = f'<p class="about">{escape(left)}</p>' if left else ""
    gone = []
    for row, caption in answer.left(found).items():
        image = images[row]
        if image is not None:
            gone.append(Face(image, f"no longer shown: {caption}", caption))
    below += thumbnails(gone)
    return row_of_faces(title, faces, len(faces), pixels=not titles) + below


def _source(answer: Answer, *remarks: str) -> str:
    """Describe how the images are counted and where they come from."""
    texts = " ".join([*remarks, answer.counted(), answer.source])
    return f'<p class="about">{escape(texts.strip())}</p>'


def _lines(answer: Answer) -> str:
    """Return a table of the results, with sentences about rows that gain nothing."""
    top = f"first {answer.before.top}"
    rows = ""
    for name, *values in [("results", top, "kept"), *answer.summary()]:
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        rows += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    sentences = [(answer.reason(), "line")] if answer.reason() else []
    for name, found in zip(ROWS[1:], answer.rows[1:], strict=False):
        if answer.gain(found) < 0:
            sentences.append((WORSE.format(name), "warning"))
    if round(answer.before.skew, 2) and not answer.gain(answer.reranked) and not answer.reason():
        sentences.append((NO_GAIN.format(ROWS[1]), "line"))
    caption = f"<caption>“{escape(answer.query)}”</caption>"
    return f"<table>{caption}{rows}</table>{lines(sentences)}"
