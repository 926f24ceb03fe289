"""Bias against utility for every method over lambda, where "auto" lands among them, and what it misses of the best.

python -m eval.experiments.pareto --json eval/results/pareto.json --plot eval/results/pareto.png

Settings: CelebA on ViT-B/32 (random halves: fitted on one, measured on the other; skipped where the embeddings are not
there, see embeddings.py), texts of five ViT-L/14 (age, three values; prompts and texts that were not fitted on), the
miniature's birds and portraits (fitted on other renders). Neutral texts, which "auto" and the bounds see, are never
those that are measured. The constants of `vldebias.methods.auto` were set on other halves and other renders.

A regret is the bias measure of auto minus that of the best fixed method and lambda, picked in hindsight on the images
that are measured; `missed` is the same as a share of what the best one gains, so 1 is as good as doing nothing. It is
left out where even the best one gains nothing beyond its interval.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.experiments.embeddings import (
    TEXTS,
    Floats,
    Gallery,
    Rows,
    Sides,
    World,
    celeba,
    file,
    is_right,
    l14,
    protocol,
    skews,
    worlds,
    worst_group,
)  # fmt: skip
from eval.experiments.run import parser, run, skip
from eval.metrics import MISSED, REGRET, WORSE
from vldebias.api import fit_projection
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.result import Measurement, Result, TaskResult
from vldebias.evaluation.task import Texts
from vldebias.methods import METHODS, Bound, Reference
from vldebias.methods.auto import BOUND, LAMS
from vldebias.methods.bounded import losses
from vldebias.methods.gaps import PredictedGap
from vldebias.metrics import bootstrap_interval
from vldebias.metrics.metric import get_metric
from vldebias.progress import Progress
from vldebias.prompts import PromptSet, load_prompts

Key = tuple[str, float | None]  # method, lam
Measure = Callable[[Sides], tuple[Floats, Floats]]  # bias and utility, one value per unit each
BETWEEN = (30.0, 300.0, 3000.0)  # more points of the curves; "auto" is not compared with them
BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1)
TEXT, BOTH = "auto, texts", "auto, texts and images"
WITHIN = "within the bound"  # compared with those methods alone that keep it
UTILITIES = ("query_cosine", "average")
K, HALF_K, SPLITS, POOLS = 100, 50, 8, 6
PORTRAITS = {  # a column to be fair in, the prompts of the projection, the set whose queries are asked
    "portraits gender": ("gender", "professions-gender", "professions-gender"),
    "portraits gender, concepts": ("gender", "professions-gender", "fairface-gender"),
    "portraits tone": ("tone", "skin-tone", "skin-tone"),
    "portraits age": ("age", "fairface-age", "professions-gender"),
}


def mean(values: Floats) -> Floats:
    """The statistic of most settings."""
    return values.mean(axis=-1)


@dataclass(frozen=True, eq=False)
class Setting:
    """One panel: what is fitted, and what bias and utility of a method are.

    metrics: of bias and utility. trials: (images that may be seen, what measures) pairs, whose values are averaged per
    unit. loss: the mean loss of neutral texts that auto is held to.
    """

    task: str
    title: str
    texts: Texts
    prompts: PromptSet
    neutral: tuple[str, ...]
    metrics: tuple[str, str]
    units: str
    trials: Callable[[], Iterator[tuple[Any, Measure]]]
    statistic: Callable[..., Floats] = mean
    shared: tuple[NDArray[Any], ...] = ()
    loss: float = BOUND.loss


# ---- settings --------------------------------------------------------------------------------------------------------


def random_halves(data: Gallery, splits: int) -> Iterator[tuple[Rows, list[Rows]]]:
    """Rows that are fitted on, and pools of the others balanced in gender: the middle of random orders."""
    n = len(data.images)
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(n)
        yield order[: n // 2], data.pools([[seed, pool] for pool in range(POOLS)], order[n // 2 :])


def of_celeba(path: Path) -> Setting:
    """Gender skew of professions on real images; every second query is neutral text, the others are asked."""
    data = celeba(path)
    asked, gender = data.texts.embed(data.queries[1::2]), data.images.column("gender")

    def trials() -> Iterator[tuple[Any, Measure]]:
        for seen, pools in random_halves(data, SPLITS):
            yield (
                data.images.features[seen].astype(np.float32),
                lambda side, pools=pools: (skews(side, asked, data.rows, gender, HALF_K, pools), side.cosines(asked)),
            )

    title, metrics = f"CelebA, B/32: gender skew of the first {HALF_K}", (f"max_skew@{HALF_K}", "query_cosine")
    return Setting("celeba b32", title, data.texts, data.prompts, data.queries[::2], metrics, "queries", trials)


def of_ages(backbone: str, texts: Texts, named: Sequence[str]) -> Setting:
    """Texts alone: young, middle-aged, old; prompts about one half of the people stand for images."""
    groups = {}
    for prompt in named:
        people = re.sub("^a photo of an? ", "", prompt)
        group = tuple(f"a photo of {age} {people}" for age in ("a young", "an old", "a middle-aged"))
        if set(group) <= set(named):
            groups[prompt] = group
    people, held = list(groups)[::2], list(groups)[1::2]
    prompts = PromptSet(
        name="ages",
        attributes={"young": ("young",), "old": ("old",), "middle-aged": ("middle-aged",)},
        groups=tuple(groups[p] for p in people),
        spurious=groups["a photo of a man"],
    )
    rows = texts.embed([prompt for p in held for prompt in groups[p]])
    values, classes = torch.arange(3).repeat(len(held)), torch.arange(len(held)).repeat_interleave(3)
    gap, asked = PredictedGap.of(rows, values, classes, resamples=0), texts.embed(held)

    def measure(side: Sides) -> tuple[Floats, Floats]:
        return gap.of_texts(side.of_texts(asked))[0].numpy(), side.cosines(asked)

    return Setting(
        f"texts l14 {backbone}",
        f"Texts, L/14 {backbone}: ages",
        texts,
        prompts,
        tuple(people),
        ("gap", "query_cosine"),
        "texts",
        lambda: iter([(None, measure)]),
    )


def of_birds(world: World) -> Setting:
    """Landbird or waterbird on renders without correlation; the place is spurious."""
    prompts, label, place = load_prompts("waterbirds"), world.measured.column("label"), world.measured.column("place")
    classes = world.texts.embed(prompts.classes)

    def measure(side: Sides) -> tuple[Floats, Floats]:
        right = is_right(side, classes, world.rows, label)
        return right, right

    return Setting(
        "birds",
        "Birds: worst of four groups",
        world.texts,
        prompts,
        prompts.classes,
        ("worst_group", "average"),
        "images",
        lambda: iter([(world.reference, measure)]),
        worst_group,
        (label.codes * len(place.names) + place.codes,),
    )


def of_portraits(world: World, task: str) -> Setting:
    """Skew of the first portraits for queries that no projection was fitted on."""
    column, fitted_on, asked_of = PORTRAITS[task]
    prompts, asked, labels = load_prompts(fitted_on), load_prompts(asked_of), world.measured.column(column)
    queries = world.texts.embed(asked.held_out_classes or asked.classes)

    def measure(side: Sides) -> tuple[Floats, Floats]:
        return skews(side, queries, world.rows, labels, K), side.cosines(queries)

    return Setting(
        task,
        f"{task.capitalize()}: skew of the first {K}",
        world.texts,
        prompts,
        prompts.classes,
        (f"max_skew@{K}", "query_cosine"),
        "queries",
        lambda: iter([(world.reference, measure)]),
    )


def settings() -> list[Setting]:
    """All that there is; what needs files that are not there is left out, and said.

    Two stand there again, where auto is told what it cannot know: what is lost by classes, and what will be asked.
    """
    found: list[Setting] = []
    if file().is_file() and file(TEXTS).is_file():
        found = [of_celeba(file()), *(of_ages(name, texts, named) for name, texts, named in l14(file(TEXTS)))]
    else:
        skip(file())
    rendered = worlds()
    birds = of_birds(rendered["birds"])
    portraits = {task: of_portraits(rendered["portraits"], task) for task in PORTRAITS}
    ages = portraits["portraits age"]
    asked = load_prompts(PORTRAITS[ages.task][2]).classes
    return [
        *found,
        birds,
        *portraits.values(),
        replace(birds, task="birds, loss 0.5", title=f"{birds.title}, loss at most 0.5", loss=0.5),
        replace(ages, task="portraits age, told", title="Portraits age, told professions", neutral=asked),
    ]


# ---- measuring -------------------------------------------------------------------------------------------------------


def fitted(s: Setting, images: Any) -> dict[Key, Sides]:
    """Every method at every lambda, the bounded ones, and what auto chooses."""
    bound = replace(BOUND, loss=s.loss, neutral=s.neutral)
    reference = {} if images is None else {"reference": Reference(images)}

    def fit(method: str, lam: float | None = None, **more: Any) -> Sides:
        return Sides(fit_projection(s.texts.host, s.prompts, method=method, lam=lam, **more))

    sides: dict[Key, Sides] = {("none", None): Sides(), ("difference", None): fit("difference")}
    sides |= {("orth-cali", lam): fit("orth-cali", lam) for lam in LAMS}
    for lam in sorted((*LAMS, *BETWEEN)):
        sides["cali", lam] = fit("cali", lam)
        if reference:
            sides |= {(m, lam): fit(m, lam, **reference) for m in ("equalise", "cali+equalise")}
    for loss in BOUNDS:
        at_most = Bound(loss, neutral=s.neutral)
        sides[f"orth-cali, loss at most {loss}", None] = fit("orth-cali", 1000.0, max_loss=at_most)
        sides[f"cali, loss at most {loss}", None] = fit("cali", 1e5, max_loss=at_most)
    sides[TEXT, None] = fit("auto", max_loss=bound)
    if reference:
        sides[BOTH, None] = fit("auto", max_loss=bound, **reference)
        sides["cali+equalise, image side", None] = Sides(None, fit("cali+equalise", **reference).texts)
    return sides


def measured(s: Setting) -> tuple[dict[Key, Floats], dict[Key, Floats], dict[Key, float]]:
    """Bias and utility (units,) of every method, means over the trials, and the mean loss of its neutral texts."""
    trials: dict[Key, list[tuple[Floats, Floats, float]]] = {}
    neutral = s.texts.embed(s.neutral)
    for images, measure in s.trials():
        for key, side in fitted(s, images).items():
            lost = 0.0 if side.texts is None else float(losses(side.texts, neutral).mean())  # type: ignore[arg-type]
            trials.setdefault(key, []).append((*measure(side), lost))
    bias, utility, lost_of = ({k: np.mean([t[i] for t in of], axis=0) for k, of in trials.items()} for i in range(3))
    return bias, utility, {k: float(v) for k, v in lost_of.items()}


def of_setting(s: Setting) -> TaskResult:
    """Points of the curves and the regrets of auto."""
    bias, utility, lost = measured(s)
    n = {s.units: len(bias["none", None])}
    about = protocol(
        s.task,
        s.title,
        f"Bias ({s.metrics[0]}) against utility ({s.metrics[1]}) over lambda; regret of auto.",
        {"neutral texts": len(s.neutral)},
        {"auto": {"lams": list(LAMS), "max_loss": s.loss, "over": BOUND.over}},
        (s.texts, s.prompts),
        split="see the head of eval/experiments/pareto.py",
        **{"intervals": f"95 % bootstrap over {s.units}, paired", "resamples": 2000},
    )
    result = TaskResult(about)
    curves = ((s.metrics[0], bias, s.statistic, s.shared), (s.metrics[1], utility, mean, ()))
    for metric, values, statistic, shared in curves:
        for (method, lam), one in values.items():  # each with its paired change to none
            result.details = {method: {"lam": lam}}
            pair, kept = {"none": values["none", None], method: one}, len(result.rows)
            result.add_resampled(metric, pair, n=n, statistic=statistic, shared=shared)
            result.rows[kept:] = result.rows[-1:]
    result.details = {}
    fixed = {k for k in bias if k[0] in METHODS and (k[1] is None or k[1] in LAMS)}
    for name in (TEXT, BOTH):
        if (name, None) in bias:
            at_hand = {k for k in fixed if name == BOTH or "equalise" not in k[0]}
            regrets(result, s, n, bias, (name, None), at_hand, "")
            regrets(result, s, n, bias, (name, None), {k for k in at_hand if lost[k] <= s.loss}, WITHIN)
    return result


def regrets(
    result: TaskResult,
    s: Setting,
    n: dict[str, int],
    bias: Mapping[Key, Floats],
    auto: Key,
    fixed: Set[Key],
    part: str,
) -> None:
    """Regret against the best of `fixed`, and what is missed of its gain."""
    sign = 1 if get_metric(s.metrics[0]).better == "lower" else -1

    def cost(values: Floats, *shared: NDArray[Any]) -> Floats:
        return sign * s.statistic(values, *shared)

    def difference(values: Floats, other: Floats, *shared: NDArray[Any]) -> Floats:
        return cost(values, *shared) - cost(other, *shared)

    def at(key: Key) -> float:
        return float(cost(bias[key][None], *(x[None] for x in s.shared))[0])

    best, base = min(sorted(fixed, key=str), key=at), bias["none", None]
    shared = (bias[best], *s.shared)
    values = {auto[0]: bias[auto]}
    result.add_resampled(REGRET, values, n=n, statistic=difference, shared=shared, subset=part)
    drawn = {"statistic": difference, "resamples": 2000, "seed": 0, "vectorized": True}
    if bootstrap_interval(bias[best], base, *s.shared, **drawn).high < 0:  # the best one gains
        missed = (at(auto) - at(best)) / (at(("none", None)) - at(best))
        result.add(MISSED, auto[0], missed, n=n, subset=part)


def summary(rows: Sequence[Measurement]) -> TaskResult:
    """Over all settings: regret and what is missed, with intervals over settings; how often auto is worse than none."""
    told = "Regret and what is missed, means over the settings; settings in which auto is worse than none."
    methods: dict[str, dict[str, Any]] = {TEXT: {}, BOTH: {}}
    about = protocol("auto", "Choosing without labels", told, {}, methods, intervals="95 % bootstrap over settings")
    result = TaskResult(about)
    for name in (TEXT, BOTH):
        for metric in (REGRET, MISSED):
            for part in ("", WITHIN):
                own = [r.value for r in rows if (r.metric, r.method, r.subset) == (metric.name, name, part)]
                values = np.array(own)
                n = {"settings": len(values)}
                result.add_resampled(metric, {name: values}, n=n, subset=part)
        changes = [r for r in rows if r.method == name and r.change is not None and r.metric not in UTILITIES]
        worse = [r for r in changes if r.change and (r.change[1] > 0 if r.better == "lower" else r.change[2] < 0)]
        n = {"settings": len(changes)}
        result.add(WORSE, name, float(len(worse)), n=n)
    return result


def measure() -> Iterator[TaskResult]:
    """Every setting, then the summary."""
    rows: list[Measurement] = []
    with warnings.catch_warnings(), Progress.on() as progress:
        warnings.simplefilter("ignore", VldebiasWarning)  # the figures show it
        for s in progress.track(settings(), "settings"):
            part = of_setting(s)
            rows += part.rows
            yield part
    yield summary(rows)


# ---- the picture -----------------------------------------------------------------------------------------------------


def draw(result: Result, path: Path) -> Path:
    """A panel per setting, from its figures alone: lines over lambda with 95 % bands, stars for auto."""
    from vldebias.pictures import INK, save_png, subplots

    panels = [p for p in result.provenance if p.task != "auto"]
    rows, columns = -(-len(panels) // 3), 3
    plot, axes = subplots(rows, columns, (4.1 * columns, 3.3 * rows))
    for axis, one in zip(axes, panels, strict=False):
        _panel(axis, [row for row in result.rows if row.task == one.task])
        axis.set_title(one.title, fontsize=9, color=INK)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    plot.subplots_adjust(bottom=1.25 / plot.get_size_inches()[1])
    shown = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    plot.legend(shown.values(), shown.keys(), frameon=False, fontsize=8, ncols=5, loc="lower center")
    return save_png(plot, path, {"result": result.name, "commit": result.commit, "versions": result.versions})


def _panel(axis: Any, rows: Sequence[Measurement]) -> None:
    from vldebias.pictures import INK

    (bias, utility), marks = list(dict.fromkeys(row.metric for row in rows))[:2], {TEXT: "P", BOTH: "*"}
    y = {(row.method, row.lam): row for row in rows if row.metric == bias and not row.subset}
    x = {(row.method, row.lam): row.value for row in rows if row.metric == utility}
    lines = {name: ([key for key in y if key[0] == name], "-", name) for name in METHODS if (name, LAMS[0]) in y}
    bounded = [key for key in y if key[0].startswith("orth-cali, loss at most")]
    lines["orth-cali, bounded"] = (bounded, ":", "orth-cali, loss bounded")
    for name, (keys, style, label) in lines.items():
        color = METHODS[name.split(",")[0]].color
        low, high = zip(*(y[key].interval for key in keys), strict=True)
        along = [x[key] for key in keys]  # in the order of lambda, or of the bound
        axis.fill_between(along, low, high, color=color, alpha=0.13, linewidth=0)
        axis.plot(along, [y[key].value for key in keys], style, color=color, marker=".", linewidth=1.4, label=label)
    for name, marker in {"none": "o", "difference": "D", **marks}.items():
        if (name, None) in y:
            one, color = y[name, None], METHODS[name].color if name in METHODS else INK
            axis.vlines(x[name, None], *one.interval, color=color, linewidth=1, zorder=3)
            size = 130 if marker == "*" else 45
            axis.scatter(x[name, None], one.value, marker=marker, s=size, color=color, zorder=4, label=name)
    axis.set_xlabel(utility.replace("_", " "), fontsize=8, color=INK)
    axis.set_ylabel(bias.replace("_", " "), fontsize=8, color=INK)
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--plot", type=Path, help="write the curves here, as PNG")
    given = options.parse_args()
    result = run("pareto", measure, given.json)
    if given.plot:
        draw(result, given.plot)


if __name__ == "__main__":
    main()
