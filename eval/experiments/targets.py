"""Do the first results have the shares that were asked for? Real CLIP embeddings of 1000 CelebA images, and portraits.

python -m eval.experiments.targets                                   # print the table
python -m eval.experiments.targets --json eval/results/targets.json  # and write it

CelebA is read as in embeddings.py; the portraits are 1000 of the miniature world. 8 random halves of the images: fitted
on one half without labels, measured on the other with labels; queries "A photo of {profession}" (51 on CelebA, the
unseen ones on the portraits), k = 50. Skew is measured against the shares that were asked for: log of the largest ratio
of a share to its target. Methods:

none                the query as it is
equalised           the groups' means made equal (targets 0): shares as among all images, for comparison
target              vldebias.fit_shares, from images alone
target, with pairs  the same with prompt pairs equalised too
random              as many images drawn at random from many that have the shares: what chance alone gives
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from eval.experiments.embeddings import LAM, Gallery, celeba, file, image_features
from eval.experiments.run import parser, run
from vldebias import fit_shares
from vldebias.data import Embeddings, Labels
from vldebias.evaluation.result import Provenance, TaskResult
from vldebias.evaluation.texts import Texts
from vldebias.metrics.rankings import rankings
from vldebias.miniature import load_clip
from vldebias.miniature.portraits import GENDERS, sample
from vldebias.prompts import PromptSet, load_prompts

HALVES, K, DRAWS = 8, 50, 20_000
PORTRAITS, SEED = 1000, 9101
MALE = (0.2, 0.35, 0.5, 0.65, 0.8)
AGE = {"young": 0.7, "old": 0.3}
METHODS = {"target": "equalise", "target, with pairs": "cali"}
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Job:
    """One set of target shares. sets: prompt sets of the attributes; group: (n,) true group of every image."""

    data: Gallery
    subset: str
    sets: list[PromptSet]
    shares: dict[str, float]
    group: NDArray[np.int64]

    @property
    def wanted(self) -> Floats:
        """(g,) in the order of the groups."""
        return np.array(list(self.shares.values()))

    def moved(self, images: Tensor) -> dict[str, Tensor]:
        """Method -> queries (q, d), normalised, fitted on `images` without labels."""
        texts, common = self.data.texts, {"reference": images, "top": K / len(images), "lam": LAM}
        fits = {name: fit_shares(texts.host, self.sets, self.shares, method=m, **common) for name, m in METHODS.items()}
        queries = texts.embed(self.data.queries)
        rows = {"none": queries, "equalised": fits["target"].target.plain(queries)}
        rows |= {name: fit(queries) for name, fit in fits.items()}
        return {name: normalize(moved, dim=1) for name, moved in rows.items()}

    def shares_at(self, queries: Tensor, rows: NDArray[np.int64]) -> Floats:
        """(q, g) shares among the K best of some images; images that tie keep their order."""
        best = rankings((queries @ self.data.rows[rows].T).numpy())[:, :K]
        return (self.group[rows][best][..., None] == np.arange(len(self.shares))).mean(1)

    def skew(self, shares: Floats) -> Floats:
        """max_a log(share_a / wanted_a) over the last axis."""
        return np.log((shares / self.wanted).max(axis=-1))

    def fill(self, result: TaskResult) -> None:
        """Means over halves, with intervals over queries; the share is that of the first group."""
        measured: dict[str, dict[str, list[Floats]]] = {}
        before, first = self.data.texts.embed(self.data.queries), next(iter(self.shares))
        for seed in range(HALVES):
            order = np.random.default_rng(seed).permutation(len(self.group))
            seen, unseen = order[: len(order) // 2], order[len(order) // 2 :]
            for name, queries in self.moved(self.data.rows[seen]).items():
                shares = self.shares_at(queries, unseen)
                for metric, values in {
                    f"max_skew_to_target@{K}": self.skew(shares),
                    f"share of {first}@{K}": shares[:, 0],
                    "query_cosine": (before * queries).sum(1).numpy(),
                }.items():
                    measured.setdefault(metric, {}).setdefault(name, []).append(values)
        n = {"queries": len(before), "halves": HALVES}
        better = {"max": "lower", "sha": "neither", "que": "higher"}
        for metric, by_method in measured.items():
            values = {name: np.mean(halves, axis=0) for name, halves in by_method.items()}
            result.add_resampled(metric, values, better=better[metric[:3]], n=n, subset=self.subset)
        drawn = np.random.default_rng(0).multinomial(K, self.wanted / self.wanted.sum(), size=DRAWS) / K
        floor = float(self.skew(drawn).mean())
        metric = f"max_skew_to_target@{K}"
        result.add(metric, "random", floor, better="lower", n={"draws": DRAWS}, subset=self.subset)


def portraits() -> Gallery:
    """Portraits of the miniature world, balanced, with the miniature CLIP and the unseen professions as queries."""
    model, preprocess, tokenizer = load_clip()
    world = sample(PORTRAITS, seed=SEED, balanced=True)
    return Gallery(
        images=Embeddings(
            features=image_features(model, world.images, preprocess).numpy(),
            ids=tuple(map(str, range(PORTRAITS))),
            labels={"gender": Labels(world.gender.numpy(), GENDERS)},
            about={"model": "miniature CLIP", "data": "portraits", "split": f"{PORTRAITS} balanced renders"},
        ),
        texts=Texts(model, tokenizer),
        queries=load_prompts("professions-gender").held_out_classes,
        prompts=load_prompts("gender"),
    )


def jobs(real: Gallery, made: Gallery) -> dict[str, list[Job]]:
    """Task -> its targets: gender toward five shares on both, and gender with age on CelebA."""
    tasks = {}
    for name, data in (("celeba-1000", real), ("portraits", made)):
        tasks[f"{name} shares: gender"] = [
            Job(data, f"male {male:.2f}", [data.prompts], {"male": male, "female": 1 - male}, data.gender)
            for male in MALE
        ]
    pairs = tuple((f"a photo of a young {who}", f"a photo of an old {who}") for who in ("man", "woman"))
    ages = PromptSet(
        name="young-old",
        attributes={"young": ("young",), "old": ("old",)},
        groups=pairs,
        spurious=tuple(prompt for pair in pairs for prompt in pair),
    )
    crossed = {f"{g}/{a}": 0.5 * share for g in ("male", "female") for a, share in AGE.items()}
    old = real.images.column("age")
    group = real.gender * 2 + (old.codes == old.names.index("old"))
    job = Job(real, "half male, 0.30 old", [real.prompts, ages], crossed, group)
    return {**tasks, "celeba-1000 shares: gender x age": [job]}


def measure() -> Iterator[TaskResult]:
    """All tasks."""
    for task, targets in jobs(celeba(file()), portraits()).items():
        result = TaskResult(_provenance(task, targets), details={m: {"lam": LAM} for m in ("equalised", *METHODS)})
        for job in targets:
            job.fill(result)
        yield result


def _provenance(task: str, targets: list[Job]) -> Provenance:
    data, weights = targets[0].data, targets[0].data.texts.host.fingerprint()
    sets = targets[0].sets
    return Provenance(
        task=task,
        title="Retrieval toward target shares",
        description=f"Shares of the first {K} against the shares asked for; means over {HALVES} random halves that "
        "were not fitted on. Groups are read zero-shot when fitting and from the labels when measuring. Intervals: "
        "bootstrap over queries.",
        model=data.images.about["model"],
        fingerprint=None if weights is None else weights.to_dict(),
        prompts="+".join(s.name for s in sets),
        prompts_hash="+".join(s.hash for s in sets),
        split=f"{data.images.about['data']} {data.images.about['split']}, {HALVES} random halves",
        methods={"none": {}, "equalised": {"lam": LAM}, **{m: {"method": x, "lam": LAM} for m, x in METHODS.items()}},
        seeds=list(range(HALVES)),
        n={"images": len(targets[0].group), "queries": len(data.queries)},
        data={"embeddings": data.digest} if data.digest else {},
        settings={
            "k": K,
            "targets": {job.subset: job.shares for job in targets},
            "resampled": "queries",
            "resamples": 2000,
            "random": f"{DRAWS} draws",
        },
    )


def main() -> int:
    given = parser(__doc__).parse_args()
    if not file().is_file():
        print(f"{file()}: not found; set VLDEBIAS_REAL to its folder", file=sys.stderr)
        return 2
    run("targets", measure, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
