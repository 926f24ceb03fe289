"""What the labels say: shares, discrepancy and agreement with intervals, for whoever runs the study."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError
from vldebias.evaluation.human.annotations import read_annotations
from vldebias.evaluation.human.evaluator import EVERYTHING, evaluate_annotations
from vldebias.evaluation.human.votes import VOTES
from vldebias.evaluation.report.wording import change, metric_title, number, verdict
from vldebias.evaluation.result import Figure, Result, commit, versions

from .label_engine import Labelling

if TYPE_CHECKING:
    import gradio as gr

__all__ = ["build_results", "measure"]

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
            parts = evaluate_annotations(
                read_annotations(engine.log.path),
                engine.folder.everything,
                attribute=question.attribute,
                names=question.values,
                task=f"{question.attribute} by people",
                votes=votes,
                resamples=resamples,
            )
        except InvalidInputError as error:
            missing[question.attribute] = str(error)
            continue
        figures += [figure for part in parts for figure in part.figures]
        protocols += [part.protocol for part in parts]
    result = Result(
        name="labels of people",
        figures=figures,
        protocols=protocols,
        versions=versions(),
        commit=commit(),
        seconds=time.perf_counter() - began,
    )
    return result, missing


def build_results(engine: Labelling, *, votes: str = "majority", resamples: int = 2000) -> gr.Blocks:
    """The page of the results, read from the file anew whenever it is asked for."""
    import gradio as gr

    def show() -> str:
        try:
            return _page(engine, *measure(engine, votes=votes, resamples=resamples))
        except (InvalidInputError, OSError) as error:
            return f'<p role="alert">The answers cannot be read: {escape(str(error))}</p>'

    with gr.Blocks(title="Labels of people", analytics_enabled=False) as demo:
        page = gr.HTML(elem_id="results", apply_default_css=False)
        again = gr.Button("Read the answers again", elem_id="again")
        demo.load(show, None, page, api_visibility="private")
        again.click(show, None, page, api_name="results")
    return demo


def _page(engine: Labelling, result: Result, missing: dict[str, str]) -> str:
    intro = (
        "<h1>Labels of people</h1><p>For whoever runs the study: annotators who read this before they have finished "
        "are no longer blind. Values with 95 % intervals.</p>"
    )
    found = [_attribute(result, q.attribute, missing.get(q.attribute)) for q in engine.questions]
    return intro + _progress(engine) + "".join(found)


def _progress(engine: Labelling) -> str:
    images, done = len(engine.folder.records), engine.progress()
    rows = [(name, f"{n} of {images}") for name, n in done.items()] or [("nobody yet", "")]
    return _table("Annotators", ("name", "images done"), rows)


def _attribute(result: Result, attribute: str, missing: str | None) -> str:
    heading = f"<h2>{escape(attribute.capitalize())}</h2>"
    if missing is not None:
        return f'{heading}<p class="quiet">Nothing to show yet: {escape(missing)}</p>'
    figures = [figure for figure in result.figures if figure.task == f"{attribute} by people"]
    whole = [figure for figure in figures if not figure.subset]
    compared = [figure for figure in whole if figure.metric in ("discrepancy", *UNKNOWN)]
    agreed = [figure for figure in whole if figure.metric in AGREEMENT]
    return heading + _measured(compared) + _shares([f for f in figures if f.metric == "share"]) + _agreement(agreed)


def _measured(figures: list[Figure]) -> str:
    rows = [
        (_title(f.metric), f.method, number(f), f'<span class="{verdict(f)}">{change(f)} {verdict(f)}</span>')
        for f in figures
    ]
    return _table("Discrepancy and unknown images", ("measure", "variant", "value", "change to none"), rows)


def _shares(figures: list[Figure]) -> str:
    rows = [(f.subset, f.method, _bar(f), number(f)) for f in figures]
    return _table("Share of all labelled images", ("value", "variant", "", "share"), rows)


def _bar(figure: Figure) -> str:
    """The share as a bar, its interval as a line over it; the number stands beside it."""
    low, high = (min(max(end, 0.0), 1.0) for end in figure.interval)
    return (
        f'<div class="track" aria-hidden="true"><i style="width:{100 * figure.value:.1f}%"></i>'
        f'<u style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></u></div>'
    )


def _agreement(figures: list[Figure]) -> str:
    if not figures:
        return '<p class="quiet">Agreement is measured once two annotators have labelled the same images.</p>'
    rows = [
        (_title(f.metric), f.method, number(f), f"{f.n['images with two answers']} images, {f.n['annotators']} people")
        for f in sorted(figures, key=lambda f: (AGREEMENT.index(f.metric), f.method != EVERYTHING))
    ]
    return _table("Agreement of annotators", ("measure", "images", "value", "from"), rows)


def _title(metric: str) -> str:
    return metric if metric in ("discrepancy", "unknown") else metric_title(metric)


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose rows with the same first cell are one group, named once. The last two cells may hold markup."""
    head = "".join(f'<th scope="col">{escape(c)}</th>' if c else "<td></td>" for c in columns)
    body = "".join(_group(name, list(found)) for name, found in groupby(rows, key=lambda row: row[0]))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>{body}</table></div>"
    )


def _group(name: str, rows: Sequence[Sequence[str]]) -> str:
    cells = ["".join(f"<td>{cell}</td>" for cell in (escape(row[1]), *row[2:])) for row in rows]
    cells[0] = f'<th scope="rowgroup" rowspan="{len(rows)}">{escape(name)}</th>{cells[0]}'
    return f"<tbody>{''.join(f'<tr>{cell}</tr>' for cell in cells)}</tbody>"
