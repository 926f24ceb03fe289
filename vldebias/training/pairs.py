"""Pairs of an image and a caption: opened as the settings say, and for experiments made wrong at a known rate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.captions import check_captions, says_something
from vldebias.data.dataset import ImageData, ImageStream
from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, warn
from vldebias.training.sampling import folds_of, numpy_generator
from vldebias.training.settings import WORLDS, TrainSettings

if TYPE_CHECKING:
    from PIL import Image

CAPTIONS_WANTED = (
    "Name their column when the data is opened (caption=...), or make them from a label with label=... and "
    "caption_template='a photo of a {}'"
)
_SPLIT = "split"  # the column of a table that names splits
_WORLD_SEEDS = {"train": 501, "val": 502, "test": 503}


@dataclass(frozen=True, eq=False)
class PairSource:
    """n pairs of an image and a caption and, where asked for, a class. An image with several captions is in several.

    Attributes:
        ids: names of the images, different ones where each has one caption.
        captions: n texts; none where only images are learned from.
        read: index -> RGB image; OSError where it cannot be read.
        labels: classes of the rows. groups: of the images, for balance and group DRO.
        template: what captions were made of, see `of`.
        path: index -> where the image lies, "" where it is no file of its own; or None.
        several: the data have lists of captions; pairs of one name have one image.
    """

    name: str
    ids: tuple[str, ...]
    captions: tuple[str, ...]
    read: Callable[[int], Image.Image]
    labels: Labels | None = None
    template: str | None = None
    path: Callable[[int], str] | None = None
    several: bool = False
    groups: Labels | None = None

    @classmethod
    def of(
        cls,
        data: ImageData,
        *,
        label: str | None = None,
        caption_template: str | None = None,
        with_captions: bool = True,
        groups: Labels | None = None,
    ) -> PairSource:
        """The pairs of a data set, one for each caption. Rows that have none are left out, with a warning.

        label: column of classes, for losses that read them, class noise or `caption_template`.
        caption_template: make the captions from the label instead, such as "a photo of a {}".
        with_captions: False where only images are learned from, as two views of each.
        groups: (n,) the group of each row of the data.
        """
        labels = None if label is None else data.column(label)
        if not with_captions:
            return cls(data.name, data.ids, (), data.read, labels, path=data.path, groups=groups)
        if caption_template is None:
            captions = data.captions
        elif labels is None:
            raise InvalidInputError(f"{data.name}: caption_template needs label, the column of classes to name")
        else:
            captions = _from_labels(labels, caption_template)
        if not captions:
            raise InvalidInputError(f"{data.name}: has no captions. {CAPTIONS_WANTED}")
        has = np.array([says_something(caption) for caption in captions])
        if not has.any():
            raise InvalidInputError(f"{data.name}: not one of {len(data)} rows has a caption")
        if not has.all():
            warn(
                f"{data.name}: {(~has).sum()} of {len(data)} rows ({(~has).mean():.0%}) have no caption and are left "
                f"out, such as {', '.join(np.array(data.ids)[~has][:3])}"
            )
            data, labels = data[has], None if labels is None else labels[has]
            groups = None if groups is None else groups[has]
            captions = tuple(caption for caption, there in zip(captions, has, strict=True) if there)
        if caption_template is None:
            check_captions(data.name, captions, "Name the column of the captions (--caption)")
        elif labels is not None:
            names = [labels.names[code] for code in labels.codes]
            remedy = f"Name the classes of {label!r} in words, for captions such as {captions[0]!r} say nothing"
            check_captions(f"{data.name}: captions of {caption_template!r}", names, remedy)
        source = cls(data.name, data.ids, captions, data.read, labels, caption_template, data.path, groups=groups)
        if caption_template is not None or not data.more_captions:
            return source
        each = [(first, *more) for first, more in zip(captions, data.more_captions, strict=True)]
        every = source.taken(np.repeat(np.arange(len(each)), [len(texts) for texts in each]))
        return replace(every, captions=tuple(text for texts in each for text in texts), several=True)

    @property
    def items(self) -> int:
        """Number of pairs."""
        return len(self.ids)

    @cached_property
    def images(self) -> NDArray[np.int64]:
        """(n,) the image of each pair, numbered as they come."""
        if not self.several:
            return np.arange(self.items)
        number: dict[str, int] = {}
        return np.array([number.setdefault(name, len(number)) for name in self.ids], dtype=np.int64)

    @property
    def image_count(self) -> int:
        """Number of images."""
        return int(self.images.max(initial=-1)) + 1

    def in_folds(self, folds: int, seed: int) -> NDArray[np.int64]:
        """(n,) the fold of each pair, that of its image; see `vldebias.training.sampling.folds_of`."""
        return folds_of(self.image_count, folds, seed)[self.images]

    def taken(self, rows: NDArray[np.int64]) -> Self:
        """Some of the pairs, by their numbers (m,)."""
        read, path, each = self.read, self.path, rows.tolist()
        return replace(
            self,
            ids=tuple(self.ids[row] for row in each),
            captions=tuple(self.captions[row] for row in each) if self.captions else (),
            read=lambda index: read(each[index]),
            labels=None if self.labels is None else self.labels[rows],
            groups=None if self.groups is None else self.groups[rows],
            path=None if path is None else lambda index: path(each[index]),
        )


@dataclass(frozen=True, eq=False)
class Pairs(PairSource):
    """Pairs after noise, with the truth about them.

    wrong: (n,) bool, pairs whose caption (without captions: label) is not what the source says of the image.
    own: the source before any noise.
    """

    wrong: NDArray[np.bool_] = field(kw_only=True)
    own: PairSource = field(kw_only=True)

    def taken(self, rows: NDArray[np.int64]) -> Self:
        """Some of the pairs, by their numbers (m,), with what is known of them."""
        return replace(super().taken(rows), wrong=self.wrong[rows], own=self.own.taken(rows))

    @classmethod
    def clean(cls, source: PairSource) -> Pairs:
        """Pairs as the source has them; none is wrong as far as is known."""
        return cls._changed(source)

    @classmethod
    def with_mixture_noise(cls, source: PairSource, eta: float, seed: int) -> Pairs:
        """A share eta of the captions is drawn from all captions; see `mixture_noise`."""
        if not source.captions:
            raise InvalidInputError(f"{source.name}: mixture noise needs captions; crop or class noise do without")
        noise = mixture_noise(source.items, eta, seed, source.captions)
        return cls._changed(source, captions=noise.applied(source.captions))

    @classmethod
    def with_class_noise(cls, source: PairSource, eta: float, seed: int) -> Pairs:
        """Labels flip to the next class with probability eta / 2, and captions made from them with them."""
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
        labels = Labels(class_noise(source.labels.codes, eta, len(names), seed), names)
        captions = source.captions if source.template is None else _from_labels(labels, source.template)
        return cls._changed(source, labels=labels, captions=captions)

    @classmethod
    def _changed(cls, source: PairSource, **changed: Any) -> Pairs:
        """The source with changed attributes, compared with what it was before any noise."""
        own = source.own if isinstance(source, Pairs) else source
        values = {part.name: getattr(source, part.name) for part in fields(PairSource)} | changed
        captions, labels = values["captions"], values["labels"]
        wrong = np.zeros(own.items, dtype=bool)
        if captions:
            right = set(zip(own.images.tolist(), own.captions, strict=True))
            wrong = np.array([pair not in right for pair in zip(own.images.tolist(), captions, strict=True)])
        elif labels is not None and own.labels is not None:
            wrong = labels.codes != own.labels.codes
        return cls(**values, wrong=wrong, own=own)


def caption_of(template: str, name: str) -> str:
    """A caption made from the name of a class; refuses a template without {}."""
    if "{}" not in template:
        raise InvalidInputError(f"caption_template: expected {{}} where the class goes, got {template!r}")
    return template.replace("{}", name)


def _from_labels(labels: Labels, template: str) -> tuple[str, ...]:
    """One caption per row, "" where the label is unknown."""
    texts = [*(caption_of(template, name) for name in labels.names), ""]
    return tuple(texts[code] for code in labels.codes)


@dataclass(frozen=True, eq=False)
class Noise:
    """What was done to the captions of n rows.

    source: (n,) int64, the row that each row's caption is taken from.
    wrong: (n,) bool, rows whose caption is not their own; where the texts are known, only if the text changed.
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

    With probability eta a row's caption is that of a row drawn uniformly from all n, itself included, so both marginals
    stay what they were. The expected share of wrong rows is eta (1 - sum of squared shares of the texts).

    Args:
        n: rows.
        eta: noise rate in [0, 1].
        seed: the same seed gives the same noise; with a larger eta the rows that were replaced still are, by the same.
        captions: n texts, to say which rows are wrong; without them a row is wrong where it drew another row.

    Raises:
        InvalidInputError: eta outside [0, 1], captions of another number.
    """
    check_rate(eta)
    if captions is not None and len(captions) != n:
        raise InvalidInputError(f"expected {n} captions, got {len(captions)}")
    generator = numpy_generator("mixture noise", seed)
    text = np.arange(n)
    replaced, drawn = generator.random(n) < eta, generator.integers(max(n, 1), size=n)
    source = np.where(replaced, drawn, text)
    if captions is not None:
        code = {caption: number for number, caption in enumerate(dict.fromkeys(captions))}
        text = np.fromiter((code[caption] for caption in captions), np.int64, n)
    return Noise(source, text[source] != text)


def class_noise(labels: ArrayLike, eta: float, classes: int, seed: int) -> NDArray[np.int64]:
    """Labels (n,) flipped to a related class with probability eta / 2: class-dependent noise, thesis section 5.3.1.

    Each class is taken for the next one, and the last for the first; of two classes for each other.

    labels: (n,) codes; -1, unknown, stays. eta: noise rate in [0, 1]; at 1 a class and the next cannot be told apart by
    their labels. classes: how many there are.
    """
    check_rate(eta)
    codes = np.asarray(labels, dtype=np.int64)
    flipped = (numpy_generator("class noise", seed).random(len(codes)) < eta / 2) & (codes >= 0)
    return np.where(flipped, (codes + 1) % classes, codes)


def check_rate(eta: float) -> None:
    """Raises InvalidInputError: a noise rate outside [0, 1]."""
    if not 0 <= eta <= 1:
        raise InvalidInputError(f"eta: expected a noise rate in [0, 1], got {eta}")


_WRONG, _RIGHT = ("1", "true", "yes", "wrong"), ("0", "false", "no", "right")


def said_wrong(data: ImageData, pairs: PairSource, column: str) -> NDArray[np.bool_]:
    """(n,) which pairs a column of their data calls wrong: yes, true or 1 against no, false or 0; nothing else."""
    labels = data.column(column)
    strange = sorted({name for name in labels.names if name.lower() not in (*_WRONG, *_RIGHT)})
    if strange or not labels.known.all():
        raise InvalidInputError(
            f"{data.name}: column {column!r}: expected yes or no (true, 1; false, 0) in every row, got "
            f"{', '.join(strange[:3]) or 'rows without a value'}"
        )
    marked = np.array([name.lower() in _WRONG for name in labels.names])[labels.codes]
    of = dict(zip(data.ids, marked.tolist(), strict=True))
    return np.array([of[name] for name in pairs.ids])


def make_pairs(data: ImageData, settings: TrainSettings, groups: Labels | None = None) -> Pairs:
    """The pairs of the data, with the noise that the settings ask for, and perhaps the group of each row."""
    pairs = Pairs.clean(
        PairSource.of(
            data,
            label=settings.label,
            caption_template=settings.caption_template,
            with_captions=settings.views == "captions",
            groups=groups,
        )
    )
    if settings.class_noise:
        pairs = Pairs.with_class_noise(pairs, settings.class_noise, settings.seed)
    if settings.caption_noise:
        pairs = Pairs.with_mixture_noise(pairs, settings.caption_noise, settings.seed)
    return pairs


def open_images(
    settings: TrainSettings, *, held_out: bool = False, also: Sequence[str] = ()
) -> ImageData | ImageStream:
    """The data to learn from, or those to score; with the columns `also` beside the label."""
    from vldebias.data import open_data

    where, split = settings.data, settings.split
    if held_out:
        where = settings.val_data or settings.data
        split = settings.val_split or ("val" if where in WORLDS else "all" if _is_table(where) else "train")
    if where in WORLDS:
        from vldebias.miniature.data import open_world

        if split not in _WORLD_SEEDS:
            raise InvalidInputError(f"{where}: expected split {', '.join(_WORLD_SEEDS)}, got {split!r}")
        n = settings.val_items if held_out else settings.items
        return open_world(where, n=n, seed=_WORLD_SEEDS[split], split=split)
    if split == "train" and _is_one_split(where):
        split = "all"
    columns = [settings.label, settings.group if held_out else None, *also]
    named = list(dict.fromkeys(column for column in columns if column is not None))
    options: dict[str, Any] = {"labels": named} if named else {}
    if _is_table(where):
        if settings.image_root is not None:
            options["images"] = Path(settings.image_root).expanduser()
        if split != "all":
            options["split_column"] = _SPLIT
        caption = (settings.caption or "caption") if settings.reads_captions else None
        options |= {"image": settings.image or "image", "caption": caption, "allow_outside": settings.allow_outside}
        return open_data("manifest", Path(where), split, **options)
    reader = {"image": settings.image, "images": settings.image_root}
    options |= {name: value for name, value in reader.items() if value is not None}
    if settings.reads_captions:
        options["caption"] = settings.caption or "auto"
    return open_data("huggingface", where, split, streaming=settings.streaming and not held_out, **options)


def _is_table(where: str) -> bool:
    return Path(where).suffix in (".csv", ".tsv", ".jsonl")


def _is_one_split(where: str) -> bool:
    """A table without a column that names splits; what `save_to_disk` wrote of a single data set."""
    if _is_table(where):
        from vldebias.data.tables import read_table

        return _SPLIT not in read_table(Path(where).expanduser()).column_names
    state = Path(where) / "state.json"
    return state.is_file() and json.loads(state.read_text(encoding="utf-8")).get("_split") is None
