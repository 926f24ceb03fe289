"""Batches from memory: rows of the data, by their number alone, each text tokenised once."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from training_parts import caption, image_data, picture, plain, same, take, tokenize

from eval.experiments.tensor_batches import TensorBatches
from tests.refusals import refused
from vldebias.training.batches import MapBatches
from vldebias.training.pairs import PairSource

N = 23
IMAGES = torch.stack([plain(picture(i)) for i in range(N)])
CAPTIONS = [caption(i % 9) for i in range(N)]
LABELS = torch.arange(N) % 4


def in_memory(**options: object) -> TensorBatches:
    settings = {"batch_size": 4, "tokenize": tokenize, "seed": 1, "labels": LABELS, **options}
    return TensorBatches(IMAGES, CAPTIONS, **settings)  # type: ignore[arg-type]


def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    return images + torch.rand(len(images), 1, 1, 1, generator=generator)


def test_they_are_those_of_pairs_that_are_read() -> None:
    pairs = PairSource.of(image_data(N), label="kind")
    options: dict[str, Any] = {"batch_size": 4, "tokenize": tokenize, "seed": 1}
    source = TensorBatches(IMAGES, pairs.captions, labels=torch.arange(N) % 3, **options)
    assert (source.items, source.per_epoch) == (N, 5)
    for number, there in enumerate(take(MapBatches(pairs, plain, **options), 0, 14)):
        assert same(source.batch(number), there)


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


@refused(
    (lambda: TensorBatches(IMAGES, CAPTIONS[1:], batch_size=4, tokenize=tokenize), "per image, got {'captions': 22}"),
    (lambda: in_memory(labels=torch.zeros(3)), r"expected 23 rows, one per image, got {'labels': 3}"),
    (lambda: in_memory(tokenize=None), "expected captions and tokenize"),
    (lambda: TensorBatches(IMAGES, None, batch_size=4, tokenize=tokenize), "expected captions and tokenize"),
    (lambda: in_memory(two_views=True), "two_views needs augment"),
    (lambda: TensorBatches(IMAGES[0], CAPTIONS, batch_size=4, tokenize=tokenize), r"expected \(n, 3, h, w\), got"),
    (lambda: in_memory(batch_size=24), "the data has 23 rows, fewer than the 24 of one batch"),
)
def test_what_does_not_fit_says_why_from_memory(call: Callable[[], object]) -> None:
    call()
