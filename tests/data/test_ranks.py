"""Many processes share a data set or a stream: lost, restarted and doubled ranks end in the bytes of one process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embed_parts import Counting, Stream, contents, embed, make_data, naive, shards
from ranks import Launch, launch

from vldebias.data import Record

__all__ = ["launch"]  # a fixture
Started = Callable[..., list[Launch]]
N = 140
HOW: dict[str, Any] = {"shard_size": 4, "batch_size": 3, "workers": 0}


@pytest.mark.parametrize("world", [12, pytest.param(64, marks=pytest.mark.slow)])
def test_ranks_lost_restarted_and_twice_end_in_the_same_bytes(tmp_path: Path, launch: Started, world: int) -> None:
    """Three launches lose some of their ranks; at the end two launches run at once in the same folder."""
    rng = np.random.default_rng(0)
    embed(make_data(N, {5, 90}), Counting(), tmp_path / "alone", **HOW)
    folder, done = tmp_path / "many", [0]
    for lost in (world // 7, 1, world // 2):
        stops = dict(zip(rng.permutation(world)[:lost].tolist(), rng.integers(0, 3, lost).tolist(), strict=True))
        (one,) = launch([world], lambda _, rank, stops=stops: work(folder, stops.get(rank)))
        killed = [rank for rank, error in one.errors.items() if isinstance(error, KeyboardInterrupt)]
        assert set(killed) <= set(stops)
        done.append(len(shards(folder)))
    assert done == sorted(done)
    assert done[1] < len(shards(tmp_path / "alone"))
    ended = launch([world, 3], lambda _, rank: work(folder, None))
    assert [one.errors for one in ended] == [{}, {}]
    assert contents(folder) == contents(tmp_path / "alone")
    good = [i for i in range(N) if i not in (5, 90)]
    for one in ended:
        assert all(np.array_equal(found.features.astype(np.float32), naive(good)) for found in one.results.values())


def work(folder: Path, stop_at: int | None) -> Any:
    return embed(make_data(N, {5, 90}), Counting(stop_at=stop_at), folder, **HOW)


class Counted(Stream):
    """A stream that counts, for every row, how often it was drawn and how often decoded, by whichever thread."""

    def records(self, start: int = 0) -> Iterator[Record]:
        for record in super().records(start):
            DRAWN[record.id] += 1

            def read(record: Record = record) -> Any:
                with LOCK:
                    DECODED[record.id, threading.current_thread().name] += 1
                return record.read()

            yield Record(record.id, read, record.labels, record.caption)


DRAWN: Counter[str] = Counter()
DECODED: Counter[tuple[str, str]] = Counter()
LOCK = threading.Lock()


@pytest.mark.parametrize("n", [1, 23, 24, 50])
@pytest.mark.parametrize("world", [2, 3])
def test_a_stream_is_shared_and_each_row_read_once(tmp_path: Path, launch: Started, n: int, world: int) -> None:
    """n = 24 ends with a shard, which an empty one tells."""
    DRAWN.clear(), DECODED.clear()
    stream = Counted(n, bad={7})
    (one,) = launch([world], lambda _, rank: embed(stream, Counting(), tmp_path / "many", **HOW))
    assert one.errors == {}
    rows = [f"row{i}" for i in range(n)]
    assert dict(DRAWN) == dict.fromkeys(rows, 1)
    assert sorted(name for name, _ in DECODED) == sorted(rows)
    assert len({thread for _, thread in DECODED}) == min(world, -(-n // 4))  # all of them had something to do
    alone = Counted(n, bad={7})
    (first,) = launch([1], lambda _, rank: embed(alone, Counting(), tmp_path / "alone", **HOW))
    assert contents(tmp_path / "many") == contents(tmp_path / "alone")
    for found in (*one.results.values(), *first.results.values()):
        good = [i for i in range(n) if i != 7]
        assert np.array_equal(found.features.astype(np.float32), naive(good))
        assert found.ids == tuple(f"row{i}" for i in good)


def test_a_stream_that_lost_a_rank_goes_on_with_its_shards(tmp_path: Path, launch: Started) -> None:
    embed_one = lambda rank, stop: embed(Stream(50), Counting(stop_at=stop), tmp_path / "many", **HOW)  # noqa: E731
    (one,) = launch([3], lambda _, rank: embed_one(rank, 6 if rank == 1 else None))
    assert isinstance(one.errors[1], KeyboardInterrupt)
    there = len(shards(tmp_path / "many"))
    assert 0 < there < 13
    encoders = [Counting() for _ in range(3)]
    (two,) = launch([3], lambda _, rank: embed(Stream(50), encoders[rank], tmp_path / "many", **HOW))
    assert two.errors == {}
    assert sum(encoder.images for encoder in encoders) <= 50 - 4 * (there - 1)
    launch([1], lambda _, rank: embed(Stream(50), Counting(), tmp_path / "alone", **HOW))
    assert contents(tmp_path / "many") == contents(tmp_path / "alone")
