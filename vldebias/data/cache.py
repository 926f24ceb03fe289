"""The embedding cache: image features computed once per model, preprocessing and data set, kept in shards."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vldebias.data.embed_rows import DTYPES, How
from vldebias.data.embed_run import EmbedRun
from vldebias.data.embeddings import Embeddings
from vldebias.data.images import ImageData, ImageStream
from vldebias.data.store import ShardStore
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.hosts.images import ImageEncoder

__all__ = ["cache_folder", "default_cache_dir", "embed_images"]

FORMAT = 1
VARIABLE = "VLDEBIAS_CACHE"


def default_cache_dir() -> Path:
    """$VLDEBIAS_CACHE, or ~/.cache/vldebias."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "vldebias"


def embed_images(
    data: ImageData | ImageStream,
    encoder: ImageEncoder,
    cache_dir: str | Path | None = None,
    *,
    dtype: str = "float16",
    shard_size: int = 1024,
    batch_size: int = 64,
    workers: int = 4,
    strict: bool = False,
    read_only: bool = False,
    progress: Progress | None = None,
) -> Embeddings:
    """Features of all images of `data`, from the cache where they are there, else computed and put there.

    A run that is stopped, killed or interrupted leaves complete shards and goes on from them. Several processes
    (`accelerate launch`, torchrun) share the missing shards, and each returns everything. The labels and captions of
    an ImageData are those it has now; those of a stream were kept with its features.

    Args:
        data: what to embed.
        encoder: from vldebias.hosts.images.image_encoder.
        cache_dir: default: see `default_cache_dir`.
        dtype: how features are kept: "float16", "bfloat16" or "float32". bfloat16 comes back as float32, since numpy
            has no such type.
        shard_size: images in a shard: what a kill can cost.
        batch_size: images that go through the model at once.
        workers: threads that read and prepare images ahead of the model; 0 reads between the batches.
        strict: stop at the first image that cannot be read. Default: count, list in `about["skipped"]` and go on.
        read_only: compute and write nothing; what is missing or damaged is an error.
        progress: a running bar to add to; default: one of its own on stderr.

    Returns:
        Embeddings, features as stored, mapped into memory where they are one shard. `about` says what they are of:
        data, split, data_fingerprint, model, fingerprint (of the image tower), preprocessing, dtype, images (read or
        not), skipped ([{"id", "reason"}]), cache (folder), source (`data.about`).

    Raises:
        InvalidInputError: an unreadable image where strict, no readable image, a stream in several processes, features
            that are not finite, a cache that is not complete where `read_only`.
    """
    _check(data, dtype, shard_size, batch_size, workers)
    folder = cache_folder(data, encoder, cache_dir, dtype=dtype, shard_size=shard_size)
    about = _about(data, encoder, dtype)
    store = ShardStore(folder, shard_size, about | {"shard_size": shard_size}, read_only=read_only)
    how = How(encoder, dtype, batch_size, workers, strict)
    with _shown(progress, folder) as bars:
        run = EmbedRun(store, how, f"{data.name} {data.split}", bars)
        found = run.data(data) if isinstance(data, ImageData) else run.stream(data)
    skipped = found.about["skipped"]
    if not len(found):
        raise InvalidInputError(f"{data.name}: expected images, but none of {len(skipped)} can be read {skipped[:1]}")
    source = {"cache": str(folder), "source": json.loads(json.dumps(dict(data.about), default=str))}
    return replace(found, about={**about, **found.about, **source})


def cache_folder(
    data: ImageData | ImageStream,
    encoder: ImageEncoder,
    cache_dir: str | Path | None = None,
    *,
    dtype: str = "float16",
    shard_size: int = 1024,
) -> Path:
    """Where `embed_images` keeps these features: another folder for whatever could change one of them."""
    key = {
        "format": FORMAT,
        "tower": encoder.digest,
        "preprocessing": encoder.preprocessing,
        "data": data.fingerprint,
        "images": len(data) if isinstance(data, ImageData) else None,
        "dtype": dtype,
        "shard_size": shard_size,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
    readable = re.sub(r"[^\w.-]+", "-", f"{data.name}-{data.split}").strip("-.")
    return (Path(cache_dir) if cache_dir is not None else default_cache_dir()) / f"{readable}-{digest}"


def _check(data: Any, dtype: str, shard_size: int, batch_size: int, workers: int) -> None:
    if not isinstance(data, (ImageData, ImageStream)):
        raise InvalidInputError(f"data: expected an ImageData or an ImageStream, got {type(data).__name__}")
    if dtype not in DTYPES:
        raise InvalidInputError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    for name, value, least in (("shard_size", shard_size, 1), ("batch_size", batch_size, 1), ("workers", workers, 0)):
        if not isinstance(value, int) or value < least:
            raise InvalidInputError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    if isinstance(data, ImageData) and not len(data):
        raise InvalidInputError(f"{data.name}: expected at least one image, got none")


def _about(data: ImageData | ImageStream, encoder: ImageEncoder, dtype: str) -> dict[str, Any]:
    return {
        "data": data.name,
        "split": data.split,
        "data_fingerprint": data.fingerprint,
        "model": encoder.name,
        "fingerprint": encoder.fingerprint,
        "preprocessing": encoder.preprocessing,
        "dtype": dtype,
    }


@contextmanager
def _shown(progress: Progress | None, folder: Path) -> Iterator[Progress]:
    """The given bars, or new ones on stderr; Ctrl-C is told what it leaves."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    own = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    with nullcontext(progress) if progress is not None else own as bars:
        try:
            yield bars
        except KeyboardInterrupt:
            bars.console.print(
                f"Interrupted. Complete shards are kept in {folder}: the same command goes on from them."
            )
            raise
