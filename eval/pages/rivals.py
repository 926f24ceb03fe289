"""Write each default next to the simplest alternatives, for `docs/explanation/results.md`."""

from __future__ import annotations

from eval.tables import read, table
from vldebias.measure.rows import NONE, Measurement, TaskProvenance
from vldebias.report.result import Result

RESULT = "simple_rivals"
# A rival that the table leaves out: the default before the first release.
FORMER = "images with tests"
# What is measured in each section, and on what. Training is in `docs/fine-tuning.md`.
SECTIONS = {
    "classification": (
        "Worst-group accuracy (higher is better), as a mean over rows: pairs of class prompts on a"
        " sample of images. In parentheses: how many rows are clearly worse, and clearly better,"
        " than with text alone"
    ),
    "search": "MaxSkew@k above chance (lower is better), as a mean over galleries",
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
    """Write a table for each section, with a row per family and a column per method."""
    result = read(RESULT)
    blocks = []
    for section, measured in SECTIONS.items():
        families: dict[str, dict[str, str]] = {}
        for about in result.provenance:
            if str(about.settings["section"]).partition(",")[0] != section:
                continue
            family = f"{about.settings['family']} ({about.n['rows']})"
            cells = families.setdefault(family, {})
            for method, cell in _cells(result, about).items():
                # A method is listed with every kind of input, and bold with its own.
                if method not in cells or cell.startswith("**"):
                    cells[method] = cell
        methods = list(dict.fromkeys(method for cells in families.values() for method in cells))
        lines = [["data (n)", *methods]]
        for family, cells in families.items():
            lines.append([family, *(cells.get(method, "") for method in methods)])
        blocks.append(
            f"\n### {section.capitalize()}\n\n{measured}. Bold: the default.\n"
            f"{table(*lines, note=_reasons(result, section))}"
        )
    return "".join(blocks).rstrip() + "\n\n"


def _cells(result: Result, about: TaskProvenance) -> dict[str, str]:
    """Return the mean of each method in a family, bold for the default, with counts of rows."""
    rows = [row for row in result.rows if row.task == about.task]
    decides = rows[0].metric
    counts = {(row.method, row.metric): round(row.value) for row in rows}
    cells = {}
    for row in rows:
        if row.metric != decides or row.method.startswith(FORMER):
            continue
        text = f"{row.value:.3f}"
        if (row.method, "worse") in counts:
            text += f" ({counts[row.method, 'worse']}, {counts[row.method, 'better']})"
        name = "nothing" if row.method == NONE else row.method
        cells[name] = f"**{text}**" if row.method == about.settings["default"] else text
    return cells


def _reasons(result: Result, section: str) -> str:
    """Write why each default stays that is clearly behind an alternative, with the source."""
    cases_of_rival: dict[tuple[str, str], list[str]] = {}
    for task, rival in sorted(behind(result)):
        if task.startswith(section):
            case = task.partition(", ")[2] or task.partition(": ")[2]
            cases_of_rival.setdefault((rival, REASONS[task, rival]), []).append(case)
    note = ""
    for (rival, reason), cases in cases_of_rival.items():
        note += (
            f"- `{rival}` is clearly better than the default here: {'; '.join(cases)}. {reason}\n"
        )
    return f"{note}\nFrom `eval/results/{RESULT}.json`.".strip()
