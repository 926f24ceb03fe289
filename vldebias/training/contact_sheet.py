"""Pictures of positive scores: pairs from the lowest to the highest, and how far wrong pairs lie from right ones.

Source: Figures 5-5 and A-3a of the thesis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.training.glyphs import font, for_matplotlib, wrap
from vldebias.training.ranked import RankedPairs, detection

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["contact_sheet", "score_histogram"]

INK, GREY, LINE = "#1f2933", "#6b7785", "#d5dae0"
RIGHT, WRONG = "#1d4e89", "#c2572f"  # apart in lightness too, for those who do not see the hue
THUMB, GAP, MARGIN = 160, 18, 22
HEAD, SECTION, LINE_HEIGHT, CAPTION_LINES, LEAST_WIDTH = 44, 38, 16, 3, 460
LEGEND = "framed: caption of another pair"
_BINS = 40


@dataclass(frozen=True, eq=False)
class _Section:
    title: str
    rows: NDArray[np.int64]


def contact_sheet(ranked: RankedPairs, path: str | Path, *, columns: int = 6, lines: int = 1, title: str = "") -> Path:
    """A PNG of the pairs with the lowest, middle and highest positive scores, each with its caption.

    A pair whose caption is known to be another one's has a frame and a mark, and below its caption its own one.

    Args:
        ranked: from `rank_pairs`.
        columns, lines: of pairs in each of the three sections.
        title: what stands above; default: the name of the data and the number of pairs.

    Returns:
        `path`. What is shown stands in the PNG as JSON: data, pairs, wrong, and the ids and scores of each section.

    Raises:
        InvalidInputError: less than one column or line.
    """
    if columns < 1 or lines < 1:
        raise InvalidInputError(f"columns and lines: expected at least 1 of each, got {columns} and {lines}")
    sections = _sections(ranked, columns * lines)
    title = title or f"{ranked.pairs.name}: {len(ranked.order):,} pairs by positive score"
    image = _Sheet(ranked, columns).drawn(title, sections)
    return _save(image, Path(path), {"kind": "contact sheet", **_about(ranked, sections)})


def score_histogram(
    panels: Mapping[str, RankedPairs], path: str | Path, *, resamples: int = 1000, seed: int = 0
) -> Path:
    """A PNG with the densities of the scores of right and wrong pairs, one panel per model, AUROC in its title.

    Panels share their axes. Where nothing is known of the truth, one density of all scores is drawn.

    Args:
        panels: title -> scores, such as {"InfoNCE": ..., "RINCE": ...}.
        resamples, seed: of the interval of the AUROC.

    Raises:
        InvalidInputError: no panel.
    """
    from vldebias.evaluation.report.pictures import save_png, subplots

    if not panels:
        raise InvalidInputError("score_histogram: expected at least one panel, got none")
    scores = {name: ranked.scores[ranked.order] for name, ranked in panels.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(scores.values())), bins=_BINS)
    columns = min(len(panels), 3)
    plot, axes = subplots(-(-len(panels) // columns), columns, (1 + 3.6 * columns, 3.1 * -(-len(panels) // columns)))
    told = {}
    for axis, (name, ranked) in zip(axes, panels.items(), strict=False):
        found = detection(ranked, resamples=resamples, seed=seed) if ranked.wrong is not None else None
        told[name] = found or {"pairs": ranked.pairs.items, "scored": len(ranked.order)}
        _densities(axis, ranked, edges)
        axis.set_title(_title(name, told[name]), fontsize=9.5, color=INK)
    _share_axes(axes, len(panels), edges, columns)
    plot.tight_layout()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_png(plot, path, {"kind": "score histogram", "panels": told})


def _sections(ranked: RankedPairs, count: int) -> list[_Section]:
    """`count` pairs from each end and around the median; of few pairs all, in three parts."""
    order, titles = ranked.order, ("Lowest positive scores", "Around the median", "Highest positive scores")
    if len(order) <= 3 * count:
        parts: Sequence[NDArray[np.int64]] = np.array_split(order, 3)
    else:
        middle = (len(order) - count) // 2
        parts = (order[:count], order[middle : middle + count], order[-count:])
    return [_Section(title, part) for title, part in zip(titles, parts, strict=True) if len(part)]


class _Sheet:
    """A white page that sections of pairs are drawn on, from the top to the bottom."""

    def __init__(self, ranked: RankedPairs, columns: int) -> None:
        self.ranked, self.columns = ranked, columns
        self.width = max(2 * MARGIN + columns * (THUMB + GAP) - GAP, LEAST_WIDTH)

    def drawn(self, title: str, sections: Sequence[_Section]) -> Image.Image:
        """The page, as high as what is on it."""
        from PIL import Image, ImageDraw

        lines = [_cut(section.rows, self.columns) for section in sections]
        heights = [SECTION + sum(map(self._height, parts)) for parts in lines]
        self.image = Image.new("RGB", (self.width, HEAD + sum(heights)), "white")
        self.draw = ImageDraw.Draw(self.image)
        self._heading(title)
        top = HEAD
        for section, parts, height in zip(sections, lines, heights, strict=True):
            self._section(top, section.title, parts)
            top += height
        return self.image

    def _heading(self, title: str) -> None:
        room, small = self.width - 2 * MARGIN, font(12)
        if self.ranked.wrong is not None:
            left = self.width - MARGIN - small.getlength(LEGEND)
            self.draw.rectangle((left - 20, 17, left - 8, 29), outline=WRONG, width=3)
            self.draw.text((left, 15), LEGEND, INK, small)
            room = round(left) - MARGIN - 40
        bold = font(16, bold=True)
        self.draw.text((MARGIN, 12), "".join(wrap(title, bold, room, 1)), INK, bold)

    def _section(self, top: int, title: str, lines: Sequence[NDArray[np.int64]]) -> None:
        """A heading, and the pairs below it in lines."""
        self.draw.line((MARGIN, top + 2, self.width - MARGIN, top + 2), LINE, 1)
        self.draw.text((MARGIN, top + 9), title, GREY, font(13))
        top += SECTION
        for rows in lines:
            for column, row in enumerate(rows.tolist()):
                self._pair(MARGIN + column * (THUMB + GAP), top, row)
            top += self._height(rows)

    def _pair(self, left: int, top: int, row: int) -> None:
        thumb, bold = _thumbnail(self.ranked, row), font(12, bold=True)
        self.image.paste(thumb, (left + (THUMB - thumb.width) // 2, top + (THUMB - thumb.height) // 2))
        score, y = f"{self.ranked.scores[row]:+.3f}".replace("-", "\N{MINUS SIGN}"), top + THUMB + 8
        if self._wrong(row):
            self.draw.rectangle((left - 4, top - 4, left + THUMB + 3, top + THUMB + 3), outline=WRONG, width=4)
            self.draw.text((left + THUMB, y), "wrong", WRONG, bold, anchor="ra")
        self.draw.text((left, y), score, WRONG if self._wrong(row) else INK, bold)
        for i, (line, colour) in enumerate(self._texts(row), start=1):
            self.draw.text((left, y + i * LINE_HEIGHT), line, colour, font(12))

    def _texts(self, row: int) -> list[tuple[str, str]]:
        """Lines below the score, with their colours: the caption and, where that is wrong, the pair's own."""
        face = font(12)
        found = [(line, INK) for line in wrap(self.ranked.pairs.captions[row], face, THUMB, CAPTION_LINES)]
        if self._wrong(row):
            own = f"its own: {self.ranked.original(row)}"
            found += [(line, GREY) for line in wrap(own, face, THUMB, CAPTION_LINES)]
        return found

    def _height(self, rows: NDArray[np.int64]) -> int:
        """Of a line of pairs with what stands below them."""
        return THUMB + 8 + LINE_HEIGHT * (1 + max(len(self._texts(row)) for row in rows.tolist())) + 18

    def _wrong(self, row: int) -> bool:
        return self.ranked.wrong is not None and bool(self.ranked.wrong[row])


def _cut(rows: NDArray[np.int64], columns: int) -> list[NDArray[np.int64]]:
    return [rows[start : start + columns] for start in range(0, len(rows), columns)]


def _thumbnail(ranked: RankedPairs, row: int) -> Image.Image:
    """The image in at most THUMB x THUMB pixels; small ones are enlarged pixel by pixel."""
    from PIL import Image, ImageDraw, ImageOps

    try:
        image = ranked.pairs.image(row).convert("RGB")
    except OSError:  # it could be read when it was scored
        empty = Image.new("RGB", (THUMB, THUMB), "#eef0f3")
        ImageDraw.Draw(empty).text((THUMB // 2, THUMB // 2), "cannot be read", GREY, font(12), anchor="mm")
        return empty
    small = max(image.size) <= THUMB // 2
    return ImageOps.contain(image, (THUMB, THUMB), Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS)


def _about(ranked: RankedPairs, sections: Sequence[_Section]) -> dict[str, Any]:
    def told(rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        return [{"id": ranked.pairs.ids[row], "score": round(float(ranked.scores[row]), 6)} for row in rows.tolist()]

    known = None if ranked.wrong is None else int(ranked.wrong[ranked.order].sum())
    return {
        "data": ranked.pairs.name,
        "pairs": len(ranked.order),
        "wrong": known,
        "shown": {section.title: told(section.rows) for section in sections},
    }


def _save(image: Image.Image, path: Path, about: dict[str, Any]) -> Path:
    """As `vldebias.evaluation.report.pictures.save_png` does for plots, so that `read_metadata` reads it."""
    from PIL import PngImagePlugin

    info = PngImagePlugin.PngInfo()
    info.add_itxt("vldebias", json.dumps(about))  # in ASCII: ids of files may hold bytes that are no text
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "PNG", pnginfo=info, optimize=True)
    return path


def _densities(axis: Any, ranked: RankedPairs, edges: NDArray[np.float64]) -> None:
    scores = ranked.scores[ranked.order]
    if ranked.wrong is None:
        groups = {"all pairs": (scores, GREY)}
    else:
        wrong = ranked.wrong[ranked.order]
        groups = {"own caption": (scores[~wrong], RIGHT), "caption of another pair": (scores[wrong], WRONG)}
    for label, (values, colour) in groups.items():
        axis.hist(values, edges, density=True, color=colour, alpha=0.25)
        axis.hist(values, edges, density=True, histtype="step", color=colour, linewidth=1.5, label=label)
        axis.axvline(float(np.median(values)), color=colour, linewidth=1, linestyle=(0, (4, 3)))


def _share_axes(axes: Sequence[Any], used: int, edges: NDArray[np.float64], columns: int) -> None:
    top = max(axis.get_ylim()[1] for axis in axes[:used])
    for i, axis in enumerate(axes):
        axis.set_visible(i < used)
        axis.set_xlim(edges[0], edges[-1])
        axis.set_ylim(0, 1.12 * top)
        axis.set_xlabel("positive score s⁺ (cosine)", fontsize=9, color=INK)
        axis.tick_params(labelsize=8, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_yticks([])
        if i % columns == 0:
            axis.set_ylabel("density", fontsize=9, color=INK)
    axes[0].legend(frameon=False, fontsize=8, loc="best", labelcolor=INK)


def _title(name: str, found: Mapping[str, Any]) -> str:
    """The model, and what is known of how well it tells."""
    name = for_matplotlib(name)
    if "auroc" not in found:
        return f"{name}: {found['scored']:,} pairs"
    area = found["auroc"]
    return f"{name}: AUROC {area['value']:.3f} [{area['low']:.3f}, {area['high']:.3f}]"
