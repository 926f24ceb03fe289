"""A run of training from its settings, and what it leaves in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vldebias.api import fit_projections
from vldebias.data.dataset import ImageData, ImageStream
from vldebias.errors import InvalidInputError, warn
from vldebias.files import only_writer, versions, write_atomically
from vldebias.loading import load_host
from vldebias.progress import SILENT, Progress
from vldebias.prompts import load_prompts
from vldebias.training.augmentation import Augmentation, CropNoise
from vldebias.training.batches import Batches, MapBatches
from vldebias.training.callbacks import Callback, Trackers, Watching, check_trackers
from vldebias.training.debiasing import TextDebias
from vldebias.training.held_out import draw_held_out
from vldebias.training.loop import HISTORY, STATE, Entry, fit, make_accelerator, read_history, steps_of
from vldebias.training.monitor import Monitor, worsened
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import Pairs, make_pairs, open_images
from vldebias.training.report import draw_curves, report_popularity, score_pairs
from vldebias.training.rows import TEXTS, Overlap, check_held_out, groups_of, present
from vldebias.training.saving import check_savable, refuse_foreign, save_model, whole_weights
from vldebias.training.settings import WORLDS, TrainSettings
from vldebias.training.state import read_metadata
from vldebias.training.stream import StreamBatches
from vldebias.training.tuning import feature_size, layer_rates, tune

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vldebias.hosts.towers import Towers

SETTINGS, CURVES, OUTCOME, MODEL = "settings.yaml", "curves.png", "run.json", "model"
PROJECTION, KEPT = "projection", "models"
_STEEP = 20.0  # q / t of rince from which on the best pairs of a batch outweigh all others
_SHOWN = ("zero_shot_accuracy", "recall@1 image->text", "recall@1 text->image")


def train_model(
    settings: TrainSettings,
    folder: Path,
    *,
    cpu: bool = False,
    progress: Progress = SILENT,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any] | None:
    """Trains as the settings say and leaves in `folder`:

    model/              the model, which every command that takes --model reads
    models/             with keep_every and keep_best: models of the way there
    projection/         with debias: the projection of the prompt set, fitted for this model
    settings.yaml       all settings, to be given as --config
    history.jsonl       loss, learning rate, temperature and scores, a line per step, as it goes
    curves.png          the same to look at
    pairs.csv, .html    the score of every pair of the training data, lowest first, and a page of the first of them
    scores.png          the densities of the scores
    cosines.png         with held-out labels: cosines within and between classes; hardest.png: images that are taken
                        for one of another class
    popularity.csv      of nuclr: the captions, the most popular first; popularity.png: how few have how much of it
    run.json            the scores before and after, which of them are worse, and what the run was
    state.safetensors   the last checkpoint; a run that was interrupted goes on from it

    callbacks: what watches the run, beside the trackers that the settings name; called in the first process.

    Returns:
        What run.json says; None in every process but the first.

    Raises:
        InvalidInputError: settings that do not fit each other or the data, a folder that holds another run or that one
            writes now, a tracker that is not installed.
        OSError: the folder cannot be written.
        DivergedError: the loss is no number any more.
    """
    accelerator = make_accelerator(cpu=cpu, log_with=check_trackers(settings) or None, project_dir=str(folder))
    job = Job(settings, accelerator, folder, progress if accelerator.is_main_process else SILENT)
    alone = only_writer(folder, job.progress.say) if accelerator.is_main_process else nullcontext()
    watched = [*([Trackers(accelerator)] if settings.trackers else []), *callbacks]
    watching = Watching(watched if accelerator.is_main_process else [], settings, steps_of(settings, job.batches))
    with alone, job.progress, watching:
        done, steps = steps_done(folder)
        job.announce(done, steps)
        before, debiased_before = job.start_scores()
        history, weights = job.train(done, watching)
        if not accelerator.is_main_process:
            return None
        towers = job.towers
        if accelerator.distributed_type.value == "FSDP":  # in one piece again
            towers = make_towers(settings)
            towers.model.load_state_dict(weights)
        save_model(towers, folder / MODEL, scope=settings.tune, name=settings.model, weights=weights)
        write_atomically(folder / SETTINGS, settings.as_yaml())
        draw_curves(folder / CURVES, history)
        files = {"model": MODEL, "settings": SETTINGS, "history": HISTORY, "curves": CURVES}
        wrong = None
        if job.pairs is not None and job.pairs.captions and settings.score_pairs:
            scored = score_pairs(towers, job.pairs, folder, workers=settings.workers, progress=job.progress)
            files, wrong = files | scored.files, scored.detected
        seen = None
        if job.monitor is not None:
            seen = job.monitor.features(towers)
            files |= draw_held_out(job.monitor, seen, folder)
        if job.pairs is not None and job.pairs.captions and settings.loss == "nuclr":
            learned = job.trainee.objective.loss.log_popularity[0].detach().cpu().numpy()
            files |= report_popularity(folder, job.pairs.captions, learned[job.pairs.images])
        # What a finished run was scored on then may have been other data; what was scored last, other weights.
        other = done == steps or settings.wise_ft is not None
        after = job.monitor(towers, seen=seen) if other and job.monitor is not None else history[-1]
        debiased: dict[str, float] = {}
        if settings.debias is not None:
            saved = load_host(str(folder / MODEL))
            edits = fit_projections(saved.host, settings.debias, tokenizer=saved.tokenizer)
            for role, edit in edits.items():
                edit.save_pretrained(folder / PROJECTION / role)
            files["projection"] = PROJECTION
            debiased = job.monitor(towers, edits["joint"], seen=seen) if job.monitor is not None else {}
        outcome = _outcome(job, before, after, debiased_before, debiased) | {"wrong_pairs": wrong, "files": files}
        write_atomically(folder / OUTCOME, json.dumps(outcome, indent=1, default=str) + "\n")
        watching.outcome = outcome
    return outcome


def _outcome(
    job: Job,
    before: dict[str, float],
    after: dict[str, float],
    debiased_before: dict[str, float],
    debiased: dict[str, float],
) -> dict[str, Any]:
    """What run.json says of the scores and of the run."""
    after = {name: after[name] for name in before}
    worse = worsened(before, after)
    worse |= {f"{name}, debiased": pair for name, pair in worsened(debiased_before, debiased).items()}
    processes = {"number": job.accelerator.num_processes, "kind": str(job.accelerator.distributed_type.value)}
    return {
        "before": before,
        "after": after,
        "debiased_before": debiased_before,
        "debiased": debiased,
        "worse": worse,
        "held_out_overlap": None if job.overlap is None else asdict(job.overlap),
        "processes": processes,
        "settings": job.settings.model_dump(),
        "versions": versions(),
    }


def steps_done(folder: Path) -> tuple[int, int]:
    """How many steps the checkpoint in the folder of a run has behind it, and of how many; (0, -1) without one."""
    stored = read_metadata(folder / STATE)
    return (0, -1) if stored is None else (int(stored["step"]), int(stored["identity"]["steps"]))


def _loaded(settings: TrainSettings) -> Towers:
    from vldebias.hosts.towers import towers

    loaded = load_host(settings.model, settings.pretrained)
    return towers(loaded.host, loaded.tokenizer, loaded.preprocess)


def make_towers(settings: TrainSettings) -> Towers:
    """The model, with what is to learn requiring gradients."""
    from vldebias.hosts.towers import checkpointing

    if settings.views == "two" and settings.tune == "text":
        raise InvalidInputError("tune 'text': two views of an image are not read by the text tower; tune another part")
    made = _loaded(settings)
    if settings.checkpointing:
        checkpointing(made)
    layers = settings.layers
    tune(
        made,
        settings.tune,
        lora_rank=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        seed=settings.seed,
        last=None if layers is None else {"image": layers.image, "text": layers.text},
    )
    for part in made.text_parts if settings.views == "two" else ():
        part.requires_grad_(False)
    return made


def make_batches(data: Pairs | ImageStream, settings: TrainSettings, towers: Towers) -> Batches:
    """Micro-batches of pairs, or of a stream of them; refuses noise that a stream cannot have."""
    augment = Augmentation(
        towers.size,
        towers.mean,
        towers.std,
        crop=(settings.crop_scale, 1.0),
        flip=0.5 if settings.flip else 0.0,
        jitter=settings.jitter,
        grayscale=settings.grayscale,
        noise=CropNoise(settings.crop_noise) if settings.crop_noise else None,
    )
    options: dict[str, Any] = {
        **{name: getattr(settings, name) for name in ("batch_size", "on_error", "seed", "workers")},
        "augment": augment,
        "tokenize": towers.tokenize,
        "two_views": settings.views == "two",
        "further": settings.positives if settings.positives > 1 else 0,
    }
    if isinstance(data, Pairs):
        return MapBatches(data, balance=settings.balance is not None, **options)
    if settings.class_noise:
        raise InvalidInputError("class_noise: a stream cannot have it; read the data without streaming")
    return StreamBatches(
        data,
        label=settings.label,
        caption_template=settings.caption_template,
        noise=settings.caption_noise,
        buffer=settings.shuffle_buffer,
        **options,
    )


def make_monitor(settings: TrainSettings) -> Monitor | None:
    """Scores of the held-out data; None where there are none, or where nothing can be asked of them."""
    if settings.debias is not None:
        load_prompts(settings.debias)  # a wrong name shows before the first step, held-out data or not
    data = open_images(settings, held_out=True) if settings.has_held_out else None
    if data is None or (isinstance(data, ImageData) and settings.label is None and not data.captions):
        return None
    if not isinstance(data, ImageData):
        raise InvalidInputError(f"val_data: {data.name}: expected data that can be read in any order, got a stream")
    return Monitor(
        data,
        settings.label,
        template=settings.caption_template or "a photo of a {}.",
        group=settings.group,
        queries=load_prompts(settings.debias).classes if settings.debias is not None else (),
        workers=settings.workers,
        limit=settings.val_items,
        within=settings.sharpness_within,
    )


def warn_of_steepness(settings: TrainSettings, temperature: float) -> None:
    """A pair weighs e^(q s / t): at CLIP's t = .01 and q = .4, a cosine lower by .1 weighs 55 times less."""
    if settings.loss == "rince" and settings.q / temperature > _STEEP:
        warn(
            f"rince at temperature {temperature:.3g} and q {settings.q}: pairs weigh as e^(q s / t), so those that fit "
            f"best already outweigh the others by up to e^{settings.q / temperature:.0f}; temperature 0.1 spreads the "
            "weight"
        )


class Job:
    """What a run trains, on what, and what it is scored on: opened and checked before the first step.

    fold: (k, K): it learns all pairs but those of fold k, which is not scored on held-out data meanwhile.
    identity: what a checkpoint must agree with.
    """

    def __init__(
        self,
        settings: TrainSettings,
        accelerator: Accelerator,
        folder: Path,
        progress: Progress,
        *,
        fold: tuple[int, int] | None = None,
    ) -> None:
        self.settings, self.accelerator, self.folder, self.progress = settings, accelerator, folder, progress
        self.towers = make_towers(settings)
        check_savable(self.towers, name=settings.model)
        refuse_foreign(folder / MODEL)
        data = open_images(settings, also=[name for name in settings.group_columns if name != TEXTS])
        self.towers.model.to(accelerator.device)
        source: Pairs | ImageStream
        if isinstance(data, ImageData):
            data = present(data, settings)
            source = make_pairs(data, settings, groups_of(data, settings, self.towers))
        else:
            source = data
        if fold is not None and isinstance(source, Pairs):
            source = source.taken(np.flatnonzero(source.in_folds(fold[1], settings.seed) != fold[0]))
        self.pairs = source if isinstance(source, Pairs) else None
        self.batches = make_batches(source, settings, self.towers)
        objective = build_objective(
            settings,
            temperature=self.towers.temperature,
            bias=self.towers.bias,
            items=self.batches.items,
            two_views=settings.views == "two",
            gather=accelerator.num_processes > 1,
            dim=feature_size(self.towers) if settings.queue is not None else None,
            groups=None if self.pairs is None or self.pairs.groups is None else len(self.pairs.groups.names),
        )
        warn_of_steepness(settings, objective.temperature)
        self.monitor = make_monitor(settings) if fold is None else None
        self.overlap: Overlap | None = None
        if self.monitor is not None and (settings.data not in WORLDS or settings.val_data not in (None, settings.data)):
            self.overlap = check_held_out(self.monitor.whole, data, look=accelerator.is_main_process)
        if settings.sharpness_within is not None and accelerator.distributed_type.value == "FSDP":
            raise InvalidInputError("sharpness_within: expected whole weights on every process, got FSDP; leave it out")
        self.start: dict[str, Tensor] = {}
        if settings.wise_ft is not None:
            if accelerator.distributed_type.value == "FSDP":
                raise InvalidInputError("wise_ft: expected whole weights on every process, got FSDP; leave it out")
            learning = {name: p for name, p in self.towers.model.named_parameters() if p.requires_grad}
            self.start = {name: parameter.detach().clone() for name, parameter in learning.items()}
        decay = settings.layers.decay if settings.layers is not None else 1.0
        frozen = None
        if settings.distill:
            frozen = _loaded(settings)
            frozen.model.eval().requires_grad_(False).to(accelerator.device)
        self.trainee = Trainee(
            self.towers,
            objective,
            fourier=settings.fourier,
            partner=settings.partner,
            rates=layer_rates(self.towers, decay) if decay < 1 else None,
            frozen=frozen,
            debias=self.text_debias(),
        )
        if settings.compile:  # after all that looked through the towers one pair at a time
            for part in (*self.towers.image_parts, *self.towers.text_parts):
                if isinstance(part, nn.Module):
                    part.compile()
        self.identity = {**settings.identity(), "rows": self.batches.items, "content": data.fingerprint}
        if fold is not None:
            self.identity["fold"] = list(fold)
        if self.batches.items is None:  # whose batches are those of its processes
            self.identity["processes"] = accelerator.num_processes
        else:  # so more processes with smaller batches go on with the same
            self.identity["batch_size"] *= accelerator.num_processes

    def text_debias(self) -> TextDebias | None:
        """The projection that the texts go through while the model learns, and the pairs to keep; None of neither."""
        settings = self.settings
        if settings.debias is None or not (settings.debias_during or settings.keep_pairs):
            return None
        if self.accelerator.distributed_type.value == "FSDP":
            raise InvalidInputError("debias_during, keep_pairs: expected whole weights on every process, got FSDP")
        every = 0
        if settings.debias_during:  # a stream has no epochs
            steps = steps_of(settings, self.batches)
            epoch = self.batches.per_epoch
            every = max(1, math.ceil(steps / 10) if epoch is None else epoch // settings.accumulation)
        return TextDebias(self.towers, settings.debias, every=every, keep=settings.keep_pairs, seed=settings.seed)

    def start_scores(self) -> tuple[dict[str, float], dict[str, float]]:
        """The scores before training, and those under a projection of its own, as the trained model gets one."""
        if self.monitor is None:
            return {}, {}
        seen = self.monitor.features(self.towers)
        before = self.monitor(self.towers, seen=seen)
        if self.settings.debias is None or not self.accelerator.is_main_process:
            return before, {}
        start = load_host(self.settings.model, self.settings.pretrained)
        edits = fit_projections(start.host, self.settings.debias, tokenizer=start.tokenizer)
        return before, self.monitor(self.towers, edits["joint"], seen=seen)

    def eval_every(self, steps: int) -> int:
        """Steps between scores: as asked for, else so that there are at most ten, and that few images go through.

        A held-out image costs a forward pass, one that is learned from as much where only the heads learn, and at
        least twice as much where a gradient goes through a tower: of a fifth of the time scoring has a quarter of the
        rest.
        """
        settings = self.settings
        if settings.eval_every is not None or self.monitor is None:
            return settings.eval_every or steps
        learned = settings.batch_size * self.accelerator.num_processes * settings.accumulation
        passes = 1 if settings.tune == "heads" else 2
        return max(math.ceil(steps / 10), math.ceil(4 * self.monitor.n / (learned * passes)))

    def announce(self, done: int, steps: int) -> None:
        """What is going to happen."""
        say = self.progress.say
        parameters = list(self.towers.model.parameters())
        learning = sum(p.numel() for p in parameters if p.requires_grad)
        size = "a stream of pairs"
        if self.pairs is not None:
            wrong = f", {self.pairs.wrong.mean():.1%} of them made wrong" if self.pairs.wrong.any() else ""
            images = f" of {self.pairs.image_count:,} images" if self.pairs.several else ""
            size = f"{self.pairs.items:,} pairs{images}{wrong}"
        total = sum(p.numel() for p in parameters)
        settings, processes = self.settings, self.accelerator.num_processes
        say(f"{settings.model}: {learning:,} of {total:,} parameters learn, from {size}")
        pairs = settings.batch_size * settings.accumulation * processes
        negatives = pairs if settings.negatives == "step" else settings.batch_size * processes
        say(
            f"on {self.accelerator.device.type}, {processes} process{'es' if processes > 1 else ''}, precision "
            f"{settings.mixed_precision}; a step has {pairs:,} pairs, a loss {negatives:,}; loss {settings.loss}, "
            f"temperature {self.trainee.objective.temperature:.3g}"
        )
        if self.monitor is None:
            say("no scores during training: name held-out pairs with val_split or val_data")
        else:
            held_out = self.monitor.data
            say(f"scored on {len(held_out):,} held-out images: {held_out.name} {held_out.split}")
        if done:
            say(f"all {steps} steps were done before" if done == steps else f"goes on after step {done} of {steps}")

    @staticmethod
    def _score(entry: Entry) -> float | None:
        """What the best model is chosen by: zero-shot accuracy, or recall where there are no labels."""
        return next((entry[name] for name in _SHOWN if math.isfinite(entry.get(name, math.nan))), None)

    def keep(self, name: str) -> None:
        """The model of now, without its average, in models/; every process must call this."""
        weights = self.weights()
        if self.accelerator.is_main_process:
            folder = self.folder / KEPT / name
            save_model(self.towers, folder, scope=self.settings.tune, name=self.settings.model, weights=weights)

    def weights(self) -> dict[str, Tensor]:
        """Those of the model in one piece, with the loss's temperature and bias; every process must call this."""
        objective = self.trainee.objective
        self.towers.set_temperature(objective.temperature)
        if objective.bias is not None and self.towers.bias is not None:
            self.towers.set_bias(objective.bias)
        return whole_weights(self.towers.model)

    def mix(self) -> None:
        """Moves the weights back towards where they began (Wortsman et al., 2022, WiSE-FT), where the settings ask."""
        for name, parameter in self.towers.model.named_parameters():
            if name in self.start and self.settings.wise_ft is not None:
                parameter.detach().copy_(torch.lerp(self.start[name], parameter.detach(), self.settings.wise_ft))

    def train(self, done: int, watching: Watching | None = None) -> tuple[list[Entry], dict[str, Tensor]]:
        """The history, and the weights of the model in one piece; `done` steps were made before."""

        def on_step(entry: Entry, steps: int) -> None:
            step, loss = int(entry["step"]), f"loss {entry['loss']:.4g}"
            bar.to(step + 1, loss)
            shown = [f"{name} {entry[name]:.3f}" for name in _SHOWN if name in entry]
            if shown:
                self.progress.say(f"step {step + 1} of {steps}: {', '.join([loss, *shown])}")
            if watching is not None:
                watching.step(entry)
            if self.settings.keep_every is not None and (step + 1) % self.settings.keep_every == 0:
                self.keep(f"step-{step + 1:06d}")
            if (scored := self._score(entry)) is not None:
                if self.settings.keep_best and scored > max(best, default=-math.inf):
                    self.keep("best")
                best.append(scored)

        before = read_history(self.folder / HISTORY, done)
        best = [score for entry in before if (score := self._score(entry)) is not None]

        steps = steps_of(self.settings, self.batches)
        settings = self.settings.model_copy(update={"eval_every": self.eval_every(steps)})
        with self.progress.bar("training", steps, done=done) as bar:
            how: Any = {"accelerator": self.accelerator, "folder": self.folder, "identity": self.identity}
            how |= {"monitor": self.monitor, "on_step": on_step}
            history = fit(self.trainee, self.batches, settings, **how)
            self.mix()
            weights = self.weights()
        self.accelerator.end_training()  # which parts the processes
        return history, weights
