"""Record the files of a run, so that `vldebias eval report --verify` can detect later changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vldebias.errors import InvalidInputError
from vldebias.utils.files import LOCK, digest, read_json, write_atomically
from vldebias.utils.formats import FORMAT, check_format

RESULT = "result.json"
PAGE = "index.html"
MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> Path:
    """Write a manifest with the SHA-256 of every file in a run, except the embedding cache."""
    return _write(folder, _digests(folder))


def record_pages(folder: Path, pages: Sequence[Path]) -> None:
    """Update the SHA-256 of pages that were rendered again, but not of any other file.

    `verify` still reports changes to other files. Pages outside the folder are ignored, and nothing
    is written if there is no manifest.

    Args:
        folder: folder that contains the manifest.
        pages: pages that were rendered again.
    """
    files = _read_manifest(folder)
    if files is None:
        return
    for page in pages:
        path = page.resolve()
        if path.is_relative_to(folder.resolve()):
            files[path.relative_to(folder.resolve()).as_posix()] = digest(page)
    _write(folder, files)


def verify(result: str | Path) -> dict[str, list[str]]:
    """Return the files that were changed, removed or added since a run ended.

    Args:
        result: the run's folder, or its result.json.

    Returns:
        The file names under the keys "changed", "missing" and "added".

    Raises:
        InvalidInputError: If there is no manifest.
    """
    path = Path(result)
    folder = path if path.is_dir() else path.parent
    files = _read_manifest(folder) if path.exists() else None
    if files is None:
        raise InvalidInputError(
            f"{folder if path.suffix else path}: found no {MANIFEST}; expected the complete folder"
            " of a run; run the suite again"
        )
    current = _digests(folder)
    return {
        "changed": [name for name in current if name in files and current[name] != files[name]],
        "missing": sorted(set(files) - set(current)),
        "added": sorted(set(current) - set(files)),
    }


def _read_manifest(folder: Path) -> dict[str, str] | None:
    """Return the SHA-256 of each file from the manifest, or None if it is missing or malformed."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = read_json(folder / MANIFEST)
    check_format(manifest, folder / MANIFEST, missing=1)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    return files if isinstance(files, dict) else None


def _write(folder: Path, files: dict[str, str]) -> Path:
    content = json.dumps({FORMAT: 1, "files": files}, indent=1) + "\n"
    return write_atomically(folder / MANIFEST, content)


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a run, by file name.

    Cached features are excluded, because they are verified when they are read.
    """
    # The manifest cannot contain its own digest, and the lock only exists during a run.
    left_out = (Path(MANIFEST), Path(LOCK))
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != "cache" and name not in left_out:
            digests[name.as_posix()] = digest(path)
    return digests
