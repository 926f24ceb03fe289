"""Write the accuracy of the small model and the effect of edits on packaged photographs."""

from __future__ import annotations

from eval.photographs.small import FIRST_READER, OURS, READERS, SECOND_READER, TEACHER, WORDS
from eval.tables import moved, read, span, table

NAME = "photographs_model"
RANDOM, NOTHING = "random", "none"


def encoder() -> str:
    """Compare the packaged text encoder with the model that it replaces."""
    result = read(NAME)
    lines = [["on titles not used for training", f"`{TEACHER}`", OURS]]
    for metric, title in {
        "recall@10": "a title's photograph is among the first 10",
        "gender_auc": "area under the curve for gender, from “A photo of a woman.” and “A photo of"
        " a man.”",
    }.items():
        subset = READERS if metric == "gender_auc" else ""
        rows = [result.row("texts", metric, name, subset=subset) for name in (TEACHER, OURS)]
        ((kind, count),) = rows[0].n.items()
        lines.append([f"{title} ({count:,} {kind})", *map(span, rows)])
    for row in result.rows:
        if row.metric == "agreement":
            title = f"rank correlation of cosines with {TEACHER}: {row.subset}"
            lines.append([title, "1", span(row)])
    return table(
        *lines,
        note="Five folds by title; the vectors and the heads are trained on the other four."
        " Brackets: 95% intervals over titles and photographs; for correlations, the lowest and"
        " highest fold."
        f" From `eval/results/{NAME}.json`.",
    )


def readers() -> str:
    """Write how many photographs each reader gave each label, and the agreement."""
    result = read(NAME)
    lines = [["label", FIRST_READER, SECOND_READER, "both", "Cohen's kappa"]]
    for row in result.rows:
        if row.metric == "kappa" and row.subset:
            counts = [
                result.row("readers", "labelled", name, subset=row.subset).value
                for name in (FIRST_READER, SECOND_READER, "both")
            ]
            lines.append([row.subset, *(f"{count:.0f}" for count in counts), span(row, ".2f")])
    total = result.row("readers", "kappa", "both")
    number = f"{total.n['photographs']}"
    lines.append(["all", number, number, "", span(total, ".2f")])
    return table(
        *lines,
        note=f"Brackets: 95% intervals over photographs. From `eval/results/{NAME}.json`.",
    )


def compared() -> str:
    """Compare the galleries that are labelled by looking at the photographs and by their titles."""
    result = read(NAME)
    sources = (READERS, WORDS)
    settings = {p.task: p.settings for p in result.provenance}
    tasks = [f"searches, {source}" for source in sources]
    lines = [["measure", *sources]]
    lines.append(
        [
            "photographs of women and of men, each",
            *(f"{settings[task]['gallery'] // 2}" for task in tasks),
        ]
    )
    for name, title in {
        "seen by both readers": "both readers see only women or only men",
        "seen differently": "of these, a different gender than the label",
        "reference": "photographs in the reference",
    }.items():
        lines.append([title, *(f"{settings[task][name]:,}" for task in tasks)])
    for method, title in {NOTHING: "no edit", RANDOM: "chance"}.items():
        rows = [result.row(task, "max_skew@20", method) for task in tasks]
        lines.append([f"MaxSkew@20, {title}", *(span(row, ".2f") for row in rows)])
    for method, title in {
        "default": "default, `reference=`",
        "difference+equalise": "`difference`, `reference=`",
    }.items():
        rows = [result.row(task, "max_skew@20", method) for task in tasks]
        lines.append([f"MaxSkew@20, {title}", *(f"{r.value:.2f} ({moved(r)})" for r in rows)])
        kept = [result.row(task, "kept@20", method) for task in tasks]
        lines.append([f"hits kept, {title}", *(f"{row.value:.2f}" for row in kept)])
    rows = [result.row("texts", "gender_auc", OURS, subset=source) for source in sources]
    known = [f"{span(row)} ({row.n['photographs']} photographs)" for row in rows]
    lines.append(["area under the curve for gender", *known])
    return table(
        *lines,
        note="MaxSkew@20 and hits kept: mean over 44 occupations, in galleries that were not used"
        " to train the heads. In parentheses: the change, with its 95% interval over queries."
        f" From `eval/results/{NAME}.json`.",
    )
