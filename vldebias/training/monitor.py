"""What a model is worth during training, on held-out pairs: zero-shot accuracy, retrieval, positive scores."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vldebias.data.images import ImageData
from vldebias.data.labels import cross
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.text import reading
from vldebias.templates import check_slots, fill
from vldebias.training.features import image_features, text_features
from vldebias.training.held_out import HeldOut, summary
from vldebias.training.pixels import Placed, Prepare, pixel_batches

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["Monitor", "TensorMonitor"]


class _Scores(ABC):
    """The measurements, whatever the images come from.

    Called with towers it gives, of the model as it is then (in eval mode, without gradients, modes put back):

    - `zero_shot_accuracy`: the image is nearest to the texts of its class; `zero_shot_worst_class` and
      `zero_shot_worst_group`: the lowest accuracy of a class (group) that occurs;
    - `recall@k image->text` and `recall@k text->image` for k = 1, 5, 10: the mean over images of whether a right
      answer is among the first k. A caption that several images share stands once among the texts, and any of its
      images is a right answer for it;
    - `positive_score`: the mean cosine of an image with its caption (s+ of the thesis at temperature 1).

    Figures are NaN where features are not finite.
    """

    def __init__(self, held_out: HeldOut, batch_size: int) -> None:
        if batch_size < 1:
            raise InvalidInputError(f"batch_size: expected at least 1, got {batch_size}")
        self.held_out = held_out
        self.batch_size = batch_size

    def __call__(self, towers: Towers) -> dict[str, float]:
        """The figures by their names."""
        return summary(self.held_out, self.rows(towers))

    def rows(self, towers: Towers) -> dict[str, Tensor]:
        """What each image scores, name -> (n,) float32: 0 or 1, or a cosine; what an interval is drawn from.

        NaN where there is no label, no caption, or no image that can be read. See `HeldOut.rows`.
        """
        embed = partial(text_features, towers, batch_size=self.batch_size)
        with reading(towers.model):  # around the comparisons too, which a loop's autocast would round
            places, features = self.features(towers)
            return self.held_out.rows(features, places, embed)

    def features(self, towers: Towers) -> tuple[Tensor, Tensor]:
        """Places (m,) and unit features (m, d) of the images that can be read."""
        found = [(places, image_features(towers, images)) for places, images in self._images(towers)]
        return torch.cat([places for places, _ in found]), torch.cat([features for _, features in found])

    @abstractmethod
    def _images(self, towers: Towers) -> Iterator[Placed]:
        """Batches of the images that can be read, always the same and in their order."""


class TensorMonitor(_Scores):
    """Scores of images that are in memory as the image tower reads them: for small worlds and experiments.

    Args:
        images: (n, 3, h, w).
        captions: n texts, for retrieval and positive scores; or none.
        labels: (n,) integers, -1 where unknown, for zero-shot accuracy; or None.
        class_texts: for each class its text, or several whose features are averaged.
        groups: (n,) integers, -1 where unknown, such as class x background, for the worst group.
        batch_size: images, or texts, that go through a tower at once.

    Raises:
        InvalidInputError: see `HeldOut`.
    """

    def __init__(
        self,
        images: Tensor,
        *,
        captions: Sequence[str] = (),
        labels: Tensor | None = None,
        class_texts: Sequence[str | Sequence[str]] = (),
        groups: Tensor | None = None,
        batch_size: int = 256,
    ) -> None:
        texts = tuple((text,) if isinstance(text, str) else tuple(text) for text in class_texts)
        super().__init__(HeldOut(len(images), tuple(captions), labels, texts, groups), batch_size)
        self.images = images

    def _images(self, towers: Towers) -> Iterator[Placed]:
        places = torch.arange(len(self.images))
        yield from zip(places.split(self.batch_size), self.images.split(self.batch_size), strict=True)


class Monitor(_Scores):
    """Scores of held-out images that are read from where they are.

    Pixels are prepared once and kept where they need at most `keep_bytes`, else read again each time. They are rounded
    to half precision in both cases, so that this choice changes no figure. Images that cannot be read are left out,
    listed in `skipped` (id -> reason) and warned of.

    Args:
        data: its captions, where it has any, are for retrieval and positive scores.
        label: column of the classes, for zero-shot accuracy; or None.
        class_texts: for each class, in the order of the column's names, its text, or several whose features are
            averaged. Default: `templates` filled with the names, "_" read as a space.
        templates: each with {} for the name; "a" before it becomes "an" where it has to.
        spurious: column that makes groups together with `label`, for the worst group.
        batch_size: images, or texts, that go through a tower at once.
        workers: threads that read and prepare images ahead of the model.
        limit: at most so many images, drawn at random with `seed`. Recall falls with the number of candidates, so
            compare figures of one limit alone.
        keep_bytes: memory for prepared images (2 bytes per value).

    Raises:
        InvalidInputError: an unknown column, or see `HeldOut`; when called: no image can be read.
        PromptSetError: a template without {}.
    """

    def __init__(
        self,
        data: ImageData,
        label: str | None = None,
        *,
        class_texts: Sequence[str | Sequence[str]] = (),
        templates: Sequence[str] = ("a photo of a {}.",),
        spurious: str | None = None,
        batch_size: int = 64,
        workers: int = 4,
        limit: int | None = None,
        seed: int = 0,
        keep_bytes: int = 1 << 30,
    ) -> None:
        self.data = _some(data, limit, seed)
        super().__init__(_held_out(self.data, label, class_texts, templates, spurious), batch_size)
        self.workers, self.keep_bytes = workers, keep_bytes
        self.skipped: dict[str, str] = {}
        self._kept: tuple[Prepare, list[Placed]] | None = None

    def _images(self, towers: Towers) -> Iterator[Placed]:
        if self._kept is not None and self._kept[0] is towers.prepare:
            yield from self._kept[1]
            return
        kept, fits = [], True
        for batch in self._read(towers.prepare):
            fits = batch[1][0].nbytes * len(self.data) <= self.keep_bytes
            if fits:
                kept.append(batch)
            yield batch
        self._kept = (towers.prepare, kept) if fits else None

    def _read(self, prepare: Prepare) -> Iterator[Placed]:
        """Batches of the images that can be read, in half precision."""
        skipped: dict[int, str] = {}
        yield from pixel_batches(
            range(len(self.data)),
            self.data.read,
            lambda image: prepare(image).half(),
            batch_size=self.batch_size,
            workers=self.workers,
            skipped=skipped,
        )
        self._tell({self.data.ids[row]: reason for row, reason in skipped.items()})

    def _tell(self, skipped: dict[str, str]) -> None:
        told = f"{self.data.name} {self.data.split}: {len(skipped)} of {len(self.data)} held-out images"
        if len(skipped) == len(self.data):
            raise InvalidInputError(f"{told} cannot be read {list(skipped.items())[:1]}; expected at least one")
        if set(skipped) - set(self.skipped):
            example = next(iter(skipped.items()))
            warnings.warn(f"{told} cannot be read and are left out, such as {example}", VldebiasWarning, stacklevel=2)
        self.skipped = skipped


def _some(data: ImageData, limit: int | None, seed: int) -> ImageData:
    """`limit` rows at random, in the order of the data."""
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit: expected at least 1 image, got {limit}")
    if limit is None or limit >= len(data):
        return data
    return data[np.sort(np.random.default_rng(seed).permutation(len(data))[:limit])]


def _held_out(
    data: ImageData,
    label: str | None,
    class_texts: Sequence[str | Sequence[str]],
    templates: Sequence[str],
    spurious: str | None,
) -> HeldOut:
    if label is None:
        if class_texts or spurious is not None:
            raise InvalidInputError("class_texts and spurious go with a label column; name it with label=")
        return HeldOut(len(data), data.captions)
    labels = data.column(label)
    texts = [(t,) if isinstance(t, str) else tuple(t) for t in class_texts] or _from_names(labels.names, templates)
    if len(texts) != len(labels.names):
        raise InvalidInputError(
            f"class_texts: expected one for each of {list(labels.names)} in column {label!r}, got {len(texts)}"
        )
    groups = torch.from_numpy(cross(labels, data.column(spurious)).codes) if spurious is not None else None
    return HeldOut(len(data), data.captions, torch.from_numpy(labels.codes), tuple(texts), groups)


def _from_names(names: Sequence[str], templates: Sequence[str]) -> list[tuple[str, ...]]:
    for template in templates:
        check_slots("templates", template, required=("",))
    return [tuple(fill(template, **{"": name.replace("_", " ")}) for template in templates) for name in names]
