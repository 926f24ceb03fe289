"""Pairs of an image and a caption, at random: what a data set says, or what noise made of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vldebias.data.images import ImageData
from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.noise import class_noise, mixture_noise, related_classes

__all__ = ["PairSource", "Pairs", "caption_of"]


@dataclass(frozen=True, eq=False)
class PairSource:
    """n images, each with its caption and, where asked for, its class.

    Attributes:
        name: of the data set.
        ids: n different names.
        captions: n texts; none where only images are learned from.
        read: index -> RGB image; OSError where it cannot be read.
        labels: classes of the rows.
        template: what captions were made of, see `of`.
        left_out: rows of the data set without a caption, which are not among these.
    """

    name: str
    ids: tuple[str, ...]
    captions: tuple[str, ...]
    read: Callable[[int], Image.Image]
    labels: Labels | None = None
    template: str | None = None
    left_out: int = 0

    @classmethod
    def of(
        cls,
        data: ImageData,
        *,
        label: str | None = None,
        caption_template: str | None = None,
        with_captions: bool = True,
    ) -> PairSource:
        """The pairs of a data set. Rows that have no caption are left out, with a warning.

        Args:
            data: images with captions.
            label: column of classes, for losses that read them, class noise or `caption_template`.
            caption_template: make the captions from the label instead, such as "a photo of a {}".
            with_captions: False where only images are learned from, as two views of each.

        Raises:
            InvalidInputError: no captions, no such column, a template without label or without {}.
        """
        labels = None if label is None else data.column(label)
        if not with_captions:
            return cls(data.name, data.ids, (), data.read, labels)
        captions = _captions(data, labels, caption_template)
        has = np.array([bool(caption.strip()) for caption in captions])
        if not has.any():
            raise InvalidInputError(f"{data.name}: not one of {len(data)} rows has a caption")
        if not has.all():
            warnings.warn(
                f"{data.name}: {(~has).sum()} of {len(data)} rows have no caption and are left out, such as "
                f"{', '.join(np.array(data.ids)[~has][:3])}",
                VldebiasWarning,
                stacklevel=2,
            )
            data, labels = data[has], None if labels is None else labels[has]
            captions = tuple(caption for caption, there in zip(captions, has, strict=True) if there)
        return cls(data.name, data.ids, captions, data.read, labels, caption_template, int((~has).sum()))

    @property
    def items(self) -> int:
        """Number of pairs."""
        return len(self.ids)

    def caption(self, index: int) -> str:
        """The caption of a row."""
        return self.captions[index]

    def image(self, index: int) -> Image.Image:
        """The RGB image of a row; OSError where it cannot be read."""
        return self.read(index)


@dataclass(frozen=True, eq=False)
class Pairs(PairSource):
    """Pairs after noise, with the truth about them.

    wrong: (n,) bool, pairs whose caption (without captions: whose label) is not what the source says. A text that noise
    replaced by an equal one is not wrong.
    own: the source before any noise.
    """

    wrong: NDArray[np.bool_] = field(kw_only=True)
    own: PairSource = field(kw_only=True)

    @classmethod
    def clean(cls, source: PairSource) -> Pairs:
        """Pairs as the source has them; none is wrong as far as is known."""
        return _pairs(source)

    @classmethod
    def with_mixture_noise(cls, source: PairSource, eta: float, seed: int) -> Pairs:
        """A share eta of the captions is drawn from all captions; see `vldebias.training.noise.mixture_noise`.

        Raises:
            InvalidInputError: eta outside [0, 1], no captions.
        """
        if not source.captions:
            raise InvalidInputError(f"{source.name}: mixture noise needs captions; crop or class noise do without")
        noise = mixture_noise(source.items, eta, seed, source.captions)
        return _pairs(source, captions=noise.applied(source.captions))

    @classmethod
    def with_class_noise(
        cls, source: PairSource, eta: float, seed: int, *, related: Mapping[str, str] | None = None
    ) -> Pairs:
        """Labels flip to the related class with probability eta / 2, and captions made from them with them.

        related: class -> class it is taken for; by default the next one. See `vldebias.training.noise`.

        Raises:
            InvalidInputError: no labels; captions that were not made from the labels; eta outside [0, 1].
        """
        if source.labels is None:
            raise InvalidInputError(f"{source.name}: class noise needs the column of classes; give label")
        if source.captions and source.template is None:
            raise InvalidInputError(
                f"{source.name}: class noise does not reach captions that people wrote; make them from the label with "
                "caption_template, such as 'a photo of a {}'"
            )
        if isinstance(source, Pairs) and source.wrong.any():
            raise InvalidInputError(f"{source.name}: has noise already; class noise comes before any other")
        names = source.labels.names
        labels = Labels(class_noise(source.labels.codes, eta, related_classes(names, related), seed), names)
        if source.template is None:
            return _pairs(source, labels=labels)
        return _pairs(source, labels=labels, captions=_from_labels(labels, source.template))


def _pairs(source: PairSource, **changed: Any) -> Pairs:
    """The source with changed attributes, compared with what it was before any noise."""
    own = source.own if isinstance(source, Pairs) else source
    values = {part.name: getattr(source, part.name) for part in fields(PairSource)} | changed
    return Pairs(**values, wrong=_differ(values["captions"], values["labels"], own), own=own)


def _differ(captions: tuple[str, ...], labels: Labels | None, own: PairSource) -> NDArray[np.bool_]:
    """(n,) rows whose caption, or whose label where there are no captions, is not the own one."""
    if captions:
        return np.array([here != there for here, there in zip(captions, own.captions, strict=True)])
    if labels is None or own.labels is None:
        return np.zeros(own.items, dtype=bool)
    return labels.codes != own.labels.codes


def caption_of(template: str, name: str) -> str:
    """A caption made from the name of a class.

    Raises:
        InvalidInputError: a template without {}.
    """
    if "{}" not in template:
        raise InvalidInputError(f"caption_template: expected {{}} where the class goes, got {template!r}")
    return template.replace("{}", name)


def _captions(data: ImageData, labels: Labels | None, template: str | None) -> tuple[str, ...]:
    if template is not None:
        if labels is None:
            raise InvalidInputError(f"{data.name}: caption_template needs label, the column of classes to name")
        return _from_labels(labels, template)
    if not data.captions:
        raise InvalidInputError(
            f"{data.name}: has no captions. Name their column when the data is opened (caption=...), or make them from "
            "a label with label=... and caption_template='a photo of a {}'"
        )
    return data.captions


def _from_labels(labels: Labels, template: str) -> tuple[str, ...]:
    """One caption per row, "" where the label is unknown."""
    texts = [*(caption_of(template, name) for name in labels.names), ""]
    return tuple(texts[code] for code in labels.codes)
