"""Test loading by name: the library and the precision."""

import logging
import logging.handlers
import sys
from pathlib import Path

import diffusers_tiny
import open_clip
import pytest
import torch
from huggingface_hub import constants

from vldebias import miniature
from vldebias.errors import InvalidInputError
from vldebias.hosts import loading
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


def test_prompts_that_are_cut_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "_SHOWN", set())
    pipe = load_host(pipeline="miniature").host
    handler = logging.handlers.BufferingHandler(100)
    for name in ("transformers", "diffusers"):
        logging.getLogger(name).addHandler(handler)
        caplog.set_level(logging.WARNING, logger=name)  # other tests may have changed it
    long = "A photo of a nurse. " + "very detailed, sharp, colourful, " * 12
    for prompts in ([long, "A photo of a pilot."], [long]):
        pipe(prompts, num_inference_steps=1, output_type="latent")
    for name in ("transformers", "diffusers"):
        logging.getLogger(name).removeHandler(handler)
    (line,) = [record.getMessage() for record in handler.buffer]
    assert line == "Prompts are cut to 24 tokens; the rest has no effect (shown once)"


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
        (("miniature", None, None), "^dtype: expected one of float32, .*, got 'int8'"),
        (("nosuch", "tag"), "^'nosuch' is not an open_clip architecture"),
        (
            ("plain", "tag"),
            "^cannot load 'plain' with 'tag': ",
        ),
        (("RN50",), "^'RN50' is an open_clip architecture without weights; .* openai"),
        (("nosuch",), "cannot load 'nosuch': it is neither a folder here nor OWNER/NAME on the"),
        (("no/such",), "cannot load 'no/such': .* \\(HF_HUB_OFFLINE is set\\)"),
        ((str(tmp_path),), "expected the folder of an image-text model, but it contains none of"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            load_host(*options, **({"dtype": "int8"} if len(options) == 3 else {}))


def test_a_function_in_a_module_returns_a_model_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models.py").write_text(
        "from vldebias.miniature import load_clip\n"
        "def load():\n"
        "    return load_clip()\n"
        "def load_model():\n"
        "    return load_clip()[0]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    loaded = load_host("own_models:load")
    assert loaded.name == "own_models:load"
    assert isinstance(loaded.preprocess, miniature.Preprocess)
    assert not loaded.host.training
    assert loaded.tokenizer.vocab_size == miniature.load_clip()[2].vocab_size
    for name, message in (
        ("own_models:laod", "cannot load 'own_models:laod': .*no attribute 'laod'"),
        ("own_models:load_model", "expected the function to return a model, its preprocessing"),
        ("own_modles:load", "no module 'own_modles' in this folder or among the installed"),
        ("RN50:openai", "--model RN50 --pretrained openai"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            load_host(name)
    with pytest.raises(InvalidInputError, match="remove --pretrained"):
        load_host("own_models:load", "openai")
