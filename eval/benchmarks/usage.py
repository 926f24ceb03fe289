"""Measure the CPU time of fast commands, such as help, lists and usage errors.

python -m eval.benchmarks.usage                          # print the table
python -m eval.benchmarks.usage --json FILE              # and write it
python -m eval.benchmarks.usage --before FOLDER          # compare with a different checkout

Each command runs in a new process. The minimum of a few runs is shown, because other programs can
only increase the time. Modules are compiled beforehand, as pip does when it installs a package. A
lower bound for all commands is `python -c "import typer, pydantic"`.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.tables import write_records

ROOT = Path(__file__).parents[2]
FLOOR = ("-c", "import typer, pydantic; pydantic.TypeAdapter(int)")
COMMANDS = {
    "help": "--help",
    "prompt sets": "prompts list",
    "methods": "methods",
    "unknown option": "debias gender --moddel x",
    "wrong prompt set": "debias gendre --model ViT-B-32 --pretrained openai",
    "wrong method": "debias gender --model ViT-B-32 --pretrained openai --method calli",
    "wrong architecture": "debias gender --model ViT-B-23 --pretrained openai",
    "wrong weights": "debias gender --model ViT-B-32 --pretrained openay",
    "wrong attribute": "generate x --attribute gendre",
    "missing prompts": "prompts balance nosuch.txt --attribute gender",
    "missing file": "debias gender --model ViT-B-32 --pretrained openai --reference nosuch.npz",
    "wrong suite": "eval waterbird --model ViT-B-32 --pretrained openai",
    "wrong setting": "train --data birds --set foo=1",
}


def processor_seconds(arguments: Sequence[str], checkout: Path, bytecode: Path) -> float:
    """Return the CPU seconds of a Python process that uses the package in a checkout.

    `bytecode` is the folder for compiled modules.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,  # this folder comes first in the module search path
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(checkouts: dict[str, Path], runs: int, bytecode: Path) -> list[dict[str, Any]]:
    """Return the shortest time of each command with each checkout, measured alternately.

    `bytecode` is the folder for compiled modules, which the first run of each command creates.
    """
    calls = {"the libraries alone": FLOOR}
    calls |= {label: ("-m", "vldebias", *text.split()) for label, text in COMMANDS.items()}
    rows = []
    for label, arguments in calls.items():
        times: dict[str, list[float]] = {name: [] for name in checkouts}
        for run in range(runs + 1):
            for name, folder in checkouts.items():
                seconds = processor_seconds(arguments, folder, bytecode)
                if run > 0:
                    times[name].append(seconds)
        rows += [
            {"what": label, "state": name, "seconds": min(values)} for name, values in times.items()
        ]
        print(label, {name: round(min(values), 2) for name, values in times.items()}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--before", type=Path, help="a different checkout to compare with")
    parser.add_argument("--runs", type=int, default=3, help="of each (default: %(default)s)")
    options = parser.parse_args()
    checkouts = {"now": ROOT}
    if options.before is not None:
        checkouts = {"before": options.before.resolve(), **checkouts}
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(checkouts, options.runs, Path(folder))
    table = Table("what", *checkouts)
    for label in dict.fromkeys(row["what"] for row in rows):
        cells = [f"{row['seconds']:.2f}" for row in rows if row["what"] == label]
        table.add_row(label, *cells)
    Console(width=100).print(table)
    if options.json:
        title = "Least processor seconds until the command line answers"
        write_records(options.json, title, rows, "what", ("state",), runs=options.runs)


if __name__ == "__main__":
    main()
