"""Embeddings: what they refuse, and rows that stay together whatever is selected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.data import Embeddings, Labels
from vldebias.errors import InvalidInputError


def make(n: int = 5, **more: Any) -> Embeddings:
    features = np.arange(1, 3 * n + 1, dtype=np.float16).reshape(n, 3)
    labels = {"parity": Labels(np.arange(n) % 2, ("even", "odd"))}
    settings = {"features": features, "ids": tuple(f"i{i}" for i in range(n)), "labels": labels}
    return Embeddings(**(settings | {"captions": tuple(f"c{i}" for i in range(n)), "about": {"data": "d"}} | more))


@given(st.data())
def test_rows_stay_together(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    rows: Any = data.draw(
        st.one_of(
            st.lists(st.integers(0, n - 1), max_size=12).map(lambda rows: np.array(rows, dtype=int)),
            st.lists(st.booleans(), min_size=n, max_size=n).map(lambda mask: np.array(mask, dtype=bool)),
            st.slices(n),
        )
    )
    whole, some = make(n), make(n)[rows]
    assert len(some) == len(some.ids) == len(some.captions) == len(some.column("parity"))
    for k, name in enumerate(some.ids):
        i = whole.ids.index(name)
        assert np.array_equal(some.features[k], whole.features[i])
        assert some.column("parity").codes[k] == whole.column("parity").codes[i]
        assert some.captions[k] == whole.captions[i]
    assert some.ids == tuple(np.array(whole.ids)[rows])
    assert some.about == whole.about


def test_normalised_rows_have_length_one() -> None:
    rows = make().normalised()
    assert rows.dtype == torch.float32
    assert torch.allclose(rows.norm(dim=1), torch.ones(5))
    whole = torch.from_numpy(make().features).float()
    assert torch.allclose(rows * whole.norm(dim=1, keepdim=True), whole, atol=1e-5)
    assert make().dim == 3


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_rows_without_a_direction_are_named(value: float) -> None:
    features = make().features.copy()
    features[3] = value
    with pytest.raises(InvalidInputError, match=r"features: 1 rows are zero or not finite, such as \['i3'\]"):
        make(features=features).normalised()


@refused(
    ({"features": np.ones(5)}, r"features: expected floats \(n, d\), got \(5,\) of float64"),
    ({"features": np.ones((5, 3), dtype=int)}, r"features: expected floats \(n, d\), got \(5, 3\) of int64"),
    ({"ids": ("a",)}, r"expected 5 rows in every column, got \{'ids': 1\}"),
    ({"captions": ("a", "b")}, r"expected 5 rows in every column, got \{'captions': 2\}"),
    ({"labels": {"x": Labels.of(["a"])}}, r"expected 5 rows in every column, got \{'x': 1\}"),
)
def test_what_does_not_fit_is_refused(more: dict[str, Any]) -> None:
    make(**more)


def test_it_says_in_a_line_what_it_is() -> None:
    assert repr(make(1000)) == "Embeddings(1000 images of width 3, columns ['parity'], captions)"


def test_columns_by_name() -> None:
    assert make().column("parity").names == ("even", "odd")
    with pytest.raises(InvalidInputError, match=r"no column 'gender'; there are \['parity'\]"):
        make().column("gender")
    assert replace(make(), captions=())[[0]].captions == ()


def test_arrays_lists_and_tensors_make_embeddings() -> None:
    labels = {"gender": np.array(["f", "m"]), "age": torch.tensor([30, 4]), "smiling": [True, False]}
    found = Embeddings.of(torch.eye(2, 3, dtype=torch.bfloat16, requires_grad=True), labels, captions=["a", "b"])
    assert (found.features.dtype, found.features.tolist()) == (np.float32, [[1, 0, 0], [0, 1, 0]])
    assert (found.ids, found.captions) == (("0", "1"), ("a", "b"))
    assert found.column("gender").names == ("f", "m")
    assert found.column("age").names == ("4", "30")
    assert found.column("smiling").codes.tolist() == [1, 0]
    assert Embeddings.of([[1.0, 2.0]], ids=[7], about={"model": "m"}).ids == ("7",)


def test_what_makes_no_embeddings_is_refused_with_the_name_of_the_column() -> None:
    with pytest.raises(InvalidInputError, match=r"features: expected floats \(n, d\), got \(3,\) of float64"):
        Embeddings.of([1, 2, 3])
    for features in ("a folder", [[1.0], [1.0, 2.0]], [["a"]], None, {}):
        with pytest.raises(InvalidInputError, match=r"features: expected (floats|numbers) \(n, d\), got "):
            Embeddings.of(features)
    with pytest.raises(InvalidInputError, match=r"labels\['age'\]: expected strings or integers, got float64"):
        Embeddings.of(np.eye(2), {"age": [0.5, 1]})
    with pytest.raises(InvalidInputError, match=r"expected 2 rows in every column, got {'age': 1}"):
        Embeddings.of(np.eye(2), {"age": [1]})
