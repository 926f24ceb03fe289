"""Measure the tables of the paper on real models in one run: requirements, time needed, measured next to published.

Chuang et al. (2023); chapter 7 of the thesis. Models and data are named, never downloaded data sets: their licences are
accepted at the source.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Part(NamedTuple):
    """Describe a part of the paper: its suite, the files to provide, and their approximate size in gigabytes."""

    table: str
    models: tuple[str, ...]
    data: str
    licence: str
    gigabytes: float


_BIRDS = "waterbird_complete95_forest2water2 (github.com/kohpangwei/group_DRO, or WILDS): metadata.csv and its images"
_FACES = "CelebA, aligned (mmlab.ie.cuhk.edu.hk/projects/CelebA.html): img_align_celeba/, attributes and partition"
_FAIR = "FairFace, padding 0.25 (github.com/joojs/fairface): fairface_label_val.csv and val/"
_JOBS = "a pipeline and a judge; 80 + 20 professions come with the package"
_CUB = "images of CUB-200-2011 and Places, non-commercial research"
PARTS = {
    "waterbirds": Part("7.2 to 7.4", ("RN50:openai", "ViT-L-14:openai"), _BIRDS, _CUB, 0.5),
    "celeba": Part("7.2 to 7.4", ("RN50:openai", "ViT-L-14:openai"), _FACES, "non-commercial research", 1.5),
    "fairface": Part("7.5", ("ViT-B-32:openai", "ViT-L-14:openai"), _FAIR, "CC BY 4.0", 0.1),
    "generation": Part("7.6 and 7.7", (), _JOBS, "", 5.0),
}
GENERATED = {  # Tables 7.6 and 7.7, of unseen professions: (task, metric, method, subset) -> figure
    ("pairs gender", "pair_distance", "none", "unseen"): 0.54,
    ("pairs gender", "pair_distance", "cali", "unseen"): 0.16,
    ("pairs race", "pair_distance", "none", "unseen"): 0.69,
    ("pairs race", "pair_distance", "cali", "unseen"): 0.26,
    ("gender", "discrepancy", "none", "unseen professions"): 0.412,
    ("gender", "discrepancy", "cali", "unseen professions"): 0.354,
    ("race", "discrepancy", "none", "unseen professions"): 0.528,
    ("race", "discrepancy", "cali", "unseen professions"): 0.455,
}


@dataclass
class Run:
    """Hold one model, or the pipeline, with all parts that it is measured on; each model is loaded once.

    sizes: images of each split, or of each task that generates. missing: part -> why it cannot be measured.
    """

    model: str
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
    def generates(self) -> bool:
        """Return whether the run is that of a pipeline."""
        return "generation" in self.parts

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return file_slug(self.model)

    def add(self, part: str, root: Path | None) -> None:
        """Add the tasks of a part with their data found; what lacks is `missing`."""
        tasks, sizes = list[Task](), list[int]()
        own = root / part if root is not None and (root / part).exists() else root
        self.parts.append(part)
        try:
            for task in load_suite(part).tasks:
                specs = {name: spec for name, spec in task if isinstance(spec, Data)}
                if specs and root is None:
                    raise InvalidInputError(f"expected --data-root with {PARTS[part].data}")
                sizes += [len(open_split(spec.name, own, spec.split, spec.options)) for spec in specs.values()]
                sizes += [len(task.plan().all_images)] if isinstance(task, GenerationTask) else []
                found = {name: spec.model_copy(update={"root": own}) for name, spec in specs.items()}
                tasks.append(task.model_copy(update=found))
        except InvalidInputError as error:
            self.missing[part] = str(error)
        else:
            self.tasks += tasks
            self.sizes += sizes

    def options(self, out: Path, given: Options) -> Options:
        """Return the user's options with the model, a folder for this run and one embedding cache for all runs."""
        model, _, pretrained = self.model.partition(":")
        named = {"pipeline": self.model} if self.generates else {"model": model, "pretrained": pretrained or None}
        return replace(given, out=out / self.name, cache=given.cache or out / "cache", **named)

    def measure(self, loaded: Loaded, options: Options, progress: Progress = SILENT) -> Result:
        """Measure all parts and return the result; a second call with the same folder continues an interrupted one."""
        fields = {"name": self.name, "title": f"The paper's tables, {self.model}", "needs": "data"}
        fields |= {"description": "Groups, search and generation of one model.", "source": "Chuang et al. (2023)"}
        return run_suite(Suite.build({**fields, "tasks": self.tasks}), options, loaded=loaded, progress=progress)


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
    runs: dict[tuple[bool, str], Run] = {}
    for part in only or PARTS:
        if part not in PARTS:
            hint = did_you_mean(part, list(PARTS))
            raise InvalidInputError(f"--only: got {part!r}; expected some of {', '.join(PARTS)}; {hint}")
        generates = part == "generation"
        for model in (pipeline or PIPELINE,) if generates else models or PARTS[part].models:
            runs.setdefault((generates, model), Run(model)).add(part, root)
    return list(runs.values())


def estimate(run: Run, loaded: Loaded, options: Options) -> float:
    """Return the seconds that a run will take on this machine, extrapolated linearly from two timed samples.

    A model measures two samples of its splits; a pipeline generates one batch with two numbers of steps.
    """
    spent = []
    if run.generates:
        task = next(task for task in run.tasks if isinstance(task, GenerationTask)).with_options(options)
        size = min(task.batch_size, 4)
        loaded.host.set_progress_bar_config(disable=True)
        for steps in (1, *STEPS):  # the first warms up
            started = time.monotonic()
            loaded.host(["A photo of a doctor."] * size, num_inference_steps=steps, **task.options)
            spent.append(time.monotonic() - started)
        each = max((spent[2] - spent[1]) / (STEPS[1] - STEPS[0]), 0.0)
        return run.images / size * (max(spent[1] - STEPS[0] * each, 0.0) + task.steps * each)
    for limit in SAMPLES:
        tasks = [  # a ranking of a sample is shorter than it
            one.model_copy(update={"k": [min(k, limit // 2) for k in one.k]}) if isinstance(one, RetrievalTask) else one
            for one in run.tasks
        ]
        with tempfile.TemporaryDirectory() as folder:
            sample = replace(options, out=Path(folder), cache=Path(folder) / "cache", limit=limit)
            started = time.monotonic()
            replace(run, tasks=tasks).measure(loaded, sample)
            spent.append(time.monotonic() - started)
    read = [sum(min(limit, size) for size in run.sizes) for limit in SAMPLES]
    each = max(spent[1] - spent[0], 0.0) / max(read[1] - read[0], 1)
    return spent[1] + each * (run.images - read[1])


def paper(
    out: Path, runs: Sequence[Run], options: Options, progress: Progress, *, stop_after_estimate: bool = False
) -> pd.DataFrame:
    """Estimate, measure and compare all runs; write estimate.json, a folder for each run, paper.csv and index.html.

    Returns:
        A frame with the columns `HEAD`, a row for each published figure; `measured` is NaN where it is not measured.
    """
    known = read_json(out / "estimate.json") if (out / "estimate.json").is_file() else {}
    hosts, results = dict[str, Loaded](), dict[str, Result]()
    possible = [run for run in runs if run.tasks]
    for run in possible:
        own = run.options(out, options)
        if run.generates:
            tasks = [task.with_options(own) for task in run.tasks if isinstance(task, GenerationTask)]
            run.sizes = [len(task.plan().all_images) for task in tasks]
        with progress.step(f"loading {run.model}"):
            hosts[run.name] = load_host(own.model, own.pretrained, own.pipeline, device=own.device, dtype=own.dtype)
        key = f"{run.name} {run.images} {own.device}"
        if key not in known:
            with progress.step(f"timing a sample of {run.model}"):
                known[key] = round(estimate(run, hosts[run.name], own), 1)
            write_atomically(out / "estimate.json", json.dumps(known, indent=1) + "\n")
        run.seconds = known[key]
        progress.say(f"{run.model}: {run.images:,} images, about {run.seconds / 3600:.2f} hours on {own.device}")
    for run in () if stop_after_estimate else possible:
        results[run.name] = run.measure(hosts.pop(run.name), run.options(out, options), progress)
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
            figures = {(*names, ""): value for names, value in published(part, [run.model]).items()}
            for (task, metric, method, subset), value in (GENERATED if part == "generation" else figures).items():
                row = measured.get((task, metric, method, subset))
                own: Any = (float("nan"),) * 4 if row is None else (row.value, *row.interval, row.value - value)
                n = "" if row is None else ", ".join(f"{count:,} {what}" for what, count in row.n.items())
                name = f"{metric}, {subset}" if subset else metric
                rows.append((PARTS[part].table, task, run.model, name, method, value, *own, n))
    frame = need("pandas").DataFrame(rows, columns=HEAD)
    write_atomically(out / "paper.csv", frame.to_csv(index=False))
    blocks = [(key, list(block.itertuples())) for key, block in frame.groupby(["table", "data", "model"], sort=False)]
    write_page(out / "index.html", "paper", {"blocks": blocks, "runs": [(run, run.name in results) for run in runs]})
    return frame
