"""Test equalising with unlabelled images: the means, their pairs, and the effect on a query."""

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.fewer import few
from tests.methods.made import normal
from tests.refusals import refused
from vldebias.errors import InvalidInputError, ReferenceWarning
from vldebias.hosts import Host, TextTable, resolve
from vldebias.methods import Problem
from vldebias.methods.closed_form import class_texts
from vldebias.methods.equalise import ImageSplit
from vldebias.methods.reference import Reference
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import PromptSet, load_prompts

DIM = 16
EYE = torch.eye(DIM, dtype=torch.float64)
MALE, FEMALE, LAND, WATER = EYE[:4]
VALUES = torch.stack([MALE, FEMALE])
CLASSES = torch.stack([LAND, WATER])


def split(values: Tensor, classes: Tensor | None, images: Any) -> ImageSplit:
    return ImageSplit(values, classes, Reference(images))


def people(
    n: int, seed: int, *, correlation: float = 0.5, noise: float = 0.05
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (n, d) with an attribute (n,) and a class (n,) that agree with the given
    probability."""
    draw = torch.Generator().manual_seed(seed)
    attribute = (torch.rand(n, generator=draw) < 0.5).long()
    agree = torch.rand(n, generator=draw) < correlation
    label = torch.where(agree, attribute, 1 - attribute)
    rows = torch.stack([MALE, FEMALE])[attribute] + torch.stack([LAND, WATER])[label]
    rows = rows + noise * torch.randn(n, DIM, generator=draw, dtype=torch.float64)
    return normalize(rows, dim=1), attribute, label


def naive_matrix(images: Tensor, within: bool) -> Tensor:
    """Compute sum_c w_c D_c D_c^T by its definition with loops, one image at a time."""
    cells: dict[tuple[int, int], list[Tensor]] = {}
    for row in images:
        label = int(row @ WATER > row @ LAND) if within else 0
        cells.setdefault((label, int(row @ FEMALE > row @ MALE)), []).append(row)
    classes = [[cells.get((c, v), []) for v in (0, 1)] for c in (0, 1)]
    paired = [parts for parts in classes if min(map(len, parts)) >= 2]
    used = paired or [[classes[0][v] + classes[1][v] for v in (0, 1)]]
    differences = [torch.stack(male).mean(0) - torch.stack(female).mean(0) for male, female in used]
    p = [len(male) * len(female) / (len(male) + len(female)) for male, female in used]
    parts = [torch.stack(part) for part in chain(*used)]
    s2 = sum(float((part - part.mean(0)).square().sum()) for part in parts) / (
        sum(map(len, parts)) - len(parts)
    )
    mean = sum(w * d for w, d in zip(p, differences, strict=True)) / sum(p)
    tau2 = 0.0
    if len(p) > 1:
        scatter = sum(
            w * float((d - mean).square().sum()) for w, d in zip(p, differences, strict=True)
        )
        tau2 = max(0.0, (scatter - (len(p) - 1) * s2) / (sum(p) - sum(w * w for w in p) / sum(p)))
    texts = MALE - FEMALE
    along_texts = float(mean @ texts) / float(texts @ texts) * texts
    combined = along_texts + max(
        0.0, 1 - s2 / (sum(p) * float((mean - along_texts).square().sum()))
    ) * (mean - along_texts)
    total = torch.zeros(DIM, DIM, dtype=torch.float64)
    for w, d in zip(p, differences, strict=True):
        shrunk = combined + tau2 / (tau2 + s2 / w) * (d - mean)
        total += w * torch.outer(shrunk, shrunk)
    return total / sum(p)


@example(n=12, seed=2, within=True, size=70)  # two images of each value per class
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(60, 200), seed=st.integers(0, 1000), within=st.booleans(), size=st.integers(1, 70)
)
def test_scatter_is_the_weighted_sum_over_shrunk_differences(
    n: int, seed: int, within: bool, size: int
) -> None:
    images, *_ = people(n, seed, correlation=0.7, noise=0.3)
    scatter = split(VALUES, CLASSES if within else None, list(images.split(size))).scatter
    torch.testing.assert_close(scatter.T @ scatter, naive_matrix(images, within))


def test_differences_between_few_images_are_shrunk_towards_the_text_differences() -> None:
    texts = (MALE - FEMALE) / 2**0.5
    beyond = EYE[9]

    def direction(n: int, tilt: float) -> Tensor:
        images, value, _ = people(n, seed=3, noise=0.6)
        images = normalize(images + tilt * (1 - 2.0 * value)[:, None] * beyond, dim=1)
        return normalize(split(VALUES, None, images).scatter[0], dim=0)

    # With 12 images, the noise exceeds the difference. With 20,000, the tilt is visible.
    few = direction(12, 0.0)
    many = direction(20_000, 0.5)
    assert abs(float(many @ beyond)) > 0.3 > abs(float(few @ beyond))
    assert abs(float(few @ texts)) > 0.9


def three_values(n: int, seed: int, difference: Tensor) -> tuple[Tensor, Tensor]:
    """Return texts of three values, and images of two classes that differ by +-`difference` in
    value 0."""
    draw = torch.Generator().manual_seed(seed)
    value, label = (torch.randint(0, k, (n,), generator=draw) for k in (3, 2))
    rows = (
        3 * EYE[4 + value]
        + 2 * EYE[2 + label]
        + 0.4 * torch.randn(n, DIM, generator=draw, dtype=torch.float64)
    )
    rows = rows + ((value == 0).double() * (2.0 * label - 1))[:, None] * difference
    return EYE[4:7], normalize(rows, dim=1)


def test_classes_share_one_difference_unless_they_differ() -> None:
    alike, apart = (three_values(600, 0, size * EYE[9]) for size in (0.0, 1.5))
    ranks = [
        torch.linalg.matrix_rank(split(v, CLASSES, x).scatter, atol=0.02) for v, x in (alike, apart)
    ]
    assert ranks[0] == 2  # three values, two directions
    assert ranks[1] > 2  # axis 9 with either sign, in addition to the values


def test_three_values_get_equal_scores_in_both_classes() -> None:
    values, images = three_values(6000, 1, 1.5 * EYE[9])
    projection = CalibratedProjection.solve([split(values, CLASSES, images).scatter], None, 1e8)
    value = (images @ values.T).argmax(1)
    label = (images @ WATER > images @ LAND).long()
    query = normalize(EYE[4:7] + EYE[9], dim=1)

    def spread(texts: Tensor) -> float:
        scores = texts @ images.T
        means = torch.stack(
            [
                torch.stack([scores[:, (value == v) & (label == c)].mean(1) for v in range(3)])
                for c in (0, 1)
            ]
        )
        return float((means.amax(1) - means.amin(1)).max())

    assert spread(query) > 0.3
    assert spread(projection(query)) < 0.02


def test_a_correlated_class_is_kept_if_means_are_compared_within_classes() -> None:
    images, *_ = people(4000, seed=2, correlation=0.9)
    torch.testing.assert_close(split(VALUES, None, images).sample, images[:1000])

    def kept(within: bool) -> float:
        means = split(VALUES, CLASSES if within else None, images)
        return float(
            CalibratedProjection.solve([means.scatter], None, 1e6)(LAND - WATER).norm() / 2**0.5
        )

    # Value and class are correlated, so plain means confuse the class with the attribute.
    assert kept(within=False) < 0.9
    assert kept(within=True) > 0.99


def test_classes_are_pooled_if_none_has_a_pair() -> None:
    images, *_ = people(60, seed=8, correlation=1.0)  # each class has only one value
    within, pooled = (split(VALUES, classes, images) for classes in (CLASSES, None))
    torch.testing.assert_close(within.scatter, pooled.scatter)
    assert within.stability == pooled.stability


def test_a_class_without_a_pair_is_excluded() -> None:
    images, attribute, label = people(400, seed=9)
    # Water has only one value.
    means = split(VALUES, CLASSES, images[(label == 0) | (attribute == 0)])
    land = split(VALUES, None, images[label == 0]).scatter
    torch.testing.assert_close(means.scatter, land)


@pytest.mark.parametrize(("noise", "stable"), [(0.05, True), (0.6, True), (3.0, False)])
def test_stability_is_the_cosine_between_the_two_halves(noise: float, stable: bool) -> None:
    stabilities = []
    cosines = []
    for seed in range(30):
        images, *_ = people(120, seed=seed, noise=noise)
        # Random texts split the images at random.
        texts = normalize(normal(2, DIM, seed=5), dim=1) if not stable else VALUES
        stabilities.append(split(texts, None, images).stability)
        halves = [(half, (half @ texts.T).argmax(1)) for half in (images[0::2], images[1::2])]
        first_difference, second_difference = (
            half[value == 0].mean(0) - half[value == 1].mean(0) for half, value in halves
        )
        cosines.append(float(torch.cosine_similarity(first_difference, second_difference, dim=0)))
    assert sum(stabilities) / 30 == pytest.approx(sum(cosines) / 30, abs=0.03)
    assert (sum(stabilities) / 30 > 0.8) == stable


@refused(
    (lambda: split(VALUES, None, torch.zeros(3)), r"3 numbers; .*features \(n, d\)"),
    (lambda: split(VALUES, None, torch.zeros(3, DIM, dtype=torch.int64)), "int64"),
    (lambda: split(VALUES, None, torch.zeros(3, DIM)), "3 of 3"),
    (lambda: split(VALUES, None, torch.full((3, DIM), torch.nan)), "3 of 3"),
    (lambda: split(VALUES, None, torch.ones(3, DIM + 1)), "width 17, but text embeddings have 16"),
    (lambda: split(VALUES, None, people(1, seed=7)[0]).scatter, r"2 images .*\[\d, \d\]"),
)
def test_images_that_cannot_be_split_are_rejected(call: Any) -> None:
    call()


def test_pseudo_classes_are_assigned_with_calibrated_text() -> None:
    """An uncalibrated class text also reads the value, so each class would have only one value."""
    images, attribute, label = people(400, seed=10)
    rows = {"a man": MALE, "a woman": FEMALE, "land": LAND + 2 * MALE, "water": WATER + 2 * FEMALE}
    rows |= {"land, a man": LAND + MALE, "land, a woman": LAND + FEMALE}
    prompts = PromptSet(
        name="leaning",
        attributes={"male": ("man",), "female": ("woman",)},
        classes=("land", "water"),
        class_names=("land", "water"),
        spurious=("a man", "a woman"),
        variants=(("land, a man", "land, a woman"),),
    )
    table = TextTable(rows)
    place = label == 0
    leaning = table.embed(["land", "water"], "text")
    raw = split(VALUES, leaning, images)
    assert raw.counts[0].tolist() == [int((attribute == 0).sum()), 0]
    problem = Problem(table, prompts, reference=Reference(images))
    texts = class_texts(problem, prompts, "text")
    assert texts is not None
    split_of_images = ImageSplit(
        problem.zero_shot(prompts, "text"), normalize(texts, dim=1), Reference(images)
    )
    assert split_of_images.counts[0].tolist() == [
        int(((attribute == k) & place).sum()) for k in (0, 1)
    ]


GENDER = few(load_prompts("gender"))
PROFESSIONS = few(load_prompts("professions-gender"))


@pytest.fixture(scope="module")
def world(portraits: Any) -> tuple[Host, Tensor]:
    """Return a model that embeds each prompt once, and features of portraits."""
    model, tokenizer, features, _ = portraits(400, seed=77)
    return resolve(model, tokenizer=tokenizer), features


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
class TestOnAModel:
    # 400 images are few for ten pairs.
    @pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")
    def test_several_attributes_with_several_values_are_solved_jointly(
        self, world: tuple[Host, Tensor]
    ) -> None:
        model, features = world
        sets = [PROFESSIONS, few(load_prompts("skin-tone"))]  # two and five values
        reference = Reference(features, within_classes=False)
        problem = Problem(model, sets, reference=reference)
        scatters = [
            ImageSplit(problem.zero_shot(prompt_set, "text"), None, reference).scatter
            for prompt_set in problem.sets
        ]
        assert [len(scatter) for scatter in scatters] == [1, 10]
        fitted = vldebias.fit_projections(
            model, sets, method="equalise", lam=[1e7, 1e7], reference=reference
        ).only
        eye = torch.eye(fitted.dim, dtype=torch.float64)
        # There is one direction for two values, and there are four for five.
        assert torch.linalg.matrix_rank(eye - fitted.matrix()) == 5
        for scatter in scatters:
            assert (scatter @ fitted(eye).T).norm() < 1e-3 * scatter.norm()

    def test_uninformative_images_trigger_a_warning(self, world: Any) -> None:
        model, features = world
        noise = torch.randn(40, features.shape[1], generator=torch.Generator().manual_seed(1))
        for match, images in {"two halves": features[:10], "unaligned": noise}.items():
            reference = Reference(images, within_classes=False)
            with pytest.warns(ReferenceWarning, match=match):
                vldebias.fit_projections(model, GENDER, method="equalise", reference=reference)

    def test_reference_images_are_rejected_for_a_pipeline(self, pipe: Any) -> None:
        with pytest.raises(InvalidInputError, match="shared embedding space"):
            vldebias.debias(pipe, "professions-gender", reference=torch.ones(3, 4))


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_extreme_feature_lengths_do_not_change_the_result(length: float) -> None:
    images = people(40, seed=1)[0].float()
    scaled = split(VALUES, CLASSES, images * length).scatter
    torch.testing.assert_close(scaled, split(VALUES, CLASSES, images).scatter, rtol=0, atol=1e-6)
