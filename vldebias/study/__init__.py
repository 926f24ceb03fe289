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
_get, _, _names = lazy_names(__name__, programs.home_of_name("study"))
__all__ = sorted([*_names, *programs.names_without_extra("study")])

# Type checkers cannot see the names of programs, so treat them as Any.
__getattr__: "Callable[[str], Any]" = _get


def __dir__() -> list[str]:
    return sorted(__all__)
