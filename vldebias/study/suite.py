"""Load suites, which are YAML files that list tasks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from vldebias.errors import InvalidInputError
from vldebias.study.task import TASKS, Task
from vldebias.utils.files import explain, read_yaml
from vldebias.utils.names import suite_path
from vldebias.utils.schema import Name, Strict, one_of

AnyTask = Annotated[SerializeAsAny[Task], one_of(TASKS, "task")]


class Suite(Strict):
    """The content of a suite file.

    Attributes:
        name: name of the suite, such as "waterbirds".
        title: title in reports.
        description: what the suite measures.
        source: publication that the suite follows.
        needs: what the user must provide, for `eval list` and for messages.
        host: default model and pipeline; "miniature" for the packaged ones.
        headline: (task, metric) of the rows shown in the terminal. If empty, all rows without a
            subset are shown.
        tasks: the tasks to run, in this order.
    """

    name: Name
    title: str
    description: str
    source: str
    needs: str
    host: Literal["miniature"] | None = None
    headline: tuple[tuple[str, str], ...] = ()
    tasks: Annotated[tuple[AnyTask, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_tasks(self) -> Suite:
        names = set()
        for task in self.tasks:
            if task.name in names:
                raise ValueError(f"got two tasks with the name {task.name!r}; rename one of them")
            # Names must be unique, because they are used in file names and row keys.
            names.add(task.name)
            task.check_sources(task.splits())
        return self

    def texts(self) -> tuple[str, ...]:
        """Return all prompts that an image-text model must embed for the suite."""
        return tuple(dict.fromkeys(chain(*(task.texts() for task in self.tasks))))


def load_suite(name_or_path: str | Path) -> Suite:
    """Load a suite by name, or from a YAML file.

    Raises:
        InvalidInputError: If there is no such suite, or a key is invalid. The message names the
            key.
    """
    path = suite_path(name_or_path)
    try:
        # Use the file name as the suite name, unless the file contains `name`.
        return Suite.model_validate({"name": path.stem.lower(), **read_yaml(path)})
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {explain(error)}") from error
