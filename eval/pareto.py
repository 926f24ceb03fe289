"""Bias against utility for every method over lambda, where "auto" lands among them, and what it misses of the best.

python eval/pareto.py --json eval/results/pareto.json --plot eval/results/pareto.png

Settings: CelebA on ViT-B/32 (random halves: fitted on one, measured on the other; skipped where the embeddings are not
there, see eval/real_clip.py), texts of five ViT-L/14 (age, three values; prompts and texts that were not fitted on),
the miniature's birds and portraits (fitted on other renders). Neutral texts, which "auto" and the bounds see, are never
those that are measured. The constants of `vldebias.choosing` were set on other halves and other renders.

A regret is the bias measure of auto minus that of the best fixed method and lambda, picked in hindsight on the images
that are measured; `missed` is the same as a share of what the best one gains, so 1 is as good as doing nothing. It is
left out where even the best one gains nothing beyond its interval.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from beyond_methods import Row
from numpy.typing import NDArray
from pareto_plot import draw
from pareto_settings import Setting, Values, mean, settings
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vldebias.api import fit_projection
from vldebias.bounded import Bound, losses
from vldebias.choosing import BOUND, LAMS
from vldebias.equalise import Reference
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.intervals import Measured, Statistic, figures
from vldebias.evaluation.result import Figure, Protocol, Result, commit, versions

Key = tuple[str, float | None]  # method, lam
BETWEEN = (30.0, 300.0, 3000.0)  # more points of the curves; "auto" is not compared with them
BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1)
TEXTS, BOTH = "auto, texts", "auto, texts and images"
WITHIN = "within the bound"  # compared with those methods alone that keep it


def rows(s: Setting, images: Reference | None) -> dict[Key, Row]:
    """Every method at every lambda, the bounded ones, and what auto chooses."""
    bound = replace(BOUND, loss=s.loss, neutral=s.neutral)
    given = {"reference_images": images}

    def fit(method: str, lam: Any = None, **how: Any) -> Row:
        return Row(fit_projection(s.host, s.prompts, method=method, lam=lam, **how))

    found: dict[Key, Row] = {("none", None): Row(), ("difference", None): fit("difference")}
    found |= {("orth-cali", lam): fit("orth-cali", lam) for lam in LAMS}
    for lam in sorted((*LAMS, *BETWEEN)):
        found["cali", lam] = fit("cali", lam)
        if images is not None:
            found["equalise", lam] = fit("equalise", lam, **given)
            found["cali+equalise", lam] = fit("cali", lam, **given)
    for loss in BOUNDS:
        at_most = Bound(loss, neutral=s.neutral)
        found[f"orth-cali, loss at most {loss}", None] = fit("orth-cali", 1000.0, max_loss=at_most)
        found[f"cali, loss at most {loss}", None] = fit("cali", 1e5, max_loss=at_most)
    found[TEXTS, None] = fit("auto", max_loss=bound)
    if images is not None:
        found[BOTH, None] = fit("auto", max_loss=bound, **given)
    return found


def measure(s: Setting) -> tuple[dict[Key, Values], dict[Key, Values], dict[Key, float]]:
    """Bias and utility (units,) of every method, means over the trials, and the mean loss of its neutral texts."""
    bias: dict[Key, list[Values]] = {}
    utility: dict[Key, list[Values]] = {}
    lost: dict[Key, list[float]] = {}
    neutral = s.host.embed(s.neutral, s.host.roles[0])
    for images, of in s.trials():
        for key, row in rows(s, images).items():
            b, u = of(row)
            bias.setdefault(key, []).append(b)
            utility.setdefault(key, []).append(u)
            lost.setdefault(key, []).append(0.0 if row.texts is None else float(losses(row.texts, neutral).mean()))
    return (
        {k: np.mean(v, axis=0) for k, v in bias.items()},
        {k: np.mean(v, axis=0) for k, v in utility.items()},
        {k: float(np.mean(v)) for k, v in lost.items()},
    )


def figures_of(s: Setting) -> list[Figure]:
    """Points of the curves and the regrets of auto."""
    bias, utility, lost = measure(s)
    n = {s.units: len(bias["none", None])}
    found = points(s, s.metrics[0], s.better, n, bias, s.statistic, s.shared)
    found += points(s, s.metrics[1], "higher", n, utility, mean, ())
    fixed = {k for k in bias if "," not in k[0] and (k[1] is None or k[1] in LAMS)}
    for name in (TEXTS, BOTH):
        if (name, None) in bias:
            at_hand = {k for k in fixed if name == BOTH or "equalise" not in k[0]}
            found += regrets(s, n, bias, (name, None), at_hand, "")
            found += regrets(s, n, bias, (name, None), {k for k in at_hand if lost[k] <= s.loss}, "within the bound")
    return found


def points(
    s: Setting,
    metric: str,
    better: str,
    n: dict[str, int],
    values: Mapping[Key, Values],
    statistic: Statistic,
    shared: tuple[NDArray[Any], ...],
) -> list[Figure]:
    """One figure per method and lambda, each with its paired change to none."""
    base = values["none", None]
    found = []
    for (method, lam), one in values.items():
        pair = {"none": base, method: one}
        of = Measured(s.task, metric, better, n, pair, statistic, shared, details={method: {"lam": lam}})
        found.append(figures(of)[-1])
    return found


def regrets(
    s: Setting, n: dict[str, int], bias: Mapping[Key, Values], auto: Key, fixed: Set[Key], part: str
) -> list[Figure]:
    """Regret against the best of `fixed`, and what is missed of its gain."""
    sign = 1 if s.better == "lower" else -1

    def cost(values: Values, *shared: NDArray[Any]) -> Values:
        return sign * s.statistic(values, *shared)

    def regret(values: Values, best: Values, *shared: NDArray[Any]) -> Values:
        return cost(values, *shared) - cost(best, *shared)

    def at(key: Key) -> float:
        return float(cost(bias[key][None], *(x[None] for x in s.shared))[0])

    best = min(sorted(fixed, key=str), key=at)
    of = Measured(s.task, "regret", "lower", n, {auto[0]: bias[auto]}, regret, (bias[best], *s.shared), subset=part)
    found = figures(of)
    base = bias["none", None]
    helps = figures(replace(of, values={best[0]: bias[best]}, shared=(base, *s.shared)))[0].interval[1] < 0
    if helps:
        missed = (at(auto) - at(best)) / (at(("none", None)) - at(best))
        found.append(found[0].model_copy(update={"metric": "missed", "value": missed, "interval": (missed, missed)}))
    return found


def summary(found: Sequence[Figure]) -> list[Figure]:
    """Over all settings: regret and what is missed, with intervals over settings; how often auto is worse than none."""
    summed = []
    for name in (TEXTS, BOTH):
        for metric in ("regret", "missed"):
            for part in ("", WITHIN):
                values = np.array([f.value for f in found if (f.metric, f.method, f.subset) == (metric, name, part)])
                n = {"settings": len(values)}
                summed += figures(Measured("auto", metric, "lower", n, {name: values}, subset=part))
        bias = [f for f in found if f.method == name and f.change is not None and f.metric not in UTILITIES]
        worse = [f for f in bias if (f.change[1] > 0 if f.better == "lower" else f.change[2] < 0)]  # type: ignore[index]
        count = float(len(worse))
        n = {"settings": len(bias)}
        base = summed[-1].model_copy(update={"metric": "worse_than_none", "subset": "", "n": n})
        summed.append(base.model_copy(update={"value": count, "interval": (count, count)}))
    return summed


UTILITIES = ("query_cosine", "average")


def protocol(s: Setting) -> Protocol:
    return Protocol(
        task=s.task,
        title=s.title,
        description=f"Bias ({s.metrics[0]}) against utility ({s.metrics[1]}) over lambda; regret of auto.",
        model=str(s.about["model"]),
        fingerprint=s.host.fingerprint(),
        prompts=s.prompts.name,
        prompts_hash=s.prompts.hash,
        split="see the head of eval/pareto.py",
        methods={"auto": {"lams": list(LAMS), "max_loss": s.loss, "over": BOUND.over}},
        seeds=[0],
        n={"neutral texts": len(s.neutral)},
        settings={**s.about, "intervals": f"95 % bootstrap over {s.units}, paired", "resamples": 2000},
    )


def tell(result: Result) -> None:
    """What auto did, setting by setting."""
    table = Table("setting", "metric", "method", "against", "value", "95 % interval", "change to none")
    for f in result.figures:
        if f.method in (TEXTS, BOTH):
            change = "" if f.change is None else f"{f.change[0]:+.3f} [{f.change[1]:+.3f}, {f.change[2]:+.3f}]"
            interval = f"[{f.interval[0]:.3f}, {f.interval[1]:.3f}]"
            table.add_row(f.task, f.metric, f.method, f.subset, f"{f.value:.3f}", interval, change)
    Console(width=160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--plot", type=Path, help="write the curves here, as PNG")
    arguments = parser.parse_args()
    started = time.monotonic()
    every = settings()
    found: list[Figure] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)  # the figures show it
        for s in track(every, console=Console(stderr=True), description="settings"):
            found += figures_of(s)
    result = Result(
        name="pareto",
        figures=[*found, *summary(found)],
        protocols=[protocol(s) for s in every],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
    )
    tell(result)
    if arguments.json:
        result.write(arguments.json)
    if arguments.plot:
        draw(result, [(s.task, s.title, *s.metrics) for s in every], arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
