"""Render rows of images as HTML, in fixed-size boxes that a click or a key enlarges."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

from vldebias.utils.pictures import LARGEST, encoded

THUMB = 96  # longest side in pixels of an image in `thumbnails`
# Only one image is enlarged at a time. Escape or a click outside closes it.
SCRIPT = """
<script>
const closeFaces = () => {
  const boxes = document.querySelectorAll(".face input:checked");
  for (const box of boxes) box.checked = false;
  return boxes.length;
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeFaces();
});
// Clicks pass through the overlay, so elements below it must not receive them.
document.addEventListener("click", (event) => {
  if (event.target.closest(".face") || !closeFaces()) return;
  event.preventDefault();
  event.stopPropagation();
}, true);
document.addEventListener("change", (event) => {
  if (!event.target.matches(".face input") || !event.target.checked) return;
  for (const box of document.querySelectorAll(".face input:checked"))
    if (box !== event.target) box.checked = false;
});
</script>
"""


@dataclass(frozen=True)
class Face:
    """Describe an image in a row.

    Attributes:
        name: text for screen readers, such as "seed 3: woman".
        caption: the words below the image, or "" for none.
        title: image title shown below the caption, in as many lines as fit.
    """

    image: Image.Image
    name: str
    caption: str = ""
    title: str = ""


def row_of_faces(title: str, faces: Sequence[Face], boxes: int, *, pixels: bool) -> str:
    """Return a heading and a row of boxes as HTML, escaping text.

    Args:
        title: the heading of the row.
        faces: the available images.
        boxes: the final number of images; missing ones are shown as empty boxes.
        pixels: whether to enlarge images without smoothing, as for the miniature.
    """
    style = "faces pixels" if pixels else "faces"
    if any(face.title for face in faces):
        style += " titled"
    cells = [_cell(face) for face in faces]
    cells += ['<li><span class="face empty"></span></li>'] * (boxes - len(faces))
    return f'<h2 class="row-title">{escape(title)}</h2><ul class="{style}">{"".join(cells)}</ul>'


def thumbnails(faces: Sequence[Face]) -> str:
    """Return images as small thumbnails in a line, which a click does not enlarge, as HTML."""
    cells = []
    for face in faces:
        shown = face.image.copy()
        shown.thumbnail((THUMB, THUMB), Image.Resampling.LANCZOS)
        alt = escape(face.name)
        cells.append(
            f'<figure><img alt="{alt}" src="{_source(shown)}">'
            f"<figcaption>{escape(face.caption)}</figcaption></figure>"
        )
    return f'<div class="thumbnails">{"".join(cells)}</div>' if cells else ""


def _source(image: Image.Image) -> str:
    """Return an image as a data URL."""
    kind = "png" if max(image.size) <= 128 else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded(image)).decode()}"


def _cell(face: Face) -> str:
    name = escape(face.name)
    caption = f"<span>{escape(face.caption)}</span>" if face.caption else ""
    if face.title:
        title = escape(face.title)
        caption += f'<span class="title" title="{title}">{title}</span>'
    # Embed the image as a data URL, with sides of at most 384 pixels.
    shown = face.image
    if max(face.image.size) > LARGEST:
        shown = face.image.copy()
        # Otherwise, a page with 48 one-megapixel images would take a hundred megabytes.
        shown.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return (
        f'<li><label class="face"><input type="checkbox" aria-label="Enlarge {name}">'
        f'<img alt="{name}" src="{_source(shown)}"></label>{caption}</li>'
    )
