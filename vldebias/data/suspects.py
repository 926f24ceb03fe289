"""List rows in the order of suspicion, as a table and as a page of pictures, to find wrong captions
and labels."""

from __future__ import annotations

import base64
import csv
import html
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, need
from vldebias.files import shielded, write_atomically
from vldebias.pictures import ENDINGS, decode

if TYPE_CHECKING:
    from PIL import Image

THUMB = 160  # pixels
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<style>:root{color-scheme:light dark}
body{font:14px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:1200px}
figure{margin:0;min-width:0}img{max-width:100%}p,code{overflow-wrap:anywhere;margin:.2rem 0}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:1.5rem}</style>"""


class Suspects:
    """Hold the rows of a data set from the lowest score, the most suspicious, to the highest.

    order: (m,) rows that have a score, the lowest first; equal scores in the order of the rows.

    Args:
        scores: (n,), NaN where a row has none.
        ids: n names of the rows.
        read: row -> RGB image, OSError where it cannot be read; None where there are no pictures.
        path: row -> path of the picture, "" where it is not a file of its own.
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
                f"scores: expected ({len(ids)},), some of them finite, got {scores.shape}"
            )
        order = np.argsort(scores, kind="stable")
        self.order: NDArray[np.int64] = order[np.isfinite(scores[order])]

    @staticmethod
    def pictures(folder: Path, ids: Sequence[str]) -> dict[str, Callable[[int], Any]]:
        """Return `read` and `path` of rows whose id is a picture below a folder: its path, with or
        without its ending.

        Rows without a picture are kept as unreadable. An id never leads out of the folder.
        """
        files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in ENDINGS]
        there = {path.relative_to(folder).as_posix(): path for path in files}
        there = {os.path.splitext(name)[0]: path for name, path in reversed(there.items())} | there
        if not there.keys() & set(ids):
            raise InvalidInputError(
                f"{folder}: expected a folder with pictures named by the ids of the rows, such as"
                f" {ids[0]!r}, got {list(there)[-1:]}"
            )

        def read(row: int) -> Any:
            if ids[row] not in there:
                raise OSError(f"{ids[row]}: no such picture below {folder}")
            return decode(there[ids[row]])

        return {
            "read": read,
            "path": lambda row: os.path.abspath(there[ids[row]]) if ids[row] in there else "",
        }

    def kept(self, share: float) -> NDArray[np.int64]:
        """Return, in the order of the data, the share of rows with the highest scores."""
        return np.sort(self.order[round((1 - share) * len(self.order)) :])

    def write(self, path: str | Path, columns: Mapping[str, Callable[[int], str]]) -> Path:
        """Write a csv, the most suspicious row first: rank, percentile, score, id, `columns` (row
        -> text), path.

        The percentile counts ties half. Rows without a score come last. Formulas are escaped
        (`files.shielded`).
        """
        cells = {"id": lambda row: self.ids[row], **columns, "path": self.path}
        ordered = self.scores[self.order]
        lower = np.searchsorted(ordered, ordered, "left") + np.searchsorted(
            ordered, ordered, "right"
        )
        scored = zip(self.order.tolist(), (50 * lower / len(ordered)).tolist(), strict=True)
        rows = [
            (row, (str(i), f"{of:.4f}", f"{self.scores[row]:.6f}"))
            for i, (row, of) in enumerate(scored, 1)
        ]
        rows += [
            (row, ("", "", ""))
            for row in np.setdiff1d(np.arange(len(self.ids)), self.order).tolist()
        ]
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(("rank", "percentile", "score", *cells))
        writer.writerows(
            (*figures, *(shielded(text(row)) for text in cells.values())) for row, figures in rows
        )
        return write_atomically(
            path, file.getvalue().encode(errors="backslashreplace")
        )  # bytes of paths

    def page(
        self,
        path: str | Path,
        title: str,
        say: Callable[[int], tuple[str, str]],
        *,
        most: int = 200,
    ) -> Path:
        """Write one HTML file of the first rows, with their pictures, rank, score, remarks and
        paths.

        say: row -> its remarks: a word that marks it, "" for none, and a text.
        """
        figures = []
        for rank, row in enumerate(self.order[:most].tolist(), start=1):
            word, text = map(html.escape, say(row))
            place = html.escape(self.path(row) or self.ids[row])
            file = io.BytesIO()
            self._thumbnail(row).save(file, "JPEG", quality=85)
            picture = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
            figures.append(
                f'<figure><img alt="" src="{picture}"><figcaption>{rank}.'
                f" {f'<b>{word}</b> ' if word else ''}"
                f"{self.scores[row]:+.3f}<p>{text}</p><code>{place}</code>"
                "</figcaption></figure>"
            )
        title = html.escape(title)
        page = (
            f"{_PAGE}<title>{title}</title><h1>{title}</h1>\n<main>\n"
            + "\n".join(figures)
            + "\n</main>\n"
        )
        return write_atomically(path, page)

    def _thumbnail(self, row: int) -> Image.Image:
        """Return the picture in at most THUMB x THUMB pixels, small ones enlarged; a grey square if
        there is none."""
        Images = need("PIL.Image")
        try:
            image = None if self.read is None else self.read(row).convert("RGB")
        except OSError:  # it could be read when it was scored
            image = None
        if image is None:
            return Images.new("RGB", (THUMB, THUMB), "#eef0f3")
        small = max(image.size) <= THUMB // 2
        how = Images.Resampling.NEAREST if small else Images.Resampling.LANCZOS
        return need("PIL.ImageOps").contain(image, (THUMB, THUMB), how)
