"""The training loop of all stages of a build: a step is a function of its number, so a resumed run repeats a whole."""

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from vldebias.files import write_atomically
from vldebias.miniature import birds
from vldebias.miniature.models import read_metadata
from vldebias.progress import SILENT, Progress

CHECKPOINT_SECONDS = 60.0

Tensors = dict[str, torch.Tensor]

# Each stage looks at its own stream of renders.
_STREAM = {"clip": 0, "vae": 1, "judge": 2, "draft": 3, "unet": 4}


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


@dataclass(frozen=True)
class Stage:
    """One stage of a build: where it writes, how long it trains, on what."""

    name: str
    out: Path
    seed: int
    steps: int
    device: str = "cpu"
    resume: bool = True
    progress: Progress = SILENT
    lean: birds.Lean = birds.LEAN

    @property
    def settings(self) -> dict[str, object]:
        """What the weights depend on: stands in their file, and must match for a resume."""
        lean = {name: list(values) for name, values in asdict(self.lean).items()}
        return {"stage": self.name, "seed": self.seed, "steps": self.steps} | ({"lean": lean} if self.leans else {})

    @property
    def leans(self) -> bool:
        """Whether what it trains on leans; the VAE and the judge see all birds in all places equally often."""
        return self.name in ("clip", "draft", "unet")

    @property
    def weights(self) -> Path:
        """Where the result goes."""
        return self.out / f"{self.name}.safetensors"

    @property
    def stream(self) -> int:
        """The seed of the renders of this stage."""
        return self.seed * 10 + _STREAM[self.name]

    @property
    def checkpoint(self) -> Path:
        """Where the state of training goes, once a minute."""
        return self.out / "checkpoints" / f"{self.name}.safetensors"

    def train(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[int], torch.Tensor],
        rate: Callable[[int], float],
        average: Average | None = None,
    ) -> None:
        """Trains to the last step, writing a checkpoint every minute; goes on from it where there is one.

        Args:
            module: what is trained; kept in the checkpoint like the optimizer's moments and the average.
            optimizer: of its parameters.
            loss: maps the number of a step to a loss, and draws all its randomness from that number (`generator`).
            rate: learning rate by step.
            average: moved after every step.
        """
        kept = {self.name: module} | ({"average": average} if average else {})
        parameters = list(module.parameters())
        first = self._restore(kept, optimizer) if self.resume else 0
        saved = time.monotonic()
        with self.progress.bar(self.name, self.steps, done=first) as bar:
            for step in range(first, self.steps):
                for group in optimizer.param_groups:
                    group["lr"] = rate(step)
                value = loss(step)
                optimizer.zero_grad()
                value.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                if average:
                    average.update(step)
                if time.monotonic() - saved >= CHECKPOINT_SECONDS and step + 1 < self.steps:
                    self._keep(kept, optimizer, step + 1)
                    saved = time.monotonic()
                bar.to(step + 1, f"loss {float(value.detach()):.3f}")

    def finish(self, module: nn.Module) -> None:
        """Writes the weights, then drops the checkpoint, and the folder of checkpoints where it is the last."""
        save_weights(module, self.weights, self.settings)
        self.checkpoint.unlink(missing_ok=True)
        with suppress(OSError):
            self.checkpoint.parent.rmdir()

    def _keep(self, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer, step: int) -> None:
        """All modules and the optimizer's moments, in full precision, under flat names."""
        tensors = {f"{part}/{name}": t for part, module in modules.items() for name, t in module.state_dict().items()}
        for index, moments in optimizer.state_dict()["state"].items():
            tensors.update({f"optimizer/{index}/{name}": t for name, t in moments.items()})
        _write(tensors, self.checkpoint, {**self.settings, "step": step})

    def _restore(self, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer) -> int:
        """The first step to run. A checkpoint with other settings belongs to another build and is left unused."""
        from safetensors.torch import load_file

        settings = read_metadata(self.checkpoint) or {}
        step = settings.pop("step", 0)
        if settings != self.settings:
            return 0
        parts: dict[str, Tensors] = {}
        for name, tensor in load_file(self.checkpoint).items():
            part, _, inner = name.partition("/")
            parts.setdefault(part, {})[inner] = tensor
        for part, module in modules.items():
            module.load_state_dict(parts[part])
        moments: dict[int, Tensors] = {}
        for name, tensor in parts.get("optimizer", {}).items():
            index, _, moment = name.partition("/")
            moments.setdefault(int(index), {})[moment] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        return step


def generator(seed: int, step: int) -> torch.Generator:
    """The source of randomness of one step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def cosine(steps: int, peak: float, warmup: int = 50) -> Callable[[int], float]:
    """Linear warm-up to `peak`, then half a cosine down to 0."""
    warmup = min(warmup, max(1, steps // 10))

    def rate(step: int) -> float:
        return peak * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))

    return rate


def save_weights(module: nn.Module, path: Path, metadata: dict[str, object]) -> None:
    """Writes the weights in half precision, which is all that these models need."""
    _write({name: t.half() if t.is_floating_point() else t for name, t in module.state_dict().items()}, path, metadata)


def _write(tensors: Tensors, path: Path, metadata: dict[str, object]) -> None:
    from safetensors.torch import save_file

    # A copy of each tensor: safetensors refuses views that share memory.
    plain = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    about = {"vldebias": json.dumps(metadata, sort_keys=True)}
    write_atomically(path, lambda partial: save_file(plain, partial, metadata=about))
