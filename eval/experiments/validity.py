"""Does the miniature answer as a real CLIP does? Geometry and ranking of methods, miniature beside real.

python -m eval.experiments.validity --json eval/results/validity.json
python -m eval.experiments.validity --model FOLDER      # another build of the miniature

Geometry is that of queries, of images (as many of each gender) and of the attribute in both. Ranking: Spearman's
correlation over the linear methods between their MaxSkew on the miniature and on CLIP ViT-B/32 and CelebA
(`rivals.py`, its committed result). The real gallery and its reference are halves of one set, so the reference of the
miniature is drawn as its gallery is; "another reference" ranks people off duty with a reference of people as they come,
two in five of them off duty and with jobs that lean. The real embeddings are read from where embeddings.py says;
without them their rows are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from eval.experiments.cells import RESULTS
from eval.experiments.embeddings import Floats, Gallery, Rows, celeba, chance, file, protocol
from eval.experiments.rivals import LIGHT, Split
from eval.experiments.run import parser, run
from eval.miniature.people import MALE_SHARE, Life
from vldebias.data import Embeddings
from vldebias.evaluation.result import Result, TaskResult
from vldebias.evaluation.task import Texts
from vldebias.methods import get_method
from vldebias.metrics import Metric
from vldebias.prompts import PromptSet, load_prompts

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
SHOWN = ("none", "cali", "equalise", "difference", "cali+equalise")
K = 50
IMAGES, REFERENCE, SEEDS = 2000, 500, (9013, 9023, 9033)
LEAN = "lean of a text and true log odds, r"
REAL = "CLIP ViT-B/32, CelebA"
# What two real models have: CLIP ViT-B/32 on CelebA and CLIP RN50 on FairFace (embeddings outside of this project).
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
RANK = "correlation with real"
# What the next edition aims at, for professions, on and off duty: between, or at least.
AIMS: dict[str, tuple[float, float]] = {
    "effective rank of images": (60, np.inf),
    "cosine of images": (0.47, 0.80),
    "cosine of queries": (0.74, 0.94),
    "cosine of image mean and query": (0.11, 0.39),
    "cosine of the attribute in images and texts": (0.60, 0.75),
    "standardised gap of a query's scores": (0.5, 1.0),
    LEAN: (0.7, 0.9),
    RANK: (0.6, 1.0),
}
PROFESSIONS = ("off duty", "professions")


def unmet(result: Result) -> set[tuple[str, str]]:
    """(block, figure) of what lies outside of its aim."""
    found = _values(result)
    pairs = [(block, name) for block in PROFESSIONS for name in AIMS]
    return {(b, n) for b, n in pairs if not AIMS[n][0] <= found[b, n, "none"] <= AIMS[n][1]}


def _unit(rows: Any) -> Floats:
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def gaps(queries: Floats, images: Floats, groups: Rows) -> Floats:
    """(q,) difference of the groups' mean scores in standard deviations inside a group, signed."""
    scores = queries @ images.T
    one, other = scores[:, groups == 0], scores[:, groups == 1]
    return (one.mean(1) - other.mean(1)) / np.sqrt((one.var(1) + other.var(1)) / 2)


def geometry(images: Floats, groups: Rows, queries: Floats, pairs: Floats) -> dict[str, float]:
    """The rows of RANGES, for images (n, d), their groups (n,) 0 or 1, queries (q, d) and pairs (p, 2, d)."""
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
    """Correlation of texts (q, d) along the attribute, which pairs (p, 2, d) state, with the true log odds (q,)."""
    pairs = _unit(pairs)
    along = _unit(queries) @ (pairs[:, 0] - pairs[:, 1]).mean(0)
    return float(np.corrcoef(along, np.log(male_share / (1 - male_share)))[0, 1])


def skews(split: Split) -> dict[str, float]:
    """Title of a method -> MaxSkew@k, none among them."""
    edits, _ = split.fit(map(get_method, LINEAR))
    rows = split.measure(edits).rows
    return {r.method: r.value for r in rows if r.metric == f"max_skew@{split.k}" and not r.subset}


def real_skews() -> dict[str, float]:
    """The same of real CLIP, from the committed result."""
    rows = Result.read(RESULTS / "rivals_real.json").rows
    return {r.method: r.value for r in rows if r.task == "celeba professions" and r.metric == f"max_skew@{K}"}


def correlation(some: Mapping[str, float], others: Mapping[str, float]) -> float:
    """Spearman's, over the methods that both have, "none" and chance left out."""
    common = [method for method in some if method in others and method not in ("none", "random")]
    return float(spearmanr([some[m] for m in common], [others[m] for m in common]).statistic)


class Miniature:
    """The towers of a build, and the galleries they are asked about."""

    def __init__(self, folder: Path | None = None, *, images: int = IMAGES, reference: int = REFERENCE) -> None:
        from eval.miniature.data import open_world
        from vldebias.data.cache import embed_images
        from vldebias.hosts.images import image_encoder
        from vldebias.miniature import load_clip

        model, preprocess, tokenizer = load_clip(folder)
        encoder, self.texts = image_encoder(model, preprocess), Texts(model, tokenizer)

        def embedded(n: int, seed: int, **how: Any) -> Embeddings:
            return embed_images(open_world("portraits", n=n, seed=seed, **how), encoder)

        kinds: dict[str, dict[str, Any]] = {
            "off duty": {"balanced": True, "life": Life(off_duty=1.0)},
            "as they come": {"balanced": True},
            "leaning": {"balanced": False},
        }
        self.galleries = {name: embedded(images, 9002, **kinds[name]) for name in ("off duty", "as they come")}
        self.references = {name: [embedded(reference, seed, **how) for seed in SEEDS] for name, how in kinds.items()}

    def splits(self, gallery: str, kind: str, prompts: PromptSet, queries: Sequence[str], k: int) -> list[Split]:
        """One for each reference of a kind."""
        common: dict[str, Any] = {"texts": self.texts, "gallery": self.galleries[gallery], "attribute": "gender"}
        return [
            Split(reference=r, prompts=prompts, queries=tuple(queries), k=k, **common) for r in self.references[kind]
        ]


def _facts(task: TaskResult, metrics: Mapping[str, float], method: str = "none") -> None:
    for name, value in metrics.items():
        task.add(Metric(name, name), method, value, (value, value), n=task.provenance.n)


def _task(name: str, title: str, texts: Texts, prompts: PromptSet, queries: Sequence[str], split: str) -> TaskResult:
    about = "Geometry of queries, images and gender; MaxSkew of the linear methods, mean over references."
    n = {"queries": len(queries), "pairs": len(prompts.pairs)}
    how: dict[str, Any] = {"split": split, "seeds": SEEDS, "k": K, "queries": list(queries)}
    return TaskResult(protocol(name, title, about, n, {}, (texts, prompts), **how))


def measure(folder: Path | None = None, *, images: int = IMAGES) -> Iterator[TaskResult]:
    """Blocks: real (where its embeddings are), then the miniature by gallery and queries."""
    expected = real_skews()
    if file().is_file():
        data = celeba(file())
        yield _real(data)
    mini = Miniature(folder, images=images)
    fair, jobs = load_prompts("fairface-gender"), load_prompts("professions-gender")
    unseen, everyday = jobs.held_out_classes, "Unseen professions among people off duty"
    for name, title, gallery, prompts, queries, k in (
        ("off duty", everyday, "off duty", jobs, unseen, K),
        ("professions", "Unseen professions among portraits", "as they come", jobs, unseen, K),
        ("concepts", "Ten concepts among portraits", "as they come", fair, fair.classes, 3 * K),
        ("another reference", f"{everyday}, another reference", "off duty", jobs, unseen, K),
    ):
        kind = "leaning" if name == "another reference" else gallery
        done = _task(name, title, mini.texts, prompts, queries, f"{gallery}, {images} renders, seed 9002")
        shown, texts = mini.galleries[gallery], _texts(mini.texts, prompts, queries)
        if kind == gallery:  # else it has been told of the same pictures
            _facts(done, geometry(shown.features, shown.column("gender").codes, *texts))
            if prompts is jobs:
                _facts(done, {LEAN: lean(*texts, MALE_SHARE[-len(queries) :])})
        runs = [skews(split) for split in mini.splits(gallery, kind, prompts, queries, k)]
        mean = {m: float(np.mean([run[m] for run in runs])) for m in runs[0]}
        for method, value in mean.items():
            ends = min(run[method] for run in runs), max(run[method] for run in runs)
            done.add(f"max_skew@{k}", method, value, ends, n=done.provenance.n)
        half = images // 2
        _facts(done, {RANK: correlation(mean, expected), "chance": chance(k, half, images - half)})
        yield done


def _texts(texts: Texts, prompts: PromptSet, queries: Sequence[str]) -> tuple[Floats, Floats]:
    pairs = np.stack([texts.embed(list(pair)).double().numpy() for pair in prompts.pairs])
    return texts.embed(list(queries)).double().numpy(), pairs


def _real(data: Gallery) -> TaskResult:
    done = _task(
        "real", "Professions among photographs", data.texts, data.prompts, data.queries, "CelebA 000001-001000"
    )
    _facts(done, geometry(data.images.features, data.gender, *_texts(data.texts, data.prompts, data.queries)))
    (pool,) = data.pools([0])
    size = len(pool) // 2
    for method, value in real_skews().items():
        done.add(f"max_skew@{K}", method, value, (value, value), n=done.provenance.n)
    _facts(done, {"chance": chance(K, size, size)})
    return done


TITLES = {
    "real": REAL,
    "off duty": "unseen professions, off duty",
    "professions": "unseen professions, all",
    "concepts": "ten concepts",
    "another reference": "off duty, another reference",
}


def _values(result: Result) -> dict[tuple[str, str, str], float]:
    return {(row.task, row.metric.partition("@")[0], row.method): row.value for row in result.rows}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", type=Path, help="folder of a build (default: the one that ships)")
    options.add_argument("--images", type=int, default=IMAGES, help="renders in a gallery (default: %(default)s)")
    given = options.parse_args()
    run("validity", lambda: measure(given.model, images=given.images), given.json)


if __name__ == "__main__":
    main()
