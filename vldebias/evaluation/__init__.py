"""Evaluate a method: measure what it changes, what it costs, and how certain both figures are."""

from vldebias.evaluation.auditing import audit
from vldebias.evaluation.diagnosis import diagnose
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.groups import GroupsTask, TextsTask
from vldebias.evaluation.judges import VlmJudge
from vldebias.evaluation.report import compare, render
from vldebias.evaluation.result import Result, TaskResult
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.run import Suite, evaluate, load_suite, run_suite
from vldebias.evaluation.shares import SharesTask
from vldebias.evaluation.task import TASKS, Task, register_task
from vldebias.evaluation.variants import grid
from vldebias.options import Options

__all__ = [
    "TASKS",
    "GenerationTask",
    "GroupsTask",
    "Options",
    "Result",
    "RetrievalTask",
    "SharesTask",
    "Suite",
    "Task",
    "TaskResult",
    "TextsTask",
    "VlmJudge",
    "audit",
    "compare",
    "diagnose",
    "evaluate",
    "grid",
    "load_suite",
    "register_task",
    "render",
    "run_suite",
]
