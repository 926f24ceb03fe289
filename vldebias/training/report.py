"""What a run leaves to look at: the scores of its pairs as table, page and densities, and its curves.

Source: Figures 5-5 (lowest scores) and A-3a (densities) of the thesis.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.files import shielded, write_atomically
from vldebias.pictures import INK, for_matplotlib, save_png, subplots
from vldebias.progress import Progress
from vldebias.training.loop import Entry
from vldebias.training.monitor import SHAPE
from vldebias.training.pairs import PairSource
from vldebias.training.scores import RankedPairs, detection, positive_scores, rank_pairs, write_table

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

GREY = "#6b7785"
RIGHT, WRONG = "#1d4e89", "#c2572f"  # apart in lightness too, for those who do not see the hue
_BINS = 40
SCALES = (*SHAPE, "sharpness")  # facts of other scales than the scores
_OWN = ("step", "loss", "lr", "temperature", "seconds")  # of an entry; the others are scores


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Pairs in the order of suspicion; the files about them by what they are; `detection`, where the truth is known."""

    ranked: RankedPairs
    files: dict[str, str]
    detected: dict[str, Any] | None


def score_pairs(
    towers: Towers,
    pairs: PairSource,
    folder: Path,
    *,
    by: Literal["cosine", "softmax"] = "cosine",
    wrong: NDArray[np.bool_] | None = None,
    workers: int = 4,
    progress: Progress | None = None,
) -> ScoredPairs:
    """Scores every pair and writes the files of `report_scores` into `folder`.

    The scores are kept in `folder`/scores, so that a run that is stopped goes on. wrong: (n,) captions that somebody
    found wrong. The others: see `vldebias.training.scores.positive_scores`.
    """
    kept: dict[str, Any] = {"cache_dir": folder / "scores", "shard_size": 1024}
    scores = positive_scores(towers, pairs, by=by, workers=workers, progress=progress, **kept)
    return report_scores(pairs, scores, folder, wrong=wrong)


def report_scores(
    pairs: PairSource, scores: NDArray[np.float32], folder: Path, *, wrong: NDArray[np.bool_] | None = None
) -> ScoredPairs:
    """Writes pairs.csv (the most suspicious first), pairs.html and scores.png into `folder`.

    scores: (n,), NaN where an image could not be read.
    """
    ranked = rank_pairs(pairs, scores, wrong)
    files = {
        "pairs, most suspicious first": write_table(folder / "pairs.csv", ranked).name,
        "page of the most suspicious": suspects_page(ranked, folder / "pairs.html").name,
        "densities of scores": score_histogram({pairs.name: ranked}, folder / "scores.png").name,
    }
    known = ranked.wrong is not None and 0 < ranked.wrong[ranked.order].mean() < 1
    return ScoredPairs(ranked, files, detection(ranked) if known else None)


def suspects_page(ranked: RankedPairs, path: str | Path, *, most: int = 200) -> Path:
    """One HTML file with the pairs of the lowest scores, pictures inside: rank, score, caption, and where each lies."""
    pairs, wrong = ranked.pairs, ranked.wrong
    return ranked.page(
        path,
        f"{pairs.name}: the {min(most, len(ranked.order))} most suspicious of {len(ranked.order):,} pairs",
        lambda row: ("wrong" if wrong is not None and wrong[row] else "", pairs.captions[row]),
        most=most,
    )


def score_histogram(
    panels: Mapping[str, RankedPairs], path: str | Path, *, resamples: int = 1000, seed: int = 0
) -> Path:
    """A PNG with the densities of the scores of right and wrong pairs, one panel per model, AUROC in its title.

    Panels share their axes. Where nothing is known of the truth, one density of all scores is drawn.

    panels: title -> scores, such as {"InfoNCE": ..., "RINCE": ...}. resamples, seed: of the interval of the AUROC.
    """
    if not panels:
        raise InvalidInputError("score_histogram: expected at least one panel, got none")
    scores = {name: ranked.scores[ranked.order] for name, ranked in panels.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(scores.values())), bins=_BINS)
    columns = min(len(panels), 3)
    lines = -(-len(panels) // columns)
    plot, axes = subplots(lines, columns, (1 + 3.6 * columns, 3.1 * lines))
    about: dict[str, Any] = {}
    for axis, (name, ranked) in zip(axes, panels.items(), strict=False):
        title = for_matplotlib(name)
        if ranked.wrong is None:
            about[name] = {"pairs": ranked.pairs.items, "scored": len(ranked.order)}
            title += f": {len(ranked.order):,} pairs"
            groups = {"all pairs": (scores[name], GREY)}
        else:
            about[name] = detection(ranked, resamples=resamples, seed=seed)
            area, wrong = about[name]["auroc"], ranked.wrong[ranked.order]
            title += f": AUROC {area['value']:.3f} [{area['low']:.3f}, {area['high']:.3f}]"
            own, other = scores[name][~wrong], scores[name][wrong]
            groups = {"own caption": (own, RIGHT), "caption of another pair": (other, WRONG)}
        for label, (values, colour) in groups.items():
            axis.hist(values, edges, density=True, color=colour, alpha=0.25)
            axis.hist(values, edges, density=True, histtype="step", color=colour, linewidth=1.5, label=label)
            axis.axvline(float(np.median(values)), color=colour, linewidth=1, linestyle=(0, (4, 3)))
        axis.set_title(title, fontsize=9.5, color=INK)
    top = max(axis.get_ylim()[1] for axis in axes[: len(panels)])
    for i, axis in enumerate(axes):
        axis.set_visible(i < len(panels))
        axis.set_xlim(edges[0], edges[-1])
        axis.set_ylim(0, 1.12 * top)
        axis.set_xlabel("positive score s⁺ (cosine)", fontsize=9, color=INK)
        axis.tick_params(labelsize=8, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_yticks([])
        if i % columns == 0:
            axis.set_ylabel("density", fontsize=9, color=INK)
    axes[0].legend(frameon=False, fontsize=8, loc="best", labelcolor=INK)
    plot.tight_layout()
    return save_png(plot, Path(path), {"kind": "score histogram", "panels": about})


def report_popularity(
    folder: Path, captions: Sequence[str], log_popularity: NDArray[np.floating[Any]]
) -> dict[str, str]:
    """Writes popularity.csv and popularity.png into `folder`, what they are -> name; see `write_popularity`."""
    table = write_popularity(folder / "popularity.csv", captions, log_popularity)
    picture = draw_popularity(folder / "popularity.png", captions, log_popularity)
    return {"popularity of captions": table.name, "captions that dominate": picture.name}


def draw_popularity(
    path: Path, captions: Sequence[str], log_popularity: NDArray[np.floating[Any]], *, most: int = 12
) -> Path:
    """A PNG: the most popular captions as bars, and what share of all popularity the first so many captions have."""
    means = popularity_of(captions, log_popularity)
    ranked = sorted(means, key=lambda one: -means[one])
    shares = np.cumsum([means[caption] for caption in ranked])
    shares /= shares[-1]
    shown = ranked[:most]
    plot, (bars, curve) = subplots(1, 2, (11, 0.6 + 0.28 * len(shown) + 1.2))
    names = [for_matplotlib(text if len(text) <= 48 else text[:47] + "…") for text in shown]
    bars.barh(range(len(shown)), [means[caption] for caption in shown], color=RIGHT)
    bars.set_yticks(range(len(shown)), names, fontsize=8)
    bars.invert_yaxis()
    bars.axvline(1.0, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    bars.set_xlabel("popularity; 1 is the mean of all pairs", fontsize=9, color=INK)
    curve.plot(np.arange(1, len(ranked) + 1) / len(ranked), shares, color=RIGHT)
    curve.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    curve.set_xlabel("share of the captions, the most popular first", fontsize=9, color=INK)
    curve.set_ylabel("share of all popularity", fontsize=9, color=INK)
    for axis in (bars, curve):
        axis.tick_params(labelsize=8, colors=INK, length=0)
        axis.spines[["top", "right"]].set_visible(False)
    plot.tight_layout()
    tenth = float(shares[max(1, round(len(ranked) / 10)) - 1])
    return save_png(plot, path, {"kind": "popularity", "captions": len(ranked), "first tenth": tenth, "first": shown})


def popularity_of(captions: Sequence[str], log_popularity: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Popularity of each different caption, the mean of its pairs; 1 in the mean over all pairs."""
    rows: dict[str, list[int]] = {}
    for row, caption in enumerate(captions):
        rows.setdefault(caption, []).append(row)
    popularity = np.exp(log_popularity - log_popularity.max())
    popularity /= popularity.mean()
    return {caption: float(popularity[own].mean()) for caption, own in rows.items()}


def write_popularity(path: Path, captions: Sequence[str], log_popularity: NDArray[np.floating[Any]]) -> Path:
    """A csv of the different captions, the most popular first: popularity (1 in the mean), pairs, caption.

    log_popularity: (n,) of the text of each pair, up to a constant, as NUCLR has learned it. Popular captions, which
    fit many images, come first; those that nothing else is like come last.
    """
    means, pairs = popularity_of(captions, log_popularity), Counter(captions)

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("popularity", "pairs", "caption"))
            for caption in sorted(means, key=lambda one: -means[one]):
                writer.writerow((f"{means[caption]:.6g}", pairs[caption], shielded(caption)))

    return write_atomically(path, write)


def draw_curves(path: Path, history: Sequence[Entry]) -> Path:
    """The loss of every step, and the scores where the model was scored, apart from facts that have other scales."""
    panels = list(dict.fromkeys(name for entry in history for name in entry if name not in _OWN))
    names = [name for name in panels if name not in SCALES]
    facts = [name for name in panels if name in SCALES]
    figure, (left, right, *more) = subplots(1, 3 if facts else 2, (15 if facts else 10, 4))
    left.plot([entry["step"] for entry in history], [entry["loss"] for entry in history], color="#4c72b0", lw=0.9)
    left.set(xlabel="step", ylabel="loss", title="loss of every step")
    for name in panels:
        axes = more[0] if name in SCALES else right
        scored = [entry for entry in history if name in entry]
        axes.plot([entry["step"] for entry in scored], [entry[name] for entry in scored], marker=".", label=name)
    right.set(xlabel="step", title="scores on held-out data" if names else "no held-out data was given")
    if names:
        right.legend(fontsize=7)
    for axes in more:
        axes.set(xlabel="step", title="shape of held-out features")
        axes.legend(fontsize=7)
    for axes in (left, right, *more):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    return save_png(figure, path, {"kind": "training curves", "steps": len(history)})
