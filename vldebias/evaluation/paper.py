"""Measure the tables of the paper on real models in one run: requirements, time needed, measured next to published.

Chuang et al. (2023); chapter 7 of the thesis. Models and data are named, never downloaded data sets: their licences are
accepted at the source.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.report import published, write_page
from vldebias.evaluation.result import Result
from vldebias.evaluation.retrieval import RetrievalTask
from vldebias.evaluation.run import run_suite
from vldebias.evaluation.session import open_split
from vldebias.evaluation.task import Data, Options, Suite, Task, file_slug, load_suite
from vldebias.files import write_atomically
from vldebias.loading import Loaded, load_host
from vldebias.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd

PIPELINE = "stable-diffusion-v1-5/stable-diffusion-v1-5"
"""The paper's pipeline, Stable Diffusion 2.1, left the hub in November 2025; figures differ for that reason too."""
SAMPLE = 128  # images of each split, timed to estimate the rest
HEAD = ("table", "data", "model", "metric", "method", "published", "measured", "low", "high", "difference", "n")


class Part(NamedTuple):
    """Describe a part of the paper: its tables, its models, and the files to provide with size and licence."""

    table: str
    models: tuple[str, ...]
    needs: str


PARTS = {
    "waterbirds": Part("7.2 to 7.4", ("RN50:openai", "ViT-L-14:openai"),
        "waterbird_complete95_forest2water2 (github.com/kohpangwei/group_DRO, or WILDS): metadata.csv and its images; "
        "about 0.5 GB; images of CUB-200-2011 and Places, non-commercial research"),
    "celeba": Part("7.2 to 7.4", ("RN50:openai", "ViT-L-14:openai"),
        "CelebA, aligned (mmlab.ie.cuhk.edu.hk/projects/CelebA.html): img_align_celeba/, attributes and partition; "
        "about 1.5 GB; non-commercial research"),
    "fairface": Part("7.5", ("ViT-B-32:openai", "ViT-L-14:openai"),
        "FairFace, padding 0.25 (github.com/joojs/fairface): fairface_label_val.csv and val/; about 0.1 GB; CC BY 4.0"),
    "generation": Part("7.6 and 7.7", (),
        "a pipeline and a judge; 80 + 20 professions come with the package; about 5 GB"),
}  # fmt: skip


@dataclass
class Run:
    """Hold one model, or the pipeline, with all parts that it is measured on; each model is loaded once.

    sizes: images of each split, or of each task that generates. missing: part -> why it cannot be measured. seconds:
    about how long it takes.
    """

    model: str
    generates: bool
    parts: list[str] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def images(self) -> int:
        """Return how many images are read or generated."""
        return sum(self.sizes)

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return file_slug(self.model)

    def measure(self, loaded: Loaded, options: Options, progress: Progress = SILENT) -> Result:
        """Measure all parts and return the result; a second call with the same folder continues an interrupted one."""
        fields = {"name": self.name, "title": f"The paper's tables, {self.model}", "needs": "data"}
        fields |= {"description": "Groups, search and generation of one model.", "source": "Chuang et al. (2023)"}
        return run_suite(Suite.build({**fields, "tasks": self.tasks}), options, loaded=loaded, progress=progress)


def plan(
    root: Path | None, only: Sequence[str] = (), models: Sequence[str] = (), pipeline: str | None = None
) -> list[Run]:
    """Return the runs, with what each needs and what is available; reads labels but no images and no weights.

    root: the folder of the data sets, each in a folder of its name or all in one. only: some of `PARTS`; none: all.
    models: NAME:PRETRAINED for open_clip, an id of the hub, or "miniature", in place of the paper's. pipeline: also.
    A part that does not exist raises InvalidInputError.
    """
    runs: dict[tuple[bool, str], Run] = {}
    for part in only or PARTS:
        if part not in PARTS:
            hint = did_you_mean(part, list(PARTS))
            raise InvalidInputError(f"--only: got {part!r}; expected some of {', '.join(PARTS)}; {hint}")
        generates, tasks, sizes, problem = part == "generation", list[Task](), list[int](), ""
        own = root / part if root is not None and (root / part).exists() else root
        try:
            for task in load_suite(part).tasks:
                specs = {name: spec for name, spec in task if isinstance(spec, Data)}
                if specs and root is None:
                    raise InvalidInputError(f"expected --data-root with {PARTS[part].needs}")
                sizes += [len(open_split(spec.name, own, spec.split, spec.options)) for spec in specs.values()]
                sizes += [len(task.plan().all_images)] if isinstance(task, GenerationTask) else []
                found = {name: spec.model_copy(update={"root": own}) for name, spec in specs.items()}
                tasks.append(task.model_copy(update=found))
        except InvalidInputError as error:
            tasks, sizes, problem = [], [], str(error)
        for model in (pipeline or PIPELINE,) if generates else models or PARTS[part].models:
            run = runs.setdefault((generates, model), Run(model, generates))
            run.parts.append(part)
            run.tasks += tasks
            run.sizes += sizes
            run.missing |= {part: problem} if problem else {}
    return list(runs.values())


def estimate(run: Run, loaded: Loaded, options: Options) -> float:
    """Return about how many seconds a run takes on this machine, from one timed sample.

    A pipeline generates one batch; a model measures `SAMPLE` images of each split, loading included, so the estimate of
    a model is rather too long.
    """
    started, timed = time.monotonic(), sum(min(SAMPLE, size) for size in run.sizes)
    if run.generates:
        task = next(task for task in run.tasks if isinstance(task, GenerationTask))
        timed = min(task.batch_size, 4)
        loaded.host(["A photo of a doctor."] * timed, num_inference_steps=task.steps, **task.options)
    else:
        tasks = [  # a ranking of a sample is shorter than it
            one.model_copy(update={"k": [min(k, SAMPLE // 2) for k in one.k]})
            if isinstance(one, RetrievalTask)
            else one
            for one in run.tasks
        ]
        with tempfile.TemporaryDirectory() as folder:
            sample = replace(options, out=Path(folder), cache=Path(folder) / "cache", limit=SAMPLE)
            replace(run, tasks=tasks).measure(loaded, sample)
    return (time.monotonic() - started) * run.images / timed


def paper(
    out: Path, runs: Sequence[Run], options: Options, progress: Progress, *, stop_after_estimate: bool = False
) -> pd.DataFrame:
    """Estimate, measure and compare all runs; write a folder for each run, paper.csv and index.html.

    The frame has the columns `HEAD` and a row for each published figure; `measured` is NaN where it is not measured.
    """
    results = dict[str, Result]()
    for run in runs:
        if not run.tasks:
            continue
        model, _, pretrained = run.model.partition(":")
        named = {"pipeline": run.model} if run.generates else {"model": model, "pretrained": pretrained or None}
        own = replace(options, out=out / run.name, cache=options.cache or out / "cache", **named)
        with progress.bar(f"loading {run.model} and timing a sample"):
            loaded = load_host(own.model, own.pretrained, own.pipeline, device=own.device, dtype=own.dtype)
            run.seconds = estimate(run, loaded, own)
        progress.say(f"{run.model}: {run.images:,} images, about {run.seconds / 3600:.2f} hours on {own.device}")
        if not stop_after_estimate:
            results[run.name] = run.measure(loaded, own, progress)
            compared(runs, results, out)
    return compared(runs, results, out)


def compared(runs: Sequence[Run], results: Mapping[str, Result], out: Path) -> pd.DataFrame:
    """Return measured next to published figures as a frame, also written as paper.csv and the page index.html.

    results: name of a run -> its result.
    """
    rows = []
    for run in runs:
        every = results[run.name].rows if run.name in results else []
        measured = {(r.task, r.metric, r.method, r.subset): r for r in reversed(every)}
        for part in run.parts:
            for names, value in published(part, "stable diffusion 2.1" if run.generates else run.model).items():
                (task, metric, method, subset), own, n = names, (float("nan"),) * 4, ""
                if (row := measured.get(names)) is not None:
                    own = (row.value, *row.interval, row.value - value)
                    n = ", ".join(f"{count:,} {what}" for what, count in row.n.items())
                name = f"{metric}, {subset}" if subset else metric
                rows.append((PARTS[part].table, task, run.model, name, method, value, *own, n))
    frame = need("pandas").DataFrame(rows, columns=HEAD)
    write_atomically(out / "paper.csv", frame.to_csv(index=False))
    blocks = [(key, list(block.itertuples())) for key, block in frame.groupby(["table", "data", "model"], sort=False)]
    write_page(out / "index.html", "paper", {"blocks": blocks, "runs": [(run, run.name in results) for run in runs]})
    return frame
