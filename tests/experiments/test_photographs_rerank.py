"""Test the parts of `eval.photographs.rerank`, and the photographs themselves if they are
available."""

import numpy as np
import pandas as pd
import pytest

from eval.photographs import is_present
from eval.photographs import rerank as experiment
from eval.photographs.rerank import DESIGNS, Gallery, all_galleries, lists_of
from eval.tables import resampled_ratio


def gallery(true: list[str]) -> Gallery:
    features = np.eye(len(true), dtype=np.float32)
    return Gallery("synthetic", features, np.array(true), "gender", {}, ())


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.1, 0.9), (0.9, 0.1)])
def test_a_composed_gallery_has_the_requested_shares(shares: tuple[float, float]) -> None:
    composed = gallery(["a"] * 30 + ["b"] * 90).composed(shares)
    assert (composed.true == "a").mean() == pytest.approx(shares[0], abs=0.02)
    # Rows keep their labels.
    rows = composed.features.argmax(axis=1)
    assert np.array_equal(composed.true == "a", rows < 30)


def test_one_outlying_cluster_widens_the_interval() -> None:
    mixed = np.tile([10.0, 20.0], (10, 1))
    assert resampled_ratio(mixed, 200) == (0.5, (0.5, 0.5))  # every cluster has the same mean
    apart = np.array([[20.0, 20.0]] * 5 + [[0.0, 20.0]] * 5)
    mean, (low, high) = resampled_ratio(apart, 2000)
    assert low < 0.3 < mean == 0.5 < 0.7 < high


@pytest.mark.slow
@pytest.mark.skipif(not is_present(), reason="the photographs are missing; set VLDEBIAS_REAL")
def test_every_photograph_list_has_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "QUERIES", 6)
    table = pd.DataFrame(lists_of(next(all_galleries()), 0))
    assert set(map(str, DESIGNS)) < set(table["method"])
    assert table["coverage"].notna().all()
    checked = table[table["method"].isin(list(map(str, DESIGNS)))]
    assert checked["coverage"].mean() > 0.8
