"""Builds the miniature models from nothing: tokenizer, CLIP, VAE, judge, UNet, measurements, model cards."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from vldebias.errors import InvalidInputError
from vldebias.miniature import train_clip, train_diffusion
from vldebias.miniature.cards import write_cards
from vldebias.miniature.checkpoint import read_metadata
from vldebias.miniature.measure import write_metrics
from vldebias.miniature.progress import Progress
from vldebias.miniature.stage import Stage

__all__ = ["STAGES", "build"]

_TRAINERS: dict[str, Callable[[Stage], None]] = {
    "clip": train_clip.train,
    "vae": train_diffusion.train_vae,
    "judge": train_diffusion.train_judge,
    "unet": train_diffusion.train_unet,
}
STAGES = ("tokenizer", *_TRAINERS, "measure", "cards")
STEPS = {"clip": train_clip.STEPS, **train_diffusion.STEPS}


def build(
    out: Path | str,
    *,
    seed: int = 0,
    stages: Sequence[str] | None = None,
    device: str | None = None,
    resume: bool = True,
    scale: float = 1.0,
) -> Path:
    """Trains the miniature world's models and writes them to `out`, in the layout of the shipped folder.

    Made to fit into two hours on two CPU cores. Killed and called again, it goes on from the last checkpoint (one a
    minute) and, on the same machine and number of threads, ends with the same weights.

    Args:
        out: folder to write; point VLDEBIAS_MINIATURE to it to load the build.
        seed: of the weights and of all training images.
        stages: which of STAGES to run, in their order (all by default); each needs those before it.
        device: "cpu" or "cuda"; a GPU where there is one by default.
        resume: keep stages that are finished and go on from checkpoints; False starts every stage anew.
        scale: factor on the number of training steps and of measured images, for trying things out.

    Returns:
        The folder.

    Raises:
        InvalidInputError: an unknown stage, or a scale that is not positive.
    """
    wanted = tuple(STAGES if stages is None else stages)
    unknown = [name for name in wanted if name not in STAGES]
    if unknown:
        raise InvalidInputError(f"unknown stages {unknown}; expected some of {list(STAGES)}")
    if not scale > 0:
        raise InvalidInputError(f"scale must be positive, got {scale}")
    out = Path(out)
    with Progress() as progress:
        for name in STAGES:
            if name in wanted:
                _run(name, out, seed, device or _default_device(), resume, scale, progress)
    return out


def _run(name: str, out: Path, seed: int, device: str, resume: bool, scale: float, progress: Progress) -> None:
    if name == "tokenizer":
        train_clip.make_tokenizer(out)
    elif name == "measure":
        write_metrics(out, scale=scale, device=device, report=progress.report)
    elif name == "cards":
        write_cards(out)
    else:
        steps = max(1, round(STEPS[name] * scale))
        stage = Stage(name, out, seed, steps, device, resume, progress.report)
        if not resume or read_metadata(stage.weights) != stage.settings:
            _TRAINERS[name](stage)


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
