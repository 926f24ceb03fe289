"""Compare editing queries with re-ranking results on the searches in `search_cells`.

    python -m eval.experiments.rerank_harm                    # the miniature's portraits
    python -m eval.experiments.rerank_harm --on real          # also photographs ($VLDEBIAS_REAL)
    python -m eval.experiments.rerank_harm --cells FOLDER     # cells from a `cells.py` instead
    python -m eval.experiments.rerank_harm --draw 1           # different galleries and references
    python -m eval.experiments.rerank_harm --json FILE

The results of three draws of other cells are rerank_shared_0, rerank_shared_1 and rerank_shared_2.

A search is a set of queries over one gallery. A cell is harmed if the 95% interval for the change
in mean MaxSkew@k over queries (paired, over images) is above 0, and helped if it is below 0.
"Removed" is the removed share of the skew in excess of random rankings, over all cells in a family.
"Kept" is the share of the top k results that remain in the top k. Re-ranking uses the model's
zero-shot labels, based on the prompts in the set, and true labels are used only for evaluation. The
targets are even shares for even galleries, and otherwise the shares of the candidates ("pool"), as
in the evaluation.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vldebias
from eval.experiments import search_cells
from eval.tables import parser, run
from vldebias.errors import VldebiasError, VldebiasWarning
from vldebias.hosts import resolve
from vldebias.measure.metric import Metric
from vldebias.measure.rankings import reach
from vldebias.measure.resampling import recentred_interval, resampled_weights
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.reranking.groups import Groups

RESAMPLES = 200
FIGURES = {
    "cells": Metric("cells", "cells"),
    "harmed": Metric("harmed", "cells made worse", "fact", "lower"),
    "helped": Metric("helped", "cells made better", "fact", "higher"),
    "removed": Metric(
        "removed", "share of the skew above chance that is removed", "fact", "higher"
    ),
    "kept": Metric("kept_first", "share of the first k that stay", "fact", "higher"),
    "labels_right": Metric("labels_right", "zero-shot labels that are right", "fact", "higher"),
}
CHANGE = Metric("max_skew_change", "change of MaxSkew", "bias", "lower")
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Search:
    """A search of a gallery.

    Attributes:
        features: The unit features (n, d) of the gallery.
        codes: The true groups (n,).
        queries: The query embeddings (q, d).
        texts: The text encoder for prompts.
        is_even: Whether all groups in the gallery have the same size.
    """

    family: str
    name: str
    features: NDArray[Any]
    codes: NDArray[Any]
    queries: tuple[str, ...]
    texts: Any
    prompts: Any
    reference: NDArray[Any]
    k: int
    is_even: bool


def unit(rows: Any) -> NDArray[np.float64]:
    """Scale rows to length 1."""
    array = np.asarray(rows, dtype=np.float64)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def of_project(
    draw: int, kinds: list[Callable[[int], Iterator[search_cells.Cell]]]
) -> Iterator[Search]:
    """Yield the searches of this project."""
    for kind in kinds:
        for cell in kind(draw):
            labels = cell.gallery.column(cell.column)
            yield Search(
                cell.family,
                cell.name,
                unit(cell.gallery.features),
                np.unique(labels.codes, return_inverse=True)[1],
                cell.queries,
                cell.texts,
                cell.prompts,
                unit(cell.reference.features),
                min(60, max(10, len(cell.gallery) // 8)),
                cell.prior == "uniform",
            )


def of_folder(folder: Path, draw: int) -> Iterator[Search]:
    """Yield the searches from a folder with `cells.py`, whose `cells()` returns dictionaries."""
    os.environ["CLONE"] = str(Path(__file__).parents[2])
    os.environ["OFFSET"] = str(1000 * draw)
    spec = importlib.util.spec_from_file_location("cells_of_folder", folder / "cells.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for cell in module.cells():
        codes = np.unique(cell["L"][cell["gi"]], return_inverse=True)[1]
        sizes = np.bincount(codes)
        yield Search(
            f"shared, {cell['fam']}",
            cell["id"],
            unit(cell["X"][cell["gi"]]),
            codes,
            tuple(cell["Q"]),
            cell["T"],
            cell["ps"],
            unit(cell["X"][cell["ri"]]),
            cell["k"],
            bool(cell["prior"] == "uniform" and sizes.max() < 1.5 * sizes.min()),
        )


def edited(search: Search, host: Any, **how: Any) -> NDArray[np.float64] | None:
    """Return queries (q, d) edited by the default method, or None if it fails or does nothing."""
    try:
        edits = vldebias.fit_projections(host, search.prompts, **how)
    except VldebiasError:
        return None
    if not edits:
        return None
    edit = edits.only
    role = host.roles[0]
    return unit(host.under(list(search.queries), role, edit).numpy())


def orders(search: Search) -> tuple[dict[str, Rows], float]:
    """Return the top rows (q, m) for each method, and the accuracy of zero-shot labels.

    The accuracy is NaN if the prompt set and the gallery have different values.
    """
    host = resolve(search.texts)
    m = reach(search.k, len(search.features))
    plain = unit(host.embed(list(search.queries), host.roles[0]).numpy())
    groups = Groups.zero_shot(search.features, search.prompts, host)
    labels = np.array(groups.names)[groups.codes]
    right = _share_right(groups.codes, search.codes)
    shares = "even" if search.is_even else "pool"

    def rows(queries: NDArray[np.float64], method: str = "", **how: Any) -> Rows:
        scores = (queries @ search.features.T).round(12)
        if not method:
            return np.argsort(-scores, axis=1, kind="stable")[:, :m]
        given = {"labels": labels, "method": method, "shares": shares, **how}
        return np.asarray(vldebias.rerank(scores, m, **given))

    default = edited(search, host)
    reference = edited(search, host, reference=search.reference.astype(np.float32))
    default = plain if default is None else default
    by_method = {
        "none": rows(plain),
        "quota": rows(plain, "quota"),
        "fair": rows(plain, "fair"),
        "default": rows(default),
        "default + quota": rows(default, "quota"),
        "default + fair": rows(default, "fair"),
        "reference=": rows(plain if reference is None else reference),
    }
    # In uneven galleries, the shares of the candidates are already the targets.
    if search.is_even:
        by_method["quota, shares of the pool"] = rows(plain, "quota", shares="pool")
        by_method["fair, shares of the pool"] = rows(plain, "fair", shares="pool")
    return by_method, right


def _share_right(labels: Rows, true: Rows) -> float:
    """Return the accuracy of labels under the best matching of names between set and gallery."""
    table = np.zeros((labels.max() + 1, true.max() + 1))
    np.add.at(table, (labels, true), 1)
    if table.shape[0] > table.shape[1]:
        return float("nan")
    from scipy.optimize import linear_sum_assignment

    return float(table[linear_sum_assignment(-table)].sum() / len(true))


def measured(search: Search) -> dict[str, dict[str, Any]]:
    """Return the change in MaxSkew with its interval, the kept share and the skews by method."""
    by_method, right = orders(search)
    n = len(search.codes)
    sizes = np.bincount(search.codes)
    g = len(sizes)
    prior = np.full(g, 1 / g) if search.is_even else sizes / n
    weights = np.concatenate(
        [np.ones((1, n), dtype=np.int32), *resampled_weights(n, RESAMPLES, 0, n)]
    ).astype(np.float32)
    one_hot = np.eye(g, dtype=np.float32)
    rng = np.random.default_rng(0)
    draws = rng.multivariate_hypergeometric(sizes, search.k, size=2000, method="marginals")
    with np.errstate(divide="ignore"):
        chance = float(np.log(draws / search.k / prior).max(axis=1).mean())
    skews = {}
    for method, rankings in by_method.items():
        total = np.zeros(len(weights))
        for ranking in rankings:
            # How often each row is in the top k of each resample (1 + b, m).
            held = np.minimum(weights[:, ranking].cumsum(axis=1), search.k)
            times = np.diff(held, axis=1, prepend=0)
            shares_of_groups = times @ one_hot[search.codes[ranking]] / search.k
            with np.errstate(divide="ignore"):
                total += np.log(shares_of_groups / prior).max(axis=1)
        skews[method] = total / len(rankings)
    base = by_method["none"][:, : search.k]
    figures = {}
    for method, values in skews.items():
        change = values - skews["none"]
        low, high = recentred_interval(float(change[0]), change[1:])
        first = by_method[method][:, : search.k]
        kept = [np.isin(rows, after).mean() for rows, after in zip(base, first, strict=True)]
        figures[method] = {
            "change": (float(change[0]), low, high),
            "kept": float(np.mean(kept)),
            "value": float(values[0]),
            "gap": max(float(skews["none"][0]) - chance, 0.0),
            "chance": chance,
            "right": right,
        }
    return figures


def results(searches: Iterator[tuple[int, Search]]) -> Iterator[TaskResult]:
    """Yield the rows of all cells, and then the figures for each family and kind of gallery."""
    details = TaskResult(
        TaskProvenance(task="cells", description="change of MaxSkew of each search, by draw")
    )
    found: dict[str, list[Mapping[str, Mapping[str, Any]]]] = defaultdict(list)
    for draw, search in searches:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            figures = measured(search)
        changes = {name: round(figure["change"][0], 3) for name, figure in figures.items()}
        print(f"draw {draw}: {search.name}: {changes}", file=sys.stderr, flush=True)
        kind = "even" if search.is_even else "uneven"
        source = search.family.partition(",")[0]
        is_age = search.family.endswith("age")
        found[f"{search.family}, {kind}"].append(figures)
        found[f"all {source}, {kind}{', age' if is_age else ', other than age'}"].append(figures)
        n = {"images": len(search.codes), "queries": len(search.queries)}
        for method, figure in figures.items():
            if method != "none":
                change = figure["change"]
                subset = f"draw {draw}: {search.family}: {search.name}"
                details.add(CHANGE, method, change[0], change[1:], n=n, subset=subset)
    yield details
    for family in sorted(found):
        yield tally(family, found[family])


def tally(family: str, cells: list[Mapping[str, Mapping[str, Any]]]) -> TaskResult:
    """Return the figures for a family of cells and each method that was measured in any cell."""
    part = TaskResult(TaskProvenance(task=family, title=family, description="counts of cells"))
    rows_of_method: dict[str, list[Mapping[str, Any]]] = {}
    for figures_of_method in cells:
        for method, row in figures_of_method.items():
            rows_of_method.setdefault(method, []).append(row)
    for method, rows in rows_of_method.items():
        figures: dict[str, float] = {"cells": len(rows)}
        if method == "none":
            right = np.array([row["right"] for row in rows])
            known = right[~np.isnan(right)]
            figures["labels_right"] = known.mean() if len(known) else 0.0
        else:
            gap = sum(row["gap"] for row in rows)
            # The change in MaxSkew and both ends of its interval (cells, 3).
            changes = np.array([row["change"] for row in rows])
            figures["harmed"] = (changes[:, 1] > 0).sum()
            figures["helped"] = (changes[:, 2] < 0).sum()
            figures["removed"] = -sum(changes[:, 0]) / gap if gap else 0.0
            figures["kept"] = np.mean([row["kept"] for row in rows])
        for name, value in figures.items():
            part.add(FIGURES[name], method, float(value), n={"cells": len(rows)})
    return part


def main() -> None:
    """Measure the selected searches."""
    options = parser(__doc__)
    options.add_argument("--on", choices=["miniature", "real"], default="miniature")
    options.add_argument("--cells", type=Path, help="a folder with a cells.py")
    options.add_argument("--draw", type=int, default=0, help="of galleries and references")
    args = options.parse_args()
    kinds = [search_cells.miniature]
    if args.on == "real":
        kinds.append(search_cells.photographs)

    def searches() -> Iterator[tuple[int, Search]]:
        if args.cells is not None:
            found = of_folder(args.cells, args.draw)
        else:
            found = of_project(args.draw, kinds)
        for search in found:
            yield args.draw, search

    name = args.json.stem if args.json else "rerank_harm"
    run(name, lambda: results(searches()), args.json)


if __name__ == "__main__":
    main()
