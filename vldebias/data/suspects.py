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
from vldebias.utils.files import shielded, write_atomically
from vldebias.utils.pictures import decode

if TYPE_CHECKING:
    from PIL import Image

THUMB = 160  # maximum side length of a thumbnail, in pixels
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<style>:root{color-scheme:light dark}
body{font:14px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem}
figure{margin:0;min-width:0}img{max-width:100%}p,code{overflow-wrap:anywhere;margin:.2rem 0}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:1.5rem}</style>"""


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
        ids: n row names.
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
            folder: image folder.
            ids: path of each row's image in the folder, with or without its extension.
        """
        files = [folder / name for name in files_below(folder)[0] if is_picture(name)]
        path_of_id: dict[str, Path] = {}
        # If both a.jpg and a.png exist, "a" refers to the first.
        for path in files:
            name = path.relative_to(folder).as_posix()
            path_of_id.setdefault(os.path.splitext(name)[0], path)
        # A full name takes precedence over a name without its extension.
        for path in files:
            path_of_id[path.relative_to(folder).as_posix()] = path
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
            if ids[row] not in path_of_id:
                return ""
            return os.path.abspath(path_of_id[ids[row]])

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
            path: output file.
            columns: column -> function from a row to its cell text.
        """
        text_of_row = {"id": self.ids.__getitem__, **columns, "path": self.path}
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(("rank", "percentile", "score", *text_of_row))

        def write_row(row: int, figures: Sequence[str]) -> None:
            writer.writerow((*figures, *[shielded(text(row)) for text in text_of_row.values()]))

        # The percentile is the percentage of rows with lower scores; ties count half.
        scores = self.scores[self.order]
        lower = np.searchsorted(scores, scores, "left")
        lower_or_equal = np.searchsorted(scores, scores, "right")
        percentiles: list[float] = (50 * (lower + lower_or_equal) / len(scores)).tolist()
        for place, row in enumerate(self.order.tolist()):
            figures = (str(place + 1), f"{percentiles[place]:.4f}", f"{self.scores[row]:.6f}")
            write_row(row, figures)
        # Append rows without a score.
        for row in np.setdiff1d(np.arange(len(self.ids)), self.order).tolist():
            write_row(row, ("", "", ""))
        # File names may contain bytes that are not valid text.
        return write_atomically(path, file.getvalue().encode(errors="backslashreplace"))

    def page(
        self,
        path: str | Path,
        title: str,
        describe: Callable[[int], tuple[str, str]],
        *,
        introduction: str,
        max_rows: int = 200,
    ) -> Path:
        """Write an HTML file with the most suspicious rows and their images.

        Args:
            path: the file.
            title: heading.
            describe: row -> a mark ("" for none) and a description.
            introduction: what the scores mean and what to do next.
            max_rows: maximum number of rows.
        """
        figures = []
        for rank, row in enumerate(self.order[:max_rows].tolist(), start=1):
            # Captions and paths are untrusted, so they are escaped.
            word, text = map(html.escape, describe(row))
            place = html.escape(self.path(row) or self.ids[row])
            file = io.BytesIO()
            self._thumbnail(row).save(file, "JPEG", quality=85)
            # Images are embedded, so that the page is one self-contained file.
            picture = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
            mark = ""
            if word:
                mark = f"<b>{word}</b> "
            figures.append(
                f'<figure><img alt="" src="{picture}"><figcaption>{rank}.'
                f" {mark}{self.scores[row]:+.3f}<p>{text}</p><code>{place}</code>"
                "</figcaption></figure>"
            )
        title = html.escape(title)
        sentences = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(introduction))
        intro = f"<p>{sentences}</p>"
        head = f"{_PAGE}<title>{title}</title><header><h1>{title}</h1>{intro}</header>"
        page = "\n".join([head, "<main>", *figures, "</main>", ""])
        return write_atomically(path, page)

    def _thumbnail(self, row: int) -> Image.Image:
        """Return the image resized to fit THUMB x THUMB pixels, or a grey square if unavailable."""
        Images = need("PIL.Image")
        image = None
        if self.read is not None:
            with suppress(OSError):
                image = self.read(row).convert("RGB")
        if image is None:
            return Images.new("RGB", (THUMB, THUMB), "#eef0f3")
        filtering = Images.Resampling.LANCZOS
        if max(image.size) <= THUMB // 2:
            # Smooth interpolation would blur small images.
            filtering = Images.Resampling.NEAREST
        return need("PIL.ImageOps").contain(image, (THUMB, THUMB), filtering)
