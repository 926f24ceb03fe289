"""Measure what closed-form projections remove and preserve, depending on lambda.

    python -m eval.experiments.closed_form --json eval/results/closed_form.json

For P0, Lemma 7.2 ("cali") and Lemma 7.1 ("orth-cali"), three quantities are measured: the distance
between the two prompts in a held-out pair, the cosine between a query's embeddings before and after
the edit, and MaxSkew@50 of the queries over a gallery with equally many men and women. Held-out
pairs are those for the set's test professions. For CelebA, whose prompts do not name professions, a
quarter of the pairs is held out in turn. The miniature CLIP is packaged. Embeddings of CelebA from
OpenAI's CLIP ViT-B/32 are loaded from $VLDEBIAS_REAL and skipped, with a message, if missing.

The command also draws the figure in docs/explanation/projection.md next to the JSON file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from eval.experiments import embeddings
from eval.photographs import is_present
from eval.tables import parser, run
from vldebias import CalibratedProjection, load_prompts
from vldebias.hosts import Host
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.metrics import bootstrap_interval, max_skew

K = 50
LAMS = (1.0, 10.0, 100.0, 1000.0, 10_000.0)


@dataclass(frozen=True)
class Space:
    """The unit text embeddings of a CLIP model, and the image embeddings of an even gallery."""

    name: str
    pairs: Tensor  # (n, 2, d)
    held_out: Tensor | None  # (m, 2, d), or None to hold out a quarter of `pairs` in turn
    spurious: Tensor  # (s, d)
    queries: Tensor  # (q, d)
    images: Tensor  # (i, d)
    groups: np.ndarray[Any, Any]  # (i,) strings


def embedded(host: Host, texts: Sequence[str]) -> Tensor:
    """Return unit embeddings (n, d)."""
    return normalize(host.embed(list(texts)).double(), dim=-1)


def miniature() -> Space:
    """Return profession prompts and 240 rendered portraits of equally many men and women."""
    prompt_set = load_prompts("professions-gender")
    host, open_world = embeddings.miniature()
    embed = partial(embedded, host)
    images = open_world("portraits", n=240, seed=85)
    gender = images.column("gender")
    return Space(
        name="miniature CLIP, rendered portraits",
        pairs=torch.stack([embed(side) for side in zip(*prompt_set.pairs, strict=True)], 1),
        held_out=torch.stack(
            [
                embed([f"A photo of a {value} {name}." for name in prompt_set.held_out_class_names])
                for value in ("male", "female")
            ],
            1,
        ),
        spurious=embed(prompt_set.spurious),
        queries=embed(prompt_set.held_out_classes),
        images=images.unit[:].double(),
        groups=np.array(gender.names)[gender.codes],
    )


def celeba() -> Space | None:
    """Return embeddings of 804 CelebA photographs from CLIP ViT-B/32, or None if missing."""
    if not is_present(embeddings.FILE):
        return None
    gallery = embeddings.celeba()
    embed = partial(embedded, gallery.texts)
    pairs = torch.stack([embed(side) for side in zip(*gallery.prompt_set.variants, strict=True)], 1)
    pool = gallery.pool(0)
    return Space(
        name="CLIP ViT-B/32, CelebA",
        pairs=pairs,
        held_out=None,
        spurious=embed(gallery.prompt_set.spurious),
        queries=embed(gallery.queries),
        images=gallery.rows[pool],
        groups=np.array(["male", "female"])[gallery.gender[pool]],
    )


def fit(method: str, lam: float, pairs: Tensor, spurious: Tensor) -> CalibratedProjection:
    """Return the projection for a method, which is the identity for "none"."""
    if method == "none":
        return CalibratedProjection.identity(pairs.shape[-1])
    if method == "orth":
        return CalibratedProjection(0.0).fit(None, spurious)
    if method == "cali":
        return CalibratedProjection(lam).fit(pairs)
    return CalibratedProjection(lam).fit(pairs, spurious)


def distances_of_held_out_pairs(space: Space, method: str, lam: float) -> np.ndarray[Any, Any]:
    """Return the distance between the two unit embeddings in each held-out pair."""
    n = len(space.pairs)
    if space.held_out is None:
        quarters = [torch.arange(n) % 4 == quarter for quarter in range(4)]
        splits = [(space.pairs[~quarter], space.pairs[quarter]) for quarter in quarters]
    else:
        splits = [(space.pairs, space.held_out)]
    distances = []
    for used, held_out in splits:
        edited = normalize(fit(method, lam, used, space.spurious)(held_out), dim=-1)
        distances.append((edited[:, 0] - edited[:, 1]).norm(dim=-1))
    return torch.cat(distances).numpy()


def measure(space: Space) -> TaskResult:
    """Return a row for each measure, method and lam, with a 95% interval over pairs or queries."""
    result = TaskResult(
        TaskProvenance(
            task=space.name,
            description="what the closed form removes and what it keeps",
            n={"pairs": len(space.pairs), "images": len(space.images)},
            is_miniature=space.held_out is not None,
        )
    )
    cells = [("none", 0.0), ("orth", 0.0)]
    cells += [(method, lam) for lam in LAMS for method in ("cali", "orth-cali")]
    for method, lam in cells:
        projection = fit(method, lam, space.pairs, space.spurious)
        queries = normalize(projection(space.queries), dim=-1)
        skews = []
        for scores in queries @ space.images.T:
            skews.append(max_skew(scores.numpy(), space.groups, K))
        values_of_metric = {
            "pair_distance": distances_of_held_out_pairs(space, method, lam),
            "query_cosine": (queries * space.queries).sum(-1).numpy(),
            f"max_skew@{K}": np.array(skews),
        }
        name = method if method in ("none", "orth") else f"{method}, λ = {lam:g}"
        for metric, values in values_of_metric.items():
            value, low, high = bootstrap_interval(values)
            unit = "pairs" if metric == "pair_distance" else "queries"
            result.add(metric, name, value, (low, high), n={unit: len(values)}, lam=lam)
    return result


def plot_plane(space: Space, path: Path) -> None:
    """Draw pairs and queries in a plane spanned by the attribute and the main query direction."""
    from matplotlib.figure import Figure

    pairs = space.pairs if space.held_out is None else space.held_out
    attribute = normalize((pairs[:, 1] - pairs[:, 0]).mean(0), dim=0)
    centre = space.queries.mean(0)
    rest = space.queries - centre
    rest = rest - (rest @ attribute)[:, None] * attribute
    meaning = torch.linalg.svd(rest, full_matrices=False).Vh[0]
    plane = torch.stack([attribute, meaning], 1)
    methods = {
        "no edit": "none",
        "P0": "orth",
        "cali, λ = 1000": "cali",
        "orth-cali, λ = 1000": "orth-cali",
    }
    figure = Figure(figsize=(11, 3.1), layout="constrained")
    axes = figure.subplots(1, len(methods), sharex=True, sharey=True)
    for axis, (name, method) in zip(axes, methods.items(), strict=True):
        edit = fit(method, 1000.0, space.pairs, space.spurious)
        ends = (edit(pairs) - edit(centre)) @ plane
        for first, second in ends:
            segment = torch.stack([first, second])
            axis.plot(segment[:, 0], segment[:, 1], color="#bbbbbb", linewidth=0.8, zorder=1)
        axis.scatter(ends[:, 0, 0], ends[:, 0, 1], s=12, color="#1f77b4", label="male ...")
        axis.scatter(ends[:, 1, 0], ends[:, 1, 1], s=12, color="#d62728", label="female ...")
        points = (edit(space.queries) - edit(centre)) @ plane
        axis.scatter(points[:, 0], points[:, 1], s=16, color="black", marker="x", label="unstated")
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("attribute", fontsize=9)
    axes[0].set_ylabel("what professions differ in most", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=110)


def main() -> None:
    path: Path | None = parser(__doc__).parse_args().json
    spaces = [miniature()]
    photographs = celeba()
    if photographs is not None:
        spaces.append(photographs)

    def measured() -> Iterator[TaskResult]:
        for space in spaces:
            yield measure(space)

    run("closed_form", measured, path)
    if path is not None:
        plot_plane(spaces[0], path.with_name(f"{path.stem}_plane.png"))


if __name__ == "__main__":
    main()
