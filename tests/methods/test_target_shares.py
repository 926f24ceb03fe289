"""Target shares: moments of groups, the closed form with targets, rankings with given shares, and refusals."""

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
from vldebias.methods.reference import Reference
from vldebias.methods.target_shares import GroupMoments, TargetShares
from vldebias.projection import PairScatter
from vldebias.prompts import load_prompts

DIM = 12
EYE = torch.eye(DIM, dtype=torch.float64)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def crowd(n: int, seed: int, shares: tuple[float, ...] = (0.5, 0.5), noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Unit images (n, d) and their groups (n,); group g leans to axis g, all lean to axis DIM - 1."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=draw)
    return normalize(EYE[group] + EYE[-1] + noise * normal(n, DIM, seed=seed + 1), dim=1), group


def moments(images: Tensor, groups: int = 2, size: int = 10_000, **options: Any) -> GroupMoments:
    found = GroupMoments([EYE[:groups]], [f"g{i}" for i in range(groups)], Reference(None, **options))
    for batch in images.split(size):
        found.update(batch)
    return found


# --- moments of zero-shot groups


@pytest.mark.parametrize("size", [7, 10_000])
@pytest.mark.parametrize("confidence", [0.0, 0.9])
def test_moments_are_those_of_the_pseudo_groups(size: int, confidence: float) -> None:
    images, _ = crowd(300, seed=0, noise=0.5)
    found = moments(images, size=size, confidence=confidence, logit_scale=5.0)
    probability = (5.0 * images @ EYE[:2].T).softmax(1)
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
    first, second = (torch.stack([EYE[own].sum(0) for own in pair]) for pair in (([0, 1], [2, 3]), ([0, 2], [1, 3])))
    found = GroupMoments([first, second], ["a/c", "a/d", "b/c", "b/d"], Reference(None))
    found.update(images)
    assert torch.equal(found.seen.long(), group.bincount(minlength=4))


# --- the closed form with a target


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), groups=st.integers(2, 4), pairs=st.booleans(), lam=st.floats(0.1, 1e4))
def test_a_query_minimises_its_move_plus_the_weighted_misses(seed: int, groups: int, pairs: bool, lam: float) -> None:
    found = moments(crowd(400, seed, shares=(1 / groups,) * groups)[0], groups=groups)
    texts = [PairScatter.from_pairs(normal(4, 2, DIM, seed=seed + 2))] if pairs else []
    shares = normal(groups, seed=seed + 3).softmax(0)
    edit = TargetShares.fit(found, shares.tolist(), top=0.01, lam=lam, texts=texts)
    unit = normalize(normal(DIM, seed=seed + 4), dim=0)
    (targets,), left, right = edit.offsets(unit[None]), EYE.clone(), unit.clone()
    couples = [(i, j) for i in range(groups) for j in range(i + 1, groups)]
    precision = [found.counts[i] * found.counts[j] / (found.counts[i] + found.counts[j]) for i, j in couples]
    for (i, j), p, target in zip(couples, precision, targets, strict=True):
        difference, weight = found.means[i] - found.means[j], lam * p / sum(precision)
        left += weight * torch.outer(difference, difference)
        right += weight * target * difference
    left += lam * sum((s.rows.T @ s.rows / s.count for s in texts), torch.zeros(DIM, DIM, dtype=torch.float64))
    torch.testing.assert_close(edit(unit), torch.linalg.solve(left, right))


# --- shares among the first results


def shares_at(queries: Tensor, images: Tensor, group: Tensor, top: float, groups: int = 2) -> Tensor:
    """(q, g) shares of the true groups among the first results."""
    best = (queries @ images.T).topk(round(top * len(images)), dim=1).indices
    return torch.stack([(group[best] == g).double().mean(1) for g in range(groups)], dim=1)


QUERIES = normalize(normal(6, DIM, seed=99) + 2 * EYE[-1], dim=1)


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


def test_the_shares_of_all_images_are_plain_equalising() -> None:
    """Of two groups that are mirror images: as many, and spread alike under every query without a side."""
    images, _ = crowd(400, seed=6)
    mirrored = moments(torch.cat([images, images[:, [1, 0, *range(2, DIM)]]]))
    found = TargetShares.fit(mirrored, None, top=0.1)
    between = QUERIES.clone()
    between[:, :2] = between[:, :2].mean(1, keepdim=True)
    torch.testing.assert_close(found.shares, torch.tensor([0.5, 0.5]).double())
    assert found.offsets(between).abs().max() < 1e-12
    torch.testing.assert_close(found(between), found.plain(between))
    assert TargetShares.fit(mirrored, (0.6, 0.4), top=0.1).offsets(between).min() > 1e-3


def test_a_gallery_of_another_composition() -> None:
    """Fitted on halves, ranked where one group is rare: only with its population the shares come out."""
    images, _ = crowd(10_000, seed=7)
    gallery, group = crowd(10_000, seed=8, shares=(0.9, 0.1))
    misses = []
    for population in ((0.9, 0.1), None):
        edit = TargetShares.fit(moments(images), (0.5, 0.5), top=0.05, population=population)
        misses.append(float((shares_at(edit(QUERIES), gallery, group, 0.05) - 0.5).abs().mean()))
    assert misses[0] < 0.1
    assert misses[1] > 0.35


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_lengths_pass_through_and_shape_and_dtype_are_kept(dtype: torch.dtype) -> None:
    found = TargetShares.fit(moments(crowd(400, seed=9)[0]), (0.3, 0.7), top=0.1)
    moved, given = found(QUERIES), QUERIES.to(dtype)
    for factor in (0.1, 30.0):  # the ranking does not depend on the length of a query
        torch.testing.assert_close(found(factor * QUERIES), factor * moved)
    torch.testing.assert_close(found(QUERIES[0]), moved[0])
    torch.testing.assert_close(found(QUERIES.reshape(2, 3, DIM)), moved.reshape(2, 3, DIM))
    torch.testing.assert_close(found(QUERIES, 0.5), (QUERIES + moved) / 2)
    assert found(given).dtype == dtype
    torch.testing.assert_close(found(given).double(), moved, rtol=0.02, atol=0.02)
    assert found(given, 0.0) is given
    array = found(QUERIES.numpy().astype(np.float32))
    assert array.dtype == np.float32
    np.testing.assert_allclose(array, moved.numpy(), atol=1e-5)


LOPSIDED, PLAIN = crowd(1000, seed=0, shares=(0.9, 0.1))[0], crowd(100, seed=0)[0]


@refused(
    *((PLAIN, (0.5, 0.5), {"top": top}, "top") for top in (0.0, 1.0, -0.1)),
    (LOPSIDED, (0.2, 0.8), {"top": 0.3}, r"too few images of \['g1'\]"),
    *((PLAIN, shares, {}, r"positive share for each of \['g0', 'g1'\]") for shares in ((1.0, 0.0), (1.0,), (0.5, 0.4))),
    (PLAIN, (0.5, 0.5), {"lam": 0.0}, "lam above 0"),
    (PLAIN[(PLAIN @ EYE[:2].T).argmax(1) == 1], (0.5, 0.5), {}, r"at least 10 images of every group, got \{'g0': 0"),
    (torch.ones(3, DIM + 1).double(), (0.5, 0.5), {}, "width 13, texts 12"),
)
def test_shares_that_cannot_be_had_are_refused(images: Tensor, shares: tuple[float, ...], how: dict[str, Any]) -> None:
    TargetShares.fit(moments(images), shares, **{"top": 0.1} | how)


def test_every_image_of_a_group_is_the_most_there_is() -> None:
    found = moments(LOPSIDED)
    most = float(found.shares[1]) / 0.3  # of the first 30 % with every image of the group
    TargetShares.fit(found, (1.01 - most, most - 0.01), top=0.3)
    with pytest.raises(InvalidInputError, match="too few images"):
        TargetShares.fit(found, (0.99 - most, most + 0.01), top=0.3)


@pytest.mark.parametrize("queries", [torch.ones(2, DIM + 1), torch.ones(2, DIM, dtype=torch.int64)])
def test_queries_of_another_kind_are_refused(queries: Tensor) -> None:
    with pytest.raises(InvalidInputError, match=r"queries \(..., 12\)"):
        TargetShares.fit(moments(PLAIN), (0.5, 0.5), top=0.1)(queries)


# --- from a prompt set, on a model

GENDER = few(load_prompts("gender"))
SEARCHED = ["A photo of a firefighter.", "A photo of a nurse.", "A photo of a pilot.", "A photo of a clerk."]


@pytest.fixture(scope="module")
def world(portraits: Any) -> tuple[Host, Tensor, Tensor]:
    """A model that embeds a prompt once, features of portraits, and their gender."""
    model, tokenizer, features, gender = portraits(600, seed=31, balanced=True)
    return resolve(model, tokenizer=tokenizer), normalize(features, dim=1), gender


def test_shares_of_portraits(world: tuple[Host, Tensor, Tensor]) -> None:
    """Shares of the zero-shot values, which is all that is known; the true ones lag as far as those are wrong."""
    model, features, gender = world
    read = (features @ model.embed(["A photo of a male.", "A photo of a female."], "joint").T.float()).argmax(1)
    queries, found = model.embed(SEARCHED, "joint").float(), {}
    for share in (0.2, 0.8):
        move = fit_shares(model, GENDER, {"male": share, "female": 1 - share}, reference=features, top=0.1)
        found[share] = [float(shares_at(move(queries), features, g, 0.1)[:, 0].mean()) for g in (read, gender)]
        assert found[share][0] == pytest.approx(share, abs=0.12)
    assert found[0.8][1] > found[0.2][1] + 0.3


def test_uniform_and_own_shares_and_pairs_of_prompts(world: tuple[Host, Tensor, Tensor]) -> None:
    model, features, _ = world
    options = {"reference": features, "top": 0.1}
    uniform, own = fit_shares(model, GENDER, **options), fit_shares(model, GENDER, "own", **options)
    assert uniform.shares.tolist() == [0.5, 0.5]
    assert torch.equal(own.shares, own.population)
    assert uniform.names == own.names == ("male", "female")
    assert uniform.plain.rank == 1
    assert fit_shares(model, GENDER, method="cali", **options).plain.rank > 1


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
    ({"method": "orth"}, "equalise, cali, got 'orth'"),
    ({"shares": "uniform"}, "'own', got 'uniform'"),
    ({"shares": {"male": 1.0}}, r"\['male', 'female'\], got \['male'\]"),
    ({"shares": {"male": 0.8, "female": 0.4}}, "sum 1.2"),
    ({"shares": [None, None]}, "1 attributes"),
)
def test_refusals_on_a_model(world: tuple[Host, Tensor, Tensor], options: dict[str, Any]) -> None:
    model, features, _ = world
    fit_shares(model, GENDER, **{"reference": features, "top": 0.1} | options)
