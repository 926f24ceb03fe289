"""Open images and captions according to the settings, and add caption noise for experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from vldebias.data.caption_cells import check_captions, says_something
from vldebias.data.catalog import trained_data
from vldebias.data.dataset import ImageData
from vldebias.data.huggingface import ImageStream
from vldebias.data.labels import Labels, cross
from vldebias.data.layouts import TABLES
from vldebias.errors import InvalidInputError, warn
from vldebias.miniature.words import WORLDS
from vldebias.prompts import fill
from vldebias.training.sampling import numpy_generator
from vldebias.training.settings import TrainSettings

if TYPE_CHECKING:
    from PIL import Image

CAPTIONS_WANTED = (
    "Set caption to their column, or create captions from labels with label and caption_template"
)
# A miniature world has only two splits, to which this mapping assigns the training splits.
_WORLD_SPLITS = {"train": "reference", "val": "test", "test": "test"}


@dataclass(frozen=True, eq=False)
class Pairs:
    """n images with captions, where each epoch uses every image with one of its captions.

    Attributes:
        name: name of the data set, for messages.
        ids: n image names.
        captions: n tuples of captions, or empty if only images are used.
        read: function that returns the RGB image at an index, or raises OSError.
        labels: classes of the images.
        groups: groups for group DRO.
        columns: labels of every label column in the data by name, which are saved with the pairs.
        path: function that returns the path of the image at an index, or "" if it is not a file.
        wrong: (n,) bool, True for images that `with_noise` gave a wrong caption.
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
        """Create pairs from a data set, with groups and noise according to the settings.

        Rows without a caption are dropped, with a warning.

        Args:
            data: the images.
            settings: training settings.
        """
        labels = None if settings.label is None else data.column(settings.label)
        groups = None
        if settings.group_dro is not None:
            groups = _crossed_groups(data, settings.group_dro)
        pairs = cls(data.name, data.ids, (), data.read, labels, groups, data.labels, data.path)
        # Captions are not needed to contrast two views of each image.
        if settings.views == "two":
            return pairs
        captions = _captions(data, settings, labels)
        has_caption = np.array([says_something(texts[0]) for texts in captions])
        if not has_caption.any():
            raise InvalidInputError(f"{data.name}: expected captions, got none in {len(data)} rows")
        if not has_caption.all():
            examples = ", ".join(np.array(data.ids)[~has_caption][:3])
            warn(
                f"{data.name}: {(~has_caption).sum()} of {len(data)} rows have no caption and are"
                f" left out, such as {examples}"
            )
        pairs = replace(pairs, captions=captions).select(np.flatnonzero(has_caption))
        # Warn if captions or class names look like file names or codes instead of words.
        names = [texts[0] for texts in pairs.captions]
        remedy = "Pass the column of the captions (--caption-column; in Python caption=...)"
        if settings.caption_template is not None and pairs.labels is not None:
            names = [pairs.labels.names[code] for code in pairs.labels.codes]
            remedy = "Set names to the names of the classes (names={column: {code: name}})"
        check_captions(pairs.name, names, remedy)
        if not settings.caption_noise:
            return pairs
        return pairs.with_noise(settings.caption_noise, settings.seed)

    def select(self, rows: NDArray[np.int64]) -> Self:
        """Return the pairs at the given indices (m,)."""
        read = self.read
        path = self.path
        numbers = rows.tolist()
        captions: tuple[tuple[str, ...], ...] = ()
        if self.captions:
            captions = tuple(self.captions[number] for number in numbers)
        return replace(
            self,
            ids=tuple(self.ids[number] for number in numbers),
            captions=captions,
            read=lambda index: read(numbers[index]),
            path=lambda index: path(numbers[index]),
            labels=None if self.labels is None else self.labels[rows],
            groups=None if self.groups is None else self.groups[rows],
            columns={name: labels[rows] for name, labels in self.columns.items()},
            wrong=None if self.wrong is None else self.wrong[rows],
        )

    def with_noise(self, eta: float, seed: int) -> Self:
        """Return pairs with a share eta of the captions replaced at random, as in `noise`.

        Args:
            eta: share of captions to replace, in [0, 1].
            seed: random seed.
        """
        all_captions = list(chain.from_iterable(self.captions))
        noisy = iter([all_captions[row] for row in self.noise(len(all_captions), eta, seed)])
        captions = []
        wrong = []
        for texts in self.captions:
            noisy_texts = tuple(islice(noisy, len(texts)))
            captions.append(noisy_texts)
            # The random caption may happen to be one of the image's own captions.
            wrong.append(not set(noisy_texts) <= set(texts))
        return replace(self, captions=tuple(captions), wrong=np.array(wrong))

    @staticmethod
    def noise(n: int, eta: float, seed: int) -> NDArray[np.int64]:
        """Return the row (n,) from which each row's caption is taken.

        This is the mixture noise (1 - eta) P_XV + eta P_X P_V from section 6.2.2 of the thesis.
        With probability eta, a caption is replaced by the caption of a row that is chosen uniformly
        from all n rows, so the marginal distributions do not change. With the same seed, a larger
        eta makes the same replacements and additional ones.

        Args:
            n: number of rows.
            eta: probability that a caption is replaced.
            seed: random seed.
        """
        generator = numpy_generator("mixture noise", seed)
        # The random values do not depend on eta, so a larger eta only adds replacements.
        replaced = generator.random(n) < eta
        replacements = generator.integers(n, size=n)
        return np.where(replaced, replacements, np.arange(n))


def _crossed_groups(data: ImageData, columns: str) -> Labels:
    """Return the groups defined by comma-separated columns, without empty combinations.

    Raises:
        InvalidInputError: If all rows are in the same group.
    """
    groups = cross(*(data.column(name.strip()) for name in columns.split(",")))
    occurring = np.unique(groups.codes[groups.known])
    if len(occurring) < 2:
        raise InvalidInputError(
            f"{data.name}: group_dro {columns!r}: expected rows from at least two groups"
        )
    new_codes = np.full(len(groups.names) + 1, -1)  # The last entry is for unknown rows (-1).
    new_codes[occurring] = np.arange(len(occurring))
    names = tuple(groups.names[code] for code in occurring)
    return Labels(new_codes[groups.codes], names)


def _captions(
    data: ImageData, settings: TrainSettings, labels: Labels | None
) -> tuple[tuple[str, ...], ...]:
    """Return the captions of each image, created from the template if there is one.

    Raises:
        InvalidInputError: If the data have no captions.
    """
    if settings.caption_template is not None and labels is not None:
        texts = [*texts_of_classes(settings.caption_template, labels.names), ""]  # "" if unknown
        return tuple((texts[code],) for code in labels.codes)
    if not data.captions:
        raise InvalidInputError(f"{data.name}: expected captions, got none. {CAPTIONS_WANTED}")
    return all_captions(data)


def texts_of_classes(template: str, names: Sequence[str]) -> list[str]:
    """Return the text for each class.

    Args:
        template: a text with the slot {}.
        names: names of the classes.
    """
    # Class names are often folder names, such as "ice_cream".
    return [fill(template, **{"": name.replace("_", " ")}) for name in names]


def all_captions(data: ImageData) -> tuple[tuple[str, ...], ...]:
    """Return the captions of each image, or an empty tuple for data without captions."""
    if not data.more_captions:
        return tuple((caption,) for caption in data.captions)
    both = zip(data.captions, data.more_captions, strict=True)
    return tuple((first, *further) for first, further in both)


def open_images(settings: TrainSettings, *, held_out: bool = False) -> ImageData | ImageStream:
    """Open the training data or the held-out data.

    Args:
        settings: training settings, which specify the data.
        held_out: whether to open the held-out data.

    Raises:
        InvalidInputError: If the split is unknown, codes have no names, or the data are invalid for
            `vldebias.data.open_data`.
    """
    source = settings.data
    split = settings.split
    if held_out:
        source = settings.val_data or settings.data
        split = "train"
        if source in WORLDS:
            split = "val"
        elif Path(source).suffix.lower() in TABLES:
            split = "all"
        split = settings.val_split or split
    data = _open_by_place(settings, source, split, held_out)
    if settings.names is None or not isinstance(data, ImageData):
        return data
    labels = dict(data.labels)
    for column, name_of_code in settings.names.items():
        # Held-out data do not need columns for group DRO.
        if column in labels or not held_out:
            labels[column] = _named(data, column, name_of_code)
    return replace(data, labels=labels)


def _named(data: ImageData, column: str, name_of_code: Mapping[str, str]) -> Labels:
    """Return a column's labels, with codes replaced by names."""
    labels = data.column(column)
    # Leave values that are already names unchanged, so that kept.parquet can be loaded with the
    # same settings.
    new_names = set(name_of_code.values())
    unnamed = [code for code in labels.names if code not in name_of_code and code not in new_names]
    if unnamed:
        raise InvalidInputError(
            f"{data.name}: names of {column!r}: expected a name for each of {list(labels.names)},"
            f" got none for {unnamed[:8]}"
        )
    texts = [name_of_code.get(code, code) for code in labels.names]
    names = list(dict.fromkeys(texts))
    # Codes with the same name form one class. The last entry is for unknown rows (-1).
    new_codes = np.array([*map(names.index, texts), -1])
    return Labels(new_codes[labels.codes], tuple(names))


def _open_by_place(
    settings: TrainSettings, source: str, split: str, held_out: bool
) -> ImageData | ImageStream:
    """Open a split of a miniature world, a named data set, or the user's own data."""
    from vldebias.data import open_data

    if source in WORLDS:
        from vldebias.miniature import open_world

        items = None if held_out else settings.items
        if split not in _WORLD_SPLITS:
            raise InvalidInputError(
                f"{source}: expected split {', '.join(_WORLD_SPLITS)}, got {split!r}"
            )
        return open_world(source, split=_WORLD_SPLITS[split], n=items)
    if trained_data(source) is not None:
        return open_data(source, settings.data_root, split)

    labels = _label_columns(settings, held_out)
    return open_data(
        "captions",
        source,
        split,
        image=settings.image,
        caption=settings.caption,
        labels=labels or None,
        images=Path(settings.image_root).expanduser() if settings.image_root else None,
        separator=settings.separator,
        encoding=settings.encoding,
        reads_captions=settings.reads_captions,
        allow_outside=settings.allow_outside,
        # Held-out images are scored repeatedly, so they are never streamed.
        streaming=settings.streaming and not held_out,
    )


def _label_columns(settings: TrainSettings, held_out: bool) -> list[str]:
    """Return the label columns to load: the class and the groups for scoring and training."""
    columns = [settings.label or ""]
    # Training itself does not need the column of groups to score. However, if the held-out data are
    # a different split of the same data, the column exists and is written to kept.parquet.
    is_kept = settings.keep is not None and settings.val_data is None
    if held_out or is_kept:
        columns.append(settings.group or "")
    if not held_out:
        columns += (settings.group_dro or "").split(",")
    names = [column.strip() for column in columns]
    return list(dict.fromkeys(name for name in names if name))
