"""Measure the effect and the cost of methods, with confidence intervals."""

from typing import TYPE_CHECKING

from vldebias import programs
from vldebias.errors import lazy_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from vldebias.measure.rows import TaskResult as TaskResult
    from vldebias.report.result import Result as Result
    from vldebias.study.running import run_suite as run_suite
    from vldebias.study.suite import load_suite as load_suite
    from vldebias.study.task import TASKS as TASKS
    from vldebias.study.task import Task as Task
    from vldebias.study.task import register_task as register_task

# Import names on first use, because a task on tables does not need torch.
_NAMES_OF_HOME = {
    "vldebias.measure.rows": ("TaskResult",),
    "vldebias.report.result": ("Result",),
    "vldebias.study.running": ("run_suite",),
    "vldebias.study.suite": ("load_suite",),
    "vldebias.study.task": ("TASKS", "Task", "register_task"),
}
_NAMES = {name for names in _NAMES_OF_HOME.values() for name in names}
__all__ = sorted([*_NAMES, *programs.names_without_extra("study")])

# Type checkers cannot see the names of programs, so treat them as Any.
__getattr__: "Callable[[str], Any]" = lazy_names(
    __name__, _NAMES_OF_HOME | programs.names_of_home("study")
)


def __dir__() -> list[str]:
    return sorted(__all__)
