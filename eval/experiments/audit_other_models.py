"""Test whether counts for some models predict who appears in images from a different model.

python -m eval.experiments.audit_other_models --json eval/results/audit_other_models.json

`vldebias audit` contains counts for four released models. Each of them is held out in turn, and its
share of women in every occupation is compared with the other models. DALL-E 2, Stable Diffusion 1.4
and Stable Diffusion 2 (`eval/counts/stable-bias.csv`), which are not part of the audit, are
compared with all four models.

- `left_out_error` is the distance between the share and the mean of the other models.
- `interval_coverage` is how often the share is between the minimum and maximum of the other models,
  which is the range that the audit shows.
- `same_lean` and `opposite_lean` are the shares of occupations for which the held-out model clearly
  leans in the same or the opposite direction, if all other models clearly lean in one direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from apps.audit.line import Calibration, known_calibrations, read_counts
from apps.audit.prediction import is_clearly_above
from eval.tables import add_share, parser, run
from vldebias.measure.resampling import bootstrap_interval
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.metrics import Metric
from vldebias.prompts import load_prompts

STABLE_BIAS = Path(__file__).parents[1] / "counts" / "stable-bias.csv"
GENDER = load_prompts("gender")
ERROR = Metric("left_out_error", "distance from the mean of the other models", bounds=(0.0, 1.0))
SAME = Metric("same_lean", "leans as all other models do", bounds=(0.0, 1.0))
OPPOSITE = Metric("opposite_lean", "leans the opposite way", bounds=(0.0, 1.0))
LEAST = 2  # minimum number of other models with counts for an occupation
SUBSET = "two other models or more"


def shipped_counts() -> dict[str, pd.DataFrame]:
    """Return the counts of men and women by occupation for each base model in the audit."""
    calibrations: list[Calibration] = known_calibrations("a model that nobody judged")
    return {calibration.name: read_counts(calibration, GENDER) for calibration in calibrations}


def stable_bias_counts() -> dict[str, pd.DataFrame]:
    """Return the counts of men and women by occupation for each model in Stable Bias."""
    table = pd.read_csv(STABLE_BIAS, comment="#")
    return {
        str(name): rows.set_index("prompt")[["male", "female"]]
        for name, rows in table.groupby("name", sort=False)
    }


def lean(counts: pd.Series) -> int:
    """Return 1 if images clearly lean towards women, -1 if towards men, and 0 otherwise."""
    n = round(float(counts.sum()))
    if is_clearly_above(0.5, round(float(counts["female"])), n):
        return 1
    return -1 if is_clearly_above(0.5, round(float(counts["male"])), n) else 0


def compared(left_out: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row for each occupation with counts for the held-out and for other models.

    The columns are `share` and `lean` for the held-out model, `n`, `mean`, `low` and `high` for the
    shares in the other models, and `lean_of_others`, the direction that these have in common, or 0.
    """
    rows = {}
    for occupation, counts in left_out.iterrows():
        known = [table.loc[occupation] for table in others.values() if occupation in table.index]
        if not known:
            continue
        shares = [row["female"] / row.sum() for row in known]
        leans = {lean(row) for row in known}
        rows[occupation] = {
            "share": counts["female"] / counts.sum(),
            "lean": lean(counts),
            "n": len(known),
            "mean": float(np.mean(shares)),
            "low": min(shares),
            "high": max(shares),
            "lean_of_others": leans.pop() if len(leans) == 1 else 0,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def add_rows(out: TaskResult, table: pd.DataFrame) -> None:
    """Add the results for some occupations."""
    n = {"occupations": len(table)}
    error = (table["share"] - table["mean"]).abs().to_numpy()
    spread = bootstrap_interval(error)
    out.add(ERROR, NONE, float(error.mean()), (spread.low, spread.high), n=n, subset=SUBSET)
    inside = (table["low"] <= table["share"]) & (table["share"] <= table["high"])
    add_share(out, "interval_coverage", NONE, int(inside.sum()), n, SUBSET)
    agreed = table[table["lean_of_others"] != 0]
    n_agreed = {"agreed occupations": len(agreed)}
    n_same = int((agreed["lean"] == agreed["lean_of_others"]).sum())
    opposite = int((agreed["lean"] == -agreed["lean_of_others"]).sum())
    add_share(out, SAME, NONE, n_same, n_agreed, SUBSET)
    add_share(out, OPPOSITE, NONE, opposite, n_agreed, SUBSET)


def measure() -> Iterator[TaskResult]:
    """Measure all held-out models together."""
    shipped = shipped_counts()
    tables = []
    for name, counts in (shipped | stable_bias_counts()).items():
        others = {other_name: table for other_name, table in shipped.items() if other_name != name}
        tables.append(compared(counts, others))
    table = pd.concat(tables)
    out = TaskResult(
        TaskProvenance(
            task="all models",
            description=(
                "Shares of women by occupation in the images of one model, compared with the"
                " counts of the other models; occupations count as independent."
            ),
            model="all models",
            split="occupations",
            seeds=[0],
            n={"occupations": len(table)},
        )
    )
    add_rows(out, table[table["n"] >= LEAST])
    yield out


def main() -> None:
    args = parser(__doc__).parse_args()
    run("audit_other_models", measure, args.json)


if __name__ == "__main__":
    main()
