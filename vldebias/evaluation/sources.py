"""Which sources gave a result: the files that its process imported, and one digest of their contents.

A commit alone says little: a tree may differ from it, and a rebased commit is gone. The digest is found again wherever
the same files are.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from vldebias.errors import InvalidInputError
from vldebias.files import digest

ROOT = Path(__file__).resolve().parents[2]  # of the checkout; of a wheel the folder of its packages
PARTS = ("vldebias", "eval", "apps", "tests")


class Sources(BaseModel):
    """sha256: over path and SHA-256 of each of `files`, which are sorted and named from the root of the checkout."""

    model_config = ConfigDict(extra="forbid")

    sha256: str
    files: list[str]

    @classmethod
    def of(cls, hashes: Mapping[str, str]) -> Sources:
        """From path -> SHA-256."""
        lines = "".join(f"{path} {hashes[path]}\n" for path in sorted(hashes))
        return cls(sha256=hashlib.sha256(lines.encode()).hexdigest(), files=sorted(hashes))

    def changed(self, root: Path = ROOT) -> bool:
        """Whether the files of a checkout are others than those that gave the result."""
        there = [root / path for path in self.files]
        if not all(path.is_file() for path in there):
            return True
        return Sources.of({path: digest(root / path) for path in self.files}).sha256 != self.sha256


def imported(also: Iterable[Path] = ()) -> dict[str, str]:
    """Path -> SHA-256 of every file of this checkout that this process has imported, and of those named beside."""
    loaded = [file for one in list(sys.modules.values()) if (file := getattr(one, "__file__", None))]
    own = filter(None, map(_own, (*loaded, *(str(file.absolute()) for file in also))))
    files = {path: ROOT / path for path in own if (ROOT / path).is_file()}
    return {path: _digest(file, file.stat().st_mtime_ns) for path, file in files.items()}


_digest = cache(lambda file, changed: digest(file))  # again where the file has changed: results come by the hundred


@cache
def _own(file: str) -> str | None:
    """The path below `ROOT` of a file of this checkout; None of others, most of the thousands that are imported."""
    parts = PARTS if (ROOT / "pyproject.toml").exists() else PARTS[:1]
    path = Path(file).resolve()
    inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in parts
    return path.relative_to(ROOT).as_posix() if inside else None


def refuse_uncommitted(path: Path, files: Iterable[str], root: Path = ROOT) -> None:
    """Raises where `path` is of the committed results and a source of it is not as HEAD has it.

    Raises:
        InvalidInputError: names the sources that differ.
    """
    if path.resolve().parent != root / "eval" / "results" or not (root / ".git").exists():
        return
    command = ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=all", "--", *files]
    changed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if changed:
        names = ", ".join(line[3:] for line in changed.splitlines())
        raise InvalidInputError(
            f"{path}: got sources that differ from the last commit: {names}; expected a result of committed sources; "
            "commit them and measure again, or write it to another folder"
        )
