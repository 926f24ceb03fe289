"""Test selected rows, files from other programs, and errors for invalid files."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.data import Embeddings, Labels, load_embeddings, open_embeddings, save_embeddings
from vldebias.data.embeddings import load_texts
from vldebias.data.labels import UNKNOWN
from vldebias.errors import InvalidInputError


def make(n: int = 5, **fields: Any) -> Embeddings:
    features = np.arange(1, 3 * n + 1, dtype=np.float16).reshape(n, 3)
    labels = {"parity": Labels(np.arange(n) % 2, ("even", "odd"))}
    settings = {"features": features, "ids": tuple(f"i{i}" for i in range(n)), "labels": labels}
    return Embeddings(
        **(
            settings
            | {"captions": tuple(f"c{i}" for i in range(n)), "about": {"data": "d"}}
            | fields
        )
    )


@given(st.data())
def test_rows_stay_consistent_when_copied_or_selected(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    rows: Any = data.draw(
        st.one_of(
            st.lists(st.integers(0, n - 1), max_size=12).map(
                lambda rows: np.array(rows, dtype=int)
            ),
            st.lists(st.booleans(), min_size=n, max_size=n).map(
                lambda mask: np.array(mask, dtype=bool)
            ),
            st.slices(n),
        )
    )
    complete = make(n)
    copied = make(n)[rows]
    lazy = make(n).select(rows)
    for part in (copied, lazy):
        index = [complete.ids.index(name) for name in part.ids]
        assert part.ids == tuple(np.array(complete.ids)[rows])
        assert np.array_equal(part.features[:], complete.features[index])
        assert (
            part.column("parity").codes.tolist() == complete.column("parity").codes[index].tolist()
        )
        assert part.captions == tuple(complete.captions[i] for i in index)
        assert (len(part), part.dim, part.about) == (len(index), 3, complete.about)
    assert torch.equal(lazy.unit[:], copied.unit[:])


def test_embeddings_are_created_from_arrays_lists_and_tensors() -> None:
    labels = {
        "gender": np.array(["f", "m"]),
        "age": torch.tensor([30, 4]),
        "smiling": [True, False],
    }
    embeddings = Embeddings.from_arrays(
        torch.eye(2, 3, dtype=torch.bfloat16, requires_grad=True), labels, captions=["a", "b"]
    )
    assert embeddings.features.dtype == np.float32
    assert embeddings.features.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert (tuple(embeddings.ids), embeddings.captions) == (("0", "1"), ("a", "b"))
    assert (
        repr(embeddings)
        == "Embeddings(2 images of width 3, columns ['gender', 'age', 'smiling'], captions)"
    )
    names = {name: embeddings.column(name).names for name in labels}
    assert names == {"gender": ("f", "m"), "age": ("4", "30"), "smiling": ("no", "yes")}
    assert Embeddings.from_arrays([[1.0, 2.0]], ids=[7], about={"model": "m"}).ids == ("7",)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COLUMN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@st.composite
def everything(draw: st.DrawFn) -> tuple[Embeddings, dict[str, torch.Tensor]]:
    n = draw(st.integers(1, 5))
    d = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    names = ("a", "ü", "c/d")
    columns = draw(st.lists(COLUMN, max_size=2, unique=True))
    features = rng.normal(size=(n, d)).astype(
        draw(st.sampled_from(["float16", "float32", "float64"]))
    )
    embeddings = Embeddings(
        features,
        tuple(draw(st.lists(TEXT, min_size=n, max_size=n))),
        {column: Labels(rng.integers(UNKNOWN, len(names), n), names) for column in columns},
        tuple(draw(st.lists(TEXT, min_size=n, max_size=n))) if draw(st.booleans()) else (),
        {"model": "m", "n": [n, None]},
    )
    prompts = draw(st.lists(TEXT, max_size=3, unique=True))
    return embeddings, {prompt: torch.from_numpy(rng.normal(size=d)).float() for prompt in prompts}


@given(embeddings_and_texts=everything())
@settings(max_examples=15, deadline=None)
def test_saved_embeddings_can_be_loaded(tmp_path_factory: Any, embeddings_and_texts: Any) -> None:
    embeddings, texts = embeddings_and_texts
    path = tmp_path_factory.mktemp("files") / "new" / "file.npz"
    assert save_embeddings(path, embeddings, texts) == path
    loaded, found_texts = load_embeddings(path)
    assert loaded.features.dtype == embeddings.features.dtype
    assert np.array_equal(loaded.features, embeddings.features)
    assert (loaded.ids, loaded.captions) == (embeddings.ids, embeddings.captions)
    assert loaded.about == {**embeddings.about, "file": str(path)}
    assert loaded.labels.keys() == embeddings.labels.keys()
    for column, labels in embeddings.labels.items():
        assert loaded.column(column).names == labels.names
        assert np.array_equal(loaded.column(column).codes, labels.codes)
    assert {k: v.tolist() for k, v in (found_texts or {}).items()} == {
        k: v.tolist() for k, v in texts.items()
    }
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def arrays(**changes: Any) -> dict[str, Any]:
    return {"features": np.eye(3, 4, dtype=np.float32), **changes}


def write(folder: Path, **fields: Any) -> Path:
    path = folder / "mine.npz"
    np.savez(path, **fields)
    return path


def test_a_file_written_with_numpy_is_loaded(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **arrays(
            ids=np.array(["x.jpg", "y.jpg", "z.jpg"]),
            captions=np.array([b"one", b"two", "drei ü".encode()]),
        ),
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
            **dict.fromkeys(("other", "extra"), np.ones(2)),
        },
    )
    embeddings, texts = open_embeddings(path)
    assert list(texts or ()) == ["a"]  # the same embedding twice
    assert embeddings.ids == ("x.jpg", "y.jpg", "z.jpg")
    assert embeddings.captions == ("one", "two", "drei ü")
    assert embeddings.column("gender").counts == {"female": 1, "male": 1}
    place, year, smiling, g = (
        (labels.names, labels.codes.tolist()) for labels in list(embeddings.labels.values())[1:]
    )
    assert place == (("land", "water"), [1, 0, UNKNOWN])
    assert year == (("-1", "204", "1999"), [2, 0, 1])
    assert smiling == (("no", "yes"), [1, 0, 1])
    assert g == (("b", "a", "none of them"), [0, 1, 0])
    assert embeddings.about == {"file": str(path), "ignored": ["extra", "other"]}


def test_text_embeddings_are_loaded_from_a_file_without_images(tmp_path: Path) -> None:
    texts = load_texts(write(tmp_path, text=np.eye(2, 4), prompts=np.array(["a", "b"])))
    assert (list(texts), texts["b"].tolist()) == (["a", "b"], [0, 1, 0, 0])
    with pytest.raises(InvalidInputError, match=r"array 'features', got \['prompts', 'text'\]"):
        load_embeddings(tmp_path / "mine.npz")
    with pytest.raises(InvalidInputError, match=r"\.npz: got no text embeddings; .*'prompts'"):
        load_texts(write(tmp_path, **arrays()))
    with pytest.raises(InvalidInputError, match=r"none.npz: cannot be read"):
        load_texts(tmp_path / "none.npz")


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was opened",))


def test_a_flipped_bit_and_an_unlisted_column_raise_errors(
    tmp_path: Path,
) -> None:
    complete = Embeddings(
        np.arange(24, dtype=np.float32).reshape(8, 3),
        tuple("abcdefgh"),
        {"g": Labels.from_values("xy" * 4)},
    )
    path = save_embeddings(tmp_path / "file.npz", complete, {"a photo": torch.ones(3)})
    content = path.read_bytes()
    # The second place is the number of arrays, at the end of the file.
    for place in (
        content.index(complete.features.tobytes()),
        len(content) - 12,
    ):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(InvalidInputError, match=r"file.npz: .*cannot be read"):
            load_embeddings(path)


@pytest.mark.parametrize("column", ["ids", "captions"])
def test_a_single_string_is_not_treated_as_a_column_of_letters(column: str) -> None:
    settings: dict[str, Any] = {"ids": ("a", "b"), column: "ab"}
    match = f"{column}: expected a list with one string per row, got the string 'ab'"
    with pytest.raises(InvalidInputError, match=match):
        Embeddings(np.ones((2, 3)), labels={}, **settings)
    with pytest.raises(InvalidInputError, match=match):
        Embeddings.from_arrays(np.ones((2, 3)), **settings)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"features": np.ones((3, 4), dtype=int)}, r"features: .*shape \(3, 4\) with dtype int64"),
    ({"features": np.float32(1)}, r"features: expected floats \(n, d\), got shape \(\)"),
    ({"ids": np.array(["a", "b"])}, r"expected 3 rows in every column, got \{'ids': 2\}"),
    ({"ids": np.array([1.0, 2, 3])}, r"'ids': expected strings \(n,\), got shape \(3,\)"),
    ({"ids": np.frombuffer(b'{"a": 1}', dtype=np.uint8)}, r"'ids': .* \(8,\) with dtype uint8"),
    ({"captions": np.arange(3, dtype=np.uint8)}, "'captions': expected UTF-8 JSON"),
    ({"ids": np.array([Bomb(), 1, "x"], dtype=object)}, "Python objects are never unpickled"),
    ({"ids": np.array([b"a", b"\xff", b"c"])}, "'ids': .*bytes that are not UTF-8"),
    ({"ids": np.frombuffer(b"[" * 100_000, dtype=np.uint8)}, "'ids': expected UTF-8 JSON"),
    ({"label.g": np.array([0.5, 1, 2])}, "'label.g': expected strings or integers, got float64"),
    ({"label.g": np.array([0, 1])}, r"expected 3 rows in every column, got \{'g': 2\}"),
    ({"label.g": np.array([0, 1, 7]), "names.g": np.array(["a", "b"])}, "'label.g': .*codes -1"),
    ({"text": np.ones((2, 4))}, r"'text': expected floats \(0, 4\)"),
    ({"prompts": np.array(["a"])}, r"'text': expected floats \(1, 4\).* got shape \(0,\)"),
    ({"text": np.ones((1, 5)), "prompts": np.array(["a"])}, r"'text': .* got shape \(1, 5\)"),
    ({"text": np.eye(2, 4), "prompts": np.array(["a", "a"])}, "'prompts': 'a' occurs twice"),
    ({"about": np.array("[1]")}, "'about': expected a JSON object, got list"),
]


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_inconsistent_files_raise_errors_with_their_name(
    fields: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path = write(tmp_path, **(arrays() | fields))
    with pytest.raises(InvalidInputError, match=rf"mine.npz: .*{text}"):
        load_embeddings(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_features_raise_an_error(value: float, tmp_path: Path) -> None:
    features = np.ones((5, 2), dtype=np.float32)
    features[[2, 4], 1] = value
    path = save_embeddings(
        tmp_path / "file.npz", Embeddings.from_arrays(features, ids=list("abcde"))
    )
    with pytest.raises(InvalidInputError, match=r"2 of 5 rows are not finite, .* row 2 \('c'\)"):
        load_embeddings(path)


def one_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"junk" * 20, pickle.dumps(Bomb()), b"PK\x03\x04 cut", one_array()]
)
def test_invalid_files_raise_errors(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"bad.npz: cannot be read .*expected a .npz file"):
        load_embeddings(path)


def test_small_files_that_expand_to_gigabytes_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, features=np.zeros((300_000, 128)))
    with pytest.raises(InvalidInputError, match=r"bad.npz: .* bytes expand to 307,2"):
        load_embeddings(path)
    with pytest.raises(InvalidInputError, match=r"bad.npz: .* bytes expand to 307,2"):
        load_texts(path)
    usual = np.random.default_rng(0).normal(size=(1000, 64)).astype(np.float16)
    np.savez_compressed(path, features=usual.astype(np.float64), ids=np.arange(1000).astype(str))
    assert len(load_embeddings(path)[0]) == 1000
