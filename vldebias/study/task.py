"""Base class and registry for evaluation tasks.

A task has settings and a `measure` method, which receives its inputs by name.

To add a kind of task, subclass `Task`, or `ImageTask` if it compares images with text. Declare
`task: Literal["..."] = "..."` and any other fields, implement `measure`, and register the class
with `register_task` or as an entry point in the group "vldebias.tasks". It can then be used in
`vldebias.evaluate(task=...)`, in suites and on the command line.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, cast

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, model_validator
from pydantic_core import to_jsonable_python

from vldebias import programs
from vldebias.errors import InvalidInputError, shortened
from vldebias.measure.rows import TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.study.split import Data
from vldebias.study.suite_texts import texts_of_task
from vldebias.utils.options import Options
from vldebias.utils.registry import Registry, check_callable
from vldebias.utils.schema import SEVERAL, Count, Name, Number, Strict, named_by

if TYPE_CHECKING:
    from vldebias.methods import Compared
    from vldebias.study.inputs import Inputs

T = TypeVar("T", bound="Task")

# A prompt set can be given as an object, a name or a file; it is loaded during validation.
AttributeField = Annotated[
    InstanceOf[PromptSet],
    BeforeValidator(load_prompts),
    PlainSerializer(lambda prompt_set: [prompt_set.name, prompt_set.hash]),
]
AttributeFields = Annotated[tuple[AttributeField, ...], SEVERAL]

# Command-line flags can override these settings.
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
    """Base class for the tasks in a suite; subclasses declare their kind in the field `task`.

    Attributes:
        task: kind of task, such as "retrieval".
        name: name of the task's block in the result.
        title: title in reports.
        resamples: number of bootstrap resamples.
        seed: random seed.
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
        """Measure the inputs and return one result per block, for example per attribute.

        Args:
            args: not used; overriding methods declare the inputs that they need as parameters.
            inputs: inputs by name.
        """

    def measured(self, inputs: Mapping[str, object]) -> list[TaskResult]:
        """Return the results of `measure`, with method titles and colours in the provenance."""
        # `measure` takes only some of the inputs, which it names as arguments.
        arguments = {name: inputs[name] for name in self.input_names() if name in inputs}
        check_callable(f"task {self.task!r}: measure", self.measure, (), tuple(arguments))
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
        """Return the methods that the task compares, including unregistered ones.

        For example, the user may pass methods as objects.
        """
        return ()

    @classmethod
    def input_names(cls) -> list[str]:
        """Return the names of the inputs that `measure` takes."""
        return [name for name in inspect.signature(cls.measure).parameters if name != "self"]

    @classmethod
    def check_measure(cls) -> None:
        """Raise InvalidInputError unless `measure` takes its inputs as named parameters."""
        where = f"{cls.__name__}: measure"
        for name, parameter in inspect.signature(cls.measure).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidInputError(
                    f"{where}: got {parameter}, which receives nothing, since inputs are opened by"
                    f" the names of parameters; replace {name} by names, such as images, texts"
                )
        check_callable(where, cls.measure, ("self",), cls.input_names())

    def splits(self) -> dict[str, Data]:
        """Return the data set split that each input comes from, by input name."""
        return {}

    def check_sources(self, names: Container[str]) -> None:
        """Raise InvalidInputError if a split that the task needs is not in `names`."""

    def prepare(self, inputs: Inputs) -> dict[str, object]:
        """Return the inputs that the task creates itself, such as the judge, by name.

        They are part of the key that a suite uses to find earlier measurements.
        """
        return {}

    def open_inputs(self, inputs: Inputs) -> dict[str, object]:
        """Return the arguments of `measure`, together with the prepared inputs, by name.

        Inputs that were opened for an earlier task are reused.

        Raises:
            InvalidInputError: If a required input is missing.
        """
        splits = self.splits()
        # The user's images take precedence over the splits in a suite.
        names = {*splits, *inputs}
        self.check_sources(names)
        # Inputs prepared by the task, such as a judge or a plan, take precedence over others with
        # the same name.
        opened = dict(self.prepare(inputs))
        for name in self.input_names():
            if name not in opened and name in names:
                opened[name] = inputs.open(name, splits.get(name))
        return opened

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, object]) -> Self:
        """Create the task for `vldebias.evaluate`, with defaults that may depend on the inputs.

        Args:
            inputs: the model, the data and the prompts that the user passed.
            settings: task settings by name.

        Raises:
            InvalidInputError: If a setting is missing, invalid or unknown.
        """
        return cls.build(settings)

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that must be embedded by a model or found in an embedding file."""
        return texts_of_task(dict(self))

    def settings(self, measured: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return the settings for a `TaskProvenance`.

        These are the task's fields, together with settings that are only known after measuring.
        """
        elsewhere = {"task", "name", "title", "methods"}  # separate provenance fields
        # `model_dump` only supports a fallback from pydantic 2.11 on; environments with
        # transformers 4 pin 2.10.
        task_fields = to_jsonable_python(
            self, exclude=elsewhere, exclude_none=True, by_alias=False, fallback=str
        )
        return {**task_fields, **(measured or {})}

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's settings applied."""
        settings = dict(self)
        for name in USERS_CHOICES:
            choice = getattr(options, name)
            # Rebuild the task, since `model_copy(update=...)` does not validate.
            if name in settings and choice is not None and choice != ():
                settings[name] = choice
        return type(self).build(settings)


def with_looks(
    facts_of_method: Mapping[str, Mapping[str, object]], compared: Sequence[Compared] = ()
) -> dict[str, dict[str, object]]:
    """Add each method's title and chart colour to its facts.

    Titles and colours are stored with the measurement, since the package that defines a method may
    not be installed where the page is rendered. Nothing is added for names that are neither
    registered nor in `compared`, such as those of saved edits.

    Args:
        facts_of_method: facts about each method, by method name.
        compared: methods that may not be registered; they take precedence over the registry.
    """
    # Importing the methods imports torch, which tasks on tables do not need.
    from vldebias.methods import METHODS, get_compared
    from vldebias.methods.results import RERANKINGS

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


def _name_of_task(kind: object) -> str:
    """Return the name of a task class, and raise InvalidInputError if it cannot be registered."""
    name = named_by(Task, "task")(kind)
    cast("type[Task]", kind).check_measure()
    return name


TASKS: Registry[type[Task]] = Registry(
    "task",
    "vldebias.tasks",
    _name_of_task,
    modules={
        "generation": "vldebias.study.tasks.generation",
        "groups": "vldebias.study.tasks.groups",
        "retrieval": "vldebias.study.tasks.retrieval",
        "texts": "vldebias.study.tasks.texts",
        **programs.tasks(),
    },
)


def register_task(kind: type[T]) -> type[T]:
    """Register a task class for `vldebias.evaluate` and suites; can be used as a decorator.

    >>> from typing import Literal
    >>> from vldebias.study import TASKS
    >>> from vldebias.study.tasks.images import ImageTask
    >>> @register_task
    ... class Leaning(ImageTask):  # see docs/how-to/method.md for a complete one
    ...     task: Literal["leaning"] = "leaning"
    ...     def measure(self, images, texts): ...
    >>> "leaning" in TASKS
    True
    """
    TASKS.register(kind)
    return kind
