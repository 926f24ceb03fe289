"""Evaluators: what did a method change, what did it cost, how sure are we."""

from typing import NoReturn

from vldebias.evaluation.annotations import AnnotationsTask
from vldebias.evaluation.arrays import evaluate
from vldebias.evaluation.auditing import AuditTask, audit
from vldebias.evaluation.diagnosis import DiagnoseTask, diagnose
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.grids import grid
from vldebias.evaluation.groups import GroupsTask
from vldebias.evaluation.label_rates import LabelRatesTask
from vldebias.evaluation.pairs import TextsTask
from vldebias.evaluation.report.comparison import compare
from vldebias.evaluation.report.pages import render
from vldebias.evaluation.result import Measurement, Result, TaskProvenance, TaskResult
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.run import run_suite
from vldebias.evaluation.shares import SharesTask
from vldebias.evaluation.suite import Suite, list_suites, load_suite
from vldebias.evaluation.task import GONE, TASKS, Options, Session, Task, register_task
from vldebias.evaluation.texts import Texts, TextTable

Provenance = TaskProvenance  # its name up to 0.2

__all__ = [
    "TASKS",
    "AnnotationsTask",
    "AuditTask",
    "DiagnoseTask",
    "GenerationTask",
    "GroupsTask",
    "LabelRatesTask",
    "Measurement",
    "Options",
    "Provenance",
    "Result",
    "RetrievalTask",
    "Session",
    "SharesTask",
    "Suite",
    "Task",
    "TaskProvenance",
    "TaskResult",
    "TextTable",
    "Texts",
    "TextsTask",
    "audit",
    "compare",
    "diagnose",
    "evaluate",
    "grid",
    "list_suites",
    "load_suite",
    "register_task",
    "render",
    "run_suite",
]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"module 'vldebias.evaluation' has no {name!r}" + (f": {GONE[name]}" if name in GONE else ""))
