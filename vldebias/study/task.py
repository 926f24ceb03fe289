"""Define what a task is, and open what tasks measure: models, texts, image features and edits, each
once.

A new kind of task is a subclass of `Task`, or of `ImageTask` where images are compared with texts,
with a `task: Literal["..."] = "..."`, its fields and `measure`; `register_task`, or an entry point
of the group "vldebias.tasks", makes it known to `vldebias.evaluate(task=...)`, to suites and to the
command line.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
import torch
from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
)

from vldebias.data.cache import embed_images
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.embeddings import Embeddings, load_texts, open_embeddings
from vldebias.data.rows import Shards, digest_of, is_pattern
from vldebias.data.sources import list_data, open_data
from vldebias.data.tables import Labels
from vldebias.edits.edit import Edit
from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.hosts import Host, TextTable
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.host import TEXT
from vldebias.hosts.loading import Loaded, load_host, text_host
from vldebias.measure.result import TaskResult
from vldebias.methods import load_edit
from vldebias.miniature import open_world
from vldebias.miniature.words import WORLDS
from vldebias.options import Options
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts
from vldebias.registry import Registry
from vldebias.schema import SEVERAL, Count, Name, Number, Strict, named_by

T = TypeVar("T", bound="Task")

# A prompt set by name, by file, or itself; it is loaded when the task is read.
Prompts = Annotated[
    InstanceOf[PromptSet],
    BeforeValidator(load_prompts),
    PlainSerializer(lambda one: [one.name, one.hash]),
]
SeveralPrompts = Annotated[tuple[Prompts, ...], SEVERAL]


class Data(Strict):
    """Name images: a name of `vldebias eval data`, a split of it, and options of its reader.

    The worlds "birds" and "portraits" ship with the package; everything else lies under `root`, by
    default --data-root.
    """

    name: str
    split: str = "test"
    options: dict[str, Any] = Field(default_factory=dict)
    root: Path | None = None


@dataclass
class Session:
    """Open the inputs of tasks, whether Python gives them (`vldebias.evaluate`) or options name
    them (suites).

    options: files and names of models. needs: what the suite asks of the user, for messages.
    given: inputs by name, as objects, names or files: model, pipeline, tokenizer, images,
    reference, their labels,
        edits and other inputs of `measure`. What is not given comes from the options.
    split: of a data set that is given by name.
    """

    options: Options
    needs: str = "nothing"
    progress: Progress = SILENT
    given: dict[str, Any] = field(default_factory=dict)
    split: str = "test"
    _opened: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {name: getattr(self.options, name) for name in ("model", "pipeline", "reference")}
        self.given = {name: one for name, one in {**named, **self.given}.items() if one is not None}

    @property
    def model(self) -> Loaded:
        """Return the image-text model; raise InvalidInputError where there is none."""
        return self.load(self.given.get("model"), self.options.pretrained)

    @cached_property
    def pipeline(self) -> Loaded:
        """Return the text-to-image pipeline; raise InvalidInputError where there is none."""
        given = self.given.get("pipeline")
        loaded, named = self.load(given, kind="pipeline"), isinstance(given, (str, Loaded))
        if named and self.options.device == "cpu" and hasattr(loaded.host, "unet"):
            loaded.host.unet.to(
                memory_format=torch.channels_last
            )  # convolutions run faster so on a CPU
        return loaded

    def load(self, own: Any, pretrained: str | None = None, kind: str = "model") -> Loaded:
        """Return a model, or of the kind "pipeline" a pipeline, as it is given or by its name; it
        is loaded once."""
        if own is None:
            raise InvalidInputError(
                f"{kind}: expected one, got none; this suite needs {self.needs}"
            )
        if not isinstance(own, str):
            return own if isinstance(own, Loaded) else Loaded(own, "", self.given.get("tokenizer"))
        key = kind, own, pretrained
        if key not in self._opened:
            how: dict[str, Any] = {
                kind: own,
                "device": self.options.device,
                "dtype": self.options.dtype,
            }
            with self.progress.bar(f"loading {own}"):
                self._opened[key] = load_host(pretrained=pretrained, **how)
        return self._opened[key]

    @cached_property
    def texts(self) -> Host:
        """Return what embeds prompts, without any attachment: the user's files if given, else the
        model."""
        files, name = (self.options.texts, self.options.embeddings), self.options.model
        rows = load_texts(files[0]) if files[0] else self._file[1] if files[1] else None
        if rows is None:
            return text_host(self.model.host, self.model.tokenizer)
        return TextTable(rows, name or next(file.name for file in files if file))

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Return the edits that were given from Python, or saved before, by the names of their
        folders."""
        edits: dict[str, Edit] = dict(self.given.get("edits", {}))
        for path in self.options.projections:
            saved = load_edit(path)
            by_role = saved if isinstance(saved, dict) else {TEXT: saved}
            if TEXT not in by_role:
                raise InvalidInputError(
                    f"{path}: got edits of {sorted(by_role)}; expected one of {TEXT!r}"
                )
            edits[path.resolve().name] = by_role[TEXT]
        return edits

    def embedded(self, name: str, spec: Data | None = None) -> Any:
        """Return the `Embeddings` of an input, embedded once, with its labels and the user's
        unknown values.

        None where nothing names it, and of "train" and "val" where the user's file lacks the split.

        name: "images", "reference", "train" or "val"; what was given by that name goes before spec,
        the split that a task names. The user's file of features has all splits, or the one that is
        measured.
        """
        key = name, spec and spec.model_dump_json()
        if key not in self._opened:
            rows: Any = self._open(name, spec)
            if isinstance(rows, ImageData):
                if self.model.preprocess is None:
                    raise InvalidInputError(
                        f"{name}: got a folder or a data set and a model without its preprocessing;"
                        " give the model by name, or from `vldebias.load_host`, or give features"
                        " (n, d)"
                    )
                encoder = image_encoder(
                    self.model.host, self.model.preprocess, name=self.model.name
                )
                rows = embed_images(rows, encoder, self.options.cache, progress=self.progress)
                if skipped := [str(one) for one in rows.about.get("skipped") or ()]:
                    said = (
                        f"{len(skipped)} images cannot be read and are left out, such as"
                        f" {'; '.join(skipped[:3])}"
                    )
                    self.progress.say(f"{name}: {said}")
            if rows is not None:
                labels = self.given.get("labels" if name == "images" else f"{name}_labels", {})
                rows = replace(
                    rows, labels={**rows.labels, **Embeddings.of(rows.features, labels).labels}
                )
                rows = rows.without(self.options.unknown)
            self._opened[key] = rows
        return self._opened[key]

    def _open(self, name: str, spec: Data | None) -> Embeddings | ImageData | None:
        """Return what was given by a name: objects, arrays, a file, a folder or a data set; else a
        split."""
        given = self.given.get(name)
        if given is None:
            if spec is None and name == "images":
                raise InvalidInputError(
                    "images: expected features (n, d), a file, a folder or a data set, got none"
                )
            return None if spec is None else self._split(spec, optional=name in ("train", "val"))
        if isinstance(given, (Embeddings, ImageData)):
            return given
        if isinstance(given, (str, Path)):
            if Path(given).suffix in (".npz", ".npy") or is_pattern(given):
                return _of_file(Path(given))[0]
            if (
                path := Path(given)
            ).is_dir():  # the folders directly below it are the column "folder"
                known = set(need("PIL.Image").registered_extensions())
                files = sorted(
                    file.relative_to(path)
                    for file in path.rglob("*")
                    if file.suffix.lower() in known
                )
                if not files:
                    raise InvalidInputError(
                        f"{path}: got no pictures; expected files such as .png or .jpg"
                    )
                folders = Labels.of(
                    [file.parts[0] if len(file.parts) > 1 else "" for file in files]
                )
                return file_images(
                    path.name, "all", path, [file.as_posix() for file in files], {"folder": folders}
                )
            if str(given) in (names := [*WORLDS, *list_data()]):
                return open_split(
                    str(given),
                    self.options.data_root,
                    "train" if name == "train" else self.split,
                    {},
                )
            expected = (
                f"a folder, a file of features or one of {', '.join(names)};"
                f" {did_you_mean(given, names)}"
            )
            raise InvalidInputError(f"{name}: got {str(given)!r}; expected {expected}")
        found = Embeddings.of(given)
        if not len(found):
            raise InvalidInputError(
                f"{name}: got shape {found.features.shape}; expected features (n, d) with n > 0"
            )
        held = found.features if isinstance(found.features, Shards) else Shards([found.features])
        return replace(found, about={"data": "given", "digest": held.digest()})

    def _split(self, spec: Data, *, optional: bool) -> Embeddings | ImageData | None:
        """Return a split of the user's file or of a data set, at most as many images as the user's
        limit."""
        rows: Any
        if self.options.embeddings is None:
            with self.progress.bar(f"opening {spec.name} {spec.split}"):
                rows = open_split(
                    spec.name, spec.root or self.options.data_root, spec.split, spec.options
                )
        else:
            rows = self._file[0]
            splits = rows.labels.get("split")  # without this column the file is what is measured
            if splits is not None and spec.split in splits.names:
                rows = rows.picked(splits.codes == splits.names.index(spec.split))
            elif optional:
                return None
            elif splits is not None:
                came = f'got {list(splits.names)} in the column "split"'
                raise InvalidInputError(
                    f"{self.options.embeddings}: {came}; expected {spec.split!r} among them"
                )
        few = np.random.default_rng(0).permutation(len(rows))[: self.options.limit]
        return (
            rows
            if len(few) == len(rows)
            else getattr(rows, "picked", rows.__getitem__)(np.sort(few))
        )

    @cached_property
    def _file(self) -> tuple[Embeddings, dict[str, Any] | None]:
        """The embeddings of the user's file, and text embeddings where the file has them."""
        return _of_file(self.options.embeddings or Path(), self.options.table)


def open_split(
    name: str, root: Path | str | None, split: str | None, options: Mapping[str, Any]
) -> ImageData:
    """Open a split by name: the package includes the miniature worlds, everything else is read
    below `root`."""
    if name in WORLDS:
        if others := sorted(set(options) - {"n", "start"}):
            raise InvalidInputError(
                f"{name}: got the options {', '.join(others)}; expected n and start"
            )
        return open_world(name, split=split or "test", **options)
    opened = open_data(name, root, split, **options)
    if not isinstance(opened, ImageData):
        raise InvalidInputError(
            f"{name}: got a stream; expected images in any order: open them without streaming"
        )
    return opened


def _of_file(path: Path, table: Path | None = None) -> tuple[Embeddings, dict[str, Any] | None]:
    """Return embeddings of a file or of shards, with their digest in the place of their path."""
    embeddings, rows = open_embeddings(path, table=table)
    about = {name: value for name, value in embeddings.about.items() if name != "file"}
    return replace(embeddings, about={"data": path.name, **about, "digest": digest_of(path)}), rows


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

    @abstractmethod
    def measure(self, *args: Any, **inputs: Any) -> list[TaskResult]:
        """Measure inputs, by name; several results if the task has several blocks, such as one per
        attribute."""

    def measured(self, inputs: Mapping[str, Any]) -> list[TaskResult]:
        """Return the result of `measure` on those of the inputs that it takes."""
        return self.measure(**{name: inputs[name] for name in self.takes() if name in inputs})

    @classmethod
    def takes(cls) -> list[str]:
        """Return the names of the inputs of `measure`."""
        return [name for name in inspect.signature(cls.measure).parameters if name != "self"]

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the inputs that a session opens, beside those that it was given; all of them count
        for the `key`."""
        return {}

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task from the fields that `vldebias.evaluate` was given and from its
        session."""
        return cls.build(
            {name: value for name, value in fields.items() if name in cls.model_fields}
        )

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that an image-text model embeds for the task; a file of embeddings
        must have them."""
        return ()

    def settings(self, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of a `TaskProvenance`: the task's own fields, and what only measuring
        knows."""
        elsewhere = {"task", "name", "title", "methods"}  # in the provenance
        return {
            **self.model_dump(mode="json", exclude=elsewhere, exclude_none=True, fallback=str),
            **(measured or {}),
        }

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's choices in place of its own, where they have the name of
        a field."""
        names = {"resamples", "methods", "lam", "images", "steps", "seeds", "prompts_file"} & {
            *type(self).model_fields
        }
        chosen = {name: one for name in names if (one := getattr(options, name)) not in (None, ())}
        return type(self).build({**dict(self), **chosen})


TASKS: Registry[type[Task]] = Registry("task", "vldebias.tasks", named_by(Task, "task"))


def register_task(kind: type[T]) -> type[T]:
    """Register a kind of task for `vldebias.evaluate` and suites, as a decorator; refuse one
    without its own name."""
    TASKS.register(kind)
    return kind
