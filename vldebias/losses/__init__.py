"""Compute contrastive losses of images and captions or two views: functions, modules that hold the
settings, and a declaration of each loss."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.losses.bounds import mutual_information_bound, wasserstein_dependency_bound
    from vldebias.losses.catalog import LOSSES, Loss, register_loss
    from vldebias.losses.contrast import Contrast, ContrastiveLoss, Temperature
    from vldebias.losses.debiased import (
        DebiasedContrastiveLoss,
        HardNegativeContrastiveLoss,
        debiased_contrastive,
        hard_negative_contrastive,
    )
    from vldebias.losses.gce_loss import GCELoss, generalized_cross_entropy
    from vldebias.losses.global_contrastive import GlobalContrastiveLoss, estimate_popularity
    from vldebias.losses.groups import GroupWeights
    from vldebias.losses.info_nce_loss import InfoNCELoss, info_nce
    from vldebias.losses.processes import gather_rows
    from vldebias.losses.rince_loss import RINCELoss, q_warmup, rince
    from vldebias.losses.sigmoid_loss import SigmoidLoss, sigmoid
    from vldebias.losses.spread_loss import SpreadLoss, spread
    from vldebias.losses.supcon_loss import SupConLoss, supcon

# Imported when first used: the declarations of the losses are read without torch. No module has
# the name of a function, which importing the module would hide.
_NAMES_OF_HOME = {
    "vldebias.losses.bounds": ("mutual_information_bound", "wasserstein_dependency_bound"),
    "vldebias.losses.catalog": ("LOSSES", "Loss", "register_loss"),
    "vldebias.losses.contrast": ("Contrast", "ContrastiveLoss", "Temperature"),
    "vldebias.losses.debiased": (
        "DebiasedContrastiveLoss",
        "HardNegativeContrastiveLoss",
        "debiased_contrastive",
        "hard_negative_contrastive",
    ),
    "vldebias.losses.gce_loss": ("GCELoss", "generalized_cross_entropy"),
    "vldebias.losses.global_contrastive": ("GlobalContrastiveLoss", "estimate_popularity"),
    "vldebias.losses.groups": ("GroupWeights",),
    "vldebias.losses.info_nce_loss": ("InfoNCELoss", "info_nce"),
    "vldebias.losses.processes": ("gather_rows",),
    "vldebias.losses.rince_loss": ("RINCELoss", "q_warmup", "rince"),
    "vldebias.losses.sigmoid_loss": ("SigmoidLoss", "sigmoid"),
    "vldebias.losses.spread_loss": ("SpreadLoss", "spread"),
    "vldebias.losses.supcon_loss": ("SupConLoss", "supcon"),
}
__all__ = [
    "LOSSES",
    "Contrast",
    "ContrastiveLoss",
    "DebiasedContrastiveLoss",
    "GCELoss",
    "GlobalContrastiveLoss",
    "GroupWeights",
    "HardNegativeContrastiveLoss",
    "InfoNCELoss",
    "Loss",
    "RINCELoss",
    "SigmoidLoss",
    "SpreadLoss",
    "SupConLoss",
    "Temperature",
    "debiased_contrastive",
    "estimate_popularity",
    "gather_rows",
    "generalized_cross_entropy",
    "hard_negative_contrastive",
    "info_nce",
    "mutual_information_bound",
    "q_warmup",
    "register_loss",
    "rince",
    "sigmoid",
    "spread",
    "supcon",
    "wasserstein_dependency_bound",
]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
