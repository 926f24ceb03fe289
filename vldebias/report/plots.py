"""Draw the plots of results: values with intervals, bias against cost, and each group's accuracy.

Method and group names may contain arbitrary text, which `for_matplotlib` and jinja2 escape.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING, cast

import numpy as np

from vldebias.errors import InvalidInputError, need
from vldebias.measure.metric import get_metric
from vldebias.measure.rows import CHANCES, NONE, TaskProvenance
from vldebias.report.conclusion import Conclusion, shared_cost
from vldebias.report.table import NAMES, ReadableRow, form_of, setting_of
from vldebias.utils.phrases import listed_words
from vldebias.utils.pictures import INK, for_matplotlib, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Plot
    from numpy.typing import NDArray

GRID = "#e4e7eb"  # grid lines
LABELLED = "#c9ccd1"  # methods that use labels
PLAIN = "#8a94a0"  # the model without a method
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")  # methods without a specific colour
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # for methods in plots of bias against cost
LABEL = 24  # maximum line length for method names
LEGEND = 38  # maximum line length in the legends below plots of bias against cost


def dots(rows: pd.DataFrame, provenance: Sequence[TaskProvenance] = ()) -> Plot:
    """Draw one panel per measure, with the value and interval of each method and of chance.

    A measure has the same axis limits in all tasks: its bounds if it has any, otherwise 0 and the
    largest value.

    Args:
        rows: the rows to draw, from `readable`.
        provenance: the provenance of the tasks, which may define colours for methods.

    Raises:
        InvalidInputError: If there are no rows.
    """
    panels = _panels(rows)
    if not panels:
        raise InvalidInputError("cannot draw a plot because the result has no rows")
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    high = max(panel.name.nunique() for panel in panels)
    plot, axes = subplots(down, across, (1.4 + 3.1 * across, (0.8 + 0.24 * high) * down))
    colors = _colors(rows, provenance)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, rows, colors)
        # Show which direction is better below the task and measure.
        first = panel.iloc[0]
        title = fill(for_matplotlib(f"{first.task}: {first.measure}"), 44)
        title = f"{title}\n{first.hint.strip(' ()')}".rstrip()
        axis.set_title(title, fontsize=8.5, color=INK)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot


def dot_plots(rows: pd.DataFrame, provenance: Sequence[TaskProvenance]) -> list[dict[str, object]]:
    """Draw a plot for each measure as SVG, using the page's font.

    The task, the measure and the better direction are shown as text on the page instead.

    Args:
        rows: the rows of the page's first table, from `front_rows`.
        provenance: the provenance of the tasks, which may define colours for methods.
    """
    colors = _colors(rows, provenance)
    drawn = []
    with need("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "vldebias"}):
        for panel in _panels(rows):
            names = panel[~panel.method.isin(CHANCES)].name.unique()
            lines = max(_label(name).count("\n") + 1 for name in names)
            plot, (axis,) = subplots(1, 1, (3.6, 0.4 + (0.12 + 0.14 * lines) * len(names)))
            _draw_panel(axis, panel, rows, colors)
            axis.tick_params(labelsize=9)
            plot.tight_layout(pad=0.8)
            first = panel.iloc[0]
            names_of_plot = {"task": first.task, "measure": first.measure}
            drawn.append({**names_of_plot, "note": first.hint.strip(" ()"), "svg": _svg(plot)})
    return drawn


def _panels(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split rows by task and measure, in order of appearance."""
    groups = rows.groupby(["task", "title", "subset"], sort=False)
    return [panel for _, panel in groups]


def _draw_panel(
    axis: Axes, panel: pd.DataFrame, rows: pd.DataFrame, colors: Mapping[str, str]
) -> None:
    """Draw a measure's values and intervals, one method per line.

    Args:
        axis: the axes to draw on.
        panel: the measure's rows.
        rows: the rows of all panels, which determine the axis limits.
        colors: a colour for each method.
    """
    points = panel[~panel.method.isin(CHANCES)].drop_duplicates("name")
    for row in panel[panel.method.isin(CHANCES)].itertuples():
        axis.axvspan(row.low, row.high, color=GRID, zorder=0)
    for row in points[points.method == NONE].itertuples():
        axis.axvline(row.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    for place, row in enumerate(points.itertuples()):
        axis.errorbar(
            [row.value],
            [place],
            xerr=_ends(row.value, row.low, row.high),
            fmt="o",
            markersize=4.5,
            color=LABELLED if row.uses_labels else colors[row.method],
            capsize=2,
        )
    axis.set_yticks(range(len(points)), list(map(_label, points.name)))
    # Show the first method at the top, as in the tables.
    axis.set_ylim(len(points) - 0.5, -0.5)
    # Without bounds, the axis includes 0 and all values of the measure.
    metric = panel.metric.iloc[0]
    rows_of_metric = rows[rows.metric == metric]
    low, high = get_metric(metric, strict=False).bounds
    low = low if np.isfinite(low) else min(0.0, rows_of_metric.low.min())
    high = high if np.isfinite(high) else max(0.0, rows_of_metric.high.max())
    margin = 0.02 * ((high - low) or 1)
    axis.set_xlim(low - margin, high + margin)
    axis.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)


def tradeoffs(
    front: pd.DataFrame, frame: pd.DataFrame, provenance: Sequence[TaskProvenance]
) -> list[dict[str, object]]:
    """Draw each measure's change against the change of the utility that fell the most.

    Args:
        front: the rows of the page's first table, from `front_rows`.
        frame: all rows of the result.
        provenance: the provenance of the tasks, which may define colours for methods.

    Returns:
        For each measure, the names of the task, the measure and the utility, the plot as SVG and
        its content in words.
    """
    colors = _colors(front, provenance)
    drawn = []
    with need("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "vldebias"}):
        for (task, measure), rows in front.groupby(["task", "measure"], sort=False):
            methods = rows[~rows.method.isin([NONE, *CHANCES])]
            block = cast("list[ReadableRow]", list(frame[frame.task == task].itertuples()))
            pairs = shared_cost(block, cast("list[ReadableRow]", list(methods.itertuples())))
            if not pairs:
                continue
            names = [fill(for_matplotlib(bias.name), LEGEND) for bias, _ in pairs]
            lines = 1 + sum(name.count("\n") + 1 for name in names)
            high = 2.85 + 0.0625 * len(names) + 0.15 * lines
            plot, (axis,) = subplots(1, 1, (3.6, high))
            # The axes keep their size, however long the legend below them is.
            axis.set_position((0.22, 1 - 2.15 / high, 0.75, 2.05 / high))
            words = []
            for (bias, cost), name, marker in zip(pairs, names, cycle(MARKERS), strict=False):
                _draw_point(axis, bias, cost, name, colors[bias.method], marker)
                words.append(f"{bias.name}: {bias.moved}, {cost.title} {cost.moved}")
            reference = next((row.name for row in block if row.method == NONE), NAMES[NONE])
            _finish_tradeoff(axis, *pairs[0], reference)
            plot.legend(
                fontsize=9,
                labelcolor=INK,
                handletextpad=0.3,
                loc="upper left",
                bbox_to_anchor=(0, 1 - 2.65 / high),
                frameon=False,
            )
            facts = {"task": task, "measure": measure, "cost": cost.title, "reference": reference}
            drawn.append({**facts, "words": "; ".join(words), "svg": _svg(plot)})
    return drawn


def _draw_point(
    axis: Axes, bias: ReadableRow, cost: ReadableRow, name: str, color: str, marker: str
) -> None:
    """Draw a method's change of bias against its change of utility, with both intervals."""
    axis.errorbar(
        [cost.change],
        [bias.change],
        xerr=_ends(cost.change, cost.change_low, cost.change_high),
        yerr=_ends(bias.change, bias.change_low, bias.change_high),
        fmt=marker,
        markersize=5,
        capsize=2,
        color=LABELLED if bias.uses_labels else color,
        label=name,
    )


def _finish_tradeoff(axis: Axes, bias: ReadableRow, cost: ReadableRow, reference: str) -> None:
    """Draw the named reference at (0, 0), and set the titles of the axes."""
    for draw_line in (axis.axhline, axis.axvline):
        draw_line(0, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    if cost.better == "lower":
        axis.invert_xaxis()  # a larger loss is further left for every utility
    arrow = "\N{RIGHTWARDS ARROW}" if bias.better == "higher" else "\N{LEFTWARDS ARROW}"
    axis.plot([0], [0], "o", color=PLAIN, markersize=5, zorder=1, label=for_matplotlib(reference))
    axis.set_ylabel(_label(f"{arrow} change of {bias.title}"), fontsize=9, color=INK)
    axis.set_xlabel(for_matplotlib(f"change of {cost.title}"), fontsize=9, color=INK)
    axis.locator_params(axis="x", nbins=4)
    axis.grid(color=GRID, linewidth=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.margins(0.12)
    axis.tick_params(labelsize=9, colors=INK, length=0)
    axis.spines[:].set_visible(False)


def group_plots(frame: pd.DataFrame, concluded: Sequence[Conclusion]) -> list[dict[str, object]]:
    """Return the accuracy of each group before and after, for conclusions about the worst group.

    The group with the lowest accuracy without a method comes first.

    Args:
        frame: all rows of the result.
        concluded: the conclusions that were drawn from these rows.
    """
    plots: list[dict[str, object]] = []
    for conclusion in concluded:
        block = frame[frame.task == conclusion.task]
        is_concluded = (block.metric == conclusion.metric) & (block["name"] == conclusion.method)
        settings = block.apply(setting_of, axis=1)
        is_same = settings == settings[is_concluded.idxmax()]
        rows = block[is_same & (block.metric == "accuracy") & ~block.is_summary]
        if conclusion.metric != "worst_group" or rows.empty:
            continue
        worst = {"before": rows.before.idxmin(), "after": rows.value.idxmin()}
        groups = []
        for row in rows.sort_values("before", kind="stable").itertuples():
            times = [time for time, index in worst.items() if row.Index == index]
            groups.append(
                {
                    "name": f"{row.subset} (n = {row.n})",
                    "before": f"{row.before:{form_of(row.value, row.low, row.high)}}",
                    "after": row.number,
                    "ends": (round(100 * row.before, 1), round(100 * row.value, 1)),
                    "worst": f"worst {listed_words(times)}" if times else "",
                }
            )
        plots.append({"task": conclusion.task, "method": conclusion.method, "groups": groups})
    return plots


def _colors(rows: pd.DataFrame, provenance: Sequence[TaskProvenance]) -> dict[str, str]:
    """Return a colour for each method.

    The colour in a method's provenance has priority. Other methods get the next colour from
    `OTHERS`, and "none" is grey.
    """
    color_of_method: dict[str, str] = {}
    for task in provenance:
        color_of_method |= {
            method: facts["color"] for method, facts in task.methods.items() if facts.get("color")
        }
    colors: dict[str, str] = {}
    for method in rows.method.unique():
        colors[method] = color_of_method.get(method) or OTHERS[len(colors) % len(OTHERS)]
    return colors | {NONE: PLAIN}


def _ends(value: float, low: float, high: float) -> NDArray[np.float64]:
    """Return the lengths of an error bar, without the negative ones that rounding can cause."""
    return np.maximum([[value - low], [high - value]], 0)


def _label(name: str) -> str:
    """Wrap a method's name to fit into the margin of a plot."""
    return fill(for_matplotlib(name), LABEL, break_long_words=False)


def _svg(plot: Plot) -> bytes:
    """Return a plot as SVG for a page, without metadata or namespaces."""
    content = io.BytesIO()
    no_dates = {"Date": None, "Creator": None}
    plot.savefig(content, format="svg", transparent=True, metadata=no_dates)
    unneeded = rb"<metadata>.*?</metadata>|\sxmlns[:\w]*=\"[^\"]*\""
    svg = re.sub(unneeded, b"", content.getvalue(), flags=re.DOTALL)
    return svg[svg.find(b"<svg") :]
