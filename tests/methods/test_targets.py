"""Targets: the closed form with a shift, rankings with given shares, and the path from a prompt set to them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from tests.fewer import few
from tests.refusals import refused
from vldebias.api import fit_shares
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.methods.rank_shares import GroupMoments, TargetShares
from vldebias.methods.reference import Reference
from vldebias.methods.target import TargetProjection
from vldebias.projection import CalibratedProjection, PairScatter
from vldebias.prompts import load_prompts

DIM = 12


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=draws(seed), dtype=torch.float64)


# --- the closed form with a target

problems = given(seed=st.integers(0, 10_000), pairs=st.integers(1, 5), others=st.booleans())


def problem(seed: int, pairs: int, others: bool) -> tuple[Tensor, Tensor, Tensor, list[PairScatter], Tensor]:
    """Differences, weights, targets, further pairs of weight 3, and the matrix of their quadratic form."""
    differences, weights = normal(pairs, DIM, seed=seed), normal(pairs, seed=seed + 1).exp()
    more = [PairScatter.from_pairs(normal(4, 2, DIM, seed=seed + 2))] if others else []
    quadratic = 3 * sum((s.rows.T @ s.rows / s.count for s in more), torch.zeros(DIM, DIM, dtype=torch.float64))
    return differences, weights, normal(pairs, seed=seed + 3), more, quadratic


@settings(max_examples=40, deadline=None)
@problems
def test_it_minimises_the_distance_plus_the_weighted_misses(seed: int, pairs: int, others: bool) -> None:
    differences, weights, targets, more, quadratic = problem(seed, pairs, others)
    solved = TargetProjection.solve(differences, weights, more, 3.0)
    unit = normalize(normal(DIM, seed=seed + 4), dim=0)
    left = torch.eye(DIM, dtype=torch.float64) + differences.T @ (weights[:, None] * differences) + quadratic
    naive = torch.linalg.solve(left, unit + differences.T @ (weights * targets))
    torch.testing.assert_close(solved.apply(unit, solved.shift(targets)), naive)


@settings(max_examples=20, deadline=None)
@problems
def test_targets_of_zero_are_the_calibrated_projection(seed: int, pairs: int, others: bool) -> None:
    differences, weights, targets, more, _ = problem(seed, pairs, others)
    solved = TargetProjection.solve(differences, weights, more, 3.0)
    scatter = PairScatter(differences * weights.sqrt()[:, None], 1)
    plain = CalibratedProjection.solve([scatter, *more], None, [1.0, *[3.0] * len(more)])
    z = normal(3, DIM, seed=seed)
    assert torch.equal(solved.apply(z, solved.shift(0 * targets)), plain(z))


@settings(max_examples=20, deadline=None)
@given(factor=st.floats(0.01, 100.0), strength=st.floats(0.0, 1.0))
def test_lengths_pass_through_and_strength_is_linear(factor: float, strength: float) -> None:
    solved = TargetProjection.solve(normal(2, DIM, seed=0), torch.ones(2))
    z, shift = normal(3, DIM, seed=1), solved.shift(torch.tensor([0.5, -1.0]))
    moved = solved.apply(z, shift)
    torch.testing.assert_close(solved.apply(factor * z, shift), factor * moved)
    torch.testing.assert_close(solved.apply(z, shift, strength), z + strength * (moved - z))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_shape_and_dtype_are_kept(dtype: torch.dtype) -> None:
    solved = TargetProjection.solve(normal(1, DIM, seed=0), torch.ones(1))
    z, shift = normal(2, 5, DIM, seed=1), solved.shift(torch.ones(2, 1, 1))
    found = solved.apply(z.to(dtype), shift)
    assert (found.shape, found.dtype) == (z.shape, dtype)
    torch.testing.assert_close(found.double(), solved.apply(z, shift), rtol=0.02, atol=0.02)
    kept = z.to(dtype)
    assert solved.apply(kept, shift, 0.0) is kept
    with pytest.raises(InvalidInputError, match=r"strength: expected a number in \[0, 1\], got 1.5"):
        solved.apply(kept, shift, 1.5)


@refused(
    (torch.ones(3), torch.ones(3), r"expected differences \(p, d\) and weights \(p,\), got \(3,\) and \(3,\)"),
    (torch.ones(2, 3), torch.ones(3), r"got \(2, 3\) and \(3,\)"),
    (torch.ones(2, 3), torch.tensor([1.0, 0.0]), "with positive weights"),
    (torch.zeros(2, 3), torch.ones(2), "two values whose texts or images are alike"),
    (torch.full((2, 3), torch.nan), torch.ones(2), "expected finite differences"),
)
def test_what_cannot_be_solved_is_refused(differences: Tensor, weights: Tensor) -> None:
    TargetProjection.solve(differences, weights)


# --- moments of zero-shot groups


def crowd(
    n: int, seed: int, shares: tuple[float, ...] = (0.5, 0.5), noise: float = 0.25, apart: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Unit images (n, d) and their groups (n,); group g leans to axis g, all lean to axis DIM - 1."""
    group = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=draws(seed))
    rows = apart * torch.eye(DIM, dtype=torch.float64)[group] + torch.eye(DIM, dtype=torch.float64)[-1]
    return normalize(rows + noise * normal(n, DIM, seed=seed + 1), dim=1), group


def classifier(groups: int) -> Tensor:
    return torch.eye(DIM, dtype=torch.float64)[:groups]


def moments(images: Tensor, groups: int = 2, size: int = 10_000, **options: Any) -> GroupMoments:
    found = GroupMoments([classifier(groups)], [f"g{i}" for i in range(groups)], Reference(None, **options))
    for batch in images.split(size):
        found.update(batch)
    return found


@pytest.mark.parametrize("size", [7, 10_000])
@pytest.mark.parametrize("confidence", [0.0, 0.9])
def test_moments_are_those_of_the_pseudo_groups(size: int, confidence: float) -> None:
    images, _ = crowd(300, seed=0, noise=0.5)
    found = moments(images, size=size, confidence=confidence, logit_scale=5.0)
    probability = (5.0 * images @ classifier(2).T).softmax(1)
    for g in (0, 1):
        own = images[(probability.argmax(1) == g) & (probability.max(1).values >= confidence)]
        assert int(found.counts[g]) == len(own)
        torch.testing.assert_close(found.means[g], own.mean(0))
        torch.testing.assert_close(found.covariances[g], torch.cov(own.T, correction=0))
    torch.testing.assert_close(found.shares, probability.argmax(1).bincount().double() / 300)


def test_moments_of_float32_are_those_of_float64() -> None:
    """Far from 0 beside their spread, where a product of float32 minus a squared mean would lose digits."""
    images, _ = crowd(5000, seed=4, noise=0.02)
    single, double = (moments(rows, size=1000) for rows in (images.float(), images.float().double()))
    assert torch.equal(single.counts, double.counts)
    torch.testing.assert_close(single.means, double.means, rtol=0, atol=1e-7)
    scale = double.covariances.abs().max()
    torch.testing.assert_close(single.covariances / scale, double.covariances / scale, rtol=0, atol=1e-6)


def test_combinations_of_two_attributes_are_groups_of_their_own() -> None:
    images, group = crowd(400, seed=1, shares=(0.4, 0.3, 0.2, 0.1), noise=0.1)
    first = torch.stack([classifier(4)[:2].sum(0), classifier(4)[2:].sum(0)])
    second = torch.stack([classifier(4)[[0, 2]].sum(0), classifier(4)[[1, 3]].sum(0)])
    found = GroupMoments([first, second], ["a/c", "a/d", "b/c", "b/d"], Reference(None))
    found.update(images)
    assert torch.equal(found.seen.long(), group.bincount(minlength=4))


# --- shares among the first results


def shares_at(queries: Tensor, images: Tensor, group: Tensor, top: float, groups: int = 2) -> Tensor:
    """(q, g) shares of the true groups among the first results."""
    best = (queries @ images.T).topk(round(top * len(images)), dim=1).indices
    return torch.stack([(group[best] == g).double().mean(1) for g in range(groups)], dim=1)


QUERIES = normalize(normal(6, DIM, seed=99) + 2 * torch.eye(DIM, dtype=torch.float64)[-1], dim=1)


@pytest.mark.parametrize("wanted", [(0.5, 0.5), (0.2, 0.8), (0.85, 0.15)])
def test_two_groups_have_their_shares_among_images_not_seen(wanted: tuple[float, ...]) -> None:
    images, group = crowd(20_000, seed=3, shares=(0.6, 0.4))
    found = TargetShares.fit(moments(images[:10_000]), wanted, top=0.1)
    held_out, group = images[10_000:], group[10_000:]
    before = shares_at(QUERIES, held_out, group, 0.1)
    after = shares_at(found(QUERIES), held_out, group, 0.1)
    assert (before - torch.tensor(wanted)).abs().max() > 0.3, "the queries have to lean for the test to mean anything"
    assert (after - torch.tensor(wanted)).abs().max() < 0.08  # images on a sphere are not quite normal
    assert (after.mean(0) - torch.tensor(wanted)).abs().max() < 0.05


def test_four_groups_have_their_shares() -> None:
    wanted = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    images, group = crowd(40_000, seed=4, shares=(0.4, 0.3, 0.2, 0.1))
    found = TargetShares.fit(moments(images[:20_000], groups=4), wanted.tolist(), top=0.05)
    after = shares_at(found(QUERIES), images[20_000:], group[20_000:], 0.05, groups=4)
    assert (after - wanted).abs().max() < 0.06
    assert (found.expected(QUERIES) - wanted).abs().max() < 0.01


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 100), share=st.floats(0.05, 0.95), top=st.floats(0.01, 0.3))
def test_under_its_own_model_every_query_meets_the_target(seed: int, share: float, top: float) -> None:
    found = TargetShares.fit(moments(crowd(500, seed)[0]), (share, 1 - share), top=top, lam=1e6)
    expected = found.expected(QUERIES)
    torch.testing.assert_close(expected.sum(1), torch.ones(len(QUERIES), dtype=torch.float64))
    assert (expected[:, 0] - share).abs().max() < 2e-3
    assert (found.expected(QUERIES, strength=0.0)[:, 0] - share).abs().max() > 2e-3


def test_a_larger_share_is_a_larger_share() -> None:
    images, group = crowd(4000, seed=5)
    fitted = [TargetShares.fit(moments(images), (s, 1 - s), top=0.1) for s in (0.1, 0.3, 0.5, 0.7, 0.9)]
    offsets = torch.cat([found.offsets(QUERIES) for found in fitted], dim=1)
    assert (offsets.diff(dim=1) > 0).all()
    shares = torch.stack([shares_at(found(QUERIES), images, group, 0.1)[:, 0] for found in fitted], dim=1)
    assert (shares.diff(dim=1) > 0.05).all()


def mirrored() -> GroupMoments:
    """Two groups that are mirror images of each other: as many, and spread alike under every query without a side."""
    images, _ = crowd(400, seed=6)
    swapped = images.clone()
    swapped[:, [0, 1]] = images[:, [1, 0]]
    return moments(torch.cat([images, swapped]))


def test_the_shares_of_all_images_are_plain_equalising() -> None:
    found = TargetShares.fit(mirrored(), None, top=0.1)
    between = QUERIES.clone()
    between[:, :2] = between[:, :2].mean(1, keepdim=True)
    torch.testing.assert_close(found.shares, torch.tensor([0.5, 0.5]).double())
    assert found.offsets(between).abs().max() < 1e-12
    torch.testing.assert_close(found(between), found.target.plain(between))
    assert TargetShares.fit(mirrored(), (0.6, 0.4), top=0.1).offsets(between).min() > 1e-3


def test_a_gallery_of_another_composition() -> None:
    """Fitted on halves, ranked where one group is rare: only with its population the shares come out."""
    images, _ = crowd(10_000, seed=7)
    gallery, group = crowd(10_000, seed=8, shares=(0.9, 0.1))
    wanted = torch.tensor([0.5, 0.5]).double()
    told = TargetShares.fit(moments(images), (0.5, 0.5), top=0.05, population=(0.9, 0.1))
    untold = TargetShares.fit(moments(images), (0.5, 0.5), top=0.05)
    assert (shares_at(told(QUERIES), gallery, group, 0.05) - wanted).abs().mean() < 0.1
    assert (shares_at(untold(QUERIES), gallery, group, 0.05) - wanted).abs().mean() > 0.35


def test_shapes_and_kinds_of_queries() -> None:
    found = TargetShares.fit(moments(crowd(400, seed=9)[0]), (0.3, 0.7), top=0.1)
    moved = found(QUERIES)
    for factor in (0.1, 30.0):  # the ranking does not depend on the length of a query
        torch.testing.assert_close(found(factor * QUERIES), factor * moved)
    torch.testing.assert_close(found(QUERIES[0]), moved[0])
    torch.testing.assert_close(found(QUERIES.reshape(2, 3, DIM)), moved.reshape(2, 3, DIM))
    array = found(QUERIES.numpy().astype(np.float32))
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float32
    np.testing.assert_allclose(array, moved.numpy(), atol=1e-5)
    assert found(QUERIES, 0.0) is QUERIES
    torch.testing.assert_close(found(QUERIES, 0.5), (QUERIES + moved) / 2)


ODD = {
    "lopsided": crowd(1000, seed=0, shares=(0.9, 0.1))[0],
    "one group": (rows := crowd(100, seed=0)[0])[(rows @ classifier(2).T).argmax(1) == 1],
    "plain": rows,
    "wide": torch.ones(3, DIM + 1).double(),
}


@refused(
    *(
        ("plain", (0.5, 0.5), top, r"top: expected a fraction k / n of the images, in \(0, 1\)")
        for top in (0.0, 1.0, -0.1)
    ),
    ("lopsided", (0.2, 0.8), 0.3, r"too few images of \['g1'\] for such a share .* it would be {'g1'"),
    *(
        ("plain", shares, 0.1, r"expected a positive share for each of \['g0', 'g1'\]")
        for shares in ((1.0, 0.0), (1.0,), (0.5, 0.4))
    ),
    ("one group", (0.5, 0.5), 0.1, r"expected at least 10 images of every group, got \{'g0': 0, 'g1'"),
    ("wide", (0.5, 0.5), 0.1, "image features have width 13, texts 12"),
)
def test_shares_that_cannot_be_had_are_refused(kind: str, shares: tuple[float, ...], top: float) -> None:
    TargetShares.fit(moments(ODD[kind]), shares, top=top)


def test_every_image_of_a_group_is_the_most_there_is() -> None:
    found = moments(ODD["lopsided"])
    most = float(found.shares[1]) / 0.3  # of the first 30 % with every image of the group
    TargetShares.fit(found, (1.01 - most, most - 0.01), top=0.3)
    with pytest.raises(InvalidInputError, match="too few images"):
        TargetShares.fit(found, (0.99 - most, most + 0.01), top=0.3)


@pytest.mark.parametrize("queries", [torch.ones(2, DIM + 1), torch.ones(2, DIM, dtype=torch.int64)])
def test_queries_of_another_kind_are_refused(queries: Tensor) -> None:
    found = TargetShares.fit(moments(ODD["plain"]), (0.5, 0.5), top=0.1)
    with pytest.raises(InvalidInputError, match=r"expected float embeddings of queries \(..., 12\)"):
        found(queries)


# --- from a prompt set, on a model

GENDER = few(load_prompts("gender"))


@pytest.fixture(scope="module")
def world() -> tuple[Host, Tensor, Tensor]:
    """A model that embeds a prompt once, features of portraits, and their gender."""
    from vldebias.miniature import load_clip, portraits

    model, preprocess, tokenizer = load_clip()
    images = portraits.sample(600, seed=31, balanced=True)
    with torch.no_grad():
        features = model.encode_image(torch.stack([preprocess(image) for image in images.images]))
    return resolve(model, tokenizer=tokenizer), normalize(features, dim=1), images.gender


SEARCHED = ["A photo of a firefighter.", "A photo of a nurse.", "A photo of a pilot.", "A photo of a clerk."]


def test_shares_of_portraits(world: tuple[Host, Tensor, Tensor]) -> None:
    """Shares of the zero-shot values, which is all that is known; the true ones lag as far as those are wrong."""
    model, features, gender = world
    read = (features @ model.embed(["A photo of a male.", "A photo of a female."], "joint").T.float()).argmax(1)
    queries = model.embed(SEARCHED, "joint").float()
    found = {}
    for share in (0.2, 0.8):
        wanted = {"male": share, "female": 1 - share}
        move = fit_shares(model, GENDER, wanted, reference=features, top=0.1)
        found[share] = [float(shares_at(move(queries), features, g, 0.1)[:, 0].mean()) for g in (read, gender)]
    assert found[0.2][0] == pytest.approx(0.2, abs=0.12)
    assert found[0.8][0] == pytest.approx(0.8, abs=0.12)
    assert found[0.8][1] > found[0.2][1] + 0.3


def test_uniform_and_own_shares_and_pairs_of_prompts(world: tuple[Host, Tensor, Tensor]) -> None:
    model, features, _ = world
    options = {"reference": features, "top": 0.1}
    uniform, own = fit_shares(model, GENDER, **options), fit_shares(model, GENDER, "own", **options)
    assert uniform.shares.tolist() == [0.5, 0.5]
    assert torch.equal(own.shares, own.population)
    assert uniform.names == own.names == ("male", "female")
    assert uniform.target.plain.rank == 1
    assert fit_shares(model, GENDER, method="cali", **options).target.plain.rank > 1


def test_intersections_and_a_known_population(world: tuple[Host, Tensor, Tensor]) -> None:
    model, features, _ = world
    move = fit_shares(
        model,
        [GENDER, few(load_prompts("age"))],
        [{"male": 0.3, "female": 0.7}, None],
        reference=Reference(features, confidence=0.3),
        top=0.02,
        population={"male/young": 0.4, "male/old": 0.1, "female/young": 0.4, "female/old": 0.1},
    )
    assert move.names == ("male/young", "male/old", "female/young", "female/old")
    assert move.shares.tolist() == pytest.approx([0.15, 0.15, 0.35, 0.35])
    assert move.population.tolist() == pytest.approx([0.4, 0.1, 0.4, 0.1])
    queries = model.embed(SEARCHED, "joint")
    misses = [(move.expected(queries, strength) - move.shares).abs().max() for strength in (0.0, 1.0)]
    assert misses[1] < misses[0] / 3


@refused(
    ({"method": "orth"}, "method: expected one of equalise, cali, got 'orth'"),
    ({"shares": "uniform"}, "shares: expected shares, None for uniform or 'own', got 'uniform'"),
    ({"shares": {"male": 1.0}}, r"shares: expected one for each of \['male', 'female'\], got \['male'\]"),
)
def test_refusals_on_a_model(world: tuple[Host, Tensor, Tensor], options: dict[str, Any]) -> None:
    model, features, _ = world
    fit_shares(model, GENDER, **{"reference": features, "top": 0.1} | options)
