"""Noise of a known rate, for experiments: wrong captions, wrong labels, crops that show next to nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.sampling import numpy_generator

__all__ = ["CropNoise", "Noise", "class_noise", "mixture_noise", "related_classes"]


@dataclass(frozen=True, eq=False)
class Noise:
    """What was done to the captions of n rows.

    source: (n,) int64, the row that each row's caption is taken from.
    wrong: (n,) bool, rows whose caption is not their own. Two rows that say the same have the same caption, so where
        the texts are known a row is wrong only if its text changed.
    """

    source: NDArray[np.int64]
    wrong: NDArray[np.bool_]

    def applied(self, captions: Sequence[str]) -> tuple[str, ...]:
        """The captions after the noise."""
        if len(captions) != len(self.source):
            raise InvalidInputError(f"expected {len(self.source)} captions, got {len(captions)}")
        return tuple(captions[i] for i in self.source)


def mixture_noise(n: int, eta: float, seed: int, captions: Sequence[str] | None = None) -> Noise:
    """Pairs drawn from (1 - eta) P_XV + eta P_X P_V: the mixture noise of Chuang's thesis, section 6.2.2.

    With probability eta a row's caption is replaced by that of a row drawn uniformly from all n, itself included, so
    the captions that are drawn follow their empirical distribution and both marginals stay what they were. A row that
    draws its own text is not wrong: the expected share of wrong rows is eta (1 - sum of squared shares of the texts).

    Args:
        n: rows.
        eta: noise rate in [0, 1].
        seed: the same seed gives the same noise; with a larger eta the rows that were replaced still are, by the same.
        captions: n texts, to say which rows are wrong; without them a row is wrong where it drew another row.

    Raises:
        InvalidInputError: eta outside [0, 1], captions of another number.
    """
    _check_rate(eta)
    if captions is not None and len(captions) != n:
        raise InvalidInputError(f"expected {n} captions, got {len(captions)}")
    generator = numpy_generator("mixture noise", seed)
    rows = np.arange(n)
    replaced, drawn = generator.random(n) < eta, generator.integers(max(n, 1), size=n)
    source = np.where(replaced, drawn, rows)
    text = rows if captions is None else _codes(captions)
    return Noise(source, text[source] != text)


def _codes(captions: Sequence[str]) -> NDArray[np.int64]:
    """(n,) integers, equal where the texts are."""
    code = {text: number for number, text in enumerate(dict.fromkeys(captions))}
    return np.fromiter((code[text] for text in captions), np.int64, len(captions))


def class_noise(labels: ArrayLike, eta: float, related: Sequence[int], seed: int) -> NDArray[np.int64]:
    """Labels (n,) flipped to a related class with probability eta / 2: class-dependent noise, thesis section 5.3.1.

    Args:
        labels: (n,) codes; -1, unknown, stays.
        eta: noise rate in [0, 1]; at 1 a class and its related one cannot be told apart by their labels.
        related: for each class the one that it is taken for, such as that of dogs for cats; itself for none.
        seed: the same seed gives the same noise.

    Raises:
        InvalidInputError: eta outside [0, 1], a label without a related class, a related class that is none.
    """
    _check_rate(eta)
    codes, other = np.asarray(labels, dtype=np.int64), np.asarray(related, dtype=np.int64)
    if codes.ndim != 1 or (len(codes) and not -1 <= codes.min() <= codes.max() < len(other)):
        raise InvalidInputError(f"expected labels (n,) in -1 .. {len(other) - 1}, one per entry of related")
    if len(other) and not 0 <= other.min() <= other.max() < len(other):
        raise InvalidInputError(f"related: expected classes 0 .. {len(other) - 1}, got {other.tolist()}")
    flipped = (numpy_generator("class noise", seed).random(len(codes)) < eta / 2) & (codes >= 0)
    return np.where(flipped, np.append(other, -1)[codes], codes)


def related_classes(names: Sequence[str], related: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """`related` of `class_noise` by name: {"cat": "dog", "dog": "cat"}; classes not named are never flipped.

    By default each class is taken for the next one, and the last for the first (of two classes: for each other).

    Raises:
        InvalidInputError: a name that no class has.
    """
    if related is None:
        return tuple((k + 1) % len(names) for k in range(len(names)))
    strangers = sorted({*related.keys(), *related.values()} - set(names))
    if strangers:
        raise InvalidInputError(f"related: no classes {strangers}; there are {list(names)}")
    return tuple(list(names).index(related.get(name, name)) for name in names)


@dataclass(frozen=True)
class CropNoise:
    """Crops an image to a fifth of its height and width, and enlarges that, with probability eta (thesis 5.3.1).

    The source says "1/5 of their original size" after all other augmentation; size is read as that of the sides, since
    a patch of a fifth of the AREA still shows most objects (SimCLR's own crops are as small).

    eta: noise rate in [0, 1]. size: what is kept of each side.

    Raises:
        InvalidInputError: eta outside [0, 1], a size outside (0, 1].
    """

    eta: float
    size: float = 0.2

    def __post_init__(self) -> None:
        _check_rate(self.eta)
        if not 0 < self.size <= 1:
            raise InvalidInputError(f"size: expected a share in (0, 1], got {self.size}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (b, 3, h, w) -> a copy with some of them cropped; all randomness is the generator's."""
        b, _, h, w = images.shape
        draws = torch.rand(b, 3, generator=generator)
        chosen = torch.nonzero(draws[:, 0] < self.eta).squeeze(1)
        if not len(chosen):
            return images.clone()
        height, width = max(1, round(h * self.size)), max(1, round(w * self.size))
        y = _places(draws[chosen, 1], h - height, height).to(images.device)
        x = _places(draws[chosen, 2], w - width, width).to(images.device)
        chosen = chosen.to(images.device)
        patches = images[chosen[:, None, None], :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)
        return images.index_copy(0, chosen, F.interpolate(patches, (h, w), mode="bilinear", align_corners=False))


def _places(draws: Tensor, last: int, length: int) -> Tensor:
    """Draws (k,) in [0, 1) -> the `length` pixels from a first one in 0 .. last, (k, length)."""
    first = (draws * (last + 1)).long().clamp(max=last)
    return first[:, None] + torch.arange(length)


def _check_rate(eta: float) -> None:
    if not 0 <= eta <= 1:
        raise InvalidInputError(f"eta: expected a noise rate in [0, 1], got {eta}")
