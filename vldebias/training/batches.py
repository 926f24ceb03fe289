"""Read micro-batches of pairs by their number, at random by worker processes or from a stream."""

from __future__ import annotations

import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, count, islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vldebias.data.dataset import Record
from vldebias.data.huggingface import ImageStream
from vldebias.data.parallel import prefetch
from vldebias.data.tables import UNKNOWN, says_something
from vldebias.errors import InvalidInputError, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.losses.processes import rank as own_rank
from vldebias.losses.processes import world_size
from vldebias.training.augmentation import Augment, Augmentation
from vldebias.training.pairs import CAPTIONS_WANTED, Pairs
from vldebias.training.sampling import Sampler, numpy_generator, torch_generator, turn
from vldebias.training.settings import TrainSettings

# How many rows are tried in place of one that cannot be read; if all fail, something else is wrong.
ATTEMPTS = 10
# A row of a stream has the index shard * _SHARD + its number within the shard.
_SHARD = 1 << 40
_Row = tuple[int, Record]  # its index, and what is not yet decoded
TIMEOUT = 600  # seconds without a batch from any worker, as where shared memory fails
T = TypeVar("T")
Tokenize = Callable[[Sequence[str]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Batch:
    """Hold b images (b, 3, h, w) with their captions, or with a second view each.

    texts: arguments of the text tower, (b, length) each. more_views: (b, m, 3, h, w), further
    augmentations of each image. The other columns are (b,) integers: the number of each image in
    its data set, its class, its group (-1 where unknown), and numbers that are equal where the
    captions are.
    """

    images: Tensor
    texts: Mapping[str, Tensor] = field(default_factory=dict)
    index: Tensor | None = None
    labels: Tensor | None = None
    captions: Tensor | None = None
    groups: Tensor | None = None
    views: Tensor | None = None
    more_views: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Join several batches in the columns that losses read; without pixels."""
        columns: dict[str, Any] = {}
        for name in ("index", "labels", "captions", "groups"):
            parts = [getattr(batch, name) for batch in batches]
            columns[name] = None if parts[0] is None else torch.cat(parts)
        return cls(torch.empty(sum(map(len, batches)), 0), **columns)

    @staticmethod
    def codes(captions: Sequence[str]) -> Tensor:
        """Return (n,) int64 that are equal where texts are, the same in every process; others
        collide once in 2^63."""
        code_of_text = dict[str, int]()
        for text in set(captions):
            hashed = blake2b(text.encode(), digest_size=8).digest()
            code_of_text[text] = int.from_bytes(hashed) >> 1  # int64 has a sign
        return torch.tensor([code_of_text[text] for text in captions], dtype=torch.int64)


class Batches(ABC):
    """Read micro-batches by number: the same number always gives the same micro-batch.

    items: images of the data set; per_epoch: micro-batches of this process in an epoch; None for a
    stream. more_views: further augmentations that a batch has of each image.

    Args:
        batch_size, seed, rank, world: see `vldebias.training.sampling.Sampler`.
        tokenize: of the towers; None contrasts two augmentations of each image, and reads no
            captions.
        workers: number of readers, processes for pairs and threads for a stream; 0 reads between
            the batches.
    """

    items: int | None = None
    per_epoch: int | None = None
    more_views: int = 0

    def __init__(
        self,
        name: str,
        augment: Augment,
        *,
        batch_size: int,
        tokenize: Tokenize | None = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        workers: int = 0,
    ) -> None:
        self.name = name
        self.augment = augment
        self.batch_size = batch_size
        self.seed = seed
        self.tokenize = tokenize
        self.workers = workers
        self.rank = own_rank() if rank is None else rank
        self.world = world_size() if world is None else world
        self.unreadable: dict[str, str] = {}  # id -> reason

    @staticmethod
    def from_data(data: Pairs | ImageStream, settings: TrainSettings, towers: Towers) -> Batches:
        """Return the micro-batches that the settings ask for, of pairs or of a stream of them.

        Args:
            data: pairs, or a stream of them.
            settings: of the training.
            towers: the model, which knows the size of images and the tokenizer.
        """
        augment = Augmentation(
            towers.size,
            towers.mean,
            towers.std,
            crop=settings.crop_scale,
            flip=settings.flip,
            jitter=settings.jitter,
            grayscale=settings.grayscale,
            blur=settings.blur,
        )
        options: dict[str, Any] = {
            name: getattr(settings, name) for name in ("batch_size", "seed", "workers")
        }
        options["tokenize"] = None if settings.views == "two" else towers.tokenize
        batches: Batches
        if isinstance(data, Pairs):
            batches = MapBatches(data, augment, **options)
        else:
            options |= {"label": settings.label, "buffer": settings.shuffle_buffer}
            batches = StreamBatches(data, augment, **options)
        # Losses that compare an image with several positives have this setting.
        batches.more_views = getattr(settings, "positives", 1) - 1
        return batches

    @abstractmethod
    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Yield micro-batches `first`, `first` + 1, ... without end; closing the iterator stops
        reading ahead."""

    def _read(
        self, row: int, read: Callable[[int], T], spares: Iterator[int], ids: Callable[[int], str]
    ) -> tuple[int, T, dict[str, str]]:
        """Return a readable row, its contents, and id -> reason of the rows that were skipped.

        `spares` must depend on the place of the row alone, so that a resumed run takes the same.
        """
        failed: dict[str, str] = {}
        # A row that cannot be read is replaced, so that
        # batches keep their size and losses their state.
        for candidate in chain([row], islice(spares, ATTEMPTS)):
            try:
                return candidate, read(candidate), failed
            except OSError as error:
                failed[ids(candidate)] = str(error)
        first, reason = next(iter(failed.items()))
        raise InvalidInputError(
            f"the image of {first!r} cannot be read ({reason}), nor can {len(failed) - 1}"
            " replacements; if the data is a table of paths, set image_root to the folder that"
            " they start from"
        )

    def _warn_of_unreadable(self, failed: Mapping[str, str]) -> None:
        """Warn of the 1st, 10th, 100th image that cannot be read; one that is met again counts
        once."""
        digits_before = 0
        if self.unreadable:
            digits_before = len(str(len(self.unreadable)))
        self.unreadable.update(failed)
        after = len(self.unreadable)
        # The number got a digit: 1, 10, 100.
        if after and len(str(after)) > digits_before:
            row, reason = next(reversed(self.unreadable.items()))
            warn(
                f"{self.name}: the image of {row!r} cannot be read ({reason}) and is replaced"
                f" ({after} so far)"
            )

    def _augmented(self, image: Any, epoch: int, row: int) -> Tensor:
        """Return all augmentations that a batch has of an image in an epoch, (v, 3, h, w)."""
        contrasted = 2 if self.tokenize is None else 1
        views = range(contrasted + self.more_views)
        augmented = list[Tensor]()
        for view in views:
            # Seeded by numbers alone: the same in any worker, whatever was read before.
            generator = torch_generator("augmentation", self.seed, epoch, row, view)
            augmented.append(self.augment(image, generator))
        return torch.stack(augmented)

    def _batch(
        self, index: Tensor, texts: Sequence[str], views: Tensor, columns: dict[str, Any]
    ) -> Batch:
        # The last of the views are further positives; the first ones are contrasted.
        if self.more_views:
            columns = {**columns, "more_views": views[:, -self.more_views :]}
        if self.tokenize is None:
            return Batch(images=views[:, 0], views=views[:, 1], index=index, **columns)
        tokens = dict(self.tokenize(texts))
        codes = Batch.codes(texts)
        return Batch(images=views[:, 0], texts=tokens, captions=codes, index=index, **columns)


class MapBatches(Batches, Dataset[dict[str, Any]]):
    """Read micro-batches of pairs at random; see `Batches` for the options."""

    def __init__(self, pairs: Pairs, augment: Augment, **options: Any) -> None:
        super().__init__(pairs.name, augment, **options)
        if self.tokenize is not None and not pairs.captions:
            raise InvalidInputError(
                f"{pairs.name}: has no captions; expected some, or two views (tokenize=None)"
            )
        self.pairs = pairs
        self.sampler = Sampler(pairs.items, self.batch_size, self.seed, self.rank, self.world)
        self.items = pairs.items
        self.per_epoch = self.sampler.per_epoch
        self.columns = dict[str, Tensor]()
        if pairs.labels is not None:
            self.columns["labels"] = torch.from_numpy(pairs.labels.codes)
        if pairs.groups is not None:
            self.columns["groups"] = torch.from_numpy(pairs.groups.codes)

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Yield micro-batches read by the workers; close the iterator to stop them."""
        closing = multiprocessing.RawValue("b", 0)

        def outlast_signals(_: int) -> None:
            # A scheduler signals all at once: the run finishes its step, and stops its workers
            # through the loader.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if closing.value else None)

        loader: DataLoader[dict[str, Any]] = DataLoader(
            self,
            batch_size=None,  # a number is a whole batch
            sampler=count(first),
            collate_fn=lambda parts: parts,
            num_workers=self.workers,
            timeout=TIMEOUT if self.workers else 0,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=outlast_signals,
            # Readers are closures, which do not pickle.
            multiprocessing_context="fork" if self.workers else None,
            # Otherwise the workers' seed would be drawn from the global generator.
            generator=torch.Generator(),
        )
        try:
            for parts in loader:
                if "error" in parts:
                    raise InvalidInputError(parts["error"])
                # Here and not in the worker, which does not know what others could not read.
                self._warn_of_unreadable(parts.pop("failed"))
                # Labels follow the rows that were read in fact, replacements as well.
                columns = {name: codes[parts["index"]] for name, codes in self.columns.items()}
                yield self._batch(**parts, columns=columns)
        finally:
            closing.value = 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return the parts of micro-batch `number`, and `failed`: id -> reason; or `error`: what is
        wrong.

        An error is handed over as a text: one that is raised in a worker arrives inside a traceback
        of the loader's.
        """
        spares = self.sampler.spares(number)
        epoch = self.sampler.epoch(number)
        pairs = self.pairs
        rows = list[int]()
        texts = list[str]()
        views = list[Tensor]()
        failed = dict[str, str]()
        try:
            for row in self.sampler.rows(number).tolist():
                read_row, image, unread = self._read(row, pairs.read, spares, pairs.ids.__getitem__)
                rows.append(read_row)
                views.append(self._augmented(image, epoch, read_row))
                if self.tokenize is not None:
                    captions = pairs.captions[read_row]
                    texts.append(captions[turn(len(captions), self.seed, epoch, read_row)])
                failed |= unread
        except InvalidInputError as error:
            return {"error": str(error)}
        return {
            "index": torch.tensor(rows),
            "texts": texts,
            "views": torch.stack(views),
            "failed": failed,
        }


class StreamBatches(Batches):
    """Read micro-batches of a stream of pairs; see `Batches` for the options.

    Process r of w reads the shards r, r + w, ... and no others; a stream with fewer shards than
    processes is read whole by each, and row i is that of process i mod w. Each pass takes the
    shards in another order and shuffles their rows, undecoded, in blocks of `buffer`; rows without
    a caption, and a last incomplete batch, are left out. A resumed run skips the rows that it has
    seen, undecoded.

    Args:
        label: column of classes, whose names the stream must know beforehand.
    """

    def __init__(
        self,
        stream: ImageStream,
        augment: Augment,
        *,
        label: str | None = None,
        buffer: int,
        **options: Any,
    ) -> None:
        super().__init__(stream.name, augment, **options)
        if label is not None and label not in stream.names:
            raise InvalidInputError(
                f"{stream.name}: the classes of {label!r} must be known before the stream is read;"
                f" known are {sorted(stream.names)}. Read the data without streaming"
            )
        self.stream = stream
        self.buffer = buffer
        self.label = label
        self.shards = np.arange(self.rank, stream.shards, self.world)
        # (k, w): this process takes the rows k, k + w, ... of its shards
        self.stride = (0, 1)
        # Fewer shards than processes: some would have none, and the others would wait for them.
        if stream.shards < self.world:
            self.shards = np.arange(stream.shards)
            self.stride = (self.rank, self.world)
            if self.rank == 0:
                warn(
                    f"{stream.name}: has {stream.shards} shards for {self.world} processes, so each"
                    " reads all of them"
                )

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Yield the micro-batches of this process."""
        size = self.batch_size

        def places() -> Iterator[tuple[list[_Row], int, int]]:
            for epoch, rows in islice(self._assembled(), first, None):
                for slot in range(size):
                    yield rows, slot, epoch

        slots = prefetch(places(), lambda place: self._slot(*place), self.workers, 2 * size)
        try:
            while True:
                # The stream has no end, so `islice` always has `size` of them.
                index, labels, texts, views, failed = zip(*islice(slots, size), strict=True)
                for reasons in failed:
                    self._warn_of_unreadable(reasons)
                columns = {}
                if self.label is not None:
                    columns["labels"] = torch.tensor(labels)
                yield self._batch(torch.tensor(index), texts, torch.stack(views), columns)
        finally:
            slots.close()  # type: ignore[attr-defined]

    def _assembled(self) -> Iterator[tuple[int, list[_Row]]]:
        """Yield the epoch and the undecoded rows of every micro-batch."""
        epoch = 0
        while True:
            waiting = list[_Row]()
            is_empty = True
            shards = numpy_generator("shards", self.seed, epoch).permutation(self.shards)
            for block in chain.from_iterable(self._blocks(epoch, x) for x in shards.tolist()):
                waiting += block
                while len(waiting) >= self.batch_size:
                    yield epoch, waiting[: self.batch_size]
                    # What is left over begins the next batch of this pass.
                    waiting = waiting[self.batch_size :]
                    is_empty = False
            if is_empty:
                remedy = f"lower batch_size {self.batch_size}" if waiting else CAPTIONS_WANTED
                raise InvalidInputError(
                    f"{self.name}: {len(waiting)} rows with captions make no batch; {remedy}"
                )
            epoch += 1

    def _blocks(self, epoch: int, shard: int) -> Iterator[list[_Row]]:
        """Yield blocks of rows in the order of an epoch."""
        start, step = self.stride
        numbered = enumerate(self.stream.records(0, shard))
        while True:
            part = list(islice(numbered, self.buffer))
            if not part:
                return
            block = list[_Row]()
            for number, record in part:
                has_caption = self.tokenize is None or says_something(record.caption or "")
                # Rows of other processes are counted, and not decoded.
                if number % step == start and has_caption:
                    block.append((shard * _SHARD + number, record))
            # The seed names the block, so that a resumed
            # run shuffles it as before without the others.
            first_number, _ = part[0]
            generator = numpy_generator("stream order", self.seed, epoch, shard, first_number)
            yield [block[place] for place in generator.permutation(len(block))]

    def _slot(
        self, rows: list[_Row], slot: int, epoch: int
    ) -> tuple[int, int, str, Tensor, dict[str, str]]:
        """Return the data of one place of a batch: number, class, caption in this epoch, views,
        failures."""
        generator = numpy_generator("replacement", self.seed, epoch, slot)
        spares = iter(generator.permutation(len(rows)).tolist())
        place, image, failed = self._read(
            slot, lambda row: rows[row][1].read(), spares, lambda row: rows[row][1].id
        )
        number, record = rows[place]
        code = UNKNOWN
        if self.label is not None:
            value = record.labels.get(self.label)
            if value is not None:
                code = self.stream.names[self.label].index(value)
        captions = (record.caption or "", *(record.more_captions or ()))
        caption = captions[turn(len(captions), self.seed, epoch, number)]
        return number, code, caption, self._augmented(image, epoch, number), failed
