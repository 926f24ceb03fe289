"""Measure the tables of the paper on real models in one run: requirements, time needed, measured
next to published.

Chuang et al. (2023); chapter 7 of the thesis. Models and data are named, never downloaded data
sets: their licences are accepted at the source.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.files import write_atomically
from vldebias.hosts.loading import Loaded, load_host
from vldebias.measure.report import published, write_page
from vldebias.measure.result import Result
from vldebias.options import Options
from vldebias.progress import SILENT, Progress
from vldebias.schema import file_slug
from vldebias.study.generation import GenerationTask
from vldebias.study.retrieval import RetrievalTask
from vldebias.study.run import Suite, load_suite, run_suite
from vldebias.study.task import Data, Task, open_split

if TYPE_CHECKING:
    import pandas as pd

SAMPLE = 128  # images of each split, timed to estimate the rest
HEAD = (
    "suite",
    "data",
    "model",
    "metric",
    "method",
    "published",
    "measured",
    "low",
    "high",
    "difference",
    "n",
)
PARTS = {
    "waterbirds": ("RN50:openai", "ViT-L-14:openai"),
    "celeba": ("RN50:openai", "ViT-L-14:openai"),
    "fairface": ("ViT-B-32:openai", "ViT-L-14:openai"),
    "generation": (
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
    ),  # the paper's, 2.1, left the hub in November 2025
}
"""The suites with published figures, and the models to measure; a suite says what it needs."""


@dataclass
class Run:
    """Hold one part of the paper on one model: what is measured of it, or why it cannot be.

    sizes: images of each split, or of each task that generates. seconds: about how long it takes.
    """

    suite: Suite
    model: str
    sizes: list[int] = field(default_factory=list)
    missing: str = ""
    seconds: float | None = None

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return file_slug(f"{self.suite.name} {self.model}")


def plan(
    root: Path | None,
    only: Sequence[str] = (),
    models: Sequence[str] = (),
    pipeline: str | None = None,
) -> list[Run]:
    """Return the runs, with what each needs and what is available; reads labels but no images and
    no weights.

    root: the folder of the data sets, each in a folder of its name or all in one. only: some of
    `PARTS`; none: all.
    models: NAME:PRETRAINED for open_clip, an id of the hub, or "miniature", in place of the
    paper's. pipeline: also. A part that does not exist raises InvalidInputError.
    """
    runs = list[Run]()
    for part in only or PARTS:
        if part not in PARTS:
            hint = did_you_mean(part, list(PARTS))
            raise InvalidInputError(
                f"--only: got {part!r}; expected some of {', '.join(PARTS)}; {hint}"
            )
        suite, tasks, sizes, missing = load_suite(part), list[Task](), list[int](), ""
        own = root / part if root is not None and (root / part).exists() else root
        try:
            for task in suite.tasks:
                specs = {name: spec for name, spec in task if isinstance(spec, Data)}
                if specs and root is None:
                    raise InvalidInputError(f"expected {suite.needs}")
                sizes += [
                    len(open_split(spec.name, own, spec.split, spec.options))
                    for spec in specs.values()
                ]
                sizes += [len(task.plan().all_images)] if isinstance(task, GenerationTask) else []
                found = {
                    name: spec.model_copy(update={"root": own}) for name, spec in specs.items()
                }
                tasks.append(task.model_copy(update=found))
        except InvalidInputError as error:
            sizes, missing = [], str(error)
        suite = suite.model_copy(update={"tasks": tuple(tasks)})
        asked = models if part != "generation" else [pipeline] if pipeline else []
        runs += [Run(suite, model, sizes, missing) for model in asked or PARTS[part]]
    return runs


def estimate(run: Run, loaded: Loaded, options: Options) -> float:
    """Return about how many seconds a run takes on this machine, from one timed sample.

    A pipeline generates one batch; a model measures `SAMPLE` images of each split, loading
    included, so the estimate of a model is rather too long.
    """
    started, timed, tasks = (
        time.monotonic(),
        sum(min(SAMPLE, size) for size in run.sizes),
        list[Task](),
    )
    for task in run.suite.tasks:
        if isinstance(task, GenerationTask):
            timed = min(task.batch_size, 4)
            loaded.host(
                ["A photo of a doctor."] * timed, num_inference_steps=task.steps, **task.options
            )
            return (time.monotonic() - started) * sum(run.sizes) / timed
        shorter = (
            {"k": [min(k, SAMPLE // 2) for k in task.k]} if isinstance(task, RetrievalTask) else {}
        )
        tasks.append(task.model_copy(update=shorter))  # a ranking of a sample is shorter than it
    with tempfile.TemporaryDirectory() as folder:
        sample = replace(options, out=Path(folder), cache=Path(folder) / "cache", limit=SAMPLE)
        run_suite(
            run.suite.model_copy(update={"tasks": tuple(tasks)}),
            sample,
            loaded=loaded,
            progress=SILENT,
        )
    return (time.monotonic() - started) * sum(run.sizes) / timed


def paper(
    out: Path,
    runs: Sequence[Run],
    options: Options,
    progress: Progress,
    *,
    stop_after_estimate: bool = False,
) -> pd.DataFrame:
    """Estimate, measure and compare all runs; write a folder for each run, paper.csv and
    index.html.

    The frame has the columns `HEAD` and a row for each published figure; `measured` is NaN where it
    is not measured.
    """
    results = dict[str, Result]()
    for run in runs:
        if run.missing:
            continue
        model, _, pretrained = run.model.partition(":")
        named: dict[str, Any] = {"model": model, "pretrained": pretrained or None}
        named = {"pipeline": run.model} if run.suite.name == "generation" else named
        own = replace(options, out=out / run.name, cache=options.cache or out / "cache", **named)
        with progress.bar(f"loading {run.model} and timing a sample of {run.suite.name}"):
            loaded = load_host(
                own.model, own.pretrained, own.pipeline, device=own.device, dtype=own.dtype
            )
            run.seconds = estimate(run, loaded, own)
        hours = f"{sum(run.sizes):,} images, about {run.seconds / 3600:.2f} hours on {own.device}"
        progress.say(f"{run.suite.name}, {run.model}: {hours}")
        if not stop_after_estimate:
            results[run.name] = run_suite(run.suite, own, loaded=loaded, progress=progress)
            compared(runs, results, out)
    return compared(runs, results, out)


def compared(runs: Sequence[Run], results: Mapping[str, Result], out: Path) -> pd.DataFrame:
    """Return measured next to published figures as a frame, also written as paper.csv and the page
    index.html.

    results: name of a run -> its result.
    """
    rows = []
    for run in runs:
        every = results[run.name].rows if run.name in results else []
        measured = {(r.task, r.metric, r.method, r.subset): r for r in reversed(every)}
        figures = published(
            run.suite.name, "stable diffusion 2.1" if run.suite.name == "generation" else run.model
        )
        for (task, metric, method, subset), value in figures.items():
            row, own, n = measured.get((task, metric, method, subset)), (float("nan"),) * 4, ""
            if row is not None:
                own = (row.value, *row.interval, row.value - value)
                n = ", ".join(f"{count:,} {what}" for what, count in row.n.items())
            name = f"{metric}, {subset}" if subset else metric
            rows.append((run.suite.name, task, run.model, name, method, value, *own, n))
    frame = need("pandas").DataFrame(rows, columns=HEAD)
    write_atomically(out / "paper.csv", frame.to_csv(index=False))
    blocks = [
        (key, list(block.itertuples()))
        for key, block in frame.groupby(["suite", "data", "model"], sort=False)
    ]
    write_page(
        out / "index.html",
        "paper",
        {"blocks": blocks, "runs": [(run, run.name in results) for run in runs]},
    )
    return frame
