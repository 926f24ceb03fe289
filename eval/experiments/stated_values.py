"""Measure how often values stated in a prompt appear in images, using human counts for SD 3.5.

python -m eval.experiments.stated_values --json eval/results/stated_values.json

Balanced prompts assume that an image shows the value that its prompt states. This experiment uses
public counts (`eval/counts/sd35`, MIT) for 2,580 images from Stable Diffusion 3.5 Large Turbo to
measure

- the distance of the share of women from one half for 12 professions if the prompt states no
  gender, and if it alternates between "female" and "male", with the visible profession as the cost
- how often each stated gender and ethnicity appears, in all prompts and with a profession

Prompt 1 is excluded, because its ten "male" people are mistakenly labelled as ten women.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eval.tables import parser, run
from vldebias.measure.resampling import resampled_values, wilson_interval
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.metrics import Metric

Floats = NDArray[np.float64]

FOLDER = Path(__file__).parents[1] / "counts" / "sd35"
MODEL = "Stable Diffusion 3.5 Large Turbo"
SOURCE = "github.com/VoErik/sd-3-ethics, commit e8a8495226fd, MIT"
SLIP = 1  # number of the prompt with wrong labels
IMAGES = 10  # images per prompt
GENDERS = ("Female", "Male", "Non-binary")
ETHNICITIES = ("Asian", "Black", "Hispanic", "White")
BALANCED = "balanced-prompts"
LABELLED = "professions labelled with a stated gender"
GAP_FROM_HALF = Metric(
    "gap_from_half_women",
    "share of women, distance from one half",
    "bias",
    "lower",
    (0.0, 0.5),
)


def read_images() -> pd.DataFrame:
    """Return a row for each prompt with its stated values and the counts for its ten images.

    The columns `gender`, `ethnicity` and `profession` are in lower case, or "" if the prompt does
    not state them. `recognised` counts images whose visible occupation is the stated profession.
    """
    prompts = pd.read_csv(FOLDER / "prompts.csv", keep_default_na=False)
    labels = pd.read_csv(FOLDER / "labels.csv")
    if len(prompts) != len(labels) or list(labels["folder number"]) != list(range(len(labels))):
        raise ValueError(f"{FOLDER}: rows in labels.csv and prompts.csv do not match")
    images = labels[[*GENDERS, *ETHNICITIES]].fillna(0.0).astype(float)
    images["gender"] = prompts["G"].str.lower()
    images["ethnicity"] = prompts["E"].str.lower()
    images["profession"] = prompts["P"].str.lower()
    column_of_profession = {column.lower(): column for column in labels}
    recognised = []
    for row, profession in enumerate(images["profession"]):
        column = column_of_profession.get(profession)
        recognised.append(0.0 if column is None else float(labels[column].fillna(0.0)[row]))
    images["recognised"] = recognised
    return images.drop(index=SLIP)


def clustered_interval(hits: Floats, totals: Floats) -> tuple[float, float]:
    """Return the Wilson interval for a share of images that are clustered by prompt.

    Because images for the same prompt are similar, n is divided by the design effect, which is the
    variance of the share over prompts divided by that of independent images (Kish, 1965), and at
    least 1. If all prompts have the same share, images count as independent.

    Args:
        hits: The number of images (p,) per prompt that show the value.
        totals: The number of images (p,) per prompt whose value is known.
    """
    n = totals.sum()
    share = hits.sum() / n
    effect = 1.0
    if 0 < share < 1 and len(hits) > 1:
        residuals = hits - share * totals
        variance = len(hits) / (len(hits) - 1) * float((residuals**2).sum()) / n**2
        effect = max(1.0, variance / (share * (1 - share) / n))
    return wilson_interval(share * n / effect, n / effect)


def add_appearance(out: TaskResult, images: pd.DataFrame, value: str, subset: str) -> None:
    """Add how often the images for some prompts show a value, if any of them is labelled."""
    values = GENDERS if value in GENDERS else ETHNICITIES
    totals = images[list(values)].sum(axis=1).to_numpy()
    known = totals > 0
    if not known.any():
        return
    hits = images[value].to_numpy()[known]
    totals = totals[known]
    n = {"images": round(totals.sum()), "prompts": int(known.sum())}
    interval = clustered_interval(hits, totals)
    out.add("share", NONE, float(hits.sum() / totals.sum()), interval, n=n, subset=subset)


def professions_in_turn(images: pd.DataFrame, task: str) -> TaskResult:
    """Compare prompts that do not state a gender with equally many prompts for each gender."""
    without_ethnicity = images[(images["ethnicity"] == "") & (images["profession"] != "")]
    rows_of_gender = {
        gender: without_ethnicity[without_ethnicity["gender"] == gender].set_index("profession")
        for gender in ("", "female", "male")
    }
    plain = rows_of_gender[""]
    professions = list(plain.index)
    # Each half contains ten images per profession, as in a balanced batch of twenty.
    female = rows_of_gender["female"].loc[professions]
    male = rows_of_gender["male"].loc[professions]
    counts = {NONE: plain[list(GENDERS)], BALANCED: female[list(GENDERS)] + male[list(GENDERS)]}
    gaps = {}
    for method, table in counts.items():
        share_of_women = table["Female"] / table.sum(axis=1)
        gaps[method] = (share_of_women - 0.5).abs().to_numpy()
    recognised = {
        NONE: plain["recognised"].to_numpy() / IMAGES,
        BALANCED: (female["recognised"] + male["recognised"]).to_numpy() / (2 * IMAGES),
    }

    n = {"professions": len(professions), "images": 3 * IMAGES * len(professions)}
    out = TaskResult(
        TaskProvenance(
            task=task,
            title="Women and men in turn",
            description=(
                f"The same {len(professions)} professions with nothing stated (10 images each) and"
                " with female and male stated in turn (10 images each); resampled over professions"
                " with all their images."
            ),
            model=MODEL,
            split="professions",
            seeds=[0],
            n=n,
            methods={BALANCED: {"title": "values stated in turn"}},
            settings={"source": SOURCE, "professions": professions},
        )
    )
    values, draws = resampled_values(gaps, resamples=2000, seed=0)
    # All images show what their prompt states, so resamples do not vary. A profession's gap is at
    # most the share of images that do not show the stated value. Because there are none in 240
    # images, the upper end of the Wilson interval for this share is an upper bound on the mean gap.
    shown = female["Female"].sum() + male["Male"].sum()
    stated = float(counts[BALANCED].to_numpy().sum())
    most_missed = wilson_interval(round(stated - shown), round(stated))[1]
    low, high = np.quantile(draws[NONE], (0.025, 0.975))
    out.add(GAP_FROM_HALF, NONE, values[NONE], (low, high), n=n)
    change_low, change_high = np.quantile(draws[BALANCED] - draws[NONE], (0.025, 0.975))
    out.add(
        GAP_FROM_HALF,
        BALANCED,
        values[BALANCED],
        (0.0, max(most_missed, float(np.quantile(draws[BALANCED], 0.975)))),
        n=n,
        change=(values[BALANCED] - values[NONE], change_low, change_high + most_missed),
    )
    values, draws = resampled_values(recognised, resamples=2000, seed=0)
    low, high = wilson_interval(round(float(plain["recognised"].sum())), IMAGES * len(plain))
    if np.ptp(draws[NONE]) > 0:
        low, high = np.quantile(draws[NONE], (0.025, 0.975))
    out.add("recognised", NONE, values[NONE], (low, high), n=n)
    low, high = np.quantile(draws[BALANCED], (0.025, 0.975))
    change = (
        values[BALANCED] - values[NONE],
        *np.quantile(draws[BALANCED] - draws[NONE], (0.025, 0.975)),
    )
    out.add("recognised", BALANCED, values[BALANCED], (low, high), n=n, change=change)
    return out


def stated_values(images: pd.DataFrame) -> TaskResult:
    """Measure how often each stated value appears, in all prompts and with a profession."""
    out = TaskResult(
        TaskProvenance(
            task="stated",
            title="A stated value appears",
            description=(
                "Share of the images that show the gender or ethnicity that their prompt states,"
                " among images whose value was counted; Wilson's intervals with the design effect"
                " of ten images per prompt."
            ),
            model=MODEL,
            split="prompts",
            n={"prompts": len(images)},
            settings={"source": SOURCE, "left out": "prompt 1, whose labels are a slip"},
        )
    )
    for attribute, values, second in (
        ("gender", GENDERS, "ethnicity"),
        ("ethnicity", ETHNICITIES, "gender"),
    ):
        for value in values:
            stating = images[images[attribute] == value.lower()]
            add_appearance(out, stating, value, value)
            of_jobs = stating[(stating["profession"] != "") & (stating[second] == "")]
            add_appearance(out, of_jobs, value, f"{value}, with a profession")
    return out


def measure() -> Iterator[TaskResult]:
    """Measure both questions."""
    images = read_images()
    yield professions_in_turn(images, "professions")
    # The annotator never gave two professions a label if the prompt stated a gender.
    in_turn = images[images["gender"].isin(["female", "male"]) & (images["ethnicity"] == "")]
    labelled = in_turn.groupby("profession")["recognised"].sum() > 0
    yield professions_in_turn(images[images["profession"].map(labelled)], LABELLED)
    yield stated_values(images)


def main() -> None:
    run("stated_values", measure, parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
