"""Test the quickstart end to end on the packaged weights at a small size, and the committed result
behind the README."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from eval.miniature.birds import CORRELATION
from tests.fewer import few
from vldebias.api import debias, fit_projections
from vldebias.cli import app
from vldebias.hosts import resolve
from vldebias.judge.plan import identity
from vldebias.miniature import load_clip, load_pipeline
from vldebias.projection.fingerprint import Fingerprint
from vldebias.prompts import load_prompts
from vldebias.report.result import Result
from vldebias.study.suite import load_suite
from vldebias.study.tasks.images import fit_method

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "eval" / "results" / "quickstart.json"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_a_second_run_reuses_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLDEBIAS_CACHE", str(tmp_path / "cache"))
    arguments = ["eval", "quickstart", "--json", "--images", "1", "--seed", "0"]
    arguments += ["--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    result = Result.model_validate_json(done.stdout)
    assert Result.read(tmp_path / "result.json") == result
    assert {"photographs gender", "birds", "portraits gender", "generation gender"} <= {
        row.task for row in result.rows if row.change
    }
    # The same renders give the same figures. A new metric is missing from the committed result.
    committed = {
        (row.task, row.metric, row.method): row.value
        for row in Result.read(COMMITTED).rows
        if row.task in ("photographs gender", "birds", "portraits gender") and not row.subset
    }
    figures = {
        (row.task, row.metric, row.method): row.value for row in result.rows if not row.subset
    }
    assert committed.keys() <= figures.keys()
    for name, value in committed.items():
        assert figures[name] == pytest.approx(value, abs=0.01), name
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png;base64,") >= 3, "at least one image of each method"
    assert "<svg" in page, "the dots of the plot"
    assert list((tmp_path / "cache").glob("birds-*"))  # and nowhere else
    again = CliRunner().invoke(app, arguments)
    assert again.stderr.count("reused from an earlier run") == 4
    assert json.loads(again.stdout)["figures"] == json.loads(done.stdout)["figures"]


@pytest.mark.filterwarnings("ignore::vldebias.errors.AutoDeclinedWarning")  # text only
def test_the_default_row_is_what_debias_attaches() -> None:
    model, _, tokenizer = load_clip()
    host = resolve(model, tokenizer=tokenizer)
    _, birds, portraits, generation = load_suite("quickstart").tasks
    genders = few(load_prompts("professions-gender"))
    names_of_birds = ("default", "paper")
    assert portraits.methods[1] == "rerank"  # it attaches nothing
    names_of_portraits = ("difference", "paper")
    for task, prompts, names in (
        (birds, load_prompts("waterbirds"), names_of_birds),
        (portraits, genders, names_of_portraits),
    ):
        assert tuple(name for name in task.methods[1:] if name != "rerank") == names
        for name in names:
            options = {} if name == "default" else {"method": name}
            measured = fit_method(host, prompts, name, task.lam)
            attached = fit_projections(host, prompts, **options).only
            assert torch.equal(measured.matrix(), attached.matrix())
    pipe = resolve(load_pipeline())
    balanced, paper = generation.resolved_variants.values()
    texts = ["A photo of a nurse.", "A photo of a plumber."] * 4
    with debias(pipe, "professions-gender") as attached:  # the default for pipelines
        expected = attached.rewrite(texts)
        seed = attached.seed
    with balanced.attach(pipe) as measured:
        measured.seed = seed
        assert measured.rewrite(texts) == expected
    with paper.attach(pipe) as measured:
        for role, edit in fit_projections(pipe, "professions-gender", method="paper").items():
            assert torch.equal(measured.projections[role].matrix(), edit.matrix())


def test_the_committed_result_uses_the_packaged_suite_and_weights() -> None:
    result = Result.read(COMMITTED)
    suite = load_suite("quickstart")
    assert {(f.task, f.metric) for f in result.rows} >= set(suite.headline)
    protocol_of_task = {protocol.task: protocol for protocol in result.provenance}
    assert all(
        protocol.attribute_hash == load_prompts(protocol.attribute).hash
        for protocol in protocol_of_task.values()
    )
    assert protocol_of_task["generation gender"].seeds == [0, 1, 2]
    committed = {
        name: Fingerprint(**protocol.fingerprint) for name, protocol in protocol_of_task.items()
    }
    model, _, tokenizer = load_clip()
    assert committed["birds"].matches(resolve(model, tokenizer=tokenizer).fingerprint())
    drawn = identity(load_pipeline())["fingerprint"]
    assert committed["generation gender"].matches(Fingerprint(**drawn))


def test_group_weights_match_the_training_renders() -> None:
    (birds,) = [task for task in load_suite("quickstart").tasks if task.name == "birds"]
    land, water = (share / 2 for share in CORRELATION)
    expected = {"landbird/land": land, "landbird/water": 0.5 - land, "waterbird/land": 0.5 - water}
    assert birds.group_weights == pytest.approx(expected | {"waterbird/water": water})
