"""Compare each default with its simplest rivals, on families of data.

    python -m eval.experiments.simple_rivals --json eval/results/simple_rivals.json
    python -m eval.experiments.simple_rivals search prompts --json eval/results/simple_rivals.json

Sections that are not named keep their rows. A default changes only with this table: a test fails if
a default is clearly behind a rival on a family's mean, and the page does not say why.

    classification  Worst-group accuracy with words for classes that were chosen at random, in two
                    random halvings each: one half is the reference, the other is measured. If a
                    class is rare, it is a tenth of the reference. On renders, the birds and hair of
                    the miniature world, for three references.
    search          MaxSkew above chance, k a twentieth of a gallery, in even galleries and in
                    galleries in which one value has a share of 20%.
    training        R@10 of the runs in eval/results/fine_tuning.json.
    prompts         Labelled prompts in tests/wording: right changes minus ten times the wrong ones,
                    per 100 prompts, because users see wrong changes but no missed ones.

Values are means over the rows of a family. Intervals are 95% bootstrap intervals over its clusters
(pairs of words, galleries, settings of a run or prompts), which share images. "ahead" is the mean
difference between the default and a rival, positive if the default is better.

What has left was measured with a CHECKOUT of the commit in `LEFT_AT` on the same rows, whose values
are kept:

    PYTHONPATH=CHECKOUT python eval/experiments/simple_rivals.py --left build/left.json
    python -m eval.experiments.simple_rivals classification --left build/left.json --json ...
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

import vldebias
from eval import photographs
from eval.experiments import embeddings
from eval.tables import RESULTS, parser, place_of, run
from vldebias.errors import VldebiasWarning
from vldebias.hosts import Host, TextTable, resolve
from vldebias.measure.classification import interval_of, lowest_accuracy
from vldebias.measure.rankings import max_skews
from vldebias.measure.resampling import resampled_counts
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.methods import Problem, Reference
from vldebias.metrics import Metric
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result

LEFT_AT = "fb98de73"
LEFT = f"images with tests ({LEFT_AT})"
WORST = Metric("worst_group", "worst-group accuracy", "utility", "higher", bounds=(0.0, 1.0))
AVERAGE = Metric("average", "average accuracy", "utility", "higher", bounds=(0.0, 1.0))
ABOVE = Metric("above_chance", "MaxSkew@k above chance", "bias", "lower")
STAY = Metric("stay", "share of the first k that stay", "utility", "higher")
RECALL = Metric("recall@10", "R@10", "utility", "higher")
SCORE = Metric("score", "right changes - 10 x wrong changes, per 100 prompts", "utility", "higher")
WRONG = Metric("wrong", "wrong changes per 100 prompts", "bias", "lower")
AHEAD = Metric("ahead", "default ahead of a rival", "fact", "higher")
ACTS = Metric("acts", "rows in which the boundary moves", "fact", "neither")
WORSE = Metric("worse", "rows clearly worse than text alone", "fact", "lower")
BETTER = Metric("better", "rows clearly better than text alone", "fact", "higher")
PAIRS = 40  # pairs of words in each family
HALVINGS, RESAMPLES, DRAWS = 2, 300, 1000
LABELS = 20
WRONG_COSTS = 10
SEED = 7

Rows = NDArray[np.intp]
Values = Mapping[str, Sequence[float]]


def family(
    section: str,
    name: str,
    default: str,
    values: Mapping[Metric, Values],
    clusters: Sequence[str],
    about: str,
    **settings: Any,
) -> TaskResult:
    """Return the means of a family, and how far its default is ahead of each rival.

    Args:
        section: the section, such as "search".
        name: name of the family.
        default: the method that is the default.
        values: for each metric and method, the value in each row. The first metric decides.
        clusters: the cluster of each row; clusters are resampled, or rows if there is only one.
        about: the description.
        settings: further facts.
    """
    if len({*clusters}) == 1:
        clusters = [str(row) for row in range(len(clusters))]
    names = sorted({*clusters})
    codes = np.array([names.index(cluster) for cluster in clusters])
    n = {"clusters": len(names), "rows": len(codes)}
    methods = {method: {} for of_method in values.values() for method in of_method}
    done = TaskResult(
        TaskProvenance(
            task=f"{section}: {name}",
            description=about,
            methods=methods,
            n=n,
            settings={"section": section, "family": name, "default": default, **settings},
        )
    )
    weights = np.random.default_rng(0).multinomial(
        len(names), np.full(len(names), 1 / len(names)), DRAWS
    )[:, codes]
    decides = next(iter(values))
    for metric, of_method in values.items():
        rows = {method: np.asarray(row, np.float64) for method, row in of_method.items()}
        draws = {method: weights @ row / weights.sum(1) for method, row in rows.items()}
        means = {method: float(row.mean()) for method, row in rows.items()}
        done.add_draws(metric, means, draws, n=n)
        if metric is not decides:
            continue
        sign = -1 if metric.better == "lower" else 1
        for method, mean in means.items():
            if method != default:
                ahead = sign * (draws[default] - draws[method])
                low, high = np.quantile(ahead, [0.025, 0.975])
                value = sign * (means[default] - mean)
                done.add(AHEAD, method, value, (min(low, value), max(high, value)), n=n)
    return done


# ---- classification
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Images:
    """Unit features (n, d), and the class and value (n,) of each image."""

    rows: NDArray[np.float64]
    classes: Rows
    values: Rows

    def take(self, rows: Rows) -> Images:
        return Images(self.rows[rows], self.classes[rows], self.values[rows])

    def groups(self) -> Rows:
        codes: Rows = self.classes * (self.values.max() + 1) + self.values
        return codes


@dataclass(frozen=True, eq=False)
class Classifier:
    """Two class prompts, an attribute, and splits of images into a reference and a gallery."""

    name: str
    texts: Host
    prompt_set: PromptSet
    splits: Sequence[tuple[Images, Images]]


def halves(images: Images) -> list[tuple[Images, Images]]:
    """Return random halves of the images for fitting and for measuring."""
    splits = []
    for seed in range(HALVINGS):
        order = np.random.default_rng(seed).permutation(len(images.rows))
        middle = len(order) // 2
        splits.append((images.take(order[:middle]), images.take(order[middle:])))
    return splits


def celebrities() -> Iterator[Classifier]:
    """Yield random pairs of prompts for gender and for age, with CLIP ViT-B/32 on CelebA."""
    data = embeddings.celeba()
    rows = data.rows.numpy()
    gender = data.gender.astype(np.intp)
    age = data.images.column("age")
    prompts = [text for pair in data.prompt_set.pairs for text in pair]
    old = [text for text in prompts if " an old " in text]
    rng = np.random.default_rng(SEED)
    for number in range(PAIRS):
        if number % 2:
            classes = [
                str(rng.choice([text for text in prompts if f" {name} " in text]))
                for name in age.names
            ]
            prompt_set = replace(
                data.prompt_set, classes=tuple(classes), class_names=tuple(age.names)
            )
            images = Images(rows, age.codes.astype(np.intp), gender)
        else:
            classes = [
                str(rng.choice([text for text in prompts if text.endswith(name)]))
                for name in (" man", " woman")
            ]
            prompt_set = PromptSet(
                name="age",
                attributes={"old": ("old",), "young": ("young",)},
                variants=tuple(
                    (text, text.replace(" an old ", " a young "))
                    for text in old
                    if text not in classes
                ),
                class_names=("male", "female"),
                classes=tuple(classes),
            )
            images = Images(rows, gender, age.codes.astype(np.intp))
        yield Classifier(" / ".join(classes), data.texts, prompt_set, halves(images))


def uneven_celebrities() -> Iterator[Classifier]:
    """Yield the pairs of `celebrities`, with references in which one class is a tenth."""
    for number, cell in enumerate(celebrities()):
        splits = []
        for reference, gallery in cell.splits:
            is_rare = reference.classes == number // 2 % 2
            rare = np.flatnonzero(is_rare)[: (~is_rare).sum() // 9]
            rows = np.sort(np.concatenate([rare, np.flatnonzero(~is_rare)]))
            splits.append((reference.take(rows), gallery))
        yield replace(cell, splits=splits)


FACES = {
    "gender": {"male": "A photo of a male ", "female": "A photo of a female "},
    "age": {"young": "A photo of a young ", "old": "A photo of an old "},
}


def faces() -> Iterator[Classifier]:
    """Yield random pairs of prompts for gender and for age, with the model of two heads."""
    table = photographs.texts()
    texts = TextTable({text: torch.tensor(row) for text, row in table.items()}, "two heads")
    rng = np.random.default_rng(SEED)
    for number in range(PAIRS):
        column = ("gender", "age")[number % 2]
        photos = photographs.photographs(("utk_dev", "mw_dev")[number % 4 == 2])
        other = str(rng.choice([name for name in ("age", "gender", "race") if name != column]))
        starts = FACES[column]
        classes = [str(rng.choice([t for t in table if t.startswith(s)])) for s in starts.values()]
        labels = photos.labels[column]
        values = photos.labels.get(other, np.full(len(labels), "any"))
        prompt_set = load_prompts(other)
        # Latinos have no label in this data set.
        named = [value for value in prompt_set.attributes if "Latino" not in value]
        names = named if other in photos.labels else ["any"]
        prompt_set = replace(
            prompt_set,
            attributes={value: prompt_set.attributes[value] for value in named},
            variants=tuple(
                tuple(text for text in group if "Latino" not in text)
                for group in prompt_set.variants
            ),
            spurious=(),
            classes=tuple(classes),
            class_names=tuple(starts),
            held_out_classes=(),
            held_out_class_names=(),
        )
        known = np.flatnonzero(np.isin(labels, list(starts)) & np.isin(values, names))
        images = Images(
            photos.features[known].astype(np.float64),
            np.array([list(starts).index(label) for label in labels[known]], dtype=np.intp),
            np.array([names.index(value) for value in values[known]], dtype=np.intp),
        )
        yield Classifier(f"{photos.name}, {' / '.join(classes)}", texts, prompt_set, halves(images))


def renders() -> Iterator[Classifier]:
    """Yield birds by place and hair by gender in the miniature world."""
    host, features = embeddings.miniature()

    def images(world: str, column: str, **how: Any) -> Images:
        data = features(world, **how)
        classes = data.column("label").codes
        known = np.flatnonzero(classes >= 0)
        rows = data.unit[:].double().numpy()[known]
        return Images(rows, classes[known], data.column(column).codes[known])

    for world, column, name in (
        ("birds", "place", "waterbirds"),
        ("portraits", "gender", "celeba"),
    ):
        gallery = images(world, column, n=1500, seed=9002, balanced=True)
        splits = [
            (images(world, column, n=800, seed=seed, balanced=False), gallery)
            for seed in (9013, 9023, 9033)
        ]
        yield Classifier(name, host, load_prompts(name), splits)


FAMILIES: dict[str, tuple[str, Callable[[], Iterator[Classifier]]]] = {
    "faces, CLIP ViT-B/32": (embeddings.FILE, celebrities),
    "faces, CLIP ViT-B/32, one class rare": (embeddings.FILE, uneven_celebrities),
    "faces, small model": ("photos", faces),
    "renders, miniature CLIP": ("", renders),
}
NOTHING, TEXT, PARTS, MEDIAN = NONE, "text alone", "boundary between parts", "median"
LABELLED, OFFSETS = "20 labels, if better", "20 labels"
DOORS = {
    "without images": (TEXT, (NOTHING, TEXT)),
    "unlabelled images": (PARTS, (NOTHING, TEXT, MEDIAN, PARTS, LEFT)),
    "20 labelled images": (LABELLED, (NOTHING, TEXT, MEDIAN, PARTS, OFFSETS, LABELLED)),
}


def is_right(cell: Classifier, gallery: Images, edit: Edit | None, offset: Any = 0.0) -> Rows:
    """Return 1 for each image (n,) that gets its class, after subtracting offsets from scores."""
    classes = cell.texts.embed(cell.prompt_set.classes)
    if edit is not None:
        classes = normalize(edit(classes), dim=1)
    scores = gallery.rows @ classes.numpy().T - offset
    right: Rows = (scores.argmax(1) == gallery.classes).astype(np.intp)
    return right


def fitted(cell: Classifier, reference: Images, labels: Sequence[str] | None = None) -> Edit:
    """Return the default's edit for a classifier with reference images."""
    images = Reference(
        torch.from_numpy(reference.rows), labels={} if labels is None else {"class": labels}
    )
    problem = Problem(cell.texts, cell.prompt_set, reference=images)
    return problem.fit("default+reference", "text")


def predictions(cell: Classifier, reference: Images, gallery: Images, seed: int) -> dict[str, Rows]:
    """Return which images each method classifies correctly."""
    from vldebias.methods.boundary import class_means, offsets

    by_text = Problem(cell.texts, cell.prompt_set).fit("default", "text")
    classes = normalize(by_text(cell.texts.embed(cell.prompt_set.classes)), dim=1)
    scores = reference.rows @ classes.numpy().T
    median = float(np.median(np.diff(scores)[:, 0]))
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(scores), LABELS, replace=False)
    names = np.full(len(scores), "", dtype=object)
    names[chosen] = np.array(cell.prompt_set.class_names)[reference.classes[chosen]]
    moves: Any = 0.0
    if len(np.unique(reference.classes[chosen])) == len(cell.prompt_set.classes):
        moves = offsets(class_means(scores[chosen], reference.classes[chosen]))
    return {
        NOTHING: is_right(cell, gallery, None),
        TEXT: is_right(cell, gallery, by_text),
        MEDIAN: is_right(cell, gallery, by_text, np.array([-median, median]) / 2),
        PARTS: is_right(cell, gallery, fitted(cell, reference)),
        OFFSETS: is_right(cell, gallery, by_text, moves),
        LABELLED: is_right(cell, gallery, fitted(cell, reference, list(names))),
    }


def worst(right: Rows, groups: Rows) -> float:
    """Return the accuracy of the worst group with at least five images."""
    sizes = np.bincount(groups)
    return float((np.bincount(groups, right)[sizes >= 5] / sizes[sizes >= 5]).min())


def change_of_worst(before: Rows, after: Rows, groups: Rows) -> tuple[float, float]:
    """Return the 95% interval for the change of the worst group's accuracy over images."""
    counts = np.zeros((groups.max() + 1, 2, 2), dtype=np.int64)
    np.add.at(counts, (groups, before, after), 1)
    counts = counts[counts.sum((1, 2)) >= 5]
    drawn = np.concatenate(list(resampled_counts(counts, RESAMPLES, seed=0)))
    _, _, change = interval_of(lowest_accuracy, "lowest", counts, drawn)
    return change[1], change[2]


def classification(left: Mapping[str, Mapping[str, float]]) -> Iterator[TaskResult]:
    """Yield the families of classifiers, for each kind of reference."""
    for name, (part, cells) in FAMILIES.items():
        if part and not photographs.is_present(part):
            continue
        accuracy: dict[str, list[float]] = {}
        average: dict[str, list[float]] = {}
        counts: dict[str, dict[Metric, int]] = {
            method: {ACTS: 0, WORSE: 0, BETTER: 0} for method in (MEDIAN, PARTS, OFFSETS, LABELLED)
        }
        clusters = []
        for cell in cells():
            for seed, (reference, gallery) in enumerate(cell.splits):
                groups = gallery.groups()
                right = predictions(cell, reference, gallery, seed)
                for method, own in right.items():
                    accuracy.setdefault(method, []).append(worst(own, groups))
                    average.setdefault(method, []).append(float(own.mean()))
                    if method in counts:
                        low, high = change_of_worst(right[TEXT], own, groups)
                        counts[method][ACTS] += not np.array_equal(own, right[TEXT])
                        counts[method][WORSE] += high < 0
                        counts[method][BETTER] += low > 0
                kept = left.get(name, {}).get(f"{cell.name}, {seed}")
                if kept is not None:
                    accuracy.setdefault(LEFT, []).append(kept)
                clusters.append(cell.name)
        for door, (default, methods) in DOORS.items():
            shown = [method for method in methods if method in accuracy]
            done = family(
                f"classification, {door}",
                name,
                default,
                {
                    WORST: {method: accuracy[method] for method in shown},
                    AVERAGE: {method: average[method] for method in shown if method != LEFT},
                },
                clusters,
                "Worst-group accuracy: means over pairs of class prompts and halvings.",
                left=dict(left.get(name, {})) if LEFT in shown else {},
            )
            for method in shown:
                for metric, count in counts.get(method, {}).items():
                    done.add(metric, method, count, n={"rows": len(clusters)})
            yield done


def measure_left() -> dict[str, dict[str, float]]:
    """Return the worst-group accuracy of the default with images, by family and row."""
    values: dict[str, dict[str, float]] = {}
    for name, (part, cells) in FAMILIES.items():
        if part and not photographs.is_present(part):
            continue
        for cell in cells():
            for seed, (reference, gallery) in enumerate(cell.splits):
                right = is_right(cell, gallery, fitted(cell, reference))
                key = f"{cell.name}, {seed}"
                values.setdefault(name, {})[key] = worst(right, gallery.groups())
    return values


# ---- search
# -------------------------------------------------------------------------------------------------

RERANK, LABEL, EDIT = "re-rank", "labels", "query edit"


def search() -> Iterator[TaskResult]:
    """Yield the families of galleries."""
    from eval.experiments.rerank import composed, with_fewer_queries
    from eval.photographs import searches

    families = {
        "photographs, small model": ("photos", lambda: searches.photographs(0)),
        "faces, CLIP ViT-B/32": (embeddings.FILE, lambda: searches.celeba(0)),
    }
    for name, (part, cells) in families.items():
        if not photographs.is_present(part):
            continue
        values: dict[Metric, dict[str, list[float]]] = {ABOVE: {}, STAY: {}}
        clusters = []
        for even in map(with_fewer_queries, cells()):
            # Faces of one age or race have small galleries.
            if even.name.startswith("faces, "):
                continue
            reference = Reference(torch.from_numpy(even.reference.features), within_classes=False)
            problem = Problem(even.table, even.prompt_set, reference=reference, lam=10_000.0)
            edit = problem.fit("difference+equalise", "text")
            for _, cell in composed(even):
                for method, (above, stay) in _searched(cell, edit).items():
                    values[ABOVE].setdefault(method, []).append(above)
                    values[STAY].setdefault(method, []).append(stay)
                clusters.append(f"{cell.name}, {cell.column}")
        about = "MaxSkew above chance among the first k: means over galleries and draws."
        yield family("search", name, RERANK, values, clusters, about)


def _searched(cell: Any, edit: Edit) -> dict[str, tuple[float, float]]:
    """Return MaxSkew above chance, and the share of the first k that stay, for each method."""
    listed = [query for kind in cell.kinds.values() for query in kind]
    queries = torch.tensor(photographs.unit(np.stack([cell.table[text] for text in listed])))
    queries = normalize(queries.double(), dim=1)
    features = cell.gallery.features.astype(np.float64)
    scores = (queries.numpy() @ features.T).round(12)
    prompt_set = load_prompts(cell.prompt_set)
    host = resolve(cell.table)
    texts = Problem(host, prompt_set).zero_shot(prompt_set, "text").numpy()
    nearest = np.array(list(prompt_set.attributes))[(features @ texts.T).argmax(1)]
    edited = normalize(edit(queries), dim=1).numpy() @ features.T
    rankings = {
        NONE: np.argsort(-scores, axis=1, kind="stable")[:, : cell.k],
        RERANK: vldebias.rerank(
            scores, cell.k, features=features, attribute=prompt_set, model=host
        ),
        LABEL: vldebias.rerank(scores, cell.k, labels=nearest.tolist()),
        EDIT: np.argsort(-edited, axis=1, kind="stable")[:, : cell.k],
    }
    _, codes, counts = np.unique(cell.labels, return_inverse=True, return_counts=True)
    prior = counts / len(codes)
    rng = np.random.default_rng(0)
    random = np.stack([rng.permutation(len(codes))[: cell.k] for _ in range(500)])
    chance = float(max_skews(codes[random], prior).mean())
    found = {}
    for method, ranked in rankings.items():
        positions = np.asarray(ranked)
        above = max(float(max_skews(codes[positions], prior).mean()) - chance, 0.0)
        stay = [len({*row} & {*own}) / cell.k for row, own in zip(positions, rankings[NONE])]  # noqa: B905
        found[method] = above, float(np.mean(stay))
    return found


# ---- training
# -------------------------------------------------------------------------------------------------

SAVED = "saved"  # the weights that `vldebias train` saves


def training() -> Iterator[TaskResult]:
    """Yield the families of training runs, from the committed experiment."""
    result = Result.read(RESULTS / "fine_tuning.json")
    values: dict[str, dict[str, dict[str, float]]] = {}
    for row in result.rows:
        if (row.task, row.metric) != ("from start", "recall@10"):
            continue
        place = place_of(row)
        arm, _, weights = row.method.partition(", ")
        of_run = values.setdefault(str(place["data"]), {})
        if arm == "not trained":
            # Every arm of these settings has the same start.
            of_run.setdefault(f"{row.subset}: start", {})[NONE] = row.value
        elif arm in ("InfoNCE", "keep=auto"):
            of_run.setdefault(f"{row.subset}: {arm}", {})[weights or "end"] = row.value
    titles = {"captions": "the model's own domain", "titles": "a domain that is new to the model"}
    for data, runs in values.items():
        start = {name: run[NONE] for name, run in runs.items() if name.endswith(": start")}
        rows = {name: run for name, run in runs.items() if not name.endswith(": start")}
        columns: dict[str, list[float]] = {
            NONE: [start[f"{n.rpartition(': ')[0]}: start"] for n in rows]
        }
        for weights in ("end", "half way", SAVED):
            columns[weights] = [run[weights] for run in rows.values()]
        clusters = [name.rpartition(": ")[0] for name in rows]
        about = "R@10 on test photographs: means over settings of runs, from fine_tuning.json."
        yield family("training", titles.get(data, data), SAVED, {RECALL: columns}, clusters, about)


# ---- prompts
# -------------------------------------------------------------------------------------------------

READER, EVERY_NOUN = "balanced prompts", "every listed noun"
VALUES = ("female", "male")


def prompts() -> Iterator[TaskResult]:
    """Yield the families of labelled English prompts, by their kind."""
    rows_of_kind: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((Path(__file__).parents[2] / "tests" / "wording").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            is_plain = {"female", "male"} <= row.keys() and not row.get("original")
            # Groups have the same texts for both values, and are scored elsewhere.
            is_group = row.get("female") == row.get("male") != [row["prompt"]]
            if is_plain and not is_group and row.get("language", "English") in ("English", "en"):
                kind = str(row.get("kind") or "plain")
                rows_of_kind.setdefault(KINDS.get(kind, OTHER_KINDS), []).append(row)
    nouns = _listed_nouns()
    for kind, rows in rows_of_kind.items():
        score: dict[str, list[float]] = {NONE: [0.0] * len(rows)}
        wrong: dict[str, list[float]] = {NONE: [0.0] * len(rows)}
        for method, change in ((READER, _balanced), (EVERY_NOUN, nouns)):
            outcomes = [_outcome(row, change) for row in rows]
            score[method] = [100.0 * outcome for outcome in outcomes]
            wrong[method] = [100.0 * (outcome < 0) for outcome in outcomes]
        values = {SCORE: score, WRONG: wrong}
        about = "Labelled prompts: means over prompts."
        clusters = [row["prompt"] for row in rows]
        yield family("prompts", kind, READER, values, clusters, about)


KINDS = {
    "plain": "plain prompts",
    "several": "several people",
    "scene": "scenes",
    "scenes": "scenes",
    "negative": "negative prompts, instructions, no people",
    "system": "negative prompts, instructions, no people",
    "no people": "negative prompts, instructions, no people",
    "negative or system": "negative prompts, instructions, no people",
    "things named like people": "negative prompts, instructions, no people",
}
OTHER_KINDS = "other kinds"


def _outcome(row: Mapping[str, Any], change: Callable[[str, str], str]) -> float:
    """Return 1 for a right change, 0 for an unchanged prompt, and -10 for a wrong change."""
    texts = {value: change(row["prompt"], value) for value in VALUES}
    if all(text == row["prompt"] for text in texts.values()):
        return 0.0
    is_right_text = all(text in row[value] for value, text in texts.items())
    return 1.0 if is_right_text else -float(WRONG_COSTS)


def _balanced(prompt: str, value: str) -> str:
    shares = {name: float(name == value) for name in VALUES}
    return str(vldebias.balance_prompts(prompt, "gender", shares=shares).prompts[0])


def _listed_nouns() -> Callable[[str, str], str]:
    """Return the rule that states the value before every noun of a profession."""
    jobs = load_prompts("professions-gender")
    names = sorted({*jobs.class_names, *jobs.held_out_class_names}, key=len, reverse=True)
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b", re.IGNORECASE)

    def change(prompt: str, value: str) -> str:
        return pattern.sub(rf"{value} \1", prompt)

    return change


def main() -> None:
    options = parser(__doc__)
    options.add_argument("sections", nargs="*", help="sections to measure. Default: all")
    options.add_argument("--left", type=Path, help="file of the values of what has left")
    args = options.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)
        if args.left is not None and not args.left.exists():
            args.left.write_text(json.dumps(measure_left(), indent=1), encoding="utf-8")
            return
        earlier = Result.read(args.json) if args.json is not None and args.json.exists() else None
        left: dict[str, dict[str, float]] = {}
        if args.left is not None:
            left = json.loads(args.left.read_text(encoding="utf-8"))
        elif earlier is not None:
            for about in earlier.provenance:
                if about.settings.get("left"):
                    left[about.settings["family"]] = about.settings["left"]
        measured: dict[str, Callable[[], Iterator[TaskResult]]] = {
            "classification": lambda: classification(left),
            "search": search,
            "training": training,
            "prompts": prompts,
        }

        def parts() -> Iterator[TaskResult]:
            for section, measure in measured.items():
                if not args.sections or section in args.sections:
                    yield from measure()
                    continue
                for about in earlier.provenance if earlier is not None else ():
                    if str(about.settings["section"]).partition(",")[0] == section:
                        rows = [row for row in earlier.rows if row.task == about.task]
                        yield TaskResult(about, rows)

        run("simple rivals", parts, args.json)


if __name__ == "__main__":
    main()
