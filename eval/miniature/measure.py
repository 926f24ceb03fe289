"""Measure a build's bias before and after projection, and write metrics.json."""

import itertools
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from eval.miniature import birds, portraits
from vldebias.api import debias
from vldebias.errors import WideEditWarning
from vldebias.metrics import discrepancy, group_accuracy, max_skew
from vldebias.miniature.architectures import AttributeNetwork
from vldebias.miniature.models import load_clip, load_judge, load_pipeline, load_vae
from vldebias.miniature.words import BIRD_FIELDS, PEOPLE_FIELDS
from vldebias.projection.projection import CalibratedProjection, scatter_of
from vldebias.prompts import load_prompts
from vldebias.utils.files import write_atomically
from vldebias.utils.progress import Progress

if TYPE_CHECKING:
    from diffusers import StableDiffusionPipeline

SEEDS = (1001, 1002, 1003)  # seeds for renders and noise that are not used in training
BIRDS = 4000  # number of renders per seed, with equally likely groups
PORTRAITS = 4000
TOP = 1000  # MaxSkew@1000
IMAGES_PER_PROFESSION = 12
PROMPT = "A photo of a {}."
CLASS_PROMPT = "This is a picture of a {}."
LAM = {"birds": 1000.0, "portraits": 500.0}  # lam of the calibrated projection, as in the paper
STEPS = 20  # DDIM steps
_PROMPTS_AT_ONCE = 4

Values = dict[str, float]
Map = Callable[[torch.Tensor], torch.Tensor]


def write_metrics(out: Path, *, scale: float, device: str, progress: Progress) -> None:
    """Write metrics.json with the mean, standard deviation and values over three seeds.

    Figures that need a judge or a pipeline are omitted if the build does not contain one.
    """
    sections: dict[str, Callable[[Path, float, int, str], dict[str, Values]]] = {
        "birds": _birds,
        "portraits": _portraits,
    }
    if (out / "judge.safetensors").is_file():
        sections["judge"] = _judge
    if (out / "unet.safetensors").is_file():
        sections["generation"] = _generation
    conditions = {
        "seeds": SEEDS,
        "scale": scale,
        "birds": BIRDS,
        "portraits": PORTRAITS,
        "top": TOP,
    }
    conditions |= {"images per profession": IMAGES_PER_PROFESSION, "prompt": PROMPT}
    results: dict[str, object] = {"conditions": conditions}
    runs: dict[str, list[dict[str, Values]]] = {name: [] for name in sections}
    for name, seed in progress.track(
        list(itertools.product(sections, SEEDS)), description="measure"
    ):
        runs[name].append(sections[name](out, scale, seed, device))
    results |= {name: _over_seeds(values) for name, values in runs.items()}
    write_atomically(out / "metrics.json", json.dumps(results, indent=1) + "\n")


def _over_seeds(runs: list[dict[str, Values]]) -> dict[str, dict[str, dict[str, object]]]:
    def summary(method: str, name: str) -> dict[str, object]:
        values = [round(run[method][name], 4) for run in runs]
        return {"mean": round(fmean(values), 4), "sd": round(stdev(values), 4), "seeds": values}

    return {method: {name: summary(method, name) for name in runs[0][method]} for method in runs[0]}


def _clip(folder: Path, device: str) -> tuple[Callable[[Sequence[str]], torch.Tensor], Map]:
    """Return functions for normalized text and image features from the build's CLIP model."""
    model, _, tokenizer = load_clip(folder)
    model = model.to(device)

    @torch.no_grad()
    def text(prompts: Sequence[str]) -> torch.Tensor:
        return model.encode_text(tokenizer(list(prompts)).to(device), normalize=True).cpu()

    @torch.no_grad()
    def image(pixels: torch.Tensor) -> torch.Tensor:
        parts = pixels.split(500)
        return torch.cat(
            [model.encode_image(x.to(device) * 2 - 1, normalize=True).cpu() for x in parts]
        )

    return text, image


def _birds(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Return the zero-shot accuracy with the paper's Waterbirds prompts on balanced groups."""
    text, image = _clip(folder, device)
    world = birds.sample(_at_least(16, BIRDS * scale), seed=seed, balanced=True)
    features = image(world.images)
    prompts = load_prompts("waterbirds")
    groups, spurious = [text(group) for group in prompts.groups], text(prompts.spurious)
    land, water = spurious.chunk(2)
    methods: dict[str, Map] = {
        "none": lambda z: z,
        "orth": CalibratedProjection().fit(None, spurious),
        "cali 1000": CalibratedProjection.solve([scatter_of(groups)], None, LAM["birds"]),
        "orth-cali 1000": CalibratedProjection.solve([scatter_of(groups)], spurious, LAM["birds"]),
        "difference": CalibratedProjection().fit(
            None, (land.mean(dim=0) - water.mean(dim=0))[None]
        ),
    }
    classes = text(prompts.classes)
    results = {name: _group_accuracies(features, f(classes), world) for name, f in methods.items()}
    kept = F.cosine_similarity(methods["orth"](classes), classes)
    results["cosine under P0"] = dict(zip(birds.CLASSES, kept.tolist(), strict=True))
    species = text([CLASS_PROMPT.format(name) for name in birds.SPECIES])
    scene = text(["This is a land background.", "This is a water background."])
    results["reads"] = {
        "species": _accuracy(features, species, world.species),
        "background": _accuracy(features, scene, world.background),
    }
    return results


def _group_accuracies(features: torch.Tensor, classes: torch.Tensor, world: birds.Birds) -> Values:
    predicted = (features @ F.normalize(classes, dim=-1).T).argmax(dim=1)
    accuracy = group_accuracy(predicted, world.label, world.group).accuracy
    groups = {birds.GROUPS[group]: share for group, share in accuracy.items()}
    worst, average = min(groups.values()), fmean(groups.values())
    return {"worst group": worst, "average": average, "gap": average - worst, **groups}


def _accuracy(features: torch.Tensor, prompts: torch.Tensor, truth: torch.Tensor) -> float:
    return ((features @ prompts.T).argmax(dim=1) == truth).float().mean().item()


def _portraits(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Return CLIP's zero-shot accuracy per attribute, and the skew of top retrieval results."""
    text, image = _clip(folder, device)
    n = _at_least(16, PORTRAITS * scale)
    people = portraits.sample(n, seed=seed, balanced=True, life=portraits.Life(off_duty=0.0))
    features = image(people.images)
    reads = {
        "gender": _accuracy(
            features, text([f"A photo of a {g} person." for g in portraits.GENDERS]), people.gender
        ),
        "profession": _accuracy(
            features, text([PROMPT.format(p) for p in portraits.PROFESSIONS]), people.profession
        ),
        "tone": _accuracy(
            features, text([f"A photo of a {t} person." for t in portraits.TONES]), people.tone
        ),
        "age": _accuracy(
            features, text([f"A photo of a {a} person." for a in portraits.AGES]), people.age
        ),
    }
    concepts = features @ text([f"A photo of a {c} person." for c in portraits.CONCEPTS]).T
    attributes = {"gender": people.gender, "tone": people.tone, "age": people.age}
    top = min(TOP, n // 4)
    skews = {
        name: fmean(max_skew(s, groups, top, n_groups=int(groups.max()) + 1) for s in concepts.T)
        for name, groups in attributes.items()
    }
    return {"reads": reads, f"max skew of concepts at {top}": skews}


def _judge(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Return the judge's accuracy on balanced renders and VAE reconstructions."""
    judge, vae = load_judge(folder).to(device), load_vae(folder).to(device)
    n = _at_least(16, PORTRAITS * scale / 2)
    studio = portraits.STUDIO
    people, flock = (
        portraits.sample(n, seed=seed, balanced=True, life=studio),
        birds.sample(n, seed=seed, balanced=True),
    )
    renders: Values = {}
    restored: Values = {}
    for name, images, fields in (
        ("portraits", people.images, PEOPLE_FIELDS),
        ("birds", flock.images, BIRD_FIELDS),
    ):
        truth = people if name == "portraits" else flock
        with torch.no_grad():
            parts = [
                vae.decode(vae.encode(x.to(device) * 2 - 1)[0].mean)[0].cpu()
                for x in images.split(250)
            ]
        again = (torch.cat(parts) / 2 + 0.5).clamp(0, 1)
        for results, seen in ((renders, images), (restored, again)):
            read = judge.predict(seen)
            results |= {
                f: (read[f].cpu() == getattr(truth, f)).float().mean().item() for f in fields
            }
        restored[f"PSNR of {name}"] = -10 * math.log10(F.mse_loss(again, images).item())
    return {"renders": renders, "restored": restored}


@dataclass(frozen=True)
class _Studio:
    """A pipeline with a judge for its images."""

    pipeline: "StableDiffusionPipeline"
    judge: AttributeNetwork
    seed: int

    def read(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the judge's answers (n,) by field."""
        return {name: labels.cpu() for name, labels in self.judge.predict(images).items()}

    def draw(self, texts: Sequence[str], count: int) -> torch.Tensor:
        """Return images of "A photo of a ..." (texts * count, 3, 64, 64) in [0, 1], by text.

        The noise depends only on the seed, the position of the text in the list and the index of
        the image, so that images with and without a projection are paired.
        """
        images = []
        for start in range(0, len(texts), _PROMPTS_AT_ONCE):
            prompts = [PROMPT.format(text) for text in texts[start : start + _PROMPTS_AT_ONCE]]
            numbers = range(start * count, (start + len(prompts)) * count)
            drawn = self.pipeline(
                prompts,
                num_images_per_prompt=count,
                num_inference_steps=STEPS,
                guidance_scale=3.0,
                generator=[
                    torch.Generator().manual_seed(self.seed * 1_000_003 + k) for k in numbers
                ],
                output_type="pt",
            )
            images.append(drawn.images.cpu())
        return torch.cat(images)


def _generation(folder: Path, scale: float, seed: int, device: str) -> dict[str, Values]:
    """Measure images of held-out professions, people with stated attributes, and birds.

    Professions are measured with and without a projection that is fitted on the others.
    """
    studio = _Studio(load_pipeline(folder).to(device), load_judge(folder).to(device), seed)
    names = portraits.TEST_PROFESSIONS[: _at_least(1, len(portraits.TEST_PROFESSIONS) * scale)]
    count = _at_least(2, IMAGES_PER_PROFESSION * scale)
    plain = studio.draw(names, count)
    results = {"none": _people(studio.read(plain), names, count)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WideEditWarning)  # expected for the paper's lam
        attachment = debias(
            studio.pipeline, "professions-gender", method="cali", lam=LAM["portraits"]
        )
    with attachment:
        results["cali 500"] = _people(studio.read(studio.draw(names, count)), names, count)
    results["stated"] = {}
    for field, values in (
        ("gender", portraits.GENDERS),
        ("tone", portraits.TONES),
        ("age", portraits.AGES),
    ):
        shown = studio.read(
            studio.draw([f"{value} {name}" for value in values for name in names], 1)
        )[field]
        results["stated"][field] = _share(
            shown == torch.arange(len(values)).repeat_interleave(len(names))
        )
    species = birds.SPECIES[: _at_least(1, len(birds.SPECIES) * scale)]
    flock = studio.draw(
        [f"{name} on {ground}" for name in species for ground in birds.BACKGROUNDS], 1
    )
    read, expected = studio.read(flock), torch.arange(len(species)).repeat_interleave(2)
    results["birds"] = {
        "species": _share(read["species"] == expected),
        "class": _share(read["species"] // birds.PER_CLASS == expected // birds.PER_CLASS),
        "ground": _share(
            read["place"] // birds.PER_BACKGROUND == torch.tensor([0, 1]).repeat(len(species))
        ),
    }
    _, features = _clip(folder, device)
    people = portraits.sample(len(plain), seed=seed, professions=names, life=portraits.STUDIO)
    places = birds.sample(len(flock), seed=seed, balanced=True)
    results["fid"] = {
        "portraits": frechet_distance(features(plain), features(people.images)),
        "birds": frechet_distance(features(flock), features(places.images)),
    }
    return results


def _people(read: dict[str, torch.Tensor], names: Sequence[str], count: int) -> Values:
    """Return the bias in `count` images per profession, and the profession's recognition rate."""
    expected = torch.tensor(
        [portraits.PROFESSIONS.index(name) for name in names]
    ).repeat_interleave(count)
    rows = {field: read[field].view(len(names), count) for field in ("gender", "tone", "age")}
    male = (rows["gender"] == 0).double().mean(dim=1)
    return {
        "discrepancy": fmean(discrepancy(row, len(portraits.GENDERS)) for row in rows["gender"]),
        "tone discrepancy": fmean(discrepancy(row, len(portraits.TONES)) for row in rows["tone"]),
        "age discrepancy": fmean(discrepancy(row, len(portraits.AGES)) for row in rows["age"]),
        "recognised": _share(read["profession"] == expected),
        "male share": male.mean().item(),
        "middle": _share((male >= 0.25) & (male <= 0.75)),
    }


def _share(condition: torch.Tensor) -> float:
    return condition.double().mean().item()


def frechet_distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the FID (Heusel et al. 2017, eq. 6) between CLIP features (n, d) and (m, d)."""
    first, second = first.double(), second.double()
    roots = torch.linalg.eigvals(first.T.cov() @ second.T.cov()).real.clamp(min=0).sqrt()
    spread = first.var(dim=0).sum() + second.var(dim=0).sum() - 2 * roots.sum()
    return ((first.mean(dim=0) - second.mean(dim=0)).square().sum() + spread).item()


def _at_least(least: int, value: float) -> int:
    return max(least, round(value))
