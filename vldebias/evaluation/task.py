"""Define suites and their tasks as YAML describes them, and the session that loads what they measure.

A new kind of task is a subclass of `Task`, or of `ImageTask` where images are compared with texts, with a `task:
Literal["..."] = "..."`, its fields and `measure`; `register_task`, or an entry point of the group "vldebias.tasks",
makes it known to `vldebias.evaluate(task=...)`, to suites and to the command line. An error in a file is reported
with its place, what came and what was expected.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

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
    SerializeAsAny,
    ValidationError,
    model_validator,
)
from torch import Tensor

from vldebias.data import BLOCK, Embeddings, ImageData, Labels, Shards, digest_of, load_texts, open_embeddings
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError, did_you_mean, need, shortened
from vldebias.evaluation.result import TaskResult
from vldebias.files import read_yaml, suite_file, suite_names
from vldebias.hosts import Attachment, Host, TextTable, attachment_of, resolve
from vldebias.loading import Loaded, load_host
from vldebias.methods import Method, Problem, get_method, load_edit, load_edits
from vldebias.options import Options
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts
from vldebias.registry import Registry

if TYPE_CHECKING:
    from vldebias.hosts.images import ImageEncoder

T = TypeVar("T", bound="Task")

# ---- fields --------------------------------------------------------------------------------------------------

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
        """Return an instance made from fields in Python instead of a file.

        Raises:
            InvalidInputError: a field that is wrong; the message names it.
        """
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


def named_by(base: type[BaseModel], key: str) -> Callable[[Any], tuple[str, type[Any]]]:
    """Return a check for a registry that takes subclasses of a model and names them by their field `key`."""

    def accept(kind: Any) -> tuple[str, type[Any]]:
        name = kind.model_fields[key].default if isinstance(kind, type) and issubclass(kind, base) else None
        if not isinstance(name, str):
            raise InvalidInputError(
                f'{key}: expected a subclass of {base.__module__}.{base.__name__} with a field {key}: Literal["NAME"] '
                f'= "NAME", got {kind!r}'
            )
        return name, kind

    return accept


def explain(error: ValidationError, place: str = "") -> str:
    """Return the first problem in words: where, what came, what was expected; all keys that are missing."""
    first = error.errors()[0]
    where, inside = _place(place, first["loc"]), first.get("ctx", {}).get("error")
    if isinstance(inside, ValidationError):
        return explain(inside, where)
    if first["type"] == "missing":
        lacking = [_place(place, one["loc"]) for one in error.errors() if one["type"] == "missing"]
        return f"{', '.join(lacking)}: missing; add {'it' if len(lacking) == 1 else 'them'}"
    came = "" if isinstance(first["input"], Mapping) else f"; got {shortened(repr(first['input']), 80)}"
    return f"{where}: ".removeprefix(": ") + first["msg"].removeprefix("Value error, ") + (came if where else "")


def _place(outer: str, location: tuple[int | str, ...]) -> str:
    return ".".join(filter(None, [outer, *(str(one) for one in location if not str(one).startswith("function-"))]))


class Data(Strict):
    """Name images: a name of `vldebias eval data`, a split of it, and options of its reader.

    The worlds "birds" and "portraits" ship with the package; everything else lies under `root`, by default --data-root.
    """

    name: str
    split: str = "test"
    options: dict[str, Any] = Field(default_factory=dict)
    root: Path | None = None


# ---- texts under a method ------------------------------------------------------------------------------------


class Texts:
    """Embed prompts as normalised rows, with or without the change that an attachment would make.

    Every prompt goes through the tower once, whatever the number of methods.

    Args:
        model: an open_clip or transformers image-text model, or a mapping prompt -> embedding (d,).
        tokenizer: where it cannot be found from the model.
        model_id: what the embeddings of a mapping come from.
        about: what is known of them, such as the digest of their file.

    Raises:
        UnsupportedHostError: see `vldebias.debias`; also a pipeline, which has no images to compare with.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, *, model_id: str | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        table = isinstance(model, Mapping)
        self.host: Host = TextTable(model, model_id) if table else resolve(model, tokenizer=tokenizer)
        if self.host.generative:
            name = self.host.name
            raise UnsupportedHostError(f"{name}: expected an image-text model; a pipeline is evaluated by images")
        self.about = dict(about or ({"digest": _digest(model)} if table else {}))

    @property
    def fingerprint(self) -> dict[str, Any] | None:
        """Return the fingerprint of the weights, as plain values; None for embeddings computed elsewhere."""
        weights = self.host.fingerprint()
        return None if weights is None else weights.to_dict()

    def holds(self, prompts: Sequence[str]) -> bool:
        """Return whether all prompts can be embedded; a table of embeddings may lack some."""
        try:
            return not isinstance(self.host, TextTable) or self.embed(prompts) is not None
        except InvalidInputError:
            return False

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """Return L2-normalised float64 rows (n, d) of prompts, without any edit."""
        return self.host.embed(prompts, self.host.roles[0])

    def fit(
        self, prompts: PromptSet | Sequence[PromptSet], method: str | Method, lam: float | None = None, **how: Any
    ) -> Edit | None:
        """Fit a method and return its edit; None for "none", and where it changes nothing by definition.

        lam: its weight, for methods that take one. how: reference, max_loss and neutral of `Problem.of`.
        """
        chosen = get_method(method)
        if chosen.name == "none":
            return None
        sets = [prompts] if isinstance(prompts, PromptSet) else list(prompts)
        problem = Problem.of(self.host, sets, lam=lam if chosen.has_lam else None, **how)
        return problem.fit(chosen, self.host.roles[0])

    def under(
        self, prompts: Sequence[str], edit: Edit | None, *, strength: float = 1.0, keep_stated: bool = True
    ) -> Tensor:
        """Return L2-normalised float64 rows (n, d) as a model with `edit` attached gives them.

        keep_stated: leave prompts alone that name an attribute word of the edit, as `vldebias.debias` does.
        """
        return self.host.under(prompts, self.host.roles[0], edit, strength=strength, keep_stated=keep_stated)


def _digest(rows: Mapping[str, Any]) -> str:
    """SHA-256 of prompts and their embeddings, whatever their order."""
    state = hashlib.sha256()
    for prompt in sorted(rows):
        row = torch.as_tensor(rows[prompt]).detach().cpu().double().contiguous()
        state.update(f"{prompt}\n".encode() + row.numpy().tobytes())
    return state.hexdigest()


# ---- a session -----------------------------------------------------------------------------------------------

WORLDS = ("birds", "portraits")  # shipped with the package, not read from a folder


@dataclass
class Session:
    """Load what tasks measure, each once and when it is needed: models, texts, image features, edits.

    The same object serves a suite, where `Options` name files and models, and `vldebias.evaluate`, where Python hands
    them over: arrays, a folder, the name of a data set.

    Attributes:
        needs: what the suite asks of the user, for messages.
        handed: whether the inputs come from Python, as with `vldebias.evaluate`; the fields below hold these.
        given: images, reference, labels, ... by name. host, tokenizer: the model, or its name; without `handed` a model
            or pipeline of the options that is loaded already.
        fitted: edits by name. split: of a data set. column: name of labels that came without one.
    """

    options: Options
    needs: str = "nothing"
    progress: Progress = SILENT
    given: Mapping[str, Any] = field(default_factory=dict)
    host: Any = None
    tokenizer: Any = None
    fitted: Mapping[str, Edit] = field(default_factory=dict)
    split: str = "test"
    column: str = ""
    handed: bool = False
    _data: dict[str, ImageData] = field(default_factory=dict)
    _embedded: dict[str, Embeddings] = field(default_factory=dict)
    _hosts: dict[tuple[str, str | None], Loaded] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Print a line above the progress display."""
        self.progress.say(text)

    @cached_property
    def model(self) -> Loaded:
        """Return the image-text model with its preprocessing.

        Raises:
            InvalidInputError: none was named; or images are to be embedded by a model that came without preprocessing.
        """
        if isinstance(self.host, Loaded) and (self.handed or self.host.preprocess is not None):
            return self.host
        if self._object is not None:
            raise InvalidInputError(
                "images: a folder or a data set is embedded by a model that was given by name (or by "
                "`vldebias.load_host`), which brings its preprocessing; else give features (n, d)"
            )
        name = self.host if isinstance(self.host, str) else self.options.model
        if name is None:
            raise InvalidInputError(f"expected an image-text model, got none; this suite needs {self.needs}")
        return self.image_text(name, self.options.pretrained)

    @property
    def _object(self) -> Any:
        """A model or pipeline that Python handed over, not only named."""
        return None if not self.handed or isinstance(self.host, str) else self.host

    def image_text(self, model: str, pretrained: str | None = None) -> Loaded:
        """Return an image-text model by name, loaded once."""
        if (model, pretrained) not in self._hosts:
            with self.progress.step(f"loading {model}"):
                loaded = load_host(model, pretrained, device=self.options.device, dtype=self.options.dtype)
            self._hosts[model, pretrained] = loaded
        return self._hosts[model, pretrained]

    @cached_property
    def pipeline(self) -> Loaded:
        """Return the text-to-image pipeline."""
        if self._object is not None:
            return self.host if isinstance(self.host, Loaded) else Loaded(self.host, "")
        name = self.host if isinstance(self.host, str) else self.options.pipeline
        if name is None:
            raise InvalidInputError(f"expected a text-to-image pipeline, got none; this suite needs {self.needs}")
        if isinstance(self.host, Loaded) and self.host.preprocess is None:
            loaded = self.host
        else:
            with self.progress.step(f"loading {name}"):
                loaded = load_host(pipeline=name, device=self.options.device, dtype=self.options.dtype)
        if self.options.device == "cpu" and hasattr(loaded.host, "unet"):
            loaded.host.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        return loaded

    @cached_property
    def texts(self) -> Texts:
        """Return the text side without any attachment: from the user's files if given, else of the model."""
        if self._object is not None and not isinstance(self.host, Loaded):
            return Texts(self.host, self.tokenizer)
        source = self.options.texts or self.options.embeddings
        if source is not None and self.text_rows is not None:
            return Texts(
                self.text_rows, model_id=self.options.model or source.name, about={"digest": digest_of(source)}
            )
        return Texts(self.model.host, self.model.tokenizer)

    @property
    def attachment(self) -> Attachment | None:
        """Return the attachment that the model carries, which "none" is measured without; None if there is none."""
        if self._object is None:  # features alone, or a model that is loaded by name
            return None
        return next(filter(None, map(attachment_of, self.texts.host.exclusive_modules)), None)

    @cached_property
    def encoder(self) -> ImageEncoder:
        """Return the image side of the model."""
        from vldebias.hosts.images import image_encoder

        return image_encoder(self.model.host, self.model.preprocess, name=self.model.name)

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Return the edits that were given from Python, or saved before, by the names of their folders."""
        edits: dict[str, Edit] = dict(self.fitted)
        for path in self.options.projections:
            role = self.texts.host.roles[0]
            by_role = {role: load_edit(path)} if (path / "config.json").is_file() else load_edits(path)
            if role not in by_role:
                raise InvalidInputError(f"{path}: has edits of {sorted(by_role)}; expected one of {role!r}")
            edits[path.resolve().name] = by_role[role]
        return edits

    @cached_property
    def file(self) -> tuple[Embeddings, dict[str, Any] | None]:
        """Return the embeddings that the user provided, and text embeddings where the file has them."""
        assert self.options.embeddings is not None
        return _load(self.options.embeddings, self.options.table)

    @cached_property
    def text_rows(self) -> dict[str, Any] | None:
        """Return prompt -> embedding, of the user's files; None where the model embeds the prompts."""
        if self.options.texts is not None:
            return load_texts(self.options.texts)
        return self.file[1] if self.options.embeddings is not None else None

    def data(self, spec: Data) -> ImageData:
        """Return the images of a split, at most as many as the user's limit."""
        key, limit = spec.model_dump_json(), self.options.limit
        if key not in self._data:
            with self.progress.step(f"opening {spec.name} {spec.split}"):
                data = open_split(spec.name, spec.root or self.options.data_root, spec.split, spec.options)
            self._data[key] = data[_sampled(len(data), limit)] if limit is not None and len(data) > limit else data
        return self._data[key]

    def embedded(self, spec: Data) -> Embeddings:
        """Return the features of a split: those given, of the user's file, or of the cache, which is filled first."""
        key = spec.model_dump_json()
        if key not in self._embedded:
            if self.handed:
                found = self._handed_over(spec.name)
            elif self.options.embeddings is not None:
                found = self._of_file(spec)
            else:
                found = self._of_images(self.data(spec))
            self._embedded[key] = found.without(self.options.unknown)
            skipped = [str(one) for one in found.about.get("skipped") or ()]
            if skipped:
                first = "; ".join(skipped[:3])
                name = f"{spec.name} {spec.split}"
                self.say(f"{name}: {len(skipped)} images cannot be read and are left out, such as {first}")
        return self._embedded[key]

    def optional(self, spec: Data | None) -> Embeddings | None:
        """Return the features of a split that only baselines read; an embeddings file need not have it."""
        if spec is not None and self.options.embeddings is not None:
            labels = self.file[0].labels.get("split")
            if labels is None or spec.split not in labels.names:
                return None
        return None if spec is None else self.embedded(spec)

    def reference(self, spec: Data | None) -> Embeddings | None:
        """Return unlabelled image features: those of --reference, else of the split that a task names."""
        if self.options.reference is not None:
            return _load(self.options.reference)[0].without(self.options.unknown)
        return None if spec is None else self.embedded(spec)

    def fingerprint(self, spec: Data) -> str:
        """Return the fingerprint of the images of a split, or of the user's file."""
        if self.options.embeddings is not None:
            table = "" if self.options.table is None else f" {digest_of(self.options.table)}"
            return f"{digest_of(self.options.embeddings)} {spec.split}{table}"
        return self.data(spec).fingerprint

    def _of_file(self, spec: Data) -> Embeddings:
        rows, limit = self.file[0], self.options.limit
        if "split" in rows.labels:  # without that column the file is the split that is measured
            labels = rows.column("split")
            if spec.split not in labels.names:
                raise InvalidInputError(
                    f'{self.options.embeddings}: its column "split" has {list(labels.names)}; this task needs '
                    f"{spec.split!r}"
                )
            rows = _some(rows, labels.codes == labels.names.index(spec.split))
        return rows if limit is None else _some(rows, _sampled(len(rows), limit))

    def _of_images(self, data: ImageData) -> Embeddings:
        from vldebias.data import embed_images

        how: dict[str, Any] = {"dtype": self.options.feature_dtype, "strict": self.options.strict}
        return embed_images(data, self.encoder, self.options.cache, progress=self.progress, **how)

    def _handed_over(self, name: str) -> Embeddings:
        """What was handed over under a name, with the labels that came for it beside those that it has."""
        given = self.given.get(name)
        if given is None:
            raise InvalidInputError(f"{name}: expected features (n, d), a folder or a data set, got none")
        if isinstance(given, (str, Path)):
            given = self._opened(Path(given), "train" if name == "train" else self.split)
        if isinstance(given, ImageData):
            given = self._of_images(given)
        embeddings = given if isinstance(given, Embeddings) else _from_array(given)
        labels = self.given.get("labels" if name == "images" else f"{name}_labels")
        if labels is None:
            return embeddings
        columns = labels if isinstance(labels, Mapping) else {self.column: labels}
        own = Embeddings.of(embeddings.features, columns).labels
        return replace(embeddings, labels={**embeddings.labels, **own})

    def _opened(self, path: Path, split: str) -> Embeddings | ImageData:
        """A file of embeddings, a folder of pictures, or a data set by name."""
        from vldebias.data import is_features, list_data

        if is_features(path):
            return open_embeddings(path)[0]
        if path.is_dir():
            return _folder(path)
        names = [*WORLDS, *list_data()]
        if str(path) not in names:
            raise InvalidInputError(
                f"images: expected a folder, a file of embeddings or one of {', '.join(names)}, got {str(path)!r}; "
                f"{did_you_mean(path, names)}"
            )
        assert self.encoder  # texts alone are refused before a data set is opened
        return open_split(str(path), self.options.data_root, split, {})


def open_split(name: str, root: Path | str | None, split: str | None, options: Mapping[str, Any]) -> ImageData:
    """Open a split by name: the package includes the miniature worlds, everything else is read below `root`."""
    from vldebias.data import open_data
    from vldebias.miniature import open_world

    if name in WORLDS:
        if others := sorted(set(options) - {"n", "start"}):
            raise InvalidInputError(f"{name}: expected options n and start, got {', '.join(others)}")
        return open_world(name, split=split or "test", **options)
    opened = open_data(name, root, split, **options)
    if not isinstance(opened, ImageData):
        raise InvalidInputError(f"{name}: expected images that can be read in any order; open them without streaming")
    return opened


def _folder(path: Path) -> ImageData:
    """Every picture below a folder; the names of the folders directly below it are the column "folder"."""
    from vldebias.data import file_images

    known = set(need("PIL.Image").registered_extensions())
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in known)
    if not files:
        raise InvalidInputError(f"{path}: no pictures in it; expected files such as .png or .jpg")
    names = [file.relative_to(path).as_posix() for file in files]
    folders = Labels.of([name.partition("/")[0] if "/" in name else "" for name in names])
    return file_images(path.name, "all", path, names, {"folder": folders})


def _from_array(given: Any) -> Embeddings:
    """Features (n, d) from an array, a tensor or a list, of any type of number, with their digest."""
    try:
        embeddings = Embeddings.of(given)
    except InvalidInputError as error:
        reason = str(error).removeprefix("features: ")
        raise InvalidInputError(f"images: a folder, a file, a data set's name or features (n, d): {reason}") from None
    rows = embeddings.features
    if not len(rows):
        raise InvalidInputError(f"images: expected features (n, d) with n > 0, got shape {rows.shape}")
    if isinstance(rows, Shards):
        return replace(embeddings, about={"data": "given in shards", "digest": rows.digest()})
    digest = hashlib.sha256()
    for start in range(0, len(rows), BLOCK):
        digest.update(np.ascontiguousarray(rows[start : start + BLOCK]).data)
    return replace(embeddings, about={"data": "given", "digest": digest.hexdigest()})


def _some(embeddings: Embeddings, rows: NDArray[Any]) -> Embeddings:
    """Some of the rows, of shards without a copy."""
    return embeddings.picked(rows) if isinstance(embeddings.features, Shards) else embeddings[rows]


def _load(path: Path, table: Path | None = None) -> tuple[Embeddings, dict[str, Any] | None]:
    """Embeddings of a file or of shards, whose digest stands with them in the place of their path."""
    embeddings, rows = open_embeddings(path, table=table)
    about = {name: value for name, value in embeddings.about.items() if name != "file"}
    known = replace(embeddings, about={"data": path.name, **about, "digest": digest_of(path)})
    return known, None if rows is None else dict(rows)


def _sampled(n: int, limit: int) -> NDArray[np.int64]:
    """Indices of at most `limit` of n rows, at random but always the same, in their order."""
    return np.sort(np.random.default_rng(0).permutation(n)[:limit])


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

    @abstractmethod
    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the arguments of `measure`, opened by a session."""

    @abstractmethod
    def fingerprints(self, session: Session) -> dict[str, Any]:
        """Return the fingerprints of weights and data that figures depend on, besides fields and prompt sets.

        A restarted run reuses a task of the run before if none of these has changed.
        """

    def measured(self, session: Session) -> list[TaskResult]:
        """Return the result of `measure` on the `inputs` that it takes."""
        names, there = self.input_names(), {**session.given, **self.inputs(session)}
        return self.measure(**{name: one for name, one in there.items() if name in names})

    @classmethod
    def input_names(cls) -> tuple[str, ...]:
        """Return the names of the arguments of `measure`."""
        return tuple(inspect.signature(cls.measure).parameters)[1:]

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task from the fields that `vldebias.evaluate` was given and from its session."""
        return cls.build({name: value for name, value in fields.items() if name in cls.model_fields})

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """Return the names of the prompt sets that the task reads; their hashes are part of `key`."""
        return ()

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that an image-text model embeds for the task; a file of embeddings must have them."""
        return ()

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's choices in place of its own."""
        return self if options.resamples is None else self.model_copy(update={"resamples": options.resamples})

    def fitting(self, session: Session) -> Self:
        """Return the part of the task that the user's data can answer; all of it if it has no parts."""
        return self

    def key(self, session: Session) -> str:
        """Return a hash of what the figures depend on: fields, prompts, weights, data and the version of vldebias."""
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


TASKS: Registry[type[Task]] = Registry("task", "vldebias.tasks", named_by(Task, "task"), instances=False)


def register_task(kind: type[T]) -> type[T]:
    """Register a kind of task by its name, for `vldebias.evaluate`, suites and every command of this process.

    Returns the class, so that it can be used as a decorator.

    Raises:
        InvalidInputError: no task with a name, or another one has the name.
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
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tasks are called {twice[0]!r}; give each its own name")
        return self

    @classmethod
    def of_task(cls, task: Task, **fields: Any) -> Suite:
        """Return a suite of one task, with the task's name; fields: title, description, source, needs, headline."""
        return cls.build({"name": task.name, "tasks": (task,), **fields})

    def only(self, names: Collection[str]) -> Suite:
        """Return the suite with some of its tasks, or with all of them if no name is given.

        Raises:
            InvalidInputError: no task of that name; the message lists them.
        """
        there = [task.name for task in self.tasks]
        for name in names:
            if name not in there:
                raise InvalidInputError(
                    f"{self.name}: no task {name!r}; expected one of {', '.join(there)}; {did_you_mean(name, there)}"
                )
        return self.model_copy(update={"tasks": tuple(t for t in self.tasks if not names or t.name in names)})

    def texts(self) -> tuple[str, ...]:
        """Return every prompt that an image-text model embeds for the suite."""
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.texts()))


list_suites = suite_names  # that come with the package


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
    """Return the file of a suite: a Path or a text with a folder or .yaml is a path; a name is looked up."""
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path.expanduser()
    return suite_file(str(name_or_path))
