"""The miniature world: small, real, biased models and pictures, with ground truth, that ship with the package.

`open_world` opens the pictures as data sets; `load_clip`, `load_pipeline` and `load_judge` load the models. The code
that painted the pictures and trained the models is `eval/miniature` in a checkout.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vldebias.miniature.architectures import AttributeNetwork
    from vldebias.miniature.models import Preprocess, load_clip, load_judge, load_pipeline, weights_dir
    from vldebias.miniature.pictures import open_world

__all__ = ["AttributeNetwork", "Preprocess", "load_clip", "load_judge", "load_pipeline", "open_world", "weights_dir"]


def __getattr__(name: str) -> Any:
    """Import a name at its first use: most users need one of the loaders."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"AttributeNetwork": "architectures", "open_world": "pictures"}.get(name, "models")
    return getattr(import_module(f"{__name__}.{home}"), name)
