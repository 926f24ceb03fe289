"""What a run of a suite shares between its tasks: options, models, image features, each loaded once and when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vldebias.data import Embeddings, ImageData, ImageStream
from vldebias.errors import InvalidInputError
from vldebias.evaluation.suites.schema import Data
from vldebias.evaluation.texts import Texts, TextTable

if TYPE_CHECKING:
    from vldebias.hosts.images import ImageEncoder
    from vldebias.loading import Loaded

__all__ = ["WORLDS", "Options", "Session", "file_digest", "open_split", "progress_on"]

WORLDS = ("birds", "portraits")


@dataclass(frozen=True)
class Options:
    """What the user brings to a suite; None leaves the choice to the suite.

    Attributes:
        out: folder for result.json, the page, the pictures and drawn images.
        model, pretrained, pipeline, device, dtype: see `vldebias.loading.load_host`.
        judge, judge_pretrained: the image-text model that reads drawn images, in the place of the suite's.
        data_root: folder of the data set. embeddings: a file of image features in the place of images and model;
            keys: where it names things otherwise, see `vldebias.data.embedding_files.load_embeddings`.
        labels, drawn: files of annotators, and the folder of images that they labelled.
        cache: folder of the embedding cache. feature_dtype: how features are kept there.
        strict: stop at an image that cannot be read. limit: look at this many images of each data set, drawn at random.
        lam, images, seeds, resamples: in the place of the suite's.
        fresh: measure again what a run before has measured.
    """

    out: Path
    model: str | None = None
    pretrained: str | None = None
    pipeline: str | None = None
    device: str = "cpu"
    dtype: str | None = None
    judge: str | None = None
    judge_pretrained: str | None = None
    data_root: Path | str | None = None
    embeddings: Path | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[Path, ...] = ()
    drawn: Path | None = None
    cache: Path | None = None
    feature_dtype: str = "float16"
    strict: bool = False
    limit: int | None = None
    lam: float | None = None
    images: int | None = None
    seeds: tuple[int, ...] | None = None
    resamples: int | None = None
    fresh: bool = False


@dataclass
class Session:
    """Options, and what was loaded for them. needs: what the suite asks of the user, for messages."""

    options: Options
    needs: str
    progress: Progress
    _data: dict[str, ImageData | ImageStream] = field(default_factory=dict)
    _embedded: dict[str, Embeddings] = field(default_factory=dict)
    _hosts: dict[tuple[str, str | None], Loaded] = field(default_factory=dict)

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
                found = load_host(model, pretrained, device=self.options.device, dtype=self.options.dtype)
            self._hosts[model, pretrained] = found
        return self._hosts[model, pretrained]

    @cached_property
    def pipeline(self) -> Loaded:
        """The text-to-image pipeline."""
        from vldebias.loading import load_host

        if self.options.pipeline is None:
            raise InvalidInputError(f"expected a text-to-image pipeline, got none; this suite needs {self.needs}")
        with self.step(f"loading {self.options.pipeline}"):
            found = load_host(pipeline=self.options.pipeline, device=self.options.device, dtype=self.options.dtype)
        if self.options.device == "cpu" and hasattr(found.host, "unet"):
            found.host.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        return found

    @cached_property
    def file(self) -> tuple[Embeddings, dict[str, Any] | None]:
        """The embeddings that the user brought, and text embeddings where the file has them."""
        from vldebias.data.embedding_files import load_embeddings

        assert self.options.embeddings is not None
        embeddings, rows = load_embeddings(self.options.embeddings, keys=self.options.keys or None)
        return embeddings, None if rows is None else dict(rows)

    @cached_property
    def texts(self) -> Texts:
        """The text side: of the embeddings file where that has one, else of the model."""
        if self.options.embeddings is not None and self.file[1] is not None:
            return Texts(TextTable(self.file[1], model_id=self.options.model or self.options.embeddings.name))
        return Texts(self.model.host, self.model.tokenizer)

    @cached_property
    def encoder(self) -> ImageEncoder:
        """The image side of the model."""
        from vldebias.hosts.images import image_encoder

        return image_encoder(self.model.host, self.model.preprocess, name=self.model.name)

    def data(self, spec: Data) -> ImageData | ImageStream:
        """The images of a split, as many as the user wants."""
        key = spec.model_dump_json()
        if key not in self._data:
            with self.step(f"opening {spec.name} {spec.split}"):
                self._data[key] = _limited(
                    open_split(spec.name, self.options.data_root, spec.split, spec.options), self.options.limit
                )
        return self._data[key]

    def embedded(self, spec: Data) -> Embeddings:
        """The features of a split: from the user's file, or from the cache, computed where it has none."""
        from vldebias.data.cache import embed_images

        key = spec.model_dump_json()
        if key not in self._embedded:
            if self.options.embeddings is not None:
                found = _split_of_file(self.file[0], spec, self.options.embeddings)
                self._embedded[key] = found[_drawn(len(found), self.options.limit)]
            else:
                self._embedded[key] = embed_images(
                    self.data(spec),
                    self.encoder,
                    self.options.cache,
                    dtype=self.options.feature_dtype,
                    strict=self.options.strict,
                    progress=self.progress,
                )
            self._tell_skipped(spec, self._embedded[key])
        return self._embedded[key]

    def has(self, spec: Data) -> bool:
        """Whether there is such a split; an embeddings file need not have those that only baselines want."""
        if self.options.embeddings is None:
            return True
        labels = self.file[0].labels.get("split")
        return labels is not None and spec.split in labels.names

    def fingerprint(self, spec: Data) -> str:
        """Of the images of a split, or of the user's file."""
        if self.options.embeddings is not None:
            return f"{file_digest(self.options.embeddings)} {spec.split}"
        return self.data(spec).fingerprint

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """A line in the progress display for work of unknown length; gives the function that renames it."""
        task: TaskID = self.progress.add_task(name, total=None)
        try:
            yield lambda said: self.progress.update(task, description=f"{name}: {said}")
        finally:
            self.progress.remove_task(task)

    def say(self, text: str) -> None:
        """A line above the progress display."""
        self.progress.console.print(text, markup=False, highlight=False)

    def _tell_skipped(self, spec: Data, embedded: Embeddings) -> None:
        skipped = embedded.about.get("skipped") or []
        if skipped:
            first = "; ".join(str(one) for one in skipped[:3])
            self.say(
                f"{spec.name} {spec.split}: {len(skipped)} images cannot be read and are left out, such as {first}"
            )


def progress_on(console: Console) -> Progress:
    """Bars with the time left, on stderr of the command line."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, short."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:24]


def open_split(
    name: str, root: Path | str | None, split: str | None, options: Mapping[str, Any]
) -> ImageData | ImageStream:
    """A split by name: a world is rendered, everything else is read below `root`."""
    from vldebias.data.registry import open_data
    from vldebias.miniature.data import open_world

    if name in WORLDS:
        return open_world(name, split=split or "test", **options)
    return open_data(name, root, split, **options)


def _limited(data: ImageData | ImageStream, limit: int | None) -> ImageData | ImageStream:
    """At most `limit` images, drawn at random but always the same, in their order."""
    if isinstance(data, ImageData):
        return data if limit is None or len(data) <= limit else data[_drawn(len(data), limit)]
    if limit is None:
        return data
    raise InvalidInputError(f"--limit: {data.name} is streamed, so its length is not known; limit it in its options")


def _drawn(n: int, limit: int | None) -> NDArray[np.int64]:
    """Indices of at most `limit` of n rows."""
    return np.sort(np.random.default_rng(0).permutation(n)[:limit])


def _split_of_file(embeddings: Embeddings, spec: Data, path: Path) -> Embeddings:
    """The rows of a split, by the file's column "split"; without one the file is the split that is measured."""
    if "split" not in embeddings.labels:
        return embeddings
    labels = embeddings.column("split")
    if spec.split not in labels.names:
        raise InvalidInputError(f'{path}: its column "split" has {list(labels.names)}; this task needs {spec.split!r}')
    return embeddings[labels.codes == labels.names.index(spec.split)]
