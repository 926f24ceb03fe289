"""Test arrays as other libraries create them: they give the same result, or an error that names the
argument."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vldebias
from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.measure.rankings import ndkl
from vldebias.measure.representation import representation_gap
from vldebias.measure.resampling import bootstrap_interval
from vldebias.methods.reference import Reference
from vldebias.utils.vectors import read_vectors

N = 12
FEATURES = np.random.default_rng(0).normal(size=(N, 4))
SCORES = np.linspace(1, 0, N)
CODES = np.array([0, 0, 0, 1] * 3)
NAMES = np.array(["f", "f", "f", "m"] * 3)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a copy that cannot be written to."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def of_polars(array: np.ndarray) -> Any:
    """Return a polars column or frame."""
    polars = pytest.importorskip("polars")
    return polars.Series(array) if array.ndim == 1 else polars.DataFrame(array)


def big_endian(array: np.ndarray) -> np.ndarray:
    """Return the array in the byte order of other machines and old files."""
    return array.astype(array.dtype.newbyteorder(">"))


def longdouble(array: np.ndarray) -> np.ndarray:
    """Return floats in extended precision."""
    return array.astype(np.longdouble) if array.dtype.kind == "f" else array


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "big-endian": big_endian,
    "longdouble": longdouble,
    "read-only": read_only,
    "reversed twice": lambda array: array[::-1].copy()[::-1],
    "without masked values": np.ma.array,
    "list": np.ndarray.tolist,
    "pandas": lambda array: (pd.Series if array.ndim == 1 else pd.DataFrame)(array),
    "polars": of_polars,
    "tensor": lambda array: array.tolist() if array.dtype.kind == "U" else torch.from_numpy(array),
}


def reference(features: Any) -> list[list[float]]:
    """Return unit rows of a reference; a list means batches."""
    parts = [np.array(features)] if isinstance(features, list) else features
    return torch.cat(list(Reference(parts).batches())).tolist()


# Argument of a function -> plain values, and the function of this argument.
ARGUMENTS: dict[str, tuple[np.ndarray, Callable[[Any], Any]]] = {
    "reference": (FEATURES, reference),
    "vectors": (FEATURES, lambda rows: read_vectors(rows, "vectors").rows.double().tolist()),
    "labels": (NAMES, lambda names: list(vldebias.rerank(SCORES, 6, labels=names))),
    "codes": (CODES, lambda codes: list(vldebias.rerank(SCORES, 6, labels=codes))),
    "scores": (SCORES, lambda scores: list(vldebias.rerank(scores, 6, labels=NAMES))),
    "values": (NAMES, lambda names: Labels.from_array(names).codes.tolist()),
    "groups": (CODES, lambda codes: ndkl(SCORES, codes)),
    "selected": (
        (SCORES > 0.5).astype(float),
        lambda selected: representation_gap(FEATURES, selected, FEATURES),
    ),
    "sample": (SCORES, lambda sample: [round(x, 12) for x in bootstrap_interval(sample)]),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_array_of_any_kind_gives_the_same_result(kind: str, argument: str) -> None:
    plain, function = ARGUMENTS[argument]
    assert function(KINDS[kind](plain)) == function(plain)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_masked_values_are_refused_instead_of_read(argument: str) -> None:
    plain, function = ARGUMENTS[argument]
    mask = np.zeros(plain.shape, dtype=bool)
    mask[3] = True
    with pytest.raises(InvalidInputError, match=r"masked array with [14] masked values"):
        function(np.ma.array(plain, mask=mask))


@pytest.mark.parametrize("features", [FEATURES[0], FEATURES.astype(int), FEATURES.astype(str)])
def test_a_reference_of_other_numbers_is_refused(features: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match=r"^reference: got"):
        reference(features)
