"""Images that lie as files below one folder: where they are, how they are told apart, how they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from vldebias.data.decoding import decode
from vldebias.data.images import ImageData
from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError

__all__ = [
    "ENDS",
    "Ends",
    "ends_of",
    "file_images",
    "find_below",
    "fingerprint_ends",
    "fingerprint_files",
    "read_ends",
    "refuse_outside",
]

ENDS = 4096  # bytes that are read at either end of a file
_FILES_AT_ONCE = 512  # per task of a thread: 200 000 files are opened in seconds, not one by one

# Absolute (also as Windows writes it), an address, or a step upward anywhere on the way.
_OUTSIDE = r"^[/\\]|^[A-Za-z]:|^[A-Za-z][A-Za-z0-9+.-]*://|(^|[/\\])\.\.([/\\]|$)"

Ends = tuple[int, bytes]  # size, first and last bytes; size -1 where there is no file


def find_below(root: Path, names: Sequence[str], folders: Sequence[str] = ("",)) -> Path | None:
    """The first of `names` in the first of `folders` of `root` that has one; None where none has."""
    for folder in folders:
        for name in names:
            path = root / folder / name
            if path.exists():
                return path
    return None


def file_images(
    name: str,
    split: str,
    root: Path,
    files: Sequence[str],
    labels: Mapping[str, Labels],
    *,
    ids: Sequence[str] | None = None,
    captions: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
    allow_outside: bool = False,
) -> ImageData:
    """Images of `files` (paths below `root`), which are also their ids unless others are given.

    No image is opened before one is read or the fingerprint is asked for.

    Raises:
        InvalidInputError: no files, or a path that leads out of `root` and is not allowed to.
    """
    if not files:
        raise InvalidInputError(f"{name}: no images in split {split!r} of {root}")
    if not allow_outside:
        refuse_outside(name, root, files)
    names = tuple(ids if ids is not None else files)
    return ImageData(
        name=name,
        split=split,
        ids=names,
        read=_Reader(root, tuple(files)),
        labels=dict(labels),
        fingerprint=lambda: fingerprint_files(names, [root / file for file in files]),
        captions=tuple(captions),
        about={"root": str(root), **(about or {})},
    )


def refuse_outside(name: str, root: Path, files: Sequence[str]) -> None:
    """A table from elsewhere must not make us read what it likes; links that the user made are fine.

    Raises:
        InvalidInputError: a path that is absolute, an address, or steps upward anywhere on its way.
    """
    paths = pa.array(files, pa.string())
    outside = pc.filter(paths, pc.match_substring_regex(paths, _OUTSIDE))
    if len(outside):
        raise InvalidInputError(
            f"{name}: {len(outside)} paths lead out of {root} or are no local files, such as {outside[0].as_py()!r}; "
            "expected paths below it, or allow_outside where the table is trusted"
        )


class _Reader:
    """Reads one file by its index."""

    def __init__(self, root: Path, files: tuple[str, ...]) -> None:
        self._root, self._files = root, files

    def __call__(self, index: int) -> Image.Image:
        return decode(self._root / self._files[index])


def fingerprint_files(ids: Sequence[str], paths: Sequence[str | os.PathLike[str]]) -> str:
    """A hash of ids, file sizes, and the first and last 4 KiB of every file.

    It survives copying and touching, and notices files that are replaced, cut, swapped or missing. A change of the
    same length in the middle of a large file goes unnoticed; hashing all bytes would cost as much as reading them.
    """
    return fingerprint_ends(ids, [partial(read_ends, path) for path in paths])


def fingerprint_ends(ids: Sequence[str], ends: Sequence[Callable[[], Ends]]) -> str:
    """The same for anything that has a size and two ends; read in threads, hashed in order."""
    if len(ids) != len(ends):
        raise InvalidInputError(f"fingerprint: expected one file per id, got {len(ids)} ids and {len(ends)} files")
    starts = range(0, len(ids), _FILES_AT_ONCE)
    state = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        tasks = ((ids[i : i + _FILES_AT_ONCE], ends[i : i + _FILES_AT_ONCE]) for i in starts)
        for digest in pool.map(_digest, tasks):
            state.update(digest)
    return state.hexdigest()[:24]


def _digest(task: tuple[Sequence[str], Sequence[Callable[[], Ends]]]) -> bytes:
    state = hashlib.sha256()
    for name, ends in zip(*task, strict=True):
        size, content = ends()
        state.update(f"{len(name.encode())} {name} {size} ".encode())
        state.update(content)
    return state.digest()


def read_ends(path: str | os.PathLike[str]) -> Ends:
    """Size of a file with its first and last 4 KiB, the whole of a smaller one; (-1, b"") where it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= 2 * ENDS:
                return size, file.read(size)
            head = file.read(ENDS)
            file.seek(size - ENDS)
            return size, head + file.read(ENDS)
    except OSError:
        return -1, b""


def ends_of(content: bytes | memoryview) -> Ends:
    """The same of bytes in memory."""
    size = len(content)
    whole = size <= 2 * ENDS
    return size, bytes(content) if whole else bytes(content[:ENDS]) + bytes(content[size - ENDS :])
