"""Fine-tuning of image-text models on captions that may be wrong.

The way of the data: settings, assembly (data, noise, augmentation, batches), trainee (towers and loss), loop; then
record, telling, saving.
"""

from vldebias.training.batch import Batch, Batches
from vldebias.training.loop import DivergedError, fit, steps_of
from vldebias.training.objectives import Objective, build_objective
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.run import train_model
from vldebias.training.saving import save_model
from vldebias.training.scores import positive_scores, rank_pairs
from vldebias.training.settings import LoopSettings, LossSettings, TrainSettings, load_settings
from vldebias.training.sharpness import Sharpness
from vldebias.training.tensors import TensorBatches
from vldebias.training.trainee import Trainee
from vldebias.training.tuning import tune

__all__ = [
    "Batch",
    "Batches",
    "DivergedError",
    "LoopSettings",
    "LossSettings",
    "Objective",
    "PairSource",
    "Pairs",
    "Sharpness",
    "TensorBatches",
    "TrainSettings",
    "Trainee",
    "build_objective",
    "fit",
    "load_settings",
    "positive_scores",
    "rank_pairs",
    "save_model",
    "steps_of",
    "train_model",
    "tune",
]
