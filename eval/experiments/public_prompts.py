"""Measure how often, and why, ordinary public prompts are left unchanged.

    python -m eval.experiments.public_prompts PartiPrompts.tsv complex.txt --json FILE

Files contain one prompt per line, or a "Prompt" column if the name ends in .tsv. Repeated prompts
count once. The prompts are not labelled. The share of prompts that do not get a value because of
facts ("held_back") should be low, because ordinary prompts are rarely about facts. These prompts
are printed for review.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from eval.tables import parser, run
from vldebias.measure.metric import Metric
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.wording import balance_prompts

METHOD = "balanced-prompts"
ATTRIBUTES = ("gender", "race", "age")
SHARE = Metric("share_of_prompts", "share of the prompts")
HELD_BACK = Metric("held_back", "held back by facts, of all that would be written into")


def read(path: Path) -> list[str]:
    """Return the prompts in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".tsv":
        return [row["Prompt"] for row in csv.DictReader(text.splitlines(), delimiter="\t")]
    return [line.strip() for line in text.splitlines() if line.strip()]


def measure(paths: Sequence[Path]) -> Iterator[TaskResult]:
    """Yield the share of each reason and of prompts about facts, by attribute."""
    prompts = list(dict.fromkeys(prompt for path in paths for prompt in read(path)))
    for attribute in ATTRIBUTES:
        balanced = balance_prompts(prompts, attribute, seed=0)
        part = TaskResult(
            TaskProvenance(
                task=attribute,
                description="ordinary prompts without labels",
                settings={"files": [path.name for path in paths]},
                seeds=[0],
            )
        )
        counts = Counter(reason or "written" for reason in balanced.reasons)
        for reason, count in counts.most_common():
            interval = wilson_interval(count, len(prompts))
            share = count / len(prompts)
            part.add(SHARE, METHOD, share, interval, n={"prompts": len(prompts)}, subset=reason)
        held = [p for p, why in zip(prompts, balanced.reasons, strict=True) if why == "context"]
        print(*(f"{attribute}: {prompt}" for prompt in held), sep="\n")
        able = counts["written"] + len(held)
        if able:
            interval = wilson_interval(len(held), able)
            part.add(HELD_BACK, METHOD, len(held) / able, interval, n={"prompts": able})
        yield part


def main() -> None:
    """Measure the given files."""
    options = parser(__doc__)
    options.add_argument("files", nargs="+", type=Path, help="files of prompts, or .tsv")
    args = options.parse_args()
    run("public_prompts", lambda: measure(args.files), args.json)


if __name__ == "__main__":
    main()
