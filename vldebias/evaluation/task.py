"""Tasks and suites as they stand in YAML: the fields are the keys, `Task.measure` measures what it is given by name.

A new kind is a subclass of `Task`, or of `ImageTask` where images are compared with texts, with a `task:
Literal["..."]`, its fields and `measure`; `register_task`, or an entry point of the group "vldebias.tasks", makes it
known to `vldebias.evaluate(task=...)`, to suites and to the command line. A mistake in a file is answered with its
place, what came and what was expected.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from vldebias.errors import InvalidInputError, did_you_mean, shortened
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.session import Session as Session
from vldebias.files import read_yaml, suite_file, suite_names
from vldebias.options import Options
from vldebias.prompts import PromptSet, load_prompts
from vldebias.registry import Registry

T = TypeVar("T", bound="Task")

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 ._-]*$")]


def _number(given: Any) -> Any:
    """A number of Python or numpy; True and "0.5" are none, though they could be read as one."""
    if isinstance(given, (bool, np.bool_, str, bytes)):
        raise ValueError("expected a number")
    return given.item() if isinstance(given, np.generic) else given


Number = BeforeValidator(_number)
Lam = Annotated[float, Field(ge=0), Number]
Count = Annotated[int, Field(ge=1), Number]
Share = Annotated[float, Field(ge=0, le=1), Number]
# One text, or several.
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
# A prompt set by name, by file, or itself.
Prompts = str | Path | Annotated[InstanceOf[PromptSet], PlainSerializer(lambda given: given.hash)]
SeveralPrompts = Annotated[
    tuple[Prompts, ...], BeforeValidator(lambda x: (x,) if isinstance(x, (str, Path, PromptSet)) else x)
]


class _PartError(ValueError):
    """What is wrong inside of a part, from the place of the part on."""


class Strict(BaseModel):
    """A part of a suite: frozen, and a key that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        for key in given if isinstance(given, Mapping) else ():
            if key not in cls.model_fields:
                known = list(cls.model_fields)
                hint = did_you_mean(key, known)
                raise _PartError(f".{key}: unknown key; expected one of {', '.join(known)}; {hint}")
        return given

    @classmethod
    def build(cls, fields: Mapping[str, Any]) -> Self:
        """Make one from its fields, outside of a file.

        Raises:
            InvalidInputError: a field that is wrong; the message names it.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidInputError(explain(error)) from None


def one_of(registry: Registry[type[Any]], key: str) -> PlainValidator:
    """Return what reads the part of a file whose `key` names its kind: one of a registry of models."""

    def read(given: Any) -> Any:
        if isinstance(given, Strict):
            return given
        kind = given.get(key) if isinstance(given, Mapping) else None
        if not isinstance(kind, str) or kind not in registry:
            raise ValueError(f"expected `{key}:` with one of {', '.join(registry)}")
        try:
            return registry[kind].model_validate(given)
        except ValidationError as error:
            raise _PartError(f".{kind}.{explain(error)}") from None

    return PlainValidator(read)


def explain(error: ValidationError) -> str:
    """Return the first problem in words: where, what came, what was expected; of keys that are missing all."""
    first = error.errors()[0]
    where, inside = _place(first["loc"]), first.get("ctx", {}).get("error")
    if isinstance(inside, _PartError):
        return f"{where}{inside}".removeprefix(".")
    if first["type"] == "missing":
        lacking = [_place(one["loc"]) for one in error.errors() if one["type"] == "missing"]
        return f"{', '.join(lacking)}: missing; add {'it' if len(lacking) == 1 else 'them'}"
    problem = first["msg"].removeprefix("Value error, ")
    return f"{where}: {problem}; got {shortened(repr(first['input']), 80)}" if where else problem


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if not str(part).startswith("function-"))


class Data(Strict):
    """Which images: a name of `vldebias eval data`, a split of it, and options of its reader.

    The worlds "birds" and "portraits" ship with the package; everything else lies under `root`, by default --data-root.
    """

    name: str
    split: str = "test"
    options: dict[str, Any] = Field(default_factory=dict)
    root: Path | None = None


class Task(Strict, ABC):
    """One block of a suite. Subclasses name their kind, `task: Literal["groups"] = "groups"`.

    name: of its block in the result. title: what a report calls it. resamples, seed: of the bootstrap.
    """

    task: str
    name: Name
    title: str
    resamples: Count = 2000
    seed: Annotated[int, Field(ge=0), Number] = 0

    @abstractmethod
    def measure(self, *args: Any, **inputs: Any) -> list[TaskResult]:
        """Measure inputs, by name; several results where a task has several blocks, such as one per attribute."""

    @abstractmethod
    def inputs(self, session: Session) -> dict[str, Any]:
        """What `measure` takes, as a session opens it."""

    @abstractmethod
    def fingerprints(self, session: Session) -> dict[str, Any]:
        """What the figures depend on beyond the fields and the prompt sets: fingerprints of weights and data.

        A run that is started again takes a task over from the run before where none of this has changed.
        """

    def measured(self, session: Session) -> list[TaskResult]:
        """`measure` of those `inputs` that it names."""
        names, there = self.input_names(), {**session.given, **self.inputs(session)}
        return self.measure(**{name: one for name, one in there.items() if name in names})

    @classmethod
    def input_names(cls) -> tuple[str, ...]:
        """The names of what `measure` takes."""
        return tuple(inspect.signature(cls.measure).parameters)[1:]

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """The task from the fields that `vldebias.evaluate` was given, and what a session of it can tell of them."""
        return cls.build({name: value for name, value in fields.items() if name in cls.model_fields})

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """Names of the prompt sets that it reads; their hashes are part of `key`."""
        return ()

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that an image-text model embeds for it: what a file of embeddings must have."""
        return ()

    def with_options(self, options: Options) -> Self:
        """The task with what the user chose in the place of its own."""
        return self if options.resamples is None else self.model_copy(update={"resamples": options.resamples})

    def fitting(self, session: Session) -> Self:
        """The part of the task that what the user brought can answer; all of it where there are no parts."""
        return self

    def key(self, session: Session) -> str:
        """Changes whenever the figures may: the fields, prompts, weights, data, and the version of vldebias."""
        from vldebias import __version__

        content = {
            "task": self.model_dump(mode="json"),
            "prompts": {name: load_prompts(name).hash for name in sorted(set(self.prompt_sets))},
            "strict": session.options.strict,
            "limit": session.options.limit,
            "version": __version__,
            **self.fingerprints(session),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def file_slug(text: str) -> str:
    """Return a file name: "fairface gender: cosines" -> "fairface-gender-cosines"."""
    return re.sub(r"[^a-z0-9@]+", "-", text.lower()).strip("-")


def named_by(base: type[BaseModel], key: str) -> Callable[[Any], tuple[str, type[Any]]]:
    """What takes subclasses of a model into a registry: by the one value of their field `key`."""

    def accept(kind: Any) -> tuple[str, type[Any]]:
        fits = isinstance(kind, type) and issubclass(kind, base)
        names = get_args(kind.model_fields[key].annotation) if fits else ()
        if len(names) != 1:
            raise InvalidInputError(
                f'{key}: expected a subclass of {base.__module__}.{base.__name__} with a field {key}: Literal["NAME"] '
                f'= "NAME", got {kind!r}'
            )
        return names[0], kind

    return accept


TASKS: Registry[type[Task]] = Registry("task", "vldebias.tasks", named_by(Task, "task"), instances=False)


def register_task(kind: type[T]) -> type[T]:
    """Make a kind of task known by its name, to `vldebias.evaluate`, suites and every command of this process.

    Returns it, so that it can be written above the class.

    Raises:
        InvalidInputError: no task with a name, or another one has the name.
    """
    TASKS.register(kind)
    return kind


# ---- suites ----------------------------------------------------------------------------------------------------


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
    def of_task(cls, task: Task, **fields: Any) -> Suite:
        """Return the suite of one task, called like it; fields: title, description, source, needs, headline."""
        return cls.build({"name": task.name, "tasks": (task,), **fields})

    def only(self, names: Iterable[str]) -> Suite:
        """Return the suite with some of its tasks; all of them where no name is given.

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
        """Return the searches for some attributes alone; all of the suite where no name is given.

        Raises:
            InvalidInputError: no attribute of that name; the message lists them.
        """
        if not names:
            return self
        tasks: list[Any] = [task for task in self.tasks if hasattr(task, "of_attributes")]
        there = list(dict.fromkeys(attribute for task in tasks for attribute in task.prompts))
        for name in names:
            if name not in there:
                expected = f"one of {there}; {did_you_mean(name, there)}" if there else "a suite with retrieval"
                raise InvalidInputError(f"{self.name}: no attribute {name!r}; expected {expected}")
        chosen = (task.of_attributes(names) for task in tasks)
        return self.model_copy(update={"tasks": tuple(task for task in chosen if task.prompts)})

    def texts(self) -> tuple[str, ...]:
        """Return every prompt that an image-text model embeds for it."""
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.texts()))


def list_suites() -> list[str]:
    """Return the names of the suites that come with the package."""
    return suite_names()


def load_suite(name_or_path: str | Path) -> Suite:
    """Return a suite by name, or from a YAML file.

    Raises:
        InvalidInputError: an unknown name, or a file that cannot be read or does not follow the schema; the message
            names the key, what came and what was expected. PromptSetError: a prompt set that does not exist.
    """
    path = suite_path(name_or_path)
    try:
        return Suite.model_validate({"name": path.stem.lower(), **read_yaml(path)})
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {explain(error)}") from error


def suite_path(name_or_path: str | Path) -> Path:
    """Return the file of a suite: a Path, or a text with a folder or .yaml in it, is one; a name is looked up."""
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path.expanduser()
    return suite_file(str(name_or_path))
