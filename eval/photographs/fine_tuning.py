"""Fine-tune pretrained heads with the settings of printed commands (`fine_tuning`).

    python -m eval.experiments.run fine_tuning   # from $VLDEBIAS_REAL

The heads embedded Flickr8k, and the towers below them are frozen. They are tuned on the model's own
domain, photographs of Flickr8k that they have not seen ("captions"), or on a new one, photographs
of 1939 to 1944 with the titles of a catalogue ("titles"). A share of the texts belong to different
photographs. Validation and test photographs keep their own texts.

Every run is scored at its end and half way between the starting and the trained weights. "chosen"
is the one of the two with the higher recall on the validation photographs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from eval.experiments.run import Cell, scored
from eval.experiments.tensor_batches import TensorBatches
from eval.photographs import (
    catalogue_titles,
    held_out_captions,
    small_model,
)
from eval.photographs.training import RECALL, Heads, RealPairs, found
from vldebias.training.filtering import StartingScores
from vldebias.training.loop import fit
from vldebias.training.monitor import image_features, text_features
from vldebias.training.objective import Objective, Trainee
from vldebias.training.optim import StartingWeights
from vldebias.training.pairs import Pairs
from vldebias.training.run import HALFWAY
from vldebias.training.sampling import numpy_generator
from vldebias.training.settings import load_settings
from vldebias.training.suspects import SAMPLE

# Flags of `vldebias train`, and the settings that they stand for. Without a preset, a command also
# trains the towers, which are frozen here.
RECIPES: dict[str, dict[str, Any]] = {
    "no preset": {"tune": "heads"},
    "--preset heads": {"preset": "heads"},
    "--preset heads --lr 1e-3 --epochs 10": {"preset": "heads", "lr": 1e-3, "epochs": 10},
    "--preset heads --lr 3e-3 --epochs 10": {"preset": "heads", "lr": 3e-3, "epochs": 10},
}
VALIDATION, TEST = 0.15, 0.35  # shares of the titles; captions have one half for training


class Parts(NamedTuple):
    """Pairs for training, for choosing between the end and half way, and for testing."""

    learned: RealPairs
    validation: RealPairs
    test: RealPairs


@cache
def parts(data: str) -> Parts:
    """Return the parts of "captions" or "titles"."""
    if data == "titles":
        images, titles, vectors = catalogue_titles()
        listed, codes = np.unique(titles, return_inverse=True)
        # Photographs with the same title are in the same part.
        draws = numpy_generator("parts of titles", 0).random(len(listed))[codes]
        pairs = real_pairs(images, titles.tolist(), vectors)
        test, rest = draws < TEST, draws >= TEST + VALIDATION
        rows = [np.flatnonzero(part) for part in (rest, ~rest & ~test, test)]
        return Parts(*(pairs.take(part) for part in rows))
    images, captions = held_out_captions()
    names = [f"{photo} {place}" for photo in range(len(images)) for place in range(2)]
    pairs = real_pairs(np.repeat(images, 2, axis=0), names, captions.reshape(len(names), -1))
    order = 2 * numpy_generator("halves of real pairs", 0).permutation(len(images))
    half, end = len(images) // 2, round((1 - TEST) * len(images))
    learned = np.concatenate([order[:half], order[:half] + 1])
    # The first caption of each photograph is its query.
    return Parts(pairs.take(learned), pairs.take(order[half:end]), pairs.take(order[end:]))


def real_pairs(images: Any, texts: list[str], vectors: Any) -> RealPairs:
    """Return pairs of photographs (n, a) and texts, whose vectors are (n, b)."""
    row_of_text = {text: row for row, text in enumerate(texts)}
    tensor = torch.from_numpy(np.asarray(images, np.float32))[:, :, None, None]
    return RealPairs(tensor, texts, torch.from_numpy(vectors), row_of_text)


def fine_tuning(cell: Cell) -> dict[str, Any]:
    """Score one arm on the test photographs, at its end, half way and chosen by validation."""
    learned, validation, test = parts(cell["data"])
    seed = cell["seed"]
    wrong = learned.with_texts_of(Pairs.noise(len(learned.texts), cell["share"], seed))
    heads = Heads(wrong, (0.0, 0.0), is_pretrained=True)
    if cell["arm"] == "not trained":
        return scored(RECALL, found(heads, test))
    settings = load_settings(data=cell["data"], seed=seed, **RECIPES[cell["recipe"]])
    keep: float | Literal["auto"] | None = cell["settings"].get("keep")
    weights = None
    if keep is not None:
        weights = torch.from_numpy(starting_scores(heads, wrong, seed).weights(keep))
    if isinstance(keep, float):
        wrong = wrong.take(np.flatnonzero(weights))
        weights = None
    batches: Any = TensorBatches(
        wrong.images,
        wrong.texts,
        batch_size=settings.batch_size,
        tokenize=heads.tokenize,
        weights=weights,
        seed=seed,
    )
    objective = Objective(
        settings,
        temperature=1 / small_model().scale,
        items=len(wrong.texts),
        is_weighted=weights is not None,
    )
    start = StartingWeights(heads, HALFWAY)
    fit(Trainee(heads, objective), batches, settings)
    at_end, best = found(heads, test), found(heads, validation).mean()
    with start.averaged():
        half, best_half = found(heads, test), found(heads, validation).mean()
    figures = scored(RECALL, at_end)
    for name, scores in (("half way", half), ("chosen", half if best_half > best else at_end)):
        for key, value in scored(RECALL, scores).items():
            # The scores of each photograph keep their prefix.
            prefix, _, metric = key.rpartition(": ")
            row = f"{cell['arm']}, {name}: {prefix}: {metric}" if prefix else ""
            figures[row or f"{cell['arm']}, {name}: {metric}"] = value
    return figures


def starting_scores(heads: Heads, pairs: RealPairs, seed: int) -> StartingScores:
    """Score the pairs before training, as `vldebias train --set keep=...` does."""
    images = image_features(heads, pairs.images)
    texts = text_features(heads, list(pairs.texts))
    rows = numpy_generator("sample of pairs", seed).permutation(len(pairs.texts))[:SAMPLE]
    exchanged = np.roll(rows, -1)
    differs = [pairs.texts[a] != pairs.texts[b] for a, b in zip(rows, exchanged, strict=True)]
    cosines = (images[rows] * texts[exchanged]).sum(1).numpy()[differs]
    scores = (images * texts).sum(1).numpy()
    return StartingScores(np.arange(len(scores)), scores, cosines)
