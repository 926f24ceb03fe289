"""Provide stand-ins for the real data sets."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.data.data_parts import RACES, celeba, fairface, waterbirds


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """Return a folder with waterbirds, celeba and fairface in the layouts of their releases, with
    tiny images."""
    waterbirds(
        tmp_path / "waterbirds/waterbird_complete95_forest2water2",
        [*product((0, 1), (0, 1, 2), (0, 1))] * 2,
    )
    root = tmp_path / "celeba"
    values = np.random.default_rng(0).integers(0, 2, (24, 40)) * 2 - 1
    celeba(root / "Anno", root / "Img/img_align_celeba", values, [0, 1, 2] * 8)
    (root / "Eval").mkdir()
    (root / "Anno/list_eval_partition.txt").rename(root / "Eval/list_eval_partition.txt")
    rows = [("20-29", gender, race) for race, gender in product(RACES, ("Male", "Female"))]
    for part in ("train", "val"):
        fairface(
            tmp_path / "fairface", part, rows, tmp_path / "fairface/fairface-img-margin025-trainval"
        )
    return tmp_path


@pytest.fixture
def hf_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary folder for the `datasets` cache."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()
