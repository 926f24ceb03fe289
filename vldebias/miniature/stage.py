"""What every training stage is told: where to write, how long to train, and on what."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from vldebias.miniature.checkpoint import save_weights
from vldebias.miniature.training import Job, Report, run

__all__ = ["Stage"]

# Each stage looks at its own stream of renders.
_STREAM = {"clip": 0, "vae": 1, "judge": 2, "unet": 3}


@dataclass(frozen=True)
class Stage:
    """One stage of a build; `settings` are written beside the weights and must match for a resume."""

    name: str
    out: Path
    seed: int
    steps: int
    device: str
    resume: bool
    report: Report

    @property
    def settings(self) -> dict[str, object]:
        """What the weights depend on."""
        return {"stage": self.name, "seed": self.seed, "steps": self.steps}

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

    def train(self, job: Job) -> None:
        """Runs the job to its end."""
        run(job, self.steps, self.checkpoint, settings=self.settings, resume=self.resume, report=self.report)

    def finish(self, module: nn.Module) -> None:
        """Writes the weights, then drops the checkpoint, and the folder of checkpoints where it is the last."""
        save_weights(module, self.weights, self.settings)
        self.checkpoint.unlink(missing_ok=True)
        with suppress(OSError):
            self.checkpoint.parent.rmdir()
