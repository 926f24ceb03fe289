"""Train the three programs of eval/other_data.md with several losses and seeds.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    .venv-integrations/bin/python -m eval.experiments.run other_data

The programs run exactly as printed on the page, in the folder with the downloaded archive. `make
test-integrations` installs the required libraries.
"""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

from eval.experiments.run import Cell
from vldebias import losses

PAGE = Path(__file__).parents[1] / "other_data.md"
DATA = ("graphs", "sentences", "frames")  # in the order of the page
METRICS = {"graphs": "accuracy", "frames": "R2"}
INFO_GRAPH = "infograph"


def programs() -> list[str]:
    """Return the programs on the page."""
    return re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@cache
def names_of(data: str) -> dict[str, Any]:
    """Return what a program defines, without running the example at its end."""
    program = programs()[DATA.index(data)]
    names: dict[str, Any] = {}
    exec(compile(program[: program.index("\nprint(")], PAGE.name, "exec"), names)
    return names


def work(cell: Cell) -> dict[str, Any]:
    """Score one training run of a program. The settings name a loss, or InfoGraph and its beta."""
    names, settings = names_of(cell["data"]), dict(cell["settings"])
    columns = {name: cell[name] for name in ("rate",) if name in cell}
    if settings["loss"] == INFO_GRAPH:
        return {"accuracy": names[INFO_GRAPH](beta=settings["beta"], seed=cell["seed"])}
    if "steps" in settings:
        columns["steps"] = settings.pop("steps")
    function = getattr(losses, settings.pop("loss"))
    loss = partial(function, temperature=cell["temperature"], **settings)
    score = names["score"](loss, seed=cell["seed"], **columns)
    return score if isinstance(score, dict) else {METRICS[cell["data"]]: score}
