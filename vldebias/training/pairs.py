"""Open pairs of an image and its captions by the settings, and add caption noise at a known rate
for experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vldebias.data.catalog import trained_data
from vldebias.data.dataset import ImageData
from vldebias.data.huggingface import ImageStream
from vldebias.data.layouts import TABLES
from vldebias.data.tables import Labels, check_captions, cross, says_something
from vldebias.errors import InvalidInputError, warn
from vldebias.miniature.words import WORLDS
from vldebias.prompts import fill
from vldebias.training.sampling import numpy_generator
from vldebias.training.settings import TrainSettings

if TYPE_CHECKING:
    from PIL import Image

CAPTIONS_WANTED = (
    "Name their column (caption), or make them from a label with label and caption_template"
)
# Held-out figures of a world are those of its test pictures, the only ones besides the reference.
_WORLD_SPLITS = {"train": "reference", "val": "test", "test": "test"}  # of the shipped pictures


@dataclass(frozen=True, eq=False)
class Pairs:
    """Hold n images with their captions: each epoch has each image once, with another of its
    captions in turn.

    captions: n tuples of texts; () where only images are learned from.
    read: index -> RGB image, OSError where it cannot be read. path: index -> its path, "" where it
    is not a file.
    labels: classes of the images. groups: for group DRO.
    columns: name -> labels of every column that the data came with, to be written with the pairs.
    wrong: (n,) bool after `with_noise`, images with a wrong caption.
    """

    name: str
    ids: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    read: Callable[[int], Image.Image]
    labels: Labels | None = None
    groups: Labels | None = None
    columns: Mapping[str, Labels] = field(default_factory=dict)
    path: Callable[[int], str] = lambda _: ""
    wrong: NDArray[np.bool_] | None = None

    @property
    def items(self) -> int:
        """Return the number of images."""
        return len(self.ids)

    @classmethod
    def from_data(cls, data: ImageData, settings: TrainSettings) -> Pairs:
        """Return the pairs of a data set, with the groups and the noise of the settings.

        Rows without a caption are left out, with a warning.

        Args:
            data: the images.
            settings: of the training.
        """
        labels = None if settings.label is None else data.column(settings.label)
        groups = None
        if settings.group_dro is not None:
            groups = _crossed_groups(data, settings.group_dro)
        columns: Any = {
            "labels": labels,
            "groups": groups,
            "columns": data.labels,
            "path": data.path,
        }
        # Two views of an image are contrasted, and no caption is read.
        if settings.views == "two":
            return cls(data.name, data.ids, (), data.read, **columns)
        captions = _captions(data, settings, labels)
        has_caption = np.array([says_something(texts[0]) for texts in captions])
        if not has_caption.any():
            raise InvalidInputError(f"{data.name}: not one of {len(data)} rows has a caption")
        if not has_caption.all():
            examples = ", ".join(np.array(data.ids)[~has_caption][:3])
            warn(
                f"{data.name}: {(~has_caption).sum()} of {len(data)} rows have no caption and are"
                f" left out, such as {examples}"
            )
        pairs = cls(data.name, data.ids, captions, data.read, **columns)
        pairs = pairs.taken(np.flatnonzero(has_caption))
        # Captions, or names of classes, that are no words are learned as they are, with a warning.
        names = [texts[0] for texts in pairs.captions]
        remedy = "Name the column of the captions (caption)"
        if settings.caption_template is not None and pairs.labels is not None:
            names = [pairs.labels.names[code] for code in pairs.labels.codes]
            remedy = "Name the classes in words (names={column: {code: name}})"
        check_captions(pairs.name, names, remedy)
        if not settings.caption_noise:
            return pairs
        return pairs.with_noise(settings.caption_noise, settings.seed)

    def taken(self, rows: NDArray[np.int64]) -> Self:
        """Return some of the pairs, by their numbers (m,)."""
        read = self.read
        path = self.path
        numbers = rows.tolist()
        columns: dict[str, Any] = {
            "columns": {name: labels[rows] for name, labels in self.columns.items()}
        }
        for name in ("labels", "groups", "wrong"):
            column = getattr(self, name)
            if column is not None:
                columns[name] = column[rows]
        if self.captions:
            columns["captions"] = tuple(self.captions[number] for number in numbers)
        return replace(
            self,
            ids=tuple(self.ids[number] for number in numbers),
            read=lambda index: read(numbers[index]),
            path=lambda index: path(numbers[index]),
            **columns,
        )

    def with_noise(self, eta: float, seed: int) -> Self:
        """Return pairs with a share eta of the captions replaced by random ones of all; see
        `noise`.

        Args:
            eta: share of captions to replace, in [0, 1].
            seed: of the choice.
        """
        all_captions = list(chain.from_iterable(self.captions))
        noisy = iter([all_captions[row] for row in self.noise(len(all_captions), eta, seed)])
        captions = []
        wrong = []
        for texts in self.captions:
            noisy_texts = tuple(islice(noisy, len(texts)))
            captions.append(noisy_texts)
            # Chance may give an image one of its own captions, which is right.
            wrong.append(not set(noisy_texts) <= set(texts))
        return replace(self, captions=tuple(captions), wrong=np.array(wrong))

    @staticmethod
    def noise(n: int, eta: float, seed: int) -> NDArray[np.int64]:
        """Return the row (n,) that each row's caption is taken from: (1 - eta) P_XV + eta P_X P_V.

        Source: the mixture noise of Chuang's thesis, section 6.2.2. With probability eta a row's
        caption is that of a row chosen uniformly from all n, itself included, so both marginals
        stay what they were. With a larger eta and the same seed the rows that were replaced still
        are, by the same.

        Args:
            n: number of rows.
            eta: probability that a row's caption is replaced.
            seed: of the choice.
        """
        generator = numpy_generator("mixture noise", seed)
        # Both draws have a fixed length, so a larger eta only adds rows.
        replaced = generator.random(n) < eta
        replacements = generator.integers(n, size=n)
        return np.where(replaced, replacements, np.arange(n))


def _crossed_groups(data: ImageData, columns: str) -> Labels:
    """Return the groups of columns, named with commas between, without combinations that do not
    occur.

    Raises:
        InvalidInputError: all rows are of one group.
    """
    groups = cross(*(data.column(name.strip()) for name in columns.split(",")))
    occurring = np.unique(groups.codes[groups.known])
    if len(occurring) < 2:
        raise InvalidInputError(f"{data.name}: group_dro {columns!r}: expected rows of two groups")
    new_codes = np.full(len(groups.names) + 1, -1)  # the last is that of unknown rows, -1
    new_codes[occurring] = np.arange(len(occurring))
    names = tuple(groups.names[code] for code in occurring)
    return Labels(new_codes[groups.codes], names)


def _captions(
    data: ImageData, settings: TrainSettings, labels: Labels | None
) -> tuple[tuple[str, ...], ...]:
    """Return the captions of each image: its own, or the template with the name of its class.

    Raises:
        InvalidInputError: the data has no captions.
    """
    if settings.caption_template is not None and labels is not None:
        # Names of classes are often those of folders: "ice_cream".
        names = [name.replace("_", " ") for name in labels.names]
        texts = [fill(settings.caption_template, **{"": name}) for name in names]
        texts.append("")  # of the code -1, unknown
        return tuple((texts[code],) for code in labels.codes)
    if not data.captions:
        raise InvalidInputError(f"{data.name}: has no captions. {CAPTIONS_WANTED}")
    if not data.more_captions:
        return tuple((caption,) for caption in data.captions)
    both = zip(data.captions, data.more_captions, strict=False)
    return tuple((first, *further) for first, further in both)


def open_images(settings: TrainSettings, *, held_out: bool = False) -> ImageData | ImageStream:
    """Open the data to train on, or the held-out data.

    Args:
        settings: of the training, which name the data.
        held_out: open the held-out data instead.

    Raises:
        InvalidInputError: no such split, codes without a name, or the errors of
            `vldebias.data.open_data`.
    """
    where = settings.data
    split = settings.split
    if held_out:
        where = settings.val_data or settings.data
        split = "train"
        if where in WORLDS:
            split = "val"
        elif Path(where).suffix.lower() in TABLES:
            split = "all"
        split = settings.val_split or split
    data = _open_by_place(settings, where, split, held_out)
    if settings.names is None or not isinstance(data, ImageData):
        return data
    labels = dict(data.labels)
    for column, name_of_code in settings.names.items():
        # Held-out rows need not have the columns of group DRO.
        if column in labels or not held_out:
            labels[column] = _named(data, column, name_of_code)
    return replace(data, labels=labels)


def _named(data: ImageData, column: str, name_of_code: Mapping[str, str]) -> Labels:
    """Return the labels of a column with the names that the settings give its codes."""
    labels = data.column(column)
    # Values that already are names stay, so that kept.parquet is read with the settings it is from.
    new_names = set(name_of_code.values())
    unnamed = [code for code in labels.names if code not in name_of_code and code not in new_names]
    if unnamed:
        raise InvalidInputError(
            f"{data.name}: names of {column!r}: expected one for each of {list(labels.names)}, got"
            f" none for {unnamed[:8]}"
        )
    texts = [name_of_code.get(code, code) for code in labels.names]
    names = list(dict.fromkeys(texts))
    # Codes of one name are one class; the last is that of unknown rows, -1.
    new_codes = np.array([*map(names.index, texts), -1])
    return Labels(new_codes[labels.codes], tuple(names))


def _open_by_place(
    settings: TrainSettings, where: str, split: str, held_out: bool
) -> ImageData | ImageStream:
    """Open a split of the data of a place: a world, a named data set, or data of the user's own."""
    from vldebias.data import open_data

    if where in WORLDS:
        from vldebias.miniature import open_world

        items = None if held_out else settings.items
        if split not in _WORLD_SPLITS:
            raise InvalidInputError(
                f"{where}: expected split {', '.join(_WORLD_SPLITS)}, got {split!r}"
            )
        return open_world(where, split=_WORLD_SPLITS[split], n=items)
    if trained_data(where) is not None:
        return open_data(where, settings.data_root, split)

    labels = _label_columns(settings, held_out)
    return open_data(
        "captions",
        where,
        split,
        image=settings.image,
        caption=settings.caption,
        labels=labels or None,
        images=Path(settings.image_root).expanduser() if settings.image_root else None,
        separator=settings.separator,
        encoding=settings.encoding,
        reads_captions=settings.reads_captions,
        allow_outside=settings.allow_outside,
        # Held-out images are scored again and again, so they are never streamed.
        streaming=settings.streaming and not held_out,
    )


def _label_columns(settings: TrainSettings, held_out: bool) -> list[str]:
    """Return the columns of labels that are used, each once: the class, and the groups to score by
    or to train with."""
    columns = [settings.label or ""]
    # The data to train on need no column of the groups to score by. Where the held-out data are
    # another split of the same place they have it, and kept.parquet keeps it.
    is_kept = settings.keep is not None and settings.val_data is None
    if held_out or is_kept:
        columns.append(settings.group or "")
    if not held_out:
        columns += (settings.group_dro or "").split(",")
    names = [column.strip() for column in columns]
    return list(dict.fromkeys(name for name in names if name))
