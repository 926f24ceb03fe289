"""Schedules of the losses' settings: the warm-up of RINCE's q and the annealing of HCL's beta."""

from __future__ import annotations

from typing import Literal

from vldebias.losses.checks import check_choice, check_interval

__all__ = ["beta_annealing", "q_warmup"]


def q_warmup(step: int, total_steps: int, *, start: float = 0.01, end: float = 0.4) -> float:
    """q of RINCE, linear from `start` at step 0 to `end` at the last step (section 5.3.3 of the thesis).

    A small q explores, a large one no longer follows the pairs that turned out not to fit.

    Raises:
        InvalidInputError: step outside 0 .. total_steps - 1, start or end outside (0, 1].

    >>> [round(q_warmup(step, 4), 2) for step in range(4)]
    [0.01, 0.14, 0.27, 0.4]
    """
    _check_step("step", step, "total_steps", total_steps)
    check_interval("start", start, "(0, 1]")
    check_interval("end", end, "(0, 1]")
    return start + (end - start) * step / max(total_steps - 1, 1)


def beta_annealing(
    epoch: int, total_epochs: int, *, beta: float, changes: int, direction: Literal["down", "up"] = "down"
) -> float:
    """beta of HCL, lowered by beta / changes every total_epochs / changes epochs (appendix A.2.2 of the thesis).

    Hard negatives help early; later their false ones harm, since the correction is approximate. `direction="up"`
    is the same staircase climbed from beta / changes to beta, which the thesis found to do as well.

    Raises:
        InvalidInputError: epoch outside 0 .. total_epochs - 1, beta < 0, changes < 1.

    >>> [beta_annealing(epoch, 6, beta=3.0, changes=3) for epoch in range(6)]
    [3.0, 3.0, 2.0, 2.0, 1.0, 1.0]
    """
    _check_step("epoch", epoch, "total_epochs", total_epochs)
    check_interval("beta", beta, "[0, inf)")
    check_interval("changes", changes, "[1, inf)")
    check_choice("direction", direction, ("down", "up"))
    passed = epoch * changes // total_epochs
    stairs = changes - passed if direction == "down" else passed + 1
    return beta * stairs / changes


def _check_step(name: str, value: int, total_name: str, total: int) -> None:
    check_interval(total_name, total, "[1, inf)")
    check_interval(name, value, f"[0, {total})")
