"""Test whether balanced prompts contradict historical facts or omit values that facts allow.

    python -m eval.experiments.dofair DIR
    python -m eval.experiments.dofair DIR --template "A painting of {group}, {event}" --json FILE

DIR contains tables from DoFaiR (Wan et al., EMNLP 2024; github.com/elainew728/factuality-tax-t2i,
folder `output`), which are not part of this project: `*gender*_imggen.csv` and `*race*_imggen.csv`,
with the columns group, event_name and existence_gender_list or existence_race_list. Each row
describes a group of people at an event, with the values that sources mention. `--template` formats
the prompt from the group and event.

If the sources mention one value, inserting a value is over-diversification, and the share of
changed prompts should be low. If they mention several, leaving a prompt unchanged is
under-diversification, and the share of changed prompts should be high. Both shares are reported,
because changing no prompt at all would be perfect according to the first one.
"""

from __future__ import annotations

import ast
import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eval.tables import parser, run
from vldebias.errors import InvalidInputError
from vldebias.measure.metric import Metric
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.wording import balance_prompts

TEMPLATE = "A picture of {group} in {event}"
METHOD = "balanced-prompts"
WRITTEN = {
    "one value": Metric(
        "written_into_one", "one value named, and a value written", "bias", "lower"
    ),
    "several values": Metric(
        "written_into_several", "several values named, and a value written", "utility", "higher"
    ),
}
REASON = Metric("left_unchanged", "left unchanged, by reason")


@dataclass(frozen=True)
class Event:
    """A group of people at an event, with the values that the sources mention."""

    group: str
    name: str
    values: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Return the kind of error that is possible."""
        return "one value" if len(self.values) == 1 else "several values"


def read(folder: Path, attribute: str) -> list[Event]:
    """Return the events for which the sources mention a value of an attribute.

    Raises:
        InvalidInputError: If there is not exactly one table, or if columns are missing.
    """
    paths = sorted(folder.glob(f"*{attribute}*_imggen.csv"))
    if len(paths) != 1:
        raise InvalidInputError(
            f"{folder}: expected exactly one DoFaiR table *{attribute}*_imggen.csv, got"
            f" {[path.name for path in paths]}"
        )
    with paths[0].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    column = f"existence_{attribute}_list"
    missing = {column, "group", "event_name"} - set(rows[0] if rows else ())
    if missing:
        raise InvalidInputError(f"{paths[0]}: missing columns {sorted(missing)}")
    events = [
        Event(row["group"], row["event_name"], tuple(ast.literal_eval(row[column]))) for row in rows
    ]
    return [event for event in events if event.values]


def measure(folder: Path, template: str) -> Iterator[TaskResult]:
    """Yield the rates of both errors for gender and race, and the reasons for unchanged prompts."""
    for attribute in ("gender", "race"):
        events = read(folder, attribute)
        part = TaskResult(
            TaskProvenance(
                task=attribute,
                description="values written into prompts about history",
                settings={"template": template},
                seeds=[0],
            )
        )
        for kind, metric in WRITTEN.items():
            prompts = [
                template.format(group=event.group, event=event.name)
                for event in events
                if event.kind == kind
            ]
            balanced = balance_prompts(prompts, attribute, seed=0)
            written = sum(value is not None for value in balanced.values)
            n = {"prompts": len(prompts)}
            interval = wilson_interval(written, len(prompts))
            part.add(metric, METHOD, written / len(prompts), interval, n=n)
            reasons = Counter(reason for reason in balanced.reasons if reason is not None)
            for reason, count in reasons.most_common():
                where = f"{kind}: {reason}"
                part.add(REASON, METHOD, count / len(prompts), n=n, subset=where)
        yield part


def main() -> None:
    """Measure the tables in a folder."""
    options = parser(__doc__)
    options.add_argument("folder", type=Path, help="folder with the tables from DoFaiR")
    options.add_argument("--template", default=TEMPLATE, help="prompt with {group} and {event}")
    args = options.parse_args()
    run("dofair", lambda: measure(args.folder, args.template), args.json)


if __name__ == "__main__":
    main()
