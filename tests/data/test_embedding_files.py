"""Embedding files: round trips, files as others write them, and what is refused in words."""

from __future__ import annotations

import io
import json
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.refusals import refused
from vldebias.data import UNKNOWN, Embeddings, Labels
from vldebias.data.embeddings import load_embeddings, save_embeddings
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.evaluation.texts import Texts, TextTable

SUFFIXES = [".npz", ".safetensors"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COLUMN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


EMBEDDED = Embeddings(
    np.arange(24, dtype=np.float32).reshape(8, 3),
    tuple("abcdefgh"),
    {"g": Labels(np.arange(8) % 2, ("x", "y"))},
)


@st.composite
def everything(draw: st.DrawFn) -> tuple[Embeddings, dict[str, torch.Tensor]]:
    n, d = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    columns = draw(st.lists(COLUMN, max_size=2, unique=True))
    names = ("a", "ü", "c/d")
    labels = {column: Labels(rng.integers(UNKNOWN, len(names), n), names) for column in columns}
    captions = tuple(draw(st.lists(TEXT, min_size=n, max_size=n))) if draw(st.booleans()) else ()
    ids = tuple(draw(st.lists(TEXT, min_size=n, max_size=n)))
    embeddings = Embeddings(
        rng.normal(size=(n, d)).astype(dtype), ids, labels, captions, {"model": "m", "n": [n, None]}
    )
    prompts = draw(st.lists(TEXT, max_size=3, unique=True))
    return embeddings, {prompt: torch.from_numpy(rng.normal(size=d)).float() for prompt in prompts}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_column_that_a_file_cannot_name_is_refused(suffix: str, tmp_path: Path) -> None:
    embeddings = Embeddings(np.ones((1, 2)), ("a",), {"x\0y": Labels(np.zeros(1, dtype=np.int64), ("a",))})
    with pytest.raises(InvalidInputError, match="expected column names without a NUL character"):
        save_embeddings(tmp_path / f"file{suffix}", embeddings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(given=everything())
@settings(max_examples=15, deadline=None)
def test_what_was_saved_is_loaded(suffix: str, tmp_path_factory: Any, given: Any) -> None:
    embeddings, texts = given
    path = tmp_path_factory.mktemp("files") / "new" / f"file{suffix}"
    assert save_embeddings(path, embeddings, texts) == path
    found, found_texts = load_embeddings(path)
    assert found.features.dtype == embeddings.features.dtype
    assert np.array_equal(found.features, embeddings.features)
    assert (found.ids, found.captions) == (embeddings.ids, embeddings.captions)
    assert found.about == {**embeddings.about, "file": str(path)}
    assert found.labels.keys() == embeddings.labels.keys()
    for column, labels in embeddings.labels.items():
        assert found.column(column).names == labels.names
        assert np.array_equal(found.column(column).codes, labels.codes)
    assert (found_texts is None) == (not texts)
    for prompt, row in texts.items():
        assert found_texts is not None
        assert torch.equal(found_texts[prompt], row)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def arrays(**more: Any) -> dict[str, Any]:
    return {"features": np.eye(3, 4, dtype=np.float32), **more}


def write(folder: Path, **fields: Any) -> Path:
    path = folder / "mine.npz"
    np.savez(path, **fields)
    return path


def test_a_file_as_people_write_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **arrays(ids=np.array(["x.jpg", "y.jpg", "z.jpg"]), captions=np.array([b"one", b"two", "drei ü".encode()])),
        **{
            "label.gender": np.array(["male", "", "female"]),
            "label.place": np.array([1, 0, -1], dtype=np.int8),
            "names.place": np.array(["land", "water"]),
            "label.year": np.array([1999, -1, 204]),
            "label.smiling": np.array([True, False, True]),
            "label.g": np.array(["b", "a", "b"]),
            "names.g": np.array(["b", "a", "none of them"]),
            "text": np.array([[1, 0, 0, 0], [1, 1e-5, 0, 0]], dtype=np.float32),
            "prompts": np.array(["a", "a"]),
        },
    )
    found, texts = load_embeddings(path)
    assert list(texts or ()) == ["a"]  # twice with the same embedding
    assert found.ids == ("x.jpg", "y.jpg", "z.jpg")
    assert found.captions == ("one", "two", "drei ü")
    assert found.column("gender").counts == {"female": 1, "male": 1}
    assert found.column("place").names == ("land", "water")
    assert found.column("place").codes.tolist() == [1, 0, UNKNOWN]
    assert found.column("year").names == ("-1", "204", "1999")
    assert found.column("year").codes.tolist() == [2, 0, 1]
    assert found.column("smiling").codes.tolist() == [1, 0, 1]
    assert found.column("smiling").names == ("no", "yes")
    assert found.column("g").names == ("b", "a", "none of them")
    assert found.column("g").codes.tolist() == [0, 1, 0]
    assert found.about == {"file": str(path)}


def test_other_names_and_joined_texts(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        image=np.eye(2, 3, dtype=np.float16),
        attr=np.array([[1, np.nan], [0, 2.5]]),
        attr_names=np.array(["Male", "Young"]),
        first=np.ones((1, 3), dtype=np.float32),
        first_prompts=np.array(["a"]),
        second=np.zeros((2, 3), dtype=np.float32),
        second_prompts=np.array(["b", "c"]),
        more=np.array([{}], dtype=object),  # not asked for, so not looked at
    )
    keys = {"attributes": "attr", "attribute_names": "attr_names"}
    keys |= {"text": ["first", "second"], "prompts": ["first_prompts", "second_prompts"]}  # type: ignore[dict-item]
    found, texts = load_embeddings(path, keys=keys)
    assert found.ids == ("0", "1")
    assert found.column("Male").codes.tolist() == [1, 0]
    assert found.column("Young").names == ("no", "yes")
    assert found.column("Young").codes.tolist() == [UNKNOWN, 1]  # NaN does not say no
    assert texts is not None
    assert list(texts) == ["a", "b", "c"]
    assert texts["a"].tolist() == [1, 1, 1]
    assert found.about["ignored"] == ["more"]
    assert load_embeddings(path, keys={"features": "second"})[0].features.shape == (2, 3)


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was opened",))


UNSIGNED = pytest.mark.filterwarnings("ignore:.*has no digest:vldebias.errors.VldebiasWarning")


@UNSIGNED  # of its key
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_flipped_bit_is_read_as_other_features(suffix: str, tmp_path: Path) -> None:
    path = save_embeddings(tmp_path / f"file{suffix}", EMBEDDED, {"a photo": torch.ones(3)})
    content, refused = path.read_bytes(), 0
    rng = np.random.default_rng(0)
    for place in rng.choice(8 * len(content), size=120, replace=False).tolist():
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found, texts = load_embeddings(path)
        except InvalidInputError:
            refused += 1
            continue
        assert np.array_equal(found.features, EMBEDDED.features)
        assert (found.ids, found.labels["g"].names) == (EMBEDDED.ids, EMBEDDED.labels["g"].names)
        assert found.labels["g"].codes.tolist() == EMBEDDED.labels["g"].codes.tolist()
        assert texts is not None
        assert texts["a photo"].tolist() == [1, 1, 1]
    assert refused > 60


def test_a_safetensors_file_of_others_is_read_with_a_word_and_written_again_without(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_file({"features": torch.eye(2, 3)}, path)
    with pytest.warns(VldebiasWarning, match=r"mine\.safetensors: has no digest, .* write it again with") as told:
        found = load_embeddings(path)
    assert len(told) == 1
    save_embeddings(path, *found)
    assert np.array_equal(load_embeddings(path)[0].features, np.eye(2, 3))


@UNSIGNED
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
def test_a_safetensors_file_is_mapped_and_may_be_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    ids = torch.frombuffer(bytearray(json.dumps(["x", "y"]).encode()), dtype=torch.uint8)
    save_file({"features": torch.eye(2, 3), "ids": ids, "label.g": torch.tensor([1, 0])}, path)
    found, _ = load_embeddings(path)
    assert found.ids == ("x", "y")
    assert found.column("g").codes.tolist() == [1, 0]
    assert str(path) in Path("/proc/self/maps").read_text()
    save_file({"features": torch.eye(2, 3).bfloat16()}, path)
    assert load_embeddings(path)[0].features.dtype == np.float32


def test_texts_serve_in_the_place_of_a_model(tmp_path: Path) -> None:
    path = write(tmp_path, **arrays(text=np.eye(2, 4, dtype=np.float32) * 3, prompts=np.array(["p", "q"])))
    _, rows = load_embeddings(path)
    assert rows is not None
    assert torch.equal(Texts(TextTable(rows)).embed(["q", "p"]), torch.eye(2, 4, dtype=torch.float64)[[1, 0]])


JSON_NO_LIST = np.frombuffer(b'{"a": 1}', dtype=np.uint8)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"features": np.ones((3, 4), dtype=int)}, r"features: expected floats \(n, d\), got \(3, 4\) of int64"),
    ({"features": np.float32(1)}, r"features: expected floats \(n, d\), got \(\)"),
    ({"ids": np.array(["a", "b"])}, r"expected 3 rows in every column, got \{'ids': 2\}"),
    ({"ids": np.array([1.0, 2, 3])}, r"'ids': expected strings \(n,\), got \(3,\) of float64"),
    ({"ids": JSON_NO_LIST}, r"'ids': expected strings \(n,\), got \(8,\) of uint8"),
    ({"captions": np.arange(3, dtype=np.uint8)}, "'captions': expected UTF-8 JSON in an array of uint8"),
    ({"ids": np.array([Bomb(), 1, "x"], dtype=object)}, "'ids' cannot be read .* Python objects are never unpickled"),
    ({"ids": np.array([b"a", b"\xff", b"c"])}, "'ids': expected strings, got bytes that are no UTF-8"),
    ({"ids": np.frombuffer(b"[" * 100_000, dtype=np.uint8)}, "'ids': expected UTF-8 JSON in an array of uint8"),
    ({"label.g": np.array([b"a", b"\xff", b"c"])}, "'label.g': expected strings or bytes of UTF-8, got b'.xff'"),
    ({"label.g": np.ones((3, 1), dtype=int)}, r"'label.g': labels: expected strings or integers \(n,\), got \(3, 1\)"),
    ({"label.g": np.array([0.5, 1, 2])}, "'label.g': expected strings or integers, got float64"),
    ({"label.g": np.array([0, 1])}, r"expected 3 rows in every column, got \{'g': 2\}"),
    ({"label.g": np.array([0, 1, 7]), "names.g": np.array(["a", "b"])}, "'label.g': labels: expected codes -1"),
    ({"label.g": np.array(["a", "b", "x"]), "names.g": np.array(["a", "b"])}, "'label.g': labels: expected one of"),
    ({"attributes": np.ones((3, 2)), "attribute_names": np.array(["a"])}, r"'attributes': expected numbers \(n, 1\)"),
    ({"attributes": np.ones((3, 2))}, r"'attributes': expected numbers \(n, 0\)"),
    ({"text": np.ones((2, 4))}, r"'text': expected floats \(0, 4\)"),
    ({"prompts": np.array(["a"])}, r"'text': expected floats \(1, 4\), .* got \(0,\)"),
    ({"text": np.ones((1, 5)), "prompts": np.array(["a"])}, r"'text': expected floats \(1, 4\), .* got \(1, 5\)"),
    ({"text": np.eye(2, 4), "prompts": np.array(["a", "a"])}, "'prompts': 'a' is there twice with different"),
    ({"about": np.array("[1]")}, "'about': expected a JSON object, got list"),
]


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_what_does_not_fit_is_refused_with_the_name_of_the_file(
    fields: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path = write(tmp_path, **(arrays() | fields))
    with pytest.raises(InvalidInputError, match=rf"mine.npz: .*{text}"):
        load_embeddings(path)


@refused(
    ({"features": "img"}, r"expected an array 'img', found \['features'\]; say what is what with keys="),
    ({"featurs": "features"}, r"keys: expected features, .* or names.\*, got \['featurs'\]"),
    ({"features": ["features", "features"]}, "keys: expected one name for 'features', got 2"),
)
def test_keys_that_lead_nowhere_are_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    load_embeddings(write(tmp_path, **arrays()), keys=keys)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused(suffix: str, value: float, tmp_path: Path) -> None:
    features = np.ones((5, 2), dtype=np.float32)
    features[[2, 4], 1] = value
    path = save_embeddings(tmp_path / f"file{suffix}", Embeddings.of(features, ids=list("abcde")))
    message = r"features: 2 of 5 rows are infinite or NaN, the first of them row 2 \('c'\); expected finite numbers"
    with pytest.raises(InvalidInputError, match=message):
        load_embeddings(path)


def one_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"junk" * 20, pickle.dumps(Bomb()), b"PK\x03\x04 cut", one_array()])
def test_files_that_are_none_are_refused(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=rf"bad{suffix}: cannot be read .*expected a {suffix} file of arrays"):
        load_embeddings(path)


def test_other_formats_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no.npz: no such file"):
        load_embeddings(tmp_path / "no.npz")
    with pytest.raises(InvalidInputError, match=r"expected a file that ends in .npz or .safetensors"):
        load_embeddings(tmp_path / "mine.npy")
    with pytest.raises(InvalidInputError, match=r"expected a file that ends in .npz or .safetensors"):
        save_embeddings(tmp_path / "mine.pt", load_embeddings(write(tmp_path, **arrays()))[0])


def header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def lie(archive: bytes, field: slice, value: int) -> bytes:
    """The archive with other bytes in the first entry of its directory."""
    at = archive.index(b"PK\x01\x02")
    entry = bytearray(archive)
    entry[at + field.start : at + field.stop] = value.to_bytes(field.stop - field.start, "little")
    return bytes(entry)


def archive(content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        made.writestr("features.npy", content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (archive(header((10**12, 512)) + b"few"), r"its header declares \(1000000000000, 512\) of float32, 2,048,"),
        (archive(header((10**30,)) + b"few"), "its header declares"),
        (archive(header((-5, 2)) + bytes(40)), ""),
        (lie(archive(header((10**8,)) + b"few"), slice(24, 28), 4 * 10**8 + 128), "its header declares"),
        (lie(archive(header((2, 2)) + bytes(16)), slice(8, 10), 1), "encrypted"),
        (lie(archive(header((2, 2)) + bytes(16)), slice(10, 12), 99), ""),
        (archive(header((2, 2)) + np.random.default_rng(0).bytes(16))[:70] + bytes(40), ""),
        (archive(b"no array"), "magic string"),
        (archive(b""), ""),
    ],
    # an archive holds the time, so that it would name another test in every process
    ids=["rows", "more rows", "fewer than none", "size", "encrypted", "method", "cut off", "no array", "empty"],
)
def test_archives_that_lie_are_refused_before_memory_is_asked_for(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=rf"mine.npz: .*cannot be read \(.*{text}"):
            load_embeddings(path)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
