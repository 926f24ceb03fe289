"""Leave out or down-weight training pairs that match badly in the starting model (`keep`).

The scores are stored in the output folder, so that a resumed run treats the pairs in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError, need
from vldebias.hosts.clip.towers import Towers
from vldebias.measure.classification import auroc
from vldebias.training.batches import Batches, MapBatches, StreamBatches
from vldebias.training.pairs import Pairs
from vldebias.training.suspects import positive_scores, right_captions, shuffled_scores
from vldebias.utils.files import write_atomically
from vldebias.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    from PIL import Image

SCORES = "scores.npz"
_PART = 4096  # number of streamed pairs scored at once
# With random weights, an image's own caption does not score higher than captions of other images
# (AUROC 0.5). Even if 60% of the captions are wrong, a perfect model reaches 0.7.
_LEAST_AUROC = 0.55

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StartingScores:
    """Scores of the training pairs under the starting model.

    Attributes:
        index: (n,), row of each pair in its data set.
        scores: (n,), cosines, or NaN for unreadable images.
        exchanged: (m,), cosines of a sample of images with captions of other images.
    """

    index: Rows
    scores: NDArray[np.float32]
    exchanged: NDArray[np.float32]

    @classmethod
    def measure(cls, towers: Towers, batches: Batches, progress: Progress = SILENT) -> Self:
        """Score all pairs; each process scores its own and receives the others' scores.

        Args:
            towers: the starting model.
            batches: the unfiltered micro-batches of this process.
            progress: where to report progress.

        Raises:
            InvalidInputError: If the model cannot tell captions from those of other images.
        """
        scored_parts: list[tuple[Rows, NDArray[np.float32], NDArray[np.float32]]] = []
        for rows, pairs in _parts(batches):
            scores = positive_scores(towers, pairs, workers=batches.workers, progress=progress)
            exchanged = np.array([], np.float32)
            if not scored_parts:
                sampled, exchanged = shuffled_scores(towers, pairs, workers=batches.workers)
                _refuse_uninformed(pairs.name, scores[sampled], exchanged)
            scored_parts.append((rows, scores, exchanged))
        everywhere = need("accelerate.utils").gather_object(scored_parts)
        index, scores, exchanged = map(np.concatenate, zip(*everywhere, strict=True))
        order = np.argsort(index)
        return cls(index[order], scores[order], exchanged)

    def best(self, keep: float) -> Rows:
        """Return the indexes of the share `keep` of the scored pairs with the highest scores."""
        return self.index[Suspects(self.scores, [""] * len(self.scores)).best(keep)]

    def weights(self, keep: float | Literal["auto"]) -> NDArray[np.float32]:
        """Return how much each pair counts (n,), which is 0 or 1 unless `keep` is "auto"."""
        if keep == "auto":
            return right_captions(self.scores, self.exchanged).weights
        return np.isin(self.index, self.best(keep)).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the scores to a folder."""

        def write(partial: Path) -> None:
            with partial.open("wb") as file:
                np.savez(file, index=self.index, scores=self.scores, exchanged=self.exchanged)

        write_atomically(folder / SCORES, write)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the scores of an interrupted run.

        Raises:
            InvalidInputError: If the file of scores is missing or damaged.
        """
        try:
            # numpy would not close a damaged file that it opened itself.
            with (folder / SCORES).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls(arrays["index"], arrays["scores"], arrays["exchanged"])
        except Exception as error:  # numpy raises many exception types for damaged files.
            raise InvalidInputError(
                f"{folder / SCORES}: cannot read which pairs this run left out ({error}); delete"
                " the folder to start again"
            ) from None


def _parts(batches: Batches) -> Iterator[tuple[Rows, Pairs]]:
    """Yield this process's share of the pairs with their indexes, in parts that fit in memory."""
    if isinstance(batches, MapBatches):
        rows = np.arange(batches.rank, batches.pairs.items, batches.world)
        yield rows, batches.pairs.select(rows)
    elif isinstance(batches, StreamBatches):
        streamed = batches.rows()
        while part := list(islice(streamed, _PART)):
            records = [record for _, record in part]
            captions = [(record.caption or "", *(record.more_captions or ())) for record in records]
            ids = tuple(record.id for record in records)
            readers = [record.read for record in records]
            pairs = Pairs(batches.name, ids, tuple(captions), partial(_read_row, readers))
            yield np.array([index for index, _ in part]), pairs


def _read_row(readers: Sequence[Callable[[], Image.Image]], row: int) -> Image.Image:
    return readers[row]()


def _refuse_uninformed(
    name: str, scores: NDArray[np.float32], exchanged: NDArray[np.float32]
) -> None:
    """Raise an error if captions do not score higher than captions of other images.

    Args:
        name: name of the data set.
        scores: (m,), scores of a sample of images.
        exchanged: (m,), scores of the same images with captions of other images.
    """
    caption_scores = scores[np.isfinite(scores)]
    if not len(caption_scores) or not len(exchanged):
        return
    is_exchanged = np.repeat([False, True], [len(caption_scores), len(exchanged)])
    area = auroc(np.concatenate([caption_scores, exchanged]), is_exchanged)
    if area.low < _LEAST_AUROC:
        raise InvalidInputError(
            f"keep: the starting model cannot tell the captions of {name} from those of"
            f" other images (AUROC {area.value:.2f} [{area.low:.2f}, {area.high:.2f}], expected"
            f" at least {_LEAST_AUROC}), as with random weights, so its scores would drop pairs at"
            " random. Train in two runs instead: first without keep, as in `vldebias train"
            " --out vldebias-train ...`. Then score the pairs with `vldebias train --pairs --model"
            " vldebias-train/model --set keep=0.8 --out scored ...`, and train on"
            " scored/kept.parquet"
        )
