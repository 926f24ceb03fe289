"""Re-rank search results, given their scores and groups.

`rerank` is the entry point. Its order, the quota, is a function of `Candidates` and k, and you can
pass your own.
"""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.reranking.candidates import Candidates as Candidates
    from vldebias.reranking.checks import true_shares as true_shares
    from vldebias.reranking.entry import rerank as rerank
    from vldebias.reranking.orders import quota as quota
    from vldebias.reranking.report import Positions as Positions
    from vldebias.reranking.report import Report as Report

# These names are imported on first use, because the re-rankers need torch.
__getattr__, __dir__, __all__ = lazy_names(__name__)
