"""Attach methods and fit edits: closed forms, defaults, and methods from other papers.

`METHODS` maps names to methods. Add a method with `register_method`, or through the entry point
group "vldebias.methods".
"""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.methods.attaching import AttachSettings
    from vldebias.methods.balanced import Balanced
    from vldebias.methods.baselines.queries import Lian
    from vldebias.methods.closed_form import ClosedForm, Term
    from vldebias.methods.cross_attention import CrossAttention, attach_fitted, prompt_set_of
    from vldebias.methods.declared import DECLARED, Declaration, Need
    from vldebias.methods.diagnostics import Diagnostics
    from vldebias.methods.loading import load_edit
    from vldebias.methods.method import (
        METHODS,
        EditMethod,
        Method,
        Problem,
        Prompts,
        get_edit_method,
        get_method,
        register_method,
    )
    from vldebias.methods.reference import Reference, labelled
    from vldebias.methods.results import Compared, Rerank, get_compared
    from vldebias.methods.target_shares import RankShares, TargetShares

# Loaded lazily, so that declarations can be used without importing torch.
_NAMES_OF_HOME = {
    "vldebias.methods.attaching": ("AttachSettings",),
    "vldebias.methods.balanced": ("Balanced",),
    "vldebias.methods.baselines.queries": ("Lian",),
    "vldebias.methods.closed_form": ("ClosedForm", "Term"),
    "vldebias.methods.cross_attention": ("CrossAttention", "attach_fitted", "prompt_set_of"),
    "vldebias.methods.declared": ("DECLARED", "Declaration", "Need"),
    "vldebias.methods.diagnostics": ("Diagnostics",),
    "vldebias.methods.loading": ("load_edit",),
    "vldebias.methods.method": (
        "METHODS",
        "EditMethod",
        "Method",
        "Problem",
        "Prompts",
        "get_edit_method",
        "get_method",
        "register_method",
    ),
    "vldebias.methods.reference": ("Reference", "labelled"),
    "vldebias.methods.results": ("Compared", "Rerank", "get_compared"),
    "vldebias.methods.target_shares": ("RankShares", "TargetShares"),
}
__all__ = [
    "DECLARED",
    "METHODS",
    "AttachSettings",
    "Balanced",
    "ClosedForm",
    "Compared",
    "CrossAttention",
    "Declaration",
    "Diagnostics",
    "EditMethod",
    "Lian",
    "Method",
    "Need",
    "Problem",
    "Prompts",
    "RankShares",
    "Reference",
    "Rerank",
    "TargetShares",
    "Term",
    "attach_fitted",
    "get_compared",
    "get_edit_method",
    "get_method",
    "labelled",
    "load_edit",
    "prompt_set_of",
    "register_method",
]

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)
