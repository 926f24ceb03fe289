"""Test how the packaged photographs and their model are built, and how heads are trained on real
pairs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score

from eval.experiments.run import Experiment
from eval.photographs import pack, training
from eval.photographs.pack import Collection
from eval.tables import read
from vldebias.errors import InvalidInputError
from vldebias.miniature.photograph_model import load_encoder, read_arrays
from vldebias.miniature.photographs import read_labels, read_table


def test_a_split_is_even_and_its_parts_share_no_title_of_a_photograph() -> None:
    gender = np.array(["female"] * 12 + ["male"] * 7 + [""] * 21)
    titles = [f"title {row % 17}" for row in range(40)]
    files = [f"{row}.jpg" for row in range(40)]
    collection = Collection(files, titles, gender, np.zeros((40, 3)))
    gallery, reference = collection.split()
    assert np.unique(gender[gallery], return_counts=True)[1].tolist() == [7, 7]
    assert not {titles[row] for row in gallery} & {titles[row] for row in reference}
    assert np.array_equal(collection.split()[0], gallery)


def test_the_packaged_table_is_the_split_by_the_readers_labels() -> None:
    rows = read_table()
    columns = [[row[name] for row in rows] for name in ("file", "title", "gender", "part")]
    files, titles, gender, part = columns
    agreed = pack.agreed_genders()
    assert gender == [agreed.get(file, "") for file in files]
    collection = Collection(files, titles, np.array(gender), np.zeros((len(rows), 1)))
    gallery, reference = collection.split()
    assert np.array_equal(np.array(part) == "gallery", np.isin(np.arange(len(rows)), gallery))
    assert np.array_equal(np.array(part) == "reference", np.isin(np.arange(len(rows)), reference))


def test_the_measured_agreement_is_that_of_the_packaged_labels() -> None:
    (row,) = [
        row for row in read("photographs_model").rows if row.metric == "kappa" and not row.subset
    ]
    labels = read_labels()
    columns = [np.array([row[name] for row in labels]) for name in ("reader_a", "reader_b")]
    assert np.isclose(row.value, cohen_kappa_score(*columns))


def test_frequent_pieces_have_smaller_weights() -> None:
    weights = pack.piece_weights(1000)
    assert (np.diff(weights) > 0).all()
    shares = pack.mean_matrix([[3], [3, 900, 900]], weights).toarray()
    assert np.allclose(shares.sum(1), 1)
    assert shares[1, 900] > 2 * shares[1, 3]


def test_distilled_vectors_approximate_held_out_text() -> None:
    rng = np.random.default_rng(0)
    pieces, width = 300, 80
    truth, mixing = rng.normal(size=(pieces, 4)), rng.normal(size=(4, width))
    # Without weights, pieces differ most in what matters least for an entire text.
    stretched = truth * [8, 4, 2, 1]
    alone = stretched @ rng.normal(size=(4, width)) + 0.1 * rng.normal(size=(pieces, width))
    rows = [rng.choice(pieces, 8) for _ in range(400)]
    shares = pack.mean_matrix(rows, np.ones(pieces))
    wanted = pack.unit(shares @ truth @ mixing).astype(np.float64)
    vectors = pack.distil(alone, shares[:300], wanted[:300])
    assert vectors.shape == (pieces, pack.WIDTH)

    def cosines(rows: np.ndarray) -> np.ndarray:
        unit = pack.unit(rows)[300:]
        return unit @ unit.T

    expected = cosines(wanted)
    fitted = np.corrcoef(cosines(shares @ vectors).ravel(), expected.ravel())[0, 1]
    before = np.corrcoef(cosines(shares @ alone).ravel(), expected.ravel())[0, 1]
    assert fitted > before + 0.05


def test_rounding_changes_a_vector_by_at_most_half_a_step() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 6))
    numbers, scale = pack.rounded(vectors)
    assert numbers.dtype == np.int8
    assert (np.abs(numbers * scale - vectors) <= scale / 2 + 1e-12).all()


def test_heads_align_pairs_with_a_common_cause() -> None:
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(600, 5))
    images = cause @ rng.normal(size=(5, 90)) + rng.normal(size=(600, 90))
    texts = cause @ rng.normal(size=(5, 70)) + rng.normal(size=(600, 70))
    image, text = pack.heads(images[:500], texts[:500])
    assert image.shape == (90, pack.WIDTH)
    assert text.shape == (70, pack.WIDTH)
    cosines = pack.unit(texts[500:] @ text) @ pack.unit(images[500:] @ image).T
    assert (cosines.argmax(1) == np.arange(100)).mean() > 0.5


def pairs(texts: list[str]) -> training.RealPairs:
    different = list(dict.fromkeys(texts))
    vectors = torch.eye(len(different))
    place = {text: row for row, text in enumerate(different)}
    images = vectors[[place[text] for text in texts]][:, :, None, None]
    return training.RealPairs(images, texts, vectors, place)


def test_a_text_shared_by_several_photographs_matches_any_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "WITHIN", 1)
    texts = [f"text {row % 20}" for row in range(40)]
    real = pairs(texts)
    heads = training.Heads(real, (0.0, 0.0))
    weight = torch.randn(training.WIDTH, 20, generator=torch.Generator().manual_seed(0))
    for head in (heads.image_head, heads.text_head):
        head[1].weight.data.copy_(weight)
    assert training.found(heads, real).all()
    # Each text now belongs to photographs of a different text.
    assert training.found(heads, real.with_texts_of(np.roll(np.arange(40), 1))).mean() < 1


def titles() -> tuple[training.RealPairs, training.RealPairs]:
    """Return the packaged photographs with their titles, for training and held out."""
    table = read_table()
    listed = list(dict.fromkeys(row["title"] for row in table))
    with torch.no_grad():
        vectors = load_encoder().means(listed)
    titles = [row["title"] for row in table]
    images = read_arrays()["features"][:, :, None, None]
    place = {text: row for row, text in enumerate(listed)}
    real = training.RealPairs(images, titles, vectors, place)
    part = np.array([row["part"] for row in table])
    learned, gallery = (np.flatnonzero(part == name) for name in ("reference", "gallery"))
    return real.take(learned), real.take(gallery)


def test_heads_learn_titles_and_wrong_titles_cost_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "flickr", titles)
    given = Experiment.read("real_captions").given
    cell = {**given, "arm": "InfoNCE", "settings": {"loss": "info_nce"}, "temperature": 0.1}
    cell |= {"seed": 0, "steps": 60, "dropout": [0.3, 0.2]}
    clean, noisy = (training.real_captions({**cell, "share": share}) for share in (0.0, 0.8))
    assert clean[training.RECALL] > noisy[training.RECALL] > 10 / 154 * 0.8
    assert f"InfoNCE, filtered: {training.RECALL}" in clean
    assert set(training.real_captions({**cell, "share": 0.0, "tuning": True})) == {"validation"}


def test_validation_shares_no_title_with_training() -> None:
    learned, held_out = titles()
    assert len(held_out.texts) == 154
    kept, validation = training._without_validation(learned)
    assert len(kept.texts) + len(validation.texts) == len(learned.texts)
    assert not set(kept.texts) & set(validation.texts)
    assert 0.05 < len(validation.texts) / len(learned.texts) < 0.15


def test_missing_captions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLDEBIAS_REAL", str(tmp_path))
    with pytest.raises(InvalidInputError, match="VLDEBIAS_REAL"):
        training.flickr.__wrapped__()
