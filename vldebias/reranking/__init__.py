"""Re-rank search results, given their scores and groups.

`rerank` is the entry point. A method is a function of `Candidates` and k, and you can pass your
own.
"""

from vldebias.reranking.candidates import Candidates
from vldebias.reranking.checks import true_shares
from vldebias.reranking.entry import RERANKERS, rerank
from vldebias.reranking.orders import fair, quota
from vldebias.reranking.proportional import mopr
from vldebias.reranking.report import Positions, Report

__all__ = [
    "RERANKERS",
    "Candidates",
    "Positions",
    "Report",
    "fair",
    "mopr",
    "quota",
    "rerank",
    "true_shares",
]
