"""A run of training from its settings, and what it leaves in its folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vldebias.data.images import ImageData
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.result import versions
from vldebias.losses.processes import world_size
from vldebias.training.assembly import make_batches, make_monitor, make_pairs, make_towers, open_training_data
from vldebias.training.batch import Batches
from vldebias.training.feature_map import check_map
from vldebias.training.loop import STATE, Entry, fit
from vldebias.training.objectives import Objective, build_objective
from vldebias.training.pairs import Pairs
from vldebias.training.record import draw_curves, write_history, write_outcome
from vldebias.training.saving import check_savable, refuse_foreign, save_model, whole_weights
from vldebias.training.settings import TrainSettings
from vldebias.training.state import read_metadata
from vldebias.training.telling import draw_features, tell_pairs
from vldebias.training.tracking import tracked, tracking_accelerator, write_entry
from vldebias.training.trainee import Trainee

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
    features.png        the features of held-out images by label, before and after (with feature_map)
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
    accelerator = tracking_accelerator(settings, folder, cpu=cpu)
    job = _prepared(settings, accelerator, folder)
    display = display if accelerator.is_main_process else None
    _announce(settings, job, folder, display)
    before = job.monitor(job.towers) if job.monitor is not None else {}
    features = _features(settings, job, job.towers)
    finished = _is_finished(folder)
    with tracked(accelerator, settings):
        history = fit(
            job.trainee,
            job.batches,
            settings,
            accelerator=accelerator,
            folder=folder,
            identity={**settings.identity(), **job.identity, "processes": accelerator.num_processes},
            monitor=job.monitor,
            on_step=_watch(accelerator, display),
        )
        _give_back(job)
        weights = whole_weights(job.towers.model)  # of all processes, so each must ask, while they are connected
    if not accelerator.is_main_process:
        return None
    towers = _gathered(settings, weights) if accelerator.distributed_type.value == "FSDP" else job.towers
    files = _write(settings, folder, towers, weights, history)
    told, wrong = _pairs(towers, job.pairs, folder, settings, display)
    drawn = _draw_features(settings, job, towers, features, folder)
    # What a finished run was scored on then may have been other data.
    after = job.monitor(towers) if finished and job.monitor is not None else history[-1]
    outcome = {
        "before": before,
        "after": {name: after[name] for name in before},
        "wrong_pairs": wrong,
        "processes": {"number": accelerator.num_processes, "kind": str(accelerator.distributed_type.value)},
        "settings": settings.model_dump(),
        "versions": versions(),
        "files": {**files, **told, **drawn},
    }
    write_outcome(folder / OUTCOME, outcome)
    return outcome


@dataclass(frozen=True)
class _Job:
    """What a run trains, on what, and what it is scored on; of the data, what a checkpoint must agree with."""

    towers: Towers
    trainee: Trainee
    batches: Batches
    pairs: Pairs | None
    monitor: Monitor | None
    identity: dict[str, Any]


def _prepared(settings: TrainSettings, accelerator: Accelerator, folder: Path) -> _Job:
    """Everything is opened and checked before the first step."""
    towers = make_towers(settings)
    check_savable(towers, name=settings.model)
    refuse_foreign(folder / MODEL)
    data = open_training_data(settings)
    source = make_pairs(data, settings) if isinstance(data, ImageData) else data
    batches = make_batches(source, settings, towers)
    objective = build_objective(
        settings,
        temperature=towers.temperature,
        bias=towers.bias,
        items=batches.items,
        two_views=settings.views == "two",
        gather=accelerator.num_processes > 1,
    )
    _warn_of_steepness(settings, objective)
    monitor = make_monitor(settings)
    if settings.feature_map is not None and monitor is not None:
        check_map(settings.feature_map, len(monitor.data))
    towers.model.to(accelerator.device)
    return _Job(
        towers=towers,
        trainee=Trainee(towers, objective, fourier=settings.fourier),
        batches=batches,
        pairs=source if isinstance(source, Pairs) else None,
        monitor=monitor,
        identity={"rows": batches.items, "content": data.fingerprint},
    )


def _announce(settings: TrainSettings, job: _Job, folder: Path, display: Display | None) -> None:
    """What is going to happen, in the first process; and the folder is there, or cannot be had."""
    if display is None and world_size() > 1:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if display is None:
        return
    display.say(f"{settings.model}: {_parameters(job.towers)} parameters learn, from {_size(job.pairs)}")
    display.say(_scored_on(job.monitor))
    done, steps = steps_done(folder)
    if done:
        display.say(f"all {steps} steps were done before" if done == steps else f"goes on after step {done} of {steps}")


def _give_back(job: _Job) -> None:
    """The temperature, and SigLIP's bias, go back to where the model keeps them."""
    objective = job.trainee.objective
    job.towers.set_temperature(objective.temperature)
    if objective.bias is not None and job.towers.bias is not None:
        job.towers.set_bias(objective.bias)


def _write(
    settings: TrainSettings, folder: Path, towers: Towers, weights: dict[str, Tensor], history: list[Entry]
) -> dict[str, str]:
    """The model and what every step saw; the files by what they are."""
    save_model(towers, folder / MODEL, scope=settings.tune, name=settings.model, weights=weights)
    (folder / SETTINGS).write_text(settings.as_yaml(), encoding="utf-8")
    write_history(folder / HISTORY, history)
    draw_curves(folder / CURVES, history)
    return {"model": MODEL, "settings": SETTINGS, "history": HISTORY, "curves": CURVES}


def _is_finished(folder: Path) -> bool:
    done, steps = steps_done(folder)
    return done == steps


def steps_done(folder: Path) -> tuple[int, int]:
    """How many steps the checkpoint in the folder of a run has behind it, and of how many; (0, -1) without one."""
    found = read_metadata(folder / STATE)
    return (0, -1) if found is None else (int(found["step"]), int(found["steps"]))


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


def _watch(accelerator: Accelerator, display: Display | None) -> Callable[[Entry, int], None]:
    """What happens after every step: the display moves, the tracker is told."""

    def on_step(entry: Entry, steps: int) -> None:
        if display is not None:
            display.step(entry, steps)
        write_entry(accelerator, entry)

    return on_step


def _gathered(settings: TrainSettings, weights: dict[str, Tensor]) -> Towers:
    """The trained model in one piece, for what is done with it after FSDP has split it."""
    towers = make_towers(settings)
    towers.model.load_state_dict(weights)
    return towers


def _features(settings: TrainSettings, job: _Job, towers: Towers) -> tuple[Tensor, Tensor] | None:
    """Places and features of the held-out images, where somebody wants a picture of them."""
    return None if settings.feature_map is None or job.monitor is None else job.monitor.features(towers)


def _draw_features(
    settings: TrainSettings, job: _Job, towers: Towers, before: tuple[Tensor, Tensor] | None, folder: Path
) -> dict[str, str]:
    after = _features(settings, job, towers)
    if before is None or after is None or job.monitor is None or settings.feature_map is None:
        return {}
    labels = job.monitor.data.column(settings.label or "")
    return draw_features(before[1], after[1], after[0], labels, folder, settings.feature_map)


def _pairs(
    towers: Towers, pairs: Pairs | None, folder: Path, settings: TrainSettings, display: Display | None
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """The scores of the pairs, where there are captions and somebody wants them."""
    if pairs is None or not pairs.captions or not settings.score_pairs:
        return {}, None
    with display.other() if display is not None else nullcontext(None) as progress:
        return tell_pairs(towers, pairs, folder, workers=settings.workers, progress=progress)
