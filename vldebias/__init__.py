"""Mitigate and measure bias in vision-language models."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names
from vldebias.version import __version__ as __version__

if TYPE_CHECKING:
    from vldebias import losses, methods, metrics
    from vldebias.api import debias, fit_projections, fit_shares, inspect
    from vldebias.auditing.advice import audit
    from vldebias.hosts import Attachment, attachment_of
    from vldebias.hosts.loading import load_host
    from vldebias.methods import Reference, load_edit
    from vldebias.projection.hub import push_to_hub
    from vldebias.projection.projection import CalibratedProjection
    from vldebias.prompts import PromptSet, list_prompts, load_prompts, make_prompt_set
    from vldebias.queries import DebiasedQueries, debias_queries
    from vldebias.report.compare import compare
    from vldebias.reranking import rerank
    from vldebias.study.diagnosis import diagnose
    from vldebias.study.evaluating import evaluate
    from vldebias.study.grids import grid
    from vldebias.wording.balance import BalancedPrompts, balance_prompts

# These names are imported on first use, so that the command line starts without torch.
_NAMES_OF_HOME = {
    "vldebias.api": ("debias", "fit_projections", "fit_shares", "inspect"),
    "vldebias.projection.hub": ("push_to_hub",),
    "vldebias.projection.projection": ("CalibratedProjection",),
    "vldebias.hosts": ("Attachment", "attachment_of"),
    "vldebias.hosts.loading": ("load_host",),
    "vldebias.losses": ("losses",),
    "vldebias.methods": ("methods", "Reference", "load_edit"),
    "vldebias.metrics": ("metrics",),
    "vldebias.prompts": ("PromptSet", "list_prompts", "load_prompts", "make_prompt_set"),
    "vldebias.queries": ("DebiasedQueries", "debias_queries"),
    "vldebias.reranking": ("rerank",),
    "vldebias.auditing.advice": ("audit",),
    "vldebias.report.compare": ("compare",),
    "vldebias.study.diagnosis": ("diagnose",),
    "vldebias.study.evaluating": ("evaluate",),
    "vldebias.study.grids": ("grid",),
    "vldebias.wording": ("BalancedPrompts", "balance_prompts"),
}
__all__ = ["losses", "methods", "metrics"]
__all__ += [
    "debias",
    "debias_queries",
    "fit_projections",
    "fit_shares",
    "inspect",
    "load_host",
    "push_to_hub",
    "rerank",
]
__all__ += ["audit", "compare", "diagnose", "evaluate", "grid"]
__all__ += [
    "Attachment",
    "CalibratedProjection",
    "DebiasedQueries",
    "Reference",
    "attachment_of",
    "load_edit",
]
__all__ += [
    "BalancedPrompts",
    "PromptSet",
    "balance_prompts",
    "list_prompts",
    "load_prompts",
    "make_prompt_set",
]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
