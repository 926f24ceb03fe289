"""Write how far each default is ahead of its simplest rivals, for `docs/explanation/results.md`."""

from __future__ import annotations

from eval.tables import read, table
from vldebias.measure.rows import NONE, Measurement, TaskProvenance
from vldebias.report.result import Result

RESULT = "simple_rivals"
# A rival that the table leaves out: the default before the first release.
FORMER = "images with tests"
SECTIONS = {
    "classification": (
        "Worst-group accuracy. After a comma: rows that are clearly worse / better than text alone"
    ),
    "search": "MaxSkew@k above chance (lower is better)",
    "training": "R@10",
    "prompts": "Right changes minus ten times the wrong ones, per 100 labelled prompts",
}
EVEN = (
    "The median assumes that both classes are equally common, and always moves the boundary. With"
    " CLIP and on renders, it is clearly worse than text alone in many rows, and in more if one"
    " class is rare; unlabelled images do not show which is the case."
)
UNTESTED = (
    "Without the test on left-out images, labels gain another 0.03 to 0.08 and clearly help in 137"
    " rows instead of 77, but clearly harm 14 rows instead of 5. The test stays, because a default"
    " should rarely do harm."
)
CLIP, SMALL = "faces, CLIP ViT-B/32", "faces, small model"
# Why a default stays although it is clearly behind a rival, by task and rival.
REASONS = {
    (f"classification, unlabelled images: {CLIP}", "median"): EVEN,
    (f"classification, unlabelled images: {SMALL}", "median"): EVEN,
    (f"classification, 20 labelled images: {SMALL}", "median"): EVEN,
    (f"classification, 20 labelled images: {CLIP}", "20 labels"): UNTESTED,
    (f"classification, 20 labelled images: {CLIP}, one class rare", "20 labels"): UNTESTED,
    (f"classification, 20 labelled images: {SMALL}", "20 labels"): UNTESTED,
}


def ahead_of(result: Result) -> dict[tuple[str, str], Measurement]:
    """Return how far each default is ahead, by task and rival."""
    return {(row.task, row.method): row for row in result.rows if row.metric == "ahead"}


def behind(result: Result) -> set[tuple[str, str]]:
    """Return the tasks and rivals in which the default is clearly behind."""
    return {key for key, row in ahead_of(result).items() if row.interval[1] < 0}


def simple_rivals() -> str:
    """Write a table for each section, with one line per family."""
    result = read(RESULT)
    blocks = []
    for section, title in SECTIONS.items():
        lines = [
            ["family", "rows", "default", "mean", "rivals: mean, and by how much it is behind"]
        ]
        for about in result.provenance:
            if str(about.settings["section"]).partition(",")[0] == section:
                lines.append(_line(result, about))
        behind_of_reason: dict[str, list[str]] = {}
        for task, rival in sorted(behind(result)):
            if task.startswith(section):
                place = f"`{rival}` ({task.partition(', ')[2] or task.partition(': ')[2]})"
                behind_of_reason.setdefault(REASONS[task, rival], []).append(place)
        note = ""
        for reason, places in behind_of_reason.items():
            note += f"- Clearly better than the default: {'; '.join(places)}. {reason}\n"
        note = f"{note}\nFrom `eval/results/{RESULT}.json`.".strip()
        blocks.append(f"\n### {section.capitalize()}\n\n{title}.\n{table(*lines, note=note)}")
    return "".join(blocks).rstrip() + "\n\n"


def _line(result: Result, about: TaskProvenance) -> list[str]:
    """Return the cells of a family: its default, and each rival's mean and distance."""
    rows = [row for row in result.rows if row.task == about.task]
    ahead = {row.method: row for row in rows if row.metric == "ahead"}
    decides = rows[0].metric
    form = ".1f" if decides == "score" else ".3f"
    default = str(about.settings["default"])
    family = str(about.settings["family"])
    _, _, door = str(about.settings["section"]).partition(", ")
    rivals = []
    mean = ""
    for row in rows:
        if row.metric != decides or row.method.startswith(FORMER):
            continue
        counts = {
            other.metric: round(other.value)
            for other in rows
            if other.method == row.method and other.metric in ("worse", "better")
        }
        text = f"{row.value:{form}}"
        if row.method == default:
            mean = text
        else:
            name = "nothing" if row.method == NONE else row.method
            low, high = ahead[row.method].interval
            text = (
                f"{name} {text} ({ahead[row.method].value:+{form}} [{low:+{form}}, {high:+{form}}])"
            )
        if counts:
            text += f", {counts['worse']} / {counts['better']}"
        if row.method == default:
            mean = text
        else:
            rivals.append(text)
    return [
        f"{family}{door and f', {door}'}",
        f"{about.n['rows']}",
        default,
        mean,
        "; ".join(rivals),
    ]
