"""Test which pairs `keep` leaves out, against a naive version, and when it refuses to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vldebias.errors import InvalidInputError
from vldebias.training.filtering import SCORES, StartingScores, _refuse_uninformed


def naive_best(index: list[int], scores: list[float], keep: float) -> set[int]:
    """Return the rows to keep: the best ones by score, in a loop, and no unreadable images."""
    readable = [(score, row) for score, row in zip(scores, index, strict=True) if score == score]
    readable.sort(key=lambda pair: -pair[0])
    left_out = round((1 - keep) * len(readable))
    return {row for _, row in readable[: len(readable) - left_out]}


@pytest.mark.parametrize("keep", [0.1, 0.25, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_pairs_are_kept(keep: float, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    index = np.sort(rng.choice(1000, size=200, replace=False))
    values = rng.normal(size=200).astype(np.float32)
    values[[3, 77]] = np.nan
    scores = StartingScores(index, values, rng.normal(size=50).astype(np.float32))
    expected = naive_best(index.tolist(), values.tolist(), keep)
    assert set(scores.best(keep).tolist()) == expected
    weights = scores.weights(keep)
    assert {int(row) for row, weight in zip(index, weights, strict=True) if weight} == expected
    assert set(weights.tolist()) == {0.0, 1.0}
    scores.save(tmp_path)
    again = StartingScores.load(tmp_path)
    assert again.best(keep).tolist() == scores.best(keep).tolist()
    assert again.exchanged.tolist() == scores.exchanged.tolist()
    (tmp_path / SCORES).write_bytes((tmp_path / SCORES).read_bytes()[:-30])
    with pytest.raises(InvalidInputError, match="delete the folder to start again"):
        StartingScores.load(tmp_path)


def naive_area(own: np.ndarray, exchanged: np.ndarray) -> float:
    """Return how often an own caption scores higher than an exchanged one; ties count half."""
    wins = [float(a > b) + float(a == b) / 2 for a in own for b in exchanged]
    return sum(wins) / len(wins)


def test_scores_that_could_be_chance_are_refused() -> None:
    own = np.array([0.1, 0.2, 0.4, 0.5, 0.7, 0.9], np.float32)
    exchanged = np.array([0.15, 0.3, 0.35, 0.45, 0.6, 0.05], np.float32)
    area = naive_area(own, exchanged)
    assert area > 0.6, "the value alone would be enough"
    with pytest.raises(InvalidInputError, match=rf"AUROC {area:.2f} \[0\.\d+, "):
        _refuse_uninformed("these", own, exchanged)
    # Many scores with the same value are no chance.
    _refuse_uninformed("these", np.tile(own, 60), np.tile(exchanged, 60))
    unreadable = np.append(np.tile(own, 60), np.float32(np.nan))
    _refuse_uninformed("these", unreadable, np.tile(exchanged, 60))
    with pytest.raises(InvalidInputError, match=r"AUROC 0\.50"):
        _refuse_uninformed("these", np.tile(own, 60), np.tile(own, 60))
    _refuse_uninformed("these", own, np.array([], np.float32))
