"""Define suites and their tasks as YAML describes them.

A new kind of task is a subclass of `Task`, or of `ImageTask` where images are compared with texts, with a `task:
Literal["..."] = "..."`, its fields and `measure`; `register_task`, or an entry point of the group "vldebias.tasks",
makes it known to `vldebias.evaluate(task=...)`, to suites and to the command line.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

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

from vldebias.data import Embeddings, digest_of
from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.session import Session
from vldebias.files import explain, packaged, read_yaml
from vldebias.hosts import Host, resolve
from vldebias.loading import Loaded
from vldebias.options import Options
from vldebias.prompts import PromptSet, load_prompts
from vldebias.registry import Registry

T = TypeVar("T", bound="Task")

# ---- fields --------------------------------------------------------------------------------------------------

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 ._-]*$")]


def _number(given: Any) -> Any:
    """Read a number of Python or numpy; True and "0.5" are none, though they could be read as one."""
    if isinstance(given, (bool, np.bool_, str, bytes)):
        raise ValueError("expected a number")
    return given.item() if isinstance(given, np.generic) else given


Number = BeforeValidator(_number)
Lam = Annotated[float, Field(ge=0), Number]
Count = Annotated[int, Field(ge=1), Number]
Share = Annotated[float, Field(ge=0, le=1), Number]
_several = BeforeValidator(lambda given: given if isinstance(given, (list, tuple)) else (given,))
OneOrMore = Annotated[tuple[str, ...], _several]
# A prompt set by name, by file, or itself; it is loaded when the task is read.
Prompts = Annotated[
    InstanceOf[PromptSet], BeforeValidator(load_prompts), PlainSerializer(lambda one: [one.name, one.hash])
]
SeveralPrompts = Annotated[tuple[Prompts, ...], _several]


class Strict(BaseModel):
    """Parse a part of a suite: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        known = list(cls.model_fields)
        for key in given if isinstance(given, Mapping) else ():
            if key not in known:
                raise ValueError(f"{key}: unknown key; expected one of {', '.join(known)}; {did_you_mean(key, known)}")
        return given

    @classmethod
    def build(cls, fields: Mapping[str, Any]) -> Self:
        """Return an instance made from fields in Python; InvalidInputError names a field that is wrong."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidInputError(explain(error)) from None


def one_of(registry: Registry[type[Any]], key: str) -> PlainValidator:
    """Return the reader of a part of a file whose `key` names its kind: one of a registry of models."""

    def read(given: Any) -> Any:
        if isinstance(given, Strict):
            return given
        kind = given.get(key) if isinstance(given, Mapping) else None
        if not isinstance(kind, str) or kind not in registry:
            raise ValueError(f"expected `{key}:` with one of {', '.join(registry)}; got {kind!r}")
        return registry[kind].model_validate(given)

    return PlainValidator(read)


def named_by(base: type[BaseModel], key: str) -> Callable[[Any], str]:
    """Return a check for a registry that takes subclasses of a model and names them by their field `key`."""

    def accept(kind: Any) -> str:
        name = kind.model_fields[key].default if isinstance(kind, type) and issubclass(kind, base) else None
        if not isinstance(name, str):
            known = f'{base.__module__}.{base.__name__} with a field {key}: Literal["NAME"] = "NAME"'
            raise InvalidInputError(f"{key}: expected a subclass of {known}, got {kind!r}")
        return name

    return accept


class Data(Strict):
    """Name images: a name of `vldebias eval data`, a split of it, and options of its reader.

    The worlds "birds" and "portraits" ship with the package; everything else lies under `root`, by default --data-root.
    """

    name: str
    split: str = "test"
    options: dict[str, Any] = Field(default_factory=dict)
    root: Path | None = None


# ---- tasks ---------------------------------------------------------------------------------------------------


class Task(Strict, ABC):
    """Define one block of a suite; subclasses name their kind, `task: Literal["groups"] = "groups"`.

    name: of its block in the result. title: what a report calls it. resamples, seed: of the bootstrap.
    """

    task: str
    name: Name
    title: str
    resamples: Count = 2000
    seed: Annotated[int, Field(ge=0), Number] = 0

    @abstractmethod
    def measure(self, *args: Any, **inputs: Any) -> list[TaskResult]:
        """Measure inputs, by name; several results if the task has several blocks, such as one per attribute."""

    def measured(self, inputs: Mapping[str, Any]) -> list[TaskResult]:
        """Return the result of `measure` on those of the inputs that it takes."""
        return self.measure(**{name: inputs[name] for name in self.takes() if name in inputs})

    @classmethod
    def takes(cls) -> list[str]:
        """Return the names of the inputs of `measure`."""
        return [name for name in inspect.signature(cls.measure).parameters if name != "self"]

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the inputs that a session opens, beside those that it was given; all of them count for the `key`."""
        return {}

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task from the fields that `vldebias.evaluate` was given and from its session."""
        return cls.build({name: value for name, value in fields.items() if name in cls.model_fields})

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that an image-text model embeds for the task; a file of embeddings must have them."""
        return ()

    def settings(self, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of a `TaskProvenance`: the task's own fields, and what only measuring knows."""
        elsewhere = {"task", "name", "title", "methods"}  # in the provenance
        return {**self.model_dump(mode="json", exclude=elsewhere, exclude_none=True, fallback=str), **(measured or {})}

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's choices in place of its own, where they have the name of a field."""
        names = {"resamples", "methods", "lam", "images", "steps", "seeds", "prompts_file"} & set(
            type(self).model_fields
        )
        chosen = {name: one for name in names if (one := getattr(options, name)) not in (None, ())}
        return type(self).build({**dict(self), **chosen})

    def key(self, options: Options, inputs: Mapping[str, Any]) -> str:
        """Return a hash of what figures depend on; a restarted run reuses what a run before has measured with it."""
        from vldebias import __version__

        files = [options.table, options.texts, options.reference, *options.labels]
        files += [file for folder in options.projections for file in sorted(folder.rglob("*.safetensors"))]
        digests = [file and digest_of(file) for file in files]
        content = [self.model_dump(mode="json"), inputs, digests, options.limit, options.unknown, __version__]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=_mark).encode()).hexdigest()


def _mark(value: Any) -> Any:
    """Return what identifies an input: the digest of data, or the fingerprint of weights."""
    if isinstance(value, Embeddings):  # the name of the cache's folder is a hash of encoder and images
        return {**value.about, "source": None, "cache": Path(value.about.get("cache", "")).name}
    if isinstance(value, Path):
        return digest_of(value) if value.is_file() else None
    if isinstance(value, Loaded):
        value = resolve(value.host, tokenizer=value.tokenizer)
    if isinstance(value, Host):
        return value.weights or getattr(value, "digest", None)
    return getattr(value, "fingerprint", None)


def file_slug(text: str) -> str:
    """Return a name for a file or folder: "fairface gender: cosines" -> "fairface-gender-cosines"."""
    return re.sub(r"[^a-z0-9@]+", "-", text.lower()).strip("-")


TASKS: Registry[type[Task]] = Registry("task", "vldebias.tasks", named_by(Task, "task"))


def register_task(kind: type[T]) -> type[T]:
    """Register a kind of task by its name, for `vldebias.evaluate` and suites, and return it, as a decorator does.

    An InvalidInputError says that it has no name, or that another task has the name.
    """
    TASKS.register(kind)
    return kind


# ---- suites ----------------------------------------------------------------------------------------------------


class Suite(Strict):
    """Hold the content of one YAML file. needs: what the user has to provide, for `eval list` and for messages.

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
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ValueError(f"got two tasks with the name {name!r}; give each its own")
        return self

    def texts(self) -> tuple[str, ...]:
        """Return every prompt that an image-text model embeds for the suite."""
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.texts()))


def load_suite(name_or_path: str | Path) -> Suite:
    """Return a suite by name, or from a YAML file.

    Raises:
        InvalidInputError: an unknown name, or a file that does not follow the schema; the message names the key.
    """
    path = suite_path(name_or_path)
    try:
        return Suite.model_validate({"name": path.stem.lower(), **read_yaml(path)})
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {explain(error)}") from error


def suite_path(name_or_path: str | Path) -> Path:
    """Return the file of a suite: a Path or a text with a folder or .yaml is a path; a name is looked up."""
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path.expanduser()
    if name_or_path not in (files := packaged("suites")):
        known, hint = ", ".join(files), did_you_mean(name_or_path, files)
        raise InvalidInputError(f"got the suite {name_or_path!r}; expected one of {known}, or a .yaml file; {hint}")
    return files[name_or_path]
