"""Cache image features on disk, with one folder per model, preprocessing and data set."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vldebias.data.dataset import ImageData
from vldebias.data.embeddings import Embeddings
from vldebias.data.parallel import LostPartError, OnRay, prefetch, processes
from vldebias.errors import InvalidInputError, VldebiasError, check_kind, warn
from vldebias.utils.files import add_tensors, write_atomically
from vldebias.utils.pictures import decode, why_unreadable
from vldebias.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    from vldebias.hosts.clip.images import ImageEncoder, Pixels

# Increment this when the shard format changes, so that shards from older versions are not read.
FORMAT = 2
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# If a shard contains at least this many images and none can be read, the drive is probably not
# mounted.
_MANY = 16
_ENTRY = "vldebias"  # the only metadata key, because safetensors does not preserve key order


def embed_images(
    data: ImageData,
    encoder: ImageEncoder,
    cache_dir: str | Path | None = None,
    *,
    dtype: str = "float16",
    shard_size: int = 1024,
    batch_size: int = 64,
    workers: int = 4,
    fast: bool = False,
    progress: Progress | None = None,
    runner: OnRay | None = None,
) -> Embeddings:
    """Return the features of all images, computing and caching those that are missing.

    An interrupted run keeps its complete shards and resumes from them. Several processes
    (`accelerate launch`, torchrun) or Ray workers split the missing shards among themselves, and
    each process returns all features.

    Args:
        data: the data set whose images are embedded.
        encoder: encoder from `vldebias.hosts.clip.images.image_encoder`.
        cache_dir: cache folder. Default: $VLDEBIAS_CACHE, or ~/.cache/vldebias.
        dtype: dtype of the cached features: "float16", "bfloat16" (returned as float32) or
            "float32".
        shard_size: images per shard. A run that is killed loses at most one shard.
        batch_size: number of images encoded at once.
        workers: number of threads that load and preprocess images in advance. If 0, images are
            loaded between batches.
        fast: whether to decode large JPEG files at 1/2, 1/4 or 1/8 of their size, but no smaller
            than twice the model's input size. Features differ slightly (see the "Data" page) and
            are cached in a separate folder.
        progress: where to report progress. Default: stderr.
        runner: runner that computes missing shards, such as `vldebias.data.OnRay()`. Default: this
            process.

    Returns:
        The stored features. `about["skipped"]` lists unreadable images as [{"id", "reason"}].

    Raises:
        InvalidInputError: If the data are a stream, the dtype is unknown, a size is below 1, no
            image can be read, or features are not finite.

    >>> from vldebias.hosts.clip.images import image_encoder
    >>> from vldebias.miniature import load_clip, open_world
    >>> model, preprocess, tokenizer = load_clip()
    >>> encoder = image_encoder(model, preprocess)
    >>> embed_images(open_world("portraits", n=60), encoder)  # doctest: +SKIP
    Embeddings(60 images of width 256, columns ['gender'])
    """
    check_kind("data", data, ImageData, "images with random access; open them without streaming")
    if dtype not in DTYPES:
        raise InvalidInputError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if shard_size < 1 or batch_size < 1 or workers < 0:
        raise InvalidInputError(
            f"shard_size, batch_size, workers: got {shard_size}, {batch_size}, {workers}; expected"
            " at least 1, 1 and 0"
        )
    if not hasattr(encoder, "preprocessing"):
        raise InvalidInputError(
            f"encoder: got {type(encoder).__name__}; expected"
            " vldebias.hosts.clip.images.image_encoder(model, preprocess)"
        )
    origin: dict[str, object] = {
        "data": data.name,
        "split": data.split,
        "data_fingerprint": data.fingerprint,
        "model": encoder.name,
        "fingerprint": encoder.fingerprint,
        "preprocessing": encoder.preprocessing,
        "dtype": dtype,
    }
    if fast:
        origin["fast"] = True
    folder = _folder(data, encoder, cache_dir, dtype, shard_size, fast)
    # Ray workers have a different working directory, so relative paths would break.
    place = folder if runner is None else folder.absolute()
    card = {**origin, "shard_size": shard_size}
    with progress or Progress() as display:
        run = _Run(place, shard_size, card, encoder, dtype, batch_size, workers, runner, fast)
        try:
            embeddings = run.embeddings(data, display)
        except KeyboardInterrupt:
            display.print_line(
                f"Interrupted. Complete shards are kept in {folder}; run the same command to"
                " resume."
            )
            raise
    skipped = embeddings.about["skipped"]
    if not len(embeddings):
        raise InvalidInputError(
            f"{data.name}: none of the {len(skipped)} images can be read, such as {skipped[:1]}"
        )
    # A data set's `about` may contain paths, which JSON cannot represent.
    source = json.loads(json.dumps(dict(data.about), default=str))
    facts = {**origin, **embeddings.about, "cache": str(folder), "source": source}
    return replace(embeddings, about=facts)


def _folder(
    data: ImageData,
    encoder: ImageEncoder,
    cache_dir: str | Path | None,
    dtype: str,
    shard_size: int,
    fast: bool,
) -> Path:
    """Return the shard folder, whose name depends on everything that affects the features."""
    key = [
        FORMAT,
        encoder.digest,
        encoder.preprocessing,
        data.fingerprint,
        len(data),
        dtype,
        shard_size,
    ]
    if fast:
        key.append("fast")
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
    # The name is for human readers; the digest identifies the data set.
    readable = re.sub(r"[^\w.-]+", "-", f"{data.name}-{data.split}").strip("-.")
    root = cache_dir or os.environ.get("VLDEBIAS_CACHE") or Path.home() / ".cache" / "vldebias"
    return Path(root) / f"{readable}-{digest}"


@dataclass(eq=False)
class Shard:
    """Store the features of `count` data set rows, starting at row `start`.

    Attributes:
        features: (r, d), features of rows that could be read.
        rows: (r,), indices of rows that could be read.
        start: index of the first row.
        count: number of rows, including unreadable ones.
        skipped: [id, reason] for each unreadable row.
    """

    features: Tensor
    rows: Tensor
    start: int
    count: int
    skipped: list[list[str]] = field(default_factory=list)

    def notes(self) -> dict[str, object]:
        """Return the fields other than the tensors, together with a digest of the entire shard."""
        notes = {"start": self.start, "count": self.count, "skipped": self.skipped}
        state = hashlib.sha256(json.dumps(notes, sort_keys=True).encode())
        add_tensors(state, [("features", self.features), ("rows", self.rows)])
        return notes | {"digest": state.hexdigest()}


@dataclass(frozen=True)
class _Run:
    """Embed a data set into shards in a folder, next to a readable record of their origin.

    Files are written atomically, so several runs may use the same folder.
    """

    folder: Path
    shard_size: int
    origin: Mapping[str, object]
    encoder: ImageEncoder
    dtype: str
    batch_size: int
    workers: int
    runner: OnRay | None
    fast: bool

    def path(self, index: int) -> Path:
        """Return a shard's path, whether or not it exists."""
        return self.folder / f"shard-{index:05d}.safetensors"

    def read(self, index: int) -> Shard | None:
        """Load a shard with memory-mapped features, or None if it is missing or damaged.

        A damaged shard is renamed, so that it is computed again.
        """
        path = self.path(index)
        damage = ""
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_ENTRY])
                digest = header.pop("digest")
                shard = Shard(file.get_tensor("features"), file.get_tensor("rows"), **header)
            if shard.notes()["digest"] != digest:
                damage = "wrong checksum"
            # A renamed or copied file may be intact but contain a different shard's rows.
            elif shard.start != index * self.shard_size or shard.count > self.shard_size:
                damage = f"starts at row {shard.start}, not {index * self.shard_size}"
        except FileNotFoundError:
            return None
        # The file is not a safetensors file, or its header is invalid or has an unknown field.
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            damage = f"{type(error).__name__}: {error}"
        if not damage:
            return shard
        aside = path.with_name(f"{path.name}.corrupt")
        with suppress(FileNotFoundError):  # already renamed by a concurrent run
            os.replace(path, aside)
            warn(
                f"{path}: this shard is damaged ({damage}); it was renamed to {aside.name} and"
                " will be computed again"
            )
        return None

    def write(self, index: int, shard: Shard) -> None:
        """Write a shard atomically."""
        card = self.folder / "cache.json"
        if not card.exists():
            write_atomically(card, json.dumps(self.origin, indent=1, sort_keys=True) + "\n")
        tensors = {"features": shard.features.contiguous(), "rows": shard.rows.contiguous()}
        write_atomically(
            self.path(index), save(tensors, {_ENTRY: json.dumps(shard.notes(), sort_keys=True)})
        )

    def embeddings(self, data: ImageData, progress: Progress) -> Embeddings:
        """Compute missing shards across all processes, and return all features in each process."""
        group = processes()
        if group.rank:
            progress = SILENT
        shards = range(-(-len(data) // self.shard_size))
        # Only process 0 looks for missing shards. A slower process could find some of them already
        # written, and would then divide the work differently.
        missing = group.share([i for i in shards if group.rank == 0 and self.read(i) is None])
        if 0 < len(missing) < len(shards):
            progress.print_line(f"{data.name} {data.split}: resuming from an earlier run")
        # Assign shards round-robin, so that all processes finish at about the same time.
        indices = missing[group.rank :: group.world]
        size = self.shard_size
        total = sum(min(size, len(data) - index * size) for index in indices)
        if not indices:
            progress = SILENT
        with progress.bar(f"{data.name} {data.split}", total) as advance:
            if self.runner is not None and indices:
                # Workers compute their shards directly, without a nested runner.
                in_worker = replace(self, runner=None)
                try:
                    for images in self.runner.map(partial(in_worker._shard, data), indices):
                        advance(images)
                except LostPartError as error:
                    self._raise_lost_shard(data, indices[error.part], self.runner, error)
            else:
                for index in indices:
                    self._shard(data, index, advance)
        # Other processes may still be writing shards, which are read below.
        group.wait()
        return _joined(data, self._complete(shards))

    def _raise_lost_shard(
        self, data: ImageData, index: int, runner: OnRay, error: LostPartError
    ) -> NoReturn:
        """Raise an error that names the row whose image kills the workers.

        To find this row, each image in the shard is read separately.
        """
        start = index * self.shard_size
        stop = min(start + self.shard_size, len(data))
        kept = "Complete shards are kept; run the same command to resume"
        fixes = (
            "Give each worker more memory, or repair the image (all images are then embedded again)"
        )
        read = partial(replace(self, runner=None)._read_row, data)
        try:
            for _ in runner.map(read, range(start, stop)):
                pass
        except LostPartError as lost:
            row = start + lost.part
            raise VldebiasError(
                f"{data.name} {data.split}: row {row} ({data.ids[row]!r}): every worker that reads"
                f" this image dies. {fixes}. {kept}"
            ) from None
        raise VldebiasError(
            f"{data.name} {data.split}: rows {start} to {stop - 1} ({data.ids[start]!r} to"
            f" {data.ids[stop - 1]!r}) cannot be embedded, although each image can be read"
            f" separately: {error}. {kept}"
        ) from None

    def _read_row(self, data: ImageData, row: int) -> None:
        """Load and preprocess an image, discarding the result."""
        self._load(data, row)

    def _complete(self, indices: range) -> list[Shard]:
        """Return all shards in order.

        Raises:
            InvalidInputError: If a shard is missing even though all processes have finished.
        """
        shards = []
        for index in indices:
            shard = self.read(index)
            if shard is None:
                raise InvalidInputError(
                    f"{self.path(index)}: this shard is missing, although all processes have"
                    " finished. Check that all processes use the same cache folder and that nothing"
                    " deletes files in it, then run again"
                )
            shards.append(shard)
        return shards

    def _load(self, data: ImageData, row: int) -> tuple[int, Pixels | str]:
        """Return a row number and the image's pixels, or the reason why it cannot be read."""
        try:
            # Decoding at a reduced size requires a known input size.
            path = data.path(row) if self.fast and self.encoder.side else ""
            image = decode(Path(path), draft=2 * self.encoder.side) if path else data.read(row)
        except OSError as error:
            return row, why_unreadable(error)
        return row, self.encoder.prepare(image)

    def _shard(
        self, data: ImageData, index: int, advance: Callable[[], None] = lambda: None
    ) -> int:
        """Embed and write a shard, unless another run already has, and return its number of rows.

        Batches do not span shards, so that each shard can be computed independently.
        """
        size = self.shard_size
        places = range(index * size, min((index + 1) * size, len(data)))
        if self.read(index) is not None:
            return len(places)

        rows = list[int]()
        skipped = list[list[str]]()
        batches = _Batches(self.encoder, DTYPES[self.dtype])
        batch: list[Pixels] = []
        load = partial(self._load, data)
        # Load two batches ahead, so that one is ready while the model processes the other.
        for row, pixels in prefetch(places, load, self.workers, 2 * self.batch_size):
            if isinstance(pixels, str):
                skipped.append([data.ids[row], pixels])
            else:
                rows.append(row)
                batch.append(pixels)
            is_full = len(batch) == self.batch_size
            # Embed the remaining images even if the last image cannot be read.
            is_last = row == places[-1]
            if batch and (is_full or is_last):
                batches.add(batch, first_id=data.ids[rows[-len(batch)]])
                batch = []
            advance()
        if len(skipped) >= _MANY and not rows:
            raise InvalidInputError(
                f"none of the {len(skipped)} images from {skipped[0][0]!r} to {skipped[-1][0]!r}"
                f" can be read ({skipped[0][1]}); check that the drive is connected, and that the"
                " data folder is correct"
            )
        features = batches.features()
        readable = torch.tensor(rows, dtype=torch.int64)
        # Record unreadable images too, so that the shard counts as complete.
        self.write(index, Shard(features, readable, places.start, len(places), skipped))
        return len(places)


def _joined(data: ImageData, shards: list[Shard]) -> Embeddings:
    """Combine the features of all shards with the ids, labels and captions of their rows."""
    rows = torch.cat([shard.rows for shard in shards]).numpy()
    pairs = [pair for shard in shards for pair in shard.skipped]
    skipped = [{"id": name, "reason": reason} for name, reason in pairs]
    captions = tuple(data.captions[row] for row in rows) if data.captions else ()
    # A shard without readable images has no known dimension.
    parts = [shard.features for shard in shards if len(shard.features)]
    features = torch.empty(0, 0)
    if len(parts) == 1:
        features = parts[0]  # stays memory-mapped
    elif parts:
        features = torch.cat(parts)
    if features.dtype == torch.bfloat16:  # not supported by numpy
        features = features.float()
    return Embeddings(
        features.numpy(),
        tuple(data.ids[row] for row in rows),
        {column: labels[rows] for column, labels in data.labels.items()},
        captions,
        {"images": len(data), "skipped": skipped},
    )


class _Batches:
    """Run batches and collect their features.

    Each batch is awaited only after the next one has started, which keeps a GPU busy.
    """

    def __init__(self, encoder: ImageEncoder, dtype: torch.dtype) -> None:
        self._encoder = encoder
        self._dtype = dtype
        self._started: tuple[Tensor, str] | None = None
        self._parts = list[Tensor]()

    def add(self, batch: list[Pixels], first_id: str) -> None:
        """Start a batch. Error messages name it by `first_id`, the id of its first image."""
        # Start the next batch before waiting for the features of the previous one.
        features = self._encoder.start(batch)
        self._collect()
        self._started = features, first_id

    def features(self) -> Tensor:
        """Return the features (n, d) from all batches, on the CPU."""
        self._collect()
        if not self._parts:
            return torch.empty(0, 0, dtype=self._dtype)
        return torch.cat(self._parts)

    def _collect(self) -> None:
        """Wait for the features of the batch in progress."""
        if self._started is None:
            return
        features, first_id = self._started
        self._started = None
        part = features.float().cpu().to(self._dtype)
        # Check after conversion to the stored dtype: values above 65,504 overflow in float16.
        if not torch.isfinite(part).all():
            name = str(self._dtype).removeprefix("torch.")
            raise InvalidInputError(
                f"{self._encoder.name}: features are not finite in {name} in the batch that starts"
                f" with image {first_id!r}; use dtype 'bfloat16' or 'float32', or run the model in"
                " float32"
            )
        self._parts.append(part)
