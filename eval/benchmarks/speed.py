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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from eval.benchmarks import losses, projection, scale
from eval.benchmarks.timing import compared, report
from vldebias.data import Labels
from vldebias.evaluation.retrieval import Gallery, SkewOptions
from vldebias.metrics import bootstrap_interval, worst_group_accuracy
from vldebias.metrics.bootstrap import resampled_weights
from vldebias.metrics.rankings import reach, resampled_places, top_rankings

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
    prior = gallery.prior

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
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas (default: %(default)s)")
    given = parser.parse_args()
    only = given.only.split(",")
    unknown = sorted(set(only) - set(PARTS))
    if unknown:
        parser.error(f"--only: expected some of {', '.join(PARTS)}, got {unknown}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name in (name for name in PARTS if name in only):
        print(f"{name} ...", file=sys.stderr)
        rows += PARTS[name]()
    if rows:
        report("bench_speed", rows, given.json)


if __name__ == "__main__":
    main()
