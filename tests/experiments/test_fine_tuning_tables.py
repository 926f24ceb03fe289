"""The words and verdicts of the page on fine-tuning follow the figures, whatever these are."""

from __future__ import annotations

import pytest

from eval.experiments import fine_tuning_tables as made
from vldebias.evaluation.result import Measurement, Result, TaskProvenance, TaskResult

SHARES = (0.2, 0.4)


def row(
    arm: str, value: float, change: float | None = None, metric: str = "zero_shot_accuracy", **place: object
) -> Measurement:
    """With an interval of .01 either side."""
    where = "; ".join(f"{name} = {one}" for name, one in place.items())
    moved = None if change is None else (change, change - 0.01, change + 0.01)
    span = (value - 0.01, value + 0.01)
    return Measurement(task="t", metric=metric, method=arm, subset=where, value=value, interval=span, change=moved,
                       better="higher", n={"seeds": 5})  # fmt: skip


def rows(**changes: float) -> made.Rows:
    found = {made.BASE: {share: row(made.BASE, 0.8) for share in SHARES}}
    return found | {arm: {share: row(arm, 0.8 + one, one) for share in SHARES} for arm, one in changes.items()}


class TestVerdict:
    def test_is_the_highest_arm_that_is_ahead_beyond_its_interval(self) -> None:
        assert made.best(rows(a=0.02, b=0.05, c=-0.1), SHARES) == "b"

    def test_is_the_usual_loss_where_none_is(self) -> None:
        assert made.best(rows(a=0.005, c=-0.1), SHARES) == made.BASE
        assert made.best(rows(), SHARES) == made.BASE

    def test_says_where_it_is_not_measured_and_what_it_rests_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(made, "measured", lambda name: name == made.DIGITS)
        arms = {"InfoNCE": (0.9, None), "RINCE q=1": (0.93, 0.03)}
        told = [
            row(arm, value, change, "linear evaluation", eta=eta)
            for arm, (value, change) in arms.items()
            for eta in (0.0, 0.4)
        ]
        monkeypatch.setattr(
            made,
            "read",
            lambda name: Result.of(
                "digits", [TaskResult(TaskProvenance(task="t", description=""), told)], seconds=None
            ),
        )
        lines = made.verdicts_block().splitlines()
        assert sum("not measured yet" in line for line in lines) == 4
        clean, wrong = (line for line in lines if line.startswith("| images alone"))
        assert r"nothing is wrong | RINCE q=1 | 0.900 at 0 | +0.030\*" in clean
        assert r"| RINCE q=1 | 0.900 at 0.4 | +0.030\*" in wrong
