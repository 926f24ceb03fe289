"""Rank pairs by how likely their captions are wrong, using image-caption cosines.

Source: Figure 5-5 of the thesis. A low cosine is a reason to inspect a pair, but does not prove
that its caption is wrong.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError, need, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.measure.classification import auroc
from vldebias.report.table import number
from vldebias.training.monitor import image_features, pixel_batches, text_features
from vldebias.training.pairs import Pairs
from vldebias.training.sampling import numpy_generator
from vldebias.utils.arrays import Floats, Mask
from vldebias.utils.files import write_atomically
from vldebias.utils.phrases import capitalised
from vldebias.utils.progress import SILENT, Progress


class Detection(TypedDict):
    """How well low scores detect wrong pairs: pairs scored, share of wrong pairs, and AUROC."""

    scored: int
    wrong: float
    auroc: dict[str, float]


SAMPLE = 500  # maximum number of images whose captions are exchanged for comparison
_CAPTIONS_AT_ONCE = 1000
_EM_STEPS = 60
_NARROWEST = 1e-4  # smallest standard deviation of cosines
_TINY = np.finfo(np.float64).tiny


def positive_scores(
    towers: Towers,
    pairs: Pairs,
    *,
    workers: int = 4,
    progress: Progress = SILENT,
) -> NDArray[np.float32]:
    """Return each image's lowest cosine with its captions (n,), or NaN for unreadable images.

    Args:
        towers: the model.
        pairs: images with captions.
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


def equal_negatives(towers: Towers, pairs: Pairs, batch_size: int) -> tuple[float, float]:
    """Return how many negatives of an image have its own caption, on average over batches.

    Args:
        towers: the model.
        pairs: images with captions, of which only the first of each image counts.
        batch_size: number of pairs in a batch.

    Returns:
        The number of equal texts, and the number of equal texts after tokenising, which cuts
            them at the context length.
    """
    captions = [texts[0] for texts in pairs.captions]
    tokens: list[bytes] = []
    for start in range(0, len(captions), _CAPTIONS_AT_ONCE):
        # The first tensor has the tokens.
        batch = next(iter(towers.tokenize(captions[start : start + _CAPTIONS_AT_ONCE]).values()))
        tokens += [row.tobytes() for row in batch.cpu().numpy()]

    def repeats(rows: Sequence[Hashable]) -> float:
        pairs_of_rows = sum(n * (n - 1) for n in Counter(rows).values())
        return (batch_size - 1) * pairs_of_rows / max(1, len(rows) * (len(rows) - 1))

    return repeats(captions), repeats(tokens)


class RightCaptions(NamedTuple):
    """Estimate which captions are right.

    Attributes:
        share: estimated share of the pairs whose caption is right.
        weights: (n,), each pair's probability of having the right caption, or 0 without a score.
    """

    share: float
    weights: NDArray[np.float32]


def right_captions(scores: NDArray[np.float32], exchanged: NDArray[np.float32]) -> RightCaptions:
    """Estimate each pair's probability of having the right caption, with two normals.

    The scores of wrong captions have the mean and deviation of exchanged captions. The normal of
    the right captions and its share are fitted by expectation-maximisation.

    Args:
        scores: (n,), scores of the pairs, or NaN.
        exchanged: (m,), scores of images with captions of other images, from `shuffled_scores`.
    """
    is_known = np.isfinite(scores)
    weights = is_known.astype(np.float32)
    known = scores[is_known].astype(np.float64)
    if len(exchanged) < 2 or len(known) < 2 or known.std() == 0:
        return RightCaptions(1.0, weights)
    low = float(exchanged.mean())
    low_deviation = max(float(exchanged.std()), _NARROWEST)
    # Half of the wrong captions score below the median of exchanged ones, but few right ones do.
    share = float(np.clip(1 - 2 * (known < np.median(exchanged)).mean(), 0.05, 0.95))
    high = max((float(known.mean()) - (1 - share) * low) / share, low)
    deviation = low_deviation
    for _ in range(_EM_STEPS):
        right = share * _density(known, high, deviation)
        wrong = (1 - share) * _density(known, low, low_deviation)
        chance = right / np.maximum(right + wrong, _TINY)
        share = float(np.clip(chance.mean(), 0.02, 0.98))
        high = float(chance @ known / chance.sum())
        variance = float(chance @ (known - high) ** 2 / chance.sum())
        deviation = max(variance**0.5, _NARROWEST)
    # Normals of different widths cross twice, but a better match must never get a lower weight.
    order = np.argsort(known)
    is_above = known[order] > high
    ordered = chance[order]
    ordered[is_above] = np.maximum.accumulate(ordered[is_above])
    ordered[~is_above] = np.minimum.accumulate(ordered[~is_above][::-1])[::-1]
    if (~is_above).any():
        ordered[is_above] = np.maximum(ordered[is_above], ordered[~is_above][-1])
    chance[order] = ordered
    weights[is_known] = chance
    return RightCaptions(share, weights)


def _density(values: Floats, mean: float, deviation: float) -> Floats:
    """Return the density (n,) of a normal, without the factor 1 / sqrt(2 pi)."""
    density: Floats = np.exp(-0.5 * ((values - mean) / deviation) ** 2) / deviation
    return density


def report_pairs(
    pairs: Pairs,
    scores: NDArray[np.float32],
    folder: Path,
    *,
    exchanged: NDArray[np.float32],
    keep: float | Literal["auto"] | None = None,
    model: str = "saved",
    note: str = "",
) -> tuple[dict[str, str], Detection | None]:
    """Write pairs.csv and pairs.html, with the most suspicious pairs first.

    With `keep`, the best pairs are written to kept.parquet with the data's label columns, for
    `vldebias train --data`. With "auto", these are the pairs that are more likely right than wrong.

    Args:
        pairs: images with captions.
        scores: (n,), lower scores are more suspicious.
        folder: folder for the files.
        exchanged: (m,), scores of images with captions of other images, from `shuffled_scores`.
        keep: share of the pairs to write to kept.parquet, or "auto".
        model: which model gave the scores, "starting" or "saved".
        note: sentence about the run for the page, without its full stop.

    Returns:
        A mapping from a description of each file to its name, and how well low scores detect wrong
        pairs (None without caption noise).
    """
    wrong = pairs.wrong
    captions = [" | ".join(texts) for texts in pairs.captions]
    ranked = Suspects(scores, pairs.ids, read=pairs.read, path=pairs.path)
    right = right_captions(scores, exchanged)

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
    # By default, the line in the histogram separates likely wrong from likely right captions.
    rows = np.flatnonzero(right.weights >= 0.5).tolist()
    if isinstance(keep, float):
        rows = ranked.best(keep).tolist()
    cut = float(scores[rows].min()) if rows else None
    below = "likely wrong" if keep is None else "counts less" if keep == "auto" else "left out"
    if keep is not None:
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
    sentences.append(_advice(right.share, cut, keep))
    if note:
        sentences.append(f"{capitalised(note)}.")
    ranked.page(
        folder / "pairs.html",
        f"{pairs.name}: the most suspicious of {len(ranked.order):,} pairs",
        page_words,
        introduction=" ".join(sentences),
        marked=wrong,
        cut=None if cut is None else (cut, below),
        can_check=True,
    )
    return files, detection


def _advice(share: float, cut: float | None, keep: float | Literal["auto"] | None) -> str:
    """Return what the histogram suggests for `keep`, or what the run's own `keep` means.

    Args:
        share: estimated share of right captions.
        cut: score at the line in the histogram.
        keep: the run's setting.
    """
    estimate = (
        f"Two normals fitted to the histogram, one of which has the scores of exchanged captions,"
        f" put the share of right captions at {share:.0%}"
    )
    listed = "pairs.csv lists all pairs."
    if keep == "auto":
        line = "" if cut is None else f" Pairs below the line at {cut:.3f} count less than half."
        return f"{estimate}.{line} {listed}"
    if keep is not None:
        return (
            f"The pairs below {cut:.3f} are left out (`keep={keep:g}`). {estimate}. If many of"
            f" those left out are correct, use a larger share; {listed}"
        )
    return (
        f"{estimate}, which would be `keep={max(round(share, 1), 0.1):g}`. Look through these"
        " pairs. If most of them are wrong, train the original model again with `--set keep=auto`,"
        f" which makes likely wrong pairs count less, or remove rows by hand; {listed}"
    )


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
