"""How much of the space may a fit remove before prompts that it does not know are drawn as something else?

python -m eval.experiments.generation_sparing --json eval/results/generation_sparing.json   # minutes of a core; goes on

The lam of the default of pipelines is lowered until `cali` removes at most one direction in so many of the space. What
is drawn of prompts outside the fit and of the 20 unseen professions, for several such bounds; lam = 500 is the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from eval.experiments.generation import OUTSIDE, SET, STEPS, UNSEEN, Form, Studio, provenance
from eval.experiments.generation_measures import Seen, asked_for, kept, measured
from eval.experiments.run import parser, run
from eval.tables import fills, read, span, table
from vldebias.evaluation.result import TaskResult
from vldebias.methods.closed_form import DEFAULT

SPARES, IMAGES, SEEDS = (50, 100, 200), 8, (0, 1)


def measure(studio: Studio) -> Iterator[TaskResult]:
    """One row per bound: what stays a person or a bird, the discrepancy, the subjects recognised."""
    forms = [Form("none", studio.attached(None)), Form("cali", studio.attached("paper"))]
    forms += [Form(f"a {n}th", studio.attached(replace(DEFAULT, spares=n))) for n in SPARES]
    told = provenance(studio, "generation sparing", [SET], forms)
    n = {"images each and seed": IMAGES}
    result = TaskResult(told.model_copy(update={"description": __doc__ or "", "seeds": list(SEEDS), "n": n}))
    for world, prompts in OUTSIDE.items():
        drawn = {form.name: studio.pixels(form, f"sparing-{world}", prompts, IMAGES, SEEDS[0]) for form in forms}
        kept(result, {m: asked_for(one, len(prompts), world) for m, one in drawn.items()}, 1, world)
    asked, names = studio.prompts.held_out_classes, studio.prompts.held_out_class_names
    seen = {f.name: Seen.of([studio.pixels(f, "sparing", asked, IMAGES, s) for s in SEEDS], len(asked)) for f in forms}
    measured(result, seen, names, None, len(SEEDS), UNSEEN, "gender")
    yield result


@fills("docs/generation/forms.md", "sparing")
def sparing_block() -> str:
    """How much of the space a fit may remove before prompts outside of it change, a row per bound."""
    measures = {
        ("portraits", "shows what was asked for"): "a person stays one",
        ("birds", "shows what was asked for"): "a bird stays one",
        ("unseen professions", "discrepancy"): "parity gap, 20 unseen professions",
        ("unseen professions", "recognised"): "subject accuracy",
    }
    found = {(row.method, row.subset, row.metric): row for row in read("generation_sparing").rows}
    methods = dict.fromkeys(method for method, _, _ in found)
    lines = [[method, *(span(found[method, *measure]) for measure in measures)] for method in methods]
    return table(["removed at most", *measures.values()], *lines, note="From `eval/results/generation_sparing.json`.")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--work", type=Path, default=Path("results/generation"), help="where drawn pixels are kept")
    given = options.parse_args()
    torch.set_num_threads(1)
    studio = Studio(given.work / f"{STEPS}-steps", IMAGES * len(SEEDS))
    run("generation sparing", lambda: measure(studio), given.json)


if __name__ == "__main__":
    main()
