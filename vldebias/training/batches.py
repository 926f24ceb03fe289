"""Batches of pairs by their number: read by worker processes that run ahead."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, count, islice
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vldebias.errors import InvalidInputError, warn
from vldebias.losses.processes import rank as own_rank
from vldebias.losses.processes import world_size
from vldebias.training.augmentation import Augment
from vldebias.training.pairs import PairSource
from vldebias.training.sampling import Sampler, torch_generator, turns

OnError = Literal["raise", "skip"]

Tokenize = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""Captions -> arguments of the text tower, (b, length) each, all of one length whatever the captions."""

Tokens = Callable[[Tensor], Mapping[str, Tensor]]
"""Rows (b,) of a data set -> the tokens of their captions, (b, length) each."""

MOST_TEXTS = 200_000  # different captions that are kept tokenised: some 120 MB at CLIP's 77 tokens
ATTEMPTS = 10  # rows that are tried in place of one; so many in a row mean that something else is wrong
TIMEOUT = 600.0  # seconds within which workers must have a batch
_CHUNK = 10_000  # texts that are tokenised at once

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """b images with their captions, or with a second view each.

    images: (b, 3, h, w), as the image tower reads them.
    texts: arguments of the text tower, (b, length) each; empty where `views` are given.
    index: (b,) integers, the position of each image in its data set.
    labels: (b,) integers, the class of each pair, where a loss reads it.
    captions: (b,) integers, equal where the captions are, and almost surely not where they are not.
    groups: (b,) integers, the group of each image, -1 where unknown.
    views: (b, 3, h, w), a second augmentation of each image; the texts are then not read.
    further: (b, M, 3, h, w), M more augmentations of each image.
    further_texts: arguments of the text tower, (b, M, length) each, for M more captions of each image.
    """

    images: Tensor
    texts: Mapping[str, Tensor] = field(default_factory=dict)
    index: Tensor | None = None
    labels: Tensor | None = None
    captions: Tensor | None = None
    groups: Tensor | None = None
    views: Tensor | None = None
    further: Tensor | None = None
    further_texts: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """The columns that losses read, of several batches; without pixels, which nothing reads any more."""

        def column(name: str) -> Tensor | None:
            parts = [getattr(batch, name) for batch in batches]
            return None if parts[0] is None else torch.cat(parts)

        columns: dict[str, Any] = {name: column(name) for name in ("index", "labels", "captions", "groups")}
        return cls(torch.empty(sum(map(len, batches)), 0), **columns)


class Batches(Protocol):
    """Micro-batches by their number: the one of a number is the same whenever and how often it is asked for.

    So a run goes on at step s by asking for the batches from s on, and nothing of a loader's state is stored.

    items: images of the data set; None for a stream.
    per_epoch: micro-batches of this process in an epoch; None for a stream.
    """

    @property
    def items(self) -> int | None: ...  # noqa: D102
    @property
    def per_epoch(self) -> int | None: ...  # noqa: D102

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... without end, this process's share of each joint one.

        Closing it ends what reads ahead.
        """
        ...


@dataclass
class Unreadable:
    """Images that cannot be read, hours into a run: stop, or take another row and say so.

    It warns of the 1st, 10th, 100th, and by `report` of all. reasons: id -> why.
    """

    name: str
    on_error: OnError
    reasons: dict[str, str] = field(default_factory=dict)

    def read(
        self, row: int, read: Callable[[int], T], *, spares: Iterator[int], ids: Callable[[int], str]
    ) -> tuple[int, T, dict[str, str]]:
        """A row that can be read, what was read, and those that could not be: id -> reason.

        With "skip" the next of `spares` that can be read takes its place; they must follow from where the row stands
        alone, so that every process and every resumed run takes the same.

        Raises:
            InvalidInputError: neither the row can be read nor, with "skip", `ATTEMPTS` spares.
        """
        failed: dict[str, str] = {}
        for one in chain([row], islice(spares, ATTEMPTS)):
            try:
                return one, read(one), failed
            except OSError as error:
                failed[ids(one)] = str(error)
                if self.on_error == "raise":
                    raise InvalidInputError(
                        f"the image of {ids(one)!r} cannot be read: {error}. Mend it, or take other rows in place of "
                        "such ones with on_error='skip'"
                    ) from error
        first, reason = next(iter(failed.items()))
        raise InvalidInputError(
            f"the image of {first!r} cannot be read ({reason}), nor those of {len(failed) - 1} rows tried in its "
            "place; are the images where the data set says?"
        )

    def add(self, reasons: Mapping[str, str]) -> None:
        """Notes rows; one that is met again in another epoch counts once."""
        before = len(self.reasons)
        self.reasons.update(reasons)
        after = len(self.reasons)
        if after and len(str(after)) > len(str(before or "")):
            row, reason = next(reversed(self.reasons.items()))
            warn(
                f"{self.name}: the image of {row!r} cannot be read ({reason}); another row takes its place "
                f"({after} so far)"
            )

    def report(self) -> None:
        """Warns of how many there were, with the first ids."""
        if len(self.reasons) > 1:
            first = ", ".join(list(self.reasons)[:5])
            warn(f"{self.name}: {len(self.reasons)} images could not be read and were replaced, such as {first}")


@dataclass(frozen=True)
class ReadOptions:
    """How micro-batches are read, of pairs or of a stream.

    batch_size, seed, rank, world: see `vldebias.training.sampling.Sampler`.
    tokenize: of the towers; not needed for two views.
    two_views: contrast two augmentations of each image; captions are then not read.
    further: more augmentations of each image, for losses that take further positives, and as many more captions where
        the data have several.
    on_error: another row takes the place of an image that cannot be read ("skip"), so that one file does not end a run
        of hours: the 1st, 10th, 100th are told at once, their number when the iterator is closed, and `unreadable`
        holds them all. Or training stops there ("raise").
    workers: that read, processes for pairs and threads for a stream; 0 reads between the batches.
    balance: pairs alone: each batch has the groups of the pairs alike often; see
        `vldebias.training.sampling.balanced_order`.
    """

    batch_size: int
    tokenize: Tokenize | None = None
    two_views: bool = False
    further: int = 0
    on_error: OnError = "skip"
    seed: int = 0
    rank: int = field(default_factory=own_rank)
    world: int = field(default_factory=world_size)
    workers: int = 0
    balance: bool = False

    @property
    def looks(self) -> int:
        """Augmentations of each image."""
        return 1 + self.two_views + self.further


class MapBatches(Dataset[dict[str, Any]]):
    """Micro-batches of pairs that are read at random; see `Batches`.

    What a batch holds depends on its number alone, not on the workers, so loading starts anywhere at once. An epoch has
    every image once; one with several captions has another of them in every epoch, see
    `vldebias.training.sampling.turns`.

    Args:
        pairs: images and captions.
        augment: image -> tensor; see `vldebias.training.augmentation`.
        options: see `ReadOptions`. Signals to the process group do not end the workers: the run that they read for
            finishes its step and then ends them.

    Raises:
        InvalidInputError: no captions or no `tokenize` without `two_views`; fewer pairs than a batch takes; workers on
            a system without fork.
    """

    def __init__(self, pairs: PairSource, augment: Augment, **options: Any) -> None:
        how = self.how = ReadOptions(**options)
        tokenize = how.tokenize
        if not how.two_views and (tokenize is None or not pairs.captions):
            raise InvalidInputError(f"{pairs.name}: expected captions and tokenize, or two_views=True")
        if how.workers and "fork" not in multiprocessing.get_all_start_methods():
            raise InvalidInputError(f"workers: this system cannot fork processes; expected 0, got {how.workers}")
        self.unreadable = Unreadable(pairs.name, how.on_error)
        self.pairs, self.augment = pairs, augment
        self.more = how.further if pairs.several and not how.two_views else 0
        # the pairs of image i are order[starts[i] : starts[i + 1]]
        self.order = np.argsort(pairs.images, kind="stable")
        self.starts = np.append(0, np.bincount(pairs.images).cumsum())
        self.first = self.order[self.starts[:-1]]
        self.items = len(self.starts) - 1
        self.groups = None if pairs.groups is None else torch.from_numpy(pairs.groups.codes)
        if how.balance and pairs.groups is None:
            raise InvalidInputError(f"{pairs.name}: balance needs pairs with groups")
        codes = pairs.groups.codes[self.first] if how.balance and pairs.groups is not None else None
        self.sampler = Sampler(self.items, how.batch_size, how.seed, how.rank, how.world, groups=codes)
        self.per_epoch = self.sampler.per_epoch
        self.labels = None if pairs.labels is None else torch.from_numpy(pairs.labels.codes)
        self.captions = None if how.two_views else codes_of(pairs.captions)
        self._tokens: Tokens = lambda rows: {}
        if not how.two_views and tokenize is not None:
            if len(set(pairs.captions)) <= MOST_TEXTS:
                self._tokens = tokens_of(pairs.captions, tokenize)
            else:
                self._tokens = lambda rows: tokenize([pairs.captions[i] for i in rows.tolist()])

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... without end; close the iterator to stop the workers."""
        closing = multiprocessing.RawValue("b", 0)

        def outlast_signals(_: int) -> None:
            # A scheduler signals all processes at once. The loader's own way to end a worker must still end it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if closing.value else None)

        loader: DataLoader[dict[str, Any]] = DataLoader(
            self,
            batch_size=None,  # a number is a whole batch
            sampler=count(first),
            collate_fn=lambda parts: parts,
            num_workers=self.how.workers,
            timeout=TIMEOUT if self.how.workers else 0,  # where shared memory fails, no batch ever comes
            prefetch_factor=2 if self.how.workers else None,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=outlast_signals,
            multiprocessing_context="fork" if self.how.workers else None,  # readers are closures, which do not pickle
            generator=torch.Generator(),  # its own, or the workers' seed would be drawn from the global one
        )
        try:
            for parts in loader:
                if "error" in parts:
                    raise InvalidInputError(parts["error"])
                self.unreadable.add(parts.pop("unreadable"))
                yield Batch(**parts)
        except RuntimeError as error:
            if "DataLoader timed out" not in str(error):
                raise
            raise InvalidInputError(
                f"{self.pairs.name}: no batch came from {self.how.workers} workers within {TIMEOUT:.0f} s; expected "
                "one: shared memory may be full (/dev/shm; in Docker --shm-size), or the images slow to read; "
                "workers 0 reads them in the process that trains"
            ) from None
        finally:
            closing.value = 1
            self.unreadable.report()

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The parts of micro-batch `number`, and `unreadable`: id -> reason; or `error`: what is wrong.

        An error is handed over as a text: one that is raised in a worker arrives inside a traceback of the loader's.
        """
        spares = self.sampler.spares(number)
        rows, captions, views, failed = [], [], [], dict[str, str]()
        try:
            for row in self.sampler.rows(number).tolist():
                taken, image, unread = self.unreadable.read(
                    row,
                    lambda row: self.pairs.read(int(self.first[row])),
                    spares=spares,
                    ids=lambda row: self.pairs.ids[self.first[row]],
                )
                where = (self.sampler.seed, self.sampler.epoch(number), taken)
                generators = (torch_generator("augmentation", *where, view) for view in range(self.how.looks))
                own = self.order[self.starts[taken] : self.starts[taken + 1]]
                rows.append(taken)
                captions.append(own[turns(len(own), self.more, *where)])
                views.append(torch.stack([self.augment(image, generator) for generator in generators]))
                failed |= unread
        except InvalidInputError as error:
            return {"error": str(error)}
        pairs = torch.from_numpy(np.stack(captions))
        return {
            **looks_of(torch.stack(views), self.how.two_views),
            **texts_of(self._tokens(pairs.flatten()), 1 + self.more),
            "index": torch.tensor(rows),
            "labels": None if self.labels is None else self.labels[pairs[:, 0]],
            "captions": None if self.captions is None else self.captions[pairs[:, 0]],
            "groups": None if self.groups is None else self.groups[pairs[:, 0]],
            "unreadable": failed,
        }


def looks_of(images: Tensor, two_views: bool) -> dict[str, Any]:
    """Augmentations (b, looks, 3, h, w) of each image as the columns of a batch that they are."""
    columns = {"images": images[:, 0]} | ({"views": images[:, 1]} if two_views else {})
    further = images[:, 1 + two_views :]
    return columns | ({"further": further} if further.shape[1] else {})


def texts_of(tokens: Mapping[str, Tensor], each: int) -> dict[str, Any]:
    """Tokens (b * each, length) of the captions of each image as the columns of a batch that they are."""
    parts = {name: part.unflatten(0, (-1, each)) for name, part in tokens.items()}
    columns = {"texts": {name: part[:, 0] for name, part in parts.items()}}
    return columns | ({"further_texts": {name: part[:, 1:] for name, part in parts.items()}} if each > 1 else {})


def codes_of(captions: Sequence[str]) -> Tensor:
    """(n,) int64 that are equal where texts are, the same in every process and run; others meet once in 2^63."""
    code = {text: int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1 for text in set(captions)}
    return torch.tensor([code[text] for text in captions], dtype=torch.int64)


def tokens_of(captions: Sequence[str], tokenize: Tokenize) -> Tokens:
    """Looks up the tokens of captions, of which every different one is tokenised once, now."""
    number = {text: i for i, text in enumerate(dict.fromkeys(captions))}
    unique, of_row = list(number), torch.tensor([number[text] for text in captions])
    parts = [tokenize(unique[first : first + _CHUNK]) for first in range(0, len(unique), _CHUNK)]
    table = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return lambda rows: {name: tokens.index_select(0, of_row.index_select(0, rows)) for name, tokens in table.items()}
