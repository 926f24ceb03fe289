"""Provide small biased models and synthetic images with ground truth, which ship with the package.

`open_world` opens the images as data sets; `load_clip`, `load_pipeline` and `load_judge` load the
models. The code that generated the images and trained the models is `eval/miniature` in a checkout.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vldebias.miniature.architectures import AttributeNetwork
    from vldebias.miniature.models import (
        Preprocess,
        load_clip,
        load_judge,
        load_pipeline,
        weights_dir,
    )
    from vldebias.miniature.pictures import open_world

__all__ = [
    "AttributeNetwork",
    "Preprocess",
    "load_clip",
    "load_judge",
    "load_pipeline",
    "open_world",
    "weights_dir",
]


def __getattr__(name: str) -> Any:
    """Import a name at its first use, because most users need only one of the loaders."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Names that are not listed are loaders.
    home = {"AttributeNetwork": "architectures", "open_world": "pictures"}.get(name, "models")
    return getattr(import_module(f"{__name__}.{home}"), name)
