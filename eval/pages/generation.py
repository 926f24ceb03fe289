"""Write the tables for generated images and for audits of prompts."""

from __future__ import annotations

from pathlib import Path

from eval.tables import crossed, place_of, read, rows_in, span, table
from vldebias.measure.rows import Measurement

TERMINAL = Path(__file__).parents[2] / "docs" / "terminal"

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
    "default": "`cali`, lam lowered (for sets that are not about people)",
    "cali": "`cali`, lam = 500 (`paper`)",
    "difference": "`difference`",
    "fair pca": "`fair-pca` (fair PCA, without FairImagen's sampling)",
    "stated value": "a value stated for each image (as in `balanced-prompts`)",
}
ASSIGNED = ("stated value",)  # methods that assign shares, which have no sampling noise


def sampled() -> str:
    """Write the remaining gap from even shares and the cost of each method."""
    result = read("generation")
    rows = rows_in(result, "generation gender", "unseen professions")
    outside = rows_in(result, "generation gender", "outside the fit, portraits")
    costs = ["subject accuracy", "people outside the fit remain people"]
    lines = [
        ["method", "remaining share of the gap from even shares", "squared, corrected", *costs]
    ]
    for method, name in GENERATED.items():
        gap = rows[method, "discrepancy, share of none"]
        squared = span(rows[method, "discrepancy_squared, share of none"], ".2f")
        if method in ASSIGNED:
            squared = "assigned, nothing to correct"
        recognised = f"{rows[method, 'recognised'].value:.3f}"
        stays = f"{outside[method, 'shows what was asked for'].value:.3f}"
        lines.append([name, span(gap, ".2f"), squared, recognised, stays])
    n = rows["default", "discrepancy"].n
    note = (
        f"{n['professions']} held-out professions of the miniature world, {n['fits']} fits; 95%"
        " intervals over both."
    )
    return table(*lines, note=f"{note} From `eval/results/generation.json`.")


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


COLUMNS = (
    ("gap, original", "discrepancy", NONE),
    ("gap left", LEFT, OURS),
    ("gap left, words", LEFT, WORDS),
    ("words shown", "agreement", WORDS),
    ("clarity", "clarity", OURS),
    ("job, original", "recognised", NONE),
    ("job kept", "recognised, share of none", OURS),
    ("worst job kept", "worst job", OURS),
    ("other, original", "other stated", NONE),
    ("other", "other stated", OURS),
)
"""The title, metric and method of each column."""


def three_models() -> str:
    """Write the remaining gap and the cost of cross-attention and stated words on three models."""
    lines = [["model, attribute, split", *(title for title, _, _ in COLUMNS)]]
    n = {}
    images = set()
    for (model, attribute, split), rows in rows_by_place("steer_models").items():
        cells = [f"{MODELS[model]}, {attribute}, {split}"]
        for title, metric, method in COLUMNS:
            row = rows[metric, method]
            has_interval = title.startswith(("gap", "job kept")) or title == "other"
            cells.append(span(row, ".2f") if has_interval else f"{row.value:.2f}")
        n = rows["recognised", OURS].n
        images.add(n["images each"])
        lines.append(cells)
    fewest, most = sorted(images)
    note = (
        f"Each row: {n['jobs']} held-out jobs, {most} images of each ({fewest} with the"
        f" miniature), and {n['with another stated']} per job"
        " and value of the other attribute; 95% intervals over jobs. From"
        " `eval/results/steer_models.json` (`python -m eval.experiments.steering_models`)."
    )
    return table(*lines, note=note)


def gate() -> str:
    """Write how well the gate detects stated values and people by model and attribute."""
    lines = [["model, attribute", "stated values, splits 1 and 2", "people, splits 1 and 2"]]
    places = rows_by_place("steer_models")
    for model, attribute in dict.fromkeys((model, attribute) for model, attribute, _ in places):
        cells = [f"{MODELS[model]}, {attribute}"]
        for metric in ("auroc stated", "auroc person"):
            values = [places[model, attribute, split][metric, OURS].value for split in (1, 2)]
            cells.append(", ".join(f"{value:.2f}" for value in values))
        lines.append(cells)
    return table(*lines, note="From `eval/results/steer_models.json`.")


# ---- audits of prompts

WITHOUT_INTERVAL = ("lean_r2", "interval_width")


def predicted(row: Measurement) -> str:
    """Format a metric of a prediction, with its interval if there is one."""
    return f"{row.value:.2f}" if row.metric in WITHOUT_INTERVAL else span(row, ".2f")


def other_models() -> str:
    """Write how well the counts of other models predict a held-out model."""
    result = read("audit_other_models")
    names = {provenance.task: provenance.model for provenance in result.provenance}
    rows = [row for row in result.rows if row.subset == "two other models or more"]
    occupations = {}
    agreed = {}
    for row in result.rows:
        occupations.setdefault((row.task, row.subset), row.n.get("occupations", 0))
        if "agreed occupations" in row.n:
            agreed[row.task, row.subset] = row.n["agreed occupations"]
    return crossed(
        rows,
        {
            "left out": lambda row: (
                names[row.task] if names[row.task] == "all models" else f"`{names[row.task]}`"
            ),
            "occupations": lambda row: str(occupations[row.task, row.subset]),
            "others agree on": lambda row: str(agreed[row.task, row.subset]),
        },
        {
            "left_out_error": "mean error",
            "interval_coverage": "inside the others' range",
            "interval_width": "width of that range",
            "same_lean": "leans the same way",
            "opposite_lean": "leans the opposite way",
        },
        cell=predicted,
        note="From `eval/results/audit_other_models.json`.",
    )


def models_in_terminal() -> str:
    """Write the terminal output for prompts on which models disagree."""
    text = (TERMINAL / "models-80.txt").read_text(encoding="utf-8")
    return f"```text\n{text}```\n"
