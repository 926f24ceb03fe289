"""A task is its YAML: the fields are the keys of a suite, `measure` measures what is handed to it by name.

A new kind is a subclass of `Task`, or of `ImageTask` where images are compared with texts, with a `task:
Literal["..."]`, its fields and `measure`; `register_task`, or an entry point of the group "vldebias.tasks", makes it
known to `vldebias.evaluate(task=...)`, to suites and to the command line. A `Session` has what the tasks of one run
share: the user's options, models and embeddings, each loaded once and when needed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)

from vldebias.data import Embeddings, ImageData, ImageStream, Shards
from vldebias.data.on_ray import OnRay
from vldebias.data.parallel import HERE, Runner
from vldebias.data.shard_files import digest_of, open_embeddings
from vldebias.data.unit_rows import Parts, Picked
from vldebias.errors import InvalidInputError, did_you_mean, shortened
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.texts import Texts
from vldebias.options import Options
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts
from vldebias.registry import Registry

if TYPE_CHECKING:
    from vldebias.edit import Edit
    from vldebias.hosts.images import ImageEncoder
    from vldebias.loading import Loaded

T = TypeVar("T", bound="Task")
WORLDS = ("birds", "portraits")  # rendered, not read

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


class Strict(BaseModel):
    """A part of a suite: frozen, and a key that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def build(cls, fields: Mapping[str, Any]) -> Self:
        """From its fields, outside of a file.

        Raises:
            InvalidInputError: a field that is wrong; the message names it.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where, problem = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
            raise InvalidInputError(f"{where}: {problem}, got {first['input']!r}" if where else problem) from None


# Names and keys that went, and what to take.
GONE = {
    "similarity": "LPIPS and DINO went until real weights have run; take `recognised`, clip_score: or fid:",
    "evaluate_annotations": "take AnnotationsTask(...).measure(images, labels)",
    "evaluate_clip_score": "take vldebias.evaluation.clip_score.ClipScore(...).measure(images, encoder, texts)",
    "evaluate_fid": "take vldebias.evaluation.fid.Fid(...).measure(images, extractor)",
    "evaluate_similarity": "LPIPS and DINO went until real weights have run",
}


class _PartError(ValueError):
    """What is wrong inside of a part that was chosen by its kind, from the place of the part on."""


def one_of(registry: Registry[type[Any]], key: str) -> PlainValidator:
    """Reads the part of a file whose `key` names its kind: one of a registry of models, of other packages too."""

    def read(given: Any) -> Any:
        if isinstance(given, Strict):
            return given
        kind = given.get(key) if isinstance(given, Mapping) else None
        if not isinstance(kind, str) or kind not in registry:
            raise ValueError(f"expected `{key}:` with one of {', '.join(registry)}")
        try:
            return registry[kind].model_validate(given)
        except ValidationError as error:
            raise _PartError(f".{kind}.{explain(error, registry[kind])}") from None

    return PlainValidator(read)


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem with a file, in words: where, what came, what was expected; of keys that are missing all."""
    first = error.errors()[0]
    where, inside = _place(first["loc"]), first.get("ctx", {}).get("error")
    if isinstance(inside, _PartError):
        return f"{where}{inside}"
    if first["type"] == "extra_forbidden":
        known, key = list(_model_at(model, first["loc"][:-1]).model_fields), str(first["loc"][-1])
        if key in GONE:
            return f"{where}: {GONE[key]}"
        return f"{where}: unknown key; expected one of {', '.join(known)}; {did_you_mean(key, known)}"
    if first["type"] == "missing":
        lacking = [_place(one["loc"]) for one in error.errors() if one["type"] == "missing"]
        return f"{', '.join(lacking)}: missing; add {'it' if len(lacking) == 1 else 'them'}"
    came = shortened(repr(first["input"]), 80)
    return f"{where or 'file'}: {first['msg'].removeprefix('Value error, ')}; got {came}"


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if not str(part).startswith("function-"))


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The model at a place in another: Data at ("data",) of a task."""
    for part in location:
        models = _models(model.model_fields[part].annotation) if part in model.model_fields else []
        model = next((m for m in models if m.__name__ == part), (models or [model])[0])
    return model


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every model in a type: Data of `Data | None`, Variant of `dict[str, Variant]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


class Data(Strict):
    """Which images: a name of `vldebias eval data`, a split of it, and options of its reader.

    The worlds "birds" and "portraits" are rendered; everything else lies under --data-root.
    """

    name: str
    split: str = "test"
    options: dict[str, Any] = Field(default_factory=dict)


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
        """Prompts that an image-text model embeds for it: what a file of embeddings must have."""
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


@dataclass
class Session:
    """Options, and what was loaded for them.

    needs: what the suite asks of the user, for messages. given: inputs of `Task.measure` that were handed over in
    Python, by name.
    """

    options: Options
    needs: str = "nothing"
    progress: Progress = SILENT
    given: Mapping[str, Any] = field(default_factory=dict)
    _data: dict[str, ImageData | ImageStream] = field(default_factory=dict)
    _embedded: dict[str, Embeddings] = field(default_factory=dict)
    _hosts: dict[tuple[str, str | None], Loaded] = field(default_factory=dict)

    # ---- models ----------------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> Loaded:
        """The image-text model."""
        if self.options.model is None:
            raise InvalidInputError(f"expected an image-text model, got none; this suite needs {self.needs}")
        return self.image_text(self.options.model, self.options.pretrained)

    def image_text(self, model: str, pretrained: str | None = None) -> Loaded:
        """An image-text model by name, loaded once."""
        from vldebias.loading import load_host

        if (model, pretrained) not in self._hosts:
            with self.step(f"loading {model}"):
                loaded = load_host(model, pretrained, device=self.options.device, dtype=self.options.dtype)
            self._hosts[model, pretrained] = loaded
        return self._hosts[model, pretrained]

    @cached_property
    def pipeline(self) -> Loaded:
        """The text-to-image pipeline."""
        from vldebias.loading import load_host

        if self.options.pipeline is None:
            raise InvalidInputError(f"expected a text-to-image pipeline, got none; this suite needs {self.needs}")
        with self.step(f"loading {self.options.pipeline}"):
            loaded = load_host(pipeline=self.options.pipeline, device=self.options.device, dtype=self.options.dtype)
        if self.options.device == "cpu" and hasattr(loaded.host, "unet"):
            loaded.host.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        return loaded

    @cached_property
    def texts(self) -> Texts:
        """The text side: of the embeddings where the user's files have one, else of the model."""
        if self.text_rows is not None:
            source = self.options.texts or self.options.embeddings
            assert source is not None
            name = self.options.model or source.name
            return Texts(self.text_rows, model_id=name, about={"digest": digest_of(source)})
        return Texts(self.model.host, self.model.tokenizer)

    @cached_property
    def encoder(self) -> ImageEncoder:
        """The image side of the model."""
        from vldebias.hosts.images import image_encoder

        return image_encoder(self.model.host, self.model.preprocess, name=self.model.name)

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Edits that the user saved before, by the names of their folders: of `debias --out`, or of one role in it."""
        from vldebias.methods import load_edit, load_edits

        edits: dict[str, Edit] = {}
        for path in self.options.projections:
            name, role = path.resolve().name, self.texts.host.roles[0]
            whole = not (path / "config.json").is_file()
            by_role = load_edits(path) if whole else {role: load_edit(path)}
            if role not in by_role:
                raise InvalidInputError(f"{path}: has edits of {sorted(by_role)}; expected one of {role!r}")
            edits[name] = by_role[role]
        return edits

    # ---- images and embeddings -------------------------------------------------------------------------------

    @cached_property
    def runner(self) -> Runner:
        """Where images are embedded and passes over shards run."""
        gpus = float(self.options.device.startswith("cuda"))
        return HERE if self.options.ray is None else OnRay(self.options.ray, gpus=gpus)

    @cached_property
    def file(self) -> tuple[Embeddings, dict[str, Any] | None]:
        """The embeddings that the user brought, and text embeddings where the file has them."""
        assert self.options.embeddings is not None
        embeddings, rows = _load(self.options.embeddings, self.options.keys, self.options.table)
        if self.options.ray is None:
            return embeddings, rows
        if not isinstance(embeddings.features, Shards):
            raise InvalidInputError(
                f"--ray: passes run over shards, and {self.options.embeddings} is one file that is read here; expected "
                "a pattern such as 'shards/*.npy', or leave --ray away"
            )
        return replace(embeddings, features=embeddings.features.on(OnRay(self.options.ray))), rows

    @cached_property
    def text_rows(self) -> dict[str, Any] | None:
        """Prompt -> embedding, of the user's files; None where the model embeds the prompts."""
        if self.options.texts is not None:
            name = self.options.keys.get("text", "text")  # the rows stand for the images that this file need not have
            own = {ours: theirs for ours, theirs in self.options.keys.items() if ours in ("text", "prompts")}
            return _load(self.options.texts, {"features": name, **own})[1]
        return self.file[1] if self.options.embeddings is not None else None

    def data(self, spec: Data) -> ImageData | ImageStream:
        """The images of a split, as many as the user wants."""
        key = spec.model_dump_json()
        if key not in self._data:
            with self.step(f"opening {spec.name} {spec.split}"):
                data = open_split(spec.name, self.options.data_root, spec.split, spec.options)
            limit = self.options.limit
            if limit is not None:
                if not isinstance(data, ImageData):
                    raise InvalidInputError(
                        f"--limit: {data.name} is streamed, so its length is not known; limit it in its options"
                    )
                data = data[_drawn(len(data), limit)] if len(data) > limit else data
            self._data[key] = data
        return self._data[key]

    def embedded(self, spec: Data) -> Embeddings:
        """The features of a split: from the user's file, or from the cache, computed where it has none."""
        from vldebias.data import embed_images

        key = spec.model_dump_json()
        if key not in self._embedded:
            if self.options.embeddings is not None:
                rows = self.file[0]
                if "split" in rows.labels:  # without that column the file is the split that is measured
                    labels = rows.column("split")
                    if spec.split not in labels.names:
                        raise InvalidInputError(
                            f'{self.options.embeddings}: its column "split" has {list(labels.names)}; this task needs '
                            f"{spec.split!r}"
                        )
                    rows = _some(rows, labels.codes == labels.names.index(spec.split))
                limit = self.options.limit
                self._embedded[key] = rows if limit is None else _some(rows, _drawn(len(rows), limit))
            else:
                self._embedded[key] = embed_images(
                    self.data(spec),
                    self.encoder,
                    self.options.cache,
                    dtype=self.options.feature_dtype,
                    strict=self.options.strict,
                    progress=self.progress,
                    runner=self.runner,
                )
            self._embedded[key] = self._embedded[key].without(self.options.unknown)
            skipped = self._embedded[key].about.get("skipped") or []
            if skipped:
                first = "; ".join(str(one) for one in skipped[:3])
                name = f"{spec.name} {spec.split}"
                self.say(f"{name}: {len(skipped)} images cannot be read and are left out, such as {first}")
        return self._embedded[key]

    def optional(self, spec: Data | None) -> Embeddings | None:
        """The features of a split that only baselines read: an embeddings file need not have it."""
        if spec is None:
            return None
        if self.options.embeddings is not None:
            labels = self.file[0].labels.get("split")
            if labels is None or spec.split not in labels.names:
                return None
        return self.embedded(spec)

    def reference(self, spec: Data | None) -> Embeddings | None:
        """Unlabelled image features: of --reference, else of the split that a task names."""
        if self.options.reference is not None:
            return _load(self.options.reference, {})[0].without(self.options.unknown)
        return None if spec is None else self.embedded(spec)

    def fingerprint(self, spec: Data) -> str:
        """Of the images of a split, or of the user's file."""
        if self.options.embeddings is not None:
            table = "" if self.options.table is None else f" {digest_of(self.options.table)}"
            return f"{digest_of(self.options.embeddings)} {spec.split}{table}"
        return self.data(spec).fingerprint

    # ---- what the user sees ----------------------------------------------------------------------------------

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """A line in the progress display for work of unknown length; gives the function that notes what is done."""
        with self.progress.step(name) as bar:
            yield bar.note

    def say(self, text: str) -> None:
        """A line above the progress display."""
        self.progress.say(text)


def open_split(
    name: str, root: Path | str | None, split: str | None, options: Mapping[str, Any]
) -> ImageData | ImageStream:
    """A split by name: a world is rendered, everything else is read below `root`."""
    from vldebias.data import open_data
    from vldebias.miniature.data import open_world

    if name in WORLDS:
        return open_world(name, split=split or "test", **options)
    return open_data(name, root, split, **options)


def _some(embeddings: Embeddings, rows: NDArray[Any]) -> Embeddings:
    """Some of the rows, of shards without a copy."""
    return embeddings.picked(rows) if isinstance(embeddings.features, (Parts, Picked)) else embeddings[rows]


def _load(path: Path, keys: Mapping[str, str], table: Path | None = None) -> tuple[Embeddings, dict[str, Any] | None]:
    """Embeddings of a file or of shards, whose digest stands with them in the place of their path."""
    try:
        embeddings, rows = open_embeddings(path, keys=keys or None, table=table)
    except InvalidInputError as error:
        raise InvalidInputError(str(error).replace("keys={'features': ...}", "--key features=NAME")) from None
    about = {name: value for name, value in embeddings.about.items() if name != "file"}
    known = replace(embeddings, about={"data": path.name, **about, "digest": digest_of(path)})
    return known, None if rows is None else dict(rows)


def _drawn(n: int, limit: int | None) -> NDArray[np.int64]:
    """Indices of at most `limit` of n rows, at random but always the same, in their order."""
    return np.sort(np.random.default_rng(0).permutation(n)[:limit])
