"""Test whether intervals predicted from records contain shares of held-out models or professions.

python -m eval.experiments.record_forecasts --json eval/results/record_forecasts.json

The data are the records in `eval/records` with neutral wording and original models. Either one
profession is held out from the line from the mean of the other models to a model's shares, or one
model is held out entirely. In the second case, the unit is the model, because the errors for the
professions of a model are correlated. `vldebias records predict` prints intervals only if the lower
end of the coverage is at least 0.80.
"""

from __future__ import annotations

from collections.abc import Iterator

from eval.record_sources import RECORDS
from eval.tables import parser, run
from vldebias.measure.metric import Metric
from vldebias.records.forecast import (
    SHOWN,
    Coverage,
    coverage_over_models,
    coverage_over_subjects,
    error_of_models,
    known_models,
    line_of_model,
    models_needed,
    shares_of,
)
from vldebias.records.page import read_records
from vldebias.report.result import NONE, TaskProvenance, TaskResult

COVERAGE = Metric("coverage", "held-out shares inside their interval", bounds=(0.0, 1.0))
WIDTH = Metric("interval_width", "mean width of the intervals", bounds=(0.0, 1.0))


def add(out: TaskResult, coverage: Coverage, subset: str) -> None:
    """Add the rows for a coverage unless there are no trials."""
    if not coverage.tried:
        return
    n = {coverage.unit: coverage.tried}
    value = coverage.covered / coverage.tried
    out.add(COVERAGE, NONE, value, coverage.interval, n=n, subset=subset)
    out.add(WIDTH, NONE, coverage.width, n=n, subset=subset)


def measure() -> Iterator[TaskResult]:
    """Hold out professions, and then models."""
    counts = known_models(read_records([RECORDS]), "gender", "female")
    models = {name: shares_of(subjects) for name, subjects in counts.items()}
    settings = {
        "models": sorted(models),
        "coverage that is shown": SHOWN,
        "models that could show it": models_needed(),
    }
    subjects = TaskResult(
        TaskProvenance(
            task="one profession left out",
            title="Other professions of a model that was measured",
            description=(
                "Share of professions inside the jackknife+ interval of a line that does not know"
                " them, from the mean of the other models."
            ),
            model="models of eval/records",
            n={"models": len(models)},
            settings=settings,
        )
    )
    for model in models:
        add(subjects, coverage_over_subjects(line_of_model(models, model)), model)
    yield subjects
    error = error_of_models(models)
    left_out = TaskResult(
        TaskProvenance(
            task="one model left out",
            title="A model that was not measured",
            description=(
                "Mean over models of the share of their professions inside the mean of the other"
                " models plus and minus an error that the others have among themselves."
            ),
            model="models of eval/records",
            n={"models": len(models)},
            settings={**settings, "error of the mean": None if error is None else round(error, 4)},
        )
    )
    add(left_out, coverage_over_models(models), "all models")
    yield left_out


def main() -> None:
    """Run the experiment."""
    run("record_forecasts", measure, parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
