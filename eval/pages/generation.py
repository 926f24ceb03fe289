"""Write the tables for generated images and for audits of prompts."""

from __future__ import annotations

from eval.tables import crossed, place_of, read, rows_in, span, table
from vldebias.measure.rows import Measurement

# ---- the miniature

WORDINGS = {
    "unseen professions": '"A photo of a nurse."',
    "professions, as people write them": "in a place, with a thing, adjectives, tags",
}
METHODS = {"none": "as generated", "balanced-prompts": "balanced"}


def wordings() -> str:
    """Write how well the miniature follows training prompts and realistic prompts."""
    rows = []
    for row in read("wordings").rows:
        if row.subset in WORDINGS and row.method in METHODS:
            rows.append(row)
    order = list(WORDINGS)
    return crossed(
        sorted(rows, key=lambda row: order.index(row.subset)),
        {
            "prompts": lambda row: WORDINGS[row.subset],
            "method": lambda row: METHODS[row.method],
            "n": lambda row: f"{row.n['professions']} x {row.n['images each']}",
        },
        {"recognised": "profession is recognised", "unknown": "gender is unclear"},
        cell=lambda row: span(row, ".2f"),
        note="From `eval/results/wordings.json` (`vldebias eval wordings`).",
    )


# ---- docs/generation.md

GENERATED = {  # rows of the result and their names on the page
    "none": "none",
    "cali": "`cali`, lam = 500 (`paper`)",
    "balanced-prompts": "a stated value (`balanced-prompts`)",
}


def sampled() -> str:
    """Write the gap from even shares and the subject accuracy of each method."""
    rows = rows_in(read("quickstart"), "generation gender", "unseen professions")
    lines = [["method", "gap from even shares", "subject accuracy"]]
    for method, name in GENERATED.items():
        recognised = f"{rows[method, 'recognised'].value:.3f}"
        lines.append([name, span(rows[method, "discrepancy"], ".2f"), recognised])
    n = rows["none", "discrepancy"].n
    note = (
        f"{n['professions']} held-out professions of the miniature world, {n['images each']} images"
        ' each, for prompts such as "A photo of an editor."; 95% intervals over professions. From'
        " `eval/results/quickstart.json`."
    )
    return table(*lines, note=note)


# ---- cross-attention on three models

MODELS = {"miniature": "miniature", "clip": "`clip`", "pixart": "`pixart`"}
WORDS, OURS, NONE = "balanced-prompts", "cross-attention", "none"
LEFT = "discrepancy, share of none"
Place = tuple[str, str, int]


def rows_by_place(name: str) -> dict[Place, dict[tuple[str, str], Measurement]]:
    """Return the rows of a result by (model, attribute, split), and by (metric, method)."""
    rows: dict[Place, dict[tuple[str, str], Measurement]] = {}
    for row in read(name).rows:
        place = place_of(row)
        key = (row.task, place["attribute"], place["split"])
        rows.setdefault(key, {})[row.metric, row.method] = row
    return dict(sorted(rows.items(), key=lambda item: list(MODELS).index(item[0][0])))


MEASURED = ((LEFT, OURS), (LEFT, WORDS), ("other stated", NONE), ("other stated", OURS))
"""The metrics and methods in the table."""


def three_models() -> str:
    """Write the remaining gap and the cost of cross-attention and stated words on three models."""
    rows = rows_by_place("steer_models")
    lines = [["model, attribute", "remaining gap", "balanced prompts", "other value shown"]]
    for model, attribute in dict.fromkeys((model, attribute) for model, attribute, _ in rows):
        cells = []
        for metric, method in MEASURED:
            values = [rows[model, attribute, split][metric, method].value for split in (1, 2)]
            cells.append(", ".join(f"{value:.2f}" for value in values))
        ours, words, before, after = cells
        other = f"no method: {before}<br>cross-attention: {after}"
        lines.append([f"{MODELS[model]}, {attribute}", ours, words, other])
    note = (
        "Two splits of 10 held-out jobs. Gap: of cross-attention and of balanced prompts, relative"
        ' to no method. Other value: another stated attribute (hair in "a red-haired pilot").'
        " From `eval/results/steer_models.json` (`python -m eval.experiments.steering_models`)."
    )
    return table(*lines, note=note)
