"""What users wait for, each against what they would use instead: all rows in one run; `make bench`.

python -m eval.benchmarks.speed                                       # print the table
python -m eval.benchmarks.speed --json eval/results/bench_speed.json  # and write it, from a tree without changes
python -m eval.benchmarks.speed --only losses,demo                    # some of its parts

Processor times on one thread, medians of calls in turn; peak memory where a process of its own or /proc tells it. The
ratio of a row is that of two times from one run, so that other work on the machine hardly counts.
"""

from __future__ import annotations

import argparse
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from eval.benchmarks import losses, projection, scale, startup
from eval.benchmarks.timing import compared, medians, report
from eval.experiments.records import rows_of, write_records
from eval.tables import Cells, shows
from vldebias.data import Labels
from vldebias.evaluation.gallery import Gallery, SkewOptions
from vldebias.evaluation.result import Result
from vldebias.metrics import bootstrap_interval, worst_group_accuracy
from vldebias.metrics.bootstrap import resampled_weights
from vldebias.metrics.rankings import rankings, reach, resampled_places, top_rankings

Row = dict[str, Any]
LOSSES = [("sigmoid", "SigLipLoss"), ("info_nce", "ClipLoss")]


def ranks(n: int = 400_000, queries: int = 50, k: int = 1000, repetitions: int = 2) -> Row:
    """The exact first k of n images for each query; difference: share of ranks that float32 alone gets otherwise."""
    draw = torch.Generator().manual_seed(0)
    items, texts = (normalize(torch.randn(rows, scale.DIM, generator=draw), dim=1) for rows in (n, queries))

    def plain() -> np.ndarray:
        scores = (texts @ items.T).numpy()
        top = np.argpartition(-scores, k, axis=1)[:, :k]
        return np.take_along_axis(top, np.argsort(-np.take_along_axis(scores, top, 1), 1), 1)

    ours = partial(top_rankings, texts, items, k)
    differ = float((ours() != plain()).mean())
    size = f"{n:,} rows, {queries} queries, k {k}"
    return compared("exact top ranks / float32 product and argpartition", size, ours, plain, repetitions, differ=differ)


def intervals(n: int = 1_000_000, queries: int = 50, resamples: int = 40, repetitions: int = 1) -> Row:
    """Skew of four methods' queries on resampled galleries; difference: of the mean of NDKL, in standard errors."""
    rng, k = np.random.default_rng(0), min(1000, n // 20)
    gallery = Gallery(Labels(rng.integers(3, size=n), ("a", "b", "c")), SkewOptions(k=[k], resamples=resamples))
    ranked = {m: np.stack([rng.permutation(n)[: reach(k, n)] for _ in range(queries)]) for m in ("none", *"abc")}
    prior = gallery.prior()

    def plain() -> np.ndarray:
        """A weight for each image of each resample, as the bootstrap is written."""
        found = []
        for weights in resampled_weights(n, resamples, 0):
            tops = (
                gallery.codes[order[resampled_places(order, weights, k)]] for rows in ranked.values() for order in rows
            )
            found.append(np.stack([gallery.measure(groups, prior)[f"ndkl@{k}"] for groups in tops]))
        return np.concatenate(found, axis=1)

    one = np.concatenate([of[f"ndkl@{k}"] for of in gallery.resampled(ranked).values()])
    other = plain()
    apart = abs(one.mean() - other.mean()) / (other.mean(axis=0).std() * (2 / resamples) ** 0.5)
    size = f"{n:,} rows, 4 methods, {queries} queries, k {k}, {resamples} resamples"
    ours = partial(gallery.resampled, ranked)
    return compared("skew intervals / a weight for each image", size, ours, plain, repetitions, standard_errors=apart)


def few_rows(n: int = 10_000, resamples: int = 2000, repetitions: int = 1) -> Row:
    """Interval of a worst group; difference: of its ends."""
    rng = np.random.default_rng(0)
    group, label = rng.integers(4, size=n), rng.integers(2, size=n)
    predicted = np.where(rng.random(n) < 0.6 + 0.1 * group, label, 1 - label)

    def plain() -> tuple[float, float]:
        draw, found = np.random.default_rng(0), []
        for _ in range(resamples):
            rows = draw.integers(n, size=n)
            right, of = predicted[rows] == label[rows], group[rows]
            found.append(min(right[of == g].mean() for g in range(4)))
        low, high = np.quantile(found, [0.025, 0.975])
        return float(low), float(high)

    ours = partial(
        bootstrap_interval, predicted, label, group, statistic=worst_group_accuracy, resamples=resamples, seed=0
    )
    ends = ours()
    difference = float(np.abs(np.subtract((ends.low, ends.high), plain())).max())
    size = f"{n:,} rows, {resamples} resamples"
    return compared("bootstrap_interval / numpy loop", size, ours, plain, repetitions, difference=difference)


def demo(number: int = 4, steps: int = 12, repetitions: int = 1) -> Row:
    """A comparison as the page draws it; difference: of a pixel, of 255. first: seconds until a pair is there."""
    from vldebias.cli.apps import page

    settings, drawing = page("compare.settings"), page("compare.drawing")
    engine = page("compare.engine").Engine()
    of = settings.Drawing.of("A photo of a doctor.", number, 0, steps, 3.0)
    how = settings.Mitigation.of(("gender",))

    def ours() -> Any:
        *_, last = drawing.compare(engine, of, how, threading.Event())
        return last

    def plain() -> list[list[Any]]:
        one = partial(drawing._draw, engine, of, stop=threading.Event(), tell=lambda part: None)
        pairs = [[one([i], given, 1.0)[0] for given in (None, how)] for i in range(number)]
        return [list(side) for side in zip(*pairs, strict=True)]

    both = zip([*ours().pictures.values()], plain(), strict=True)
    pairs = [pair for sides in both for pair in zip(*sides, strict=True)]
    furthest = max(int(np.abs(np.asarray(a, int) - np.asarray(b, int)).max()) for a, b in pairs)
    size = f"{number} + {number} pictures, {steps} steps"
    return compared("demo: batches / one by one", size, ours, plain, repetitions, pixel=furthest)


def of_losses(repetitions: int = 3) -> Iterator[Row]:
    for name, plain in LOSSES:
        for loss in (name, f"{name}, blocks of {losses.CHUNK}"):
            for batch in (1024, 4096):
                yield losses.measured(loss, plain, batch, scale.DIM, repetitions)


PARTS: dict[str, Callable[[], Iterator[Row] | list[Row]]] = {
    "scale": scale.run,
    "ranks": lambda: [ranks()],
    "intervals": lambda: [intervals()],
    "bootstrap": lambda: [few_rows()],
    "losses": of_losses,
    "fit": lambda: [projection.fit(768, 80, 8, 5)],
    "demo": lambda: [demo()],
    "startup": lambda: startup.measure(3),
}


# ---- growth -----------------------------------------------------------------------------------------------------


def growth(repetitions: int = 2) -> list[Row]:
    """Seconds over the size that grows, and the slope in a plot of logarithms: 1 is linear."""
    draw = torch.Generator().manual_seed(0)

    def unit(rows: int, dim: int = scale.DIM) -> torch.Tensor:
        return normalize(torch.randn(rows, dim, generator=draw), dim=1)

    def skews(n: int, queries: int, k: int) -> Callable[[], object]:
        rng = np.random.default_rng(0)
        gallery = Gallery(Labels(rng.integers(3, size=n), ("a", "b", "c")), SkewOptions(k=[k], resamples=20))
        return partial(gallery.resampled, {"none": rankings(rng.normal(size=(queries, n)))[:, : reach(k, n)]})

    def steps(batch: int) -> Callable[[], object]:
        return partial(losses.step, losses.EVERY["info_nce"], batch, 128)

    texts, items = unit(10), unit(20_000)
    grown: dict[tuple[str, str], dict[int, Callable[[], object]]] = {
        ("exact top ranks", "n"): {
            n: partial(top_rankings, texts, unit(n), 100) for n in (10_000, 20_000, 40_000, 80_000)
        },
        ("exact top ranks", "d"): {
            d: partial(top_rankings, unit(10, d), unit(20_000, d), 100) for d in (128, 256, 512, 1024)
        },
        ("exact top ranks", "queries"): {q: partial(top_rankings, unit(q), items, 100) for q in (10, 20, 40, 80)},
        ("skew intervals", "k"): {k: skews(50_000, 10, k) for k in (250, 500, 1000, 2000)},
        ("skew intervals", "queries"): {q: skews(50_000, q, 500) for q in (5, 10, 20, 40)},
        ("info_nce", "batch"): {b: steps(b) for b in (512, 1024, 2048, 4096)},
    }
    rows = []
    for (what, over), calls in grown.items():
        seconds = medians({str(size): call for size, call in calls.items()}, repetitions)
        slope = float(np.polyfit(np.log(list(calls)), np.log(list(seconds.values())), 1)[0])
        rows.append({"what": what, "over": over, "seconds": seconds, "slope": slope})
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Growth as curves of logarithms."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(9, 5), layout="constrained")
    for row, axis in zip(rows, axes.ravel(), strict=True):
        sizes, seconds = [int(size) for size in row["seconds"]], list(row["seconds"].values())
        axis.loglog(sizes, seconds, marker="o", color="#2a7f7f")
        axis.set_title(f"{row['what']}: slope {row['slope']:.2f}", fontsize=10)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
        axis.minorticks_off()
        axis.set_xlabel(row["over"])
        axis.set_ylabel("seconds", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


@shows("docs/explanation/speed.md", "bench_speed")
def page_rows(result: Result) -> Cells:
    """A row for each benchmark: both times, ours as a part of the other, and peak memory where it was measured."""
    head = ["what / against what", "size", "ours (s)", "against (s)", "ours / against", "peak MB", "against"]

    def peaks(row: Mapping[str, Any]) -> list[str]:
        in_mb = [row.get(f"peak MB, {side}", row.get(f"memory, {side}", np.nan) / 2**20) for side in ("ours", "plain")]
        return ["" if np.isnan(one) else f"{one:,.0f}" for one in in_mb]

    rows = rows_of(result, "what")
    times = [[f"{row['ours']:.3g}", f"{row['plain']:.3g}", f"{row['ours'] / row['plain']:.2g}"] for row in rows]
    both = zip(rows, times, strict=True)
    return [head, *([row["what"], str(row.get("size", "")), *seconds, *peaks(row)] for row, seconds in both)]


@shows("docs/explanation/speed.md", "bench_growth")
def growth_rows(result: Result) -> Cells:
    """A row for each slope."""
    return [
        ["what", "over", "slope"],
        *([row["what"], str(row["over"]), f"{row['slope']:.2f}"] for row in rows_of(result, "what")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows here, and the growth and its picture beside it")
    parser.add_argument(
        "--only", default=",".join((*PARTS, "growth")), help="parts, with commas (default: %(default)s)"
    )
    given = parser.parse_args()
    only = given.only.split(",")
    unknown = sorted(set(only) - {*PARTS, "growth"})
    if unknown:
        parser.error(f"--only: expected some of {', '.join((*PARTS, 'growth'))}, got {unknown}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name in (name for name in PARTS if name in only):
        print(f"{name} ...", file=sys.stderr)
        rows += PARTS[name]()
    if rows:
        report("bench_speed", rows, given.json)
    if "growth" in only:
        grown = growth()
        for row in grown:
            print(f"{row['what']} over {row['over']}: slope {row['slope']:.2f}; {row['seconds']}")
        if given.json:
            beside = given.json.with_name("bench_growth.json")
            write_records(beside, "Processor seconds over a size that grows", grown, "what", ("over",), threads=1)
            plot(grown, beside.with_suffix(".png"))


if __name__ == "__main__":
    main()
