"""Test that a custom set gets the same decision with an open_clip model, a transformers model and
embeddings."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.transformers_clip import load_transformers_clip
from vldebias.hosts.clip.images import image_encoder
from vldebias.miniature import load_clip, open_world

JOBS = ["baker", "pilot", "judge", "nurse", "farmer", "teacher"]
SETS = {
    "searched": vldebias.make_prompt_set(
        "women and men", {"male": ["male", "man"], "female": ["female", "woman"]}, JOBS
    ),
    "searched by age": vldebias.make_prompt_set(
        "youthful", {"young": ["youthful"], "old": ["elderly"]}, JOBS
    ),
    "classified, untested": vldebias.make_prompt_set(
        "few", {"male": ["male"], "female": ["female"]}, JOBS[:3]
    ),
}


@pytest.fixture(scope="module")
def ways() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the host and the arguments for each interface to the same model."""
    model, _, tokenizer = load_clip()
    twin, words, _ = load_transformers_clip()
    texts = list(dict.fromkeys(chain(*(prompts.texts for prompts in SETS.values()))))
    with torch.no_grad():
        rows = model.encode_text(tokenizer(texts))
    return {
        "open_clip": (model, {"tokenizer": tokenizer}),
        "transformers": (twin, {"tokenizer": words}),
        "embeddings": (dict(zip(texts, rows.numpy(), strict=True)), {}),
    }


@pytest.fixture(scope="module")
def portraits() -> Tensor:
    """Return image features of the same model."""
    model, preprocess, _ = load_clip()
    data = open_world("portraits", n=120)
    encoder = image_encoder(model, preprocess)
    return normalize(encoder.encode([data.read(row) for row in range(len(data))]).float(), dim=1)


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize("has_images", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_all_three_interfaces_attach_or_decline_in_the_same_cases(
    ways: dict[str, tuple[Any, dict[str, Any]]], portraits: Tensor, name: str, has_images: bool
) -> None:
    images = {"reference": portraits} if has_images else {}
    fitted = {
        way: vldebias.fit_projections(host, SETS[name], **options, **images)
        for way, (host, options) in ways.items()
    }
    methods = {way: [edit.method for edit in edits.values()] for way, edits in fitted.items()}
    assert len(set(map(tuple, methods.values()))) == 1, methods
    first = fitted["embeddings"]
    for edits in fitted.values():
        assert bool(edits) != bool(edits.declined)
        if edits:
            matrix = edits.only.matrix()
            torch.testing.assert_close(matrix, first.only.matrix(), atol=1e-3, rtol=0)
    if not has_images:
        assert bool(first) == (name == "classified, untested")


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize("way", ["open_clip", "transformers"])
def test_an_attached_model_explains_why_nothing_was_attached(
    ways: dict[str, tuple[Any, dict[str, Any]]], way: str
) -> None:
    host, options = ways[way]
    with vldebias.debias(host, SETS["searched"], **options) as attachment:
        assert "default: none" in repr(attachment)
        assert "vldebias.rerank(scores, k, features=features" in repr(attachment)
        # Follow the advice without removing anything first.
        with vldebias.debias(host, SETS["searched"], method="difference", **options) as second:
            assert second.state == "attached"
