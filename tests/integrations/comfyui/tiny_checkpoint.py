"""Write a checkpoint in the layout of Stable Diffusion 1 with random weights.

Run it with ComfyUI's Python, in ComfyUI's folder: `python tiny_checkpoint.py OUT.safetensors`. The
text encoder has the size of the real one, because ComfyUI does not read the size from the file; the
denoiser has two levels, and the image decoder is the small one (TAESD).
"""

import sys

OUT = sys.argv.pop()
sys.argv.append("--cpu")

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import comfy.ops  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel  # noqa: E402
from comfy.sd1_clip import SDClipModel  # noqa: E402
from comfy.taesd.taesd import TAESD  # noqa: E402


def random_weights(module: torch.nn.Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return a state dict for the module in which layers preserve the scale of their input."""
    state = {}
    for name, value in module.state_dict().items():
        if not value.is_floating_point() or name.endswith(("vae_scale", "vae_shift")):
            state[name] = value.clone()
        elif value.ndim > 1:
            width = value[0].numel()
            state[name] = torch.randn(value.shape, generator=generator) * width**-0.5
        elif name.endswith("weight"):
            state[name] = torch.ones(value.shape)
        else:
            state[name] = torch.zeros(value.shape)
    return state


denoiser = UNetModel(
    image_size=32,
    in_channels=4,
    out_channels=4,
    model_channels=320,
    num_res_blocks=[1, 1],
    channel_mult=(1, 1),
    transformer_depth=[1, 1],
    transformer_depth_output=[1, 1, 1, 1],
    transformer_depth_middle=1,
    num_heads=8,
    num_head_channels=-1,
    use_spatial_transformer=True,
    context_dim=768,
    operations=comfy.ops.disable_weight_init,
)
parts = {
    "model.diffusion_model.": denoiser,
    "first_stage_model.": TAESD(latent_channels=4),
    "cond_stage_model.": SDClipModel(device="cpu", dtype=torch.float16),
}
generator = torch.Generator().manual_seed(0)
checkpoint = {}
for prefix, module in parts.items():
    for name, value in random_weights(module, generator).items():
        is_number = value.is_floating_point()
        checkpoint[prefix + name] = (value.half() if is_number else value).contiguous()
safetensors.torch.save_file(checkpoint, OUT)
