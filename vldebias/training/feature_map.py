"""Maps of features in the plane, coloured by class: how far classes stay apart under noise.

Source: Figure 5-4 of the thesis, with t-SNE (van der Maaten and Hinton, "Visualizing Data using t-SNE", 2008); UMAP
(McInnes et al., "UMAP: Uniform Manifold Approximation and Projection", 2018) and principal components beside it. Such a
map bends distances and makes groups look tighter than they are, so each panel also says what holds in the space of the
features itself: how often the nearest neighbour of an image has its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError, need
from vldebias.pictures import INK, for_matplotlib, save_png, subplots

METHODS = ("tsne", "umap", "pca")
_TITLES = {"tsne": "t-SNE", "umap": "UMAP", "pca": "principal components"}
LIMIT = 2000  # images that are drawn
_PERPLEXITY, _NEIGHBOURS, _SEED = 30, 15, 0
_SETTINGS = {"tsne": {"perplexity": _PERPLEXITY}, "umap": {"neighbours": _NEIGHBOURS}, "pca": dict[str, int]()}
_LEAST = {"tsne": 3 * _PERPLEXITY + 1, "umap": _NEIGHBOURS + 1, "pca": 2}  # images
_LIBRARIES = {"tsne": ("sklearn", "scikit-learn"), "umap": ("umap", "umap-learn")}  # module, package
_GREY, _UNKNOWN = "#6b7785", "#c9ccd1"
_COLOURS = "#1d4e89 #c2572f #2b8a7e #d9a441 #7d6b91 #5f7a4f #c97b9b #3aa0d8 #8c5a2b #4a5560".split()  # noqa: SIM905
_SIDE, _GAP, _HEAD, _LEFT = 2.7, 0.2, 0.62, 0.32  # inches: panels, between them, above each, left of all
_MOST_NAMED = 20  # classes that a legend can hold and colours can tell apart

Points = NDArray[np.float64]


def feature_map(
    panels: Mapping[str, Tensor | ArrayLike],
    labels: Tensor | ArrayLike,
    names: Sequence[str],
    path: str | Path,
    *,
    method: str = "tsne",
) -> Path:
    """A PNG with one panel per set of features, of the same images in each, coloured by class.

    Features are compared by direction alone: rows are normalised. Of more than `LIMIT` images so many are drawn at
    random, the same in every panel; the seed is fixed, so a picture can be made again on the same machine.

    Args:
        panels: title -> features (n, d), such as {"InfoNCE, eta 0.6": ..., "RINCE, eta 0.6": ...}; d may differ.
        labels: (n,) integers into `names`, -1 where unknown (drawn in grey).
        names: of the classes. A legend has room for 20; of more classes the colours alone are drawn.
        method: "tsne" (needs scikit-learn), "umap" (needs umap-learn) or "pca".

    Returns:
        `path`. What is shown stands in the PNG as JSON: method and its settings, images, classes, and the agreement of
        nearest neighbours in each panel.

    Raises:
        InvalidInputError: see `check_map`; no panel, shapes that do not fit, features that are not finite or all
            alike, labels of no class.
    """
    codes = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    check_map(method, len(codes))
    if not panels:
        raise InvalidInputError("feature map: expected a panel, got none")
    if codes.min() < -1 or codes.max() >= len(names):
        raise InvalidInputError(
            f"labels: expected -1 (unknown) .. {len(names) - 1}, one name for each class, got {codes.min()} .. "
            f"{codes.max()}"
        )
    units = {title: _unit(title, features, len(codes)) for title, features in panels.items()}
    rows = np.random.default_rng(_SEED).permutation(len(codes))[:LIMIT]  # not sorted: no class is drawn last
    codes, units = codes[rows], {title: features[rows] for title, features in units.items()}
    maps = {title: plane(features, method) for title, features in units.items()}
    agreement = {title: neighbour_agreement(features, codes) for title, features in units.items()}
    about = {
        "kind": "feature map",
        "method": method,
        "seed": _SEED,
        **_SETTINGS[method],
        "images": len(rows),
        "classes": list(names),
        "neighbour_agreement": agreement,
    }
    lines = -(-len(maps) // 4)
    columns = -(-len(maps) // lines)
    palette = _palette(len(names))
    key = {}  # name -> colour, where classes are few enough to be told apart
    if len(names) <= _MOST_NAMED:
        key = {names[code]: palette[code] for code in np.unique(codes[codes >= 0]).tolist()}
        key |= {"unknown": _UNKNOWN} if (codes < 0).any() else {}
    below = 0.2 + 0.22 * -(-len(key) // (2 * columns)) * bool(key)  # inches for the legend
    width, height = _LEFT + columns * (_SIDE + _GAP), lines * (_SIDE + _HEAD) + below
    plot, axes = subplots(lines, columns, (width, height))
    plot.subplots_adjust(
        _LEFT / width, below / height, 1 - _GAP / width, 1 - _HEAD / height, wspace=_GAP / _SIDE, hspace=_HEAD / _SIDE
    )
    for axis in axes[len(maps) :]:
        axis.set_visible(False)
    for axis, (title, points) in zip(axes, maps.items(), strict=False):
        colours = np.array([*palette, _UNKNOWN])[codes]  # -1 is the last
        axis.scatter(*points.T, c=colours, s=float(np.clip(9000 / len(points), 4, 40)), alpha=0.8, linewidths=0)
        axis.set_title(for_matplotlib(title), fontsize=10.5, color=INK, pad=18)
        share = f"nearest neighbour of the same class: {100 * agreement[title]:.0f} %"
        axis.annotate(share, (0.5, 1.02), xycoords="axes fraction", ha="center", fontsize=8, color=_GREY)
        axis.set_aspect("equal", adjustable="datalim")  # a distance is the same across and down
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_color("#e4e7eb")
    axes[0].set_ylabel(f"{_TITLES[method]}, {len(codes):,} images", fontsize=8.5, color=_GREY)
    if key:
        Line2D = need("matplotlib.lines").Line2D
        dots = [Line2D([], [], color=colour, marker="o", linestyle="", markersize=5) for colour in key.values()]
        look: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "loc": "lower center", "labelcolor": INK}
        plot.legend(dots, [for_matplotlib(name) for name in key], ncols=min(len(key), 2 * columns), **look)
    return save_png(plot, Path(path), about)


def check_map(method: str, images: int) -> None:
    """Before hours of training: could a picture of so many images be drawn?

    Raises:
        InvalidInputError: an unknown method or one whose library is missing, or too few images for it.
    """
    if method not in METHODS:
        raise InvalidInputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if method in _LIBRARIES and find_spec(_LIBRARIES[method][0]) is None:
        raise InvalidInputError(
            f"method {method!r} needs {_LIBRARIES[method][1]}: pip install 'vldebias[pictures]', or choose method 'pca'"
        )
    if images < _LEAST[method]:
        raise InvalidInputError(
            f"{method}: a map needs at least {_LEAST[method]} held-out images, got {images}; give more"
        )


def plane(features: ArrayLike, method: str) -> Points:
    """Places (n, 2) of features (n, d)."""
    values = np.asarray(features, dtype=np.float64)
    if method == "pca":  # the two directions of largest variance, each with its largest entry positive
        centred = values - values.mean(axis=0)
        first = np.linalg.svd(centred, full_matrices=False)[2][:2]
        first = first * np.sign(first[np.arange(len(first)), np.abs(first).argmax(axis=1)])[:, None]
        return np.asarray(centred @ first.T)
    way: Any
    if method == "tsne":
        way = need("sklearn.manifold").TSNE(
            2, perplexity=_PERPLEXITY, init="pca", learning_rate="auto", random_state=_SEED
        )
    else:
        # One thread, as with any seed: without it umap warns that it chose so itself.
        way = need("umap").UMAP(n_components=2, n_neighbors=_NEIGHBOURS, random_state=_SEED, n_jobs=1)
    return np.asarray(way.fit_transform(values), dtype=np.float64)


def neighbour_agreement(features: ArrayLike, codes: ArrayLike) -> float:
    """Share of rows whose nearest other row, by inner product, has their label; rows without a label do not count.

    features: (n, d); codes: (n,) integers, -1 where unknown. NaN where fewer than two rows have a label.
    """
    values, labels = np.asarray(features, dtype=np.float64), np.asarray(codes)
    values, labels = values[labels >= 0], labels[labels >= 0]
    if len(labels) < 2:
        return float("nan")
    similar = values @ values.T
    np.fill_diagonal(similar, -np.inf)
    return float((labels[similar.argmax(axis=1)] == labels).mean())


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
    units: Points = rows / norms
    if np.ptp(units, axis=0).max() < 1e-9:
        raise InvalidInputError(
            f"{title}: all {n} rows point the same way and leave nothing to map; has the model collapsed?"
        )
    return units


def _palette(classes: int) -> list[str]:
    """A colour for each class."""
    if classes <= len(_COLOURS):
        return _COLOURS[:classes]
    colormaps, to_hex = need("matplotlib").colormaps, need("matplotlib.colors").to_hex

    if classes <= _MOST_NAMED:
        return [to_hex(colormaps["tab20"](i)) for i in range(classes)]
    return [to_hex(colormaps["turbo"](i / (classes - 1))) for i in range(classes)]
