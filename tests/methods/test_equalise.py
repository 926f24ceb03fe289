"""Equalising against unlabelled images: running means, their pairs, and what they do to a query."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.fewer import few
from tests.refusals import refused
from vldebias.errors import InvalidInputError, ReferenceWarning
from vldebias.hosts import Host, TextTable, resolve
from vldebias.methods import Problem
from vldebias.methods.closed_form import reference_splits
from vldebias.methods.equalise import GroupMeans, group_means
from vldebias.methods.reference import Reference, cosines
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet, load_prompts

DIM = 16
MALE, FEMALE, LAND, WATER = torch.eye(DIM, dtype=torch.float64)[:4]
VALUES = {"male": MALE[None], "female": FEMALE[None]}
CLASSES = {"land": LAND, "water": WATER}


def split(values: dict[str, Tensor], classes: dict[str, Tensor] | None, reference: Reference) -> GroupMeans:
    """The means of all reference images."""
    means = GroupMeans(values, classes, reference)
    for batch in reference.batches():
        means.update(batch)
    return means


def people(n: int, seed: int, *, correlation: float = 0.5, noise: float = 0.05) -> tuple[Tensor, Tensor, Tensor]:
    """Images (n, d) with an attribute (n,) and a class (n,) that agree as often as `correlation` says."""
    draw = torch.Generator().manual_seed(seed)
    attribute = (torch.rand(n, generator=draw) < 0.5).long()
    agree = torch.rand(n, generator=draw) < correlation
    label = torch.where(agree, attribute, 1 - attribute)
    rows = torch.stack([MALE, FEMALE])[attribute] + torch.stack([LAND, WATER])[label]
    rows = rows + noise * torch.randn(n, DIM, generator=draw, dtype=torch.float64)
    return normalize(rows, dim=1), attribute, label


def naive_cells(images: Tensor, settings: Reference) -> dict[tuple[int, int], list[Tensor]]:
    """(class, value) -> rows, one image at a time."""
    cells: dict[tuple[int, int], list[Tensor]] = {}
    for row in images:
        probabilities = torch.softmax(settings.logit_scale * torch.stack([row @ MALE, row @ FEMALE]), 0)
        value = int(probabilities.argmax())
        if probabilities[value] >= settings.confidence:
            label = int(row @ WATER > row @ LAND) if settings.within_classes else 0
            cells.setdefault((label, value), []).append(row)
    return cells


def naive_matrix(images: Tensor, settings: Reference) -> Tensor:
    """sum_c w_c D_c D_c^T, written from the definition with loops."""
    cells = naive_cells(images, settings)
    classes = [[cells.get((c, v), []) for v in (0, 1)] for c in (0, 1)]
    paired = [parts for parts in classes if min(map(len, parts)) >= settings.min_rows]
    used = paired or [[classes[0][v] + classes[1][v] for v in (0, 1)]]
    differences = [torch.stack(male).mean(0) - torch.stack(female).mean(0) for male, female in used]
    p = [len(male) * len(female) / (len(male) + len(female)) for male, female in used]
    parts = [torch.stack(part) for male, female in used for part in (male, female)]
    s2 = sum(float((part - part.mean(0)).square().sum()) for part in parts) / (sum(map(len, parts)) - len(parts))
    mean = sum(w * d for w, d in zip(p, differences, strict=True)) / sum(p)
    tau2 = 0.0
    if len(p) > 1:
        scatter = sum(w * float((d - mean).square().sum()) for w, d in zip(p, differences, strict=True))
        tau2 = max(0.0, (scatter - (len(p) - 1) * s2) / (sum(p) - sum(w * w for w in p) / sum(p)))
    texts = MALE - FEMALE
    said = float(mean @ texts) / float(texts @ texts) * texts
    settled = said + max(0.0, 1 - s2 / (sum(p) * float((mean - said).square().sum()))) * (mean - said)
    total = torch.zeros(DIM, DIM, dtype=torch.float64)
    for w, d in zip(p, differences, strict=True):
        shrunk = settled + tau2 / (tau2 + s2 / w) * (d - mean)
        total += w * torch.outer(shrunk, shrunk)
    return total / sum(p)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(60, 200),
    seed=st.integers(0, 1000),
    confidence=st.sampled_from([0.0, 0.6, 0.9]),
    within=st.booleans(),
    size=st.integers(1, 70),
)
def test_scatter_is_the_weighted_sum_over_shrunk_differences(
    n: int, seed: int, confidence: float, within: bool, size: int
) -> None:
    images, *_ = people(n, seed, correlation=0.7, noise=0.3)
    reference = Reference(list(images.split(size)), confidence, within, min_rows=3, logit_scale=4.0)
    scatter = split(VALUES, CLASSES if within else None, reference).scatter()
    torch.testing.assert_close(scatter.rows.T @ scatter.rows / scatter.count, naive_matrix(images, reference))


def test_few_images_that_say_nothing_leave_the_texts_and_many_leave_what_they_say() -> None:
    texts = (MALE - FEMALE) / 2**0.5
    beyond = torch.eye(DIM, dtype=torch.float64)[9]

    def direction(n: int, tilt: float) -> tuple[Tensor, float]:
        images, value, _ = people(n, seed=3, noise=0.6)
        images = normalize(images + tilt * (1 - 2.0 * value)[:, None] * beyond, dim=1)
        means = split(VALUES, None, Reference(images))
        return normalize(means.scatter().rows[0], dim=0), means.report().kept

    few, kept = direction(12, 0.0)
    assert kept < 0.5
    many, all_kept = direction(20_000, 0.5)
    assert all_kept > 0.99
    assert abs(float(many @ beyond)) > 0.3 > abs(float(few @ beyond))
    assert abs(float(few @ texts)) > 0.9


def three_values(n: int, seed: int, difference: Tensor, noise: float) -> tuple[dict[str, Tensor], Tensor]:
    """Texts of three values, and images of two classes in which the classes deviate by +-`difference` in value 0."""
    axes = torch.eye(DIM, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    value, label = (torch.randint(0, k, (n,), generator=draw) for k in (3, 2))
    rows = 3 * axes[4 + value] + 2 * axes[2 + label] + noise * torch.randn(n, DIM, generator=draw, dtype=torch.float64)
    rows = rows + ((value == 0).double() * (2.0 * label - 1))[:, None] * difference
    return {str(v): axes[4 + v][None] for v in range(3)}, normalize(rows, dim=1)


def test_classes_that_differ_by_noise_share_one_difference() -> None:
    values, images = three_values(600, 0, torch.zeros(DIM, dtype=torch.float64), 0.4)
    means = split(values, CLASSES, Reference(images))
    assert means.report().own < 0.25
    assert torch.linalg.matrix_rank(means.scatter().rows, atol=0.02) == 2  # three values, two directions


def test_classes_that_do_differ_keep_their_own_difference() -> None:
    values, images = three_values(600, 0, 1.5 * torch.eye(DIM, dtype=torch.float64)[9], 0.4)
    means = split(values, CLASSES, Reference(images))
    assert means.report().own > 0.6
    assert torch.linalg.matrix_rank(means.scatter().rows, atol=0.02) > 2  # axis 9 with either sign, beside the values


def test_three_values_score_alike_in_both_classes() -> None:
    values, images = three_values(6000, 1, 1.5 * torch.eye(DIM, dtype=torch.float64)[9], 0.4)
    projection = CalibratedProjection.solve([split(values, CLASSES, Reference(images)).scatter()], None, 1e8)
    value = torch.stack([images @ row[0] for row in values.values()], 1).argmax(1)
    label = (images @ WATER > images @ LAND).long()
    query = normalize(torch.eye(DIM, dtype=torch.float64)[4:7] + torch.eye(DIM, dtype=torch.float64)[9], dim=1)

    def spread(texts: Tensor) -> float:
        scores = texts @ images.T
        means = torch.stack(
            [torch.stack([scores[:, (value == v) & (label == c)].mean(1) for v in range(3)]) for c in (0, 1)]
        )
        return float((means.amax(1) - means.amin(1)).max())

    assert spread(query) > 0.3
    assert spread(projection(query)) < 0.02


def test_a_correlated_class_is_kept_where_means_are_compared_within_classes() -> None:
    images, *_ = people(4000, seed=2, correlation=0.9)
    difference = LAND - WATER

    def kept(within: bool) -> float:
        means = split(VALUES, CLASSES if within else None, Reference(images, within_classes=within))
        return float(CalibratedProjection.solve([means.scatter()], None, 1e6)(difference).norm() / difference.norm())

    assert kept(within=False) < 0.9
    assert kept(within=True) > 0.99


def test_report_predicts_errors_where_the_probabilities_are_calibrated() -> None:
    draw = torch.Generator().manual_seed(4)
    margin = torch.rand(20_000, generator=draw, dtype=torch.float64) * 2 - 1
    images = torch.zeros(len(margin), DIM, dtype=torch.float64)
    images[:, 0], images[:, 1] = 1 + margin / 2, 1 - margin / 2
    images[:, 2] = (4 - images[:, :2].square().sum(1)).sqrt()  # rows of length 2
    scale = 4.0
    chance_male = torch.sigmoid(scale * (images[:, 0] - images[:, 1]) / 2)
    truly_male = torch.rand(len(margin), generator=draw, dtype=torch.float64) < chance_male
    said_male = images[:, 0] > images[:, 1]
    report = split(VALUES, None, Reference(images, logit_scale=scale)).report()
    wrong = (truly_male != said_male)[said_male].double().mean()
    assert report.expected_error["male"] == pytest.approx(float(wrong), abs=0.01)
    assert report.shrinkage == pytest.approx(1 - sum(report.expected_error.values()))


def test_classes_are_pooled_where_none_has_a_pair_of_its_own() -> None:
    images, *_ = people(60, seed=8, correlation=1.0)  # each class has one value only
    pooled = split(VALUES, CLASSES, Reference(images)).scatter()
    torch.testing.assert_close(pooled.rows, split(VALUES, None, Reference(images)).scatter().rows)
    reports = [split(VALUES, classes, Reference(images)).report() for classes in (CLASSES, None)]
    assert reports[0].stability == reports[1].stability


def test_a_class_without_a_pair_is_left_out() -> None:
    images, attribute, label = people(400, seed=9)
    few = (label == 0) | (attribute == 0)  # water has one value only
    means = split(VALUES, CLASSES, Reference(images[few]))
    assert means.report().used == int((label == 0).sum())
    land = split(VALUES, None, Reference(images[label == 0])).scatter()
    torch.testing.assert_close(means.scatter().rows, land.rows)


def test_report_counts_what_was_used_and_left_out() -> None:
    images, attribute, label = people(300, seed=5)
    report = split(VALUES, CLASSES, Reference(images)).report()
    assert report.counts["land"]["male"] == int(((attribute == 0) & (label == 0)).sum())
    assert (report.left_out, report.used) == (0, 300)
    strict = split(VALUES, CLASSES, Reference(images, confidence=0.9, logit_scale=2.0, min_rows=1)).report()
    assert strict.left_out == 300
    assert sum(sum(row.values()) for row in strict.counts.values()) == 0


def test_stability_tells_signal_from_noise() -> None:
    signal, *_ = people(400, seed=6)
    noise = normalize(torch.randn(400, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    noise[:, :2] = 1e-6 * noise[:, :2]  # split by nothing
    assert split(VALUES, None, Reference(signal)).report().stability > 0.99
    assert split(VALUES, None, Reference(noise)).report().stability < 0.6


@refused(
    (torch.zeros(3), r"expected image features \(n, d\), got torch.float32 \(3,\)"),
    (torch.zeros(3, DIM, dtype=torch.int64), r"expected image features \(n, d\), got torch.int64"),
    (torch.zeros(3, DIM), "3 of 3 image features are zero or not finite"),
    (torch.full((3, DIM), float("nan")), "3 of 3 image features are zero or not finite"),
    (torch.ones(3, DIM + 1), "image features have width 17, texts 16"),
)
def test_features_that_are_none(features: Any) -> None:
    split(VALUES, None, Reference(features))


@refused(
    (
        lambda: split(VALUES, None, Reference(people(8, seed=7)[0], min_rows=10)).scatter(),
        r"expected at least 10 images of two attribute values, got {'male': \d, 'female': \d} and 0 below",
    ),
    (lambda: GroupMeans({"male": MALE[None]}), r"expected at least two values of the attribute, got \['male'\]"),
    (lambda: Reference(None, confidence=-0.1), r"confidence: expected a probability in \[0, 1\)"),
    (lambda: Reference(None, confidence=1.0), r"confidence: expected a probability in \[0, 1\)"),
)
def test_what_cannot_be_split_is_refused(call: Any) -> None:
    call()


def test_pseudo_classes_are_read_with_calibrated_texts() -> None:
    """A class text that leans to a value reads the value, and classes read so have one value each."""
    images, attribute, label = people(400, seed=10)
    rows = {
        "a man": MALE,
        "a woman": FEMALE,
        "land": LAND + 2 * MALE,
        "water": WATER + 2 * FEMALE,
        "land, a man": LAND + MALE,
        "land, a woman": LAND + FEMALE,
    }
    prompts = PromptSet(
        name="leaning",
        attributes={"male": ("man",), "female": ("woman",)},
        classes=("land", "water"),
        class_names=("land", "water"),
        spurious=("a man", "a woman"),
        groups=(("land, a man", "land, a woman"),),
    )
    table = TextTable(rows)
    leaning = table.embed(["land", "water"], "joint")
    raw = split(VALUES, dict(zip(("land", "water"), leaning, strict=True)), Reference(images)).report()
    assert raw.counts["land"] == {"male": int((attribute == 0).sum()), "female": 0}
    report = reference_splits(Problem.of(table, prompts, reference=Reference(images)))["leaning"]
    wanted = {
        "male": int(((attribute == 0) & (label == 0)).sum()),
        "female": int(((attribute == 1) & (label == 0)).sum()),
    }
    assert report.counts["land"] == wanted


GENDER, PROFESSIONS = few(load_prompts("gender")), few(load_prompts("professions-gender"))


@pytest.fixture(scope="module")
def world() -> tuple[Host, Tensor]:
    """A model that embeds a prompt once, and features of portraits."""
    from vldebias.miniature import load_clip, portraits

    model, preprocess, tokenizer = load_clip()
    images = portraits.sample(400, seed=77).images
    with torch.no_grad():
        features = model.encode_image(torch.stack([preprocess(image) for image in images]))
    return resolve(model, tokenizer=tokenizer), features


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
class TestOnAModel:
    @pytest.mark.filterwarnings("ignore:gender:vldebias.errors.ReferenceWarning")  # the model doubts some of its labels
    def test_joint_solution_equalises_both_pairs_and_images(self, world: tuple[Host, Tensor]) -> None:
        model, features = world
        fitted = vldebias.fit_projection(model, GENDER, reference=features)
        assert fitted.method == "cali+equalise"
        alone = vldebias.fit_projection(model, GENDER, method="cali")
        assert fitted.rank > alone.rank
        with vldebias.debias(model, GENDER, reference=features) as attachment:
            assert torch.equal(attachment.projections["joint"].left, fitted.left)

    @pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")  # 400 images are few for ten pairs
    def test_several_attributes_with_several_values_are_solved_jointly(self, world: tuple[Host, Tensor]) -> None:
        model, features = world
        sets = [PROFESSIONS, few(load_prompts("skin-tone"))]  # two and five values
        reference = Reference(features, within_classes=False)
        problem = Problem.of(model, sets, reference=reference)
        scatters = [group_means(problem, one, "joint", None).scatter() for one in problem.sets]
        assert [scatter.count for scatter in scatters] == [1, 10]
        fitted = vldebias.fit_projection(model, sets, method="equalise", lam=[1e7, 1e7], reference=reference)
        removed = torch.eye(fitted.dim, dtype=torch.float64) - fitted.matrix()
        assert torch.linalg.matrix_rank(removed) == 5  # one direction of two values, four of five
        for scatter in scatters:
            left = scatter.rows @ fitted(torch.eye(fitted.dim, dtype=torch.float64)).T
            assert left.norm() < 1e-3 * scatter.rows.norm()

    def test_difference_removes_one_direction_of_two_values(self, world: tuple[Host, Tensor]) -> None:
        model, _ = world
        fitted = vldebias.fit_projection(model, GENDER, method="difference")
        assert fitted.rank == 1
        male, female = model.embed(["A photo of a male.", "A photo of a female."], "joint")
        assert abs(float(fitted(torch.ones(fitted.dim, dtype=torch.float64)) @ (male - female))) < 1e-6

    def test_images_that_do_not_settle_it_give_a_warning(self, world: tuple[Host, Tensor]) -> None:
        model, features = world
        noise = torch.randn(40, features.shape[1], generator=torch.Generator().manual_seed(1))
        told = {
            "two halves of the reference images give different": features[:10],
            "along what the texts differ in": noise,
        }
        for match, images in told.items():
            with pytest.warns(ReferenceWarning, match=match):
                vldebias.fit_projection(
                    model,
                    GENDER,
                    method="equalise",
                    reference=Reference(images, within_classes=False),
                )

    def test_doubtful_labels_give_a_warning(self, world: tuple[Host, Tensor]) -> None:
        model, features = world
        doubtful = Reference(features, within_classes=False, logit_scale=5.0)
        with pytest.warns(ReferenceWarning, match=r"professions-gender: the model doubts \d\d% of its own labels"):
            vldebias.fit_projection(model, PROFESSIONS, reference=doubtful)

    def test_a_pipeline_has_no_space_for_images(self) -> None:
        from vldebias.miniature import load_pipeline

        with pytest.raises(InvalidInputError, match="its text embeddings share no space with images"):
            vldebias.debias(load_pipeline(), "professions-gender", reference=torch.ones(3, 4))


# --- float32


def test_rows_of_float32_fall_into_the_cells_of_float64() -> None:
    """Also those that lie nearly between two values, two classes, or at the confidence asked for."""
    images = people(6000, seed=11)[0]
    images[::3] = normalize(images[::3] - 0.5 * (images[::3] @ (MALE - FEMALE))[:, None] * (MALE - FEMALE), dim=1)
    images[1::3] = normalize(images[1::3] - 0.5 * (images[1::3] @ (LAND - WATER))[:, None] * (LAND - WATER), dim=1)
    stored = 3 * images.float()  # lengths do not count
    for confidence in (0.0, 0.5, 0.7):
        settings = Reference(stored, confidence, logit_scale=4.0)
        single, double = (GroupMeans(VALUES, CLASSES, settings) for _ in range(2))
        for block in settings.blocks(1000):
            assert block.dtype == torch.float32
            single.update(block)
            double.update(block.double())
        first, second = single.report(), double.report()
        assert first.counts == second.counts
        assert first.left_out == second.left_out
        assert first.expected_error == pytest.approx(second.expected_error, abs=1e-6)
        torch.testing.assert_close(single.scatter().rows, double.scatter().rows, rtol=0, atol=1e-6)


def test_rows_at_a_boundary_are_told_apart_in_float64() -> None:
    """Products of float32 alone would put some of them into the other value."""
    images = people(3000, seed=12, noise=0.3)[0]
    between = images - 0.5 * (images @ (MALE - FEMALE))[:, None] * (MALE - FEMALE)
    rows, texts = between.float(), torch.stack([MALE, FEMALE])
    turned = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    rows, texts = (rows.double() @ turned).float(), texts @ turned
    exact = (rows.double() @ texts.T).argmax(1)
    assert not torch.equal((rows @ texts.float().T).argmax(1), exact)
    assert torch.equal(cosines(rows, texts).argmax(1), exact)


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_lengths_whose_squares_float32_cannot_hold_change_nothing(length: float) -> None:
    images = people(40, seed=1)[0].float()
    scaled = split(VALUES, CLASSES, Reference(images * length)).scatter()
    torch.testing.assert_close(scaled.rows, split(VALUES, CLASSES, Reference(images)).scatter().rows, rtol=0, atol=1e-6)
