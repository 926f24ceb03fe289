"""Evaluate a method: measure what it changes, what it costs, and how certain both figures are."""

from vldebias.judge.judges import VlmJudge
from vldebias.options import Options
from vldebias.report.compare import compare
from vldebias.report.page import render
from vldebias.report.result import Result, TaskResult
from vldebias.study.auditing.advice import audit
from vldebias.study.diagnosis import diagnose
from vldebias.study.evaluating import evaluate
from vldebias.study.grids import grid
from vldebias.study.running import run_suite
from vldebias.study.shares.task import SharesTask
from vldebias.study.suite import Suite, load_suite
from vldebias.study.task import TASKS, Task, register_task
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.groups import GroupsTask
from vldebias.study.tasks.people import PeopleTask
from vldebias.study.tasks.retrieval import RetrievalTask
from vldebias.study.tasks.texts import TextsTask

__all__ = [
    "TASKS",
    "GenerationTask",
    "GroupsTask",
    "Options",
    "PeopleTask",
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
