"""Load micro-batches of pairs by number, with worker processes or from a stream."""

from __future__ import annotations

import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Required, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vldebias.data.caption_cells import says_something
from vldebias.data.dataset import Record
from vldebias.data.huggingface import ImageStream
from vldebias.data.labels import UNKNOWN
from vldebias.data.parallel import prefetch
from vldebias.errors import InvalidInputError, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.losses.processes import rank as own_rank
from vldebias.losses.processes import world_size
from vldebias.training.augmentation import Augment, Augmentation
from vldebias.training.pairs import CAPTIONS_WANTED, Pairs
from vldebias.training.sampling import Sampler, numpy_generator, torch_generator, turn
from vldebias.training.settings import TrainSettings

if TYPE_CHECKING:
    from PIL import Image

# Number of replacements to try for an unreadable row. If all of them fail, something else is wrong.
ATTEMPTS = 10
# In a stream, the index of a row is shard * _SHARD plus its number within the shard.
_SHARD = 1 << 40
_Row = tuple[int, Record]  # index and undecoded record
TIMEOUT = 600  # Seconds to wait for a batch, for example if shared memory fails.
T = TypeVar("T")
Tokenize = Callable[[Sequence[str]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Batch:
    """A batch of b images with their captions, or two views of b images.

    Attributes:
        images: pixels (b, 3, h, w).
        texts: arguments for the text tower, (b, length) each.
        index: (b,), row of each image in its data set.
        labels: (b,), class of each image, or -1 if unknown.
        captions: (b,), codes that are equal for rows with the same caption.
        groups: (b,), group of each image, or -1 if unknown.
        weights: (b,), weight of each pair in the loss.
        views: (b, 3, h, w), a second view of each image instead of captions.
        more_views: (b, m, 3, h, w), further augmentations of each image.
    """

    images: Tensor
    texts: Mapping[str, Tensor] = field(default_factory=dict)
    index: Tensor | None = None
    labels: Tensor | None = None
    captions: Tensor | None = None
    groups: Tensor | None = None
    weights: Tensor | None = None
    views: Tensor | None = None
    more_views: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Join several batches, keeping only the columns that losses use and no pixels."""
        return cls(
            torch.empty(sum(map(len, batches)), 0),
            index=_joined([batch.index for batch in batches]),
            labels=_joined([batch.labels for batch in batches]),
            captions=_joined([batch.captions for batch in batches]),
            groups=_joined([batch.groups for batch in batches]),
            weights=_joined([batch.weights for batch in batches]),
        )

    @staticmethod
    def codes(captions: Sequence[str]) -> Tensor:
        """Return int64 codes (n,) that are equal for equal captions, also across processes.

        Two different captions have the same code with probability 2^-63.
        """
        code_of_text = dict[str, int]()
        for text in set(captions):
            hashed = blake2b(text.encode(), digest_size=8).digest()
            # Leave out one bit, because int64 is signed.
            code_of_text[text] = int.from_bytes(hashed) >> 1
        return torch.tensor([code_of_text[text] for text in captions], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class PairWeights:
    """Weights of pairs in the loss.

    Attributes:
        index: (n,), row of each pair in its data set, in ascending order.
        weights: (n,), weight of each pair.
    """

    index: NDArray[np.int64]
    weights: NDArray[np.float32]

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return the weights (b,) of rows (b,) of the data set."""
        places = np.searchsorted(self.index, rows.numpy())
        return torch.from_numpy(self.weights[places])


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Return a column from several batches, or None if they lack it."""
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None


class ReadingOptions(TypedDict, total=False):
    """Options for loading micro-batches, as described in `Batches`."""

    batch_size: Required[int]
    tokenize: Tokenize | None
    seed: int
    rank: int | None
    world: int | None
    workers: int


class _Parts(TypedDict, total=False):
    """Micro-batch columns returned by a worker, or an error."""

    index: Tensor
    texts: list[str]
    views: Tensor
    failed: dict[str, str]  # the reason for skipping each image, by id
    error: str


class Batches(ABC):
    """Load micro-batches by number, such that a number always gives the same micro-batch.

    Attributes:
        items: number of images in the data set, or None for a stream.
        per_epoch: number of micro-batches per epoch in this process, or None for a stream.
        more_views: number of further augmentations of each image in a batch.
        weights: weights of the pairs in the loss, or None.

    Args:
        name: name of the data set, for messages.
        augment: function that maps an image and a generator to pixels.
        batch_size: number of rows per micro-batch and process.
        seed: seed of the run.
        rank: rank of this process. If None, the rank in the process group.
        world: number of processes. If None, the size of the process group.
        tokenize: tokenizer for the text tower. If None, captions are not used, and two
            augmentations of each image are contrasted.
        workers: number of workers, which are processes for pairs and threads for a stream. If 0,
            data are loaded between training steps.
    """

    items: int | None = None
    per_epoch: int | None = None
    more_views: int = 0
    weights: PairWeights | None = None

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
        self.unreadable: dict[str, str] = {}  # the reason for each image, by id

    @staticmethod
    def from_data(
        data: Pairs | ImageStream,
        settings: TrainSettings,
        towers: Towers,
        kept: NDArray[np.int64] | None = None,
        weights: PairWeights | None = None,
    ) -> Batches:
        """Create the micro-batches for a training run from pairs or a stream of pairs.

        Args:
            data: pairs or a stream of pairs.
            settings: training settings.
            towers: the model, which determines the image size and the tokenizer.
            kept: indexes of the pairs to train on. Default: all.
            weights: weights of the pairs in the loss. Default: all pairs count equally.
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
        options: ReadingOptions = {
            "batch_size": settings.batch_size,
            "seed": settings.seed,
            "workers": settings.workers,
            "tokenize": None if settings.views == "two" else towers.tokenize,
        }
        batches: Batches
        if isinstance(data, Pairs):
            pairs = data if kept is None else data.select(kept)
            batches = MapBatches(pairs, augment, **options)
        else:
            batches = StreamBatches(
                data,
                augment,
                label=settings.label,
                buffer=settings.shuffle_buffer,
                kept=kept,
                **options,
            )
        # Only losses that use several positives per image have this setting.
        batches.more_views = getattr(settings, "positives", 1) - 1
        batches.weights = weights
        return batches

    @abstractmethod
    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Yield micro-batches `first`, `first` + 1, ... indefinitely.

        Close the iterator to stop reading ahead.
        """

    def _read(
        self, row: int, read: Callable[[int], T], spares: Iterator[int], ids: Callable[[int], str]
    ) -> tuple[int, T, dict[str, str]]:
        """Return a readable row, its contents, and the reasons for skipped rows by id.

        `spares` must only depend on the row's position, so that a resumed run uses the same rows.
        """
        failed: dict[str, str] = {}
        # Replace unreadable rows, so that neither batch sizes nor loss states are affected.
        for candidate in chain([row], islice(spares, ATTEMPTS)):
            try:
                return candidate, read(candidate), failed
            except OSError as error:
                failed[ids(candidate)] = str(error)
        first, reason = next(iter(failed.items()))
        raise InvalidInputError(
            f"the image of {first!r} cannot be read ({reason}), nor can {len(failed) - 1}"
            " replacements; if the data is a table of relative paths, set image_root to their base"
            " folder"
        )

    def _warn_of_unreadable(self, failed: Mapping[str, str]) -> None:
        """Warn about the 1st, 10th, 100th, ... unreadable image, counting each image only once."""
        digits_before = 0
        if self.unreadable:
            digits_before = len(str(len(self.unreadable)))
        self.unreadable.update(failed)
        after = len(self.unreadable)
        # Warn if the number gained a digit, that is, if it reached 1, 10, 100, ...
        if after and len(str(after)) > digits_before:
            row, reason = next(reversed(self.unreadable.items()))
            warn(
                f"{self.name}: the image of {row!r} cannot be read ({reason}), so another row is"
                f" used instead (images replaced so far: {after})"
            )

    def _augmented(self, image: Image.Image, epoch: int, row: int) -> Tensor:
        """Return all augmentations (v, 3, h, w) of an image for an epoch."""
        contrasted = 2 if self.tokenize is None else 1
        views = range(contrasted + self.more_views)
        augmented = list[Tensor]()
        for view in views:
            # The seed does not depend on the worker, so every worker gives the same result.
            generator = torch_generator("augmentation", self.seed, epoch, row, view)
            augmented.append(self.augment(image, generator))
        return torch.stack(augmented)

    def _batch(
        self,
        index: Tensor,
        texts: Sequence[str],
        views: Tensor,
        labels: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> Batch:
        # The first views are contrasted, and the others are further positives.
        more_views = views[:, -self.more_views :] if self.more_views else None
        tokens: Mapping[str, Tensor] = {}
        codes: Tensor | None = None
        second_views: Tensor | None = None
        if self.tokenize is None:
            second_views = views[:, 1]
        else:
            tokens = dict(self.tokenize(texts))
            codes = Batch.codes(texts)
        return Batch(
            views[:, 0],
            texts=tokens,
            index=index,
            labels=labels,
            captions=codes,
            groups=groups,
            weights=None if self.weights is None else self.weights.of_rows(index),
            views=second_views,
            more_views=more_views,
        )


class MapBatches(Batches, Dataset[_Parts]):
    """Load micro-batches of pairs in random order, with the options of `Batches`."""

    def __init__(self, pairs: Pairs, augment: Augment, **options: Unpack[ReadingOptions]) -> None:
        super().__init__(pairs.name, augment, **options)
        if self.tokenize is not None and not pairs.captions:
            raise InvalidInputError(
                f"{pairs.name}: expected captions, or two views (tokenize=None); got no captions"
            )
        self.pairs = pairs
        self.sampler = Sampler(pairs.items, self.batch_size, self.seed, self.rank, self.world)
        self.items = pairs.items
        self.per_epoch = self.sampler.per_epoch
        self.labels = None if pairs.labels is None else torch.from_numpy(pairs.labels.codes)
        self.groups = None if pairs.groups is None else torch.from_numpy(pairs.groups.codes)

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Yield micro-batches loaded by workers, which stop when the iterator is closed."""
        closing = multiprocessing.RawValue("b", 0)

        def ignore_signals(_: int) -> None:
            # A scheduler signals all processes at once. Ignore this in workers, because the main
            # process finishes its step first and then stops the workers through the loader.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if closing.value else None)

        loader: DataLoader[_Parts] = DataLoader(
            self,
            batch_size=None,  # Each item is already a batch.
            sampler=count(first),
            collate_fn=lambda parts: parts,
            num_workers=self.workers,
            timeout=TIMEOUT if self.workers else 0,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=ignore_signals,
            # Workers must be forked, because readers are closures and cannot be pickled.
            multiprocessing_context="fork" if self.workers else None,
            # Without this argument, the workers' seed would be drawn from the global generator.
            generator=torch.Generator(),
        )
        try:
            for parts in loader:
                if "error" in parts:
                    raise InvalidInputError(parts["error"])
                # Warn here, because workers do not know about each other's failures.
                self._warn_of_unreadable(parts["failed"])
                # These are the rows that were actually loaded, including replacements.
                index = parts["index"]
                labels = None if self.labels is None else self.labels[index]
                groups = None if self.groups is None else self.groups[index]
                yield self._batch(index, parts["texts"], parts["views"], labels, groups)
        finally:
            closing.value = 1

    def __getitem__(self, number: int) -> _Parts:
        """Return the columns of a micro-batch, or an error.

        Errors are returned as text, because the loader would wrap a worker's exception in a
        traceback.
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
    """Load micro-batches from a stream of pairs, with the options of `Batches`.

    Process r of w reads the shards r, r + w, ... If there are fewer shards than processes, every
    process reads the entire stream and uses every w-th row, starting with row r. In each epoch,
    shards are read in a different order, and undecoded rows are shuffled in blocks of `buffer`
    rows. Rows without a caption and the last incomplete batch are dropped. A resumed run skips the
    rows of earlier batches without decoding them.

    Args:
        stream: stream of pairs.
        augment: function that maps an image and a generator to pixels.
        label: class column. Its class names must be known before the stream is read.
        buffer: number of rows that are shuffled at a time.
        kept: indexes of the rows to use. Default: all.
    """

    def __init__(
        self,
        stream: ImageStream,
        augment: Augment,
        *,
        label: str | None = None,
        buffer: int,
        kept: NDArray[np.int64] | None = None,
        **options: Unpack[ReadingOptions],
    ) -> None:
        super().__init__(stream.name, augment, **options)
        if label is not None and label not in stream.names:
            raise InvalidInputError(
                f"{stream.name}: the classes of {label!r} are unknown before the stream is read;"
                f" expected one of {sorted(stream.names)}, or data that are not streamed"
            )
        self.stream = stream
        self.buffer = buffer
        self.label = label
        self.kept = None if kept is None else frozenset(kept.tolist())
        self.shards = np.arange(self.rank, stream.shards, self.world)
        # With a stride (k, w), this process uses rows k, k + w, ... of its shards.
        self.stride = (0, 1)
        # If there were fewer shards than processes, some processes would have no data and the
        # others would wait for them.
        if stream.shards < self.world:
            self.shards = np.arange(stream.shards)
            self.stride = (self.rank, self.world)
            if self.rank == 0:
                warn(
                    f"{stream.name}: there are only {stream.shards} shards for {self.world}"
                    " processes, so every process reads all of them"
                )

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Yield this process's micro-batches."""
        size = self.batch_size

        def slots() -> Iterator[tuple[list[_Row], int, int]]:
            for epoch, rows in islice(self._assembled(), first, None):
                for slot in range(size):
                    yield rows, slot, epoch

        pairs = prefetch(slots(), lambda slot: self._slot(*slot), self.workers, 2 * size)
        try:
            while True:
                # The iterator is infinite, so `islice` always yields `size` pairs.
                index, codes, texts, views, failed = zip(*islice(pairs, size), strict=True)
                for reasons in failed:
                    self._warn_of_unreadable(reasons)
                labels = None if self.label is None else torch.tensor(codes)
                yield self._batch(torch.tensor(index), texts, torch.stack(views), labels)
        finally:
            pairs.close()  # type: ignore[attr-defined]

    def _assembled(self) -> Iterator[tuple[int, list[_Row]]]:
        """Yield the epoch and undecoded rows of every micro-batch."""
        epoch = 0
        while True:
            waiting = list[_Row]()
            is_empty = True
            shards = numpy_generator("shards", self.seed, epoch).permutation(self.shards)
            for block in chain.from_iterable(self._blocks(epoch, x) for x in shards.tolist()):
                waiting += block
                while len(waiting) >= self.batch_size:
                    yield epoch, waiting[: self.batch_size]
                    # The remaining rows start the next batch.
                    waiting = waiting[self.batch_size :]
                    is_empty = False
            if is_empty:
                remedy = f"lower batch_size {self.batch_size}" if waiting else CAPTIONS_WANTED
                raise InvalidInputError(
                    f"{self.name}: {len(waiting)} rows with captions are too few for a batch;"
                    f" {remedy}"
                )
            epoch += 1

    def rows(self) -> Iterator[_Row]:
        """Yield this process's rows once, in the order of the stream."""
        for shard in self.shards.tolist():
            for _, block in self._read_blocks(shard):
                yield from block

    def _blocks(self, epoch: int, shard: int) -> Iterator[list[_Row]]:
        """Yield blocks of rows in an epoch's order."""
        for first_number, block in self._read_blocks(shard):
            # Derive the seed from the block, so that a resumed run shuffles it in the same way.
            generator = numpy_generator("stream order", self.seed, epoch, shard, first_number)
            yield [block[place] for place in generator.permutation(len(block))]

    def _read_blocks(self, shard: int) -> Iterator[tuple[int, list[_Row]]]:
        """Yield blocks of this process's rows, each with the number of its first row."""
        start, step = self.stride
        numbered = enumerate(self.stream.records(0, shard))
        while True:
            part = list(islice(numbered, self.buffer))
            if not part:
                return
            block = list[_Row]()
            for number, record in part:
                index = shard * _SHARD + number
                has_caption = self.tokenize is None or says_something(record.caption or "")
                is_kept = self.kept is None or index in self.kept
                # Rows for other processes are counted but not decoded.
                if number % step == start and has_caption and is_kept:
                    block.append((index, record))
            first_number, _ = part[0]
            yield first_number, block

    def _slot(
        self, rows: list[_Row], slot: int, epoch: int
    ) -> tuple[int, int, str, Tensor, dict[str, str]]:
        """Return one pair for a batch: index, class, caption in this epoch, views, and failures."""
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
