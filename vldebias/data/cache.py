"""The embedding cache: image features computed once per model, preprocessing and data set, kept in shards."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data.dataset import ImageData, ImageStream, Record
from vldebias.data.embeddings import Embeddings
from vldebias.data.labels import Labels
from vldebias.data.parallel import HERE, Runner, dealt, prefetch, processes
from vldebias.data.pictures import why_unreadable
from vldebias.data.store import Notes, Shard, ShardStore
from vldebias.errors import InvalidInputError
from vldebias.progress import SILENT, Progress

if TYPE_CHECKING:
    from vldebias.hosts.images import ImageEncoder, Pixels

FORMAT = 1
VARIABLE = "VLDEBIAS_CACHE"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_MANY = 16  # where not one of at least so many images can be read, the drive is gone and not the images


def default_cache_dir() -> Path:
    """$VLDEBIAS_CACHE, or ~/.cache/vldebias."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "vldebias"


def embed_images(
    data: ImageData | ImageStream,
    encoder: ImageEncoder,
    cache_dir: str | Path | None = None,
    *,
    dtype: str = "float16",
    shard_size: int = 1024,
    batch_size: int = 64,
    workers: int = 4,
    strict: bool = False,
    read_only: bool = False,
    progress: Progress | None = None,
    runner: Runner = HERE,
) -> Embeddings:
    """Features of all images of `data`, from the cache where they are there, else computed and put there.

    A run that is stopped, killed or interrupted leaves complete shards and goes on from them. Several processes
    (`accelerate launch`, torchrun) share the missing shards, and each returns everything; with a runner on Ray its
    workers do. The rows of a stream are drawn once, by the first process, and each is decoded by one. The labels and
    captions of an ImageData are those it has now; those of a stream were kept with its features.

    Args:
        data: what to embed.
        encoder: from vldebias.hosts.images.image_encoder.
        cache_dir: default: see `default_cache_dir`.
        dtype: how features are kept: "float16", "bfloat16" or "float32". bfloat16 comes back as float32, since numpy
            has no such type.
        shard_size: images in a shard: what a kill can cost.
        batch_size: images that go through the model at once.
        workers: threads that read and prepare images ahead of the model; 0 reads between the batches.
        strict: stop at the first image that cannot be read. Default: count, list in `about["skipped"]` and go on.
        read_only: compute and write nothing; what is missing or damaged is an error.
        progress: where to show how far it is; default: on stderr.
        runner: who computes missing shards: `vldebias.data.OnRay()`; default: this process.

    Returns:
        Embeddings, features as stored, mapped into memory where they are one shard. `about` says what they are of:
        data, split, data_fingerprint, model, fingerprint (of the image tower), preprocessing, dtype, images (read or
        not), skipped ([{"id", "reason"}]), cache (folder), source (`data.about`).

    Raises:
        InvalidInputError: an unreadable image where strict, no readable image, features that are not finite, a cache
            that is not complete where `read_only`.
    """
    if not isinstance(data, (ImageData, ImageStream)):
        raise InvalidInputError(f"data: expected an ImageData or an ImageStream, got {type(data).__name__}")
    if dtype not in DTYPES:
        raise InvalidInputError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    for name, value, least in (("shard_size", shard_size, 1), ("batch_size", batch_size, 1), ("workers", workers, 0)):
        if not isinstance(value, int) or value < least:
            raise InvalidInputError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    if isinstance(data, ImageData) and not len(data):
        raise InvalidInputError(f"{data.name}: expected at least one image, got none")
    folder = cache_folder(data, encoder, cache_dir, dtype=dtype, shard_size=shard_size)
    folder = folder if runner is HERE else folder.absolute()  # workers may start elsewhere
    about = {
        "data": data.name,
        "split": data.split,
        "data_fingerprint": data.fingerprint,
        "model": encoder.name,
        "fingerprint": encoder.fingerprint,
        "preprocessing": encoder.preprocessing,
        "dtype": dtype,
    }
    store = ShardStore(folder, shard_size, about | {"shard_size": shard_size}, read_only=read_only)
    with progress or Progress.on() as display:
        run = _Run(store, encoder, dtype, batch_size, workers, strict, f"{data.name} {data.split}", display, runner)
        try:
            embeddings = run.data(data) if isinstance(data, ImageData) else run.stream(data)
        except KeyboardInterrupt:
            display.say(f"Interrupted. Complete shards are kept in {folder}: the same command goes on from them.")
            raise
    skipped = embeddings.about["skipped"]
    if not len(embeddings):
        raise InvalidInputError(f"{data.name}: expected images, but none of {len(skipped)} can be read {skipped[:1]}")
    source = {"cache": str(folder), "source": json.loads(json.dumps(dict(data.about), default=str))}
    return replace(embeddings, about={**about, **embeddings.about, **source})


def cache_folder(
    data: ImageData | ImageStream,
    encoder: ImageEncoder,
    cache_dir: str | Path | None = None,
    *,
    dtype: str = "float16",
    shard_size: int = 1024,
) -> Path:
    """Where `embed_images` keeps these features: another folder for whatever could change one of them."""
    key = {
        "format": FORMAT,
        "tower": encoder.digest,
        "preprocessing": encoder.preprocessing,
        "data": data.fingerprint,
        "images": len(data) if isinstance(data, ImageData) else None,
        "dtype": dtype,
        "shard_size": shard_size,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
    readable = re.sub(r"[^\w.-]+", "-", f"{data.name}-{data.split}").strip("-.")
    return (Path(cache_dir) if cache_dir is not None else default_cache_dir()) / f"{readable}-{digest}"


# ---- a run over the shards ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """Embeds one data set into one store: the shards that are there, the missing ones computed, all of them joined."""

    store: ShardStore
    encoder: ImageEncoder
    dtype: str
    batch_size: int
    workers: int
    strict: bool
    title: str
    progress: Progress
    runner: Runner

    def data(self, data: ImageData) -> Embeddings:
        """Process 0 looks what is missing, all of them share that work, and each returns everything."""
        group, size = processes(), self.store.shard_size
        shards = range(-(-len(data) // size))
        missing = group.share([i for i in shards if self._read(i) is None] if group.rank == 0 else None)
        progress = SILENT if group.rank else self.progress
        self._say(progress, len(shards) - len(missing), len(shards))
        missing = missing[group.rank :: group.world]
        total = sum(min(size, len(data) - index * size) for index in missing)
        with (progress if total else SILENT).bar(self.title, total) as bar:
            if self.runner is HERE:
                for index in missing:
                    self._shard(data, index, bar.advance)
            else:
                away = replace(self, progress=SILENT, runner=HERE)
                for images in self.runner.each(partial(away._shard, data), missing):
                    bar.advance(images)
        group.wait()
        features, kept, notes = self._join(shards, len(data))
        return Embeddings(
            features,
            tuple(data.ids[i] for i in kept),
            {column: labels[kept] for column, labels in data.labels.items()},
            tuple(data.captions[i] for i in kept) if data.captions else (),
            _seen(notes),
        )

    def _shard(self, data: ImageData, index: int, advance: Callable[[], None] = lambda: None) -> int:
        """Compute a shard, if no other run has written it in the meantime; how many images it has."""
        size = self.store.shard_size
        places = range(index * size, min((index + 1) * size, len(data)))
        if self._read(index) is None:
            self._compute(index, (Record(data.ids[i], partial(data.read, i)) for i in places), advance)
        return len(places)

    def stream(self, data: ImageStream) -> Embeddings:
        """Shard after shard; the stream is opened where the first missing one begins, and again after a gap.

        Where others compute, process 0 draws the rows of a shard and hands them on, still to be decoded.
        """
        group, there = processes(), 0
        progress = SILENT if group.rank else self.progress
        with progress.bar(self.title) as bar:
            if group.world == 1 and self.runner is HERE:
                for index, records in self._lacking(data):
                    self._rows((index, records), bar.advance)
                    there += 1
            else:
                away = replace(self, progress=SILENT, runner=HERE)
                tasks = dealt(((index, list(rows)) for index, rows in self._lacking(data)), group)
                for images in self.runner.each(away._rows, tasks):
                    bar.advance(images)
                    there += 1
        group.wait()
        notes = []
        for index in count():
            shard = self.store.read(index)
            if shard is None:
                raise InvalidInputError(f"{self.store.path(index)}: expected this shard of the stream; run again")
            notes.append(shard.notes)
            if shard.notes.last:
                break
        self._say(progress, index + 1 - there, index + 1)
        features, _, notes = self._join(range(index + 1), sum(one.count for one in notes))
        columns = dict.fromkeys(column for one in notes for column in one.labels)
        captions = [caption or "" for one in notes for caption in one.captions]
        labels = {}
        for column in columns:  # one that a shard lacks is unknown there
            values = [value for one in notes for value in one.labels.get(column, [None] * len(one.ids))]
            labels[column] = Labels.of(values, data.names.get(column) or None)
        ids = tuple(name for one in notes for name in one.ids)
        return Embeddings(features, ids, labels, tuple(captions) if any(captions) else (), _seen(notes))

    def _lacking(self, data: ImageStream) -> Iterator[tuple[int, Iterator[Record]]]:
        """The missing shards of a stream in order, with the records of each, which are to be drawn before the next."""
        size, next_record = self.store.shard_size, -1
        records: Iterator[Record] = iter(())
        for index in count():
            shard = self._read(index)
            if shard is not None:
                if shard.notes.last:
                    return
                continue
            if next_record != index * size:
                records = data.records(index * size)
            drawn = _Drawn(islice(records, size))
            yield index, drawn
            next_record = (index + 1) * size
            if drawn.count < size:
                return

    def _rows(self, task: tuple[int, Iterable[Record]], advance: Callable[[], None] = lambda: None) -> int:
        """Compute a shard of a stream from its records; how many there are."""
        index, records = task
        return self._compute(index, records, advance, stream=True).notes.count

    def _say(self, progress: Progress, there: int, total: int) -> None:
        progress.say(f"{self.title}: {there} of {total} shards found in {self.store.folder}")

    def _read(self, index: int) -> Shard | None:
        shard = self.store.read(index)
        if shard is not None and self.strict and shard.notes.skipped:
            name, reason = shard.notes.skipped[0]
            raise InvalidInputError(
                f"image {name!r} could not be read ({reason}) when {self.store.path(index)} was written; repair the "
                "image and delete that file, or run without strict"
            )
        return shard

    def _compute(
        self, index: int, records: Iterable[Record], advance: Callable[[], None], *, stream: bool = False
    ) -> Shard:
        """Embed and write a shard; the batches start anew here, so that a shard never depends on another.

        Of the records of a stream all but the image is kept beside the features.
        """
        if self.store.read_only:
            raise InvalidInputError(
                f"{self.store.path(index)}: this shard is not in the cache; run once without read_only to compute it"
            )
        start, images = index * self.store.shard_size, 0
        rows: list[int] = []
        kept: list[tuple[str, Mapping[str, str | None], str | None]] = []
        skipped: list[list[str]] = []
        parts: list[Tensor] = []
        batch: list[tuple[str, Pixels]] = []
        loaded = prefetch(records, lambda record: (record, self._load(record)), self.workers, 2 * self.batch_size)
        for record, pixels in loaded:
            if not isinstance(pixels, str):
                rows.append(start + images)
                kept.append((record.id, record.labels, record.caption))
                batch.append((record.id, pixels))
            elif self.strict:
                raise InvalidInputError(
                    f"image {record.id!r} cannot be read ({pixels}); repair or remove it, or run without strict to "
                    "count and skip such images"
                )
            else:
                skipped.append([record.id, pixels])
            if len(batch) == self.batch_size:
                parts.append(self._features(batch))
                batch.clear()
            images += 1
            advance()
        if batch:
            parts.append(self._features(batch))
        if len(skipped) >= _MANY and not rows:
            (first, reason), (last, _) = skipped[0], skipped[-1]
            raise InvalidInputError(
                f"none of the {len(skipped)} images from {first!r} to {last!r} can be read ({reason}); expected "
                "images there: is the drive connected, is the root right?"
            )
        notes = Notes(start, images, skipped)
        if stream:
            columns = dict.fromkeys(column for _, labels, _ in kept for column in labels)
            notes = replace(
                notes,
                last=images < self.store.shard_size,
                ids=[name for name, _, _ in kept],
                labels={column: [labels.get(column) for _, labels, _ in kept] for column in columns},
                captions=[caption for _, _, caption in kept],
            )
        features = torch.cat(parts) if parts else torch.empty(0, 0, dtype=DTYPES[self.dtype])
        shard = Shard(features, torch.tensor(rows, dtype=torch.int64), notes)
        self.store.write(index, shard)
        return shard

    def _join(self, shards: Sequence[int], capacity: int) -> tuple[NDArray[Any], NDArray[np.int64], list[Notes]]:
        """Features, their rows, and the notes of all shards: mapped if it is one, else copied once, one by one."""
        notes, rows, joined, end = [], [], torch.empty(0, 0), 0
        for index in shards:
            shard = self.store.read(index)
            if shard is None:
                raise InvalidInputError(
                    f"{self.store.path(index)}: expected this shard now that all processes have finished, but it is "
                    "not there; all of them need the same cache folder, and nothing else may delete from it. Run again"
                )
            notes.append(shard.notes)
            rows.append(shard.rows.numpy())
            features = shard.features
            if len(shards) == 1:
                joined, end = features, len(features)
            elif len(features):
                if not end:
                    joined = torch.empty(capacity, features.shape[1], dtype=features.dtype)
                joined[end : end + len(features)] = features
                end += len(features)
        joined = joined[:end]  # numpy knows no bfloat16
        array = (joined.float() if joined.dtype == torch.bfloat16 else joined).numpy()
        return array, np.concatenate(rows), notes

    def _load(self, record: Record) -> Pixels | str:
        """The pixels, or why the image cannot be read."""
        try:
            image = record.read()
        except OSError as error:
            return why_unreadable(error)
        return self.encoder.prepare(image)

    def _features(self, batch: list[tuple[str, Pixels]]) -> Tensor:
        """Features (b, d) in the precision of the cache."""
        stored = self.encoder.embed([pixels for _, pixels in batch]).to(DTYPES[self.dtype])
        bad = ~torch.isfinite(stored).all(dim=1)
        if bad.any():
            first = batch[int(bad.nonzero()[0])][0]
            raise InvalidInputError(
                f"{self.encoder.name}: the features of {int(bad.sum())} images, such as {first!r}, are not finite "
                f"as {self.dtype}; expected finite ones: choose dtype 'bfloat16' or 'float32', or run the model in "
                "float32"
            )
        return stored


class _Drawn(Iterator[Record]):
    """Records, counted as they are drawn."""

    def __init__(self, records: Iterator[Record]) -> None:
        self.records, self.count = records, 0

    def __next__(self) -> Record:
        record = next(self.records)
        self.count += 1
        return record


def _seen(notes: Sequence[Notes]) -> dict[str, Any]:
    """How many images there were, and which could not be read."""
    skipped = [{"id": name, "reason": reason} for one in notes for name, reason in one.skipped]
    return {"images": sum(one.count for one in notes), "skipped": skipped}
