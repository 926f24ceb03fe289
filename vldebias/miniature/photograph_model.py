"""Embed text and the packaged photographs in the same space with a small image-text model.

The text encoder accepts any text. Two linear heads, one per modality, were trained on the
photographs and titles, excluding the gallery. In a checkout, `eval/photographs/pack.py` builds the
weights and `eval/photographs/small.py` evaluates them.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.data import Embeddings, ImageData
from vldebias.data.dataset import fingerprint_of
from vldebias.errors import need
from vldebias.miniature.photographs import (
    CREDIT,
    FOLDER,
    GALLERY,
    NAME,
    REFERENCE,
    open_thumbnails,
    read_table,
)


class TextEncoder(nn.Module):
    """Text encoder that applies a linear head to the weighted mean of word-piece vectors.

    The vectors approximate all-MiniLM-L6-v2 and use its vocabulary. `vldebias.debias`,
    `vldebias.debias_queries` and `vldebias.evaluate` accept the encoder.

    Args:
        vocabulary: the v word pieces.
        vectors: the vector of each word piece (v, w).
        weights: the weight of each word piece (v,).
        head: the linear head (w, d).
    """

    name_or_path = NAME

    def __init__(self, vocabulary: Sequence[str], vectors: Tensor, weights: Tensor, head: Tensor):
        super().__init__()
        self.vectors = nn.Parameter(vectors, requires_grad=False)
        self.weights = nn.Parameter(weights, requires_grad=False)
        self.head = nn.Parameter(head, requires_grad=False)
        self.unknown = vocabulary.index("[UNK]")
        tokenizers = need("tokenizers")
        pieces = {piece: row for row, piece in enumerate(vocabulary)}
        self._tokenizer = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(pieces, unk_token="[UNK]")
        )
        self._tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()

    def pieces(self, text: str) -> list[int]:
        """Return the ids of a text's word pieces, or that of unknown words if there are none."""
        return self._tokenizer.encode(text).ids or [self.unknown]

    def means(self, texts: Sequence[str]) -> Tensor:
        """Return the weighted means (n, w) of the word-piece vectors, scaled to norm 1."""
        rows = [self.pieces(text) for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        starts = lengths.cumsum(0) - lengths
        joined = torch.tensor([piece for row in rows for piece in row])
        device = self.vectors.device
        # A sum can replace the mean, because the result is normalised below.
        sums = nn.functional.embedding_bag(
            joined.to(device),
            self.vectors,
            starts.to(device),
            mode="sum",
            per_sample_weights=self.weights[joined.to(device)],
        )
        return normalize(sums, dim=1)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return text embeddings (n, d), scaled to norm 1."""
        if not texts:
            return self.head.new_zeros(0, self.head.shape[1])
        return normalize(self.means(list(texts)) @ self.head, dim=1)


@dataclass(frozen=True, eq=False)
class Photographs:
    """Embeddings and thumbnails of the photographs, and a text encoder.

    Attributes:
        gallery: embeddings of the photographs to search, equally many of women and of men. "gender"
            is the label, on which two readers of the thumbnails agreed, and the titles are the
            captions.
        reference: unlabelled embeddings of different photographs, for `reference=`. None of their
            titles occur in the gallery.
        encoder: text encoder for the same space.
        images: gallery thumbnails, in the same order.
    """

    gallery: Embeddings
    reference: Embeddings
    encoder: TextEncoder
    images: ImageData


def read_arrays() -> dict[str, Tensor]:
    """Load the features (1615, w) of all photographs, and the heads "image" (w, d) and "text"."""
    load = need("safetensors.torch").load_file
    return {name: tensor.float() for name, tensor in load(FOLDER / "model.safetensors").items()}


def load_encoder() -> TextEncoder:
    """Load the text encoder."""
    text = need("safetensors.torch").load_file(FOLDER / "words.safetensors")
    compressed = (FOLDER / "vocabulary.txt.gz").read_bytes()
    vocabulary = gzip.decompress(compressed).decode().split("\n")
    vectors = text["vectors"].float() * text["scale"].float()
    return TextEncoder(vocabulary, vectors, text["weights"].float(), read_arrays()["text"]).eval()


def load_photographs() -> Photographs:
    """Load the gallery, the reference and the text encoder.

    >>> photographs = load_photographs()  # doctest: +SKIP
    >>> queries = vldebias.debias_queries(
    ...     photographs.encoder, "gender", reference=photographs.reference.features
    ... )  # doctest: +SKIP
    """
    table = read_table()
    arrays = read_arrays()
    embedded = normalize(arrays["features"] @ arrays["image"], dim=1).numpy()
    return Photographs(
        gallery=_part(table, embedded, GALLERY),
        reference=_part(table, embedded, REFERENCE),
        encoder=load_encoder(),
        images=open_thumbnails(),
    )


def _part(table: Sequence[dict[str, str]], embedded: NDArray[np.float32], part: str) -> Embeddings:
    """Return the embeddings of the gallery, with labels and captions, or of the reference."""
    rows = [number for number, row in enumerate(table) if row["part"] == part]
    ids = tuple(table[row]["file"] for row in rows)
    digest = fingerprint_of([part, *ids])
    about = {"data": NAME, "split": part, "model": NAME, "credit": CREDIT, "digest": digest}
    features = np.ascontiguousarray(embedded[rows])
    if part != GALLERY:
        return Embeddings(features, ids, {}, about=about)
    images = open_thumbnails()
    return Embeddings(features, ids, images.labels, images.captions, about)
