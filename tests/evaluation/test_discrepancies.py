"""Counts of many prompts are twins of the metrics one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vldebias.data import UNKNOWN
from vldebias.evaluation.discrepancies import Counts
from vldebias.metrics import attribute_shares


@st.composite
def codes(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    values = draw(st.integers(2, 5))
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
    return draw(arrays(np.int64, shape, elements=st.integers(UNKNOWN, values - 1))), values


@given(codes())
def test_prompts_are_measured_as_one_by_one(given_codes: tuple[np.ndarray, int]) -> None:
    table, values = given_codes
    counts = Counts.of(table, values)
    for i, row in enumerate(table):
        if (row == UNKNOWN).all():
            assert counts.unknown_rate[i] == 1
            assert np.isnan(counts.shares[i]).all()
            continue
        twin = attribute_shares(row, values, unknown=UNKNOWN)
        assert counts.unknown_rate[i] == pytest.approx(twin.unknown_rate)
        assert counts.shares[i] == pytest.approx(np.array(twin.shares))
        assert counts.n[i] == twin.n
    assert counts.undecidable == sum((row == UNKNOWN).all() for row in table)
