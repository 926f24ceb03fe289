"""Compare this version with another one, figure by figure: `python -m eval.against [REF]`, by
default the tag v0.3.0.

Three things are compared. Rows of results that are committed in both versions, by (task, metric,
method, subset, lam). Public calls on fixed inputs (`eval/probe.py`): projections, methods, losses,
metrics, evaluations. Tiny pipelines: the edits that they get and the images that they generate. It
prints what moved, what went and what came, and exits with 1 if a figure moved beyond the tolerance;
a reason for each move belongs to the commit that moved it.

    python -m eval.against                            everything, some minutes
    python -m eval.against v0.3.0 --only rows         committed results alone, a second
    python -m eval.against --only methods,pipelines   two parts of the probe
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "eval/results"
KEY = ("task", "metric", "method", "subset", "lam")
VALUES = ("value", "low", "high", "change", "change_low", "change_high")


@dataclass
class Difference:
    """What differs between two sets of named figures."""

    equal: int = 0
    moved: list[str] = field(default_factory=list)
    went: list[str] = field(default_factory=list)
    came: list[str] = field(default_factory=list)


def rows_of(listing: str, read: Any) -> dict[str, Any]:
    """The rows of all results that a version has: "file: key" -> its values."""
    rows: dict[str, Any] = {}
    for name in listing.split():
        if not name.endswith((".json", ".parquet")):
            continue
        frame = table_of(name, read(name))
        for row in frame.to_dict("records"):
            key = " ".join(
                str(row.get(one))
                for one in KEY
                if row.get(one) not in (None, "") and row.get(one) == row.get(one)
            )
            rows[f"{Path(name).stem}: {key}"] = [
                float(v if (v := row.get(one)) is not None else math.nan) for one in VALUES
            ]
    return rows


def table_of(name: str, content: bytes) -> pd.DataFrame:
    """The rows of one result file, empty for files of another shape."""
    if name.endswith(".parquet"):
        return pd.read_parquet(BytesIO(content))
    read = json.loads(content)
    figures = read.get("figures", read.get("rows", ())) if isinstance(read, dict) else ()
    if not isinstance(figures, list):  # the name of the parquet file beside it
        return pd.DataFrame()
    rows = []
    for one in figures:
        low, high = one.get("interval") or (one.get("low"), one.get("high"))
        change = dict(zip(VALUES[3:], one.get("change") or (), strict=False))
        rows.append(
            one | {"low": low, "high": high, "change": None, "lam": one.get("lam")} | change
        )
    return pd.DataFrame(rows)


def compare(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> Difference:
    """Sort the keys of two sets of figures into equal, moved, went and came."""
    found = Difference(went=sorted(old.keys() - new.keys()), came=sorted(new.keys() - old.keys()))
    for key in sorted(old.keys() & new.keys()):
        one, other = old[key], new[key]
        if isinstance(one, str) or isinstance(other, str):
            same, said = (
                isinstance(one, str) and isinstance(other, str) and one == other,
                f"{_short(one)} -> {_short(other)}",
            )
        else:
            one, other = np.asarray(one, float), np.asarray(other, float)
            same = one.shape == other.shape and np.allclose(
                one, other, rtol=tolerance, atol=tolerance, equal_nan=True
            )
            said = f"{_short(one)} -> {_short(other)}"
            if one.shape == other.shape and one.size > 6:
                said = f"differs by {np.nanmax(np.abs(one - other)):.2g}"
        if same:
            found.equal += 1
        else:
            found.moved.append(f"{key}: {said}")
    return found


def _short(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else np.array2string(np.asarray(value, float).ravel()[:3], precision=4)
    )


def probed(tree: Path, tests: Path, only: str, folder: Path) -> dict[str, Any]:
    """The figures that `eval/probe.py` finds for the package of `tree`."""
    out = folder / f"{tree.name}.npz"
    environment = os.environ | {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}
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
    """What git prints in this repository."""
    return subprocess.run(("git", "-C", str(ROOT), *words), check=True, capture_output=True).stdout


def main() -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "ref", nargs="?", default="v0.3.0", help="tag or commit to compare with: %(default)s"
    )
    parser.add_argument(
        "--only", default="rows," + ",".join(PARTS), help="parts, with commas between: %(default)s"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-6, help="relative and absolute: %(default)s"
    )
    parser.add_argument("--json", type=Path, help="write the comparison there as well")
    given = parser.parse_args()
    parts = given.only.split(",")
    if strange := set(parts) - {"rows", *PARTS}:
        parser.error(
            f"--only: expected some of rows, {', '.join(PARTS)}; got {', '.join(sorted(strange))}"
        )
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    if "rows" in parts:
        listing = git("ls-tree", "-r", "--name-only", given.ref, RESULTS).decode()
        old |= rows_of(listing, lambda name: git("show", f"{given.ref}:{name}"))
        here = "\n".join(str(path.relative_to(ROOT)) for path in (ROOT / RESULTS).rglob("*"))
        new |= rows_of(here, lambda name: (ROOT / name).read_bytes())
    asked = ",".join(one for one in parts if one != "rows")
    if asked:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "base"
            git("worktree", "add", "--detach", str(base), given.ref)
            try:
                old |= probed(base, base, asked, Path(folder))
                new |= probed(ROOT, base, asked, Path(folder))
            finally:
                git("worktree", "remove", "--force", str(base))
    found = compare(old, new, given.tolerance)
    for title, keys in (("moved", found.moved), ("went", found.went), ("came", found.came)):
        print(f"== {title}: {len(keys)}", *keys, sep="\n  ")
    print(
        f"== {found.equal} equal to {given.ref} within {given.tolerance:g}, {len(found.moved)}"
        " moved"
    )
    if given.json:
        given.json.write_text(
            json.dumps({"ref": given.ref, "tolerance": given.tolerance} | vars(found), indent=1)
            + "\n"
        )
    return int(bool(found.moved))


if __name__ == "__main__":
    raise SystemExit(main())
