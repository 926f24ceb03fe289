"""What else happens to a pipeline: LoRA, textual inversion, half precision, offload, callbacks, saving."""

import copy
import filecmp
import os

import diffusers_parts as parts
import diffusers_tiny as tiny
import pytest
import torch
from accelerate import cpu_offload

from vldebias.api import debias, fit_projection
from vldebias.errors import VldebiasWarning
from vldebias.hosts import attachment_of
from vldebias.methods import load_edit

PLAIN = "a photo of a doctor"


# ---- LoRA --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """A folder with a LoRA of the text encoder and the UNet of Stable Diffusion."""
    from diffusers import StableDiffusionPipeline
    from diffusers.utils import convert_state_dict_to_diffusers
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipe = tiny.own(tiny.sd())
    torch.manual_seed(1)
    states = []
    for model, targets in ((pipe.unet, ["to_k", "to_v"]), (pipe.text_encoder, ["q_proj", "v_proj"])):
        model.add_adapter(LoraConfig(r=2, lora_alpha=4, target_modules=targets, init_lora_weights=False))
        states.append(convert_state_dict_to_diffusers(get_peft_model_state_dict(model)))
    folder = tmp_path_factory.mktemp("lora")
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=states[0], text_encoder_lora_layers=states[1])
    return folder


def _load(pipe, folder):
    pipe.load_lora_weights(folder, weight_name="pytorch_lora_weights.safetensors", adapter_name="style")


def test_lora_loaded_before_is_part_of_what_is_fitted(lora):
    plain, pipe = tiny.sd(), tiny.own(tiny.sd())
    without = fit_projection(plain, tiny.gender())
    _load(pipe, lora)
    bare, image = tiny.encode(pipe)[0], tiny.draw(pipe)
    assert not torch.equal(bare, tiny.encode(plain)[0])
    attachment = debias(pipe, tiny.gender())
    projection = attachment.projections["sequence"]
    assert not torch.equal(projection.matrix(), without.matrix())
    assert projection.provenance.fingerprint.matches(without.provenance.fingerprint)
    assert torch.equal(tiny.encode(pipe)[0], projection(bare))
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), image)


def test_a_projection_of_other_adapters_is_attached_with_a_warning(lora, tmp_path):
    plain, pipe = tiny.sd(), tiny.own(tiny.sd())
    without = fit_projection(plain, tiny.gender())
    _load(pipe, lora)
    with_lora = load_edit(fit_projection(pipe, tiny.gender()).save_pretrained(tmp_path))
    debias(pipe, with_lora).remove()
    for host, projection in ((pipe, without), (plain, with_lora)):
        with pytest.warns(VldebiasWarning, match=r"fitted with other adapters \(LoRA\) .*; fit again on this host"):
            debias(host, projection).remove()
    pipe.disable_lora()
    debias(pipe, without).remove()


def test_lora_loaded_and_unloaded_while_attached(lora):
    pipe, reference = tiny.own(tiny.sd()), tiny.own(tiny.sd())
    attachment = debias(pipe, tiny.gender())
    first = tiny.draw(pipe)
    _load(pipe, lora)
    _load(reference, lora)
    assert set(pipe.get_active_adapters()) == {"style"}
    with attachment.disabled():
        assert torch.equal(tiny.draw(pipe), tiny.draw(reference))
    with pytest.warns(VldebiasWarning, match=r"adapters \(LoRA\) of the text encoder are others .* Fit again"):
        found = tiny.encode(pipe)[0]
    assert torch.equal(found, attachment.projections["sequence"](tiny.encode(reference)[0]))
    assert torch.equal(tiny.encode(pipe)[0], found)  # said once
    pipe.unload_lora_weights()
    assert torch.equal(tiny.draw(pipe), first)
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), tiny.draw(tiny.sd()))


def test_other_adapters_than_when_it_was_attached_are_said_once(lora):
    """Of a copy too; those that were there, and the same ones loaded again, are no others."""
    pipe = tiny.own(tiny.sd())
    _load(pipe, lora)
    attachment = debias(pipe, tiny.gender())
    expected = tiny.encode(pipe)[0]
    pipe.unload_lora_weights()
    _load(pipe, lora)
    assert torch.equal(tiny.encode(pipe)[0], expected)
    twin = copy.deepcopy(pipe)
    tiny.encode(twin)
    for one in (pipe, twin):
        one.disable_lora()
        attachment_of(one).strength = 0
        tiny.encode(one)
        attachment_of(one).strength = 1
        with pytest.warns(VldebiasWarning, match="adapters") as said:
            tiny.encode(one)
        assert len(said) == 1
        tiny.encode(one)
        one.enable_lora()
        tiny.encode(one)
    attachment.remove()


def test_adapters_of_the_denoiser_alone_are_nobodys_concern():
    from peft import LoraConfig

    pipe = tiny.own(tiny.sd())
    with debias(pipe, tiny.gender()):
        pipe.unet = parts.make_unet(cross_attention_dim=32).eval()
        pipe.unet.add_adapter(LoraConfig(r=2, target_modules=["to_k"], init_lora_weights=False))
        tiny.encode(pipe)


def test_lora_scale_reaches_the_encoder(lora):
    pipe, reference = tiny.own(tiny.sd()), tiny.own(tiny.sd())
    _load(pipe, lora)
    _load(reference, lora)
    attachment = debias(pipe, tiny.gender())
    half = tiny.encode(reference, lora_scale=0.5)[0]
    assert not torch.equal(half, tiny.encode(reference)[0])
    assert torch.equal(tiny.encode(pipe, lora_scale=0.5)[0], attachment.projections["sequence"](half))


# ---- textual inversion -------------------------------------------------------------------------------------------


def _with_inversion(pipe):
    pipe.tokenizer = copy.deepcopy(pipe.tokenizer)
    generator = torch.Generator().manual_seed(2)
    pipe.load_textual_inversion({"<style>": torch.randn(3, 32, generator=generator)})
    return pipe


def test_textual_inversion_is_untouched():
    pipe, reference = _with_inversion(tiny.own(tiny.sd())), _with_inversion(tiny.own(tiny.sd()))
    attachment = debias(pipe, tiny.gender())
    bare = tiny.encode(reference, "a doctor in <style>")[0]
    assert not torch.equal(bare, tiny.encode(tiny.sd(), "a doctor in style")[0])
    assert torch.equal(tiny.encode(pipe, "a doctor in <style>")[0], attachment.projections["sequence"](bare))


def test_textual_inversion_of_several_tokens_moves_the_end_of_text():
    from vldebias.hosts.diffusers import diffusers_host

    pipe = _with_inversion(tiny.own(tiny.sd()))
    state = tiny.encode(pipe, "a doctor in <style>")[0][0, 7].double()  # start, a, doctor, in, three tokens, end
    found = diffusers_host(pipe).embed(["a doctor in <style>"], "sequence")[0]
    assert torch.allclose(found, state / state.norm(), atol=1e-6)


# ---- dtype and offload -------------------------------------------------------------------------------------------


def test_a_pipeline_can_be_cast_while_attached():
    pipe = tiny.own(tiny.sd())
    full = debias(tiny.sd(), tiny.gender()).projections["sequence"]
    debias(pipe, full)
    pipe.to(torch.bfloat16)
    assert tiny.draw(pipe).dtype == torch.bfloat16
    with torch.no_grad():
        bare = pipe.encode_prompt.__wrapped__(PLAIN, "cpu", 1, False)[0]
    assert torch.equal(tiny.encode(pipe)[0], full(bare))


def test_sequential_offload_leaves_no_fingerprint_and_says_so():
    pipe = tiny.own(tiny.sd())
    for model in (m for m in pipe.components.values() if isinstance(m, torch.nn.Module)):
        cpu_offload(model, torch.device("cpu"))  # what enable_sequential_cpu_offload does on an accelerator
    assert next(pipe.text_encoder.parameters()).is_meta
    with pytest.warns(VldebiasWarning, match=r"offloaded, so they have no fingerprint.*enable_sequential_cpu_offload"):
        attachment = debias(pipe, tiny.gender())
    assert attachment.projections["sequence"].provenance.fingerprint is None
    attached = tiny.sd()
    debias(attached, tiny.gender())
    assert torch.equal(tiny.draw(pipe), tiny.draw(attached))
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), tiny.draw(tiny.sd()))
    assert next(pipe.text_encoder.parameters()).is_meta


def test_model_offload_after_attaching():
    pipe = tiny.own(tiny.sd())
    attachment = debias(pipe, tiny.gender())
    attached = tiny.draw(pipe)
    pipe.enable_model_cpu_offload(device="cpu")
    assert torch.equal(tiny.draw(pipe), attached)
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), tiny.draw(tiny.sd()))


# ---- callbacks and saving ------------------------------------------------------------------------------------------


def test_callbacks_see_the_projected_prompt():
    pipe = tiny.sd()
    negative, positive = (tiny.encode(pipe, text)[0] for text in ("", PLAIN))
    attachment = debias(pipe, tiny.gender())
    seen = []

    def callback(pipe, step, timestep, tensors):
        seen.append(tensors["prompt_embeds"])
        return tensors

    tiny.draw(pipe, callback_on_step_end=callback, callback_on_step_end_tensor_inputs=["prompt_embeds"])
    expected = torch.cat([negative, attachment.projections["sequence"](positive)])
    assert len(seen) == 2
    assert all(torch.allclose(x, expected, atol=1e-6) for x in seen)


def _files(folder):
    return sorted(os.path.relpath(os.path.join(at, f), folder) for at, _, files in os.walk(folder) for f in files)


def test_an_attached_pipeline_saves_what_the_bare_one_saves(tmp_path):
    pipe = tiny.sd()
    debias(pipe, tiny.gender()).remove()  # a tokenizer saves how it was called last, whoever called it
    pipe.save_pretrained(tmp_path / "bare")
    debias(pipe, tiny.gender())
    pipe.save_pretrained(tmp_path / "attached")
    files = _files(tmp_path / "bare")
    assert "unet/diffusion_pytorch_model.safetensors" in files
    assert _files(tmp_path / "attached") == files
    _, different, errors = filecmp.cmpfiles(tmp_path / "bare", tmp_path / "attached", files, shallow=False)
    assert not different
    assert not errors


def test_the_model_id_is_where_the_pipeline_came_from(tmp_path):
    from diffusers import StableDiffusionPipeline

    tiny.sd().save_pretrained(tmp_path)
    pipe = StableDiffusionPipeline.from_pretrained(tmp_path)
    assert fit_projection(pipe, tiny.gender()).model_id == str(tmp_path)
    assert fit_projection(tiny.sd(), tiny.gender()).model_id is None
