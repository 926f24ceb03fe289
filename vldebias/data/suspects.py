"""Rows in the order of suspicion, as a table and as a page of pictures: captions that do not fit, labels that do not.

`vldebias pairs` and `vldebias diagnose` list what they found alike: rank, percentile, score, id, ..., path.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vldebias.data.pictures import decode
from vldebias.errors import InvalidInputError, need
from vldebias.files import shielded, write_atomically
from vldebias.pictures import font

if TYPE_CHECKING:
    from PIL import Image

THUMB = 160  # pixels
_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>:root{color-scheme:light dark;--ink:#1c2530;--paper:#fff;--grey:#55606c;--mark:#a13d12}
@media(prefers-color-scheme:dark){:root{--ink:#e3e8ed;--paper:#14181d;--grey:#a3afbb;--mark:#f0a27c}}
body{font:14px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;color:var(--ink);
background:var(--paper)}h1{font-size:1.2rem}figure{margin:0;min-width:0}b{color:var(--mark)}img{max-width:100%}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:1.5rem}
p{margin:.2rem 0;overflow-wrap:anywhere}code{font-size:11px;color:var(--grey);overflow-wrap:anywhere}</style>"""


@dataclass(frozen=True, eq=False)
class Suspects:
    """Rows of a data set from the lowest score, the most suspicious, to the highest.

    Attributes:
        ids: (n,) names of the rows.
        scores: (n,), NaN where a row has none.
        order: (m,) rows that have a score, the lowest first; equal scores in the order of the rows.
        read: row -> RGB image, OSError where it cannot be read; None where there are no pictures.
        path: row -> where the picture lies, "" where it is no file of its own.
    """

    ids: Sequence[str]
    scores: NDArray[np.floating[Any]]
    order: NDArray[np.int64]
    read: Callable[[int], Image.Image] | None = None
    path: Callable[[int], str] = lambda _: ""

    @classmethod
    def by(cls, scores: NDArray[np.floating[Any]], ids: Sequence[str], **pictures: Any) -> Self:
        """In the order of scores (n,); pictures: `read` and `path`.

        Raises:
            InvalidInputError: another number of scores, or none that is finite.
        """
        if scores.shape != (len(ids),):
            raise InvalidInputError(f"scores: expected one per row, ({len(ids)},), got {scores.shape}")
        order = np.argsort(scores, kind="stable")  # NaN is put last
        order = order[np.isfinite(scores[order])]
        if not len(order):
            raise InvalidInputError(f"scores: expected finite ones, got none among {len(ids)}")
        return cls(ids, scores, order, **pictures)

    @property
    def percentile(self) -> NDArray[np.float64]:
        """(m,) for each of `order`: percent of the scored rows that have a lower score, ties counted half."""
        ordered = self.scores[self.order]
        below, upto = np.searchsorted(ordered, ordered, "left"), np.searchsorted(ordered, ordered, "right")
        percentile: NDArray[np.float64] = 50 * (below + upto) / max(1, len(ordered))
        return percentile

    def lowest(self, share: float) -> NDArray[np.int64]:
        """The share of rows with the lowest scores, to look at or to do without."""
        if not 0 <= share <= 1:
            raise InvalidInputError(f"share: expected a share in [0, 1], got {share}")
        return self.order[: round(share * len(self.order))]

    def kept(self, share: float) -> NDArray[np.int64]:
        """In the order of the data, the share of rows with the highest scores."""
        return np.sort(self.order[len(self.lowest(1 - share)) :])

    def write(self, path: str | Path, columns: Mapping[str, Callable[[int], str]]) -> Path:
        """A csv, the most suspicious row first: rank, percentile, score, id, `columns` (name -> row -> text), path.

        Rows without a score come last. No text is a formula to a spreadsheet (`files.shielded`).
        """
        cells = {"id": lambda row: self.ids[row], **columns, "path": self.path}

        def write(partial: Path) -> None:
            with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:  # bytes of paths
                writer = csv.writer(file)
                writer.writerow(("rank", "percentile", "score", *cells))
                for place, row, part in zip(count(1), self.order.tolist(), self.percentile, strict=False):
                    figures = (place, f"{part:.4f}", f"{self.scores[row]:.6f}")
                    writer.writerow((*figures, *(shielded(text(row)) for text in cells.values())))
                for row in np.flatnonzero(~np.isfinite(self.scores)).tolist():
                    writer.writerow(("", "", "", *(shielded(text(row)) for text in cells.values())))

        return write_atomically(path, write)

    def page(self, path: str | Path, title: str, say: Callable[[int], tuple[str, str]], *, most: int = 200) -> Path:
        """One HTML file of the first rows, pictures inside: rank, score, what is said, and where each lies.

        say: row -> a word that marks it, "" for none, and a text.
        """
        figures = []
        for rank, row in enumerate(self.order[:most].tolist(), start=1):
            word, text = say(row)
            marked = f"<b>{html.escape(word)}</b> " if word else ""
            figures.append(
                f'<figure><img alt="" src="{_inside(thumbnail(self.read, row))}"><figcaption>{rank}. {marked}'
                f"{self.scores[row]:+.3f}<p>{html.escape(text)}</p>"
                f"<code>{html.escape(self.path(row) or self.ids[row])}</code></figcaption></figure>"
            )
        title = html.escape(title)
        page = f"{_PAGE}<title>{title}</title><h1>{title}</h1>\n<main>\n" + "\n".join(figures) + "\n</main>\n"
        return write_atomically(path, page)


def thumbnail(read: Callable[[int], Image.Image] | None, row: int) -> Image.Image:
    """The picture in at most THUMB x THUMB pixels; small ones are enlarged pixel by pixel; a note where it is gone."""
    Images, draw, ops = need("PIL.Image"), need("PIL.ImageDraw"), need("PIL.ImageOps")
    try:
        if read is None:
            raise OSError("no pictures")
        image = read(row).convert("RGB")
    except OSError:  # it could be read when it was scored
        empty = Images.new("RGB", (THUMB, THUMB), "#eef0f3")
        draw.Draw(empty).text((THUMB // 2, THUMB // 2), "cannot be read", "#6b7785", font(12), anchor="mm")
        return empty
    small = max(image.size) <= THUMB // 2
    return ops.contain(image, (THUMB, THUMB), Images.Resampling.NEAREST if small else Images.Resampling.LANCZOS)


def _inside(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def pictures_below(folder: Path, ids: Sequence[str]) -> dict[str, Callable[[int], Any]]:
    """`read` and `path` of rows whose id is a picture below a folder: its path there, with or without its ending.

    Rows without a picture stay: they cannot be read. An id never leads out of the folder.

    Raises:
        InvalidInputError: no folder, or not one of the ids is a picture below it.
    """
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder}: expected a folder of pictures, whose paths below it are the ids of the rows"
        )
    there = {}
    for place, _, files in os.walk(folder):
        for file in sorted(files):
            if file.lower().endswith(_ENDINGS):
                own = Path(place, file)
                name = own.relative_to(folder).as_posix()
                there[name] = own
                there.setdefault(os.path.splitext(name)[0], own)
    paths = [there.get(name) for name in ids]
    if not any(paths):
        example = next(iter(there), "no picture")
        raise InvalidInputError(
            f"{folder}: expected pictures named by the ids of the rows, such as {ids[0]!r}; got {example!r}"
        )

    def read(row: int) -> Any:
        if (own := paths[row]) is None:
            raise OSError(f"{ids[row]}: no such picture below {folder}")
        return decode(own)

    return {"read": read, "path": lambda row: "" if paths[row] is None else os.path.abspath(str(paths[row]))}
