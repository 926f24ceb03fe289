"""Train the three programs of eval/other_data.md with several losses and seeds.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    .venv-integrations/bin/python -m eval.experiments.other_data --json other_data.json

The programs run exactly as printed on the page, in the folder with the downloaded archive. `make
test-integrations` installs the required libraries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from eval.experiments.run import interval
from eval.tables import parser, run
from vldebias import losses
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.metrics import Metric

PAGE = Path(__file__).parents[1] / "other_data.md"
SEEDS = range(5)
UNTRAINED = "not trained"
BASE = "InfoNCE"
Loss = Callable[[Tensor, Tensor], Tensor]


def info_nce(temperature: float) -> Loss:
    """Return the baseline loss."""
    return partial(losses.info_nce, temperature=temperature)


def debiased(temperature: float, tau_plus: float) -> Loss:
    """Return the debiased loss."""
    return partial(losses.debiased, tau_plus=tau_plus, temperature=temperature)


def hard_negatives(temperature: float) -> Loss:
    """Return the hard-negative loss with the authors' settings for graphs and sentences."""
    return partial(losses.hard_negative, tau_plus=0.0, beta=1.0, temperature=temperature)


# The metric, the position of the program on the page, and the losses for each task.
TASKS: dict[str, tuple[str, int, dict[str, Loss]]] = {
    "graphs": (
        "accuracy",
        0,
        {
            BASE: info_nce(0.2),
            "RINCE": partial(losses.rince, q=0.1, temperature=0.2),
            "hard negatives": hard_negatives(0.2),
        },
    ),
    "sentences": (
        "accuracy",
        1,
        {
            BASE: info_nce(0.1),
            "debiased": debiased(0.1, 0.01),
            "hard negatives": hard_negatives(0.1),
        },
    ),
    "frames": ("R2", 2, {BASE: info_nce(0.2), "debiased": debiased(0.2, 0.1)}),
}


def programs() -> list[str]:
    """Return the programs on the page."""
    return re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def score_function(program: str) -> Callable[..., Any]:
    """Return the function `score` of a program without running the example at its end."""
    names: dict[str, Any] = {}
    start = program[: program.index("\nprint(")]
    exec(compile(start, PAGE.name, "exec"), names)
    return names["score"]


def figures(score: Callable[..., Any], **arguments: Any) -> dict[str, float]:
    """Return the scores from a training run by name, which is "" for a single score."""
    score_of_test = score(**arguments)
    return score_of_test if isinstance(score_of_test, dict) else {"": score_of_test}


def measure() -> Iterator[TaskResult]:
    """Yield a task for each program, with every loss and its change relative to InfoNCE."""
    for task, (metric, place, arms) in TASKS.items():
        score = score_function(programs()[place])
        values: dict[str, dict[str, list[float]]] = {}
        for arm, loss in {UNTRAINED: arms[BASE], **arms}.items():
            for seed in SEEDS:
                settings = {"steps": 0} if arm == UNTRAINED else {}
                for test, value in figures(score, loss=loss, seed=seed, **settings).items():
                    values.setdefault(arm, {}).setdefault(test, []).append(value)
        provenance = TaskProvenance(
            task=task,
            description=f"The losses on {task}: the program of {PAGE.name} with each of them.",
            methods={arm: {} for arm in values},
            seeds=list(SEEDS),
            settings={
                "intervals": "of Student's t over the seeds of encoder and batches; not over data",
                "change": "to InfoNCE on the same seed",
            },
        )
        part = TaskResult(provenance)
        for arm, values_of_test in values.items():
            for test, found in values_of_test.items():
                overall = interval(found)
                base = values[BASE][test]
                gain = interval([a - b for a, b in zip(found, base, strict=True)])
                part.add(
                    Metric(metric, metric, "utility", "higher"),
                    arm,
                    overall["value"],
                    (overall["low"], overall["high"]),
                    n={"seeds": len(found)},
                    change=None if arm == BASE else tuple(gain.values()),
                    subset=test,
                )
        yield part


def main() -> None:
    run("other_data", measure, parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
