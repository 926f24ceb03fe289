"""The miniature world: small, real, biased models, built by this package's own code from rendered pictures.

`portraits` and `birds` render images with ground truth, `open_world` gives them as data sets; `load_clip`,
`load_transformers_clip`, `load_pipeline` and `load_judge` load the models that ship with the package; what trains them
is `eval/miniature` in a checkout.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.miniature import birds, portraits
    from vldebias.miniature.architectures import AttributeNetwork
    from vldebias.miniature.data import open_world
    from vldebias.miniature.models import (
        Preprocess,
        load_clip,
        load_judge,
        load_pipeline,
        load_transformers_clip,
        weights_dir,
    )

_HOMES = {
    "AttributeNetwork": "architectures",
    "Judge": "architectures",
    "Preprocess": "models",
    "birds": None,
    "load_clip": "models",
    "load_judge": "models",
    "load_pipeline": "models",
    "load_transformers_clip": "models",
    "open_world": "data",
    "portraits": None,
    "weights_dir": "models",
}

__all__ = [
    "AttributeNetwork",
    "Preprocess",
    "birds",
    "load_clip",
    "load_judge",
    "load_pipeline",
    "load_transformers_clip",
    "open_world",
    "portraits",
    "weights_dir",
]


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: most users need the loaders, few the training code."""
    if name in ("STAGES", "build"):
        from vldebias.miniature.world import BUILD

        raise InvalidInputError(f"vldebias.miniature.{name} is not installed; use {BUILD.format('FOLDER')}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    return import_module(f"{__name__}.{name}") if home is None else getattr(import_module(f"{__name__}.{home}"), name)
