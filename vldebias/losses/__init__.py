"""Compute contrastive losses of images and captions or two views: functions, and modules that hold
the settings."""

from vldebias.losses.bounds import mutual_information_bound, wasserstein_dependency_bound
from vldebias.losses.contrast import ContrastiveLoss, Temperature
from vldebias.losses.debiased import (
    DebiasedContrastiveLoss,
    HardNegativeContrastiveLoss,
    debiased_contrastive,
    hard_negative_contrastive,
)
from vldebias.losses.gce import GCELoss, generalized_cross_entropy
from vldebias.losses.global_contrastive import GlobalContrastiveLoss, estimate_popularity
from vldebias.losses.groups import GroupWeights
from vldebias.losses.info_nce import InfoNCELoss, info_nce
from vldebias.losses.processes import gather_rows
from vldebias.losses.rince import RINCELoss, q_warmup, rince
from vldebias.losses.sigmoid import SigmoidLoss, sigmoid
from vldebias.losses.spread import SpreadLoss, spread

__all__ = [
    "ContrastiveLoss",
    "DebiasedContrastiveLoss",
    "GCELoss",
    "GlobalContrastiveLoss",
    "GroupWeights",
    "HardNegativeContrastiveLoss",
    "InfoNCELoss",
    "RINCELoss",
    "SigmoidLoss",
    "SpreadLoss",
    "Temperature",
    "debiased_contrastive",
    "estimate_popularity",
    "gather_rows",
    "generalized_cross_entropy",
    "hard_negative_contrastive",
    "info_nce",
    "mutual_information_bound",
    "q_warmup",
    "rince",
    "sigmoid",
    "spread",
    "wasserstein_dependency_bound",
]
