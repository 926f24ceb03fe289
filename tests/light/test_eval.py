"""Test measurements with the core and `eval`. `.ci/environments eval` runs these tests with nothing
else installed."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import vldebias
from vldebias.errors import MissingPackageError
from vldebias.report.page import page_templates, render
from vldebias.report.result import Result

pytest.importorskip("pandas", reason="the core alone is there; see test_core.py")

# The dimension of random embeddings triggers a warning.
pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

DIM = 32
IMAGES = 60
GENDERS = ["female", "male"] * (IMAGES // 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with text embeddings, image embeddings and genders, as arrays."""
    folder = tmp_path_factory.mktemp("embeddings")
    rng = np.random.default_rng(0)
    prompts = vldebias.load_prompts("professions-gender").texts
    np.save(folder / "texts.npy", rng.standard_normal((len(prompts), DIM)).astype(np.float32))
    np.save(folder / "images.npy", rng.standard_normal((IMAGES, DIM)).astype(np.float32))
    (folder / "prompts.json").write_text(json.dumps(prompts))
    return folder


def measured(folder: Path, images: Path | None = None) -> Result:
    texts = dict(
        zip(
            json.loads((folder / "prompts.json").read_text()),
            np.load(folder / "texts.npy"),
            strict=True,
        )
    )
    labels = {"gender": GENDERS} if images is None else None
    features = np.load(folder / "images.npy") if images is None else images
    how = {"attribute": "professions-gender", "methods": ["none", "cali"], "k": 10, "resamples": 50}
    return vldebias.evaluate(texts, features, labels=labels, **how)


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return measured(folder)


def test_evaluate_measures_arrays_from_files(result: Result, tmp_path: Path) -> None:
    assert {row.method for row in result.rows} >= {"none", "cali"}
    assert len(result.to_pandas()) == len(result.rows)
    assert Result.read(result.write(tmp_path / "result.json")).rows == result.rows


def test_a_page_with_charts_is_written(result: Result, tmp_path: Path) -> None:
    assert "<svg" in render(result, tmp_path / "page.html", run_folder=tmp_path).read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("package", ["pandas", "jinja2", "matplotlib"])
def test_missing_requirements_of_a_result_are_named(
    package: str, result: Result, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    # Discard the templates that an earlier page compiled in this process.
    page_templates.cache_clear()
    with pytest.raises(MissingPackageError, match=rf"^{package} is not installed.*\.\[eval\]"):
        result.to_pandas() if package == "pandas" else render(
            result, folder / "page.html", run_folder=folder
        )


def test_an_image_file_can_be_read(result: Result, folder: Path, tmp_path: Path) -> None:
    images = np.load(folder / "images.npy")
    names = np.array(GENDERS)
    np.savez(tmp_path / "images.npz", **{"features": images, "label.gender": names})
    assert measured(folder, tmp_path / "images.npz").rows == result.rows
