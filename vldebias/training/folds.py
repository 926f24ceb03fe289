"""Out-of-fold scores: every pair is scored by a model that did not learn it, since one that did knows it by heart.

Out-of-sample scores by cross-validation are what confident learning asks for (Northcutt et al., Confident Learning,
2021, section 3), there of labels and here of captions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.progress import SILENT, Progress
from vldebias.training.loop import make_accelerator
from vldebias.training.pairs import Pairs
from vldebias.training.run import Job, steps_done
from vldebias.training.scores import positive_scores
from vldebias.training.settings import TrainSettings


def out_of_fold_scores(
    pairs: Pairs,
    settings: TrainSettings,
    folder: Path,
    *,
    folds: int = 5,
    by: Literal["cosine", "softmax"] = "cosine",
    cpu: bool = False,
    progress: Progress = SILENT,
) -> NDArray[np.float32]:
    """Scores (n,) of all pairs: those of a fold by a model that was trained, as the settings say, on the others.

    It costs `folds` trainings. What is stopped goes on. Scores of different folds are of different models, of one
    recipe; with "softmax" a pair is compared with the images and captions of its own fold, in which all captions of an
    image are.

    Args:
        pairs: what the settings open; see `vldebias.training.pairs.make_pairs`.
        settings: of the trainings, which are not scored on held-out data meanwhile.
        folder: of the trainings, a folder each, and of scores.
        by: see `vldebias.training.scores.positive_scores`.

    Raises:
        InvalidInputError: folds outside 2 .. n, more than one process, and what training and scoring refuse.
    """
    fold = pairs.in_folds(folds, settings.seed)
    scores = np.full(pairs.items, np.nan, dtype=np.float32)
    for k in range(folds):
        own = folder / f"fold-{k + 1}-of-{folds}"
        accelerator = make_accelerator(cpu=cpu)
        if accelerator.num_processes > 1:
            raise InvalidInputError(f"folds: expected one process, got {accelerator.num_processes}")
        out = np.flatnonzero(fold == k)
        progress.say(f"fold {k + 1} of {folds}: learns {pairs.items - len(out):,} pairs, scores {len(out):,}")
        job = Job(settings, accelerator, own, progress, fold=(k, folds))
        job.train(steps_done(own)[0])
        how: dict[str, Any] = {"workers": settings.workers, "cache_dir": folder / "scores", "progress": progress}
        scores[out] = positive_scores(job.towers, pairs.taken(out), by=by, **how)
        accelerator.free_memory()
    return scores
