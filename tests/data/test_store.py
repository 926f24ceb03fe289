"""Shards on disk: the same bytes for the same content, whole or not at all, prefetched rows in order."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.data.parallel import prefetch
from vldebias.data.store import Notes, Shard, ShardStore
from vldebias.errors import VldebiasWarning


def make_shard(index: int = 0, dtype: torch.dtype = torch.float16) -> Shard:
    labels: dict[str, list[str | None]] = {"b": ["x", None], "a": ["Ω", "y"]}
    notes = Notes(3 * index, 3, [["id", "why"]], ids=["p", "q"], labels=labels, captions=["ü", None])
    return Shard(torch.arange(8).reshape(2, 4).to(dtype), torch.tensor([3 * index, 3 * index + 2]), notes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_was_written_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "new", 3, {"model": "m"})
    assert store.read(1) is None
    store.write(1, make_shard(1, dtype))
    found = ShardStore(tmp_path / "new", 3, {}, read_only=True).read(1)
    assert found is not None
    assert found.features.dtype == dtype
    assert torch.equal(found.features, make_shard(1, dtype).features)
    assert found.rows.tolist() == [3, 5]
    assert found.notes == make_shard(1).notes


def test_a_shard_without_rows_is_one_too(tmp_path: Path) -> None:
    store = ShardStore(tmp_path, 3, {})
    store.write(0, Shard(torch.empty(0, 0), torch.empty(0, dtype=torch.int64), Notes(0, 0, last=True)))
    found = store.read(0)
    assert found is not None
    assert found.notes.last


def test_a_shard_of_more_rows_than_fit_is_set_aside(tmp_path: Path) -> None:
    """Written for larger shards; its last rows are those of the next one."""
    ShardStore(tmp_path, 4, {}).write(0, replace(make_shard(), notes=replace(make_shard().notes, count=4)))
    assert ShardStore(tmp_path, 4, {}).read(0) is not None
    with pytest.warns(VldebiasWarning, match=r"shard-00000.safetensors: .*damaged .*set aside"):
        assert ShardStore(tmp_path, 3, {}).read(0) is None


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for folder in ("a", "b"):
        ShardStore(tmp_path / folder, 3, {"z": 1, "a": 2}).write(0, make_shard())
        written.append([path.read_bytes() for path in sorted((tmp_path / folder).iterdir())])
    assert written[0] == written[1]


def test_what_a_killed_run_left_half_written_is_cleared_later(tmp_path: Path) -> None:
    old, new = tmp_path / ".shard-00001.safetensors.ab.partial", tmp_path / ".shard-00001.safetensors.cd.partial"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    ShardStore(tmp_path, 3, {}, read_only=True)
    assert old.exists()
    ShardStore(tmp_path, 3, {})
    assert not old.exists()
    assert new.exists()  # another run may be writing it now


def test_a_shard_is_checked_once_while_it_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vldebias.data import store as module

    store, checked = ShardStore(tmp_path, 3, {}), []
    store.write(0, make_shard())
    digest = module._digest
    monkeypatch.setattr(module, "_digest", lambda shard: (checked.append(1), digest(shard))[1])
    store.read(0)
    store.read(0)
    assert len(checked) == 1
    os.utime(store.path(0), (1, 1))
    store.read(0)
    assert len(checked) == 2


@given(n=st.integers(0, 30), workers=st.integers(0, 4), ahead=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_prefetch_keeps_the_order_and_does_not_run_far_ahead(n: int, workers: int, ahead: int) -> None:
    drawn, given_out = [], []

    def tasks():  # type: ignore[no-untyped-def]
        for i in range(n):
            drawn.append(i)
            yield i

    for result in prefetch(tasks(), lambda i: i * i, workers, ahead):
        given_out.append(result)
        assert len(drawn) - len(given_out) <= ahead
    assert given_out == [i * i for i in range(n)]


def test_prefetch_works_at_the_same_time_and_ends_its_threads() -> None:
    meeting = threading.Barrier(3)
    before = threading.active_count()
    assert list(prefetch(range(3), lambda i: meeting.wait(timeout=20) >= 0, 3, 4)) == [True] * 3
    assert threading.active_count() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetch_hands_on_errors_where_they_belong(workers: int) -> None:
    found: list[int] = []
    with pytest.raises(ZeroDivisionError):
        found.extend(prefetch([4, 2, 0, 1], lambda i: 8 // i, workers, 3))
    assert found == [2, 4]


def test_prefetch_stops_when_the_caller_does() -> None:
    before = threading.active_count()
    stream = prefetch(range(100), lambda i: i, 2, 4)
    assert next(stream) == 0
    stream.close()
    assert threading.active_count() == before
