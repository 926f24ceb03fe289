"""The loop: batches in, updates out, on one CPU or many GPUs, and exactly where it was after an interrupt."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.training.accelerators import make_accelerator, refuse_learned_scalars
from vldebias.training.averaging import Average
from vldebias.training.batch import Batch, Batches
from vldebias.training.interrupts import Interrupts
from vldebias.training.schedules import cosine_rate
from vldebias.training.settings import LoopSettings
from vldebias.training.sharded import gathered, whole
from vldebias.training.sharpness import Sharpness
from vldebias.training.state import load_state, read_metadata, save_state
from vldebias.training.trainee import Trainee
from vldebias.training.tuning import hold_scalars, keep_frozen_still, parameter_groups

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vldebias.hosts.towers import Towers

__all__ = ["DivergedError", "Entry", "fit", "steps_of"]

STATE = "state.safetensors"

Entry = dict[str, float]
"""What is known after a step: step, loss, lr, temperature, seconds, and the monitor's scores where it looked."""
Monitor = Callable[["Towers"], dict[str, float]]


class DivergedError(VldebiasError):
    """A loss that is no number any more."""


@dataclass
class _Run:
    """What one run holds while it steps."""

    accelerator: Accelerator
    trainee: nn.Module  # as accelerate wraps it
    bare: Trainee
    optimizer: torch.optim.Optimizer
    settings: LoopSettings
    steps: int
    average: Average | None
    sharpness: Sharpness | None
    history: list[Entry] = field(default_factory=list)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]


def steps_of(settings: LoopSettings, batches: Batches) -> int:
    """How many updates the settings mean.

    Raises:
        InvalidInputError: epochs of a stream, whose length is not known.
    """
    if settings.steps is not None:
        return settings.steps
    if batches.per_epoch is None:
        raise InvalidInputError("epochs: a stream does not say how long it is; give steps instead")
    assert settings.epochs is not None
    return max(1, round(settings.epochs * batches.per_epoch / settings.accumulation))


def fit(
    trainee: Trainee,
    batches: Batches,
    settings: LoopSettings,
    *,
    accelerator: Accelerator | None = None,
    folder: Path | None = None,
    identity: dict[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_step: Callable[[Entry, int], None] | None = None,
) -> list[Entry]:
    """Trains `trainee` in place and returns what was seen at every step.

    A step is a function of its number: its learning rate, its schedule, its batches and the seed of its randomness.
    So a run that was killed goes on from its last checkpoint and ends with the weights of one that was not. Ctrl-C and
    SIGTERM let the step finish, write a checkpoint and raise KeyboardInterrupt; a second one does so at once.

    Args:
        trainee: model and loss; what is to learn requires gradients.
        batches: micro-batches by their number.
        settings: how to step.
        accelerator: of `accelerate`; default: one that follows `accelerate launch`.
        folder: where the checkpoint lives; None writes none.
        identity: what a checkpoint must agree with to be resumed, beside the number of steps.
        monitor: scores of the model, every `eval_every` steps and at the end; with `ema` those of the average.
        on_step: called with each entry and the number of steps in all.

    Returns:
        One entry per step. The model ends in evaluation mode, with its averaged weights where `ema` is set.

    Raises:
        InvalidInputError: a checkpoint of other settings in the folder.
        DivergedError: the loss or its gradient is no number; model and checkpoint are those of the step before.
    """
    steps = steps_of(settings, batches)
    release = hold_scalars(trainee)
    try:
        run = _prepare(trainee, steps, settings, accelerator or make_accelerator())
        _steps(run, batches, folder, identity or {}, monitor, on_step)
        _finish(run)
    finally:
        release()
    return run.history


def _steps(
    run: _Run,
    batches: Batches,
    folder: Path | None,
    identity: dict[str, Any],
    monitor: Monitor | None,
    on_step: Callable[[Entry, int], None] | None,
) -> None:
    """From where the folder's checkpoint is to the last step."""
    first = _resume(run, folder, identity)
    taken = run.settings.accumulation
    saved = time.monotonic()
    # In this order: the workers are forked with the handlers in place, and stop when the run does.
    with Interrupts() as interrupts, closing(batches.starting(first * taken)) as micro:
        for step in range(first, run.steps):
            begun = time.monotonic()
            loss = _update(run, step, [next(micro) for _ in range(taken)])
            entry = _entry(run, step, loss, begun)
            if monitor is not None and _is_due(step, run):
                entry |= _scores(run, monitor)
            run.history.append(entry)
            if on_step is not None:
                on_step(entry, run.steps)
            due, stop = _agreed(run, time.monotonic() - saved >= run.settings.save_every * 60, interrupts.asked)
            if folder is not None and (due or stop or step + 1 == run.steps):
                _save(run, folder, identity, step + 1)
                saved = time.monotonic()
            if stop:
                raise KeyboardInterrupt


def _prepare(trainee: Trainee, steps: int, settings: LoopSettings, accelerator: Accelerator) -> _Run:
    refuse_learned_scalars(trainee, accelerator)
    groups = parameter_groups(trainee, settings.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2))
    wrapped, optimizer = accelerator.prepare(trainee, optimizer)
    average = Average(wrapped, settings.ema) if settings.ema is not None else None
    sharpness = None if settings.sharpness == "none" else Sharpness(settings.sharpness, rho=settings.rho)
    return _Run(accelerator, wrapped, trainee, optimizer, settings, steps, average, sharpness)


def _update(run: _Run, step: int, micro: Sequence[Batch]) -> float:
    """One update of the weights from micro-batches; returns their mean loss."""
    settings = run.settings
    run.trainee.train()
    keep_frozen_still(run.bare)
    run.bare.objective.at(step, run.steps)
    rate = cosine_rate(step, run.steps, peak=settings.lr, warmup=settings.warmup, end=settings.lr_end)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    loss = _gradients(run, step, micro)
    norm = nn.utils.clip_grad_norm_(run.parameters, settings.clip_norm or math.inf)  # accelerate's needs their order
    value = _checked(run, step, loss, norm)  # before the step, which would carry it into every weight
    run.optimizer.step()
    run.optimizer.zero_grad()
    if run.average is not None:
        run.average.update(step)
    return value


def _gradients(run: _Run, step: int, micro: Sequence[Batch]) -> Tensor:
    """Leaves the gradient of the step, sharp where asked, and returns the mean loss."""

    def backward() -> Tensor:
        return _backward(run, step, micro)

    if run.sharpness is None:
        return backward()
    return run.sharpness.gradients(run.trainee, run.parameters, backward)


def _backward(run: _Run, step: int, micro: Sequence[Batch]) -> Tensor:
    """Adds the gradient of the mean loss of the micro-batches; processes exchange theirs with the last one."""
    device = run.accelerator.device
    total = torch.zeros((), device=device)
    for number, batch in enumerate(micro):
        _seed(run, step, number)
        last = number == len(micro) - 1
        with _together(run, last):
            with _autocast(run):
                loss = run.trainee(batch.to(device, non_blocking=True)) / len(micro)
            run.accelerator.backward(loss)
        total += loss.detach()
    return total


def _together(run: _Run, last: bool) -> AbstractContextManager[Any]:
    return nullcontext() if last else run.accelerator.no_sync(run.trainee)


def _autocast(run: _Run) -> AbstractContextManager[Any]:
    """Not accelerate's, which keeps one precision for all runs of a process."""
    return torch.autocast(run.accelerator.device.type, torch.bfloat16, enabled=run.settings.precision == "bf16")


def _seed(run: _Run, step: int, number: int) -> None:
    """Dropout and mixing draw from the global generators, which therefore follow from where the run is."""
    place = (run.settings.seed * 1_000_003 + step) * 1009 + number
    torch.manual_seed((place * 65_537 + run.accelerator.process_index) % 2**63)


def _checked(run: _Run, step: int, loss: Tensor, norm: Tensor) -> float:
    """The loss over all processes."""
    value, length = float(run.accelerator.reduce(loss, reduction="mean")), float(whole(norm))
    if not (math.isfinite(value) and math.isfinite(length)):
        raise DivergedError(
            f"step {step}: the loss is {value}, the norm of its gradient {length}. Lower lr, raise temperature (rince "
            "grows like e^(q / t)), or warm q up with q_start, in a new folder; the last checkpoint is kept"
        )
    return value


def _entry(run: _Run, step: int, loss: float, begun: float) -> Entry:
    return {
        "step": step,
        "loss": loss,
        "lr": float(run.optimizer.param_groups[0]["lr"]),
        "temperature": run.bare.objective.temperature,
        "seconds": time.monotonic() - begun,
    }


def _is_due(step: int, run: _Run) -> bool:
    every = run.settings.eval_every or max(1, run.steps // 10)
    return (step + 1) % every == 0 or step + 1 == run.steps


def _scores(run: _Run, monitor: Monitor) -> dict[str, float]:
    run.trainee.eval()
    average = nullcontext() if run.average is None else run.average.applied()
    with average, gathered(run.trainee):
        return monitor(run.bare.towers)


def _agreed(run: _Run, *wishes: bool) -> list[bool]:
    """What any process wishes, all do: saving takes all of them."""
    own = torch.tensor(wishes, dtype=torch.float32, device=run.accelerator.device)
    return [bool(wish) for wish in run.accelerator.reduce(own, reduction="sum")]


def _save(run: _Run, folder: Path, identity: dict[str, Any], step: int) -> None:
    metadata = {"step": step, "steps": run.steps, "identity": identity, "history": run.history}
    save_state(folder / STATE, run.trainee, run.optimizer, metadata=metadata, average=run.average)


def _resume(run: _Run, folder: Path | None, identity: dict[str, Any]) -> int:
    """The first step to do."""
    found = None if folder is None else read_metadata(folder / STATE)
    if found is None:
        return 0
    _refuse_another(found, {"steps": run.steps, "identity": identity}, folder)
    assert folder is not None
    load_state(folder / STATE, run.trainee, run.optimizer, average=run.average)
    run.history = found["history"]
    return int(found["step"])


def _refuse_another(found: dict[str, Any], wanted: dict[str, Any], folder: Path | None) -> None:
    there, here = ({**run["identity"], "steps": run["steps"]} for run in (found, wanted))  # what epochs came to
    names = sorted(name for name in there | here if there.get(name) != here.get(name))
    if names:
        said = ", ".join(f"{name} {there.get(name)!r} there and {here.get(name)!r} here" for name in names)
        raise InvalidInputError(
            f"{folder}: holds a run with other settings: {said}. Choose another folder, or delete it to begin anew"
        )


def _finish(run: _Run) -> None:
    """Averaged weights stay in the model."""
    run.trainee.eval()
    if run.average is not None:
        run.average.copy_to_live()
