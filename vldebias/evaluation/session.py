"""Open what tasks measure, each once and when it is needed: models, texts under a method, image features, edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vldebias.data import (
    Embeddings,
    ImageData,
    Labels,
    Shards,
    digest_of,
    embed_images,
    file_images,
    list_data,
    load_texts,
    open_data,
    open_embeddings,
)
from vldebias.data.rows import is_pattern
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError, did_you_mean, need
from vldebias.hosts import Host, TextTable, resolve
from vldebias.hosts.base import TEXT
from vldebias.hub import WEIGHTS
from vldebias.loading import Loaded, load_host
from vldebias.methods import load_edit, load_edits
from vldebias.miniature.words import WORLDS
from vldebias.options import Options
from vldebias.progress import SILENT, Progress

if TYPE_CHECKING:
    from vldebias.evaluation.task import Data


def text_host(model: Any, tokenizer: Any = None) -> Host:
    """Return the host that embeds the texts of an image-text model, or of a mapping prompt -> embedding (d,).

    Raises:
        UnsupportedHostError: see `vldebias.debias`; also a pipeline, which has no images to compare with.
    """
    host = resolve(model, tokenizer=tokenizer)
    if host.generative:
        raise UnsupportedHostError(
            f'got the pipeline {host.name}; expected an image-text model. Pipelines have the task "generation"'
        )
    return host


@dataclass
class Session:
    """Open the inputs of tasks, whether Python gives them (`vldebias.evaluate`) or options name them (suites).

    Attributes:
        options: files and names of models. needs: what the suite asks of the user, for messages.
        given: inputs by name, as objects, names or files: model, pipeline, tokenizer, images, reference, their labels,
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

    # ---- models and texts ----------------------------------------------------------------------------------------

    @property
    def model(self) -> Loaded:
        """Return the image-text model; raise InvalidInputError where there is none."""
        return self._host("model", self.options.pretrained)

    @cached_property
    def pipeline(self) -> Loaded:
        """Return the text-to-image pipeline; raise InvalidInputError where there is none."""
        loaded, named = self._host("pipeline"), isinstance(self.given["pipeline"], (str, Loaded))
        if named and self.options.device == "cpu" and hasattr(loaded.host, "unet"):
            loaded.host.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        return loaded

    def _host(self, kind: str, pretrained: str | None = None) -> Loaded:
        own = self.given.get(kind)
        if own is None:
            raise InvalidInputError(f"{kind}: expected one, got none; this suite needs {self.needs}")
        if isinstance(own, str):
            return self.load(own, pretrained, kind)
        return own if isinstance(own, Loaded) else Loaded(own, "", self.given.get("tokenizer"))

    def load(self, name: str, pretrained: str | None = None, kind: str = "model") -> Loaded:
        """Return a model, or of the kind "pipeline" a pipeline, by name; it is loaded once."""
        key = kind, name, pretrained
        if key not in self._opened:
            how: dict[str, Any] = {kind: name, "device": self.options.device, "dtype": self.options.dtype}
            with self.progress.bar(f"loading {name}"):
                self._opened[key] = load_host(pretrained=pretrained, **how)
        loaded: Loaded = self._opened[key]
        return loaded

    @cached_property
    def texts(self) -> Host:
        """Return what embeds prompts, without any attachment: the user's files if given, else the model."""
        options = self.options
        source = options.texts or options.embeddings
        rows = load_texts(options.texts) if options.texts else self._file[1] if source else None
        if source is None or rows is None:
            return text_host(self.model.host, self.model.tokenizer)
        return TextTable(rows, options.model or source.name)

    @cached_property
    def edits(self) -> dict[str, Edit]:
        """Return the edits that were given from Python, or saved before, by the names of their folders."""
        edits: dict[str, Edit] = dict(self.given.get("edits", {}))
        for path in self.options.projections:
            by_role = {TEXT: load_edit(path)} if (path / WEIGHTS).is_file() else load_edits(path)
            if TEXT not in by_role:
                raise InvalidInputError(f"{path}: got edits of {sorted(by_role)}; expected one of {TEXT!r}")
            edits[path.resolve().name] = by_role[TEXT]
        return edits

    # ---- image features ------------------------------------------------------------------------------------------

    def embedded(self, name: str, spec: Data | None = None) -> Any:
        """Return the `Embeddings` of an input, embedded once, with its labels and the user's unknown values.

        None where nothing names it, and of "train" and "val" where the user's file lacks the split.

        name: "images", "reference", "train" or "val"; what was given by that name goes before spec, the split that a
        task names. The user's file of features has all splits, or the one that is measured.
        """
        key = name, spec and spec.model_dump_json()
        if key not in self._opened:
            rows: Any = self._open(name, spec)
            if isinstance(rows, ImageData):
                rows = self._embed(rows)
                if skipped := [str(one) for one in rows.about.get("skipped") or ()]:
                    said = f"{len(skipped)} images cannot be read and are left out, such as {'; '.join(skipped[:3])}"
                    self.progress.say(f"{name}: {said}")
            if rows is not None:
                labels = self.given.get("labels" if name == "images" else f"{name}_labels", {})
                rows = replace(rows, labels={**rows.labels, **Embeddings.of(rows.features, labels).labels})
                rows = rows.without(self.options.unknown)
            self._opened[key] = rows
        return self._opened[key]

    def _open(self, name: str, spec: Data | None) -> Embeddings | ImageData | None:
        """Return what was given by a name: objects, arrays, a file, a folder or a data set; else a split."""
        given = self.given.get(name)
        if given is None:
            if spec is None and name == "images":
                raise InvalidInputError("images: expected features (n, d), a file, a folder or a data set, got none")
            return None if spec is None else self._split(spec, optional=name in ("train", "val"))
        if isinstance(given, (Embeddings, ImageData)):
            return given
        if isinstance(given, (str, Path)):
            if Path(given).suffix in (".npz", ".npy") or is_pattern(given):
                return _of_file(Path(given))[0]
            if Path(given).is_dir():
                return _folder(Path(given))
            if str(given) in (names := [*WORLDS, *list_data()]):
                return open_split(str(given), self.options.data_root, "train" if name == "train" else self.split, {})
            expected = f"a folder, a file of features or one of {', '.join(names)}; {did_you_mean(given, names)}"
            raise InvalidInputError(f"{name}: got {str(given)!r}; expected {expected}")
        found = Embeddings.of(given)
        if not len(found):
            raise InvalidInputError(f"{name}: got shape {found.features.shape}; expected features (n, d) with n > 0")
        held = found.features if isinstance(found.features, Shards) else Shards([found.features])
        return replace(found, about={"data": "given", "digest": held.digest()})

    def _split(self, spec: Data, *, optional: bool) -> Embeddings | ImageData | None:
        """Return a split of the user's file or of a data set, at most as many images as the user's limit."""
        rows: Any
        if self.options.embeddings is None:
            with self.progress.bar(f"opening {spec.name} {spec.split}"):
                rows = open_split(spec.name, spec.root or self.options.data_root, spec.split, spec.options)
        else:
            rows = self._file[0]
            splits = rows.labels.get("split")
            if optional and (splits is None or spec.split not in splits.names):
                return None
            if splits is not None:  # without this column the file is what is measured
                if spec.split not in splits.names:
                    came = f'got {list(splits.names)} in the column "split"'
                    raise InvalidInputError(f"{self.options.embeddings}: {came}; expected {spec.split!r} among them")
                rows = rows.picked(splits.codes == splits.names.index(spec.split))
        few = np.random.default_rng(0).permutation(len(rows))[: self.options.limit]
        return rows if len(few) == len(rows) else getattr(rows, "picked", rows.__getitem__)(np.sort(few))

    def _embed(self, data: ImageData) -> Embeddings:
        from vldebias.hosts.images import image_encoder

        if self.model.preprocess is None:
            raise InvalidInputError(
                "images: got a folder or a data set and a model without its preprocessing; give the model by name, or "
                "from `vldebias.load_host`, or give features (n, d)"
            )
        encoder = image_encoder(self.model.host, self.model.preprocess, name=self.model.name)
        return embed_images(data, encoder, self.options.cache, progress=self.progress)

    @cached_property
    def _file(self) -> tuple[Embeddings, dict[str, Any] | None]:
        """The embeddings of the user's file, and text embeddings where the file has them."""
        return _of_file(self.options.embeddings or Path(), self.options.table)


def open_split(name: str, root: Path | str | None, split: str | None, options: Mapping[str, Any]) -> ImageData:
    """Open a split by name: the package includes the miniature worlds, everything else is read below `root`."""
    from vldebias.miniature import open_world

    if name in WORLDS:
        if others := sorted(set(options) - {"n", "start"}):
            raise InvalidInputError(f"{name}: got the options {', '.join(others)}; expected n and start")
        return open_world(name, split=split or "test", **options)
    opened = open_data(name, root, split, **options)
    if not isinstance(opened, ImageData):
        raise InvalidInputError(f"{name}: got a stream; expected images in any order: open them without streaming")
    return opened


def _folder(path: Path) -> ImageData:
    """Open every picture below a folder; the names of the folders directly below it are the column "folder"."""
    known = set(need("PIL.Image").registered_extensions())
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in known)
    if not files:
        raise InvalidInputError(f"{path}: got no pictures; expected files such as .png or .jpg")
    names = [file.relative_to(path).as_posix() for file in files]
    folders = Labels.of([name.partition("/")[0] if "/" in name else "" for name in names])
    return file_images(path.name, "all", path, names, {"folder": folders})


def _of_file(path: Path, table: Path | None = None) -> tuple[Embeddings, dict[str, Any] | None]:
    """Return embeddings of a file or of shards, with their digest in the place of their path."""
    embeddings, rows = open_embeddings(path, table=table)
    about = {name: value for name, value in embeddings.about.items() if name != "file"}
    return replace(embeddings, about={"data": path.name, **about, "digest": digest_of(path)}), rows
