"""One table over everything that is at hand: the paper's methods and what goes beyond them, on images and queries that
nothing was fitted on.

python -m eval.experiments.beyond                                  # print the table
python -m eval.experiments.beyond --json eval/results/beyond.json  # and write it, with a page beside it
python -m eval.experiments.beyond --only birds --images 0          # a part of it

Settings: CelebA on CLIP ViT-B/32 and texts of five ViT-L/14 (skipped, with a message, where they are missing; see
embeddings.py), birds, portraits and generated portraits of the miniature world. The last block asks whether "auto" did
as well as the best fixed method, which nobody knows beforehand, and whether it was ever worse than doing nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from eval.experiments.beyond_more import generation, pseudo_labels
from eval.experiments.embeddings import (
    LAM,
    TEXTS,
    Floats,
    Gallery,
    Rows,
    Sides,
    World,
    celeba,
    chance,
    file,
    is_right,
    l14,
    man_and_woman,
    protocol,
    skews,
    worlds,
    worst_group,
)
from eval.experiments.run import parser, run, skip
from eval.metrics import ABOVE_FLOOR, REGRET, WORSE
from vldebias.api import fit_projection, fit_shares
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.report.pages import write_page
from vldebias.evaluation.result import Measurement, TaskResult
from vldebias.files import digest
from vldebias.hosts import Host
from vldebias.methods import Bound, Reference
from vldebias.methods.auto import BOUND
from vldebias.methods.diagnostics import pair_distance, signal_kept
from vldebias.metrics.rankings import random_rankings, rankings
from vldebias.metrics.skew import log_ratios
from vldebias.prompts import PromptSet, load_prompts

FROM_TEXTS = ("orth", "orth-cali", "cali", "difference")
FROM_IMAGES = ("equalise", "cali+equalise")
FIXED = ("none", *FROM_TEXTS, *FROM_IMAGES)  # what "auto" is compared with
BIAS = ("max_skew", "worst_group", "pair_distance", "discrepancy")  # what a method is chosen for
WHOLE = ("", "held-out pairs")  # subsets that stand for a setting
LOSS = 0.02  # of cosine, for the row "bounded"
K, HALF_K, SPLITS, POOLS = 100, 50, 24, 6
IMAGES = 8  # generated for each profession
PORTRAITS = {  # a column to be fair in, the prompts of the projection, the set whose queries are asked
    "portraits gender": ("gender", "professions-gender", "professions-gender"),
    "portraits gender, concepts": ("gender", "professions-gender", "fairface-gender"),
    "portraits tone": ("tone", "skin-tone", "skin-tone"),
    "portraits age": ("age", "fairface-age", "professions-gender"),
}


def fitted(
    host: Host, prompts: PromptSet, neutral: Sequence[str] = (), images: Any = None, top: float | None = None
) -> dict[str, Sides]:
    """Every method, "none" first.

    neutral: texts that "auto" and "bounded" keep, the classes of the set by default. images: unlabelled features, for
    the methods that use some. top: k / n of a ranking, for target shares (uniform ones).
    """
    reference = {} if images is None else {"reference": Reference(images)}

    def fit(method: str, **more: Any) -> Sides:
        return Sides(fit_projection(host, prompts, method=method, lam=None if method == "auto" else LAM, **more))

    sides = {"none": Sides(), **{method: fit(method) for method in FROM_TEXTS}}
    if reference:
        sides |= {method: fit(method, **reference) for method in FROM_IMAGES}
    sides["auto"] = fit("auto", max_loss=replace(BOUND, neutral=tuple(neutral)), **reference)
    strongest = FROM_IMAGES[-1] if reference else "cali"
    sides["bounded"] = fit(strongest, max_loss=Bound(LOSS, neutral=tuple(neutral)), **reference)
    if reference:
        both = sides["cali+equalise"].texts
        sides["cali+equalise, image side"] = Sides(images=both)
        sides["cali+equalise, both sides"] = Sides(both, both)
    if top is not None:
        sides["target, uniform"] = Sides(fit_shares(host, prompts, top=top, method="cali", **reference))
    return sides


# ---- CelebA ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of the images that are fitted on, and of those that are measured on, in pools balanced in gender."""

    fitted: Rows
    pools: list[Rows]
    k: int

    @property
    def chance(self) -> float:
        """Expected MaxSkew@k of a random ranking of such a pool."""
        return chance(self.k, *[len(self.pools[0]) // 2] * 2)

    def skews(self, side: Sides, data: Gallery, queries: slice = slice(None)) -> Floats:
        """MaxSkew@k of each query, mean over the pools."""
        asked = data.texts.embed(data.queries[queries])
        return skews(side, asked, data.rows, data.images.column("gender"), self.k, self.pools)


def methods_of(data: Gallery, split: Split) -> dict[str, Sides]:
    """Every method, fitted on prompts and on the given images without their labels.

    Every second query stands for the classes or neutral texts that some methods take; the others are held out.
    """
    images, known = data.images.features[split.fitted].astype(np.float32), data.queries[::2]
    sides = fitted(data.texts.host, data.prompts, known, images, top=split.k / len(split.pools[0]))
    within = replace(data.prompts, classes=known, class_names=known)  # pseudo-classes that are queries
    method = FROM_IMAGES[-1]
    edit = fit_projection(data.texts.host, within, method=method, lam=LAM, reference=Reference(images))
    return {**sides, "cali+equalise, within queries": Sides(edit)}


def one_split(data: Gallery, task: str, split: Split, told: str) -> Iterator[TaskResult]:
    """Figures of one split: means over the 51 queries with intervals over them."""
    queries, sides = data.texts.embed(data.queries), methods_of(data, split)
    skew = {name: split.skews(side, data) for name, side in sides.items()}
    n = {"queries": len(queries), "pool": len(split.pools[0])}
    done = TaskResult(_of_celeba(data, task, told, sides, [0], n, k=split.k, resample="queries"))
    done.add_resampled(f"max_skew@{split.k}", skew, n=n)
    done.add(f"max_skew@{split.k}", "random", split.chance, n=n)
    above = {name: values - split.chance for name, values in skew.items()}
    done.add_resampled(replace(ABOVE_FLOOR, name=f"above_floor@{split.k}"), above, n=n)
    done.add_resampled("query_cosine", {m: side.cosines(queries) for m, side in sides.items()}, n=n)
    yield done


def random_halves(data: Gallery, splits: int) -> Iterator[Split]:
    """Splits in the middle of random orders."""
    n = len(data.images)
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(n)
        pools = data.pools([[seed, pool] for pool in range(POOLS)], order[n // 2 :])
        yield Split(order[: n // 2], pools, HALF_K)


def half_splits(data: Gallery, task: str, splits: int = SPLITS) -> Iterator[TaskResult]:
    """Means over random halves: fitted on 500 images, measured on the other 500; intervals over the splits."""
    queries = data.texts.embed(data.queries)
    held_out = np.arange(len(queries)) % 2 == 1
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    sides: dict[str, Sides] = {}
    for split in random_halves(data, splits):
        sides = methods_of(data, split)
        for name, side in sides.items():
            skew, cosine = split.skews(side, data), side.cosines(queries)
            for key, value in {
                (f"max_skew@{HALF_K}", ""): skew.mean(),
                (f"max_skew@{HALF_K}", "held-out queries"): skew[held_out].mean(),
                (f"above_floor@{HALF_K}", ""): skew.mean() - split.chance,
                ("query_cosine", ""): cosine.mean(),
                ("query_cosine", "held-out queries"): cosine[held_out].mean(),
            }.items():
                values.setdefault(key, {}).setdefault(name, []).append(float(value))
        values[f"max_skew@{HALF_K}", ""].setdefault("random", []).append(split.chance)
    n = {"splits": splits, "queries": len(queries)}
    settings = {
        "k": HALF_K,
        "pools per split": POOLS,
        "intervals": "bootstrap over splits: how much the draw of the halves matters, given these 1000 images",
        "held-out queries": "every second; the others are neutral texts of bounded, classes of 'within queries'",
    }
    told = "random halves of 1000 images: fitted on one, measured on the other"
    done = TaskResult(_of_celeba(data, task, told, sides, list(range(splits)), n, **settings))
    for (metric, subset), by_method in values.items():
        arrays = {name: np.array(one) for name, one in by_method.items()}
        done.add_resampled(metric, arrays, n=n, subset=subset)
    yield done


def _of_celeba(data: Gallery, task: str, told: str, sides: Any, seeds: list[int], n: Any, **settings: Any) -> Any:
    return protocol(
        task,
        f"Gender skew of retrieval on real embeddings: {told}",
        f"MaxSkew over gender of 51 professions as queries, mean over pools balanced in gender; {told}.",
        n,
        sides,
        (data.texts, data.prompts),
        split=f"CelebA 000001-001000, {told}",
        seeds=seeds,
        data={"embeddings": data.digest},
        **{"prior": "uniform", "keep_stated": False, **settings},
    )


# ---- texts alone -----------------------------------------------------------------------------------------------------


def texts_l14() -> Iterator[TaskResult]:
    """Text-only measures on five ViT-L/14: pairs that were not fitted, and the concepts they share."""
    path = file(TEXTS)
    for name, texts, named in l14(path):
        pairs = man_and_woman(named)
        prompts = PromptSet(
            name="man-woman",
            attributes={"male": ("man",), "female": ("woman",)},
            groups=pairs[::2],
            held_out_groups=pairs[1::2],
            spurious=("a photo of a man", "a photo of a woman"),
        )
        held = torch.stack([texts.embed(pair) for pair in pairs[1::2]])
        sides = fitted(texts.host, prompts, [p for pair in pairs[::2] for p in pair])
        n = {"pairs": len(held)}
        about = protocol(
            f"texts L/14 {name}",
            f"Texts alone, ViT-L/14 {name}",
            "Distance of held-out man / woman pairs after a projection, and share of the distance between their "
            "concepts (means of the two) that is kept. Fitted on every second pair.",
            n,
            sides,
            (texts, prompts),
            split="every second of 32 pairs",
            seeds=(),
            data={"embeddings": digest(path)[:16]},
            **{"intervals": "bootstrap over held-out pairs", "resamples": 2000},
        )
        done = TaskResult(about)
        distances = {m: np.array([pair_distance(pair[None], side.texts) for pair in held]) for m, side in sides.items()}
        done.add_resampled("pair_distance", distances, n=n, subset="held-out pairs")
        for method, side in sides.items():
            kept = 1.0 if side.texts is None else float(signal_kept(held.mean(1), side.texts) or 0)
            done.add("signal_kept", method, kept, n=n)
        yield done


# ---- the miniature world ---------------------------------------------------------------------------------------------


def birds(world: World) -> Iterator[TaskResult]:
    """Landbird or waterbird; the place is spurious. Intervals over images."""
    prompts = load_prompts("waterbirds")
    sides = fitted(world.texts.host, prompts, images=world.reference)
    label, place = world.measured.column("label"), world.measured.column("place")
    groups = label.codes * len(place.names) + place.codes
    classes = world.texts.embed(prompts.classes)
    right = {name: is_right(side, classes, world.rows, label) for name, side in sides.items()}
    n = {"images": len(label), "smallest group": int(np.bincount(groups).min())}
    told = "Zero-shot landbird or waterbird on renders without correlation; the place is spurious"
    done = TaskResult(of_world(world, "birds", told, prompts, sides, n))
    done.add_resampled("worst_group", right, n=n, statistic=worst_group, shared=(groups,))
    done.add_resampled("average", right, n=n)
    cosines = {name: side.cosines(classes) for name, side in sides.items()}
    done.add_resampled("query_cosine", cosines, n={"classes": len(classes)})
    yield done


def portraits(world: World, task: str) -> Iterator[TaskResult]:
    """Skew of the first portraits for queries that no projection was fitted on. Intervals over queries."""
    column, fitted_on, asked_of = PORTRAITS[task]
    prompts, asked = load_prompts(fitted_on), load_prompts(asked_of)
    labels = world.measured.column(column)
    sides = fitted(world.texts.host, prompts, images=world.reference, top=K / len(labels))
    queries, named = world.texts.embed(asked.held_out_classes or asked.classes), asked.held_out_class_names
    skew = {name: skews(side, queries, world.rows, labels, K) for name, side in sides.items()}
    precision = {m: precision_at(20, side, queries, world, named or asked.class_names) for m, side in sides.items()}
    at_random = np.concatenate([labels.codes[rows] for rows in random_rankings(len(labels), K, 2000, 0)])
    drawn = log_ratios(at_random, K, np.full(len(labels.names), 1 / len(labels.names))).max(axis=1)
    skew["random"] = np.random.default_rng(0).choice(drawn, len(queries))
    n = {"queries": len(queries), "images": len(labels)}
    told = f"Retrieval of portraits without correlation: skew in {column}, queries that were not fitted on"
    done = TaskResult(of_world(world, task, told, prompts, sides, n))
    done.add_resampled(f"max_skew@{K}", skew, n=n)
    done.add_resampled("query_cosine", {m: side.cosines(queries) for m, side in sides.items()}, n=n)
    if precision["none"] is not None:
        done.add_resampled("precision@20", precision, n=n)
    yield done


def precision_at(k: int, side: Sides, queries: Tensor, world: World, named: Sequence[str]) -> Floats | None:
    """Share of the first k images (q,) that show the profession asked for; None where queries name none."""
    profession = world.measured.column("profession")
    if not set(named) <= set(profession.names):
        return None
    wanted = np.array([profession.names.index(name) for name in named])
    ranked = rankings((side.of_texts(queries) @ side.of_images(world.rows).T).numpy())[:, :k]
    return (profession.codes[ranked] == wanted[:, None]).mean(axis=1)


def of_world(world: World, task: str, told: str, prompts: PromptSet, sides: Mapping[str, Sides], n: Any) -> Any:
    """What was done on one world."""
    how = {"k": K, "prior": "uniform", "keep_stated": False, "resamples": 2000}
    return protocol(task, f"Miniature {task}", f"{told}.", n, sides, (world.texts, prompts), split=world.split, **how)


# ---- all of it -------------------------------------------------------------------------------------------------------


def regret(rows: Sequence[Measurement]) -> TaskResult:
    """What "auto" forgoes of the gain of the best fixed method, per setting and on average.

    0: as good as the best; 1: as "none"; below 0: better than every fixed method. Settings where no fixed method gains
    beyond its interval have nothing to forgo and are only counted. "worse_than_none" is 1 where the whole interval of
    the change of auto lies on the wrong side.
    """
    forgone, worse = {}, {}
    for task, metric in dict.fromkeys((r.task, r.metric) for r in rows if r.metric.split("@")[0] in BIAS):
        of = {r.method: r for r in rows if (r.task, r.metric) == (task, metric) and r.subset in WHOLE}
        auto, best = of["auto"], max((r for r in of.values() if r.method in FIXED), key=lambda r: gains(r)[0])
        worse[task] = float(max(gains(auto)) < 0)
        if min(gains(best)) > 0:
            forgone[task] = 1 - gains(auto)[0] / gains(best)[0]
    n = {"settings": len(worse), "with something to gain": len(forgone)}
    about = protocol(
        "auto",
        "Choosing without labels",
        "Regret: the share of the best fixed method's gain over none that auto forgoes; 0 is as good as the best, 1 is "
        "as none, below 0 is better than every fixed method. The best is picked with the labels that auto does not "
        "see, and without the bound on the query's cosine that auto keeps. Settings where no fixed method gains "
        "beyond its interval are left out. Worse than none: auto's change is all on the wrong side.",
        n,
        {"auto": {}},
        seeds=(),
        **{"fixed methods": list(FIXED), "intervals": "bootstrap over settings", "measures": list(BIAS)},
    )
    done = TaskResult(about)
    done.add_resampled(REGRET, {"auto": np.array(list(forgone.values()))}, n=n)
    done.add_resampled(WORSE, {"auto": np.array(list(worse.values()))}, n=n)
    for task, share in forgone.items():
        done.add(REGRET, "auto", share, n={}, subset=task)
    return done


def gains(row: Measurement) -> tuple[float, float, float]:
    """How much better than "none", with its interval's ends; all are below 0 where it is worse beyond doubt."""
    sign = -1 if row.better == "lower" else 1
    value, low, high = row.change or (0.0, 0.0, 0.0)
    return sign * value, sign * low, sign * high


def jobs(images: int) -> Iterator[tuple[str, Callable[[], Iterator[TaskResult]]]]:
    """(name, what measures it), as far as the data are there."""
    path, render = file(), cache(worlds)
    real = celeba(path) if path.is_file() else skip(path)
    if real is not None:
        n = len(real.images)
        first, last, everything = np.arange(n)[: n // 2], np.arange(n)[n // 2 :], np.arange(n)
        seeds = [[0, pool] for pool in range(10)]
        itself = Split(everything, real.pools(seeds), K)
        halves = Split(first, real.pools(seeds, last), HALF_K)
        told = "fitted on images 1-500, measured on 501-1000"
        yield "celeba", lambda: one_split(real, "celeba, the gallery itself", itself, "fitted on the gallery")
        yield "celeba 1-500", lambda: one_split(real, "celeba, 501-1000", halves, told)
        yield "celeba halves", lambda: half_splits(real, "celeba, random halves")
    if file(TEXTS).is_file():
        yield "texts L/14", texts_l14
    else:
        skip(file(TEXTS))
    yield "birds", lambda: birds(render()["birds"])
    for task in PORTRAITS:
        yield task, lambda task=task: portraits(render()["portraits"], task)
    yield "pseudo-labels", lambda: pseudo_labels(real, render())
    if images:
        yield "generation", lambda: generation(images, LOSS)


def measure(images: int, only: Sequence[str] | None = None) -> Iterator[TaskResult]:
    """All parts whose name starts with one of `only`; all of them by default."""
    rows: list[Measurement] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)  # the figures show it
        for name, job in jobs(images):
            if not only or any(name.startswith(one) for one in only):
                for part in job():
                    rows += part.rows
                    yield part
                Console(stderr=True).print(f"{name}: done", highlight=False)
    if not rows:
        raise SystemExit(f"nothing to measure: no setting starts with {only}")
    if any(row.method == "auto" for row in rows):
        yield regret(rows)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=IMAGES, help="generated for each profession (%(default)s)")
    options.add_argument("--only", action="append", help="settings whose name starts so; repeat for several")
    given = options.parse_args()
    result = run("beyond", lambda: measure(given.images, given.only), given.json)
    if given.json:
        write_page(result, [], given.json.with_suffix(".html"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
