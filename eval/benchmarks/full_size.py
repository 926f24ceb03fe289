"""Measure the time and memory of attachments to full-size models on a GPU.

python -m eval.benchmarks.full_size --json eval/results/bench_full_size.json

The models are Stable Diffusion 1.5 (four 512 x 512 images, 20 steps) and CLIP ViT-L/14 (256
prompts) in half precision. They have random weights, because these do not affect the time of a
call. Results are medians over alternating calls after a warm-up call. "none" is measured twice to
show the noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import open_clip
import torch
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

import vldebias
from eval.tables import parser, records
from vldebias.miniature.models import load_text_tower

SET = "professions-gender"
PROMPT = "a photo of a doctor"
STATES = ("none", "cali", "balanced-prompts", "none again")


def stable_diffusion() -> StableDiffusionPipeline:
    """Return a pipeline with the architecture of Stable Diffusion 1.5 and a small vocabulary."""
    tokenizer = load_text_tower()[1]
    sizes = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text = CLIPTextModel(CLIPTextConfig(vocab_size=len(tokenizer), **sizes, **ids))
    coder = {
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    }
    pipe = StableDiffusionPipeline(
        vae=AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), layers_per_block=2, sample_size=512, **coder
        ),
        text_encoder=text,
        tokenizer=tokenizer,
        unet=UNet2DConditionModel(sample_size=64, cross_attention_dim=768),
        scheduler=PNDMScheduler(
            beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, skip_prk_steps=True
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to("cuda", torch.float16)


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes, including the work on the GPU."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--repetitions", type=int, default=9, help="number of timed calls (%(default)s)"
    )
    args = options.parse_args()
    rows: list[dict[str, Any]] = []
    torch.manual_seed(0)
    pipe = stable_diffusion()
    clip = open_clip.create_model("ViT-L-14").to("cuda", torch.float16).eval()
    tokenizer = open_clip.get_tokenizer("ViT-L-14")
    ids = tokenizer([PROMPT] * 256).cuda()

    def draw() -> object:
        return pipe(
            PROMPT, num_images_per_prompt=4, num_inference_steps=20, output_type="pt"
        ).images

    def encode() -> object:
        with torch.no_grad():
            return clip.encode_text(ids, normalize=True)

    subjects: list[tuple[str, Any, Callable[[], object], tuple[str, ...], dict[str, Any]]] = [
        ("Stable Diffusion 1.5, 4 images", pipe, draw, STATES, {}),
        (
            "CLIP ViT-L/14, 256 texts",
            clip,
            encode,
            ("none", "cali", "none again"),
            {"tokenizer": tokenizer},
        ),
    ]
    for label, model, call, states, how in subjects:
        times: dict[str, list[float]] = {state: [] for state in states}
        peaks, attaching = dict.fromkeys(states, 0.0), dict.fromkeys(states, 0.0)
        for repetition in range(args.repetitions + 1):
            for state in states:
                attach = not state.startswith("none")
                began = time.perf_counter()
                with vldebias.debias(model, SET, method=state, **how) if attach else nullcontext():
                    attaching[state] = time.perf_counter() - began if attach else 0.0
                    torch.cuda.reset_peak_memory_stats()
                    spent = seconds_of(call)
                    peaks[state] = torch.cuda.max_memory_allocated() / 2**20
                if repetition:
                    times[state].append(spent)
        base = statistics.median(times["none"])
        for state in states:
            median = statistics.median(times[state])
            low, high = (sorted(times[state])[place] for place in (1, -2))
            row = {
                "what": label,
                "state": state,
                "seconds": median,
                "low": low,
                "high": high,
                "ratio": median / base,
            }
            rows.append(row | {"peak_mib": peaks[state], "attach_seconds": attaching[state]})
            print(*rows[-1].values(), sep="\t", flush=True)
    if args.json:
        about = "Seconds of a call with and without an attachment, random weights, half precision"
        device = torch.cuda.get_device_name()
        result = records("bench_full_size", about, rows, "what", ("state",), device=device)
        result.write(args.json)


if __name__ == "__main__":
    main()
