"""One training loop for all stages: a step is a function of its number, so a resumed run repeats a whole one."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vldebias.miniature.checkpoint import load_state, read_metadata, save_state

__all__ = ["Average", "Job", "Report", "cosine", "generator", "run"]

CHECKPOINT_SECONDS = 60.0

Report = Callable[[str, int, int, float], None]  # stage, steps done, steps in all, loss


@dataclass
class Job:
    """What to train.

    `loss` maps the number of a step to a loss and must draw all its randomness from that number (`generator`).
    `modules` are checkpointed under their names, and so is the optimizer; `rate` is the learning rate by step.
    """

    name: str
    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]
    rate: Callable[[int], float]
    average: "Average | None" = None
    clip_norm: float = 1.0


class Average(nn.Module):
    """Exponential moving average of a module's weights, with a short memory at the beginning."""

    def __init__(self, module: nn.Module, decay: float = 0.999) -> None:
        super().__init__()
        self.decay = decay
        self.live = [module]  # in a list, so that it is not registered as a child
        self.shadow = nn.ParameterList(p.detach().clone() for p in module.parameters()).requires_grad_(False)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after step `step`."""
        weight = 1 - min(self.decay, (step + 1) / (step + 10))
        torch._foreach_lerp_(list(self.shadow), list(self.live[0].parameters()), weight)

    @torch.no_grad()
    def copy_to_live(self) -> None:
        """Replaces the weights by their average."""
        for live, mean in zip(self.live[0].parameters(), self.shadow, strict=True):
            live.copy_(mean)


def generator(seed: int, step: int) -> torch.Generator:
    """The source of randomness of one step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def cosine(steps: int, peak: float, warmup: int = 50) -> Callable[[int], float]:
    """Linear warm-up to `peak`, then half a cosine down to 0."""
    warmup = min(warmup, max(1, steps // 10))

    def rate(step: int) -> float:
        return peak * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))

    return rate


def run(
    job: Job,
    steps: int,
    checkpoint: Path,
    *,
    settings: dict[str, object],
    resume: bool,
    report: Report,
    every: float | None = None,
) -> None:
    """Trains to the last step, writing `checkpoint` every `every` seconds; goes on from it where there is one."""
    every = CHECKPOINT_SECONDS if every is None else every
    modules = dict(job.modules) | ({"average": job.average} if job.average else {})
    step = _resume(job, modules, checkpoint, settings) if resume else 0
    saved = time.monotonic()
    while step < steps:
        loss = _update(job, step)
        step += 1
        if time.monotonic() - saved >= every and step < steps:
            save_state(checkpoint, modules, job.optimizer, {**settings, "step": step})
            saved = time.monotonic()
        report(job.name, step, steps, loss)


def _resume(job: Job, modules: dict[str, nn.Module], checkpoint: Path, settings: dict[str, object]) -> int:
    """The first step to run. A checkpoint with other settings belongs to another build and is left unused."""
    metadata = read_metadata(checkpoint) or {}
    step = metadata.pop("step", 0)
    if metadata != settings or not isinstance(step, int):
        return 0
    load_state(checkpoint, modules, job.optimizer)
    return step


def _update(job: Job, step: int) -> float:
    for group in job.optimizer.param_groups:
        group["lr"] = job.rate(step)
    loss = job.loss(step)
    job.optimizer.zero_grad()
    loss.backward()
    parameters = [p for group in job.optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, job.clip_norm)
    job.optimizer.step()
    if job.average:
        job.average.update(step)
    return float(loss.detach())
