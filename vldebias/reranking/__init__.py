"""Re-rank results that a search returned: scores and groups in, positions out.

`rerank` is what users call; the methods are functions of `Candidates` and k, and a function of
yours is one too.
"""

from vldebias.reranking.candidates import Candidates
from vldebias.reranking.checks import true_shares
from vldebias.reranking.entry import RERANKERS, rerank
from vldebias.reranking.orders import det_const_sort, fair, mmr, pbm, quota
from vldebias.reranking.proportional import mopr
from vldebias.reranking.report import Positions, Report

__all__ = [
    "RERANKERS",
    "Candidates",
    "Positions",
    "Report",
    "det_const_sort",
    "fair",
    "mmr",
    "mopr",
    "pbm",
    "quota",
    "rerank",
    "true_shares",
]
