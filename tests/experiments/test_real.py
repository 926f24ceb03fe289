"""On real CLIP embeddings the code does what it did when the method was first measured on them.

The embeddings are not part of the project; without them these tests are skipped, and the reason says where to put them.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from torch.nn.functional import normalize

from eval.experiments import embeddings, real_clip
from eval.experiments.embeddings import LAM, Gallery, Sides
from vldebias.evaluation.result import Measurement, Result
from vldebias.metrics import max_skew, min_skew, ndkl
from vldebias.projection import CalibratedProjection

COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "real_clip_b32.json"

# Measured before this code was written: MaxSkew@100, and the cosine of a query with itself before and after.
MEASURED = {
    "none": (0.472, 1.0),
    "orth": (0.262, 0.475),
    "orth-cali": (0.261, 0.441),
    "cali": (0.217, 0.981),
    "difference": (0.188, 0.998),
}


@pytest.fixture(scope="module")
def path() -> Path:
    found = embeddings.file()
    if not found.is_file():
        pytest.skip(f"REAL CLIP EMBEDDINGS NOT CHECKED: {found} is missing; set VLDEBIAS_REAL to its folder")
    return found


@pytest.fixture(scope="module")
def data(path: Path) -> Gallery:
    return embeddings.celeba(path)


@pytest.fixture(scope="module")
def rows(path: Path) -> dict[tuple[str, str], Measurement]:
    (part,) = real_clip.measure(path)
    return {(row.metric, row.method): row for row in part.rows}


@pytest.mark.parametrize("method", MEASURED)
def test_the_measured_table_is_reproduced(rows: dict[tuple[str, str], Measurement], method: str) -> None:
    skew, cosine = MEASURED[method]
    assert rows["max_skew@100", method].value == pytest.approx(skew, abs=0.01)
    assert rows["query_cosine", method].value == pytest.approx(cosine, abs=0.005)


def test_every_method_lowers_the_skew_beyond_its_interval(rows: dict[tuple[str, str], Measurement]) -> None:
    for method in MEASURED.keys() - {"none"}:
        row = rows["max_skew@100", method]
        assert row.change is not None
        assert row.change[2] < 0


def test_texts_and_images_share_one_space(data: Gallery) -> None:
    man, woman = data.texts.embed(data.prompts.spurious)
    assert ((data.rows @ man < data.rows @ woman).long().numpy() == data.gender).mean() > 0.98
    assert len(data.prompts.pairs) == 32
    assert data.prompts.pairs[0] == data.prompts.spurious
    assert len(data.queries) == 51
    assert data.images.column("age").names == ("old", "young")


def test_a_pool_agrees_with_plain_loops(data: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_clip, "POOLS", 1)
    (pool,) = data.pools([0])
    pairs = np.stack([data.texts.embed(pair).numpy() for pair in data.prompts.pairs])
    projection = CalibratedProjection.fit(pairs, None, LAM)
    measured = real_clip.skews(data, Sides(projection))
    for i, query in enumerate(normalize(projection(data.texts.embed(data.queries)), dim=1)):
        one = (data.rows[pool] @ query, data.gender[pool], 100)
        assert measured["max_skew@100"][i] == pytest.approx(max_skew(*one))
        assert measured["min_skew@100"][i] == pytest.approx(min_skew(*one, floor=1 / 200))
        assert measured["ndkl@100"][i] == pytest.approx(ndkl(*one))


def test_the_committed_result_is_what_the_code_gives(rows: dict[tuple[str, str], Measurement]) -> None:
    committed = Result.read(COMMITTED)
    assert {(row.metric, row.method) for row in committed.rows} == set(rows)
    for row in committed.rows:
        again = rows[row.metric, row.method]
        assert row.value == pytest.approx(again.value, abs=1e-6)
        assert row.interval == pytest.approx(again.interval, abs=1e-6)


def test_missing_data_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLDEBIAS_REAL", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["real_clip.py"])
    assert real_clip.main() == 2
    assert f"{tmp_path / embeddings.FILE}: not found; set VLDEBIAS_REAL" in capsys.readouterr().err
