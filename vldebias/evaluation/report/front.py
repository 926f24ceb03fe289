"""What a page begins with: how it was made, a sentence of conclusion per task, and gain beside cost for each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vldebias.evaluation.report.tables import Block
from vldebias.evaluation.report.words import change, direction, metric_title, sentence, verdict
from vldebias.evaluation.result import Measurement, Provenance, Result

__all__ = ["Forest", "Mark", "conclusion", "evidence", "forest", "overall"]

FEW = 12  # groups that are counted by name
SHOWN = 6  # methods of a forest; the others are in the appendix
HASH = 12  # characters of a digest that a reader compares by eye; the whole one stands in the appendix


# ---- how it was made ---------------------------------------------------------------------------------------


def evidence(result: Result, tasks: Iterable[Block]) -> list[tuple[str, str]]:
    """What an auditor asks first, by name: when, by which command, where, with what, on which weights and data."""
    told = result.provenance
    lines = {
        "measured": [f"{result.date or 'date not recorded'}, {round(result.seconds):,} s"],
        "command": [result.command or "not recorded"],
        "machine": [result.platform or "not recorded"],
        "code": [f"commit {result.commit}" if result.commit else "commit not recorded"],
        "packages": [", ".join(f"{name} {version}" for name, version in result.versions.items())],
        "weights": [f"{p.model}: {(p.fingerprint or {}).get('structure', 'fingerprint not known')}" for p in told],
        "prompts": [f"{p.prompts} {p.prompts_hash[:HASH]}" for p in told],
        "data": [f"{name}: {digest[:HASH]}" for p in told for name, digest in p.data.items()],
        "counted": _counts(tasks),
    }
    return [(name, "; ".join(dict.fromkeys(texts)) or "no digest recorded") for name, texts in lines.items()]


def _counts(tasks: Iterable[Block]) -> list[str]:
    """ "birds test: 4,000 images (landbird/land 985, ...)" for each split, with its groups where figures name them."""
    splits: dict[str, dict[str, str]] = {}
    for block in tasks:
        if block.provenance is not None:
            whole = ", ".join(f"{count:,} {unit}" for unit, count in block.provenance.n.items() if count)
            groups = _groups(block.rows, block.provenance)
            counts = splits.setdefault(block.provenance.split, {})
            counts[whole] = groups or counts.get(whole, "")
    return [
        f"{split}: " + "; ".join(whole + (f" ({groups})" if groups else "") for whole, groups in counts.items())
        for split, counts in splits.items()
    ]


def _groups(rows: Iterable[Measurement], told: Provenance) -> str:
    """Groups that share the images out among them, with their numbers; not parts that overlap, such as queries."""
    groups = told.settings.get("groups")
    if not isinstance(groups, Mapping):
        groups = {row.subset: row.n["images"] for row in rows if row.subset and next(iter(row.n), "") == "images"}
    apart = 1 < len(groups) <= FEW and sum(groups.values()) <= told.n.get("images", 0)
    return ", ".join(f"{name} {count:,}" for name, count in groups.items()) if apart else ""


# ---- what came out -----------------------------------------------------------------------------------------


def overall(tasks: Iterable[Block]) -> str:
    """One sentence over all tasks: in how many bias is lessened, and in how many of those that costs utility."""
    moved = [(gains, block.moved(utility=True)) for block in tasks if (gains := block.moved(utility=False))]
    if not moved:
        return "No method was compared with none."
    best = [(_chief(gains.values()), costs) for gains, costs in moved]
    better = [(row, costs.get(row.method)) for row, costs in best if verdict(row) == "better"]
    measured = [cost for _, cost in better if cost is not None]
    text = f"Bias is lessened beyond its interval in {len(better)} of {len(moved)} tasks by a method without labels"
    if not measured:
        return f"{text}."
    fell = sum(verdict(cost) == "worse" for cost in measured)
    return f"{text}; of {len(measured)} of these that measure utility, it falls beyond its interval in {fell}."


def conclusion(block: Block) -> str:
    """One sentence: what the best method without labels gains in the first measure of bias, and what that costs.

    "Best" is picked after measuring, among the changes whose intervals exclude zero.
    """
    gains, costs = _moved(block)
    if not gains:
        return "No method was compared with none."
    rows = list(gains.values())
    measure = metric_title(rows[0].metric) + (f", {rows[0].subset}" if rows[0].subset else "")
    chief, most = _chief(rows), " most" if len(rows) > 1 else ""
    match verdict(chief):
        case "better" | "changed" as kind:
            verb = "improves" if kind == "better" else "changes"
            start = chief.value - _size(chief, sign=True)
            text = f"{chief.method} {verb} {measure}{most}, from {start:.3f} by {change(chief)}"
            text += _cost(costs.get(chief.method))
            worse = ", ".join(row.method for row in rows if verdict(row) == "worse")
            return f"{text}; worse: {worse}." if worse else f"{text}."
        case "worse":
            return f"No method improves {measure}; {chief.method} makes it worse{most}, by {change(chief)}."
        case "same":
            return f"No method moves {measure}."
    return f"No method clearly changes {measure}; {chief.method} moves it{most}, by {change(chief)}."


def _chief(rows: Iterable[Measurement]) -> Measurement:
    """The row that a conclusion is about: the largest change for the better, else another clear one, else any."""
    rank = {"worse": 1, "changed": 2, "better": 3}
    return max(rows, key=lambda row: (rank.get(verdict(row), 0), _size(row)))


def _cost(row: Measurement | None) -> str:
    if row is None:
        return "; no utility is measured here"
    title = metric_title(row.metric)
    return {
        "worse": f"; it costs {title}: {change(row)}",
        "better": f"; {title} improves too: {change(row)}",
        "same": f"; {title} stays the same",
    }.get(verdict(row), f"; {title} is not clearly changed: {change(row)}")


def _moved(block: Block) -> tuple[dict[str, Measurement], dict[str, Measurement]]:
    """Method -> its change in the first measure of bias, and in that of utility; utility first where no bias is."""
    gains, costs = block.moved(utility=False), block.moved(utility=True)
    return (gains, costs) if gains else (costs, {})


def _size(row: Measurement, *, sign: bool = False) -> float:
    value = row.change[0] if row.change else 0.0
    return value if sign else abs(value)


@dataclass(frozen=True)
class Mark:
    """A change as a point with its interval, in percent of the width; zero is in the middle."""

    low: float
    width: float
    point: float
    row: Measurement

    @property
    def text(self) -> str:
        """The change alone: its interval is drawn."""
        return change(self.row).partition(" ")[0]


@dataclass(frozen=True)
class Forest:
    """Changes from none, a line per method: gain, and cost beside it; first the method of `conclusion`.

    heads: (measure, which direction is better). more: methods that are left to the appendix.
    """

    heads: tuple[tuple[str, str], ...]
    lines: tuple[tuple[str, tuple[Mark | None, ...]], ...]
    more: int


def forest(block: Block) -> Forest | None:
    """The changes of which `conclusion` speaks; None where there are none."""
    columns = [column for column in _moved(block) if column]
    if not columns:
        return None
    heads, marks = [], []
    for column in columns:
        first = next(iter(column.values()))
        heads.append((", ".join(filter(None, (sentence(metric_title(first.metric)), first.subset))), direction(first)))
        reach = max(abs(end) for row in column.values() if row.change for end in row.change) or 1.0
        marks.append({name: _mark(row, reach) for name, row in column.items()})
    chief = _chief(columns[0].values()).method
    names = [chief, *(name for name in columns[0] if name != chief)]
    lines = tuple((name, tuple(column.get(name) for column in marks)) for name in names[:SHOWN])
    return Forest(tuple(heads), lines, max(0, len(names) - SHOWN))


def _mark(row: Measurement, reach: float) -> Mark:
    assert row.change is not None
    point, low, high = (50 + 48 * end / reach for end in row.change)
    return Mark(round(low, 1), round(high - low, 1), round(point, 1), row)
