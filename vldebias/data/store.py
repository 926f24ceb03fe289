"""Shards of image features on disk: written whole or not at all, checked when read, mapped into memory."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vldebias.errors import InvalidInputError, warn
from vldebias.files import write_atomically

_ENTRY = "vldebias"  # one entry, because safetensors writes several in any order
_STALE = 3600.0  # seconds after which a half-written file belongs to a run that is no more


@dataclass(frozen=True)
class Notes:
    """What a shard knows beside its features.

    start, count: the rows of the data set that it covers, readable or not.
    skipped: (id, reason) of those that could not be read.
    last: a stream ended in this shard. ids, labels, captions: of the rows kept, for streams alone.
    """

    start: int
    count: int
    skipped: list[list[str]] = field(default_factory=list)
    last: bool = False
    ids: list[str] = field(default_factory=list)
    labels: dict[str, list[str | None]] = field(default_factory=dict)
    captions: list[str | None] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Shard:
    """features (r, d) of the rows (r,) of the data set, in their order."""

    features: Tensor
    rows: Tensor
    notes: Notes


class ShardStore:
    """The shards of one data set under one encoder, in one folder.

    Every file appears under its name by one move of a complete, synced file, so that a reader never sees half of
    one and several runs in the same folder do no harm: they write the same bytes.

    Args:
        folder: made when the first shard is written.
        shard_size: rows of the data set in a shard.
        about: what the features were made of, kept beside them for people to read.
        read_only: never write; a bad shard is an error and not set aside.
    """

    def __init__(self, folder: Path, shard_size: int, about: Mapping[str, Any], *, read_only: bool = False) -> None:
        self.folder = folder
        self.shard_size = shard_size
        self.read_only = read_only
        self._about = dict(about)
        self._checked: set[tuple[int, int, int]] = set()
        for path in [] if read_only else self.folder.glob("*.partial"):
            with suppress(FileNotFoundError):  # another run was faster
                if time.time() - path.stat().st_mtime > _STALE:
                    path.unlink()

    def path(self, index: int) -> Path:
        """Where shard `index` is or will be."""
        return self.folder / f"shard-{index:05d}.safetensors"

    def read(self, index: int) -> Shard | None:
        """Shard `index`, its features mapped into memory; None where there is none or it had to be set aside.

        Raises:
            InvalidInputError: a bad shard in a store that is only read.
        """
        path, damage = self.path(index), ""
        try:
            status = path.stat()
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_ENTRY])
                digest = header.pop("digest")
                shard = Shard(file.get_tensor("features"), file.get_tensor("rows"), Notes(**header))
            version = (index, status.st_mtime_ns, status.st_size)
            if version not in self._checked and _digest(shard) != digest:
                damage = "its checksum does not fit"
            elif shard.notes.start != index * self.shard_size or shard.notes.count > self.shard_size:
                damage = f"it holds the rows from {shard.notes.start} on"
        except FileNotFoundError:
            return None
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            damage = f"{type(error).__name__}: {error}"
        if not damage:
            self._checked.add(version)
            return shard
        damage = f"{path}: this shard of the embedding cache is damaged ({damage})"
        if self.read_only:
            raise InvalidInputError(f"{damage}; run without read_only to compute it again")
        aside = path.with_name(f"{path.name}.corrupt")
        with suppress(FileNotFoundError):  # another run was faster
            os.replace(path, aside)
            warn(f"{damage}; set aside as {aside.name} and computed again")
        return None

    def write(self, index: int, shard: Shard) -> None:
        """Put shard `index` in place, complete and synced."""
        card = self.folder / "cache.json"
        if not card.exists():
            write_atomically(card, json.dumps(self._about, indent=1, sort_keys=True) + "\n")
        tensors = {"features": shard.features.contiguous(), "rows": shard.rows.contiguous()}
        header = {**asdict(shard.notes), "digest": _digest(shard)}
        write_atomically(self.path(index), save(tensors, {_ENTRY: json.dumps(header, sort_keys=True)}))


def _digest(shard: Shard) -> str:
    """sha256 of all that a shard holds."""
    state = hashlib.sha256(json.dumps(asdict(shard.notes), sort_keys=True).encode())
    for tensor in (shard.features, shard.rows):
        state.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            state.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return state.hexdigest()
