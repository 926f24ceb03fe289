"""Does an edit of the first denoising steps keep subjects better than a weaker edit of all of them?

python -m eval.experiments.step_window --json eval/results/step_window.json   # 20 minutes of a core; goes on
python -m eval.experiments.step_window --images 2 --forms cali                # a quick look

Every method that is attached to a pipeline, on the miniature, in four windows of its ten steps and at three strengths
without a window: "A photo of a {profession}." for the twenty professions that the fit leaves out, the same noise for
all, judged by the classifier of that world. Pixels are kept below --work, so that a run that was stopped goes on.

An edit for fewer steps does less, and so does a weaker one. They are compared at equal effect: `subjects_gained` is how
much oftener the profession is recognised in a window than at the strength that leaves the same discrepancy, along the
line between the strengths that were drawn (0, which is none, 0.25, 0.5, 1). Above 0 the window keeps subjects better.
Intervals resample professions, line and window together.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.experiments.generation import GUIDANCE, SET, STEPS, Draw, Drawn, Form, Studio
from eval.experiments.generation_measures import SURE, Seen, counted, over_fits
from eval.experiments.run import parser, run
from eval.tables import Cells, shows, span
from vldebias import debias
from vldebias.errors import WideEditWarning
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.methods import Need, Problem, get_method
from vldebias.metrics.bootstrap import resampled_values
from vldebias.metrics.discrepancy import discrepancies
from vldebias.miniature.portraits import PROFESSIONS
from vldebias.prompts import load_prompts

METHODS = {  # name in tables -> of vldebias.methods
    "default": "default",
    "cali": "paper",
    "difference": "difference",
    "steer": "steer",
    "stated value": "stated-value",
    "stated mean": "each-value",
    "suffix": "suffix",
    "entigen": "entigen",
    "weighted values": "weighted-values",
    "uce": "uce",
}
STRENGTHS = (0.25, 0.5, 1.0)
WINDOWS = ((0.0, 0.2), (0.0, 0.4), (0.0, 0.6), (0.4, 1.0))
SETTINGS: dict[str, dict[str, Any]] = {f"strength {one:g}": {"strength": one} for one in STRENGTHS} | {
    f"steps {first:g} to {last:g}": {"steps": (first, last)} for first, last in WINDOWS
}
Floats = NDArray[np.float64]


class Windows:
    """The forms of every method, fitted once."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio

    def forms(self, method: str) -> dict[str, Form]:
        """Setting -> how it is drawn."""

        @cache
        def edits() -> Any:
            problem, chosen = Problem.of(self.studio.pipe, SET), get_method(METHODS[method])
            if Need.JUDGED in chosen.needs:
                chosen = chosen.read(problem, self.studio.reader(chosen.name, SET, 0))
            with warnings.catch_warnings():  # of what the table shows
                warnings.simplefilter("ignore", WideEditWarning)
                return {role: problem.fit(chosen, role) for role in problem.host.roles}

        return {
            setting: Form(f"{method} {setting}", self._drawn(edits, how), fits=1) for setting, how in SETTINGS.items()
        }

    def _drawn(self, edits: Any, how: Mapping[str, Any]) -> Draw:
        def draw(prompts: Sequence[str], generators: list[torch.Generator], seed: int) -> Drawn:
            with debias(self.studio.pipe, edits(), **how) as attachment:
                attachment.seed = seed
                return self.studio.call(generators, prompt=list(prompts)), ()

        return draw


def measure(studio: Studio, methods: Sequence[str], seeds: Sequence[int]) -> Iterator[TaskResult]:
    """Rows of each setting: discrepancy, professions recognised, and the windows against the strengths."""
    shipped, windows = load_prompts(SET), Windows(studio)
    texts = shipped.held_out_classes
    wanted = np.array([[PROFESSIONS.index(name.lower())] for name in shipped.held_out_class_names])
    result = TaskResult(provenance(studio, methods, seeds))
    n = {"professions": len(texts), "images each": studio.images * len(seeds)}

    def read(form: Form) -> tuple[Floats, Floats]:
        """Of each profession: discrepancy of gender, share of images on which it is recognised."""
        pixels = [studio.pixels(form, "unseen", texts, studio.images, seed) for seed in seeds]
        seen = Seen.of(pixels, len(texts))
        return discrepancies(counted(seen.gender, 2)), (seen.profession == wanted).mean(1)

    none = read(Form(NONE, studio.attached(None), gate=False, fits=1))
    for method in methods:
        found = {setting: read(form) for setting, form in windows.forms(method).items()}
        for setting, (gap, right) in found.items():
            over_fits(result, "discrepancy", {NONE: none[0], method: gap}, None, subset=setting, n=n)
            over_fits(result, "recognised", {NONE: none[1], method: right}, None, subset=setting, n=n)
        line = [none, *(found[f"strength {one:g}"] for one in STRENGTHS)]
        for first, last in WINDOWS:
            setting = f"steps {first:g} to {last:g}"
            columns = np.stack([*(one for pair in (*line, found[setting]) for one in pair)], axis=-1)
            values, draws = resampled_values({method: columns}, statistic=_gained, vectorized=False)
            result.add_draws("subjects_gained", values, draws, subset=setting, n=n)
    result.rows = list({(r.metric, r.method, r.subset): r for r in result.rows}.values())  # none once each
    yield result


def _gained(columns: Floats) -> float:
    """(professions, 2 * settings), discrepancy and recognised by turns, the window last."""
    gaps, right = columns.mean(0)[0::2], columns.mean(0)[1::2]
    order = np.argsort(gaps[:-1], kind="stable")
    return float(right[-1] - np.interp(gaps[-1], gaps[:-1][order], right[:-1][order]))


def provenance(studio: Studio, methods: Sequence[str], seeds: Sequence[int]) -> TaskProvenance:
    return TaskProvenance(
        task="steps of generation",
        title="Edits for a part of the denoising steps",
        description=f"'A photo of a [profession].', {STEPS} steps, guidance {GUIDANCE}, the same noise for all; judged "
        f"by the world's own classifier, unknown below {SURE}. Windows against strengths at equal discrepancy.",
        model="miniature StableDiffusionPipeline",
        fingerprint=(mark := weights_fingerprint(studio.pipe.unet)) and mark.to_dict(),
        prompts=SET,
        prompts_hash=load_prompts(SET).hash,
        split="generated",
        methods={name: {"method": METHODS[name]} for name in methods},
        seeds=list(seeds),
        n={"images each and seed": studio.images},
        settings={"steps": STEPS, "guidance": GUIDANCE, "strengths": list(STRENGTHS), "windows": [*map(list, WINDOWS)]},
    )


@shows("docs/explanation/pipelines.md", "step_window")
def windows(result: Result) -> Cells:
    """A row for each method: discrepancy and subjects recognised at full strength, and what windows gain."""
    found = {(row.method, row.subset, row.metric): row for row in result.rows}
    windows = [row.subset for row in result.rows if row.metric == "subjects_gained"]
    lines = [["method", "all steps", *(one.removeprefix("steps ") for one in dict.fromkeys(windows))]]

    def both(method: str, setting: str) -> str:
        return " / ".join(f"{found[method, setting, metric].value:.2f}" for metric in ("discrepancy", "recognised"))

    full = "strength 1"
    lines.append(["none", both("none", full), *[""] * (len(lines[0]) - 2)])
    for method in dict.fromkeys(row.method for row in result.rows if row.metric == "subjects_gained"):
        gained = {one: found[method, one, "subjects_gained"] for one in dict.fromkeys(windows)}
        cells = [f"{both(method, one)}; {span(row, '+.2f')}" for one, row in gained.items()]
        lines.append([method, both(method, full), *cells])
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=4, help="of each profession and seed")
    options.add_argument("--seeds", type=int, default=2, help="seeds of each profession")
    options.add_argument("--work", type=Path, default=Path("results/step_window"), help="where drawn pixels are kept")
    options.add_argument("--forms", nargs="*", choices=METHODS, default=list(METHODS), help="only these, and none")
    given = options.parse_args()
    if given.images * given.seeds < 2:
        options.error("--images and --seeds: the share of a value among the images of a prompt needs two or more")
    torch.set_num_threads(1)
    studio = Studio(given.work, given.images)
    run("step_window", lambda: measure(studio, given.forms, range(given.seeds)), given.json)


if __name__ == "__main__":
    main()
