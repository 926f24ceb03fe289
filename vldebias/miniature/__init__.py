"""The miniature world: small, real, biased models, built by this package's own code from rendered pictures.

`portraits` and `birds` render images with ground truth; `load_clip`, `load_transformers_clip`, `load_pipeline` and
`load_judge` load the models that ship with the package; `build` makes them anew.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vldebias.miniature import birds, portraits
    from vldebias.miniature.builder import STAGES, build
    from vldebias.miniature.judge import Judge
    from vldebias.miniature.loading import (
        load_clip,
        load_judge,
        load_pipeline,
        load_transformers_clip,
        weights_dir,
    )

__all__ = [
    "STAGES",
    "Judge",
    "birds",
    "build",
    "load_clip",
    "load_judge",
    "load_pipeline",
    "load_transformers_clip",
    "portraits",
    "weights_dir",
]

_HOMES = {
    "STAGES": "builder",
    "Judge": "judge",
    "build": "builder",
    "load_clip": "loading",
    "load_judge": "loading",
    "load_pipeline": "loading",
    "load_transformers_clip": "loading",
    "weights_dir": "loading",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: most users need the loaders, few the training code."""
    if name in ("birds", "portraits"):
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
