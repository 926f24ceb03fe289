"""How biased is the miniature world? Its figures over builds from several training seeds, beside what it aims at.

python -m eval.experiments.worlds BUILD [BUILD ...]                                   # the table
python -m eval.experiments.worlds BUILD [BUILD ...] --json eval/results/worlds.json   # and write it

A build is a folder that `python -m eval.miniature` wrote, with its metrics.json: every figure in there is a mean over
three draws of renders and noise. Here each is one value per build, the builds being independent trainings: their mean
with its 95 % interval of Student's t. A target is met where the mean lies in its range; the interval says how sure
that is. Builds without a judge or a pipeline have no part in the rows about these.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.experiments.cells import interval
from eval.tables import Cells, shows, span, table
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Result, TaskProvenance, TaskResult
from vldebias.files import read_json
from vldebias.metrics import Metric

METHODS = ("none", "orth", "cali 1000", "orth-cali 1000", "difference")
DRAWN = ("discrepancy", "tone discrepancy", "age discrepancy", "recognised")
FIGURES: dict[tuple[str, str], tuple[str, ...]] = {  # section and part of metrics.json -> names
    **{("birds", method): ("worst group", "average") for method in METHODS},
    ("birds", "cosine under P0"): ("landbird", "waterbird"),
    ("birds", "reads"): ("species", "background"),
    ("portraits", "reads"): ("profession", "gender", "tone", "age"),
    ("judge", "renders"): ("profession", "gender", "tone", "age", "species", "place"),
    ("generation", "none"): (*DRAWN, "middle"),
    ("generation", "cali 500"): DRAWN,
    ("generation", "stated"): ("gender", "tone", "age"),
    ("generation", "birds"): ("species", "class", "ground"),
    ("generation", "fid"): ("portraits", "birds"),
}
READ, STATED, DRAWN_RIGHT = (0.90, 1.0), (0.97, 1.0), (0.95, 1.0)
TARGETS: dict[tuple[str, str, str], tuple[float, float]] = {
    ("birds", "none", "worst group"): (0.25, 0.50),
    ("birds", "none", "average"): (0.80, 1.0),
    ("birds", "cosine under P0", "landbird"): (0.30, 0.60),
    ("birds", "cosine under P0", "waterbird"): (0.30, 0.60),
    ("portraits", "reads", "profession"): READ,
    **{("judge", "renders", name): (0.99, 1.0) for name in FIGURES["judge", "renders"]},
    ("generation", "none", "discrepancy"): (0.35, 0.50),
    ("generation", "none", "middle"): (0.40, 0.60),  # as many professions in the middle as at the ends
    ("generation", "none", "recognised"): DRAWN_RIGHT,
    **{("generation", "stated", name): STATED for name in FIGURES["generation", "stated"]},
    ("generation", "birds", "species"): DRAWN_RIGHT,
}


def measured(builds: Sequence[Path]) -> list[dict[str, Any]]:
    """The metrics.json of each build.

    Raises:
        InvalidInputError: a folder without one.
    """
    lacking = [str(build) for build in builds if not (build / "metrics.json").is_file()]
    if lacking:
        raise InvalidInputError(
            f"builds: no metrics.json in {', '.join(lacking)}; expected folders that `python -m eval.miniature` wrote"
        )
    return [dict(read_json(build / "metrics.json")) for build in builds]


def rows(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per figure: mean over the builds that have it, interval, its target and whether the mean lies in it.

    value, low and high are None where no build has the figure; low and high where one build alone has it.
    """
    found_rows = []
    for (section, part), names in FIGURES.items():
        for name in names:
            target = TARGETS.get((section, part, name))
            row: dict[str, Any] = {"section": section, "part": part, "metric": name, "value": None, "low": None}
            row |= {"high": None, "target": target, "met": None}
            found = [figure(one, section, part, name) for one in metrics]
            values = [value for value in found if value is not None]
            if len(values) > 1:
                row |= interval(values)
            elif values:
                row["value"] = values[0]
            if values and target is not None:
                row["met"] = target[0] <= row["value"] <= target[1]
            found_rows.append({**row, "builds": found})
    return found_rows


def figure(metrics: Mapping[str, Any], section: str, part: str, name: str) -> float | None:
    """One figure of a build; None where the build has no such part."""
    found = metrics.get(section, {}).get(part, {}).get(name)
    return None if found is None else float(found["mean"])


@shows("docs/how-to/miniature.md", "worlds")
def page_rows(result: Result) -> Cells:
    """A row for each figure: the mean of the builds, and whether it is where it should be."""
    builds = len(result.provenance[0].settings["builds"])
    lines = [["what", "figure", f"mean of {builds} builds [95 %]", "aim", "met"]]
    aims = {(p.task, r["part"], r["metric"]): r for p in result.provenance for r in p.settings["beside"]}
    for row in result.rows:
        aimed = aims[row.task, row.method, row.metric]
        value = f"{row.value:.3f} (one build)" if row.n["builds"] == 1 else span(row)
        aim = "" if aimed["target"] is None else "{:.2f} to {:.2f}".format(*aimed["target"])
        met = {None: "", True: "yes", False: "**no**"}[aimed["met"]]
        lines.append([f"{row.task}, {row.method}", row.metric, value, aim, met])
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("builds", nargs="+", type=Path, metavar="BUILD", help="folder of one training seed")
    options.add_argument("--json", type=Path, help="also write the rows here")
    given = options.parse_args(arguments)
    metrics = measured(given.builds)
    result = written(rows(metrics), [build.name for build in given.builds], metrics[0]["conditions"])
    print(table(*page_rows(result)))
    if given.json:
        result.write(given.json)


def written(figures: Sequence[Mapping[str, Any]], builds: Sequence[str], conditions: Any) -> Result:
    """The rows as a result: a task per section, its parts as methods; targets and single builds beside them."""
    parts = []
    for section in dict.fromkeys(row["section"] for row in figures):
        own = [row for row in figures if row["section"] == section]
        beside = [{name: row[name] for name in ("part", "metric", "target", "met", "builds")} for row in own]
        about = "Means over builds, 95 % intervals of Student's t; a target is met where the mean lies in it"
        settings = {"builds": list(builds), "conditions": conditions, "beside": beside}
        part = TaskResult(TaskProvenance(task=section, description=about, settings=settings))
        for row in own:
            if row["value"] is not None:
                ends = [row["value"] if row[end] is None else row[end] for end in ("low", "high")]
                n = {"builds": sum(value is not None for value in row["builds"])}
                part.add(Metric(row["metric"], row["metric"]), row["part"], row["value"], (ends[0], ends[1]), n=n)
        parts.append(part)
    return Result.of("worlds", parts, seconds=None)


if __name__ == "__main__":
    main()
