"""Two small prompt sets, and what a model looks like from outside."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_tokenizers import JOBS
from torch import nn

from vldebias.prompts import PromptSet


@pytest.fixture
def gender() -> PromptSet:
    return PromptSet(
        name="tiny-gender",
        groups=tuple((f"a photo of a male {job}", f"a photo of a female {job}") for job in JOBS),
        spurious=("a photo of a man", "a photo of a woman"),
        stated_words=("man", "woman", "male", "female"),
    )


@pytest.fixture
def age() -> PromptSet:
    return PromptSet(
        name="tiny-age",
        groups=tuple((f"a photo of a young {job}", f"a photo of an old {job}") for job in JOBS),
        spurious=("a photo of a young person", "a photo of an old person"),
        stated_words=("young", "old"),
    )


def _contents(value: object) -> object:
    """Dictionaries by their items (hooks, parameters, children), all else by identity."""
    return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else id(value)


@pytest.fixture
def state_of() -> Callable[[nn.Module], Any]:
    """Everything that an attachment could leave behind on a model or any module inside."""

    def state(model: nn.Module) -> Any:
        return {
            name: {key: _contents(value) for key, value in vars(module).items()}
            for name, module in model.named_modules()
        }

    return state


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32)
