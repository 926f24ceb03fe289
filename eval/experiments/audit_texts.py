"""Compare shares predicted from prompts with those in generated images and search results.

    python -m eval.experiments.audit_texts --json eval/results/audit_texts.json

All predictions are out of sample. Each concept is held out from its line, and coverage is measured
for lines that are fitted to two thirds of the concepts, over 200 random splits.

    published  Share of men in images from Stable Diffusion 1.5 (Fair Diffusion's counts), predicted
               from text embeddings of CLIP ViT-B/32.
    retrieval  Share of men in the top 100 of CelebA pools with equally many men and women.
    miniature  Share of men in images from the miniature pipeline (eval/results/miniature.json),
               predicted from its own text embeddings and from those of the miniature CLIP.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.functional import normalize

from eval.experiments.embeddings import Gallery, celeba, file, say_if_missing
from eval.tables import add_share, parser, read, run
from vldebias.auditing.line import LEVEL, PUBLISHED, ShareLine, read_shares
from vldebias.auditing.prediction import SURE, directions
from vldebias.hosts import resolve
from vldebias.measure.resampling import bootstrap_interval, percentile_interval, wilson_interval
from vldebias.metrics import Metric
from vldebias.prompts import load_prompts
from vldebias.report.result import NONE, TaskProvenance, TaskResult

WIDTH = Metric("interval_width", "mean width of the intervals", "fact", "lower", (0.0, 1.0))
SAID_RIGHT = Metric("said_right", "sides that are said and right", "fact", "higher", (0.0, 1.0))
FIRST = 100


def about(task: str, description: str, model: str, split: str, n: int) -> TaskResult:
    settings = {"level": LEVEL, "side is said from a chance of": SURE, "splits": 200}
    how = {"model": model, "split": split, "seeds": [0], "n": {"concepts": n}, "settings": settings}
    return TaskResult(TaskProvenance(task=task, description=description, **how))


def add_line(out: TaskResult, line: ShareLine, subset: str = "") -> None:
    """Add the out-of-sample figures for a line."""
    x, y, n, rng, found = line.x, line.y, {"concepts": len(line.x)}, np.random.default_rng(0), []
    r = bootstrap_interval(x, y, statistic=lambda x, y: float(np.corrcoef(x, y)[0, 1]))
    out.add("lean_r", NONE, r.value, (r.low, r.high), n=n, subset=subset)
    out.add("lean_r2", NONE, line.r2, n=n, subset=subset)
    sides = ((line.left_out > 0.5) == (y > 0.5))[y != 0.5]
    right, sided = int(sides.sum()), len(sides)
    out.add("side_right", NONE, right / sided, wilson_interval(right, sided), n=n, subset=subset)
    for _ in range(200):
        fitted, held = np.split(rng.permutation(len(x)), [2 * len(x) // 3])
        low, high = ShareLine(x[fitted], y[fitted]).interval(x[held])
        inside = (y[held] >= low - 1e-9) & (y[held] <= high + 1e-9)
        found.append((inside.mean(), (high - low).mean()))
    covered, width = np.array(found).T
    out.add(
        "interval_coverage", NONE, covered.mean(), percentile_interval(covered), n=n, subset=subset
    )
    out.add(WIDTH, NONE, width.mean(), n=n, subset=subset)
    chances = np.array(
        [ShareLine(*np.delete([x, y], i, axis=1)).chance(x[[i]], 0.5)[0] for i in range(len(x))]
    )
    is_sure = np.maximum(chances, 1 - chances) >= SURE
    if is_sure.any():
        hits = int(((chances > 0.5) == (y > 0.5))[is_sure].sum())
        add_share(out, SAID_RIGHT, NONE, hits, {"said": int(is_sure.sum())}, subset)


def published(gallery: Gallery) -> TaskResult:
    """Measure lines from CLIP ViT-B/32 text embeddings to images from Stable Diffusion 1.5."""
    host = gallery.texts
    shares = read_shares(PUBLISHED, gallery.prompts).rename(gallery.query_of_occupation)
    shares = shares[shares.index.isin(gallery.queries)]
    rows = host.embed(list(shares.index), host.roles[0])
    line = ShareLine((rows @ gallery.text_direction).numpy(), shares.to_numpy()[:, 0])
    description = "Occupations that are in both files, 250 images of each."
    split = "Fair Diffusion's counts, Stable Diffusion 1.5"
    out = about("published", description, str(host.model_id), split, len(line.x))
    add_line(out, line, "texts of men less texts of women")
    men = gallery.rows[gallery.gender == 0].mean(0)
    women = gallery.rows[gallery.gender == 1].mean(0)
    leans = (rows @ normalize(men - women, dim=0)).numpy()
    add_line(out, ShareLine(leans, line.y), "images of men less images of women")
    return out


def retrieval(gallery: Gallery) -> TaskResult:
    """Predict which queries are biased before searching a gallery."""
    host, role = gallery.texts, gallery.texts.roles[0]
    rows = host.under(gallery.queries, role, None)
    scores = (rows @ gallery.rows.T).numpy()
    first = [
        pool[np.argsort(-scores[:, pool], axis=1, kind="stable")[:, :FIRST]]
        for pool in gallery.pools(range(10))
    ]
    men = [(gallery.gender[one] == 0).mean(1) for one in first]
    line = ShareLine((rows @ directions(host, gallery.prompts)[0]).numpy(), np.mean(men, axis=0))
    split = f"CelebA, 10 pools of 402 men and 402 women, first {FIRST}"
    out = about(
        "retrieval", "Share of men among the first images.", str(host.model_id), split, len(line.x)
    )
    add_line(out, line)
    return out


def embedded() -> TaskResult:
    """Measure lines for the miniature pipeline and its 100 professions."""
    from vldebias.miniature import load_clip, load_pipeline

    prompts = load_prompts("professions-gender")
    names = (*prompts.class_names, *prompts.held_out_class_names)
    form = dict(zip(names, (*prompts.classes, *prompts.held_out_classes), strict=True))
    model, _, tokenizer = load_clip()
    hosts = {"the pipeline's own texts": resolve(load_pipeline())}
    hosts["texts of the embedded CLIP"] = resolve(model, tokenizer=tokenizer)
    key = ("generation gender", "share", NONE)
    rows = [row for row in read("miniature").rows if (row.task, row.metric, row.method) == key]
    shares = {
        row.subset.partition(":")[0]: row.value for row in rows
    }  # share of men in all images of a concept
    split = "eval/results/miniature.json, 12 images of each profession"
    out = about("miniature", "Share of men in what was generated.", "miniature", split, len(shares))
    texts = [form[one] for one in shares]
    for name, host in hosts.items():
        leans = host.embed(texts, host.roles[0]) @ directions(host, prompts)[0]
        add_line(out, ShareLine(leans.numpy(), np.array(list(shares.values()))), name)
    return out


def measure() -> Iterator[TaskResult]:
    """Measure all parts, but skip those on real embeddings if these are missing."""
    if file().is_file():
        gallery = celeba()
        yield published(gallery)
        yield retrieval(gallery)
    yield embedded()


@torch.no_grad()
def main() -> None:
    args = parser(__doc__).parse_args()
    say_if_missing()
    run("audit_texts", measure, args.json)


if __name__ == "__main__":
    main()
