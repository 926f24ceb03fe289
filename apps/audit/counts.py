"""Load counts of the values in judged images, and find those of a prompt's subject."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from vldebias.data.tables import read_table
from vldebias.errors import (
    InvalidInputError,
    need,
    warn_of_input,
)
from vldebias.measure.resampling import LEVEL
from vldebias.prompts import PromptSet
from vldebias.utils.label_words import names_no_group
from vldebias.utils.phrases import quantity
from vldebias.wording import balance_prompts

if TYPE_CHECKING:
    import pandas as pd

MOST_MORE = 100  # maximum number of additional images that the audit recommends
FEWEST_EVEN = 64  # with fewer images, shares that look even may be far from it
FOLDER = Path(__file__).parent / "calibrations"
# Words that tables use for values, in addition to those in the prompt set.
WORDS = {"male": ("man", "men", "boy"), "female": ("woman", "women", "girl")}


_ARTICLE = r"((an?|the)\s+)?"
# Words around a subject that do not change who is shown. Paintings are not included, because the
# counts are for photographs.
_FRAME = re.compile(
    rf"^{_ARTICLE}(photo|photograph|picture|image|portrait)\s+of\s+(the\s+face\s+of\s+)?{_ARTICLE}"
    rf"|^{_ARTICLE}|(?<![\s.])[\s.]+$",
    re.IGNORECASE,
)
# Sources that `read_counts` accepts.
CountsSource: TypeAlias = "str | Path | pd.DataFrame | Calibration"


@dataclass(frozen=True)
class Calibration:
    """Description of packaged counts of judged images.

    Attributes:
        name: short name for reports.
        file: file in the calibration folder. Its header cites the source of the counts.
        model: model whose images were judged.
        ids: substrings of pipeline names that identify this model.
        guidance: guidance scale of the images, or None if it was not published.
        source: name of the counts in reports.
        is_plain: whether this is the model as released. Counts for a debiased model say nothing
            about other models.
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
    """Return the packaged counts to show for a model or pipeline.

    These are the model's own counts or, if there are none, the counts for every plain model.
    """
    for calibration in CALIBRATIONS:
        if calibration.is_of(model):
            return [calibration]
    calibration_of_model: dict[str, Calibration] = {}
    for calibration in CALIBRATIONS:
        # Skip the miniature, whose cartoons say nothing about photographs. If there are two
        # tables for a model, keep the first one, which has more prompts.
        if calibration.is_plain and calibration != MINIATURE:
            calibration_of_model.setdefault(calibration.model, calibration)
    return list(calibration_of_model.values())


def with_words(prompt_set: PromptSet) -> PromptSet:
    """Add the words that tables use for values, such as "man" for male, to a prompt set."""
    attributes = {}
    for value, words in prompt_set.attributes.items():
        attributes[value] = tuple(sorted({*words, *WORDS.get(value.casefold(), ())}))
    return replace(prompt_set, attributes=attributes)


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
            f"{prompt_set.name}: the packaged counts only cover male and female; add"
            " --pipeline DIR --measure 8"
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
            f"counts{file}: got the columns {list(table)}{lacking}; expected `prompt` and"
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
    raise InvalidInputError(f"counts: got {source!r}; expected a file or a pandas DataFrame")


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
                f"counts: {quantity(len(ignored), 'row')} with values such as"
                f" {ignored[0]!r} do not count; expected one of {values}, or a word for"
                " unknown",
            )
        counted = pandas.crosstab(table["prompt"], words.map(value_of_word))
        return counted.reindex(columns=values, fill_value=0)
    if "prompt" in table and table.columns.is_unique:
        cells = table.set_index("prompt").reindex(columns=values)
        return cells.apply(pandas.to_numeric, errors="coerce")
    return pandas.DataFrame(columns=values)


def is_clearly_above(share: float, hits: int, n: int) -> bool:
    """Return whether the exact interval of the number of hits lies above a share.

    For a share of one half, this requires at least six images that all show the value.

    Args:
        share: the share under the null hypothesis.
        hits: number of images that show the value.
        n: number of images.
    """
    return exact_interval(hits, n)[0] > share


def exact_interval(hits: int, n: int) -> tuple[float, float]:
    """Return the interval of a share by Clopper and Pearson (1934), at LEVEL.

    Wilson's interval already excludes one half after four images that all show the same value,
    which happens by chance in one of eight cases.

    Args:
        hits: number of images that show the value.
        n: number of images.
    """
    quantile = need("scipy.special").betaincinv
    tail = (1 - LEVEL) / 2
    low = quantile(hits, n - hits + 1, tail) if hits else 0.0
    high = quantile(hits + 1, n - hits, 1 - tail) if hits < n else 1.0
    return float(low), float(high)


def images_to_settle(share: float, n: int, equal_share: float) -> int | None:
    """Return how many more images make a lean clear, if the value's share stays the same.

    Args:
        share: share of the images that show the value.
        n: number of images so far.
        equal_share: the share of each value if all are equally frequent.

    Returns:
        The number of additional images, or None if MOST_MORE are not enough.
    """
    for more in range(1, MOST_MORE + 1):
        # Tolerate rounding, since 7/8 of 16 images must be 14.
        hits = int(share * (n + more) + 1e-9)
        if is_clearly_above(equal_share, hits, n + more):
            return more
    return None


def subject(text: str) -> str:
    """Return a prompt's subject, such as "nurse" for "A photo of the face of a nurse."."""
    return _FRAME.sub("", text.strip()).casefold()


def show_several(prompts: Sequence[str], attribute: PromptSet) -> list[bool]:
    """Return for each prompt whether it shows several people, to whom a judge gives one value.

    Args:
        prompts: the prompts.
        attribute: the attribute's prompt set, which can be balanced.
    """
    together = balance_prompts(prompts, attribute, seed=0, people="same")
    alone = balance_prompts(prompts, attribute, seed=0, people="leave").reasons
    rows = zip(together.reasons, together.people, alone, strict=True)
    return [
        reason is None and (len(people) > 1 or left is not None) for reason, people, left in rows
    ]
