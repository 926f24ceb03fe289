"""Generates portraits with the miniature pipeline, with or without a projection of what the prompt says."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from diffusers import StableDiffusionPipeline

__all__ = ["GUIDANCE", "PROMPT", "STEPS", "embed_ends", "generate"]

PROMPT = "A photo of a {}."
STEPS = 20
GUIDANCE = 3.0
_PROMPTS_AT_ONCE = 4


@torch.no_grad()
def embed_ends(pipeline: "StableDiffusionPipeline", prompts: Sequence[str]) -> torch.Tensor:
    """(n, d) normalised hidden states at the end token: what the paper fits projections for generation on."""
    tokens = _tokens(pipeline, prompts)
    hidden = pipeline.text_encoder(tokens).last_hidden_state
    end = (tokens == pipeline.tokenizer.eos_token_id).int().argmax(dim=1)
    return F.normalize(hidden[torch.arange(len(end)), end], dim=-1).cpu()


@torch.no_grad()
def generate(
    pipeline: "StableDiffusionPipeline",
    prompts: Sequence[str],
    count: int,
    *,
    seed: int,
    projection: Callable[[torch.Tensor], torch.Tensor] | None = None,
    steps: int = STEPS,
    guidance: float = GUIDANCE,
) -> torch.Tensor:
    """Draws `count` portraits of each prompt.

    The noise depends on the seed, the place of the prompt in the list and the place of the image alone, so images
    with and without a projection belong together.

    Args:
        pipeline: what `load_pipeline` gives.
        prompts: texts.
        count: images per prompt.
        seed: of the noise.
        projection: applied to every token of the prompt's hidden states; the empty prompt is left alone.
        steps: of DDIM.
        guidance: of classifier-free guidance.

    Returns:
        (len(prompts) * count, 3, 32, 32) in [0, 1], images of a prompt side by side.
    """
    images = []
    for start in range(0, len(prompts), _PROMPTS_AT_ONCE):
        batch = list(prompts[start : start + _PROMPTS_AT_ONCE])
        hidden = pipeline.text_encoder(_tokens(pipeline, batch)).last_hidden_state
        empty = pipeline.text_encoder(_tokens(pipeline, [""])).last_hidden_state
        hidden = projection(hidden) if projection else hidden
        numbers = range(start * count, (start + len(batch)) * count)
        noise = [torch.Generator().manual_seed(seed * 1_000_003 + k) for k in numbers]
        drawn = pipeline(
            prompt_embeds=hidden.repeat_interleave(count, dim=0),
            negative_prompt_embeds=empty.expand(len(batch) * count, -1, -1),
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=noise,
            output_type="pt",
        )
        images.append(drawn.images.cpu())
    return torch.cat(images)


def _tokens(pipeline: "StableDiffusionPipeline", prompts: Sequence[str]) -> torch.Tensor:
    inputs = pipeline.tokenizer(list(prompts), padding="max_length", truncation=True, return_tensors="pt")
    return inputs.input_ids.to(pipeline.device)
