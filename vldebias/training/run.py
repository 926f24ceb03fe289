"""Train a model according to the settings and write the results to a folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.api import fit_projections
from vldebias.data.dataset import ImageData
from vldebias.data.huggingface import ImageStream
from vldebias.errors import InvalidInputError, need, warn
from vldebias.hosts.clip.towers import Towers
from vldebias.hosts.loading import load_host
from vldebias.losses import LOSSES
from vldebias.prompts import load_prompts
from vldebias.report.conclusion import Conclusion
from vldebias.report.table import from_to
from vldebias.training.batches import Batches, PairWeights
from vldebias.training.changes import (
    END,
    HALFWAY,
    TITLES,
    Checkpoints,
    Fall,
    change_since_start,
    conclusions_of_training,
    deciding_score,
    describe_choice,
    fall_below_start,
)
from vldebias.training.curves import write_curves
from vldebias.training.filtering import StartingScores
from vldebias.training.kept_groups import KeptShare, kept_by_group, warn_of_lost_groups
from vldebias.training.loop import HISTORY, STATE, Entry, fit, make_accelerator, read_state
from vldebias.training.model import check_savable, refuse_foreign, save_model, tune
from vldebias.training.monitor import LEAST_PAIRS, Monitor
from vldebias.training.objective import Objective, Trainee
from vldebias.training.optim import StartingWeights
from vldebias.training.pairs import Pairs, open_images
from vldebias.training.settings import TrainSettings
from vldebias.training.suspects import (
    Detection,
    equal_negatives,
    positive_scores,
    report_pairs,
    right_captions,
    shuffled_scores,
)
from vldebias.utils.files import only_writer, versions, write_atomically
from vldebias.utils.formats import FORMAT
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.trackers import tracker_name

if TYPE_CHECKING:
    from accelerate import Accelerator

SETTINGS = "settings.yaml"
OUTCOME = "run.json"
MODEL = "model"
PROJECTION = "projection"
_SHOWN = ("zero_shot_accuracy", "recall@1 image->text", "recall@1 text->image")
# A run reports captions that look wrong if they are at least this share of all captions.
LEAST_LOW_GROUP = 0.1
_LINE_EVERY = 60.0  # Minimum number of seconds between two lines with scores in a log file.


class Outcome(TypedDict):
    """Contents of run.json, as described in `train_model`."""

    format_version: int
    before: dict[str, float]
    after: dict[str, float]
    checkpoints: Checkpoints | None
    debiased: dict[str, float]
    below_start: Fall | None
    wrong_pairs: Detection | None
    kept: list[KeptShare]
    processes: dict[str, int | str]
    settings: dict[str, Any]
    versions: dict[str, str]
    files: dict[str, str]
    conclusions: list[dict[str, Any]]


def train_model(
    settings: TrainSettings, folder: Path, *, cpu: bool = False, progress: Progress = SILENT
) -> dict[str, Any] | None:
    """Train a model and write these files to `folder`:

    - model/: the trained model, which every command with --model accepts. With at least 100
      held-out pairs, it has the better weights of the end and half way between start and end
      (WiSE-FT). One half of the held-out data is used to choose, and the other half to report
      scores
    - projection/: with `debias`, the projection for the prompt set, fitted for this model
    - settings.yaml: all settings, for --config
    - history.jsonl: one line per step with the loss, the learning rate, the temperature and, if
      due, the scores, including whether zero-shot accuracy (or retrieval, without classes) is
      clearly below its initial value
    - history.svg: the curves of the loss and of the scores
    - pairs.csv, pairs.html: the score of every training pair, lowest first, and a page that shows
      the first of them. The scores come from the saved model, or from the starting model with
      `keep`
    - kept.parquet, scores.npz: with `keep`, the pairs that the model was trained on, and the
      starting model's scores that a resumed run uses again
    - run.json: scores before and after training, a conclusion about each change, below_start if
      training made the model clearly worse, which weights were saved and the scores of both
      candidates, with `keep` each group's share of kept pairs, and a record of the run
    - state.pt: the last checkpoint, from which an interrupted run resumes

    A warning is issued if zero-shot accuracy on the held-out data, or retrieval if they have no
    classes, falls so far that the 95% interval of its paired change is below 0.

    Args:
        settings: all training settings.
        folder: folder for the files.
        cpu: whether to train on the CPU.
        progress: where to report progress.

    Returns:
        The contents of run.json in the first process, and None in the others.

    Raises:
        InvalidInputError: If settings contradict each other or the data, if the folder contains a
            different run, or if a different run is writing to it.
        DivergedError: If the loss is not finite.
    """
    if settings.track is not None:
        # Raise an error for a missing package now instead of when the trackers start.
        need(settings.track)
    accelerator = make_accelerator(cpu=cpu, log_with=settings.track, project_dir=str(folder))
    lock: AbstractContextManager[object] = nullcontext()
    # Only the first process writes files and prints output.
    if accelerator.is_main_process:
        lock = only_writer(folder, progress.print_line)
    else:
        progress = SILENT
    run = _Run(settings, folder, accelerator, progress)
    with lock, progress:
        run.prepare()
        run.announce()
        history = run.train()
        accelerator.end_training()  # This also disconnects the processes.
        if not accelerator.is_main_process:
            return None
        outcome = run.write(history)
    warn_of_lost_groups(outcome["kept"])
    if outcome["below_start"] is not None:
        _warn_of_fall(outcome["below_start"], run.steps)
    return dict(outcome)


@dataclass
class _Run:
    """One training run, with everything that is loaded for it.

    Args:
        settings: all training settings.
        folder: folder for the files.
        accelerator: accelerator for the processes.
        progress: where to report progress.
    """

    settings: TrainSettings
    folder: Path
    accelerator: Accelerator
    progress: Progress
    starting_scores: StartingScores | None = None
    held_out: HeldOutScores | None = None
    note: str = ""  # sentence about the weights that were saved

    def __post_init__(self) -> None:
        settings = self.settings
        self.towers = make_towers(settings)
        # Check before the first step that the results can be written after the last one.
        check_savable(self.towers, name=settings.model)
        refuse_foreign(self.folder / MODEL)
        if settings.debias is not None:
            load_prompts(settings.debias)
        self.data = open_images(settings)
        self.pairs: Pairs | ImageStream
        if isinstance(self.data, ImageData):
            self.pairs = Pairs.from_data(self.data, settings)
        else:
            self.pairs = self.data
        self.batches = Batches.from_data(self.pairs, settings, self.towers)

    def prepare(self) -> None:
        """Choose the pairs to train on, create the loss, and score the model on held-out data."""
        settings = self.settings
        towers = self.towers
        self.done = steps_done(self.folder)[0]
        towers.model.to(self.accelerator.device)
        if settings.keep is not None:
            self._filter(settings.keep)
        groups: int | None = None
        if isinstance(self.pairs, Pairs) and self.pairs.groups is not None:
            groups = len(self.pairs.groups.names)
        self.steps = settings.updates(self.batches.per_epoch)
        is_weighted = self.batches.weights is not None
        self.objective = Objective(
            settings,
            temperature=towers.temperature,
            bias=towers.bias,
            items=self.batches.items,
            two_views=settings.views == "two",
            gather=self.accelerator.num_processes > 1,
            groups=groups,
            is_weighted=is_weighted,
        )
        self.monitor, self.choosing = Monitor.held_out(settings, self.data, towers)

    def _filter(self, keep: float | Literal["auto"]) -> None:
        """Leave out or down-weight pairs that match badly in the starting model."""
        if self.done:
            scores = StartingScores.load(self.folder)
        else:
            scores = StartingScores.measure(self.towers, self.batches, self.progress)
            if self.accelerator.is_main_process:
                scores.save(self.folder)
        self.starting_scores = scores
        kept: NDArray[np.int64] | None = None
        weights: PairWeights | None = None
        if keep == "auto":
            right = right_captions(scores.scores, scores.exchanged)
            weights = PairWeights(scores.index, right.weights)
            line = (
                f"keep auto: about {right.share:.0%} of the {len(scores.index):,} captions are"
                " right, as far as this model reads them; each pair counts by its probability of"
                " being one of them"
            )
        else:
            kept = scores.best(keep)
            line = (
                f"keep {keep:g}: training on the {len(kept):,} of {len(scores.index):,} pairs that"
                " the starting model scores highest"
            )
        self.batches = Batches.from_data(self.pairs, self.settings, self.towers, kept, weights)
        self.progress.print_line(line)

    def announce(self) -> None:
        """Print a summary of the run and start the trackers."""
        settings = self.settings
        print_line = self.progress.print_line
        if settings.track is not None:
            config = {name: str(value) for name, value in settings.model_dump().items()}
            self.accelerator.init_trackers("vldebias", config=config)
        learning = sum(p.numel() for p in self.towers.model.parameters() if p.requires_grad)
        size = "a stream of pairs"
        if self.batches.items is not None:
            size = f"{self.batches.items:,} images"
        processes = self.accelerator.num_processes
        negatives = settings.batch_size * processes
        if settings.negatives == "step":
            negatives *= settings.accumulation
        print_line(
            f"{settings.model}: {learning:,} trainable parameters; {size}; processes: {processes};"
            f" precision: {settings.precision}; loss: {settings.loss} at temperature"
            f" {self.objective.temperature:.3g}, with batches of {negatives:,}"
        )
        price = LOSSES[settings.loss].price
        if price:
            print_line(f"{settings.loss}: {price}")
        if self.monitor is not None:
            print_line(self.monitor.described())
        if self.choosing is None:
            print_line(
                "the end of training will be saved; comparing it with the weights half way takes"
                f" {LEAST_PAIRS} held-out pairs (--val-split, or --set val_data=DATA), and neither"
                " LoRA nor learn_temperature"
            )
        start = f"{self.steps} steps"
        if self.done:
            start = f"resuming after step {self.done} of {self.steps}"
        print_line(start)

    def train(self) -> list[Entry]:
        """Train the model, and return the history."""
        settings = self.settings
        processes = self.accelerator.num_processes
        # A checkpoint must match these values to be resumed.
        identity = {
            **settings.identity(),
            "rows": self.batches.items,
            "content": self.data.fingerprint,
            "processes": processes,
        }
        if self.batches.items is not None:
            # A run may be resumed with more processes and smaller batches if the joint batch stays
            # the same.
            identity |= {"processes": 1, "batch_size": settings.batch_size * processes}
        # A resumed run scores the original model too, to compare the scores.
        if self.monitor is not None:
            self.held_out = HeldOutScores(self.monitor, self.towers, self.choosing)
        with self.progress.bar("training", self.steps, done=self.done) as advance:
            return fit(
                Trainee(self.towers, self.objective, fourier=settings.fourier),
                self.batches,
                settings,
                accelerator=self.accelerator,
                folder=self.folder,
                identity=identity,
                monitor=self.held_out,
                on_step=_StepReport(settings, self.accelerator, self.progress, advance),
            )

    def write(self, history: Sequence[Entry]) -> Outcome:
        """Write all files except the checkpoint, and return the contents of run.json."""
        settings = self.settings
        folder = self.folder
        weights = END
        checkpoints: Checkpoints | None = None
        if self.held_out is not None:
            checkpoints = self.held_out.choose(self.towers)
        if checkpoints is not None:
            weights = checkpoints["saved"]
            self.note = describe_choice(checkpoints)
            self.progress.print_line(self.note)
        self.towers.set_temperature(self.objective.temperature, self.objective.bias)
        save_model(
            self.towers, folder / MODEL, scope=settings.tune, name=settings.model, weights=weights
        )
        write_atomically(folder / SETTINGS, settings.as_yaml())
        files = {"model": MODEL, "settings": SETTINGS, "history": HISTORY}
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        conclusions: list[Conclusion] = []
        if self.held_out is not None:
            before, after, conclusions = self.held_out.compare(self.towers)
        # A run that continues after its last step has no new entries.
        if history:
            half_way = checkpoints["halfway"] if checkpoints else {}
            files["curves"] = write_curves(history, before, half_way, folder, settings.loss)
        pair_files, wrong_pairs = self._report_pairs()
        files |= pair_files
        debiased: dict[str, float] = {}
        if settings.debias is not None:
            # Load the saved model, because the fingerprint must match its weights with merged
            # adapters.
            saved = load_host(str(folder / MODEL))
            edits = fit_projections(saved.host, settings.debias, tokenizer=saved.tokenizer)
            for role, edit in edits.items():
                edit.save_pretrained(folder / PROJECTION / role)
                files["projection"] = PROJECTION
            if self.held_out is not None and edits:
                debiased = self.held_out.monitor(self.towers, edits.only)
        outcome: Outcome = {
            FORMAT: 1,
            "before": before,
            "after": after,
            "checkpoints": checkpoints,
            "debiased": debiased,
            "below_start": fall_below_start(conclusions, history),
            "wrong_pairs": wrong_pairs,
            "kept": self._kept_by_group(),
            "processes": {
                "number": self.accelerator.num_processes,
                "kind": str(self.accelerator.distributed_type.value),
            },
            "settings": settings.model_dump(),
            "versions": versions(),
            "files": files,
            "conclusions": [conclusion.model_dump(mode="json") for conclusion in conclusions],
        }
        write_atomically(folder / OUTCOME, json.dumps(outcome, indent=1, default=str) + "\n")
        return outcome

    def _kept_by_group(self) -> list[KeptShare]:
        """Return the share of each group's pairs that count in training, if `keep` is set."""
        scores = self.starting_scores
        keep = self.settings.keep
        if scores is None or keep is None or not isinstance(self.pairs, Pairs):
            return []
        return kept_by_group(self.pairs, self.settings, scores.weights(keep))

    def _report_pairs(self) -> tuple[dict[str, str], Detection | None]:
        """Write the pairs with their scores, and return the results of `report_pairs`."""
        pairs = self.pairs
        keep = self.settings.keep
        if not isinstance(pairs, Pairs) or not pairs.captions:
            return {}, None
        if self.starting_scores is not None:
            return report_pairs(
                pairs,
                self.starting_scores.scores,
                self.folder,
                exchanged=self.starting_scores.exchanged,
                keep=keep,
                model="starting",
                note=self.note,
            )
        if not self.settings.score_pairs:
            return {}, None
        workers = self.settings.workers
        scores = positive_scores(self.towers, pairs, workers=workers, progress=self.progress)
        _, exchanged = shuffled_scores(self.towers, pairs, workers=workers)
        share = 1 - right_captions(scores, exchanged).share
        if share >= LEAST_LOW_GROUP:
            self.progress.print_line(
                f"about {share:.0%} of the captions match their image no better than captions of"
                f" other images do. {self._advice_on_low_captions(pairs)}"
            )
        return report_pairs(pairs, scores, self.folder, exchanged=exchanged, note=self.note)

    def _advice_on_low_captions(self, pairs: Pairs) -> str:
        """Return what to do about captions that match no better than those of other images."""
        settings = self.settings
        batch = min(settings.batch_size, pairs.items)
        texts_equal, tokens_equal = equal_negatives(self.towers, pairs, batch)
        if texts_equal >= 1 and not LOSSES[settings.loss].reads:
            return (
                f"On average, {texts_equal:.1f} of an image's {batch - 1} negatives have its own"
                " caption, and training pushes them away. Train the original model again with"
                " --loss gce, which treats equal captions as one class"
            )
        if texts_equal < 1 <= tokens_equal:
            return (
                "The model reads only the start of each caption, after which"
                f" {tokens_equal:.1f} of an image's {batch - 1} negatives have its own caption on"
                " average. Put what differs first, or use a model with a longer context"
            )
        return (
            "Look at pairs.html; if they are wrong, train the original model again with --set"
            " keep=auto, which makes them count less"
        )


class HeldOutScores:
    """Compare a model's held-out scores with those at the start, and choose the weights to save.

    Args:
        monitor: reports scores.
        towers: the model before training.
        choosing: scores other images, to choose the weights. If None, the end is saved.
    """

    def __init__(self, monitor: Monitor, towers: Towers, choosing: Monitor | None = None) -> None:
        self.monitor = monitor
        self.rows_before = monitor.rows(towers)
        self.choosing = choosing
        # A resumed run loads the starting model again, so its checkpoint lacks these weights.
        self.start = None if choosing is None else StartingWeights(towers.model)

    def __call__(self, towers: Towers) -> Entry:
        """Return the scores for the history, with the change of the watched score."""
        rows = self.monitor.rows(towers)
        return self.monitor.summary(rows) | change_since_start(self.rows_before, rows)

    def compare(
        self, towers: Towers
    ) -> tuple[dict[str, float], dict[str, float], list[Conclusion]]:
        """Return the scores before and after training, and a conclusion about each change."""
        rows = self.monitor.rows(towers)
        query_images = self.monitor.query_images
        has_several = len(query_images.unique()) < len(query_images)
        conclusions = conclusions_of_training(
            self.rows_before,
            rows,
            self.monitor.cells(),
            query_images if has_several else None,
        )
        return self.monitor.summary(self.rows_before), self.monitor.summary(rows), conclusions

    def choose(self, towers: Towers) -> Checkpoints | None:
        """Leave the better of the end and half way in the model, or half way if they are equal.

        Args:
            towers: the model after training.

        Returns:
            Which of the two it is and the scores of both, or None if there is no choice.
        """
        if self.choosing is None or self.start is None:
            return None
        score, best = deciding_score(self.choosing(towers))
        end = self.monitor(towers)
        with self.start.half_way():
            _, value = deciding_score(self.choosing(towers))
            halfway = self.monitor(towers)
        saved = END
        if value >= best:
            saved = HALFWAY
            self.start.go_half_way()
        return {
            "saved": saved,
            "score": score,
            "images": len(self.choosing.images),
            "choice": {END: best, HALFWAY: value},
            "end": end,
            "halfway": halfway,
        }


def _warn_of_fall(fall: Fall, steps: int) -> None:
    """Warn that training made the model worse."""
    name = fall["score"]
    change, low, high = fall["change"]
    movement = from_to(fall["before"], fall["after"], (change, low, high))
    first_seen = ""
    if fall["first_seen"] is not None:
        first_seen = f", first seen after step {fall['first_seen']} of {steps}"
    warn(
        f"training made the model worse: {TITLES.get(name, name)} on held-out data fell from"
        f" {movement}{first_seen}. Use the original model, or train again with a"
        " lower lr, fewer steps or tune=heads"
    )


@dataclass
class _StepReport:
    """Report steps in the progress bar, to the trackers, and as lines with scores.

    A log file gets a line with scores at most once a minute, and when the model first falls below
    its initial score. All scores are in the history, and the final ones are printed at the end.
    """

    settings: TrainSettings
    accelerator: Accelerator
    progress: Progress
    advance: Callable[..., None]
    printed: float = field(default_factory=time.monotonic)
    was_below_start: bool = False

    def __call__(self, entry: Entry, steps: int) -> None:
        """Report the entry for one of `steps` steps."""
        step = int(entry["step"])
        loss = f"loss {entry['loss']:.4g}"
        self.advance(note=loss)
        if self.settings.track is not None and self.accelerator.is_main_process:
            values = {tracker_name(name): value for name, value in entry.items()}
            self.accelerator.log(values, step=step)
        shown = [name for name in _SHOWN if math.isfinite(entry.get(name, math.nan))]
        if not shown:
            return
        is_below_start = bool(entry.get("below_start"))
        has_fallen = is_below_start and not self.was_below_start
        self.was_below_start = is_below_start
        console = self.progress.console
        is_log = not (console.is_terminal or console.is_jupyter)
        if is_log and not has_fallen and time.monotonic() - self.printed < _LINE_EVERY:
            return
        self.printed = time.monotonic()
        name = shown[0]
        score = f"{TITLES.get(name, name)} {entry[name]:.3f}"
        below = ", clearly below its start" if is_below_start else ""
        self.progress.print_line(f"step {step + 1} of {steps}: {loss}, {score}{below}")


def list_pairs(
    settings: TrainSettings, folder: Path, *, cpu: bool = False, progress: Progress = SILENT
) -> dict[str, Any]:
    """Score every pair without training, and write the files described in `report_pairs`.

    Args:
        settings: all training settings.
        folder: folder for the files.
        cpu: whether to use the CPU.
        progress: where to report progress.
    """
    data = open_images(settings)
    if not isinstance(data, ImageData):
        raise InvalidInputError(
            f"{settings.data}: expected data with random access, got a stream; do not stream"
        )
    loaded = load_host(settings.model, settings.pretrained)
    if torch.cuda.is_available() and not cpu:
        loaded.host.to("cuda")
    pairs = Pairs.from_data(data, settings)
    with progress:
        scorer = Towers(loaded.host, loaded.tokenizer, loaded.preprocess)
        scores = positive_scores(scorer, pairs, workers=settings.workers, progress=progress)
        _, exchanged = shuffled_scores(scorer, pairs, workers=settings.workers)
    files, wrong = report_pairs(pairs, scores, folder, exchanged=exchanged, keep=settings.keep)
    kept: list[KeptShare] = []
    if settings.keep is not None:
        scored = StartingScores(np.arange(pairs.items), scores, exchanged)
        kept = kept_by_group(pairs, settings, scored.weights(settings.keep))
        warn_of_lost_groups(kept)
    return {"pairs": pairs.items, "wrong_pairs": wrong, "kept": kept, "files": files}


def steps_done(folder: Path) -> tuple[int, int]:
    """Return a checkpoint's numbers of finished and of all steps, or (0, -1) without one."""
    state = read_state(folder / STATE)
    if state is None:
        return 0, -1
    return int(state["step"]), int(json.loads(state["identity"])["steps"])


def make_towers(settings: TrainSettings) -> Towers:
    """Load the model and select the parameters to train."""
    if settings.views == "two" and settings.tune == "text":
        raise InvalidInputError(
            "tune 'text': the text tower is not used with two views of images; tune another part"
        )
    loaded = load_host(settings.model, settings.pretrained)
    towers = Towers(loaded.host, loaded.tokenizer, loaded.preprocess)
    last = {"image": settings.image_blocks, "text": settings.text_blocks}
    tune(towers, settings.tune, last=last, lora_rank=settings.lora_rank, seed=settings.seed)
    if settings.views == "two":
        for part in towers.text_parts:
            # Freeze the text tower, because processes would wait for a gradient it never gets.
            part.requires_grad_(False)
    return towers
