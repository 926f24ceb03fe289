"""Measures the bias of a build, before and after projection, and writes metrics.json beside the weights."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vldebias.metrics import discrepancy, max_skew
from vldebias.miniature import birds, portraits
from vldebias.miniature.generate import PROMPT, embed_ends, generate
from vldebias.miniature.loading import load_clip, load_judge, load_pipeline
from vldebias.miniature.training import Report
from vldebias.projection import CalibratedProjection
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from diffusers import StableDiffusionPipeline

    from vldebias.miniature.judge import Judge

__all__ = ["write_metrics"]

SEEDS = (1001, 1002, 1003)  # renders and noise that no training stage has seen
BIRDS = 4000  # renders per seed, four groups equally likely
PORTRAITS = 4000
TOP = 1000  # MaxSkew@1000
IMAGES_PER_PROFESSION = 32

Encoder = Callable[[Sequence[str]], torch.Tensor]
Values = dict[str, float]
Map = Callable[[torch.Tensor], torch.Tensor]


def write_metrics(out: Path, *, scale: float, device: str, report: Report) -> None:
    """Writes metrics.json: for each number the mean over three seeds, its standard deviation, and each seed's."""
    sections: list[Callable[[Path, float, int, str], dict[str, Values]]] = [
        _measure_birds,
        _measure_portraits,
        _measure_judge,
        _measure_generation,
    ]
    results = {}
    for done, section in enumerate(sections, start=1):
        name = section.__name__.removeprefix("_measure_")
        results[name] = _over_seeds([section(out, scale, seed, device) for seed in SEEDS])
        report("measure", done, len(sections), 0.0)
    conditions = {"seeds": SEEDS, "scale": scale, "birds": BIRDS, "portraits": PORTRAITS, "top": TOP}
    conditions |= {"images per profession": IMAGES_PER_PROFESSION, "prompt": PROMPT}
    (out / "metrics.json").write_text(json.dumps({"conditions": conditions, **results}, indent=1) + "\n")


def _over_seeds(runs: list[dict[str, Values]]) -> dict[str, dict[str, dict[str, object]]]:
    def summary(method: str, name: str) -> dict[str, object]:
        values = [round(run[method][name], 4) for run in runs]
        return {"mean": round(fmean(values), 4), "sd": round(stdev(values), 4), "seeds": values}

    return {method: {name: summary(method, name) for name in runs[0][method]} for method in runs[0]}


def _clip(folder: Path, device: str) -> tuple[Encoder, Callable[[torch.Tensor], torch.Tensor]]:
    """Normalised text and image features of the build's CLIP."""
    model, _, tokenizer = load_clip(folder)
    model = model.to(device)

    @torch.no_grad()
    def text(prompts: Sequence[str]) -> torch.Tensor:
        return model.encode_text(tokenizer(list(prompts)).to(device), normalize=True).cpu()

    @torch.no_grad()
    def image(pixels: torch.Tensor) -> torch.Tensor:
        parts = pixels.split(500)
        return torch.cat([model.encode_image(x.to(device) * 2 - 1, normalize=True).cpu() for x in parts])

    return text, image


def _measure_birds(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Zero-shot accuracy of the paper's Waterbirds prompts on balanced groups."""
    text, image = _clip(folder, device)
    world = birds.sample(_at_least(16, BIRDS * scale), seed=seed, balanced=True)
    features = image(world.images)
    prompts = load_prompts("waterbirds")
    groups, spurious = [text(group) for group in prompts.groups], text(prompts.spurious)
    methods: dict[str, Map] = {
        "none": lambda z: z,
        "orth": CalibratedProjection.fit(None, spurious),
        "cali 1000": CalibratedProjection.fit_groups(groups, lam=1000.0),
        "orth-cali 1000": CalibratedProjection.fit_groups(groups, spurious, lam=1000.0),
    }
    classes = text(prompts.classes)
    results = {name: _group_accuracies(features, f(classes), world) for name, f in methods.items()}
    species = text([f"This is a picture of a {name}." for name in birds.SPECIES])
    scene = text(["This is a land background.", "This is a water background."])
    results["reads"] = {
        "species": _accuracy(features, species, world.species),
        "background": _accuracy(features, scene, world.background),
    }
    return results


def _group_accuracies(features: torch.Tensor, classes: torch.Tensor, world: birds.Birds) -> Values:
    correct = (features @ F.normalize(classes, dim=-1).T).argmax(dim=1) == world.label
    groups = {name: correct[world.group == g].float().mean().item() for g, name in enumerate(birds.GROUPS)}
    worst, average = min(groups.values()), fmean(groups.values())
    return {"worst group": worst, "average": average, "gap": average - worst, **groups}


def _accuracy(features: torch.Tensor, prompts: torch.Tensor, truth: torch.Tensor) -> float:
    return ((features @ prompts.T).argmax(dim=1) == truth).float().mean().item()


def _measure_portraits(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Zero-shot accuracy of what CLIP reads, and how skewed the top of its retrieval is."""
    text, image = _clip(folder, device)
    n = _at_least(16, PORTRAITS * scale)
    people = portraits.sample(n, seed=seed, balanced=True)
    features = image(people.images)
    reads = {
        "gender": _accuracy(features, text([f"A photo of a {g} person." for g in portraits.GENDERS]), people.gender),
        "profession": _accuracy(features, text([PROMPT.format(p) for p in portraits.PROFESSIONS]), people.profession),
        "tone": _accuracy(features, text([f"A photo of a {t} person." for t in portraits.TONES]), people.tone),
        "age": _accuracy(features, text([f"A photo of a {a} person." for a in portraits.AGES]), people.age),
    }
    concepts = features @ text([f"A photo of a {c} person." for c in portraits.CONCEPTS]).T
    attributes = {"gender": people.gender, "tone": people.tone, "age": people.age}
    top = min(TOP, n // 4)
    skews = {
        name: fmean(max_skew(s, groups, top, n_groups=int(groups.max()) + 1) for s in concepts.T)
        for name, groups in attributes.items()
    }
    return {"reads": reads, f"max skew of concepts at {top}": skews}


def _measure_judge(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Accuracy of the judge on fresh balanced renders, and on their VAE reconstructions."""
    judge, vae = load_judge(folder).to(device), load_pipeline(folder).vae.to(device)
    people = portraits.sample(_at_least(16, PORTRAITS * scale / 2), seed=seed, balanced=True)
    with torch.no_grad():
        parts = [vae.decode(vae.encode(x.to(device) * 2 - 1).latent_dist.mean).sample for x in people.images.split(250)]
    restored = (torch.cat(parts) / 2 + 0.5).clamp(0, 1)
    return {name: _judged(judge, x, people) for name, x in (("renders", people.images), ("restored", restored))}


def _judged(judge: "Judge", images: torch.Tensor, people: portraits.Portraits) -> Values:
    labels = judge.predict(images)
    fields = ("profession", "gender", "tone", "age")
    return {name: (labels[name].cpu() == getattr(people, name)).float().mean().item() for name in fields}


def _measure_generation(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Gender discrepancy over the test professions, with projections fitted on the training professions."""
    pipeline, judge = load_pipeline(folder).to(device), load_judge(folder).to(device)
    names = portraits.TEST_PROFESSIONS[: _at_least(1, len(portraits.TEST_PROFESSIONS) * scale)]
    count = _at_least(2, IMAGES_PER_PROFESSION * scale)
    male, female = (
        embed_ends(pipeline, [PROMPT.format(f"{gender} {name}") for name in portraits.TRAIN_PROFESSIONS])
        for gender in portraits.GENDERS
    )
    pairs = torch.stack([male, female], dim=1)
    methods: dict[str, Map | None] = {"none": None}
    methods |= {f"cali {lam}": CalibratedProjection.fit(pairs, lam=float(lam)) for lam in (50, 500)}
    results = {}
    for method, f in methods.items():
        results[method] = _generated(pipeline, judge, names, count, seed, f)
        stated = _generated(pipeline, judge, names, max(2, count // 4), seed, f, stated="female ")
        results[method] |= {"stated female kept": 1 - stated["male share"], "stated recognised": stated["recognised"]}
    return results


def _generated(
    pipeline: "StableDiffusionPipeline",
    judge: "Judge",
    names: Sequence[str],
    count: int,
    seed: int,
    projection: Map | None,
    stated: str = "",
) -> Values:
    prompts = [PROMPT.format(stated + name) for name in names]
    labels = judge.predict(generate(pipeline, prompts, count, seed=seed, projection=projection))
    truth = torch.tensor([portraits.PROFESSIONS.index(name) for name in names]).repeat_interleave(count)
    gender = labels["gender"].cpu().view(len(names), count)
    return {
        "discrepancy": fmean(discrepancy(row, len(portraits.GENDERS)) for row in gender),
        "recognised": (labels["profession"].cpu() == truth).double().mean().item(),
        "male share": (gender == 0).double().mean().item(),
    }


def _at_least(least: int, value: float) -> int:
    return max(least, round(value))
