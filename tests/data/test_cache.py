"""Test that cached features are correct, computed once, resumed, repaired, and never shared between
different settings."""

import errno
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from data_parts import Counting, contents, embed, make_data, naive, shards
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vldebias.data import Labels, cache, embed_images
from vldebias.data.parallel import Processes, prefetch, processes
from vldebias.errors import InvalidInputError, VldebiasWarning


@given(
    n=st.integers(1, 23),
    shard_size=st.integers(1, 9),
    batch_size=st.integers(1, 5),
    workers=st.sampled_from([0, 1, 3]),
    bad=st.sets(st.integers(0, 22), max_size=6),
)
@example(n=1, shard_size=1, batch_size=1, workers=0, bad={0})
@settings(max_examples=15, deadline=None)
def test_features_match_a_naive_implementation(
    n: int, shard_size: int, batch_size: int, workers: int, bad: set[int]
) -> None:
    good = [i for i in range(n) if i not in bad]
    data = make_data(n, bad)
    encoder = Counting()
    how = {"shard_size": shard_size, "batch_size": batch_size, "workers": workers}
    with tempfile.TemporaryDirectory() as folder:
        if not good:
            with pytest.raises(InvalidInputError, match=f"none of the {n} images can be read"):
                embed(data, encoder, Path(folder), **how)
            return
        for _ in range(2):
            embeddings = embed(data, encoder, Path(folder), **how)
            assert encoder.images == len(good)  # only the first call computes them
            assert np.array_equal(embeddings.features.astype(np.float32), naive(good))
            assert embeddings.ids == tuple(f"img{i}" for i in good)
            assert embeddings.captions == tuple(f"picture {i}" for i in good)
            assert embeddings.column("parity").codes.tolist() == [i % 2 for i in good]
            assert [skipped["id"] for skipped in embeddings.about["skipped"]] == [
                f"img{i}" for i in range(n) if i in bad
            ]
            assert embeddings.about["images"] == n


@given(stop_at=st.integers(0, 17), shard_size=st.integers(1, 7), batch_size=st.integers(1, 4))
@settings(max_examples=6, deadline=None)
def test_an_interrupted_run_resumes_with_the_missing_shards(
    stop_at: int, shard_size: int, batch_size: int
) -> None:
    how = {"shard_size": shard_size, "batch_size": batch_size, "workers": 2}
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        stopped = Counting(stop_at=stop_at)
        resumed = Counting()
        with pytest.raises(KeyboardInterrupt):
            embed(make_data(18), stopped, Path(first), **how)
        done = len(shards(Path(first)))
        assert done == stopped.images // shard_size
        embed(make_data(18), resumed, Path(first), **how)
        embed(make_data(18), Counting(), Path(second), **how)
        assert resumed.images == 18 - done * shard_size
        assert contents(Path(first)) == contents(Path(second))


def test_a_run_reports_existing_shards_and_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def progress_of(encoder: Counting, **how: Any) -> str:
        embed_images(make_data(9), encoder.encoder, tmp_path, shard_size=4, **how)
        return capsys.readouterr().err

    with pytest.raises(KeyboardInterrupt):
        progress_of(Counting(stop_at=5))
    assert "Interrupted. Complete shards are kept in" in capsys.readouterr().err
    assert re.search(
        "resuming from an earlier run(.|\n)*5/5",
        progress_of(Counting(), runner=SimpleNamespace(map=map)),
    )
    assert not progress_of(Counting()).strip(), (
        "everything is cached, so there is no message and no progress bar"
    )
    assert "9/9" in progress_of(Counting(), dtype="bfloat16")


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def changed(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"garbage" * 40),
    "a bit of a feature": lambda path: flip(path, -30),
    "a bit of a row": lambda path: flip(path, -1),
    "another shard": lambda path: path.write_bytes(
        path.with_name("shard-00002.safetensors").read_bytes()
    ),
    "notes": lambda path: changed(path, b'count\\": 4', b'count\\": 3'),
    "skipped": lambda path: changed(path, b'img5\\"', b'img6\\"'),
    "no notes": lambda path: changed(path, b'"vldebias"', b'"vldebiaz"'),
    "dtype": lambda path: changed(path, b'"F16"', b'"I16"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_renamed_and_computed_again(damage: str, tmp_path: Path) -> None:
    data = make_data(12, bad={5})
    expected = embed(data, Counting(), tmp_path, shard_size=4)
    before = contents(tmp_path)
    path = shards(tmp_path)[1]
    DAMAGE[damage](path)
    wrong = path.read_bytes()
    assert wrong != before[str(path.relative_to(tmp_path))]
    again = Counting()
    with pytest.warns(VldebiasWarning, match=r"shard-00001.safetensors: .* renamed to .*corrupt"):
        repaired = embed(data, again, tmp_path, shard_size=4)
    assert again.images == 3
    assert np.array_equal(repaired.features, expected.features)
    aside = path.with_name(f"{path.name}.corrupt")
    assert contents(tmp_path) == before | {str(aside.relative_to(tmp_path)): wrong}


def test_a_shard_of_a_different_size_is_renamed(tmp_path: Path) -> None:
    for size in (4, 3):
        embed(make_data(6), Counting(), tmp_path / str(size), shard_size=size)
    shards(tmp_path / "4")[0].replace(shards(tmp_path / "3")[0])
    with pytest.warns(VldebiasWarning, match=r"shard-00000.safetensors: .*damaged .*renamed"):
        embeddings = embed(make_data(6), Counting(), tmp_path / "3", shard_size=3)
    assert len(embeddings) == 6


def test_machine_and_drive_errors_are_not_attributed_to_the_image(tmp_path: Path) -> None:
    data = make_data(5, {3}, error=lambda i: OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        embed(data, Counting(), tmp_path)
    assert not shards(tmp_path)
    with pytest.raises(InvalidInputError, match=r"none of the 16 images from 'img16' to 'img31'"):
        embed(make_data(32, set(range(16, 32))), Counting(), tmp_path, shard_size=16)
    assert len(shards(tmp_path)) == 1  # the unreadable shard is not saved
    assert len(embed(make_data(32), Counting(), tmp_path, shard_size=16)) == 32
    # There are too few images to be sure.
    assert len(embed(make_data(30, set(range(15, 30))), Counting(), tmp_path, shard_size=15)) == 15


def test_features_that_overflow_half_precision_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"not finite in float16 .*'img0'"):
        embed(make_data(3), Counting(scale=1e4), tmp_path)
    assert np.isfinite(
        embed(make_data(3), Counting(scale=1e4), tmp_path, dtype="bfloat16").features
    ).all()
    with pytest.raises(InvalidInputError, match="not finite in float32"):
        embed(make_data(3), Counting(scale=float("nan")), tmp_path, dtype="float32")


def test_settings_that_affect_features_use_separate_folders_and_labels_do_not(
    tmp_path: Path,
) -> None:
    def folder(encoder: Counting | None = None, data: Any = None, **options: Any) -> str:
        return embed(
            data or make_data(4), encoder or Counting(), tmp_path / "many", **options
        ).about["cache"]

    assert folder() == folder()
    # Otherwise, the existing shards would be computed again.
    assert Path(folder()).name == "tiny-set-test-60c8c951287b80271750"
    cases = [
        folder(),
        folder(Counting(seed=1)),
        folder(Counting(preprocessing="3x3")),
        folder(shard_size=7),
    ]
    cases += [
        folder(data=make_data(n, fingerprint=mark)) for n, mark in ((4, "other"), (3, "4 pictures"))
    ]
    cases += [folder(dtype="float32")]
    assert len(set(cases)) == len(cases)
    encoder = Counting()
    embed(make_data(4), encoder, tmp_path)
    relabelled = make_data(
        4, labels={"size": Labels.from_values(["big", "", "small", "big"])}, captions=()
    )
    embeddings = embed(relabelled, encoder, tmp_path)
    assert encoder.images == 4
    assert (embeddings.column("size").counts, embeddings.captions) == ({"big": 2, "small": 1}, ())


@given(n=st.integers(0, 30), workers=st.integers(0, 4), ahead=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_prefetch_preserves_the_order_limits_read_ahead_and_ends_with_the_caller(
    n: int, workers: int, ahead: int
) -> None:
    before = threading.active_count()
    drawn = []
    done = []

    def tasks() -> Iterator[int]:
        for i in range(n):
            drawn.append(i)
            yield i

    for result in prefetch(tasks(), lambda i: i * i, workers, ahead):
        done.append(result)
        assert len(drawn) - len(done) == (min(ahead, n - len(done)) if workers else 0)
    assert done == [i * i for i in range(n)]
    stopped = prefetch(range(100), lambda i: i, workers, ahead)
    assert next(stopped) == 0
    stopped.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_processes_divide_the_shards_and_need_a_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data(14, {4})
    options = {"shard_size": 3, "batch_size": 2}
    alone = Counting()
    embed(data, alone, tmp_path / "one", **options)
    assert alone.batches == [2, 1, 2, 2, 1, 2, 1, 2]  # batches do not cross shards
    second = Mock(Processes, rank=1, world=2)
    second.share.return_value = [0, 1, 2, 3, 4]
    monkeypatch.setattr(cache, "processes", lambda: second)
    with pytest.raises(InvalidInputError, match=r"shard-00000.safetensors: this shard is missing"):
        embed(data, Counting(), tmp_path / "two", **options)
    assert [path.stem for path in shards(tmp_path / "two")] == ["shard-00001", "shard-00003"]


def test_a_single_process_does_not_initialise_accelerate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accelerate import PartialState

    before = dict(PartialState._shared_state)
    assert processes() == Processes(0, 1)
    assert dict(PartialState._shared_state) == before
    monkeypatch.setenv("WORLD_SIZE", "2")
    cpu_choices: list[bool] = []
    monkeypatch.setattr("accelerate.PartialState", lambda cpu: cpu_choices.append(cpu))
    assert processes() == Processes(0, 1)  # accelerate did not create a process group
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    processes()
    # Hosted CI has no process group. On other machines, an existing one is preserved.
    has_accelerator = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert cpu_choices == [not has_accelerator, True]
