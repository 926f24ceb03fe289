"""Test TIE*, SAGE and DAT* against loops over images, texts and neighbours."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.methods.made import unit
from tests.refusals import refused
from vldebias.hosts import TextTable
from vldebias.methods import METHODS, Problem, Reference
from vldebias.methods.baselines.zero_shot import (
    BestTemplate,
    Dat,
    DensityScores,
    Sage,
    Translation,
    herded,
    name_in_prompt,
    outlier_factors,
    texts_by_group,
    with_products,
)
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts, make_prompt_set

DIM = 12
BIRDS = PromptSet(
    name="birds",
    attributes={"land": ("land",), "water": ("water",)},
    variants=(
        ("a crow on land", "a crow on water", "a crow on the water"),
        ("a gull on land", "a gull on water"),
    ),
    spurious=("a land background", "a water background"),
    classes=("A photo of a crow.", "A photo of a gull."),
    class_names=("crow", "gull"),
)
Floats = NDArray[np.float64]


def table(texts: list[str], seed: int = 0) -> TextTable:
    """Return random unit rows with a common direction, like those of CLIP."""
    rows = unit(len(texts), DIM, seed=seed) + 0.5
    return TextTable(dict(zip(texts, rows, strict=True)))


def problem(labels: bool = True) -> tuple[Problem, Tensor]:
    images = torch.nn.functional.normalize(unit(120, DIM, seed=3) + 0.5, dim=1)
    codes = torch.arange(120)
    columns = {
        "place": [("land", "water")[code] for code in (codes % 2).tolist()],
        "bird": [("crow", "gull")[code] for code in (codes // 60).tolist()],
    }
    reference = Reference(images, labels=columns if labels else {})
    texts = [*BIRDS.classes, *BIRDS.spurious, *(text for group in BIRDS.variants for text in group)]
    return Problem(table(texts), BIRDS, reference=reference), images


def scores(edit: Edit, images: Tensor, problem: Problem) -> Tensor:
    """Return the dot products of the edited images with the class prompts."""
    return edit.image(images) @ problem.host.embed(BIRDS.classes, "text").T


def length(row: Floats) -> float:
    return math.sqrt(sum(x * x for x in row.tolist()))


# ---- TIE*


def test_tie_moves_each_image_by_the_mean_dot_product_of_its_value() -> None:
    made, images = problem(labels=False)
    edit = made.fit("tie", "text")
    assert isinstance(edit, Translation)
    texts = []
    for words in BIRDS.by_value().values():
        rows = made.host.embed(words, "text").numpy()
        mean = sum(rows) / len(rows)
        texts.append(mean / length(mean))
    nearest = []
    for image in images.numpy():
        nearest.append(0 if image @ texts[0] >= image @ texts[1] else 1)
    assert 0 < sum(nearest) < len(nearest)
    expected = []
    for place, image in zip(nearest, images.numpy(), strict=True):
        products = [images[i].numpy() @ texts[place] for i, n in enumerate(nearest) if n == place]
        expected.append(image - sum(products) / len(products) * texts[place])
    np.testing.assert_allclose(edit.image(images).numpy(), np.stack(expected), atol=1e-12)
    twice = edit.image(2 * images)
    np.testing.assert_allclose(twice.numpy(), 2 * np.stack(expected), atol=1e-12)


# ---- SAGE


def test_an_image_gets_the_scores_of_its_best_template() -> None:
    wordings = [(f"{word} crow", f"{word} gull") for word in ("one", "two", "three", "four")]
    texts = [*BIRDS.classes, *(text for pair in wordings for text in pair)]
    made = Problem(table(texts), BIRDS)
    images = unit(40, DIM, seed=5)
    edit = made.fit(Sage(wordings), "text")
    expected = []
    best = []
    for image in images.numpy():
        rows = []
        for pair in wordings:
            rows.append([float(image @ row) for row in made.host.embed(pair, "text").numpy()])
        spreads = [max(row) - min(row) for row in rows]
        best.append(spreads.index(max(spreads)))
        expected.append(rows[best[-1]])
    assert len(set(best)) == len(wordings)
    np.testing.assert_allclose(scores(edit, images, made).numpy(), np.array(expected), atol=1e-10)


def test_only_the_dot_products_with_the_classes_change() -> None:
    rows = unit(6, DIM)
    classes = unit(3, DIM, seed=1)
    products = unit(6, 3, seed=2)
    moved = with_products(rows, classes, products)
    torch.testing.assert_close(moved @ classes.T, products)
    basis = torch.linalg.qr(classes.T).Q
    outside = (moved - rows) - (moved - rows) @ basis @ basis.T
    torch.testing.assert_close(outside, torch.zeros_like(outside))


def test_sage_fills_the_imagenet_templates_with_the_class_prompts() -> None:
    asked: list[str] = []

    class Listening(TextTable):
        def embed(self, prompts: object, role: str = "text") -> Tensor:
            asked.extend(prompts)  # type: ignore[arg-type]
            return unit(len(list(prompts)), DIM)  # type: ignore[call-overload]

    edit = METHODS["sage"].fit(Problem(Listening({"a": [1.0]}), "celeba"), "text")
    assert isinstance(edit, BestTemplate)
    assert edit.templates.shape == (80, 2, DIM)
    assert "a bad photo of a celebrity with dark hair." in asked
    assert "itap of my celebrity with blond hair." in asked
    for prompt, name in zip(*names_of("waterbirds"), strict=True):
        assert name_in_prompt(prompt, "") == name
    assert name_in_prompt("Landbird", "landbird") == "landbird"


def names_of(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    prompts = load_prompts(name)
    return prompts.classes, prompts.class_names


# ---- DAT*


def naive_outlier_factor(row: Floats, group: list[Floats], near: int) -> float:
    """Return the mean of k-dist(row) / k-dist(neighbour) over the nearest rows, found by
    sorting."""
    ordered = sorted(range(len(group)), key=lambda i: length(row - group[i]))[:near]
    own = length(row - group[ordered[-1]])
    ratios = []
    for i in ordered:
        others = sorted(length(group[i] - group[j]) for j in range(len(group)) if j != i)
        ratios.append(own / others[near - 1])
    return sum(ratios) / len(ratios)


def naive_dat(made: Problem, image: Floats, groups: dict[tuple[int, int], list[Floats]]) -> Floats:
    """Return the score of each class, computed from the groups' images."""
    of_classes = []
    for class_code, prompt in enumerate(BIRDS.classes):
        of_groups = []
        for value_code in (0, 1):
            words = [
                text
                for text in BIRDS.variants[class_code]
                if list(BIRDS.attributes)[value_code] in text.split()
            ]
            rows = made.host.embed(words, "text").numpy()
            text = sum(rows) / len(rows)
            sparsity = naive_outlier_factor(image, groups[class_code, value_code], 10)
            of_groups.append(float(image @ text) / length(text) / sparsity**10)
        plain = float(image @ made.host.embed([prompt], "text").numpy()[0])
        of_classes.append(max(*of_groups, (sum(of_groups) + plain) / 3))
    return np.array(of_classes)


def test_dat_matches_a_plain_loop_over_neighbours() -> None:
    made, images = problem()
    edit = made.fit("dat", "text")
    assert isinstance(edit, DensityScores)
    assert edit.provenance.labels == "given"
    groups = {}
    for class_code in (0, 1):
        for value_code in (0, 1):
            rows = [60 * class_code + value_code + 2 * i for i in range(30)]
            groups[class_code, value_code] = [images[i].numpy() for i in rows]
    tested = unit(15, DIM, seed=9) + 0.3
    tested = torch.nn.functional.normalize(tested, dim=1)
    expected = np.stack([naive_dat(made, image, groups) for image in tested.numpy()])
    np.testing.assert_allclose(scores(edit, tested, made).numpy(), expected, rtol=1e-6)


def test_a_group_as_dense_as_its_neighbours_has_a_factor_of_one() -> None:
    """Rows are equally spaced on a line; a distant image has a large factor."""
    line = torch.arange(50, dtype=torch.float64)[:, None] * torch.ones(1, 3).double()
    between = line[20:25] + 0.5
    assert outlier_factors(between, line, 2).tolist() == pytest.approx([0.5] * 5)
    far = line[-1:] + 30
    assert float(outlier_factors(far, line, 2)) > 10
    rows = unit(9, 4)
    tested = unit(5, 4, seed=1)
    for factor, row in zip(outlier_factors(tested, rows, 8).tolist(), tested.numpy(), strict=True):
        assert factor == pytest.approx(naive_outlier_factor(row, list(rows.numpy()), 8))


def test_herding_selects_the_row_that_brings_the_mean_closest() -> None:
    rows = unit(12, 3, seed=4)
    mean = rows.mean(0)
    left = list(range(12))
    chosen: list[int] = []
    for _ in range(5):
        best = min(left, key=lambda i: float((rows[[*chosen, i]].mean(0) - mean).norm()))
        chosen.append(best)
        left.remove(best)
    torch.testing.assert_close(herded(rows, 5), rows[chosen])
    assert len(herded(rows, 100)) == 12


def test_dat_without_labels_uses_zero_shot_labels_and_skips_small_groups() -> None:
    made, images = problem(labels=False)
    edit = made.fit("dat", "text")
    assert edit.provenance.labels == "zero-shot"
    columns = {"place": ["land"] * 3 + ["water"] * 5, "bird": ["crow"] * 3 + ["gull"] * 5}
    small = replace(made, reference=Reference(images[:8], labels=columns))
    for near, class_codes in ((2, [0, 1]), (3, [1])):
        fitted = small.fit(Dat(near=near), "text")
        assert isinstance(fitted, DensityScores)
        assert fitted.class_codes.tolist() == class_codes
        assert torch.isfinite(fitted.image(images)).all()


def test_a_longer_class_name_takes_precedence() -> None:
    prompts = make_prompt_set(
        "g", {"male": ["male"], "female": ["female"]}, ["nurse", "registered nurse"]
    )
    for (class_code, value_code), texts in texts_by_group(prompts).items():
        assert texts
        for text in texts:
            assert ("registered" in text) == bool(class_code)
            assert ("female" in text) == bool(value_code)


# ---- invalid inputs

SEVERAL = [BIRDS, replace(BIRDS, name="others", classes=BIRDS.classes[::-1])]


@refused(
    ("sage", {"sets": SEVERAL}, r"one prompt set with at least two class prompts, got \[2, 2\]"),
    ("dat", {"sets": SEVERAL}, r"one prompt set with at least two class prompts, got \[2, 2\]"),
    ("tie", {"sets": SEVERAL}, "expected one attribute, got 2"),
    ("sage", {"sets": [replace(BIRDS, classes=(), class_names=())]}, r"class prompts, got \[0\]"),
    (
        "dat",
        {"reference": Reference(unit(4, DIM), labels={"place": ["land", "water"] * 2})},
        r"names the classes \['crow', 'gull'\], got \['place'\]",
    ),
    ("dat", {"reference": Reference(unit(20, DIM))}, "more than 10 of the 20 reference images"),
    ("tie", {"reference": Reference(unit(1, DIM))}, "none of the 1 images is closest"),
    ("dat", {"sets": [replace(BIRDS, variants=(BIRDS.variants[0],))]}, "both 'gull' and 'land'"),
)
def test_unsuitable_problems_are_rejected(name: str, change: dict[str, object]) -> None:
    made, _ = problem()
    replace(made, **change).fit(name, "text")  # type: ignore[arg-type]
