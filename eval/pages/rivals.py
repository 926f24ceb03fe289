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
EVEN = (
    "The median assumes that both classes are equally common, as they nearly are here. With a rare"
    " class or on renders, it is clearly worse than text alone in many rows."
)
UNTESTED = (
    "Without the test on left-out images, labels gain more on average, but twice as many rows are"
    " clearly worse than text alone."
)
NEW_DOMAIN = (
    "On a domain that is new to the model, the end of training is slightly better than the choice;"
    " on the model's own domain, it is clearly worse."
)
CLIP, SMALL = "faces, CLIP ViT-B/32", "faces, small model"
# Why a default stays although it is clearly behind a rival, by task and rival.
REASONS = {
    (f"classification, unlabelled images: {CLIP}", "median"): EVEN,
    (f"classification, unlabelled images: {SMALL}", "median"): EVEN,
    (f"classification, 20 labelled images: {SMALL}", "median"): EVEN,
    (f"classification, 20 labelled images: {CLIP}", "20 labels"): UNTESTED,
    (f"classification, 20 labelled images: {SMALL}", "20 labels"): UNTESTED,
    ("training: a domain that is new to the model", "end"): NEW_DOMAIN,
}


def ahead_of(result: Result) -> dict[tuple[str, str], Measurement]:
    """Return how far each default is ahead, by task and rival."""
    return {(row.task, row.method): row for row in result.rows if row.metric == "ahead"}


def behind(result: Result) -> set[tuple[str, str]]:
    """Return the tasks and rivals in which the default is clearly behind."""
    return {key for key, row in ahead_of(result).items() if row.interval[1] < 0}


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
        note = ""
        for task, rival in sorted(behind(result)):
            if task.startswith(section):
                note += f"- **{task}**, clearly behind `{rival}`: {REASONS[task, rival]}\n"
        blocks.append(f"\n### {section.capitalize()}\n\n{title}.\n{table(*lines, note=note)}")
    return "".join(blocks) + f"\nFrom `eval/results/{RESULT}.json`.\n\n"
