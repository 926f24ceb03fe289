"""Provide small biased models and synthetic images with ground truth, which ship with the package.

`open_world` opens the images as data sets; `load_clip`, `load_pipeline` and `load_judge` load the
models. The code that generated the images and trained the models is `eval/miniature` in a checkout.
"""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

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
# Most users need only one of the loaders.
_NAMES_OF_HOME = {
    f"{__name__}.architectures": ("AttributeNetwork",),
    f"{__name__}.models": ("Preprocess", "load_clip", "load_judge", "load_pipeline", "weights_dir"),
    f"{__name__}.pictures": ("open_world",),
}

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
