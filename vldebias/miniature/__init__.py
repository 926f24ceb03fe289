"""Provide the small biased models and images that ship with the package.

`open_world` opens synthetic images with ground truth as data sets. `load_clip`, `load_pipeline` and
`load_judge` load the models that were trained on them with the code in `eval/miniature` (in a
checkout). `load_photographs` loads real photographs together with a small model.
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
    from vldebias.miniature.photograph_model import Photographs, load_photographs
    from vldebias.miniature.pictures import open_world

__all__ = [
    "AttributeNetwork",
    "Photographs",
    "Preprocess",
    "load_clip",
    "load_judge",
    "load_photographs",
    "load_pipeline",
    "open_world",
    "weights_dir",
]
# Loaders are imported on first use, because most users only need one of them.
_NAMES_OF_HOME = {
    f"{__name__}.architectures": ("AttributeNetwork",),
    f"{__name__}.models": ("Preprocess", "load_clip", "load_judge", "load_pipeline", "weights_dir"),
    f"{__name__}.photograph_model": ("Photographs", "load_photographs"),
    f"{__name__}.pictures": ("open_world",),
}

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
