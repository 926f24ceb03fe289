"""Evaluators: what did a projection change, what did it cost, how sure are we."""

from vldebias.evaluation.result import Figure, Protocol, Result

__all__ = ["Figure", "Protocol", "Result"]
