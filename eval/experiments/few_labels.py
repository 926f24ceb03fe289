"""Compare the rule of `vldebias.methods.few_labels` with its parts, on labels that are new to it.

    python -m eval.experiments.few_labels --json eval/results/few_labels.json

The rule was chosen on CelebA's gender and age and on photographs by gender, age, child and race.
Here, other labels decide:

    CLIP ViT-B/32   CelebA's other attributes. There are no texts for them, so their groups have the
                    texts of professions that suggest them ("by professions"), or of words that go
                    with them, such as a woman for lipstick ("by other words").
    small model     Age in three groups and race in four on faces. Gender is the control.
    miniature       Hair, skin tone and place of rendered portraits and birds.

Images are halved at random. Labels are drawn in one half, and the other is searched or classified.

"reach" is the share of what true labels would gain over doing nothing in a search, by quota, and
"left" the skew above chance that is left. "worst" is the accuracy of the worst group, the classes
crossed with another label. "default" is what the default does with these labels of classes.
"accepted" is the share of draws in which the labels pass the test, also for random labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval import photographs
from eval.experiments import embeddings
from eval.tables import parser, run
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.methods import few_labels
from vldebias.methods.boundary import texts_of_labels
from vldebias.methods.equalise import UnusableReferenceError
from vldebias.metrics import Metric
from vldebias.prompts import load_prompts
from vldebias.reranking import Candidates, quota
from vldebias.reranking.nearest import borders_of, labels_and_margins, shares_near

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
DRAWS, FIRST, MOST_QUERIES = 5, (10, 50), 40
NUMBERS = (20, 50, 100)
LEFT = Metric("left", "skew above chance that is left", "bias", "lower")
REACH = Metric("reach", "share of what true labels would gain", "utility", "higher")
WORST = Metric("worst", "accuracy of the worst class", "utility", "higher", bounds=(0.0, 1.0))
ACCEPTED = Metric("accepted", "draws whose labels pass the test", "fact", "higher")
RANDOM = Metric("random accepted", "draws of random labels that pass the test", "fact", "lower")
WORSE = Metric("surely worse", "draws that are surely worse than without labels", "fact", "lower")
BETTER = Metric("surely better", "draws surely better than without labels", "fact", "higher")
HARM = Metric("harm", "draws that are surely worse than nothing", "fact", "lower")
BELOW = Metric("surely below", "draws whose worst group is surely below the moved border's", "fact")
ABOVE = Metric("surely above", "draws whose worst group is surely above the moved border's", "fact")
TEXTS, TRUE, RULE, TESTED = "texts", "true labels", "rule", "rule, if it passes the test"
MOVED, DEFAULT = "border moved", "default"
FEWEST_OF_GROUP, RESAMPLES = 8, 80


@dataclass(frozen=True, eq=False)
class Data:
    """Images with labels, and texts.

    Attributes:
        family: the family over which figures are averaged.
        name: the name of the attribute.
        rows: unit images (n, d).
        codes: the group or class (n,) of each image.
        others: another label (n,) of each image.
        texts: unit texts (g, d) of the groups.
        queries: unit queries (q, d).
    """

    family: str
    name: str
    rows: Floats
    codes: Rows
    others: Rows
    texts: Floats
    queries: Floats


def unit(rows: Any) -> Floats:
    wide = np.asarray(rows, np.float64)
    scaled: Floats = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
    return scaled


BY_PROFESSIONS = {
    "Wearing_Hat": (
        ("chef", "construction worker", "police officer", "pilot", "mail carrier"),
        ("lawyer", "author", "announcer", "telemarketer", "chief executive officer"),
    ),
    "Eyeglasses": (
        ("librarian", "scientist", "optician", "biologist", "technical writer"),
        ("bartender", "roofer", "security guard", "truck driver", "announcer"),
    ),
    "Smiling": (
        ("childcare worker", "nurse", "bartender", "telemarketer", "primary school teacher"),
        ("security guard", "police officer", "welder", "garbage collector", "roofer"),
    ),
}
BY_WORDS = {
    "Wearing_Lipstick": ("a photo of a woman", "a photo of a man"),
    "Wearing_Necktie": ("a photo of a man", "a photo of a woman"),
    "Gray_Hair": ("a photo of an old man", "a photo of a young man"),
    "Receding_Hairline": ("a photo of an old man", "a photo of a young woman"),
    "Bangs": ("a photo of a young woman", "a photo of an old man"),
    "Black_Hair": ("a photo of an asian man", "a photo of a white man"),
}


def celebrities() -> Iterator[Data]:
    """Yield CelebA by attributes that have no texts of their own, and by gender and age."""
    with np.load(photographs.folder() / embeddings.FILE, allow_pickle=False) as arrays:
        read = {name: arrays[name] for name in arrays.files}
    images = unit(read["image"])
    names = list(map(str, read["attr_names"]))
    queries = unit(read["prof"])
    row_of_text = dict(zip(map(str, read["prompts64"]), unit(read["text64"]), strict=True))
    row_of_job = dict(zip((str(text)[11:] for text in read["prof_prompts"]), queries, strict=True))

    def data(family: str, name: str, texts: Sequence[Floats]) -> Data:
        codes = (read["attr"][:, names.index(name)] <= 0).astype(np.intp)
        other = "Young" if name == "Male" else "Male"
        others = (read["attr"][:, names.index(other)] > 0).astype(np.intp)
        return Data(family, name, images, codes, others, unit(np.stack(texts)), queries)

    for name, sides in BY_PROFESSIONS.items():
        texts = [unit(np.mean([row_of_job[job] for job in jobs], axis=0)) for jobs in sides]
        yield data("CLIP ViT-B/32, by professions", name, texts)
    for name, words in BY_WORDS.items():
        yield data("CLIP ViT-B/32, by other words", name, [row_of_text[text] for text in words])
    people = ("a photo of a man", "a photo of a woman")
    yield data("CLIP ViT-B/32, gender", "Male", [row_of_text[text] for text in people])
    ages = [
        np.mean([row for text, row in row_of_text.items() if f" {age} " in text], axis=0)
        for age in ("young", "old")
    ]
    yield data("CLIP ViT-B/32, age", "Young", ages)


def small() -> Iterator[Data]:
    """Yield faces by race and by age in three groups, and photographs by gender."""
    table = photographs.texts()
    asked = photographs.queries()
    queries = unit(np.stack([table[text] for text in asked["professions"][:MOST_QUERIES]]))

    def words(names: Sequence[str]) -> Floats:
        texts = [
            [text for text in table if f" {name.lower()} " in f" {text.lower()} "] for name in names
        ]
        return unit(np.stack([np.mean([table[t] for t in of_name], axis=0) for of_name in texts]))

    with np.load(photographs.folder() / "photos" / "utk_dev.npz", allow_pickle=False) as file:
        years = file["age"].astype(int)
        race = file["race"].astype(str)
        gender = (file["gender"].astype(str) == "male").astype(np.intp)
        rows = unit(file["after"])
    names = ["White", "Black", "Asian", "Indian"]
    known = np.isin(race, names)
    codes = np.array([names.index(value) for value in race[known]], dtype=np.intp)
    family = "small model, faces"
    yield Data(family, "race in four", rows[known], codes, gender[known], words(names), queries)
    codes = np.digitize(years, (30, 50)).astype(np.intp)
    young, old = words(["young", "old"])
    ages = np.stack([young, unit(young + old), old])  # no text names the middle
    yield Data(family, "age in three", rows, codes, gender, ages, queries)
    for file_name in ("flickr_dev", "mw_dev"):
        photos = photographs.photographs(file_name)
        known = photos.labels["gender"] != ""
        codes = (photos.labels["gender"][known] == "male").astype(np.intp)
        texts = words(["female", "male"])
        features = unit(photos.features[known])
        none = np.zeros_like(codes)
        yield Data("small model, gender", file_name, features, codes, none, texts, queries)


def renders() -> Iterator[Data]:
    """Yield rendered portraits and birds with the miniature CLIP."""
    host, features = embeddings.miniature()
    for world, columns in (
        ("portraits", ("gender", "hair", "tone")),
        ("birds", ("place", "label")),
    ):
        data = features(world, n=1500, seed=9002, balanced=True)
        rows = data.unit[:].double().numpy()
        for column in columns:
            if column not in data.labels:
                continue
            labels = data.column(column)
            prompts = [f"A photo of a {name} bird." for name in labels.names]
            if world == "portraits":
                prompts = [f"A photo of a person, {name}." for name in labels.names]
            texts = unit(host.embed(prompts, "text").numpy())
            asked = load_prompts("gender").texts[:MOST_QUERIES]
            queries = unit(host.embed(asked, "text").numpy())
            known = labels.codes >= 0
            codes = labels.codes[known].astype(np.intp)
            name = f"{world}, {column}"
            other = data.column(next(name for name in columns if name != column))
            others = other.codes[known].astype(np.intp)
            yield Data(f"miniature, {world}", name, rows[known], codes, others, texts, queries)


@cache
def by_chance(k: int, shares: tuple[float, ...]) -> float:
    """Return the mean distance of the shares of k random results."""
    counts = np.random.default_rng(k).multinomial(k, shares, size=4000)
    return float(np.abs(counts / k - shares).mean())


def distances(data: Data, sample: Floats, gallery: Rows, texts: Floats | None) -> Floats:
    """Return the distance above chance (q, ks) after a quota by labels from scores.

    Args:
        data: the images, texts and queries.
        sample: images (s, d) on which the shares are counted.
        gallery: rows of the images that are searched.
        texts: vectors (g, d) by which labels are predicted, or None for the true labels.
    """
    g = len(data.texts)
    truth = data.codes[gallery]
    true_shares = np.bincount(truth, minlength=g) / len(truth)
    images = data.rows[gallery]
    codes, shares = truth, true_shares
    near: dict[str, Any] = {}
    if texts is not None:
        of_sample, margins = labels_and_margins(sample @ texts.T)
        borders = borders_of(of_sample, margins, g)
        shares = np.bincount(of_sample, minlength=g) / len(sample)
        near["near_shares"] = shares_near(of_sample, margins < borders[of_sample], g)
        codes, margins = labels_and_margins(images @ texts.T)
        near["is_near"] = margins < borders[codes]
    names = [str(code) for code in range(g)]
    values = []
    for query in data.queries:
        found = Candidates((images @ query).round(12), codes, names, shares, **near)
        line = []
        for k in FIRST:
            first = np.bincount(truth[quota(found, k)], minlength=g) / k
            chance = by_chance(k, tuple(true_shares))
            line.append(np.abs(first - true_shares).mean() - chance)
        values.append(line)
    return np.array(values)


def nothing(data: Data, gallery: Rows) -> Floats:
    """Return the distance above chance (q, ks) of unchanged results."""
    g = len(data.texts)
    truth = data.codes[gallery]
    shares = np.bincount(truth, minlength=g) / len(truth)
    values = []
    for query in data.queries:
        ranked = truth[np.argsort(-(data.rows[gallery] @ query), kind="stable")]
        values.append(
            [
                np.abs(np.bincount(ranked[:k], minlength=g) / k - shares).mean()
                - by_chance(k, tuple(shares))
                for k in FIRST
            ]
        )
    return np.array(values)


def parts(data: Data, sample: Floats, rows: Floats, codes: Rows) -> dict[str, Floats]:
    """Return what replaces the texts (g, d) by the rule, its parts and other constants."""
    texts = data.texts
    mean = sample.mean(axis=0)

    def rule(**constants: float) -> Floats:
        kept = {name: getattr(few_labels, name) for name in constants}
        try:
            for name, value in constants.items():
                setattr(few_labels, name, value)
            return few_labels.taught_texts(texts, sample, rows, codes)
        finally:
            for name, value in kept.items():
                setattr(few_labels, name, value)

    own = few_labels.discriminant(rows, codes)
    found = {
        MOVED: few_labels.moved(texts, rows, codes, mean),
        "self-trained": rule(FULL_WEIGHT=1e9),
        "labels alone": few_labels.moved(own, rows, codes, mean),
        RULE: rule(),
        "weight n / 50": rule(FULL_WEIGHT=50),
        "weight 1": rule(FULL_WEIGHT=1),
        "confident .3": rule(_CONFIDENT=0.3),
        "confident .7": rule(_CONFIDENT=0.7),
        "shrinkage .1": rule(_SHRINKAGE=0.1),
        "shrinkage .6": rule(_SHRINKAGE=0.6),
    }
    return found


def balanced(predicted: Rows, codes: Rows) -> float:
    """Return the accuracy averaged over groups."""
    return float(np.mean([(predicted[codes == c] == c).mean() for c in np.unique(codes)]))


def passes(data: Data, sample: Floats, rows: Floats, codes: Rows) -> bool:
    """Return whether labels predict each other, see `few_labels`."""
    right = max(
        balanced(few_labels.left_out_labels(data.texts, sample, rows, codes), codes),
        balanced(few_labels.left_out(rows @ data.texts.T, codes), codes),
    )
    enough = len(codes) >= few_labels.ENOUGH
    above = few_labels.ABOVE_CHANCE_OF_ENOUGH if enough else few_labels.ABOVE_CHANCE
    return right >= 1 / len(data.texts) + above


def worst(data: Data, gallery: Rows, texts: Floats) -> Floats:
    """Return the accuracy of the worst group, and its resamples (1 + r,)."""
    codes = data.codes[gallery]
    right = (data.rows[gallery] @ texts.T).argmax(axis=1) == codes
    groups = np.unique(codes * (data.others.max() + 1) + data.others[gallery], return_inverse=True)
    member = np.eye(groups[1].max() + 1)[groups[1]]
    member = member[:, member.sum(axis=0) >= FEWEST_OF_GROUP]
    n = len(gallery)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    weights = np.concatenate([np.ones((1, n)), counts])
    accuracies = weights @ (member * right[:, None]) / np.maximum(weights @ member, 1)
    found: Floats = accuracies.min(axis=1)
    return found


def default(data: Data, rows: Rows, labelled: int) -> Floats:
    """Return the class texts (g, d) of the default, with labels of the first rows."""
    g = len(data.texts)
    labels = np.full(len(rows), -1)
    labels[:labelled] = data.codes[rows[:labelled]]
    features, texts = torch.from_numpy(data.rows[rows]), torch.from_numpy(data.texts)
    try:
        found, _ = texts_of_labels(features, texts, labels, [str(code) for code in range(g)])
    except UnusableReferenceError:
        return data.texts
    return unit(found.numpy())


def is_surely(changes: Floats) -> int:
    """Return 1 if paired changes (q,) are surely positive, -1 if surely negative, or 0."""
    rng = np.random.default_rng(0)
    drawn = changes[rng.integers(len(changes), size=(500, len(changes)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return int(low > 0) - int(high < 0)


def measured(family: str, listed: Sequence[Data], number: int) -> TaskResult:
    """Return the figures of a family with a number of labels."""
    values: dict[tuple[Metric, str, str], list[float]] = {}

    def add(metric: Metric, method: str, value: float, place: str = "") -> None:
        values.setdefault((metric, method, place), []).append(value)

    for data in listed:
        g = len(data.texts)
        for draw in range(DRAWS):
            rng = np.random.default_rng([draw, number])
            order = rng.permutation(len(data.rows))
            half = len(order) // 2
            sample_rows, gallery = order[:half], order[half:]
            labelled = sample_rows[:number]
            codes = data.codes[labelled]
            if np.bincount(codes, minlength=g).min() < few_labels.FEWEST_OF_GROUP:
                continue
            sample, rows = data.rows[sample_rows], data.rows[labelled]
            is_accepted = passes(data, sample, rows, codes)
            add(ACCEPTED, RULE, float(is_accepted))
            add(RANDOM, RULE, float(passes(data, sample, rows, rng.permutation(codes))))
            found = {TEXTS: data.texts, **parts(data, sample, rows, codes)}
            classes = {**found, DEFAULT: default(data, sample_rows, number)}
            right = {method: worst(data, gallery, texts) for method, texts in classes.items()}
            for method, accuracies in right.items():
                add(WORST, method, accuracies[0])
                low, high = np.quantile(accuracies[1:] - right[MOVED][1:], [0.025, 0.975])
                add(BELOW, method, float(high < 0))
                add(ABOVE, method, float(low > 0))
            bare = nothing(data, gallery)
            by_method = {NONE: bare, TRUE: distances(data, sample, gallery, None)}
            for method, texts in found.items():
                by_method[method] = distances(data, sample, gallery, texts)
            by_method[TESTED] = by_method[RULE] if is_accepted else bare
            for column, k in enumerate(FIRST):
                subset = f"k = {k}"
                gain = bare[:, column].mean() - by_method[TRUE][:, column].mean()
                if bare[:, column].mean() < 0.02:
                    continue  # Queries lean to no group, so there is nothing to gain.
                for method, lines in by_method.items():
                    rise = lines[:, column] - bare[:, column]
                    add(LEFT, method, lines[:, column].mean() / bare[:, column].mean(), subset)
                    add(REACH, method, -rise.mean() / gain, subset)
                    change = is_surely(lines[:, column] - by_method[TEXTS][:, column])
                    add(WORSE, method, float(change > 0), subset)
                    add(BETTER, method, float(change < 0), subset)
                    add(HARM, method, float(is_surely(rise) > 0), subset)
    title = f"{family}, {number} labels"
    settings = {"family": family, "labels": number}
    about = "means over attributes and draws of labels"
    part = TaskResult(TaskProvenance(task=title, description=about, settings=settings))
    for (metric, method, place), numbers in values.items():
        n = {"draws": len(numbers)}
        part.add(metric, method, float(np.mean(numbers)), n=n, subset=place)
    return part


def measure() -> Iterator[TaskResult]:
    """Yield the figures of every family and number of labels."""
    by_family: dict[str, list[Data]] = {}
    sources: list[Iterator[Data]] = [renders()]
    if photographs.is_present(embeddings.FILE):
        sources.append(celebrities())
    if photographs.is_present():
        sources.append(small())
    for source in sources:
        for data in source:
            by_family.setdefault(data.family, []).append(data)
    for family, listed in by_family.items():
        for number in NUMBERS:
            yield measured(family, listed, number)


def main() -> None:
    options = parser(__doc__)
    chosen = options.parse_args()
    run("few_labels", measure, chosen.json)


if __name__ == "__main__":
    main()
