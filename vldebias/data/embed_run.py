"""One run over a cache: the shards that are there, the missing ones computed, all of them joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from torch import Tensor

from vldebias.data.embed_processes import Processes, processes
from vldebias.data.embed_rows import Embedded, How, Row, embed_rows
from vldebias.data.embeddings import Embeddings
from vldebias.data.images import ImageData, ImageStream, Record
from vldebias.data.labels import Labels
from vldebias.data.store import Notes, Shard, ShardStore
from vldebias.errors import InvalidInputError

__all__ = ["EmbedRun"]


class EmbedRun:
    """Embeds one data set into one store; what it tells goes to `bars` under `title`."""

    def __init__(self, store: ShardStore, how: How, title: str, bars: Progress) -> None:
        self.store, self.how, self.title, self.bars = store, how, title, bars

    def data(self, data: ImageData) -> Embeddings:
        """Process 0 looks what is missing, all of them share that work, and each returns everything."""
        group, size = processes(), self.store.shard_size
        shards = range(-(-len(data) // size))
        missing = group.share([i for i in shards if self._found(i) is None] if group.rank == 0 else None)
        self._tell(len(shards) - len(missing), len(shards), group)
        missing = missing[group.rank :: group.world]
        total = sum(min(size, len(data) - index * size) for index in missing)
        with self._advancing(total, group) as advance:
            for index in missing:
                if self._found(index) is None:  # another run may have written it in the meantime
                    places = range(index * size, min((index + 1) * size, len(data)))
                    rows = [Row(i, data.ids[i], partial(data.read, i)) for i in places]
                    self._compute(index, rows, partial(_notes, places), advance)
        group.wait()
        features, kept, notes = self._join(shards, len(data))
        return Embeddings(
            features,
            tuple(data.ids[i] for i in kept),
            {column: labels[kept] for column, labels in data.labels.items()},
            tuple(data.captions[i] for i in kept) if data.captions else (),
            _seen(notes),
        )

    def stream(self, data: ImageStream) -> Embeddings:
        """Shard after shard; the stream is opened where the first missing one begins, and again after a gap."""
        group = processes()
        if group.world > 1:
            raise InvalidInputError(
                f"{data.name}: a stream is embedded by one process, got {group.world}; start it without several "
                "processes, or use the data set without streaming"
            )
        size, next_record, found, images = self.store.shard_size, -1, 0, 0
        records: Iterator[Record] = iter(())
        with self._advancing(None, group) as advance:
            for index in count():
                shard = self._found(index)
                if shard is None:
                    if next_record != index * size:
                        records = data.records(index * size)
                    seen = _Seen(index * size)
                    shard = self._compute(index, seen.rows(islice(records, size)), partial(seen.notes, size), advance)
                    next_record = (index + 1) * size
                else:
                    found += 1
                images += shard.notes.count
                if shard.notes.last:
                    break
        self._tell(found, index + 1, group)
        features, _, notes = self._join(range(index + 1), images)
        return _streamed(features, notes, data)

    def _found(self, index: int) -> Shard | None:
        shard = self.store.read(index)
        if shard is not None and self.how.strict and shard.notes.skipped:
            name, reason = shard.notes.skipped[0]
            raise InvalidInputError(
                f"image {name!r} could not be read ({reason}) when {self.store.path(index)} was written; repair the "
                "image and delete that file, or run without strict"
            )
        return shard

    def _compute(
        self, index: int, rows: Iterable[Row], notes: Callable[[Embedded], Notes], advance: Callable[[], None]
    ) -> Shard:
        """Embed and write a shard; `notes` is asked when all of its rows have been read."""
        if self.store.read_only:
            raise InvalidInputError(
                f"{self.store.path(index)}: this shard is not in the cache; run once without read_only to compute it"
            )
        found = embed_rows(rows, self.how, advance)
        shard = Shard(found.features, torch.tensor(found.rows, dtype=torch.int64), notes(found))
        self.store.write(index, shard)
        return shard

    def _join(self, shards: Sequence[int], capacity: int) -> tuple[NDArray[Any], NDArray[np.int64], list[Notes]]:
        """Features, their rows, and the notes of all shards: mapped if it is one, else copied once, one by one."""
        notes, rows, joined, end = [], [], torch.empty(0, 0), 0
        for shard in map(self._needed, shards):
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
        return _array(joined[:end]), np.concatenate(rows), notes

    def _needed(self, index: int) -> Shard:
        shard = self.store.read(index)
        if shard is None:
            raise InvalidInputError(
                f"{self.store.path(index)}: expected this shard now that all processes have finished, but it is not "
                "there; all of them need the same cache folder, and nothing else may delete from it. Run again"
            )
        return shard

    def _tell(self, found: int, total: int, group: Processes) -> None:
        if group.rank == 0:
            told = f"{self.title}: {found} of {total} shards found in {self.store.folder}"
            self.bars.console.print(told, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _advancing(self, total: int | None, group: Processes) -> Iterator[Callable[[], None]]:
        """A function to call after every image; the bar shows what process 0 has to compute."""
        if group.rank or total == 0:
            yield lambda: None
            return
        task = self.bars.add_task(self.title, total=total)
        yield partial(self.bars.advance, task)
        if total is None:
            self.bars.update(task, total=next(one.completed for one in self.bars.tasks if one.id == task))


class _Seen:
    """What the records of one shard of a stream say of themselves, without their images."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.records: list[Record] = []

    def rows(self, records: Iterable[Record]) -> Iterator[Row]:
        """A row for each record, which is remembered but for its image."""
        for index, record in enumerate(records, start=self.start):
            self.records.append(Record(record.id, _forgotten, dict(record.labels), record.caption))
            yield Row(index, record.id, record.read)

    def notes(self, size: int, found: Embedded) -> Notes:
        """For the shard; one with fewer records than `size` is the last."""
        kept = [self.records[row - self.start] for row in found.rows]
        columns = dict.fromkeys(column for record in kept for column in record.labels)
        return Notes(
            self.start,
            len(self.records),
            found.skipped,
            last=len(self.records) < size,
            ids=[record.id for record in kept],
            labels={column: [record.labels.get(column) for record in kept] for column in columns},
            captions=[record.caption for record in kept],
        )


def _forgotten() -> Any:
    raise OSError("the image of this record was let go")


def _notes(places: range, found: Embedded) -> Notes:
    return Notes(places.start, len(places), found.skipped)


def _seen(notes: Sequence[Notes]) -> dict[str, Any]:
    """How many images there were, and which could not be read."""
    skipped = [{"id": name, "reason": reason} for one in notes for name, reason in one.skipped]
    return {"images": sum(one.count for one in notes), "skipped": skipped}


def _streamed(features: NDArray[Any], notes: Sequence[Notes], data: ImageStream) -> Embeddings:
    """With the ids, labels and captions that were kept; a column that a shard lacks is unknown there."""
    columns = dict.fromkeys(column for one in notes for column in one.labels)
    values = {
        column: [value for one in notes for value in one.labels.get(column, [None] * len(one.ids))]
        for column in columns
    }
    captions = [caption for one in notes for caption in one.captions]
    return Embeddings(
        features,
        tuple(name for one in notes for name in one.ids),
        {column: Labels.of(found, data.names.get(column) or None) for column, found in values.items()},
        tuple(caption or "" for caption in captions) if any(captions) else (),
        _seen(notes),
    )


def _array(features: Tensor) -> NDArray[Any]:
    """As numpy, which knows no bfloat16."""
    return (features.float() if features.dtype == torch.bfloat16 else features).numpy()
