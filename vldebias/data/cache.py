"""Cache image features on disk in shards, computed once per model, preprocessing and data set."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vldebias.data.dataset import ImageData
from vldebias.data.embeddings import Embeddings
from vldebias.data.parallel import LostPartError, OnRay, prefetch, processes
from vldebias.errors import InvalidInputError, VldebiasError, warn
from vldebias.utils.files import add_tensors, write_atomically
from vldebias.utils.pictures import decode, why_unreadable
from vldebias.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    from vldebias.hosts.clip.images import ImageEncoder, Pixels

# Raised when the content of shards changes, so that those of an older release are not read.
FORMAT = 2
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# If none of at least so many images can be read, the drive is probably not mounted.
_MANY = 16
_ENTRY = "vldebias"  # one entry, because safetensors writes several in any order


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
    """Return features of all images of `data`, read from the cache or computed and stored there.

    A run that is stopped, killed or interrupted leaves complete shards and goes on from them.
    Several processes (`accelerate launch`, torchrun) share the missing shards, and each returns
    everything; so do workers of Ray.

    Args:
        data: the images.
        encoder: of `vldebias.hosts.clip.images.image_encoder`.
        cache_dir: default: $VLDEBIAS_CACHE, or ~/.cache/vldebias.
        dtype: type of the stored features: "float16", "bfloat16" (comes back as float32) or
            "float32".
        shard_size: images in a shard; at most one shard is lost by a kill.
        batch_size: images that go through the model at once.
        workers: threads that read and prepare images ahead of the model; 0 reads between the
            batches.
        fast: decode large JPEG files at a half, a quarter or an eighth of their size, with at least
            twice the side that the model reads. Pixels and so features are close to those without,
            not equal, and are kept in a folder of their own; what it changes is on the page "Data".
        progress: where to show progress; default: on stderr.
        runner: who computes the missing shards: `vldebias.data.OnRay()`; default: this process.

    Returns:
        Features as stored; `about` lists the images that could not be read: "skipped" ([{"id",
            "reason"}]).

    Raises:
        InvalidInputError: a stream, an unknown dtype, sizes below 1, no readable image, features
            that are not finite.
    """
    _check_arguments(data, dtype, shard_size, batch_size, workers)
    origin = _origin(data, encoder, dtype, fast)
    folder = _folder(data, encoder, cache_dir, dtype, shard_size, fast)
    place = folder
    if runner is not None:
        # A worker of Ray has a working directory of its own.
        place = folder.absolute()
    card = {**origin, "shard_size": shard_size}
    with progress or Progress() as display:
        run = _Run(place, shard_size, card, encoder, dtype, batch_size, workers, runner, fast)
        try:
            embeddings = run.embeddings(data, display)
        except KeyboardInterrupt:
            display.say(
                f"Interrupted. Complete shards are kept in {folder}: the same command goes on from"
                " them."
            )
            raise
    skipped = embeddings.about["skipped"]
    if not len(embeddings):
        raise InvalidInputError(
            f"{data.name}: expected images, but none of {len(skipped)} can be read {skipped[:1]}"
        )
    # `about` of a data set may hold paths, which JSON cannot.
    source = json.loads(json.dumps(dict(data.about), default=str))
    facts = {**origin, **embeddings.about, "cache": str(folder), "source": source}
    return replace(embeddings, about=facts)


def _origin(data: ImageData, encoder: ImageEncoder, dtype: str, fast: bool) -> dict[str, Any]:
    """Return which images were embedded by which model, and how."""
    origin: dict[str, Any] = {
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
    return origin


def _folder(
    data: ImageData,
    encoder: ImageEncoder,
    cache_dir: str | Path | None,
    dtype: str,
    shard_size: int,
    fast: bool,
) -> Path:
    """Return the folder of the shards: a different one for anything that could change a feature."""
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
    # For people who look into the folder; the digest tells data sets apart.
    readable = re.sub(r"[^\w.-]+", "-", f"{data.name}-{data.split}").strip("-.")
    root = cache_dir or os.environ.get("VLDEBIAS_CACHE")
    if not root:
        root = Path.home() / ".cache" / "vldebias"
    return Path(root) / f"{readable}-{digest}"


def _check_arguments(
    data: object, dtype: str, shard_size: int, batch_size: int, workers: int
) -> None:
    if not isinstance(data, ImageData):
        raise InvalidInputError(
            f"data: expected images that can be read in any order, got {type(data).__name__}; open"
            " the data without streaming"
        )
    if dtype not in DTYPES:
        raise InvalidInputError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if shard_size < 1 or batch_size < 1 or workers < 0:
        raise InvalidInputError(
            f"shard_size, batch_size, workers: got {shard_size}, {batch_size}, {workers}; expected"
            " at least 1, 1 and 0"
        )


@dataclass(eq=False)
class Shard:
    """Hold features (r, d) of rows (r,) of the data set, which are among the `count` rows from
    `start` on.

    skipped: (id, reason) of rows that could not be read.
    """

    features: Tensor
    rows: Tensor
    start: int
    count: int
    skipped: list[list[str]] = field(default_factory=list)

    def notes(self) -> dict[str, Any]:
        """Return all fields but the tensors, and a digest of everything."""
        tensors = {"features": self.features, "rows": self.rows}
        notes = {}
        for entry in fields(self):
            if entry.name not in tensors:
                notes[entry.name] = getattr(self, entry.name)
        state = hashlib.sha256(json.dumps(notes, sort_keys=True).encode())
        add_tensors(state, tensors.items())
        return notes | {"digest": state.hexdigest()}


@dataclass(frozen=True)
class _Run:
    """Embed one data set by one encoder into the shards of one folder, with a readable note of
    their origin.

    A file appears by one move of a complete, synced one, so that several runs in the same folder do
    no harm.
    """

    folder: Path
    shard_size: int
    origin: Mapping[str, Any]
    encoder: ImageEncoder
    dtype: str
    batch_size: int
    workers: int
    runner: OnRay | None
    fast: bool

    def path(self, index: int) -> Path:
        """Return the path of a shard, written or not."""
        return self.folder / f"shard-{index:05d}.safetensors"

    def read(self, index: int) -> Shard | None:
        """Return a shard, its features mapped into memory; None if it is missing or damaged and set
        aside."""
        path = self.path(index)
        damage = ""
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_ENTRY])
                digest = header.pop("digest")
                shard = Shard(file.get_tensor("features"), file.get_tensor("rows"), **header)
            if shard.notes()["digest"] != digest:
                damage = "its checksum does not fit"
            # A renamed or copied file is whole, but has the rows of another shard.
            elif shard.start != index * self.shard_size or shard.count > self.shard_size:
                damage = f"it holds the rows from {shard.start} on"
        except FileNotFoundError:
            return None
        # No safetensors file, no header of ours, or a field that a shard does not have.
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            damage = f"{type(error).__name__}: {error}"
        if not damage:
            return shard
        aside = path.with_name(f"{path.name}.corrupt")
        with suppress(FileNotFoundError):  # another run was faster
            os.replace(path, aside)
            warn(
                f"{path}: this shard is damaged ({damage}); set aside as {aside.name} and computed"
                " again"
            )
        return None

    def write(self, index: int, shard: Shard) -> None:
        """Write shard `index`, complete and synced."""
        card = self.folder / "cache.json"
        if not card.exists():
            write_atomically(card, json.dumps(self.origin, indent=1, sort_keys=True) + "\n")
        tensors = {"features": shard.features.contiguous(), "rows": shard.rows.contiguous()}
        write_atomically(
            self.path(index), save(tensors, {_ENTRY: json.dumps(shard.notes(), sort_keys=True)})
        )

    def embeddings(self, data: ImageData, progress: Progress) -> Embeddings:
        """Find missing shards in process 0, share the work among all processes, and return
        everything in each."""
        group = processes()
        if group.rank:
            progress = SILENT
        shards = range(-(-len(data) // self.shard_size))
        # Only process 0 looks for them, since others already write theirs.
        first_look: list[int] = []
        if group.rank == 0:
            first_look = [index for index in shards if self.read(index) is None]
        missing: list[int] = group.share(first_look)
        if 0 < len(missing) < len(shards):
            progress.say(f"{data.name} {data.split}: goes on where an earlier run ended")
        # Every world-th shard, so that the processes end at about the same time.
        indices = missing[group.rank :: group.world]
        size = self.shard_size
        total = sum(min(size, len(data) - index * size) for index in indices)
        if not indices:
            progress = SILENT
        with progress.bar(f"{data.name} {data.split}", total) as advance:
            if self.runner is not None and indices:
                # A worker computes its shard itself, and does not ask Ray again.
                away = replace(self, runner=None)
                try:
                    for images in self.runner.map(partial(away._shard, data), indices):
                        advance(images)
                except LostPartError as error:
                    self._raise_lost_shard(data, indices[error.part], self.runner, error)
            else:
                for index in indices:
                    self._shard(data, index, advance)
        # No process reads before the last one has written.
        group.wait()
        return _joined(data, self._complete(shards))

    def _raise_lost_shard(
        self, data: ImageData, index: int, runner: OnRay, error: LostPartError
    ) -> NoReturn:
        """Raise an error that names the row at which the workers of a shard die.

        Workers read the images of the shard again, each as a part of its own.
        """
        start = index * self.shard_size
        stop = min(start + self.shard_size, len(data))
        kept = "Complete shards are kept: the same command continues with the missing ones"
        fixes = (
            "Give each worker more memory, or repair the image (then all images are embedded again)"
        )
        read = partial(replace(self, runner=None)._read_row, data)
        try:
            for _ in runner.map(read, range(start, stop)):
                pass
        except LostPartError as lost:
            row = start + lost.part
            raise VldebiasError(
                f"{data.name} {data.split}: row {row} ({data.ids[row]!r}): each worker that reads"
                f" this image dies. {fixes}. {kept}"
            ) from None
        raise VldebiasError(
            f"{data.name} {data.split}: rows {start} to {stop - 1} ({data.ids[start]!r} to"
            f" {data.ids[stop - 1]!r}), each of whose images alone can be read: {error}. {kept}"
        ) from None

    def _read_row(self, data: ImageData, row: int) -> None:
        """Read and prepare an image, without keeping it."""
        self._load(data, row)

    def _complete(self, indices: range) -> list[Shard]:
        """Return all shards in their order.

        Raises:
            InvalidInputError: one is not there, although all processes have finished.
        """
        shards = []
        lost = []
        for index in indices:
            shard = self.read(index)
            if shard is None:
                lost.append(index)
            else:
                shards.append(shard)
        if lost:
            raise InvalidInputError(
                f"{self.path(lost[0])}: expected this shard now that all processes have finished,"
                " but it is not there; all of them need the same cache folder, and nothing else"
                " may delete from it. Run again"
            )
        return shards

    def _load(self, data: ImageData, row: int) -> tuple[int, Pixels | str]:
        """Return a row and its pixels, or why they cannot be read."""
        try:
            # An image that is a file is decoded as small as is allowed.
            path = ""
            if self.fast:
                path = data.path(row)
            # The encoder does not say how small a picture may be.
            if path and self.encoder.side:
                image = decode(Path(path), draft=2 * self.encoder.side)
            else:
                image = data.read(row)
        except OSError as error:
            return row, why_unreadable(error)
        return row, self.encoder.prepare(image)

    def _shard(
        self, data: ImageData, index: int, advance: Callable[[], None] = lambda: None
    ) -> int:
        """Embed and write a shard, if no other run has written it in the meantime; return how many
        images it has.

        Batches do not cross shards, so that a shard never depends on another.
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
        # Two batches ahead: one is put together while the model has another.
        for row, pixels in prefetch(places, load, self.workers, 2 * self.batch_size):
            if isinstance(pixels, str):
                skipped.append([data.ids[row], pixels])
            else:
                rows.append(row)
                batch.append(pixels)
            is_full = len(batch) == self.batch_size
            # Also if the last image cannot be read, what was collected before it is embedded.
            is_last = row == places[-1]
            if batch and (is_full or is_last):
                batches.add(batch, first_id=data.ids[rows[-len(batch)]])
                batch = []
            advance()
        if len(skipped) >= _MANY and not rows:
            raise InvalidInputError(
                f"none of the {len(skipped)} images from {skipped[0][0]!r} to {skipped[-1][0]!r}"
                f" can be read ({skipped[0][1]}); expected images there: is the drive connected, is"
                " the root right?"
            )
        features = batches.features()
        readable = torch.tensor(rows, dtype=torch.int64)
        # What cannot be read is noted as well, so that the shard counts as complete.
        self.write(index, Shard(features, readable, places.start, len(places), skipped))
        return len(places)


def _joined(data: ImageData, shards: list[Shard]) -> Embeddings:
    """Return the features of all shards with the ids, labels and captions of their rows."""
    # An array, because a list of no rows has no type.
    rows = torch.cat([shard.rows for shard in shards]).numpy()
    skipped = []
    for shard in shards:
        skipped += [{"id": name, "reason": reason} for name, reason in shard.skipped]
    captions: tuple[str, ...] = ()
    if data.captions:
        captions = tuple(data.captions[row] for row in rows)
    # A shard without a readable image has no width.
    parts = [shard.features for shard in shards if len(shard.features)]
    features = torch.empty(0, 0)
    if len(parts) == 1:
        features = parts[0]  # stays mapped into memory
    elif parts:
        features = torch.cat(parts)
    if features.dtype == torch.bfloat16:  # which numpy does not know
        features = features.float()
    return Embeddings(
        features.numpy(),
        tuple(data.ids[row] for row in rows),
        {column: labels[rows] for column, labels in data.labels.items()},
        captions,
        {"images": len(data), "skipped": skipped},
    )


class _Batches:
    """Collect the features of batches; a batch is waited for when the next one has been started, so
    that a GPU computes while the next one is put together."""

    def __init__(self, encoder: ImageEncoder, dtype: torch.dtype) -> None:
        self._encoder = encoder
        self._dtype = dtype
        self._started: tuple[Tensor, str] | None = None
        self._parts = list[Tensor]()

    def add(self, batch: list[Pixels], first_id: str) -> None:
        """Start a batch; first_id names it in an error."""
        # The model gets its next batch before the last one's features are waited for.
        features = self._encoder.start(batch)
        self._collect()
        self._started = features, first_id

    def features(self) -> Tensor:
        """Return the features (n, d) of all batches on the CPU."""
        self._collect()
        if not self._parts:
            return torch.empty(0, 0, dtype=self._dtype)
        return torch.cat(self._parts)

    def _collect(self) -> None:
        if self._started is None:
            return
        features, first_id = self._started
        self._started = None
        part = features.float().cpu().to(self._dtype)
        # Looked at as stored: float16 holds nothing above 65,504.
        if not torch.isfinite(part).all():
            name = str(self._dtype).removeprefix("torch.")
            raise InvalidInputError(
                f"{self._encoder.name}: features are not finite as {name} in the batch"
                f" from image {first_id!r} on; choose dtype 'bfloat16'"
                " or 'float32', or run the model in float32"
            )
        self._parts.append(part)
