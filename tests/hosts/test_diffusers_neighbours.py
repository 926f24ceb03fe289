"""Test attached pipelines with LoRA, textual inversion, half precision, offloading, callbacks and
saving."""

import copy
import pickle
import warnings
from pathlib import Path

import diffusers_tiny as tiny
import pytest
import torch
import transformers
from accelerate import cpu_offload
from transformers.integrations.peft import MIN_PEFT_VERSION

from vldebias.api import debias, fit_projections
from vldebias.errors import VldebiasError, VldebiasWarning
from vldebias.methods import load_edit

PLAIN = "a photo of a doctor"


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """Return a folder with a LoRA of the text encoder and the UNet of Stable Diffusion."""
    from diffusers import StableDiffusionPipeline
    from diffusers.utils import convert_state_dict_to_diffusers
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict
    from transformers.utils.peft_utils import check_peft_version

    try:
        check_peft_version(min_version=MIN_PEFT_VERSION)
    except ValueError as error:
        # Some releases of transformers, such as 5.24, require an unpublished version of peft.
        pytest.skip(f"transformers {transformers.__version__}: {error}")
    pipe = tiny.with_own_components(tiny.sd())
    torch.manual_seed(1)
    states = []
    for model, targets in (
        (pipe.unet, ["to_k", "to_v"]),
        (pipe.text_encoder, ["q_proj", "v_proj"]),
    ):
        model.add_adapter(
            LoraConfig(r=2, lora_alpha=4, target_modules=targets, init_lora_weights=False)
        )
        states.append(convert_state_dict_to_diffusers(get_peft_model_state_dict(model)))
    folder = tmp_path_factory.mktemp("lora")
    StableDiffusionPipeline.save_lora_weights(
        folder, unet_lora_layers=states[0], text_encoder_lora_layers=states[1]
    )
    return folder


def _load(pipe, folder):
    pipe.load_lora_weights(
        folder, weight_name="pytorch_lora_weights.safetensors", adapter_name="style"
    )


def test_a_previously_loaded_lora_is_part_of_the_fit(lora):
    plain = tiny.sd()
    pipe = tiny.with_own_components(tiny.sd())
    without_lora = fit_projections(plain, tiny.gender()).only
    _load(pipe, lora)
    bare = tiny.encode(pipe)[0]
    image = tiny.draw(pipe)
    assert not torch.equal(bare, tiny.encode(plain)[0])
    attachment = debias(pipe, tiny.gender())
    projection = attachment.projections["sequence"]
    assert not torch.equal(projection.matrix(), without_lora.matrix())
    assert projection.provenance.fingerprint.matches(without_lora.provenance.fingerprint)
    assert torch.equal(tiny.encode(pipe)[0], projection(bare))
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), image)


def test_a_projection_fitted_with_different_adapters_warns(lora, tmp_path):
    plain = tiny.sd()
    pipe = tiny.with_own_components(tiny.sd())
    without_lora = fit_projections(plain, tiny.gender()).only
    _load(pipe, lora)
    with_lora = load_edit(fit_projections(pipe, tiny.gender()).only.save_pretrained(tmp_path))
    with debias(pipe, with_lora):
        weights = [p for name, p in pipe.text_encoder.named_parameters() if "lora_" in name]
        # The length is multiplied by 1.004, then by 1.006 in total, and then restored.
        for factor, warnings_due in (
            (1.004, 0),
            (1.002, 1),
            (1 / 1.006008, 0),
        ):
            torch._foreach_mul_([weight.detach() for weight in weights], factor)
            with warnings.catch_warnings(record=True, action="always") as caught:
                tiny.encode(pipe)
            assert len(caught) == warnings_due
    for host, projection in ((pipe, without_lora), (plain, with_lora)):
        with pytest.warns(VldebiasWarning, match=r"different adapters \(LoRA\) .*; fit it again"):
            debias(host, projection).remove()
    pipe.disable_lora()
    debias(pipe, without_lora).remove()


def test_lora_can_be_loaded_and_unloaded_while_attached(lora):
    pipe = tiny.with_own_components(tiny.sd())
    reference = tiny.with_own_components(tiny.sd())
    attachment = debias(pipe, tiny.gender())
    first = tiny.draw(pipe)
    _load(pipe, lora)
    _load(reference, lora)
    assert set(pipe.get_active_adapters()) == {"style"}
    with attachment.disabled():
        assert torch.equal(tiny.draw(pipe), tiny.draw(reference))
    with pytest.warns(
        VldebiasWarning,
        match=r"its adapters \(LoRA\) have changed.* To fit the edit again",
    ):
        states = tiny.encode(pipe)[0]
    assert torch.equal(states, attachment.projections["sequence"](tiny.encode(reference)[0]))
    assert torch.equal(tiny.encode(pipe)[0], states)  # the warning is only issued once
    pipe.unload_lora_weights()
    assert torch.equal(tiny.draw(pipe), first)
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), tiny.draw(tiny.sd()))


def _other_scale(pipe):
    pipe.set_adapters("style", 0.3)


def _fused_with_another_scale(pipe):
    pipe.fuse_lora(lora_scale=0.2)


def _other_encoder(pipe):
    pipe.text_encoder = copy.deepcopy(pipe.text_encoder)


def _other_weights(pipe):
    weights = pipe.text_encoder.state_dict()
    pipe.text_encoder.load_state_dict({name: 1.01 * value for name, value in weights.items()})


def test_each_change_of_the_text_encoder_is_reported_once(lora):
    pipe = tiny.with_own_components(tiny.sd())
    _load(pipe, lora)
    debias(pipe, tiny.gender(), method="cali")
    messages = []
    for change in (_other_scale, _other_weights, _fused_with_another_scale, _other_encoder):
        change(pipe)
        with warnings.catch_warnings(record=True, action="always") as caught:
            tiny.encode(pipe)
        messages += [str(warning.message) for warning in caught if "attached" in str(warning)]
        tiny.encode(pipe)  # a warning would be an error
    assert all("the text encoder, its weights or its adapters" in text for text in messages)
    # Python would hide a repeated message.
    assert len(set(messages)) == len(messages) == 4


def test_the_scale_of_a_lora_in_a_call_is_noticed(lora, recwarn):
    pipe = tiny.with_own_components(tiny.sd())
    options = {"cross_attention_kwargs": {"scale": 0.2}, "num_inference_steps": 1}
    with debias(pipe, tiny.gender(), method="cali"):
        pipe(PLAIN, **options)
    assert not any("scale" in str(warning.message) for warning in recwarn.list)
    _load(pipe, lora)
    message = r"scales the LoRA by 0\.2.*set_adapters\(name, "
    with debias(pipe, tiny.gender(), method="cali"), pytest.warns(VldebiasWarning, match=message):
        pipe(PLAIN, **options)


def test_training_a_text_encoder_is_reported_once():
    pipe = tiny.with_own_components(tiny.sd())
    debias(pipe, tiny.gender(), method="cali")
    weights = list(pipe.text_encoder.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    reported = 0
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        with warnings.catch_warnings(record=True, action="always") as caught:
            tiny.encode(pipe)
        reported += len(caught)
    assert reported == 1


def test_a_pipeline_can_be_cast_while_attached():
    pipe = tiny.with_own_components(tiny.sd())
    full = debias(tiny.sd(), tiny.gender()).projections["sequence"]
    attachment = debias(pipe, full)
    pipe.to(torch.bfloat16)
    assert tiny.draw(pipe).dtype == torch.bfloat16
    with attachment.disabled():
        bare = tiny.encode(pipe)[0]
    assert torch.equal(tiny.encode(pipe)[0], full(bare))


def test_sequential_offload_warns_that_there_is_no_fingerprint():
    pipe = tiny.with_own_components(tiny.sd())
    for model in (m for m in pipe.components.values() if isinstance(m, torch.nn.Module)):
        # This has the effect of enable_sequential_cpu_offload on an accelerator.
        cpu_offload(model, torch.device("cpu"))
    assert next(pipe.text_encoder.parameters()).is_meta
    with pytest.warns(VldebiasWarning, match="offloaded, so they have no fingerprint"):
        attachment = debias(pipe, tiny.gender())
    assert attachment.projections["sequence"].provenance.fingerprint is None
    attached = tiny.sd()
    debias(attached, tiny.gender())
    assert torch.equal(tiny.draw(pipe), tiny.draw(attached))
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), tiny.draw(tiny.sd()))
    assert next(pipe.text_encoder.parameters()).is_meta


def test_an_attached_pipeline_saves_the_same_files(tmp_path):
    pipe = tiny.sd()
    debias(pipe, tiny.gender()).remove()  # a tokenizer stores the settings of its last call
    pipe.save_pretrained(tmp_path / "bare")
    debias(pipe, tiny.gender())
    pipe.save_pretrained(tmp_path / "attached")
    bare, attached = (
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (tmp_path / "bare", tmp_path / "attached")
    )
    assert Path("unet/diffusion_pytorch_model.safetensors") in bare
    assert attached == bare


def _components(pipe):
    return type(pipe)(**pipe.components, requires_safety_checker=False)


@pytest.mark.parametrize(
    "make", [lambda pipe: type(pipe).from_pipe(pipe), _components], ids=["from_pipe", "parts"]
)
def test_a_shared_encoder_warns_once_with_advice(make):
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender(), method="cali")
    rebuilt = make(pipe)
    bare = tiny.encode(tiny.sd())
    with pytest.warns(VldebiasWarning, match=r"debias\(other, attachment\.projections\)"):
        assert tiny.equal_tensors(tiny.encode(rebuilt), bare)
    tiny.encode(rebuilt)  # a second warning would be an error
    tiny.encode(pipe)
    with debias(rebuilt, attachment.projections):
        assert tiny.equal_tensors(tiny.encode(rebuilt), tiny.encode(pipe))


def test_valid_calls_and_fits_do_not_warn():
    """A warning would be an error."""
    pipe = tiny.sd()
    rebuilt = _components(pipe)
    attachment = debias(pipe, tiny.gender(), method="cali")
    debias(rebuilt, tiny.gender(), method="cali").remove()
    with attachment.disabled():
        tiny.encode(rebuilt)
    attachment.strength = 0
    tiny.encode(rebuilt)
    attachment.remove()
    tiny.encode(rebuilt)


@pytest.mark.parametrize("method", ["cali", "balanced-prompts"])
def test_copying_or_pickling_an_attached_pipeline_is_rejected(method):
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender() if method == "cali" else "gender", method=method)
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(VldebiasError, match="remove"):
            way(pipe)
    with pytest.raises(VldebiasError, match="copied or pickled"):
        copy.deepcopy(attachment)
    attachment.remove()
    twin = copy.deepcopy(pipe)
    assert torch.equal(tiny.encode(twin)[0], tiny.encode(pipe)[0])


def test_the_encoder_check_does_not_break_compilation():
    pipe = tiny.sd()
    debias(pipe, tiny.gender(), method="cali")
    expected = tiny.encode(pipe)
    pipe.text_encoder = torch.compile(pipe.text_encoder, backend="eager")
    assert tiny.equal_tensors(tiny.encode(pipe), expected)
