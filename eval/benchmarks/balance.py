"""Measure how many new prompts per second `balance_prompts` processes in two checkouts.

    git worktree add /tmp/before COMMIT
    python -m eval.benchmarks.balance --before /tmp/before
    python -m eval.benchmarks.balance --before /tmp/before --json FILE

The prompts come from the labelled sets in `tests/wording` and are used once each, so that no result
is cached. The checkouts are measured alternately, each time in a new process after a warm-up. A row
contains the median CPU time over all repetitions on a single thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from eval.tables import write_records

ROOT = Path(__file__).parents[2]
SETS = ("labelled", "scenes", "scenes_blind", "fresh", "languages_blind")
REPETITIONS = 5
_TIMED = """
import json, sys, time
from vldebias import balance_prompts
prompts = json.load(sys.stdin)
balance_prompts(["a nurse", "eine Person"], "gender", seed=0)
start = time.process_time()
for prompt in prompts:
    balance_prompts(prompt, "gender", seed=0)
print(time.process_time() - start)
"""


def read_prompts() -> list[str]:
    """Return the distinct prompts in the labelled sets."""
    prompts: dict[str, None] = {}
    for name in SETS:
        path = ROOT / "tests" / "wording" / f"{name}.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines():
            prompts[json.loads(line)["prompt"]] = None
    return list(prompts)


def seconds_of(checkout: Path, prompts: list[str]) -> float:
    """Return the CPU time that a checkout needs for the prompts."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _TIMED],
        input=json.dumps(prompts),
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def commit_of(checkout: Path) -> str:
    """Return the abbreviated commit of a checkout."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def measure(before: Path) -> dict[str, Any]:
    """Return the prompts per second in both checkouts, and their ratio."""
    prompts = read_prompts()
    seconds: dict[Path, list[float]] = {before: [], ROOT: []}
    for _ in range(REPETITIONS):
        for checkout, times in seconds.items():
            times.append(seconds_of(checkout, prompts))
    rates = {checkout: len(prompts) / statistics.median(s) for checkout, s in seconds.items()}
    return {
        "what": "balanced prompts",
        "prompts": len(prompts),
        "before": commit_of(before),
        "before, prompts/s": rates[before],
        "now, prompts/s": rates[ROOT],
        "now / before": rates[ROOT] / rates[before],
    }


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--before", type=Path, required=True, help="folder of the other checkout")
    options.add_argument("--json", type=Path, help="also write the result here")
    arguments = options.parse_args()
    row = measure(arguments.before.resolve())
    for name, value in row.items():
        print(f"{name:20} {value if isinstance(value, str) else f'{value:.5g}'}")
    if arguments.json:
        about = f"medians of {REPETITIONS} runs in turn, processor time of one thread"
        write_records(arguments.json, about, [row], "what", ("prompts", "before"))


if __name__ == "__main__":
    main()
