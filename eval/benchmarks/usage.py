"""Measure the CPU time of fast commands, such as help, lists and usage errors.

python -m eval.benchmarks.usage                          # print the table
python -m eval.benchmarks.usage --json FILE              # and write it

Each command runs in a new process. The minimum of a few runs is shown, because other programs can
only increase the time. Modules are compiled beforehand, as pip does when it installs a package. A
lower bound for all commands is `python -c "import typer, pydantic"`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.tables import parser, write_records

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


def processor_seconds(arguments: Sequence[str], bytecode: Path) -> float:
    """Return the CPU seconds of a Python process that uses the package.

    `bytecode` is the folder for compiled modules.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,  # this folder comes first in the module search path
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(runs: int, bytecode: Path) -> list[dict[str, Any]]:
    """Return the shortest time of each command.

    `bytecode` is the folder for compiled modules, which the first run of each command creates.
    """
    calls = {"the libraries alone": FLOOR}
    calls |= {label: ("-m", "vldebias", *text.split()) for label, text in COMMANDS.items()}
    rows = []
    for label, arguments in calls.items():
        processor_seconds(arguments, bytecode)
        seconds = min(processor_seconds(arguments, bytecode) for _ in range(runs))
        print(f"{seconds:.2f} {label}", flush=True)
        rows.append({"what": label, "seconds": seconds})
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=3, help="of each (default: %(default)s)")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args.runs, Path(folder))
    if args.json:
        title = "Least processor seconds until the command line answers"
        write_records(args.json, title, rows, "what", runs=args.runs)


if __name__ == "__main__":
    main()
