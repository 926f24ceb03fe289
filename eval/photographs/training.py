"""Train two heads on real pairs of photographs and captions (`real_captions`).

    python -m eval.experiments.run real_captions   # Flickr8k, from $VLDEBIAS_REAL

The towers are frozen, so that photographs and text are represented by the inputs of the heads. A
share of the texts belong to different photographs. InfoNCE is also trained a second time, excluding
the fifth of pairs with the lowest scores after a short first training run ("filtered").

`eval.photographs.fine_tuning` starts from pretrained heads instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eval.experiments import captions
from eval.experiments.captions import loss_of, softmax_scores
from eval.experiments.run import Cell, scored
from eval.photographs import is_present, pairs_before_heads, small_model
from vldebias.errors import InvalidInputError
from vldebias.training.monitor import image_features, text_features
from vldebias.training.pairs import Pairs
from vldebias.training.sampling import numpy_generator

WIDTH = 64  # dimension of the joint space
WITHIN = 10  # number of top results that must contain the photograph
EARLY = 0.4  # share of the steps after which pairs are scored
KEPT = 0.8  # share of the pairs to keep, by score
VALIDATION = 0.1  # share of the training texts for selecting temperatures
RECALL = "recall@10"

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RealPairs:
    """Photographs as an array (n, a, 1, 1), and the vectors (m, b) of the distinct texts.

    `texts` contains the text of each photograph, and `row_of_text` the row of each text in the
    vectors.
    """

    images: Tensor
    texts: Sequence[str]
    vectors: Tensor
    row_of_text: Mapping[str, int]

    def take(self, rows: Rows) -> RealPairs:
        """Return some of the pairs."""
        texts = [self.texts[row] for row in rows]
        images = self.images[torch.from_numpy(rows)]
        return RealPairs(images, texts, self.vectors, self.row_of_text)

    def with_texts_of(self, rows: Rows) -> RealPairs:
        """Return the same photographs with the texts in the given rows."""
        texts = [self.texts[row] for row in rows]
        return RealPairs(self.images, texts, self.vectors, self.row_of_text)


class Heads(captions.Heads):
    """Two linear heads with input dropout for photographs and their texts."""

    def __init__(
        self, pairs: RealPairs, dropout: tuple[float, float], *, is_pretrained: bool = False
    ) -> None:
        if is_pretrained:
            model = small_model()
            weights = map(torch.from_numpy, (model.image_head, model.text_head))
            layers = [captions.linear(weight) for weight in weights]
        else:
            widths = (pairs.images.shape[1], pairs.vectors.shape[1])
            layers = [nn.Linear(width, WIDTH, bias=False) for width in widths]
        heads = [
            nn.Sequential(nn.Dropout(share), layer)
            for share, layer in zip(dropout, layers, strict=True)
        ]
        super().__init__(*heads, pairs.vectors, pairs.row_of_text)


@cache
def flickr() -> tuple[RealPairs, RealPairs]:
    """Return Flickr8k photographs for training and for testing, each with its first caption.

    Raises:
        InvalidInputError: If $VLDEBIAS_REAL does not contain them.
    """
    if not is_present("photos"):
        raise InvalidInputError("Flickr8k was not found. Set VLDEBIAS_REAL")
    vectors = []
    row_of_text: dict[str, int] = {}
    parts = []
    for part in ("train", "dev"):
        images, of_captions = pairs_before_heads(part)
        # Only the vectors of captions are available, so numbers replace their text.
        texts = [f"{part} {row}" for row in range(len(images))]
        row_of_text |= {text: len(row_of_text) + row for row, text in enumerate(texts)}
        vectors.append(torch.from_numpy(of_captions))
        parts.append((torch.from_numpy(images)[:, :, None, None], texts))
    joined = torch.cat(vectors)
    learned, held_out = (RealPairs(*part, joined, row_of_text) for part in parts)
    return learned, held_out


def real_captions(cell: Cell) -> dict[str, Any]:
    """Score one arm on held-out pairs, or on validation pairs for selecting settings."""
    learned, held_out = flickr()
    learned, validation = _without_validation(learned)
    wrong = learned.with_texts_of(Pairs.noise(len(learned.texts), cell["share"], cell["seed"]))
    trained = _trained(cell, wrong, cell["steps"])
    if cell.get("tuning"):
        return {"validation": float(found(trained, validation).mean())}
    figures = scored(RECALL, found(trained, held_out))
    if cell["arm"] == "InfoNCE":
        again = scored(RECALL, found(_trained_without_suspects(cell, wrong), held_out))
        figures |= {f"InfoNCE, filtered: {name}": value for name, value in again.items()}
    return figures


def _without_validation(pairs: RealPairs) -> tuple[RealPairs, RealPairs]:
    """Split pairs into training and validation pairs, which are the same in every cell."""
    _, codes = np.unique(pairs.texts, return_inverse=True)
    generator = numpy_generator("validation of real pairs", 0)
    is_validation = (generator.random(codes.max() + 1) < VALIDATION)[codes]
    return pairs.take(np.flatnonzero(~is_validation)), pairs.take(np.flatnonzero(is_validation))


def _trained(cell: Cell, pairs: RealPairs, steps: int) -> Heads:
    torch.manual_seed(cell["seed"])
    heads = Heads(pairs, tuple(cell["dropout"]))
    loop = {"steps": steps, "batch_size": cell["batch"], "lr": cell["lr"], "seed": cell["seed"]}
    objective = captions.objective_of(loss_of(cell), len(pairs.texts))
    trained: Heads = captions.train(heads, pairs.images, pairs.texts, objective, **loop)
    return trained


def _trained_without_suspects(cell: Cell, pairs: RealPairs) -> Heads:
    """Train heads on the pairs with the highest scores after a short training run."""
    early = _trained(cell, pairs, round(EARLY * cell["steps"]))
    listed = list(dict.fromkeys(pairs.texts))
    place = {text: row for row, text in enumerate(listed)}
    codes = torch.tensor([place[text] for text in pairs.texts])
    temperature = loss_of(cell)["temperature"]
    images, texts = image_features(early, pairs.images), text_features(early, listed)
    order = softmax_scores(images, texts, codes, temperature).argsort(descending=True)
    kept = order[: round(KEPT * len(order))].sort().values.numpy()
    return _trained(cell, pairs.take(kept), cell["steps"])


def found(heads: Heads, pairs: RealPairs) -> NDArray[np.float64]:
    """Return, for each pair, 1 if a photograph with its text is in the top results, or 0."""
    _, codes = np.unique(pairs.texts, return_inverse=True)
    cosines = text_features(heads, list(pairs.texts)) @ image_features(heads, pairs.images).T
    first = cosines.topk(WITHIN, dim=1).indices.numpy()
    return (codes[first] == codes[:, None]).any(1).astype(float)
