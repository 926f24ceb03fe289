"""What travels from the data to the model: a batch of pairs, and where batches come from."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Batch", "Batches"]


@dataclass(frozen=True)
class Batch:
    """b images with their captions, or with a second view each.

    images: (b, 3, h, w), as the image tower reads them.
    texts: arguments of the text tower, (b, length) each; empty where `views` are given.
    index: (b,) integers, the position of each pair in its data set.
    labels: (b,) integers, the class of each pair, where a loss reads it.
    views: (b, 3, h, w), a second augmentation of each image; the texts are then not read.
    """

    images: Tensor
    texts: Mapping[str, Tensor] = field(default_factory=dict)
    index: Tensor | None = None
    labels: Tensor | None = None
    views: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The same batch on a device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=non_blocking)
            return {name: moved(tensor) for name, tensor in value.items()} if isinstance(value, Mapping) else value

        return Batch(**{part.name: moved(getattr(self, part.name)) for part in fields(self)})


class Batches(Protocol):
    """Micro-batches by their number: the one of a number is the same whenever and how often it is asked for.

    So a run goes on at step s by asking for the batches from s on, and nothing of a loader's state is stored.

    items: rows of the data set; None for a stream.
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
