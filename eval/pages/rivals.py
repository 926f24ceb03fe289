"""Write how far each default is ahead of its simplest rivals, for `docs/explanation/results.md`."""

from __future__ import annotations

from eval.tables import read, table
from vldebias.measure.rows import NONE, Measurement
from vldebias.report.result import Result

RESULT = "simple_rivals"
SECTIONS = {
    "classification": "Worst-group accuracy",
    "search": "MaxSkew@k above chance (lower is better)",
    "training": "R@10",
    "prompts": "Right changes minus ten times the wrong ones, per 100 labelled prompts",
}
# Why a default stays although it is clearly behind a rival, by task and rival.
REASONS: dict[tuple[str, str], str] = {}


def ahead_of(result: Result) -> dict[tuple[str, str], Measurement]:
    """Return how far each default is ahead, by task and rival."""
    return {(row.task, row.method): row for row in result.rows if row.metric == "ahead"}


def simple_rivals() -> str:
    """Write a table for each section, with one line per family and method."""
    result = read(RESULT)
    ahead = ahead_of(result)
    blocks = []
    for section, title in SECTIONS.items():
        lines = [["family", "method", "mean", "the default is ahead by [95%]", "n"]]
        for about in result.provenance:
            if str(about.settings["section"]).partition(",")[0] != section:
                continue
            decides = next(row.metric for row in result.rows if row.task == about.task)
            form = ".1f" if section == "prompts" else ".3f"
            for row in result.rows:
                if (row.task, row.metric) != (about.task, decides):
                    continue
                is_default = row.method == about.settings["default"]
                name = "nothing" if row.method == NONE else row.method
                family = str(about.task).partition(": ")[2]
                door = str(about.settings["section"]).partition(", ")[2]
                cells = [", ".join(filter(None, (family, door))), name, f"{row.value:{form}}"]
                if is_default:
                    cells = [f"**{cell}**" for cell in cells] + ["default", f"{about.n['rows']}"]
                else:
                    gap = ahead[about.task, row.method]
                    low, high = gap.interval
                    cells += [f"{gap.value:+{form}} [{low:+{form}}, {high:+{form}}]", ""]
                lines.append(cells)
        reasons = [
            f"- {task.partition(', ')[2] or task}, {rival}: {reason}"
            for (task, rival), reason in REASONS.items()
            if task.startswith(section)
        ]
        note = "\n".join(["Clearly behind:", "", *reasons]) if reasons else ""
        blocks.append(f"\n### {section.capitalize()}\n\n{title}.\n{table(*lines, note=note)}")
    return "".join(blocks) + f"\nFrom `eval/results/{RESULT}.json`.\n\n"
