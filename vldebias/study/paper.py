"""Reproduce the tables in the paper on real models, and compare them with the published figures.

Source: Chuang et al. (2023) and chapter 7 of the thesis. Data sets are never downloaded, because
users must accept their licences at the source.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from vldebias.errors import InvalidInputError, did_you_mean, need, one_line
from vldebias.hosts.loading import SCHEMAS, Loaded, check_name, has_weights, load_host
from vldebias.judge.judges import ClipJudge
from vldebias.report.page import write_page
from vldebias.report.result import Measurement, Result
from vldebias.report.table import SWEPT, published, published_of_any_model
from vldebias.study.inputs import open_split
from vldebias.study.running import run_suite
from vldebias.study.suite import Suite, load_suite
from vldebias.study.task import Data, Task
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.people import PeopleTask
from vldebias.study.tasks.retrieval import RetrievalTask
from vldebias.utils.files import spreadsheet_csv, write_atomically
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import file_slug

if TYPE_CHECKING:
    import pandas as pd

SAMPLE = 128  # number of images per split that are timed to estimate the duration of a run
HEAD = (
    "suite",
    "data",
    "model",
    "metric",
    "method",
    "published",
    "published of",
    "measured",
    "low",
    "high",
    "difference",
    "n",
    "note",
)
GENERATION = "generation"
HUMAN = "human"
BACKGROUNDS = "backgrounds"
PIPELINE = "stable-diffusion-v1-5/stable-diffusion-v1-5"
# This maps the suites for the paper's tables to the models to measure. The
# suite `human` must come after
# `generation`.
PARTS = {
    "waterbirds": ("RN50:openai", "ViT-L-14:openai"),
    "celeba": ("RN50:openai", "ViT-L-14:openai"),
    "fairface": ("ViT-B-32:openai", "ViT-L-14:openai"),
    GENERATION: (PIPELINE,),
    HUMAN: (PIPELINE,),
    BACKGROUNDS: (PIPELINE,),
}
PIPELINE_PARTS = (GENERATION, HUMAN, BACKGROUNDS)
# The paper's image generation tables use this pipeline. It was removed from the hub in November
# 2025, so its published figures are compared with a different pipeline. The tables name both.
PUBLISHED_PIPELINE = "stable diffusion 2.1"
# Table 7.1 uses this model, which is one of the CLIP models in the other tables.
UNNAMED_CLIP = "a CLIP that the paper does not name"
# The tasks in the suite `generation` with published figures; a separate command runs the rest.
GENERATION_TASKS = ("pairs", "gender", "race")
# Metrics for which the paper shows pictures or text instead of figures.
UNPUBLISHED = {
    HUMAN: ("alpha", "percent_agreement"),
    BACKGROUNDS: ("pair_distance", "discrepancy", "share"),
}
GENERATING = (GenerationTask, PeopleTask)


@dataclass
class Run:
    """One part of the paper on one model, and the state of its measurement.

    Attributes:
        suite: suite to run.
        model: NAME:PRETRAINED, or the id of a pipeline.
        sizes: number of images per split, or per image generation task.
        missing: why the run cannot start.
        failure: why the run failed.
        waiting: what a person has to do before the run can be completed.
        weights: whether the weights are available or will be downloaded.
        seconds: estimated duration in seconds.
    """

    suite: Suite
    model: str
    sizes: list[int] = field(default_factory=list)
    missing: str = ""
    failure: str = ""
    waiting: str = ""
    weights: str = ""
    seconds: float | None = None

    @property
    def name(self) -> str:
        """Return the run's folder name."""
        return file_slug(f"{self.suite.name} {self.model}")

    @property
    def state(self) -> str:
        """Return the state of the run as shown in the tables."""
        if self.failure:
            return f"failed: {self.failure}"
        if self.missing:
            return self.missing
        if self.waiting:
            return self.waiting
        if any(_data_of(task) for task in self.suite.tasks):
            return f"data are available, {self.weights}"
        return self.weights

    def note_waiting(self, result: Result, out: Path) -> None:
        """Set `waiting` if people still have to label a task's images.

        Args:
            result: result of the run.
            out: folder of the run.
        """
        measured = {row.task for row in result.rows}
        commands = list[str]()
        for task in self.suite.tasks:
            if isinstance(task, PeopleTask) and task.name not in measured:
                commands.append(task.label_command(out))
        self.waiting = ""
        if commands:
            self.waiting = f"images to label: {'; '.join(commands)}; then repeat this command"


def command(part: str, model: str) -> str:
    """Return the command that runs one part on one model, as shown on pages.

    Args:
        part: part of the paper, a name in `PARTS`.
        model: name of the model or pipeline.
    """
    if part in PIPELINE_PARTS:
        return f"vldebias eval paper --only {part} --pipeline {model}"
    return f"vldebias eval paper --only {part} --model {model} --data-root DIR"


def plan(
    root: Path | None,
    only: Sequence[str] = (),
    models: Sequence[str] = (),
    pipeline: str | None = None,
) -> list[Run]:
    """Plan the runs, and check whether their data and weights are available.

    This reads labels, but no images or weights.

    Args:
        root: folder that contains the data sets, possibly in subfolders named after them.
        only: names in `PARTS`. If empty, all parts are planned.
        models: models to measure instead of the paper's: NAME:PRETRAINED for open_clip, an id on
            the hub, or "miniature".
        pipeline: pipeline to measure instead of the paper's: an id on the hub, a folder, or
            "miniature".

    Raises:
        InvalidInputError: If there is no such part, or open_clip does not list the model with these
            weights.
    """
    for model in models:
        check_name(**_named(model))
    runs = list[Run]()
    for part in only or PARTS:
        if part not in PARTS:
            hint = did_you_mean(part, list(PARTS))
            raise InvalidInputError(
                f"--only: got {part!r}; expected some of {', '.join(PARTS)}; {hint}"
            )
        # `models` replaces the CLIP models in the tables, and `pipeline` the paper's pipeline.
        requested = list(models)
        if part in PIPELINE_PARTS:
            requested = [pipeline] if pipeline else []
        for model in requested or PARTS[part]:
            runs.append(_planned(part, model, root))
    return runs


def _planned(part: str, model: str, root: Path | None) -> Run:
    """Return the run for a part and a model, with image counts and the availability of weights."""
    suite = _suite_of(part, root)
    splits = dict[str, Data]()  # splits shared by several tasks are embedded only once
    named = [_named(model)]
    if suite.name in PIPELINE_PARTS:
        named = [_ModelName(model=model, pretrained=None)]
    for task in suite.tasks:
        for spec in _data_of(task).values():
            splits.setdefault(spec.model_dump_json(), spec)
        # The judge in the suite is a separate model with its own weights.
        if isinstance(task, GenerationTask) and isinstance(task.judge, ClipJudge):
            judge = task.judge
            if judge.model is not None:
                named.append(_ModelName(model=judge.model, pretrained=judge.pretrained))
    if splits and root is None:
        return Run(suite, model, missing=f"expected {suite.needs}")
    # Count the images in each split, and the images that each task generates.
    sizes = list[int]()
    try:
        for task in suite.tasks:
            if isinstance(task, GENERATING):
                sizes.append(len(task.plan().all_images))
        for spec in splits.values():
            sizes.append(len(open_split(spec.name, spec.root, spec.split, spec.options)))
    except InvalidInputError as error:
        return Run(suite, model, missing=str(error))
    are_here = all(has_weights(**names) for names in named)
    weights = "weights are available" if are_here else "weights will be downloaded"
    return Run(suite, model, sizes, weights=weights)


def _suite_of(part: str, root: Path | None) -> Suite:
    """Return the suite for a part, with the data folder filled in.

    The suite `generation` is reduced to the paper's experiment: 100 images for each of 100
    professions, with and without the method, for gender and race.
    """
    suite = load_suite(part)
    folder = root
    # The data set may be in a subfolder named after it, or directly in `root`.
    if root is not None and (root / suite.name).exists():
        folder = root / suite.name
    tasks = list[Task]()
    for task in suite.tasks:
        if part == GENERATION and task.name not in GENERATION_TASKS:
            continue
        changes = dict[str, object]()
        for name, spec in _data_of(task).items():
            changes[name] = spec.model_copy(update={"root": folder})
        if part == GENERATION and isinstance(task, GenerationTask):
            changes["variants"] = {"cali": task.variants["cali"]}
            # The paper does not report stated prompts, everyday wordings or CLIPScore.
            changes |= {"stated": False, "as_written": False, "clip_score": False}
        tasks.append(task.model_copy(update=changes))
    return suite.model_copy(update={"tasks": tuple(tasks)})


def _data_of(task: Task) -> dict[str, Data]:
    """Return the splits that a task uses, by field name."""
    return {name: value for name, value in task if isinstance(value, Data)}


class _ModelName(TypedDict):
    """Arguments of `load_host` that specify an image-text model."""

    model: str
    pretrained: str | None


class _FigureKey(NamedTuple):
    """Key of a figure in a suite. The method has the name used in tables."""

    task: str
    metric: str
    method: str
    subset: str


class _ComparedFigure(NamedTuple):
    """A measured figure or None, and the published value or NaN."""

    key: _FigureKey
    measured: Measurement | None
    value: float
    model: str


def _named(model: str) -> _ModelName:
    """Return the `load_host` arguments for NAME:PRETRAINED or a plain name."""
    # The colon in "hf-hub:timm/ViT-B-16" does not introduce a pretrained tag.
    if model.startswith(SCHEMAS):
        return {"model": model, "pretrained": None}
    name, _, pretrained = model.partition(":")
    return {"model": name, "pretrained": pretrained or None}


def estimate(run: Run, loaded: Loaded, options: Options) -> float:
    """Estimate a run's duration in seconds on this machine from a timed sample.

    A pipeline generates one batch. For a model, `SAMPLE` images per split are measured; the time
    includes loading, so the estimate tends to be too high.

    Args:
        run: the run.
        loaded: model or pipeline of the run.
        options: the user's options.
    """
    for task in run.suite.tasks:
        if isinstance(task, GENERATING):
            # All images take the same time, so one batch is sufficient. Judging is comparatively
            # cheap. The warm-up call excludes one-time costs such as loading kernels and filling
            # caches.
            texts = ["A photo of a doctor."] * task.batch_size
            loaded.host(texts, num_inference_steps=1, **task.options)
            started = time.monotonic()
            loaded.host(texts, num_inference_steps=task.steps, **task.options)
            return (time.monotonic() - started) / len(texts) * sum(run.sizes)
    started = time.monotonic()
    tasks = list[Task]()
    for task in run.suite.tasks:
        if isinstance(task, RetrievalTask):  # k must be smaller than the sample
            task = task.model_copy(update={"k": [min(k, SAMPLE // 2) for k in task.k]})
        tasks.append(task)
    suite = run.suite.model_copy(update={"tasks": tuple(tasks)})
    with tempfile.TemporaryDirectory() as folder:
        sample = replace(options, out=Path(folder), cache=Path(folder) / "cache", limit=SAMPLE)
        run_suite(suite, sample, loaded=loaded, progress=SILENT)
    # The time for loading is scaled up too, so the estimate tends to be too high.
    timed = sum(min(SAMPLE, size) for size in run.sizes)
    return (time.monotonic() - started) * sum(run.sizes) / timed


def paper(
    out: Path,
    runs: Sequence[Run],
    options: Options,
    progress: Progress,
    *,
    stop_after_estimate: bool = False,
) -> pd.DataFrame:
    """Estimate the duration of all runs, measure them, and compare them with published figures.

    This writes a folder for each run, paper.csv and index.html. If a run fails, its `failure` is
    set, and the other runs continue.

    Args:
        out: folder for the results.
        runs: runs to measure.
        options: the user's options.
        progress: progress bars.
        stop_after_estimate: whether to only estimate the durations.

    Returns:
        A data frame with the columns `HEAD` and a row for each figure that was published for the
        model or measured. `measured` is NaN for figures that were not measured, and `published` is
        NaN for figures that the paper only reports for other models.
    """
    results = dict[str, Result]()
    for run in runs:
        if run.missing:
            progress.print_line(f"{run.suite.name}, {run.model}: not measured: {run.missing}")
            continue
        try:
            loaded, settings = _opened(out, run, options, progress)
            hours = f"about {(run.seconds or 0) / 3600:.2f} hours on {settings.device}"
            progress.print_line(
                f"{run.suite.name}, {run.model}: {sum(run.sizes):,} images, {hours}"
            )
            if not stop_after_estimate:
                result = run_suite(run.suite, settings, loaded=loaded, progress=progress)
                results[run.name] = result
                run.note_waiting(result, settings.out)
                if run.waiting:
                    progress.print_line(f"{run.suite.name}, {run.model}: {run.waiting}")
        except Exception as error:  # any library may fail; continue with the other parts
            run.failure = one_line(error)
            progress.print_line(f"{run.suite.name}, {run.model}: {run.state}")
        compared(runs, results, out)
    return compared(runs, results, out)


def _opened(out: Path, run: Run, options: Options, progress: Progress) -> tuple[Loaded, Options]:
    """Load a run's model, estimate the duration, and return the model and the run's options."""
    settings = replace(options, out=out / run.name, cache=options.cache or out / "cache")
    if run.suite.name in PIPELINE_PARTS:
        settings = replace(settings, pipeline=run.model)
    else:
        settings = replace(settings, **_named(run.model))
    with progress.bar(f"loading {run.model} and timing a sample of {run.suite.name}"):
        loaded = load_host(
            settings.model,
            settings.pretrained,
            settings.pipeline,
            device=settings.device,
            dtype=settings.dtype,
        )
        run.seconds = estimate(run, loaded, settings)
    return loaded, settings


def compared(runs: Sequence[Run], results: Mapping[str, Result], out: Path) -> pd.DataFrame:
    """Compare measured and published figures, and write paper.csv and index.html.

    Args:
        runs: the runs.
        results: run name -> result.
        out: folder for the table and the page.
    """
    rows = list[tuple[object, ...]]()
    for run in runs:
        result = results.get(run.name)
        reasons = _not_fitted(result)
        for figure in _figures(run, result):
            if figure.measured is not None or not isnan(figure.value):
                reason = reasons.get((figure.key.task, figure.key.method), "")
                rows.append((*_row(run, figure), reason))
    frame = need("pandas").DataFrame(rows, columns=HEAD)
    write_atomically(out / "paper.csv", spreadsheet_csv(frame))
    keys = ["suite", "data", "model", "published of"]
    blocks = [(key, list(block.itertuples())) for key, block in frame.groupby(keys, sort=False)]
    states = [(run, run.name in results) for run in runs]
    is_reweighted = frame.metric.str.endswith("_reweighted") & frame.published.notna()
    page = {
        "blocks": blocks,
        "runs": states,
        "found": sentences(frame),
        "has_reweighted": bool(is_reweighted.any()),
    }
    write_page(out / "index.html", "paper", page)
    return frame


def sentences(frame: pd.DataFrame) -> list[str]:
    """Describe how many published figures are inside the measured intervals.

    `frame` is the data frame returned by `compared`.
    """
    measured = frame[frame.measured.notna()]
    both = measured[measured.published.notna()]
    n_published = int(frame.published.notna().sum())
    lines = list[str]()
    if not n_published:
        models = "these models" if len(frame) else "the requested models"
        lines.append(f"The paper has no figures for {models}.")
    else:
        inside = int(both.published.between(both.low, both.high).sum())
        were = "was" if len(both) == 1 else "were"
        are = "is" if inside == 1 else "are"
        lines.append(
            f"{len(both)} of {n_published} published figures {were} measured again; {inside} of"
            f" them {are} inside the measured 95% interval."
        )
    n_more = len(measured) - len(both)
    if n_more:
        word = "figure was" if n_more == 1 else "figures were"
        lines.append(f"{n_more} more {word} measured that the paper does not report.")
    return lines


def _figures(run: Run, result: Result | None) -> list[_ComparedFigure]:
    """Return the figures published for a run, and those measured for `UNPUBLISHED` metrics."""
    suite = run.suite.name
    source = PUBLISHED_PIPELINE if suite in PIPELINE_PARTS else run.model
    is_of_paper = bool(published(suite, source))
    model = source if is_of_paper else ""
    row_of_figure = dict[_FigureKey, Measurement]()
    row_at_lam = dict[tuple[_FigureKey, float | None], Measurement]()
    for row in result.rows if result is not None else ():
        key = _FigureKey(row.task, row.metric, row.method, row.subset)
        row_of_figure.setdefault(key, row)
        row_at_lam[key, row.lam] = row

    figures = list[_ComparedFigure]()
    for names, value in published_of_any_model(suite, source).items():
        key = _FigureKey(*names)
        figures.append(_ComparedFigure(key, row_of_figure.get(key), value, model))
    # Table 7.3 repeats the rows at other lambdas, which become part of the method name.
    for lam in SWEPT:
        for names, value in published_of_any_model(suite, source, lam=lam).items():
            key = _FigureKey(*names)
            shown = key._replace(method=f"{key.method} at lambda {lam:g}")
            figures.append(_ComparedFigure(shown, row_at_lam.get((key, lam)), value, model))
    # Table 7.1 covers one of the models in the other tables.
    for names, value in published(suite, UNNAMED_CLIP).items():
        key = _FigureKey(*names)
        cosine = value if is_of_paper else nan
        unnamed = UNNAMED_CLIP if model else ""
        figures.append(_ComparedFigure(key, row_of_figure.get(key), cosine, unnamed))
    for key, measurement in row_of_figure.items():
        if measurement.metric in UNPUBLISHED.get(suite, ()):
            figures.append(_ComparedFigure(key, measurement, nan, model))
    return figures


def _not_fitted(result: Result | None) -> dict[tuple[str, str], str]:
    """Return the reasons why baselines could not be fitted, by (task, baseline)."""
    reasons = dict[tuple[str, str], str]()
    for provenance in result.provenance if result is not None else ():
        for method, facts in provenance.methods.items():
            if "not_fitted" in facts:
                reasons[provenance.task, method] = f"could not be fitted: {facts['not_fitted']}"
    return reasons


def _row(run: Run, figure: _ComparedFigure) -> tuple[object, ...]:
    """Return a row with all columns in `HEAD` except for the note."""
    task, metric, method, subset = figure.key
    name = f"{metric}, {subset}" if subset else metric
    numbers = (nan,) * 4
    n = ""
    row = figure.measured
    if row is not None:
        numbers = (row.value, *row.interval, row.value - figure.value)
        n = ", ".join(f"{count:,} {unit}" for unit, count in row.n.items())
    shown = (run.suite.name, task, run.model, name, method, figure.value, figure.model)
    return (*shown, *numbers, n)
