"""On real CLIP embeddings the code does what it did when the method was first measured on them.

The embeddings are not part of the project; without them these tests are skipped, and the reason says where to put them.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from vldebias.evaluation.result import Result
from vldebias.metrics import max_skew

ROOT = Path(__file__).parents[1]
COMMITTED = ROOT / "eval" / "results" / "real_clip_b32.json"

# Measured before this code was written: MaxSkew@100, and the cosine of a query with itself before and after.
MEASURED = {
    "none": (0.472, 1.0),
    "orth": (0.262, 0.475),
    "orth-cali": (0.261, 0.441),
    "cali": (0.217, 0.981),
    "difference": (0.188, 0.998),
}


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_clip", ROOT / "eval" / "real_clip.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["real_clip"] = module
    spec.loader.exec_module(module)
    return module


real_clip = load_script()


@pytest.fixture(scope="module")
def path() -> Path:
    found = real_clip.data_file()
    if not found.is_file():
        pytest.skip(f"REAL CLIP EMBEDDINGS NOT CHECKED: {found} is missing; set VLDEBIAS_REAL to its folder")
    return found


@pytest.fixture(scope="module")
def result(path: Path) -> Result:
    return real_clip.measure(path)


@pytest.mark.parametrize("method", MEASURED)
def test_the_measured_table_is_reproduced(result: Result, method: str) -> None:
    skew, cosine = MEASURED[method]
    assert result.figure("celeba-1000", "max_skew@100", method).value == pytest.approx(skew, abs=0.01)
    assert result.figure("celeba-1000", "query_cosine", method).value == pytest.approx(cosine, abs=0.005)


def test_every_method_lowers_the_skew_beyond_its_interval(result: Result) -> None:
    for method in MEASURED.keys() - {"none"}:
        figure = result.figure("celeba-1000", "max_skew@100", method)
        assert figure.change[2] < 0
        assert figure.interval[0] <= figure.value <= figure.interval[1]


def test_texts_and_images_share_one_space(path: Path) -> None:
    data = real_clip.load(path)
    man, woman = data.texts.embed(data.prompts.spurious).float()
    guessed = (data.images.normalised() @ man < data.images.normalised() @ woman).long().numpy()
    assert (guessed == data.images.column("gender").codes).mean() > 0.98
    assert len(data.prompts.pairs) == 32
    assert data.prompts.pairs[0] == data.prompts.spurious
    assert len(data.queries) == 51


def test_pools_are_balanced(path: Path) -> None:
    gender = real_clip.load(path).images.column("gender")
    pools = real_clip.pools(gender)
    assert len(pools) == 10
    assert all(len(np.unique(pool)) == 804 and gender[pool].counts == {"male": 402, "female": 402} for pool in pools)


def test_a_pool_agrees_with_plain_loops(path: Path) -> None:
    data = real_clip.load(path)
    pool = real_clip.pools(data.images.column("gender"))[0]
    part = real_clip.evaluate(data, pool)
    rows = normalize(torch.tensor(data.images.features[pool]).double(), dim=1)
    projection = data.texts.fit(data.prompts, "cali", 1000.0)
    queries = normalize(projection(data.texts.embed(data.queries)), dim=1)
    groups = data.images.column("gender").codes[pool]
    values = {(f.method, f.subset): f.value for f in part.figures if f.metric == "max_skew@100"}
    for query, row in zip(data.queries, queries, strict=True):
        assert values["cali", query] == pytest.approx(max_skew(rows @ row, groups, 100))


def test_the_committed_result_is_what_the_code_gives(result: Result) -> None:
    committed = Result.model_validate_json(COMMITTED.read_text(encoding="utf-8"))
    assert len(committed.figures) == len(result.figures)
    for figure in committed.figures:
        again = result.figure(figure.task, figure.metric, figure.method)
        assert figure.value == pytest.approx(again.value, abs=1e-3)
        assert figure.interval == pytest.approx(again.interval, abs=1e-3)


def test_the_floor_is_that_of_random_rankings() -> None:
    rng = np.random.default_rng(0)
    share = rng.hypergeometric(402, 402, 100, size=100_000) / 100
    assert real_clip.floor() == pytest.approx(np.log(2 * np.maximum(share, 1 - share)).mean(), abs=1e-3)


def test_the_committed_result_is_complete() -> None:
    committed = Result.model_validate_json(COMMITTED.read_text(encoding="utf-8"))
    shown = {(f.metric, f.method) for f in committed.figures}
    assert shown >= {(metric, method) for metric in ("max_skew@100", "query_cosine") for method in MEASURED}
    assert ("max_skew@100", "random ranking") in shown
    (protocol,) = committed.protocols
    assert protocol.seeds == list(range(10))
    assert protocol.methods["orth-cali"]["lam"] == 1000
    assert protocol.settings["prior"] == "uniform"
    assert protocol.settings["ties"] == "stable"
    assert protocol.settings["floor"] == {"max_skew@100": 0.0, "min_skew@100": 0.005}


def test_missing_data_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLDEBIAS_REAL", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["real_clip.py"])
    assert real_clip.main() == 2
    assert f"{tmp_path / real_clip.FILE}: not found; set VLDEBIAS_REAL" in capsys.readouterr().err
