"""Batches from memory: the rows of the sampler, from any number on, the same for one process and for several."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor
from training_parts import caption, number_of, picture, plain, tokenize

from vldebias.errors import InvalidInputError
from vldebias.training.batch import Batch
from vldebias.training.noise import CropNoise
from vldebias.training.tensors import TensorBatches
from vldebias.training.tokens import TokenTable, tokens_of

N = 23
IMAGES = torch.stack([plain(picture(i)) for i in range(N)])
CAPTIONS = [caption(i % 9) for i in range(N)]
LABELS = torch.arange(N) % 4


def batches(**options: object) -> TensorBatches:
    settings = {"batch_size": 4, "tokenize": tokenize, "seed": 1, "labels": LABELS, **options}
    return TensorBatches(IMAGES, CAPTIONS, **settings)  # type: ignore[arg-type]


def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    return images + torch.rand(len(images), 1, 1, 1, generator=generator)


def same(one: Batch, other: Batch) -> bool:
    parts = [(one.images, other.images), (one.index, other.index), (one.views, other.views)]
    parts += [(one.labels, other.labels), *((one.texts[k], other.texts[k]) for k in one.texts)]
    return all(a is b is None or torch.equal(a, b) for a, b in parts)  # type: ignore[arg-type]


def test_a_batch_is_rows_of_the_data() -> None:
    source = batches()
    assert (source.items, source.per_epoch) == (N, 5)
    seen = []
    for batch in islice(source.starting(0), 5):
        assert batch.index is not None
        assert batch.labels is not None
        rows = batch.index.tolist()
        assert [number_of(image) for image in batch.images] == rows
        assert batch.texts["input_ids"][:, 0].tolist() == [row % 9 for row in rows]
        assert set(batch.texts) == {"input_ids", "attention_mask"}
        assert batch.labels.tolist() == [row % 4 for row in rows]
        assert batch.views is None
        seen += rows
    assert len(set(seen)) == 20


@pytest.mark.parametrize("options", [{}, {"augment": jitter}, {"augment": jitter, "two_views": True}])
def test_batches_are_functions_of_their_number(options: dict[str, object]) -> None:
    whole = list(islice(batches(**options).starting(0), 14))
    for first in (1, 5, 12):
        for here, there in zip(batches(**options).starting(first), whole[first:], strict=False):
            assert same(here, there)
    assert not same(whole[0], whole[5])  # another epoch


@pytest.mark.parametrize("options", [{}, {"augment": CropNoise(0.5)}, {"augment": jitter, "two_views": True}])
@pytest.mark.parametrize("world", [2, 5])
def test_processes_share_the_batch_of_one(options: dict[str, object], world: int) -> None:
    shares = [batches(batch_size=4, rank=rank, world=world, **options) for rank in range(world)]
    alone = batches(batch_size=4 * world, **options)
    assert {share.per_epoch for share in shares} == {alone.per_epoch}
    for number in (0, 3, 4):
        joined = [share.batch(number) for share in shares]
        whole = alone.batch(number)
        assert torch.equal(torch.cat([batch.images for batch in joined]), whole.images)
        assert torch.equal(torch.cat([batch.index for batch in joined]), whole.index)  # type: ignore[misc,arg-type]
        if whole.views is not None:
            assert torch.equal(torch.cat([batch.views for batch in joined]), whole.views)  # type: ignore[misc]


def test_two_views_differ_and_have_no_texts() -> None:
    batch = TensorBatches(IMAGES, batch_size=4, augment=jitter, two_views=True).batch(0)
    assert batch.views is not None
    assert (batch.texts, batch.labels) == ({}, None)
    assert not torch.equal(batch.images, batch.views)
    clean = IMAGES[batch.index]
    for view in (batch.images, batch.views):
        shift = view - clean
        assert torch.allclose(shift, shift[:, :1, :1, :1].expand_as(shift), atol=1e-6)


def test_tokens_may_be_given() -> None:
    given = TensorBatches(IMAGES, tokenize(CAPTIONS), batch_size=4, seed=1, labels=LABELS)
    assert all(same(a, b) for a, b in zip(islice(given.starting(0), 7), batches().starting(0), strict=False))


def test_each_text_is_tokenised_once() -> None:
    asked: list[str] = []

    def counted(captions: list[str]) -> dict[str, Tensor]:
        asked.extend(captions)
        return tokenize(captions)

    source = TensorBatches(IMAGES, CAPTIONS, batch_size=4, tokenize=counted)
    list(islice(source.starting(0), 20))
    assert sorted(asked) == sorted(set(CAPTIONS))


def test_tokens_made_when_asked_for_are_those_of_the_table() -> None:
    rows = torch.tensor([4, 0, 13, 4])
    table, late = tokens_of(CAPTIONS, tokenize), tokens_of(CAPTIONS, tokenize, most=3)
    assert isinstance(table, TokenTable)
    assert not isinstance(late, TokenTable)
    for name, values in table(rows).items():
        assert torch.equal(values, late(rows)[name])
    assert table(rows)["input_ids"][:, 0].tolist() == [4, 0, 4, 4]


def test_what_does_not_fit_says_why() -> None:
    with pytest.raises(InvalidInputError, match=r"expected 23 rows, one per image, got {'captions': 22}"):
        TensorBatches(IMAGES, CAPTIONS[1:], batch_size=4, tokenize=tokenize)
    with pytest.raises(InvalidInputError, match=r"expected 23 rows, one per image, got {'labels': 3}"):
        batches(labels=torch.zeros(3))
    with pytest.raises(InvalidInputError, match="texts need tokenize"):
        batches(tokenize=None)
    with pytest.raises(InvalidInputError, match="expected texts or their tokens; only two_views=True does without"):
        TensorBatches(IMAGES, None, batch_size=4)
    with pytest.raises(InvalidInputError, match="two_views needs augment"):
        batches(two_views=True)
    with pytest.raises(InvalidInputError, match=r"images: expected \(n, 3, h, w\), got \(3, 8, 8\)"):
        TensorBatches(IMAGES[0], CAPTIONS, batch_size=4, tokenize=tokenize)
    with pytest.raises(InvalidInputError, match="the data has 23 rows, fewer than the 24 of one batch"):
        batches(batch_size=24)
