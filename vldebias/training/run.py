"""A run of training from its settings, and what it leaves in its folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vldebias.data.images import ImageData
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.evaluation.result import versions
from vldebias.training.assembly import make_batches, make_monitor, make_pairs, open_training_data
from vldebias.training.loop import STATE, Entry, fit, make_accelerator
from vldebias.training.objectives import Objective, build_objective
from vldebias.training.pairs import Pairs
from vldebias.training.record import draw_curves, write_history, write_outcome
from vldebias.training.saving import check_savable, save_model, whole_weights
from vldebias.training.settings import TrainSettings
from vldebias.training.state import read_metadata
from vldebias.training.telling import tell_pairs
from vldebias.training.trainee import Trainee
from vldebias.training.tuning import tune

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vldebias.hosts.towers import Towers
    from vldebias.training.display import Display
    from vldebias.training.monitor import Monitor

__all__ = ["steps_done", "train_model"]

SETTINGS, HISTORY, CURVES, OUTCOME, MODEL = "settings.yaml", "history.jsonl", "curves.png", "run.json", "model"
_STEEP = 20.0  # q / t of rince from which on the best pairs of a batch outweigh all others


def train_model(
    settings: TrainSettings, folder: Path, *, cpu: bool = False, display: Display | None = None
) -> dict[str, Any] | None:
    """Trains as the settings say and leaves in `folder`:

    model/              the model, which every command that takes --model reads
    settings.yaml       all settings, to be given as --config
    history.jsonl       loss, learning rate, temperature and scores, a line per step
    curves.png          the same to look at
    pairs.csv, .png     the score of every pair of the training data, lowest first, and a contact sheet of them
    scores.png          the densities of the scores
    run.json            the scores before and after, and what the run was
    state.safetensors   the last checkpoint; a run that was interrupted goes on from it

    Returns:
        What run.json says; None in every process but the first.

    Raises:
        InvalidInputError: settings that do not fit each other or the data, a folder that holds another run, a tracker
            that is not installed.
        OSError: the folder cannot be written.
        DivergedError: the loss is no number any more.
    """
    accelerator = _accelerator(settings, folder, cpu)
    first = accelerator.is_main_process
    say = display.say if display is not None and first else _silent
    towers = _towers(settings)
    _choose_what_learns(towers, settings)
    check_savable(towers, name=settings.model)
    data = open_training_data(settings)
    source = make_pairs(data, settings) if isinstance(data, ImageData) else data
    batches = make_batches(source, settings, towers)
    pairs = source if isinstance(source, Pairs) else None
    monitor = make_monitor(settings)
    say(f"{settings.model}: {_parameters(towers)} parameters learn, from {_size(pairs)}")
    say(_scored_on(monitor))
    if first:
        folder.mkdir(parents=True, exist_ok=True)
    done, steps = steps_done(folder)
    if done:
        say(f"all {steps} steps were done before" if done == steps else f"goes on after step {done} of {steps}")
    before = monitor(towers) if monitor is not None else {}
    objective = build_objective(
        settings,
        temperature=towers.temperature,
        items=batches.items,
        two_views=settings.views == "two",
        gather=accelerator.num_processes > 1,
    )
    _warn_of_steepness(settings, objective)
    trainee = Trainee(towers, objective, fourier=settings.fourier)
    with _tracked(accelerator, settings):
        history = fit(
            trainee,
            batches,
            settings,
            accelerator=accelerator,
            folder=folder,
            identity={**settings.identity(), "processes": accelerator.num_processes},
            monitor=monitor,
            on_step=_watch(accelerator, settings, display if first else None),
        )
    towers.set_temperature(objective.temperature)
    weights = whole_weights(towers.model)  # of all processes, so each must ask
    accelerator.end_training()
    if not first:
        return None
    if accelerator.distributed_type.value == "FSDP":
        towers = _gathered(settings, weights)
    save_model(towers, folder / MODEL, scope=settings.tune, name=settings.model, weights=weights)
    (folder / SETTINGS).write_text(settings.as_yaml(), encoding="utf-8")
    write_history(folder / HISTORY, history)
    draw_curves(folder / CURVES, history)
    files = {"model": MODEL, "settings": SETTINGS, "history": HISTORY, "curves": CURVES}
    wrong = None
    if pairs is not None and pairs.captions and settings.score_pairs:
        told, wrong = _pairs(towers, pairs, folder, settings, display)
        files |= told
    if monitor is not None and done == steps:  # what was scored then may have been other data
        after = monitor(towers)
    else:
        after = {name: history[-1][name] for name in before}
    outcome = {
        "before": before,
        "after": after,
        "wrong_pairs": wrong,
        "processes": {"number": accelerator.num_processes, "kind": str(accelerator.distributed_type.value)},
        "settings": settings.model_dump(),
        "versions": versions(),
        "files": files,
    }
    write_outcome(folder / OUTCOME, outcome)
    return outcome


def steps_done(folder: Path) -> tuple[int, int]:
    """How many steps the checkpoint in the folder of a run has behind it, and of how many; (0, -1) without one."""
    found = read_metadata(folder / STATE)
    return (0, -1) if found is None else (int(found["step"]), int(found["steps"]))


def _silent(text: str) -> None:
    """For all processes but the first."""


def _accelerator(settings: TrainSettings, folder: Path, cpu: bool) -> Accelerator:
    """accelerate leaves out a tracker that is not installed without a word.

    Raises:
        InvalidInputError: such a tracker.
    """
    if settings.track is not None and find_spec(settings.track) is None:
        raise InvalidInputError(f"track: {settings.track} is not installed; pip install {settings.track}")
    return make_accelerator(cpu=cpu, log_with=settings.track, project_dir=str(folder))


@contextmanager
def _tracked(accelerator: Accelerator, settings: TrainSettings) -> Iterator[None]:
    """The tracker runs, and has all that it was told even where training stops halfway."""
    if settings.track is not None:
        plain = {name: value for name, value in settings.model_dump().items() if value is not None}
        accelerator.init_trackers(settings.project, config=plain)
    try:
        yield
    except BaseException:
        for tracker in accelerator.trackers:
            tracker.finish()
        raise


def _towers(settings: TrainSettings) -> Towers:
    """The model as it was loaded, on the CPU: accelerate moves it."""
    from vldebias.hosts.towers import checkpointing, towers
    from vldebias.loading import load_host

    loaded = load_host(settings.model, settings.pretrained)
    found = towers(loaded.host, loaded.tokenizer, loaded.preprocess)
    if settings.checkpointing:
        checkpointing(found)
    return found


def _choose_what_learns(towers: Towers, settings: TrainSettings) -> None:
    """Two views never reach the text tower, for whose gradients several processes would wait.

    Raises:
        InvalidInputError: the text tower is all that should learn.
    """
    if settings.views == "two" and settings.tune == "text":
        raise InvalidInputError("tune 'text': two views of an image are not read by the text tower; tune another part")
    tune(towers, settings.tune, lora_rank=settings.lora_rank, lora_alpha=settings.lora_alpha, seed=settings.seed)
    for part in towers.text_parts if settings.views == "two" else ():
        part.requires_grad_(False)


def _parameters(towers: Towers) -> str:
    learning = sum(p.numel() for p in towers.model.parameters() if p.requires_grad)
    return f"{learning:,} of {sum(p.numel() for p in towers.model.parameters()):,}"


def _size(pairs: Pairs | None) -> str:
    if pairs is None:
        return "a stream of pairs"
    wrong = f", {pairs.wrong.mean():.1%} of them made wrong" if pairs.wrong.any() else ""
    return f"{pairs.items:,} pairs{wrong}"


def _scored_on(monitor: Monitor | None) -> str:
    if monitor is None:
        return "no scores during training: name held-out pairs with val_split or val_data"
    return f"scored on {len(monitor.data):,} held-out images: {monitor.data.name} {monitor.data.split}"


def _warn_of_steepness(settings: TrainSettings, objective: Objective) -> None:
    """A pair weighs e^(q s / t): at CLIP's t = .01 and q = .4, a cosine lower by .1 weighs 55 times less."""
    steep = settings.q / objective.temperature
    if settings.loss == "rince" and steep > _STEEP:
        warnings.warn(
            f"rince at temperature {objective.temperature:.3g} and q {settings.q}: pairs weigh as e^(q s / t), so those"
            f" that fit best already outweigh the others by up to e^{steep:.0f}; temperature 0.1 spreads the weight",
            VldebiasWarning,
            stacklevel=3,
        )


def _watch(accelerator: Accelerator, settings: TrainSettings, display: Display | None) -> Callable[[Entry, int], None]:
    """What happens after every step: the display moves, the tracker is told."""

    def on_step(entry: Entry, steps: int) -> None:
        if display is not None:
            display.step(entry, steps)
        if settings.track is not None:
            told = {name.replace("->", " to "): value for name, value in entry.items() if name != "step"}
            accelerator.log(told, step=int(entry["step"]))

    return on_step


def _gathered(settings: TrainSettings, weights: dict[str, Tensor]) -> Towers:
    """The trained model in one piece, for what is done with it after FSDP has split it."""
    towers = _towers(settings)
    _choose_what_learns(towers, settings)
    towers.model.load_state_dict(weights)
    return towers


def _pairs(
    towers: Towers, pairs: Pairs, folder: Path, settings: TrainSettings, display: Display | None
) -> tuple[dict[str, str], dict[str, Any] | None]:
    with display.other() if display is not None else nullcontext(None) as progress:
        return tell_pairs(towers, pairs, folder, workers=settings.workers, progress=progress)
