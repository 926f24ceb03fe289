"""Measure the default for classifiers with reference images, compared with text alone.

    python -m eval.experiments.classifier_default --json eval/results/classifier_default.json

The real images are loaded from $VLDEBIAS_REAL (`eval.photographs`), and their cells are skipped,
with a message, if they are missing. Every cell is a class and an attribute: half of the images are
the reference, and the worst group's accuracy is measured on the other half, for ten random
halvings. The birds and hair of the miniature world have three references with the world's
correlations.

    always images           cali+equalise, lam 100, which was the default without a test
    default, unlabelled     the default with the same images and no labels

Values are means over halvings, and intervals are the means of the halvings' paired 95% intervals
over images.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from eval import photographs
from eval.experiments import embeddings, rivals
from eval.experiments.embeddings import Floats, Rows
from eval.tables import parser, run
from vldebias.data import Embeddings
from vldebias.errors import VldebiasWarning
from vldebias.hosts import Host, TextTable
from vldebias.measure.classification import interval_of, lowest_accuracy
from vldebias.measure.resampling import resampled_counts
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.methods import Problem
from vldebias.metrics import Metric
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts

HALVINGS, RESAMPLES = 10, 500
TEXT, ALWAYS = "text alone", "always images"
UNLABELLED = "default, unlabelled"
FROM_TEXT = Metric(
    "worst_group_from_text", "worst group, change from text alone", "utility", "higher"
)
METHODS = {
    "none": "the model as it is",
    TEXT: "the default without reference images",
    ALWAYS: "cali+equalise, lam 100",
    UNLABELLED: "the default with unlabelled reference images",
}
FACES = {
    "gender": {"male": "A photo of a man.", "female": "A photo of a woman."},
    "age": {"young": "A photo of a young person.", "old": "A photo of an old person."},
    "race": {
        "White": "A photo of a white person.",
        "Black": "A photo of a black person.",
        "Asian": "A photo of an Asian person.",
        "Indian": "A photo of an Indian person.",
    },
}


@dataclass(frozen=True, eq=False)
class Images:
    """Features (n, d), and the class and value (n,) of each image."""

    rows: Floats
    classes: Rows
    values: Rows

    def take(self, rows: Rows) -> Images:
        return Images(self.rows[rows], self.classes[rows], self.values[rows])


@dataclass(frozen=True, eq=False)
class Split:
    """A reference and the images on which edits are measured."""

    reference: Images
    gallery: Images


@dataclass(frozen=True, eq=False)
class Cell:
    """A classifier, whose prompt set has class prompts and an attribute, and its images."""

    name: str
    texts: Host
    prompt_set: PromptSet
    splits: Sequence[Split]


def halves(images: Images) -> list[Split]:
    """Return random halves of the images for fitting and for measuring."""
    splits = []
    for seed in range(HALVINGS):
        order = np.random.default_rng(seed).permutation(len(images.rows))
        middle = len(order) // 2
        splits.append(Split(images.take(order[:middle]), images.take(order[middle:])))
    return splits


def faces() -> Iterator[Cell]:
    """Yield every pair of gender, age and race on UTKFace, with the model of two heads."""
    photos = photographs.photographs("utk_dev")
    table = photographs.texts()
    texts = TextTable({text: torch.tensor(row) for text, row in table.items()}, "two heads")
    for class_column, prompt_of_class in FACES.items():
        for column in FACES:
            if column == class_column:
                continue
            prompt_set = load_prompts(column)
            # Latinos have no label in this data set.
            prompt_set = replace(
                prompt_set,
                attributes={value: prompt_set.attributes[value] for value in FACES[column]},
                variants=tuple(
                    tuple(text for text in group if "Latino" not in text)
                    for group in prompt_set.variants
                ),
                spurious=tuple(text for text in prompt_set.spurious if "Latino" not in text),
                classes=tuple(prompt_of_class.values()),
                class_names=tuple(prompt_of_class),
                held_out_classes=(),
                held_out_class_names=(),
            )
            labels, values = photos.labels[class_column], photos.labels[column]
            known = np.flatnonzero((labels != "") & (values != ""))
            images = Images(
                photos.features[known].astype(np.float64),
                codes_of(labels[known], prompt_set.class_names),
                codes_of(values[known], tuple(prompt_set.attributes)),
            )
            yield Cell(f"UTKFace, {class_column} by {column}", texts, prompt_set, halves(images))


def codes_of(labels: Any, names: Sequence[str]) -> Rows:
    """Return the index of each label (n,) in the names."""
    return np.array([names.index(label) for label in labels], dtype=np.intp)


def celebrities() -> Iterator[Cell]:
    """Yield age by gender and gender by age on CelebA, with CLIP ViT-B/32."""
    data = embeddings.celeba()
    by_gender = next(iter(rivals.ages(1)))
    rows = data.rows.numpy()
    gender = data.gender.astype(np.intp)
    age = data.images.column("age").codes.astype(np.intp)
    assert by_gender.classes is not None
    images = Images(rows, age, gender)
    yield Cell("CelebA, age by gender", by_gender.texts, by_gender.classes, halves(images))
    old = [text for pair in data.prompt_set.pairs for text in pair if " an old " in text]
    by_age = PromptSet(
        name="age",
        attributes={"old": ("old",), "young": ("young",)},
        variants=tuple((text, text.replace(" an old ", " a young ")) for text in old),
        classes=("a photo of a man", "a photo of a woman"),
        class_names=("male", "female"),
    )
    yield Cell("CelebA, gender by age", data.texts, by_age, halves(Images(rows, gender, age)))


def renders() -> Iterator[Cell]:
    """Yield birds by place and hair by gender in the miniature world."""
    for title, rendered in {
        "renders, birds by place": rivals.rendered("birds", "place", "waterbirds"),
        "renders, hair by gender": rivals.rendered("portraits", "gender", "celeba"),
    }.items():
        splits = []
        for split in rendered:
            reference = labelled(split.reference, split.attribute)
            splits.append(Split(reference, labelled(split.gallery, split.attribute)))
        yield Cell(title, rendered[0].texts, rendered[0].prompt_set, splits)


def labelled(data: Embeddings, column: str) -> Images:
    """Return the images that have a class, whose codes are in the order of the class prompts."""
    classes = data.column("label").codes
    known = np.flatnonzero(classes >= 0)
    rows = data.unit[:].double().numpy()[known]
    return Images(rows, classes[known], data.column(column).codes[known])


def edits_of(cell: Cell, reference: Images) -> dict[str, Edit]:
    """Return the edit of each method."""
    rows = torch.from_numpy(reference.rows)
    prompt_set = cell.prompt_set
    blind = Problem(cell.texts, prompt_set, reference=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)
        return {
            TEXT: Problem(cell.texts, prompt_set).fit("default", "text"),
            ALWAYS: replace(blind, lam=100.0).fit("cali+equalise", "text"),
            UNLABELLED: blind.fit("default+reference", "text"),
        }


def right(cell: Cell, gallery: Images, edit: Edit | None) -> Rows:
    """Return 1 for each image (n,) that is closest to the prompt of its class, otherwise 0."""
    classes = cell.texts.embed(cell.prompt_set.classes)
    if edit is not None:
        classes = normalize(edit(classes), dim=1)
    predicted = (torch.from_numpy(gallery.rows) @ classes.T).argmax(1).numpy()
    return (predicted == gallery.classes).astype(np.intp)


def measure(cell: Cell) -> TaskResult:
    """Return the accuracy of the worst group for each method, and its change from text alone."""
    first = cell.splits[0]
    n = {"images": len(first.gallery.rows), "splits": len(cell.splits)}
    facts: dict[str, dict[str, Any]] = {}
    for name, about in METHODS.items():
        facts[name] = {"about": about, "attached": []}
    figures: dict[tuple[str, str], list[tuple[Any, Any, Any]]] = {}
    for split in cell.splits:
        is_right = {"none": right(cell, split.gallery, None)}
        for name, edit in edits_of(cell, split.reference).items():
            facts[name]["attached"].append(edit.method)
            is_right[name] = right(cell, split.gallery, edit)
        groups = split.gallery.classes * len(cell.prompt_set.attributes) + split.gallery.values
        for name, own in is_right.items():
            for base in ("none", TEXT):
                counts = np.zeros((groups.max() + 1, 2, 2), dtype=np.int64)
                np.add.at(counts, (groups, is_right[base], own), 1)
                counts = counts[counts.sum((1, 2)) > 0]
                drawn = np.concatenate(list(resampled_counts(counts, RESAMPLES, seed=0)))
                figures.setdefault((base, name), []).append(
                    interval_of(lowest_accuracy, "lowest", counts, drawn)
                )
    done = TaskResult(
        TaskProvenance(
            task=cell.name,
            description="Means over splits; intervals: means of the splits' paired intervals.",
            methods=facts,
            n={**n, "reference": len(first.reference.rows)},
            attribute=cell.prompt_set.name,
        )
    )
    for (base, name), values in figures.items():
        value = float(np.mean([figure[0] for figure in values]))
        interval = tuple(np.mean([figure[1] for figure in values], axis=0).tolist())
        change = tuple(np.mean([figure[2] for figure in values], axis=0).tolist())
        if base == "none":
            moved = None if name == "none" else change
            done.add("worst_group", name, value, interval, n=n, change=moved)
        elif name not in (TEXT, "none"):
            done.add(FROM_TEXT, name, change[0], change[1:], n=n)
    return done


def cells() -> Iterator[Cell]:
    """Yield the cells whose data are present."""
    yield from renders()
    if photographs.is_present("photos"):
        yield from faces()
    if photographs.is_present(embeddings.FILE):
        yield from celebrities()


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__).parse_args(arguments)
    torch.set_num_threads(1)

    def parts() -> Iterator[TaskResult]:
        for cell in cells():
            yield measure(cell)
            print(cell.name, file=sys.stderr, flush=True)

    run("classifier default", parts, options.json)


if __name__ == "__main__":
    main()
