"""Compare all numbers with those of a different version.

The comparison covers the rows of committed results, identified by task, metric, method, subset and
lam; the results of public calls on fixed inputs (see `eval/probe.py`); and tiny pipelines, with
their fitted edits and generated images. The command prints the numbers that changed, are missing or
are new, and exits with 1 if a number changed by more than the tolerance. A commit that changes
numbers should give the reasons.

    python -m eval.against HEAD~1                            takes minutes
    python -m eval.against HEAD~1 --only rows                only committed results, in a second
    python -m eval.against HEAD~1 --only methods,pipelines   two parts of the probe
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.probe import PARTS
from eval.tables import plain_parser

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "eval/results"
KEY = ("task", "metric", "method", "subset", "lam")
VALUES = ("value", "low", "high", "change", "change_low", "change_high")


@dataclass
class Difference:
    """The differences between two sets of named numbers."""

    equal: int = 0
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def rows_of(listing: str, read: Any) -> dict[str, Any]:
    """Return a mapping from "file: key" to the values in a row, for all results in a version."""
    rows: dict[str, Any] = {}
    for name in listing.split():
        if not name.endswith((".json", ".parquet")):
            continue
        frame = table_of(name, read(name))
        for row in frame.to_dict("records"):
            key = " ".join(str(row[field]) for field in KEY if is_given(row.get(field)))
            values = [row.get(field) for field in VALUES]
            numbers = [math.nan if value is None else float(value) for value in values]
            rows[f"{Path(name).stem}: {key}"] = numbers
    return rows


def is_given(value: Any) -> bool:
    """Return whether a table cell has a value that is not None, NaN or an empty string."""
    return value not in (None, "") and value == value


def table_of(name: str, content: bytes) -> pd.DataFrame:
    """Return the rows in a result file, or an empty table if the format is different."""
    if name.endswith(".parquet"):
        return pd.read_parquet(BytesIO(content))
    result = json.loads(content)
    figures = result.get("figures", result.get("rows", ())) if isinstance(result, dict) else ()
    if not isinstance(figures, list):  # the name of a parquet file with the rows
        return pd.DataFrame()
    rows = []
    for figure in figures:
        low, high = figure.get("interval") or (figure.get("low"), figure.get("high"))
        change = dict(zip(VALUES[3:], figure.get("change") or (), strict=False))
        ends = {"low": low, "high": high, "change": None, "lam": figure.get("lam")}
        rows.append(figure | ends | change)
    return pd.DataFrame(rows)


def compare(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> Difference:
    """Sort the keys of two sets of numbers into equal, changed, missing and added."""
    comparison = Difference(
        missing=sorted(old.keys() - new.keys()), added=sorted(new.keys() - old.keys())
    )
    for key in sorted(old.keys() & new.keys()):
        difference = difference_of(old[key], new[key], tolerance)
        if difference:
            comparison.changed.append(f"{key}: {difference}")
        else:
            comparison.equal += 1
    return comparison


def difference_of(before: Any, after: Any, tolerance: float) -> str:
    """Describe the difference between two numbers, or return "" if it is within the tolerance."""
    if isinstance(before, str) or isinstance(after, str):
        is_equal = isinstance(before, str) and isinstance(after, str) and before == after
        return "" if is_equal else f"{_short(before)} -> {_short(after)}"
    before, after = np.asarray(before, float), np.asarray(after, float)
    if before.shape == after.shape:
        if np.allclose(before, after, rtol=tolerance, atol=tolerance, equal_nan=True):
            return ""
        if before.size > 6:
            return f"differs by {np.nanmax(np.abs(before - after)):.2g}"
    return f"{_short(before)} -> {_short(after)}"


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    return np.array2string(np.asarray(value, float).ravel()[:3], precision=4)


def probed(tree: Path, tests: Path, only: str, folder: Path) -> dict[str, Any]:
    """Return the numbers that `eval/probe.py` computes with the package in `tree`."""
    out = folder / f"{tree.name}.npz"
    # Use a single thread, because on a busy machine threads spend most time waiting for each other.
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        str(ROOT / "eval" / "probe.py"),
        str(out),
        str(tree),
        "--tests",
        str(tests),
        "--only",
        only,
    ]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    with np.load(out, allow_pickle=False) as read:
        return {name: read[name] for name in read.files if name != "words"} | json.loads(
            str(read["words"])
        )


def git(*words: str) -> bytes:
    """Run a git command in this repository and return its output."""
    return subprocess.run(("git", "-C", str(ROOT), *words), check=True, capture_output=True).stdout


def main() -> int:
    """Print the comparison and return the exit status."""
    parser = plain_parser(__doc__)
    parser.add_argument("ref", help="tag or commit to compare with")
    parser.add_argument(
        "--only", default="rows," + ",".join(PARTS), help="comma-separated parts: %(default)s"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-6, help="relative and absolute: %(default)s"
    )
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    unknown = set(parts) - {"rows", *PARTS}
    if unknown:
        parser.error(
            f"--only: unknown parts {', '.join(sorted(unknown))}, expected rows, {', '.join(PARTS)}"
        )
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    if "rows" in parts:
        listing = git("ls-tree", "-r", "--name-only", arguments.ref, RESULTS).decode()
        old |= rows_of(listing, lambda name: git("show", f"{arguments.ref}:{name}"))
        here = "\n".join(str(path.relative_to(ROOT)) for path in (ROOT / RESULTS).rglob("*"))
        new |= rows_of(here, lambda name: (ROOT / name).read_bytes())
    probed_parts = ",".join(part for part in parts if part != "rows")
    if probed_parts:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "base"
            git("worktree", "add", "--detach", str(base), arguments.ref)
            try:
                old |= probed(base, base, probed_parts, Path(folder))
                new |= probed(ROOT, base, probed_parts, Path(folder))
            finally:
                git("worktree", "remove", "--force", str(base))
    difference = compare(old, new, arguments.tolerance)
    for title in ("changed", "missing", "added"):
        keys = getattr(difference, title)
        print(f"== {title}: {len(keys)}", *keys, sep="\n  ")
    equal = f"{difference.equal} equal to {arguments.ref} within {arguments.tolerance:g}"
    print(f"== {equal}, {len(difference.changed)} changed")
    return int(bool(difference.changed))


if __name__ == "__main__":
    raise SystemExit(main())
