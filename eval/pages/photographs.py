"""Write the accuracy of the small model and the effect of edits on packaged photographs."""

from __future__ import annotations

from eval.photographs.small import OURS, TEACHER
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
        rows = [result.row("texts", metric, name) for name in (TEACHER, OURS)]
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


def drawn() -> str:
    """Write the effect of the default and of other methods in each gallery."""
    result = read(NAME)
    methods = {
        "default": "default, `reference=`",
        "difference+equalise": "`difference`, `reference=`",
    }
    head = ["women selected with seed", "no edit", "chance"]
    for title in methods.values():
        head += [title, "hits kept"]
    lines = [head]
    for protocol in result.provenance:
        task = protocol.task
        if not task.startswith("searches"):
            continue
        before, chance = (result.row(task, "max_skew@20", name) for name in (NOTHING, RANDOM))
        line = [task.rpartition(" ")[2], span(before, ".2f"), f"{chance.value:.2f}"]
        for method in methods:
            row = result.row(task, "max_skew@20", method)
            line += [
                f"{row.value:.2f} ({moved(row)})",
                f"{result.row(task, 'kept@20', method).value:.2f}",
            ]
        lines.append(line)
    return table(
        *lines,
        note="MaxSkew@20, mean over 44 occupations, in galleries of 78 women and 78 men that were"
        " not used to train the heads. In parentheses: the change, with its 95% interval over"
        " queries."
        f" From `eval/results/{NAME}.json`.",
    )
