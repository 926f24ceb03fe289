"""Features in shards are one array: rows, products, rankings and whole evaluations, wherever the cuts are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tests.refusals import refused
from vldebias.data import Embeddings, Shards
from vldebias.data import shards as shards_module
from vldebias.data.parallel import Here
from vldebias.data.unit_rows import RowNumbers
from vldebias.errors import InvalidInputError
from vldebias.metrics.rankings import top_rankings

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(300, 64)).astype(np.float16)
FEATURES[100:140] = FEATURES[0]  # equal images, which tie
TEXTS = torch.from_numpy(RNG.normal(size=(5, 64)).astype(np.float32))
WHOLE = Embeddings.of(FEATURES).unit


def cut(at: list[int]) -> list[np.ndarray]:
    return np.split(FEATURES, sorted(at))


def in_memory(parts: list[np.ndarray], folder: Path) -> Shards:
    return Shards.of_arrays([parts[0], *map(torch.from_numpy, parts[1:])])


def in_npy(parts: list[np.ndarray], folder: Path) -> Shards:
    for i, part in enumerate(parts):
        np.save(folder / f"{i}.npy", part)
    return Shards.open(f"{folder}/*.npy")


def in_safetensors(parts: list[np.ndarray], folder: Path) -> Shards:
    for i, part in enumerate(parts):
        save_file({"features": part}, folder / f"{i:02d}.safetensors")
    return Shards.open(sorted(folder.glob("*.safetensors")))


def in_parquet(parts: list[np.ndarray], folder: Path, *, wide: bool = True) -> Shards:
    for i, part in enumerate(parts):
        flat = pa.array(part.ravel())
        ends = pa.array(np.arange(len(part) + 1, dtype=np.int32) * 64)
        lists = pa.FixedSizeListArray.from_arrays(flat, 64) if wide else pa.ListArray.from_arrays(ends, flat)
        pq.write_table(
            pa.table({"features": lists, "other": range(len(part))}), folder / f"{i}.parquet", row_group_size=40
        )
    return Shards.open(folder / "*.parquet")


KINDS = {
    "memory": in_memory,
    "npy": in_npy,
    "safetensors": in_safetensors,
    "parquet": in_parquet,
    "lists": partial(in_parquet, wide=False),
}
SOME = {
    "slice": slice(20, 290, 7),
    "negative": np.array([-1, 5, -300]),
    "in disorder": RNG.permutation(300)[:200],
    "twice": np.array([7, 7, 299, 0, 150]),
    "mask": RNG.random(300) < 0.3,
    "none": np.zeros(0, dtype=np.int64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_one_array(kind: str, tmp_path: Path) -> None:
    shards = KINDS[kind](cut([1, 50, 173]), tmp_path)
    assert (shards.shape, shards.dtype, shards.ndim, len(shards)) == ((300, 64), np.float16, 2, 300)
    for rows in SOME.values():
        assert np.array_equal(shards[rows], FEATURES[rows])
    assert np.array_equal(np.concatenate(list(shards.map(lambda part: part[:]))), FEATURES)
    with pytest.raises(IndexError):
        shards[[300]]


@pytest.mark.parametrize("kind", KINDS)
def test_passes_are_those_of_one_array(kind: str, tmp_path: Path) -> None:
    shards = KINDS[kind](cut([3, 120, 121, 290]), tmp_path)
    assert torch.equal(shards @ TEXTS.T, WHOLE.products({"a": TEXTS})["a"])
    assert np.array_equal(shards.top(TEXTS, 130), top_rankings(TEXTS, WHOLE, 130))
    assert torch.equal(shards.unit.whole(), WHOLE.whole())


@given(
    at=st.lists(st.integers(0, 300), max_size=40),
    k=st.integers(1, 120),
    ties=st.sampled_from(["stable", "random"]),
    rows=st.sampled_from(["all", "in disorder", "mask"]),
    moved=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_cuts_do_not_matter(at: list[int], k: int, ties: str, rows: str, moved: bool) -> None:
    """Products of any part, also of a row alone, and ranks with ties that lie in several parts."""
    whole, parts = WHOLE, Shards.of_arrays(cut(at)).unit
    if rows != "all":
        whole, parts = whole.some(SOME[rows]), parts.some(SOME[rows])
    if moved:
        turn = torch.linalg.qr(torch.from_numpy(RNG.normal(size=(64, 64))))[0].float()
        whole, parts = whole.changed(lambda x: x @ turn), parts.changed(lambda x: x @ turn)
    k = min(k, len(whole))
    found, texts = parts.products({"a": TEXTS, "b": TEXTS[:1]}), {"a": TEXTS, "b": TEXTS[:1]}
    expected = whole.products(texts)
    assert all(torch.equal(found[name], expected[name]) for name in texts)
    ranked = parts.top(TEXTS, k, ties=ties, seed=3)
    assert np.array_equal(ranked, whole.top(TEXTS, k, ties=ties, seed=3))
    assert np.array_equal(ranked, top_rankings(TEXTS, whole, k, ties=ties, seed=3))


@given(n=st.integers(0, 700), fan=st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_results_are_merged_in_a_tree_and_few_are_held(n: int, fan: int) -> None:
    here, made, sizes = Here(), [0], []
    here.fan = fan

    def merge(several: Any) -> tuple[int, ...]:
        sizes.append(len(several))
        made[0] -= len(several) - 1
        return tuple(x for one in several for x in one)

    def work(part: int) -> tuple[int, ...]:
        made[0] += 1
        assert made[0] <= fan * (np.log(n + 1) / np.log(fan) + 2)
        return (part,)

    assert here.fold(work, merge, range(n)) == tuple(range(n))
    assert max(sizes[:-1], default=0) <= fan


def test_a_large_file_is_several_shards_and_numbers_sort_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "PART", 16)
    for i, part in zip((9, 10, 100), cut([40, 80]), strict=True):
        np.save(tmp_path / f"emb_{i}.npy", part)
    shards = Shards.open(f"{tmp_path}/emb_*.npy")
    assert [len(one) for one in shards.arrays][:5] == [16, 16, 8, 16, 16]
    assert np.array_equal(shards[:], FEATURES)


def test_what_was_changed_meanwhile_and_rows_without_a_direction_are_named(tmp_path: Path) -> None:
    shards = in_npy(cut([40, 80]), tmp_path)
    broken = FEATURES[40:80].copy()
    broken[3] = 0
    np.save(tmp_path / "1.npy", broken)
    with pytest.raises(InvalidInputError, match=r"1 rows are zero or not finite, such as \['row 43'\]"):
        shards @ TEXTS.T
    np.save(tmp_path / "1.npy", broken[:20])
    with pytest.raises(InvalidInputError, match=r"1\.npy: expected \(40, 64\) of float16 from row 0 on, as it was"):
        shards.top(TEXTS, 3)


def test_the_digest_changes_with_numbers_and_order() -> None:
    first, second = cut([150])
    changed = second.copy()
    changed[5, 5] += 1
    several = [[first, second], [second, first], [first, changed]]
    assert len({Shards.of_arrays(arrays).digest() for arrays in several}) == 3
    assert Shards.of_arrays(several[0]).digest() == Shards.of_arrays(several[0]).digest()


def test_rows_without_names_are_numbered_as_if_written_out() -> None:
    names = RowNumbers(4, 2)
    assert names == ("2", "3", "4", "5")
    assert names != ("2", "3", "4", "6")
    assert list(names[1:3]) == ["3", "4"]
    assert names[-1] == "5"
    with pytest.raises(IndexError):
        names[4]


def _write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    return path


@refused(
    ("none/*.npy", r"there is no such file; expected a file or a pattern such as 'shards/\*\.npy'"),
    (["missing.npy"], r"missing.npy: there is no such file"),
    (["a.csv"], r"a.csv: expected shards that end in .npy, .safetensors, .parquet"),
    (["a.npy", "wide.npy"], r"of one width and type, got \['float16 \(3, 4\)', 'float16 \(3, 5\)'\]"),
    (["int.npy"], r"expected floats \(n, d\) of one width and type, got \['int64 \(3, 4\)'\]"),
    (["flat.npy"], r"flat.npy: expected features \(n, d\), got \(3,\)"),
    (["junk.npy"], r"junk.npy: cannot be read"),
    (["junk.safetensors"], r"junk.safetensors: cannot be read"),
    (["junk.parquet"], r"junk.parquet: cannot be read as parquet"),
    (["other.safetensors"], r"other.safetensors: expected an array 'features', found \['x'\]"),
    (["other.parquet"], r"other.parquet: expected a column 'features', found \['x'\]"),
    (["ragged.parquet"], r"ragged.parquet: column 'features': expected lists of one length, got lengths \[2, 1\]"),
    (["texts.parquet"], r"texts.parquet: column 'features': expected lists of floats, got list"),
    (["pickled.npy"], r"pickled.npy: cannot be read"),
)
def test_what_is_no_shard_is_refused_by_name(tmp_path: Path, names: Any) -> None:
    _write(tmp_path, "a.npy", np.zeros((3, 4), np.float16))
    _write(tmp_path, "wide.npy", np.zeros((3, 5), np.float16))
    _write(tmp_path, "int.npy", np.zeros((3, 4), np.int64))
    _write(tmp_path, "flat.npy", np.zeros(3))
    _write(tmp_path, "pickled.npy", np.array([{}, None]))
    for name in ("junk.npy", "junk.safetensors", "junk.parquet", "a.csv"):
        _write(tmp_path, name, b"junk" * 20)
    save_file({"x": np.zeros((2, 2))}, tmp_path / "other.safetensors")
    for name, table in {
        "other": {"x": [1]},
        "ragged": {"features": [[1.0, 2.0], [3.0]]},
        "texts": {"features": [["a"]]},
    }.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    paths = [tmp_path / name for name in names] if isinstance(names, list) else f"{tmp_path}/{names}"
    Shards.open(paths)[:]
