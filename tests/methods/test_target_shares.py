"""Test target shares: the closed form with targets, rankings with the requested shares, and invalid
inputs."""

from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from tests.fewer import few
from tests.methods.made import normal
from tests.refusals import refused
from vldebias.api import fit_shares
from vldebias.hosts import Host, TextTable, resolve
from vldebias.methods.target_shares import TargetShares
from vldebias.prompts import PromptSet, load_prompts

DIM = 12
EYE = torch.eye(DIM, dtype=torch.float64)


def crowd(
    n: int, seed: int, shares: tuple[float, ...] = (0.5, 0.5), noise: float = 0.25
) -> tuple[Tensor, Tensor]:
    """Return unit images (n, d) and their groups (n,). Group g leans towards axis g, and all groups
    lean towards axis DIM - 1."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=draw)
    return normalize(EYE[group] + EYE[-1] + noise * normal(n, DIM, seed=seed + 1), dim=1), group


def fit(images: Any, shares: Any = None, groups: int = 2, **how: Any) -> TargetShares:
    """Fit the edit for groups "g0", "g1", ..., whose texts are the axes."""
    names = [f"g{i}" for i in range(groups)]
    prompts = PromptSet(
        "groups",
        variants=(tuple(names),),
        spurious=tuple(names),
        attributes={n: (n,) for n in names},
    )
    wanted = None if shares is None else dict(zip(names, shares, strict=False))
    table = TextTable(dict(zip(names, EYE, strict=False)))
    return fit_shares(table, prompts, wanted, reference=images, **{"fraction": 0.1} | how)


def test_covariances_belong_to_the_pseudo_groups() -> None:
    images, _ = crowd(300, seed=0, noise=0.5)
    edit = fit(list(images.split(7)))
    value = (images @ EYE[:2].T).argmax(1)
    assert edit.lam == 1000.0
    for g in (0, 1):
        torch.testing.assert_close(
            edit.covariances[g], torch.cov(images[value == g].T, correction=0)
        )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), groups=st.integers(2, 4), lam=st.floats(0.1, 1e4))
def test_a_query_minimises_its_change_plus_the_weighted_misses(
    seed: int, groups: int, lam: float
) -> None:
    """The targets follow from the variances under the edited query."""
    images, _ = crowd(400, seed, shares=(1 / groups,) * groups)
    shares = normal(groups, seed=seed + 3).softmax(0)
    edit = fit(images, shares.tolist(), groups, fraction=0.01, lam=lam)
    value = (images @ EYE[:groups].T).argmax(1)
    parts = [images[value == g] for g in range(groups)]
    unit = normalize(normal(DIM, seed=seed + 4), dim=0)
    moved = edit(unit)
    system = EYE.clone()
    right = unit.clone()
    quantile = torch.distributions.Normal(0.0, 1.0).icdf
    wanted = [
        -float(
            (members @ moved).std(correction=0)
            * quantile(1 - s * 0.01 * len(images) / len(members))
        )
        for members, s in zip(parts, shares, strict=True)
    ]
    couples = list(combinations(range(groups), 2))
    precision = [
        len(parts[i]) * len(parts[j]) / (len(parts[i]) + len(parts[j])) for i, j in couples
    ]
    for (i, j), p in zip(couples, precision, strict=True):
        difference = parts[i].mean(0) - parts[j].mean(0)
        weight = lam * p / sum(precision)
        system += weight * torch.outer(difference, difference)
        right += weight * (wanted[i] - wanted[j]) * difference
    torch.testing.assert_close(moved, torch.linalg.solve(system, right), atol=1e-4, rtol=1e-3)


def shares_at(
    queries: Tensor, images: Tensor, group: Tensor, fraction: float, groups: int = 2
) -> Tensor:
    """Return (q, g) shares of the true groups among the first results."""
    best = (queries @ images.T).topk(round(fraction * len(images)), dim=1).indices
    return torch.stack([(group[best] == g).double().mean(1) for g in range(groups)], dim=1)


QUERIES = normalize(normal(6, DIM, seed=99) + 2 * EYE[-1], dim=1)


@pytest.mark.parametrize("wanted", [(0.5, 0.5), (0.2, 0.8), (0.85, 0.15)])
def test_two_groups_reach_their_shares_on_held_out_images(wanted: tuple[float, ...]) -> None:
    images, group = crowd(20_000, seed=3, shares=(0.6, 0.4))
    edit = fit(images[:10_000], wanted)
    held_out = images[10_000:]
    group = group[10_000:]
    before = shares_at(QUERIES, held_out, group, 0.1)
    after = shares_at(edit(QUERIES), held_out, group, 0.1)
    assert (before - torch.tensor(wanted)).abs().max() > 0.3, (
        "the queries must lean, otherwise the test shows nothing"
    )
    # Images on a sphere are not quite normal.
    assert (after - torch.tensor(wanted)).abs().max() < 0.08
    assert (after.mean(0) - torch.tensor(wanted)).abs().max() < 0.05


def test_targets_equal_to_the_overall_shares_give_the_same_edit_as_equalise() -> None:
    """The edits are equal for two groups that mirror each other, with equal sizes and equal
    variances under neutral queries."""
    images, _ = crowd(400, seed=6)
    mirrored = torch.cat([images, images[:, [1, 0, *range(2, DIM)]]])
    between = QUERIES.clone()
    between[:, :2] = between[:, :2].mean(1, keepdim=True)
    edit = fit(mirrored)
    torch.testing.assert_close(edit(between), between @ edit.plain.T)
    assert (fit(mirrored, (0.6, 0.4))(between) - edit(between)).norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_length_shape_and_dtype_are_preserved(dtype: torch.dtype) -> None:
    edit = fit(crowd(20, seed=7)[0], (0.3, 0.7))  # ten images per group are enough
    moved = edit(QUERIES)
    queries = QUERIES.to(dtype)
    for factor in (0.01, 30.0):  # the ranking does not depend on the length of the query
        torch.testing.assert_close(edit(factor * QUERIES), factor * moved)
    torch.testing.assert_close(edit(QUERIES[0]), moved[0])
    torch.testing.assert_close(edit(QUERIES.reshape(2, 3, DIM)), moved.reshape(2, 3, DIM))
    torch.testing.assert_close(edit(QUERIES, 0.5), (QUERIES + moved) / 2)
    assert edit(queries).dtype == dtype
    torch.testing.assert_close(edit(queries).double(), moved, rtol=0.02, atol=0.02)
    assert edit(queries, 0.0) is queries


LOPSIDED = crowd(1000, seed=0, shares=(0.9, 0.1))[0]
PLAIN = crowd(100, seed=0)[0]


@refused(
    *((PLAIN, (0.5, 0.5), {"fraction": fraction}, r"in \(0, 1\)") for fraction in (0.0, 1.0, -0.1)),
    (LOPSIDED, (0.2, 0.8), {"fraction": 0.3}, r"too few images of \['g1'\]"),
    *((PLAIN, shares, {}, "positive numbers that sum to 1") for shares in ((1.0, 0.0), (0.5, 0.4))),
    (PLAIN, (1.0,), {}, r"one for each of \['g0', 'g1'\], got \{'g0'"),
    (PLAIN, (0.5, 0.5), {"lam": 0.0}, "a single lam above 0"),
    (PLAIN, (0.5, 0.5), {"lam": [10.0, 10.0]}, r"one per prompt set \(1\), got \(10.0, 10.0\)"),
    (PLAIN[(PLAIN @ EYE[:2].T).argmax(1) == 1], (0.5, 0.5), {}, r"every group, got \{'g0': 0"),
    (torch.ones(3, DIM + 1).double(), (0.5, 0.5), {}, "width 13, but text embeddings have 12"),
)
def test_unreachable_shares_are_rejected(
    images: Tensor, shares: tuple[float, ...], how: dict[str, Any]
) -> None:
    fit(images, shares, **how)


GENDER = few(load_prompts("gender"))
SEARCHED = [
    "A photo of a firefighter.",
    "A photo of a nurse.",
    "A photo of a pilot.",
    "A photo of a clerk.",
]


@pytest.fixture(scope="module")
def world(portraits: Any) -> tuple[Host, Tensor, Tensor]:
    """Return a model that embeds each prompt once, features of portraits, and their gender."""
    model, tokenizer, features, gender = portraits(600, seed=31, balanced=True)
    return resolve(model, tokenizer=tokenizer), normalize(features, dim=1), gender


def test_target_shares_are_reached_on_portraits(world: tuple[Host, Tensor, Tensor]) -> None:
    """Shares of zero-shot values are exact. Shares of true values inherit the zero-shot errors."""
    model, features, gender = world
    read = (
        features @ model.embed(["A photo of a male.", "A photo of a female."], "text").T.float()
    ).argmax(1)
    queries = model.embed(SEARCHED, "text").float()
    shares_of_target = {}
    for share in (0.2, 0.8):
        move = fit_shares(
            model, GENDER, {"male": share, "female": 1 - share}, reference=features, fraction=0.1
        )
        shares_of_target[share] = [
            float(shares_at(move(queries), features, g, 0.1)[:, 0].mean()) for g in (read, gender)
        ]
        assert shares_of_target[share][0] == pytest.approx(share, abs=0.12)
    assert shares_of_target[0.8][1] > shares_of_target[0.2][1] + 0.3


def test_combinations_of_two_attributes_reach_their_shares(
    world: tuple[Host, Tensor, Tensor],
) -> None:
    model, features, _ = world
    sets = [GENDER, few(load_prompts("age"))]
    shares = {"male/young": 0.4, "male/old": 0.1, "female/young": 0.4, "female/old": 0.1}
    move = fit_shares(model, sets, shares, reference=features, fraction=0.02)
    assert (tuple(move.shares), move.shares) == (tuple(shares), shares)
