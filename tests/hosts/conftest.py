"""Provide two small prompt sets, images and a pipeline with balanced prompts."""

from collections.abc import Iterator
from typing import Any

import diffusers_tiny
import pytest
import torch
from tiny_tokenizers import JOBS

from vldebias.api import debias
from vldebias.prompts import PromptSet


@pytest.fixture
def gender() -> PromptSet:
    return diffusers_tiny.gender()


@pytest.fixture
def age() -> PromptSet:
    return PromptSet(
        name="tiny-age",
        variants=tuple((f"a photo of a young {job}", f"a photo of an old {job}") for job in JOBS),
        spurious=("a photo of a young person", "a photo of an old person"),
        stated_words=("young", "old"),
        classes=("a photo of a dog", "a photo of a cat"),
        class_names=("dog", "cat"),
    )


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32)


@pytest.fixture(scope="module")
def pipe() -> Any:
    return diffusers_tiny.sd()


@pytest.fixture
def attachment(pipe: Any) -> Iterator[Any]:
    with debias(pipe, "gender") as attachment:
        yield attachment
