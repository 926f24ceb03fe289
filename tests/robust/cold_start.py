"""From nothing to the first figures: a clean clone, and the two commands of the README in it.

python -m tests.robust.cold_start [--json eval/results/cold_start.json]    # print what it takes, and write it

Clones this repository at its last commit into an empty folder, makes the environment there (packages from the registry
or the cache that this machine has), and runs `make quickstart`. Noted are minutes, MB on the disk, and the last three
sentences. Nothing of this checkout's environment is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.experiments.records import write_records
from eval.experiments.run import parser

ROOT = Path(__file__).parents[2]
OWN = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "VLDEBIAS_CACHE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # ours


def megabytes(folder: Path) -> float:
    """What the files below a folder take; one that has two names counts once."""
    found = {(told.st_dev, told.st_ino): told.st_size for path in folder.rglob("*") if (told := path.lstat())}
    return sum(found.values()) / 1e6


def timed(command: Sequence[str], folder: Path, **env: str) -> tuple[float, str]:
    """Minutes that a command takes, and what it printed.

    Raises:
        SystemExit: it failed; with its last words.
    """
    clean = {name: value for name, value in os.environ.items() if name not in OWN}
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=clean | env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: ended with {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    return (time.monotonic() - started) / 60, done.stdout


def measure(folder: Path, source: Path = ROOT) -> list[dict[str, Any]]:
    """A row per step, done in `folder`."""
    python = f"PYTHON={getattr(sys, '_base_executable', sys.executable)}"
    checkout, rows = folder / "vldebias", []
    steps = {
        "git clone": (["git", "clone", "--quiet", str(source), str(checkout)], folder),
        "make quickstart: its environment": (["make", python, ".venv/.ready"], checkout),
        "make quickstart: what it measures": (["make", python, "quickstart"], checkout),
    }
    for name, (command, where) in steps.items():
        minutes, printed = timed(command, where)
        last = [line for line in printed.splitlines() if line.strip()][-3:]
        rows.append({"step": name, "minutes": round(minutes, 2), "MB": round(megabytes(checkout)), "last": last})
        print(f"{name}: {minutes:.1f} minutes, then {rows[-1]['MB']:,} MB", *last, sep="\n  ", flush=True)
    return rows


def main() -> None:
    given = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    if given.json:
        about = "A clean clone, its environment and the quickstart"
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        write_records(given.json, about, rows, "step", cores=cores, load=round(os.getloadavg()[2], 1))


if __name__ == "__main__":
    main()
