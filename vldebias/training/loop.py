"""Train by steps, on one CPU or many GPUs, and resume exactly after an interrupt.

A step is a function of its number: its learning rate, schedule, batches and the seed of its
randomness. So a checkpoint needs no generator states and no place of a loader, and a run that was
killed ends with the weights of one that was not.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, VldebiasError, need
from vldebias.files import only_writer, write_atomically
from vldebias.hosts.clip.towers import Towers
from vldebias.training.batches import Batch, Batches
from vldebias.training.objective import Trainee
from vldebias.training.optim import RHO, Average, climbed, still
from vldebias.training.settings import LoopSettings

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE, HISTORY = "state.pt", "history.jsonl"
BETAS = (0.9, 0.98)  # of AdamW, as CLIP was trained

Entry = dict[
    str, float
]  # after a step: step, loss, lr, temperature, seconds, and the monitor's scores where it looked
Scores = Callable[[Towers], dict[str, float]]
_TYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class DivergedError(VldebiasError):
    """Report a loss that is not a number."""


def make_accelerator(**options: Any) -> Accelerator:
    """Make an accelerator with the loop's defaults; options are accelerate's.

    Precision is the loop's own, since accelerate keeps one for all runs of a process. Buffers are
    not broadcast before every forward pass: the state of a global loss is the same everywhere
    anyway.

    Raises:
        InvalidInputError: a launch of several processes without a common group, as that of
            `accelerate launch --cpu --num_processes 2`: each would train alone and write into the
            same folder.
    """
    accelerate = need("accelerate")
    alone = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False)
    made: Accelerator = accelerate.Accelerator(
        mixed_precision="no", kwargs_handlers=[alone], **options
    )
    told = os.environ.get("WORLD_SIZE", "")
    met = "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ and not told
    if made.num_processes == 1 and (met or (told.isdecimal() and int(told) > 1)):
        raise InvalidInputError(
            "launched as several processes, but this one sees itself alone: each would train"
            " separately and write into the same folder. On CPUs start them with torchrun"
            " --nproc_per_node 2 -m vldebias train ..."
        )
    return made


def fit(
    trainee: Trainee,
    batches: Batches,
    settings: LoopSettings,
    *,
    accelerator: Accelerator | None = None,
    folder: Path | None = None,
    identity: dict[str, Any] | None = None,
    monitor: Scores | None = None,
    on_step: Callable[[Entry, int], None] | None = None,
) -> list[Entry]:
    """Train `trainee` in place and return the history, one entry per step.

    A killed run goes on from its last checkpoint. Ctrl-C and SIGTERM let the step finish, write a
    checkpoint and raise KeyboardInterrupt(number of the signal); a second one raises at once.

    Args:
        folder: where the checkpoint and the history, a line per step, are written; None writes
            none.
        identity: values that a checkpoint must share to be resumed, besides the number of steps.
        monitor: scores of the model, every `eval_every` steps and at the end; with `ema` those of
            the average.
        on_step: called with each entry and the number of steps in all.

    Raises:
        InvalidInputError: a checkpoint of other settings in the folder, or a damaged one; another
            run writes there.
        DivergedError: the loss or its gradient is no number; model and checkpoint are those of the
            step before.
    """
    steps = settings.updates(batches.per_epoch)
    accelerator = accelerator or make_accelerator()
    with (
        nullcontext() if folder is None or not accelerator.is_main_process else only_writer(folder)
    ):
        run = Run(trainee, settings, accelerator, folder, {**(identity or {}), "steps": steps})
        first, saved = run.resume(), time.monotonic()
        # in this order: the workers are forked with the handlers in place, and stop when the run
        # does
        with (
            _signals() as signals,
            closing(batches.starting(first * settings.accumulation)) as micro,
        ):
            for step in range(first, steps):
                begun = time.monotonic()
                loss = run.update(step, [next(micro) for _ in range(settings.accumulation)])
                entry: Entry = {"step": step, "loss": loss, "lr": settings.rate(step, steps)}
                entry |= {
                    "temperature": trainee.objective.temperature,
                    "seconds": time.monotonic() - begun,
                }
                every = settings.eval_every or math.ceil(steps / 10)
                if monitor is not None and ((step + 1) % every == 0 or step + 1 == steps):
                    run.module.eval()
                    with nullcontext() if run.average is None else run.average.applied():
                        entry |= monitor(trainee.towers)
                run.history.append(entry)
                if folder is not None and accelerator.is_main_process:
                    with (folder / HISTORY).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(entry) + "\n")
                if on_step is not None:
                    on_step(entry, steps)
                due, stop = run.agree(
                    time.monotonic() - saved >= settings.save_every * 60, bool(signals)
                )
                if due or stop or step + 1 == steps:
                    run.save(step + 1)
                    saved = time.monotonic()
                if stop:
                    raise KeyboardInterrupt(signals[0] if signals else signal.SIGTERM)
        run.module.eval()
        if run.average is not None:
            run.average.copy_to_live()
    return run.history


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Put the first Ctrl-C or SIGTERM into the list while this lasts; a second raises
    KeyboardInterrupt at once."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield seen
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Run:
    """Hold the state that one run needs to step and that its checkpoint stores; see `fit`."""

    def __init__(
        self,
        trainee: Trainee,
        settings: LoopSettings,
        accelerator: Accelerator,
        folder: Path | None,
        identity: Any,
    ) -> None:
        self.trainee, self.settings, self.accelerator, self.folder = (
            trainee,
            settings,
            accelerator,
            folder,
        )
        self.steps, self.identity = (
            int(identity["steps"]),
            json.loads(json.dumps(identity, default=str)),
        )
        self.learning = {name: p for name, p in trainee.named_parameters() if p.requires_grad}
        split = (
            [p for p in self.learning.values() if (p.ndim > 1) == matrix]
            for matrix in (True, False)
        )
        decays = (
            settings.weight_decay,
            0.0,
        )  # biases, gains of norms and temperatures do not decay
        groups = [
            {"params": own, "weight_decay": one}
            for own, one in zip(split, decays, strict=True)
            if own
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS)
        self.module: nn.Module = accelerator.prepare(trainee)
        self.precision = settings.precision or "no"
        self.scaler = torch.amp.GradScaler(
            accelerator.device.type, enabled=self.precision == "fp16"
        )
        self.average = Average(self.learning, settings.ema) if settings.ema is not None else None
        self.history: list[Entry] = []

    def update(self, step: int, micro: Sequence[Batch]) -> float:
        """Make one update of the weights from micro-batches; return their mean loss."""
        settings, parameters = (
            self.settings,
            [p for one in self.optimizer.param_groups for p in one["params"]],
        )
        self.module.train()
        self.trainee.objective.at(step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate(step, self.steps)
        loss = self.gradient(step, micro)
        if (
            settings.sharpness != "none"
        ):  # both passes have the same random numbers, and state moves in the first
            with (
                climbed(parameters, settings.sharpness, settings.rho or RHO[settings.sharpness]),
                still(self.module),
            ):
                self.optimizer.zero_grad()
                self.gradient(step, micro)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip_norm or math.inf)
        value, length = float(self.accelerator.reduce(loss, reduction="mean")), float(norm)
        overflow = (
            self.scaler.is_enabled() and self.scaler.get_scale() >= 1
        )  # which lowers the scale, no more
        if not (
            math.isfinite(value) and (math.isfinite(length) or overflow)
        ):  # before it is carried into every weight
            raise DivergedError(
                f"step {step}: the loss is {value}, the norm of its gradient {length}. Lower lr,"
                " raise temperature (rince grows like e^(q / t)), or warm q up with q_start, in a"
                " new folder; the last checkpoint is kept"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(step)
        return value

    def gradient(self, step: int, micro: Sequence[Batch]) -> Tensor:
        """Add the gradient of the step's loss to `.grad`, and return the loss ().

        With negatives "micro" the loss of a step is the mean of those of its micro-batches, with
        "step" that of all pairs together in the memory of one micro-batch (GradCache, Gao et al.,
        2021): features without a graph, the gradient of the loss of all in them, and every
        micro-batch again with that gradient, its dropout and its mixing.
        """
        move, device = need("accelerate.utils").send_to_device, self.accelerator.device
        there = [Batch(**move(vars(batch), device, non_blocking=True)) for batch in micro]
        if self.settings.negatives == "step" and len(micro) > 1:
            return self._gradient_of_all(step, there)
        total = torch.zeros((), device=device)
        for number, batch in enumerate(there):
            with self._pass(step, number, last=number == len(micro) - 1):
                with self._autocast():
                    loss = self.module(batch) / len(micro)
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def _gradient_of_all(self, step: int, micro: Sequence[Batch]) -> Tensor:
        parts = []
        for number, batch in enumerate(micro):
            with (
                torch.no_grad(),
                still(self.module),
                self._pass(step, number, last=False),
                self._autocast(),
            ):
                parts.append(self.module(batch, features=True))
        every = {
            name: torch.cat([part[name] for part in parts]).requires_grad_() for name in parts[0]
        }
        objective, sizes = self.trainee.objective, [len(batch) for batch in micro]
        own = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        with self._autocast():
            loss = objective(**every, batch=Batch.joined(micro))
        slopes = torch.autograd.grad(loss, [*every.values(), *own])
        wanted = zip(*(slope.split(sizes) for slope in slopes[: len(every)]), strict=True)
        for number, (batch, pulls) in enumerate(zip(micro, wanted, strict=True)):
            last = number == len(micro) - 1
            with self._pass(step, number, last=last):
                with self._autocast():
                    again = self.module(batch, features=True)
                    pulled = sum(
                        (again[name] * pull).sum() for name, pull in zip(every, pulls, strict=True)
                    )
                    if last:  # the loss's own parameters too go the way that processes exchange
                        pulled = pulled + sum(
                            (p * s).sum() for p, s in zip(own, slopes[len(every) :], strict=True)
                        )
                self.scaler.scale(pulled).backward()
        return loss.detach()

    @contextmanager
    def _pass(self, step: int, number: int, *, last: bool) -> Iterator[None]:
        """Seed dropout and mixing by the place in the run; exchange gradients with the last
        micro-batch."""
        place = (self.settings.seed * 1_000_003 + step) * 1009 + number
        torch.manual_seed((place * 65_537 + self.accelerator.process_index) % 2**63)
        with nullcontext() if last else self.accelerator.no_sync(self.module):
            yield

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.accelerator.device.type, _TYPES[self.precision], enabled=self.precision != "no"
        )

    def agree(self, *wishes: bool) -> list[bool]:
        """Return the union of the wishes of all processes, so that all act alike."""
        own = torch.tensor(wishes, dtype=torch.float32, device=self.accelerator.device)
        return [bool(wish) for wish in self.accelerator.reduce(own, reduction="sum")]

    def _live(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint holds of model and loss: trained ones and
        buffers."""
        kept = set(self.trainee.state_dict())
        return {
            name: buffer for name, buffer in self.trainee.named_buffers() if name in kept
        } | self.learning

    def save(self, step: int) -> None:
        """Write the state after `step` steps."""
        if self.folder is not None and self.accelerator.is_main_process:
            state = {
                "step": step,
                "identity": json.dumps(self.identity),
                "history": self.history,
                "tensors": {name: tensor.detach() for name, tensor in self._live().items()},
                "average": None if self.average is None else self.average.means,
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
            write_atomically(self.folder / STATE, lambda partial: torch.save(state, partial))
        self.accelerator.wait_for_everyone()

    @torch.no_grad()
    def resume(self) -> int:
        """Load the last checkpoint, and return the first step to do; the history loses what will be
        done again."""
        state = None if self.folder is None else read_state(self.folder / STATE)
        if state is not None:
            self._restore(state)
        if self.folder is not None and self.accelerator.is_main_process:
            write_atomically(
                self.folder / HISTORY, "".join(json.dumps(entry) + "\n" for entry in self.history)
            )
        return len(self.history)

    def _restore(self, state: dict[str, Any]) -> None:
        there, here = json.loads(state["identity"]), self.identity
        if names := sorted(name for name in there | here if there.get(name) != here.get(name)):
            differ = ", ".join(
                f"{name} {there.get(name)!r} there and {here.get(name)!r} here" for name in names
            )
            raise InvalidInputError(
                f"{self.folder}: holds a run with other settings: {differ}. Choose another folder,"
                " or delete it to begin again"
            )
        live, stored = self._live(), state["tensors"]
        if {name: t.shape for name, t in live.items()} != {
            name: t.shape for name, t in stored.items()
        }:
            raise InvalidInputError(
                f"{self.folder}: the state in it is not of the model and loss at hand"
            )
        for name, tensor in stored.items():
            live[name].copy_(tensor)
        self.history = list(state["history"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            for name, mean in self.average.means.items():
                mean.copy_(state["average"][name])


def read_state(path: Path) -> dict[str, Any] | None:
    """Return a checkpoint, of tensors and plain values alone; None without one. Refuse a damaged
    file."""
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:  # which torch does not look at
                raise ValueError(f"the checksum of {damaged} does not fit")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if set(state) != {
            "step",
            "identity",
            "history",
            "tensors",
            "average",
            "optimizer",
            "scaler",
        }:
            raise ValueError("other entries than those of a checkpoint")
    except Exception as error:  # torch names no kinds of its own for a damaged file
        raise InvalidInputError(
            f"{path}: no readable checkpoint ({error}); delete it to begin again"
        ) from None
    return state
