"""Measure the tables of the paper on real models in one run: requirements, time needed, measured next to published.

Chuang et al. (2023); chapter 7 of the thesis. Models and data are named, never downloaded data sets: their licences are
accepted at the source.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.report import published, write_page
from vldebias.evaluation.result import Result
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.run import run_suite
from vldebias.evaluation.session import open_split
from vldebias.evaluation.task import Data, Options, Suite, Task, file_slug, load_suite
from vldebias.files import read_json, write_atomically
from vldebias.loading import Loaded, load_host
from vldebias.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd

PIPELINE = "stable-diffusion-v1-5/stable-diffusion-v1-5"
"""The paper's pipeline, Stable Diffusion 2.1, left the hub in November 2025; figures differ for that reason too."""
SAMPLES = (32, 128)  # images of each split, timed to estimate the rest
STEPS = (2, 6)  # denoising steps, timed to estimate the rest
HEAD = ("table", "data", "model", "metric", "method", "published", "measured", "low", "high", "difference", "n")


@dataclass(frozen=True)
class Part:
    """Describe a part of the paper: its suite, the files to provide, and their approximate size in gigabytes."""

    table: str
    models: tuple[str, ...]
    data: str
    licence: str
    gigabytes: float


PARTS = {
    "waterbirds": Part(
        "7.2 to 7.4",
        ("RN50:openai", "ViT-L-14:openai"),
        "waterbird_complete95_forest2water2 (github.com/kohpangwei/group_DRO, or WILDS): metadata.csv and its images",
        "images of CUB-200-2011 and Places, non-commercial research",
        0.5,
    ),
    "celeba": Part(
        "7.2 to 7.4",
        ("RN50:openai", "ViT-L-14:openai"),
        "CelebA, aligned (mmlab.ie.cuhk.edu.hk/projects/CelebA.html): img_align_celeba/, attributes and partition",
        "non-commercial research",
        1.5,
    ),
    "fairface": Part(
        "7.5",
        ("ViT-B-32:openai", "ViT-L-14:openai"),
        "FairFace, padding 0.25 (github.com/joojs/fairface): fairface_label_val.csv and val/",
        "CC BY 4.0",
        0.1,
    ),
    "generation": Part("7.7", (), "a pipeline and a judge; 80 + 20 professions come with the package", "", 5.0),
}
GENERATED = {  # Table 7.7, of unseen professions: (task, metric, subset) -> none, cali
    ("gender", "discrepancy", "unseen professions"): (0.412, 0.354),
    ("race", "discrepancy", "unseen professions"): (0.528, 0.455),
}


@dataclass
class Run:
    """Hold one model, or the pipeline, with all parts that it is measured on; each model is loaded once.

    sizes: images of each split, or of each task that generates. missing: part -> why it cannot be measured.
    """

    model: str
    parts: list[str]
    tasks: list[Task] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def images(self) -> int:
        """Return how many images are read or generated."""
        return sum(self.sizes)

    @property
    def generates(self) -> bool:
        """Return whether the run is that of a pipeline."""
        return "generation" in self.parts

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return file_slug(self.model)

    def options(self, out: Path, given: Options) -> Options:
        """Return the user's options with the model, a folder for this run and one embedding cache for all runs."""
        model, _, pretrained = self.model.partition(":")
        named = {"pipeline": self.model} if self.generates else {"model": model, "pretrained": pretrained or None}
        return replace(given, out=out / self.name, cache=given.cache or out / "cache", **named)

    def measure(self, loaded: Loaded, options: Options, progress: Progress) -> Result:
        """Measure all parts and return the result; a second call with the same folder continues an interrupted one."""
        fields: dict[str, Any] = {"name": self.name, "title": f"The paper's tables, {self.model}", "needs": "data"}
        fields |= {"description": "Tables 7.2 to 7.7: groups, search and generation of one model."}
        fields |= {"source": "Chuang et al. (2023); chapter 7 of the thesis", "tasks": tuple(self.tasks)}
        return run_suite(Suite.build(fields), options, loaded=loaded, progress=progress)


def plan(
    root: Path | None, only: Sequence[str] = (), models: Sequence[str] = (), pipeline: str | None = None
) -> list[Run]:
    """Return the runs, with what each needs and what is available; reads labels but no images and no weights.

    Args:
        root: the folder of the data sets, each in a folder of its name or all in one.
        only: some of `PARTS`; none: all. models: NAME:PRETRAINED for open_clip, an id of the hub, or "miniature", in
            place of the paper's. pipeline: in place of `PIPELINE`.

    Raises:
        InvalidInputError: a part that does not exist.
    """
    for part in only:
        if part not in PARTS:
            raise InvalidInputError(
                f"--only: expected {', '.join(PARTS)}, got {part!r}; {did_you_mean(part, list(PARTS))}"
            )
    runs: dict[str, Run] = {}
    for part in only or PARTS:
        for model in (pipeline or PIPELINE,) if part == "generation" else models or PARTS[part].models:
            run = runs.setdefault(f"{part == 'generation'} {model}", Run(model, []))
            run.parts.append(part)
            try:
                tasks, sizes = _tasks(part, root)
            except InvalidInputError as error:
                run.missing[part] = str(error)
            else:
                run.tasks += tasks
                run.sizes += sizes
    return list(runs.values())


def _tasks(part: str, root: Path | None) -> tuple[list[Task], list[int]]:
    """Return the tasks of a part with their data found, and the numbers of images that they read or generate."""
    tasks, sizes = list[Task](), list[int]()
    for task in load_suite(part).tasks:
        specs = {name: spec for name in type(task).model_fields if isinstance(spec := getattr(task, name), Data)}
        if isinstance(task, GenerationTask):
            sizes.append(_generated(task))
        if specs and root is None:
            raise InvalidInputError(f"expected --data-root with {PARTS[part].data}")
        own = root / part if root is not None and (root / part).exists() else root
        for name, spec in specs.items():
            specs[name] = spec.model_copy(update={"root": own})
            sizes.append(len(open_split(spec.name, own, spec.split, spec.options)))
        tasks.append(task.model_copy(update=specs))
    return tasks, sizes


def _generated(task: GenerationTask) -> int:
    """Return how many images a task generates."""
    return len(task.plan({}).all_images)


def estimate(run: Run, loaded: Loaded, options: Options) -> float:
    """Return the seconds that a run will take on this machine, extrapolated linearly from two timed samples.

    A model measures two samples of its splits; a pipeline generates one batch with two numbers of steps.
    """
    if run.generates:
        return _generating(run, loaded, options)
    spent, read = list[float](), [sum(min(limit, size) for size in run.sizes) for limit in SAMPLES]
    for limit in SAMPLES:
        tasks = [  # a ranking of a sample is shorter than it
            one.model_copy(update={"k": [min(k, limit // 2) for k in one.k]}) if isinstance(one, RetrievalTask) else one
            for one in run.tasks
        ]
        with tempfile.TemporaryDirectory() as folder:
            sample = replace(options, out=Path(folder), cache=Path(folder) / "cache", limit=limit)
            started = time.monotonic()
            replace(run, tasks=tasks).measure(loaded, sample, SILENT)
            spent.append(time.monotonic() - started)
    each = max(spent[1] - spent[0], 0.0) / max(read[1] - read[0], 1)
    return spent[1] + each * (run.images - read[1])


def _generating(run: Run, loaded: Loaded, options: Options) -> float:
    task = next(task for task in run.tasks if isinstance(task, GenerationTask)).with_options(options)
    size, spent = min(task.batch_size, 4), []
    loaded.host.set_progress_bar_config(disable=True)
    for steps in (1, *STEPS):  # the first warms up
        started = time.monotonic()
        loaded.host(["A photo of a doctor."] * size, num_inference_steps=steps, **task.options)
        spent.append(time.monotonic() - started)
    each = max((spent[2] - spent[1]) / (STEPS[1] - STEPS[0]), 0.0)
    fixed = max(spent[1] - STEPS[0] * each, 0.0)
    return run.images / size * (fixed + task.steps * each)


def paper(
    out: Path, runs: Sequence[Run], options: Options, progress: Progress, *, stop_after_estimate: bool = False
) -> pd.DataFrame:
    """Estimate, measure and compare all runs; write estimate.json, a folder for each run, paper.csv and index.html.

    Returns:
        A frame with the columns `HEAD`, a row for each published figure; `measured` is NaN where it is not measured.
    """
    known = read_json(out / "estimate.json") if (out / "estimate.json").is_file() else {}
    hosts: dict[str, Loaded] = {}
    for run in (run for run in runs if run.tasks):
        own = run.options(out, options)
        if run.generates:
            run.sizes = [_generated(t.with_options(own)) for t in run.tasks if isinstance(t, GenerationTask)]
        with progress.step(f"loading {run.model}"):
            hosts[run.name] = load_host(own.model, own.pretrained, own.pipeline, device=own.device, dtype=own.dtype)
        key = f"{run.name} {run.images} {own.device}"
        if key not in known:
            with progress.step(f"timing a sample of {run.model}"):
                known[key] = round(estimate(run, hosts[run.name], own), 1)
            write_atomically(out / "estimate.json", json.dumps(known, indent=1) + "\n")
        run.seconds = known[key]
        progress.say(f"{run.model}: {run.images:,} images, about {run.seconds / 3600:.2f} hours on {own.device}")
    results: list[tuple[Run, Result]] = []
    for run in () if stop_after_estimate else [run for run in runs if run.tasks]:
        results.append((run, run.measure(hosts.pop(run.name), run.options(out, options), progress)))
        compared(runs, results, out)
    return compared(runs, results, out)


def compared(runs: Sequence[Run], results: Sequence[tuple[Run, Result]], out: Path) -> pd.DataFrame:
    """Return measured next to published figures as a frame, also written as paper.csv and the page index.html."""
    pd = need("pandas")
    done = {run.name: result for run, result in results}
    rows = []
    for run in runs:
        measured = {}
        if run.name in done:
            measured = {(r.task, r.metric, r.method, r.subset): r for r in reversed(done[run.name].rows)}
        for part in run.parts:
            for (task, metric, method, subset), value in _published(part, run.model).items():
                row = measured.get((task, metric, method, subset))
                figures: Any = (float("nan"),) * 4 if row is None else (row.value, *row.interval, row.value - value)
                n = "" if row is None else ", ".join(f"{count:,} {what}" for what, count in row.n.items())
                name = f"{metric}, {subset}" if subset else metric
                rows.append((PARTS[part].table, task, run.model, name, method, value, *figures, n))
    frame = pd.DataFrame(rows, columns=HEAD)
    write_atomically(out / "paper.csv", frame.to_csv(index=False))
    blocks = [(key, list(block.itertuples())) for key, block in frame.groupby(["table", "data", "model"], sort=False)]
    write_page(out / "index.html", "paper", {"blocks": blocks, "runs": [(run, run.name in done) for run in runs]})
    return frame


def _published(part: str, model: str) -> dict[tuple[str, str, str, str], float]:
    """Return (task, metric, method, subset) -> figure of the paper; those of its own models alone."""
    if part != "generation":
        return {(*names, ""): value for names, value in published(part, [model]).items()}
    return {
        (task, metric, method, subset): value
        for (task, metric, subset), pair in GENERATED.items()
        for method, value in zip(("none", "cali"), pair, strict=True)
    }
