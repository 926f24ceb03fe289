"""Micro-batches are functions of their number, disjoint between processes, and add up to those of one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.training.sampling import Sampler, balanced_order, epoch_order, numpy_generator, torch_generator

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 7), st.integers(1, 4)).filter(lambda s: s[0] >= s[1] * s[2])


@given(st.integers(0, 200), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_has_every_row_once(items: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(items, seed, epoch)) == list(range(items))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert (epoch_order(50, 3, 2) == epoch_order(50, 3, 2)).all()


def test_first_places_are_uniform() -> None:
    first = np.bincount([epoch_order(5, seed, 0)[0] for seed in range(2000)], minlength=5)
    assert abs(first - 400).max() < 4 * (2000 * 0.2 * 0.8) ** 0.5


@given(SIZES, st.integers(0, 30))
def test_spares_are_of_other_batches_and_each_is_dealt_once(sizes: tuple[int, int, int], number: int) -> None:
    items, batch, world = sizes
    samplers = [Sampler(items, batch, seed=2, rank=rank, world=world) for rank in range(world)]
    dealt = [row for sampler in samplers for row in sampler.spares(number)]
    assert sorted([*dealt, *samplers[0].joint(number)]) == list(range(items))


@given(SIZES, st.integers(0, 30))
def test_processes_share_the_batch_of_one(sizes: tuple[int, int, int], number: int) -> None:
    items, batch, world = sizes
    alone = Sampler(items, batch * world, seed=1, rank=0, world=1)
    shares = [Sampler(items, batch, seed=1, rank=r, world=world) for r in range(world)]
    joined = np.concatenate([share.rows(number) for share in shares])
    assert joined.tolist() == alone.rows(number).tolist() == shares[0].joint(number).tolist()
    assert len(set(joined)) == batch * world
    assert {share.per_epoch for share in shares} == {alone.per_epoch} == {items // (batch * world)}


@given(SIZES)
def test_batches_of_an_epoch_follow_its_order_and_leave_out_the_rest(sizes: tuple[int, int, int]) -> None:
    items, batch, world = sizes
    sampler = Sampler(items, batch, seed=2, rank=0, world=world)
    full = sampler.per_epoch * batch * world
    for epoch in (0, 3):
        numbers = range(epoch * sampler.per_epoch, (epoch + 1) * sampler.per_epoch)
        assert {sampler.epoch(number) for number in numbers} == {epoch}
        rows = np.concatenate([sampler.joint(number) for number in numbers])
        assert rows.tolist() == epoch_order(items, 2, epoch)[:full].tolist()


def test_a_batch_may_be_changed_without_changing_the_next_reading() -> None:
    sampler = Sampler(10, 5, seed=0, rank=0, world=1)
    before = sampler.rows(0).tolist()
    sampler.rows(0)[:] = 0
    assert sampler.rows(0).tolist() == before


def test_without_a_process_group_there_is_one_process() -> None:
    sampler = Sampler(10, 5)
    assert (sampler.rank, sampler.world, sampler.share) == (0, 1, slice(0, 5))


def test_what_does_not_fit_says_why() -> None:
    with pytest.raises(InvalidInputError, match=r"has 7 rows, fewer than the 8 of one batch \(4 per process, 2 proc"):
        Sampler(7, 4, rank=0, world=2)
    with pytest.raises(InvalidInputError, match="batch_size of at least 1 and rank < world, got 4, 2, 2"):
        Sampler(70, 4, rank=2, world=2)
    with pytest.raises(InvalidInputError, match="batch_size of at least 1"):
        Sampler(70, 0)
    with pytest.raises(InvalidInputError, match=r"order: expected a seed and places of at least 0, got \(-1, 0\)"):
        epoch_order(5, -1, 0)


def test_generators_differ_by_purpose_and_place() -> None:
    places = [("a", 0, 1), ("a", 1, 0), ("b", 0, 1), ("a", 0), ("a", 0, 1, 0), ("a", 2**32, 0), ("a", 0, 0)]
    assert len({float(numpy_generator(*place).random()) for place in places}) == len(places)
    assert len({float(torch.rand((), generator=torch_generator(*place))) for place in places}) == len(places)
    assert torch_generator("a", 5).initial_seed() == torch_generator("a", 5).initial_seed()


@given(
    st.lists(st.integers(-1, 2), min_size=40, max_size=80),
    st.integers(0, 5),
    st.integers(1, 2),
)
def test_balanced_batches_have_each_group_alike_often_and_no_row_twice(codes: list[int], seed: int, world: int) -> None:
    groups, each = np.array(codes), 6
    sizes = [codes.count(code) for code in set(codes) - {-1}]
    if len(sizes) < 2 or min(sizes) < -(-each // len(sizes)) + 1:
        with pytest.raises(InvalidInputError, match="balance: a batch of 6 takes up to"):
            Sampler(len(codes), each // world, seed, 0, world, groups=groups)
        return
    for number in range(3 * Sampler(len(codes), each, seed, groups=groups).per_epoch):
        ranks = [Sampler(len(codes), each // world, seed, r, world, groups=groups) for r in range(world)]
        rows = np.concatenate([one.rows(number) for one in ranks])
        assert len(set(rows.tolist())) == each
        counts = np.unique(groups[rows], return_counts=True)
        assert counts[0].min() >= 0
        assert counts[1].max() - counts[1].min() <= (0 if each % len(sizes) == 0 else 1)
        spares = [set(one.spares(number)) for one in ranks]
        assert not set.union(*spares) & set(rows.tolist())
        assert sum(map(len, spares)) == len(set.union(*spares))


def test_a_balanced_epoch_is_as_long_as_the_data_and_repeats_the_rare() -> None:
    groups = np.array([0] * 90 + [1] * 10)
    order = balanced_order(groups, 0, 0)
    assert np.bincount(groups[order]).tolist() == [50, 50]
    assert np.bincount(order, minlength=100)[90:].tolist() == [5] * 10
    assert np.bincount(order, minlength=100)[:90].max() == 1
    assert not np.array_equal(order, balanced_order(groups, 0, 1))
    assert np.array_equal(order, balanced_order(groups, 0, 0))
