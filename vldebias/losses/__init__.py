"""Contrastive losses, for images and captions or two views: functions hold the mathematics, modules the settings."""

from vldebias.losses.bounds import mutual_information_bound, wasserstein_dependency_bound
from vldebias.losses.debiased import DebiasedContrastiveLoss, debiased_contrastive
from vldebias.losses.global_contrastive import GlobalContrastiveLoss
from vldebias.losses.hard_negative import HardNegativeContrastiveLoss, hard_negative_contrastive
from vldebias.losses.infonce import InfoNCELoss, info_nce
from vldebias.losses.module import ContrastiveLoss, Temperature
from vldebias.losses.popularity import Popularity, estimate_popularity, popularity_objective
from vldebias.losses.processes import gather_rows
from vldebias.losses.robust import RINCELoss, rince
from vldebias.losses.schedules import beta_annealing, q_warmup
from vldebias.losses.siglip import SigmoidLoss, sigmoid
from vldebias.losses.supervised import SpreadLoss, spread

__all__ = [
    "ContrastiveLoss",
    "DebiasedContrastiveLoss",
    "GlobalContrastiveLoss",
    "HardNegativeContrastiveLoss",
    "InfoNCELoss",
    "Popularity",
    "RINCELoss",
    "SigmoidLoss",
    "SpreadLoss",
    "Temperature",
    "beta_annealing",
    "debiased_contrastive",
    "estimate_popularity",
    "gather_rows",
    "hard_negative_contrastive",
    "info_nce",
    "mutual_information_bound",
    "popularity_objective",
    "q_warmup",
    "rince",
    "sigmoid",
    "spread",
    "wasserstein_dependency_bound",
]
