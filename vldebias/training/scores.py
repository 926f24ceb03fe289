"""The positive score of every pair: low where an image and its caption have little to do with each other.

Source: the thesis, section 5.3.2 and Figure 5-5: s+ = f(x)^T g(v) at temperature 1, in [-1, 1], finds noisy pairs. Any
image-text model has such scores, one that was trained here or one as it was published.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from vldebias.data.images import fingerprint_of
from vldebias.data.store import Notes, Shard, ShardStore
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.text import reading
from vldebias.metrics.detection import auroc, precision_among_lowest
from vldebias.training.features import image_features, text_features
from vldebias.training.pairs import PairSource
from vldebias.training.pixels import pixel_batches
from vldebias.training.ranked import RankedPairs, detection, rank_pairs, write_table

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = [
    "RankedPairs",
    "auroc",
    "detection",
    "positive_scores",
    "precision_among_lowest",
    "rank_pairs",
    "write_table",
]


def positive_scores(
    towers: Towers,
    pairs: PairSource,
    *,
    batch_size: int = 64,
    workers: int = 4,
    cache_dir: str | Path | None = None,
    shard_size: int = 4096,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Cosine of each image with its caption, (n,) in [-1, 1]; NaN where the image cannot be read, with a warning.

    The model computes in eval mode, without gradients, in the precision of its weights. Memory does not grow with n but
    for the n scores. Images are shown whole, by the preprocessing of evaluation, not augmented.

    Args:
        towers: from vldebias.hosts.towers.
        pairs: from `PairSource.of`, or with noise from `Pairs`.
        batch_size: pairs that go through the model at once.
        workers: threads that read and prepare images ahead of the model.
        cache_dir: keep scores here, so that a run that is stopped goes on from the last complete shard; another
            model, or other ids and captions, have a folder of their own. The pixels behind an id are not compared.
        shard_size: pairs in a shard: what a kill can cost.
        progress: a running bar to add to; default: one of its own on stderr.

    Raises:
        InvalidInputError: pairs without captions, no image that can be read, features that are not finite.
    """
    _check(pairs, batch_size, workers, shard_size)
    run = _Run(towers, pairs, batch_size, workers)
    store = _store(towers, pairs, Path(cache_dir), shard_size) if cache_dir is not None else None
    scores = np.full(pairs.items, np.nan, dtype=np.float32)
    skipped: list[list[str]] = []
    with _shown(progress) as bars:
        task = bars.add_task(f"{pairs.name}: positive scores", total=pairs.items)
        for index, start in enumerate(range(0, pairs.items, shard_size)):
            rows = range(start, min(start + shard_size, pairs.items))
            shard = None if store is None else store.read(index)
            if shard is None:
                shard = run.shard(rows, lambda done: bars.advance(task, done))
                if store is not None:
                    store.write(index, shard)
            bars.update(task, completed=rows.stop)
            scores[shard.rows.numpy()] = shard.features[:, 0].numpy()
            skipped += shard.notes.skipped
    _tell(pairs, skipped)
    return scores


@dataclass(frozen=True, eq=False)
class _Run:
    towers: Towers
    pairs: PairSource
    batch_size: int
    workers: int

    def shard(self, rows: range, advance: Callable[[int], None]) -> Shard:
        """Scores of some rows."""
        skipped: dict[int, str] = {}
        where, scores = [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]
        batches = pixel_batches(
            rows,
            self.pairs.read,
            self.towers.prepare,
            batch_size=self.batch_size,
            workers=self.workers,
            skipped=skipped,
        )
        for places, images in batches:
            where.append(places)
            scores.append(self._scores(places, images))
            advance(len(places))
        told = [[self.pairs.ids[row], reason] for row, reason in skipped.items()]
        return Shard(torch.cat(scores)[:, None], torch.cat(where), Notes(rows.start, len(rows), told))

    def _scores(self, places: Tensor, images: Tensor) -> Tensor:
        captions = [self.pairs.captions[row] for row in places.tolist()]
        with reading(self.towers.model):
            seen, said = image_features(self.towers, images), text_features(self.towers, captions, self.batch_size)
            scores = (seen * said).sum(dim=1).clamp(-1, 1).cpu()
        bad = (~scores.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise InvalidInputError(
                f"{self.pairs.name}: the features of {len(bad)} pairs, such as "
                f"{self.pairs.ids[int(places[bad[0]])]!r}, are not finite; has training diverged? "
                "In half precision, try float32"
            )
        return scores


def _check(pairs: PairSource, batch_size: int, workers: int, shard_size: int) -> None:
    for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("shard_size", shard_size, 1)):
        if value < least:
            raise InvalidInputError(f"{name}: expected at least {least}, got {value}")
    if not pairs.items or not pairs.captions:
        raise InvalidInputError(f"{pairs.name}: expected pairs of an image and a caption to score, got none")


def _store(towers: Towers, pairs: PairSource, folder: Path, shard_size: int) -> ShardStore:
    """Where the scores of these pairs under this model are kept."""
    about = {
        "kind": "positive scores",
        "data": pairs.name,
        "pairs": fingerprint_of([*pairs.ids, *pairs.captions]),
        "model": _digest(towers),
        "shard_size": shard_size,
    }
    readable = re.sub(r"[^\w.-]+", "-", pairs.name).strip("-.")
    digest = fingerprint_of([f"{name}={value}" for name, value in about.items()])[:20]
    return ShardStore(folder / f"scores-{readable}-{digest}", shard_size, about)


def _digest(towers: Towers) -> str:
    """A hash of every weight, the architecture and the preprocessing."""
    state = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(towers.model)).encode())
    state.update(str((towers.size, towers.mean, towers.std)).encode())
    for name, tensor in towers.model.state_dict().items():
        if isinstance(tensor, Tensor):
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()[:24]


def _tell(pairs: PairSource, skipped: list[list[str]]) -> None:
    if len(skipped) == pairs.items:
        raise InvalidInputError(f"{pairs.name}: none of {pairs.items} images can be read, such as {skipped[0]}")
    if skipped:
        warnings.warn(
            f"{pairs.name}: {len(skipped)} of {pairs.items} images cannot be read and have no score, such as "
            f"{skipped[0]}",
            VldebiasWarning,
            stacklevel=3,
        )


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    own = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    with nullcontext(progress) if progress is not None else own as bars:
        yield bars
