"""Results as HTML: pictures side by side, bars with intervals, tables; every text of a visitor is escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np
from PIL import Image

from .compare_classify import Classification
from .compare_draw import AFTER, BEFORE, STRENGTHS, Comparison
from .compare_inspect import Inspection
from .compare_retrieve import Hit, Retrieval
from .compare_shares import UNKNOWN_NAME, Attribute

__all__ = [
    "classification",
    "comparison",
    "data_uri",
    "hits",
    "notes",
    "plots",
    "preview",
    "progress",
    "projection",
    "retrieval",
    "strengths",
    "text",
]

TITLES = {BEFORE: "As the model is", AFTER: "Mitigated"}
WIDEST, SMALL = 384, 64  # pixels: larger pictures are shown smaller, small ones are magnified without blur


def data_uri(picture: Image.Image) -> str:
    """A picture inside the page: nothing is served from a path. The originals are in the download."""
    shown, buffer = picture, io.BytesIO()
    if max(picture.size) > WIDEST:
        shown = picture.copy()
        shown.thumbnail((WIDEST, WIDEST))
    lossless = max(picture.size) <= SMALL
    shown.save(buffer, format="png" if lossless else "webp", **({} if lossless else {"quality": 85}))
    kind = "png" if lossless else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _image(picture: Image.Image, alt: str) -> str:
    pixels = ' class="pixels"' if max(picture.size) <= SMALL else ""
    return f'<img{pixels} src="{data_uri(picture)}" alt="{escape(alt)}">'


def text(said: str, kind: str = "note") -> str:
    """A paragraph; kind: note, gate, wait or done."""
    return f'<p class="vd-{kind}">{said}</p>'


def notes(said: Iterable[str]) -> str:
    """What a fit warned of."""
    return "".join(text(f"<strong>Note</strong> {escape(one)}") for one in said)


def gate(words: Sequence[str], what: str = "This prompt") -> str:
    """Says that a text was left alone."""
    if not words:
        return ""
    named = ", ".join(f"“{escape(word)}”" for word in words)
    return text(f"<strong>{what} states its attribute ({named}): left alone.</strong> Both sides are the same.", "gate")


def progress(share: float, said: str) -> str:
    """A bar and what it means."""
    bar = f'<progress max="1" value="{share:.3f}" aria-label="progress">{share:.0%}</progress>'
    return f'<div class="vd-progress">{bar}<span>{escape(said)}</span></div>'


def comparison(now: Comparison) -> str:
    """Both sides: their pictures with places for those to come, and under each what was read in them."""
    sides = "".join(_side(now, side) for side in (BEFORE, AFTER))
    lams = ", ".join(f"{lam:g}" for lam in now.lam)
    used = f"method {escape(now.method)}, λ {lams}, strength {now.mitigation.strength:g}"
    read = f"Read by {escape(now.judge)}; less than 80 % sure counts as “{UNKNOWN_NAME}”. " if now.judge else ""
    about = text(
        f"Picture by picture the same noise (seeds {now.drawing.seed} to {now.drawing.seed + now.drawing.number - 1}); "
        f"{used}. {read}Thin lines: 95 % intervals. Few pictures make the discrepancy look larger than it is."
    )
    return f'{gate(now.stated)}{_verdict(now)}<div class="vd-sides">{sides}</div>{notes(now.notes)}{about}'


def _verdict(now: Comparison) -> str:
    """The result in a sentence per attribute, once everything is drawn."""
    if not now.whole or now.stated:
        return ""
    said = ""
    for before, after in zip(now.measured[BEFORE], now.measured[AFTER], strict=True):
        if before.discrepancy is None or after.discrepancy is None:
            continue
        (was, low, high), (became, low_now, high_now) = before.discrepancy, after.discrepancy
        sure = (
            "the intervals are apart"
            if high_now < low or high < low_now
            else "the intervals overlap: draw more to tell"
        )
        name = escape(before.name)
        said += text(f"Discrepancy of {name}: <strong>{was:.2f} → {became:.2f}</strong>; {sure}.", "verdict")
    return said


def _side(now: Comparison, side: str) -> str:
    pictures = now.pictures[side]
    cells = [
        _image(picture, f"{TITLES[side]}, seed {now.drawing.seed + i}: {now.drawing.prompt}")
        for i, picture in enumerate(pictures)
    ]
    cells += ['<span class="vd-empty" aria-hidden="true"></span>'] * (now.drawing.number - len(pictures))
    bars = "".join(_bars(one) for one in now.measured.get(side, ()))
    return _section(side, f'<div class="vd-grid">{"".join(cells)}</div>{bars}')


def _section(side: str, content: str) -> str:
    return f'<section class="vd-side {side}"><h3>{TITLES[side]}</h3>{content}</section>'


def _table(caption: str, rows: str) -> str:
    return f'<table class="vd-bars"><caption>{caption}</caption><tbody>{rows}</tbody></table>'


def _bars(found: Attribute) -> str:
    """A table whose middle column is drawn: a bar, and its interval as a thin line."""
    rows = "".join(
        bar(one.value, one.share, one.low, one.high, f"{one.count} of {found.n}", one.value == UNKNOWN_NAME)
        for one in found.shares
    )
    told = "no picture can be told"
    if found.discrepancy is not None:
        value, low, high = found.discrepancy
        told = f"discrepancy <strong>{value:.2f}</strong> [{low:.2f}, {high:.2f}]; 0 is balanced"
    return _table(f"{escape(found.name)}: {told}", rows)


def bar(name: str, share: float, low: float, high: float, said: str, unknown: bool = False) -> str:
    """One row: name, bar with its interval, words. All of share, low and high are in [0, 1]."""
    line = f'<i style="left:{low:.1%};width:{max(high - low, 0):.1%}"></i>' if high > low else ""
    fill = f'<b style="width:{share:.1%}"></b>'
    interval = f" [{low:.0%}, {high:.0%}]" if high > low else ""
    kind = ' class="unknown"' if unknown else ""
    track = f'<span class="vd-track" aria-hidden="true">{fill}{line}</span>'
    words = f"{escape(said)}<small>{interval}</small>"
    return f'<tr{kind}><th scope="row">{escape(name)}</th><td>{track}</td><td>{words}</td></tr>'


def strengths(rows: Sequence[Sequence[Image.Image]], first_seed: int) -> str:
    """Rows of the same noise at growing strengths."""
    heads = "".join(f'<th scope="col">{value:g}</th>' for value in STRENGTHS)
    body = ""
    for i, row in enumerate(rows):
        seed = first_seed + i
        cells = [f"<td>{_image(p, f'seed {seed}, strength {s:g}')}</td>" for p, s in zip(row, STRENGTHS, strict=False)]
        cells += ['<td><span class="vd-empty" aria-hidden="true"></span></td>'] * (len(STRENGTHS) - len(row))
        body += f'<tr><th scope="row">seed {seed}</th>{"".join(cells)}</tr>'
    caption = "<caption>The same noise at growing strength; 0 is the model as it is.</caption>"
    return (
        f'<table class="vd-strip">{caption}<thead><tr><th scope="col">strength</th>{heads}</tr></thead>{body}</table>'
    )


def preview(picture: Image.Image, said: str) -> str:
    """The picture that will be classified."""
    return f'<figure class="vd-preview">{_image(picture, said)}<figcaption>{escape(said)}</figcaption></figure>'


def classification(found: Classification) -> str:
    """Scores of both sides as bars, and the cosines of Table 7.1."""
    sides = ""
    for side in (BEFORE, AFTER):
        best = int(found.scores[side].argmax())
        rows = "".join(
            bar(name, float(score), 0, 0, f"{score:.0%}{' ←' if i == best else ''}")
            for i, (name, score) in enumerate(zip(found.classes, found.scores[side], strict=True))
        )
        sides += _section(side, _table("probability of each class", rows))
    about = text(
        f"Softmax of the cosines times the logit scale of {escape(found.model)}. The scores of one picture are exact: "
        "there is nothing to draw an interval from."
    )
    gated = gate(found.stated, "A class prompt")
    return f'{gated}<div class="vd-sides">{sides}</div>{notes(found.notes)}{about}{_cosines(found)}'


def _cosines(found: Classification) -> str:
    """A row per class prompt and side, a column per spurious prompt, and how far they are apart."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in found.spurious)
    body = ""
    for i, name in enumerate(found.classes):
        for side in (BEFORE, AFTER):
            values = found.cosines[side][i].round(3) + 0.0  # after P0 they are 0, and none is to read "-0.000"
            cells = "".join(f"<td>{value:.3f}</td>" for value in values)
            apart = f"<td><strong>{np.ptp(values):.3f}</strong></td>"
            label = f'<th scope="row">{escape(name)}<small>{TITLES[side].lower()}</small></th>'
            body += f'<tr class="{side}">{label}{cells}{apart}</tr>'
    caption = "<caption>Cosine of each class prompt with each spurious prompt (Table 7.1); even rows are fair</caption>"
    head = f'<thead><tr><th scope="col">class prompt</th>{heads}<th scope="col">spread</th></tr></thead>'
    table = f'<table class="vd-table">{caption}{head}<tbody>{body}</tbody></table>'
    return f'<div class="vd-scroll" tabindex="0" role="region" aria-label="table of cosines">{table}</div>'


def hits(found: Sequence[Hit]) -> str:
    """The first pictures of one side, or cards with their names."""
    cells = []
    for place, hit in enumerate(found, start=1):
        said = f"{place}: {hit.group}, cosine {hit.score:.3f}"
        if hit.picture is None:
            shown = f'<span class="vd-card">{escape(hit.id)}</span>'
        else:
            shown = _image(hit.picture, said)
        cells.append(f'<figure title="{escape(said)}">{shown}<figcaption>{escape(hit.group)}</figcaption></figure>')
    return f'<div class="vd-grid hits">{"".join(cells)}</div>'


def retrieval(found: Retrieval, charts: Mapping[str, tuple[str, str]]) -> str:
    """Both sides: first pictures, shares at the largest k; then the curves over k."""
    k, sides = found.top, ""
    place = found.ks.index(k)
    for side in (BEFORE, AFTER):
        low, high = (float(ends[place]) for ends in found.skew_band[side])
        skew = f"MaxSkew@{k} <strong>{found.max_skew[side][place]:.3f}</strong> [{low:.3f}, {high:.3f}]; 0 is balanced"
        rows = "".join(bar(name, *values, f"{values[0]:.0%}") for name, values in found.top_shares[side].items())
        table = _table(f"{escape(found.column)} of the first {k}: {skew}", rows)
        sides += _section(side, hits(found.hits[side]) + table)
    unknown = f"; {found.unknown} more have no known {escape(found.column)} and are left out" if found.unknown else ""
    about = text(
        f"Ranked: {escape(found.gallery)}{unknown}. Uniform prior, ties in the order of the pictures; MaxSkew is "
        f"resampled over pictures. Cosine of the query with itself after the projection: {found.query_cosine:.2f}."
    )
    gated = gate(found.stated, "This query")
    return f'{gated}<div class="vd-sides">{sides}</div>{plots(charts)}{notes(found.notes)}{about}'


def projection(found: Inspection) -> str:
    """What was fitted, in a line."""
    one = found.projection
    lams = ", ".join(f"{lam:g}" for lam in (one.lam if isinstance(one.lam, tuple) else (one.lam,)))
    return text(
        f"Projection of <strong>{escape(found.role)}</strong> ({escape(str(one.space))}): {escape(one.method)}, "
        f"λ {lams}, strength {found.strength:g}; it changes {one.rank} of {one.dim} dimensions."
    )


def plots(charts: Mapping[str, tuple[str, str]]) -> str:
    """title -> (caption, SVG)."""
    figures = "".join(
        f'<figure class="vd-plot"><h3>{escape(title)}</h3>{svg}<figcaption>{escape(caption)}</figcaption></figure>'
        for title, (caption, svg) in charts.items()
    )
    return f'<div class="vd-plots">{figures}</div>'
