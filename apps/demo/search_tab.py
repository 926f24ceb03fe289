"""Build the "Search and classify" tab, with three rows of results and four groups' accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
from PIL import Image

from vldebias.miniature.photographs import GALLERY, read_table, read_thumbnail
from vldebias.utils.phrases import person

from .answers import METHODS, ROWS, SEARCH_METHODS, Answer, Found
from .engine import MINIATURE, PHOTOGRAPHS, Engine
from .events import QUIET, dim, lines, undim, with_messages
from .faces import Face, row_of_faces, thumbnails
from .opening import saved_search

if TYPE_CHECKING:
    from .search import Gallery, Group

QUERIES = {
    PHOTOGRAPHS: (
        "A photo of a welder.",
        "A photo of a cook.",
        "A photo of a riveter.",
        "A photo of a farmer.",
    ),
    MINIATURE: (
        "A photo of a nurse.",
        "A photo of a doctor.",
        "A photo of an interpreter.",
        "A photo of a manager.",
    ),
}
"""Maps a gallery to queries to try. Users' own models have the miniature's queries."""
KIND_OF_GALLERY = {PHOTOGRAPHS: "photographs", MINIATURE: "cartoons"}
HEADS = ("group", "images", "without", "with method")
BIRDS_SHOWN = 8
SAVED = "This is a saved example. Change the query or a setting, and press Search."
TITLES = (
    "As found",
    "Edited: the method “{}” changes the query",
    "Re-ranked (recommended: edits make more searches worse): to the gallery's predicted shares",
)
WORSE = "{}: this query got worse, because its top results are less even than as found."
NO_GAIN = "{}: no gain for this query, because the model predicts some of the groups wrongly."
BIRDS = """The model mistakes water birds in front of land for land birds. Each method is fitted to
text alone."""


class SearchTab:
    """Build the tab's components and their events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        first = engine.galleries[0]
        queries = QUERIES.get(first, QUERIES[MINIATURE])
        method = SEARCH_METHODS[0]
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
            first_row = [read_thumbnail(shown[row]["file"]) for row in answer.before.rows]
            for i, found in enumerate(answer.rows):
                images = [read_thumbnail(shown[row]["file"]) for row in found.rows]
                title = TITLES[i].format(method)
                opening_rows[i] = _row(title, answer, found, images, titles, first_row)
        gr.Markdown("## As found, edited, re-ranked", elem_classes="note")
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
            self.method = _method("method", SEARCH_METHODS)
            self.go = gr.Button("Search", variant="primary", elem_id="search-button", min_width=100)
        with gr.Column(elem_id="results"):
            self.verdict = gr.HTML(opening_lines, elem_id="search-verdict")
            self.rows = [
                gr.HTML(value, elem_id=f"search-{row_number}")
                for row_number, value in enumerate(opening_rows)
            ]
            self.source = gr.HTML(opening_source, elem_id="search-source")
        with gr.Row(elem_classes="try"):
            self.examples = [gr.Button(text, size="sm", min_width=120) for text in queries]
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
            self.put_right = gr.HTML(visible=False, elem_id="put-right", elem_classes="birds")
            self.put_wrong = gr.HTML(visible=False, elem_id="put-wrong", elem_classes="birds")
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
        form = [self.query, self.column, self.method, self.strength, self.gallery]
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
        birds = [self.birds_method]
        classified = self.check.click(
            with_messages(self._classify),
            birds,
            [self.worst, self.groups, self.put_right, self.put_wrong],
            api_name="classify",
            **limits,
        )
        self.birds_method.change(None, None, None, js=dim("classified"), api_visibility="private")
        classified.then(None, None, None, js=undim("classified"), api_visibility="private")

    def _search(
        self, query: str, column: str, method: str, strength: float, gallery_name: str
    ) -> Iterator[list[Any]]:
        # Imported here, because torch takes seconds to load and the page opens without it.
        from .search import search

        answer, gallery = search(self.engine, query, column, method, strength, gallery_name)
        rows = []
        first_row = [gallery.image(self.engine, row) for row in answer.before.rows]
        for title, found in zip(TITLES, answer.rows, strict=True):
            images = [gallery.image(self.engine, row) for row in found.rows]
            title = title.format(method)
            rows.append(_row(title, answer, found, images, gallery.titles, first_row))
        yield [_lines(answer), *rows, _source(answer)]

    def _classify(self, method: str) -> Iterator[list[Any]]:
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


def _method(name: str, methods: Sequence[str]) -> gr.Dropdown:
    return gr.Dropdown(list(methods), value=methods[0], label="Method", elem_id=name, min_width=110)


def _settings_of(gallery_name: str) -> list[Any]:
    """Return the query, groups and examples for the selected gallery."""
    queries = QUERIES.get(gallery_name, QUERIES[MINIATURE])
    columns = ["gender"] if gallery_name == PHOTOGRAPHS else ["gender", "age"]
    return [
        queries[0],
        gr.update(choices=columns, value=columns[0]),
        *queries,
    ]


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


def _row(
    title: str,
    answer: Answer,
    found: Found,
    images: Sequence[Image.Image | None],
    titles: Sequence[str] = (),
    first_row: Sequence[Image.Image | None] = (),
) -> str:
    """Return a row of results, each with its rank, its group and, if available, its title.

    Below the rows of a method, a line lists the images of the first row that are missing, with
    thumbnails. `titles` contains the titles of all images in the gallery, or is empty. `first_row`
    contains the images as found.
    """
    faces = []
    results = zip(found.rows, found.groups, images, strict=True)
    for place, (row, group, image) in enumerate(results, start=1):
        if image is not None:
            name = person(group)
            text = titles[row] if titles else ""
            caption = f"{place}. {name}{answer.movement(found, row)}"
            faces.append(Face(image, f"result {place}: {name}", caption, text))
    if not faces:
        return ""
    left = answer.left_in_words(found)
    below = f'<p class="about">{escape(left)}</p>' if left else ""
    image_of_row = dict(zip(answer.before.rows, first_row, strict=False))
    gone = []
    for row, caption in answer.left(found).items():
        image = image_of_row.get(row)
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
    for name, *values in [("results", top, "MaxSkew", "kept"), *answer.summary()]:
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        rows += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    sentences = [(answer.reason(), "line")] if answer.reason() else []
    for name, found in zip(ROWS[1:], answer.rows[1:], strict=True):
        if answer.gain(found) < 0:
            sentences.append((WORSE.format(name), "warning"))
    if round(answer.before.skew, 2) and not answer.gain(answer.reranked) and not answer.reason():
        sentences.append((NO_GAIN.format(ROWS[2]), "line"))
    caption = f"<caption>“{escape(answer.query)}”</caption>"
    return f"<table>{caption}{rows}</table>{lines(sentences)}"
