"""How long until a newcomer sees something: each kind of user, from an empty folder, in a process that starts cold.

python -m tests.robust.first_minutes                                            # print the table
python -m tests.robust.first_minutes --json eval/results/first_minutes.json     # and write it

A user runs what their page of the documentation shows on the embedded models: a block of Python as it stands there, or
a command. Noted are the seconds until the first line that is printed, or the first file that is kept, and until all is
done. The environment is set up already.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.experiments.records import write_records
from eval.experiments.run import parser

DOCS = Path(__file__).parents[2] / "docs"
POLL = 0.05  # seconds between two looks into the folder


@dataclass(frozen=True)
class Step:
    """What one user does. source: "page.md: words" for the block of a page with these words, or a command line."""

    user: str
    does: str
    source: str

    @property
    def call(self) -> list[str]:
        page, words = self.source.split(": ", 1) if ".md: " in self.source else ("", "")
        if not page:
            return ["-m", *self.source.split()]
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
        (block,) = (block for block in blocks if words in block)
        return ["-c", block]


STEPS = [
    Step("ships Stable Diffusion", "attaches and draws", "tutorials/ship-stable-diffusion.md: attachment.strength"),
    Step("ships Stable Diffusion", "draws a grid of methods", "tutorials/ship-stable-diffusion.md: grid.png"),
    Step(
        "needs numbers that hold",
        "looks what a projection does to texts",
        'tutorials/evaluate-clip.md: inspect(model, "professions-gender"',
    ),
    Step("needs numbers that hold", "measures four methods on birds", "tutorials/evaluate-clip.md: vldebias.evaluate("),
    Step("must show evidence", "asks for the texts of a suite", "vldebias eval texts fairface"),
    Step("must show evidence", "audits from embeddings alone", "tutorials/audit-embeddings.md: audit.csv"),
    Step("fine-tunes on scraped captions", "two steps with RINCE in Python", "tutorials/fine-tune.md: LoopSettings"),
    Step(
        "fine-tunes on scraped captions",
        "ranks pairs by suspicion",
        "vldebias pairs birds --caption-noise 0.3 --items 500",
    ),
    Step("looks around", "help", "vldebias --help"),
    Step("looks around", "the whole quickstart", "vldebias quickstart"),
]


def timed(step: Step) -> dict[str, Any]:
    """Seconds until the first output and until the end, in an empty folder of its own with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"PYTHONUNBUFFERED": "1", "VLDEBIAS_CACHE": f"{folder}/cache", "PYTHONPATH": str(DOCS.parent)}
        env = {**os.environ, **own}
        started, first = time.perf_counter(), None
        with (Path(folder) / "printed").open("w+b") as printed:
            work = Path(folder) / "work"
            work.mkdir()
            command = [sys.executable, *step.call]
            running = subprocess.Popen(command, cwd=work, env=env, stdout=printed, stderr=subprocess.DEVNULL)
            while running.poll() is None:
                if first is None and (os.fstat(printed.fileno()).st_size or any(work.rglob("*.*"))):
                    first = time.perf_counter() - started
                time.sleep(POLL)
        done = time.perf_counter() - started
    if running.returncode:
        raise SystemExit(f"{step.does}: ended with {running.returncode}; run {step.source} by hand")
    seconds = {"first": round(done if first is None else first, 1), "done": round(done, 1)}
    return {"user": step.user, "does": step.does, "source": step.source} | seconds


def main() -> None:
    arguments = parser(__doc__).parse_args()
    rows = []
    for step in STEPS:
        rows.append(timed(step))
        print("{user}: {does}: first output after {first} s, done after {done} s".format(**rows[-1]), flush=True)
    if arguments.json:
        machine = {"cores": os.cpu_count(), "machine": platform.machine()}
        about = "Seconds to the first output and to the end"
        write_records(arguments.json, about, rows, "does", ("user", "source"), **machine)


if __name__ == "__main__":
    main()
