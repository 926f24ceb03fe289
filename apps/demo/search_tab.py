"""The tab "Search and classify": two rows of results for a query, and the worst of four groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
from PIL import Image

from vldebias.report.phrases import person

from .answers import METHODS, RERANK, SEARCH_METHODS, Answer, Found
from .engine import MINIATURE, Engine
from .events import QUIET, dim, lines, undim, with_messages
from .faces import Face, row_of_faces
from .opening import saved_search

if TYPE_CHECKING:
    from .search import Group

QUERIES = (
    "A photo of a nurse.",
    "A photo of a doctor.",
    "A photo of an interpreter.",
    "A photo of a manager.",
)
METHOD = METHODS[0]  # of the saved example
HEADS = ("group", "pictures", "without", "with method")
SAVED = "A saved example. Change the query or a setting, and press Search."
BIRDS = """The model takes land behind a bird for a land bird. Each method is fitted to texts
alone."""


class SearchTab:
    """The components of the tab and their events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # The saved example is of the miniature, and would be wrong beside another model.
        is_packaged = engine.model_name == MINIATURE and engine.embeddings is None
        opening = saved_search() if is_packaged else None
        opening_lines = ""
        opening_rows = ["", ""]
        if opening is not None:
            answer = opening.answer
            before, after = _titles(METHOD)
            opening_lines = _lines(answer, SAVED)
            opening_rows = [
                _row(before, answer.before, opening.before),
                _row(after, answer.after, opening.after),
            ]
        gr.Markdown("## One query, two rows", elem_classes="note")
        with gr.Row(elem_classes="ask"):
            self.query = gr.Textbox(
                QUERIES[0], label="Query", elem_id="query", max_lines=3, scale=4, min_width=170
            )
            self.column = gr.Dropdown(
                ["gender", "age"],
                label="Groups",
                elem_id="groups",
                min_width=130,
                # The columns of a user's file are known when it is read,
                # after the page is laid out.
                allow_custom_value=True,
            )
            self.method = _method("method", SEARCH_METHODS)
            self.go = gr.Button("Search", variant="primary", elem_id="search-button", min_width=100)
        with gr.Column(elem_id="results"):
            self.verdict = gr.HTML(opening_lines, elem_id="search-verdict")
            self.rows = [
                gr.HTML(value, elem_id=f"search-{row_number}")
                for row_number, value in enumerate(opening_rows)
            ]
        with gr.Row(elem_classes="try"):
            self.examples = [gr.Button(text, size="sm", min_width=120) for text in QUERIES]
        with gr.Accordion("Settings", open=False):
            self.strength = gr.Slider(0, 1, 1, step=0.05, label="Strength")
        title = "## Land birds and water birds: the worst of four groups"
        gr.Markdown(f"{title}\n\n{BIRDS}", elem_classes="note")
        with gr.Row(elem_classes="ask"):
            self.birds_method = _method("birds-method", METHODS)
            self.check = gr.Button(
                "Classify", variant="primary", elem_id="classify-button", min_width=100
            )
        with gr.Column(elem_id="classified"):
            self.worst = gr.HTML(elem_id="classify-verdict")
            self.groups = gr.HTML(visible=False, elem_id="accuracy")
            self.mended = gr.HTML(visible=False, elem_id="mended")
        self._connect()

    def _connect(self) -> None:
        limits: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
        private = limits | {"api_visibility": "private"}
        form = [self.query, self.column, self.method, self.strength]
        outputs = [self.verdict, *self.rows]
        run = with_messages(self._search)
        works = [
            self.go.click(run, form, outputs, api_name="search", **limits),
            self.query.submit(run, form, outputs, **private),
        ]
        for button, text in zip(self.examples, QUERIES, strict=True):
            filled = button.click(lambda text=text: text, None, [self.query], **QUIET)
            works.append(filled.then(run, form, outputs, **private))
        for part in form:
            part.change(None, None, None, js=dim("results"), api_visibility="private")
        for work in works:
            work.then(None, None, None, js=undim("results"), api_visibility="private")
        birds = [self.birds_method]
        classified = self.check.click(
            with_messages(self._classify),
            birds,
            [self.worst, self.groups, self.mended],
            api_name="classify",
            **limits,
        )
        self.birds_method.change(None, None, None, js=dim("classified"), api_visibility="private")
        classified.then(None, None, None, js=undim("classified"), api_visibility="private")

    def _search(self, query: str, column: str, method: str, strength: float) -> Iterator[list[Any]]:
        # Imported here: torch takes seconds to load, and the page opens without it.
        from .search import search

        answer, gallery = search(self.engine, query, column, method, strength)
        rows = []
        for title, found in zip(_titles(method), (answer.before, answer.after), strict=True):
            pictures = [gallery.picture(self.engine, row) for row in found.rows]
            rows.append(_row(title, found, pictures))
        yield [_lines(answer), *rows]

    def _classify(self, method: str) -> Iterator[list[Any]]:
        from .search import classify

        groups, mended, gallery = classify(self.engine, method)
        before = min(group.before[0] for group in groups)
        after = min(group.after[0] for group in groups)
        count = sum(group.n for group in groups)
        text = f"Worst group: {before:.0%} → {after:.0%} right, of {count:,} pictures in all."
        pictures = [gallery.picture(self.engine, row) for row in mended]
        faces = [
            Face(picture, f"bird {i}", str(gallery.labels["label"][row]))
            for i, (row, picture) in enumerate(zip(mended, pictures, strict=True), start=1)
            if picture is not None
        ]
        shown = row_of_faces("Put right by the method", faces, len(faces), pixels=True)
        yield [
            lines([(text, "line")]),
            gr.update(value=_table(groups), visible=True),
            gr.update(value=shown, visible=bool(faces)),
        ]


def _method(name: str, methods: Sequence[str]) -> gr.Dropdown:
    return gr.Dropdown(list(methods), label="Method", elem_id=name, min_width=110)


def _titles(method: str) -> tuple[str, str]:
    """Return the headings of both rows."""
    if method == RERANK:
        return "As the search found them", "Re-ranked by what the model takes them for"
    return "Without the method", f"With the method “{method}”"


def _table(groups: Sequence[Group]) -> str:
    """Return the accuracy of each group as a table."""
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    rows = []
    for group in groups:
        values = (str(group.n), _interval(group.before), _interval(group.after))
        cells = "".join(f"<td>{value}</td>" for value in values)
        rows.append(f'<tr><th scope="row">{escape(group.name)}</th>{cells}</tr>')
    caption = "<caption>Share classified rightly, with 95 % intervals</caption>"
    return f"<table>{caption}<tr>{heads}</tr>{''.join(rows)}</table>"


def _interval(value: tuple[float, float, float]) -> str:
    share, low, high = value
    # A no-break space: a narrow window breaks the line before the interval.
    return f"{share:.0%} [{low:.0%},\N{NO-BREAK SPACE}{high:.0%}]"


def _row(title: str, found: Found, pictures: Sequence[Image.Image | None]) -> str:
    """Return a row of results; each says what it is counted as."""
    faces = []
    for place, (group, picture) in enumerate(zip(found.groups, pictures, strict=True), start=1):
        if picture is not None:
            name = person(group)
            faces.append(Face(picture, f"result {place}: {name}", name))
    return row_of_faces(title, faces, len(faces), pixels=True) if faces else ""


def _lines(answer: Answer, *remarks: str) -> str:
    """Return what was found, in sentences."""
    texts = [(f"“{answer.query}”", "about"), (answer.sentence(), "line")]
    if answer.why:
        texts.append(
            (f"Both rows are the same: the default attaches nothing. {answer.why}", "line")
        )
    texts += [(text, "about") for text in (answer.counted(), *remarks)]
    return lines(texts)
