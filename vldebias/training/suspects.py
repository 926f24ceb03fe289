"""List pairs in the order of suspicion: by the cosine of each image with its captions, low for
wrong captions.

Source: Figure 5-5 of the thesis. A low score is a reason to look, not a verdict.
"""

from __future__ import annotations

import io
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError, need, warn
from vldebias.files import write_atomically
from vldebias.hosts.clip.towers import Towers
from vldebias.measure.classification import auroc
from vldebias.progress import SILENT, Progress
from vldebias.training.monitor import BATCH, image_features, pixel_batches, text_features
from vldebias.training.pairs import Pairs


def positive_scores(
    towers: Towers,
    pairs: Pairs,
    *,
    batch_size: int = BATCH,
    workers: int = 4,
    progress: Progress = SILENT,
) -> NDArray[np.float32]:
    """Return the lowest cosine of each image with one of its captions, (n,) in [-1, 1]; NaN if it
    cannot be read."""
    if not pairs.items or not pairs.captions:
        raise InvalidInputError(
            f"{pairs.name}: expected pairs of an image and a caption to score, got none"
        )
    scores, skipped = np.full(pairs.items, np.nan, dtype=np.float32), dict[int, str]()
    how: Any = {"batch_size": batch_size, "workers": workers, "skipped": skipped}
    with progress.bar(f"{pairs.name}: positive scores", pairs.items) as advance:
        for rows, images in pixel_batches(range(pairs.items), pairs.read, towers.prepare, **how):
            own = [pairs.captions[row] for row in rows.tolist()]
            shown = image_features(towers, images)
            texts = text_features(towers, list(chain.from_iterable(own))).split(
                [len(each) for each in own]
            )
            cosines = [(text * one).sum(1).min() for one, text in zip(shown, texts, strict=True)]
            scores[rows.numpy()] = [float(cosine.clamp(-1, 1)) for cosine in cosines]
            advance(len(rows))
    if len(skipped) == pairs.items:
        raise InvalidInputError(f"{pairs.name}: none of {len(skipped)} images can be read")
    if np.isnan(scores).sum() > len(skipped):
        raise InvalidInputError(
            f"{pairs.name}: some features are not finite; has training diverged?"
        )
    if skipped:
        row, reason = min(skipped.items())
        warn(
            f"{pairs.name}: {len(skipped)} unreadable images have no score, such as"
            f" {pairs.ids[row]} ({reason})"
        )
    return scores


def report_pairs(
    pairs: Pairs, scores: NDArray[np.float32], folder: Path, *, keep: float | None = None
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Write pairs.csv and pairs.html, the most suspicious first; with `keep` that share, the best,
    to kept.parquet, which `vldebias train --data` reads.

    Returns the files by kind, and with caption noise how well low scores find the wrong pairs, else
    None.
    """
    wrong, own = pairs.wrong, [" | ".join(texts) for texts in pairs.captions]
    ranked = Suspects(scores, pairs.ids, read=pairs.read, path=pairs.path)
    said = (
        {}
        if wrong is None
        else {row: "yes" if is_wrong else "no" for row, is_wrong in enumerate(wrong.tolist())}
    )
    ranked.write(
        folder / "pairs.csv", {"caption": own.__getitem__, "wrong": lambda row: said.get(row, "")}
    )
    title = f"{pairs.name}: the most suspicious of {len(ranked.order):,} pairs"
    ranked.page(
        folder / "pairs.html",
        title,
        lambda row: ("wrong" if said.get(row) == "yes" else "", own[row]),
    )
    files = {
        "pairs, most suspicious first": "pairs.csv",
        "page of the most suspicious": "pairs.html",
    }
    if keep is not None:
        datasets = need("datasets")
        several, text = any(len(texts) > 1 for texts in pairs.captions), datasets.Value("string")

        def record(row: int) -> dict[str, Any]:
            path, file = pairs.path(row) or None, io.BytesIO()
            if path is None:  # images that are files are named, not copied
                pairs.read(row).save(file, "PNG")
            image = {"bytes": None if path else file.getvalue(), "path": path}
            caption: Any = list(pairs.captions[row]) if several else pairs.captions[row][0]
            return {
                "image": image,
                "caption": caption,
                "id": pairs.ids[row],
                "score": float(scores[row]),
            }

        kinds = {
            "image": datasets.Image(),
            "caption": datasets.Sequence(text) if several else text,
            "id": text,
        }
        features = datasets.Features(kinds | {"score": datasets.Value("float32")})
        made = datasets.Dataset.from_list(
            [record(row) for row in ranked.kept(keep).tolist()], features=features
        )
        files["pairs to keep"] = write_atomically(
            folder / "kept.parquet", lambda part: made.to_parquet(part)
        ).name
    if wrong is None or not 0 < wrong[ranked.order].mean() < 1:
        return files, None
    values, bad = scores[ranked.order], wrong[ranked.order]
    return files, {
        "scored": len(values),
        "wrong": float(bad.mean()),
        "auroc": auroc(values, bad)._asdict(),
    }
