"""Group robustness: worst group, averages and gap of zero-shot classification (Tables 7.1 to 7.4, A.9)."""

from vldebias.evaluation.groups.agnostic import class_agnostic
from vldebias.evaluation.groups.evaluator import evaluate_groups

__all__ = ["class_agnostic", "evaluate_groups"]
