"""Skew of retrieval, with what it costs (Table 7.5)."""

from vldebias.evaluation.retrieval.evaluator import evaluate_retrieval
from vldebias.evaluation.retrieval.utility import Utility

__all__ = ["Utility", "evaluate_retrieval"]
