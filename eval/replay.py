"""Run the commands of committed results again, and compare their numbers.

python -m eval.replay stated_values skin

A number is equal up to rounding errors, inside if it is within its committed interval, and apart
otherwise. A number without a counterpart in the new run is missing.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from eval.tables import plain_parser, read
from vldebias.measure.rows import Measurement
from vldebias.report.result import Result

ROOT = Path(__file__).parents[1]
ROUNDING = 1e-6
# Times, which are not reproducible.
TIMES = ("seconds", "ms", "milliseconds", "ms a step")


def replay(name: str) -> Counter[str]:
    """Run the command of a result again, and compare its numbers with the committed ones.

    Raises:
        RuntimeError: If the command fails.
    """
    committed = read(name)
    program, *words = shlex.split(str(committed.command))
    if program == "vldebias":
        words = ["-m", "vldebias", *words]
    with tempfile.TemporaryDirectory() as folder:
        # Write to a separate folder, using the name of the result.
        path = Path(folder) / f"{name}.json"
        if "vldebias" in words:
            words[words.index("--out") + 1] = folder
            path = Path(folder) / "result.json"
        else:
            words[words.index("--json") + 1] = str(path)
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{committed.command}: {done.stderr[-600:]}")
        return compared(committed, Result.read(path))


def key_of(row: Measurement) -> tuple[Any, ...]:
    return row.task, row.metric, row.method, row.subset, row.lam, row.strength


def compared(committed: Result, again: Result) -> Counter[str]:
    """Count the numbers that are equal, inside their committed interval, apart, or missing."""
    value_of_key = {key_of(row): row.value for row in again.rows}
    ends: Counter[str] = Counter()
    for row in committed.rows:
        if row.metric in TIMES:
            continue
        value = value_of_key.get(key_of(row))
        low, high = row.interval
        if value is None:
            ends["missing"] += 1
        elif abs(value - row.value) <= ROUNDING * max(1.0, abs(row.value)):
            ends["equal"] += 1
        elif low - ROUNDING <= value <= high + ROUNDING:
            ends["inside"] += 1
        else:
            ends["apart"] += 1
    return ends


def main() -> int:
    options = plain_parser(__doc__)
    options.add_argument("results", nargs="+", help="names of results")
    total: Counter[str] = Counter()
    for name in options.parse_args().results:
        ends = replay(name)
        total += ends
        print(f"{name}: {dict(ends)}", flush=True)
    return int(total["apart"] + total["missing"] > 0)


if __name__ == "__main__":
    sys.exit(main())
