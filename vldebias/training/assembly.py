"""From settings to what the loop takes: the data opened, made noisy and batched, and the held-out data for scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.data.images import ImageData, ImageStream
from vldebias.errors import InvalidInputError
from vldebias.training.augmentation import Augment, Augmentation, Draws
from vldebias.training.batch import Batches
from vldebias.training.loader import MapBatches
from vldebias.training.monitor import Monitor
from vldebias.training.noise import CropNoise
from vldebias.training.pairs import Pairs, PairSource
from vldebias.training.settings import WORLDS, TrainSettings
from vldebias.training.stream import StreamBatches
from vldebias.training.tuning import tune

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["make_batches", "make_monitor", "make_pairs", "make_towers", "open_held_out", "open_training_data"]

_SPLIT = "split"  # the column of a table that names splits
_TABLES = (".csv", ".tsv", ".jsonl")
_WORLD_SEEDS = {"train": 501, "val": 502, "test": 503}


def make_towers(settings: TrainSettings) -> Towers:
    """The model as it was loaded, on the CPU, with what is to learn requiring gradients.

    Two views never reach the text tower, for whose gradients several processes would wait.

    Raises:
        InvalidInputError: the weights cannot be had, or two views and the text tower is all that should learn.
    """
    from vldebias.hosts.towers import checkpointing, towers
    from vldebias.loading import load_host

    if settings.views == "two" and settings.tune == "text":
        raise InvalidInputError("tune 'text': two views of an image are not read by the text tower; tune another part")
    loaded = load_host(settings.model, settings.pretrained)
    found = towers(loaded.host, loaded.tokenizer, loaded.preprocess)
    if settings.checkpointing:
        checkpointing(found)
    tune(found, settings.tune, lora_rank=settings.lora_rank, lora_alpha=settings.lora_alpha, seed=settings.seed)
    for part in found.text_parts if settings.views == "two" else ():
        part.requires_grad_(False)
    return found


def open_training_data(settings: TrainSettings) -> ImageData | ImageStream:
    """The data to learn from.

    Raises:
        InvalidInputError: nothing at that place that can be opened, no such column or split.
    """
    return _opened(settings.data, settings.split, settings, held_out=False)


def open_held_out(settings: TrainSettings) -> ImageData | ImageStream | None:
    """The data to score; None where the settings name none. Raises: see `open_training_data`."""
    if not settings.has_held_out:
        return None
    return _opened(settings.val_data or settings.data, settings.val_split, settings, held_out=True)


def _opened(where: str, split: str | None, settings: TrainSettings, *, held_out: bool) -> ImageData | ImageStream:
    if where in WORLDS:
        return _world(where, split or "val", settings.val_items if held_out else settings.items)
    if Path(where).suffix in _TABLES:
        return _table(Path(where), split or "all", settings)
    return _hugging_face(where, split or "train", settings, streaming=settings.streaming and not held_out)


def _world(name: str, split: str, n: int) -> ImageData:
    from vldebias.miniature.data import open_world

    if split not in _WORLD_SEEDS:
        raise InvalidInputError(f"{name}: expected split {', '.join(_WORLD_SEEDS)}, got {split!r}")
    return open_world(name, n=n, seed=_WORLD_SEEDS[split], split=split)


def _table(path: Path, split: str, settings: TrainSettings) -> ImageData | ImageStream:
    from vldebias.data import open_data

    options: dict[str, Any] = {"labels": [settings.label]} if settings.label else {}
    if split == "train" and not _has_splits(path):
        split = "all"
    if split != "all":
        options["split_column"] = _SPLIT
    if settings.image_root is not None:
        options["images"] = Path(settings.image_root).expanduser()
    caption = (settings.caption or "caption") if settings.reads_captions else None
    options |= {"image": settings.image or "image", "caption": caption, "allow_outside": settings.allow_outside}
    return open_data("manifest", path, split, **options)


def _has_splits(path: Path) -> bool:
    """A table without a column that names splits is one split, as a parquet file is."""
    from vldebias.data.tables import read_table

    return _SPLIT in read_table(path.expanduser()).column_names


def _hugging_face(where: str, split: str, settings: TrainSettings, *, streaming: bool) -> ImageData | ImageStream:
    from vldebias.data import open_data

    options: dict[str, Any] = {"labels": [settings.label]} if settings.label else {}
    if settings.image is not None:
        options["image"] = settings.image
    if settings.image_root is not None:
        options["images"] = settings.image_root
    if split == "train" and _is_one_saved(where):
        split = "all"
    if settings.reads_captions:
        options["caption"] = settings.caption or "auto"
    return open_data("huggingface", where, split, streaming=streaming, **options)


def _is_one_saved(where: str) -> bool:
    """Whether `save_to_disk` wrote a single data set there, which does not say what split it is."""
    state = Path(where) / "state.json"
    return state.is_file() and json.loads(state.read_text(encoding="utf-8")).get("_split") is None


def make_pairs(data: ImageData, settings: TrainSettings) -> Pairs:
    """The pairs of the data, with the noise that the settings ask for."""
    captions = settings.views == "captions"
    source = PairSource.of(
        data, label=settings.label, caption_template=settings.caption_template, with_captions=captions
    )
    pairs = Pairs.clean(source)
    if settings.class_noise:
        pairs = Pairs.with_class_noise(pairs, settings.class_noise, settings.seed)
    if settings.caption_noise:
        pairs = Pairs.with_mixture_noise(pairs, settings.caption_noise, settings.seed)
    return pairs


def make_batches(data: Pairs | ImageStream, settings: TrainSettings, towers: Towers) -> Batches:
    """Micro-batches of pairs, or of a stream of them.

    Raises:
        InvalidInputError: noise that a stream cannot have, and what the batches refuse.
    """
    options: dict[str, Any] = {
        "augment": _augment(settings, towers),
        "batch_size": settings.batch_size,
        "tokenize": towers.tokenize,
        "two_views": settings.views == "two",
        "on_error": settings.on_error,
        "seed": settings.seed,
        "workers": settings.workers,
    }
    if isinstance(data, Pairs):
        return MapBatches(data, **options)
    if settings.class_noise:
        raise InvalidInputError("class_noise: a stream cannot have it; read the data without streaming")
    return StreamBatches(
        data,
        label=settings.label,
        caption_template=settings.caption_template,
        noise=settings.caption_noise,
        buffer=settings.shuffle_buffer,
        **options,
    )


def _augment(settings: TrainSettings, towers: Towers) -> Augment:
    draws = Draws((settings.crop_scale, 1.0), settings.flip_share, settings.jitter, settings.grayscale)
    noise = CropNoise(settings.crop_noise) if settings.crop_noise else None
    return Augmentation(towers.size, towers.mean, towers.std, draws, noise)


def make_monitor(settings: TrainSettings) -> Monitor | None:
    """Scores of the held-out data; None where there are none, or where nothing can be asked of them."""
    data = open_held_out(settings)
    if data is None:
        return None
    if not isinstance(data, ImageData):
        raise InvalidInputError(f"val_data: {data.name}: expected data that can be read in any order, got a stream")
    if settings.label is None and not data.captions:
        return None
    templates = (settings.caption_template or "a photo of a {}.",)
    return Monitor(
        data, settings.label, templates=templates, workers=settings.workers, limit=settings.val_items, seed=0
    )
