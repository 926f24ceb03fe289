"""Evaluators: what did a method change, what did it cost, how sure are we."""

from vldebias.evaluation.annotations import evaluate_annotations
from vldebias.evaluation.arrays import evaluate
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.grids import grid
from vldebias.evaluation.groups import GroupsTask
from vldebias.evaluation.report.comparison import compare
from vldebias.evaluation.report.pages import render
from vldebias.evaluation.result import Measurement, Provenance, Result, TaskResult
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.run import run_suite
from vldebias.evaluation.suite import Suite, list_suites, load_suite
from vldebias.evaluation.task import Options, Session, Task
from vldebias.evaluation.texts import Texts, TextTable

__all__ = [
    "GenerationTask",
    "GroupsTask",
    "Measurement",
    "Options",
    "Provenance",
    "Result",
    "RetrievalTask",
    "Session",
    "Suite",
    "Task",
    "TaskResult",
    "TextTable",
    "Texts",
    "compare",
    "evaluate",
    "evaluate_annotations",
    "grid",
    "list_suites",
    "load_suite",
    "render",
    "run_suite",
]
