"""Compute selection rates and impact ratios from a table, by sex, by race, and by both.

New York City's Local Law 144 requires these numbers in audits of hiring tools (6 RCNY 5-301).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vldebias.data import Labels, cross
from vldebias.data.label_checks import groups_as_many_as_rows, odd_names
from vldebias.data.spellings import meaning_of, names_no_group
from vldebias.data.tables import as_texts, column_of, columns_of_counts, read_table
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.measure.impact import SMALL, Category, impact_ratios
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.report.result import Result
from vldebias.utils.files import digest
from vldebias.utils.phrases import listed_words, quantity

if TYPE_CHECKING:
    import pyarrow as pa

RULE = 0.8  # the EEOC's four-fifths rule of thumb; the law itself has no threshold
_OUTCOMES = {"yes": True, "no": False, "1": True, "0": False}
_ABOUT = (
    "Selection rate: selected / applicants in a category, with its 95% Wilson interval. Impact"
    " ratio: this rate divided by the highest rate of any category. Its interval accounts for the"
    " fact that the highest rate is chosen from the same data."
)


def measure_impact(
    table: Path,
    selected: str,
    sex: str,
    race: str,
    *,
    rename: Mapping[str, str] | None = None,
    unknown: Sequence[str] = (),
) -> Result:
    """Return selection rates and impact ratios for a table of applicants.

    Args:
        table: file with one row per applicant.
        selected: outcome column, with yes or no for each applicant.
        sex: column with the sex.
        race: column with the race or ethnicity.
        rename: text in the table -> its meaning, such as {"F": "female", "hired": "yes"}.
        unknown: further entries that do not name a category.

    Returns:
        One task by sex, one by race, and one for their intersections, with the rows
        `selection_rate` and `impact_ratio`. Categories with less than 2% of the applicants have no
        ratio; the advice lists them.

    Raises:
        InvalidInputError: If a column is missing or not categorical, an outcome is neither yes nor
            no, or no applicant has a known category and outcome.
    """
    columns = {"selected": selected, "sex": sex, "race": race}
    if len(set(columns.values())) < len(columns):
        raise InvalidInputError(f"{table}: expected three different columns, got {columns}")
    rows = read_table(table)
    counts = columns_of_counts(rows, columns.values())
    if counts:
        warn(
            f"{table}: the numbers in column {counts[0]!r} are not used, and every row counts as"
            " one applicant; if they are numbers of applicants, write a row per applicant",
            SuspectInputWarning,
        )
    outcomes = _outcomes(rows, selected, table, rename or {}, unknown)
    labels = {}
    for column in (sex, race):
        labels[column] = _categories(rows, column, table, rename or {}, unknown)
    by_columns = {
        f"by {sex}": labels[sex],
        f"by {race}": labels[race],
        f"by {sex} and {race}": cross(labels[sex], labels[race]),
    }
    data = {table.name: digest(table)}
    parts = [_part(name, column, outcomes, data) for name, column in by_columns.items()]
    return Result.from_tasks(f"Impact ratios by {sex} and {race}", parts, seconds=None)


def _texts(
    rows: pa.Table, column: str, table: Path, rename: Mapping[str, str], unknown: Sequence[str]
) -> list[str]:
    """Return a column as stripped strings, with "" for unknown entries."""
    texts = as_texts(column_of(rows, column, table), f"{table}: {column}")
    # Look up each distinct text once, because a table may have millions of rows.
    value_of_text = {}
    for text in set(texts):
        value = rename.get(text.strip(), text.strip())
        value_of_text[text] = "" if value in unknown or names_no_group(value) else value
    return [value_of_text[text] for text in texts]


def _outcomes(
    rows: pa.Table, column: str, table: Path, rename: Mapping[str, str], unknown: Sequence[str]
) -> NDArray[np.int64]:
    """Return the outcome of each row (n,): 1 for selected, 0 for not selected, -1 for unknown."""
    texts = _texts(rows, column, table, rename, unknown)
    meanings = {text: meaning_of(text) for text in set(texts)}
    outcomes = []
    for number, text in enumerate(texts, start=1):
        if not text:
            outcomes.append(-1)
            continue
        meaning = meanings[text]
        if meaning not in _OUTCOMES:
            raise InvalidInputError(
                f"{table}: {column}: row {number}: expected yes or no, got {text!r}; specify what"
                f" it means (--rename {text}=yes), and turn scores into selections first"
            )
        outcomes.append(int(_OUTCOMES[meaning]))
    return np.array(outcomes, dtype=np.int64)


def _categories(
    rows: pa.Table, column: str, table: Path, rename: Mapping[str, str], unknown: Sequence[str]
) -> Labels:
    """Return the labels in a category column, and warn if a category has two spellings."""
    labels = Labels.from_values(_texts(rows, column, table, rename, unknown))
    problem = groups_as_many_as_rows(labels)
    if problem:
        raise InvalidInputError(f"{table}: {column}: {problem}")
    doubts = odd_names(labels.names)
    if doubts:
        warn(f"{table}: {column}: {'; also '.join(doubts)}", SuspectInputWarning)
    return labels


def _part(
    name: str, labels: Labels, outcomes: NDArray[np.int64], data: Mapping[str, str]
) -> TaskResult:
    """Return the rows for the categories in one column, or for an intersection."""
    is_used = labels.known & (outcomes >= 0)
    applicants = np.bincount(labels.codes[is_used], minlength=len(labels.names))
    hits = labels.codes[is_used & (outcomes == 1)]
    selected = np.bincount(hits, minlength=len(labels.names))
    present = np.flatnonzero(applicants)
    if not len(present):
        raise InvalidInputError(
            f"{name}: no applicant has a known category and outcome; check the columns"
        )
    categories = impact_ratios(
        [labels.names[code] for code in present],
        applicants[present].tolist(),
        selected[present].tolist(),
    )
    left_out = len(labels) - int(is_used.sum())
    sentences = [_lowest(name, categories), *_small(name, categories)]
    if left_out:
        verb = "is" if left_out == 1 else "are"
        sentences.append(
            f"{_title(name)}: {quantity(left_out, 'applicant')} of {len(labels):,} {verb} not"
            " included, because the category or the outcome is unknown."
        )
    result = TaskResult(
        TaskProvenance(
            task=name,
            title="Impact ratios",
            description=_ABOUT,
            split="table",
            data=dict(data),
            n={"applicants": int(is_used.sum()), "not included": left_out},
            settings={
                "advice": sentences,
                "by_category": {"selection_rate": "selection rate", "impact_ratio": "impact ratio"},
                "missing": "excluded",
                "four-fifths rule": RULE,
                "excluded below": f"{SMALL:.0%} of the applicants",
                "intervals": "Wilson; ratios: Donner and Zou (2012), Bonferroni",
            },
        )
    )
    for category in categories:
        n = {"applicants": category.applicants, "selected": category.selected}
        for metric, figure in (("impact_ratio", category.ratio), ("selection_rate", category.rate)):
            if figure is not None:
                ends = (figure.low, figure.high)
                result.add(metric, NONE, figure.value, ends, n=n, subset=category.name)
    return result


def _title(name: str) -> str:
    return name[:1].upper() + name[1:]


def _lowest(name: str, categories: Sequence[Category]) -> str:
    """Describe the lowest impact ratio and the two categories that it compares."""
    rated = [category for category in categories if category.ratio is not None]
    if not rated:
        return f"{_title(name)}: nobody was selected, so there is no impact ratio."
    highest = max(rated, key=lambda category: category.rate or (0.0,))
    lowest = min(rated, key=lambda category: category.ratio or (1.0,))
    if lowest is highest:
        return f"{_title(name)}: only {highest.name} is large enough to have an impact ratio."
    assert lowest.ratio is not None
    ends = f"[{lowest.ratio.low:.2f}, {lowest.ratio.high:.2f}]"
    verdict = f"the interval contains {RULE} (four-fifths rule)"
    if lowest.ratio.high < RULE:
        verdict = f"the entire interval is below {RULE} (four-fifths rule)"
    elif lowest.ratio.low >= RULE:
        verdict = f"the entire interval is above {RULE} (four-fifths rule)"
    return (
        f"{_title(name)}: the lowest impact ratio is {lowest.ratio.value:.2f} {ends}, for"
        f" {lowest.name} ({_counted(lowest)}) against {highest.name} ({_counted(highest)});"
        f" {verdict}."
    )


def _counted(category: Category) -> str:
    """Format the number of selected applicants, as in "30 of 100 selected"."""
    return f"{category.selected:,} of {category.applicants:,} selected"


def _small(name: str, categories: Sequence[Category]) -> list[str]:
    """Return a sentence that lists the categories that are too small for a ratio, if any."""
    small = [
        f"{category.name} ({_counted(category)})" for category in categories if category.is_small
    ]
    if not small:
        return []
    return [
        f"{_title(name)}: excluded from the ratios, with less than {SMALL:.0%} of the applicants:"
        f" {listed_words(small)}."
    ]
