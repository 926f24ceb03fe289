"""Evaluators: what did a projection change, what did it cost, how sure are we."""

from vldebias.evaluation.compare import compare
from vldebias.evaluation.generation import evaluate_generation
from vldebias.evaluation.groups import evaluate_groups
from vldebias.evaluation.human import evaluate_annotations
from vldebias.evaluation.part import Part
from vldebias.evaluation.report import render
from vldebias.evaluation.result import Figure, Protocol, Result
from vldebias.evaluation.retrieval import Utility, evaluate_retrieval
from vldebias.evaluation.runner import run_suite
from vldebias.evaluation.session import Options
from vldebias.evaluation.suites import Suite, list_suites, load_suite
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
