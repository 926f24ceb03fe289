"""Which committed results the sources as they stand would not give again: eval/results/STALE, made by this command.

python -m eval.evidence          # rewrite the list, and say since which commit the sources of each differ
python -m eval.evidence --check  # fail if it is out of date
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

from vldebias.evaluation.result import Result
from vldebias.evaluation.sources import ROOT, Sources
from vldebias.files import write_atomically

RESULTS = ROOT / "eval" / "results"
LIST = RESULTS / "STALE"
UNKNOWN, STALE, DIRTY = "no digest: run before digests", "stale: its sources changed", "its commit has other sources"


def status(result: Result, root: Path = ROOT) -> str:
    """What a reader has to know of where a result comes from; empty where its sources are those that are here."""
    if result.sources is None:
        return UNKNOWN
    then = at_commit(result, root)
    if then is not None and then != result.sources.sha256:
        return DIRTY
    return STALE if result.sources.changed(root) else ""


def at_commit(result: Result, root: Path = ROOT) -> str | None:
    """The digest of a result's files as its commit has them; None where the commit is not here."""
    commit = (result.commit or "").removesuffix("-dirty")
    if result.sources is None or not commit or _git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    there = _blobs(root, commit)
    return Sources.of({path: _sha256(root, there.get(path, "")) for path in result.sources.files}).sha256


def since(result: Result, root: Path = ROOT) -> str:
    """The first commit after a result's that touched its sources; empty where its own is not here."""
    if result.sources is None or not result.commit:
        return ""
    commits = f"{result.commit.removesuffix('-dirty')}..HEAD"
    told = _git(root, "log", "--reverse", "--format=%h %s", commits, "--", *result.sources.files)
    return (told or b"").decode().partition("\n")[0]


@cache
def _blobs(root: Path, commit: str) -> dict[str, str]:
    """Path -> git's name for its content in a commit."""
    lines = (_git(root, "ls-tree", "-r", "-z", "--full-tree", commit) or b"").decode().split("\0")
    return {path: about.split()[2] for about, _, path in (line.partition("\t") for line in lines if line)}


@cache
def _sha256(root: Path, blob: str) -> str:
    """Of a content; most are those of many commits."""
    return hashlib.sha256((_git(root, "cat-file", "blob", blob) if blob else b"") or b"").hexdigest()


def _git(root: Path, *words: str) -> bytes | None:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def listed(folder: Path = RESULTS, root: Path = ROOT) -> str:
    """A line per result that is not what the sources here give."""
    found = {path.stem: status(Result.read(path), root) for path in sorted(folder.glob("*.json"))}
    return "".join(f"{name}: {told}\n" for name, told in found.items() if told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the list is out of date")
    text = listed()
    if parser.parse_args().check:
        return int(not LIST.is_file() or LIST.read_text(encoding="utf-8") != text)
    write_atomically(LIST, text)
    for line in text.splitlines():
        first = since(Result.read(RESULTS / f"{line.partition(':')[0]}.json"))
        print(line + (f", first by {first}" if first else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
