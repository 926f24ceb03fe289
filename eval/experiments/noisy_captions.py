"""Does RINCE learn from wrong captions better than InfoNCE? The shape of Tables A.1, A.2 and A.4 of the thesis.

    python -m eval.experiments.noisy_captions  # every cell, writes eval/results/noisy_captions.json and .png
    python -m eval.experiments.noisy_captions --work DIR  # where cells are kept, for a second start
    python -m eval.experiments.noisy_captions --seeds 3 --steps 50 --out /tmp/try  # a quick look

A share eta of the captions is drawn from all captions (mixture noise, thesis 6.2.2). A small CLIP learns from them from
scratch and is scored on clean held-out images. Each loss has the temperature that did best for it at eta = .4 on a seed
that is not reported. RINCE's q is warmed up from .01 over the run (thesis 5.3.3), and lam = 1/256, the batch: with it
the pull of the pair and the push of all rows balance while all similarities are still alike, which they are when two
towers start from random weights. The ablation of lam shows what other values do.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from eval.experiments.cells import Cell, Curve, arguments_of, draw_curves, run_cells, summed_up, write_result
from eval.experiments.small_clip import LOOP, captions, description, held_out, pixels, train, train_world
from vldebias.training.pairs import mixture_noise

ETAS = (0.0, 0.2, 0.4, 0.6, 0.8)
QS = (0.01, 0.1, 0.5, 1.0)
TEMPERATURES = (0.1, 0.2, 0.5, 1.0)
LAM = 1 / LOOP.batch_size
LAMS = (0.0004, 0.001, LAM, 0.01, 0.05, 0.4)
Q_START = 0.01
TUNED_AT, TUNING_SEED = 0.4, 100
BASE = "InfoNCE"
LOSSES = {BASE: {"loss": "info_nce"}} | {
    f"RINCE q={q}": {"loss": "rince", "q": q, "lam": LAM, **({"q_start": Q_START} if q > Q_START else {})} for q in QS
}
ABLATION_SEEDS = 3
ABLATED, ABLATED_AT = "RINCE q=0.5", (0.0, 0.4)
SCORES = ("zero_shot_accuracy", "recall@1 text->image", "recall@5 text->image")


def work(cell: Cell) -> dict[str, float]:
    """One training; the share of wrong pairs among the figures, to see that the noise is what it says."""
    world = train_world(cell["seed"])
    noise = mixture_noise(len(world), cell["eta"], cell["seed"], captions(world))
    loss = {**LOSSES[cell["loss"]], "temperature": cell["temperature"]}
    if cell["lam"] is not None:
        loss["lam"] = cell["lam"]
    trainee = train(loss, pixels(world), noise.applied(captions(world)), cell["seed"], cell["steps"])
    found = held_out()(trainee.towers)
    return {name: found[name] for name in SCORES} | {"wrong": float(noise.wrong.mean())}


def cell(loss: str, eta: float, seed: int, steps: int, temperature: float, lam: float | None = None) -> dict[str, Any]:
    return {"loss": loss, "eta": eta, "seed": seed, "steps": steps, "temperature": temperature, "lam": lam}


def tuned(args: argparse.Namespace) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Loss -> temperature of the highest accuracy on the tuning seed, and the cells that say so."""
    cells = [cell(loss, TUNED_AT, TUNING_SEED, args.steps, t) for loss in LOSSES for t in TEMPERATURES]
    done = run_cells(work, cells, args.work, processes=args.processes, title="temperatures")
    best = {}
    for loss in LOSSES:
        own = [c for c in done if c["loss"] == loss]
        best[loss] = max(own, key=lambda c: c["figures"][SCORES[0]])["temperature"]
    return best, done


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "noisy-captions", LOOP.steps or 0, arguments)
    seeds = range(args.seeds)
    temperature, tuning = tuned(args)
    noise = [cell(loss, eta, s, args.steps, temperature[loss]) for eta in ETAS for loss in LOSSES for s in seeds]
    done = run_cells(work, noise, args.work, processes=args.processes, title="noise")
    ablation = [
        cell(ABLATED, eta, s, args.steps, temperature[ABLATED], lam)
        for eta in ABLATED_AT
        for lam in LAMS
        for s in seeds[:ABLATION_SEEDS]
    ]
    ablated = run_cells(work, ablation, args.work, processes=args.processes, title="lam")
    rows = [{"table": "noise", **row} for row in summed_up(done, ("eta", "loss"), against={"loss": BASE})] + [
        {"table": "lam", **row} for row in summed_up(ablated, ("eta", "lam"))
    ]
    protocol = {
        **description(args.steps),
        "noise": "mixture: a share eta of the captions is drawn from all captions; those that draw their own text stay",
        "losses": LOSSES,
        "temperature": temperature,
        "temperatures_tried": {"at eta": TUNED_AT, "seed": TUNING_SEED, "values": TEMPERATURES},
        "change": f"to {BASE} on the same seed",
        "seeds": {"noise": list(seeds), "lam": list(seeds[:ABLATION_SEEDS])},
    }
    result = args.out / "noisy_captions.json"
    write_result(result, protocol, rows, [*tuning, *done, *ablated])
    panels = [
        Curve("share of replaced captions", "eta", {loss: {"table": "noise", "loss": loss} for loss in LOSSES}),
        Curve(f"{ABLATED}, over lam", "lam", {f"eta {eta}": {"table": "lam", "eta": eta} for eta in ABLATED_AT}, True),
    ]
    draw_curves(result, result.with_suffix(".png"), SCORES[0], panels, "RINCE and InfoNCE on noisy captions")


if __name__ == "__main__":
    main()
