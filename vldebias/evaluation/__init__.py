"""Evaluators: what did a projection change, what did it cost, how sure are we."""

from vldebias.evaluation.generation.evaluator import evaluate_generation
from vldebias.evaluation.groups.evaluator import evaluate_groups
from vldebias.evaluation.human.evaluator import evaluate_annotations
from vldebias.evaluation.part import Part
from vldebias.evaluation.report.comparison import compare
from vldebias.evaluation.report.pages import render
from vldebias.evaluation.result import Figure, Protocol, Result
from vldebias.evaluation.retrieval.evaluator import Utility, evaluate_retrieval
from vldebias.evaluation.suites.load import Suite, list_suites, load_suite
from vldebias.evaluation.suites.runner import run_suite
from vldebias.evaluation.suites.session import Options
from vldebias.evaluation.texts import Texts, TextTable

__all__ = [
    "Figure",
    "Options",
    "Part",
    "Protocol",
    "Result",
    "Suite",
    "TextTable",
    "Texts",
    "Utility",
    "compare",
    "evaluate_annotations",
    "evaluate_generation",
    "evaluate_groups",
    "evaluate_retrieval",
    "list_suites",
    "load_suite",
    "render",
    "run_suite",
]
