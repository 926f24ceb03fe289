"""Suites: tasks in a YAML file, by name or path; a mistake is answered with where it is and what was expected."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.task import TASKS, Name, Strict, Task, explain, one_of
from vldebias.files import read_yaml, suite_file, suite_names

_ENDINGS = (".yaml", ".yml")


class Suite(Strict):
    """What one YAML file holds. needs: what the user has to bring, for `eval list` and for messages.

    host: weights that are used unless the command line names others: "miniature" for the embedded world.
    headline: (task, metric) of the rows that the terminal shows; all wholes where there are none.
    """

    name: Name
    title: str
    description: str
    source: str
    needs: str
    host: Literal["miniature"] | None = None
    headline: tuple[tuple[str, str], ...] = ()
    tasks: Annotated[tuple[Annotated[SerializeAsAny[Task], one_of(TASKS, "task")], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _different_names(self) -> Suite:
        names = [task.name for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tasks are called {twice[0]!r}; give each its own name")
        return self

    @classmethod
    def of_task(
        cls,
        task: Task,
        *,
        title: str,
        description: str,
        source: str,
        needs: str,
        headline: Iterable[tuple[str, str]] = (),
    ) -> Suite:
        """The suite of one task that a command of its own asks, called like it."""
        fields = {"title": title, "description": description, "source": source, "needs": needs}
        return cls.build({"name": task.name, **fields, "headline": tuple(headline), "tasks": (task,)})

    def only(self, names: Iterable[str]) -> Suite:
        """The suite with some of its tasks; all of them where no name is given.

        Raises:
            InvalidInputError: no task of that name; the message lists them.
        """
        chosen, there = list(names), [task.name for task in self.tasks]
        for name in chosen:
            if name not in there:
                raise InvalidInputError(
                    f"{self.name}: no task {name!r}; expected one of {', '.join(there)}; {did_you_mean(name, there)}"
                )
        return self.model_copy(update={"tasks": tuple(t for t in self.tasks if not chosen or t.name in chosen)})

    def of_attributes(self, names: Collection[str]) -> Suite:
        """The retrieval of some attributes alone; all of the suite where no name is given.

        Raises:
            InvalidInputError: no attribute of that name; the message lists them.
        """
        if not names:
            return self
        tasks = [task for task in self.tasks if isinstance(task, RetrievalTask)]
        there = list(dict.fromkeys(attribute for task in tasks for attribute in task.prompts))
        for name in names:
            if name not in there:
                raise InvalidInputError(
                    f"{self.name}: no attribute {name!r}; expected "
                    f"{f'one of {there}; {did_you_mean(name, there)}' if there else 'a suite with retrieval'}"
                )
        chosen = (task.of_attributes(names) for task in tasks)
        return self.model_copy(update={"tasks": tuple(task for task in chosen if task.prompts)})

    def texts(self) -> tuple[str, ...]:
        """Every prompt that an image-text model embeds for it."""
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.texts()))


def list_suites() -> list[str]:
    """Names of the suites that come with the package."""
    return suite_names()


def load_suite(name_or_path: str | Path) -> Suite:
    """A suite by name, or from a YAML file.

    Raises:
        InvalidInputError: an unknown name, or a file that cannot be read or does not follow the schema; the message
            names the key, what came and what was expected. PromptSetError: a prompt set that does not exist.
    """
    path = suite_path(name_or_path)
    content = read_yaml(path)
    try:
        return Suite.model_validate({"name": path.stem.lower(), **content})
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {explain(error, Suite)}") from error


def suite_path(name_or_path: str | Path) -> Path:
    """The file of a suite: a Path, or a text with a folder or .yaml in it, is one; a name is looked up."""
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in _ENDINGS or len(path.parts) > 1:
        return path.expanduser()
    return suite_file(str(name_or_path))
