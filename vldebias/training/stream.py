"""Batches from rows that come one after another: every process reads its own shards, from any batch on."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from vldebias.data.captions import says_something
from vldebias.data.dataset import ImageStream, Record
from vldebias.data.labels import UNKNOWN
from vldebias.data.parallel import prefetch
from vldebias.errors import InvalidInputError, warn
from vldebias.training.augmentation import Augment
from vldebias.training.batches import Batch, ReadOptions, Unreadable, codes_of, looks_of, texts_of
from vldebias.training.pairs import CAPTIONS_WANTED, caption_of, check_rate, mixture_noise
from vldebias.training.sampling import numpy_generator, torch_generator, turns

_SHARD = 1 << 40  # index of a row: its number in its shard, and this for every shard before


class Place(NamedTuple):
    """Where a batch begins in the stream of one process.

    epoch: pass over its shards. nth: shard in the order of that pass. row: of that shard, where a block begins. taken:
    rows of the shuffled block that earlier batches have.
    """

    epoch: int = 0
    nth: int = 0
    row: int = 0
    taken: int = 0


@dataclass(frozen=True)
class _Row:
    """A record that is not yet decoded.

    index: its number in its shard, and 2^40 for every shard before. captions: after noise; none for two views.
    """

    index: int
    record: Record
    captions: tuple[str, ...]
    label: int = UNKNOWN


@dataclass(frozen=True)
class _Read:
    """What became of one place of a batch.

    said: its captions of this epoch, further ones behind the first. views: (v, 3, h, w). failed: id -> why.
    """

    row: _Row
    said: list[str]
    views: Tensor
    failed: dict[str, str]


class StreamBatches:
    """Micro-batches of a stream of pairs; see `vldebias.training.batches.Batches`.

    Process r of w reads the shards r, r + w, ... and no others. Each pass takes them in another order, and shuffles
    their rows in blocks of `buffer`; what does not fill a batch at its end is left out. A stream with fewer shards than
    processes is read whole by each, and row i is that of process i mod w. So another number of processes makes other
    batches.

    A run goes on at a `place`, where only the shard of that place is opened, and of it only the rows from the block on
    are looked at; without a place all rows before are passed over, undecoded.

    With mixture noise a replaced caption is drawn from its own block: the same in every epoch, whatever the shuffle;
    the law is that of `mixture_noise` within a block.

    Args:
        stream: rows with captions; those without one are passed over. Its `shards`, where it has any, and
            `records(start, shard)` say how it is split.
        augment: image -> tensor, called from several threads; see `vldebias.training.augmentation`.
        label: column of classes, whose names the stream must know beforehand.
        caption_template: make the captions from the label instead, such as "a photo of a {}".
        noise: eta of the mixture noise.
        buffer: rows that are shuffled at a time, held undecoded.
        options: see `vldebias.training.batches.ReadOptions`. With on_error "skip" another row of the batch is taken.

    Raises:
        InvalidInputError: no `tokenize` without `two_views`, a label that the stream does not know, a template without
            label, a number outside its range; while it runs, a stream without captions or shorter than a batch.
    """

    items: int | None = None
    per_epoch: int | None = None

    def __init__(
        self,
        stream: ImageStream,
        augment: Augment,
        *,
        label: str | None = None,
        caption_template: str | None = None,
        noise: float = 0.0,
        buffer: int = 1000,
        **options: Any,
    ) -> None:
        how = self.how = ReadOptions(**options)
        rank, world = how.rank, how.world
        if not how.two_views and how.tokenize is None:
            raise InvalidInputError(f"{stream.name}: expected tokenize, or two_views=True")
        if label is not None and label not in stream.names:
            raise InvalidInputError(
                f"{stream.name}: the classes of {label!r} must be known before the stream is read; name them when it "
                f"is opened: labels=[{label!r}], names={{{label!r}: [...]}}. Known are {sorted(stream.names)}"
            )
        if caption_template is not None and label is None:
            raise InvalidInputError(f"{stream.name}: caption_template needs label, the column of classes to name")
        if min(how.batch_size, buffer) < 1 or not 0 <= rank < world:
            got = f"{how.batch_size}, {buffer}, {rank}, {world}"
            raise InvalidInputError(f"expected batch_size and buffer of at least 1 and rank < world, got {got}")
        check_rate(noise)
        self.stream, self.augment, self.noise, self.buffer = stream, augment, noise, buffer
        self.label, self.template = label, caption_template
        self.unreadable = Unreadable(stream.name, how.on_error)
        shards = getattr(stream, "shards", 1)
        self.shards = np.arange(rank, shards, world) if shards >= world else np.arange(shards)
        self.stride = (0, 1) if shards >= world else (rank, world)
        if shards < world and rank == 0:
            warn(
                f"{stream.name}: has {shards} shards for {world} processes, so each reads all of them; store it in "
                f"{world} shards or more"
            )
        self._places: dict[int, Place] = {0: Place()}

    def starting(self, first: int, place: Place | None = None) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... of this process without end.

        place: what `place(first)` said, in this run or an earlier one; default: looked for from the beginning.
        """
        coming = self._assembled(place or Place())
        if place is None:
            coming = islice(coming, first, None)

        def tasks() -> Iterator[tuple[list[_Row], int, int]]:
            for number, (begin, after, rows) in enumerate(coming, first):
                self._places |= {number: begin, number + 1: after}
                self._places.pop(number - 8, None)  # reading is two batches ahead
                yield from ((rows, slot, begin.epoch) for slot in range(self.how.batch_size))

        read = prefetch(tasks(), lambda task: self._read(*task), self.how.workers, 2 * self.how.batch_size)
        try:
            while True:
                yield self._batch(list(islice(read, self.how.batch_size)))
        finally:
            read.close()  # type: ignore[attr-defined]
            self.unreadable.report()

    def place(self, number: int) -> Place:
        """Where micro-batch `number` begins; known of the latest ones that were read."""
        return self._places[number]

    def _assembled(self, begin: Place) -> Iterator[tuple[Place, Place, list[_Row]]]:
        """Where each batch begins, where it ends, and its undecoded rows."""
        taken, held, made, whole = begin.taken, list[_Row](), 0, begin == Place()
        for at, rows in self._blocks(begin):
            if at.epoch != begin.epoch:  # what is held does not fill a batch any more
                if whole and not made:
                    self._refuse()
                begin, held = at, []
            for k in range(taken, len(rows)):
                held.append(rows[k])
                if len(held) == self.how.batch_size:
                    after = at._replace(taken=k + 1)
                    yield begin, after, held
                    begin, held, made = after, [], made + 1
            taken = 0

    def _blocks(self, place: Place) -> Iterator[tuple[Place, list[_Row]]]:
        """Blocks of shuffled rows with where they begin, pass after pass; an empty one begins each further pass."""
        epoch, nth, row, _ = place
        while True:
            order = numpy_generator("shards", self.how.seed, epoch).permutation(self.shards).tolist()
            for n, shard in enumerate(order[nth:], nth):
                rows = self._rows(shard, row)
                while block := list(islice(rows, self.buffer)):
                    yield Place(epoch, n, row), self._mixed([r for r in block if r is not None], epoch, shard, row)
                    row += len(block)
                row = 0
            epoch, nth = epoch + 1, 0
            yield Place(epoch), []

    def _mixed(self, block: list[_Row], epoch: int, *where: int) -> list[_Row]:
        """The rows of a block in the order of an epoch, with captions drawn from the block."""
        if self.noise:
            seed = int(numpy_generator("blocks", self.how.seed, *where).integers(2**62))
            captions = [caption for row in block for caption in row.captions]
            drawn = (captions[k] for k in mixture_noise(len(captions), self.noise, seed).source)
            block = [replace(row, captions=tuple(islice(drawn, len(row.captions)))) for row in block]
        order = numpy_generator("stream order", self.how.seed, epoch, *where).permutation(len(block))
        return [block[k] for k in order]

    def _refuse(self) -> NoReturn:
        """Says why a pass came to no batch."""
        rows = sum(row is not None for shard in self.shards.tolist() for row in self._rows(shard, 0))
        if rows:
            raise InvalidInputError(
                f"{self.stream.name}: the stream has {rows} rows for this process, fewer than the "
                f"{self.how.batch_size} of a batch; lower batch_size"
            )
        raise InvalidInputError(f"{self.stream.name}: no row of the stream has a caption. {CAPTIONS_WANTED}")

    def _rows(self, shard: int, start: int) -> Iterator[_Row | None]:
        """Rows of a shard from one on; None where there is no caption, or it is another process's."""
        own, every = self.stride
        where: Any = (start, shard) if hasattr(self.stream, "shards") else (start,)
        records = self.stream.records(*where)
        for number, record in enumerate(records, start):
            yield self._row(shard * _SHARD + number, record) if number % every == own else None

    def _row(self, index: int, record: Record) -> _Row | None:
        value = None if self.label is None else record.labels[self.label]
        code = UNKNOWN if value is None or self.label is None else self.stream.names[self.label].index(value)
        if self.how.two_views:
            return _Row(index, record, (), code)
        if self.template is None:
            captions = (record.caption or "", *(record.more_captions or ()))
        else:
            captions = ("" if value is None else caption_of(self.template, value),)
        return _Row(index, record, captions, code) if says_something(captions[0]) else None

    def _read(self, rows: Sequence[_Row], slot: int, epoch: int) -> _Read:
        others = numpy_generator("replacement", self.how.seed, epoch, slot)
        taken, image, failed = self.unreadable.read(
            slot,
            lambda one: rows[one].record.read(),
            spares=iter(others.permutation(len(rows)).tolist()),
            ids=lambda one: rows[one].record.id,
        )
        row = rows[taken]
        where = (self.how.seed, epoch, row.index)
        views = [self.augment(image, torch_generator("augmentation", *where, v)) for v in range(self.how.looks)]
        captions = []
        if not self.how.two_views:
            listed = self.template is None and row.record.more_captions is not None
            more = self.how.further if listed else 0
            captions = [row.captions[k] for k in turns(len(row.captions), more, *where)]
        return _Read(row, captions, torch.stack(views), failed)

    def _batch(self, read: Sequence[_Read]) -> Batch:
        self.unreadable.add({row: reason for one in read for row, reason in one.failed.items()})
        captions = [caption for one in read for caption in one.said]
        tokens = {} if self.how.tokenize is None or not captions else self.how.tokenize(captions)
        return Batch(
            **looks_of(torch.stack([one.views for one in read]), self.how.two_views),
            **texts_of(tokens, len(captions) // len(read)),
            index=torch.tensor([one.row.index for one in read]),
            captions=codes_of([one.said[0] for one in read]) if captions else None,
            labels=None if self.label is None else torch.tensor([one.row.label for one in read]),
        )
