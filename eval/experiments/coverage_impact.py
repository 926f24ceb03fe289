"""Measure how often the 95% intervals of impact ratios contain the true ratio.

    python -m eval.experiments.coverage_impact --json eval/results/coverage_impact.json

Applicants in categories with known selection rates are selected independently. A category's true
ratio is its rate divided by the highest rate. The lowest coverage over all categories is reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eval.experiments.coverage_shares import COVERAGE, WIDTH, simulated
from eval.tables import parser, run
from vldebias.measure.impact import impact_ratios
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import TaskResult

# Selection rates and numbers of applicants of the categories in each setting.
SETTINGS = {
    "2 equal categories": ((0.3, 0.3), (100, 100)),
    "2 categories, half the rate": ((0.15, 0.3), (100, 100)),
    "2 categories, few selected": ((0.05, 0.1), (50, 400)),
    "7 equal categories": ((0.3,) * 7, (60,) * 7),
    "7 different categories": (
        (0.1, 0.2, 0.3, 0.3, 0.25, 0.15, 0.05),
        (40, 60, 400, 300, 80, 50, 30),
    ),
    "14 equal categories": ((0.3,) * 14, (40,) * 14),
}


def measure(sets: int) -> Iterator[TaskResult]:
    """Yield a task for each setting, with the coverage and mean width."""
    for task, (rates, sizes) in SETTINGS.items():
        rng = np.random.default_rng(0)
        truth = np.array(rates) / max(rates)
        covered = np.zeros(len(rates))
        widths = np.zeros(len(rates))
        names = [str(place) for place in range(len(rates))]
        for _ in range(sets):
            selected = rng.binomial(sizes, rates).tolist()
            for place, category in enumerate(impact_ratios(names, sizes, selected)):
                # If nobody is selected, no ratio is reported, and any value is possible.
                low, high = (0.0, 1.0) if category.ratio is None else category.ratio[1:]
                covered[place] += low - 1e-12 <= truth[place] <= high + 1e-12
                widths[place] += high - low
        description = (
            "How often intervals of impact ratios of simulated applicants hold the true ratio."
        )
        settings = {"rates": list(rates), "applicants": list(sizes), "level": 0.95}
        result = simulated(task, description, sets, settings)
        hits = int(covered.min())
        n = {"data sets": sets}
        result.add(COVERAGE, "impact ratio", hits / sets, wilson_interval(hits, sets), n=n)
        result.add(WIDTH, "impact ratio", float((widths / sets).mean()), n=n)
        yield result


def main() -> None:
    """Run the simulations and print the results."""
    arguments = parser(__doc__)
    arguments.add_argument("--sets", type=int, default=4000, help="data sets of each setting")
    args = arguments.parse_args()
    run("coverage_impact", lambda: measure(args.sets), args.json)


if __name__ == "__main__":
    main()
