"""Mitigate and measure bias in vision-language models."""

from typing import TYPE_CHECKING

from vldebias import programs
from vldebias.errors import lazy_names
from vldebias.version import __version__ as __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from vldebias import losses as losses
    from vldebias import methods as methods
    from vldebias import metrics as metrics
    from vldebias.api import debias as debias
    from vldebias.api import fit_projections as fit_projections
    from vldebias.api import text_diagnostics as text_diagnostics
    from vldebias.hosts import attachment_of as attachment_of
    from vldebias.hosts.loading import load_host as load_host
    from vldebias.methods import load_edit as load_edit
    from vldebias.projection.edit import push_to_hub as push_to_hub
    from vldebias.projection.projection import CalibratedProjection as CalibratedProjection
    from vldebias.prompts import PromptSet as PromptSet
    from vldebias.prompts import list_prompts as list_prompts
    from vldebias.prompts import load_prompts as load_prompts
    from vldebias.prompts import make_prompt_set as make_prompt_set
    from vldebias.queries import debias_queries as debias_queries
    from vldebias.report.compare import compare as compare
    from vldebias.reranking import rerank as rerank
    from vldebias.study.evaluating import evaluate as evaluate
    from vldebias.study.grids import grid as grid
    from vldebias.wording.balance import balance_prompts as balance_prompts
    from vldebias.wording.chat import ChatFinder as ChatFinder
    from vldebias.wording.neutral import neutral_texts as neutral_texts

# These names are imported on first use, so that the command line starts without torch.
_get, _, _names = lazy_names(__name__, programs.home_of_name())
_MODULES = ("losses", "methods", "metrics")  # left out by `from vldebias import *`
__all__ = sorted([*{*_names}.difference(_MODULES), *programs.names_without_extra()])

# Type checkers cannot see the names of programs, so treat them as Any.
__getattr__: "Callable[[str], Any]" = _get


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
