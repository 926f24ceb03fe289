"""Fit shares of judged images to the leans of their prompts, and read judged images from tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data.tables import read_table
from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
LEAST = 8  # prompts that a calibration needs
FOLDER = Path(__file__).parent / "calibrations"
# Words of values in tables, besides those of a prompt set.
WORDS = {"male": ("man", "men", "boy"), "female": ("woman", "women", "girl")}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Hold counts of judged images that come with the package.

    name: what `calibration=` and `--calibration` take. file: in the folder of calibrations; its
    head says where the counts are from. model: whose images were judged. ids: parts of the names of
    pipelines that are this model. guidance: the scale of the images, None where it is not
    published. source: what a report calls the counts. is_plain: whether the model is as its makers
    released it; a debiased one tells nothing of other models.
    """

    name: str
    file: str
    model: str
    ids: tuple[str, ...]
    guidance: float | None
    source: str
    is_plain: bool = True

    def __str__(self) -> str:
        """Return the model with its guidance: "Stable Diffusion 3 medium (guidance 7.5)"."""
        if self.guidance is None:
            return self.model
        return f"{self.model} (guidance {self.guidance:g})"

    def is_of(self, model: str) -> bool:
        """Return whether a model or pipeline of this name is the one that was judged."""
        return any(part in model.casefold() for part in self.ids)


_STAY_FAIR = "counts published with Stay Fair"
_SD15 = ("stable-diffusion-v1-5",)
PUBLISHED = Calibration(
    "fair-diffusion",
    "fair-diffusion.csv",
    "Stable Diffusion 1.5",
    _SD15,
    None,
    "published counts of Stable Diffusion 1.5",
)
MINIATURE = Calibration(
    "miniature",
    "miniature.csv",
    "the embedded pipeline",
    ("miniature",),
    3.0,
    "12 images of each profession by the toy pipeline that is embedded",
)
# Of the published guidances the one that is nearest to each pipeline's default.
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
        "published counts by people of Stable Diffusion 3.5",
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
    """Return the counts to predict a model's images from: its own, else those of every plain model,
    one of each.

    model: the name of a model or pipeline.
    """
    for calibration in CALIBRATIONS:
        if calibration.is_of(model):
            return [calibration]
    calibration_of_model: dict[str, Calibration] = {}
    for calibration in CALIBRATIONS:
        # Counts of cartoons tell nothing of photographs. Of two tables of a model, the first has
        # more prompts.
        if calibration.is_plain and calibration != MINIATURE:
            calibration_of_model.setdefault(calibration.model, calibration)
    return list(calibration_of_model.values())


def find_calibration(name: str | Path) -> Calibration | Path:
    """Return the counts of a name, such as "sd3" or, at another guidance, "sd3@3"; else the path of
    a file.

    Raises:
        InvalidInputError: neither a name nor a file, or a guidance of which there are no counts.
    """
    path = Path(name)
    calibration_of_name = {calibration.name: calibration for calibration in CALIBRATIONS}
    base, _, guidance = str(name).partition("@")
    if base not in calibration_of_name:
        if path.is_file():
            return path
        raise InvalidInputError(
            f"calibration: got {str(name)!r}; expected one of {', '.join(calibration_of_name)}, or"
            f" a file of counts; {did_you_mean(str(name), list(calibration_of_name))}"
        )
    calibration = calibration_of_name[base]
    if not guidance:
        return calibration
    # The guidances of which there are counts, as texts; none where the file has no such column.
    table = need("pandas").read_csv(FOLDER / calibration.file, comment="#")
    scales: list[str] = []
    if "guidance" in table:
        known = sorted(set(table.guidance[table.name == calibration.name]))
        scales = [f"{scale:g}" for scale in known]
    if guidance not in scales:
        raise InvalidInputError(
            f"calibration {base}: got the guidance {guidance!r}; expected one of"
            f" {', '.join(scales) or 'none, since its counts are of one'}"
        )
    return replace(calibration, guidance=float(guidance))


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
        # The least-squares lines (n,) that leave one prompt out each, from sums without each
        # prompt, so that n lines cost as much as one.
        n = len(x) - 1
        sum_x = x.sum() - x
        sum_y = y.sum() - y
        spread = (x**2).sum() - x**2 - sum_x**2 / n
        rise = (x * y).sum() - x * y - sum_x * sum_y / n
        # Without a spread of the others the line is level.
        self._slope = np.divide(rise, spread, out=np.zeros_like(spread), where=spread > 1e-12)
        self._intercept = (sum_y - self._slope * sum_x) / n
        # On the diagonal is each prompt by the line without it.
        self.left_out = np.diag(self._by_lines(x))
        self._error = y - self.left_out
        total = float(((y - y.mean()) ** 2).sum())
        # Out of sample, so below 0 where the texts predict worse than the mean share of all prompts
        # does.
        self.r2 = 1 - float((self._error**2).sum() / max(total, 1e-12))

    def _by_lines(self, x: Floats) -> Floats:
        """Return what each line that leaves a prompt out predicts at leans (m,), as (m, n)."""
        return np.clip(np.outer(x, self._slope) + self._intercept, 0, 1)

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
        predicted = self._by_lines(x)
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
        possible = self._by_lines(x) + self._error
        count: Floats = (possible > parity).sum(1) + 0.5 * (possible == parity).sum(1)
        # Never 0 or 1: n prompts cannot tell a chance below about 1 / n.
        return (count + 0.5) / (len(self.x) + 1)


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

    source, prompts: see `read_counts`.
    """
    counts = read_counts(source, prompts)
    return counts.div(counts.sum(axis=1), axis=0)


def read_counts(
    source: str | Path | pd.DataFrame | Calibration, prompts: PromptSet
) -> pd.DataFrame:
    """Return the numbers of images of each prompt that show each value: a row per prompt, a column
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
            f"{prompts.name}: expected calibration= (--calibration judged.csv) of images that you"
            " labelled, 30 prompts with 8 images each; the counts that come with the package are"
            " of male and female alone"
        )
    table = _table_of(source)
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
    return counts[counts.sum(axis=1) > 0]


def _table_of(source: str | Path | pd.DataFrame | Calibration) -> Any:
    """Return the table of a source of counts, as it is written."""
    pandas = need("pandas")
    if isinstance(source, Calibration):
        table = pandas.read_csv(FOLDER / source.file, comment="#")
        if "guidance" in table:
            # One file has the counts of several models and guidances.
            is_of_source = (table["name"] == source.name) & (table.guidance == source.guidance)
            table = table[is_of_source]
        return table
    if isinstance(source, (str, Path)):
        return read_table(Path(source)).to_pandas()
    if isinstance(source, pandas.DataFrame):
        return source
    raise InvalidInputError(
        f"calibration: got {source!r}; expected a name, a file or a frame of pandas"
    )


def source_of(source: str | Path | pd.DataFrame | Calibration) -> str:
    """Return what a report calls counts: by their model and guidance where they name these."""
    if isinstance(source, Calibration):
        return source.source
    table = _table_of(source)
    if "model" not in table or table["model"].nunique() != 1:
        return "given labels"
    words = f"judged images of {table['model'].iloc[0]}"
    if "guidance" in table and table["guidance"].nunique() == 1:
        words += f" (guidance {float(table['guidance'].iloc[0]):g})"
    return words


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
