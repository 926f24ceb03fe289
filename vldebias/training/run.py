"""Run a training from its settings, and write its results into a folder."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from vldebias.api import fit_projections
from vldebias.data.dataset import ImageData
from vldebias.errors import InvalidInputError, need
from vldebias.files import only_writer, versions, write_atomically
from vldebias.hosts.clip.towers import Towers
from vldebias.hosts.loading import load_host
from vldebias.progress import SILENT, Progress
from vldebias.prompts import load_prompts
from vldebias.training.batches import Batches
from vldebias.training.loop import HISTORY, STATE, Entry, fit, make_accelerator, read_state
from vldebias.training.model import check_savable, refuse_foreign, save_model, tune
from vldebias.training.monitor import Monitor
from vldebias.training.objective import Objective, Trainee
from vldebias.training.pairs import Pairs, open_images
from vldebias.training.settings import TrainSettings
from vldebias.training.suspects import positive_scores, report_pairs

SETTINGS, OUTCOME, MODEL, PROJECTION = "settings.yaml", "run.json", "model", "projection"
_SHOWN = ("zero_shot_accuracy", "recall@1 image->text", "recall@1 text->image")


def train_model(
    settings: TrainSettings, folder: Path, *, cpu: bool = False, progress: Progress = SILENT
) -> dict[str, Any] | None:
    """Train by the settings, write the files below into `folder`, and in the first process return
    the data of run.json.

    model/              the model, which every command that takes --model reads
    projection/         with debias: the projection of the prompt set, fitted for this model
    settings.yaml       all settings, to be given as --config
    history.jsonl       loss, learning rate, temperature and scores, a line per step
    pairs.csv, .html    the score of every pair of the training data, lowest first, and a page of
    the first of them kept.parquet        with keep: that share of the pairs
    run.json            the scores before and after, which of them got worse, and a record of the
    run state.pt            the last checkpoint; a run that was interrupted goes on from it

    Raises:
        InvalidInputError: settings that do not fit each other or the data, a folder that holds
            another run or that one writes now. DivergedError: the loss is not a number.
    """
    if settings.track is not None:
        need(settings.track)
    accelerator = make_accelerator(cpu=cpu, log_with=settings.track, project_dir=str(folder))
    main, processes = accelerator.is_main_process, accelerator.num_processes
    progress = progress if main else SILENT
    towers = make_towers(settings)
    check_savable(towers, name=settings.model)
    refuse_foreign(folder / MODEL)
    if settings.debias is not None:
        load_prompts(settings.debias)  # a wrong name shows before the first step
    data = open_images(settings)
    source = Pairs.of(data, settings) if isinstance(data, ImageData) else data
    pairs = source if isinstance(source, Pairs) else None
    batches = Batches.of(source, settings, towers)
    objective = Objective(
        settings,
        temperature=towers.temperature,
        bias=towers.bias,
        items=batches.items,
        two_views=settings.views == "two",
        gather=processes > 1,
        groups=None if pairs is None or pairs.groups is None else len(pairs.groups.names),
    )
    monitor = Monitor.held_out(settings, data, towers)
    towers.model.to(accelerator.device)
    mixed = {
        n: p
        for n, p in towers.model.named_parameters()
        if p.requires_grad and settings.wise_ft is not None
    }
    begun = {name: parameter.detach().clone() for name, parameter in mixed.items()}
    trainee = Trainee(towers, objective, fourier=settings.fourier)
    identity = {
        **settings.identity(),
        "rows": batches.items,
        "content": data.fingerprint,
        "processes": processes,
    }
    if batches.items is not None:  # more processes with smaller batches go on with the same
        identity |= {"processes": 1, "batch_size": settings.batch_size * processes}
    steps, (done, _) = settings.updates(batches.per_epoch), steps_done(folder)

    def watch(entry: Entry, steps: int) -> None:
        step, loss = int(entry["step"]), f"loss {entry['loss']:.4g}"
        advance(note=loss)
        if settings.track is not None and main:
            accelerator.log(
                {name.replace("->", " to "): value for name, value in entry.items()}, step=step
            )
        if scored := [entry[name] for name in _SHOWN if math.isfinite(entry.get(name, math.nan))]:
            progress.say(f"step {step + 1} of {steps}: {loss}, score {scored[0]:.3f}")

    with only_writer(folder, progress.say) if main else nullcontext(), progress:
        if settings.track is not None:
            accelerator.init_trackers(
                "vldebias", config={k: str(v) for k, v in settings.model_dump().items()}
            )
        learning = sum(p.numel() for p in towers.model.parameters() if p.requires_grad)
        size = "a stream of pairs" if batches.items is None else f"{batches.items:,} images"
        negatives = (
            settings.batch_size
            * processes
            * (settings.accumulation if settings.negatives == "step" else 1)
        )
        progress.say(
            f"{settings.model}: {learning:,} parameters learn, from {size}; processes: {processes};"
            f" precision {settings.precision}; loss {settings.loss} at temperature"
            f" {objective.temperature:.3g}, negatives from {negatives:,}"
        )
        progress.say(f"goes on after step {done} of {steps}" if done else f"{steps} steps")
        before = {} if monitor is None else monitor(towers)
        with progress.bar("training", steps, done=done) as advance:
            how: Any = {"accelerator": accelerator, "folder": folder, "identity": identity}
            fit(trainee, batches, settings, monitor=monitor, on_step=watch, **how)
        accelerator.end_training()  # which parts the processes
        if not main:
            return None
        with torch.no_grad():  # WiSE-FT (Wortsman et al., 2022): back towards where they began
            for name, parameter in mixed.items():
                parameter.copy_(torch.lerp(begun[name], parameter, settings.wise_ft or 1.0))
        towers.set_temperature(objective.temperature, objective.bias)
        save_model(towers, folder / MODEL, scope=settings.tune, name=settings.model)
        write_atomically(folder / SETTINGS, settings.as_yaml())
        files = {"model": MODEL, "settings": SETTINGS, "history": HISTORY}
        after = {} if monitor is None else monitor(towers)
        outcome: dict[str, Any] = {
            "before": before,
            "after": after,
            "debiased": {},
            "wrong_pairs": None,
        }
        if pairs is not None and pairs.captions and settings.score_pairs:
            scores = positive_scores(towers, pairs, workers=settings.workers, progress=progress)
            more, outcome["wrong_pairs"] = report_pairs(pairs, scores, folder, keep=settings.keep)
            files |= more
        if settings.debias is not None:
            saved = load_host(str(folder / MODEL))
            edits = fit_projections(saved.host, settings.debias, tokenizer=saved.tokenizer)
            for role, edit in edits.items():
                edit.save_pretrained(folder / PROJECTION / role)
            files["projection"] = PROJECTION
            outcome["debiased"] = {} if monitor is None else monitor(towers, edits["joint"])
        outcome["processes"] = {
            "number": processes,
            "kind": str(accelerator.distributed_type.value),
        }
        outcome |= {"settings": settings.model_dump(), "versions": versions(), "files": files}
        outcome["worse"] = Monitor.worsened(before, after)
        write_atomically(folder / OUTCOME, json.dumps(outcome, indent=1, default=str) + "\n")
    return outcome


def list_pairs(
    settings: TrainSettings, folder: Path, *, cpu: bool = False, progress: Progress = SILENT
) -> dict[str, Any]:
    """Score every pair by the model as loaded, and write the files of `report_pairs` into
    `folder`."""
    data = open_images(settings)
    if not isinstance(data, ImageData):
        raise InvalidInputError(
            f"{settings.data}: expected data that can be read in any order, got a stream"
        )
    loaded = load_host(settings.model, settings.pretrained)
    if torch.cuda.is_available() and not cpu:
        loaded.host.to("cuda")
    pairs = Pairs.of(data, settings)
    with progress:
        scorer = Towers(loaded.host, loaded.tokenizer, loaded.preprocess)
        scores = positive_scores(scorer, pairs, workers=settings.workers, progress=progress)
    files, wrong = report_pairs(pairs, scores, folder, keep=settings.keep)
    return {"pairs": pairs.items, "wrong_pairs": wrong, "files": files}


def steps_done(folder: Path) -> tuple[int, int]:
    """Return (steps done, steps in all) of the checkpoint in a folder; (0, -1) without one."""
    state = read_state(folder / STATE)
    return (
        (0, -1)
        if state is None
        else (int(state["step"]), int(json.loads(state["identity"])["steps"]))
    )


def make_towers(settings: TrainSettings) -> Towers:
    """Load the model, and set which parameters are trained."""
    if settings.views == "two" and settings.tune == "text":
        raise InvalidInputError(
            "tune 'text': two views of an image are not read by the text tower; tune another part"
        )
    loaded = load_host(settings.model, settings.pretrained)
    made = Towers(loaded.host, loaded.tokenizer, loaded.preprocess)
    last = {"image": settings.image_blocks, "text": settings.text_blocks}
    tune(made, settings.tune, last=last, lora_rank=settings.lora_rank, seed=settings.seed)
    for part in made.text_parts if settings.views == "two" else ():
        part.requires_grad_(False)
    return made
