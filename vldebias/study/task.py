"""Define what a task is: its settings, and a `measure` that takes inputs by name.

A new kind of task is a subclass of `Task`, or of `ImageTask` where images are compared with texts,
with a `task: Literal["..."] = "..."`, its fields and `measure`; `register_task`, or an entry point
of the group "vldebias.tasks", makes it known to `vldebias.evaluate(task=...)`, to suites and to the
command line.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, model_validator
from pydantic_core import to_jsonable_python

from vldebias.errors import InvalidInputError, shortened
from vldebias.methods import METHODS, Compared, get_compared
from vldebias.methods.results import RERANKINGS
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import TaskResult
from vldebias.study.inputs import Data, Inputs
from vldebias.utils.options import Options
from vldebias.utils.registry import Registry
from vldebias.utils.schema import SEVERAL, Count, Name, Number, Strict, named_by

T = TypeVar("T", bound="Task")

# A prompt set by name, by file, or itself; it is loaded when the task is read.
Prompts = Annotated[
    InstanceOf[PromptSet],
    BeforeValidator(load_prompts),
    PlainSerializer(lambda prompts: [prompts.name, prompts.hash]),
]
SeveralPrompts = Annotated[tuple[Prompts, ...], SEVERAL]

# Settings that a flag of the command line replaces.
USERS_CHOICES = (
    "resamples",
    "methods",
    "lam",
    "images",
    "steps",
    "guidance",
    "seeds",
    "prompts_file",
)


class Task(Strict, ABC):
    """Define one block of a suite; subclasses name their kind,
    `task: Literal["groups"] = "groups"`.

    name: of its block in the result. title: what a report calls it. resamples, seed: of the
    bootstrap.
    """

    task: str
    name: Name
    title: str
    resamples: Count = 2000
    seed: Annotated[int, Field(ge=0), Number] = 0

    @model_validator(mode="before")
    @classmethod
    def _some_fields(cls, fields: Any) -> Any:
        if not fields:
            raise ValueError(
                "got no fields; expected name= and title=, or, to register the task, pass its"
                f" class: register_task({cls.__name__})"
            )
        return fields

    @abstractmethod
    def measure(self, *args: Any, **inputs: Any) -> list[TaskResult]:
        """Measure inputs, by name; several results if the task has several blocks, such as one per
        attribute."""

    def measured(self, inputs: Mapping[str, Any]) -> list[TaskResult]:
        """Return the results of `measure` for the inputs that its arguments name, with the title
        and the colour of each method in the provenance."""
        # By the names of its arguments: a new task declares what it needs by taking it, and opens
        # nothing.
        arguments = {name: inputs[name] for name in self.input_names() if name in inputs}
        results = self.measure(**arguments)
        if not isinstance(results, list) or not all(isinstance(r, TaskResult) for r in results):
            received = repr(results)
            if isinstance(results, TaskResult):
                received = "a TaskResult"
            raise InvalidInputError(
                f"task {self.task!r}: measure returned {shortened(received, 100)}; expected a list"
                " of TaskResult: end it with `return [result]`"
            )
        for result in results:
            methods = result.provenance.methods
            result.provenance.methods = with_looks(methods, self.compared_methods())
        return results

    def compared_methods(self) -> Sequence[Compared]:
        """Return the methods of the task that no registry may have, such as the user's own."""
        return ()

    @classmethod
    def input_names(cls) -> list[str]:
        """Return the names of the inputs of `measure`."""
        return [name for name in inspect.signature(cls.measure).parameters if name != "self"]

    def splits(self) -> dict[str, Data]:
        """Return name of an input -> the split of a data set that the task's settings name."""
        return {}

    def check_sources(self, names: Container[str]) -> None:
        """Raise InvalidInputError where a split that the task needs is not among these names."""

    def prepare(self, inputs: Inputs) -> dict[str, Any]:
        """Return name -> input that the task makes itself, such as a judge that its settings name.

        All of them count for the key by which a suite finds what it has measured before.
        """
        return {}

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, Any]) -> Self:
        """Return the task that `vldebias.evaluate` measures; its defaults may depend on the inputs.

        Args:
            inputs: what the user passed.
            settings: the task's settings by name.

        Raises:
            InvalidInputError: a setting is missing, wrong or unknown to the task.
        """
        return cls.build(settings)

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that an image-text model embeds for the task; a file of embeddings
        must have them."""
        return ()

    def settings(self, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of a `TaskProvenance`: the task's own fields, and what only measuring
        knows."""
        elsewhere = {"task", "name", "title", "methods"}  # in the provenance
        # `model_dump` with a fallback is new in pydantic 2.11; hosts with transformers 4 pin 2.10.
        task_fields = to_jsonable_python(
            self, exclude=elsewhere, exclude_none=True, by_alias=False, fallback=str
        )
        return {**task_fields, **(measured or {})}

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's choices in place of its own, where they have the name of
        a setting."""
        settings = dict(self)
        for name in USERS_CHOICES:
            choice = getattr(options, name)
            # Validated, where `model_copy(update=...)` would not check the user's choice.
            if name in settings and choice is not None and choice != ():
                settings[name] = choice
        return type(self).build(settings)


def with_looks(
    facts_of_method: Mapping[str, Mapping[str, Any]], compared: Sequence[Compared] = ()
) -> dict[str, dict[str, Any]]:
    """Return the facts of each method with its title and its colour in charts.

    They are written when a method is measured, so that a page needs no registry: it may be rendered
    where the package of a method is not installed. Names that are no method's, such as that of a
    saved edit, stay as they are.

    Args:
        facts_of_method: name of a method -> its facts.
        compared: methods that may not be registered; they take precedence over the registry.
    """
    method_of_name = {method.name: method for method in compared}
    described = {}
    for name, facts in facts_of_method.items():
        method = method_of_name.get(name)
        if method is None and (name in METHODS or name in RERANKINGS):
            method = get_compared(name)
        described[name] = dict(facts)
        if method is not None:
            described[name] |= {
                "title": method.declaration.title,
                "color": method.declaration.color,
            }
    return described


TASKS: Registry[type[Task]] = Registry(
    "task",
    "vldebias.tasks",
    named_by(Task, "task"),
    modules={
        "generation": "vldebias.study.tasks.generation",
        "groups": "vldebias.study.tasks.groups",
        "people": "vldebias.study.tasks.people",
        "retrieval": "vldebias.study.tasks.retrieval",
        "shares": "vldebias.study.shares.task",
        "texts": "vldebias.study.tasks.texts",
    },
)


def register_task(kind: type[T]) -> type[T]:
    """Register a kind of task for `vldebias.evaluate` and suites, as a decorator; refuse one
    without its own name."""
    TASKS.register(kind)
    return kind
