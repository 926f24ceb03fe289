"""Maps of features in the plane, coloured by class: how far classes stay apart under noise.

Source: Figure 5-4 of the thesis, with t-SNE (van der Maaten and Hinton, "Visualizing Data using t-SNE", 2008); UMAP
(McInnes et al., "UMAP: Uniform Manifold Approximation and Projection", 2018) and principal components beside it. Such a
map bends distances and makes groups look tighter than they are, so each panel also says what holds in the space of the
features itself: how often the nearest neighbour of an image has its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.glyphs import for_matplotlib

__all__ = ["METHODS", "check_map", "feature_map", "neighbour_agreement", "plane"]

METHODS = ("tsne", "umap", "pca")
_TITLES = {"tsne": "t-SNE", "umap": "UMAP", "pca": "principal components"}
_INK, _GREY, _UNKNOWN = "#1f2933", "#6b7785", "#c9ccd1"
_COLOURS = (
    "#1d4e89",
    "#c2572f",
    "#2b8a7e",
    "#d9a441",
    "#7d6b91",
    "#5f7a4f",
    "#c97b9b",
    "#3aa0d8",
    "#8c5a2b",
    "#4a5560",
)
_SIDE, _GAP, _HEAD, _LEFT = 2.7, 0.2, 0.62, 0.32  # inches: panels, between them, above each, left of all
_MOST_NAMED = 20  # classes that a legend can hold and colours can tell apart
_BLOCK = 1 << 22  # similarities that are held at once

Points = NDArray[np.float64]


def feature_map(
    panels: Mapping[str, Tensor | ArrayLike],
    labels: Tensor | ArrayLike,
    names: Sequence[str],
    path: str | Path,
    *,
    method: str = "tsne",
    seed: int = 0,
    limit: int = 2000,
    perplexity: float = 30.0,
    neighbours: int = 15,
) -> Path:
    """A PNG with one panel per set of features, of the same images in each, coloured by class.

    Features are compared by direction alone: rows are normalised.

    Args:
        panels: title -> features (n, d), such as {"InfoNCE, eta 0.6": ..., "RINCE, eta 0.6": ...}; d may differ.
        labels: (n,) integers into `names`, -1 where unknown (drawn in grey).
        names: of the classes. A legend has room for 20; of more classes the colours alone are drawn.
        method: "tsne" (needs scikit-learn), "umap" (needs umap-learn) or "pca".
        seed: draws the images and starts the method: a picture can be made again on the same machine.
        limit: at most so many images, drawn at random, the same in every panel.
        perplexity: of t-SNE, about how many neighbours count; less than a third of the images.
        neighbours: of UMAP; fewer than the images.

    Returns:
        `path`. What is shown stands in the PNG as JSON: method and its settings, images, classes, and the agreement of
        nearest neighbours in each panel.

    Raises:
        InvalidInputError: an unknown method or one whose library is missing, shapes that do not fit, features that are
            not finite or all alike, labels of no class, too few images for perplexity or neighbours.
    """
    if method not in METHODS:
        raise InvalidInputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    codes = _labels(labels, names)
    arrays = {title: _unit(title, features, len(codes)) for title, features in panels.items()}
    if not arrays or limit < 1:
        raise InvalidInputError(f"feature map: expected a panel and a limit of at least 1, got {len(arrays)}, {limit}")
    rows = np.random.default_rng(seed).permutation(len(codes))[:limit]  # not sorted: no class is drawn last
    codes = codes[rows]
    arrays = {title: _spread(title, features[rows]) for title, features in arrays.items()}
    settings: dict[str, Any] = {"seed": seed, "perplexity": perplexity, "neighbours": neighbours}
    maps = {title: plane(features, method, **settings) for title, features in arrays.items()}
    agreement = {title: neighbour_agreement(features, codes) for title, features in arrays.items()}
    used = {"tsne": ("seed", "perplexity"), "umap": ("seed", "neighbours"), "pca": ("seed",)}[method]
    about = {
        "kind": "feature map",
        "method": method,
        **{name: settings[name] for name in used},
        "images": len(rows),
        "classes": list(names),
        "neighbour_agreement": agreement,
    }
    return _draw(maps, codes, names, agreement, method, Path(path), about)


def check_map(method: str, images: int, *, perplexity: float = 30.0, neighbours: int = 15) -> None:
    """Before hours of training: could a picture of so many images be drawn?

    Raises:
        InvalidInputError: the library is missing, or too few images for perplexity or neighbours.
    """
    module, library = {"tsne": ("sklearn", "scikit-learn"), "umap": ("umap", "umap-learn")}.get(method, ("numpy", ""))
    if find_spec(module) is None:
        raise InvalidInputError(_missing(method, library))
    least = {"tsne": int(3 * perplexity) + 1, "umap": neighbours + 1}.get(method, 2)
    if images < least:
        raise InvalidInputError(f"{method}: a map needs at least {least} held-out images, got {images}; give more")


def plane(features: ArrayLike, method: str, *, seed: int = 0, perplexity: float = 30.0, neighbours: int = 15) -> Points:
    """Places (n, 2) of features (n, d). Arguments and Raises: see `feature_map`."""
    ways: dict[str, Callable[[Points], Any]] = {
        "tsne": lambda values: _tsne(values, perplexity, seed),
        "umap": lambda values: _umap(values, neighbours, seed),
        "pca": _pca,
    }
    return np.asarray(ways[method](np.asarray(features, dtype=np.float64)), dtype=np.float64)


def neighbour_agreement(features: ArrayLike, codes: ArrayLike) -> float:
    """Share of rows whose nearest other row, by inner product, has their label; rows without a label do not count.

    features: (n, d); codes: (n,) integers, -1 where unknown. NaN where fewer than two rows have a label.
    """
    values, labels = np.asarray(features, dtype=np.float64), np.asarray(codes)
    values, labels = values[labels >= 0], labels[labels >= 0]
    if len(labels) < 2:
        return float("nan")
    block, right = max(1, _BLOCK // len(labels)), 0
    for start in range(0, len(labels), block):
        similar = values[start : start + block] @ values.T
        similar[np.arange(len(similar)), start + np.arange(len(similar))] = -np.inf
        right += int((labels[similar.argmax(axis=1)] == labels[start : start + block]).sum())
    return right / len(labels)


def _tsne(features: Points, perplexity: float, seed: int) -> Any:
    n = len(features)
    if not 1 <= perplexity < n / 3:
        raise InvalidInputError(
            f"perplexity: t-SNE of {n} images expects 1 <= perplexity < {n / 3:.3g}, a third of them, got "
            f"{perplexity:g}; lower it or give more images"
        )
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise InvalidInputError(_missing("tsne", "scikit-learn")) from error
    return TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed).fit_transform(features)


def _umap(features: Points, neighbours: int, seed: int) -> Any:
    if not 2 <= neighbours < len(features):
        raise InvalidInputError(
            f"neighbours: UMAP of {len(features)} images expects 2 <= neighbours < {len(features)}, got {neighbours}"
        )
    try:
        from umap import UMAP
    except ImportError as error:
        raise InvalidInputError(_missing("umap", "umap-learn")) from error
    # One thread, as with any seed: without it umap warns that it chose so itself.
    return UMAP(n_components=2, n_neighbors=neighbours, random_state=seed, n_jobs=1).fit_transform(features)


def _missing(method: str, library: str) -> str:
    return f"method {method!r} needs {library}: pip install 'vldebias[pictures]', or choose method 'pca'"


def _pca(features: Points) -> Points:
    """The two directions of largest variance, each with its largest entry positive."""
    centred = features - features.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    first = directions[:2]
    first = first * np.sign(first[np.arange(len(first)), np.abs(first).argmax(axis=1)])[:, None]
    found: Points = centred @ first.T
    return found


def _labels(labels: Tensor | ArrayLike, names: Sequence[str]) -> NDArray[np.int64]:
    codes = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if codes.ndim != 1 or codes.dtype.kind not in "iu" or not len(codes):
        raise InvalidInputError(f"labels: expected integers (n,), got {codes.shape} of {codes.dtype}")
    if codes.min() < -1 or codes.max() >= len(names):
        raise InvalidInputError(
            f"labels: expected -1 (unknown) .. {len(names) - 1}, one name for each class, got {codes.min()} .. "
            f"{codes.max()}"
        )
    return codes.astype(np.int64)


def _unit(title: str, features: Tensor | ArrayLike, n: int) -> Points:
    """Rows of norm 1."""
    values = features.detach().cpu().double().numpy() if isinstance(features, Tensor) else features
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != n or rows.shape[1] < 2:
        raise InvalidInputError(f"{title}: expected features ({n}, d), d >= 2, one row per label, got {rows.shape}")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not norms.all():
        raise InvalidInputError(
            f"{title}: {int((~(norms > 0) | ~np.isfinite(norms)).sum())} rows are zero or not finite"
        )
    return rows / norms


def _spread(title: str, features: Points) -> Points:
    if np.ptp(features, axis=0).max() < 1e-9:
        raise InvalidInputError(
            f"{title}: all {len(features)} rows point the same way and leave nothing to map; has the model collapsed?"
        )
    return features


def _draw(
    maps: Mapping[str, Points],
    codes: NDArray[np.int64],
    names: Sequence[str],
    agreement: Mapping[str, float],
    method: str,
    path: Path,
    about: Mapping[str, Any],
) -> Path:
    from vldebias.evaluation.report.pictures import save_png, subplots

    lines = -(-len(maps) // 4)
    columns = -(-len(maps) // lines)
    key = _key(codes, names)
    below = 0.2 + 0.22 * -(-len(key) // (2 * columns)) * bool(key)  # inches for the legend
    width, height = _LEFT + columns * (_SIDE + _GAP), lines * (_SIDE + _HEAD) + below
    plot, axes = subplots(lines, columns, (width, height))
    plot.subplots_adjust(
        _LEFT / width, below / height, 1 - _GAP / width, 1 - _HEAD / height, wspace=_GAP / _SIDE, hspace=_HEAD / _SIDE
    )
    colours = np.array([*_palette(len(names)), _UNKNOWN])[codes]  # -1 is the last
    for axis in axes[len(maps) :]:
        axis.set_visible(False)
    for axis, (title, points) in zip(axes, maps.items(), strict=False):
        axis.scatter(*points.T, c=colours, s=float(np.clip(9000 / len(points), 4, 40)), alpha=0.8, linewidths=0)
        axis.set_title(for_matplotlib(title), fontsize=10.5, color=_INK, pad=18)
        share = f"nearest neighbour of the same class: {100 * agreement[title]:.0f} %"
        axis.annotate(share, (0.5, 1.02), xycoords="axes fraction", ha="center", fontsize=8, color=_GREY)
        axis.set_aspect("equal", adjustable="datalim")  # a distance is the same across and down
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_color("#e4e7eb")
    axes[0].set_ylabel(f"{_TITLES[method]}, {len(codes):,} images", fontsize=8.5, color=_GREY)
    _legend(plot, key, 2 * columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_png(plot, path, about)


def _palette(classes: int) -> list[str]:
    """A colour for each class."""
    if classes <= len(_COLOURS):
        return list(_COLOURS[:classes])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if classes <= _MOST_NAMED:
        return [to_hex(colormaps["tab20"](i)) for i in range(classes)]
    return [to_hex(colormaps["turbo"](i / (classes - 1))) for i in range(classes)]


def _key(codes: NDArray[np.int64], names: Sequence[str]) -> dict[str, str]:
    """Name -> colour of the classes that occur; nothing where they are too many to be told apart."""
    if len(names) > _MOST_NAMED:
        return {}
    palette = _palette(len(names))
    found = {names[code]: palette[code] for code in np.unique(codes[codes >= 0]).tolist()}
    return {**found, "unknown": _UNKNOWN} if (codes < 0).any() else found


def _legend(plot: Any, key: Mapping[str, str], per_line: int) -> None:
    from matplotlib.lines import Line2D

    if key:
        dots = [Line2D([], [], color=colour, marker="o", linestyle="", markersize=5) for colour in key.values()]
        words = [for_matplotlib(name) for name in key]
        columns = min(len(key), per_line)
        plot.legend(dots, words, frameon=False, fontsize=8.5, ncols=columns, loc="lower center", labelcolor=_INK)
