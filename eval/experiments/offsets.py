"""After a projection the class boundary moves as a whole: can unlabelled images put it back?

python -m eval.experiments.offsets --json eval/results/offsets.json

Two classes are told apart by the sign of a margin, an image's score with the second class text minus that with the
first. Each offset is a number that is subtracted from the margins, from unlabelled images alone:

mean, median       of the margins, as if the classes were of equal size
kept shares        so that as many images are called the second class as without a method: the class prior of the model
midpoint           between the mean margins of the images that the model as it is calls the first and the second class
two means          the middle of two clusters of the margins
by value           the mean of the margins' means over the zero-shot values of the attribute
unnormalised       no image is used: the projected class texts are compared without normalising them again

Worlds: birds and hair of the miniature, photographs as old or young by gender (random halves; left out, with a message,
where the embeddings are not there). Images: `reference`, others with the world's own correlation, or `classified`,
those that are measured. A row is a method with an offset (its subset) and its change from the same method without one,
with the 95 % bootstrap interval over images; where there are several references or halves, value and interval are means
over them. "without" is the model as it is. The task "all" has means over the worlds and methods.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.experiments.embeddings import file, protocol, worlds
from eval.experiments.rivals import LIGHT, ages
from eval.experiments.run import parser, run, skip
from eval.tables import fills, read, span, table
from vldebias.data import Embeddings
from vldebias.edit import Edit
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.accuracies import GroupCounts, Reweighted
from vldebias.evaluation.groups import GroupSplit
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.texts import Texts
from vldebias.methods import Problem, Reference, class_offset, get_method
from vldebias.metrics import Metric
from vldebias.metrics.groups import lowest_accuracy, mean_accuracy
from vldebias.metrics.metric import Better
from vldebias.prompts import load_prompts

NAMES = ("cali", "difference", "orth", "orth-cali", "equalise", "cali+equalise")
FORMS = {form.name: form for form in (LIGHT, *map(get_method, NAMES))}
HALVES = 10
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """Unlabelled images: margins (n,) without and with a method, and zero-shot values (n,) of the attribute."""

    before: Floats
    after: Floats
    value: NDArray[np.int64]


def _scores(margins: Floats) -> Tensor:
    """(n, 2) of two classes that differ by the margins."""
    return torch.stack([torch.zeros(len(margins)), torch.from_numpy(margins)], 1)


def two_means(margins: Floats) -> float:
    """The middle of the centres of two clusters on a line, found by exhaustion: the least variance inside them."""
    x = np.sort(margins)
    n = np.arange(1, len(x))
    left = np.cumsum(x)[:-1]
    between = left**2 / n + (x.sum() - left) ** 2 / (len(x) - n)
    cut = int(between.argmax()) + 1
    return float((x[:cut].mean() + x[cut:].mean()) / 2)


OFFSETS: dict[str, Callable[[Seen], float]] = {
    "mean": lambda s: float(s.after.mean()),
    "median": lambda s: float(np.median(s.after)),
    "kept shares": lambda s: float(np.quantile(s.after, (s.before <= 0).mean())),
    "midpoint": lambda s: class_offset(_scores(s.before), _scores(s.after)),
    "two means": lambda s: two_means(s.after),
    "by value": lambda s: float(np.mean([s.after[s.value == v].mean() for v in np.unique(s.value)])),
}


@dataclass(frozen=True, eq=False)
class Trial:
    """One reference, one set of images to classify. texts: of the two classes (2, d)."""

    problem: Problem
    texts: Tensor
    reference: Embeddings
    split: GroupSplit
    weights: dict[str, float]

    def measure(self, method: str) -> dict[tuple[str, str], dict[str, tuple[float, ...]]]:
        """(offset, images) -> metric -> value, low, high, and change from no offset, low, high."""
        edit = self.problem.fit(FORMS[method], "joint")
        base, moved, plain = (margins(self.texts, edit, how) for how in ("without", "with", "unnormalised"))
        measured = self.split.features.double()
        zero_shot = self.problem.zero_shot(self.problem.sets[0], "joint")
        pools = {"reference": self.reference.normalised().double(), "classified": measured}
        seen = {
            name: Seen((rows @ base).numpy(), (rows @ moved).numpy(), (rows @ zero_shot.T).argmax(1).numpy())
            for name, rows in pools.items()
        }
        scores = (measured @ moved).numpy()
        right = {("none", ""): scores > 0, ("unnormalised", ""): (measured @ plain).numpy() > 0}
        for name, of in OFFSETS.items():
            right |= {(name, pool): scores > of(one) for pool, one in seen.items()}
        second = self.split.target == 1
        correct = {key: one == second for key, one in right.items()}
        correct["without", ""] = ((measured @ base).numpy() > 0) == second
        return {key: self._figures(correct["none", ""], one) for key, one in correct.items()}

    def _figures(self, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> dict[str, tuple[float, ...]]:
        names = self.split.groups.names
        counts = GroupCounts.of(before, after, self.split.groups.codes, len(names), resamples=1000)
        reweighted = Reweighted(np.array([self.weights.get(name, 0.0) for name in names]))
        of = {"worst_group": lowest_accuracy, "average": mean_accuracy, "average_reweighted": reweighted}
        return {m: (counts.value(s), *counts.interval(s), *counts.change(s)) for m, s in of.items()}


def margins(texts: Tensor, edit: Edit, how: str) -> Tensor:
    """(d,): the second class text minus the first."""
    rows = texts if how == "without" else edit(texts)
    rows = rows if how == "unnormalised" else torch.nn.functional.normalize(rows, dim=1)
    return rows[1] - rows[0]


def photographs(halves: int = HALVES) -> Iterator[Trial]:
    """Old or young by gender."""
    for split in ages(halves):
        assert split.classes is not None
        yield trial(split.texts, split.classes, split.reference, split.gallery, "age", "gender")


def rendered(world: str, label: str, spurious: str, prompts: str) -> Iterator[Trial]:
    """Renders; two halves of the others are a reference each."""
    one = worlds()[world]
    for part in (0, 1):
        reference = one.fitted[np.arange(part, len(one.fitted), 2)]
        yield trial(one.texts, load_prompts(prompts), reference, one.measured, label, spurious)


def trial(texts: Any, prompts: Any, reference: Embeddings, measured: Embeddings, label: str, spurious: str) -> Trial:
    given = Reference(reference.features.astype(np.float32))
    sizes = GroupSplit.of(reference, prompts, label, spurious).groups.counts
    split = GroupSplit.of(measured, prompts, label, spurious)
    problem = Problem.of(texts.host, prompts, reference=given)
    return Trial(problem, texts.embed(prompts.classes), reference, split, {k: float(v) for k, v in sizes.items()})


def task(name: str, title: str, trials: Sequence[Trial]) -> TaskResult:
    """Rows of one world: means over its trials."""
    first = trials[0]
    n = {"images": len(first.split), "trials": len(trials)}
    about = protocol(
        name,
        title,
        "Offsets of the class margin from unlabelled images; changes are from the method without one.",
        n,
        {method: {} for method in FORMS},
        (Texts(first.problem.host), first.problem.sets[0]),
        split="see the head of eval/experiments/offsets.py",
        seeds=range(len(trials)),
        **{"resamples": 1000, "images per group": first.split.groups.counts},
    )
    done = TaskResult(about)
    for method in FORMS:
        each = [one.measure(method) for one in trials]
        for key in each[0]:
            offset, images = key
            subset = offset if not images else f"{offset}, {images}"
            for metric in each[0][key]:
                value, low, high, *change = np.mean([one[key][metric] for one in each], axis=0).tolist()
                kept = None if offset == "none" else tuple(change)
                done.add(metric, method, value, (low, high), n=n, change=kept, subset=subset)
        print(name, method, file=sys.stderr, flush=True)
    return done


def overall(parts: Sequence[TaskResult]) -> TaskResult:
    """Mean change of every offset over worlds and methods; how often it helps, and hurts, beyond its interval."""
    rows = [row for part in parts for row in part.rows if row.change is not None and row.subset != "without"]
    about = parts[0].provenance.model_copy(
        update={"task": "all", "title": "All worlds and methods", "prompts": "as above", "prompts_hash": ""}
    )
    done = TaskResult(about)
    for subset in dict.fromkeys(row.subset for row in rows):
        for metric in ("worst_group", "average", "average_reweighted"):
            own = [row.change for row in rows if (row.subset, row.metric) == (subset, metric) and row.change]
            n = {"worlds x methods": len(own)}
            values = np.array([one[0] for one in own])
            done.add_resampled(_fact(f"change of {metric}"), {"all": values}, n=n, subset=subset)
            for word, beyond in (("helped", [c[1] > 0 for c in own]), ("hurt", [c[2] < 0 for c in own])):
                better: Better = "higher" if word == "helped" else "lower"
                done.add(_fact(f"{word}, {metric}", better), "all", float(sum(beyond)), n=n, subset=subset)
    return done


def _fact(name: str, better: Better = "higher") -> Metric:
    return Metric(name, name.replace("_", " "), "fact", better)


def measure() -> Iterator[TaskResult]:
    """Every world, then all together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)  # what they warn of is among the figures
        parts = [
            task("birds", "Landbird or waterbird by place", list(rendered("birds", "label", "place", "waterbirds"))),
            task("hair", "Dark or blond hair by gender", list(rendered("portraits", "label", "gender", "celeba"))),
        ]
        if file().is_file():
            parts.append(task("photographs", "Old or young by gender", list(photographs())))
        else:
            skip(file())
    yield from parts
    yield overall(parts)


@fills("docs/explanation/boundary.md", "offsets")
def offsets_block() -> str:
    """Change of worst group and averages by each offset: in each world, mean over methods, and over all."""
    result = read("offsets")
    worlds = [p.task for p in result.provenance]
    metrics = {"worst_group": "worst group", "average": "average", "average_reweighted": "reweighted"}
    head = ["offset", *(f"{world}: worst group" for world in worlds[:-1])]
    lines = [[*head, *(f"all: {name}" for name in metrics.values()), "helps", "hurts"]]
    for offset in dict.fromkeys(row.subset for row in result.rows if row.task == "all"):
        own = [row for row in result.rows if row.subset == offset]
        cells = []
        for world in worlds[:-1]:
            moved = [row.change[0] for row in own if (row.task, row.metric) == (world, "worst_group") and row.change]
            cells.append(f"{sum(moved) / len(moved):+.3f} ({min(moved):+.3f} to {max(moved):+.3f})")
        whole = {row.metric: row for row in own if row.task == "all"}
        means = [whole[f"change of {metric}"] for metric in metrics]
        cells += [span(row, "+.3f") for row in means]
        counts = [f"{whole[f'{word}, worst_group'].value:.0f}" for word in ("helped", "hurt")]
        lines.append([offset, *cells, *counts])
    n = next(iter(whole["helped, worst_group"].n.values()))
    note = f"helps, hurts: of {n} pairs of world and method, beyond the interval of the worst group's change"
    return table(*lines, note=f"{note}; from `eval/results/offsets.json`.")


def main() -> None:
    given = parser(__doc__).parse_args()
    run("offsets", measure, given.json)


if __name__ == "__main__":
    main()
