"""Open pairs of an image and its captions by the settings, and add caption noise at a known rate
for experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vldebias.data.dataset import ImageData
from vldebias.data.huggingface import ImageStream
from vldebias.data.tables import Labels, check_captions, cross, read_table, says_something
from vldebias.errors import InvalidInputError, warn
from vldebias.training.sampling import numpy_generator
from vldebias.training.settings import WORLDS, TrainSettings

if TYPE_CHECKING:
    from PIL import Image

CAPTIONS_WANTED = (
    "Name their column (caption), or make them from a label with label and caption_template"
)
_SPLIT, _TABLES = (
    "split",
    (".csv", ".tsv", ".jsonl"),
)  # the column that names splits, of tables of paths
_WORLD_SPLITS = {"train": "reference", "val": "test", "test": "test"}  # of the shipped pictures


@dataclass(frozen=True, eq=False)
class Pairs:
    """Hold n images with their captions: each epoch has each image once, with another of its
    captions in turn.

    captions: n tuples of texts; () where only images are learned from.
    read: index -> RGB image, OSError where it cannot be read. path: index -> its path, "" where it
    is not a file.
    labels: classes of the images. groups: for group DRO.
    wrong: (n,) bool after `with_noise`, images with a wrong caption.
    """

    name: str
    ids: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    read: Callable[[int], Image.Image]
    labels: Labels | None = None
    groups: Labels | None = None
    path: Callable[[int], str] = lambda _: ""
    wrong: NDArray[np.bool_] | None = None

    @property
    def items(self) -> int:
        """Return the number of images."""
        return len(self.ids)

    @classmethod
    def of(cls, data: ImageData, settings: TrainSettings) -> Pairs:
        """Return the pairs of a data set, with the groups and the noise of the settings.

        Rows without a caption are left out, with a warning.
        """
        labels, groups = None if settings.label is None else data.column(settings.label), None
        if settings.group_dro is not None:
            groups = cross(*(data.column(name.strip()) for name in settings.group_dro.split(",")))
            seen = np.unique(groups.codes[groups.known])
            if len(seen) < 2:
                raise InvalidInputError(
                    f"{data.name}: group_dro {settings.group_dro!r}: expected rows of two groups"
                )
            code = np.full(len(groups.names) + 1, -1)  # the last is -1, unknown
            code[seen] = np.arange(len(seen))  # without combinations that do not occur
            groups = Labels(code[groups.codes], tuple(groups.names[k] for k in seen))
        rest: Any = {"labels": labels, "groups": groups, "path": data.path}
        if settings.views == "two":
            return cls(data.name, data.ids, (), data.read, **rest)
        more = data.more_captions or ((),) * len(data)
        captions = tuple(
            (first, *others) for first, others in zip(data.captions, more, strict=False)
        )
        if settings.caption_template is not None and labels is not None:
            texts = [*(settings.caption_template.replace("{}", one) for one in labels.names), ""]
            captions = tuple((texts[code],) for code in labels.codes)
        if not captions:
            raise InvalidInputError(f"{data.name}: has no captions. {CAPTIONS_WANTED}")
        has = np.array([says_something(own[0]) for own in captions])
        if not has.any():
            raise InvalidInputError(f"{data.name}: not one of {len(data)} rows has a caption")
        if not has.all():
            few = ", ".join(np.array(data.ids)[~has][:3])
            warn(
                f"{data.name}: {(~has).sum()} of {len(data)} rows have no caption and are left out,"
                f" such as {few}"
            )
        made = cls(data.name, data.ids, captions, data.read, **rest).taken(np.flatnonzero(has))
        names, remedy = (
            [own[0] for own in made.captions],
            "Name the column of the captions (caption)",
        )
        if settings.caption_template is not None and made.labels is not None:
            names, remedy = (
                [made.labels.names[code] for code in made.labels.codes],
                "Name the classes in words",
            )
        check_captions(data.name, names, remedy)
        return (
            made.with_noise(settings.caption_noise, settings.seed)
            if settings.caption_noise
            else made
        )

    def taken(self, rows: NDArray[np.int64]) -> Self:
        """Return some of the pairs, by their numbers (m,)."""
        read, path, each = self.read, self.path, rows.tolist()
        columns = {name: getattr(self, name) for name in ("labels", "groups", "wrong")}
        some: dict[str, Any] = {
            k: None if column is None else column[rows] for k, column in columns.items()
        }
        some["captions"] = tuple(self.captions[row] for row in each) if self.captions else ()
        some |= {"read": lambda index: read(each[index]), "path": lambda index: path(each[index])}
        return replace(self, ids=tuple(self.ids[row] for row in each), **some)

    def with_noise(self, eta: float, seed: int) -> Self:
        """Return pairs with a share eta of the captions replaced by random ones of all; see
        `noise`."""
        every = list(chain.from_iterable(self.captions))
        drawn = iter([every[row] for row in self.noise(len(every), eta, seed)])
        captions = tuple(tuple(islice(drawn, len(own))) for own in self.captions)
        changed = zip(captions, self.captions, strict=True)
        return replace(
            self,
            captions=captions,
            wrong=np.array([not set(new) <= set(own) for new, own in changed]),
        )

    @staticmethod
    def noise(n: int, eta: float, seed: int) -> NDArray[np.int64]:
        """Return the row (n,) that each row's caption is taken from: (1 - eta) P_XV + eta P_X P_V.

        Source: the mixture noise of Chuang's thesis, section 6.2.2. With probability eta a row's
        caption is that of a row chosen uniformly from all n, itself included, so both marginals
        stay what they were. With a larger eta and the same seed the rows that were replaced still
        are, by the same.
        """
        generator = numpy_generator("mixture noise", seed)
        replaced, others = generator.random(n) < eta, generator.integers(n, size=n)
        return np.where(replaced, others, np.arange(n))


def open_images(settings: TrainSettings, *, held_out: bool = False) -> ImageData | ImageStream:
    """Open the data to train on, or the held-out data."""
    from vldebias.data import open_data

    where, split = settings.data, settings.split
    if held_out:
        where = settings.val_data or settings.data
        split = settings.val_split or (
            "val" if where in WORLDS else "all" if Path(where).suffix in _TABLES else "train"
        )
    if where in WORLDS:
        from vldebias.miniature import open_world

        if split not in _WORLD_SPLITS:
            raise InvalidInputError(
                f"{where}: expected split {', '.join(_WORLD_SPLITS)}, got {split!r}"
            )
        return open_world(where, split=_WORLD_SPLITS[split], n=None if held_out else settings.items)
    is_table = Path(where).suffix in _TABLES
    columns = [
        settings.label,
        *([settings.group] if held_out else (settings.group_dro or "").split(",")),
    ]
    named = list(dict.fromkeys(column.strip() for column in columns if column and column.strip()))
    root = settings.image_root and Path(settings.image_root).expanduser()
    given = {"image": settings.image, "labels": named, "images": root}
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    captions = settings.views == "captions" and settings.caption_template is None
    if split == "train" and is_table:
        split = "train" if _SPLIT in read_table(Path(where).expanduser()).column_names else "all"
    if is_table:
        options |= {"split_column": _SPLIT} if split != "all" else {}
        options |= {"caption": (settings.caption or "caption") if captions else None}
        return open_data(
            "manifest", Path(where), split, allow_outside=settings.allow_outside, **options
        )
    options |= {"caption": settings.caption or "auto"} if captions else {}
    return open_data(
        "huggingface", where, split, streaming=settings.streaming and not held_out, **options
    )
