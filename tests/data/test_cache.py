"""The embedding cache: equal to the naive twin, computed once, resumed, repaired, and never mistaken for another."""

from __future__ import annotations

import errno
import io
import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embed_parts import Counting, contents, embed, make_data, naive, shards
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress as Bars

from tests.refusals import refused
from vldebias.data import Labels
from vldebias.data import cache as run_module
from vldebias.data.cache import cache_folder, default_cache_dir, embed_images
from vldebias.data.parallel import Processes, processes
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.progress import SILENT, Progress


@given(
    n=st.integers(1, 23),
    shard_size=st.integers(1, 9),
    batch_size=st.integers(1, 5),
    workers=st.sampled_from([0, 1, 3]),
    bad=st.sets(st.integers(0, 22), max_size=6),
)
@settings(max_examples=15, deadline=None)
def test_it_is_the_naive_twin(n: int, shard_size: int, batch_size: int, workers: int, bad: set[int]) -> None:
    good = [i for i in range(n) if i not in bad]
    data, encoder = make_data(n, bad), Counting()
    options = {"shard_size": shard_size, "batch_size": batch_size, "workers": workers}
    with tempfile.TemporaryDirectory() as folder:
        if not good:
            with pytest.raises(InvalidInputError, match=f"expected images, but none of {n} can be read"):
                embed(data, encoder, Path(folder), **options)
            return
        for _ in range(2):
            found = embed(data, encoder, Path(folder), **options)
            assert encoder.images == len(good)  # computed by the first call alone
            assert np.array_equal(found.features.astype(np.float32), naive(good))
            assert found.ids == tuple(f"img{i}" for i in good)
            assert found.column("parity").codes.tolist() == [i % 2 for i in good]
            assert found.captions == tuple(f"picture {i}" for i in good)
            assert [one["id"] for one in found.about["skipped"]] == [f"img{i}" for i in range(n) if i in bad]
            assert found.about["images"] == n


@given(stop_at=st.integers(0, 17), shard_size=st.integers(1, 7), batch_size=st.integers(1, 4))
@settings(max_examples=6, deadline=None)
def test_an_interrupted_run_goes_on_with_the_missing_shards(stop_at: int, shard_size: int, batch_size: int) -> None:
    n = 18
    options = {"shard_size": shard_size, "batch_size": batch_size, "workers": 2}
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        stopped = Counting(stop_at=stop_at)
        with pytest.raises(KeyboardInterrupt):
            embed(make_data(n), stopped, Path(first), **options)
        done = len(shards(Path(first)))
        assert done == stopped.images // shard_size
        resumed, whole = Counting(), Counting()
        embed(make_data(n), resumed, Path(first), **options)
        embed(make_data(n), whole, Path(second), **options)
        assert resumed.images == n - done * shard_size
        assert contents(Path(first)) == contents(Path(second))


def test_an_error_of_the_model_leaves_complete_shards_only(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError):
        embed(make_data(10), Counting(stop_at=7, stop_with=RuntimeError), tmp_path, shard_size=4, batch_size=1)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cache.json", "shard-00000.safetensors"]
    assert threading.active_count() == before  # the reading threads have ended


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
def test_one_shard_is_mapped_and_writing_to_it_leaves_the_file_alone(tmp_path: Path) -> None:
    encoder = Counting()
    embed(make_data(5), encoder, tmp_path)
    before = contents(tmp_path)
    found = embed(make_data(5), encoder, tmp_path)
    assert str(shards(tmp_path)[0]) in Path("/proc/self/maps").read_text()
    found.features[:] = 0
    assert contents(tmp_path) == before


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"garbage" * 40),
    "a bit of a feature": lambda path: flip(path, -30),
    "a bit of a row": lambda path: flip(path, -1),
    "another shard": lambda path: path.write_bytes(path.with_name("shard-00002.safetensors").read_bytes()),
    "notes": lambda path: path.write_bytes(path.read_bytes().replace(b'count\\": 4', b'count\\": 3')),
    "skipped": lambda path: path.write_bytes(path.read_bytes().replace(b'img5\\"', b'img6\\"')),
    "no notes": lambda path: path.write_bytes(path.read_bytes().replace(b'"vldebias"', b'"vldebiaz"')),
    "dtype": lambda path: path.write_bytes(path.read_bytes().replace(b'"F16"', b'"I16"')),
}


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_named_set_aside_and_computed_again(damage: str, tmp_path: Path) -> None:
    data = make_data(12, bad={5})
    expected = embed(data, Counting(), tmp_path, shard_size=4)
    before, path = contents(tmp_path), shards(tmp_path)[1]
    DAMAGE[damage](path)
    wrong = path.read_bytes()
    assert wrong != before[str(path.relative_to(tmp_path))]
    with pytest.raises(InvalidInputError, match=r"shard-00001.safetensors: this shard .* is damaged .*read_only"):
        embed(data, Counting(), tmp_path, shard_size=4, read_only=True)
    assert path.read_bytes() == wrong
    again = Counting()
    with pytest.warns(VldebiasWarning, match=r"shard-00001.safetensors: .* set aside as shard-00001.*corrupt"):
        found = embed(data, again, tmp_path, shard_size=4)
    assert again.images == 3
    assert np.array_equal(found.features, expected.features)
    aside = path.with_name(f"{path.name}.corrupt")
    assert contents(tmp_path) == before | {str(aside.relative_to(tmp_path)): wrong}


def test_reading_only_reads(tmp_path: Path) -> None:
    data = make_data(6)
    with pytest.raises(InvalidInputError, match=r"shard-00000.safetensors: this shard is not in the cache"):
        embed(data, Counting(), tmp_path / "cache", read_only=True)
    assert not (tmp_path / "cache").exists()
    expected = embed(data, Counting(), tmp_path / "cache")
    silent = Counting()
    found = embed(data, silent, tmp_path / "cache", read_only=True)
    assert np.array_equal(found.features, expected.features)
    assert silent.images == 0


def test_unreadable_images_are_told_with_their_reasons(tmp_path: Path) -> None:
    def error(index: int) -> OSError:
        return FileNotFoundError(errno.ENOENT, "No such file or directory", f"/data/{index}.jpg")

    found = embed(make_data(5, {1, 3}, error=error), Counting(), tmp_path)
    reason = "FileNotFoundError: No such file or directory"
    assert found.about["skipped"] == [{"id": "img1", "reason": reason}, {"id": "img3", "reason": reason}]
    other = embed(make_data(5, {1}, fingerprint="other"), Counting(), tmp_path)
    assert other.about["skipped"] == [
        {"id": "img1", "reason": "OSError: image 1 is truncated <_io.BytesIO object>"}  # no address, no path
    ]


@pytest.mark.parametrize("workers", [0, 3])
def test_strict_stops_at_the_first_and_also_at_one_that_was_skipped_before(tmp_path: Path, workers: int) -> None:
    data = make_data(9, {5, 7})
    with pytest.raises(InvalidInputError, match=r"image 'img5' cannot be read \(OSError: image 5 is truncated"):
        embed(data, Counting(), tmp_path, strict=True, shard_size=3, workers=workers)
    assert len(shards(tmp_path)) == 1
    embed(data, Counting(), tmp_path, shard_size=3, workers=workers)
    with pytest.raises(InvalidInputError, match=r"image 'img5' could not be read .*shard-00001.safetensors was writ"):
        embed(data, Counting(), tmp_path, strict=True, shard_size=3, workers=workers)


def test_a_fault_of_the_machine_is_not_put_down_to_the_image(tmp_path: Path) -> None:
    data = make_data(5, {3}, error=lambda i: OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        embed(data, Counting(), tmp_path)
    assert not shards(tmp_path)


def test_a_drive_that_is_gone_is_noticed(tmp_path: Path) -> None:
    data = make_data(40, set(range(20, 40)))
    with pytest.raises(InvalidInputError, match=r"none of the 20 images from 'img20' to 'img39' can be read"):
        embed(data, Counting(), tmp_path, shard_size=20)
    assert len(shards(tmp_path)) == 1  # nothing is written down about the others
    assert len(embed(make_data(40), Counting(), tmp_path, shard_size=20)) == 40


@pytest.mark.parametrize(("dtype", "kept"), [("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32")])
@pytest.mark.parametrize("shard_size", [2, 100])
def test_precisions(dtype: str, kept: str, shard_size: int, tmp_path: Path) -> None:
    data, encoder = make_data(5), Counting(scale=1.001)
    found = embed(data, encoder, tmp_path, dtype=dtype, shard_size=shard_size)
    exact = torch.from_numpy(naive(range(5))) * 1.001
    assert found.features.dtype == kept
    assert np.array_equal(found.features, exact.to(getattr(torch, dtype)).float().numpy().astype(kept))


def test_features_that_half_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    encoder = Counting(scale=1e4)
    with pytest.raises(InvalidInputError, match=r"tiny: the features of \d images, such as 'img0', are not finite as"):
        embed(make_data(3), encoder, tmp_path)
    assert np.isfinite(embed(make_data(3), encoder, tmp_path, dtype="bfloat16").features).all()
    with pytest.raises(InvalidInputError, match="not finite as float32"):
        embed(make_data(3), Counting(scale=float("nan")), tmp_path, dtype="float32")


def test_whatever_changes_a_feature_has_a_folder_of_its_own(tmp_path: Path) -> None:
    def folder(encoder: Counting | None = None, data: Any = None, **options: Any) -> Path:
        return cache_folder(data or make_data(4), (encoder or Counting()).encoder, tmp_path, **options)

    assert folder() == folder()
    assert folder().name.startswith("tiny-set-test-")
    cases = [
        folder(),
        folder(Counting(seed=1)),
        folder(Counting(preprocessing="3x3")),
        folder(data=make_data(4, fingerprint="other")),
        folder(data=make_data(3, fingerprint="4 pictures")),
        folder(dtype="float32"),
        folder(shard_size=7),
    ]
    assert len(set(cases)) == len(cases)


def test_new_labels_need_no_new_features(tmp_path: Path) -> None:
    encoder = Counting()
    embed(make_data(4), encoder, tmp_path)
    relabelled = make_data(4, labels={"size": Labels.of(["big", "", "small", "big"])}, captions=())
    found = embed(relabelled, encoder, tmp_path)
    assert encoder.images == 4
    assert found.column("size").counts == {"big": 2, "small": 1}
    assert found.captions == ()


def test_about_says_what_the_features_are_of(tmp_path: Path) -> None:
    encoder = Counting()
    about = embed(make_data(4), encoder, tmp_path).about
    assert about == {
        "data": "tiny/set",
        "split": "test",
        "data_fingerprint": "4 pictures",
        "model": "tiny",
        "fingerprint": encoder.encoder.fingerprint,
        "preprocessing": "2x2",
        "dtype": "float16",
        "images": 4,
        "skipped": [],
        "cache": str(shards(tmp_path)[0].parent),
        "source": {"root": "here"},
    }
    card = json.loads((shards(tmp_path)[0].parent / "cache.json").read_text())
    assert card["model"] == "tiny"
    assert card["shard_size"] == 1024


def test_processes_share_the_shards_and_write_what_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, options, alone = make_data(14, {4}), {"shard_size": 3, "batch_size": 2}, Counting()
    whole = embed(data, alone, tmp_path / "one", **options)
    assert alone.batches == [2, 1, 2, 2, 1, 2, 1, 2]  # none crosses shards
    seen_by_first: list[Any] = []

    def share(value: Any) -> Any:
        seen_by_first.append(value if value is not None else [0, 1, 2, 3, 4])
        return seen_by_first[0]

    def act_as(rank: int) -> Counting:
        monkeypatch.setattr(run_module, "processes", lambda: Processes(rank, 2, lambda: None, share))
        return Counting()

    second = act_as(1)
    with pytest.raises(InvalidInputError, match=r"shard-00000.safetensors: expected this shard now that all processes"):
        embed(data, second, tmp_path / "two", **options)
    assert [path.stem for path in shards(tmp_path / "two")] == ["shard-00001", "shard-00003"]
    first = act_as(0)
    found = embed(data, first, tmp_path / "two", **options)
    assert (first.images, second.images) == (8, 5)
    assert np.array_equal(found.features, whole.features)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_one_process_alone_does_not_start_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import PartialState

    before = dict(PartialState._shared_state)
    assert processes()[:2] == (0, 1)
    assert dict(PartialState._shared_state) == before
    monkeypatch.setenv("WORLD_SIZE", "2")
    asked: list[bool] = []
    monkeypatch.setattr("accelerate.PartialState", lambda cpu: asked.append(cpu))
    assert processes()[:2] == (0, 1)  # accelerate made no group
    assert asked == [not torch.accelerator.is_available()]
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    processes()
    assert asked[1]


def test_two_runs_at_once_do_no_harm(tmp_path: Path) -> None:
    data, options = make_data(60), {"shard_size": 4, "batch_size": 1}
    expected = embed(data, Counting(), tmp_path / "alone", **options)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(embed(data, Counting(), tmp_path / "both", **options)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(np.array_equal(one.features, expected.features) for one in found)
    assert contents(tmp_path / "both") == contents(tmp_path / "alone")


def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VLDEBIAS_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "vldebias"
    monkeypatch.setenv("VLDEBIAS_CACHE", str(tmp_path / "mine"))
    embed_images(make_data(2), Counting().encoder, progress=SILENT)
    assert len(shards(tmp_path / "mine")) == 1


def test_progress_counts_what_is_missing_and_says_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        embed(make_data(10), Counting(stop_at=7), tmp_path, shard_size=3, batch_size=1)
    text = io.StringIO()
    bars = Bars(console=Console(file=text, width=40))
    embed_images(make_data(10), Counting().encoder, tmp_path, shard_size=3, progress=Progress(bars))
    assert f"tiny/set test: 2 of 4 shards found in {shards(tmp_path)[0].parent}\n" in text.getvalue()
    assert [(task.description, task.completed, task.total) for task in bars.tasks] == [("tiny/set test", 4, 4)]


def test_without_a_bar_it_makes_one_on_stderr_and_ctrl_c_says_what_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        embed_images(make_data(3), Counting(stop_at=2).encoder, tmp_path, batch_size=1)
    assert "Interrupted. Complete shards are kept in" in capsys.readouterr().err
    embed_images(make_data(3), Counting().encoder, tmp_path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "tiny/set test: 0 of 1 shards found" in captured.err
    assert "3/3" in captured.err


@refused(
    (make_data(2), {"dtype": "float8"}, "dtype: expected one of float16, bfloat16, float32, got 'float8'"),
    (make_data(2), {"shard_size": 0}, "shard_size: expected a whole number of at least 1, got 0"),
    (make_data(2), {"batch_size": 2.0}, "batch_size: expected a whole number of at least 1, got 2.0"),
    (make_data(2), {"workers": -1}, "workers: expected a whole number of at least 0, got -1"),
    (["a.jpg"], {}, "expected an ImageData or an ImageStream, got list"),
    (make_data(0), {}, "tiny/set: expected at least one image, got none"),
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, data: Any, options: dict[str, Any]) -> None:
    embed(data, Counting(), tmp_path, **options)
