"""Do the first results have the shares that were asked for? Real CLIP embeddings of 1000 CelebA images, and portraits.

python eval/targets.py                                   # print the table
python eval/targets.py --json eval/results/targets.json  # and write it

The embeddings of CelebA are those of eval/real_clip.py and are not part of the project; the portraits are 1000 of the
miniature world. Protocol: 8 random halves of the images; fitted on one half without labels, measured on the other with
labels; queries "A photo of {profession}" (51 on CelebA, the unseen ones on the portraits), k = 50.
Skew is measured against the shares that were asked for: log of the largest ratio of a share to its target. Methods:

none                the query as it is
equalised           the groups' means made equal (targets 0): shares as among all images, for comparison
target              vldebias.fit_shares, from images alone
target, with pairs  the same with prompt pairs equalised too
random              as many images drawn at random from many that have the shares: what chance alone gives
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from features import image_features
from numpy.typing import NDArray
from real_clip import FILE, Real, data_file, load
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize

from vldebias import fit_shares
from vldebias.data import Embeddings, Labels
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.result import Figure, Protocol, Result, commit, versions
from vldebias.evaluation.texts import Texts
from vldebias.miniature import load_clip
from vldebias.miniature.portraits import GENDERS, sample
from vldebias.prompts import PromptSet, load_prompts
from vldebias.ranking import TargetShares

HALVES, K, LAM, DRAWS = 8, 50, 1000.0, 20_000
PORTRAITS, PORTRAIT_SEED = 1000, 9101
MALE = (0.2, 0.35, 0.5, 0.65, 0.8)
AGE = {"young": 0.7, "old": 0.3}
METHODS = {"target": "equalise", "target, with pairs": "cali"}
TOLD = (
    f"Shares of the first {K} against the shares asked for; means over {HALVES} random halves that were not fitted on. "
    "Groups are read zero-shot when fitting and from the labels when measuring. Intervals: bootstrap over queries."
)


@dataclass(frozen=True, eq=False)
class Job:
    """One set of target shares. sets: prompt sets of the attributes; group: (n,) true group of every image."""

    data: Real
    task: str
    subset: str
    sets: list[PromptSet]
    shares: dict[str, float]
    group: NDArray[np.int64]

    @property
    def wanted(self) -> NDArray[np.float64]:
        return np.array(list(self.shares.values()))


def jobs(path: Path) -> Iterator[Job]:
    """Gender toward five shares on both, and gender with age on CelebA."""
    real, made = load(path), portraits()
    for data, name in ((real, "celeba-1000"), (made, "portraits")):
        gender = data.images.column("gender").codes
        for male in MALE:
            shares = {"male": male, "female": 1 - male}
            yield Job(data, f"{name} shares: gender", f"male {male:.2f}", [data.prompts], shares, gender)
    with np.load(path, allow_pickle=False) as arrays:
        old = (arrays["attr"][:, list(arrays["attr_names"]).index("Young")] < 0).astype(np.int64)
    crossed = {f"{g}/{a}": 0.5 * share for g in ("male", "female") for a, share in AGE.items()}
    group = real.images.column("gender").codes * 2 + old
    yield Job(real, "celeba-1000 shares: gender x age", "half male, 0.30 old", [real.prompts, ages()], crossed, group)


def portraits() -> Real:
    """Portraits of the miniature world, balanced, with the miniature CLIP and the unseen professions as queries."""
    model, preprocess, tokenizer = load_clip()
    world = sample(PORTRAITS, seed=PORTRAIT_SEED, balanced=True)
    features = image_features(model, world.images, preprocess).numpy()
    return Real(
        images=Embeddings(
            features=features,
            ids=tuple(str(i) for i in range(PORTRAITS)),
            labels={"gender": Labels(world.gender.numpy(), GENDERS)},
            about={"model": "miniature CLIP", "data": "portraits", "split": f"{PORTRAITS} balanced renders"},
        ),
        texts=Texts(model, tokenizer),
        queries=load_prompts("professions-gender").held_out_classes,
        prompts=load_prompts("gender"),
    )


def ages() -> PromptSet:
    """Prompts about age, of those whose embeddings there are."""
    groups = tuple((f"a photo of a young {who}", f"a photo of an old {who}") for who in ("man", "woman"))
    spurious = tuple(prompt for group in groups for prompt in group)
    return PromptSet(
        name="young-old", attributes={"young": ("young",), "old": ("old",)}, groups=groups, spurious=spurious
    )


def split(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.random.default_rng(seed).permutation(n)
    return order[: n // 2], order[n // 2 :]


def fitted(job: Job, images: Tensor, method: str) -> TargetShares:
    return fit_shares(
        job.data.texts.host,
        job.sets,
        job.shares,
        reference_images=images,
        top=K / len(images),
        method=method,
        lam=LAM,
    )


def moved(job: Job, images: Tensor) -> dict[str, Tensor]:
    """Method -> queries (q, d), normalised, fitted on `images`."""
    queries = job.data.texts.embed(job.data.queries)
    moves = {name: fitted(job, images, method) for name, method in METHODS.items()}
    plain = moves["target"].target.plain(queries)
    found = {"none": queries, "equalised": plain, **{name: move(queries) for name, move in moves.items()}}
    return {name: normalize(rows, dim=1) for name, rows in found.items()}


def shares_at(queries: Tensor, images: Tensor, group: NDArray[np.int64], groups: int) -> NDArray[np.float64]:
    """(q, g) shares among the K best; images that tie keep their order."""
    best = (-(queries @ images.T)).argsort(dim=1, stable=True)[:, :K].numpy()
    return (group[best][..., None] == np.arange(groups)).mean(1)


def skew(shares: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """max_a log(share_a / wanted_a) over the last axis."""
    return np.log((shares / wanted).max(axis=-1))


def measure_job(job: Job) -> list[Figure]:
    found: dict[str, dict[str, list[NDArray[np.float64]]]] = {"skew": {}, "share": {}, "cosine": {}}
    before = job.data.texts.embed(job.data.queries)
    images = job.data.images.normalised().double()
    for seed in range(HALVES):
        seen, unseen = split(len(images), seed)
        for name, queries in moved(job, images[seen]).items():
            shares = shares_at(queries, images[unseen], job.group[unseen], len(job.wanted))
            found["skew"].setdefault(name, []).append(skew(shares, job.wanted))
            found["share"].setdefault(name, []).append(shares)
            found["cosine"].setdefault(name, []).append((before * queries).sum(1).numpy())
    return [*_figures(job, found, len(before)), chance(job)]


def _figures(job: Job, found: Mapping[str, Mapping[str, list[NDArray[np.float64]]]], queries: int) -> Iterator[Figure]:
    """Means over halves, with intervals over queries; the share is that of the first group."""
    n = {"queries": queries, "halves": HALVES}
    details = {name: {"lam": LAM} for name in ("equalised", *METHODS)}
    first = next(iter(job.shares))
    for metric, better, kind in (
        (f"max_skew_to_target@{K}", "lower", "skew"),
        (f"share of {first}@{K}", "neither", "share"),
        ("query_cosine", "higher", "cosine"),
    ):
        values = {name: np.mean(each, axis=0) for name, each in found[kind].items()}
        values = {name: v[:, 0] if v.ndim == 2 else v for name, v in values.items()}
        yield from figures(Measured(job.task, metric, better, n, values, subset=job.subset, details=details))


def chance(job: Job) -> Figure:
    """MaxSkew to the target of K images drawn from a population with the target shares: the floor."""
    drawn = np.random.default_rng(0).multinomial(K, job.wanted / job.wanted.sum(), size=DRAWS) / K
    value = float(skew(drawn, job.wanted).mean())
    return Figure(
        task=job.task,
        metric=f"max_skew_to_target@{K}",
        method="random",
        value=value,
        interval=(value, value),
        change=None,
        better="lower",
        n={"draws": DRAWS},
        subset=job.subset,
    )


def protocol(every: Sequence[Job]) -> Protocol:
    """Of the jobs of one task."""
    job = every[0]
    return Protocol(
        task=job.task,
        title="Retrieval toward target shares",
        description=TOLD,
        model=job.data.images.about["model"],
        fingerprint=job.data.texts.host.fingerprint(),
        prompts="+".join(s.name for s in job.sets),
        prompts_hash="+".join(s.hash for s in job.sets),
        split=f"{job.data.images.about['data']} {job.data.images.about['split']}, {HALVES} random halves",
        methods={"none": {}, "equalised": {"lam": LAM}, **{m: {"method": x, "lam": LAM} for m, x in METHODS.items()}},
        seeds=list(range(HALVES)),
        n={"images": len(job.group), "queries": len(job.data.queries)},
        settings={
            "k": K,
            "targets": {one.subset: one.shares for one in every},
            "resampled": "queries",
            "resamples": 2000,
            "random": f"{DRAWS} draws",
        },
    )


def measure(path: Path) -> Result:
    started = time.monotonic()
    every = list(jobs(path))
    tasks = dict.fromkeys(job.task for job in every)
    return Result(
        name="targets",
        figures=[figure for job in every for figure in measure_job(job)],
        protocols=[protocol([job for job in every if job.task == task]) for task in tasks],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
    )


def print_result(result: Result) -> None:
    table = Table("target", "method", "measure", "value", "95 % interval", title=result.name)
    for f in result.figures:
        table.add_row(f.subset, f.method, f.metric, f"{f.value:.3f}", f"{f.interval[0]:.3f} .. {f.interval[1]:.3f}")
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_file(), help=f"{FILE} (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        print(f"{arguments.data}: not found; set VLDEBIAS_REAL to the folder with {FILE}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    result = measure(arguments.data)
    print_result(result)
    if arguments.json:
        result.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
