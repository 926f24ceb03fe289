"""Reproduce the tables in the paper on real models, and compare them with the published values.

`PARTS` lists the suites that reproduce the paper's tables, each with the models to run it on.

Source: Chuang et al. (2023) and chapter 7 of the thesis. Data sets are never downloaded, because
users must accept their licences at the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError, did_you_mean, need, one_line
from vldebias.measure.rows import Measurement
from vldebias.report.page import write_page
from vldebias.report.result import Result
from vldebias.report.table import SWEPT, published, published_of_any_model
from vldebias.study.inputs import open_split
from vldebias.study.running import run_suite
from vldebias.study.split import Data
from vldebias.study.suite import Suite, load_suite
from vldebias.study.task import Task
from vldebias.study.tasks.generation import GenerationTask
from vldebias.utils.files import spreadsheet_csv, write_atomically
from vldebias.utils.names import NAMES_WITH_SCHEMA, check_model
from vldebias.utils.options import Options
from vldebias.utils.progress import Progress
from vldebias.utils.schema import file_slug

from ..label.people import PeopleTask

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE = Path(__file__).with_name("page.html.jinja")
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
# The suites for the paper's tables, with the models to measure. The suite `human` must come after
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
# 2025, so its published values are compared with a different pipeline. The tables name both.
PUBLISHED_PIPELINE = "stable diffusion 2.1"
# Table 7.1 uses this model, which is one of the CLIP models in the other tables.
UNNAMED_CLIP = "a CLIP that the paper does not name"
# The tasks in the suite `generation` with published values; a separate command runs the rest.
GENERATION_TASKS = ("pairs", "gender", "race")
# Metrics for which the paper shows images or text instead of values.
UNPUBLISHED = {
    HUMAN: ("alpha", "percent_agreement"),
    BACKGROUNDS: ("pair_distance", "discrepancy", "share"),
}


@dataclass
class Run:
    """One part of the paper on one model, and the state of its measurement.

    Attributes:
        suite: suite that reproduces this part.
        model: NAME:PRETRAINED, or the id of a pipeline.
        missing: why the run cannot start.
        failure: why the run failed.
        waiting: what a person has to do before the run can be completed.
        is_measured: whether there is a result.
    """

    suite: Suite
    model: str
    missing: str = ""
    failure: str = ""
    waiting: str = ""
    is_measured: bool = False

    @property
    def name(self) -> str:
        """Return the name of the run's folder, made from the suite and the model."""
        return file_slug(f"{self.suite.name} {self.model}")

    @property
    def state(self) -> str:
        """Return the state for tables: why the run failed, what it waits for, or "measured"."""
        if self.failure:
            return f"failed: {self.failure}"
        finished = "measured" if self.is_measured else "data are available"
        return self.missing or self.waiting or finished

    def note_result(self, result: Result, out: Path) -> None:
        """Mark the run as measured, and set `waiting` if people still have to label its images.

        Args:
            result: result of the run.
            out: folder of the run.
        """
        measured = {row.task for row in result.rows}
        commands = list[str]()
        for task in self.suite.tasks:
            if isinstance(task, PeopleTask) and task.name not in measured:
                commands.append(task.label_command(out))
        self.is_measured = True
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
    """Plan the runs, and check whether their data are available.

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
        check_model(*_named(model))
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
    """Return the run for a part and a model, with the reason if its data are missing."""
    suite = _suite_of(part, root)
    for task in suite.tasks:
        for data in _data_of(task).values():
            if root is None:
                return Run(suite, model, missing=f"expected {suite.needs}")
            try:
                open_split(data.name, data.root, data.split, data.options)
            except InvalidInputError as error:
                return Run(suite, model, missing=str(error))
    return Run(suite, model)


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


def _named(model: str) -> tuple[str, str | None]:
    """Return the name and the weights' tag of NAME:PRETRAINED or a plain name."""
    # The colon in "hf-hub:timm/ViT-B-16" does not introduce a pretrained tag.
    if model.startswith(NAMES_WITH_SCHEMA):
        return model, None
    name, _, pretrained = model.partition(":")
    return name, pretrained or None


def paper(out: Path, runs: Sequence[Run], options: Options, progress: Progress) -> pd.DataFrame:
    """Measure all runs, and compare them with the published values.

    This writes a folder for each run, paper.csv and index.html. If a run fails, its `failure` is
    set, and the other runs continue.

    Args:
        out: folder for the results.
        runs: runs to measure.
        options: the user's options.
        progress: object that shows progress bars.

    Returns:
        A data frame with the columns `HEAD` and a row for each value that was published for the
        model or measured. `measured` is NaN for values that were not measured, and `published` is
        NaN for values that the paper only reports for other models.
    """
    results = dict[str, Result]()
    for run in runs:
        settings = replace(options, out=out / run.name, cache=options.cache or out / "cache")
        if run.suite.name in PIPELINE_PARTS:
            settings = replace(settings, pipeline=run.model)
        else:
            name, pretrained = _named(run.model)
            settings = replace(settings, model=name, pretrained=pretrained)
        if not run.missing:
            try:
                result = run_suite(run.suite, settings, progress=progress)
                results[run.name] = result
                run.note_result(result, settings.out)
            except Exception as error:  # any library may fail; continue with the other parts
                run.failure = one_line(error)
        progress.print_line(f"{run.suite.name}, {run.model}: {run.state}")
        compared(runs, results, out)
    return compared(runs, results, out)


def compared(runs: Sequence[Run], results: Mapping[str, Result], out: Path) -> pd.DataFrame:
    """Compare measured and published values, and write paper.csv and index.html.

    Args:
        runs: the planned runs, including those without a result.
        results: run name -> result.
        out: folder for the table and the page.

    Returns:
        The data frame that `paper` returns.
    """
    rows = list[tuple[object, ...]]()
    for run in runs:
        rows += _rows(run, results.get(run.name))
    frame = need("pandas").DataFrame(rows, columns=HEAD)
    write_atomically(out / "paper.csv", spreadsheet_csv(frame))
    keys = ["suite", "data", "model", "published of"]
    blocks = [(key, list(block.itertuples())) for key, block in frame.groupby(keys, sort=False)]
    is_reweighted = frame.metric.str.endswith("_reweighted") & frame.published.notna()
    page = {
        "blocks": blocks,
        "runs": runs,
        "found": sentences(frame),
        "has_reweighted": bool(is_reweighted.any()),
    }
    write_page(out / "index.html", TEMPLATE, page)
    return frame


def sentences(frame: pd.DataFrame) -> list[str]:
    """Describe how many published values are inside the measured intervals.

    `frame` is the data frame returned by `compared`.
    """
    measured = frame[frame.measured.notna()]
    both = measured[measured.published.notna()]
    n_published = int(frame.published.notna().sum())
    lines = list[str]()
    if not n_published:
        models = "these models" if len(frame) else "the requested models"
        lines.append(f"The paper has no values for {models}.")
    else:
        inside = int(both.published.between(both.low, both.high).sum())
        were = "was" if len(both) == 1 else "were"
        are = "is" if inside == 1 else "are"
        lines.append(
            f"{len(both)} of {n_published} published values {were} measured again; {inside} of"
            f" them {are} inside the measured 95% interval."
        )
    n_more = len(measured) - len(both)
    if n_more:
        word = "value was" if n_more == 1 else "values were"
        lines.append(f"{n_more} more {word} measured that the paper does not report.")
    return lines


def _rows(run: Run, result: Result | None) -> Iterator[tuple[object, ...]]:
    """Yield a row with the columns `HEAD` for each value that was published or measured."""
    suite = run.suite.name
    source = PUBLISHED_PIPELINE if suite in PIPELINE_PARTS else run.model
    is_of_paper = bool(published(suite, source))
    model = source if is_of_paper else ""
    reasons = _not_fitted(result)
    # The first row of a value has the method's own lambda; the others are from a sweep.
    measurements = dict[tuple[str, str, str, str, float | None], Measurement]()
    for row in result.rows if result is not None else ():
        key = (row.task, row.metric, row.method, row.subset)
        measurements.setdefault((*key, None), row)
        measurements[(*key, row.lam)] = row if row.lam is not None else measurements[(*key, None)]

    def row_of(
        key: tuple[str, str, str, str],
        value: float,
        published_model: str = model,
        lam: float | None = None,
    ) -> Iterator[tuple[object, ...]]:
        task, metric, method, subset = key
        row = measurements.get((*key, lam))
        if row is None and isnan(value):
            return
        numbers = (nan,) * 4
        n = ""
        if row is not None:
            numbers = (row.value, *row.interval, row.value - value)
            n = ", ".join(f"{count:,} {unit}" for unit, count in row.n.items())
        name = f"{metric}, {subset}" if subset else metric
        # Table 7.3 has rows for several lambdas, so the lambda is part of the method's name.
        shown = method if lam is None else f"{method} at lambda {lam:g}"
        about = (suite, task, run.model, name, shown, value, published_model)
        yield (*about, *numbers, n, reasons.get((task, method), ""))

    for lam in (None, *SWEPT):
        for key, value in published_of_any_model(suite, source, lam=lam).items():
            yield from row_of(key, value, lam=lam)
    # Table 7.1 does not name its model, which is one of the models in the other tables.
    for key, value in published(suite, UNNAMED_CLIP).items():
        yield from row_of(key, value if is_of_paper else nan, UNNAMED_CLIP if model else "")
    for task, metric, method, subset, own_lam in list(measurements):
        if own_lam is None and metric in UNPUBLISHED.get(suite, ()):
            yield from row_of((task, metric, method, subset), nan)


def _not_fitted(result: Result | None) -> dict[tuple[str, str], str]:
    """Return the reasons why baselines could not be fitted, by (task, baseline)."""
    reasons = dict[tuple[str, str], str]()
    for provenance in result.provenance if result is not None else ():
        for method, facts in provenance.methods.items():
            if "not_fitted" in facts:
                reasons[provenance.task, method] = f"could not be fitted: {facts['not_fitted']}"
    return reasons
