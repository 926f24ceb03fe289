"""What the command line costs before it does anything: `vldebias --help` (ours) against importing torch (plain).

python -m eval.benchmarks.startup                                         # print the table
python -m eval.benchmarks.startup --json eval/results/bench_startup.json  # and write it

Each in a process of its own; processor time of the process and its children.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from eval.benchmarks.timing import arguments, report

COMMANDS = {
    "vldebias --help": ["-m", "vldebias", "--help"],
    "vldebias eval list": ["-m", "vldebias", "eval", "list"],
    "import vldebias": ["-c", "import vldebias"],
}


def seconds(arguments: Sequence[str]) -> float:
    """Processor time of one process."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure(repetitions: int) -> list[dict[str, Any]]:
    """A row per command, measured in turn after one call of each."""
    calls = {**COMMANDS, "torch": ["-c", "import torch"]}
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(repetitions + 1)][1:]
    times = {name: statistics.median(one[name] for one in rounds) for name in calls}
    plain = times.pop("torch")
    return [
        {"what": f"{name} / import torch", "size": "", "ours": ours, "plain": plain, "ratio": plain / ours}
        for name, ours in times.items()
    ]


if __name__ == "__main__":
    given = arguments(__doc__)
    report("bench_startup", measure(given.repetitions), given.json)
