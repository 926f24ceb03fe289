"""The benchmarks run on tiny sizes and compare paths that agree; times are never tested."""

from pathlib import Path

from eval.benchmarks import speed
from eval.tables import write_records
from vldebias.evaluation.result import Result


def test_ours_gives_what_the_plain_way_gives() -> None:
    assert all(row["difference"] < 1e-5 for row in speed.of_losses([64], repetitions=1))
    assert speed.fit(16, 4, 2, repetitions=1)["difference"] < 1e-8
    assert speed.ranks(2000, queries=3, k=50, repetitions=1)["difference"] < 0.01
    assert speed.intervals(3000, queries=3, resamples=60)["difference"] < 5
    assert speed.reference(1000, repetitions=1)["difference"] == 0


def test_rows_are_written_as_a_result(tmp_path: Path) -> None:
    write_records(tmp_path / "made.json", "words", [{"what": "fit", "size": "d 3", "ours": 0.5}], "what", ("size",))
    (row,) = Result.read(tmp_path / "made.json").rows
    assert (row.method, row.subset, row.metric, row.value) == ("fit", "size = d 3", "ours", 0.5)
