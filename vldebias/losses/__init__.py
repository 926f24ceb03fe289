"""Compute contrastive losses for images and captions, or for two views of each image.

Each loss is available as a function, as a module that stores its settings, and as a declaration
that does not require torch. Losses sum in blocks whose size depends on the data, so compile them
with `torch.compile(loss)`; with fullgraph=True, it raises an error.
"""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.losses.bounds import mutual_information_bound as mutual_information_bound
    from vldebias.losses.bounds import wasserstein_dependency_bound as wasserstein_dependency_bound
    from vldebias.losses.catalog import LOSSES as LOSSES
    from vldebias.losses.catalog import Loss as Loss
    from vldebias.losses.catalog import register_loss as register_loss
    from vldebias.losses.contrast import Contrast as Contrast
    from vldebias.losses.contrast import ContrastiveLoss as ContrastiveLoss
    from vldebias.losses.contrast import Temperature as Temperature
    from vldebias.losses.cyclip_loss import CyCLIP as CyCLIP
    from vldebias.losses.cyclip_loss import cyclip as cyclip
    from vldebias.losses.debiased_loss import Debiased as Debiased
    from vldebias.losses.debiased_loss import HardNegative as HardNegative
    from vldebias.losses.debiased_loss import debiased as debiased
    from vldebias.losses.debiased_loss import hard_negative as hard_negative
    from vldebias.losses.gce_loss import GCE as GCE
    from vldebias.losses.gce_loss import gce as gce
    from vldebias.losses.global_contrastive import NUCLR as NUCLR
    from vldebias.losses.global_contrastive import ISogCLR as ISogCLR
    from vldebias.losses.global_contrastive import SogCLR as SogCLR
    from vldebias.losses.global_contrastive import estimate_popularity as estimate_popularity
    from vldebias.losses.groups import GroupWeights as GroupWeights
    from vldebias.losses.info_nce_loss import InfoNCE as InfoNCE
    from vldebias.losses.info_nce_loss import info_nce as info_nce
    from vldebias.losses.processes import gather_rows as gather_rows
    from vldebias.losses.rince_loss import RINCE as RINCE
    from vldebias.losses.rince_loss import q_warmup as q_warmup
    from vldebias.losses.rince_loss import rince as rince
    from vldebias.losses.sigmoid_loss import Sigmoid as Sigmoid
    from vldebias.losses.sigmoid_loss import sigmoid as sigmoid
    from vldebias.losses.spread_loss import Spread as Spread
    from vldebias.losses.spread_loss import spread as spread
    from vldebias.losses.supcon_loss import SupCon as SupCon
    from vldebias.losses.supcon_loss import supcon as supcon

# Names are imported on first use, so that the declarations are available without torch. A module
# must not share its name with a function, because importing the module would shadow the function.
__getattr__, __dir__, __all__ = lazy_names(__name__)
