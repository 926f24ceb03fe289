"""Measure the quality of the small model for the packaged photographs.

    python -m eval.photographs.small --minilm DIR --json eval/results/photographs_model.json

For text, the packaged encoder is compared with all-MiniLM-L6-v2 in five folds of titles, where
vectors and heads are trained on the other four folds. The agreement of the two readers who labelled
the photographs is also measured. The inputs are those of `eval.photographs.pack`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from eval.photographs import is_present, unit
from eval.photographs.pack import (
    WIDTH,
    Array,
    Collection,
    MiniLM,
    Rows,
    distil,
    heads,
    mean_matrix,
    packaged_texts,
    piece_weights,
    principal,
    read_collection,
    rounded,
)
from eval.tables import parser, run
from vldebias.measure.resampling import percentile_interval
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.metrics import Metric
from vldebias.miniature.photographs import read_labels

FOLDS, RESAMPLES = 5, 1000
WITHIN = 10  # number of top results that must contain the photograph
PAIRS = 20_000  # number of text pairs whose cosines are compared
OURS, TEACHER = "shipped encoder", "all-MiniLM-L6-v2"
WOMAN, MAN = "A photo of a woman.", "A photo of a man."
RECALL = Metric("recall@10", "titles whose photograph is among the first 10", "utility", "higher")
GENDER = Metric("gender_auc", "area under the curve of gender by texts", "utility", "higher")
AGREEMENT = Metric("agreement", "rank correlation of cosines with MiniLM's", "utility", "higher")
READERS = "labelled by two readers"
FIRST_READER, SECOND_READER = "reader A", "reader B"
KAPPA = Metric("kappa", "Cohen's kappa of the readers")
LABELLED = Metric("labelled", "photographs with this label")


@dataclass(frozen=True, eq=False)
class Texts:
    """The titles and packaged prompts, tokenized and embedded with both encoders.

    Attributes:
        listed: The distinct texts, starting with the titles.
        shares: The shares of pieces in each text.
        wanted, alone: MiniLM's embeddings of the texts and of individual pieces.
    """

    listed: list[str]
    shares: csr_matrix
    wanted: Array
    alone: Array

    @classmethod
    def of_titles(cls, titles: Sequence[str], minilm: MiniLM) -> Texts:
        """Embed titles and packaged prompts with MiniLM."""
        listed = list(dict.fromkeys([*titles, *packaged_texts()]))
        weights = piece_weights(len(minilm.pieces))
        shares = mean_matrix(minilm.tokenize(listed), weights)
        return cls(listed, shares, minilm.embed(listed), minilm.embed_pieces())

    def rows(self, texts: Sequence[str]) -> Rows:
        """Return the row numbers of texts."""
        place = {text: row for row, text in enumerate(self.listed)}
        return np.array([place[text] for text in texts])


def readers() -> TaskResult:
    """Measure the agreement of the two readers of the thumbnails, over all labels and for each."""
    part = TaskResult(
        TaskProvenance(task="readers", description="labels that two readers gave to thumbnails")
    )
    rows = read_labels()
    both = {
        FIRST_READER: np.array([row["reader_a"] for row in rows]),
        SECOND_READER: np.array([row["reader_b"] for row in rows]),
    }
    first, second = both.values()
    n = {"photographs": len(rows)}
    part.add(KAPPA, "both", *_resampled_kappa(first, second), n=n)
    for label in np.unique(first):
        details = {"n": n, "subset": str(label)}
        part.add(KAPPA, "both", *_resampled_kappa(first == label, second == label), **details)
        for name, labels in both.items():
            part.add(LABELLED, name, float((labels == label).sum()), **details)
        shared = float(((first == label) & (second == label)).sum())
        part.add(LABELLED, "both", shared, **details)
    return part


def _resampled_kappa(
    first: NDArray[Any], second: NDArray[Any]
) -> tuple[float, tuple[float, float]]:
    """Return Cohen's kappa with an interval over photographs."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(first), size=(RESAMPLES, len(first)))
    draws = np.array([cohen_kappa_score(first[rows], second[rows]) for rows in drawn])
    return float(cohen_kappa_score(first, second)), percentile_interval(draws)


def texts_in_folds(collection: Collection, texts: Texts) -> TaskResult:
    """Compare the text encoder with MiniLM on held-out titles."""
    titles = collection.titles
    listed, shares, wanted, alone = texts.listed, texts.shares, texts.wanted, texts.alone
    row_of_title = texts.rows(titles)
    query_rows = texts.rows([WOMAN, MAN])
    fold_of_text = np.random.default_rng(0).integers(FOLDS, size=len(listed))
    found: dict[str, list[Array]] = {OURS: [], TEACHER: []}
    scores: dict[str, list[Array]] = {OURS: [], TEACHER: []}
    shown: list[NDArray[np.bool_]] = []
    sizes = []
    mimicked = np.zeros((len(listed), WIDTH))
    for fold in range(FOLDS):
        # All prompts may be fitted, including the two that state a gender.
        learned = fold_of_text != fold
        learned[query_rows] = True
        numbers, scale = rounded(distil(alone, shares[learned], wanted[learned]))
        ours = unit(shares @ (numbers * scale)).astype(np.float64)
        mimicked[~learned] = ours[~learned]
        train = learned[row_of_title]
        mean, directions = principal(collection.features[train])
        images = (collection.features - mean) @ directions
        sizes.append(int((~train).sum()))
        labels = collection.gender[~train]
        shown.append(labels[labels != ""] == "female")
        for name, vectors in ((OURS, ours), (TEACHER, wanted)):
            image, text = heads(images[train], vectors[row_of_title[train]])
            held_out = unit(images[~train] @ image)
            embedded = unit(vectors @ text)
            codes = collection.title_codes[~train]
            found[name].append(_found(held_out, embedded[row_of_title[~train]], codes))
            woman, man = embedded[query_rows]
            scores[name].append(held_out[labels != ""] @ (woman - man))
    part = TaskResult(
        TaskProvenance(
            task="texts",
            description="the shipped text encoder and MiniLM, on held-out titles",
            settings={"folds": FOLDS, "photographs in a fold": sizes},
        )
    )
    for name in (OURS, TEACHER):
        hits = np.concatenate(found[name])
        part.add(RECALL, name, *_mean(hits), n={"titles": len(hits)})
        n = {"photographs": sum(map(len, shown))}
        part.add(GENDER, name, *_auc(scores[name], shown), n=n, subset=READERS)
    _add_agreement(part, mimicked, wanted, len(set(titles)), fold_of_text, query_rows)
    return part


def _found(images: Array, texts: Array, codes: Rows) -> Array:
    """Return, for each distinct title, 1 if one of its photographs is in the top results."""
    firsts = np.unique(codes, return_index=True)[1]
    order = np.argsort(-texts[firsts] @ images.T, axis=1, kind="stable")[:, :WITHIN]
    return (codes[order] == codes[firsts][:, None]).any(1).astype(float)


def _mean(values: Array) -> tuple[float, tuple[float, float]]:
    rng = np.random.default_rng(0)
    drawn = values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(1)
    return float(values.mean()), percentile_interval(drawn)


def _auc(scores: Sequence[Array], shown: Sequence[Array]) -> tuple[float, tuple[float, float]]:
    """Return the mean area under the curve over folds, with an interval over photographs."""

    def area(rng: np.random.Generator | None = None) -> float:
        areas = []
        for score, label in zip(scores, shown, strict=True):
            rows = np.arange(len(score))
            if rng is not None:
                members = [np.flatnonzero(label == value) for value in (True, False)]
                rows = np.concatenate([rng.choice(row, len(row)) for row in members])
            areas.append(roc_auc_score(label[rows], score[rows]))
        return float(np.mean(areas))

    rng = np.random.default_rng(0)
    draws = np.array([area(rng) for _ in range(RESAMPLES)])
    return area(), percentile_interval(draws)


def _add_agreement(
    part: TaskResult, ours: Array, wanted: Array, titles: int, folds: Rows, query_rows: Rows
) -> None:
    """Add the rank correlation between cosines of held-out texts, by kind of pair."""
    rows = np.setdiff1d(np.arange(len(ours)), query_rows)
    kinds = {"title": rows[rows < titles], "prompt": rows[rows >= titles]}
    for subset, (left, right) in {
        "two titles": ("title", "title"),
        "a prompt and a title": ("prompt", "title"),
        "two prompts": ("prompt", "prompt"),
    }.items():
        rng = np.random.default_rng(0)
        of_fold = []
        for fold in range(FOLDS):
            first = rng.choice(kinds[left][folds[kinds[left]] == fold], PAIRS)
            second = rng.choice(kinds[right][folds[kinds[right]] == fold], PAIRS)
            cosines = [(rows[first] * rows[second]).sum(1) for rows in (ours, wanted)]
            of_fold.append(spearmanr(*cosines).statistic)
        ends = (float(min(of_fold)), float(max(of_fold)))
        n = {"folds": FOLDS, "texts": len(rows)}
        part.add(AGREEMENT, OURS, float(np.mean(of_fold)), ends, n=n, subset=subset)


def main() -> None:
    """Measure the model and write the result."""
    options = parser(__doc__)
    options.add_argument("--minilm", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    args = options.parse_args()
    if not (is_present("photos") and is_present("fsa")):
        raise SystemExit(1)
    collection, minilm = read_collection(), MiniLM(args.minilm)

    texts = Texts.of_titles(collection.titles, minilm)

    def measure() -> Iterator[TaskResult]:
        yield readers()
        yield texts_in_folds(collection, texts)

    run("photographs_model", measure, args.json)


if __name__ == "__main__":
    main()
