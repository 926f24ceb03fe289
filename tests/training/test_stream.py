"""Batches of a stream: every row once an epoch, the same for any number of processes, from any number on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_parts import NAMES, Stream, caption, jittered, number_of, plain, same, take, tokenize

from tests.refusals import refused
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.batches import Batch
from vldebias.training.stream import StreamBatches

N, PER_EPOCH = 23, 5


def batches(stream: Stream | None = None, **options: Any) -> StreamBatches:
    defaults: dict[str, Any] = {"batch_size": 4, "tokenize": tokenize, "seed": 1, "buffer": 6, "label": "kind"}
    return StreamBatches(stream or Stream(N), options.pop("augment", jittered), **{**defaults, **options})


def rows_of(found: list[Batch]) -> list[int]:
    return torch.cat([batch.index for batch in found]).tolist()  # type: ignore[misc]


def numbers(found: list[Batch]) -> list[int]:
    """Which rows of the whole stream they are, in whichever shard."""
    return [number_of(image) for batch in found for image in batch.images]


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_every_row_is_read_once_a_pass_by_one_process(n: int, buffer: int, shards: int, world: int, seed: int) -> None:
    shards = max(min(shards, n), world)
    n = max(n, shards)
    found = []
    for rank in range(world):
        stream = Stream(n, shards=shards)
        size = n // shards
        own = sum(n - (shards - 1) * size if k == shards - 1 else size for k in range(rank, shards, world))
        source = batches(stream, batch_size=1, buffer=buffer, seed=seed, rank=rank, world=world, augment=plain)
        found += numbers(take(source, 0, own))
        assert stream.passed == len(stream.decoded) == own, "no row of another process's shards is looked at"
    assert sorted(found) == list(range(n))


def test_a_block_that_holds_all_shuffles_evenly() -> None:
    first = Counter(rows_of(take(batches(Stream(5), batch_size=1, seed=seed), 0, 1))[0] for seed in range(600))
    assert max(abs(first[k] - 120) for k in range(5)) < 4 * (600 * 0.2 * 0.8) ** 0.5


def test_shards_come_in_another_order_in_every_pass() -> None:
    source = batches(Stream(24, shards=6), batch_size=4, buffer=4, augment=plain)
    passes = [tuple(number // 4 for number in numbers(take(source, first, 6))) for first in (0, 6, 12)]
    assert all(sorted(shards) == [k for k in range(6) for _ in range(4)] for shards in passes)
    assert len(set(passes)) == 3


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_run_goes_on_at_a_place_without_reading_again(shards: int, workers: int, noise: float) -> None:
    options: dict[str, Any] = {"buffer": 5, "noise": noise, "workers": workers}
    source = batches(Stream(47, without_caption=(3, 30), shards=shards), **options)
    whole, places = [], []
    with closing(source.starting(0)) as coming:  # type: ignore[type-var]
        for number in range(26):
            places.append(source.place(number))
            whole.append(next(coming))
    for first in range(0, 24, 3):
        stream = Stream(47, without_caption=(3, 30), shards=shards)
        again = batches(stream, **options)
        with closing(again.starting(first, places[first])) as going:  # type: ignore[type-var]
            found = [next(going)]
            assert stream.passed <= 5 + 5 + 12 * (workers > 0) + 3, "a block or two, and what is read ahead"
            assert again.place(first + 1) == places[first + 1]
            found.append(next(going))
        assert all(same(here, there) for here, there in zip(found, whole[first:], strict=False))


def test_fewer_shards_than_processes_are_shared_row_by_row() -> None:
    streams = [Stream(N, shards=2) for _ in range(3)]
    with pytest.warns(VldebiasWarning, match="has 2 shards for 3 processes, so each reads all of them"):
        sources = [batches(s, batch_size=1, augment=plain, rank=rank, world=3) for rank, s in enumerate(streams)]
    own = [[n for shard in (range(11), range(11, N)) for n in shard if (n - shard[0]) % 3 == rank] for rank in range(3)]
    for source, rows in zip(sources, own, strict=True):
        assert sorted(numbers(take(source, 0, len(rows)))) == rows


def test_a_batch_is_rows_of_the_stream() -> None:
    source = batches(augment=plain)
    assert (source.items, source.per_epoch) == (None, None)
    found = take(source, 0, 2 * PER_EPOCH)
    for batch in found:
        assert batch.index is not None
        assert batch.labels is not None
        rows = batch.index.tolist()
        assert [number_of(image) for image in batch.images] == rows
        assert batch.texts["input_ids"].tolist() == [[row, len(caption(row))] for row in rows]
        assert batch.labels.tolist() == [row % 3 for row in rows]
    epochs = rows_of(found[:PER_EPOCH]), rows_of(found[PER_EPOCH:])
    assert [len(set(epoch)) for epoch in epochs] == [20, 20]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("two_views", [False, True])
def test_batches_are_functions_of_their_number(workers: int, two_views: bool) -> None:
    whole = take(batches(two_views=two_views, noise=0.5), 0, 4 * PER_EPOCH)
    for first in (0, 3, PER_EPOCH, 2 * PER_EPOCH + 1, 3 * PER_EPOCH + 2):
        found = take(batches(two_views=two_views, noise=0.5, workers=workers), first, 3)
        assert all(same(here, there) for here, there in zip(found, whole[first : first + 3], strict=True))
    again = batches(two_views=two_views, noise=0.5)
    take(again, 0, PER_EPOCH + 1)  # knows how long an epoch is
    assert all(same(a, b) for a, b in zip(take(again, 11, 3), whole[11:14], strict=True))


def test_going_on_decodes_nothing_that_is_passed_over() -> None:
    stream = Stream(N)
    take(batches(stream), 3 * PER_EPOCH + 2, 1)
    assert len(stream.decoded) == 4


def test_two_views_differ_and_have_no_texts() -> None:
    batch = take(batches(Stream(N, without_caption=range(N)), two_views=True), 0, 1)[0]
    assert batch.views is not None
    assert batch.texts == {}
    assert not torch.equal(batch.images, batch.views)


def test_rows_without_a_caption_are_passed_over() -> None:
    source = batches(Stream(N, without_caption=(1, 4, 7)), batch_size=20)
    assert sorted(rows_of(take(source, 0, 1))) == [i for i in range(N) if i not in (1, 4, 7)]


def test_captions_may_be_made_from_the_label() -> None:
    def of_class(captions: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[NAMES.index(text.removeprefix("a "))] for text in captions])}

    batch = take(batches(caption_template="a {}", tokenize=of_class), 0, 1)[0]
    assert batch.labels is not None
    assert batch.texts["input_ids"][:, 0].tolist() == batch.labels.tolist()


def test_noise_draws_captions_from_the_block_of_the_row_and_the_same_in_every_epoch() -> None:
    n, buffer = 600, 100
    source = batches(Stream(n), noise=0.6, buffer=buffer, batch_size=n, augment=plain)
    told = []
    for batch in take(source, 0, 2):
        assert batch.index is not None
        drawn = batch.texts["input_ids"][:, 0]
        assert (drawn // buffer == batch.index // buffer).all()
        told.append(dict(zip(batch.index.tolist(), drawn.tolist(), strict=True)))
    assert told[0] == told[1]
    blocks = {tuple(told[0][row] % buffer for row in range(first, first + buffer)) for first in range(0, n, buffer)}
    assert len(blocks) == n // buffer  # each has noise of its own
    wrong = sum(row != drawn for row, drawn in told[0].items())
    assert abs(wrong - n * 0.6 * 0.99) < 4 * (n * 0.6 * 0.4) ** 0.5
    other = take(batches(Stream(n), noise=0.6, buffer=buffer, batch_size=n, augment=plain, seed=2), 0, 1)[0]
    assert dict(zip(rows_of([other]), other.texts["input_ids"][:, 0].tolist(), strict=True)) != told[0]


def test_a_broken_image_stops_training_where_asked() -> None:
    with pytest.raises(InvalidInputError, match=r"the image of 'id5' cannot be read: broken 5\. Mend it"):
        take(batches(Stream(N, broken=(5,)), batch_size=20, on_error="raise"), 0, 2)


@pytest.mark.filterwarnings("ignore:stream. the image of")  # the first one is told at once
@pytest.mark.parametrize("workers", [0, 2])
def test_another_row_of_the_batch_takes_the_place_of_a_broken_one(workers: int) -> None:
    broken = (2, 5, 11)
    source = batches(Stream(N, broken=broken), augment=plain, workers=workers)
    with pytest.warns(VldebiasWarning, match="stream: 3 images could not be read and were replaced, such as id"):
        found = take(source, 0, 2 * PER_EPOCH)
    assert set(source.unreadable.reasons) == {f"id{i}" for i in broken}
    for batch, original in zip(found, take(batches(augment=plain), 0, 2 * PER_EPOCH), strict=True):
        assert batch.index is not None
        assert original.index is not None
        assert [number_of(image) for image in batch.images] == batch.index.tolist()
        assert not set(batch.index.tolist()) & set(broken)
        assert set(batch.index.tolist()) <= set(original.index.tolist())


@refused(
    (lambda: take(batches(batch_size=24), 0, 1), "has 23 rows for this process, fewer than the 24 of a batch"),
    (lambda: take(batches(Stream(N, without_caption=range(N))), 0, 1), r"no row of the stream has a caption\. Name"),
    (lambda: batches(label="race"), r"the classes of 'race' must be known .* Known are \['kind'\]"),
    (lambda: batches(tokenize=None), "expected tokenize, or two_views=True"),
    (lambda: batches(label=None, caption_template="a {}"), "caption_template needs label"),
    (lambda: batches(rank=1, world=1), "rank < world, got 4, 6, 1, 1"),
    (lambda: batches(buffer=0), "batch_size and buffer of at least 1"),
    (lambda: batches(noise=2), r"eta: expected a noise rate in \[0, 1\], got 2"),
)
def test_what_does_not_fit_says_why(call: Callable[[], object]) -> None:
    call()
