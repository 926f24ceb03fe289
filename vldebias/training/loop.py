"""The loop: batches in, updates out, on one CPU or many GPUs, and exactly where it was after an interrupt."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, VldebiasError, need, warn
from vldebias.files import only_writer, sync, write_atomically
from vldebias.training.batches import Batch, Batches
from vldebias.training.objective import Trainee
from vldebias.training.optim import Average, Sharpness, build_optimizer, keep_frozen_still, parameter_groups, rates_of
from vldebias.training.passes import Passes, Precision
from vldebias.training.settings import LoopSettings
from vldebias.training.sharded import gathered, scalars_held, whole
from vldebias.training.state import load_state, read_metadata, save_state
from vldebias.training.stream import Place, StreamBatches

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vldebias.hosts.towers import Towers

STATE, HISTORY = "state.safetensors", "history.jsonl"

Entry = dict[str, float]
"""What is known after a step: step, loss, lr, temperature, seconds, and the monitor's scores where it looked."""
Monitor = Callable[["Towers"], dict[str, float]]


class DivergedError(VldebiasError):
    """A loss that is no number any more."""


class InterruptedRunError(KeyboardInterrupt):
    """A signal after which the step was finished and saved. signal: its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


def make_accelerator(**options: Any) -> Accelerator:
    """An accelerator as the loop wants it; options are accelerate's.

    Buffers are not sent around before every forward pass: the state of a global loss is the same everywhere anyway.
    """
    accelerate = need("accelerate")
    alone = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False)
    return accelerate.Accelerator(mixed_precision="no", kwargs_handlers=[alone], **options)


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
        accelerator: of `accelerate`; default: one that follows `accelerate launch`.
        folder: where the checkpoint lives, and the history, a line per step; None writes none.
        identity: what a checkpoint must agree with to be resumed, beside the number of steps.
        monitor: scores of the model, every `eval_every` steps and at the end; with `ema` those of the average.
        on_step: called with each entry and the number of steps in all.

    Returns:
        One entry per step. The model ends in evaluation mode, with its averaged weights where `ema` is set.

    Raises:
        InvalidInputError: a checkpoint of other settings in the folder, or a damaged one; another run writes there.
        DivergedError: the loss or its gradient is no number; model and checkpoint are those of the step before.
    """
    steps = steps_of(settings, batches)
    accelerator = accelerator or make_accelerator()
    ours = nullcontext() if folder is None or not accelerator.is_main_process else only_writer(folder)
    with scalars_held(trainee), ours:
        run = _Run(trainee, settings, steps, accelerator, folder, identity or {})
        first = run.resume()
        saved = time.monotonic()
        # In this order: the workers are forked with the handlers in place, and stop when the run does.
        with _signals() as signals, closing(run.batches_from(batches, first * settings.accumulation)) as micro:
            for step in range(first, steps):
                begun = time.monotonic()
                loss = run.update(step, [next(micro) for _ in range(settings.accumulation)])
                entry: Entry = {
                    "step": step,
                    "loss": loss,
                    "lr": run.rate(step),
                    "temperature": trainee.objective.temperature,
                    "seconds": time.monotonic() - begun,
                }
                every = settings.eval_every or math.ceil(steps / 10)
                if monitor is not None and ((step + 1) % every == 0 or step + 1 == steps):
                    entry |= run.scores(monitor)
                run.note(entry)
                if on_step is not None:
                    on_step(entry, steps)
                due = time.monotonic() - saved >= settings.save_every * 60
                due, stop = run.agree(due, bool(signals))
                if due or stop or step + 1 == steps:
                    run.save(step + 1, batches)
                    saved = time.monotonic()
                if stop:
                    raise InterruptedRunError(signals[0] if signals else signal.SIGTERM)
        run.module.eval()
        if run.average is not None:
            run.average.copy_to_live()
    return run.history


@contextmanager
def _signals() -> Iterator[list[int]]:
    """While it lasts, the first Ctrl-C or SIGTERM is put into the list, and a second raises KeyboardInterrupt at once.

    Another thread than the main one may not handle signals.
    """
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """What one run holds while it steps."""

    def __init__(
        self,
        trainee: Trainee,
        settings: LoopSettings,
        steps: int,
        accelerator: Accelerator,
        folder: Path | None,
        identity: dict[str, Any],
    ) -> None:
        scalars = [name for name, parameter in trainee.named_parameters() if parameter.ndim == 0]
        if scalars and accelerator.distributed_type.value == "FSDP":
            raise InvalidInputError(
                f"FSDP cannot hold {', '.join(scalars)}; fix the temperature (learn_temperature=False, and another "
                "loss than sigmoid), or launch without FSDP"
            )
        groups = parameter_groups(trainee, settings.weight_decay, trainee.rates)
        betas = (settings.beta1, settings.beta2)
        optimizer: Any = build_optimizer(settings.optimizer, groups, lr=settings.lr, betas=betas)
        self.rate = rates_of(settings.schedule, steps, peak=settings.lr, warmup=settings.warmup, end=settings.lr_end)
        self.module, self.optimizer = accelerator.prepare(trainee, optimizer)
        self.trainee, self.settings, self.steps, self.accelerator = trainee, settings, steps, accelerator
        self.folder, self.identity = folder, {**identity, "steps": steps}  # what epochs came to
        sharded = accelerator.distributed_type.value == "FSDP"
        self.precision = Precision(settings.mixed_precision, accelerator.device, sharded=sharded)
        self.passes = Passes(accelerator, self.module, trainee, settings, self.precision)
        self.average = Average(self.module, settings.ema) if settings.ema is not None else None
        queue = trainee.objective.settings.queue
        self.momentum = None if queue is None else Average(self.module, queue.momentum)
        self.sharpness = None if settings.sharpness == "none" else Sharpness(settings.sharpness, rho=settings.rho)
        averages = {"average": self.average, "momentum": self.momentum}
        self.averages = {name: average for name, average in averages.items() if average is not None}
        self.parameters: list[nn.Parameter] = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.history: list[Entry] = []
        self.places: list[Sequence[int]] | None = None  # of every process in its stream, where the checkpoint says

    def update(self, step: int, micro: Sequence[Batch]) -> float:
        """One update of the weights from micro-batches; returns their mean loss."""
        settings = self.settings
        self.module.train()
        keep_frozen_still(self.trainee)
        self.trainee.at(step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step) * group["rate"]
        pushed = self.pushed(step, micro)
        if self.sharpness is None:
            loss = self.passes(step, micro)
        else:
            loss = self.sharpness.gradients(self.module, self.parameters, lambda: self.passes(step, micro))
        optimizer = self.optimizer.optimizer  # accelerate's has no say over the scale
        if self.precision.scaler.is_enabled():
            self.precision.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.clip_norm or math.inf)  # accelerate's needs its order
        value, length = float(self.accelerator.reduce(loss, reduction="mean")), float(whole(norm))
        overflow = self.precision.scaler.is_enabled() and not self.precision.spent  # which lowers the scale, no more
        if not (math.isfinite(value) and (math.isfinite(length) or overflow)):  # before it is carried into every weight
            raise DivergedError(
                f"step {step}: the loss is {value}, the norm of its gradient {length}. Lower lr, raise temperature "
                "(rince grows like e^(q / t)), or warm q up with q_start, in a new folder; the last checkpoint is kept"
            )
        self.precision.step(optimizer)
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(step)
        if pushed is not None and self.trainee.objective.queue is not None:
            self.trainee.objective.queue.push(*pushed)
        return value

    def pushed(self, step: int, micro: Sequence[Batch]) -> tuple[Tensor, Tensor] | None:
        """What the queue will hold of this step: features by the copy of the model that moves slowly."""
        if self.momentum is None:
            return None
        self.momentum.update(step)
        with self.momentum.applied():
            features = self.passes.features(step, micro)
        return features["first"], features["second"]

    def scores(self, monitor: Monitor) -> dict[str, float]:
        """What the monitor says of the model, or of its average."""
        self.module.eval()
        average = nullcontext() if self.average is None else self.average.applied()
        with average, gathered(self.module):
            return monitor(self.trainee.towers)

    def agree(self, *wishes: bool) -> list[bool]:
        """What any process wishes, all do: saving takes all of them."""
        own = torch.tensor(wishes, dtype=torch.float32, device=self.accelerator.device)
        return [bool(wish) for wish in self.accelerator.reduce(own, reduction="sum")]

    def note(self, entry: Entry) -> None:
        """Keeps an entry, in the folder too: a line of JSON."""
        self.history.append(entry)
        if self.folder is not None and self.accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / HISTORY).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def batches_from(self, batches: Batches, first: int) -> Generator[Batch, None, None]:
        """Micro-batches from a number on; of a stream from the place of this process that the checkpoint has."""
        if not isinstance(batches, StreamBatches) or self.places is None:
            return batches.starting(first)
        return batches.starting(first, Place(*self.places[self.accelerator.process_index]))

    def save(self, step: int, batches: Batches) -> None:
        """The state after `step` steps, once their history is on the disk."""
        if self.folder is None:
            return
        if self.accelerator.is_main_process:
            sync(self.folder / HISTORY)
        places = None
        if isinstance(batches, StreamBatches):
            gather_object = need("accelerate.utils").gather_object

            places = gather_object([batches.place(step * self.settings.accumulation)])
        scale = self.precision.scaler.state_dict()
        metadata = {"step": step, "places": places, "identity": self.identity, "scale": scale}
        save_state(self.folder / STATE, self.module, self.optimizer, metadata=metadata, averages=self.averages)

    def resume(self) -> int:
        """The first step to do."""
        if self.folder is None:
            return 0
        stored, step = read_metadata(self.folder / STATE), 0
        if stored is not None:
            there, here = stored["identity"], self.identity
            names = sorted(name for name in there | here if there.get(name) != here.get(name))
            if names:
                differ = ", ".join(f"{name} {there.get(name)!r} there and {here.get(name)!r} here" for name in names)
                raise InvalidInputError(
                    f"{self.folder}: holds a run with other settings: {differ}. Choose another folder, or delete it "
                    "to begin anew"
                )
            load_state(self.folder / STATE, self.module, self.optimizer, averages=self.averages)
            step = int(stored["step"])
            self.places = stored.get("places")
            if stored.get("scale"):
                self.precision.scaler.load_state_dict(stored["scale"])
        history = self.folder / HISTORY
        self.history = read_history(history, step)
        if self.accelerator.is_main_process and history.exists():  # without the steps that will be done again
            write_atomically(history, "".join(json.dumps(entry) + "\n" for entry in self.history))
        return step


def read_history(path: Path, steps: int) -> list[Entry]:
    """The entries of steps 0 .. steps - 1; what cannot be read is left out, with a warning."""
    entries = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
            if 0 <= entry["step"] < steps:
                entries[entry["step"]] = entry
        except (ValueError, KeyError, TypeError):
            continue
    if len(entries) < steps:
        warn(f"{path}: has {len(entries)} of the {steps} steps that the state beside it has behind it; the run goes on")
    return [entries[step] for step in sorted(entries)]
