"""The quickstart end to end on the shipped weights, small; and the committed result behind the README."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.evaluation.drawing import identity, joint_fingerprint
from vldebias.evaluation.result import Result
from vldebias.evaluation.suite import load_suite
from vldebias.miniature.birds import LEAN
from vldebias.prompts import load_prompts

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "eval" / "results" / "quickstart.json"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_small_run_and_a_second_one_that_has_nothing_to_do(tmp_path: Path) -> None:
    arguments = ["quickstart", "--json", "--images", "1", "--seeds", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    result = Result.model_validate_json(done.stdout)
    assert Result.read(tmp_path / "result.json") == result
    for task, metric, subset in (
        ("birds", "worst_group", ""),
        ("portraits gender", "max_skew@20", ""),
        ("generation gender", "discrepancy", "unseen professions"),
    ):
        figure = result.row(task, metric, "cali", subset=subset)
        assert figure.interval[0] <= figure.value <= figure.interval[1]
        assert figure.change is not None
    committed = Result.read(COMMITTED)
    for figure in result.rows:
        if figure.task in ("birds", "portraits gender") and not figure.subset:  # the same renders, so the same figures
            before = committed.row(figure.task, figure.metric, figure.method)
            assert figure.value == pytest.approx(before.value, abs=0.01)
    kept = result.row("generation gender", "stated_right", "cali", subset="unseen professions")
    assert kept.change == (0.0, 0.0, 0.0)  # left alone by the gate: the very same images
    assert (tmp_path / "index.html").read_text().count("data:image/png;base64,") > 5
    assert list((tmp_path / "cache").glob("birds-*"))  # and nowhere else
    again = CliRunner().invoke(app, arguments)
    assert again.stderr.count("taken over from a run before") == 3
    assert json.loads(again.stdout)["figures"] == json.loads(done.stdout)["figures"]


def test_committed_result_is_of_the_shipped_suite() -> None:
    result, suite = Result.read(COMMITTED), load_suite("quickstart")
    assert {(f.task, f.metric) for f in result.rows} >= set(suite.headline)
    for protocol in result.provenance:
        assert protocol.prompts_hash == load_prompts(protocol.prompts).hash
    generation = next(p for p in result.provenance if p.task == "generation gender")
    assert generation.seeds == [0, 1, 2]


def test_committed_result_is_of_the_shipped_weights() -> None:
    from vldebias.edit import Fingerprint
    from vldebias.hosts import resolve
    from vldebias.miniature import load_clip, load_pipeline

    committed = {p.task: Fingerprint.of(p.fingerprint) for p in Result.read(COMMITTED).provenance}
    model, _, tokenizer = load_clip()
    assert committed["birds"].matches(resolve(model, tokenizer=tokenizer).fingerprint())
    drawn = joint_fingerprint(identity(load_pipeline())["fingerprints"])
    assert committed["generation gender"].matches(Fingerprint.of(drawn))


def test_the_weights_of_the_groups_are_those_of_the_training_renders() -> None:
    (birds,) = [task for task in load_suite("quickstart").tasks if task.name == "birds"]
    land, water = (share / 2 for share in LEAN.correlation)
    expected = {"landbird/land": land, "landbird/water": 0.5 - land, "waterbird/land": 0.5 - water}
    assert birds.group_weights == pytest.approx(expected | {"waterbird/water": water})
