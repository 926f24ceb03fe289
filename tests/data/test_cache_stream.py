"""Streams: what the records say is kept with the features, and a run goes on where the first missing shard begins."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from embed_parts import Counting, Stream, contents, embed, naive, shards
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.data import ImageStream


@given(
    n=st.integers(1, 17),
    shard_size=st.integers(1, 6),
    workers=st.sampled_from([0, 2]),
    bad=st.sets(st.integers(0, 16), max_size=4),
)
@settings(max_examples=12, deadline=None)
def test_a_stream_is_the_naive_twin(n: int, shard_size: int, workers: int, bad: set[int]) -> None:
    good = [i for i in range(n) if i not in bad]
    if not good:
        return
    stream, encoder = Stream(n, bad), Counting()
    assert isinstance(stream, ImageStream)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            found = embed(stream, encoder, Path(folder), shard_size=shard_size, workers=workers, batch_size=2)
            assert np.array_equal(found.features.astype(np.float32), naive(good))
            assert found.ids == tuple(f"row{i}" for i in good)
            assert found.column("parity").names == ("even", "odd")
            assert found.column("parity").codes.tolist() == [i % 2 for i in good]
            if any(i % 3 == 0 for i in good):
                third = found.column("third")
                named = [third.names[code] if code >= 0 else None for code in third.codes]
                assert named == [str(i // 3) if i % 3 == 0 else None for i in good]
            texts = tuple(f"caption {i}" if i % 4 else "" for i in good)
            assert found.captions == (texts if any(texts) else ())
            assert [one["id"] for one in found.about["skipped"]] == [f"row{i}" for i in range(n) if i in bad]
            assert found.about["images"] == n
        assert stream.starts == [0]  # the second call did not open it
        assert encoder.images == len(good)


@given(stop_at=st.integers(0, 11), shard_size=st.integers(1, 5))
@settings(max_examples=8, deadline=None)
def test_an_interrupted_stream_goes_on(stop_at: int, shard_size: int) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        options = {"shard_size": shard_size, "batch_size": 1}
        with pytest.raises(KeyboardInterrupt):
            embed(Stream(12), Counting(stop_at=stop_at), Path(first), **options)
        done = len(shards(Path(first)))
        stream, resumed = Stream(12), Counting()
        embed(stream, resumed, Path(first), **options)
        embed(Stream(12), Counting(), Path(second), **options)
        assert stream.starts == [done * shard_size]
        assert resumed.images == 12 - done * shard_size
        assert contents(Path(first)) == contents(Path(second))


def test_a_gap_is_filled_and_nothing_else_is_read(tmp_path: Path) -> None:
    embed(Stream(20), Counting(), tmp_path, shard_size=3)
    before = contents(tmp_path)
    for index in (1, 2, 5):
        shards(tmp_path / ".")[0].with_name(f"shard-{index:05d}.safetensors").unlink()
    stream, encoder = Stream(20), Counting()
    found = embed(stream, encoder, tmp_path, shard_size=3)
    assert stream.starts == [3, 15]
    assert stream.drawn == encoder.images == 9
    assert np.array_equal(found.features.astype(np.float32), naive(range(20)))
    assert contents(tmp_path) == before


def test_a_stream_that_ends_with_a_shard_is_known_to_have_ended(tmp_path: Path) -> None:
    embed(Stream(6), Counting(), tmp_path, shard_size=3)
    assert len(shards(tmp_path)) == 3  # the last one is empty
    again = Stream(6)
    assert len(embed(again, Counting(), tmp_path, shard_size=3, read_only=True)) == 6
    assert again.starts == []


def test_the_images_of_a_stream_do_not_pile_up(tmp_path: Path) -> None:
    """At most two batches ahead of the model, whatever the size of the shard."""
    stream, ahead = Stream(100), []
    encoder = Counting()
    forward = encoder.encoder.forward

    def spy(batch):  # type: ignore[no-untyped-def]
        ahead.append(stream.drawn - encoder.images)
        return forward(batch)

    object.__setattr__(encoder.encoder, "forward", spy)
    embed(stream, encoder, tmp_path, batch_size=4, shard_size=100, workers=2)
    assert max(ahead) <= 3 * 4 + 1


@refused(
    (Stream(0), "tiny stream: expected images, but none of 0 can be read"),
    (Stream(3, names={"parity": ("even",)}), r"labels: expected one of \['even'\], got \['odd'\]"),
)
def test_a_stream_without_rows_or_with_values_that_have_no_name_is_refused(tmp_path: Path, stream: Stream) -> None:
    embed(stream, Counting(), tmp_path)
