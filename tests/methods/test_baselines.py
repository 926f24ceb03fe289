"""Test the baselines against their papers' proofs and their authors' code."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import normalize, one_hot

import vldebias
from tests.methods.made import normal, unit
from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.methods import Problem, Reference
from vldebias.methods.baselines.erasure import (
    TwoTowers,
    fair_pca,
    leace,
    null_space_probes,
    roboshot,
)
from vldebias.methods.baselines.queries import Bend, HalfWay, project_out
from vldebias.methods.labelled_rows import Labelled, labelled, stated_texts
from vldebias.projection.projection import span_of

PUBLISHED = json.loads((Path(__file__).parent / "published" / "published.json").read_text())
JOBS = ("doctor", "nurse", "pilot", "clerk", "cook", "judge")
GENDER = vldebias.make_prompt_set("g", {"male": ["male"], "female": ["female"]}, JOBS)
# The attribute varies in two dimensions.
DIM = 16
ATTRIBUTE_DIMS = (2, 5)
EYE = torch.eye(DIM, dtype=torch.float64)


def problem(labels: bool = True) -> tuple[Problem, Tensor, Tensor]:
    """Return texts, unit images (n, d) and their gender (n,); only two dimensions depend on the
    attribute."""
    generator = torch.Generator().manual_seed(0)
    prompts = dict.fromkeys(chain(GENDER.classes, GENDER.spurious, *GENDER.variants))
    texts = {}
    for text in prompts:
        words = text.lower().replace(".", "").split()
        row = 0.1 * torch.randn(DIM, generator=generator, dtype=torch.float64)
        row[8] += 1.0
        for k, job in enumerate(JOBS):
            row[9 + k] += job in words
        if "female" in words:
            lean = 1.0
        elif "male" in words:
            lean = -1.0
        elif "nurse" in words:
            lean = 0.3
        else:
            lean = -0.3
        row[list(ATTRIBUTE_DIMS)] += lean
        texts[text] = row
    gender = torch.randint(2, (600,), generator=generator)
    images = torch.randn(600, DIM, generator=generator, dtype=torch.float64)
    images[:, 8] += 2.0
    images[:, list(ATTRIBUTE_DIMS)] += (2.0 * gender - 1)[:, None] * torch.tensor([2.0, 1.5])
    images = normalize(images, dim=1)
    names = {"gender": [("male", "female")[code] for code in gender.tolist()]}
    return (
        Problem(texts, GENDER, reference=Reference(images, labels=names if labels else {})),
        images,
        gender,
    )


def probe(rows: Tensor, codes: Tensor) -> float:
    """Return the training accuracy of an affine least-squares probe."""
    inputs = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
    weights = torch.linalg.pinv(inputs) @ one_hot(codes).double()
    return float(((inputs @ weights).argmax(1) == codes).double().mean())


@pytest.fixture
def unshrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the covariance without shrinkage, as in the theorem."""
    monkeypatch.setattr(
        "sklearn.covariance.ledoit_wolf", lambda rows: (np.cov(rows.T, bias=True), 0.0)
    )


@pytest.mark.parametrize("shares", [(1.0, 1.5), (1.0, 1.0, 1.0, 0.05)])
def test_after_leace_no_affine_probe_beats_a_constant(shares: tuple[float, ...]) -> None:
    values = len(shares)
    codes = torch.multinomial(
        torch.tensor(shares), 400, replacement=True, generator=torch.Generator().manual_seed(1)
    )
    rows = normal(400, 12, seed=2)
    concept = one_hot(codes, values).double()
    rows[:, :values] += 2 * concept
    output_factor, right, shift = leace(Labelled(rows, codes[:, None]))
    erased = rows - (rows @ right) @ output_factor.T + shift
    centred = concept - concept.mean(0)
    assert (rows.T @ centred / 400).abs().max() > 0.1
    assert (erased.T @ centred / 400).abs().max() < 1e-10
    torch.testing.assert_close(erased.mean(0), rows.mean(0))
    assert probe(rows, codes) > 0.8
    # The best constant is the most frequent value.
    assert probe(erased, codes) == int(codes.bincount().max()) / 400
    assert torch.linalg.matrix_rank(output_factor @ right.T) == values - 1


@pytest.mark.usefixtures("unshrunk")
def test_leace_matches_the_authors_implementation() -> None:
    oracle = pytest.importorskip("concept_erasure", reason="concept-erasure is not installed")
    codes = torch.arange(500) % 3
    rows = normal(500, 10, seed=3) + 0.5 * codes[:, None]
    concept = one_hot(codes, 3).double()
    rows[:, 0] += codes == 2
    output_factor, right, shift = leace(Labelled(rows, codes[:, None]))
    settings = {"shrinkage": False, "constrain_cov_trace": False, "svd_tol": 1e-6}
    theirs = oracle.LeaceEraser.fit(rows, concept, **settings)
    torch.testing.assert_close(
        torch.eye(10, dtype=torch.float64) - output_factor @ right.T, theirs.P
    )
    torch.testing.assert_close(rows - (rows @ right) @ output_factor.T + shift, theirs(rows))


def test_given_labels_take_precedence_over_zero_shot_labels() -> None:
    reference_problem, images, gender = problem()
    zero_shot_problem, _, _ = problem(labels=False)
    from_labels = reference_problem.fit("leace", "text")
    zero_shot = zero_shot_problem.fit("leace", "text")
    assert (from_labels.provenance.labels, zero_shot.provenance.labels) == ("given", "zero-shot")
    assert not torch.allclose(from_labels.image(images), zero_shot.image(images))
    assert reference_problem.reference is not None
    words = {
        "job": ["cook"] * len(gender),
        "sex": [("Male", "Female")[code] for code in gender.tolist()],
    }
    # The column is found by its values.
    renamed = replace(
        reference_problem, reference=replace(reference_problem.reference, labels=words)
    )
    torch.testing.assert_close(
        renamed.fit("leace", "text").image(images), from_labels.image(images)
    )


@refused(
    ({"job": ["cook", "judge"] * 300}, r"\['job'\]"),
    ({"gender": ["male", "female"]}, "got 2 for 600 rows"),
    ({"gender": ["male", ""] * 300}, r"\['gender'\]"),
    # Without labels, the zero-shot value of a single image is used.
    (
        {},
        r"at least two of the values \['male', 'female'\] of g",
    ),
)
def test_unsuitable_labels_are_rejected(labels: dict[str, list[str]]) -> None:
    reference_problem, images, _ = problem()
    shown = images if labels else images[:1].repeat(9, 1)
    replace(reference_problem, reference=Reference(shown, labels=labels)).fit("leace", "text")


def test_null_space_probes_remove_one_direction_per_round() -> None:
    _, images, gender = problem()
    first, second = (null_space_probes([(images, gender)], rounds) for rounds in (1, 2))
    rows = images - images.mean(0)
    rows = (rows / rows.square().sum(1).mean().sqrt()).numpy()
    theirs = (
        LogisticRegression(C=1 / (len(rows) * 1e-3), tol=1e-10, max_iter=1000)
        .fit(rows, gender.numpy())
        .coef_
    )
    torch.testing.assert_close(
        (first @ torch.from_numpy(theirs[0])).abs(), torch.from_numpy(theirs).norm(dim=1)
    )
    torch.testing.assert_close(first, second[:1])
    assert (len(first), len(second)) == (1, 2)
    assert abs(float(second[0] @ second[1])) < 1e-3
    assert len(null_space_probes([(normal(100, 32, seed=1), torch.arange(100) % 2)])) == 5
    with pytest.raises(InvalidInputError, match="no linear probe"):
        null_space_probes([(torch.ones(10, 3, dtype=torch.float64), torch.arange(10) % 2)], 3)


def test_spd_only_changes_the_probe_directions() -> None:
    reference_problem, images, gender = problem()
    edit = reference_problem.fit("spd", "text")
    assert isinstance(edit, TwoTowers)
    moved = edit.image(images)
    basis = torch.linalg.qr(null_space_probes(labelled(reference_problem, "text").known()).T).Q
    assert ((moved @ basis).std(0) < 1e-10).all()
    # The mean is added back, unlike in nullspace projection.
    assert ((moved @ basis).mean(0).abs() > 1e-4).any()
    rest = EYE - basis @ basis.T
    torch.testing.assert_close(moved @ rest, images @ rest)
    assert probe(images, gender) > 0.9
    assert probe(moved, gender) < 0.6
    texts = stated_texts(reference_problem, "text").rows
    assert ((edit(texts) @ span_of(edit.left[0])).std(0) < 1e-10).all()


def test_sfid_replaces_only_the_informative_dimensions() -> None:
    reference_problem, images, gender = problem()
    edit = reference_problem.fit("sfid", "text")
    moved = edit.image(images)
    assert int(((moved - images).abs().amax(0) > 1e-9).sum()) == DIM // 5
    assert (moved[:, list(ATTRIBUTE_DIMS)].std(0) < 1e-12).all()
    assert (
        edit(reference_problem.host.embed(GENDER.classes, "text"))[:, list(ATTRIBUTE_DIMS)].std(0)
        < 1e-12
    ).all()
    assert edit.side == "both"
    forest = RandomForestClassifier(100, oob_score=True, random_state=0).fit(
        images.numpy(), gender.numpy()
    )
    unsure = images[torch.from_numpy(forest.oob_decision_function_.max(1) <= 0.7)]
    assert 0 < len(unsure) < len(images)
    torch.testing.assert_close(
        moved[:, list(ATTRIBUTE_DIMS)],
        unsure[:, list(ATTRIBUTE_DIMS)].mean(0).expand(len(images), -1),
    )


def test_sfid_replaces_a_hundred_clip_dimensions() -> None:
    texts = dict(zip((*GENDER.classes, *sum(GENDER.variants, ())), normal(99, 512), strict=False))
    reference = Reference(unit(80, 512), labels={"gender": ["male", "female"] * 40})
    assert Problem(texts, GENDER, reference=reference).fit("sfid", "text").left.shape[1] == 100


def test_roboshot_matches_the_algorithm_applied_to_one_vector_at_a_time() -> None:
    harmful = normal(3, 10, seed=4)
    helpful = normal(2, 10, seed=5)
    images = unit(5, 10, seed=6)
    slow = images
    for rows, sign in ((harmful, -1), (helpful, 1)):
        for vector in torch.linalg.qr(rows.T)[0].T:
            slow = normalize(slow + sign * (slow @ vector)[:, None] * vector, dim=1)
    together, alone = (
        TwoTowers.from_maps(roboshot(harmful, rows)).image for rows in (helpful, helpful[:0])
    )
    torch.testing.assert_close(normalize(together(images), dim=1), slow)
    assert alone(harmful).abs().max() < 1e-12


def test_roboshot_uses_value_differences_and_class_differences() -> None:
    reference_problem, images, _ = problem()
    male, female = (
        reference_problem.host.embed(texts, "text") for texts in GENDER.by_value().values()
    )
    maps = roboshot(male - female, reference_problem.host.embed(GENDER.classes, "text").diff(dim=0))
    torch.testing.assert_close(
        reference_problem.fit("roboshot", "text").image(images),
        TwoTowers.from_maps(maps).image(images),
    )


def test_the_half_way_method_matches_the_authors_implementation() -> None:
    recorded = {
        name: torch.tensor(rows, dtype=torch.float64) for name, rows in PUBLISHED["lian"].items()
    }
    means = normalize(recorded["groups"].mean(1), dim=1)
    edit = HalfWay(span_of(means - means.mean(0)))
    torch.testing.assert_close(edit(recorded["rows"]), recorded["turned"], atol=2e-6, rtol=0)
    torch.testing.assert_close(edit.image(3 * recorded["rows"]), 3 * edit(recorded["rows"]))


@pytest.mark.parametrize("r", [1, 3])
def test_loss_and_bias_are_equal_and_minimal(r: int) -> None:
    basis = torch.linalg.qr(unit(r, 9, seed=1).T).Q
    rows = unit(40, 9)
    turned = HalfWay(basis)(rows)
    before = (rows @ basis).norm(dim=1)
    after = (turned @ basis).norm(dim=1)
    largest_loss = 1 - (1 - before**2).sqrt()
    bias = after / before
    loss = (1 - (rows * turned).sum(1)) / largest_loss
    torch.testing.assert_close(bias, loss)
    torch.testing.assert_close(turned.norm(dim=1), torch.ones(40, dtype=torch.float64))
    assert (bias < 1).all()
    neighbours = normalize(turned[:, None] + 0.1 * unit(200, 9, seed=2), dim=2)
    biases = (neighbours @ basis).norm(dim=2)
    losses = 1 - (neighbours * rows[:, None]).sum(2)
    assert (
        torch.maximum(biases / before[:, None], losses / largest_loss[:, None]) > bias[:, None]
    ).all()


def test_the_half_way_method_leaves_vectors_with_only_one_part_unchanged() -> None:
    basis = torch.eye(4, dtype=torch.float64)[:, :2]
    rows = torch.tensor([[0.0, 0.0, 0.6, 0.8], [0.6, 0.8, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(HalfWay(basis)(rows), rows)
    assert HalfWay(basis)(rows.float()).dtype == torch.float32


def test_lian_uses_both_sides_and_the_difference_span() -> None:
    reference_problem, images, _ = problem()
    texts = reference_problem.host.embed(GENDER.classes, "text")
    both = reference_problem.fit("lian", "text")
    assert isinstance(both, HalfWay)
    assert both.side == "both"
    image = HalfWay(both.basis, "image")
    assert torch.equal(image(texts), texts)
    torch.testing.assert_close(both.image(images), image.image(images))
    assert not torch.allclose(both(texts), texts)
    assert reference_problem.fit("difference", "text")(both.basis.T).abs().max() < 1e-12


def test_the_second_step_of_bend_matches_the_authors_implementation() -> None:
    data = PUBLISHED["bend_vlm"]
    texts, images, query = (
        torch.tensor(data[key], dtype=torch.float64) for key in ("texts", "images", "query")
    )
    codes = torch.tensor([sorted(set(data["values"])).index(value) for value in data["values"]])
    edit = Bend(texts[:1], texts[None], images, codes, data["near"])
    projected = torch.stack([project_out(row, texts) for row in torch.eye(8, dtype=torch.float64)])
    torch.testing.assert_close(projected, torch.tensor(data["projection"], dtype=torch.float64))
    torch.testing.assert_close(
        edit(query), torch.tensor(data["bent"], dtype=torch.float64), atol=2e-4, rtol=0
    )


def test_a_bent_query_is_the_closest_vector_equidistant_from_all_values() -> None:
    reference_problem, images, gender = problem()
    edit = reference_problem.fit("bend-vlm", "text")
    query, pilot = reference_problem.host.embed(
        ["A photo of a nurse.", "A photo of a pilot."], "text"
    ).split(1)
    bent = edit(query)[0]
    pair = reference_problem.host.embed(
        next(group for group in GENDER.variants if "nurse" in group[0]), "text"
    )
    first = project_out(
        query[0],
        torch.cat([reference_problem.host.embed(GENDER.spurious, "text"), pair[1:] - pair[:1]]),
    )
    first = normalize(first, dim=0)
    scores = images @ first
    means = [
        images[gender == code][scores[gender == code].topk(100).indices].mean(0) for code in (0, 1)
    ]
    apart = (means[0] - means[1]).numpy()
    start = first.numpy()
    assert abs(float(bent.numpy() @ apart)) < 1e-9
    constraints = [
        {"type": "eq", "fun": lambda e: e @ e - 1},
        {"type": "eq", "fun": lambda e: e @ apart},
    ]
    slow = minimize(lambda e: -e @ start, start, method="SLSQP", constraints=constraints).x
    np.testing.assert_allclose(bent.numpy(), slow, atol=1e-4)
    two = edit(torch.cat([query, 3 * pilot]))
    torch.testing.assert_close(two[0], bent)  # each query is bent separately
    assert two[1].norm() == pytest.approx(3.0)


@pytest.mark.parametrize("keep", ["4", "6"])
def test_fair_pca_matches_the_authors_implementation(keep: str) -> None:
    recorded = PUBLISHED["fair_pca"]
    rows, groups = (
        torch.tensor(recorded[name], dtype=torch.float64) for name in ("rows", "groups")
    )
    dropped = fair_pca(rows, groups, int(keep))
    kept = torch.eye(8, dtype=torch.float64) - dropped @ dropped.T
    torch.testing.assert_close(kept, torch.tensor(recorded["kept"][keep], dtype=torch.float64))


def test_fair_pca_equalises_group_means_and_equals_difference_at_full_width() -> None:
    reference_problem, _, _ = problem()
    rows, groups = stated_texts(reference_problem, "text").one_hot()
    for keep in (DIM, 9):
        dropped = fair_pca(rows, groups, keep)
        remaining = rows - rows @ dropped @ dropped.T
        means = torch.stack([remaining[groups[:, g] > 0].mean(0) for g in (0, 1)])
        assert (means[0] - means[1]).abs().max() < 1e-12
        assert dropped.shape[1] == max(1, DIM - keep)
    (direction,) = fair_pca(rows, groups, DIM).T
    (ours,) = reference_problem.fit("difference", "text").left.T
    means = torch.stack([rows[groups[:, g] > 0].mean(0) for g in (0, 1)])
    assert abs(float(direction @ normalize(means[0] - means[1], dim=0))) == pytest.approx(1.0)
    assert abs(float(direction @ ours)) > 0.95  # fitted on the value texts of the set


def test_fair_imagen_projects_states_for_one_attribute() -> None:
    reference_problem, _, _ = problem()
    reference_problem.host.generative = True
    texts = reference_problem.host.embed(GENDER.classes, "text")
    dropped = fair_pca(*stated_texts(reference_problem, "text").one_hot(), 14)
    edit = reference_problem.fit("fair-pca", "text")
    torch.testing.assert_close(edit(5 * texts), 5 * (texts - texts @ dropped @ dropped.T))
    torch.testing.assert_close(edit(texts[:, None].expand(-1, 3, -1))[:, 1], edit(texts))
    sets = (GENDER, replace(GENDER, classes=GENDER.classes[:1], class_names=GENDER.class_names[:1]))
    with pytest.raises(InvalidInputError, match="one attribute, got 2"):
        replace(reference_problem, sets=sets, reference=None).fit("fair-pca", "text")


def test_an_affine_map_scales_with_the_length_of_its_input() -> None:
    axis = EYE[:3, 1:2]
    edit = TwoTowers.from_maps((axis, axis, 0.5 * axis[:, 0]))
    # The length is 10, and the constant of 0.5 is added to unit rows: 8 - 8 + 0.5 * 10.
    torch.testing.assert_close(
        edit.image(torch.tensor([6.0, 8.0, 0.0])), torch.tensor([6.0, 5.0, 0.0])
    )
    torch.testing.assert_close(
        edit.image(torch.tensor([0.6, 0.8, 0.0]), 0.5), torch.tensor([0.6, 0.65, 0.0])
    )
    assert edit.image(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    far = TwoTowers.from_maps((axis, axis, 2.0 * axis[:, 0]))
    got = far.image(torch.full((3,), 6e4).half())  # (60,000, 207,846, 60,000) without the limit
    torch.testing.assert_close(got, torch.tensor([18909.0, 65504.0, 18909.0]).half())
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 3\)"):
        edit.image(torch.ones(4))
