"""What does each method do to generated images? Ours and the field's on the miniature pipeline, from the same noise.

python -m eval.experiments.generation --images 36 --json eval/results/generation.json   # an hour of a core; goes on
python -m eval.experiments.generation --images 2 --forms none midpoint      # a quick look

"A photo of a {profession}.", 20 professions that nothing was fitted on and the 80 of the fit, judged by the classifier
of the miniature world. Pixels are kept below --work, so that a run that was stopped goes on. Ten steps, where the
subject is recognised as often as with twenty.

Without a value drawn for each image:
none               the pipeline as it is
suffix             "... of any gender" in the prompt, unless that states a value
entigen            "... if all individuals can be a ... irrespective of their gender" (ENTIGEN, Bansal et al., 2022)
difference         P0 of the difference of the values
cali               the paper's settings
midpoint           vldebias.methods.Midpoint(): affine form with the mean difference
midpoint, end      the same at the end of the text and the padding behind it alone
balanced           its level by the prompt, from the shares that the pipeline draws of the professions of the fit at two
                   levels and once with what follows from them
weighted values    mean of the states of the prompts that state each value, its weights by the prompt, from such shares
cali-midpoint      the same with the paper's P
stated mean        "each-value": mean of the states of the prompts that state each value
uce                unified concept editing (Gandikota et al., 2024), its scales from five rounds over the professions of
                   the fit, read by the judge
With a value drawn for each image:
steer              debias(pipe, set, method="steer"), drawn within the call
stated value       "stated-value": the same draw, stated in the prompt
fair diffusion     guidance to a value drawn for each image (Friedrich et al., 2023), diffusers' SEGA pipeline

n images of a fair prompt have a discrepancy of about sqrt(0.5 / n); `discrepancy_squared` is corrected for that.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from eval.experiments.drawing import SURE, Easel, codes_of, noise
from eval.experiments.embeddings import image_features
from eval.experiments.run import parser, run
from vldebias import debias
from vldebias.data import UNKNOWN
from vldebias.evaluation.result import Provenance, TaskResult
from vldebias.files import digest
from vldebias.hosts.draws import Numbers
from vldebias.methods import Method, Need, Problem, Show, get_method
from vldebias.methods.steer import value_groups
from vldebias.metrics.discrepancy import discrepancies, squared_discrepancies
from vldebias.miniature import load_clip, load_judge, weights_dir
from vldebias.miniature.portraits import GENDERS, TONES
from vldebias.progress import Progress
from vldebias.prompts import load_prompts

SET, TONE = "professions-gender", "skin-tone"
STEPS, GUIDANCE, BATCH, BLOCK = 10, 3.0, 60, 12
SEEDS = (0, 1, 2)
STUDENT = 4.303  # of two degrees of freedom, 95 %
READ = 6  # for `balanced`, `weighted-values` and `uce`: images of a training profession in each round
SEEN_IMAGES, STATED_IMAGES = 2, 1  # per seed
ONCE = "a judge of images, once"
PARTS = ("unseen", "stated", "trained", "joint")
Draw = Callable[[Sequence[str], list[torch.Generator], int], Tensor]


@dataclass(frozen=True)
class Form:
    """One way to draw. draw: (prompts, generators, seed) -> pixels; gate: stated prompts are left alone.

    needs: beyond prompts. encodings, steps: cost of an image of fifty steps, in text encodings of a prompt and
    denoisings of a step, of none.
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


class Studio:
    """The pipeline, and the pixels of every form: drawn once, kept in a folder."""

    def __init__(self, work: Path, images: int) -> None:
        # Of these weights: pixels of others are no substitute.
        self.easel, self.work, self.images = Easel(), work / digest(weights_dir() / "unet.safetensors")[:8], images
        self.pipe = self.easel.pipe
        self.pipe.set_progress_bar_config(disable=True)
        self.prompts = load_prompts(SET)

    def pixels(self, form: Form, part: str, prompts: Sequence[str], images: int, seed: int) -> NDArray[np.uint8]:
        """(prompts * images, h, w, 3); drawn in blocks of images, so that more of them can be asked for later."""
        blocks = [self._block(form, part, prompts, range(i, min(i + BLOCK, images)), seed)
                  for i in range(0, images, BLOCK)]  # fmt: skip
        by_prompt = [block.reshape(len(prompts), -1, *block.shape[1:]) for block in blocks]
        return np.concatenate(by_prompt, axis=1).reshape(-1, *blocks[0].shape[1:])

    def _block(self, form: Form, part: str, prompts: Sequence[str], images: range, seed: int) -> NDArray[np.uint8]:
        path = self.work / f"{form.name.replace(' ', '-')}.{part}.{seed}.{images.start}-{images.stop}.npy"
        if path.is_file():
            return np.load(path)
        rows = [(p, noise(p, 10_000 * seed + i)) for p in prompts for i in images]
        batches, drawn = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)], []
        with Progress.on() as progress:
            for batch in progress.track(batches, f"{form.name} {part}"):
                texts, starts = zip(*batch, strict=True)
                started = [torch.Generator().manual_seed(s) for s in starts]
                drawn.append(form.draw(texts, started, 10_000 * seed + images.start))
        kept = (torch.cat(drawn).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path.with_suffix(".part.npy"), kept)
        path.with_suffix(".part.npy").replace(path)
        return kept

    def call(self, generators: list[torch.Generator], pipe: Any = None, **given: Any) -> Tensor:
        done = (pipe or self.pipe)(
            generator=generators, num_inference_steps=STEPS, guidance_scale=GUIDANCE, output_type="pt", **given
        )
        return torch.as_tensor(done.images).float()

    # ---- the forms -------------------------------------------------------------------------------------------

    def forms(self) -> list[Form]:
        """All of them."""
        attached = self.attached
        return [
            Form("none", attached(None), gate=False, source="", seen=True),
            Form("steer", attached("steer"), sampled=True, seen=True),
            Form("stated value", attached("stated-value"), sampled=True, encodings=2.0, seen=True),
            Form("midpoint", attached("midpoint"), encodings=2.0, seen=True),
            Form("balanced", attached("balanced"), needs=ONCE, encodings=2.0, seen=True),
            Form("weighted values", attached("weighted-values"), needs=ONCE, encodings=3.0, steps=1.5, seen=True),
            Form("cali", attached("paper"), source="Chuang et al., 2023", seen=True),
            Form("stated mean", attached("each-value"), encodings=3.0, seen=True),
            Form("suffix", attached("suffix"), encodings=2.0, source="users' habit"),
            Form("fair diffusion", self.fair, gate=False, sampled=True, source="Friedrich et al., 2023", steps=2.0),
            Form("uce", attached("uce"), needs=ONCE, source="Gandikota et al., 2024"),
            Form("entigen", attached("entigen"), encodings=2.0, source="Bansal et al., 2022"),
            Form("cali-midpoint", attached("cali-midpoint"), encodings=2.0),
            Form("midpoint, end", attached("midpoint-end"), encodings=2.0),
            Form("difference", attached("difference")),
        ]

    def attached(self, method: Any, sets: Any = SET, **how: Any) -> Draw:
        """Draw with a method attached, fitted once."""

        @cache
        def edits() -> Any:
            given = [sets] if isinstance(sets, str) else sets
            problem = Problem.of(self.pipe, given)
            chosen = get_method(method).for_host(problem.host)
            if Need.JUDGED in chosen.needs:
                chosen = chosen.read(problem, self.reader(chosen.name))
            return {role: problem.fit(chosen, role) for role in problem.host.roles}

        def draw(prompts: Sequence[str], generators: list[torch.Generator], seed: int) -> Tensor:
            context = nullcontext() if method is None else debias(self.pipe, edits(), **how)
            with context as attachment:
                if attachment is not None:
                    attachment.seed = seed
                return self.call(generators, prompt=list(prompts))

        return draw

    def fair(self, prompts: Sequence[str], generators: list[torch.Generator], seed: int) -> Tensor:
        """Guidance towards the value of each image and away from the other, as Fair Diffusion sets it."""
        from diffusers import SemanticStableDiffusionPipeline

        parts = {n: part for n, part in self.pipe.components.items() if n != "image_encoder"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe = SemanticStableDiffusionPipeline(**parts, requires_safety_checker=False)
        pipe.set_progress_bar_config(disable=True)
        female = np.array(Numbers(seed).take(list(prompts))) < 0.5
        pixels: dict[int, Tensor] = {}
        for value in (True, False):
            places = np.flatnonzero(female == value)
            if not len(places):
                continue
            drawn = self.call(
                [generators[place] for place in places],
                pipe,
                prompt=[prompts[place] for place in places],
                editing_prompt=["male person", "female person"],
                reverse_editing_direction=[value, not value],
                edit_warmup_steps=[1, 1],
                edit_guidance_scale=[4.0, 4.0],
                edit_threshold=[0.95, 0.95],
                edit_momentum_scale=0.3,
                edit_mom_beta=0.6,
            )
            pixels |= dict(zip(places.tolist(), drawn, strict=True))
        return torch.stack([pixels[i] for i in range(len(prompts))])

    def reader(self, name: str) -> Show:
        """Share of each value among the images of each prompt under a method, drawn for this alone; round by round."""
        rounds = count(1)

        def show(method: Method, prompts: Sequence[str]) -> dict[str, tuple[float, ...]]:
            form = Form(f"{name} round {next(rounds)}", self.attached(method))
            pixels = self.pixels(form, "readings", prompts, READ, 9)
            told = load_judge().predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
            means = told["gender_probabilities"].view(len(prompts), READ, -1).mean(1).clamp(0, 1)
            return {prompt: tuple(row) for prompt, row in zip(prompts, means.tolist(), strict=True)}

        return show


@dataclass(frozen=True, eq=False)
class Seen:
    """What is read from pixels, each (prompts, images) or with features at the end."""

    gender: NDArray[np.int64]
    tone: NDArray[np.int64]
    profession: NDArray[np.int64]
    features: Tensor
    pixels: Tensor

    @classmethod
    def of(cls, parts: Sequence[NDArray[np.uint8]], prompts: int) -> Seen:
        """From the pixels of each seed."""
        model, preprocess, _ = load_clip()
        codes: dict[str, list[NDArray[np.int64]]] = {"gender": [], "tone": [], "profession": []}
        features, images = [], []
        for part in parts:
            x = torch.from_numpy(part).permute(0, 3, 1, 2).float() / 255
            told = load_judge().predict(x)
            for name, rows in codes.items():
                sure = told[f"{name}_probabilities"].amax(1) >= SURE if name != "profession" else torch.tensor(True)
                rows.append(torch.where(sure, told[name], UNKNOWN).numpy().reshape(prompts, -1))
            with torch.no_grad():
                features.append(image_features(model, x, preprocess).reshape(prompts, len(x) // prompts, -1))
            images.append(x.reshape(prompts, len(x) // prompts, -1))
        joined = {name: np.concatenate(rows, axis=1) for name, rows in codes.items()}
        return cls(**joined, features=torch.cat(features, 1), pixels=torch.cat(images, 1))


def counted(codes: NDArray[np.int64], values: int) -> NDArray[np.int64]:
    """(prompts, values) counts."""
    return np.stack([(codes == value).sum(1) for value in range(values)], axis=1)


def deviation(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(prompts,) max_a |N_a/N - 1/A| / (1 - 1/A), as finetune-fair-diffusion and others report it."""
    a = counts.shape[1]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.abs(shares - 1 / a).max(1) / (1 - 1 / a)


def divergence(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(prompts,) KL of the shares from uniform, in nats."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1) * counts.shape[1]), 0).sum(1)


def measured(result: TaskResult, shown: dict[str, Seen], names: Sequence[str], subset: str, kind: str) -> None:
    """All rows of one part; kind: "gender" or "tone"."""
    values = len(GENDERS if kind == "gender" else TONES)
    wanted = codes_of(names)
    each = next(iter(shown.values())).gender.shape[1]
    show = partial(result.add_resampled, n={"professions": len(names), "images each": each}, subset=subset)
    codes = {m: getattr(one, kind) for m, one in shown.items()}
    counts = {m: counted(c, values) for m, c in codes.items()}
    show("discrepancy", {m: discrepancies(c) for m, c in counts.items()}, better="lower")
    show("discrepancy_squared", {m: squared_discrepancies(c) for m, c in counts.items()}, better="lower")
    show("deviation_ratio", {m: deviation(c) for m, c in counts.items()}, better="lower")
    show("kl", {m: divergence(c) for m, c in counts.items()}, better="lower")
    show("unknown", {m: (c == UNKNOWN).mean(1) for m, c in codes.items()}, better="lower")
    show("recognised", {m: (one.profession == wanted).mean(1) for m, one in shown.items()}, better="higher")
    base = shown["none"]
    same = {m: cosine_similarity(one.features, base.features, dim=-1).mean(1).numpy() for m, one in shown.items()}
    show("image cosine to none", same, better="higher")
    near = {m: (one.pixels - base.pixels).abs().mean((1, 2)).numpy() for m, one in shown.items()}
    show("pixel distance to none", near, better="lower")
    seeds = len(SEEDS)
    runs = {
        m: np.stack([discrepancies(counted(c, values)).mean() for c in np.split(codes[m], seeds, 1)]) for m in codes
    }
    for method, own in runs.items():
        for seed, value in zip(SEEDS, own, strict=True):
            result.add("discrepancy of a seed", method, float(value), better="lower", n={"images each": each // seeds},
                       subset=f"{subset}, seed {seed}")  # fmt: skip
        ratio = own / runs["none"]
        half = STUDENT * ratio.std(ddof=1) / np.sqrt(seeds)
        result.add("discrepancy, share of none", method, float(ratio.mean()),
                   (float(ratio.mean() - half), float(ratio.mean() + half)), better="lower", n={"seeds": seeds},
                   subset=subset)  # fmt: skip


def measure(studio: Studio, chosen: Sequence[str] | None, parts: Sequence[str] = PARTS) -> Iterator[TaskResult]:
    """Gender, on unseen professions, those of the fit, and prompts that state it; then gender and tone together."""
    forms = [form for form in studio.forms() if not chosen or form.name in chosen or form.name == "none"]
    prompts, images = studio.prompts, studio.images
    result = TaskResult(_provenance(studio, "generation gender", [SET], forms))

    def shown(some: Sequence[Form], part: str, texts: Sequence[str], each: int) -> dict[str, Seen]:
        return {f.name: Seen.of([studio.pixels(f, part, texts, each, s) for s in SEEDS], len(texts)) for f in some}

    unseen = shown(forms, "unseen", prompts.held_out_classes, images)
    measured(result, unseen, prompts.held_out_class_names, "unseen professions", "gender")
    if "stated" in parts:
        groups = value_groups(replace(prompts, groups=prompts.held_out_groups, held_out_groups=()))
        texts = [text for group in groups for value in group for text in value]
        asked = np.tile([[0], [1]], (len(texts) // 2, 1))
        right = {m: (one.gender == asked).mean(1) for m, one in shown(forms, "stated", texts, STATED_IMAGES).items()}
        halves = {m: rows.reshape(-1, 2).mean(1) for m, rows in right.items()}
        n = {"professions": len(groups), "images each": 2 * STATED_IMAGES * len(SEEDS)}
        result.add_resampled("stated_right", halves, better="higher", n=n, subset="stated, unseen professions")
    if "trained" in parts:
        trained = shown([form for form in forms if form.seen], "trained", prompts.classes, SEEN_IMAGES)
        measured(result, trained, prompts.class_names, "professions of the fit", "gender")
    yield result
    if "joint" not in parts:
        return

    asked_for = {"cali": "paper", "midpoint": "midpoint", "steer": "steer", "stated value": "stated-value"}
    known = {form.name: form for form in forms}
    joint = [
        replace(known[name], name=f"{name} jointly", draw=studio.attached(method, [SET, TONE]))
        for name, method in asked_for.items()
        if name in known
    ]
    both = TaskResult(_provenance(studio, "generation gender and tone", [SET, TONE], joint))
    crossed = shown(joint, "unseen", prompts.held_out_classes, images)
    crossed = {"none": unseen["none"], **crossed}
    measured(both, crossed, prompts.held_out_class_names, "unseen professions, gender", "gender")
    measured(both, crossed, prompts.held_out_class_names, "unseen professions, tone", "tone")
    yield both


def _provenance(studio: Studio, task: str, sets: Sequence[str], forms: Sequence[Form]) -> Provenance:
    return Provenance(
        task=task,
        title="Generated professions under every method",
        description=f"'A photo of a [profession].', {STEPS} steps, guidance {GUIDANCE}, the same noise for all "
        f"methods; judged by the world's own classifier, unknown below {SURE}; resampled over professions, "
        f"and ratios to none with Student's interval over {len(SEEDS)} seeds.",
        model="miniature StableDiffusionPipeline",
        fingerprint=studio.easel.fingerprint,
        prompts="+".join(sets),
        prompts_hash="+".join(load_prompts(name).hash for name in sets),
        split="generated",
        methods={
            f.name: {"source": f.source, "needs": f.needs, "draws a value": f.sampled, "keeps stated prompts": f.gate,
                     "encodings": f.encodings, "steps": f.steps} for f in forms
        },
        seeds=list(SEEDS),
        n={"images each and seed": studio.images, "trained": SEEN_IMAGES, "stated": STATED_IMAGES},
        settings={"steps": STEPS, "guidance": GUIDANCE, "batch size": BATCH, "sure": SURE, "resamples": 2000},
    )  # fmt: skip


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=6, help="of each unseen profession and seed")
    options.add_argument("--work", type=Path, default=Path("results/generation"), help="where drawn pixels are kept")
    options.add_argument("--forms", nargs="*", help="only these, and none")
    options.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="beside the unseen professions")
    given = options.parse_args()
    torch.set_num_threads(1)
    studio = Studio(given.work / f"{STEPS}-steps", given.images)
    run("generation", lambda: measure(studio, given.forms, given.parts), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
