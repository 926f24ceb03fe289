"""What features hold, where the truth is known: probes after every method, hidden groups, wrong labels, margins.

python -m eval.experiments.features probes --json eval/results/features_probes.json  # or groups, labels, margins

The tables of docs/how-to/diagnose.md are made from it. Five seeds each; a value is their mean, its interval the 95 %
one of Student's t over seeds.

probes   Balanced accuracy out of sample of gender (CelebA under CLIP ViT-B/32; portraits of the embedded world) before
         and after every method, on images that the method was not fitted on.
groups   Worst group of a linear head on other images, trained with the groups reweighted to one size: no groups
         (classes alone), groups by its own errors, by clusters, by texts, the true ones. F1 of the found ones.
labels   AUROC of the two rules for labels that were changed at random, 10, 20 and 40 % of them.
margins  A network of one hidden layer on scikit-learn's digits, true labels and random ones (Figure 8-2 of the thesis):
         median margins of both when all training rows are right, and their ratio; the least that Theorem 8.2 can say.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch.nn.functional import normalize

from eval.experiments.embeddings import FILE, celeba, file
from eval.experiments.rivals import compared, professions
from eval.experiments.run import parser, run, skip
from eval.metrics import AUROC, BOUND, RATIO
from eval.tables import fills, half, read, table
from vldebias.data import Embeddings, Labels
from vldebias.diagnostics import hidden_groups, margins, readable, wrong_labels
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.baselines.logistic import Scaling, logistic_regression
from vldebias.evaluation.result import NONE, TaskProvenance, TaskResult
from vldebias.metrics import Metric
from vldebias.metrics.detection import auroc
from vldebias.metrics.metric import metric_of

SEEDS = range(5)
NOISE = (0.1, 0.2, 0.4)
SETTINGS = ("classes alone", "errors", "clusters", "texts", "true groups")
Draws = dict[tuple[str | Metric, str, str], list[float]]  # metric, method, subset -> a value for each seed


def add_means(out: TaskResult, drawn: Draws, n: Mapping[str, int]) -> TaskResult:
    """A row for each mean over seeds, with Student's interval; the change to "none" is paired by seed."""
    for (metric, method, subset), values in drawn.items():
        base = drawn.get((metric, NONE, subset))
        change = None
        if base is not None and method != NONE:
            moved = np.subtract(values, base)
            change = (float(moved.mean()), *_around(moved))
        out.add(
            metric,
            method,
            float(np.mean(values)),
            _around(values),
            n={**n, "seeds": len(values)},
            subset=subset,
            change=change,
        )
    return out


def _around(values: Any) -> tuple[float, float]:
    mean, n = float(np.mean(values)), len(values)
    by = float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
    return mean - by, mean + by


def _about(task: str, title: str, description: str, model: str, split: str, **settings: Any) -> TaskResult:
    return TaskResult(
        TaskProvenance(
            task=task,
            title=title,
            description=description,
            model=model,
            split=split,
            seeds=list(SEEDS),
            settings=settings,
        )
    )


def probes(real: bool) -> Iterator[TaskResult]:
    """Gender before and after every method, out of sample of the method and of the probe."""
    for name, splits in (("celeba", _real_splits if real else None), ("portraits", _portrait_splits)):
        if splits is None:
            continue
        drawn: Draws = {}
        rows = 0
        for seed, split in enumerate(splits()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VldebiasWarning)
                edits, _ = split.fit(compared())
            gallery, gender = split.gallery.normalised(), split.gallery.column(split.attribute)
            rows = len(gallery)
            acting = {title: edit for title, edit in edits.items() if not edit.reads_text}  # others change no features
            for method, edit in {NONE: None, **acting}.items():
                seen = gallery if edit is None else normalize(edit.image(gallery.double()), dim=1)
                for reader, one in readable(seen, gender, seed=seed).items():
                    drawn.setdefault((f"{reader}_probe", method, ""), []).append(one.accuracy)
                    if edit is None:
                        drawn.setdefault((f"{reader}_probe", "permuted labels", ""), []).append(
                            float(one.chance.mean())
                        )
            print(f"probes, {name}: seed {seed + 1} of {len(SEEDS)}", file=sys.stderr)
        out = _about(
            f"probes {name}",
            f"Gender read from features of {name}",
            "Balanced accuracy out of sample on images that the method was not fitted on; methods act on the images.",
            *(
                ("CLIP ViT-B/32 openai", "CelebA 000001-001000, halves")
                if name == "celeba"
                else ("miniature", "renders")
            ),
        )
        yield add_means(out, drawn, {"images": rows})


def _real_splits() -> list[Any]:
    return list(professions(len(SEEDS)))


def _portrait_splits() -> list[Any]:
    from eval.experiments.rivals import Split
    from vldebias.prompts import load_prompts

    embed, texts = _miniature()
    jobs = load_prompts("professions-gender")
    gallery = embed("portraits", 1500, 9002, True)
    return [
        Split(
            texts, embed("portraits", 800, 9013 + 10 * seed, False), gallery, jobs, "gender", jobs.held_out_classes, 50
        )
        for seed in SEEDS
    ]


def _miniature() -> tuple[Callable[[str, int, int, bool], Embeddings], Any]:
    from vldebias.data.cache import embed_images
    from vldebias.evaluation.texts import Texts
    from vldebias.hosts.images import image_encoder
    from vldebias.miniature import load_clip, open_world

    model, preprocess, tokenizer = load_clip()
    encoder = image_encoder(model, preprocess)

    def features(name: str, n: int, seed: int, balanced: bool) -> Embeddings:
        return embed_images(open_world(name, n=n, seed=seed, balanced=balanced), encoder)

    return features, Texts(model, tokenizer)


def groups(real: bool) -> Iterator[TaskResult]:
    """Worst group of a linear head, by what it was reweighted with."""
    if real:
        data = celeba(file())
        with np.load(file(), allow_pickle=False) as arrays:
            shown, names = arrays["attr"] > 0, list(arrays["attr_names"])
        texts = torch.cat([data.texts.embed([prompt]) for prompt in data.prompts.spurious])
        rows = data.images.normalised()
        for column in ("Wavy_Hair", "Attractive", "Big_Nose", "Blond_Hair"):
            labels = shown[:, names.index(column)].astype(int)
            halved = [_halves(len(rows), seed) for seed in SEEDS]
            parts = [(rows[a], labels[a], data.gender[a], rows[b], labels[b], data.gender[b]) for a, b in halved]
            yield _hidden(f"groups {column}", f"{column} by gender", parts, texts, "CelebA", "CLIP ViT-B/32 openai")
    embed, side = _miniature()
    from vldebias.prompts import load_prompts

    by_value = load_prompts("waterbirds").by_value()
    texts = torch.stack([side.embed(list(several)).mean(0) for several in by_value.values()])
    parts = []
    for seed in SEEDS:
        learn, test = embed("birds", 1200, 9011 + 10 * seed, False), embed("birds", 1200, 9001 + 10 * seed, True)
        codes = [(one.column("label").codes, one.column("place").codes) for one in (learn, test)]
        parts.append((learn.normalised(), *codes[0], test.normalised(), *codes[1]))
    yield _hidden("groups birds", "Landbird or waterbird by place", parts, texts, "birds", "miniature")


def _halves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])


def _hidden(task: str, title: str, parts: Sequence[Any], texts: torch.Tensor, split: str, model: str) -> TaskResult:
    drawn: Draws = {}
    for seed, (x, y, truth, x_test, y_test, g_test) in enumerate(parts):
        for way in SETTINGS:
            cut = np.zeros(len(y), dtype=np.int64)
            if way == "true groups":
                cut = truth
            elif way != "classes alone":
                by: Any = way
                found = hidden_groups(x, y, by, texts=texts, seed=seed)
                cut = found.parts().codes
                f1 = found.f1(truth)
                drawn.setdefault(("hidden_f1", way, ""), []).append(f1["mean"])
                drawn.setdefault(("hidden_f1", f"{way}, one cluster", ""), []).append(f1["one cluster"])
            right = _reweighted(x, y, cut)(x_test) == y_test
            accuracies = [right[(y_test == c) & (g_test == g)].mean() for c in (0, 1) for g in (0, 1)]
            drawn.setdefault(("worst_group", way, ""), []).append(float(min(accuracies)))
            drawn.setdefault(("average", way, ""), []).append(float(np.mean(accuracies)))
    about = "Logistic regression with every group weighted to one size, on one half of the images, read on the other."
    return add_means(_about(task, title, about, model, split, c=1.0), drawn, {"images": len(parts[0][3])})


def _reweighted(x: torch.Tensor, y: np.ndarray, cut: np.ndarray) -> Callable[[torch.Tensor], np.ndarray]:
    """Predictions of a linear head whose loss gives every class x part the same weight."""
    cells = y * (cut.max() + 1) + cut
    sizes = np.bincount(cells)
    weights = len(y) / (np.count_nonzero(sizes) * sizes[cells])
    scaling = Scaling.standard(x)
    weight, bias = logistic_regression(x, y, 2, c=0.01, scaling=scaling, counts=weights).unscaled(scaling).head()
    return lambda rows: np.asarray((rows.double() @ weight.T + bias).argmax(1).numpy())


def labels(real: bool) -> Iterator[TaskResult]:
    """Changed labels found by two rules."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    sets: dict[str, tuple[Any, np.ndarray]] = {"digits (10)": (digits.data / 16.0, digits.target)}
    if real:
        data = celeba(file())
        with np.load(file(), allow_pickle=False) as arrays:
            smiling = arrays["attr"][:, list(arrays["attr_names"]).index("Smiling")] > 0
        sets["CelebA smiling (2)"] = (data.rows, smiling.astype(int))
    birds = _miniature()[0]("birds", 1500, 9001, True)
    sets["birds species (48)"] = (birds.features, birds.column("species").codes)
    for name, (x, y) in sets.items():
        drawn: Draws = {}
        for noise in NOISE:
            for seed in SEEDS:
                rng = np.random.default_rng(seed)
                wrong, k = rng.random(len(y)) < noise, int(y.max()) + 1
                told = np.where(wrong, (y + rng.integers(1, k, len(y))) % k, y)
                for by in ("ridge", "centres"):
                    rule: Any = by
                    listed = wrong_labels(x, told, by=rule, folds=4, seed=seed)
                    area = auroc(listed.confidence.to_numpy(), wrong[listed.row].astype(bool)).value
                    drawn.setdefault((AUROC, by, f"{noise:.0%} changed"), []).append(area)
                    corrected = told.copy()
                    first = listed[: wrong.sum()]
                    corrected[first.row] = first.proposed.astype(int)
                    right = float((corrected == y).mean())
                    drawn.setdefault(("accuracy", f"{by}, corrected", f"{noise:.0%} changed"), []).append(right)
                drawn.setdefault(("accuracy", NONE, f"{noise:.0%} changed"), []).append(float((told == y).mean()))
        about = (
            "Labels changed to another class at random; as many as were changed are corrected, the least credible ones."
        )
        yield add_means(
            _about(f"labels {name}", f"Changed labels of {name}", about, "as the features", name),
            drawn,
            {"rows": len(y)},
        )


def figure_8_2(real: bool) -> Iterator[TaskResult]:
    """Medians of margins of a network that knows true labels by heart, and of one that knows random ones."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, truth = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
    drawn: Draws = {}
    for seed in SEEDS:
        medians: dict[str, dict[str, float]] = {}
        for kind in ("true", "random"):
            y = truth if kind == "true" else torch.from_numpy(np.random.default_rng(seed).integers(10, size=len(truth)))
            torch.manual_seed(seed)
            body = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU())
            head = torch.nn.Linear(512, 10)
            optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
            for _ in range(2000):
                loss = torch.nn.functional.cross_entropy(head(body(x)), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                if loss < 0.01:
                    break
            assert (head(body(x)).argmax(1) == y).double().mean() > 0.999, (
                f"{kind} labels, seed {seed}: not known by heart"
            )
            found = margins(head, body(x).detach(), Labels(y.numpy(), tuple(map(str, range(10)))), seed=seed)
            kinds = {"margin": found.margin, "gn_margin": found.normalised, "kv_margin": found.kv}
            kinds |= {"kv_gn_margin": found.kv_gn}
            medians[kind] = {name: float(np.median(values)) for name, values in kinds.items()}
            largest = np.quantile(found.margin, np.linspace(0.01, 1, 100))
            least = min(sum(found.bound(gamma)) for gamma in largest if gamma > 0)
            drawn.setdefault((BOUND, f"{kind} labels", ""), []).append(float(least))
            for name, value in medians[kind].items():
                drawn.setdefault((name, f"{kind} labels", ""), []).append(value)
        for name, value in medians["true"].items():
            drawn.setdefault((RATIO, name, ""), []).append(value / medians["random"][name])
    about = "Medians over the training rows, all of which are classified right; the features are the hidden layer's."
    out = _about("margins digits", "True against random labels (Figure 8-2)", about, "64-512-10 network", "digits")
    yield add_means(out, drawn, {"rows": len(truth)})


PARTS = {"probes": probes, "groups": groups, "labels": labels, "margins": figure_8_2}


FEATURES = {
    "probes": ("linear_probe", "neighbour_probe"),
    "groups": ("worst_group", "hidden_f1"),
    "labels": ("auroc",),
    "margins": ("margin", "gn_margin", "kv_margin", "kv_gn_margin", "true_over_random", "least_bound"),
}


def features_block(part: str) -> str:
    """Methods (and subsets) down, tasks and metrics across, of one part of the experiment on features."""
    rows = [row for row in read(f"features_{part}").rows if row.metric in FEATURES[part]]
    found = {(row.method, row.subset, row.task, row.metric): row for row in rows}
    columns = list(dict.fromkeys((row.task, row.metric) for row in rows))
    names = [f"{task.removeprefix(part).strip()}: {metric_of(metric).title}" for task, metric in columns]
    lines = [["", *names]]
    for method, subset in dict.fromkeys((row.method, row.subset) for row in rows):
        own = [found.get((method, subset, *column)) for column in columns]
        lines.append([", ".join(filter(None, (method, subset))), *map(half, own)])
    note = "mean over five seeds ± 95 % interval of Student's t; * differs from none beyond it"
    return table(*lines, note=f"{note}; from `eval/results/features_{part}.json`.")


for _part in FEATURES:
    fills("docs/how-to/diagnose.md", f"features_{_part}")(partial(features_block, _part))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("part", choices=tuple(PARTS))
    given = options.parse_args()
    real = file().is_file()
    if not real:
        skip(file(FILE))
    run(f"features_{given.part}", lambda: PARTS[given.part](real), given.json)


if __name__ == "__main__":
    main()
