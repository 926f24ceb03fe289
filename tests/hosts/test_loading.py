"""Test loading by name: the library and the precision."""

from pathlib import Path

import diffusers_tiny
import open_clip
import pytest
import torch
from huggingface_hub import constants

from vldebias import miniature
from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import load_host


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_miniature_and_diffusers_folders_are_loaded(dtype: str | None, tmp_path: Path) -> None:
    expected = getattr(torch, dtype or "float32")
    for name in ("miniature", str(miniature.weights_dir())):
        loaded = load_host(name, dtype=dtype)
        assert (loaded.name, loaded.host.text_projection.dtype) == (name, expected)
        assert loaded.tokenizer.vocab_size == miniature.load_clip()[2].vocab_size
        assert isinstance(loaded.preprocess, miniature.Preprocess)
    diffusers_tiny.sd().save_pretrained(tmp_path)
    for name, kind in (
        ("miniature", miniature.load_pipeline()),
        (str(tmp_path), diffusers_tiny.sd()),
    ):
        loaded = load_host(pipeline=name, dtype=dtype)
        assert (loaded.name, type(loaded.host), loaded.host.dtype) == (name, type(kind), expected)


def test_loading_errors_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "plain", {})
    for arguments in (
        {},
        {"model": "a", "pipeline": "b"},
        {"pretrained": "c"},
        {"pipeline": "b", "pretrained": "c"},
    ):
        with pytest.raises(InvalidInputError, match="either --model"):
            load_host(**arguments)
    for options, message in (
        (
            ("miniature", None, None),
            "^dtype: expected one of float32, float16, bfloat16, got 'int8'",
        ),
        (("nosuch", "tag"), "^'nosuch' is not an open_clip architecture"),
        (
            ("plain", "tag"),
            "^cannot load 'plain' with 'tag': ",
        ),
        (("RN50",), "^'RN50' is an open_clip architecture without weights; .* openai"),
        (("nosuch",), "cannot load 'nosuch': .* \\(HF_HUB_OFFLINE is set\\)"),
        ((str(tmp_path),), "cannot load '[^']*': [^']*(?<!set\\))\\. Expected an open_clip"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            load_host(*options, **({"dtype": "int8"} if len(options) == 3 else {}))
