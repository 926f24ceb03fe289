"""The table of worlds.py: means, intervals and targets of made builds equal what is computed by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from eval.experiments import worlds
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Result
from vldebias.miniature import weights_dir


def build(folder: Path, **sections: dict[str, dict[str, float]]) -> Path:
    """A folder with the metrics.json of a build: section -> part -> name -> mean."""
    content: dict[str, Any] = {"conditions": {"scale": 1.0}}
    for section, parts in sections.items():
        content[section] = {part: {n: {"mean": x} for n, x in names.items()} for part, names in parts.items()}
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps(content))
    return folder


def row(table: list[dict[str, Any]], *place: str) -> dict[str, Any]:
    (found,) = [one for one in table if (one["section"], one["part"], one["metric"]) == place]
    return found


def test_mean_interval_and_target(tmp_path: Path) -> None:
    values = (0.30, 0.36, 0.45)
    builds = [build(tmp_path / str(x), birds={"none": {"worst group": x, "average": x}}) for x in values]
    table = worlds.rows(worlds.measured(builds))
    found = row(table, "birds", "none", "worst group")
    low, high = stats.t.interval(0.95, 2, loc=0.37, scale=stats.sem(values))
    assert (found["value"], found["low"], found["high"]) == pytest.approx((0.37, low, high))
    assert found["builds"] == list(values)
    assert (found["target"], found["met"]) == ((0.25, 0.50), True)
    assert row(table, "birds", "none", "average")["met"] is False


def test_what_a_build_lacks_has_no_part(tmp_path: Path) -> None:
    builds = [build(tmp_path / "a", generation={"none": {"recognised": 0.96}}), build(tmp_path / "b")]
    table = worlds.rows(worlds.measured(builds))
    found = row(table, "generation", "none", "recognised")
    assert (found["value"], found["low"], found["met"], found["builds"]) == (0.96, None, True, [0.96, None])
    found = row(table, "generation", "stated", "tone")
    assert (found["value"], found["met"]) == (None, None)


def test_every_target_is_of_a_figure_in_the_table() -> None:
    places = {(section, part, name) for (section, part), names in worlds.FIGURES.items() for name in names}
    assert set(worlds.TARGETS) <= places


def test_the_command_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worlds.main([str(weights_dir()), "--json", str(tmp_path / "worlds.json")])
    told = Result.read(tmp_path / "worlds.json")
    shipped = json.loads((weights_dir() / "metrics.json").read_text())
    found = told.row("birds", "worst group", "orth").value
    assert found == shipped["birds"]["orth"]["worst group"]["mean"]
    assert f"{found:.3f}" in capsys.readouterr().out


def test_a_folder_that_is_no_build_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match=r"no metrics.json in .*; expected folders that `python -m eval.miniature`"
    ):
        worlds.measured([tmp_path])
