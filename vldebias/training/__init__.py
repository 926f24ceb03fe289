"""Fine-tuning of image-text models on captions that may be wrong.

The way of the data: settings, pairs, batches, objective, loop; `run` puts them together. Names are imported when they
are first read, so that the command line knows the settings without torch.
"""

# ruff: noqa: F401  (the names in `if TYPE_CHECKING` are in __all__)

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vldebias.training.batches import Batch, Batches, MapBatches
    from vldebias.training.loop import DivergedError, fit, steps_of
    from vldebias.training.objective import Objective, Trainee, build_objective
    from vldebias.training.optim import Sharpness
    from vldebias.training.pairs import Pairs, PairSource
    from vldebias.training.run import train_model
    from vldebias.training.saving import save_model
    from vldebias.training.scores import positive_scores, rank_pairs
    from vldebias.training.settings import LoopSettings, LossSettings, TrainSettings, load_settings
    from vldebias.training.tuning import tune

_MODULES = {
    "batches": ("Batch", "Batches", "MapBatches"),
    "loop": ("DivergedError", "fit", "steps_of"),
    "objective": ("Objective", "Trainee", "build_objective"),
    "optim": ("Sharpness",),
    "pairs": ("PairSource", "Pairs"),
    "run": ("train_model",),
    "saving": ("save_model",),
    "scores": ("positive_scores", "rank_pairs"),
    "settings": ("LoopSettings", "LossSettings", "TrainSettings", "load_settings"),
    "tuning": ("tune",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "TensorBatches":
        from vldebias.errors import InvalidInputError

        raise InvalidInputError("vldebias.training.TensorBatches is gone; use MapBatches(PairSource(...), augment)")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
