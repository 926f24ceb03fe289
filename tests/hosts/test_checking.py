"""`vldebias debias --check`: right of a sound host, wrong of one that leaves a trace, told where it cannot be tried."""

import json
import warnings

import diffusers_tiny as tiny
import pytest
from typer.testing import CliRunner

from tests.fewer import few
from vldebias.cli import app
from vldebias.evaluation.variants import Finding, check
from vldebias.hosts import Attachment
from vldebias.hosts.loading import Loaded
from vldebias.prompts import load_prompts

PROMPTS = few(load_prompts("professions-gender"), 10)
CALL = {"num_inference_steps": 2, "height": 16, "width": 16}
RIGHT = [
    "the same twice", "attached: changed", "strength 0: as without", "disabled: as without", "attached again: the same",
    "removed: as without", "saved and loaded: the same", "merged: as attached",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _narrow():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tiny models are narrow, and merging moves the empty prompt
        yield


def found(pipe):
    return {one.name: one for one in check(Loaded(pipe, "tiny"), PROMPTS, **CALL)}


def test_a_sound_pipeline():
    told = found(tiny.own(tiny.sd()))
    assert all(told[name].right for name in RIGHT)


def test_weights_that_cannot_hold_it_and_a_call_that_needs_more():
    told = found(tiny.sd3())
    assert told["merged: as attached"].right is None
    assert "cannot merge" in told["merged: as attached"].note
    from diffusers import StableDiffusionImg2ImgPipeline

    told = found(tiny.own(tiny.sd(StableDiffusionImg2ImgPipeline)))
    assert told["drawn"].right is None
    assert told["removed: as without"].right
    assert told["merged: as attached"].right is None


def test_a_trace_that_is_left_is_found(monkeypatch):
    monkeypatch.setattr(Attachment, "remove", lambda self: None)
    told = {}
    for one in check(Loaded(tiny.sd(), "tiny"), PROMPTS, **CALL):
        told[one.name] = one
        if one.name == "removed: as without":
            break
    assert [name for name, one in told.items() if one.right is False] == ["removed: as without"]


def test_the_command_fails_where_a_check_does(monkeypatch):
    monkeypatch.setattr("vldebias.evaluation.variants.check", lambda *_, **__: iter([Finding("removed", False)]))
    assert CliRunner().invoke(app, ["debias", "gender", "--model", "miniature", "--check"]).exit_code == 1


def test_the_command_prints_a_table_or_json():
    command = ["debias", "fairface-gender", "--model", "miniature", "--check"]
    run = CliRunner().invoke(app, [*command, "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert told["model"] == "miniature"
    assert [one["name"] for one in told["checks"] if one["right"]] == RIGHT
    assert "removed: as without" in CliRunner().invoke(app, command).output
