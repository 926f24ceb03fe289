"""Select the default methods with a fixed rule from all committed tables and from each table.

python -m eval.experiments.default_choice --json eval/results/default_choice.json

The only inputs are rivals_real.json, rivals_miniature.json, generation.json and steer.json.

Models. For each method in each table of `rivals`:

    gain   removed share of the possible gain, which is (none - value) / none for skew, or
           (value - none) / (1 - none) for the worst group
    cost   1 - Spearman's correlation between scores before and after, within groups
    score  gain - cost, so that shares of bias and order have the same weight
    harm   significantly worse than "none" (95% interval)

The rule selects the method with the highest mean score over the tables, among methods without harm
in any table. If several methods are within 0.02 of it, it selects the one with the best worst
table. The rule is applied separately to methods that need only prompts and to methods that use
unlabelled images (`reference=`).

Pipelines. For methods that can be merged, do not assign values and do not need a judge, the same
rule applies to the only table:

    gain   removed share of the squared gap from even shares, corrected for the number of images
    cost   maximum of the lost shares of subjects and of people and birds outside the fit
    harm   remaining share significantly above 1

Assigned values. For methods that assign a value to each image, each attribute is a table:

    gain   removed share of the gap from even shares
    cost   lost share of professions
    harm   remaining share significantly above 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eval.tables import Rivals, parser, read, rows_in, run
from vldebias.metrics import Metric
from vldebias.report.result import Result, TaskProvenance, TaskResult

NEAR = 0.02  # scores with smaller differences are considered equal
TABLES = ("rivals_real", "rivals_miniature")
FORMS = {
    "prompts": ("difference", "cali, lam 100", "cali", "orth", "orth-cali"),
    "images": ("equalise", "difference+equalise", "cali+equalise", "cali+equalise, lam 100"),
}
GENERATED = ("default", "difference", "cali", "leading")
ASSIGNING = ("balanced-prompts", "cross-attention")
UNSEEN, LEFT = "unseen professions", "discrepancy_squared, share of none"
OUTSIDE, ASKED = (
    ("outside the fit, portraits", "outside the fit, birds"),
    "shows what was asked for",
)


class Place(NamedTuple):
    """The figures for one method in one table."""

    table: str
    form: str
    gain: float
    cost: float
    harm: bool

    @property
    def score(self) -> float:
        """Return gain - cost."""
        return self.gain - self.cost


def choose(places: Sequence[Place]) -> str | None:
    """Return the method that the rule selects, or None if every method does harm in a table."""
    by_form: dict[str, list[Place]] = {}
    for place in places:
        by_form.setdefault(place.form, []).append(place)
    n_places = max(map(len, by_form.values()), default=0)
    harmless = {
        form: places_of_form
        for form, places_of_form in by_form.items()
        if len(places_of_form) == n_places and not any(place.harm for place in places_of_form)
    }
    means = {
        form: sum(place.score for place in places_of_form) / n_places
        for form, places_of_form in harmless.items()
    }
    near = [form for form, mean in means.items() if mean >= max(means.values()) - NEAR]
    return max(near, key=lambda form: min(place.score for place in harmless[form]), default=None)


def of_models(results: Sequence[Result], forms: Sequence[str]) -> list[Place]:
    """Return the figures for each method in each table of the results."""
    places = []
    for result in results:
        for provenance in result.provenance:
            rows = Rivals(result, provenance.task)
            none = rows.rows[rows.main, "none"].value
            for method in rows.methods:
                form = rows.fact(method, "name")
                main, kept = rows.rows[rows.main, method], rows.rows.get(("order_kept", method))
                if form not in forms or main.change is None or kept is None:
                    continue
                most = none if rows.sign < 0 else 1 - none
                gain, harm = (
                    rows.sign * (main.value - none) / most,
                    max(rows.sign * end for end in main.change[1:]) < 0,
                )
                places.append(Place(provenance.task, form, gain, 1 - kept.value, harm))
    return places


def of_pipelines(result: Result) -> list[Place]:
    """Return the figures for each method on held-out professions."""
    task = result.provenance[0].task
    unseen, outside = (
        rows_in(result, task, UNSEEN),
        [rows_in(result, task, where) for where in OUTSIDE],
    )
    places = []
    for form in GENERATED:
        remaining = unseen[form, LEFT]
        lost = [1 - unseen[form, "recognised"].value / unseen["none", "recognised"].value]
        lost += [1 - rows[form, ASKED].value / rows["none", ASKED].value for rows in outside]
        places.append(
            Place(task, form, 1 - remaining.value, max(0.0, *lost), remaining.interval[0] > 1)
        )
    return places


def of_assignment(result: Result) -> list[Place]:
    """Return the figures for stated values and cross-attention on held-out professions."""
    places = []
    for attribute in ("gender", "age", "tone"):
        rows = rows_in(result, "cross-attention", attribute)
        for form in ASSIGNING:
            remaining = rows[form, "discrepancy, share of none"]
            kept = rows[form, "recognised"].value / rows["none", "recognised"].value
            harm = remaining.interval[0] > 1
            places.append(Place(attribute, form, 1 - remaining.value, max(0.0, 1 - kept), harm))
    return places


def summarize(kind: str, places: Sequence[Place]) -> TaskResult:
    """Return the gain, cost, score and harm of every method by table, with the choice."""
    description = (
        "The rule over committed tables: gain - cost, and harm; `chosen` of the settings is what it"
        " names."
    )
    done = TaskResult(
        TaskProvenance(
            task=kind, title=f"The default among forms of {kind}", description=description
        )
    )
    for place in places:
        figures = {
            "gain": place.gain,
            "cost": place.cost,
            "score": place.score,
            "harm": float(place.harm),
        }
        for metric, value in figures.items():
            done.add(Metric(metric, metric), place.form, value, n={"tables": 1}, subset=place.table)
    names = dict.fromkeys(place.table for place in places)
    chosen = {"all": choose(places)} | {
        name: choose([p for p in places if p.table == name]) for name in names
    }
    done.provenance.settings.update({"near": NEAR, "chosen": chosen})
    return done


def main() -> None:
    args = parser(__doc__).parse_args()
    results = [read(name) for name in TABLES]
    parts = [summarize(kind, of_models(results, forms)) for kind, forms in FORMS.items()]
    result = run(
        "default_choice",
        lambda: [
            *parts,
            summarize("pipelines", of_pipelines(read("generation"))),
            summarize("assignment", of_assignment(read("steer"))),
        ],
        args.json,
    )
    for provenance in result.provenance:
        print(provenance.task, provenance.settings["chosen"])


if __name__ == "__main__":
    main()
