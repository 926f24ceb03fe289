"""Record the files of a run, so that `vldebias eval verify` finds what was changed since."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vldebias.errors import InvalidInputError
from vldebias.utils.files import LOCK, digest, read_json, write_atomically

RESULT = "result.json"
PAGE = "index.html"
MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> Path:
    """Write the SHA-256 of every file of a run except the embedding cache, for
    `verify`."""
    content = json.dumps({"files": _digests(folder)}, indent=1) + "\n"
    return write_atomically(folder / MANIFEST, content)


def record_pages(folder: Path, pages: Sequence[Path]) -> None:
    """Write the SHA-256 of pages that were rendered again into the manifest, and of no other file.

    A file that somebody changed stays a difference for `verify`. Without a manifest, and for pages
    outside the folder, nothing is written.

    Args:
        folder: folder of the manifest.
        pages: the pages.
    """
    files = _read_manifest(folder)
    if files is None:
        return
    for page in pages:
        path = page.resolve()
        if path.is_relative_to(folder.resolve()):
            files[path.relative_to(folder.resolve()).as_posix()] = digest(page)
    write_atomically(folder / MANIFEST, json.dumps({"files": files}, indent=1) + "\n")


def verify(result: str | Path) -> dict[str, list[str]]:
    """Return the names of the files of a run that are "changed", "missing" and "added" since it
    ended.

    Args:
        result: the folder of the run, or its result.json.

    Raises:
        InvalidInputError: there is no manifest.
    """
    path = Path(result)
    folder = path if path.is_dir() else path.parent
    files = _read_manifest(folder) if path.exists() else None
    if files is None:
        raise InvalidInputError(
            f"{result}: got no {MANIFEST}; expected the whole folder of a run: run the suite again"
        )
    now = _digests(folder)
    return {
        "changed": [name for name in now if name in files and now[name] != files[name]],
        "missing": sorted(set(files) - set(now)),
        "added": sorted(set(now) - set(files)),
    }


def _read_manifest(folder: Path) -> dict[str, str] | None:
    """Return name -> SHA-256 of a manifest; None where there is none, or no such mapping in it."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = read_json(folder / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    return files if isinstance(files, dict) else None


def _digests(folder: Path) -> dict[str, str]:
    """Return name -> SHA-256 of the files of a run.

    Cached features are left out: they are checked where they are read.
    """
    # It cannot hold its own digest, and the lock is there only while a run writes.
    left_out = (Path(MANIFEST), Path(LOCK))
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != "cache" and name not in left_out:
            digests[name.as_posix()] = digest(path)
    return digests
