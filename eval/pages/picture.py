"""Draw gains next to costs as an SVG that is readable on light and dark pages, and on phones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

WIDTH = 480
EDGE = 14  # space around the picture
GAP = 28  # space between the two columns
COLUMN = (WIDTH - 2 * EDGE - GAP) / 2  # width of an axis from 0 to 1
COLUMNS = {EDGE: "bias (best: 0)", EDGE + COLUMN + GAP: "utility (best: 1)"}
TOP = 34  # height of the line with the names of the columns
ROW = 66  # height of a row
LEGEND = "hollow: before; filled: after; band: 95% interval, where there is one"

STYLE = """
  svg { --ink: #1f2933; --page: #ffffff; --axis: #c3c9d1; --ring: #5f6b7a; --mark: #0b7a75 }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6edf3; --page: #0d1117; --axis: #444c56; --ring: #a0aab5; --mark: #4fd1c5 }
  }
  text { font: 11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  text { fill: var(--ink) }
  .head { font-size: 12px; font-weight: 600 }
  .page { fill: var(--page) }
  .axis { stroke: var(--axis) }
  .interval { stroke: var(--mark); stroke-width: 7; stroke-opacity: 0.3 }
  .move { stroke: var(--mark); stroke-width: 1.5 }
  .before { fill: var(--page); stroke: var(--ring); stroke-width: 1.5 }
  .after { fill: var(--mark) }
"""


@dataclass(frozen=True)
class Bar:
    """A value between 0 and 1 before and after, with the interval of the value after."""

    name: str
    before: float
    after: float
    low: float
    high: float


def draw(rows: Mapping[str, tuple[Bar, Bar]]) -> str:
    """Return an SVG with a row for each title: bias on the left, and what it costs on the right."""
    height = TOP + ROW * len(rows) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Bias and utility of each method, before and after</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
    ]
    for left, name in COLUMNS.items():
        parts.append(f'<text class="head" x="{left:.0f}" y="22">{name}</text>')
    for number, (title, bars) in enumerate(rows.items()):
        top = TOP + ROW * number
        parts.append(f'<text class="head" x="{EDGE}" y="{top + 16}">{escape(title)}</text>')
        for left, bar in zip(COLUMNS, bars, strict=True):
            parts.append(_draw_bar(bar, left, top + 33))
    parts.append(f'<text x="{EDGE}" y="{height - 8}">{LEGEND}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _draw_bar(bar: Bar, left: float, top: float) -> str:
    """Return a line of text, and below it the value before (hollow) and after (filled)."""
    text = escape(f"{bar.name} {bar.before:.2f} to {bar.after:.2f}")
    before, after, low, high = (
        f"{COLUMN * value:.1f}" for value in (bar.before, bar.after, bar.low, bar.high)
    )
    return f"""\
<g transform="translate({left:.0f} {top})">
<text>{text}</text>
<path class="axis" d="M0 14H{COLUMN:.0f}"/>
<path class="interval" d="M{low} 14H{high}"/>
<path class="move" d="M{before} 14H{after}"/>
<circle class="before" cx="{before}" cy="14" r="4.5"/>
<circle class="after" cx="{after}" cy="14" r="4.5"/>
</g>"""
