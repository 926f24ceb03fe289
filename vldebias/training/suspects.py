"""List pairs in the order of suspicion: by the cosine of each image with its captions, low for
wrong captions.

Source: Figure 5-5 of the thesis. A low score is a reason to look, not a verdict.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError, need, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.measure.classification import auroc
from vldebias.training.monitor import BATCH, image_features, pixel_batches, text_features
from vldebias.training.pairs import Pairs
from vldebias.utils.files import write_atomically
from vldebias.utils.progress import SILENT, Progress


def positive_scores(
    towers: Towers,
    pairs: Pairs,
    *,
    batch_size: int = BATCH,
    workers: int = 4,
    progress: Progress = SILENT,
) -> NDArray[np.float32]:
    """Return the lowest cosine of each image with one of its captions, (n,) in [-1, 1]; NaN if it
    cannot be read.

    Args:
        towers: the model.
        pairs: images with captions.
        batch_size: images that are encoded at once.
        workers: threads that read images.
        progress: shows how far it is.
    """
    if not pairs.items or not pairs.captions:
        raise InvalidInputError(
            f"{pairs.name}: expected pairs of an image and a caption to score, got none"
        )
    scores = np.full(pairs.items, np.nan, dtype=np.float32)
    skipped = dict[int, str]()
    how: Any = {"batch_size": batch_size, "workers": workers, "skipped": skipped}
    with progress.bar(f"{pairs.name}: positive scores", pairs.items) as advance:
        for rows, images in pixel_batches(range(pairs.items), pairs.read, towers.prepare, **how):
            captions = [pairs.captions[row] for row in rows.tolist()]
            features = image_features(towers, images)
            text_rows = text_features(towers, list(chain.from_iterable(captions)))
            texts_of_image = text_rows.split(list(map(len, captions)))
            lowest = []
            for image, texts in zip(features, texts_of_image, strict=True):
                # The worst of its captions: one wrong text is enough to look at the pair.
                cosine = (texts * image).sum(1).min()
                lowest.append(float(cosine.clamp(-1, 1)))
            scores[rows.numpy()] = lowest
            advance(len(rows))
    if len(skipped) == pairs.items:
        row, reason = min(skipped.items())
        raise InvalidInputError(
            f"{pairs.name}: none of {len(skipped)} images can be read, such as {pairs.ids[row]}"
            f" ({reason})"
        )
    # More scores are NaN than images were unreadable, so the model returned NaN.
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
) -> tuple[dict[str, str], dict[str, object] | None]:
    """Write pairs.csv and pairs.html, the most suspicious first; with `keep` that share, the best,
    to kept.parquet, with the label and group columns of the data, which `vldebias train --data`
    reads.

    Returns the files by kind, and with caption noise how well low scores find the wrong pairs, else
    None.

    Args:
        pairs: images with captions.
        scores: (n,), lower is more suspicious.
        folder: where the files are written.
        keep: share of the pairs to write to kept.parquet; None: no such file.
    """
    wrong = pairs.wrong
    captions = [" | ".join(texts) for texts in pairs.captions]
    ranked = Suspects(scores, pairs.ids, read=pairs.read, path=pairs.path)

    def wrong_word(row: int) -> str:
        if wrong is None:
            return ""  # nobody knows
        return "yes" if wrong[row] else "no"

    def page_words(row: int) -> tuple[str, str]:
        mark = "wrong" if wrong_word(row) == "yes" else ""
        return mark, captions[row]

    ranked.write(folder / "pairs.csv", {"caption": captions.__getitem__, "wrong": wrong_word})
    title = f"{pairs.name}: the most suspicious of {len(ranked.order):,} pairs"
    ranked.page(folder / "pairs.html", title, page_words, about=_about_pairs(wrong is not None))
    files = {
        "pairs, most suspicious first": "pairs.csv",
        "page of the most suspicious": "pairs.html",
    }
    if keep is not None:
        rows = ranked.kept(keep).tolist()
        files["pairs to keep"] = _write_kept(pairs, scores, rows, folder / "kept.parquet").name
    if wrong is None:
        return files, None
    ranked_scores = scores[ranked.order]
    ranked_wrong = wrong[ranked.order]
    share = float(ranked_wrong.mean())
    # Without both kinds among the scored there is nothing to rank.
    if not 0 < share < 1:
        return files, None
    area = auroc(ranked_scores, ranked_wrong)._asdict()
    return files, {"scored": len(ranked_scores), "wrong": share, "auroc": area}


def _about_pairs(has_noise: bool) -> str:
    """Return what the page of suspicious pairs says below its heading."""
    marked = ""
    if has_noise:
        marked = ' "Wrong" marks captions that this run shuffled on purpose (caption noise).'
    return (
        "The number is the cosine between an image and its caption in the trained model (-1 to 1):"
        f" the lower, the less the two fit together.{marked} Look through these pairs; if most are"
        " wrong, train again on the best of them (`--set keep=0.9` writes kept.parquet, to pass as"
        " --data), or remove single rows with the help of pairs.csv, which lists all pairs."
    )


def _write_kept(pairs: Pairs, scores: NDArray[np.float32], rows: Sequence[int], path: Path) -> Path:
    """Write some of the pairs, with their columns of labels, to a parquet file that `datasets` and
    `vldebias train` read."""
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
        # Images that are files are named, not copied.
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
            # A missing value is read as an unknown label.
            record[name] = None if code < 0 else labels.names[code]
        records.append(record)
    table = datasets.Dataset.from_list(records, features=features)
    return write_atomically(path, lambda partial: table.to_parquet(partial))
