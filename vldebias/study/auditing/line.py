"""Fit shares of judged images to the leans of their prompts, and read judged images from tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vldebias.data.tables import read_table
from vldebias.errors import InvalidInputError, need
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
LEAST = 8  # prompts that a calibration needs
FOLDER = Path(__file__).parent / "calibrations"
# Words of values in tables, besides those of a prompt set.
WORDS = {"male": ("man", "men", "boy"), "female": ("woman", "women", "girl")}
Floats = NDArray[np.float64]


class Calibration(NamedTuple):
    """Hold counts of judged images that come with the package.

    file: its name in the folder of calibrations; the head of the file says where it is from.
    model: a part of the names of the pipeline that generated the images. source: what a report
    calls the counts.
    """

    file: str
    model: str
    source: str


PUBLISHED = Calibration(
    "fair-diffusion.csv", "stable-diffusion-v1-5", "published counts of Stable Diffusion 1.5"
)
MINIATURE = Calibration(
    "miniature.csv",
    "miniature",
    "12 images of each profession by the toy pipeline that is embedded",
)


def shipped_calibration(model: str) -> Calibration:
    """Return the counts to predict a model's images from: the embedded pipeline's for the embedded
    models, else the published ones."""
    if model == MINIATURE.model:
        return MINIATURE
    return PUBLISHED


class LeaveOneOut(NamedTuple):
    """Hold the lines (n,) that leave one prompt out each."""

    slope: Floats
    intercept: Floats

    def at(self, x: Floats) -> Floats:
        """Return what each line predicts at leans (m,), as (m, n)."""
        return np.clip(np.outer(x, self.slope) + self.intercept, 0, 1)


class ShareLine:
    """Fit shares y (n,) to leans x (n,) by least squares, cut at 0 and 1; all figures on it are out
    of sample.

    Intervals are those of jackknife+: of the lines that leave one prompt out, each with its error
    at that prompt (Barber, Candes, Ramdas and Tibshirani, 2021, "Predictive inference with the
    jackknife+", eq. 1.4). They cover about LEVEL of exchangeable prompts, at least 2 LEVEL - 1;
    with fewer than 1 / (1 - LEVEL) - 1 prompts they are [0, 1].

    left_out: (n,) each share as predicted from the other prompts. r2: 1 - its squared error over
    that of the mean.

    Raises:
        InvalidInputError: fewer than LEAST prompts, or leans that are all alike.
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        if len(x) < LEAST or float(np.ptp(x)) < 1e-9:
            raise InvalidInputError(
                f"calibration: got {len(x)} prompts whose shares and texts are known; expected"
                f" {LEAST} or more that lean differently, such as 30 prompts with 8 images each"
            )
        self.x = x
        self.y = y
        self._lines = _leave_one_out(x, y)
        # (n, n): prompts in rows, lines in columns; on the diagonal is each prompt by the line
        # without it.
        self.left_out = np.diag(self._lines.at(x))
        self._error = y - self.left_out
        total = float(((y - y.mean()) ** 2).sum())
        # Out of sample, so below 0 where the texts predict worse than the mean share of all prompts
        # does.
        self.r2 = 1 - float((self._error**2).sum() / max(total, 1e-12))

    def at(self, x: Floats) -> Floats:
        """Return the predicted shares (m,) at leans (m,)."""
        return np.clip(np.polyval(np.polyfit(self.x, self.y, 1), x), 0, 1)

    def interval(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the lower and upper ends, (m,) each, of intervals around `at`."""
        n = len(self.x)
        # With fewer than 19 prompts, at 95 %, no order statistic reaches so far out: nothing is
        # known.
        rank = int(np.ceil(LEVEL * (n + 1)))
        if rank > n:
            return np.zeros(len(x)), np.ones(len(x))
        # (m, n): at each lean, what each line says
        predicted = self._lines.at(x)
        size = np.abs(self._error)
        low = np.sort(predicted - size, axis=1)[:, n - rank]
        high = np.sort(predicted + size, axis=1)[:, rank - 1]
        # Jackknife+ is around the lines that leave a prompt out; the line of all may lie outside by
        # a little, and an interval without its value would look wrong.
        middle = self.at(x)
        return np.clip(np.minimum(low, middle), 0, 1), np.clip(np.maximum(high, middle), 0, 1)

    def chance(self, x: Floats, parity: float) -> Floats:
        """Return the probabilities (m,) that shares at leans (m,) exceed parity, from the lines and
        their errors."""
        # Each line with its own error is one share that might come: their number above parity, with
        # ties as halves.
        possible = self._lines.at(x) + self._error
        count: Floats = (possible > parity).sum(1) + 0.5 * (possible == parity).sum(1)
        # Never 0 or 1: n prompts cannot tell a chance below about 1 / n.
        return (count + 0.5) / (len(self.x) + 1)


def _leave_one_out(x: Floats, y: Floats) -> LeaveOneOut:
    """Return the least-squares line of all points but one, for each point."""
    n = len(x) - 1
    # Sums without each point, so that n lines cost as much as one.
    sum_x = x.sum() - x
    sum_y = y.sum() - y
    spread = (x**2).sum() - x**2 - sum_x**2 / n
    rise = (x * y).sum() - x * y - sum_x * sum_y / n
    # Without a spread of the others the line is level.
    slope = np.divide(rise, spread, out=np.zeros_like(spread), where=spread > 1e-12)
    return LeaveOneOut(slope, (sum_y - slope * sum_x) / n)


def with_words(prompts: PromptSet) -> PromptSet:
    """Return the prompt set with "man" as a word for male and "woman" for female, as tables write
    them."""
    attributes = {}
    for value, words in prompts.attributes.items():
        attributes[value] = tuple(sorted({*words, *WORDS.get(value.casefold(), ())}))
    return replace(prompts, attributes=attributes)


def read_shares(
    source: str | Path | pd.DataFrame | Calibration, prompts: PromptSet
) -> pd.DataFrame:
    """Return the shares of the values among the images of each prompt: a row per prompt, a column
    per value.

    Args:
        source: a table or its file, with a row per image (`prompt`, `value`; other values are left
            out), or a row per prompt with a column of counts for each value; values by their names
            or words in the prompt set. Or a calibration that comes with the package, which counts
            men and women.
        prompts: the prompt set of the attribute.

    Raises:
        InvalidInputError: columns that are missing, cells that are no counts.
    """
    pandas = need("pandas")
    values = list(prompts.attributes)
    if isinstance(source, Calibration) and set(values) != {"male", "female"}:
        raise InvalidInputError(
            f"{prompts.name}: expected calibration= (--calibrate judged.csv) of images that you"
            " labelled, 30 prompts with 8 images each; the counts that come with the package are"
            " of male and female alone"
        )
    table: Any = source
    if isinstance(source, Calibration):
        table = pandas.read_csv(FOLDER / source.file, comment="#")
    elif not isinstance(source, pandas.DataFrame):
        table = read_table(Path(source)).to_pandas()
    value_of_word = {}
    for value, words in with_words(prompts).attributes.items():
        for word in (value, *words):
            value_of_word[word.casefold()] = value
    table = table.rename(columns=lambda name: value_of_word.get(str(name).casefold(), name))
    counts = _counts(table, values, value_of_word)

    is_count = (counts >= 0) & (counts < np.inf)
    # "A nurse" and "a nurse" would be two rows about one prompt.
    is_repeated = counts.index.astype(str).str.casefold().has_duplicates
    if not is_count.all(axis=None) or not counts.any(axis=None) or is_repeated:
        file = "" if isinstance(source, pandas.DataFrame) else f" {source}"
        raise InvalidInputError(
            f"calibration{file}: got the columns {list(table)}; expected `prompt` and `value`, or"
            f" each `prompt` once with counts from 0 on of each of {values}"
        )
    # A prompt of which no image has a known value says nothing of shares.
    return counts.div(counts.sum(axis=1), axis=0).dropna()


def _counts(table: Any, values: list[str], value_of_word: dict[str, str]) -> pd.DataFrame:
    """Return numbers of images, a row per prompt and a column per value; no row where the table has
    neither of the two forms."""
    pandas = need("pandas")
    if {"prompt", "value"} <= set(table):
        words = table["value"].astype(str).str.strip().str.casefold()
        counted = pandas.crosstab(table["prompt"], words.map(value_of_word))
        return counted.reindex(columns=values, fill_value=0)
    if "prompt" in table and table.columns.is_unique:
        cells = table.set_index("prompt").reindex(columns=values)
        return cells.apply(pandas.to_numeric, errors="coerce")
    return pandas.DataFrame(columns=values)
