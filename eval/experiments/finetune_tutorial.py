"""Does fine-tuning by the tutorial's own command gain, without a projection and with one?

python -m eval.experiments.run finetune_tutorial

Each cell is the command itself with another seed, which draws the wrong captions and the order. Read are the scores on
held-out birds that it prints, without a projection and with one that is fitted for the model as it is then, and for
the species, which no label of the command names, those of `finetune_and_debias`: where all weights learn, and lose.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from eval.experiments.cells import Cell
from eval.experiments.finetune_and_debias import scores
from vldebias.hosts.towers import towers
from vldebias.loading import load_host

START = "as shipped"
SHOWN = {
    "zero-shot": "zero_shot_accuracy",
    "worst group": "zero_shot_worst_group",
    "recall@1 image->text": "recall@1 image->text",
    "recall@10 text->image": "recall@10 text->image",
}


def work(cell: Cell) -> dict[str, float]:
    """What the command says at its end: of the model that it began with ("as shipped: ...") and of its own."""
    with tempfile.TemporaryDirectory() as folder:
        beside = ["--seed", str(cell["seed"]), "--out", folder, "--cpu", "--workers", "0", "--no-score-pairs", "--json"]
        command = [sys.executable, "-m", "vldebias", "train", *cell["settings"]["command"].split(), *beside]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return figures(told, folder, "after", "debiased") | {
            f"{START}: {name}": value for name, value in figures(told, "miniature", "before", "debiased_before").items()
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
