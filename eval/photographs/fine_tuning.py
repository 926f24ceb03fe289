"""Fine-tune pretrained heads with the settings of printed commands (`fine_tuning`).

    python -m eval.experiments.run fine_tuning   # from $VLDEBIAS_REAL

The heads embedded Flickr8k, and the towers below them are frozen. They are tuned on the model's own
domain, photographs of Flickr8k that they have not seen ("captions"), or on a new one, photographs
of 1939 to 1944 with the titles of a catalogue ("titles"). Some of the texts do not describe their
photograph (`SPOILED`). Validation and test photographs keep their own texts.

Every run is scored on the test photographs at its end, half way between the starting and the
trained weights, and with the weights that `vldebias train` saves ("saved"), which are those of the
two that are better on the validation photographs.
"""

from __future__ import annotations

from dataclasses import replace
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
    text_vectors,
)
from eval.photographs.training import RECALL, Heads, RealPairs, found
from vldebias.training.changes import deciding_score
from vldebias.training.filtering import StartingScores
from vldebias.training.loop import fit
from vldebias.training.monitor import Monitor, image_features, text_features
from vldebias.training.objective import Objective, Trainee
from vldebias.training.optim import StartingWeights
from vldebias.training.pairs import Pairs
from vldebias.training.sampling import numpy_generator
from vldebias.training.settings import load_settings
from vldebias.training.suspects import SAMPLE

# Flags of `vldebias train`, and the settings that they stand for.
RECIPES: dict[str, dict[str, Any]] = {
    "--preset heads": {"preset": "heads"},
    "--preset heads --lr 1e-3 --epochs 10": {"preset": "heads", "lr": 1e-3, "epochs": 10},
    "--preset heads --lr 3e-3 --epochs 10": {"preset": "heads", "lr": 3e-3, "epochs": 10},
}
# Texts that do not describe their photograph, and their share.
SPOILED: dict[str, tuple[str, float]] = {
    "right": ("others", 0.0),
    "10% of others": ("others", 0.1),
    "30% of others": ("others", 0.3),
    "60% of others": ("others", 0.6),
    "30% of similar": ("similar", 0.3),
    "30% generic": ("generic", 0.3),
}
SAME = 0.9999  # cosine above which two features are of the same photograph
VALIDATION, TEST = 0.15, 0.35  # shares of the titles; captions have one half for training


class Parts(NamedTuple):
    """Pairs for training, for choosing the weights to save, and for testing."""

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
    generic = text_vectors()
    row_of_text = {text: row for row, text in enumerate([*texts, *generic])}
    tensor = torch.from_numpy(np.asarray(images, np.float32))[:, :, None, None]
    vectors = np.concatenate([vectors, np.stack(list(generic.values()))])
    return RealPairs(tensor, texts, torch.from_numpy(vectors), row_of_text)


def spoiled(pairs: RealPairs, name: str, seed: int) -> RealPairs:
    """Replace a share of the texts as described in `SPOILED`."""
    kind, share = SPOILED[name]
    n = len(pairs.texts)
    if kind == "others":
        return pairs.with_texts_of(Pairs.noise(n, share, seed))
    generator = numpy_generator("spoiled texts", seed)
    replaced = np.flatnonzero(generator.random(n) < share)
    if kind == "similar":
        features = image_features(Heads(pairs, (0.0, 0.0), is_pretrained=True), pairs.images)
        cosines = features @ features.T
        cosines[cosines > SAME] = -1
        rows = np.arange(n)
        rows[replaced] = cosines.argmax(dim=1).numpy()[replaced]
        return pairs.with_texts_of(rows)
    generic = list(text_vectors())
    texts = list(pairs.texts)
    for row in replaced:
        texts[row] = generic[generator.integers(len(generic))]
    return replace(pairs, texts=texts)


def fine_tuning(cell: Cell) -> dict[str, Any]:
    """Score one arm on the test photographs, at its end, half way and as it is saved."""
    learned, validation, test = parts(cell["data"])
    seed = cell["seed"]
    wrong = spoiled(learned, cell["texts"], seed)
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
    start = StartingWeights(heads)
    fit(Trainee(heads, objective), batches, settings)
    monitor = Monitor(validation.images, captions=validation.texts)
    towers: Any = heads
    at_end = found(heads, test)
    _, best = deciding_score(monitor(towers))
    with start.half_way():
        half = found(heads, test)
        _, validated = deciding_score(monitor(towers))
    saved = half if validated >= best else at_end
    figures = scored(RECALL, at_end)
    for name, scores in (("half way", half), ("saved", saved)):
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
