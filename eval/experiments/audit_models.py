"""Measure how well `vldebias audit` predicts held-out occupations, by model.

python -m eval.experiments.audit_models --json eval/results/audit_models.json

For each calibration, every occupation is held out once. Its share is predicted from the other
occupations by a line on text embeddings (from CLIP ViT-B/32, if available, and from the miniature
CLIP), by a line on the shares in a different model, and by the mean share. Coverage is the share of
held-out occupations whose interval contains the true share. `same_side` is the share of occupations
that lean in the same direction in two models.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from eval.experiments.audit_texts import WIDTH
from eval.experiments.embeddings import celeba, file, say_if_missing
from eval.tables import add_share, parser, run
from vldebias.auditing.line import (
    CALIBRATIONS,
    LEAST,
    LEVEL,
    MINIATURE,
    Calibration,
    ShareLine,
    read_shares,
)
from vldebias.auditing.prediction import FORM, directions
from vldebias.hosts import Host, resolve
from vldebias.measure.resampling import bootstrap_interval
from vldebias.metrics import Metric
from vldebias.prompts import fill, load_prompts
from vldebias.report.result import NONE, TaskProvenance, TaskResult

ERROR = Metric(
    "left_out_error", "mean error of a share that was left out", "fact", "lower", (0.0, 1.0)
)
SAME_SIDE = Metric(
    "same_side", "occupations that lean to the same side", "fact", "neither", (0.0, 1.0)
)
GENDER = load_prompts("gender")
PREDICTED_FROM = {
    "sd15": "sd3",
    "fair-diffusion": "sd3",
    "sd3": "flux2",
    "sd35": "fair-diffusion",
    "flux2": "sd3",
    "uce": "sd15",
}


def leans(host: Host, along: torch.Tensor, texts: list[str]) -> np.ndarray:
    """Return how much each prompt leans towards the first value (n,)."""
    return (host.embed(texts, host.roles[0]) @ along).numpy()


def add_left_out(out: TaskResult, x: np.ndarray, y: np.ndarray, part: str) -> None:
    """Add the leave-one-out error, R2, coverage and interval width of a line on x."""
    line = ShareLine(x, y)
    n = {"occupations": len(x)}
    error = np.abs(y - line.left_out)
    spread = bootstrap_interval(error, statistic=lambda rows: float(rows.mean()))
    out.add(ERROR, NONE, float(error.mean()), (spread.low, spread.high), n=n, subset=part)
    out.add("lean_r2", NONE, line.r2, n=n, subset=part)
    covered = 0
    widths = []
    for i in range(len(x)):
        line_without = ShareLine(np.delete(x, i), np.delete(y, i))
        low, high = line_without.interval(x[i : i + 1])
        covered += bool(low[0] - 1e-9 <= y[i] <= high[0] + 1e-9)
        widths.append(high[0] - low[0])
    add_share(out, "interval_coverage", NONE, covered, n, part)
    out.add(WIDTH, NONE, float(np.mean(widths)), n=n, subset=part)


def by_model(
    calibration: Calibration, shares: dict[str, pd.Series], texts: dict[str, pd.Series]
) -> TaskResult:
    """Measure one calibration.

    Args:
        calibration: The calibration.
        shares: A mapping from calibrations to the share of the first value by occupation.
        texts: A mapping from text encoders to the lean by occupation.
    """
    own_shares = shares[calibration.name]
    settings = {"level": LEVEL, "source": calibration.source, "guidance": calibration.guidance}
    description = (
        "Each occupation left out of the line, its share of men predicted from the others."
    )
    out = TaskResult(
        TaskProvenance(
            task=calibration.name,
            description=description,
            model=calibration.model,
            split="occupations",
            seeds=[0],
            n={"occupations": len(own_shares)},
            settings=settings,
        )
    )
    mean_of_others = (own_shares.sum() - own_shares) / (len(own_shares) - 1)
    error = (own_shares - mean_of_others).abs().to_numpy()
    spread = bootstrap_interval(error, statistic=lambda rows: float(rows.mean()))
    out.add(
        ERROR,
        NONE,
        float(error.mean()),
        (spread.low, spread.high),
        n={"occupations": len(own_shares)},
        subset="mean of the others",
    )
    for name, lean in texts.items():
        both = own_shares.index.intersection(lean.index)
        if len(both) > LEAST:
            add_left_out(out, lean[both].to_numpy(), own_shares[both].to_numpy(), name)
    source = PREDICTED_FROM.get(calibration.name)
    if source is not None:
        both = own_shares.index.intersection(shares[source].index)
        add_left_out(
            out, shares[source][both].to_numpy(), own_shares[both].to_numpy(), f"shares of {source}"
        )
    for name, shares_of_model in shares.items():
        both = own_shares.index.intersection(shares_of_model.index)
        if name == calibration.name or len(both) <= LEAST:
            continue
        n_same = int(((own_shares[both] > 0.5) == (shares_of_model[both] > 0.5)).sum())
        add_share(out, SAME_SIDE, NONE, n_same, {"occupations": len(both)}, f"and {name}")
    return out


def measure() -> Iterator[TaskResult]:
    """Measure every calibration that is based on photographs of people."""
    known = [calibration for calibration in CALIBRATIONS if calibration != MINIATURE]
    shares = {
        calibration.name: read_shares(calibration, GENDER).iloc[:, 0] for calibration in known
    }
    occupations = sorted(set().union(*(rows.index for rows in shares.values())))
    texts: dict[str, pd.Series] = {}
    if file().is_file():
        gallery = celeba()
        named = gallery.query_of_occupation
        rows = leans(gallery.texts, gallery.text_direction, list(named.values()))
        texts["texts of CLIP ViT-B/32"] = pd.Series(rows, index=list(named))
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    host = resolve(model, tokenizer=tokenizer)
    forms = [fill(FORM, concept=occupation) for occupation in occupations]
    texts["texts of the embedded CLIP"] = pd.Series(
        leans(host, directions(host, GENDER)[0], forms), index=occupations
    )
    for calibration in known:
        yield by_model(calibration, shares, texts)


@torch.no_grad()
def main() -> None:
    args = parser(__doc__).parse_args()
    say_if_missing()
    run("audit_models", measure, args.json)


if __name__ == "__main__":
    main()
