"""Is the popularity that NUCLR estimates the true one? The toy experiment of its paper, where the truth is known.

    python -m eval.experiments.popularity --out eval/results  # both files; 6 minutes of one core
    python -m eval.experiments.popularity --out look --sizes 10 100 --repetitions 5  # to have a look; seconds
    python -m eval.experiments.popularity --out eval/results --redraw  # the picture again, from the JSON alone

Section 3.3, Figures 2 and 6 of Wang et al., On Discriminative Probabilistic Modeling (2025). For n pairs of a known
density: the generalisation error |empirical risk - true risk| and the error term of theorem 1, with the popularity q
as estimated (`vldebias.losses.estimate_popularity`), uniform (the global contrastive loss) and true, and with the
exact partition function (maximum likelihood). Means over repetitions, each with pairs of its own; intervals: bootstrap
over repetitions. All methods see the same pairs.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from eval.experiments.popularity_plot import draw
from eval.experiments.popularity_toy import EXACT, TAU, Pairs, error_term, exact_risk, popularities, risk, sample
from vldebias.evaluation.result import Measurement, Result, TaskProvenance
from vldebias.metrics import bootstrap_interval
from vldebias.progress import Progress

OUT = Path(__file__).parents[1] / "results"
TASK, NAME = "popularity", "popularity.json"
SIZES, REPETITIONS, SEED = (10, 32, 100, 316, 1000, 3162), 40, 0
TRUE_RISK_PAIRS, EXAMPLE = 50_000, 100
LEVEL, RESAMPLES = 0.95, 2000
METRICS = {
    "risk_error": "|empirical risk - true risk|",
    "to_exact": "|empirical risk - that with the exact partition function on the same pairs|",
    "error_term": "error term of theorem 1 with E(x_i, y_j), as in its proof",
    "log_error": "standard deviation over the items of log q~ - log q, which no constant changes",
}
METHODS = {
    EXACT: "-1/n sum tau log p(y_i | x_i), eq. 2; MLE in the paper",
    "true": "eq. 5 with the true q",
    "estimate": "eq. 5 with the solution of eq. 8; Z is the ratio of maxima, as in the paper",
    "estimate, best constant": "the same; Z minimises the error term",
    "uniform": "eq. 5 with q~ = n c, c = 1 / area of the square = 1; GCL",
    "uniform, by maxima": "q~ = max q, the paper's Z for a uniform q~",
    "uniform, best constant": "q~ = n c, c minimises the error term",
}


def pairs_of(seed: int, n: int, repetition: int) -> Pairs:
    """The pairs of one repetition, whatever else is measured."""
    return sample(n, np.random.default_rng((seed, n, repetition)))


def true_risk(seed: int) -> tuple[float, float]:
    """Mean and its standard error of -tau log p(y | x) over many pairs, as the paper estimates it."""
    losses = -TAU * sample(TRUE_RISK_PAIRS, np.random.default_rng((seed, TRUE_RISK_PAIRS))).log_density
    return float(losses.mean()), float(losses.std()) / math.sqrt(TRUE_RISK_PAIRS)


def measure_pairs(pairs: Pairs, truth: float) -> dict[tuple[str, str], float]:
    """(metric, method) -> value for one sample."""
    exact = -TAU * float(pairs.log_density.mean())
    found = {("risk_error", EXACT): abs(exact - truth)}
    for method, log_q in popularities(pairs).items():
        empirical = risk(log_q, pairs)
        found["risk_error", method] = abs(empirical - truth)
        found["to_exact", method] = abs(empirical - exact)
        if method != "true":
            found["error_term", method] = error_term(log_q, pairs)
        if method in ("estimate", "uniform"):
            found["log_error", method] = float((log_q - pairs.log_popularity).std(correction=0))
    return found


def curves(sizes: Sequence[int], repetitions: int, seed: int, truth: float) -> list[Measurement]:
    """Every metric of every method at every n."""
    made: list[Measurement] = []
    work = repetitions * sum(n**2 for n in sizes)
    with Progress.on() as progress, progress.bar("popularity", work) as bar:
        for n in sizes:
            rows = []
            for repetition in range(repetitions):
                bar.note(f"n = {n}, {repetition + 1} of {repetitions}")
                rows.append(measure_pairs(pairs_of(seed, n, repetition), truth))
                bar.advance(n**2)
            made += [figure(n, *key, [row[key] for row in rows]) for key in rows[0]]
    return made


def figure(n: int, metric: str, method: str, values: Sequence[float]) -> Measurement:
    """Mean over repetitions with its interval."""
    interval = bootstrap_interval(values, level=LEVEL, resamples=RESAMPLES)
    return Measurement(
        task=TASK,
        metric=metric,
        method=method,
        value=interval.value,
        interval=(interval.low, interval.high),
        change=None,
        better="lower",
        n={"repetitions": len(values), "pairs": n},
        subset=f"n = {n}",
    )


def example(seed: int) -> dict[str, Any]:
    """For the heatmaps the first repetition at n = 100: x and y (n, 2), and q and q~ (n,) at the items, Z by maxima."""
    pairs = pairs_of(seed, EXAMPLE, 0)
    return {
        "seed": [seed, EXAMPLE, 0],
        "x": pairs.x.numpy().round(4).tolist(),
        "y": pairs.y.numpy().round(4).tolist(),
        "true": pairs.log_popularity.exp().numpy().round(3).tolist(),
        "estimate": popularities(pairs)["estimate"].exp().numpy().round(3).tolist(),
    }


def protocol(sizes: Sequence[int], repetitions: int, seed: int, truth: tuple[float, float]) -> TaskProvenance:
    """What was done, and the true risk in two ways."""
    return TaskProvenance(
        task=TASK,
        title="Popularity of items, estimated and uniform, against the truth (NUCLR, Figures 2 and 6)",
        description="Means over repetitions, each with pairs of its own; intervals: bootstrap over repetitions.",
        model="x.y, no model is fitted",
        fingerprint=None,
        prompts="none",
        prompts_hash="",
        split="x uniform on the upper half of the unit disc, y of the unit square from p(y | x), both by rejection",
        methods={name: {"about": about} for name, about in METHODS.items()},
        seeds=[seed],
        n={"repetitions": repetitions, "true risk pairs": TRUE_RISK_PAIRS},
        settings={
            "tau": TAU,
            "sizes": list(sizes),
            "metrics": METRICS,
            "generator": "numpy default_rng((seed, n, repetition)); of the true risk (seed, its pairs)",
            "true_risk": {"mean": truth[0], "standard_error": truth[1], "by_quadrature": exact_risk()},
            "solver": "estimate_popularity, gradient norm of eq. 8 at most 1e-12, float64",
            "resampled": "repetitions",
            "resamples": RESAMPLES,
            "level": LEVEL,
            "heatmaps": "log q at the items of one sample, RBF (thin plate) between them",
        },
    )


def measure(sizes: Sequence[int], repetitions: int, seed: int) -> Result:
    """The whole experiment."""
    started, truth = time.monotonic(), true_risk(seed)
    about = protocol(sizes, repetitions, seed, truth)
    about.settings["example"] = example(seed)
    return Result.now(
        name="popularity",
        rows=curves(sizes, repetitions, seed, truth[0]),
        provenance=[about],
        seconds=round(time.monotonic() - started, 1),
    )


def show(result: Result) -> None:
    """The largest and the smallest n as a table."""
    sizes = result.provenance[0].settings["sizes"]
    table = Table("measure", "method", *(f"n = {n}" for n in (sizes[0], sizes[-1])), title=result.name)
    for one in result.rows:
        if one.subset == f"n = {sizes[-1]}":
            both = [result.row(TASK, one.metric, one.method, subset=f"n = {n}") for n in (sizes[0], sizes[-1])]
            table.add_row(
                one.metric, one.method, *(f"{f.value:.4f} ({f.interval[0]:.4f} .. {f.interval[1]:.4f})" for f in both)
            )
    Console().print(table)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of popularity.json and popularity.png")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="n, each at least 2 (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="samples per n (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    parser.add_argument("--redraw", action="store_true", help="only draw the picture of the JSON that is there")
    arguments = parser.parse_args(given)
    if min(arguments.sizes) < 2 or arguments.repetitions < 1 or arguments.seed < 0:
        parser.error("expected sizes of at least 2, at least 1 repetition and a seed that is not negative")
    torch.set_num_threads(1)
    path = arguments.out / NAME
    if not arguments.redraw:
        measure(sorted(set(arguments.sizes)), arguments.repetitions, arguments.seed).write(path)
    result = Result.read(path)
    show(result)
    draw(result, path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
