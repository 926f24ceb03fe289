"""The law of the committed table: two runs alike are equal to the bit, and so are one process and two."""

import pytest

from eval.experiments.records import rows_of
from tests.robust import determinism
from vldebias.evaluation.result import Result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedding of 200 images, kept in float16", "training, 4 steps"])
def test_threads_processes_and_repeats(name: str) -> None:
    before = determinism.done(name, determinism.BASE)
    for setting in (determinism.BASE, determinism.PROCESSES):
        for row in determinism.compared(name, setting, before, determinism.done(name, setting)):
            trained_apart = setting.processes > 1 and row["work"].startswith("training")
            assert row["identical"] or (trained_apart and row["largest_difference"] < 1e-3), row


def test_what_is_committed_holds_to_the_law() -> None:
    rows = rows_of(Result.read(determinism.RESULT), "work")
    assert {row["work"] for row in rows} <= set(determinism.WORKS)
    for row in rows:
        alike = determinism.Setting(row["threads"], row["processes"], row["batch"]) == determinism.BASE
        apart = row["processes"] > 1 and not row["work"].startswith("training")
        assert row["identical"] or not (alike or apart), row
        bound = {"pixels": 1, "weights": 1e-3}.get(row["what"], 1e-3 if "float16" in row["work"] else 1e-6)
        assert row["largest_difference"] <= bound, row
