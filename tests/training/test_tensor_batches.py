"""Batches from memory: rows of the data, by their number alone, each text tokenised once."""

from itertools import islice

import pytest
import torch
from torch import Tensor
from training_parts import caption, number_of, picture, plain, same, tokenize

from eval.experiments.tensor_batches import TensorBatches
from vldebias.errors import InvalidInputError

N = 23
IMAGES = torch.stack([plain(picture(i)) for i in range(N)])
CAPTIONS = [caption(i % 9) for i in range(N)]
LABELS = torch.arange(N) % 4


def in_memory(**options: object) -> TensorBatches:
    settings = {"batch_size": 4, "tokenize": tokenize, "seed": 1, "labels": LABELS, **options}
    return TensorBatches(IMAGES, CAPTIONS, **settings)  # type: ignore[arg-type]


def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    return images + torch.rand(len(images), 1, 1, 1, generator=generator)


def test_a_batch_is_rows_of_the_data_from_memory() -> None:
    source = in_memory()
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
    whole = list(islice(in_memory(**options).starting(0), 14))
    for first in (1, 5, 12):
        for here, there in zip(in_memory(**options).starting(first), whole[first:], strict=False):
            assert same(here, there)
    assert not same(whole[0], whole[5])  # another epoch


def test_each_text_is_tokenised_once() -> None:
    asked: list[str] = []

    def counted(captions: list[str]) -> dict[str, Tensor]:
        asked.extend(captions)
        return tokenize(captions)

    source = TensorBatches(IMAGES, CAPTIONS, batch_size=4, tokenize=counted)
    list(islice(source.starting(0), 20))
    assert sorted(asked) == sorted(set(CAPTIONS))


def test_what_does_not_fit_says_why_from_memory() -> None:
    with pytest.raises(InvalidInputError, match=r"expected 23 rows, one per image, got {'captions': 22}"):
        TensorBatches(IMAGES, CAPTIONS[1:], batch_size=4, tokenize=tokenize)
    with pytest.raises(InvalidInputError, match=r"expected 23 rows, one per image, got {'labels': 3}"):
        in_memory(labels=torch.zeros(3))
    with pytest.raises(InvalidInputError, match="expected captions and tokenize"):
        in_memory(tokenize=None)
    with pytest.raises(InvalidInputError, match="expected captions and tokenize"):
        TensorBatches(IMAGES, None, batch_size=4, tokenize=tokenize)
    with pytest.raises(InvalidInputError, match="two_views needs augment"):
        in_memory(two_views=True)
    with pytest.raises(InvalidInputError, match=r"images: expected \(n, 3, h, w\), got \(3, 8, 8\)"):
        TensorBatches(IMAGES[0], CAPTIONS, batch_size=4, tokenize=tokenize)
    with pytest.raises(InvalidInputError, match="the data has 23 rows, fewer than the 24 of one batch"):
        in_memory(batch_size=24)
