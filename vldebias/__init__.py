"""vldebias: mitigate and measure bias in vision-language models."""

from vldebias import losses, metrics
from vldebias.api import debias, fit_projection, fit_projections, inspect
from vldebias.attachment import Attachment, attachment_of
from vldebias.bounded import Bound
from vldebias.equalise import Reference
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet, list_prompts, load_prompts, make_prompt_set
from vldebias.steering import steer
from vldebias.targeting import fit_shares

__version__ = "0.1.0"

__all__ = [
    "Attachment",
    "Bound",
    "CalibratedProjection",
    "PromptSet",
    "Reference",
    "attachment_of",
    "debias",
    "fit_projection",
    "fit_projections",
    "fit_shares",
    "inspect",
    "list_prompts",
    "load_prompts",
    "losses",
    "make_prompt_set",
    "metrics",
    "steer",
]
