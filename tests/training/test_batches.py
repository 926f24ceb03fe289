"""Test that micro-batches only depend on their number, even with workers and broken images."""

import functools
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_parts import (
    Stream,
    caption,
    equal_batches,
    image_data,
    jittered,
    number_of,
    pairs_of,
    plain,
    take,
    tokenize,
)

from vldebias.errors import VldebiasWarning
from vldebias.training.batches import MapBatches, StreamBatches
from vldebias.training.sampling import Sampler, numpy_generator, torch_generator

N = 23
PER_EPOCH = 5
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 7), st.integers(1, 4)).filter(
    lambda s: s[0] >= s[1] * s[2]
)
# This warning is issued on machines with fewer cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def mapped(broken: tuple[int, ...] = (), **options: Any) -> MapBatches:
    pairs = pairs_of(image_data(N, broken=broken), label="kind")
    how: dict[str, Any] = {
        "augment": jittered,
        "batch_size": 4,
        "tokenize": tokenize,
        "seed": 1,
        **options,
    }
    return MapBatches(pairs, **how)


def streamed(stream: Stream | None = None, **options: Any) -> StreamBatches:
    defaults: dict[str, Any] = {
        "batch_size": 4,
        "tokenize": tokenize,
        "seed": 1,
        "buffer": 6,
        "label": "kind",
    }
    return StreamBatches(
        stream or Stream(N), options.pop("augment", jittered), **{**defaults, **options}
    )


BOTH: dict[str, Callable[..., Any]] = {"pairs": mapped, "stream": streamed}


@given(SIZES, st.integers(0, 30))
def test_processes_divide_the_joint_batch_and_spares_come_from_other_batches(
    sizes: tuple[int, int, int], number: int
) -> None:
    items, batch, world = sizes
    alone = Sampler(items, batch * world, seed=1, rank=0, world=1)
    shares = [Sampler(items, batch, seed=1, rank=r, world=world) for r in range(world)]
    joined = np.concatenate([share.rows(number) for share in shares])
    assert joined.tolist() == alone.rows(number).tolist()
    assert {share.per_epoch for share in shares} == {alone.per_epoch} == {items // (batch * world)}
    spares = list(chain(*(share.spares(number) for share in shares)))
    assert sorted([*spares, *joined]) == list(range(items)), "each row once"


@given(SIZES)
def test_batches_follow_the_order_of_the_epoch_and_omit_an_incomplete_batch(
    sizes: tuple[int, int, int],
) -> None:
    items, batch, world = sizes
    sampler = Sampler(items, batch * world, seed=2, rank=0, world=1)
    for epoch in (0, 3):
        assert sorted(Sampler.order(items, 2, epoch)) == list(range(items))
        assert not Sampler.order(items, 2, epoch).flags.writeable, "the incomplete batch is kept"
        numbers = range(epoch * sampler.per_epoch, (epoch + 1) * sampler.per_epoch)
        assert {sampler.epoch(number) for number in numbers} == {epoch}
        rows = np.concatenate([sampler.rows(number) for number in numbers])
        assert (
            rows.tolist()
            == Sampler.order(items, 2, epoch)[: sampler.per_epoch * batch * world].tolist()
        )


def test_generators_differ_by_purpose_and_position() -> None:
    places = [
        ("a", 0, 1),
        ("a", 1, 0),
        ("b", 0, 1),
        ("a", 0),
        ("a", 0, 1, 0),
        ("a", 2**32, 0),
        ("a", 0, 0),
    ]
    assert len({float(numpy_generator(*place).random()) for place in places}) == len(places)
    assert len(
        {float(torch.rand((), generator=torch_generator(*place))) for place in places}
    ) == len(places)
    assert torch_generator("a", 5).initial_seed() == torch_generator("a", 5).initial_seed()


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.integers(1, 30), st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3)
)
def test_every_row_of_a_stream_is_read_once_per_epoch_by_one_process(
    n: int, buffer: int, shards: int, world: int, seed: int
) -> None:
    shards = max(min(shards, n), world)
    n = max(n, shards)
    rows_read = []
    places = set[int]()
    for rank in range(world):
        stream = Stream(n, shards=shards)
        rows_of_shards = [n // shards] * (shards - 1) + [n - (shards - 1) * (n // shards)]
        process_rows = sum(rows_of_shards[rank::world])
        source = streamed(
            stream, batch_size=1, buffer=buffer, seed=seed, rank=rank, world=world, augment=plain
        )
        batches = take(source, 0, process_rows)
        rows_read += numbers(batches)
        places |= {int(batch.index) for batch in batches}
        assert stream.passed == len(stream.decoded) == process_rows, (
            "no process reads rows from another process's shards"
        )
    assert sorted(rows_read) == list(range(n))
    assert len(places) == n, "every row has a unique number"


def numbers(batches: list[Any]) -> list[int]:
    """Return the rows of the entire stream, from any shard."""
    return [number_of(image) for image in chain(*(batch.images for batch in batches))]


def test_with_fewer_shards_than_processes_rows_are_distributed() -> None:
    streams = [Stream(N, shards=2) for _ in range(3)]
    make = functools.partial(streamed, batch_size=1, augment=plain, world=3)
    with pytest.warns(VldebiasWarning, match="2 shards for 3 processes"):
        sources = [make(streams[0], rank=0)]
    sources += [make(streams[rank], rank=rank) for rank in (1, 2)]  # a single process reports it
    process_rows = [
        [n for shard in (range(11), range(11, N)) for n in shard if (n - shard[0]) % 3 == rank]
        for rank in range(3)
    ]
    for source, rows in zip(sources, process_rows, strict=True):
        assert sorted(numbers(take(source, 0, len(rows)))) == rows


def test_a_stream_shuffles_blocks_uniformly_and_shards_in_every_epoch() -> None:
    first = Counter(
        take(streamed(Stream(5), batch_size=1, seed=seed), 0, 1)[0].index.item()
        for seed in range(600)
    )
    # Each of 5 rows comes first for about 120 of 600 seeds, to within four standard deviations.
    assert max(abs(first[k] - 120) for k in range(5)) < 4 * (600 * 0.2 * 0.8) ** 0.5
    source = streamed(Stream(24, shards=6), batch_size=4, buffer=4, augment=plain)
    passes = [
        tuple(number // 4 for number in numbers(take(source, start, 6))) for start in (0, 6, 12)
    ]
    assert all(sorted(shards) == [k for k in range(6) for _ in range(4)] for shards in passes)
    assert len(set(passes)) == 3


@pytest.mark.parametrize("kind", BOTH)
def test_a_batch_contains_rows_of_the_data(kind: str) -> None:
    source = BOTH[kind](
        augment=lambda image, generator: torch.cat(
            [plain(image)[:2], jittered(image, generator)[2:]]
        )
    )
    assert (source.items, source.per_epoch) == ((N, PER_EPOCH) if kind == "pairs" else (None, None))
    epochs = []
    for epoch, first in enumerate((0, PER_EPOCH)):
        seen = []
        for batch in take(source, first, PER_EPOCH):
            rows = batch.index.tolist()
            assert [number_of(image) for image in batch.images] == rows
            assert batch.texts["input_ids"].tolist() == [[row, len(caption(row))] for row in rows]
            assert batch.labels.tolist() == [row % 3 for row in rows]
            assert batch.views is None
            draws = [
                torch.rand(3, generator=torch_generator("augmentation", 1, epoch, row, 0))[2]
                for row in rows
            ]
            assert (batch.images[:, 2, 0, 0] - 7 / 255).tolist() == pytest.approx(
                [float(draw) for draw in draws]
            )
            seen += rows
        assert len(set(seen)) == 20
        epochs.append(seen)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("two_views", [False, True])
def test_batches_depend_on_their_number_and_not_on_the_workers(kind: str, two_views: bool) -> None:
    make = functools.partial(BOTH[kind], **({"tokenize": None} if two_views else {}))
    expected = take(make(), 0, 3 * PER_EPOCH)
    for workers, first in ((0, 3), (1, 0), (2, 2 * PER_EPOCH + 1)):
        state = torch.random.get_rng_state()
        batches = take(make(workers=workers), first, 3)
        assert all(
            equal_batches(batch, original)
            for batch, original in zip(batches, expected[first : first + 3], strict=True)
        )
        assert torch.equal(state, torch.random.get_rng_state()), (
            "the loop's own randomness is left unchanged"
        )


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("two_views", [False, True])
def test_further_views_are_different_augmentations_of_the_same_images(
    kind: str, two_views: bool
) -> None:
    make = functools.partial(BOTH[kind], **({"tokenize": None} if two_views else {}))
    single_view = take(make(), 0, 2)
    batches = make()
    batches.more_views = 2
    for plain_batch, batch in zip(single_view, take(batches, 0, 2), strict=True):
        assert torch.equal(batch.images, plain_batch.images)
        assert torch.equal(batch.index, plain_batch.index)
        assert two_views == (batch.views is not None)
        views = [batch.images]
        if batch.views is not None:
            assert torch.equal(batch.views, plain_batch.views)
            views.append(batch.views)
        views += batch.more_views.unbind(1)
        for place, row in enumerate(batch.index.tolist()):
            pixels = []
            for number, view in enumerate(views):
                generator = torch_generator("augmentation", 1, 0, row, number)
                pixels.append(view[place] - torch.rand(3, 1, 1, generator=generator))
            torch.testing.assert_close(
                torch.stack(pixels), pixels[0].expand(len(views), -1, -1, -1)
            )


def test_resuming_does_not_decode_skipped_rows() -> None:
    stream = Stream(N)
    looks = list[int]()
    take(
        streamed(stream, augment=lambda image, _: looks.append(1) or plain(image)),
        3 * PER_EPOCH + 2,
        1,
    )
    assert len(stream.decoded) == len(looks) == 4


def test_workers_ignore_the_signals_of_a_scheduler() -> None:
    with closing(mapped(workers=1).starting(0)) as coming:
        batches = [next(coming)]
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(multiprocessing.active_children()[0].pid or 0, number)
        batches += islice(coming, PER_EPOCH)
    assert all(
        equal_batches(batch, original)
        for batch, original in zip(batches, take(mapped(), 0, PER_EPOCH + 1), strict=True)
    )


def test_two_views_of_a_stream_do_not_need_captions_unless_captions_are_contrasted() -> None:
    (batch,) = take(streamed(Stream(N, without_caption=range(N)), tokenize=None), 0, 1)
    assert not torch.equal(batch.images, batch.views)
    (batch,) = take(streamed(Stream(N, without_caption=(1, 4, 7)), batch_size=20), 0, 1)
    assert sorted(batch.index.tolist()) == [i for i in range(N) if i not in (1, 4, 7)]
    with pytest.raises(ValueError, match=f"lower batch_size {N + 1}"):
        take(streamed(Stream(N), batch_size=N + 1), 0, 1)


def test_an_image_with_several_captions_uses_a_different_one_in_each_epoch() -> None:
    """A caption ends in 100 times its image's number plus its own number, from 1 to 3."""
    further = tuple(tuple(f"also {100 * i + k}" for k in range(1, i % 3 + 1)) for i in range(N))
    data = replace(
        image_data(N), captions=tuple(f"first {100 * i}" for i in range(N)), more_captions=further
    )
    source = MapBatches(pairs_of(data), plain, batch_size=N, tokenize=tokenize, seed=1)
    turns_of_row: dict[int, list[int]] = {}
    for batch in take(source, 0, 6):
        for row, number in zip(
            batch.index.tolist(), batch.texts["input_ids"][:, 0].tolist(), strict=True
        ):
            assert number // 100 == row
            turns_of_row.setdefault(row, []).append(number % 100)
    for row, turns in turns_of_row.items():
        count = row % 3 + 1
        assert sorted(turns[:count]) == list(range(count)), "each caption once in as many epochs"
        assert turns == (turns[:count] * 6)[:6]
    assert len({turns[0] for row, turns in turns_of_row.items() if row % 3 == 2}) > 1, (
        "not all start with the first caption"
    )


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_row_is_replaced(kind: str, workers: int) -> None:
    broken = (2, 5, 11)
    make = BOTH[kind]
    options: Any = {"broken": broken} if kind == "pairs" else {"stream": Stream(N, broken=broken)}
    source = make(**options, augment=plain, workers=workers)
    with pytest.warns(VldebiasWarning, match=r"replaced so far: 1\)") as warned:
        batches = take(source, 0, 4 * PER_EPOCH)
    replaced = 0
    assert len(warned) == 1, "then the tenth and the hundredth"
    assert source.unreadable == {f"id{i}": f"broken {i}" for i in broken}
    for batch, original in zip(batches, take(make(augment=plain), 0, 4 * PER_EPOCH), strict=True):
        rows = batch.index.tolist()
        assert (
            [number_of(image) for image in batch.images]
            == batch.texts["input_ids"][:, 0].tolist()
            == rows
        )
        assert not set(rows) & set(broken)
        moved = batch.index != original.index
        assert set(original.index[moved].tolist()) <= set(broken)
        assert kind == "stream" or len(set(rows)) == len(rows), "at most once in a batch"
        replaced += int(moved.sum())
    assert replaced > 5
