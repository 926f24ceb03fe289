"""Render records as a self-contained page with a dot plot and tables for each attribute."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vldebias.errors import InvalidInputError, need
from vldebias.utils.phrases import capitalised, listed_words, persons

from .protocol import load_protocol
from .schema import NEUTRAL, Figure, Record

TOY_JUDGE = "miniature judge"  # judges the images of the packaged toy model
ONE_WAY = 0.9  # share of one value above which a prompt is said to lean one way
UNEVENNESS = "Unevenness"
NO_COUNTS = "printed figures without counts to check them"
FIRST = ("female",)  # values to show if an attribute has only two values


@dataclass(frozen=True)
class Cell:
    """A table cell, with the note below its text, its sort key and the ends of its interval."""

    text: str
    note: str = ""
    order: float | str | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """The row for one model.

    Attributes:
        title: name of the model.
        record: name of the record.
        group: the prompts and the judge. Only rows of the same group can be compared.
        lines: lines shown below the title.
        cells: cells in the other columns.
    """

    title: str
    record: str
    group: str
    lines: list[str]
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """A table with a row per record, by group, without empty columns.

    Attributes:
        caption: text above the table.
        columns: the headings, starting with that of the models.
        groups: the rows of each group.
    """

    caption: str
    columns: list[str]
    groups: dict[str, list[Row]]


@dataclass(frozen=True)
class Dot:
    """The shares of one value in one record, in a dot plot.

    Attributes:
        title: name of the model, with its method, if any.
        record: name of the record.
        share: the share over all prompts, and its interval.
        of_prompts: the subject and the share of each prompt, in order of the shares. Its images
            have equal shares only if all of these are even, whatever the share over all prompts.
        value: the value.
        unevenness: the distance from even, averaged over prompts, as a share of its maximum.
        one_way: for how many prompts a single value has more than 90% of the images.
        values: all values of the attribute in the record.
        is_released: whether the model is one as released, rather than debiased or a toy.
    """

    title: str
    record: str
    share: Cell
    of_prompts: list[tuple[str, float]]
    value: str
    unevenness: Cell
    one_way: int
    values: list[str]
    is_released: bool

    @property
    def extremes(self) -> str:
        """Return the subjects with the smallest and the largest share."""
        ends = []
        for share in dict.fromkeys((self.of_prompts[0][1], self.of_prompts[-1][1])):
            names = [name for name, other in self.of_prompts if other == share]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            ends.append(f"{names[0]}{more} {share:.0%}")
        return ", ".join(ends)


@dataclass(frozen=True)
class Section:
    """The plots and tables for one attribute.

    Attributes:
        title: name of the attribute.
        dots: for each group and value, the dots, those that are closest to even first.
        tables: the main table, followed by the table with the qualifiers, if any record has them.
        missing: records without counts and published numbers.
    """

    title: str
    dots: dict[str, dict[str, list[Dot]]]
    tables: list[Table]
    missing: list[Record]


def read_records(paths: Sequence[Path]) -> list[Record]:
    """Load records from files, and from all *.json files in folders, sorted by name.

    Raises:
        InvalidInputError: If there are no records, or two of them have the same name.
    """
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    records = [Record.read(file) for file in files]
    names = [record.name for record in records]
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if not records or repeated:
        problem = f"several records named {repeated}" if repeated else "no records (*.json)"
        raise InvalidInputError(f"records: got {problem}; expected one file for each name")
    return sorted(records, key=lambda record: record.name)


def render(records: Sequence[Record]) -> str:
    """Render the page as HTML, with the results stored in the records."""
    environment = need("jinja2").Environment(
        loader=need("jinja2").FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        keep_trailing_newline=True,
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.1f}%"
    template = environment.get_template("page.html.jinja")
    sections = _sections(records)
    html: str = template.render(
        sections=sections,
        takeaways=_takeaways(sections),
        sources=records,
    )
    return html


def _sections(records: Sequence[Record]) -> list[Section]:
    """Return a section for each attribute, starting with the one with the most records."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.attribute, []).append(record)
    sections = []
    for attribute, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        sections.append(_section(attribute, group))
    # An attribute without any counts is only listed among the sources.
    return [section for section in sections if section.dots]


def _section(attribute: str, records: Sequence[Record]) -> Section:
    """Return the section for one attribute. Records with counts come first in its tables."""
    values = _shown_values([record.values for record in records])
    qualifiers = load_protocol().qualifiers
    columns = [f"{capitalised(value)}, neutral template" for value in values]
    # With more than two values, only show the neutral wording, to avoid dozens of columns.
    shown_qualifiers = qualifiers if len(values) == 1 else ()
    columns += [f"“{qualifier}”" for qualifier in shown_qualifiers]
    columns += ["Other template", UNEVENNESS, "Unknown", "Images"]
    usable = [record for record in records if record.counts or record.published]
    rows_of_record = {r.name: _row(r, values, shown_qualifiers) for r in usable}
    unevenness = columns.index(UNEVENNESS)

    def most_even_first(record: Record) -> tuple[bool, float, str]:
        order = rows_of_record[record.name].cells[unevenness].order
        return not record.counts, 1.0 if order is None else float(order), record.name

    usable.sort(key=most_even_first)
    groups: dict[str, list[Row]] = {}
    for record in usable:
        row = rows_of_record[record.name]
        groups.setdefault(row.group, []).append(row)
    # Groups without counts come last, and otherwise the largest first.
    groups = dict(sorted(groups.items(), key=lambda item: (NO_COUNTS in item[0], -len(item[1]))))
    record_of_name = {record.name: record for record in usable}
    dots: dict[str, dict[str, list[Dot]]] = {}
    for group, rows in groups.items():
        for place, value in enumerate(values):
            of_value = [_dot(record_of_name[row.record], row, place, columns) for row in rows]
            if shown := list(filter(None, of_value)):
                dots.setdefault(group, {})[value] = shown
    title = capitalised(attribute)
    of_qualifier = range(len(values), len(values) + len(shown_qualifiers))
    main = [place for place in range(len(columns)) if place not in of_qualifier]
    tables = [
        _filled("Figures as a table", columns, groups, main),
        _filled(f"{title} by qualifier", columns, groups, of_qualifier),
    ]
    return Section(
        title=title,
        dots=dots,
        tables=[table for table in tables if table.groups],
        missing=[record for record in records if record not in usable],
    )


def _filled(
    caption: str, columns: Sequence[str], groups: Mapping[str, Sequence[Row]], kept: Iterable[int]
) -> Table:
    """Return a table of the given columns, without columns and rows that are empty.

    Args:
        caption: text above the table.
        columns: the headings of all columns after the first.
        groups: one row per record, by group, with a cell for every heading.
        kept: positions of the columns to show.
    """
    rows = [row for group in groups.values() for row in group]
    shown = [place for place in kept if any(row.cells[place].text for row in rows)]
    filled: dict[str, list[Row]] = {}
    for row in rows:
        cells = [row.cells[place] for place in shown]
        if any(cell.text for cell in cells):
            filled.setdefault(row.group, []).append(replace(row, cells=cells))
    return Table(caption, ["Model", *(columns[place] for place in shown)], filled)


def _dot(record: Record, row: Row, value: int, columns: Sequence[str]) -> Dot | None:
    """Return the dots for one value of a record, or None if its share has no interval.

    Args:
        record: the record.
        row: its table row.
        value: index of the cell with the value's share for the neutral wording.
        columns: headings of the cells.
    """
    share = row.cells[value]
    if not share.text and value == 0:
        share = row.cells[columns.index("Other template")]
    if share.low is None:
        return None
    method = "" if record.model.method == "none" else f", {record.model.method}"
    name = columns[value].partition(",")[0].casefold()
    shares = _shares_of_prompts(record)
    return Dot(
        title=f"{row.title}{method}",
        record=row.record,
        share=share,
        of_prompts=sorted(
            ((subject, row[name]) for subject, row in shares), key=lambda pair: pair[1]
        ),
        value=name,
        unevenness=row.cells[columns.index(UNEVENNESS)],
        one_way=sum(max(row.values()) > ONE_WAY for _, row in shares),
        values=[value.casefold() for value in record.values],
        is_released=record.model.method == "none" and not _is_toy(record),
    )


def _group(record: Record) -> str:
    """Return the prompts and the judge of a record, such as "33 professions, judged by ..."."""
    prompts = f"{len(_shares_of_prompts(record))} professions" if record.counts else NO_COUNTS
    if record.counts and record.protocol:
        prompts += f" of the protocol {record.protocol}"
    if record.judge is None:
        return prompts
    verb = "counted" if record.judge.kind == "people" else "judged"
    return f"{prompts}, {verb} by {record.judge.name}"


def _takeaways(sections: Sequence[Section]) -> list[str]:
    """Return three sentences about the attribute with the most records."""
    if not sections:
        return []
    dots = [dot for values in sections[0].dots.values() for row in values.values() for dot in row]
    # Debiased models and the toy are shown, but they are not what users meet.
    counted = [dot for dot in dots if dot.of_prompts and dot.is_released]
    if not counted:
        return []
    one_way = sum(dot.one_way for dot in counted)
    total = sum(len(dot.of_prompts) for dot in counted)
    sentences = [
        f"{sections[0].title}: over {ONE_WAY:.0%} of the images show a single value in {one_way} of"
        f" {total} cases. A case is one profession in one of {len(counted)} counts of models as"
        " released."
    ]
    is_even = []
    for dot in counted:
        low, high = dot.share.low, dot.share.high
        if low is not None and high is not None and low <= 1 / len(dot.values) <= high:
            is_even.append(dot)
    if is_even:
        worst = max(is_even, key=lambda dot: dot.one_way / len(dot.of_prompts))
        sentences.append(
            f"An even total does not mean even professions: {worst.title} shows"
            f" {persons(worst.value)} in {worst.share.text} of the images (even among"
            f" {listed_words(worst.values)}: {1 / len(worst.values):.0%}), and {worst.one_way} of"
            f" {len(worst.of_prompts)} professions are over {ONE_WAY:.0%} one way."
        )
    sentences.append("Compare models only within a group, which has the same prompts and judge.")
    return sentences


def _shares_of_prompts(record: Record) -> list[tuple[str, dict[str, float]]]:
    """Return the subject of each prompt with known images, and the share of each value in them."""
    names = [value.casefold() for value in record.values]
    wording = _wording(record)
    shares = []
    for row in record.counts:
        known = sum(row.counts)
        if row.qualifier == wording and known:
            of_value = {name: n / known for name, n in zip(names, row.counts, strict=True)}
            shares.append((row.subject, of_value))
    return shares


def _wording(record: Record) -> str:
    """Return the wording that a record is compared by: the neutral one, if it was measured."""
    if NEUTRAL in record.qualifiers:
        return NEUTRAL
    return next(iter(record.qualifiers), NEUTRAL)


def _shown_values(values_of_record: Sequence[Sequence[str]]) -> list[str]:
    """Return the values that get a column.

    If any record has only two values, a single one is sufficient. Otherwise, all values are shown.
    """
    if any(len(values) == 2 for values in values_of_record):
        first = values_of_record[0]
        return [next((value for value in first if value in FIRST), first[0])]
    return list(dict.fromkeys(value for values in values_of_record for value in values))


def _row(record: Record, values: Sequence[str], qualifiers: Sequence[str]) -> Row:
    """Return a record's row, with its shares for each wording and its numbers of images."""
    figures = {(f.metric, f.value, f.qualifier): f for f in record.figures}
    cells = [_share(figures.get(("share", value, NEUTRAL))) for value in values]
    for qualifier in qualifiers:
        cells.append(_share(figures.get(("share", values[0], qualifier))))
    known = (NEUTRAL, *load_protocol().qualifiers)
    other_qualifier = next((wording for wording in record.qualifiers if wording not in known), None)
    cells.append(_share(figures.get(("share", values[0], str(other_qualifier))), other_qualifier))
    wording = _wording(record)
    cells.append(_unevenness(record, figures.get(("discrepancy", "", wording))))
    unknown = _share(figures.get(("unknown", "", wording)))
    cells.append(Cell(unknown.text, unknown.note, unknown.order))
    images = sum(sum(row.counts) + (row.unknown or 0) for row in record.counts)
    note = f"{len(record.counts)} prompts" if images else ""
    cells.append(Cell(f"{images:,}" if images else "", note, images or None))
    title = record.model.name
    if _is_toy(record):
        title += " (toy, draws cartoons)"
    return Row(title, record.name, _group(record), _about(record), cells)


def _is_toy(record: Record) -> bool:
    """Return whether a record is about the packaged toy model."""
    return record.judge is not None and record.judge.name == TOY_JUDGE


def _share(figure: Figure | None, wording: str | None = None) -> Cell:
    """Return the cell for a share with its interval, and its wording if the heading has none."""
    if figure is None:
        return Cell("")
    note = f"{figure.low:.0%} to {figure.high:.0%}"
    if wording is not None:
        note = f"{wording}; {note}"
    return Cell(f"{figure.estimate:.0%}", note, figure.estimate, figure.low, figure.high)


def _unevenness(record: Record, figure: Figure | None) -> Cell:
    """Return the cell for the distance from equal shares, as a share of its maximum.

    If there are no counts, the published distance is shown.
    """
    # The distance is largest if all images show the same value.
    largest = math.sqrt(1 - 1 / len(record.values))
    if figure is not None:
        note = f"distance {figure.estimate:.2f}, {figure.low:.2f} to {figure.high:.2f}"
        if len(record.values) > 2:
            note += f", {len(record.values)} values"
        return Cell(f"{figure.estimate / largest:.0%}", note, figure.estimate / largest)
    for published in record.published:
        if published.metric == "discrepancy" and not record.counts:
            share = published.figure / largest
            return Cell(f"{share:.0%}", f"distance {published.figure:.3f} as printed", share)
    return Cell("")


def _about(record: Record) -> list[str]:
    """Describe a record's method and settings, and the origin of its counts."""
    lines = []
    if record.model.method != "none":
        lines.append(f"method: {record.model.method}")
    settings = []
    labels = max((figure.labels for figure in record.figures), default=0)
    if labels:
        settings.append(f"corrected by {labels} labels of people")
    if record.generation.guidance is not None:
        settings.append(f"guidance {record.generation.guidance:g}")
    if record.counts:
        settings.append(f"protocol {record.protocol}" if record.protocol else "source's prompts")
        origin = "measured" if record.origin == "measured" else "published"
        settings.append(f"{origin} {record.date}")
    if settings:
        lines.append(", ".join(settings))
    return lines
