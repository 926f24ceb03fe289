"""Test that rows, products, rankings and evaluations computed in parts match those of a single
array."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_parts import FEATURES, LABELS, REFERENCE, N, figures
from torch.nn.functional import normalize

from tests.refusals import refused
from vldebias.data import Embeddings, Labels, Shards, open_embeddings, rows, save_embeddings
from vldebias.errors import InvalidInputError

RNG = np.random.default_rng(0)
SMALL = RNG.normal(size=(300, 64)).astype(np.float16)
SMALL[100:140] = SMALL[0]  # identical images, which are tied
QUERIES = torch.from_numpy(RNG.normal(size=(5, 64)).astype(np.float32))
WHOLE = Embeddings.from_arrays(SMALL).unit
PLAIN = normalize(torch.from_numpy(SMALL).float(), dim=1)


def cut(places: list[int]) -> list[np.ndarray]:
    return np.split(SMALL, sorted(places))


def in_npy(parts: list[np.ndarray], folder: Path) -> Shards:
    for i, part in enumerate(parts):
        np.save(folder / f"{i}.npy", part)
    return Shards.open(f"{folder}/*.npy")


KINDS: dict[str, Any] = {"memory": lambda parts, _: Shards(parts), "npy": in_npy}
SOME = {
    "slice": slice(20, 290, 7),
    "negative": np.array([-1, 5, -300]),
    "in disorder": RNG.permutation(300)[:200],
    "twice": np.array([7, 7, 299, 0, 150]),
    "mask": RNG.random(300) < 0.3,
    "none": np.zeros(0, dtype=np.int64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_passes_match_those_of_a_single_array(kind: str, tmp_path: Path) -> None:
    shards = KINDS[kind](cut([1, 50, 121, 290]), tmp_path)
    assert (shards.shape, shards.dtype, shards.ndim, len(shards)) == ((300, 64), np.float16, 2, 300)
    for chosen in SOME.values():
        assert np.array_equal(shards[chosen], SMALL[chosen])
        assert np.array_equal(shards.select(chosen)[:], SMALL[chosen])
    with pytest.raises(IndexError):
        shards[[300]]
    assert torch.equal(
        shards.unit.products({"a": QUERIES})["a"], WHOLE.products({"a": QUERIES})["a"]
    )
    assert torch.equal(shards.unit[:], WHOLE[:])


@given(
    places=st.lists(st.integers(0, 300), max_size=40),
    k=st.integers(1, 120),
    chosen=st.sampled_from(["all", "in disorder", "mask"]),
    moved=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_results_do_not_depend_on_the_parts(
    places: list[int], k: int, chosen: str, moved: bool
) -> None:
    """This includes products with single rows, and ranks with ties across parts."""
    uncut = WHOLE
    parts = Shards(cut(places)).unit
    if chosen != "all":
        uncut = uncut.select(SOME[chosen])
        parts = parts.select(SOME[chosen])
    if moved:
        turn = torch.linalg.qr(torch.from_numpy(RNG.normal(size=(64, 64))))[0].float()
        uncut = uncut.changed(lambda x: x @ turn)
        parts = parts.changed(lambda x: x @ turn)
    k = min(k, len(uncut))
    result = parts.products({"a": QUERIES, "b": QUERIES[:1]})
    texts = {"a": QUERIES, "b": QUERIES[:1]}
    expected = uncut.products(texts)
    assert all(torch.equal(result[name], expected[name]) for name in texts)
    result = parts.top(QUERIES, k)
    exact = (QUERIES.double() @ uncut[:].double().T).numpy().round(12)
    assert np.array_equal(result, uncut.top(QUERIES, k))
    assert np.array_equal(result, np.argsort(-exact, axis=1, kind="stable")[:, :k])


@pytest.mark.parametrize(
    "selection", [SOME["mask"], SOME["in disorder"], torch.tensor([5, 5, 99]), slice(10, 20)]
)
def test_selected_and_changed_rows_match_those_of_the_full_array(selection: Any) -> None:
    expected = PLAIN[
        torch.from_numpy(selection.copy()) if isinstance(selection, np.ndarray) else selection
    ]
    torch.testing.assert_close(WHOLE[selection], expected)
    if not isinstance(selection, slice):
        selected = WHOLE.select(selection)
        assert selected.shape == tuple(expected.shape)
        torch.testing.assert_close(torch.cat(list(selected.split(3))), expected)
        torch.testing.assert_close(selected.select([1, 0])[:], expected[[1, 0]])
        moved = selected.changed(lambda x: x + 1).changed(lambda x: 2 * x)
        torch.testing.assert_close(torch.cat(list(moved.split(9))), 2 * (expected + 1))
        torch.testing.assert_close(
            selected.products({"a": QUERIES.double()})["a"], expected @ QUERIES.T
        )


def test_zero_rows_are_reported(tmp_path: Path) -> None:
    broken = SMALL.copy()
    broken[43] = 0
    with pytest.raises(InvalidInputError, match=r"1 of 40 rows are zero or .*\['row 43'\]"):
        in_npy(np.split(broken, [40, 80]), tmp_path).unit.products({"a": QUERIES})
    broken[90, 3] = np.nan
    selected = Embeddings.from_arrays(broken, ids=[f"image {i}" for i in range(300)]).unit.select(
        np.arange(40, 100)
    )
    refusal = r"2 of 60 rows are .*such as \['image 43', 'image 90'\]"
    with pytest.raises(InvalidInputError, match=refusal):
        selected[:]


def test_a_large_file_is_several_parts_and_numbers_sort_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PART", 16)
    (tmp_path / "b").mkdir()
    for i, part in zip((9, 10, 100), cut([40, 80]), strict=True):
        np.save(tmp_path / "b" / f"emb_{i}.npy", part)
    shards = Shards.open(f"{tmp_path}/**/emb_*.npy")  # also in subfolders
    assert [len(array) for array in shards.arrays][:5] == [16, 16, 8, 16, 16]
    assert np.array_equal(shards[:], SMALL)


@pytest.mark.parametrize("n", [40, 50, 30, 0])
def test_a_file_that_has_changed_raises_an_error(n: int, tmp_path: Path) -> None:
    shards = in_npy(cut([40, 80]), tmp_path)
    path = sorted(tmp_path.iterdir())[1]
    first = shards[:]
    if n:
        (tmp_path / "other").mkdir()
        assert len(in_npy([SMALL[200 : 200 + n]], tmp_path / "other")) == n
        next((tmp_path / "other").iterdir()).replace(path)
    else:
        path.unlink()
    unit = shards.unit
    for read in (
        lambda: shards[:],
        lambda: unit.products({"": QUERIES}),
        lambda: unit.top(QUERIES, 3),
        shards.digest,
    ):
        with pytest.raises(InvalidInputError, match=path.name):
            read()
    assert np.array_equal(shards[:40], first[:40])  # the other files are unchanged


def test_a_digest_depends_on_every_row_and_the_order() -> None:
    first, second = cut([150])
    copies = [second.copy() for _ in range(3)]
    for copy, row in zip(copies, (0, 5, -1), strict=True):
        copy[row, 5] += 1
    several = [
        Shards([first, second]),
        Shards([second, first]),
        *(Shards([first, copy]) for copy in copies),
    ]
    several.append(several[0].select(np.arange(299)))
    assert len({shards.digest() for shards in several}) == 6
    assert several[0].digest() == Shards([first, second]).digest()


@refused(
    ("none/*.npy", r"there is no such file"),
    (["missing.npy"], r"missing.npy: cannot be read"),
    (["a.csv"], r"a.csv: cannot be read"),
    (["a.npy", "wide.npy"], r"with one d and dtype; got .*\(n, 4\).*\(n, 5\)"),
    (["int.npy"], r"expected float arrays .* got .*int64"),
    (["flat.npy"], r"flat.npy: expected features \(n, d\), got shape \(3,\)"),
    (["junk.npy"], r"junk.npy: cannot be read"),
    (["header.npy"], r"header.npy: cannot be read"),
    (["pickled.npy"], r"pickled.npy: cannot be read"),
)
def test_invalid_shards_raise_errors_with_their_name(tmp_path: Path, names: Any) -> None:
    arrays = {
        "a": np.zeros((3, 4), "f2"),
        "wide": np.zeros((3, 5), "f2"),
        "int": np.zeros((3, 4), int),
    }
    for name, array in {**arrays, "flat": np.zeros(3), "pickled": np.array([{}, None])}.items():
        np.save(tmp_path / f"{name}.npy", array)
    # numpy cannot read this header.
    (tmp_path / "header.npy").write_bytes((tmp_path / "a.npy").read_bytes().replace(b"}", b"{"))
    for name in ("junk.npy", "a.csv"):
        (tmp_path / name).write_bytes(b"junk" * 20)
    Shards.open(
        [tmp_path / name for name in names] if isinstance(names, list) else f"{tmp_path}/{names}"
    )[:]


CUTS = [1, 3, 400, 401, 1290]
GENDER = LABELS["retrieval"]["gender"]


def write_npy(folder: Path) -> str:
    for i, indices in enumerate(np.split(np.arange(N), CUTS)):
        np.save(folder / f"{i}.npy", FEATURES[indices])
        ids = [str(x) for x in FEATURES[indices, 0]]
        header = {
            "gender": GENDER[indices],
            "url": [f"u{i}" for i in indices],
            "ids": ids,
            "list": [[0.0]] * len(indices),
        }
        pq.write_table(pa.table(header), folder / f"meta_{i}.parquet")
    return f"{folder}/*.npy"


def test_labels_are_read_from_a_separate_table(tmp_path: Path) -> None:
    embeddings, texts = open_embeddings(write_npy(tmp_path), table=tmp_path / "meta_*.parquet")
    expected = Labels.from_array(GENDER)
    assert np.array_equal(embeddings.column("gender").codes, expected.codes)
    # A column with as many URLs as rows is not a label.
    assert list(embeddings.labels) == ["gender"]
    assert embeddings.about["ignored"] == ["url", "list"]
    assert (embeddings.ids[3], texts) == (str(FEATURES[3, 0]), None)


@refused(
    ("*.npy", "meta_0.parquet", r"meta_0.parquet: expected a row for each of 1300 rows.*got 1\."),
    ("a.npz", "meta_0.parquet", r"features have no ids, labels or captions.*a.npz contains some"),
    ("*.np?", None, r"a.npz: cannot be read"),
)
def test_inconsistent_files_raise_errors(tmp_path: Path, images: str, table: str | None) -> None:
    write_npy(tmp_path)
    save_embeddings(tmp_path / "a.npz", Embeddings.from_arrays(FEATURES, {"gender": GENDER}))
    open_embeddings(tmp_path / images, table=table and tmp_path / table)


def clip_retrieval(folder: Path, *, dropped: int = 0) -> Path:
    """Write a clip-retrieval folder with twelve parts of five rows, whose first number is their
    part. The `dropped` rows are missing in the fifth table."""
    (folder / "img_emb").mkdir(parents=True)
    (folder / "metadata").mkdir()
    for part in range(12):
        features = np.full((5, 4), part + 1, "f2")
        np.save(folder / f"img_emb/img_emb_{part}.npy", features)
        length = 5
        if part == 4:
            length = 5 - dropped
        metadata = {
            "image_path": [f"{part}/{row}.jpg" for row in range(length)],
            "caption": [f"a picture of part {part}"] * length,
            "shard": [f"shard {part}"] * length,
        }
        pq.write_table(pa.table(metadata), folder / f"metadata/metadata_{part}.parquet")
    return folder


def test_a_clip_retrieval_folder_includes_its_metadata(tmp_path: Path) -> None:
    # Brackets in a folder name are not a glob pattern.
    folder = clip_retrieval(tmp_path / "laion [2]")
    (folder / "text_emb").mkdir()
    np.save(folder / "text_emb/text_emb_0.npy", np.ones((60, 4), "f2"))
    embeddings, _ = open_embeddings(folder)
    assert list(embeddings.labels) == ["shard"]
    for row in range(60):
        # Part 10 must come after part 9 in both.
        part = int(embeddings.features[[row]][0, 0]) - 1
        labels = embeddings.column("shard")
        assert labels.names[labels.codes[row]] == f"shard {part}"
        assert embeddings.ids[row] == f"{part}/{row % 5}.jpg"
        assert embeddings.captions[row] == f"a picture of part {part}"
    before = rows.digest_of(folder)
    np.save(folder / "text_emb/text_emb_0.npy", np.zeros((60, 4), "f2"))
    assert rows.digest_of(folder) == before
    # A run only resumes with identical labels.
    table = pq.read_table(folder / "metadata/metadata_3.parquet")
    table = table.set_column(2, "shard", pa.array(["other"] * 5))
    pq.write_table(table, folder / "metadata/metadata_3.parquet")
    assert rows.digest_of(folder) != before
    (folder / "metadata").rename(folder / "elsewhere")
    assert not open_embeddings(folder)[0].labels


def test_a_table_with_a_missing_row_raises_an_error_with_its_part(tmp_path: Path) -> None:
    folder = clip_retrieval(tmp_path / "laion", dropped=1)
    short = r"each of 60 rows.*got 59; metadata_4.parquet has 4 rows, and img_emb_4.npy 5"
    with pytest.raises(InvalidInputError, match=short):
        open_embeddings(folder)
    with pytest.raises(InvalidInputError, match=short):
        open_embeddings(f"{folder}/img_emb/*.npy", table=f"{folder}/metadata/*.parquet")


def test_an_npz_with_only_features_takes_metadata_from_a_table(tmp_path: Path) -> None:
    folder = clip_retrieval(tmp_path / "laion")
    features = np.load(folder / "img_emb/img_emb_3.npy")
    np.savez(tmp_path / "part.npz", features=features, other=np.ones(2))
    table = folder / "metadata/metadata_3.parquet"
    embeddings, _ = open_embeddings(tmp_path / "part.npz", table=table)
    assert embeddings.column("shard").counts == {"shard 3": 5}
    assert embeddings.captions == ("a picture of part 3",) * 5
    assert embeddings.about["ignored"] == ["other"]
    np.savez(tmp_path / "part.npz", features=features[1:])
    with pytest.raises(InvalidInputError, match=r"each of 4 rows .*, got 5"):
        open_embeddings(tmp_path / "part.npz", table=table)


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize("task", ["retrieval", "groups"])
@pytest.mark.parametrize(
    "methods", [["orth-cali", "cali", "equalise"], ["leace", "roboshot"]], ids=["text", "image"]
)
def test_figures_match_those_of_a_single_array(
    task: str, methods: list[str], tmp_path: Path
) -> None:
    parts = Shards(np.split(FEATURES, CUTS))
    reference = Shards(np.split(REFERENCE, [5, 640]))
    rows = figures(task, parts, reference=reference, methods=methods)
    of_array = figures(task, FEATURES, methods=methods)
    assert rows == of_array
    assert len(rows) > 50
    if "cali" in methods:
        assert figures(task, write_npy(tmp_path), methods=methods) == of_array
