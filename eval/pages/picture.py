"""Draw gains next to costs as an SVG that is readable on light and dark pages, and on phones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 480
EDGE = 14  # space around the picture
GAP = 28  # space between the two columns
COLUMN = (WIDTH - 2 * EDGE - GAP) / 2  # width of an axis from 0 to 1
TOP = 34  # height of the line with the names of the columns
ROW = 66  # height of a row

STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2933 }
  .head { font-weight: 600 }
  .small { font-size: 11px }
  .page { fill: #ffffff }
  .axis { stroke: #c3c9d1 }
  .interval { stroke: #0b7a75; stroke-width: 7; stroke-opacity: 0.3 }
  .move { stroke: #0b7a75; stroke-width: 1.5 }
  .before { fill: #ffffff; stroke: #5f6b7a; stroke-width: 1.5 }
  .after { fill: #0b7a75 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .page { fill: #0d1117 }
    .axis { stroke: #444c56 }
    .interval, .move { stroke: #4fd1c5 }
    .before { fill: #0d1117; stroke: #a0aab5 }
    .after { fill: #4fd1c5 }
  }
"""


@dataclass(frozen=True)
class Bar:
    """A value between 0 and 1 before and after, with the interval of the value after."""

    name: str
    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """The gain and the cost of one method on one task."""

    title: str
    bias: Bar
    utility: Bar


def draw(rows: Sequence[Row]) -> str:
    """Return the SVG of some rows: bias on the left, and what it costs on the right."""
    height = TOP + ROW * len(rows) + 20
    columns = (EDGE, EDGE + COLUMN + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Bias and utility of each method, before and after</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
    ]
    for left, name in zip(columns, ("bias (best: 0)", "utility (best: 1)"), strict=True):
        parts.append(f'<text class="head" x="{left:.0f}" y="22">{name}</text>')
    for number, row in enumerate(rows):
        top = TOP + ROW * number
        parts.append(f'<text class="head" x="{EDGE}" y="{top + 16}">{escape(row.title)}</text>')
        for left, bar in zip(columns, (row.bias, row.utility), strict=True):
            parts += _draw_bar(bar, left, top + 33)
    legend = "hollow: before; filled: after; band: 95% interval, where there is one"
    parts.append(f'<text class="small" x="{EDGE}" y="{height - 8}">{legend}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _draw_bar(bar: Bar, left: float, top: float) -> list[str]:
    """Return a line of text, and below it the value before (hollow) and after (filled)."""
    text = f"{bar.name} {bar.before:.2f} to {bar.after:.2f}"
    axis = top + 14
    before, after, low, high = (
        f"{left + COLUMN * value:.1f}" for value in (bar.before, bar.after, bar.low, bar.high)
    )
    line = '<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>'
    circle = '<circle class="{}" cx="{}" cy="{}" r="4.5"/>'
    return [
        f'<text class="small" x="{left:.0f}" y="{top}">{escape(text)}</text>',
        line.format("axis", f"{left:.1f}", f"{left + COLUMN:.1f}", axis, axis),
        line.format("interval", low, high, axis, axis),
        line.format("move", before, after, axis, axis),
        circle.format("before", before, axis),
        circle.format("after", after, axis),
    ]
