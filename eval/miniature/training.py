"""Train a stage of a build.

Each step depends only on its number. Unlike the loop in `vldebias.training`, which trains
contrastive towers, this one also trains an autoencoder, a judge and a noise predictor.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eval.miniature import birds
from vldebias.training.optim import Average
from vldebias.utils.files import write_atomically
from vldebias.utils.progress import Progress

# Each stage uses a different stream of renders.
_STREAM = {"narrow": 0, "vae": 1, "judge": 2, "draft": 3, "unet": 4, "clip": 5}


@dataclass(frozen=True)
class Stage:
    """A stage of a build with its output, number of steps and data."""

    name: str
    out: Path
    seed: int
    steps: int
    device: str
    progress: Progress

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings that affect the weights, which must match to reuse them."""
        settings: dict[str, object] = {
            "stage": self.name,
            "seed": self.seed,
            "steps": self.steps,
        }
        # The training data are biased, unlike those for the VAE and the judge.
        if self.name in ("narrow", "clip", "draft", "unet"):
            settings["lean"] = {
                "correlation": list(birds.CORRELATION),
                "hasty": list(birds.HASTY),
                "shares": list(birds.SHARES),
            }
        return settings

    @property
    def weights(self) -> Path:
        """Return the path of the result."""
        return self.out / f"{self.name}.safetensors"

    @property
    def stream(self) -> int:
        """Return the seed for the renders in this stage."""
        return self.seed * 10 + _STREAM[self.name]

    def train(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[int], torch.Tensor],
        rate: Callable[[int], float],
        average: Average | None = None,
    ) -> None:
        """Train until the last step.

        Args:
            module: The module to train.
            optimizer: The optimizer for its parameters.
            loss: A function from step numbers to losses, whose randomness depends only on the
                number (see `generator`).
            rate: A function from step numbers to learning rates.
            average: An average to update after every step.
        """
        parameters = list(module.parameters())
        with self.progress.bar(self.name, self.steps) as advance:
            for step in range(self.steps):
                for group in optimizer.param_groups:
                    group["lr"] = rate(step)
                value = loss(step)
                optimizer.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                if average:
                    average.update(step)
                advance(note=f"loss {float(value.detach()):.3f}")

    def finish(self, module: nn.Module) -> None:
        """Write the weights."""
        save_tensors(module.state_dict(), self.weights, self.settings)


def generator(seed: int, step: int) -> torch.Generator:
    """Return the random generator for a step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def cosine(steps: int, peak: float, warmup: int = 50) -> Callable[[int], float]:
    """Return a learning rate schedule with linear warm-up and cosine decay to 0."""
    warmup = min(warmup, max(1, steps // 10))

    def rate(step: int) -> float:
        return peak * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))

    return rate


def save_tensors(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, object]
) -> None:
    """Write tensors by name in half precision, which is sufficient for these models."""
    from safetensors.torch import save_file

    # Copy each tensor, because safetensors rejects views that share memory.
    halves = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    plain = {name: t.detach().cpu().clone().contiguous() for name, t in halves.items()}
    header = {"vldebias": json.dumps(metadata, sort_keys=True)}
    write_atomically(path, lambda partial: save_file(plain, partial, metadata=header))


def read_weights_metadata(path: Path) -> dict[str, Any] | None:
    """Return the provenance in a weights file, or None if there is no file."""
    from safetensors import safe_open

    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        return json.loads((file.metadata() or {}).get("vldebias", "{}"))
