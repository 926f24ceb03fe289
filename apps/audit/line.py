"""Fit lines from prompt leans to the shares in judged images, and load tables of counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from vldebias.data.tables import read_table
from vldebias.errors import (
    InvalidInputError,
    did_you_mean,
    need,
    warn_of_input,
)
from vldebias.measure.resampling import LEVEL
from vldebias.prompts import PromptSet
from vldebias.utils.arrays import Floats
from vldebias.utils.label_words import names_no_group
from vldebias.utils.phrases import quantity

if TYPE_CHECKING:
    import pandas as pd

LEAST = 8  # minimum number of prompts in a calibration
FOLDER = Path(__file__).parent / "calibrations"
# Words that tables use for values, in addition to those in the prompt set.
WORDS = {"male": ("man", "men", "boy"), "female": ("woman", "women", "girl")}


# Sources that `read_counts` accepts.
CountsSource: TypeAlias = "str | Path | pd.DataFrame | Calibration"


@dataclass(frozen=True)
class Calibration:
    """Description of packaged counts of judged images.

    Attributes:
        name: name for `calibration=` and `--calibration`.
        file: file in the calibration folder. Its header cites the source of the counts.
        model: model whose images were judged.
        ids: substrings of pipeline names that identify this model.
        guidance: guidance scale of the images, or None if it was not published.
        source: name of the counts in reports.
        is_plain: whether this is the model as released. Counts for a debiased model do not predict
            other models.
    """

    name: str
    file: str
    model: str
    ids: tuple[str, ...]
    guidance: float | None
    source: str
    is_plain: bool = True

    def __str__(self) -> str:
        """Return the model and its guidance: "Stable Diffusion 3 medium (guidance 7.5)"."""
        if self.guidance is None:
            return self.model
        return f"{self.model} (guidance {self.guidance:g})"

    def is_of(self, model: str) -> bool:
        """Return whether these counts are for a model or pipeline with this name."""
        return any(part in model.casefold() for part in self.ids)


_STAY_FAIR = "counts published with Stay Fair"
_SD15 = ("stable-diffusion-v1-5",)
PUBLISHED = Calibration(
    "fair-diffusion",
    "fair-diffusion.csv",
    "Stable Diffusion 1.5",
    _SD15,
    None,
    "published counts for Stable Diffusion 1.5",
)
MINIATURE = Calibration(
    "miniature",
    "miniature.csv",
    "the packaged pipeline",
    ("miniature",),
    3.0,
    "12 images per profession from the packaged toy pipeline",
)
# For each model, use the published guidance closest to its pipeline's default.
CALIBRATIONS = (
    PUBLISHED,
    Calibration("sd15", "stay-fair.csv", "Stable Diffusion 1.5", _SD15, 7.5, _STAY_FAIR),
    Calibration(
        "sd3",
        "stay-fair.csv",
        "Stable Diffusion 3 medium",
        ("stable-diffusion-3-medium",),
        7.5,
        _STAY_FAIR,
    ),
    Calibration(
        "sd35",
        "sd35.csv",
        "Stable Diffusion 3.5 Large Turbo",
        ("stable-diffusion-3.5-large-turbo",),
        7.0,
        "published counts for Stable Diffusion 3.5, by one person who knew the prompt",
    ),
    Calibration(
        "flux2",
        "stay-fair.csv",
        "FLUX.2 [klein] base 9B",
        ("flux.2-klein-base-9b",),
        4.0,
        _STAY_FAIR,
    ),
    Calibration(
        "uce",
        "stay-fair.csv",
        "Stable Diffusion 1.5 debiased by UCE",
        (),
        7.5,
        _STAY_FAIR,
        is_plain=False,
    ),
    MINIATURE,
)


def known_calibrations(model: str) -> list[Calibration]:
    """Return the packaged counts that can predict the images of a model or pipeline.

    These are the model's own counts or, if there are none, the counts for every plain model.
    """
    for calibration in CALIBRATIONS:
        if calibration.is_of(model):
            return [calibration]
    calibration_of_model: dict[str, Calibration] = {}
    for calibration in CALIBRATIONS:
        # Skip the miniature, because its cartoons do not predict photographs. If there are two
        # tables for a model, keep the first one, which has more prompts.
        if calibration.is_plain and calibration != MINIATURE:
            calibration_of_model.setdefault(calibration.model, calibration)
    return list(calibration_of_model.values())


def find_calibration(name: str | Path) -> Calibration | Path:
    """Look up counts by name, such as "sd3", or "sd3@3" for a guidance of 3.

    Returns:
        The counts, or the path if the name refers to a file.

    Raises:
        InvalidInputError: If there are no counts or files with this name, or no counts for this
            guidance.
    """
    path = Path(name)
    calibration_of_name = {calibration.name: calibration for calibration in CALIBRATIONS}
    base, _, guidance = str(name).partition("@")
    if base not in calibration_of_name:
        if path.is_file():
            return path
        names = ", ".join(calibration_of_name)
        if path.suffix:
            raise InvalidInputError(
                f"calibration: {name}: no such file; check the path; expected one of {names}, or a"
                " file of counts"
            )
        raise InvalidInputError(
            f"calibration: got {str(name)!r}; expected one of {names}, or a file of counts;"
            f" {did_you_mean(str(name), list(calibration_of_name))}"
        )
    calibration = calibration_of_name[base]
    if not guidance:
        return calibration
    # List the guidance scales that have counts. There are none if the file has no such column.
    table = need("pandas").read_csv(FOLDER / calibration.file, comment="#")
    scales: list[str] = []
    if "guidance" in table:
        known = sorted(set(table.guidance[table.name == calibration.name]))
        scales = [f"{scale:g}" for scale in known]
    if guidance not in scales:
        raise InvalidInputError(
            f"calibration {base}: got guidance {guidance!r}; expected one of"
            f" {', '.join(scales) or 'none, since its counts are for a single guidance scale'}"
        )
    return replace(calibration, guidance=float(guidance))


class ShareLine:
    """Least-squares line from leans x (n,) to shares y (n,), clipped to [0, 1].

    Intervals are jackknife+ intervals, which combine the n lines that leave one prompt out with
    their errors for this prompt (Barber, Candes, Ramdas and Tibshirani, 2021, "Predictive inference
    with the jackknife+", eq. 1.4). For exchangeable prompts, their coverage is about LEVEL, and at
    least 2 LEVEL - 1. With fewer than 1 / (1 - LEVEL) - 1 prompts, they are [0, 1].

    Attributes:
        x: leans (n,).
        y: shares (n,).
        left_out: shares (n,), each predicted from the other prompts.
        r2: out-of-sample R2 of these predictions.

    Args:
        x: leans (n,).
        y: shares (n,).

    Raises:
        InvalidInputError: If there are fewer than LEAST prompts, or all leans are equal.
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        if len(x) < LEAST or float(np.ptp(x)) < 1e-9:
            raise InvalidInputError(
                f"calibration: got {len(x)} prompts with known shares and embeddings; expected"
                f" at least {LEAST} with different leans, such as 30 prompts with 8 images each"
            )
        self.x = x
        self.y = y
        # Compute all n leave-one-out lines from sums without the omitted prompt, which costs no
        # more than a single fit.
        n = len(x) - 1
        sum_x = x.sum() - x
        sum_y = y.sum() - y
        spread = (x**2).sum() - x**2 - sum_x**2 / n
        rise = (x * y).sum() - x * y - sum_x * sum_y / n
        # If all other leans are equal, the line is horizontal.
        self._slope = np.divide(rise, spread, out=np.zeros_like(spread), where=spread > 1e-12)
        self._intercept = (sum_y - self._slope * sum_x) / n
        # The diagonal contains each prompt's prediction from the line fitted without it.
        self.left_out = np.diag(self._by_lines(x))
        self._error = y - self.left_out
        total = float(((y - y.mean()) ** 2).sum())
        # Out-of-sample R2 is negative if the leans are worse predictors than the mean share.
        self.r2 = 1 - float((self._error**2).sum() / max(total, 1e-12))

    def _by_lines(self, x: Floats) -> Floats:
        """Return the shares (m, n) that the n leave-one-out lines predict for leans (m,)."""
        return np.clip(np.outer(x, self._slope) + self._intercept, 0, 1)

    def at(self, x: Floats) -> Floats:
        """Return the predicted shares (m,) for leans (m,)."""
        return np.clip(np.polyval(np.polyfit(self.x, self.y, 1), x), 0, 1)

    def interval(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the lower and upper ends (m,) of the intervals for leans (m,)."""
        n = len(self.x)
        # Fewer than 19 prompts are not enough for a 95% interval, which is then [0, 1].
        rank = int(np.ceil(LEVEL * (n + 1)))
        if rank > n:
            return np.zeros(len(x)), np.ones(len(x))
        predicted = self._by_lines(x)  # (m, n)
        size = np.abs(self._error)
        low = np.sort(predicted - size, axis=1)[:, n - rank]
        high = np.sort(predicted + size, axis=1)[:, rank - 1]
        # The interval is based on the leave-one-out lines, so the line through all prompts may lie
        # slightly outside.
        middle = self.at(x)
        return np.clip(np.minimum(low, middle), 0, 1), np.clip(np.maximum(high, middle), 0, 1)

    def chance(self, x: Floats, parity: float) -> Floats:
        """Return the probabilities (m,) that the shares for leans (m,) exceed parity.

        Args:
            x: leans (m,).
            parity: the share to compare with.
        """
        # Each line and its error give one possible share. Count the shares above parity, with ties
        # counted as half.
        possible = self._by_lines(x) + self._error
        count: Floats = (possible > parity).sum(1) + 0.5 * (possible == parity).sum(1)
        # Never return 0 or 1, because n prompts cannot estimate probabilities below about 1 / n.
        return (count + 0.5) / (len(self.x) + 1)


def with_words(prompt_set: PromptSet) -> PromptSet:
    """Add the words that tables use for values, such as "man" for male, to a prompt set."""
    attributes = {}
    for value, words in prompt_set.attributes.items():
        attributes[value] = tuple(sorted({*words, *WORDS.get(value.casefold(), ())}))
    return replace(prompt_set, attributes=attributes)


def read_shares(source: CountsSource, prompt_set: PromptSet) -> pd.DataFrame:
    """Return each value's share among each prompt's images.

    Args:
        source: packaged counts, a data frame or a table file, as for `read_counts`.
        prompt_set: the attribute's prompt set.

    Returns:
        A data frame with a row per prompt and a column per value.
    """
    counts = read_counts(source, prompt_set)
    return counts.div(counts.sum(axis=1), axis=0)


def read_counts(source: CountsSource, prompt_set: PromptSet) -> pd.DataFrame:
    """Return the number of images that show each value, by prompt.

    Args:
        source: packaged counts of men and women, a data frame, or a table file. A table has either
            one row per image, with the columns `prompt` and `value` (unknown values are skipped),
            or one row per prompt, with a column of counts per value. Values may be given by name,
            or by any of their words in the prompt set.
        prompt_set: the attribute's prompt set.

    Returns:
        A data frame with a row per prompt and a column per value.

    Raises:
        InvalidInputError: If columns are missing, or cells are not counts.
    """
    pandas = need("pandas")
    values = list(prompt_set.attributes)
    if isinstance(source, Calibration) and set(values) != {"male", "female"}:
        raise InvalidInputError(
            f"{prompt_set.name}: the packaged counts only cover male and female; pass calibration="
            " (--calibration judged.csv) with images that you labelled, such as 30 prompts with 8"
            " images each"
        )
    table = _table_of(source)
    value_of_word = {}
    for value, words in with_words(prompt_set).attributes.items():
        for word in (value, *words):
            value_of_word[word.casefold()] = value
    table = table.rename(columns=lambda name: value_of_word.get(str(name).casefold(), name))
    counts = _counts(table, values, value_of_word)

    is_count = (counts >= 0) & (counts < np.inf)
    # Prompts must differ in more than case: "A nurse" and "a nurse" are the same prompt.
    is_repeated = counts.index.astype(str).str.casefold().has_duplicates
    if not is_count.all(axis=None) or not counts.any(axis=None) or is_repeated:
        file = "" if isinstance(source, pandas.DataFrame) else f" {source}"
        lacking = ""
        if "value" in table and not counts.any(axis=None):
            lacking = f", but no value such as {values[0]!r}"
        raise InvalidInputError(
            f"calibration{file}: got the columns {list(table)}{lacking}; expected `prompt` and"
            f" `value`, or each `prompt` once with counts >= 0 for each of {values}"
        )
    # Drop prompts without any known value, since they have no shares.
    return counts[counts.sum(axis=1) > 0]


def _table_of(source: CountsSource) -> pd.DataFrame:
    """Load a source of counts as a table, unchanged."""
    pandas = need("pandas")
    if isinstance(source, Calibration):
        table = pandas.read_csv(FOLDER / source.file, comment="#")
        if "guidance" in table:
            # Select the rows for this source, since the file contains counts for several models and
            # guidance scales.
            is_of_source = (table["name"] == source.name) & (table.guidance == source.guidance)
            table = table[is_of_source]
        return table
    if isinstance(source, (str, Path)):
        return read_table(Path(source)).to_pandas()
    if isinstance(source, pandas.DataFrame):
        return source
    raise InvalidInputError(
        f"calibration: got {source!r}; expected a name, a file or a pandas DataFrame"
    )


def source_of(source: CountsSource) -> str:
    """Return the name of the counts for reports, with the model and guidance if known."""
    if isinstance(source, Calibration):
        return source.source
    table = _table_of(source)
    if "model" not in table or table["model"].nunique() != 1:
        return "given labels"
    words = f"judged images of {table['model'].iloc[0]}"
    if "guidance" in table and table["guidance"].nunique() == 1:
        words += f" (guidance {float(table['guidance'].iloc[0]):g})"
    return words


def _counts(table: pd.DataFrame, values: list[str], value_of_word: dict[str, str]) -> pd.DataFrame:
    """Return image counts by prompt and value, empty if `read_counts` rejects the layout."""
    pandas = need("pandas")
    if {"prompt", "value"} <= set(table):
        words = table["value"].astype(str).str.strip().str.casefold()
        is_known = words.isin(list(value_of_word))
        unknown = words[table["value"].notna() & ~is_known]
        ignored = [word for word in unknown if not names_no_group(word)]
        # If no value is known, the caller raises an error.
        if ignored and is_known.any():
            warn_of_input(
                f"calibration: {quantity(len(ignored), 'row')} with values such as"
                f" {ignored[0]!r} do not count; expected one of {values}, or a word for"
                " unknown",
            )
        counted = pandas.crosstab(table["prompt"], words.map(value_of_word))
        return counted.reindex(columns=values, fill_value=0)
    if "prompt" in table and table.columns.is_unique:
        cells = table.set_index("prompt").reindex(columns=values)
        return cells.apply(pandas.to_numeric, errors="coerce")
    return pandas.DataFrame(columns=values)
