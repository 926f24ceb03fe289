"""Measure the effect and the cost of methods, with confidence intervals."""

from typing import TYPE_CHECKING

from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from vldebias.measure.rows import TaskResult as TaskResult
    from vldebias.report.result import Result as Result
    from vldebias.study.edits import evaluate_edits as evaluate_edits
    from vldebias.study.running import run_suite as run_suite
    from vldebias.study.shares.task import SharesTask as SharesTask
    from vldebias.study.stated.answers import evaluate_vqa as evaluate_vqa
    from vldebias.study.suite import load_suite as load_suite
    from vldebias.study.task import TASKS as TASKS
    from vldebias.study.task import Task as Task
    from vldebias.study.task import register_task as register_task

# Import names on first use, because a task on tables does not need torch.
_NAMES_OF_HOME = {
    "vldebias.measure.rows": ("TaskResult",),
    "vldebias.report.result": ("Result",),
    "vldebias.study.edits": ("evaluate_edits",),
    "vldebias.study.running": ("run_suite",),
    "vldebias.study.shares.task": ("SharesTask",),
    "vldebias.study.stated.answers": ("evaluate_vqa",),
    "vldebias.study.suite": ("load_suite",),
    "vldebias.study.task": ("TASKS", "Task", "register_task"),
}
__all__ = sorted(name for names in _NAMES_OF_HOME.values() for name in names)

__getattr__ = lazy_names(__name__, _NAMES_OF_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
