"""Write the accuracy of the small model that embeds the packaged photographs."""

from __future__ import annotations

from eval.photographs.small import OURS, READERS, TEACHER
from eval.tables import read, span, table

NAME = "photographs_model"


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
    return table(
        *lines,
        note="Five folds by title; the vectors and the heads are trained on the other four."
        " Brackets: 95% intervals over titles and photographs."
        f" From `eval/results/{NAME}.json`, which also has the agreement of both models.",
    )
