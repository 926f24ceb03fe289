"""What a trained model says of its pairs: the score of each as a table, as a contact sheet, as densities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vldebias.data.labels import Labels
from vldebias.training.contact_sheet import contact_sheet, score_histogram
from vldebias.training.feature_map import feature_map
from vldebias.training.pairs import PairSource
from vldebias.training.scores import detection, positive_scores, rank_pairs, write_table

if TYPE_CHECKING:
    from rich.progress import Progress

    from vldebias.hosts.towers import Towers

__all__ = ["draw_features", "tell_pairs"]

TABLE, SHEET, DENSITIES, FEATURES = "pairs.csv", "pairs.png", "scores.png", "features.png"


def tell_pairs(
    towers: Towers, pairs: PairSource, folder: Path, *, workers: int = 4, progress: Progress | None = None
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Scores every pair and writes pairs.csv (the most suspicious first), pairs.png and scores.png into `folder`.

    The scores are kept in `folder`/scores, so that a run that is stopped goes on.

    Returns:
        The files by what they are, and how well low scores find wrong captions where that is known.

    Raises:
        InvalidInputError: pairs without captions, no image that can be read.
    """
    scores = positive_scores(
        towers, pairs, workers=workers, cache_dir=folder / "scores", shard_size=1024, progress=progress
    )
    ranked = rank_pairs(pairs, scores)
    write_table(folder / TABLE, ranked)
    contact_sheet(ranked, folder / SHEET)
    score_histogram({pairs.name: ranked}, folder / DENSITIES)
    files = {"pairs, most suspicious first": TABLE, "contact sheet": SHEET, "densities of scores": DENSITIES}
    return files, detection(ranked) if ranked.wrong is not None else None


def draw_features(
    before: Tensor, after: Tensor, places: Tensor, labels: Labels, folder: Path, method: str
) -> dict[str, str]:
    """features.png: the features (m, d) of held-out images at `places` (m,), by label, before training and after.

    Returns:
        The file by what it is.

    Raises:
        InvalidInputError: see `vldebias.training.feature_map.feature_map`.
    """
    panels = {"before": before.cpu(), "after": after.cpu()}
    feature_map(panels, labels.codes[places.numpy()], labels.names, folder / FEATURES, method=method)
    return {"features before and after": FEATURES}
