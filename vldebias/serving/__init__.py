"""Serve balanced prompts to clients of the OpenAI images API: `images_proxy` gives an ASGI app.

The app itself is `images_api`. A wheel has it in this folder; in a checkout it lies in apps/, the
second place of `__path__`. It needs the extra "serve" (starlette, httpx2, python-multipart, and
uvicorn to run it), but no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import lazy_names

_HERE = Path(__file__).resolve().parent
# A wheel has the app here; a checkout has it in apps/, which is no part of the package.
if not (_HERE / "images_api").is_dir():
    __path__.append(str(_HERE.parents[1] / "apps"))

if TYPE_CHECKING:
    from collections.abc import Callable

    images_proxy: Callable[..., Any]
    Limits: type[Any]

__all__ = ["Limits", "images_proxy"]

__getattr__ = lazy_names(__name__, {f"{__name__}.images_api.app": __all__})


def __dir__() -> list[str]:
    return sorted(__all__)
