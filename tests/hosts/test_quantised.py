"""Text encoders in 8 and 4 bits: three states, and merging says what weights it needs.

Neither library is asked for by this project; without one its cases are skipped.
"""

from typing import Any

import diffusers_parts as parts
import diffusers_tiny as tiny
import pytest
import tiny_tokenizers
import torch
from tiny_tokenizers import CLIP_IDS
from transformers_tiny import make

import vldebias
from vldebias.errors import ProjectionMismatchError, UnsupportedHostError

KINDS = ("torchao int8", "bitsandbytes 8 bit", "bitsandbytes 4 bit")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # theirs
]


def quantised(model: Any, kind: str, folder: Any) -> Any:
    """A copy in a few bits: by the function of torchao; as transformers loads what was saved with bitsandbytes."""
    library = kind.partition(" ")[0]
    pytest.importorskip(library, reason=f"{library} is not installed: no encoder can be quantised with it")
    if library == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        loaded = tiny.twin(model)
        quantize_(loaded, Int8WeightOnlyConfig())
    else:
        from transformers import BitsAndBytesConfig

        config = BitsAndBytesConfig(load_in_8bit="8 bit" in kind, load_in_4bit="4 bit" in kind)
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder, quantization_config=config, device_map="cpu")
    plain = dict(model.named_parameters())
    assert any(
        type(p.data) is not type(plain[n].data) or p.dtype != plain[n].dtype for n, p in loaded.named_parameters()
    )
    return loaded


@parts.fresh
def clip() -> Any:
    """As wide as four bits ask for."""
    from transformers import CLIPTextModel

    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": CLIP_IDS - 2, "eos_token_id": CLIP_IDS - 1, "pad_token_id": CLIP_IDS - 1}
    return CLIPTextModel(CLIPTextModel.config_class(**sizes, **ids, vocab_size=CLIP_IDS, projection_dim=128))


@parts.fresh
def t5() -> Any:
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": 128, "d_ff": 128, "d_kv": 32, "num_heads": 4, "num_layers": 2}
    return T5EncoderModel(T5Config(**sizes, vocab_size=len(tiny_tokenizers.t5_tokenizer())))


def pipeline(name: str, kind: str, folder: Any) -> Any:
    torch.manual_seed(0)
    if name == "StableDiffusion":
        unet = parts.make_unet(cross_attention_dim=128).eval()
        return tiny.sd(text_encoder=quantised(clip(), kind, folder), unet=unet)
    config = dict(parts.MODELS["pixart_transformer"]().config) | {"caption_channels": 128}
    denoiser = type(parts.MODELS["pixart_transformer"]()).from_config(config).eval()
    return tiny.pixart(text_encoder=quantised(t5(), kind, folder), transformer=denoiser)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["StableDiffusion", "PixArt"])
def test_a_pipeline_in_three_states_and_merged(name: str, kind: str, tmp_path: Any) -> None:
    call = tiny.FAMILIES[name][1]
    pipe = pipeline(name, kind, tmp_path)
    prompts = ["a photo of a doctor", "a photo of a female nurse"]
    bare = tiny.draw(pipe, prompts, **call)
    attachment = vldebias.debias(pipe, tiny.gender(), lam=1e6)
    attached = tiny.draw(pipe, prompts, **call)
    assert not torch.equal(attached[0], bare[0])
    assert torch.equal(attached[1], bare[1])
    with attachment.disabled():
        assert torch.equal(tiny.draw(pipe, prompts, **call), bare)
    attachment.remove()
    assert torch.equal(tiny.draw(pipe, prompts, **call), bare)
    attachment = vldebias.debias(pipe, tiny.gender(), lam=1e6, negative=True, keep_stated=False)
    expected = tiny.draw(pipe, prompts, **call)
    attachment.merge()  # the denoiser has plain weights
    merged = tiny.draw(pipe, prompts, **call)
    assert (merged - expected).norm() < 1e-2 * (expected - bare).norm()


@pytest.mark.parametrize("kind", KINDS)
def test_a_projection_knows_the_weights_that_it_was_fitted_on(kind: str, tmp_path: Any) -> None:
    """Saved and attached again to the same encoder; one of other weights is refused, quantised or not."""
    pipe = pipeline("StableDiffusion", kind, tmp_path / "a")
    projection = vldebias.fit_projections(pipe, tiny.gender())["sequence"]
    projection.save_pretrained(tmp_path / "p")
    vldebias.debias(pipe, vldebias.load_edit(tmp_path / "p")).remove()
    other = tiny.twin(clip())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1)
    for encoder in (other, quantised(other, kind, tmp_path / "b")):
        with pytest.raises(ProjectionMismatchError, match="fitted on other weights"):
            vldebias.debias(tiny.sd(text_encoder=encoder), projection)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_clip_in_three_states_is_merged_only_into_a_head_in_full_precision(kind: str, tmp_path: Any) -> None:
    """bitsandbytes leaves the heads of a model as they are, torchao does not."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128}
    model = quantised(make("CLIPModel", **sizes), kind, tmp_path)
    tokenizer = tiny_tokenizers.clip_tokenizer()
    batch = tokenizer(["a photo of a doctor", "a photo of a female nurse"], padding="max_length", return_tensors="pt")

    def read() -> Any:
        out = model.get_text_features(**batch)
        return getattr(out, "pooler_output", out)

    bare = read()
    attachment = vldebias.debias(model, tiny.gender(), tokenizer=tokenizer)
    attached = read()
    assert not torch.equal(attached[0], bare[0])
    assert torch.equal(attached[1], bare[1])
    with attachment.disabled():
        assert torch.equal(read(), bare)
    if kind == "torchao int8":
        with pytest.raises(UnsupportedHostError, match=r"weights of type .*Load the model unquantized"):
            attachment.merge()
        assert torch.equal(read(), attached)
        attachment.remove()
        assert torch.equal(read(), bare)
    else:
        attachment.merge()
        torch.testing.assert_close(read()[0], attached[0], atol=1e-5, rtol=1e-3)
