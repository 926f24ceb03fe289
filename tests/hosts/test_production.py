"""As models are served: compiled, spread over devices. On the CPU, in the small; three states each."""

from typing import Any

import pytest
import torch
from transformers_tiny import Case

from vldebias.prompts import PromptSet

PROMPTS = ["a photo of a doctor", "a photo of a male nurse"]


@pytest.mark.filterwarnings("ignore:The following device_map keys:UserWarning")  # of a parameter without a module
@pytest.mark.filterwarnings("ignore:.*offloaded, so they have no fingerprint")
@torch.no_grad()
def test_a_model_over_two_devices_and_the_disk(gender: PromptSet, tmp_path: Any) -> None:
    """What `device_map` does, with the CPU and the disk in the place of two GPUs."""
    from accelerate import dispatch_model

    clip = Case("CLIPModel")
    base = clip.features()
    device_map = {"text_model": "disk", "vision_model": "cpu", "text_projection": "cpu", "visual_projection": "cpu"}
    device_map |= {"logit_scale": "cpu"}
    clip.model = dispatch_model(clip.model, device_map, main_device="cpu", offload_dir=str(tmp_path))
    assert next(clip.model.text_model.parameters()).is_meta
    torch.testing.assert_close(clip.features(), base)
    base = clip.features()
    with clip.debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(clip.features(), attachment.projections["joint"](base))
        with attachment.disabled():
            assert torch.equal(clip.features(), base)
    assert torch.equal(clip.features(), base)


@pytest.mark.slow
@torch.no_grad()
def test_a_model_that_was_compiled_and_called_before_attaching(gender: PromptSet) -> None:
    """Compiled code does not look for new hooks: the edit was left out without a word, the first and the second."""
    clip = Case("CLIPModel")
    base, compiled = clip.features(), torch.compile(clip.model.get_text_features, backend="eager")
    torch.testing.assert_close(compiled(**clip.inputs()).pooler_output, base)
    for strength in (1.0, 0.5):
        with clip.debias(gender, keep_stated=False, strength=strength) as attachment:
            expected = attachment.projections["joint"](base, strength)
            torch.testing.assert_close(compiled(**clip.inputs()).pooler_output, expected)
        torch.testing.assert_close(compiled(**clip.inputs()).pooler_output, base)
    torch.compiler.reset()
