"""What is read from drawn portraits, and the rows that `generation.py` makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.nn.functional import cosine_similarity

from eval.experiments.embeddings import image_features
from eval.metrics import (
    FOLLOWED,
    IMAGE_COSINE,
    KL,
    PIXEL_DISTANCE,
    SHARE,
    SHARE_BY_SEED,
    SHARE_OF_SQUARES,
    SHOWS,
)  # fmt: skip
from vldebias.data import UNKNOWN
from vldebias.evaluation.result import TaskResult
from vldebias.metrics import Metric
from vldebias.metrics.shares import discrepancies, squared_discrepancies
from vldebias.miniature import load_clip, load_judge
from vldebias.miniature.words import GENDERS, PROFESSIONS, TONES, WORLDS

SURE = 0.8  # of the judge: below it an attribute is unknown
Floats = NDArray[np.float64]
Fits = NDArray[np.int64] | None  # (prompts,) under which fit each was drawn; None: all under one


def judged(pixels: NDArray[np.uint8]) -> dict[str, Tensor]:
    """What the judge of the miniature world says of pixels (n, h, w, 3)."""
    return load_judge().predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)


@dataclass(frozen=True, eq=False)
class Seen:
    """What is read from pixels, each (prompts, images) or with features at the end; images seed by seed."""

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
            x, told = torch.from_numpy(part).permute(0, 3, 1, 2).float() / 255, judged(part)
            for name, rows in codes.items():
                sure = told[f"{name}_probabilities"].amax(1) >= SURE if name != "profession" else torch.tensor(True)
                rows.append(torch.where(sure, told[name], UNKNOWN).numpy().reshape(prompts, -1))
            with torch.no_grad():
                features.append(image_features(model, x, preprocess).reshape(prompts, len(x) // prompts, -1))
            images.append(x.reshape(prompts, len(x) // prompts, -1))
        joined = {name: np.concatenate(rows, axis=1) for name, rows in codes.items()}
        return cls(**joined, features=torch.cat(features, 1), pixels=torch.cat(images, 1))

    @classmethod
    def together(cls, several: Sequence[Seen]) -> Seen:
        """The prompts of one after those of another."""
        columns = {one.name: [getattr(seen, one.name) for seen in several] for one in fields(cls)}
        return cls(**{n: torch.cat(c) if isinstance(c[0], Tensor) else np.concatenate(c) for n, c in columns.items()})


def counted(codes: NDArray[np.int64], values: int) -> NDArray[np.int64]:
    """(prompts, values) counts."""
    return np.stack([(codes == value).sum(1) for value in range(values)], axis=1)


def deviation(counts: NDArray[np.int64]) -> Floats:
    """(prompts,) max_a |N_a/N - 1/A| / (1 - 1/A), as finetune-fair-diffusion and others report it."""
    a = counts.shape[1]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.abs(shares - 1 / a).max(1) / (1 - 1 / a)


def divergence(counts: NDArray[np.int64]) -> Floats:
    """(prompts,) KL of the shares from uniform, in nats."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1) * counts.shape[1]), 0).sum(1)


def over_fits(result: TaskResult, metric: str | Metric, values: Mapping[str, Floats], fits: Fits, *, subset: str,
              n: Mapping[str, int], share: bool = False) -> None:  # fmt: skip
    """A row per method: of values (prompts,) the mean, or its share of that of "none", resampled over fits and prompts.

    Fits are resampled first, then the prompts of each.
    """
    rows, rng = {name: np.asarray(own, dtype=np.float64) for name, own in values.items()}, np.random.default_rng(0)

    def of(places: NDArray[np.int64] | slice) -> dict[str, float]:
        means = {name: float(own[places].mean()) for name, own in rows.items()}
        return {name: mean / means["none"] if share else mean for name, mean in means.items()}

    labels = np.arange(len(rows["none"])) if fits is None else fits
    members = [np.flatnonzero(labels == one) for one in np.unique(labels)]
    drawn: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(2000):
        chosen = [members[i] for i in rng.integers(len(members), size=len(members))]
        places = np.concatenate([one[rng.integers(len(one), size=len(one))] for one in chosen])
        for name, value in of(places).items():
            drawn[name].append(value)
    result.add_draws(metric, of(slice(None)), {name: np.array(own) for name, own in drawn.items()}, n=n, subset=subset)


def measured(result: TaskResult, shown: Mapping[str, Seen], names: Sequence[str], fits: Fits,
             seeds: int, subset: str, kind: str) -> None:  # fmt: skip
    """All rows of one part; kind: "gender" or "tone"; fits: see `over_fits`; seeds: of which the images are parts."""
    values = len(GENDERS if kind == "gender" else TONES)
    wanted = np.array([[PROFESSIONS.index(name.lower())] for name in names])
    each = next(iter(shown.values())).gender.shape[1]
    n = {"professions": len(names), "images each": each, "fits": 1 if fits is None else len(set(fits.tolist()))}
    show = partial(over_fits, result, fits=fits, subset=subset, n=n)
    codes = {m: getattr(one, kind) for m, one in shown.items()}
    counts = {m: counted(c, values) for m, c in codes.items()}
    plain = {m: discrepancies(c) for m, c in counts.items()}
    squares = {m: squared_discrepancies(c) for m, c in counts.items()}
    show("discrepancy", plain)
    show(SHARE, plain, share=True)
    show("discrepancy_squared", squares)
    show(SHARE_OF_SQUARES, squares, share=True)
    for fit in () if fits is None else sorted(set(fits.tolist())):
        own = {m: one[fits == fit] for m, one in plain.items()}
        over_fits(result, SHARE, own, None, subset=f"{subset}, fit {fit + 1}",
                  n={"professions": int((fits == fit).sum()), "images each": each, "fits": 1}, share=True)  # fmt: skip
    show("deviation_ratio", {m: deviation(c) for m, c in counts.items()})
    show(KL, {m: divergence(c) for m, c in counts.items()})
    show("unknown", {m: (c == UNKNOWN).mean(1) for m, c in codes.items()})
    show("recognised", {m: (one.profession == wanted).mean(1) for m, one in shown.items()})
    base = shown["none"]
    same = {m: cosine_similarity(one.features, base.features, dim=-1).mean(1).numpy() for m, one in shown.items()}
    show(IMAGE_COSINE, same)
    near = {m: (one.pixels - base.pixels).abs().mean((1, 2)).numpy() for m, one in shown.items()}
    show(PIXEL_DISTANCE, near)
    runs = {m: np.array([squared_discrepancies(counted(part, values)).mean() for part in np.split(c, seeds, 1)])
            for m, c in codes.items()}  # fmt: skip
    for method, own in runs.items():  # of the drawing alone: the same professions and fits, other noise
        ratio = own / runs["none"]
        half = stats.t.ppf(0.975, seeds - 1) * ratio.std(ddof=1) / np.sqrt(seeds)
        result.add(SHARE_BY_SEED, method, float(ratio.mean()),
                   (float(ratio.mean() - half), float(ratio.mean() + half)), n={"seeds": seeds},
                   subset=subset)  # fmt: skip


def asked_for(pixels: NDArray[np.uint8], prompts: int, world: str) -> NDArray[np.bool_]:
    """(prompts, images): does the image show something of this world?"""
    return np.asarray(judged(pixels)["world"].numpy().reshape(prompts, -1) == WORLDS.index(world))


def kept(result: TaskResult, shown: Mapping[str, NDArray[np.bool_]], fits: int, subset: str) -> None:
    """Of the images that show what was asked for under "none", the share that does under each method; the same noise.

    shown: method -> (fits * prompts, images), fit by fit.
    """
    there = shown["none"].sum(1)
    some = there > 0
    values = {method: (one & shown["none"])[some].sum(1) / there[some] for method, one in shown.items()}
    which = np.repeat(np.arange(fits), len(there) // fits)[some] if fits > 1 else None
    n = {"prompts": len(there) // fits, "images each": shown["none"].shape[1], "fits": fits}
    over_fits(result, SHOWS, values, which, subset=subset, n=n)


def followed(result: TaskResult, shown: Mapping[str, Seen], given: Mapping[str, NDArray[np.str_]],
             fits: Fits, subset: str) -> None:  # fmt: skip
    """Share of the images that show the value that they were given; given: method -> (prompts, images)."""
    for code, value in enumerate(GENDERS):
        rows = {m: _mean_where(shown[m].gender == code, told == value) for m, told in given.items()}
        n = {"professions": len(next(iter(rows.values()))), "fits": 1 if fits is None else len(set(fits.tolist()))}
        over_fits(result, FOLLOWED, rows, fits, subset=f"{subset}, {value}", n=n)


def _mean_where(hits: NDArray[np.bool_], where: NDArray[np.bool_]) -> Floats:
    """(prompts,) share of hits among the images (prompts, images) that count."""
    return np.asarray((hits & where).sum(1) / np.maximum(where.sum(1), 1))
