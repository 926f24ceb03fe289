"""Mitigate and measure bias in vision-language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vldebias.errors import missing_extra

__version__ = "0.4.0"

if TYPE_CHECKING:
    from vldebias import losses, methods, metrics
    from vldebias.api import debias, fit_projection, fit_projections, fit_shares, inspect
    from vldebias.edits.hub import push_to_hub
    from vldebias.edits.projection import CalibratedProjection
    from vldebias.hosts import Attachment, attachment_of
    from vldebias.hosts.loading import load_host
    from vldebias.methods import Reference, load_edit
    from vldebias.prompts import PromptSet, list_prompts, load_prompts, make_prompt_set
    from vldebias.prompts.balance import BalancedPrompts, balance_prompts
    from vldebias.queries import DebiasedQueries, debias_queries
    from vldebias.reranking import rerank
    from vldebias.study import audit, compare, diagnose, evaluate, grid

# Name -> where it lives. Loaded when first asked for, so that the command line starts without
# torch.
_HOMES = {
    **dict.fromkeys(
        ("debias", "fit_projection", "fit_projections", "fit_shares", "inspect"), "api"
    ),
    **dict.fromkeys(("audit", "compare", "diagnose", "evaluate", "grid"), "study"),
    **dict.fromkeys(("Attachment", "attachment_of"), "hosts"),
    **dict.fromkeys(("Reference", "load_edit"), "methods"),
    **dict.fromkeys(("PromptSet", "list_prompts", "load_prompts", "make_prompt_set"), "prompts"),
    **dict.fromkeys(("BalancedPrompts", "balance_prompts"), "prompts"),
}
_HOMES |= {
    "push_to_hub": "edits.hub",
    "CalibratedProjection": "edits.projection",
    "load_host": "hosts.loading",
    "DebiasedQueries": "queries",
    "debias_queries": "queries",
    "rerank": "reranking",
}
__all__ = ["losses", "methods", "metrics"]
__all__ += [
    "debias",
    "debias_queries",
    "fit_projection",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vldebias' has no attribute {name!r}")
    try:
        home = import_module(f"vldebias.{_HOMES.get(name, name)}")
    except ModuleNotFoundError as error:
        # The core is text alone: what needs torch says which extra brings it.
        named = missing_extra(error)
        if named is None:
            raise
        raise named from None
    globals()[name] = getattr(home, name) if name in _HOMES else home
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
