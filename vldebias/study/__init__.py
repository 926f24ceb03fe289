"""Measure the effect and the cost of methods, with confidence intervals."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.auditing.advice import audit
    from vldebias.judge.judges import VlmJudge
    from vldebias.report.compare import compare
    from vldebias.report.page import render
    from vldebias.report.result import Result, TaskResult
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
    from vldebias.utils.options import Options

# Import names on first use, because a task on features does not need a judge, an audit or a
# diagnosis.
_NAMES_OF_HOME = {
    "vldebias.judge.judges": ("VlmJudge",),
    "vldebias.utils.options": ("Options",),
    "vldebias.report.compare": ("compare",),
    "vldebias.report.page": ("render",),
    "vldebias.report.result": (
        "Result",
        "TaskResult",
    ),
    "vldebias.auditing.advice": ("audit",),
    "vldebias.study.diagnosis": ("diagnose",),
    "vldebias.study.evaluating": ("evaluate",),
    "vldebias.study.grids": ("grid",),
    "vldebias.study.running": ("run_suite",),
    "vldebias.study.shares.task": ("SharesTask",),
    "vldebias.study.suite": (
        "Suite",
        "load_suite",
    ),
    "vldebias.study.task": (
        "TASKS",
        "Task",
        "register_task",
    ),
    "vldebias.study.tasks.generation": ("GenerationTask",),
    "vldebias.study.tasks.groups": ("GroupsTask",),
    "vldebias.study.tasks.people": ("PeopleTask",),
    "vldebias.study.tasks.retrieval": ("RetrievalTask",),
    "vldebias.study.tasks.texts": ("TextsTask",),
}
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

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
