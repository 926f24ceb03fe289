"""What the labels say: shares, discrepancy and agreement with intervals, for whoever runs the study."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import gradio as gr

from vldebias.errors import InvalidInputError
from vldebias.evaluation.annotations import EVERYTHING, VOTES, AnnotationsTask, kept_judgements
from vldebias.evaluation.answers import read_annotations
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.plan import PLAN
from vldebias.evaluation.report.words import change, metric_title, number, verdict
from vldebias.evaluation.result import Measurement, Result
from vldebias.files import commit, versions

from ..serving import serve
from .engine import Labelling
from .page import HTML, STYLE, say_address
from .sample import more_answers
from .study import Question

UNKNOWN = ("unknown", "cannot_tell", "no_person", "no_majority")
AGREEMENT = ("alpha", "percent_agreement")


def measure(engine: Labelling, *, votes: str = "majority", resamples: int = 2000) -> tuple[Result, dict[str, str]]:
    """Figures of every attribute as `vldebias eval human` gives them, and why where there are none (yet).

    Raises:
        InvalidInputError: another way to vote.
    """
    if votes not in VOTES:
        raise InvalidInputError(f"--votes: expected one of {', '.join(VOTES)}, got {votes!r}")
    began = time.perf_counter()
    figures, protocols, missing = [], [], {}
    for question in engine.questions:
        try:
            fields = {"attribute": question.attribute, "names": question.values, "votes": votes, "resamples": resamples}
            named = {"name": f"{question.attribute} by people", "title": "Labels of people"}
            task = AnnotationsTask.build(named | fields)
            beside = _judged(engine, question)
            parts = task.measure(engine.folder.everything, read_annotations(engine.log.path), **beside)
        except InvalidInputError as error:
            missing[question.attribute] = str(error)
            continue
        if not parts:
            missing[question.attribute] = f"nobody has labelled {question.attribute} yet"
        figures += [figure for part in parts for figure in part.rows]
        protocols += [part.provenance for part in parts]
    result = Result(
        name="labels of people",
        rows=figures,
        provenance=protocols,
        versions=versions(),
        commit=commit(),
        seconds=time.perf_counter() - began,
    )
    return result, missing


def _judged(engine: Labelling, question: Question) -> dict[str, Any]:
    """What a judge says of the same images, where one answered: its figures are then corrected."""
    root = engine.folder.root
    return kept_judgements(DrawnSet.open(root), question.attribute, question.values) if (root / PLAN).is_file() else {}


def build_results(engine: Labelling, *, votes: str = "majority", resamples: int = 2000) -> gr.Blocks:
    """The page of the results, read from the file anew whenever it is asked for."""

    def show() -> str:
        try:
            return results_html(engine, *measure(engine, votes=votes, resamples=resamples))
        except (InvalidInputError, OSError) as error:
            return str(HTML.unreadable(error))

    with gr.Blocks(title="Labels of people", analytics_enabled=False) as demo:
        page = gr.HTML(elem_id="results", apply_default_css=False)
        again = gr.Button("Read the answers again", elem_id="again")
        demo.load(show, None, page, api_visibility="private")
        again.click(show, None, page, api_name="results")
    return demo


def serve_results(engine: Labelling, *, votes: str, resamples: int, **where: Any) -> None:
    """Serve the page of the results until it is told to end; `where`: port, public, auth as of `serve`."""
    page = build_results(engine, votes=votes, resamples=resamples)
    serve(page, css=STYLE.read_text(encoding="utf-8"), say=say_address, **where)


def results_html(engine: Labelling, result: Result, missing: dict[str, str]) -> str:
    """What the page shows of `measure`."""
    images, done = len(engine.folder.records), engine.progress()
    rows = [(name, HTML.bar(n / images, 0, 0), f"{n} of {images}") for name, n in done.items()]
    parts = []
    for question in engine.questions:
        figures = [one for one in result.rows if one.task == f"{question.attribute} by people"]
        mended = [one for one in result.rows if one.task == f"{question.attribute} by people corrected"]
        whole = [one for one in figures if not one.subset]
        agreed = [one for one in whole if one.metric in AGREEMENT]
        tables = [
            _measured([one for one in whole if one.metric in ("discrepancy", *UNKNOWN)]),
            _shares([one for one in figures if one.metric == "share"]),
            *([_corrected(mended)] if mended else []),
            *([_agreement(agreed)] if agreed else []),
        ]
        attribute = question.attribute
        parts.append({"attribute": attribute, "missing": missing.get(attribute), "tables": tables, "agreed": agreed})
    more = more_answers(engine)
    return str(
        HTML.results(more, _table("Annotators", ("name", "", "images done"), rows or [("nobody yet", "", "")]), parts)
    )


def _measured(figures: list[Measurement]) -> str:
    rows = [(_title(f.metric), f.method, number(f), HTML.change(change(f), verdict(f))) for f in figures]
    return _table("Discrepancy and unknown images", ("measure", "variant", "value", "change to none"), rows)


def _shares(figures: list[Measurement]) -> str:
    """The share as a bar, its interval as a line over it; the number stands beside it."""
    ends = [[min(max(end, 0.0), 1.0) for end in f.interval] for f in figures]
    rows = [(f.subset, f.method, HTML.bar(f.value, *ends[i]), number(f)) for i, f in enumerate(figures)]
    return _table("Share of all labelled images", ("value", "variant", "", "share"), rows)


def _corrected(figures: list[Measurement]) -> str:
    """Shares by the judge beside those that people correct."""
    shown = [f for f in figures if f.metric in ("share", "corrected_share", "judge_moves_share")]
    rows = [(f.subset, f.method, _title(f.metric), number(f)) for f in shown]
    return _table("Shares of all images, by the judge and corrected by people", ("value", "variant", "", "share"), rows)


def _agreement(figures: list[Measurement]) -> str:
    rows = [
        (_title(f.metric), f.method, number(f), f"{f.n['images with two answers']} images, {f.n['annotators']} people")
        for f in sorted(figures, key=lambda f: (AGREEMENT.index(f.metric), f.method != EVERYTHING))
    ]
    return _table("Agreement of annotators", ("measure", "images", "value", "from"), rows)


def _title(metric: str) -> str:
    return metric if metric in ("discrepancy", "unknown") else metric_title(metric)


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose rows with the same first cell are one group, named once."""
    groups = [(name, [row[1:] for row in group]) for name, group in groupby(rows, key=lambda row: row[0])]
    return HTML.table(caption, columns, groups)
