"""Do DCL and HCL gain where other rows of a batch mean the same? Chapters 3 and 4 of the thesis.

    python -m eval.experiments.false_negatives             # writes eval/results/false_negatives.json and .png
    python -m eval.experiments.false_negatives --work DIR  # where trainings are kept, for a second start

The captions name 48 species and a batch has 256 rows, so of the 255 negatives of an image 5 have its own caption: a
share of 1/48 = .021 of false negatives, which tau+ is to estimate. beta concentrates HCL on hard ones at that tau+.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.experiments.cells import Cell, Curve, arguments_of, draw_curves, run_cells, summed_up, write_result
from eval.experiments.small_clip import LOOP, T, captions, description, held_out, pixels, train, train_world

TRUE_SHARE = 1 / 48
TAUS = (0.0, 0.01, TRUE_SHARE, 0.05, 0.1)
BETAS = (0.0, 0.25, 0.5, 1.0, 2.0)
SCORES = ("zero_shot_accuracy", "recall@1 text->image", "recall@5 text->image")
METRIC = SCORES[0]


def work(cell: Cell) -> dict[str, float]:
    """One training."""
    world = train_world(cell["seed"])
    names = {"debiased": ("tau_plus",), "hard_negative": ("tau_plus", "beta")}
    loss = {"loss": cell["loss"], **{name: cell[name] for name in names[cell["loss"]]}, "temperature": T}
    found = held_out()(train(loss, pixels(world), captions(world), cell["seed"], cell["steps"]).towers)
    return {name: found[name] for name in SCORES}


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "false-negatives", LOOP.steps or 0, arguments)

    def cell(loss: str, tau_plus: float, beta: float | None, seed: int) -> dict[str, Any]:
        return {"loss": loss, "tau_plus": tau_plus, "beta": beta, "seed": seed, "steps": args.steps}

    seeds = range(args.seeds)
    debiased = [cell("debiased", tau, None, seed) for tau in TAUS for seed in seeds]
    hard = [cell("hard_negative", TRUE_SHARE, beta, seed) for beta in BETAS for seed in seeds]
    done = run_cells(work, debiased + hard, args.work, processes=args.processes, title="false negatives")
    rows = [
        *summed_up(done[: len(debiased)], ("loss", "tau_plus"), against={"tau_plus": 0.0}),
        *summed_up(done[len(debiased) :], ("loss", "beta"), against={"beta": 0.0}),
    ]
    protocol = {
        **description(args.steps),
        "temperature": T,
        "share of false negatives": TRUE_SHARE,
        "hard_negative": {"tau_plus": TRUE_SHARE},
        "change": "debiased: to tau_plus = 0, which is InfoNCE; hard_negative: to beta = 0, which is debiased",
        "seeds": list(seeds),
    }
    result = args.out / "false_negatives.json"
    write_result(result, protocol, rows, done)
    tau, beta = (
        Curve("debiased, over tau_plus", "tau_plus", {"DCL": {"loss": "debiased"}}),
        Curve("hard_negative, over beta", "beta", {"HCL": {"loss": "hard_negative"}}),
    )
    draw_curves(result, result.with_suffix(".png"), METRIC, [tau, beta], "Losses that correct for false negatives")


if __name__ == "__main__":
    main()
