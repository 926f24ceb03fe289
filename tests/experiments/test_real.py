"""Test that contributed results are verified by digest, versions and n and shown as rows, and that
an empty row names its command."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from eval import real
from tests.study.made_figures import figure, protocol, result


def contributed(folder: Path, **wrong: Any) -> Path:
    """Return a folder as left by a run on a real model."""
    names = {"task": "waterbirds", "metric": "worst_group", "n": {"images": 5794}}
    bare = figure("none", 0.40, **names, interval=(0.37, 0.42))
    cali = names | {"value": 0.70, "interval": (0.68, 0.72), "change": (0.3, 0.27, 0.33)} | wrong
    made = result(
        [bare, figure("orth-cali", **cali)],
        protocol("waterbirds", model="open_clip RN50 openai", n={}),
        name="waterbirds",
        versions={"vldebias": "1.0.0", "torch": "2.9.0"},
        commit="abc",
    )
    made.write(folder / "result.json")
    digest = hashlib.sha256((folder / "result.json").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"files": {"result.json": digest}}))
    return folder


def test_a_valid_result_passes_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = contributed(tmp_path / "rn50")
    assert list(real.problems(folder)) == []
    empty = real.measured()
    monkeypatch.setattr(real, "REAL", tmp_path)
    shown = real.measured()
    assert "| open_clip RN50 openai | waterbirds | `orth-cali` | worst_group | 0.400" in shown
    command = "eval paper --only waterbirds --model RN50:openai "
    assert command in empty
    assert command not in shown
    assert real.main() == 0


def test_a_changed_figure_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = contributed(tmp_path / "rn50")
    path = folder / "result.json"
    path.write_text(path.read_text().replace("0.7,", "0.9,", 1))
    assert any("SHA-256" in text for text in real.problems(folder))
    monkeypatch.setattr(real, "REAL", tmp_path)
    assert real.main() == 1


@pytest.mark.parametrize(
    ("wrong", "message"), [({"n": {}}, "how many"), ({"task": "else"}, "provenance")]
)
def test_a_figure_without_n_or_provenance_is_detected(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    assert any(message in text for text in real.problems(contributed(tmp_path / "rn50", **wrong)))


def test_the_worst_group_is_reselected_in_its_interval_and_other_figures_lie_inside(
    tmp_path: Path,
) -> None:
    outside = {"value": 0.01, "interval": (0.02, 0.05)}
    gap = contributed(tmp_path / "gap", metric="gap", **outside)
    assert list(real.problems(gap)) == []
    average = contributed(tmp_path / "average", metric="average", **outside)
    assert any("expected an interval around" in text for text in real.problems(average))
