"""What watches a run: one protocol for trackers (tensorboard, wandb, trackio, through accelerate) and for your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from vldebias.errors import InvalidInputError
from vldebias.training.loop import Entry
from vldebias.training.settings import TrainSettings

if TYPE_CHECKING:
    from accelerate import Accelerator


class Callback(Protocol):
    """Called in the first process, in this order; what it raises ends the run."""

    def begin(self, settings: TrainSettings, steps: int) -> None:
        """Before the first step of this start; steps: of the whole run."""
        ...

    def step(self, entry: Entry) -> None:
        """After every step, with what is known of it: see `vldebias.training.loop.Entry`."""
        ...

    def end(self, outcome: Mapping[str, Any] | None) -> None:
        """At the end, with what run.json says; None where training stopped halfway."""
        ...


class Watching:
    """Several callbacks as one context: they begin with it, and end with it whatever happens.

    Attributes:
        outcome: what they are told at the end; set it when it is known.
    """

    def __init__(self, callbacks: Sequence[Callback], settings: TrainSettings, steps: int) -> None:
        self.callbacks, self.settings, self.steps = tuple(callbacks), settings, steps
        self.outcome: Mapping[str, Any] | None = None

    def __enter__(self) -> Watching:
        for one in self.callbacks:
            one.begin(self.settings, self.steps)
        return self

    def step(self, entry: Entry) -> None:
        """Hands an entry to each."""
        for one in self.callbacks:
            one.step(entry)

    def __exit__(self, *_: object) -> None:
        for one in self.callbacks:
            one.end(self.outcome)


class Trackers:
    """The trackers in `settings.track`, through accelerate, which logs in the first process alone."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def begin(self, settings: TrainSettings, steps: int) -> None:
        """Starts them with all settings."""
        plain = {name: value for name, value in settings.model_dump().items() if value is not None}
        flat = {name: str(value) if isinstance(value, (dict, list)) else value for name, value in plain.items()}
        self.accelerator.init_trackers(settings.project, config=flat)

    def step(self, entry: Entry) -> None:
        """Logs all but the number of the step; tensorboard takes no ">"."""
        values = {name.replace("->", " to "): value for name, value in entry.items() if name != "step"}
        self.accelerator.log(values, step=int(entry["step"]))

    def end(self, outcome: Mapping[str, Any] | None) -> None:
        """Closes them, so that they have all that they were given, where the run has not come to its own end."""
        for tracker in self.accelerator.trackers if outcome is None else ():
            tracker.finish()


def check_trackers(settings: TrainSettings) -> list[str]:
    """The names in `settings.track`.

    Raises:
        InvalidInputError: one is not installed.
    """
    for name in settings.trackers:
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # without: any folder of its name
            raise InvalidInputError(f"track: {name} is not installed; pip install {name}")
    return list(settings.trackers)
