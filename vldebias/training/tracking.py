"""TensorBoard, trackio and wandb, through accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError
from vldebias.training.accelerators import make_accelerator
from vldebias.training.loop import Entry
from vldebias.training.settings import TrainSettings

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["tracked", "tracking_accelerator", "write_entry"]


def tracking_accelerator(settings: TrainSettings, folder: Path, *, cpu: bool) -> Accelerator:
    """An accelerator for the tracker of the settings; one that is not installed accelerate leaves out without a word.

    Raises:
        InvalidInputError: such a tracker.
    """
    found = find_spec(settings.track) if settings.track is not None else None
    if settings.track is not None and (found is None or found.origin is None):  # without origin: any folder of its name
        raise InvalidInputError(f"track: {settings.track} is not installed; pip install {settings.track}")
    return make_accelerator(cpu=cpu, log_with=settings.track, project_dir=str(folder))


@contextmanager
def tracked(accelerator: Accelerator, settings: TrainSettings) -> Iterator[None]:
    """The tracker runs, and has all that it was told even where training stops halfway. The end parts the processes."""
    if settings.track is not None:
        plain = {name: value for name, value in settings.model_dump().items() if value is not None}
        accelerator.init_trackers(settings.project, config=plain)
    try:
        yield
    except BaseException:
        for tracker in accelerator.trackers:
            tracker.finish()
        raise
    accelerator.end_training()


def write_entry(accelerator: Accelerator, entry: Entry) -> None:
    """Tells the trackers of a step; without one it does nothing."""
    told = {name.replace("->", " to "): value for name, value in entry.items() if name != "step"}
    accelerator.log(told, step=int(entry["step"]))
