"""Train on one CPU or several GPUs, and resume exactly after an interruption.

The learning rate, schedule, batches and random seed of a step only depend on its number.
Checkpoints therefore need neither generator states nor the position of a loader, and a run that was
killed and resumed ends with the same weights as an uninterrupted run.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, VldebiasError, need
from vldebias.hosts.clip.towers import Towers
from vldebias.training.batches import Batch, Batches
from vldebias.training.objective import Trainee
from vldebias.training.optim import RHO, Average, climbed, still
from vldebias.training.settings import LoopSettings
from vldebias.utils.files import only_writer, storage_errors, write_atomically
from vldebias.utils.formats import FORMAT, check_format

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE = "state.pt"
HISTORY = "history.jsonl"
BETAS = (0.9, 0.98)  # AdamW betas, as used to train CLIP

# Values recorded for a step: its number, loss, lr, temperature, seconds, and scores if due.
Entry = dict[str, float]
Scores = Callable[[Towers], dict[str, float]]
_TYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class DivergedError(VldebiasError):
    """The loss or its gradient is not finite."""


class Checkpoint(TypedDict):
    """Contents of a checkpoint file."""

    format_version: int
    step: int
    identity: str
    history: list[Entry]
    tensors: dict[str, Tensor]
    average: dict[str, Tensor] | None
    optimizer: dict[str, Any]
    scaler: dict[str, Any]


def make_accelerator(**options: Any) -> Accelerator:
    """Create an accelerator with the loop's defaults, passing further options to accelerate.

    The loop handles mixed precision itself, because accelerate uses the same precision for all runs
    in a process. Buffers are not broadcast before every forward pass, because the state of a global
    loss is already the same in all processes.

    Raises:
        InvalidInputError: If several processes were launched without a common process group, as
            with `accelerate launch --cpu --num_processes 2`. Each of them would train separately
            and write to the same folder.
    """
    accelerate = need("accelerate")
    handler = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False)
    world = os.environ.get("WORLD_SIZE", "")
    # Without `cpu`, accelerate only joins the processes that torchrun starts if there is a GPU.
    devices = getattr(torch, "accelerator", torch.cuda)  # new in torch 2.6
    if world and not devices.is_available():
        options["cpu"] = True
    accelerator: Accelerator = accelerate.Accelerator(
        mixed_precision="no", kwargs_handlers=[handler], **options
    )
    is_one_of_several = world.isdecimal() and int(world) > 1
    if not world:
        # `accelerate launch --cpu` sets the main process address, but not the number of processes.
        is_one_of_several = "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ
    if accelerator.num_processes == 1 and is_one_of_several:
        raise InvalidInputError(
            "several processes were launched without a process group, so each would train"
            " separately and write to the same folder. On CPUs, launch them with torchrun"
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
    identity: Mapping[str, object] | None = None,
    monitor: Scores | None = None,
    on_step: Callable[[Entry, int], None] | None = None,
) -> list[Entry]:
    """Train `trainee` in place and return the history, one entry per step.

    A run that was killed resumes from its last checkpoint. After Ctrl-C or SIGTERM, the current
    step finishes, a checkpoint is written, and KeyboardInterrupt(signal number) is raised. A second
    signal raises it immediately.

    Args:
        trainee: model and loss.
        batches: micro-batches.
        settings: length, optimizer and precision.
        accelerator: accelerator for the processes. Default: a new one.
        folder: folder for the checkpoint and the history (one line per step). If None, neither is
            written.
        identity: values that must match to resume from a checkpoint, in addition to the number of
            steps.
        monitor: function that scores the model every `eval_every` steps and at the end. With `ema`,
            it scores the averaged weights.
        on_step: function that is called with each entry and the total number of steps.

    Raises:
        InvalidInputError: If the folder contains a damaged checkpoint or one from a different run,
            or a different run is writing to it.
        DivergedError: If the loss or its gradient is not finite. The model and the checkpoint are
            left as they were after the previous step.
    """
    steps = settings.updates(batches.per_epoch)
    accelerator = accelerator or make_accelerator()
    lock: AbstractContextManager[object] = nullcontext()
    # Only the main process writes, so it alone takes the lock that prevents two runs from
    # overwriting each other's checkpoints.
    if folder is not None and accelerator.is_main_process:
        lock = only_writer(folder)
    with lock:
        run = Run(trainee, settings, accelerator, folder, identity or {}, steps)
        first = run.resume()
        saved = time.monotonic()
        first_batch = first * settings.accumulation
        # The order matters: workers must be forked after the signal handlers are set, and must stop
        # before the handlers are reset.
        with _signals() as signals, closing(batches.starting(first_batch)) as micro_batches:
            for step in range(first, steps):
                begin = time.monotonic()
                loss = run.update(step, list(islice(micro_batches, settings.accumulation)))
                entry = run.record(step, loss, time.monotonic() - begin, monitor)
                if on_step is not None:
                    on_step(entry, steps)
                minutes = (time.monotonic() - saved) / 60
                # All processes must write a checkpoint at the same step, although their clocks and
                # signals may differ.
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
    """Yield a list that receives the first SIGINT or SIGTERM inside the block.

    A second signal raises KeyboardInterrupt.
    """
    received: list[int] = []

    def note(number: int, _: object) -> None:
        # After the first signal, finish the step. A user who sends a second signal does not want to
        # wait for the step.
        if received:
            raise KeyboardInterrupt
        received.append(number)

    # Only the main thread can handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@dataclass
class Run:
    """State of a training run: what `fit` changes in each step and stores in the checkpoint."""

    trainee: Trainee
    settings: LoopSettings
    accelerator: Accelerator
    folder: Path | None
    identity: Mapping[str, object]
    steps: int

    def __post_init__(self) -> None:
        settings = self.settings
        # Normalise the values through JSON as in checkpoints, which turns tuples into lists and
        # paths into strings.
        values = {**self.identity, "steps": self.steps}
        self.identity = json.loads(json.dumps(values, default=str))
        named = self.trainee.named_parameters()
        self.learning = {name: parameter for name, parameter in named if parameter.requires_grad}
        # Do not apply weight decay to biases, norm gains and temperatures.
        matrices = [parameter for parameter in self.learning.values() if parameter.ndim > 1]
        vectors = [parameter for parameter in self.learning.values() if parameter.ndim <= 1]
        groups = []
        if matrices:
            groups.append({"params": matrices, "weight_decay": settings.weight_decay})
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS)
        # Only prepare the module, because the run handles precision itself (see
        # `make_accelerator`).
        self.module: nn.Module = self.accelerator.prepare(self.trainee)
        self.precision = settings.precision or "no"
        self.scaler = torch.amp.GradScaler(
            self.accelerator.device.type, enabled=self.precision == "fp16"
        )
        self.average = Average(self.learning, settings.ema) if settings.ema is not None else None
        self.history: list[Entry] = []

    def record(self, step: int, loss: float, seconds: float, monitor: Scores | None) -> Entry:
        """Append a step's entry to the history, with scores if they are due.

        Args:
            step: number of the step.
            loss: loss of the step.
            seconds: duration of the step in seconds.
            monitor: function that scores the model. If None, the model is not scored.
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
            # The averaged weights will be saved, so score these.
            with nullcontext() if self.average is None else self.average.applied():
                entry |= monitor(self.trainee.towers)
        self.history.append(entry)
        if self.folder is not None and self.accelerator.is_main_process:
            path = self.folder / HISTORY
            with storage_errors(path), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return entry

    def update(self, step: int, micro_batches: Sequence[Batch]) -> float:
        """Update the weights once and return the mean loss over the micro-batches.

        Args:
            step: number of the update, from 0.
            micro_batches: micro-batches of the step.

        Raises:
            DivergedError: If the loss or its gradient is not finite.
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
            # The second pass, at perturbed weights, uses the same random numbers as the first one,
            # but does not update running statistics or loss states.
            rho = settings.rho or RHO[settings.sharpness]
            with climbed(parameters, settings.sharpness, rho), still(self.module):
                self.optimizer.zero_grad()
                self.gradient(step, micro_batches)
        # Unscale first, so that the limit does not apply to the norm of the scaled gradient.
        self.scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(parameters, settings.clip_norm or math.inf))
        value = float(self.accelerator.reduce(loss, reduction="mean"))
        # Raise the error before the weights change. In half precision, an overflow only lowers the
        # scale and is not an error.
        may_overflow = self.scaler.is_enabled() and self.scaler.get_scale() >= 1
        has_gradient = math.isfinite(norm) or may_overflow
        if not math.isfinite(value) or not has_gradient:
            raise DivergedError(
                f"step {step}: the loss is {value}, and the norm of its gradient is {norm}. Lower"
                " lr, raise temperature (rince grows like e^(q / t)), or warm up q with q_start,"
                " and use a new folder; the last checkpoint is kept"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(step)
        return value

    def gradient(self, step: int, micro_batches: Sequence[Batch]) -> Tensor:
        """Add the gradient of the step's loss to `.grad`, and return the loss ().

        With negatives "micro", the loss of a step is the mean over its micro-batches. With "step",
        it is the joint loss of all pairs, which GradCache (Gao et al., 2021) computes with the
        memory of one micro-batch. It first computes all features without a graph, and the gradient
        of the loss with respect to them. It then runs every micro-batch again, with the same
        dropout and mixing, and backpropagates this gradient.

        Args:
            step: number of the update, from 0.
            micro_batches: micro-batches of the step.
        """
        move = need("accelerate.utils").send_to_device
        device = self.accelerator.device
        on_device = [
            Batch(**move(vars(batch), device, non_blocking=True)) for batch in micro_batches
        ]
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
        """Add the gradient of the joint loss of all micro-batches, computed with GradCache."""
        # First compute the features without a graph, and the gradient of the loss with respect to
        # the features.
        features = self._features(step, micro_batches)
        objective = self.trainee.objective
        parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        with self._autocast():
            loss = objective(**features, batch=Batch.joined(micro_batches))
        # The loss's own parameters, such as the temperature, get a gradient too.
        gradients = torch.autograd.grad(loss, [*features.values(), *parameters])
        sizes = [len(batch) for batch in micro_batches]
        # The feature gradients come first, followed by the parameter gradients.
        pairs = zip(features, gradients, strict=False)
        gradients_of_name = {name: gradient.split(sizes) for name, gradient in pairs}

        # Then run every micro-batch again and backpropagate <features, gradient>. By the chain
        # rule, this gives the gradient of the loss.
        for number, batch in enumerate(micro_batches):
            is_last = number == len(micro_batches) - 1
            with self._seeded_pass(step, number, is_last=is_last):
                with self._autocast():
                    batch_features = self.module(batch, features=True)
                    total = _inner_product(
                        [batch_features[name] for name in gradients_of_name],
                        [parts[number] for parts in gradients_of_name.values()],
                    )
                    if is_last:
                        # Include the loss's parameters, whose gradients processes must exchange.
                        total = total + _inner_product(parameters, gradients[len(features) :])
                # Both passes use the same seed, so the features are the same as before.
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
                # Call the wrapped module, so that buffers and precision match the second pass.
                parts.append(self.module(batch, features=True))
        return {
            name: torch.cat([part[name] for part in parts]).requires_grad_() for name in parts[0]
        }

    @contextmanager
    def _seeded_pass(self, step: int, number: int, *, is_last: bool) -> Iterator[None]:
        """Seed dropout and mixing, and only exchange gradients after the last micro-batch."""
        # Prime factors make seeds differ between steps, micro-batches and processes.
        position = (self.settings.seed * 1_000_003 + step) * 1009 + number
        torch.manual_seed((position * 65_537 + self.accelerator.process_index) % 2**63)
        # Each process accumulates its own gradients, so one exchange per step is enough.
        with nullcontext() if is_last else self.accelerator.no_sync(self.module):
            yield

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.accelerator.device.type, _TYPES[self.precision], enabled=self.precision != "no"
        )

    def finish(self) -> None:
        """Switch the model to evaluation mode, using the averaged weights if available."""
        self.module.eval()
        if self.average is not None:
            self.average.copy_to_live()

    def agree(self, *conditions: bool) -> list[bool]:
        """Return whether each condition is true in at least one process."""
        votes = torch.tensor(conditions, dtype=torch.float32, device=self.accelerator.device)
        return [bool(total) for total in self.accelerator.reduce(votes, reduction="sum")]

    def _live(self) -> dict[str, Tensor]:
        """Return the tensors to store in a checkpoint: trained parameters and buffers."""
        # Frozen weights are loaded with the model, and non-persistent buffers are recomputed.
        persistent = set(self.trainee.state_dict())
        buffers = self.trainee.named_buffers()
        return {name: buffer for name, buffer in buffers if name in persistent} | self.learning

    def save(self, step: int) -> None:
        """Write the state after `step` steps."""
        if self.folder is not None and self.accelerator.is_main_process:
            state = {
                FORMAT: 1,
                "step": step,
                "identity": json.dumps(self.identity),
                "history": self.history,
                "tensors": {name: tensor.detach() for name, tensor in self._live().items()},
                "average": None if self.average is None else self.average.means,
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
            # Write atomically, so that the previous checkpoint survives if the process is killed.
            write_atomically(self.folder / STATE, lambda partial: torch.save(state, partial))
        self.accelerator.wait_for_everyone()

    @torch.no_grad()
    def resume(self) -> int:
        """Load the last checkpoint and return the number of the next step.

        Steps after the checkpoint will be repeated, so they are removed from the history.

        Raises:
            InvalidInputError: If the checkpoint belongs to a different run or model.
        """
        state = None if self.folder is None else read_state(self.folder / STATE)
        if state is not None:
            # Check before copying, so that an error leaves the model unchanged.
            self._refuse_other_run(state)
            live = self._live()
            for name, tensor in state["tensors"].items():
                # Copy in place, because the optimizer and the wrapper refer to these tensors.
                live[name].copy_(tensor)
            self.history = list(state["history"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            if self.average is not None:
                for name, mean in (state["average"] or {}).items():
                    self.average.means[name].copy_(mean)
        if self.folder is not None and self.accelerator.is_main_process:
            # Steps after the checkpoint will be repeated and must not appear in the file twice.
            lines = "".join(json.dumps(entry) + "\n" for entry in self.history)
            write_atomically(self.folder / HISTORY, lines)
        return len(self.history)

    def _refuse_other_run(self, state: Checkpoint) -> None:
        """Raise an error if a checkpoint has different settings or a different model or loss."""
        stored_identity = json.loads(state["identity"])
        differences = []
        for name in sorted(stored_identity | self.identity):
            stored = stored_identity.get(name)
            current = self.identity.get(name)
            if stored != current:
                differences.append(f"{name} {current!r} instead of {stored!r}")
        if differences:
            raise InvalidInputError(
                f"{self.folder}: contains a run with different settings; got"
                f" {', '.join(differences)}. Choose another folder, or delete it to start again"
            )
        live_shapes = {name: tensor.shape for name, tensor in self._live().items()}
        stored_shapes = {name: tensor.shape for name, tensor in state["tensors"].items()}
        if live_shapes != stored_shapes:
            raise InvalidInputError(
                f"{self.folder}: contains a checkpoint of a different model or loss; choose"
                " another folder"
            )


def _inner_product(tensors: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return the sum of all products of tensors and their gradients, or 0 without tensors."""
    pairs = zip(tensors, gradients, strict=True)
    return sum(((tensor * gradient).sum() for tensor, gradient in pairs), torch.zeros(()))


def read_state(path: Path) -> Checkpoint | None:
    """Load a checkpoint, or return None if the file does not exist.

    Raises:
        InvalidInputError: If the file is damaged or has a different format.
    """
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not verify checksums.
        if damaged is not None:
            raise ValueError(f"wrong checksum of {damaged}")
        # weights_only only allows tensors and plain values, because other pickles could run code.
        state: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        check_format(state, path, missing=1)
        if set(state) != Checkpoint.__required_keys__:
            raise ValueError("unexpected entries")
    except InvalidInputError:
        raise
    except Exception as error:  # torch raises many exception types for damaged files.
        raise InvalidInputError(
            f"{path}: not a readable checkpoint ({error}); delete it to start again"
        ) from None
    return state
