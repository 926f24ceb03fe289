"""The main job on the embedded miniature world: what does a projection change, what does it cost, how sure are we."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from torch import Tensor

from vldebias.api import CLASSIFIER, GENERATOR, METHODS, debias
from vldebias.evaluation.generation import generate
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.pictures import bars, contact_sheet, dumbbells, save_png
from vldebias.evaluation.report import write_page
from vldebias.evaluation.result import Protocol, Result, commit, versions
from vldebias.evaluation.zero_shot import image_features, precision_at, query_skews, text_features, worst_group
from vldebias.fingerprint import weights_fingerprint
from vldebias.metrics import attribute_shares
from vldebias.miniature import birds as bird_world
from vldebias.miniature import load_clip, load_judge, load_pipeline
from vldebias.miniature import portraits as portrait_world
from vldebias.miniature.people import MALE_SHARE
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

__all__ = ["run"]

BIRDS, BIRD_SEED = 4000, 9001
GALLERY, GALLERY_SEED, TOP = 4000, 9002, 20
STEPS, GUIDANCE = 20, 3.0
PEOPLE = "professions-gender"
SURE = 0.8  # a gender read with less probability counts as unknown
TOLD = {
    "birds": "Zero-shot landbird or waterbird; the background is spurious. The worst of four groups is picked again in "
    "every resample of the images.",
    "portraits": f"Queries 'A photo of a [unseen profession].'; MaxSkew@{TOP} over gender with a uniform prior, and "
    "the share of the retrieved images that show the profession; resampled over queries.",
    "generation": f"'A photo of a [unseen profession].', {STEPS} DDIM steps, guidance {GUIDANCE}, the same seeds "
    f"before and after; gender read by the world's own classifier, unknown below a probability of {SURE}; mean over "
    "professions and resampled over them. Stated: 'A photo of a male / female [profession].'",
}
SAME_SEEDS = "Generated with the same seeds, column by column: as the model is, and with the projection attached."
SHARES = "Share of men for each unseen profession, before and after; the projection knows neither profession nor share."
MADE = {"prompts": "A photo of a {profession}.", "mitigated": "vldebias projection professions-gender, cali lam=500"}
PANELS = {
    ("birds", "worst_group"): "Birds: worst-group accuracy",
    ("portraits", "max_skew"): f"Retrieval: MaxSkew@{TOP}",
    ("generation", "discrepancy"): "Generation: discrepancy",
    ("generation", "stated_right"): "Generation: stated gender right",
}


@dataclass(frozen=True)
class Part:
    """What one task gives: measured values, the protocol behind them, captioned plots to show."""

    measured: list[Measured]
    protocol: Protocol
    plots: Mapping[str, tuple[str, Plot]] = field(default_factory=dict)


def run(folder: Path, *, images: int, seeds: Sequence[int], console: Console) -> tuple[Result, Path]:
    """All three tasks; writes quickstart.json, pictures and index.html into `folder` and returns (result, page).

    images: generated images per profession and seed. Progress goes to `console`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with _progress(console) as progress:
        parts = [_birds(progress), _portraits(progress), _generation(progress, images, list(seeds))]
    result = Result(
        name="quickstart",
        figures=[figure for part in parts for measured in part.measured for figure in figures(measured)],
        protocols=[part.protocol for part in parts],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
    )
    result.write(folder / "quickstart.json")
    return result, _page(result, parts, folder)


def _page(result: Result, parts: Sequence[Part], folder: Path) -> Path:
    plots = {"figures": ("Figures with 95 % intervals.", bars(result.figures, PANELS))}
    for part in parts:
        plots |= part.plots
    pictures = [(told, save_png(plot, folder / f"{name}.png", MADE)) for name, (told, plot) in plots.items()]
    return write_page(result, pictures, folder / "index.html")


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


def _methods(host: Any, prompts: str, tokenizer: Any) -> Iterator[tuple[str, Any]]:
    """(name, context in which the method is attached) for no method and for every method of the paper."""
    yield "none", nullcontext()
    for method in METHODS:
        yield method, debias(host, prompts, method=method, tokenizer=tokenizer)


def _birds(progress: Progress) -> Part:
    """Zero-shot landbird or waterbird on a balanced split; the background is spurious (section 7.4.1)."""
    model, preprocess, tokenizer = load_clip()
    split = bird_world.sample(BIRDS, seed=BIRD_SEED, balanced=True)
    task = progress.add_task("birds: zero-shot classification", total=BIRDS)
    features = image_features(model, split.images, preprocess, on_batch=partial(progress.advance, task))
    prompts = load_prompts("waterbirds")
    correct = {}
    for method, attached in _methods(model, "waterbirds", tokenizer):
        with attached:
            weights = text_features(model, tokenizer, prompts.classes)
        correct[method] = ((features @ weights.T).argmax(1) == split.label).double().numpy()
    n = {"images": BIRDS, "smallest group": int(split.group.bincount().min())}
    measured = [
        Measured("birds", "worst_group", "higher", n, correct, worst_group, (split.group.numpy(),)),
        Measured("birds", "average", "higher", n, correct),
    ]
    return Part(measured, _protocol("birds", model, "waterbirds", "balanced renders", [BIRD_SEED], n))


def _portraits(progress: Progress) -> Part:
    """Retrieval of unseen professions from a gallery that is balanced in gender (section 7.4.2)."""
    model, preprocess, tokenizer = load_clip()
    gallery = portrait_world.sample(GALLERY, seed=GALLERY_SEED, balanced=True)
    task = progress.add_task("portraits: retrieval", total=GALLERY)
    features = image_features(model, gallery.images, preprocess, on_batch=partial(progress.advance, task))
    prompts = load_prompts(PEOPLE)
    wanted = torch.tensor(_unseen())
    relevant = gallery.profession == wanted[:, None]
    texts, skews, precision = {}, {}, {}
    for method, attached in _methods(model, PEOPLE, tokenizer):
        with attached:
            texts[method] = text_features(model, tokenizer, prompts.held_out_classes)
        scores = texts[method] @ features.T
        skews[method] = query_skews(scores, gallery.gender, TOP, 2)
        precision[method] = precision_at(scores, relevant, TOP)
    noise = torch.rand(relevant.shape, generator=torch.Generator().manual_seed(0))
    skews["random"] = query_skews(noise, gallery.gender, TOP, 2)
    cosines = {method: (texts["none"] * found).sum(1).double().numpy() for method, found in texts.items()}
    n = {"queries": len(wanted), "images": GALLERY, "k": TOP}
    measured = [
        Measured("portraits", "max_skew", "lower", n, skews),
        Measured("portraits", "precision", "higher", n, precision),
        Measured("portraits", "query_cosine", "higher", n, cosines),
    ]
    split = "gallery of renders, gender balanced"
    return Part(measured, _protocol("portraits", model, PEOPLE, split, [GALLERY_SEED], n))


@dataclass(frozen=True)
class _Studio:
    """Generates and judges: profession and gender (prompts, images); gender is -1 where it cannot be told."""

    pipe: Any
    judge: Any
    on_batch: Callable[[int], None]

    def __call__(self, prompts: Sequence[str], noise: Sequence[int]) -> tuple[Tensor, dict[str, np.ndarray]]:
        # Noise of its own for every prompt: some noise leans to one gender, and shared it would do so everywhere.
        texts, seeds = zip(*[(p, s + 100 * i) for i, p in enumerate(prompts) for s in noise], strict=True)
        made = generate(self.pipe, texts, seeds, steps=STEPS, guidance=GUIDANCE, on_batch=self.on_batch)
        found = self.judge.predict(made)
        gender = found["gender"].masked_fill(found["gender_probabilities"].amax(1) < SURE, -1)
        shape = (len(prompts), len(noise))
        return made, {"profession": found["profession"].view(shape).numpy(), "gender": gender.view(shape).numpy()}


def _generation(progress: Progress, images: int, seeds: list[int]) -> Part:
    """Discrepancy of generated unseen professions, and what becomes of a stated gender (sections 7.5 and 7.6)."""
    pipe, judge = load_pipeline(), load_judge()
    pipe.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
    prompts = load_prompts(PEOPLE)
    plain = prompts.held_out_classes
    stated = [p for pair in prompts.held_out_pairs for p in pair]
    noise = [10_000 * seed + i for seed in seeds for i in range(images)]
    few = noise[: min(images, 8)]
    total = 2 * len(noise) * len(plain) + 3 * len(few) * len(stated)
    task = progress.add_task("portraits: generation", total=total)
    studio = _Studio(pipe, judge, partial(progress.advance, task))

    before, drawn = studio(plain, noise)
    unprojected = {"none": drawn}, {"none": studio(stated, few)[1]}
    with debias(pipe, PEOPLE):
        after, drawn = studio(plain, noise)
        kept = studio(stated, few)[1]
    with debias(pipe, PEOPLE, keep_stated=False):
        not_kept = studio(stated, few)[1]
    free = unprojected[0] | {"cali": drawn}
    spoken = unprojected[1] | {"cali": kept, "cali, stated not kept": not_kept}

    n = {"professions": len(plain), "images each": len(noise)}
    n_stated = {"stated prompts": len(stated), "images each, stated": len(few)}
    measured = [
        Measured("generation", "discrepancy", "lower", n, {m: _discrepancies(j) for m, j in free.items()}),
        Measured("generation", "recognised", "higher", n, {m: _recognised(j) for m, j in free.items()}),
        Measured("generation", "unknown", "lower", n, {m: (j["gender"] < 0).mean(1) for m, j in free.items()}),
        Measured("generation", "stated_right", "higher", n_stated, {m: _gender_right(j) for m, j in spoken.items()}),
        Measured("generation", "stated_recognised", "higher", n_stated, {m: _recognised(j) for m, j in spoken.items()}),
    ]
    protocol = _protocol("generation", pipe.unet, PEOPLE, "generated", seeds, n | n_stated)
    sheet = contact_sheet(_rows(before, after, len(noise), images))
    names = [portrait_world.PROFESSIONS[i] for i in _unseen()]
    men = {method: _male_share(judged) for method, judged in free.items()}
    shares = dumbbells(names, men["none"], men["cali"], "share of men among the generated images")
    return Part(measured, protocol, {"side-by-side": (SAME_SEEDS, sheet), "shares": (SHARES, shares)})


def _unseen() -> list[int]:
    """Index in the world of each held-out profession of the prompt set, in the order of its prompts."""
    return [portrait_world.PROFESSIONS.index(name.lower()) for name in load_prompts(PEOPLE).held_out_class_names]


def _discrepancies(judged: dict[str, np.ndarray]) -> np.ndarray:
    """Eq. 7.2 of each prompt; a prompt whose images cannot be told at all has the largest there is."""
    rows = judged["gender"]
    return np.array([attribute_shares(r, 2, unknown=-1).discrepancy if (r >= 0).any() else 0.5**0.5 for r in rows])


def _recognised(judged: dict[str, np.ndarray]) -> np.ndarray:
    """Share of images that show the profession of the prompt; stated prompts come in twos per profession."""
    wanted = _unseen()
    found = judged["profession"]
    return (found == np.repeat(wanted, len(found) // len(wanted))[:, None]).mean(1)


def _gender_right(judged: dict[str, np.ndarray]) -> np.ndarray:
    """Share of images whose gender is the stated one; prompts alternate male, female. Unknown counts as wrong."""
    wanted = np.arange(len(judged["gender"])) % 2
    return (judged["gender"] == wanted[:, None]).mean(1)


def _male_share(judged: dict[str, np.ndarray]) -> np.ndarray:
    """Share of men of each prompt among the images whose gender can be told."""
    gender = judged["gender"]
    return (gender == 0).sum(1) / np.maximum((gender >= 0).sum(1), 1)


def _rows(plain: Tensor, changed: Tensor, each: int, shown: int) -> list[tuple[str, Tensor]]:
    """Rows for the contact sheet: four unseen professions, evenly spaced from most women to most men in the world."""
    unseen = _unseen()
    order = sorted(range(len(unseen)), key=lambda i: MALE_SHARE[unseen[i]])
    rows = []
    for i in order[:: (len(order) - 1) // 3]:
        chosen = slice(i * each, i * each + min(shown, 10))
        rows += [(portrait_world.PROFESSIONS[unseen[i]], plain[chosen]), ("mitigated", changed[chosen])]
    return rows


def _protocol(task: str, model: Any, prompts: str, split: str, seeds: list[int], n: dict[str, int]) -> Protocol:
    lam = {"orth": 0.0, "orth-cali": CLASSIFIER.lam, "cali": GENERATOR.lam if task == "generation" else CLASSIFIER.lam}
    used = ["cali"] if task == "generation" else METHODS
    return Protocol(
        task=task,
        description=TOLD[task],
        model=f"miniature {type(model).__name__}",
        fingerprint=weights_fingerprint(model),
        prompts=prompts,
        prompts_hash=load_prompts(prompts).hash,
        split=split,
        methods={"none": {}, **{method: {"lam": lam[method], "strength": 1.0} for method in used}},
        seeds=seeds,
        n=n,
    )
