"""An evaluation of features in shards has the figures of one array, to the digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded_parts import FEATURES, REFERENCE, figures

from vldebias.data import Shards

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
CUTS = [1, 3, 400, 401, 1290]


@pytest.mark.parametrize("task", ["retrieval", "groups"])
@pytest.mark.parametrize("side", ["text", "image"])
def test_figures_are_those_of_one_array(task: str, side: str) -> None:
    shards = Shards.of_arrays(np.split(FEATURES, CUTS))
    reference = Shards.of_arrays(np.split(REFERENCE, [5, 640]))
    found = figures(task, shards, reference=reference, side=side)
    assert found == figures(task, FEATURES, side=side)
    assert len(found) > 50


def test_of_files_that_are_named_by_a_pattern_and_with_random_ties(tmp_path: Path) -> None:
    for i, part in enumerate(np.split(FEATURES, CUTS)):
        np.save(tmp_path / f"{i}.npy", part)
    more: dict[str, Any] = {"ties": "random", "utility": {"relevant": None}}
    assert figures("retrieval", f"{tmp_path}/*.npy", **more) == figures("retrieval", FEATURES, **more)
    np.save(tmp_path / "whole.npy", FEATURES)
    assert figures("groups", tmp_path / "whole.npy") == figures("groups", FEATURES)
