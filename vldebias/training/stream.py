"""Batches from rows that come one after another: the same for any number of processes, from any number on."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from vldebias.data.images import ImageStream
from vldebias.errors import InvalidInputError
from vldebias.losses.processes import rank as own_rank
from vldebias.losses.processes import world_size
from vldebias.training.augmentation import Augment
from vldebias.training.batch import Batch
from vldebias.training.sampling import numpy_generator, torch_generator
from vldebias.training.stream_order import Row, StreamOrder
from vldebias.training.tokens import Tokenize
from vldebias.training.unreadable import OnError, Unreadable, readable

__all__ = ["StreamBatches"]

_Read = tuple[Row, Tensor, dict[str, str]]  # the row that was taken, its views (v, 3, h, w), what could not be read


class StreamBatches:
    """Micro-batches of a stream of pairs; see `vldebias.training.batch.Batches`.

    Every process reads all rows, in the order of the stream, and shuffles them alike; of a joint batch it decodes only
    its own share. So the joint batches are those of one process, all of one size, and what does not fill one at the end
    of an epoch is left out. An epoch is one pass; the next has another shuffle.

    Nothing is stored to go on from: `starting` passes over rows without decoding them, those of at most two epochs.

    With mixture noise the rows are taken in blocks of `buffer` as they come, and a replaced caption is drawn from its
    own block: the same in every epoch, whatever the shuffle; the law is that of `mixture_noise` within a block.

    Args:
        stream: rows with captions; those without one are passed over.
        augment: image -> tensor, called from several threads; see `vldebias.training.augmentation.augmentation`.
        tokenize: of the towers; not needed for two views.
        label: column of classes, whose names the stream must know beforehand.
        caption_template: make the captions from the label instead, such as "a photo of a {}".
        two_views: contrast two augmentations of each image; captions are then not read.
        noise: eta of the mixture noise.
        buffer: rows that are shuffled at a time, held undecoded (twice as many with noise).
        on_error: in place of an image that cannot be read another row of its joint batch is taken ("skip"), or training
            stops ("raise"); see `vldebias.training.loader.MapBatches`.
        workers: threads that decode and augment; 0 does so in this one.
        prefetch: batches that are decoded ahead.
        batch_size, seed, rank, world: see `vldebias.training.sampling.Sampler`.

    Raises:
        InvalidInputError: no `tokenize` without `two_views`, a label that the stream does not know, a template without
            label, a number outside its range. While it runs: a stream without captions, or shorter than a joint batch.
    """

    items: int | None = None
    per_epoch: int | None = None

    def __init__(
        self,
        stream: ImageStream,
        augment: Augment,
        *,
        batch_size: int,
        tokenize: Tokenize | None = None,
        label: str | None = None,
        caption_template: str | None = None,
        two_views: bool = False,
        noise: float = 0.0,
        buffer: int = 1000,
        on_error: OnError = "skip",
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        self.augment, self.tokenize, self.two_views = augment, tokenize, two_views
        self.batch_size, self.workers, self.prefetch = batch_size, workers, prefetch
        self.rank = own_rank() if rank is None else rank
        self.world = world_size() if world is None else world
        self.on_error, self.seed = on_error, seed
        self.unreadable = Unreadable(stream.name)
        self.order = StreamOrder(
            stream, batch_size * self.world, seed, buffer, noise, label, caption_template, not two_views
        )
        self._check()

    def _check(self) -> None:
        name, label, known = self.order.stream.name, self.order.label, self.order.stream.names
        if not self.two_views and self.tokenize is None:
            raise InvalidInputError(f"{name}: expected tokenize, or two_views=True")
        if label is not None and label not in known:
            raise InvalidInputError(
                f"{name}: the classes of {label!r} must be known before the stream is read; name them when it is "
                f"opened: labels=[{label!r}], names={{{label!r}: [...]}}. Known are {sorted(known)}"
            )
        if self.order.template is not None and label is None:
            raise InvalidInputError(f"{name}: caption_template needs label, the column of classes to name")
        if min(self.batch_size, self.order.buffer, self.prefetch) < 1 or not 0 <= self.rank < self.world:
            raise InvalidInputError(
                f"expected batch_size, buffer and prefetch of at least 1 and rank < world, got {self.batch_size}, "
                f"{self.order.buffer}, {self.prefetch}, {self.rank}, {self.world}"
            )
        if not 0 <= self.order.noise <= 1:
            raise InvalidInputError(f"noise: expected a rate in [0, 1], got {self.order.noise}")

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... without end, this process's share of each joint one."""
        try:
            yield from self._ahead(first) if self.workers else self._at_once(first)
        finally:
            self.unreadable.report()

    def _at_once(self, first: int) -> Iterator[Batch]:
        for epoch, joint in self.order.joint_from(first):
            yield self._batch([self._read(joint, epoch, place) for place in self._share])

    def _ahead(self, first: int) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self.workers)
        coming: deque[list[Future[_Read]]] = deque()
        try:
            for epoch, joint in self.order.joint_from(first):
                coming.append([pool.submit(self._read, joint, epoch, place) for place in self._share])
                if len(coming) > self.prefetch:
                    yield self._batch([read.result() for read in coming.popleft()])
        finally:
            pool.shutdown(cancel_futures=True)

    @property
    def _share(self) -> range:
        """Places of a joint batch that are this process's."""
        return range(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)

    def _read(self, joint: Sequence[Row], epoch: int, place: int) -> _Read:
        taken, image, failed = readable(
            place,
            lambda one: joint[one].record.read(),
            spares=iter(numpy_generator("replacement", self.seed, epoch, place).permutation(len(joint)).tolist()),
            ids=lambda one: joint[one].record.id,
            on_error=self.on_error,
        )
        row = joint[taken]
        generators = [
            torch_generator("augmentation", self.seed, epoch, row.index, v) for v in range(1 + self.two_views)
        ]
        return row, torch.stack([self.augment(image, generator) for generator in generators]), failed

    def _batch(self, read: Sequence[_Read]) -> Batch:
        rows = [row for row, _, _ in read]
        images = torch.stack([views for _, views, _ in read], dim=1)
        self.unreadable.add({row: reason for _, _, failed in read for row, reason in failed.items()})
        texts = {} if self.two_views or self.tokenize is None else dict(self.tokenize([row.caption for row in rows]))
        return Batch(
            images=images[0],
            texts=texts,
            index=torch.tensor([row.index for row in rows]),
            labels=None if self.order.label is None else torch.tensor([row.label for row in rows]),
            views=images[1] if self.two_views else None,
        )
