"""What a page begins with: how it was made, a sentence of conclusion per task, and gain beside cost for each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vldebias.evaluation.report.tables import Block, blocks
from vldebias.evaluation.report.words import capitalised, change, direction, metric_title, number, verdict
from vldebias.evaluation.result import CHANCE, NONE, Measurement, Result, TaskProvenance
from vldebias.metrics.metric import metric_of

ATTACHED = "default"  # the method that `debias` attaches where none is named
FEW = 12  # groups that are counted by name
SHOWN = 6  # methods of a forest; the others are in the appendix
HASH = 12  # characters of a digest that a reader compares by eye; the whole one stands in the appendix


# ---- how it was made ---------------------------------------------------------------------------------------


def evidence(result: Result, tasks: Iterable[Block]) -> list[tuple[str, str]]:
    """What an auditor asks first, by name: when, by which command, where, with what, on which weights and data."""
    told = result.provenance
    lines = {
        "measured": [(result.date or "date not recorded") + (f", {round(s):,} s" if (s := result.seconds) else "")],
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


def _groups(rows: Iterable[Measurement], told: TaskProvenance) -> str:
    """Groups that share the images out among them, with their numbers; not parts that overlap, such as queries."""
    groups = told.settings.get("groups")
    if not isinstance(groups, Mapping):
        groups = {row.subset: row.n["images"] for row in rows if row.subset and next(iter(row.n), "") == "images"}
    apart = 1 < len(groups) <= FEW and sum(groups.values()) <= told.n.get("images", 0)
    return ", ".join(f"{name} {count:,}" for name, count in groups.items()) if apart else ""


# ---- what came out -----------------------------------------------------------------------------------------


def overall(tasks: Iterable[Block]) -> str:
    """One sentence over all tasks: in how many bias is lessened by some method, and in how many of those that costs
    utility; "" where nothing was compared.
    """
    tasks = list(tasks)
    moved = [(gains[0], block.moved("utility")) for block in tasks if (gains := block.moved("bias"))]
    # Texts that moved among themselves are no task won: nothing was searched, classified or drawn.
    moved = [one for one in moved if any(metric_of(row.metric).of != "texts" for row in one[0].values())] or moved
    if not moved:
        return ""
    rows = [(_chief(gains.values()), costs) for gains, costs in moved]
    better = [_of_method(row.method, costs) for row, costs in rows if verdict(row) == "better"]
    measured = [costs for costs in better if costs]
    text = f"Bias is lessened beyond its interval in {len(better)} of {len(rows)} tasks by a method without labels"
    if not measured:
        return f"{text}."
    fell = sum(any(verdict(cost) == "worse" for cost in costs) for costs in measured)
    return f"{text}; of {len(measured)} of these that measure utility, it falls beyond its interval in {fell}."


def conclusion(block: Block) -> str:
    """One sentence: what a method without labels gains in the first measure of bias, and all that it costs.

    The method is the one that `debias` attaches by default where it was measured, with the best one behind it; else the
    best one. "Best" is picked after measuring, among the changes whose intervals exclude zero. "" where nothing was
    compared.
    """
    first = next((row.metric for row in block.headline if metric_of(row.metric).kind == "bias"), "")
    if first in block.at_chance:
        return nothing_to_remove(block, first)
    gains, costs = _moved(block)
    if not gains:
        return ""
    rows = list(gains.values())
    measure = metric_title(rows[0].metric) + (f", {rows[0].subset}" if rows[0].subset else "")
    best = _chief(rows)
    worse = ", ".join(row.method for row in rows if verdict(row) == "worse" and row.method != ATTACHED)
    if ATTACHED in gains and best.method != ATTACHED:
        text = _does(gains[ATTACHED], measure) + _cost(_of_method(ATTACHED, costs))
        if verdict(best) == "better":
            text += f"; {best.method} improves it most, by {change(best)}{_cost(_of_method(best.method, costs))}"
        return text + (f"; worse: {worse}." if worse else ".")
    most = " most" if len(rows) > 1 else ""
    match verdict(best):
        case "better" | "changed":
            text = _does(best, f"{measure}{most}") + _cost(_of_method(best.method, costs))
            return f"{text}; worse: {worse}." if worse else f"{text}."
        case "worse":
            return f"No method improves {measure}; {best.method} makes it worse{most}, by {change(best)}."
        case "same":
            return f"No method moves {measure}."
    return f"No method clearly changes {measure}; {best.method} moves it{most}, by {change(best)}."


def _does(row: Measurement, measure: str) -> str:
    """What a method does to a measure: "cali improves worst-group accuracy, from 0.500 by +0.200 [...]"."""
    start = row.value - _size(row, sign=True)
    return row.method + {
        "better": f" improves {measure}, from {start:.3f} by {change(row)}",
        "changed": f" changes {measure}, from {start:.3f} by {change(row)}",
        "worse": f" makes {measure} worse, from {start:.3f} by {change(row)}",
        "same": f" does not move {measure}",
    }.get(verdict(row), f" does not clearly change {measure}, from {start:.3f} by {change(row)}")


def nothing_to_remove(block: Block, metric: str) -> str:
    """Said in the place of verdicts where none is no more biased than random rankings are."""
    chance = block.at_chance[metric]
    none = next(row for row in block.rows if (row.metric, row.method, row.subset) == (metric, NONE, ""))
    title = capitalised(metric_title(metric))
    return f"Nothing to remove here: {title} of none is {none.value:.3f}, that of random rankings {number(chance)}."


def in_short(result: Result, measures: Sequence[tuple[str, str]]) -> list[str]:
    """Three sentences for who reads no table: where bias fell, where it did not, and what it cost.

    measures: (task, metric) that are spoken of. Where there is nothing to remove, a sentence before them says so.
    """
    tasks = blocks(result)
    nothing = [
        nothing_to_remove(block, one) for block in tasks for one in block.at_chance if (block.task, one) in measures
    ]
    return [*nothing, *_sentences(tasks, measures)]


def opening(tasks: Sequence[Block]) -> list[str]:
    """What a person asks first, of the method that `debias` attaches: where bias fell, where it did not, at what cost.

    Where that method was not measured `overall`, in one sentence; none where nothing was compared.
    """
    own = [block for block in tasks if ATTACHED in next(iter(block.moved("bias")), {})]
    # Texts that moved among themselves are no task: nothing was searched, classified or drawn.
    own = [block for block in own if metric_of(block.moved("bias")[0][ATTACHED].metric).of != "texts"]
    if not own:
        return [text] if (text := overall(tasks)) else []
    first, *others = _sentences(own, only=ATTACHED)
    return [f"With the default, the method that debias attaches: {first[0].lower()}{first[1:]}", *others]


def _sentences(tasks: Iterable[Block], measures: Sequence[tuple[str, str]] = (), only: str = "") -> list[str]:
    """Of these measures, else of the first measure of bias of each task and of all utility; only: of one method."""
    fell, stayed, cost = [], [], []
    for block in tasks:

        def asked(by_method: Mapping[str, Measurement], block: Block = block) -> list[Measurement]:
            rows = [row for row in by_method.values() if not only or row.method == only]
            return [row for row in rows if not measures or (row.task, row.metric) in measures]

        chance = {row.metric: row.value for row in block.rows if row.method == CHANCE and not row.subset}
        gains = asked(next(iter(block.moved("bias")), {}))
        fell += _ends([row for row in gains if verdict(row) == "better"], chance, only)
        stayed += _ends([row for row in gains if verdict(row) != "better"], chance, only)
        lost = {rows[0].metric.partition("@")[0]: rows for one in block.moved("utility") if (rows := asked(one))}
        cost += [end for rows in lost.values() for end in _ends([r for r in rows if verdict(r) == "worse"], {}, only)]
    return [
        f"Bias fell: {_listed(fell)}." if fell else "Bias fell nowhere beyond its interval.",
        f"It did not clearly fall: {_listed(stayed)}." if stayed else "It fell in all that was measured.",
        f"It cost: {_listed(cost)}." if cost else "It cost nothing beyond its interval.",
    ]


def _listed(ends: Sequence[str]) -> str:
    more = f"; and {len(ends) - SHOWN} more" if len(ends) > SHOWN else ""
    return "; ".join(ends[:SHOWN]) + more


def _ends(rows: Sequence[Measurement], chance: Mapping[str, float], only: str = "") -> list[str]:
    """ "worst-group accuracy (birds) from 0.38 to 0.86 under cali and 0.77 under x", of rows of one measure.

    only: the method that all of it is about, which goes without saying.
    """
    if not rows:
        return []
    first = rows[0]
    start = first.value - _size(first, sign=True)
    digits = next((d for d in (2, 3) if all(f"{start:.{d}f}" != f"{row.value:.{d}f}" for row in rows)), 3)
    ends = " and ".join(
        f"{row.value:.{digits}f}"
        + f" under {row.method}" * (not only)
        + (", worse," * (row.metric in chance and verdict(row) == "worse"))
        for row in rows
    )
    text = f"{metric_title(first.metric)} ({first.task}) from {start:.{digits}f} to {ends}"
    return [f"{text} (chance {chance[first.metric]:.2f})" if first.metric in chance else text]


def _chief(rows: Iterable[Measurement]) -> Measurement:
    """The row that a conclusion is about: the largest change for the better, else another clear one, else any."""
    rank = {"worse": 1, "changed": 2, "better": 3}
    return max(rows, key=lambda row: (rank.get(verdict(row), 0), _size(row)))


def _cost(rows: Sequence[Measurement]) -> str:
    """Every measure of utility that fell beyond its interval, of several k the first; else how the first one moved."""
    if not rows:
        return "; no utility is measured here"
    lost = {row.metric.partition("@")[0]: row for row in reversed(rows) if verdict(row) == "worse"}
    if lost:
        return "; it costs " + ", and ".join(f"{metric_title(r.metric)}: {change(r)}" for r in reversed(lost.values()))
    row, title = rows[0], metric_title(rows[0].metric)
    return {
        "better": f"; {title} improves too: {change(row)}",
        "same": f"; {title} stays the same",
    }.get(verdict(row), f"; {title} is not clearly changed: {change(row)}")


def _moved(block: Block) -> tuple[dict[str, Measurement], list[dict[str, Measurement]]]:
    """Method -> its change in the first measure of bias, and in those of utility; utility first where no bias is."""
    gains, costs = block.moved("bias"), block.moved("utility")
    return (gains[0], costs) if gains else (costs[0] if costs else {}, [])


def _of_method(name: str, measures: Iterable[Mapping[str, Measurement]]) -> list[Measurement]:
    """Its row of each measure that has one."""
    return [by_method[name] for by_method in measures if name in by_method]


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

    @classmethod
    def of(cls, row: Measurement, reach: float) -> Mark:
        """The change of a row; reach: the largest of its column, which the width just holds."""
        assert row.change is not None
        point, low, high = (50 + 48 * end / reach for end in row.change)
        return cls(round(low, 1), round(high - low, 1), round(point, 1), row)

    @property
    def text(self) -> str:
        """The change alone: its interval is drawn."""
        return change(self.row).partition(" ")[0]


@dataclass(frozen=True)
class Forest:
    """Changes from none, a line per method: gain, and cost beside it; first the method of `conclusion`.

    heads: (measure, which direction is better and how far the line reaches). more: methods left to the appendix.
    """

    heads: tuple[tuple[str, str], ...]
    lines: tuple[tuple[str, tuple[Mark | None, ...]], ...]
    more: int


def forest(block: Block) -> Forest | None:
    """The changes of which `conclusion` speaks; None where there are none."""
    gains, costs = _moved(block)
    if not gains:
        return None
    chief = ATTACHED if ATTACHED in gains else _chief(gains.values()).method
    lost = [by_method for by_method in costs if chief in by_method and verdict(by_method[chief]) == "worse"]
    columns = [gains, *(lost or costs)[:1]]
    heads, marks = [], []
    for column in columns:
        first = next(iter(column.values()))
        reach = max(abs(end) for row in column.values() if row.change for end in row.change) or 1.0
        title = ", ".join(filter(None, (capitalised(metric_title(first.metric)), first.subset)))
        heads.append((title, ", ".join(filter(None, (direction(first), f"from -{reach:.2g} to +{reach:.2g}")))))
        marks.append({name: Mark.of(row, reach) for name, row in column.items()})
    names = [chief, *(name for name in columns[0] if name != chief)]
    lines = tuple((name, tuple(column.get(name) for column in marks)) for name in names[:SHOWN])
    return Forest(tuple(heads), lines, max(0, len(names) - SHOWN))
