"""Test the photographs that ship with the package: counts, balance, sources, and the text
encoder."""

import gzip
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import vldebias
from vldebias.errors import InvalidInputError
from vldebias.hosts import attachment_of, resolve
from vldebias.hosts.loading import load_host
from vldebias.miniature import Photographs, load_photographs
from vldebias.miniature.photograph_model import load_encoder
from vldebias.miniature.photographs import CREDIT, FOLDER, read_labels, read_table

JOBS = ["A photo of a welder.", "A photo of a farmer.", "A photo of a nurse."]


@pytest.fixture(scope="module")
def photographs() -> Photographs:
    return load_photographs()


def test_the_gallery_is_even_and_shares_no_title_with_the_reference(
    photographs: Photographs,
) -> None:
    gallery, reference = photographs.gallery, photographs.reference
    counts = gallery.column("gender").counts
    assert counts["female"] == counts["male"] == len(gallery) / 2
    assert not reference.labels
    assert not reference.captions
    part_of_title: dict[str, set[str]] = {}
    for row in read_table():
        part_of_title.setdefault(row["title"], set()).add(row["part"])
    assert not [
        title for title, parts in part_of_title.items() if {"gallery", "reference"} <= parts
    ]
    assert len({*gallery.ids, *reference.ids}) == len(gallery) + len(reference)


def test_the_gallery_contains_only_photographs_that_both_readers_label_the_same(
    photographs: Photographs,
) -> None:
    labels = {row["file"]: (row["reader_a"], row["reader_b"]) for row in read_labels()}
    gender = photographs.gallery.column("gender")
    for file, code in zip(photographs.gallery.ids, gender.codes, strict=True):
        expected = {"female": "women", "male": "men"}[gender.names[code]]
        assert labels[file] == (expected, expected), file
    agreed = [one for one, other in labels.values() if one == other]
    smaller = min(agreed.count("women"), agreed.count("men"))
    assert len(photographs.gallery) == 2 * smaller


def test_two_readers_label_every_thumbnail_with_a_label_of_the_rule() -> None:
    rows = read_labels()
    assert len({row["file"] for row in rows}) == len(rows) == 388
    rule = (FOLDER / "README.md").read_text(encoding="utf-8")
    for row in rows:
        for reader in ("reader_a", "reader_b"):
            assert f"| {row[reader]} |" in rule
    assert "not people" in rule


def test_every_picture_of_the_gallery_can_be_read_and_has_a_title(
    photographs: Photographs,
) -> None:
    images = photographs.images
    assert images.ids == photographs.gallery.ids
    assert images.captions == photographs.gallery.captions
    assert all(images.captions)
    for row in range(len(images)):
        picture = images.read(row)
        assert picture.mode == "RGB"
        assert max(picture.size) == 150


def test_source_credit_and_licences_are_stored_next_to_the_photographs() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert CREDIT in text
    for name in ("Rights", "Source", "https://www.loc.gov/item/"):
        assert name in text
    listed = set(re.findall(r"`([\w.]+\.[\w.]+)`", text))
    shipped = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert shipped <= listed
    licence = (FOLDER / "minilm.LICENSE").read_text(encoding="utf-8")
    assert "all-MiniLM-L6-v2" in licence
    assert "Apache License" in licence


def test_text_encoder_and_photographs_are_small() -> None:
    text = sum(
        (FOLDER / name).stat().st_size for name in ("words.safetensors", "vocabulary.txt.gz")
    )
    assert text < 2_000_000
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_600_000


def test_the_encoder_accepts_any_words_and_returns_unit_rows(photographs: Photographs) -> None:
    texts = [
        "A photo of a welder.",
        "a PHOTO of a WELDER .",
        "",
        "写真",
        "zyzzyva 2041!",
        "é" * 500,
    ]
    rows = photographs.encoder.encode(texts)
    assert rows.shape == (len(texts), photographs.gallery.dim)
    assert torch.allclose(rows.norm(dim=1), torch.ones(len(texts)), atol=1e-5)
    assert torch.equal(rows[0], rows[1])
    assert photographs.encoder.encode([]).shape == (0, photographs.gallery.dim)


def test_a_text_is_the_weighted_mean_of_its_pieces(photographs: Photographs) -> None:
    encoder = photographs.encoder
    text = "Operating a hand drill at Vultee-Nashville"
    rows = encoder.pieces(text)
    mean = (encoder.weights[rows, None] * encoder.vectors[rows]).sum(0)
    expected = torch.nn.functional.normalize(mean @ encoder.head, dim=0)
    alone = encoder.encode([text])[0]
    assert torch.allclose(alone, expected, atol=1e-5)
    assert torch.allclose(encoder.encode(["x", text, "a b c"])[1], alone, atol=1e-6)


def test_titles_find_their_photographs_better_than_chance(photographs: Photographs) -> None:
    gallery = photographs.gallery
    titles = np.array(gallery.captions)
    cosines = photographs.encoder.encode(gallery.captions).numpy() @ gallery.features.T
    first = np.argsort(-cosines, axis=1)[:, :10]
    found = (titles[first] == titles[:, None]).any(1).mean()
    chance = (
        (
            np.random.default_rng(0).permuted(np.tile(titles, (len(titles), 1)), axis=1)[:, :10]
            == titles[:, None]
        )
        .any(1)
        .mean()
    )
    assert found > 3 * chance


def test_an_edit_can_be_attached_to_the_encoder_and_removed(photographs: Photographs) -> None:
    encoder = load_encoder()
    before = encoder.encode(JOBS)
    reference = photographs.reference.features
    named = {"method": "difference+equalise", "reference": reference}
    attachment = vldebias.debias(encoder, "gender", **named)
    with attachment:
        during = encoder.encode(JOBS)
        stated = encoder.encode(["A photo of a woman welding."])
    assert attachment_of(encoder) is None
    assert torch.equal(encoder.encode(JOBS), before)
    assert torch.equal(encoder.encode(["A photo of a woman welding."]), stated)
    assert not torch.allclose(during, before, atol=1e-3)
    queries = vldebias.debias_queries(encoder, "gender", **named)
    same = torch.nn.functional.cosine_similarity(torch.as_tensor(queries.embed(JOBS)), during)
    assert torch.allclose(same, torch.ones(len(JOBS)), atol=1e-5)


def test_the_name_loads_the_model_the_gallery_and_the_reference() -> None:
    host = resolve(load_host("photographs").host)
    assert host.roles == ("text",)
    settings = {
        "attribute": "gender",
        "queries": JOBS,
        "k": 20,
        "resamples": 20,
        "methods": ["difference+equalise"],
    }
    result = vldebias.evaluate("photographs", "photographs", reference="photographs", **settings)
    (provenance,) = result.provenance
    assert (provenance.model, provenance.split) == ("photographs", "photographs gallery")
    assert provenance.n["reference images"] == len(load_photographs().reference)
    with pytest.raises(InvalidInputError, match="expected the split test"):
        vldebias.evaluate("photographs", "photographs", attribute="gender", split="train")


def test_thumbnails_open_without_torch() -> None:
    code = (
        "import sys; from vldebias.miniature.photographs import read_table, read_thumbnail;"
        " (file,) = [row['file'] for row in read_table() if row['part'] == 'gallery'][:1];"
        " read_thumbnail(file); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_word_pieces_match_the_packaged_vocabulary(photographs: Photographs) -> None:
    pieces = gzip.decompress((FOLDER / "vocabulary.txt.gz").read_bytes()).decode().split("\n")
    assert len(pieces) == len(set(pieces)) == len(photographs.encoder.vectors)
    tokenizer = Tokenizer(
        models.WordPiece({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = photographs.gallery.captions[0]
    assert [pieces[row] for row in photographs.encoder.pieces(text)] == tokenizer.encode(
        text
    ).tokens
