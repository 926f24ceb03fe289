"""Measure the effect and the cost of methods, with confidence intervals."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.auditing.advice import audit as audit
    from vldebias.judge.judges import VlmJudge as VlmJudge
    from vldebias.report.compare import compare as compare
    from vldebias.report.page import render as render
    from vldebias.report.result import Result as Result
    from vldebias.report.result import TaskResult as TaskResult
    from vldebias.study.diagnosis import diagnose as diagnose
    from vldebias.study.evaluating import evaluate as evaluate
    from vldebias.study.grids import grid as grid
    from vldebias.study.running import run_suite as run_suite
    from vldebias.study.shares.task import SharesTask as SharesTask
    from vldebias.study.stated.answers import evaluate_vqa as evaluate_vqa
    from vldebias.study.stated.captions import evaluate_captions as evaluate_captions
    from vldebias.study.suite import Suite as Suite
    from vldebias.study.suite import load_suite as load_suite
    from vldebias.study.task import TASKS as TASKS
    from vldebias.study.task import Task as Task
    from vldebias.study.task import register_task as register_task
    from vldebias.study.tasks.generation import GenerationTask as GenerationTask
    from vldebias.study.tasks.groups import GroupsTask as GroupsTask
    from vldebias.study.tasks.people import PeopleTask as PeopleTask
    from vldebias.study.tasks.retrieval import RetrievalTask as RetrievalTask
    from vldebias.study.tasks.texts import TextsTask as TextsTask
    from vldebias.utils.options import Options as Options

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
    "vldebias.study.stated.answers": ("evaluate_vqa",),
    "vldebias.study.stated.captions": ("evaluate_captions",),
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
__all__ = sorted(name for names in _NAMES_OF_HOME.values() for name in names)

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
