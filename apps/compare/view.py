"""Results as HTML: the macros of view.html under their names, such as `HTML.comparison(now)`."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from vldebias.evaluation.report.words import change, number, verdict

from ..serving import templates
from .drawing import AFTER, BEFORE, LEAST, UNKNOWN_NAME, Comparison
from .settings import link

TITLES = {BEFORE: "As the model is", AFTER: "Mitigated"}
WIDEST, SMALL = 384, 64  # pixels: larger pictures are shown smaller, small ones are magnified without blur


def title(side: str, now: Comparison | None = None) -> str:
    """What the page calls a side: by its method where there is a comparison."""
    return now.method if side == AFTER and now is not None else TITLES.get(side, side)


def _is_small(picture: Image.Image) -> bool:
    return max(picture.size) <= SMALL


def data_uri(picture: Image.Image) -> str:
    """A picture inside the page: nothing is served from a path. The originals are in the download."""
    small, buffer = _is_small(picture), io.BytesIO()
    if max(picture.size) > WIDEST:
        picture = picture.copy()
        picture.thumbnail((WIDEST, WIDEST))
    picture.save(buffer, format="png" if small else "webp", **({} if small else {"quality": 85}))
    return f"data:image/{'png' if small else 'webp'};base64,{base64.b64encode(buffer.getvalue()).decode()}"


_templates = templates(Path(__file__).parent)
_templates.globals.update(
    uri=data_uri, is_small=_is_small, link=link, TITLES=TITLES, title=title, UNKNOWN_NAME=UNKNOWN_NAME, LEAST=LEAST
)
_templates.globals.update(number=number, change=change, verdict_of=verdict)
HTML: Any = _templates.get_template("view.html").module
