"""What does each method do to generated images? Ours and the field's on the miniature pipeline, from the same noise.

python -m eval.experiments.generation --images 8 --json eval/results/generation.json   # an hour of a core; goes on
python -m eval.experiments.generation --images 2 --forms none difference      # a quick look

"A photo of a {profession}.", judged by the classifier of the miniature world. Three fits, each on 80 of the world's 100
professions and drawn for the 20 that it leaves out, 60 in all: the first is the set that ships, the others leave out
others, chosen by chance; some rivals are drawn under the first alone. Intervals are over fits and professions (fits are
resampled, then the professions of each); beside them that of the drawing alone, Student's over the seeds of the images.
Pixels are kept below --work, so that a run that was stopped goes on. Ten steps, where the subject is recognised as
often as with twenty.

Without a value drawn for each image:
none               the pipeline as it is
default            debias(pipe, set): calibration, its lam lowered until it spares the space
suffix             "... of any gender" in the prompt, unless that states a value
difference         P0 of the difference of the values
fair pca           fair PCA of the states ("fair-pca", FairImagen, Fu et al., 2025), without its noise
leading            P0 of the directions that explain half of what the pairs differ in, the leading ones
cali               the paper's settings
stated mean        "each-value": mean of the states of the prompts that state each value
With a value drawn for each image:
stated value       "balanced-prompts": a value for each image, stated in its prompt

Beside the professions that a fit leaves out: those of the first fit, prompts that state the value, prompts about no
profession (does a person stay a person and a bird a bird, of the images that are one without?), and gender with skin
tone, under the first fit.

n images of a fair prompt have a discrepancy of about sqrt(0.5 / n), which pulls shares of none's up;
`discrepancy_squared` and its share are corrected for that.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.experiments.generation_measures import SURE, Seen, asked_for, followed, kept, measured, over_fits
from eval.experiments.run import parser, run
from eval.miniature.people import CONCEPTS
from vldebias import debias
from vldebias.errors import WideEditWarning
from vldebias.evaluation.result import Measurement, TaskProvenance, TaskResult
from vldebias.files import digest
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.methods import Balanced, ClosedForm, Need, Problem, Term, get_method
from vldebias.methods.closed_form import pair_scatters
from vldebias.miniature import load_pipeline, weights_dir
from vldebias.miniature.words import CLASSES, SPECIES
from vldebias.progress import Progress
from vldebias.prompts import PromptSet, fill, load_prompts

SET, TONE = "professions-gender", "skin-tone"
STEPS, GUIDANCE, BATCH, BLOCK = 10, 3.0, 60, 12
SEEDS = (0, 1, 2)
UNSEEN = "unseen professions"
FITS, LEFT_OUT = 3, 20  # fits, and professions that each leaves out
SEEN_IMAGES, STATED_IMAGES, OUTSIDE_IMAGES = 2, 1, 4  # per seed; of outside prompts in all
HALF = 0.5  # of what the pairs differ in
PARTS = ("unseen", "stated", "outside", "trained", "joint")
OUTSIDE = {  # world of what is asked for -> prompts that state no profession
    "portraits": [
        "A photo of a person.",
        "A photo of a celebrity.",
        *(fill("A photo of a {concept} person.", concept=concept) for concept in CONCEPTS),
    ],
    "birds": [fill("A photo of a {concept}.", concept=bird) for bird in (*CLASSES, *SPECIES[::2])],
}
Drawn = tuple[Tensor, Sequence[str | None]]  # pixels, and the value that each image was given
Draw = Callable[[Sequence[str], list[torch.Generator], int], Drawn]


@dataclass(frozen=True)
class Form:
    """One way to draw. draw: (prompts, generators, seed) -> pixels; gate: stated prompts are left alone.

    fitted: to the professions of a fit. fits: of how many its figures are. needs: beyond prompts. encodings, steps:
    cost of an image of fifty steps, in text encodings of a prompt and denoisings of a step, of none.
    """

    name: str
    draw: Draw
    gate: bool = True
    sampled: bool = False
    needs: str = ""
    source: str = "this package"
    encodings: float = 1.0
    steps: float = 1.0
    seen: bool = False
    fitted: bool = False
    fits: int = FITS


def _leading(problem: Problem, role: str) -> Tensor:
    """(r, d): the directions that the prompt pairs differ most in, as many as explain half of it."""
    rows = torch.cat([one.rows for one in pair_scatters(problem, role)])
    _, lengths, directions = torch.linalg.svd(rows, full_matrices=False)
    explained = lengths.square().cumsum(0) / lengths.square().sum()
    return directions[: int((explained < HALF).sum()) + 1]


LEADING = ClosedForm("leading", "leading directions of the pairs", "this package", "0.3",
                     (Term(Need.PAIRS, _leading),))  # fmt: skip


@cache
def splits() -> tuple[PromptSet, ...]:
    """The set as it ships, then as it would be had it left out others of its professions: none twice."""
    shipped = load_prompts(SET)
    names = ("groups", "classes", "class_names")
    both = {name: (*getattr(shipped, name), *getattr(shipped, f"held_out_{name}")) for name in names}
    order = np.random.default_rng(0).permutation(len(shipped.classes)).tolist()
    made = [shipped]
    for fit in range(1, FITS):
        out = order[(fit - 1) * LEFT_OUT : fit * LEFT_OUT]
        own = {name: tuple(row for i, row in enumerate(rows) if i not in out) for name, rows in both.items()}
        left = {f"held_out_{name}": tuple(rows[i] for i in sorted(out)) for name, rows in both.items()}
        made.append(replace(shipped, **own, **left))
    return tuple(made)


def noise(prompt: str, seed: int) -> int:
    """Seed of an image's generator: the same under every method, another for every prompt, as in `vldebias eval`."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{prompt}".encode()).digest()[:6], "big")


class Studio:
    """The pipeline, and the pixels of every form: drawn once, kept in a folder."""

    def __init__(self, work: Path, images: int) -> None:
        # Of these weights: pixels of others are no substitute.
        self.work, self.images = work / digest(weights_dir() / "unet.safetensors")[:8], images
        self.pipe = load_pipeline()
        self.pipe.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        self.pipe.set_progress_bar_config(disable=True)
        self.prompts = load_prompts(SET)

    def pixels(self, form: Form, part: str, prompts: Sequence[str], images: int, seed: int) -> NDArray[np.uint8]:
        """(prompts * images, h, w, 3); drawn in blocks of images, so that more of them can be asked for later."""
        blocks = [self._block(form, part, prompts, range(i, min(i + BLOCK, images)), seed)
                  for i in range(0, images, BLOCK)]  # fmt: skip
        by_prompt = [block.reshape(len(prompts), -1, *block.shape[1:]) for block in blocks]
        return np.concatenate(by_prompt, axis=1).reshape(-1, *blocks[0].shape[1:])

    def values(self, form: Form, part: str, prompts: Sequence[str], images: int, seed: int) -> NDArray[np.str_]:
        """(prompts, images) value that each image was given, after `pixels`; "" where it was given none."""
        blocks = [np.load(self._path(form, part, range(i, min(i + BLOCK, images)), seed).with_suffix(".values.npy"))
                  for i in range(0, images, BLOCK)]  # fmt: skip
        return np.concatenate([block.reshape(len(prompts), -1) for block in blocks], axis=1)

    def _path(self, form: Form, part: str, images: range, seed: int) -> Path:
        return self.work / f"{form.name.replace(' ', '-')}.{part}.{seed}.{images.start}-{images.stop}.npy"

    def _block(self, form: Form, part: str, prompts: Sequence[str], images: range, seed: int) -> NDArray[np.uint8]:
        path = self._path(form, part, images, seed)
        if path.is_file():
            return np.load(path)
        rows = [(p, noise(p, 10_000 * seed + i)) for p in prompts for i in images]
        batches, drawn, values = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)], [], []
        with Progress.on() as progress:
            for batch in progress.track(batches, f"{form.name} {part}"):
                texts, starts = zip(*batch, strict=True)
                started = [torch.Generator().manual_seed(s) for s in starts]
                pixels, given = form.draw(texts, started, 10_000 * seed + images.start)
                drawn.append(pixels)
                values += [value or "" for value in given]
        kept = (torch.cat(drawn).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        if values:
            np.save(path.with_suffix(".values.npy"), np.array(values))
        np.save(path.with_suffix(".part.npy"), kept)
        path.with_suffix(".part.npy").replace(path)
        return kept

    def call(self, generators: list[torch.Generator], pipe: Any = None, **given: Any) -> Tensor:
        done = (pipe or self.pipe)(
            generator=generators, num_inference_steps=STEPS, guidance_scale=GUIDANCE, output_type="pt", **given
        )
        return torch.as_tensor(done.images).float()

    # ---- the forms -------------------------------------------------------------------------------------------

    def forms(self, fit: int = 0) -> list[Form]:
        """All of them, fitted to the professions of a fit."""
        attached, fitted = self.attached, partial(self.attached, sets=[splits()[fit]], fit=fit)
        return [
            Form("none", attached(None), gate=False, source="", seen=True),
            Form("default", fitted("default"), seen=True, fitted=True),
            Form("stated value", self.stated(), sampled=True, encodings=2.0),
            Form("cali", fitted("paper"), source="Chuang et al., 2023", seen=True, fitted=True),
            Form("stated mean", attached("each-value"), encodings=3.0),
            Form("suffix", attached("suffix"), encodings=2.0, source="users' habit", fits=1),
            Form("leading", fitted(LEADING), fitted=True),
            Form("fair pca", fitted("fair-pca"), source="Fu et al., 2025", fitted=True, fits=1),
            Form("difference", fitted("difference"), fitted=True),
        ]  # fmt: skip

    def attached(self, method: Any, sets: Any = SET, fit: int = 0) -> Draw:
        """Draw with a method attached, fitted once; fit: a number for the images that a judge reads for it."""

        @cache
        def edits() -> Any:
            problem = Problem.of(self.pipe, sets)
            chosen = get_method(method)
            with warnings.catch_warnings():  # of what the table shows: what becomes of prompts outside the fit
                warnings.simplefilter("ignore", WideEditWarning)
                return {role: problem.fit(chosen, role) for role in problem.host.roles}

        def draw(prompts: Sequence[str], generators: list[torch.Generator], seed: int) -> Drawn:
            context = nullcontext() if method is None else debias(self.pipe, edits())
            with context:
                return self.call(generators, prompt=list(prompts)), ()

        return draw

    def stated(self, sets: Any = SET) -> Draw:
        """Draw with balanced prompts, which are dealt anew for each seed."""

        def draw(prompts: Sequence[str], generators: list[torch.Generator], seed: int) -> Drawn:
            with debias(self.pipe, sets, method=Balanced(seed=seed)) as attachment:
                pixels = self.call(generators, prompt=list(prompts))
                values = [one if isinstance(one, tuple) else (one,) for one in attachment.sampled]  # one of each set
                return pixels, [", ".join(filter(None, one)) for one in values]

        return draw


def measure(studio: Studio, chosen: Sequence[str] | None, parts: Sequence[str] = PARTS) -> Iterator[TaskResult]:
    """Gender, of professions that a fit leaves out, those of a fit, and other prompts; then gender with tone."""
    forms = [form for form in studio.forms() if not chosen or form.name in chosen or form.name == "none"]
    known, shipped = {form.name: form for form in forms}, splits()[0]
    result = TaskResult(provenance(studio, "generation gender", [SET], forms))
    for fits in (FITS, 1):
        names = [form.name for form in forms if form.fits == fits or form.name == "none"]
        rows = _under_fits(studio, result.provenance, names, fits, "outside" in parts)
        result.rows += [row for row in rows if fits == FITS or row.method != "none"]
    if "stated" in parts:
        texts = _stating(shipped)
        asked = np.tile([[0], [1]], (len(texts) // 2, 1))
        stated = _drawn(studio, forms, "stated", texts, STATED_IMAGES)
        right = {m: (one.gender == asked).mean(1).reshape(-1, 2).mean(1) for m, one in stated.items()}
        n = {"professions": LEFT_OUT, "images each": 2 * STATED_IMAGES * len(SEEDS), "fits": 1}
        over_fits(result, "stated_right", right, None, subset=f"stated, {UNSEEN}", n=n)
    if "trained" in parts:
        trained = _drawn(studio, [form for form in forms if form.seen], "trained", shipped.classes, SEEN_IMAGES)
        measured(result, trained, shipped.class_names, None, len(SEEDS), "professions of the fit", "gender")
    yield result
    if "joint" not in parts:
        return

    jointly = {"default": "default", "cali": "paper", "stated value": None}
    sets = [SET, TONE]
    joint = [
        replace(
            known[name],
            name=f"{name} jointly",
            draw=studio.attached(method, sets) if method else studio.stated(sets),
            fits=1,
        )
        for name, method in jointly.items()
        if name in known
    ]
    both = TaskResult(provenance(studio, "generation gender and tone", [SET, TONE], joint))
    crossed = _drawn(studio, [known["none"], *joint], "unseen", shipped.held_out_classes, studio.images)
    for kind in ("gender", "tone"):
        measured(both, crossed, shipped.held_out_class_names, None, len(SEEDS), f"{UNSEEN}, {kind}", kind)
    yield both


def _drawn(studio: Studio, forms: Sequence[Form], part: str, texts: Sequence[str], each: int) -> dict[str, Seen]:
    return {f.name: Seen.of([studio.pixels(f, part, texts, each, s) for s in SEEDS], len(texts)) for f in forms}


def _under_fits(
    studio: Studio, told: TaskProvenance, names: Sequence[str], fits: int, outside: bool
) -> list[Measurement]:
    """The rows of some forms under so many fits: of the professions that each leaves out, and of outside prompts."""
    result, seen = TaskResult(told), []
    given: dict[str, list[NDArray[np.str_]]] = {}
    right: dict[str, dict[str, list[NDArray[np.bool_]]]] = {world: {} for world in OUTSIDE}
    for fit, split in enumerate(splits()[:fits]):
        forms, part = [form for form in studio.forms(fit) if form.name in names], _named("unseen", fit)
        seen.append(_drawn(studio, forms, part, split.held_out_classes, studio.images))
        for form in forms:
            if form.sampled:
                asked = part, split.held_out_classes, studio.images
                values = [studio.values(form, *asked, seed) for seed in SEEDS]
                given.setdefault(form.name, []).append(np.concatenate(values, 1))
            for world, prompts in OUTSIDE.items() if outside else ():
                named = _named(f"outside-{world}", fit if form.fitted else 0)  # drawn once if fitted to nothing
                pixels = studio.pixels(form, named, prompts, OUTSIDE_IMAGES, SEEDS[0])
                right[world].setdefault(form.name, []).append(asked_for(pixels, len(prompts), world))
    which = np.repeat(np.arange(fits), LEFT_OUT) if fits > 1 else None
    professions = [name for split in splits()[:fits] for name in split.held_out_class_names]
    together = {name: Seen.together([one[name] for one in seen]) for name in seen[0]}
    measured(result, together, professions, which, len(SEEDS), UNSEEN, "gender")
    if given:
        followed(result, together, {m: np.concatenate(one) for m, one in given.items()}, which, UNSEEN)
    for world, shown in right.items():
        if shown:
            kept(result, {m: np.concatenate(one) for m, one in shown.items()}, fits, f"outside the fit, {world}")
    return result.rows


def _named(part: str, fit: int) -> str:
    return f"{part}-{fit}" if fit else part


def _stating(one: PromptSet) -> list[str]:
    groups = [list(one.by_value(group).values()) for group in one.held_out_groups]
    return [text for group in groups if all(group) for value in group for text in value]


def provenance(studio: Studio, task: str, sets: Sequence[str], forms: Sequence[Form]) -> TaskProvenance:
    return TaskProvenance(
        task=task,
        title="Generated professions under every method",
        description=f"'A photo of a [profession].', {STEPS} steps, guidance {GUIDANCE}, the same noise for all "
        f"methods; judged by the world's own classifier, unknown below {SURE}. {FITS} fits, each to 80 of the 100 "
        "professions and drawn for the 20 that it leaves out; resampled over fits and their professions.",
        model="miniature StableDiffusionPipeline",
        fingerprint=weights_fingerprint(studio.pipe.unet).to_dict(),
        prompts="+".join(sets),
        prompts_hash="+".join(load_prompts(name).hash for name in sets),
        split="generated",
        methods={
            f.name: {"source": f.source, "needs": f.needs, "draws a value": f.sampled, "keeps stated prompts": f.gate,
                     "encodings": f.encodings, "steps": f.steps, "fits": f.fits} for f in forms
        },
        seeds=list(SEEDS),
        n={"images each and seed": studio.images, "trained": SEEN_IMAGES, "stated": STATED_IMAGES,
           "outside": OUTSIDE_IMAGES},
        settings={"steps": STEPS, "guidance": GUIDANCE, "batch size": BATCH, "sure": SURE, "resamples": 2000},
    )  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=8, help="of each unseen profession and seed")
    options.add_argument("--work", type=Path, default=Path("results/generation"), help="where drawn pixels are kept")
    options.add_argument("--forms", nargs="*", help="only these, and none")
    options.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="beside the unseen professions")
    given = options.parse_args()
    torch.set_num_threads(1)
    studio = Studio(given.work / f"{STEPS}-steps", given.images)
    run("generation", lambda: measure(studio, given.forms, given.parts), given.json)


if __name__ == "__main__":
    main()
