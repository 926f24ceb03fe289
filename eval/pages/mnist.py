"""Write the tables for the image experiments on MNIST."""

from __future__ import annotations

from collections.abc import Callable

from eval.pages.training import AT_AN_EDGE, edges
from eval.tables import crossed, half, place_of, read
from vldebias.measure.rows import Measurement


def _marked(name: str) -> Callable[[Measurement], str]:
    """Return a function that formats a value and marks settings at the edge of the search."""
    edge = edges(name)
    return lambda row: _figure(row) + edge(row)


def _figure(row: Measurement) -> str:
    """Format a value and half of its interval, with an escaped star."""
    return half(row).replace("*", r"\*")


def _method(row: Measurement) -> str:
    return row.method


def _note(name: str, base: str) -> str:
    """Describe the results in a table."""
    seeds = read(name).rows[0].n["seeds"]
    return (
        f"Mean of {seeds} seeds ± half of its 95% interval; \\* if the change from {base} on the"
        f" same seeds and images exceeds its interval. Intervals are not adjusted for multiple"
        f" comparisons."
        f" From `eval/results/{name}.json`."
    )


def coarse() -> str:
    """Write the fine accuracy, cosines and clusters of losses with coarse classes."""
    rows = read("coarse_digits").rows
    columns = {
        "fine accuracy": "fine accuracy",
        "fine accuracy of embeddings": "fine accuracy, embeddings",
        "cosine, same digit": "cosine: same digit",
        "cosine, other digit of the class": "other digit of the class",
        "cosine, other class": "other class",
        "agreement of clusters": "clusters and digits (ARI)",
    }
    note = _note("coarse_digits", "SupCon") + AT_AN_EDGE
    return crossed(rows, {"loss": _method}, columns, cell=_marked("coarse_digits"), note=note)


def strata() -> str:
    """Write the accuracy on the worst digit with Group DRO."""
    columns = {
        "worst digit": "worst-digit accuracy",
        "agreement of clusters": "clusters and digits (ARI)",
    }
    note = _note("rare_digit", "no groups")
    return crossed(read("rare_digit").rows, {"groups": _method}, columns, cell=_figure, note=note)


def noisy() -> str:
    """Write the linear evaluation accuracy by noise and loss."""
    rows = [row for row in read("noisy_mnist").rows if row.task == "noisy_mnist"]
    methods = {row.method: row.method for row in rows}

    def place(row: Measurement) -> str:
        where = place_of(row)
        return f"{where['noise']}, {where['eta']}"

    return crossed(
        rows,
        {"noise, eta": place},
        methods,
        line=place,
        column=_method,
        cell=_marked("noisy_mnist"),
        note=_note("noisy_mnist", "InfoNCE") + AT_AN_EDGE,
    )


def ssa() -> str:
    """Write the accuracy, robustness, shift gap and cost of the components of SSA-CLR."""
    columns = {
        "accuracy": "accuracy",
        "robust_accuracy@8/255": "FGSM 8/255",
        "robust_accuracy@16/255": "FGSM 16/255",
        "gap, original": "gap",
        "gap, mixed": "gap, mixed",
        "ms a step": "ms per step",
    }

    def write(row: Measurement) -> str:
        return f"{row.value:.0f}" if row.metric == "ms a step" else _figure(row)

    rows = read("ssa").rows
    return crossed(rows, {"arm": _method}, columns, cell=write, note=_note("ssa", "none"))


def nuclr() -> str:
    """Write the results of NUCLR variants."""
    columns = {name: name for name in ("linear evaluation", "recall@1 of the other view")}
    rows = read("nuclr_variants").rows
    note = _note("nuclr_variants", "NUCLR")
    return crossed(rows, {"arm": _method}, columns, cell=_figure, note=note)
