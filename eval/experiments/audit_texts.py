"""Shares predicted from texts alone beside those that were drawn and found: how well, on what, and where not.

python -m eval.experiments.audit_texts --json eval/results/audit_texts.json

The tables of docs/tutorials/audit-a-prompt-list.md are made from it. Every prediction is out of sample: each concept
is left out of its line, and coverage is that of lines fitted on two thirds of the concepts, over 200 random splits.

published    Share of men in what Stable Diffusion 1.5 drew (Fair Diffusion's counts) from CLIP ViT-B/32's texts.
other        The same lines, read as predictions of another source, LAION's shares: intervals as they are, and widened.
retrieval    Share of men among the first 100 of CelebA pools with as many men as women, before any method and under it.
miniature    Share of men in what the embedded pipeline drew (eval/results/miniature.json), from its own texts and from
             the texts of the embedded CLIP.
methods      Lines of 80 professions of the embedded pipeline, read at 20 others (eval/results/quickstart.json): before
             any method, under the default as the changed texts have it, under stated-value by construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from eval.experiments.embeddings import FILE, Gallery, celeba, file
from eval.experiments.run import parser, run, skip
from eval.tables import fills, read, rows_in, span, table
from vldebias.evaluation.auditing import FOREIGN, LEVEL, PUBLISHED, SURE, Leans, ShareLine, build_task
from vldebias.evaluation.result import NONE, TaskProvenance, TaskResult
from vldebias.hosts import Host, resolve
from vldebias.methods import Problem, get_method
from vldebias.metrics import Metric
from vldebias.metrics.bootstrap import bootstrap_interval, wilson_interval
from vldebias.metrics.rankings import rankings
from vldebias.prompts import load_prompts

WIDTH = Metric("interval_width", "mean width of the intervals", "fact", "lower", (0.0, 1.0))
SAID = Metric("side_said", "concepts of which a side is said", "fact", "higher", (0.0, 1.0))
SAID_RIGHT = Metric("said_right", "sides that are said and right", "fact", "higher", (0.0, 1.0))
ERROR = Metric("share_error", "mean error of predicted shares", "fact", "lower", (0.0, 1.0))
FIRST = 100
Floats = NDArray[np.float64]


def about(task: str, description: str, model: str, split: str, n: int) -> TaskResult:
    settings = {"level": LEVEL, "side is said from a chance of": SURE, "splits": 200}
    return TaskResult(
        TaskProvenance(
            task=task,
            description=description,
            model=model,
            split=split,
            seeds=[0],
            n={"concepts": n},
            settings=settings,
        )
    )


def add_line(out: TaskResult, line: ShareLine, subset: str = "", parity: float = 0.5) -> None:
    """All that is said of one line, out of sample."""
    n = {"concepts": len(line.x)}
    value, ends = line.correlation()
    out.add("lean_r", NONE, value, ends, n=n, subset=subset)
    out.add("lean_r2", NONE, line.r2, n=n, subset=subset)
    right, sided = line.right_side(parity)
    out.add("side_right", NONE, right / sided, wilson_interval(right, sided), n=n, subset=subset)
    inside, between, width = line.coverage()
    out.add("interval_coverage", NONE, inside, between, n=n, subset=subset)
    out.add(WIDTH, NONE, width, n=n, subset=subset)
    off = np.abs(line.left_out - line.y)
    out.add(ERROR, NONE, float(off.mean()), _mean_interval(off), n=n, subset=subset)
    chances = np.array([one.chance(line.x[[i]], parity)[0] for i, one in enumerate(without(line))])
    said = np.maximum(chances, 1 - chances) >= SURE
    hits = int(((chances > 0.5) == (line.y > parity))[said].sum())
    out.add(SAID, NONE, float(said.mean()), wilson_interval(int(said.sum()), len(said)), n=n, subset=subset)
    if said.any():
        ends = wilson_interval(hits, int(said.sum()))
        out.add(SAID_RIGHT, NONE, hits / int(said.sum()), ends, n={"said": int(said.sum())}, subset=subset)


def without(line: ShareLine) -> Iterator[ShareLine]:
    """The line without each of its concepts."""
    for i in range(len(line.x)):
        kept = np.arange(len(line.x)) != i
        yield ShareLine(line.x[kept], line.y[kept])


def _mean_interval(values: Floats) -> tuple[float, float]:
    found = bootstrap_interval(values)
    return found.low, found.high


def published(gallery: Gallery) -> Iterator[TaskResult]:
    """B/32's texts and what Stable Diffusion 1.5 drew; the same lines and LAION's shares."""
    listed = [*gallery.queries, *(text for group in gallery.prompts.groups for text in group)]
    prompts = gallery.prompts
    task = build_task(gallery.queries, prompts)
    known = task.calibrated(gallery.texts.host, listed)
    line = known.lines[0]
    model, split = str(gallery.texts.host.model_id), "Fair Diffusion's counts, Stable Diffusion 1.5"
    out = about("published", "Occupations that are in both files, 250 images of each.", model, split, len(line.x))
    add_line(out, line, "texts of men less texts of women")
    direction = normalize(gallery.rows[gallery.gender == 0].mean(0) - gallery.rows[gallery.gender == 1].mean(0), dim=0)
    add_line(out, ShareLine((known.rows @ direction).numpy(), line.y), "images of men less images of women")
    yield out
    counts = pd.read_csv(PUBLISHED, comment="#").set_index("concept").loc[list(known.table.concepts)]
    shares = (counts["data male"] / (counts["data male"] + counts["data female"])).to_numpy()
    out = about("other", "Lines of what was drawn, as predictions of LAION's own shares.", model, split, len(line.x))
    n = {"concepts": len(line.x)}
    for name, wider in (("as they are", 1.0), (f"{FOREIGN:g} times the residuals", FOREIGN)):
        ends = [one.interval(line.x[[i]], wider) for i, one in enumerate(without(line))]
        inside = sum(bool(low[0] <= share <= high[0]) for (low, high), share in zip(ends, shares, strict=True))
        covered = wilson_interval(inside, len(shares))
        out.add("interval_coverage", NONE, inside / len(shares), covered, n=n, subset=name)
        out.add(WIDTH, NONE, float(np.mean([high[0] - low[0] for low, high in ends])), n=n, subset=name)
    yield out


def retrieval(gallery: Gallery) -> TaskResult:
    """Which queries lean before any gallery is searched, and what the texts say of a method before it is."""
    host, role = gallery.texts.host, gallery.texts.host.roles[0]
    leans = Leans.of(host, gallery.prompts, None)
    edits = {NONE: None, "default": Problem.of(host, [gallery.prompts]).fit(get_method("default"), role)}
    pools, rows, shares, gaps = gallery.pools(range(10)), {}, {}, {}
    for name, edit in edits.items():
        rows[name] = host.under(gallery.queries, role, edit)
        scores = (rows[name] @ gallery.rows.T).numpy()
        men = [(gallery.gender[pool][rankings(scores[:, pool])[:, :FIRST]] == 0).mean(1) for pool in pools]
        shares[name], gaps[name] = np.mean(men, axis=0), leans.at(rows[name])[:, 0]
    line = ShareLine(gaps[NONE], shares[NONE])
    split = f"CelebA, 10 pools of 402 men and 402 women, first {FIRST}"
    out = about("retrieval", "Share of men among the first images.", str(host.model_id), split, len(line.x))
    add_line(out, line)
    add_methods(out, {name: line.at(gap) for name, gap in gaps.items() if name != NONE}, shares)
    return out


def add_methods(out: TaskResult, predicted: Mapping[str, Floats], shares: Mapping[str, Floats]) -> None:
    """Errors of the shares that are predicted under methods, and parity gaps, predicted and true."""
    n = {"concepts": len(shares[NONE])}
    for name, guess in predicted.items():
        off = np.abs(guess - shares[name])
        out.add(ERROR, name, float(off.mean()), _mean_interval(off), n=n, subset=f"under {name}")
        for metric, own in (("predicted_discrepancy", guess), ("discrepancy", shares[name])):
            gap = np.sqrt(2) * np.abs(own - 0.5)
            out.add(metric, name, float(gap.mean()), _mean_interval(gap), n=n, subset=f"under {name}")


def drawn(name: str, method: str) -> dict[str, float]:
    """Concept -> share of men among all images of it."""
    rows = [
        row for row in read(name).rows if (row.task, row.metric, row.method) == ("generation gender", "share", method)
    ]
    return {row.subset.partition(":")[0]: row.value for row in rows}


def embedded() -> Iterator[TaskResult]:
    """The embedded pipeline, whose texts know 100 professions; methods on those that are held out."""
    from vldebias.miniature import load_clip, load_pipeline

    prompts = load_prompts("professions-gender")
    names = (*prompts.class_names, *prompts.held_out_class_names)
    form = dict(zip(names, (*prompts.classes, *prompts.held_out_classes), strict=True))
    model, _, tokenizer = load_clip()
    hosts: dict[str, Host] = {
        "the pipeline's own texts": resolve(load_pipeline()),
        "texts of the embedded CLIP": resolve(model, tokenizer=tokenizer),
    }
    shares = drawn("miniature", NONE)
    split = "eval/results/miniature.json, 12 images of each profession"
    out = about("miniature", "Share of men in what was drawn.", "miniature", split, len(shares))
    for name, host in hosts.items():
        add_line(out, line_of(host, prompts.name, [form[one] for one in shares], list(shares.values())), name)
    yield out
    held = {method: drawn("quickstart", method) for method in (NONE, "default", "stated-value")}
    train = {one: share for one, share in shares.items() if one in prompts.class_names}
    host = hosts["the pipeline's own texts"]
    line = line_of(host, prompts.name, [form[one] for one in train], list(train.values()))
    concepts, role = list(held[NONE]), host.roles[0]
    texts = [form[one] for one in concepts]
    leans, edit = Leans.of(host, prompts, None), Problem.of(host, [prompts]).fit(get_method("default"), role)
    predicted = {
        NONE: line.at(leans.at(host.embed(texts, role))[:, 0]),
        "default": line.at(leans.at(host.under(texts, role, edit))[:, 0]),
        "stated-value": np.full(len(texts), 0.5),
    }
    split = "eval/results/quickstart.json, 24 images of each profession"
    out = about("methods", "Professions that no line was fitted on.", "miniature", split, len(texts))
    add_methods(out, predicted, {name: np.array([own[one] for one in concepts]) for name, own in held.items()})
    low, high = line.interval(leans.at(host.embed(texts, role))[:, 0])
    own = np.array([held[NONE][one] for one in concepts])
    inside = int(((low <= own) & (own <= high)).sum())
    n = {"concepts": len(texts)}
    out.add(
        "interval_coverage", NONE, inside / len(texts), wilson_interval(inside, len(texts)), n=n, subset="under none"
    )
    yield out


def line_of(host: Host, prompts: str, texts: Sequence[str], shares: Sequence[float]) -> ShareLine:
    """The line of drawn shares on the leans of their texts."""
    leans = Leans.of(host, load_prompts(prompts), None)
    return ShareLine(leans.at(host.embed(texts, host.roles[0]))[:, 0], np.array(shares))


def measure(real: bool) -> Iterator[TaskResult]:
    """All parts, those on real embeddings where they are there."""
    if real:
        gallery = celeba(file(FILE))
        yield from published(gallery)
        yield retrieval(gallery)
    yield from embedded()


LINES = {
    "lean_r": "r",
    "lean_r2": "R2, left out",
    "side_right": "side right",
    "said_right": "side right where one is said",
    "interval_coverage": "held-out shares covered",
    "interval_width": "width",
}


SOURCES = {
    "published": "Stable Diffusion 1.5, B/32's texts",
    "retrieval": "CelebA search, B/32's texts",
    "miniature": "embedded pipeline",
}


@fills("docs/tutorials/audit-a-prompt-list.md", "audit_lines")
def lines_block() -> str:
    """Tasks and directions down, how well shares are predicted across."""
    lines = [["what is predicted from what", "concepts", *LINES.values()]]
    for task, title in SOURCES.items():
        for subset in dict.fromkeys(row.subset for row in read("audit_texts").rows if row.task == task):
            own = {metric: row for (_, metric), row in rows_in(read("audit_texts"), task, subset).items()}
            if "lean_r" not in own:
                continue
            cells = [
                f"{own[one].value:.2f}" if one in ("interval_width", "lean_r2") else span(own.get(one), ".2f")
                for one in LINES
            ]
            lines.append([", ".join(filter(None, (title, subset))), str(own["lean_r"].n["concepts"]), *cells])
    return table(*lines, note="From `eval/results/audit_texts.json`.")


@torch.no_grad()
def main() -> None:
    given = parser(__doc__).parse_args()
    if not file(FILE).is_file():
        skip(file(FILE))
    run("audit_texts", lambda: measure(file(FILE).is_file()), given.json)


if __name__ == "__main__":
    main()
