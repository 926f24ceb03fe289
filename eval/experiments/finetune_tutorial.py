"""Does fine-tuning by the tutorial's own command gain, without a projection and with one?

    python -m eval.experiments.finetune_tutorial             # writes eval/results/finetune_tutorial.json
    python -m eval.experiments.finetune_tutorial --work DIR  # where trainings are kept, for a second start

Each cell is the command itself with another seed, which draws the wrong captions and the order. Read are the scores on
held-out birds that it prints, without a projection and with one that is fitted for the model as it is then, and for
the species, which no label of the command names, those of `finetune_and_debias`: where all weights learn, and lose.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.experiments.cells import Cell, arguments_of, run_cells, summed_up, write_result
from eval.experiments.finetune_and_debias import scores
from vldebias.hosts.towers import towers
from vldebias.loading import load_host

COMMAND = (
    "--data birds --caption-noise 0.4 --label label --group place --debias waterbirds "
    "--loss info_nce --tune heads --lr 1e-4 --epochs 2"
)
TUTORIAL, START = "heads, InfoNCE (the tutorial)", "as shipped"
SHOWN = {
    "zero-shot": "zero_shot_accuracy",
    "worst group": "zero_shot_worst_group",
    "recall@1 image->text": "recall@1 image->text",
    "recall@10 text->image": "recall@10 text->image",
}


def work(cell: Cell) -> dict[str, float]:
    """What the command says at its end: of the model that it began with ("before: ...") and of the one that it made."""
    with tempfile.TemporaryDirectory() as folder:
        beside = ["--seed", str(cell["seed"]), "--out", folder, "--cpu", "--workers", "0", "--no-score-pairs", "--json"]
        command = [sys.executable, "-m", "vldebias", "train", *cell["command"].split(), *beside]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return figures(told, folder, "after", "debiased") | {
            f"before: {name}": value for name, value in figures(told, "miniature", "before", "debiased_before").items()
        }


def figures(told: dict[str, Any], model: str | Path, plain: str, debiased: str) -> dict[str, float]:
    """The scores of one model that the table shows."""
    loaded = load_host(str(model) if model == "miniature" else str(Path(model) / "model"))
    found = towers(loaded.host, loaded.tokenizer, loaded.preprocess)
    return {
        **{name: told[plain][score] for name, score in SHOWN.items()},
        "worst group, projection": told[debiased]["zero_shot_worst_group"],
        "zero-shot, projection": told[debiased]["zero_shot_accuracy"],
        "species": scores(found)["species_accuracy"],
    }


def apart(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The model that the command began with as an arm of its own."""
    arms = [
        {**one, "figures": {name: value for name, value in one["figures"].items() if ": " not in name}} for one in cells
    ]
    starts = {
        one["seed"]: {
            name.removeprefix("before: "): value
            for name, value in one["figures"].items()
            if name.startswith("before: ")
        }
        for one in cells
    }
    return [{"model": START, "seed": seed, "figures": before} for seed, before in starts.items()] + arms


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "finetune-tutorial", 0, arguments, seeds=4)
    cells = [{"model": TUTORIAL, "command": COMMAND, "seed": seed} for seed in range(args.seeds)]
    done = run_cells(work, cells, args.work, processes=args.processes, title="the tutorial")
    protocol = {
        "command": f"vldebias train {COMMAND}",
        "held out": "the 2,000 birds that the command scores; species on those of finetune_and_debias",
        "intervals": "Student's t over seeds, which draw the wrong captions and the order; the images are the same",
        "change": "to the model as shipped",
        "seeds": list(range(args.seeds)),
    }
    rows = summed_up(apart(done), ("model",), against={"model": START})
    write_result(args.out / "finetune_tutorial.json", protocol, rows, done)


if __name__ == "__main__":
    main()
