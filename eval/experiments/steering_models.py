"""Measure the effect and cost of cross-attention on models for which it was not tuned.

    python -m eval.small_models.train clip --out results/small_models
    python -m eval.small_models.train pixart --out results/small_models
    python -m eval.experiments.steering_models --json eval/results/steer_models.json
    python -m eval.experiments.steering_models --pictures  # eval/results/steer_models_*.png

The models are the miniature and the two models in `eval.small_models`, which differ in their text
encoder, denoiser, prediction type and images. Each is fitted and measured on two splits of its
jobs, with the default and with stated values. Finished measurements are stored in --work, so that
an interrupted run can continue. Intervals are over jobs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from eval.small_models import benches
from eval.small_models.benches import Bench, open_prompts
from eval.small_models.measure import Attach, Outcome, measure
from eval.tables import RESULTS, parser, run, subset
from vldebias.api import debias, fit_projections
from vldebias.errors import VldebiasWarning
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.methods import Balanced, CrossAttention
from vldebias.metrics import Metric
from vldebias.projection.cross_attention_edit import CrossAttentionEdit

MODELS = ("miniature", "clip", "pixart")
IMAGES = {"miniature": 16, "clip": 64, "pixart": 64}
"""The number of images of each job. The models differ in how long an image takes."""
OTHER_IMAGES = 3
"""The number of images of each job with each value of the other attribute stated."""
RESAMPLES = 2000
WORDS, OURS = "balanced-prompts", "cross-attention"
METRICS = {
    "gap": Metric("discrepancy", "gap from even shares", "fact", "lower"),
    "left": Metric(
        "discrepancy, share of none", "gap from even shares, remaining share", "fact", "lower"
    ),
    "job": Metric("recognised", "job recognised", "utility", "higher"),
    "kept": Metric("recognised, share of none", "job recognised, share kept", "utility", "higher"),
    "other": Metric("other stated", "shows another stated attribute", "utility", "higher"),
}
SHARES = {"left": "gap", "kept": "job"}
"""Metrics that are shares of the original model's value."""


def open_bench(name: str, models: Path) -> Bench:
    """Return a model by name, with weights from the folder `models`."""
    return benches.miniature() if name == "miniature" else benches.small(name, models)


class Laboratory:
    """Fit and measure methods on a model, and store the measurements in a folder.

    Args:
        bench: The model.
        work: The folder.
    """

    def __init__(self, bench: Bench, work: Path) -> None:
        self.bench = bench
        self.work = work / bench.name
        self.images = IMAGES[bench.name]

    def edit(self, attribute: str, split: int) -> CrossAttentionEdit:
        """Return the edit fitted with the default settings on up to 20 jobs in the split."""
        folder = self.work / f"edit-{attribute}-{split}"
        if not folder.is_dir():
            bench = self.bench
            jobs, _ = bench.jobs_of_split[split]
            method = CrossAttention(
                concepts=min(20, len(jobs)),
                seed=0,
                options=bench.fit_options,
            )
            prompt_set = bench.prompt_set(attribute, split)
            (edit,) = fit_projections(bench.pipe, prompt_set, method=method).values()
            edit.save_pretrained(folder)
        return CrossAttentionEdit.from_pretrained(folder)

    def attach(self, method: str, attribute: str, split: int) -> Attach | None:
        """Return the function that attaches a method, or None for the bare pipeline."""
        pipe = self.bench.pipe
        if method == NONE:
            return None
        if method == WORDS:
            prompt_set = self.bench.prompt_set(attribute, split)
            return partial(debias, pipe, prompt_set, method=Balanced(seed=0))
        edit = self.edit(attribute, split)

        def attach_edit() -> Any:
            attachment = debias(pipe, edit)
            attachment.seed = 0  # the seed for assigning values, as for stated values
            return attachment

        return attach_edit

    def outcome(self, method: str, attribute: str, split: int) -> Outcome:
        """Return the results for a method, which are measured once and cached."""
        path = self.work / f"{method}-{attribute}-{split}-{self.images}.npz"
        if path.is_file():
            return Outcome(**dict(np.load(path)))
        attach = self.attach(method, attribute, split)
        outcome = measure(
            self.bench,
            attribute,
            split,
            attach,
            self.images,
            OTHER_IMAGES,
            seed=split,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **asdict(outcome))
        means = {field: round(float(row.mean()), 3) for field, row in asdict(outcome).items()}
        print(self.bench.name, attribute, split, method, means, flush=True)
        return outcome


def add_rows(
    result: TaskResult, outcomes: dict[str, Outcome], place: str, n: dict[str, int]
) -> None:
    """Add the means for all methods with intervals over jobs."""
    jobs = len(outcomes[NONE].gap)
    places = np.random.default_rng(0).integers(jobs, size=(RESAMPLES, jobs))
    for field, metric in METRICS.items():
        rows: dict[str, NDArray[np.float64]] = {}
        for method, outcome in outcomes.items():
            rows[method] = getattr(outcome, SHARES.get(field, field))
        means = {method: float(row.mean()) for method, row in rows.items()}
        draws = {method: row[places].mean(1) for method, row in rows.items()}
        if field in SHARES:
            bare = rows[NONE]
            for method, row in rows.items():
                means[method] = float(row.mean() / bare.mean())
                draws[method] = row[places].mean(1) / bare[places].mean(1)
        result.add_draws(metric, means, draws, n=n, subset=place)


def compare(laboratory: Laboratory) -> TaskResult:
    """Measure all methods on both splits of a model."""
    bench = laboratory.bench
    images = laboratory.images
    result = TaskResult(
        TaskProvenance(
            task=bench.name,
            title=f"Cross-attention on {bench.name}",
            description=(
                f"{images} images of each held-out job, and {OTHER_IMAGES} of each job with each"
                " value of the other attribute stated."
            ),
            model=f"{bench.name} {type(bench.pipe).__name__}",
            split="generated",
            settings=dict(bench.options),
        )
    )
    for attribute in bench.values:
        for split in range(len(bench.jobs_of_split)):
            outcomes = {}
            for method in (NONE, WORDS, OURS):
                outcomes[method] = laboratory.outcome(method, attribute, split)
            jobs = len(outcomes[NONE].gap)
            n = {"jobs": jobs, "images each": images, "with another stated": OTHER_IMAGES}
            place = subset({"attribute": attribute, "split": split + 1})
            add_rows(result, outcomes, place, n)
    return result


def picture_grid(laboratory: Laboratory, attribute: str, path: Path, jobs: int = 3) -> None:
    """Draw images of a few held-out jobs with each method, using the same noise."""
    bench = laboratory.bench
    _, names = bench.jobs_of_split[0]
    rows = []
    for prompt in open_prompts(names[:jobs]):
        for method in (NONE, OURS, WORDS):
            attach = laboratory.attach(method, attribute, 0)
            with nullcontext() if attach is None else attach():
                pictures = bench.generate([prompt] * 8, list(range(8)))
            rows.append(np.concatenate([np.asarray(picture) for picture in pictures], axis=1))
        rows.append(np.full((4, rows[-1].shape[1], 3), 255, np.uint8))
    grid = Image.fromarray(np.concatenate(rows[:-1]))
    scale = max(1, 512 // grid.width)
    size = (grid.width * scale, grid.height * scale)
    enlarged = grid.resize(size, Image.Resampling.NEAREST)
    enlarged.quantize(128).save(path, optimize=True)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", type=Path, default=Path("results/small_models"))
    options.add_argument("--only", nargs="*", default=list(MODELS), choices=MODELS)
    options.add_argument("--work", type=Path, default=Path("results/steering_models"))
    options.add_argument("--pictures", action="store_true", help="draw images instead")
    arguments = options.parse_args()
    warnings.simplefilter("ignore", VldebiasWarning)
    torch.set_num_threads(1)

    def laboratories() -> Iterator[Laboratory]:
        for name in arguments.only:
            yield Laboratory(open_bench(name, arguments.models), arguments.work)

    if arguments.pictures:
        for laboratory in laboratories():
            attribute = next(iter(laboratory.bench.values))
            path = RESULTS / f"steer_models_{laboratory.bench.name}.png"
            picture_grid(laboratory, attribute, path)
        return
    run("steer_models", lambda: map(compare, laboratories()), arguments.json)


if __name__ == "__main__":
    main()
