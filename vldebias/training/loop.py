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
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, VldebiasError, need
from vldebias.hosts.clip.towers import Towers
from vldebias.training.batches import Batch, Batches
from vldebias.training.objective import Trainee
from vldebias.training.optim import RHO, Average, climbed, still
from vldebias.training.settings import LoopSettings
from vldebias.utils.files import only_writer, storage_errors, write_atomically

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE = "state.pt"
HISTORY = "history.jsonl"
BETAS = (0.9, 0.98)  # of AdamW, as CLIP was trained

# After a step: step, loss, lr, temperature, seconds, and the monitor's scores where they are due.
Entry = dict[str, float]
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
    handler = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False)
    accelerator: Accelerator = accelerate.Accelerator(
        mixed_precision="no", kwargs_handlers=[handler], **options
    )
    world = os.environ.get("WORLD_SIZE", "")
    is_one_of_several = world.isdecimal() and int(world) > 1
    if not world:
        # `accelerate launch --cpu` sets the address of a main process and no number of processes.
        is_one_of_several = "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ
    if accelerator.num_processes == 1 and is_one_of_several:
        raise InvalidInputError(
            "launched as several processes, but this one sees itself alone: each would train"
            " separately and write into the same folder. On CPUs start them with torchrun"
            " --nproc_per_node 2 -m vldebias train ..."
        )
    return accelerator


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

    A killed run is resumed from its last checkpoint. Ctrl-C and SIGTERM let the step finish, write
    a checkpoint and raise KeyboardInterrupt(number of the signal); a second one raises at once.

    Args:
        trainee: model and loss.
        batches: micro-batches.
        settings: length, optimizer and precision.
        accelerator: of the processes; None: one is made.
        folder: where the checkpoint and the history, a line per step, are written; None writes
            none.
        identity: values that a checkpoint must share to be resumed, besides the number of steps.
        monitor: scores of the model, every `eval_every` steps and at the end; with `ema` those of
            the average.
        on_step: called with each entry and the number of steps in all.

    Raises:
        InvalidInputError: a checkpoint of other settings in the folder, or a damaged one; another
            run writes there.
        DivergedError: the loss or its gradient is not finite; model and checkpoint are those of the
            step before.
    """
    steps = settings.updates(batches.per_epoch)
    accelerator = accelerator or make_accelerator()
    lock: AbstractContextManager[object] = nullcontext()
    # The main process alone writes, and two runs would overwrite each other's checkpoints.
    if folder is not None and accelerator.is_main_process:
        lock = only_writer(folder)
    with lock:
        run = Run(trainee, settings, accelerator, folder, {**(identity or {}), "steps": steps})
        first = run.resume()
        saved = time.monotonic()
        first_batch = first * settings.accumulation
        # In this order: the workers are forked with the handlers in place, and stop when the run
        # does.
        with _signals() as signals, closing(batches.starting(first_batch)) as micro_batches:
            for step in range(first, steps):
                begin = time.monotonic()
                loss = run.update(step, list(islice(micro_batches, settings.accumulation)))
                entry = run.record(step, loss, time.monotonic() - begin, monitor)
                if on_step is not None:
                    on_step(entry, steps)
                minutes = (time.monotonic() - saved) / 60
                # Clocks and signals differ between processes,
                # and a checkpoint needs all of them at one step.
                is_due, must_stop = run.agree(minutes >= settings.save_every, bool(signals))
                if is_due or must_stop or step + 1 == steps:
                    run.save(step + 1)
                    saved = time.monotonic()
                if must_stop:
                    raise KeyboardInterrupt(signals[0] if signals else signal.SIGTERM)
        run.finish()
    return run.history


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list that collects the first Ctrl-C or SIGTERM inside the block; a second one raises
    KeyboardInterrupt at once."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        # The first lets the step finish; the user who sends a second does not want to wait.
        if received:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield received
        return
    handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
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
        self.trainee = trainee
        self.settings = settings
        self.accelerator = accelerator
        self.folder = folder
        self.steps = int(identity["steps"])
        # As JSON gives it back from a checkpoint: tuples become lists, paths texts.
        self.identity = json.loads(json.dumps(identity, default=str))
        self.learning = {name: p for name, p in trainee.named_parameters() if p.requires_grad}
        # Biases, gains of norms and temperatures do not decay.
        matrices = []
        vectors = []
        for parameter in self.learning.values():
            if parameter.ndim > 1:
                matrices.append(parameter)
            else:
                vectors.append(parameter)
        groups = []
        if matrices:
            groups.append({"params": matrices, "weight_decay": settings.weight_decay})
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS)
        # The module alone: scaler and precision are the run's (see `make_accelerator`).
        self.module: nn.Module = accelerator.prepare(trainee)
        self.precision = settings.precision or "no"
        self.scaler = torch.amp.GradScaler(
            accelerator.device.type, enabled=self.precision == "fp16"
        )
        self.average = Average(self.learning, settings.ema) if settings.ema is not None else None
        self.history: list[Entry] = []

    def record(self, step: int, loss: float, seconds: float, monitor: Scores | None) -> Entry:
        """Score the model where it is due after a step, and write its entry into the history.

        Args:
            step: the step that ended.
            loss: its loss.
            seconds: time that it took.
            monitor: scores of the model; None: no scores.
        """
        entry: Entry = {
            "step": step,
            "loss": loss,
            "lr": self.settings.learning_rate(step, self.steps),
            "temperature": self.trainee.objective.temperature,
            "seconds": seconds,
        }
        period = self.settings.eval_every or math.ceil(self.steps / 10)
        is_due = (step + 1) % period == 0 or step + 1 == self.steps
        if monitor is not None and is_due:
            self.module.eval()
            # The average is what will be saved, so it is what is scored.
            with nullcontext() if self.average is None else self.average.applied():
                entry |= monitor(self.trainee.towers)
        self.history.append(entry)
        if self.folder is not None and self.accelerator.is_main_process:
            path = self.folder / HISTORY
            with storage_errors(path), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return entry

    def update(self, step: int, micro_batches: Sequence[Batch]) -> float:
        """Make one update of the weights from micro-batches; return their mean loss.

        Args:
            step: number of the update, from 0.
            micro_batches: the batches of the step.

        Raises:
            DivergedError: the loss or its gradient is not finite.
        """
        settings = self.settings
        parameters = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
            group["lr"] = settings.learning_rate(step, self.steps)
        self.module.train()
        self.trainee.objective.schedule(step, self.steps)
        loss = self.gradient(step, micro_batches)
        if settings.sharpness != "none":
            # Both passes have the same random numbers, and state moves in the first.
            rho = settings.rho or RHO[settings.sharpness]
            with climbed(parameters, settings.sharpness, rho), still(self.module):
                self.optimizer.zero_grad()
                self.gradient(step, micro_batches)
        # Before the clipping, which would otherwise compare a scaled norm with the limit.
        self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(parameters, settings.clip_norm or math.inf))
        value = float(self.accelerator.reduce(loss, reduction="mean"))
        # Before it reaches the weights. An overflow of half precision only lowers the scale.
        may_overflow = self.scaler.is_enabled() and self.scaler.get_scale() >= 1
        has_gradient = math.isfinite(norm) or may_overflow
        if not math.isfinite(value) or not has_gradient:
            raise DivergedError(
                f"step {step}: the loss is {value}, the norm of its gradient {norm}. Lower lr,"
                " raise temperature (rince grows like e^(q / t)), or warm q up with q_start, in a"
                " new folder; the last checkpoint is kept"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(step)
        return value

    def gradient(self, step: int, micro_batches: Sequence[Batch]) -> Tensor:
        """Add the gradient of the step's loss to `.grad`, and return the loss ().

        With negatives "micro" the loss of a step is the mean of those of its micro-batches, with
        "step" that of all pairs together in the memory of one micro-batch (GradCache, Gao et al.,
        2021): features without a graph, the gradient of the loss of all in them, and every
        micro-batch again with that gradient, its dropout and its mixing.

        Args:
            step: number of the update, from 0.
            micro_batches: the batches of the step.
        """
        move = need("accelerate.utils").send_to_device
        device = self.accelerator.device
        on_device = [
            Batch(**move(vars(batch), device, non_blocking=True)) for batch in micro_batches
        ]
        # GradCache, which is off by default.
        if self.settings.negatives == "step" and len(micro_batches) > 1:
            return self._gradient_of_all(step, on_device)
        total = torch.zeros((), device=device)
        for number, batch in enumerate(on_device):
            with self._seeded_pass(step, number, is_last=number == len(micro_batches) - 1):
                with self._autocast():
                    loss = self.module(batch) / len(micro_batches)
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def _gradient_of_all(self, step: int, micro_batches: Sequence[Batch]) -> Tensor:
        """Add the gradient of the loss of all micro-batches together, as `gradient` says."""
        # 1. Features without a graph; 2. the loss of all and its gradient in them.
        features = self._features(step, micro_batches)
        objective = self.trainee.objective
        parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        with self._autocast():
            loss = objective(**features, batch=Batch.joined(micro_batches))
        # Parameters of the loss itself, such as the temperature, get theirs here too.
        gradients = torch.autograd.grad(loss, [*features.values(), *parameters])
        sizes = [len(batch) for batch in micro_batches]
        gradients_of_name = {}
        for name, gradient in zip(features, gradients, strict=False):  # those of parameters follow
            gradients_of_name[name] = gradient.split(sizes)

        # 3. Every micro-batch again: the gradient of <features, gradient> is the chain rule's.
        for number, batch in enumerate(micro_batches):
            is_last = number == len(micro_batches) - 1
            with self._seeded_pass(step, number, is_last=is_last):
                with self._autocast():
                    batch_features = self.module(batch, features=True)
                    total = _inner_product(
                        [batch_features[name] for name in gradients_of_name],
                        [parts[number] for parts in gradients_of_name.values()],
                    )
                    if is_last:  # the loss's own parameters too go the way that processes exchange
                        total = total + _inner_product(parameters, gradients[len(features) :])
                # The features have the same values as before, since both passes are seeded alike.
                self.scaler.scale(total).backward()
        return loss.detach()

    def _features(self, step: int, micro_batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return the features (n, d) of all micro-batches by name, detached from the model."""
        parts = []
        for number, batch in enumerate(micro_batches):
            with (
                torch.no_grad(),
                still(self.module),
                self._seeded_pass(step, number, is_last=False),
                self._autocast(),
            ):
                # Through the wrapped module, whose buffers
                # and precision are those of the second pass.
                parts.append(self.module(batch, features=True))
        features = {}
        for name in parts[0]:
            features[name] = torch.cat([part[name] for part in parts]).requires_grad_()
        return features

    @contextmanager
    def _seeded_pass(self, step: int, number: int, *, is_last: bool) -> Iterator[None]:
        """Seed dropout and mixing by the place in the run; exchange gradients with the last
        micro-batch."""
        # Primes, so that no two of seed, step, micro-batch and process share a seed in a usual run.
        place = (self.settings.seed * 1_000_003 + step) * 1009 + number
        torch.manual_seed((place * 65_537 + self.accelerator.process_index) % 2**63)
        # Gradients add up here; one exchange for a step is enough.
        with nullcontext() if is_last else self.accelerator.no_sync(self.module):
            yield

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.accelerator.device.type, _TYPES[self.precision], enabled=self.precision != "no"
        )

    def finish(self) -> None:
        """Leave the model in evaluation mode, with the averaged weights if there are any."""
        self.module.eval()
        if self.average is not None:
            self.average.copy_to_live()

    def agree(self, *conditions: bool) -> list[bool]:
        """Return for each condition whether it holds in any process, so that all act alike."""
        votes = torch.tensor(conditions, dtype=torch.float32, device=self.accelerator.device)
        return [bool(total) for total in self.accelerator.reduce(votes, reduction="sum")]

    def _live(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint holds of model and loss: trained ones and
        buffers."""
        # Frozen weights come from the model; buffers that are not in its state are made again.
        persistent = set(self.trainee.state_dict())
        tensors: dict[str, Tensor] = {}
        for name, buffer in self.trainee.named_buffers():
            if name in persistent:
                tensors[name] = buffer
        return tensors | self.learning

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
            # A kill while it is written leaves the previous checkpoint.
            write_atomically(self.folder / STATE, lambda partial: torch.save(state, partial))
        self.accelerator.wait_for_everyone()

    @torch.no_grad()
    def resume(self) -> int:
        """Load the last checkpoint, and return the first step to do; the history loses what will be
        done again.

        Raises:
            InvalidInputError: the checkpoint is of another run or of another model.
        """
        state = None if self.folder is None else read_state(self.folder / STATE)
        if state is not None:
            # Before anything is copied, so that a refused checkpoint leaves the model as it was.
            self._refuse_other_run(state)
            live = self._live()
            for name, tensor in state["tensors"].items():
                # In place: optimizer and wrapper hold these very tensors.
                live[name].copy_(tensor)
            self.history = list(state["history"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            if self.average is not None:
                for name, mean in self.average.means.items():
                    mean.copy_(state["average"][name])
        if self.folder is not None and self.accelerator.is_main_process:
            # Steps after the checkpoint are done again, and must not be in the file twice.
            lines = "".join(json.dumps(entry) + "\n" for entry in self.history)
            write_atomically(self.folder / HISTORY, lines)
        return len(self.history)

    def _refuse_other_run(self, state: dict[str, Any]) -> None:
        """Raise InvalidInputError for a checkpoint of other settings, or of another model or
        loss."""
        stored_identity = json.loads(state["identity"])
        differences = []
        for name in sorted(stored_identity | self.identity):
            before = stored_identity.get(name)
            now = self.identity.get(name)
            if before != now:
                differences.append(f"{name} {before!r} there and {now!r} here")
        if differences:
            raise InvalidInputError(
                f"{self.folder}: holds a run with other settings: {', '.join(differences)}."
                " Choose another folder, or delete it to begin again"
            )
        live_shapes = {name: tensor.shape for name, tensor in self._live().items()}
        stored_shapes = {name: tensor.shape for name, tensor in state["tensors"].items()}
        if live_shapes != stored_shapes:
            raise InvalidInputError(
                f"{self.folder}: its checkpoint is of another model or loss; choose another folder"
            )


def _inner_product(tensors: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return the sum of products of tensors with their gradients; 0 without any."""
    total = torch.zeros(())
    for tensor, gradient in zip(tensors, gradients, strict=True):
        total = total.to(tensor.device) + (tensor * gradient).sum()
    return total


def read_state(path: Path) -> dict[str, Any] | None:
    """Return a checkpoint, of tensors and plain values alone; None without one. Refuse a damaged
    file."""
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not look at checksums
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} does not fit")
        # A pickle of anything but tensors and plain values could run code.
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
