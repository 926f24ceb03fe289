"""Rank pairs by how likely their captions are wrong, using image-caption cosines.

Source: Figure 5-5 of the thesis. A low cosine is a reason to inspect a pair, but does not prove
that its caption is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError, need, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.measure.classification import auroc
from vldebias.report.table import number
from vldebias.training.monitor import BATCH, image_features, pixel_batches, text_features
from vldebias.training.pairs import Pairs
from vldebias.training.sampling import numpy_generator
from vldebias.utils.arrays import Mask
from vldebias.utils.files import write_atomically
from vldebias.utils.progress import SILENT, Progress


class Detection(TypedDict):
    """How well low scores detect wrong pairs: pairs scored, share of wrong pairs, and AUROC."""

    scored: int
    wrong: float
    auroc: dict[str, float]


SAMPLE = 500  # maximum number of images whose captions are exchanged for comparison


def positive_scores(
    towers: Towers,
    pairs: Pairs,
    *,
    batch_size: int = BATCH,
    workers: int = 4,
    progress: Progress = SILENT,
) -> NDArray[np.float32]:
    """Return each image's lowest cosine with its captions (n,), or NaN for unreadable images.

    Args:
        towers: the model.
        pairs: images with captions.
        batch_size: number of images encoded at once.
        workers: number of threads that load images.
        progress: where to report progress.
    """
    if not pairs.items or not pairs.captions:
        raise InvalidInputError(
            f"{pairs.name}: expected pairs of an image and a caption to score, got none"
        )
    scores = np.full(pairs.items, np.nan, dtype=np.float32)
    skipped = dict[int, str]()
    batches = pixel_batches(
        range(pairs.items),
        pairs.read,
        towers.prepare,
        batch_size=batch_size,
        workers=workers,
        skipped=skipped,
    )
    with progress.bar(f"{pairs.name}: scores of pairs", pairs.items) as advance:
        for rows, images in batches:
            captions = [pairs.captions[row] for row in rows.tolist()]
            features = image_features(towers, images)
            text_rows = text_features(towers, list(chain.from_iterable(captions)))
            texts_of_image = text_rows.split(list(map(len, captions)))
            lowest = []
            for image, texts in zip(features, texts_of_image, strict=True):
                # Use the lowest cosine, because one wrong caption is enough to inspect the pair.
                cosine = (texts * image).sum(1).min()
                lowest.append(float(cosine.clamp(-1, 1)))
            scores[rows.numpy()] = lowest
            advance(len(rows))
    if len(skipped) == pairs.items:
        row, reason = min(skipped.items())
        raise InvalidInputError(
            f"{pairs.name}: none of the {len(skipped)} images can be read; the first is"
            f" {pairs.ids[row]}: {reason}"
        )
    # If there are more NaN scores than unreadable images, the model returned NaN.
    if np.isnan(scores).sum() > len(skipped):
        raise InvalidInputError(
            f"{pairs.name}: some features are not finite; check whether training diverged"
        )
    if skipped:
        row, reason = min(skipped.items())
        warn(
            f"{pairs.name}: {len(skipped)} unreadable images have no score, such as"
            f" {pairs.ids[row]} ({reason})"
        )
    return scores


def shuffled_scores(
    towers: Towers, pairs: Pairs, *, workers: int = 4
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Score a sample of images with captions of other images.

    Args:
        towers: the model.
        pairs: images with captions.
        workers: number of threads that load images.

    Returns:
        The rows (m,) of the sampled images, and their finite scores (at most m), which show how low
            the scores of wrong captions are. Both are empty if all captions are the same.
    """
    rows = numpy_generator("sample of pairs", 0).permutation(pairs.items)[:SAMPLE]
    captions = [pairs.captions[row] for row in rows]
    exchanged_captions = captions[1:] + captions[:1]
    # Images with the same caption must not exchange it.
    differs = [
        set(caption).isdisjoint(other)
        for caption, other in zip(captions, exchanged_captions, strict=True)
    ]
    places = np.flatnonzero(differs)
    if not len(places):
        return places, np.array([], np.float32)
    sample = replace(pairs.select(rows), captions=tuple(exchanged_captions), wrong=None).select(
        places
    )
    scores = positive_scores(towers, sample, workers=workers)
    return rows[places], scores[np.isfinite(scores)]


def share_below_chance(scores: NDArray[np.float32], exchanged: NDArray[np.float32]) -> float:
    """Estimate the share of pairs whose captions belong to other images.

    Half of the wrong captions score below the median of exchanged captions, and hardly any correct
    ones do, so the share is twice the share of scores below this median.

    Args:
        scores: (n,), scores of the pairs, or NaN.
        exchanged: (m,), scores of images with captions of other images, from `shuffled_scores`.
    """
    known = scores[np.isfinite(scores)]
    if not len(exchanged) or not len(known):
        return 0.0
    return min(1.0, 2 * float((known < np.median(exchanged)).mean()))


def report_pairs(
    pairs: Pairs,
    scores: NDArray[np.float32],
    folder: Path,
    *,
    keep: float | None = None,
    proposed: float = 0.9,
    model: str = "trained",
) -> tuple[dict[str, str], Detection | None]:
    """Write pairs.csv and pairs.html, with the most suspicious pairs first.

    With `keep`, the best pairs are written to kept.parquet with the data's label columns, for
    `vldebias train --data`.

    Args:
        pairs: images with captions.
        scores: (n,), lower scores are more suspicious.
        folder: folder for the files.
        keep: share of the pairs to write to kept.parquet.
        proposed: share to keep that the page proposes if `keep` is None.
        model: which model gave the scores, "starting" or "trained".

    Returns:
        A mapping from a description of each file to its name, and how well low scores detect wrong
        pairs (None without caption noise).
    """
    wrong = pairs.wrong
    captions = [" | ".join(texts) for texts in pairs.captions]
    ranked = Suspects(scores, pairs.ids, read=pairs.read, path=pairs.path)

    def wrong_word(row: int) -> str:
        if wrong is None:
            return ""  # unknown
        return "yes" if wrong[row] else "no"

    def page_words(row: int) -> tuple[str, str]:
        mark = "wrong" if wrong_word(row) == "yes" else ""
        return mark, captions[row]

    ranked.write(folder / "pairs.csv", {"caption": captions.__getitem__, "wrong": wrong_word})
    detection = _detection(scores[ranked.order], wrong if wrong is None else wrong[ranked.order])
    files = {
        "pairs, most suspicious first": "pairs.csv",
        "page of the most suspicious": "pairs.html",
    }
    cut = None
    if keep is not None:
        rows = ranked.best(keep).tolist()
        cut = float(scores[rows].min())
        files["pairs to keep"] = _write_kept(pairs, scores, rows, folder / "kept.parquet").name
    sentences = [
        f"The number is the cosine of image and caption in the {model} model (-1 to 1): the lower,"
        " the worse the match."
    ]
    if wrong is not None:
        sentences.append('"Wrong" marks captions that this run replaced on purpose.')
    if detection is not None:
        area = detection["auroc"]
        figures = number(area["value"], area["low"], area["high"])
        sentences.append(f"Wrong captions have lower scores: AUROC {figures}.")
    if cut is None:
        sentences.append(
            "Look through these pairs. If most of them are wrong, train the original model again"
            f" with `--set keep={proposed:g}`, which leaves out the pairs that it scores lowest, or"
            " remove rows by hand; pairs.csv lists all pairs."
        )
    else:
        sentences.append(
            f"The pairs below {cut:.3f} are left out (`keep={keep:g}`). If many of them are"
            " correct, use a larger share; pairs.csv lists all pairs."
        )
    ranked.page(
        folder / "pairs.html",
        f"{pairs.name}: the most suspicious of {len(ranked.order):,} pairs",
        page_words,
        introduction=" ".join(sentences),
        marked=wrong,
        cut=cut,
    )
    return files, detection


def _detection(scores: NDArray[np.float32], wrong: Mask | None) -> Detection | None:
    """Return how well low scores detect wrong pairs, or None if no or all pairs are wrong."""
    # The area under the curve is only defined if there are both wrong and correct pairs.
    if wrong is None or not 0 < wrong.mean() < 1:
        return None
    area = auroc(scores, wrong)._asdict()
    return {"scored": len(scores), "wrong": float(wrong.mean()), "auroc": area}


def _write_kept(pairs: Pairs, scores: NDArray[np.float32], rows: Sequence[int], path: Path) -> Path:
    """Write some of the pairs with their label columns to a parquet file."""
    datasets = need("datasets")
    has_several = any(len(texts) > 1 for texts in pairs.captions)
    text = datasets.Value("string")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "caption": datasets.Sequence(text) if has_several else text,
            "id": text,
            "score": datasets.Value("float32"),
            **dict.fromkeys(pairs.columns, text),
        }
    )
    records = []
    for row in rows:
        captions = list(pairs.captions[row])
        # Store paths instead of copying the files.
        image: dict[str, object] = {"bytes": None, "path": pairs.path(row)}
        if not image["path"]:
            file = io.BytesIO()
            pairs.read(row).save(file, "PNG")
            image = {"bytes": file.getvalue(), "path": None}
        record: dict[str, object] = {
            "image": image,
            "caption": captions if has_several else captions[0],
            "id": pairs.ids[row],
            "score": float(scores[row]),
        }
        for name, labels in pairs.columns.items():
            code = int(labels.codes[row])
            # Write None for unknown labels, because missing values are loaded as unknown.
            record[name] = None if code < 0 else labels.names[code]
        records.append(record)
    table = datasets.Dataset.from_list(records, features=features)
    return write_atomically(path, lambda partial: table.to_parquet(partial))
