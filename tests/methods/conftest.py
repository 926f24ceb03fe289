"""Provide the miniature model, the miniature pipeline, and rendered portraits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def pipe() -> Any:
    from vldebias.miniature import load_pipeline

    made = load_pipeline()
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture(scope="session")
def portraits() -> Callable[..., tuple[Any, Any, torch.Tensor, Any]]:
    """Return a model, its tokenizer, and the features and genders of n portraits."""
    from eval.miniature import portraits
    from vldebias.miniature import load_clip

    def sampled(n: int, **how: Any) -> tuple[Any, Any, torch.Tensor, Any]:
        model, preprocess, tokenizer = load_clip()
        shown = portraits.sample(n, **how)
        with torch.no_grad():
            features = model.encode_image(
                torch.stack([preprocess(image) for image in shown.images])
            )
        return model, tokenizer, features, shown.gender

    return sampled
