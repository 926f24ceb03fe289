"""Serve balanced prompts to clients of the OpenAI images API; `images_proxy` returns an ASGI app.

The app is the package `images_api`. A wheel contains it in this folder; in a checkout, it is in
apps/, which is added to `__path__`. It needs the extra "serve" (starlette, httpx2,
python-multipart, and uvicorn to run it), but not torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

_HERE = Path(__file__).resolve().parent
# In a checkout, the app is in apps/, outside the package.
if not (_HERE / "images_api").is_dir():
    __path__.append(str(_HERE.parents[1] / "apps"))

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.applications import Starlette

    images_proxy: Callable[..., Starlette]
    Limits: type[object]

__all__ = ["Limits", "images_proxy"]

__getattr__ = lazy_names(__name__, {f"{__name__}.images_api.app": __all__})


def __dir__() -> list[str]:
    return sorted(__all__)
