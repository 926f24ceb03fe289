"""Run the commands of committed results again, and compare their figures.

python -m eval.replay                    # commands that take less than a minute
python -m eval.replay workers validity   # only these results
python -m eval.replay --list             # list commands, times, dates and reasons for exclusion
python -m eval.replay --json eval/results/replay.json   # also write the comparison

A figure is equal up to rounding errors, inside if it is within its committed interval, and apart
otherwise. A figure without a counterpart in the new run is missing, or skipped if the run reports
that it lacks data for a part. If a command fails, the remaining commands still run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from eval.tables import RESULTS
from vldebias.measure.metric import Metric
from vldebias.report.result import NONE, Measurement, Result, TaskProvenance, TaskResult

ROOT = Path(__file__).parents[1]
MOST = 60.0  # commands that take more seconds are not run again
ROUNDING = 1e-6
# Fast commands whose duration is not recorded.
QUICK = ("linear_birds", "linear_portraits")
# Reasons why the commands of some results cannot be run in a checkout.
NOT_HERE = {
    "dofair": "reads DoFaiR's prompts, which are not in the repository",
    "public_prompts": "reads public lists of prompts, which are not in the repository",
    "rivals_few": "reads embeddings of photographs, which CelebA's licence keeps out",
    "photographs": "reads features of photographs, which their licences keep out",
    "prompt_rules": "one of its files holds prompts that were being worked on",
    "prompt_rules_first_a": "first run on new prompts: the rules have read them since",
    "prompt_rules_first_b": "first run on new prompts: the rules have read them since",
    "prompt_rules_first_c": "first run on new prompts: the rules have read them since",
    "prompt_rules_first_e": "first run on new prompts: the rules have read them since",
    "prompt_rules_blind2": "first run on new prompts: the rules have changed since",
    "prompt_rules_fresh": "first run on new prompts: the rules have changed since",
    "prompt_rules_scenes_blind": "first run on new prompts: the rules have changed since",
    "audit_models": "reads embeddings of texts by CLIP ViT-B/32, which are not in the repository",
    "rewritten_pairs": "reads FairPro's pairs, which are not in the repository",
    "rivals_real": "reads embeddings of photographs, which CelebA's licence keeps out",
    "harm": "reads embeddings of photographs, which CelebA's licence keeps out",
    "photographs_rerank": "reads photographs, whose licences keep them out",
    "rerank_harm": "reads embeddings of photographs, which CelebA's licence keeps out",
    "photographs_model": "reads a model of texts, which is not in the repository",
    "real_captions": "reads photographs and captions, whose licences keep them out",
    "bench_rerank": "times a machine",
    "steer": "takes ten minutes",
    "steer_cost": "times a machine",
    "steer_guidance": "reads the small models, which are trained first",
    "steer_models": "reads the small models, which are trained first",
    "steer_models_choice": "reads the small models, which are trained first",
    "coarse_digits": "reads MNIST, which `make mnist` fetches",
    "noisy_mnist": "reads MNIST, which `make mnist` fetches",
    "nuclr_variants": "reads MNIST, which `make mnist` fetches",
    "rare_digit": "reads MNIST, which `make mnist` fetches",
    "ssa": "reads MNIST, which `make mnist` fetches",
    "install_sizes": "fills environments from a package index",
    "other_data": "needs grakel, gymnasium and an archive of sentences",
    "replay": "holds what this command found",
}
FIGURES = Metric("figures", "figures")
# Experiments print this if they lack data for some figures.
SKIPPED = "SKIPPED:"
# Times, which are not reproducible.
TIMES = ("seconds", "ms", "milliseconds", "times_a_sort", "ms a step")


@dataclass(frozen=True)
class Command:
    """A committed result with its command, and the reason why it is not run again (or "")."""

    name: str
    words: str
    seconds: float | None
    date: str
    rows: int
    reason: str

    def replay(self) -> Counter[str]:
        """Run the command again, and compare its figures with the committed ones.

        Raises:
            RuntimeError: If the command fails.
        """
        program, *words = shlex.split(self.words)
        if program == "vldebias":
            words = ["-m", "vldebias", *words]
        with tempfile.TemporaryDirectory() as folder:
            # Write to a separate folder, using the name of the result.
            path = Path(folder) / f"{self.name}.json"
            if "vldebias" in words:
                words[words.index("--out") + 1] = folder
                path = Path(folder) / "result.json"
            else:
                words[words.index("--json") + 1] = str(path)
            done = subprocess.run(
                [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"{self.words}: {done.stderr[-600:]}")
            again = Result.read(path)
        committed = Result.read(RESULTS / f"{self.name}.json")
        return compared(committed, again, has_skipped=SKIPPED in done.stderr)


def commands() -> list[Command]:
    """Return the command of every committed result."""
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        # Do not load the rows, which may be in a parquet file.
        content = json.loads(path.read_text(encoding="utf-8"))
        reason = NOT_HERE.get(path.stem, "")
        seconds = content["seconds"]
        if not reason and path.stem not in QUICK:
            if seconds is None:
                reason = "takes minutes or hours, or times a machine"
            elif seconds > MOST:
                reason = f"takes {seconds / 60:.0f} minutes" if seconds > 90 else "takes a minute"
        words = content.get("command") or ""
        date = (content.get("date") or "")[:10]
        rows = content["figures"]
        count = len(rows)
        if isinstance(rows, dict):
            count = parquet.read_metadata(path.parent / rows["file"]).num_rows
        found.append(Command(path.stem, words, seconds, date, count, reason))
    return found


def key_of(row: Measurement) -> tuple[Any, ...]:
    return row.task, row.metric, row.method, row.subset, row.lam, row.strength


def compared(committed: Result, again: Result, *, has_skipped: bool = False) -> Counter[str]:
    """Count the figures that are equal, inside their committed interval, apart, or missing.

    If `has_skipped` is True, the new run reported missing data for a part, and missing figures
    count as skipped.
    """
    value_of_key = {key_of(row): row.value for row in again.rows}
    ends: Counter[str] = Counter()
    for row in committed.rows:
        if row.metric in TIMES:
            continue
        value = value_of_key.get(key_of(row))
        low, high = row.interval
        if value is None:
            ends["skipped" if has_skipped else "missing"] += 1
        elif abs(value - row.value) <= ROUNDING * max(1.0, abs(row.value)):
            ends["equal"] += 1
        elif low - ROUNDING <= value <= high + ROUNDING:
            ends["inside"] += 1
        else:
            ends["apart"] += 1
    return ends


def write(path: Path, name: str, ends: Mapping[str, int]) -> None:
    """Add the comparison for one result to a file of comparisons.

    Other rows in the file are kept, because running all commands takes hours.
    """
    parts = []
    if path.is_file():
        before = Result.read(path)
        for provenance in before.provenance:
            rows = [row for row in before.rows if row.task == provenance.task]
            parts.append(TaskResult(provenance, rows))
    settings = {"date": datetime.now(UTC).date().isoformat()}
    about = TaskProvenance(
        task=name, description="Figures of a second run of its command.", settings=settings
    )
    part = TaskResult(about)
    for end, count in ends.items():
        part.add(FIGURES, NONE, count, n={"figures": sum(ends.values())}, subset=end)
    parts = [*(part for part in parts if part.provenance.task != name), part]
    parts.sort(key=lambda part: part.provenance.task)
    Result.from_tasks("replay", parts, seconds=None).write(path)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("results", nargs="*", help="names of results (default: all fast ones)")
    options.add_argument("--list", action="store_true", help="run nothing; list all")
    options.add_argument("--json", type=Path, help="write the comparison to this file")
    args = options.parse_args()
    known = {command.name: command for command in commands()}
    if args.list:
        for command in known.values():
            state = command.reason or "replayed"
            print(f"{command.name}: {command.rows} figures, {command.date}, {state}")
            print(f"    {command.words}")
        return 0
    chosen = args.results or [name for name, command in known.items() if not command.reason]
    total: Counter[str] = Counter()
    for name in chosen:
        try:
            ends = known[name].replay()
        except RuntimeError as error:
            print(error, file=sys.stderr)
            ends = Counter(failed=known[name].rows)
        total += ends
        print(f"{name}: {dict(ends)}", flush=True)
        if args.json is not None:
            write(args.json, name, ends)
    print(f"together: {dict(total)}")
    return int(total["apart"] + total["missing"] + total["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
