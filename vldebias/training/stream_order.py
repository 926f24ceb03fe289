"""The order of a stream's rows: shuffled within a buffer, cut into joint batches, the same in every process and run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

import numpy as np

from vldebias.data.images import ImageStream, Record
from vldebias.data.labels import UNKNOWN
from vldebias.errors import InvalidInputError
from vldebias.training.noise import mixture_noise
from vldebias.training.pairs import caption_of
from vldebias.training.sampling import numpy_generator

__all__ = ["Row", "StreamOrder", "shuffled"]

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A record that is not yet decoded.

    index: its position in the stream. caption: after noise; "" where captions are not read. label: code or UNKNOWN.
    """

    index: int
    record: Record
    caption: str
    label: int = UNKNOWN


@dataclass
class StreamOrder:
    """Joint batches of undecoded rows, by their number.

    with_captions: rows without a caption are passed over. joint_size: rows of a joint batch. The others: see
    `vldebias.training.stream.StreamBatches`.
    """

    stream: ImageStream
    joint_size: int
    seed: int
    buffer: int
    noise: float
    label: str | None
    template: str | None
    with_captions: bool
    per_pass: int | None = field(default=None, init=False)  # joint batches in a pass, once one has been seen to its end

    def joint_from(self, first: int) -> Iterator[tuple[int, list[Row]]]:
        """(epoch, rows) of the joint batches `first`, `first` + 1, ... without end.

        Before the end of the stream was seen it takes a pass to learn how long it is; whole epochs after that are
        stepped over, since the order of each follows from its number.

        Raises:
            InvalidInputError: a stream without captions, or with fewer rows than a joint batch takes.
        """
        epoch, skip = (0, first) if self.per_pass is None else divmod(first, self.per_pass)
        while True:
            done = 0
            for rows in self._pass(epoch):
                done += 1
                if skip:
                    skip -= 1
                else:
                    yield epoch, rows
            if self.per_pass is None:
                self.per_pass = self._checked(done)
                whole, skip = divmod(skip, done)
                epoch += whole
            epoch += 1

    def _checked(self, batches: int) -> int:
        if batches:
            return batches
        rows = sum(1 for _ in self._rows())
        if rows:
            raise InvalidInputError(
                f"{self.stream.name}: the stream has {rows} rows, fewer than the {self.joint_size} of one batch of all "
                "processes; lower batch_size"
            )
        raise InvalidInputError(
            f"{self.stream.name}: no row of the stream has a caption. Name their column when the data is opened "
            "(caption=...), or make them from a label with label=... and caption_template='a photo of a {}'"
        )

    def _pass(self, epoch: int) -> Iterator[list[Row]]:
        rows = shuffled(self._noisy(), self.buffer, numpy_generator("stream order", self.seed, epoch))
        while len(batch := list(islice(rows, self.joint_size))) == self.joint_size:
            yield batch

    def _noisy(self) -> Iterator[Row]:
        """Rows in the order of the stream, each block of `buffer` with captions drawn from itself."""
        rows = self._rows()
        if not self.noise:
            yield from rows
            return
        block = 0
        while held := list(islice(rows, self.buffer)):
            seed = int(numpy_generator("blocks", self.seed, block).integers(2**62))
            source = mixture_noise(len(held), self.noise, seed).source
            yield from (replace(row, caption=held[k].caption) for row, k in zip(held, source, strict=True))
            block += 1

    def _rows(self) -> Iterator[Row]:
        for index, record in enumerate(self.stream.records()):
            value = None if self.label is None else record.labels[self.label]
            code = UNKNOWN if value is None or self.label is None else self.stream.names[self.label].index(value)
            caption = self._caption(record, value)
            if caption.strip() or not self.with_captions:
                yield Row(index, record, caption, code)

    def _caption(self, record: Record, value: str | None) -> str:
        if not self.with_captions:
            return ""
        if self.template is None:
            return record.caption or ""
        return "" if value is None else caption_of(self.template, value)


def shuffled(rows: Iterable[T], buffer: int, generator: np.random.Generator) -> Iterator[T]:
    """Every item once; each leaves the buffer at random when the next one comes in."""
    coming = iter(rows)
    held = list(islice(coming, buffer))
    for row in coming:
        place = int(generator.integers(len(held)))
        yield held[place]
        held[place] = row
    for place in generator.permutation(len(held)):
        yield held[place]
