"""Test that the miniature agrees with real models on geometry and on the ranking of methods, so
that later versions cannot drift."""

from pathlib import Path

import numpy as np
import pytest
import torch

from eval.experiments.embeddings import celeba, file
from eval.experiments.validity import LEAN, RANGES, correlation, gaps, geometry, in_space, lean
from eval.miniature import people, portraits
from vldebias.hosts import resolve
from vldebias.miniature import load_clip
from vldebias.prompts import load_prompts
from vldebias.report.result import Result

COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "validity.json"


@pytest.fixture
def cloud() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return eight-dimensional images with gender along the first axis, and pairs that also differ
    along the second."""
    rng = np.random.default_rng(0)
    groups = np.arange(4000) % 2
    images = rng.normal(size=(4000, 9)) * 0.1
    images[:, 0] = np.where(groups == 0, 0.1, -0.1)
    images = np.c_[images, np.ones(4000)]
    pairs = np.zeros((3, 2, 10))
    pairs[:, 0, :2] = 0.1
    pairs[:, 1, :2] = -0.1
    pairs[..., 9] = 1.0
    queries = np.eye(10)[[9, 9]] + 0.1 * np.eye(10)[[2, 3]]
    return images, groups, queries, pairs


def test_the_geometry_of_a_known_cloud_is_measured_correctly(cloud):
    figures = geometry(*cloud)
    assert list(figures) == list(RANGES)
    # Nine axes vary by 0.1 each. The tenth is 1 in every image. Text expresses the attribute along
    # two axes, only the first of which is shared with the images. Queries share 1 and differ by
    # 0.1.
    assert figures["effective rank of images"] == pytest.approx(9, abs=0.3)
    assert figures["cosine of the attribute in images and texts"] == pytest.approx(
        0.5**0.5, abs=0.02
    )
    assert figures["cosine of queries"] == pytest.approx(1 / 1.01)
    assert figures["zero-shot accuracy of the attribute"] > 0.8
    assert figures["standardised gap of a query's scores"] < 0.1


def test_gaps_are_differences_in_units_of_standard_deviations(cloud):
    images, groups, _, _ = cloud
    query = np.eye(10)[[2, 0]]
    query[1, 2] = 1.0
    none, leaning = gaps(query, images, groups)
    assert abs(none) < 0.1
    # The groups are at 0.1 and -0.1 on the first axis, and the noise on the third is 0.1.
    assert leaning == pytest.approx(0.2 / 0.1, abs=0.1)


def test_lean_is_measured_along_the_pairs(cloud):
    shares = np.array([0.1, 0.4, 0.6, 0.9])
    queries = np.zeros((4, 10))
    queries[:, 9] = 1.0
    # Leans along the pairs equal the logit of each share, so the correlation is 1, or -1 if it is
    # reversed.
    queries[:, 0] = 0.01 * np.log(shares / (1 - shares))
    assert lean(queries, cloud[3], shares) == pytest.approx(1, abs=1e-3)
    assert lean(queries[::-1], cloud[3], shares) == pytest.approx(-1, abs=1e-3)


def test_ranks_only_include_methods_measured_on_both_models():
    real = {"none": 9.0, "a": 0.1, "b": 0.2, "c": 0.3, "other": 0.0}
    assert correlation({"none": 0.0, "random": 0.5, "a": 1, "b": 2, "c": 3}, real) == pytest.approx(
        1
    )
    assert correlation({"a": 3, "b": 2, "c": 1}, real) == pytest.approx(-1)


def test_the_geometry_of_the_real_model_is_within_its_range():
    if not file().is_file():
        pytest.skip(
            f"NOT CHECKED: no real embeddings at {file()}; set VLDEBIAS_REAL to their folder"
        )
    data = celeba()
    figures = geometry(
        data.images.features, data.gender, *in_space(data.texts, data.prompts, data.queries)
    )
    for name, (low, high) in RANGES.items():
        assert low * 0.97 <= figures[name] <= high * 1.1, name


def test_the_packaged_model_has_the_committed_geometry():
    """Later versions cannot drift from the table unnoticed. Fewer pictures are used, the first ones
    from the same stream."""
    committed = {
        (r.task, r.metric): r.value for r in Result.read(COMMITTED).rows if r.method == "none"
    }
    model, preprocess, tokenizer = load_clip()
    jobs = load_prompts("professions-gender")
    shown = portraits.sample(400, seed=9002, balanced=True)
    with torch.no_grad():
        images = model.encode_image(
            torch.stack([preprocess(image) for image in shown.images])
        ).numpy()
    queries, pairs = in_space(resolve(model, tokenizer=tokenizer), jobs, jobs.held_out_classes)
    for name, value in geometry(images, shown.gender.numpy(), queries, pairs).items():
        expected = committed["professions", name]
        assert value == pytest.approx(expected, abs=0.03, rel=0.06) or "gap" in name, name
    assert lean(queries, pairs, people.MALE_SHARE[-20:]) == pytest.approx(
        committed["professions", LEAN], abs=1e-3
    )
