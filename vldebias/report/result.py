"""Store the results of a run: values with intervals, paired changes and provenance.

Each task fills a `TaskResult` row by row. A run combines these into a `Result`, which can be shown
in a terminal or notebook, plotted, or converted to a data frame, CSV, Parquet or JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError, model_validator

from vldebias.errors import InvalidInputError, need
from vldebias.report.conclusion import Conclusion, conclusions
from vldebias.report.latex import latex
from vldebias.report.measurements import Measurements
from vldebias.report.page import notebook
from vldebias.report.plots import dots
from vldebias.report.table import Measures, readable
from vldebias.report.text import text
from vldebias.utils.files import (
    digest,
    read_bytes,
    write_atomically,
)
from vldebias.utils.formats import FORMAT, check_format
from vldebias.utils.json_values import JSON

LINE = 400  # maximum line length in JSON files, long enough for one result row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot


class Result(Measurements):
    """Measurements from one run, with their provenance.

    In JSON, the rows are called `figures` and the provenance is called `protocols`.

    Attributes:
        name: name of the suite or task.
        rows: the measurements.
        provenance: how each task was measured.
        versions: installed package versions.
        commit: Git commit of the checkout, with the suffix "-dirty" if there are uncommitted
            changes. None if the package was installed from a wheel.
        seconds: duration in seconds. None if the run was resumed.
        date: time at which the run finished (ISO 8601, UTC).
        command: the command line, if the run was started from one.
        platform: operating system, architecture and number of processors.

    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> result = vldebias.evaluate(
    ...     model, attribute="gender", task="texts", method="cali", tokenizer=tokenizer
    ... )
    >>> table = result.to_pandas()
    >>> table.loc[table["subset"] == "unseen", ["method", "value"]].round(2).values.tolist()
    [['none', 0.19], ['cali', 0.03]]
    """

    @model_validator(mode="before")
    @classmethod
    def _without_conclusions(cls, content: object) -> object:
        """Drop the fields added by `to_dict`: the format, and what the rows determine."""
        if not isinstance(content, dict):
            return content
        added = (FORMAT, "conclusions")
        fields = {name: value for name, value in content.items() if name not in added}
        if isinstance(fields.get("figures"), list):
            rows = []
            for row in fields["figures"]:
                if isinstance(row, dict):
                    row = {name: value for name, value in row.items() if name != "few"}
                rows.append(row)
            fields["figures"] = rows
        return fields

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(row.task for row in self.rows))
        return (
            f"Result({self.name!r}: {len(self.rows)} rows of {tasks or 'no task'}; to_pandas(),"
            " plot(), write())"
        )

    def conclusions(self, measures: Measures = ()) -> list[Conclusion]:
        """Return a conclusion for each task that measures bias.

        Args:
            measures: (task, metric) pairs to consider. If empty, all are considered.
        """
        return conclusions(readable(self), measures)

    def to_dict(self) -> dict[str, JSON]:
        """Return the JSON content that `write` saves.

        The content also includes the format version and the conclusions. Rows whose interval is
        known to be too narrow, for example because there are few prompts, contain the key "few".
        """
        frame = readable(self)
        content = self.model_dump(mode="json", by_alias=True)
        for row, few in zip(content["figures"], frame.few, strict=True):
            if few:
                row["few"] = few
        concluded = [conclusion.model_dump(mode="json") for conclusion in conclusions(frame)]
        return {FORMAT: 1, "conclusions": concluded, **content}

    def __str__(self) -> str:
        """Return the conclusions and the rows that support them, in about 25 lines."""
        return text(self) if self.rows else repr(self)

    def _repr_html_(self) -> str:
        """Return the conclusions and the rows that support them, as HTML for notebooks."""
        return notebook(self)

    def plot(self) -> Plot:
        """Plot the value and interval of every method, with one panel per task and metric."""
        frame = readable(self)
        return dots(frame[frame.is_summary], self.provenance)

    def to_latex(self) -> str:
        """Return the main values and their intervals as LaTeX tables (booktabs), one per metric."""
        return latex(self)

    def write(self, path: str | Path, *, compact: bool = False) -> Path:
        """Write the result to a JSON file, atomically.

        Args:
            path: path of the file.
            compact: whether to write the rows to a separate Parquet file next to it, which takes
                about a twentieth of the space.
        """
        path = Path(path)
        content = self.to_dict()
        if compact:
            packed = self.to_pandas().to_parquet(index=False, compression="zstd")
            # Write the rows first, since the JSON file cannot be loaded without them.
            rows = write_atomically(path.with_suffix(".parquet"), packed)
            content["figures"] = {"file": rows.name, "sha256": digest(rows)}
        return write_atomically(path, format_json(content) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """Load a result from its JSON file and, if there is one, the Parquet file next to it.

        Raises:
            InvalidInputError: If the file is missing, does not contain a result, or has a newer
                format. The message names the first invalid field.
        """
        path = Path(path)
        try:
            content = json.loads(read_bytes(path))
            check_format(content, path, missing=1)  # results before 1.0 do not state it
            if isinstance(content, dict) and isinstance(content.get("figures"), dict):
                content["figures"] = _rows_beside(path, content["figures"])
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            problem = f"{place}: {first['msg']}"
        except InvalidInputError:
            raise
        # Python raises a ValueError of its own for integers of more than 4,300 digits.
        except (ValueError, RecursionError) as error:
            problem = f"{error}; not JSON"
        raise InvalidInputError(
            f"{path}: not a valid result ({problem}); expected a file written by `vldebias eval`"
            " or `Result.write`"
        )


def _rows_beside(path: Path, figures: Mapping[str, object]) -> list[dict[str, object]]:
    """Load a result's rows from the Parquet file that its JSON refers to.

    Raises:
        InvalidInputError: If the file is missing, or its digest differs.
    """
    # Ignore the folder, since an untrusted result must not refer to files in other folders.
    file = path.parent / Path(str(figures.get("file", ""))).name
    if not file.is_file() or digest(file) != figures.get("sha256"):
        raise InvalidInputError(
            f"{path}: its rows are stored in {file.name}, which is missing or was changed; copy"
            " both files from the original run"
        )
    rows = need("pyarrow.parquet").read_table(file).to_pylist()
    for row in rows:
        row["n"] = json.loads(row.pop("counts"))
        row["interval"] = (row.pop("low"), row.pop("high"))
        change = (row["change"], row.pop("change_low"), row.pop("change_high"))
        row["change"] = None if change[0] is None else change
    return rows


def format_json(value: object, depth: int = 0) -> str:
    """Format a value as JSON, keeping lists and dicts that fit into one line on one line.

    Args:
        value: the JSON value to format.
        depth: nesting depth, which is the number of spaces to indent.
    """
    short = json.dumps(value, ensure_ascii=False)
    if len(short) <= LINE or not isinstance(value, (dict, list)):
        return short
    deeper = depth + 1
    if isinstance(value, dict):
        # Keys may be numbers, but JSON only allows strings.
        names = [json.dumps(str(name), ensure_ascii=False) for name in value]
        inside = zip(names, value.values(), strict=True)
        parts = [f"{name}: {format_json(item, deeper)}" for name, item in inside]
    else:
        parts = [format_json(item, deeper) for item in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * deeper
    return start + margin + f",{margin}".join(parts) + "\n" + " " * depth + end
