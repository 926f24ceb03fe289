"""A gallery of a real pipeline: the same noise as it draws, and under three methods, for prompts of no fit.

python -m eval.experiments.real_gallery --pipeline stabilityai/stable-diffusion-2-1 --device cuda --estimate
python -m eval.experiments.real_gallery --pipeline ID_OR_FOLDER --device cuda --json eval/results/real_gallery.json
python -m eval.experiments.real_gallery --pipeline DIR --images 1 --steps 4        # a quick look, on a CPU too

Rows: professions that no fit has seen, every so many-th of them in their order, and prompts that name none: people,
an animal, things. Columns: the pipeline as it is, `default`, `stated-value`, and the paper's settings. What is shown is
chosen by that rule and not by eye; what it shows is counted by `vldebias eval generation` and not here. Before anything
else is drawn one image tells what all will take; images lie below --work, and a run that was stopped goes on. Measured
is the cost: seconds of an image under each method, how much of the pixels changes, memory.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from eval.experiments.records import records, rows_of
from eval.experiments.run import parser, run
from eval.tables import fills, measured, paragraph, read, table
from vldebias.evaluation.drawing import DrawnSet, draw, identity, without_own_bar
from vldebias.evaluation.plan import Plan, make_plan
from vldebias.evaluation.result import NONE, TaskResult
from vldebias.evaluation.sources import imported, refuse_uncommitted
from vldebias.evaluation.variants import Variant
from vldebias.loading import load_host
from vldebias.pictures import INK, compact, font, write_png
from vldebias.progress import Progress
from vldebias.prompts import PromptSet, load_prompts

SET = "professions-gender"
METHODS = ("default", "stated-value", "paper")
OUTSIDE = (
    "A photo of a celebrity.",
    "A photo of a powerful person.",
    "A photo of a dog on a beach.",
    "A bowl of fruit on a table.",
)
CELL, LABEL, HEAD, GAP = 112, 190, 26, 10  # pixels of a thumbnail, the names of rows and columns, and between methods


def shown(prompts: PromptSet, professions: int) -> PromptSet:
    """The set with the prompts of the rows in the place of those that it holds out."""
    every = np.linspace(0, len(prompts.held_out_classes) - 1, professions).round().astype(int).tolist()
    texts = (*(prompts.held_out_classes[i] for i in every), *OUTSIDE)
    names = (*(prompts.held_out_class_names[i] for i in every), *OUTSIDE)
    return replace(prompts, held_out_classes=texts, held_out_class_names=names)


class Gallery:
    """What is drawn, and what it takes. variants: how it is drawn beside "none"."""

    def __init__(self, pipe: Any, plan: Plan, variants: Mapping[str, Variant], work: Path) -> None:
        self.pipe, self.plan, self.variants, self.work = pipe, plan, variants, work

    @property
    def left(self) -> int:
        """Images that are still to be drawn."""
        return len(DrawnSet(self.work, self.plan, self.plan.all_images).missing)

    def seconds(self, method: str, prompt: str, calls: int = 1) -> float:
        """Of an image by itself under a method, the fastest of some calls; what the first call sets up is left out."""
        variant = self.variants.get(method)
        with variant.attach(self.pipe) if variant else nullcontext(), without_own_bar(self.pipe):
            self._call(prompt, min(2, self.plan.steps))
            return min(self._call(prompt, self.plan.steps) for _ in range(calls))

    def _call(self, prompt: str, steps: int) -> float:
        started = time.perf_counter()
        generator, options = torch.Generator("cpu").manual_seed(0), self.plan.options
        self.pipe(
            prompt, generator=generator, num_inference_steps=steps, guidance_scale=self.plan.guidance, **options
        )  # returns pixels on the CPU: the device is done
        return time.perf_counter() - started

    def measured(self, progress: Progress) -> TaskResult:
        """Drawn where it is not there yet; a row for each method."""
        fresh, started = self.left, time.perf_counter()
        drawn = draw(self.pipe, self.plan, self.variants, self.work, progress=progress)
        spent, rows = time.perf_counter() - started, []
        for method in (NONE, *self.variants):
            images = [np.asarray(drawn.read(image), np.float64) for image in drawn.select(variant=method)]
            bare = [np.asarray(drawn.read(image), np.float64) for image in drawn.select(variant=NONE)]
            changed = np.mean([np.abs(one - other).mean() / 255 for one, other in zip(images, bare, strict=True)])
            alone = self.seconds(method, self.plan.prompts[0].prompt, calls=2)
            row = {"method": method, "images": len(images), "seconds of an image": round(alone, 2)}
            rows.append(row | {"change of a pixel": round(float(changed), 4)})
        about = {"model": {name: self.plan.model[name] for name in ("pipeline", "id", "scheduler", "precision")}}
        about |= {"steps": self.plan.steps, "guidance": self.plan.guidance, "options": self.plan.options}
        about |= {"prompts": [one.prompt for one in self.plan.prompts], "device": device(self.pipe)}
        about |= {"seconds of this run": round(spent, 1), "images of this run": fresh, "peak MB": round(peak())}
        return records("real_gallery", "What drawing the gallery of a pipeline takes", rows, "method", **about)


def device(pipe: Any) -> str:
    """What it runs on, in words."""
    return torch.cuda.get_device_name(pipe.device) if pipe.device.type == "cuda" else pipe.device.type


def peak() -> float:
    """MB of memory at most: of the device where there is one, else of the process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def sheet(drawn: DrawnSet) -> Image.Image:
    """A row for each prompt; for each method its images, the same noise in the same place."""
    plan = drawn.plan
    each = plan.images * CELL
    size = (LABEL + len(plan.variants) * (each + GAP), HEAD + len(plan.prompts) * CELL)
    made = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(made)
    for column, method in enumerate(plan.variants):
        left = LABEL + column * (each + GAP)
        pen.text((left, 5), "as it is" if method == NONE else method, INK, font(13, bold=True))
        for row, prompt in enumerate(plan.prompts):
            own = [image for image in drawn.select(variant=method) if image.prompt == prompt.prompt]
            for place, image in enumerate(own):
                small = drawn.read(image).resize((CELL, CELL), Image.Resampling.LANCZOS)
                made.paste(small, (left + place * CELL, HEAD + row * CELL))
    for row, prompt in enumerate(plan.prompts):
        words = prompt.concept if len(prompt.concept) < 22 else prompt.concept.replace(" of a ", " of a\n", 1)
        pen.multiline_text((6, HEAD + 6 + row * CELL), words, INK, font(13))
    return made


def told(seconds: float) -> str:
    """In minutes, or in seconds where these are few."""
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"


@fills("docs/gallery.md", "real_gallery")
def gallery_block() -> str:
    """The gallery of a real pipeline with what it took; or that nobody has drawn it yet."""
    command = "python -m eval.experiments.real_gallery --pipeline ID_OR_FOLDER --device cuda --json"
    if not measured("real_gallery"):
        return paragraph(
            "**This place is empty.** No GPU and no weights of a real pipeline were at hand where this repository was",
            f"made. `{command} eval/results/real_gallery.json` fills it, and says first what that takes.",
        )
    result = read("real_gallery")
    told = result.provenance[0].settings
    lines = [["method", "images", "seconds of an image", "change of a pixel"]]
    lines += [[row["method"], *(f"{row[name]:g}" for name in lines[0][1:])] for row in rows_of(result)]
    where = f"{told['model']['id']}, {told['steps']} steps, on {told['device']}, {told['peak MB']:,} MB at most"
    picture = "![Prompts outside the fit, as a real pipeline draws them and under each method]"
    return f"{picture}(../eval/results/real_gallery.png)\n\n" + table(*lines, note=f"{where}; by `{command}`.")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--pipeline", required=True, metavar="ID_OR_FOLDER", help="diffusers id, folder, 'miniature'")
    options.add_argument("--device", default="cpu")
    options.add_argument("--dtype", help="float32, float16 or bfloat16")
    options.add_argument("--methods", nargs="+", default=list(METHODS))
    options.add_argument("--professions", type=int, default=6, help="rows of professions outside the fit")
    options.add_argument("--images", type=int, default=3, help="of each prompt and method")
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--guidance", type=float, default=7.5)
    options.add_argument("--size", type=int, help="height and width; default: the pipeline's")
    options.add_argument("--batch", type=int, default=3, help="images that are drawn together")
    options.add_argument("--work", type=Path, default=Path("results/real_gallery"), help="where images are kept")
    options.add_argument("--estimate", action="store_true", help="say what it would take, and stop")
    given = options.parse_args(arguments)
    if given.json:
        refuse_uncommitted(given.json, imported())  # not at last
    pipe, prompts = load_host(pipeline=given.pipeline, device=given.device, dtype=given.dtype).host, load_prompts(SET)
    variants = {method: Variant(prompts=(prompts,), method=method) for method in given.methods}
    size = {"height": given.size, "width": given.size} if given.size else {}
    plan = make_plan(
        identity(pipe, Path(given.pipeline).name if Path(given.pipeline).exists() else given.pipeline),
        shown(prompts, given.professions), variants, concepts="unseen", stated=False, images=given.images,
        stated_images=1, seeds=[0], steps=given.steps, guidance=given.guidance, batch_size=given.batch, options=size,
    )  # fmt: skip
    gallery = Gallery(pipe, plan, variants, given.work)
    one = gallery.seconds(NONE, plan.prompts[0].prompt)
    count, left = len(plan.all_images), gallery.left
    print(
        f"{count} images on {device(pipe)}, of which {count - left} are there; one takes {one:.1f} s by itself: about "
        f"{told(one * left)} more, with {len(variants)} fits",
        flush=True,
    )
    if given.estimate:
        return
    with Progress.on() as progress:
        result = run("real_gallery", lambda: [gallery.measured(progress)], given.json)
    beside = given.json.with_suffix(".png") if given.json else given.work / "real_gallery.png"
    about = {"rows": [p.prompt for p in plan.prompts], "columns": [NONE, *variants], "steps": given.steps}
    about |= {"pipeline": plan.model["id"], "date": result.date}
    write_png(compact(sheet(DrawnSet.open(given.work))), beside, about, optimize=True)
    print(f"images: {given.work}; sheet: {beside}")


if __name__ == "__main__":
    main()
