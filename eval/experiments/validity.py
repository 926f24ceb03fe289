"""Compare the geometry and the ranking of methods between the miniature and a real CLIP model.

python -m eval.experiments.validity --json eval/results/validity.json
python -m eval.experiments.validity --model FOLDER      # a different build of the miniature

The geometry describes queries, images (equally many of each gender) and the attribute in both
models. The ranking is compared by Spearman's correlation over linear methods between the MaxSkew on
the miniature and the committed MaxSkew with CLIP ViT-B/32 on CelebA (`rivals.py`). Because the real
gallery and its reference are halves of the same set, the miniature's reference is sampled like its
gallery, with either people off duty or all people. Without real embeddings (see embeddings.py),
their rows are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import comb, log
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from eval.experiments.embeddings import Floats, Rows, celeba, file, miniature, say_if_missing
from eval.experiments.rivals import LIGHT, Split
from eval.miniature.people import MALE_SHARE, Life
from eval.tables import parser, read, run
from vldebias.hosts import Host
from vldebias.methods import get_method
from vldebias.metrics import Metric
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import TaskProvenance, TaskResult

LINEAR = (
    "orth",
    "orth-cali",
    "cali",
    LIGHT,
    "difference",
    "equalise",
    "cali+equalise",
    "difference+equalise",
    "leace",
    "roboshot",
    "bend-vlm",
)
K = 50
IMAGES, REFERENCE, SEEDS = 2000, 500, (9013, 9023, 9033)
LEAN, RANK = "lean of a text and true log odds, r", "correlation with real"
# Ranges over two real models, CLIP ViT-B/32 on CelebA and CLIP RN50 on FairFace, whose embeddings
# are not part of this project.
RANGES: dict[str, tuple[float, float]] = {
    "effective rank of images": (53, 80),
    "cosine of images": (0.57, 0.70),
    "cosine of queries": (0.84, 0.84),
    "cosine of image mean and query": (0.21, 0.29),
    "cosine of the attribute in images and texts": (0.60, 0.75),
    "standardised gap of a query's scores": (0.64, 0.90),
    "std of scores in a group, x 100": (1.2, 1.5),
    "zero-shot accuracy of the attribute": (0.93, 0.99),
}


def _unit(rows: Any) -> Floats:
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def gaps(queries: Floats, images: Floats, groups: Rows) -> Floats:
    """Return the differences (q,) between group means in standard deviations within groups."""
    scores = queries @ images.T
    first_group, second_group = scores[:, groups == 0], scores[:, groups == 1]
    return (first_group.mean(1) - second_group.mean(1)) / np.sqrt(
        (first_group.var(1) + second_group.var(1)) / 2
    )


def geometry(images: Floats, groups: Rows, queries: Floats, pairs: Floats) -> dict[str, float]:
    """Return the quantities in RANGES.

    Args:
        images: The image embeddings (n, d).
        groups: The groups (n,), which are 0 or 1.
        queries: The query embeddings (q, d).
        pairs: The embeddings of prompt pairs (p, 2, d).
    """
    images, queries, pairs = _unit(images), _unit(queries), _unit(pairs)
    spread = np.linalg.eigvalsh(np.cov(images.T)).clip(0)
    share = spread[spread > 0] / spread.sum()
    in_images = images[groups == 0].mean(0) - images[groups == 1].mean(0)
    first, second = _unit(pairs.mean(0))
    in_texts = (pairs[:, 0] - pairs[:, 1]).mean(0)
    q, scores = len(queries), queries @ images.T
    inside = [scores[:, groups == group].std(1) for group in (0, 1)]
    values = (
        np.exp(-(share * np.log(share)).sum()),
        (images.mean(0) ** 2).sum(),
        ((queries.sum(0) ** 2).sum() - q) / (q * (q - 1)),
        (queries @ _unit(images.mean(0))).mean(),
        _unit(in_images) @ _unit(in_texts),
        np.abs(gaps(queries, images, groups)).mean(),
        100 * np.mean(inside),
        ((images @ first > images @ second) == (groups == 0)).mean(),
    )
    return dict(zip(RANGES, map(float, values), strict=True))


def lean(queries: Floats, pairs: Floats, male_share: Floats) -> float:
    """Return the correlation between queries (q, d) along the attribute and the true log odds."""
    pairs = _unit(pairs)
    along = _unit(queries) @ (pairs[:, 0] - pairs[:, 1]).mean(0)
    return float(np.corrcoef(along, np.log(male_share / (1 - male_share)))[0, 1])


def chance(k: int, first: int, second: int) -> float:
    """Return the expected MaxSkew@k of a random ranking of two groups with the given sizes."""
    total = comb(first + second, k)
    chances = [comb(first, x) * comb(second, k - x) / total for x in range(k + 1)]
    return sum(p * log(2 * max(x, k - x) / k) for x, p in enumerate(chances))


def real_skews() -> dict[str, float]:
    """Return MaxSkew@k with the real CLIP model for each method, from the committed result."""
    rows = read("rivals_real").rows
    return {
        r.method: r.value
        for r in rows
        if r.task == "celeba professions" and r.metric == f"max_skew@{K}"
    }


def correlation(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return Spearman's correlation over common methods, except "none" and chance."""
    common = [method for method in first if method in second and method not in ("none", "random")]
    return float(spearmanr([first[m] for m in common], [second[m] for m in common]).statistic)


def in_space(texts: Host, prompts: PromptSet, queries: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the embeddings of queries (q, d) and of the prompt set's pairs (p, 2, d)."""
    pairs = np.stack([texts.embed(list(pair)).double().numpy() for pair in prompts.pairs])
    return texts.embed(list(queries)).double().numpy(), pairs


def task(
    name: str, title: str, texts: Host, prompts: PromptSet, queries: Sequence[str], split: str
) -> TaskResult:
    weights = texts.fingerprint()
    return TaskResult(
        TaskProvenance(
            task=name,
            title=title,
            description=(
                "Geometry of queries, images and gender; MaxSkew of the linear methods, mean over"
                " references."
            ),
            model=str(texts.model_id or "miniature CLIP"),
            fingerprint=None if weights is None else weights.to_dict(),
            prompts=prompts.name,
            prompts_hash=prompts.hash,
            split=split,
            seeds=list(SEEDS),
            n={"queries": len(queries), "pairs": len(prompts.pairs)},
            settings={"k": K, "queries": list(queries)},
        )
    )


def add(done: TaskResult, metrics: Mapping[str, float]) -> None:
    """Add the figures for the model without a method."""
    for name, value in metrics.items():
        done.add(Metric(name, name), "none", value, (value, value), n=done.provenance.n)


def measure(folder: Path | None = None, *, images: int = IMAGES) -> Iterator[TaskResult]:
    """Measure the real model, if its embeddings are available, and then the miniature."""
    expected = real_skews()
    if file().is_file():
        data = celeba()
        done = task(
            "real",
            "Professions among photographs",
            data.texts,
            data.prompts,
            data.queries,
            "CelebA 1-1000",
        )
        add(
            done,
            geometry(
                data.images.features, data.gender, *in_space(data.texts, data.prompts, data.queries)
            ),
        )
        for method, value in expected.items():
            done.add(f"max_skew@{K}", method, value, (value, value), n=done.provenance.n)
        size = len(data.pools([0])[0]) // 2
        add(done, {"chance": chance(K, size, size)})
        yield done
    texts, features = miniature(folder)
    jobs = load_prompts("professions-gender")
    unseen = jobs.held_out_classes
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "off duty": ("Unseen professions among people off duty", {"life": Life(off_duty=1.0)}),
        "professions": ("Unseen professions among portraits", {}),
    }
    for name, (title, life) in kinds.items():
        done = task(name, title, texts, jobs, unseen, f"{name}, {images} renders, seed 9002")
        shown = features("portraits", n=images, seed=9002, balanced=True, **life)
        spaces = in_space(texts, jobs, unseen)
        add(done, geometry(shown.features, shown.column("gender").codes, *spaces))
        add(done, {LEAN: lean(*spaces, MALE_SHARE[-len(unseen) :])})
        runs = []
        for seed in SEEDS:
            reference = features("portraits", n=REFERENCE, seed=seed, balanced=True, **life)
            split = Split(texts, reference, shown, jobs, attribute="gender", queries=unseen, k=K)
            rows = split.measure(split.fit(map(get_method, LINEAR))).rows
            runs.append(
                {r.method: r.value for r in rows if r.metric == f"max_skew@{K}" and not r.subset}
            )
        mean = {m: float(np.mean([run[m] for run in runs])) for m in runs[0]}
        for method, value in mean.items():
            ends = min(run[method] for run in runs), max(run[method] for run in runs)
            done.add(f"max_skew@{K}", method, value, ends, n=done.provenance.n)
        half = images // 2
        add(done, {RANK: correlation(mean, expected), "chance": chance(K, half, images - half)})
        yield done


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--model", type=Path, help="folder of a build (default: the one that ships)"
    )
    options.add_argument(
        "--images", type=int, default=IMAGES, help="renders in a gallery (default: %(default)s)"
    )
    args = options.parse_args()
    say_if_missing()
    run("validity", lambda: measure(args.model, images=args.images), args.json)


if __name__ == "__main__":
    main()
