"""Maps of features: known structure stays, the oracle of PCA, what is refused, and libraries that are not there."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from vldebias.errors import InvalidInputError
from vldebias.pictures import read_metadata
from vldebias.training import feature_map as module
from vldebias.training.feature_map import check_map, feature_map, neighbour_agreement, plane

NAMES = ("cat", "dog", "owl")


def clusters(n: int = 120, noise: float = 0.15, seed: int = 0, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    centres = np.eye(3, d)[codes]
    return centres + noise * rng.normal(size=(n, d)), codes


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_classes_that_are_apart_stay_apart_and_seeds_repeat(method: str) -> None:
    features, codes = clusters()
    points = plane(features, method)
    assert points.shape == (120, 2)
    assert neighbour_agreement_of_distances(points, codes) > 0.95
    assert np.array_equal(plane(features, method), points)


def neighbour_agreement_of_distances(points: np.ndarray, codes: np.ndarray) -> float:
    distances = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag(np.full(len(points), np.inf))
    return float((codes[distances.argmin(axis=1)] == codes).mean())


def test_principal_components_agree_with_scikit_learn_up_to_sign() -> None:
    features, _ = clusters(noise=0.4)
    found, expected = plane(features, "pca"), PCA(2).fit_transform(features)
    assert np.abs(found) == pytest.approx(np.abs(expected), abs=1e-9)
    assert plane(-features, "pca") == pytest.approx(-found, abs=1e-9)  # directions have a fixed sign


def test_agreement_is_that_of_the_nearest_other_row() -> None:
    features, codes = clusters(90, noise=0.6)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    model = KNeighborsClassifier(2, weights=lambda d: (d > 0).astype(float)).fit(features, codes)  # not itself
    expected = float((model.predict(features) == codes).mean())
    assert neighbour_agreement(features, codes) == pytest.approx(expected)
    assert 0.4 < expected < 1


def test_agreement_leaves_unknown_rows_out() -> None:
    features = np.array([[1.0, 0], [1, 0.1], [1, 0.01], [0, 1]])
    assert neighbour_agreement(features, [0, 0, 1, 1]) == 0.25  # the third is nearest to the first and the second
    assert neighbour_agreement(features, [0, 0, -1, 1]) == pytest.approx(2 / 3)
    assert np.isnan(neighbour_agreement(features, [0, -1, -1, -1]))


def test_a_picture_with_panels_says_what_it_shows(tmp_path: Path) -> None:
    features, codes = clusters()
    mixed = np.random.default_rng(1).normal(size=(120, 5))
    panels = {"InfoNCE, η = 0.6": mixed, "RINCE costs $5, η = 0.6 猫": torch.from_numpy(features).float()}
    path = feature_map(panels, torch.from_numpy(codes), NAMES, tmp_path / "new" / "map.png")
    told = read_metadata(path)
    assert {name: told[name] for name in ("kind", "method", "seed", "perplexity", "images", "classes")} == {
        "kind": "feature map",
        "method": "tsne",
        "seed": 0,
        "perplexity": 30,
        "images": 120,
        "classes": list(NAMES),
    }
    low, high = (told["neighbour_agreement"][title] for title in panels)
    assert low < 0.5 < 0.95 < high
    with Image.open(path) as image:
        assert image.width > 1.5 * image.height > 600


def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *args: Any, **how: Any) -> Any:
    kept: list[Any] = []
    monkeypatch.setattr(module, "save_png", lambda plot, path, told: kept.append(plot) or path)
    feature_map(*args, tmp_path / "map.png", method="pca", **how)
    return kept[0]


def test_points_have_the_colour_of_their_class_in_every_panel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib.colors import to_rgba

    features, codes = clusters(30)
    codes[:3] = -1
    plot = drawn(monkeypatch, tmp_path, {"a": features, "b": -features}, codes, NAMES)
    order = np.random.default_rng(0).permutation(30)
    wanted = [to_rgba(module._UNKNOWN if c < 0 else module._COLOURS[c], 0.8) for c in codes[order]]
    for axis in plot.axes:
        assert np.allclose(axis.collections[0].get_facecolors(), wanted)
        assert axis.get_aspect() == 1
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert np.allclose(plot.axes[0].collections[0].get_offsets(), plane(unit[order], "pca"))
    assert [text.get_text() for text in plot.legends[0].texts] == [*NAMES, "unknown"]


def test_a_limit_draws_the_same_images_in_every_panel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    features, codes = clusters(90)
    monkeypatch.setattr(module, "LIMIT", 20)
    plot = drawn(monkeypatch, tmp_path, {"a": features, "b": features}, codes, NAMES)
    first, second = (np.asarray(axis.collections[0].get_offsets()) for axis in plot.axes)
    assert len(first) == 20
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("classes", "named"), [(3, True), (10, True), (14, True), (20, True), (21, False), (60, False)]
)
def test_colours_differ_and_a_legend_is_drawn_while_it_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, classes: int, named: bool
) -> None:
    assert len(set(module._palette(classes))) == classes
    features, _ = clusters(120)
    names = [f"class {i}" for i in range(classes)]
    plot = drawn(monkeypatch, tmp_path, {"a": features}, np.arange(120) % classes, names)
    assert bool(plot.legends) == named


@pytest.mark.parametrize(("panels", "shape"), [(1, (1, 1)), (2, (1, 2)), (4, (1, 4)), (5, (2, 3)), (8, (2, 4))])
def test_panels_are_laid_out_in_lines_of_four(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, panels: int, shape: tuple[int, int]
) -> None:
    features, codes = clusters(30)
    plot = drawn(monkeypatch, tmp_path, {str(i): features for i in range(panels)}, codes, NAMES)
    assert plot.axes[0].get_gridspec().get_geometry() == shape
    assert sum(axis.get_visible() for axis in plot.axes) == panels
    box = plot.axes[0].get_position()
    width, height = plot.get_size_inches()
    assert box.width * width == pytest.approx(box.height * height)  # square
    plot.draw_without_rendering()
    title = plot.axes[0].title.get_window_extent()
    assert title.y1 < height * plot.dpi  # inside the page


class FakeUMAP:
    """Stands for umap.UMAP: keeps what it was told."""

    told: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **told: Any) -> None:
        FakeUMAP.told = told

    def fit_transform(self, features: np.ndarray) -> np.ndarray:
        return features[:, :2].astype(np.float32)


def test_umap_is_asked_with_a_seed_and_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=FakeUMAP, __spec__=object()))
    features, codes = clusters(40)
    path = feature_map({"a": features}, codes, NAMES, tmp_path / "map.png", method="umap")
    assert FakeUMAP.told == {"n_components": 2, "n_neighbors": 15, "random_state": 0, "n_jobs": 1}
    told = read_metadata(path)
    assert (told["method"], told["neighbours"]) == ("umap", 15)
    assert "perplexity" not in told


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"method": "mds"}, "method: expected one of tsne, umap, pca, got 'mds'"),
        ({"panels": {}}, "expected a panel, got none"),
        ({"panels": {"a": np.zeros((4, 3))}}, r"a: expected features \(120, d\), d >= 2, .* got \(4, 3\)"),
        ({"panels": {"a": np.ones((120, 1))}}, r"got \(120, 1\)"),
        ({"panels": {"a": np.zeros((120, 3))}}, "a: 120 rows are zero or not finite"),
        ({"panels": {"a": np.full((120, 3), np.nan)}}, "a: 120 rows are zero or not finite"),
        ({"panels": {"a": np.full((120, 3), 2.0)}}, "a: all 120 rows point the same way"),
        ({"labels": np.full(120, 3)}, r"expected -1 \(unknown\) .. 2, one name for each class, got 3 .. 3"),
        ({"labels": np.full(120, -2)}, "got -2 .. -2"),
    ],
)
def test_errors(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    features, codes = clusters()
    given = {"panels": {"a": features}, "labels": codes, "names": NAMES, "path": tmp_path / "map.png"} | change
    with pytest.raises(InvalidInputError, match=text):
        feature_map(**given)
    assert not (tmp_path / "map.png").exists()


def test_what_a_map_needs_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    check_map("pca", 2)
    check_map("tsne", 91)
    with pytest.raises(InvalidInputError, match="tsne: a map needs at least 91 held-out images, got 90"):
        check_map("tsne", 90)
    monkeypatch.setattr("vldebias.training.feature_map.find_spec", lambda name: None)
    for method, package in (("umap", "umap-learn"), ("tsne", "scikit-learn")):
        with pytest.raises(InvalidInputError, match=rf"needs {package}: pip install 'vldebias\[pictures\]'"):
            check_map(method, 1000)
