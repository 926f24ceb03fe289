"""Compare two results figure by figure, and say what differs between their protocols."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from vldebias.errors import InvalidInputError
from vldebias.evaluation.report.wording import change, judge, label, metric_title, number
from vldebias.evaluation.result import Figure, Protocol, Result
from vldebias.fingerprint import fingerprint_matches

__all__ = ["Comparison", "Pair", "Warned", "compare", "print_comparison", "write_comparison"]

METHOD = (
    "Each difference is B less A. The two runs are not paired here, so its interval is put together from the two "
    "95 % intervals: the half-width towards each side is the root of the sum of the squared half-widths (a normal "
    "approximation; MOVER, Zou and Donner 2008). It takes the runs for independent: where both used the same images "
    "it is wider than a paired interval would be."
)
CONVENTIONS = ("model", "prompts", "prompts_hash", "split", "n", "seeds")


@dataclass(frozen=True)
class Warned:
    """One thing that differs: where ("birds", or "the run"), what, and its two values."""

    where: str
    what: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.where}: {self.what} differs: {_short(self.a)} in A, {_short(self.b)} in B"


@dataclass(frozen=True)
class Pair:
    """The same figure of both results; difference: B less A with its interval for independent runs."""

    a: Figure
    b: Figure
    difference: tuple[float, float, float]

    @property
    def verdict(self) -> str:
        """Whether B is better, worse, unclear or the same."""
        return judge(self.difference, self.b.better)


@dataclass(frozen=True)
class Comparison:
    """Two results side by side: figures that both have, figures that one has, and what differs in the protocols."""

    a: str
    b: str
    pairs: tuple[Pair, ...]
    only_a: tuple[Figure, ...]
    only_b: tuple[Figure, ...]
    warnings: tuple[Warned, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "method": METHOD,
            "warnings": [str(warned) for warned in self.warnings],
            "figures": [
                {
                    **_names(pair.b),
                    "better": pair.b.better,
                    "a": {"value": pair.a.value, "interval": pair.a.interval},
                    "b": {"value": pair.b.value, "interval": pair.b.interval},
                    "difference": pair.difference,
                    "verdict": pair.verdict,
                }
                for pair in self.pairs
            ],
            "only_a": [_names(figure) for figure in self.only_a],
            "only_b": [_names(figure) for figure in self.only_b],
        }


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match figures by task, metric, method, subset, lambda and strength, and subtract A from B.

    Figures left over are matched without lambda and strength where that leaves no choice; a warning says so.

    Args:
        a, b: two results, such as of two models or before and after a change.
        names: what to call them; by default their own names.

    Raises:
        InvalidInputError: no figure is in both, or one result has two figures of the same names.
    """
    exact, rest_a, rest_b = _match(_once(a), _once(b), _full)
    loose, rest_a, rest_b = _match(rest_a, rest_b, _without_settings)
    pairs = sorted(exact + loose, key=lambda pair: b.figures.index(pair[1]))
    if not pairs:
        raise InvalidInputError(
            f"no figure is in both {a.name!r} and {b.name!r}: tasks are {_tasks(a)} and {_tasks(b)}; "
            "expected two results of the same suite"
        )
    warnings = [*_run_warnings(a, b), *_protocol_warnings(a, b), *_setting_warnings(loose), *_better_warnings(pairs)]
    a_name, b_name = names or (a.name, b.name)
    found = tuple(Pair(x, y, independent_difference(x, y)) for x, y in pairs)
    return Comparison(a_name, b_name, found, tuple(rest_a), tuple(rest_b), tuple(warnings))


def independent_difference(a: Figure, b: Figure) -> tuple[float, float, float]:
    """b - a with an interval from the two intervals, as if the runs were independent.

    Zou and Donner, "Construction of confidence limits about effect measures" (2008), eq. 2: each limit takes the
    half-widths that face it, which keeps intervals asymmetric that are so.
    """
    value = b.value - a.value
    below = math.hypot(b.value - b.interval[0], a.interval[1] - a.value)
    above = math.hypot(b.interval[1] - b.value, a.value - a.interval[0])
    return value, value - below, value + above


def _full(figure: Figure) -> Hashable:
    return (*_without_settings(figure), figure.lam, figure.strength)


def _without_settings(figure: Figure) -> tuple[str, ...]:
    return figure.task, figure.metric, figure.method, figure.subset


def _once(result: Result) -> list[Figure]:
    counts = Counter(map(_full, result.figures))
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise InvalidInputError(f"{result.name}: the figure {twice[0]} is there {counts[twice[0]]} times; expected one")
    return result.figures


def _match(
    a: Sequence[Figure], b: Sequence[Figure], key: Callable[[Figure], Hashable]
) -> tuple[list[tuple[Figure, Figure]], list[Figure], list[Figure]]:
    """Pairs of the same key that is unique on both sides, and what is left of each side."""
    counts_a, counts_b = Counter(map(key, a)), Counter(map(key, b))
    there = {key(figure): figure for figure in a}
    shared = {k for k in there if counts_a[k] == counts_b[k] == 1}
    pairs = [(there[key(figure)], figure) for figure in b if key(figure) in shared]
    return pairs, [f for f in a if key(f) not in shared], [f for f in b if key(f) not in shared]


def _run_warnings(a: Result, b: Result) -> list[Warned]:
    found = [
        Warned("the run", f"version of {name}", a.versions.get(name), b.versions.get(name))
        for name in dict.fromkeys([*a.versions, *b.versions])
        if a.versions.get(name) != b.versions.get(name)
    ]
    return found + ([Warned("the run", "commit", a.commit, b.commit)] if a.commit != b.commit else [])


def _protocol_warnings(a: Result, b: Result) -> list[Warned]:
    there = {protocol.task: protocol for protocol in a.protocols}
    return [
        warned
        for protocol in b.protocols
        if protocol.task in there
        for warned in _between(there[protocol.task], protocol)
    ]


def _between(a: Protocol, b: Protocol) -> Iterable[Warned]:
    for what in CONVENTIONS:
        if getattr(a, what) != getattr(b, what):
            yield Warned(b.task, what.replace("_", " "), getattr(a, what), getattr(b, what))
    if not fingerprint_matches(a.fingerprint, b.fingerprint):
        structures = [(p.fingerprint or {}).get("structure") for p in (a, b)]
        yield Warned(b.task, "fingerprint of the weights", *structures)
    for what, one, other in (("setting", a.settings, b.settings), ("method", a.methods, b.methods)):
        for name in dict.fromkeys([*one, *other]):
            if one.get(name) != other.get(name):
                yield Warned(b.task, f"{what} {name}", one.get(name), other.get(name))


def _setting_warnings(loose: Sequence[tuple[Figure, Figure]]) -> list[Warned]:
    """One warning per task and method whose lambda or strength differs."""
    found = {
        (b.task, b.method, what): Warned(b.task, f"{what} of {b.method}", getattr(a, what), getattr(b, what))
        for a, b in loose
        for what in ("lam", "strength")
        if getattr(a, what) != getattr(b, what)
    }
    return list(found.values())


def _better_warnings(pairs: Sequence[tuple[Figure, Figure]]) -> list[Warned]:
    found = {
        (b.task, b.metric): Warned(b.task, f"which {metric_title(b.metric)} is better", a.better, b.better)
        for a, b in pairs
        if a.better != b.better
    }
    return list(found.values())


def _tasks(result: Result) -> list[str]:
    return list(dict.fromkeys(figure.task for figure in result.figures))


def _names(figure: Figure) -> dict[str, Any]:
    return {key: getattr(figure, key) for key in ("task", "metric", "method", "subset", "lam", "strength")}


def _short(value: Any) -> str:
    text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
    return text if len(text) <= 90 else text[:87] + "..."


def title(figure: Figure) -> str:
    """What a figure is about, beyond its task."""
    return ", ".join(filter(None, (metric_title(figure.metric), figure.subset, label(figure))))


def difference_text(pair: Pair) -> str:
    """ "+0.100 [+0.020, +0.180]", in the digits of the figures."""
    return change(pair.b.model_copy(update={"change": pair.difference}))


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Warnings first, then one table per task."""
    for warned in comparison.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(str(warned))}", highlight=False)
    for task in dict.fromkeys(pair.b.task for pair in comparison.pairs):
        grid = Grid(title=task, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for head in ("", f"A: {comparison.a}", f"B: {comparison.b}", "B less A", ""):
            grid.add_column(head, overflow="fold")
        for pair in comparison.pairs:
            if pair.b.task == task:
                style = {"better": "green", "worse": "red"}.get(pair.verdict)
                cells = (title(pair.b), number(pair.a), number(pair.b), difference_text(pair), pair.verdict)
                grid.add_row(*cells, style=style)
        console.print()
        console.print(grid)
    for name, figures in ((comparison.a, comparison.only_a), (comparison.b, comparison.only_b)):
        if figures:
            listed = "; ".join(f"{f.task}: {title(f)}" for f in figures[:8])
            more = f"; and {len(figures) - 8} more" if len(figures) > 8 else ""
            console.print(f"\nonly in {escape(name)}: {escape(listed)}{more}", highlight=False)
    console.print(f"\n{METHOD}", highlight=False)


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """One HTML file with warnings, both values and their difference; no network needed."""
    environment = Environment(
        loader=PackageLoader("vldebias.evaluation.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "difference": difference_text, "title": title}
    tasks = {
        task: [pair for pair in comparison.pairs if pair.b.task == task]
        for task in dict.fromkeys(pair.b.task for pair in comparison.pairs)
    }
    page = environment.get_template("compare.html.jinja").render(c=comparison, tasks=tasks, method=METHOD)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path
