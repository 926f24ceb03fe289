"""Provide methods that mitigate bias: closed forms, defaults, and methods from other papers.

`METHODS` maps names to methods. Add a method with `register_method`, or through the entry point
group "vldebias.methods".
"""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.methods.attaching import AttachSettings as AttachSettings
    from vldebias.methods.balanced import Balanced as Balanced
    from vldebias.methods.closed_form import ClosedForm as ClosedForm
    from vldebias.methods.closed_form import Term as Term
    from vldebias.methods.cross_attention import CrossAttention as CrossAttention
    from vldebias.methods.declared import DECLARED as DECLARED
    from vldebias.methods.declared import Declaration as Declaration
    from vldebias.methods.declared import Need as Need
    from vldebias.methods.diagnostics import Diagnostics as Diagnostics
    from vldebias.methods.labelled_rows import labelled as labelled
    from vldebias.methods.loading import load_edit as load_edit
    from vldebias.methods.method import METHODS as METHODS
    from vldebias.methods.method import EditMethod as EditMethod
    from vldebias.methods.method import Method as Method
    from vldebias.methods.method import Problem as Problem
    from vldebias.methods.method import get_edit_method as get_edit_method
    from vldebias.methods.method import get_method as get_method
    from vldebias.methods.method import register_method as register_method
    from vldebias.methods.reference import Reference as Reference
    from vldebias.methods.results import Compared as Compared
    from vldebias.methods.results import Rerank as Rerank
    from vldebias.methods.results import get_compared as get_compared

# These names are imported on first use, so that declarations can be used without importing torch.
__getattr__, __dir__, __all__ = lazy_names(__name__)
