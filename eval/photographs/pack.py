"""Build the packaged photographs and the small model for them.

    python -m eval.photographs.pack --minilm DIR   # writes vldebias/miniature/photographs

It needs `photos/fsa.npz` and `fsa/` from $VLDEBIAS_REAL, and a folder with all-MiniLM-L6-v2
(Apache-2.0) in transformers format. The gallery contains photographs for which two readers of the
thumbnails gave the same label (`labels.csv` next to the packaged files). Only the selection from
the larger group is random, and it is seeded, so that two builds on the same machine write identical
files.

The text encoder has one vector for each word piece, which is initially MiniLM's embedding of the
individual piece. A linear map and a correction for each piece, both fitted by ridge regression,
bring weighted means of these vectors close to MiniLM's embeddings of titles and packaged prompts.
The heads come from a regularised canonical correlation analysis of photographs and titles. All
computations are in closed form. `eval.photographs.small` measures the loss in quality relative to
MiniLM.
"""

from __future__ import annotations

import csv
import gzip
import io
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from scipy.sparse import csr_matrix

from eval.photographs import folder, is_present, unit
from eval.tables import plain_parser
from vldebias.miniature.photograph_model import TextEncoder
from vldebias.miniature.photographs import FOLDER, GENDERS, read_labels
from vldebias.prompts import list_prompts, load_prompts

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

WIDTH = 64  # dimension of word piece vectors and of the joint space
REDUCED = 128  # number of principal components of the image features
RARE = 1e-3  # frequency at which a piece has half the weight of the rarest piece
MAP_RIDGE, PIECE_RIDGE = 0.1, 0.01  # relative to the mean variance, and to vectors of length 1
HEAD_RIDGE = 3.0  # relative to the mean variance of each side
BATCH = 512


@dataclass(frozen=True, eq=False)
class Collection:
    """Photographs with files, titles, genders (or ""), and features (n, 1280)."""

    files: list[str]
    titles: list[str]
    gender: NDArray[np.str_]
    features: Array

    @cached_property
    def title_codes(self) -> Rows:
        """Return codes (n,) that are equal for equal titles."""
        return np.unique(self.titles, return_inverse=True)[1]

    def split(self) -> tuple[Rows, Rows]:
        """Return the rows of the largest even gallery, and the other rows with other titles."""
        members = [np.flatnonzero(self.gender == value) for value in GENDERS]
        size = min(map(len, members))
        chosen = [np.random.default_rng(0).permutation(rows)[:size] for rows in members]
        gallery = np.sort(np.concatenate(chosen))
        shares_title = np.isin(self.title_codes, self.title_codes[gallery])
        return gallery, np.flatnonzero(~shares_title)


def read_collection() -> Collection:
    """Load the photographs from $VLDEBIAS_REAL, with the genders that both readers saw."""
    agreed = agreed_genders()
    with np.load(folder() / "photos" / "fsa.npz", allow_pickle=False) as arrays:
        files = arrays["names"].tolist()
        return Collection(
            files=files,
            titles=arrays["titles"].tolist(),
            gender=np.array([agreed.get(file, "") for file in files]),
            features=arrays["before"].astype(np.float64),
        )


def agreed_genders() -> dict[str, str]:
    """Return the gender of each file for which both readers saw only women, or only men."""
    gender_of = {"women": "female", "men": "male"}
    return {
        row["file"]: gender_of[row["reader_a"]]
        for row in read_labels()
        if row["reader_a"] == row["reader_b"] and row["reader_a"] in gender_of
    }


class MiniLM:
    """Embed text and individual word pieces with all-MiniLM-L6-v2."""

    def __init__(self, place: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(place)
        self.model = AutoModel.from_pretrained(place).eval()
        listed = sorted(self.tokenizer.vocab.items(), key=lambda pair: pair[1])
        # Exclude the tenth of pieces in other scripts, whose letters become unknown tokens.
        kept = [(piece, number) for piece, number in listed if _is_kept(piece)]
        self.pieces = [piece for piece, _ in kept]
        self.numbers = [number for _, number in kept]

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Array:
        """Return unit embeddings (n, 384)."""
        blocks = []
        for start in range(0, len(texts), 64):
            batch = self.tokenizer(
                list(texts[start : start + 64]), padding=True, truncation=True, return_tensors="pt"
            )
            hidden = self.model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            blocks.append((hidden * mask).sum(1) / mask.sum(1))
        return unit(torch.cat(blocks).numpy()).astype(np.float64)

    @torch.no_grad()
    def embed_pieces(self) -> Array:
        """Return the embeddings (v, 384) of individual pieces."""
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        blocks = []
        for start in range(0, len(self.numbers), BATCH):
            numbers = self.numbers[start : start + BATCH]
            ids = torch.tensor([[first, number, last] for number in numbers])
            hidden = self.model(input_ids=ids, attention_mask=torch.ones_like(ids))
            blocks.append(hidden.last_hidden_state.mean(1))
        return torch.cat(blocks).double().numpy()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the piece indices of each text, using the packaged encoder's tokenizer."""
        # The vectors are arbitrary, because only the tokenizer is used.
        nothing = torch.zeros(len(self.pieces), 1)
        encoder = TextEncoder(self.pieces, nothing, nothing[:, 0], torch.zeros(1, 1))
        return [encoder.pieces(text) for text in texts]


def _is_kept(piece: str) -> bool:
    is_special = piece.startswith("[") and piece != "["
    return piece == "[UNK]" or (piece.isascii() and not is_special)


def piece_weights(count: int) -> Array:
    """Return weights (v,) that are low for frequent pieces, which come first in the vocabulary."""
    frequency = 1 / ((np.arange(count) + 2) * np.log(count))
    return RARE / (RARE + frequency)


def mean_matrix(rows: Sequence[Sequence[int]], weights: Array) -> csr_matrix:
    """Return the weighted share of each piece in each text (n, v), where rows sum to 1."""
    values, columns, starts = [], [], [0]
    for pieces in rows:
        shares = weights[list(pieces)]
        values.append(shares / shares.sum())
        columns.append(np.asarray(pieces))
        starts.append(starts[-1] + len(pieces))
    joined = (np.concatenate(values), np.concatenate(columns), starts)
    return csr_matrix(joined, shape=(len(rows), len(weights)))


def distil(alone: Array, shares: csr_matrix, target: Array) -> Array:
    """Return piece vectors (v, WIDTH) whose means are close to the embeddings of full texts.

    Args:
        alone: The embeddings (v, 384) of individual pieces.
        shares: The shares of pieces in n texts, see `mean_matrix`.
        target: The embeddings (n, 384) of these texts.
    """
    means = shares @ alone
    centre, centre_wanted = means.mean(0), target.mean(0)
    spread = (means - centre).T @ (means - centre) / len(means)
    both = (means - centre).T @ (target - centre_wanted) / len(means)
    ridge = MAP_RIDGE * np.trace(spread) / len(spread) * np.eye(len(spread))
    # Because shares sum to 1, a constant added to all vectors is added to all means.
    vectors = (alone - centre) @ np.linalg.solve(spread + ridge, both) + centre_wanted
    overlap = (shares @ shares.T).toarray()
    rest = np.linalg.solve(overlap + PIECE_RIDGE * np.eye(len(overlap)), target - shares @ vectors)
    vectors = vectors + shares.T @ rest
    return vectors @ np.linalg.svd(target, full_matrices=False)[2][:WIDTH].T


def rounded(vectors: Array) -> tuple[NDArray[np.int8], Array]:
    """Return integers in [-127, 127] and the scale of each column (w,)."""
    scale = np.abs(vectors).max(0) / 127
    return np.round(vectors / scale).astype(np.int8), scale


def principal(features: Array) -> tuple[Array, Array]:
    """Return the mean (d,) of features, and the first `REDUCED` principal components (d, r)."""
    mean = features.mean(0)
    return mean, np.linalg.svd(features - mean, full_matrices=False)[2][:REDUCED].T


def heads(images: Array, texts: Array) -> tuple[Array, Array]:
    """Return the heads (a, d) and (b, d) from a regularised canonical correlation analysis.

    Directions are weighted by the square root of their correlation.
    """
    root_of_images, root_of_texts = _inverse_root(images), _inverse_root(texts)
    shared = root_of_images @ (images.T @ texts / len(images)) @ root_of_texts
    left, correlation, right = np.linalg.svd(shared, full_matrices=False)
    weight = np.sqrt(correlation[:WIDTH])
    return (
        root_of_images @ left[:, :WIDTH] * weight,
        root_of_texts @ right[:WIDTH].T * weight,
    )


def _inverse_root(rows: Array) -> Array:
    """Return the inverse square root of the second moment of rows, with a ridge."""
    moment = rows.T @ rows / len(rows)
    ridge = HEAD_RIDGE * np.trace(moment) / len(moment)
    values, vectors = np.linalg.eigh(moment + ridge * np.eye(len(moment)))
    return vectors / np.sqrt(values) @ vectors.T


def packaged_texts() -> list[str]:
    """Return all prompts in the packaged prompt sets."""
    texts: dict[str, None] = {}
    for name in list_prompts():
        prompt_set = load_prompts(name)
        texts |= dict.fromkeys((*prompt_set.texts, *prompt_set.held_out_classes))
    return list(texts)


def build(minilm: MiniLM, place: Path) -> None:
    """Write all files except README.md, the readers' labels and the licence."""
    collection = read_collection()
    gallery, reference = collection.split()
    place.mkdir(parents=True, exist_ok=True)

    texts = list(dict.fromkeys([*collection.titles, *packaged_texts()]))
    weights = piece_weights(len(minilm.pieces))
    shares = mean_matrix(minilm.tokenize(texts), weights)
    numbers, scale = rounded(distil(minilm.embed_pieces(), shares, minilm.embed(texts)))
    words = {
        "vectors": torch.from_numpy(numbers),
        "scale": torch.tensor(scale, dtype=torch.float32),
        "weights": torch.tensor(weights, dtype=torch.float16),
    }
    save_file(words, place / "words.safetensors")
    compressed = gzip.compress("\n".join(minilm.pieces).encode(), mtime=0)
    (place / "vocabulary.txt.gz").write_bytes(compressed)

    # The heads are trained on rounded features and vectors, as packaged.
    mean, directions = principal(collection.features[reference])
    features = ((collection.features - mean) @ directions).astype(np.float16)
    rows = minilm.tokenize(collection.titles)
    titles = unit(mean_matrix(rows, weights) @ (numbers * scale)).astype(np.float64)
    image, text = heads(features[reference].astype(np.float64), titles[reference])
    model = {
        "features": torch.from_numpy(features),
        "image": torch.tensor(image, dtype=torch.float32),
        "text": torch.tensor(text, dtype=torch.float32),
    }
    save_file(model, place / "model.safetensors")
    part = np.full(len(collection.files), "", dtype="<U9")
    part[gallery], part[reference] = "gallery", "reference"
    with (place / "photographs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "title", "gender", "part"])
        columns: tuple[Any, ...] = (collection.files, collection.titles, collection.gender, part)
        writer.writerows(zip(*columns, strict=True))
    _pack_thumbnails([collection.files[row] for row in gallery], place / "thumbnails.zip")


def _pack_thumbnails(files: Sequence[str], path: Path) -> None:
    """Write the thumbnails unchanged and uncompressed, with fixed timestamps."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for file in files:
            entry = zipfile.ZipInfo(file, date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, (folder() / "fsa" / "thm" / file).read_bytes())
    path.write_bytes(content.getvalue())


def main() -> int:
    """Build all files."""
    options = plain_parser(__doc__)
    options.add_argument("--minilm", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    options.add_argument("--out", type=Path, default=FOLDER, help="folder for the files")
    args = options.parse_args()
    if not (is_present("photos") and is_present("fsa")):
        return 1
    build(MiniLM(args.minilm), args.out)
    if args.out != FOLDER:
        for name in ("README.md", "labels.csv", "minilm.LICENSE"):
            shutil.copy(FOLDER / name, args.out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
