"""Rank suspicious rows, and list them in a table or with their images on an HTML page."""

from __future__ import annotations

import base64
import csv
import html
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from vldebias.data.folders import files_below, is_picture
from vldebias.errors import InvalidInputError, need
from vldebias.utils.arrays import Mask
from vldebias.utils.files import shielded, write_atomically
from vldebias.utils.pictures import decode

if TYPE_CHECKING:
    from PIL import Image

BINS = 50  # number of bars in the histogram of scores
WIDTH, HEIGHT = 640, 120  # size of the histogram, in pixels
THUMB = 160  # maximum side length of a thumbnail, in pixels
UNFOLDED = 24  # rows that are shown until the reader asks for the others
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<style>:root{color-scheme:light dark}
body{font:14px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem}
figure{margin:0;min-width:0;position:relative}
.tag{background:#8a1c1c;color:#fff;left:0;padding:0 .4em;position:absolute;top:0}
summary{cursor:pointer;margin:1.5rem 0 .5rem}
img{max-width:100%}p,code{overflow-wrap:anywhere;margin:.2rem 0}
svg{max-width:100%}rect{fill:light-dark(#7c93b2,#8fa9cc)}.marked{fill:light-dark(#a61b1b,#ff9c94)}
text{fill:currentColor;font-size:12px}line{stroke:currentColor;stroke-dasharray:4 3}
.rows{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:1.5rem}</style>"""

# Saves the marks of all rows that have one. Ids are quoted, because they may contain commas, and
# an apostrophe in front of a formula keeps spreadsheets from running it.
_SAVING = """<p><button id="save" disabled>Save 0 marks</button> Mark captions as right or wrong
below, and save the marks as a table (id, caption).</p>
<script>
const button=document.getElementById("save")
const marked=()=>[...document.querySelectorAll("fieldset input:checked")]
document.addEventListener("change",()=>{const n=marked().length
button.disabled=!n;button.textContent=`Save ${n} mark${n===1?"":"s"}`})
button.addEventListener("click",()=>{
const cell=text=>'"'+text.replace(/^(?=[=+\\-@\\t\\r])/,"'").replaceAll('"','""')+'"'
const lines=marked().map(input=>cell(input.dataset.id)+","+input.value)
const link=document.createElement("a")
link.href=URL.createObjectURL(new Blob(["id,caption\\n"+lines.join("\\n")+"\\n"],{type:"text/csv"}))
link.download="marks.csv";link.click();URL.revokeObjectURL(link.href)})
</script>"""


def _buttons(rank: int, escaped_id: str) -> str:
    """Return the buttons that mark a row as right or wrong."""
    inputs = [
        f'<label><input type="radio" name="mark{rank}" value="{value}" data-id="{escaped_id}">'
        f" {value}</label>"
        for value in ("right", "wrong")
    ]
    return f'<fieldset aria-label="caption {rank}">{" ".join(inputs)}</fieldset>'


class Pictures(TypedDict, total=False):
    """Image readers passed to `Suspects`."""

    read: Callable[[int], Image.Image]
    path: Callable[[int], str]


class Suspects:
    """Rank data set rows from the lowest score (most suspicious) to the highest.

    Attributes:
        order: (m,) rows with a score, lowest first. Ties keep row order.

    Args:
        scores: (n,), NaN for rows without a score.
        ids: names of the n rows.
        read: row -> RGB image. Raises OSError if the image cannot be read. None if there are no
            images.
        path: row -> image path, or "" if the image is not a separate file.
    """

    def __init__(
        self,
        scores: NDArray[np.floating[Any]],
        ids: Sequence[str],
        read: Callable[[int], Image.Image] | None = None,
        path: Callable[[int], str] = lambda _: "",
    ) -> None:
        self.scores = scores
        self.ids = ids
        self.read = read
        self.path = path
        if scores.shape != (len(ids),) or not np.isfinite(scores).any():
            raise InvalidInputError(
                f"scores: expected ({len(ids)},) with some finite values, got {scores.shape}"
            )
        # NaN sorts last, and is removed.
        order = np.argsort(scores, kind="stable")
        self.order: NDArray[np.int64] = order[np.isfinite(scores[order])]

    @staticmethod
    def pictures(folder: Path, ids: Sequence[str]) -> Pictures:
        """Return `read` and `path` for rows whose ids are images in a folder.

        Rows without an image are unreadable. Ids cannot refer to files outside the folder.

        Args:
            folder: folder of the images, including its subfolders.
            ids: path of each row's image in the folder, with or without its extension.
        """
        names = list(filter(is_picture, files_below(folder)[0]))
        # If both a.jpg and a.png exist, "a" refers to the first.
        path_of_id = {os.path.splitext(name)[0]: folder / name for name in reversed(names)}
        # A full name takes precedence over a name without its extension.
        path_of_id |= {name: folder / name for name in names}
        if not path_of_id.keys() & set(ids):
            raise InvalidInputError(
                f"{folder}: expected images named after the row ids, such as {ids[0]!r},"
                f" got {list(path_of_id)[-1:]}"
            )

        def read_row(row: int) -> Image.Image:
            if ids[row] not in path_of_id:
                raise OSError(f"{ids[row]}: no such image in {folder}")
            return decode(path_of_id[ids[row]])

        def path_of_row(row: int) -> str:
            return os.path.abspath(path_of_id[ids[row]]) if ids[row] in path_of_id else ""

        return {"read": read_row, "path": path_of_row}

    def best(self, share: float) -> NDArray[np.int64]:
        """Return the highest-scoring fraction `share` of all scored rows, in data order."""
        # The highest scores come last; rows without a score are excluded.
        return np.sort(self.order[round((1 - share) * len(self.order)) :])

    def write(self, path: str | Path, columns: Mapping[str, Callable[[int], str]]) -> Path:
        """Write a csv file with the columns rank, percentile, score, id, `columns` and path.

        The most suspicious row is first, and rows without a score are last. Ties count half in the
        percentile. Cells that look like formulas are escaped (`files.shielded`).

        Args:
            path: the csv file to write.
            columns: column -> function from a row to its cell text.
        """
        text_of_row = {"id": self.ids.__getitem__, **columns, "path": self.path}
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(("rank", "percentile", "score", *text_of_row))

        # The percentile is the percentage of rows with lower scores; ties count half.
        scores = self.scores[self.order]
        lower = np.searchsorted(scores, scores, "left")
        lower_or_equal = np.searchsorted(scores, scores, "right")
        percentiles: list[float] = (50 * (lower + lower_or_equal) / len(scores)).tolist()
        figures_of_row = {
            row: (place + 1, f"{percentiles[place]:.4f}", f"{self.scores[row]:.6f}")
            for place, row in enumerate(self.order.tolist())
        }
        # Append rows without a score.
        unscored = np.setdiff1d(np.arange(len(self.ids)), self.order).tolist()
        for row in (*figures_of_row, *unscored):
            cells = [shielded(text(row)) for text in text_of_row.values()]
            writer.writerow((*figures_of_row.get(row, ("", "", "")), *cells))
        # File names may contain bytes that are not valid text.
        return write_atomically(path, file.getvalue().encode(errors="backslashreplace"))

    def page(
        self,
        path: str | Path,
        title: str,
        describe: Callable[[int], tuple[str, str]],
        *,
        introduction: str,
        marked: Mask | None = None,
        cut: tuple[float, str] | None = None,
        max_rows: int = 200,
        can_check: bool = False,
    ) -> Path:
        """Write an HTML file with the most suspicious rows and their images.

        Args:
            path: the HTML file to write.
            title: heading of the page.
            describe: row -> a word that marks the row ("" for none) and a description.
            introduction: what the scores mean and what to do next.
            marked: (n,) rows that the histogram of scores shows in a different colour.
            cut: score at which the histogram shows a line, and what happens to the rows below it,
                such as "left out", which is also shown on their images.
            max_rows: maximum number of rows.
            can_check: whether to show buttons to mark each row as right or wrong, and to save the
                marks as a csv file with the columns id and caption.
        """
        figures = []
        folder = _common_folder([self.path(row) for row in range(len(self.ids))])
        for rank, row in enumerate(self.order[:max_rows].tolist(), start=1):
            # Captions and paths are untrusted, so they are escaped.
            word, text = map(html.escape, describe(row))
            # Long absolute paths would hide the captions.
            place = html.escape(self.path(row).removeprefix(folder) or self.ids[row])
            file = io.BytesIO()
            self._thumbnail(row).save(file, "JPEG", quality=85)
            # Images are embedded, so that the page is one self-contained file.
            picture = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
            mark = f"<b>{word}</b> " if word else ""
            buttons = _buttons(rank, html.escape(self.ids[row])) if can_check else ""
            tag = ""
            if cut is not None and self.scores[row] < cut[0]:
                tag = f'<span class="tag">{html.escape(cut[1])}</span>'
            figures.append(
                f'<figure><img alt="" src="{picture}">{tag}<figcaption>{rank}.'
                f" {mark}{self.scores[row]:+.3f}<p>{text}</p><code>{place}</code>{buttons}"
                "</figcaption></figure>"
            )
        title = html.escape(title)
        sentences = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(introduction))
        intro = f"<p>{sentences}</p>{self._histogram(marked, cut)}"
        intro += f"<p>The first {len(figures):,} of {len(self.order):,} are shown.</p>"
        head = f"{_PAGE}<title>{title}</title><header><h1>{title}</h1>{intro}</header>"
        saving = _SAVING if can_check else ""
        body = ["<main>", saving, '<div class="rows">', *figures[:UNFOLDED], "</div>"]
        if figures[UNFOLDED:]:
            body.append(f"<details><summary>{len(figures) - UNFOLDED:,} more</summary>")
            body += ['<div class="rows">', *figures[UNFOLDED:], "</div></details>"]
        page = "\n".join([head, *body, "</main>", ""])
        return write_atomically(path, page)

    def _histogram(self, marked: Mask | None, cut: tuple[float, str] | None) -> str:
        """Return a histogram of the scores as SVG, with a labelled line at the cut."""
        scores = self.scores[self.order]
        counts, edges = np.histogram(scores, BINS)
        counts_of_class = {"": counts}
        if marked is not None:
            counts_of_class["marked"] = np.histogram(scores[marked[self.order]], edges)[0]
        shapes = []
        # Draw the marked rows over all rows.
        for name, heights in counts_of_class.items():
            for place, height in enumerate((HEIGHT * heights / counts.max()).tolist()):
                x = place * WIDTH / BINS
                shapes.append(
                    f'<rect class="{name}" x="{x:.1f}" y="{HEIGHT - height:.1f}"'
                    f' width="{WIDTH / BINS - 1:.1f}" height="{height:.1f}"/>'
                )
        words = f"Histogram of {len(scores):,} scores from {edges[0]:.3f} to {edges[-1]:.3f}"
        if cut is not None:
            score, below = cut
            x = WIDTH * (score - edges[0]) / (edges[-1] - edges[0])
            label = f"← {html.escape(below)}: {(scores < score).sum():,}"
            shapes.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="-4" y2="{HEIGHT}"/>')
            side = "end" if x > WIDTH / 2 else "start"
            shapes.append(f'<text x="{x:.1f}" y="-6" text-anchor="{side}">{label}</text>')
            words += f", with a line at {score:.3f}"
        if marked is not None:
            words += ". Known wrong rows are red"
        for x, anchor, edge in ((0, "start", edges[0]), (WIDTH, "end", edges[-1])):
            shapes.append(
                f'<text x="{x}" y="{HEIGHT + 14}" text-anchor="{anchor}">{edge:.3f}</text>'
            )
        return (
            f'<svg role="img" aria-label="{words}" viewBox="0 -18 {WIDTH} {HEIGHT + 36}"'
            f' width="{WIDTH}">{"".join(shapes)}</svg><p>{words}.</p>'
        )

    def _thumbnail(self, row: int) -> Image.Image:
        """Return the image resized to fit THUMB x THUMB pixels, or a grey square if unavailable."""
        Images = need("PIL.Image")
        image = None
        with suppress(OSError):
            image = self.read and self.read(row).convert("RGB")
        if image is None:
            return Images.new("RGB", (THUMB, THUMB), "#eef0f3")
        # Smooth interpolation would blur small images.
        is_small = max(image.size) <= THUMB // 2
        filtering = Images.Resampling.NEAREST if is_small else Images.Resampling.LANCZOS
        return need("PIL.ImageOps").contain(image, (THUMB, THUMB), filtering)


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that contains all files, with a slash, or "" if there is none."""
    folders = {os.path.dirname(path) for path in paths if path}
    # An error means that there are no paths or, on Windows, that they are on different drives.
    with suppress(ValueError):
        return os.path.join(os.path.commonpath(folders), "")
    return ""
