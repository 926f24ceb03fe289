"""Which form is the default? By a stated rule, from the committed tables; and what each table alone would choose.

python -m eval.experiments.default_choice --json eval/results/default_choice.json

Nothing is fitted or drawn here: rivals_real.json, rivals_miniature.json and generation.json are read.

Models. Of each form in each table of the rivals
gain     what it takes away of what could be gained: of none's skew, (none - value) / none, or of what the worst group
         of none lacks, (value - none) / (1 - none)
cost     what is lost of the order of images inside a group, 1 - Spearman's correlation of scores before and after
score    gain - cost: a share of the bias counts as much as a share of the order
harm     the table is worse than without, beyond its 95 % interval

The rule: of the forms that do no harm in any table, the one with the highest mean score over the tables; of those
within .02 of it, the one whose worst table is best. Once of the forms that need prompts alone, once of those that use
unlabelled images (what `reference=` gives).

Pipelines. Of the forms that draw no value for an image, merge, and need no judge:
gain     what is taken away of the parity gap's square, corrected for the number of images, as a share of none's
cost     the share of subjects, and of people and birds outside the fit, that are not drawn any more; the largest counts
harm     the share left is above 1 beyond its interval
The same rule, over the one table that there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.experiments.rivals_table import Rows
from eval.experiments.run import parser, run
from eval.tables import measured, read, rows_in
from vldebias.evaluation.result import Result, TaskProvenance, TaskResult
from vldebias.metrics import Metric

NEAR = 0.02  # scores that are as good as one another
TABLES = ("rivals_real", "rivals_miniature")
FORMS = {
    "prompts": ("difference", "cali, lam 100", "cali", "orth", "orth-cali"),
    "images": ("equalise", "difference+equalise", "cali+equalise", "cali+equalise, lam 100"),
}
DRAWN = ("default", "difference", "cali", "leading")
UNSEEN, LEFT = "unseen professions", "discrepancy_squared, share of none"
OUTSIDE, ASKED = ("outside the fit, portraits", "outside the fit, birds"), "shows what was asked for"


@dataclass(frozen=True)
class Place:
    """One form in one table."""

    table: str
    form: str
    gain: float
    cost: float
    harm: bool

    @property
    def score(self) -> float:
        """gain - cost."""
        return self.gain - self.cost


def choose(places: Sequence[Place]) -> str | None:
    """The form that the rule names; None where every one does harm somewhere."""
    by_form: dict[str, list[Place]] = {}
    for place in places:
        by_form.setdefault(place.form, []).append(place)
    most = max(map(len, by_form.values()), default=0)
    harmless = {form: own for form, own in by_form.items() if len(own) == most and not any(place.harm for place in own)}
    means = {form: sum(place.score for place in own) / most for form, own in harmless.items()}
    near = [form for form, mean in means.items() if mean >= max(means.values()) - NEAR]
    return max(near, key=lambda form: min(place.score for place in harmless[form]), default=None)


def of_models(results: Mapping[str, Result], forms: Sequence[str]) -> list[Place]:
    """Each of the forms in each table of the results."""
    places = []
    for result in results.values():
        for about in result.provenance:
            rows = Rows(result, about.task)
            none = rows.rows[rows.main, "none"].value
            for method in rows.methods:
                form = rows.fact(method, "name")
                main, kept = rows.rows[rows.main, method], rows.get("order_kept", method)
                if form not in forms or main.change is None or kept is None:
                    continue
                down = rows.main == "max_skew"
                gain = (none - main.value) / none if down else (main.value - none) / (1 - none)
                harm = main.change[1] > 0 if down else main.change[2] < 0
                places.append(Place(about.task, form, gain, 1 - kept.value, harm))
    return places


def of_pipelines(result: Result, forms: Sequence[str]) -> list[Place]:
    """Each of the forms on the professions that a fit leaves out."""
    task = result.provenance[0].task
    unseen, outside = rows_in(result, task, UNSEEN), [rows_in(result, task, where) for where in OUTSIDE]
    places = []
    for form in forms:
        left = unseen.get((form, LEFT))
        if left is None:
            continue
        lost = [1 - unseen[form, "recognised"].value / unseen["none", "recognised"].value]
        lost += [1 - rows[form, ASKED].value / rows["none", ASKED].value for rows in outside]
        places.append(Place(task, form, 1 - left.value, max(0.0, *lost), left.interval[0] > 1))
    return places


def told(kind: str, places: Sequence[Place]) -> TaskResult:
    """Rows: gain, cost, score and harm of every form in every table, their means and worst, and what is chosen."""
    about = "The rule over committed tables; a form that it chooses has 1 under chosen."
    done = TaskResult(TaskProvenance(task=kind, title=f"The default among forms of {kind}", description=about))
    names = list(dict.fromkeys(place.table for place in places))
    chosen = {"": choose(places), **{name: choose([p for p in places if p.table == name]) for name in names}}
    done.provenance.settings.update({"near": NEAR, "chosen": {name or "all": form for name, form in chosen.items()}})

    def add(metric: str, form: str, value: float, where: str) -> None:
        done.add(Metric(metric, metric), form, value, n={"tables": 1}, subset=where)

    for place in places:
        figures = {"gain": place.gain, "cost": place.cost, "score": place.score, "harm": float(place.harm)}
        for metric, value in figures.items():
            add(metric, place.form, value, place.table)
    for form in dict.fromkeys(place.form for place in places):
        own = [place for place in places if place.form == form]
        if len(own) < len(names):  # a table lacks it: nothing is said over all
            continue
        add("score", form, sum(p.score for p in own) / len(own), "mean of all")
        add("score", form, min(p.score for p in own), "worst")
    for name, form in chosen.items():
        if form is not None:
            add("chosen", form, 1.0, name or "mean of all")
    return done


def main() -> None:
    given = parser(__doc__).parse_args()
    results = {name: read(name) for name in TABLES if measured(name)}

    def measure() -> list[TaskResult]:
        parts = [told(kind, of_models(results, forms)) for kind, forms in FORMS.items()]
        return [*parts, told("pipelines", of_pipelines(read("generation"), DRAWN))]

    result = run("default_choice", measure, given.json)
    for about in result.provenance:
        print(about.task, about.settings["chosen"])


if __name__ == "__main__":
    main()
