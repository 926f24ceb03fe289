"""Shelved edits: pushed with a card, attached by name without fitting, refused elsewhere; built from a list."""

import json
import shutil
from pathlib import Path

import diffusers_tiny as tiny
import huggingface_hub
import modular_tiny as modular
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.utils import filter_repo_objects
from typer.testing import CliRunner

import vldebias
from vldebias import shelf
from vldebias.api import debias, fit_projections
from vldebias.cli import app
from vldebias.errors import InvalidInputError, ProjectionMismatchError, VldebiasWarning
from vldebias.evaluation.result import Measurement
from vldebias.files import digest
from vldebias.hosts import resolve


class Hub(HfApi):
    """Stands in for the hub: repositories are folders; a download holds the files that were asked for."""

    root: Path

    def create_repo(self, repo_id, **options):
        (self.root / repo_id).mkdir(parents=True, exist_ok=options["exist_ok"])
        return type("Repo", (), {"repo_id": repo_id})

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub.example/{repo_id}/commit/1"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    Hub.root = tmp_path / "hub"

    def download(repo_id, *, revision=None, token=None, allow_patterns=None):
        there, cache = Hub.root / repo_id, tmp_path / "cache" / repo_id
        if not there.is_dir():
            raise ValueError("404: no such repository")
        files = [str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()]
        for name in filter_repo_objects(files, allow_patterns=allow_patterns):
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(there / name, cache / name)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    return Hub.root


@pytest.fixture
def no_fit(monkeypatch):
    monkeypatch.setattr("vldebias.api.make_problem", lambda *_: pytest.fail("something was fitted"))


def test_an_edit_is_attached_by_name_and_nothing_is_fitted(hub, request):
    pipe = tiny.sdxl()
    edits = fit_projections(pipe, tiny.gender(), lam=1e6)
    with debias(pipe, edits):
        expected = tiny.draw(pipe)
    url = vldebias.push_to_hub(edits, "user/sdxl-gender", private=True)
    assert url == "https://hub.example/user/sdxl-gender/commit/1"
    request.getfixturevalue("no_fit")
    other = tiny.sdxl()
    bare = tiny.draw(other)
    attachment = debias(other, "user/sdxl-gender")
    assert torch.equal(tiny.draw(other), expected)
    attachment.remove()
    assert torch.equal(tiny.draw(other), bare)
    with debias(other, hub / "user/sdxl-gender", strength=0.5):
        assert not torch.equal(tiny.draw(other), expected)
    assert vldebias.from_hub("user/sdxl-gender").keys() == edits.keys()


def test_another_encoder_is_refused_in_a_sentence(hub):
    pipe = tiny.own(tiny.sd())
    vldebias.push_to_hub(fit_projections(pipe, tiny.gender()), "user/sd-gender")
    with torch.no_grad():
        for weight in pipe.text_encoder.parameters():
            weight.mul_(1.2)
    with pytest.raises(ProjectionMismatchError, match=r"fitted on other weights .* fingerprint .* differs; fit again"):
        debias(pipe, "user/sd-gender")
    with pytest.raises(InvalidInputError, match=r"missing \['pooled'\]"):
        debias(tiny.sdxl(), "user/sd-gender")
    with pytest.raises(InvalidInputError, match="method and lam belong to fitting"):
        debias(tiny.sd(), "user/sd-gender", method="cali")


def test_one_that_was_pushed_alone_and_names_that_are_none(hub):
    pipe = tiny.sd()
    edit = fit_projections(pipe, tiny.gender())["sequence"]
    edit.push_to_hub("user/alone")
    assert debias(pipe, "user/alone").projections["sequence"].method == edit.method
    for name in ("gender", "prompts/gender.yaml", "a/b/c", 3):
        assert not shelf.is_shelved(name)
    with pytest.raises(InvalidInputError, match=r"user/nothing: neither a folder nor a repository .*404"):
        debias(tiny.sd(), "user/nothing")


def test_a_hub_out_of_reach_is_told_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInputError, match=r"user/it: not uploaded: .*offline.*; expected the hub within reach"):
        vldebias.push_to_hub(fit_projections(tiny.sd(), tiny.gender()), "user/it")


def test_the_card_says_what_it_belongs_to_and_what_was_measured(tmp_path):
    pipe = tiny.sd()
    edits = {r: e.stamped(model_id="user/sd-tiny") for r, e in fit_projections(pipe, tiny.gender()).items()}
    told = shelf.text_evidence(resolve(pipe), tiny.gender(), edits)
    assert told[0].after[0] < told[0].before[0], "the distance within pairs shrinks"
    assert all(one.after[1] <= one.after[0] <= one.after[2] for one in told)
    rows = [
        Measurement(task="generation", metric="discrepancy", method=method, value=value, interval=(value - 0.1, 1.0),
                    change=None, better="lower", n={"images": 40})
        for method, value in (("none", 0.6), ("default", 0.3))
    ]  # fmt: skip
    told += shelf.evidence_from(rows)
    folder = shelf.save_shelf(edits, tmp_path / "shelf", evidence=told, licence="apache-2.0")
    text = (folder / "README.md").read_text("utf-8")
    weights = digest(folder / "sequence/projection.safetensors")
    for said in (
        "license: apache-2.0", "base_model: user/sd-tiny", "library_name: vldebias", "`gender-tiny`",
        tiny.gender().hash, "| sequence | StableDiffusion.sequence | 32 |", weights, "vldebias.debias(pipe,",
        "male, female, man, woman", "| generation: discrepancy | all | 0.600 [0.500, 1.000] | 0.300 [0.200, 1.000] |",
    ):  # fmt: skip
        assert said in text, said
    assert shelf.load_evidence(shelf.shelf_of(folder)) == told
    with pytest.raises(InvalidInputError, match="edits of several models"):
        shelf.save_shelf({"a": edits["sequence"], "b": edits["sequence"].stamped(model_id="other")}, tmp_path / "no")
    with pytest.raises(InvalidInputError, match="expected fitted edits by role"):
        shelf.save_shelf({}, tmp_path / "no")
    with pytest.raises(InvalidInputError, match=r"shelf\.json: missing"):
        vldebias.push_to_hub(tmp_path, "user/nothing")


def test_a_list_of_models_is_built_where_they_are_at_hand(hub, tmp_path):
    run = CliRunner()
    listed = tmp_path / "models.yaml"
    listed.write_text(
        "tiny-gender: {model: miniature, prompts: gender}\n"
        f"away: {{pipeline: {tmp_path / 'nowhere'}, prompts: professions-gender}}\n"
    )
    with pytest.warns(VldebiasWarning, match="away: left out: cannot load"):
        done = run.invoke(app, ["shelf", "build", str(listed), "--out", "built"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "1 made, 0 there already, 1 left out" in done.stdout
    before = (tmp_path / "built/tiny-gender/shelf.json").stat().st_mtime_ns
    with pytest.warns(VldebiasWarning, match="away: left out"):
        done = run.invoke(app, ["shelf", "build", str(listed), "--out", "built"], catch_exceptions=False)
    assert "0 made, 1 there already, 1 left out" in done.stdout
    assert (tmp_path / "built/tiny-gender/shelf.json").stat().st_mtime_ns == before
    assert "distance within unseen pairs" in (tmp_path / "built/tiny-gender/README.md").read_text("utf-8")
    pushed = run.invoke(app, ["shelf", "push", "built/tiny-gender", "user/tiny-gender"], catch_exceptions=False)
    assert "hub.example/user/tiny-gender" in pushed.stdout
    shown = run.invoke(app, ["shelf", "show", "user/tiny-gender", "--json"], catch_exceptions=False)
    assert json.loads(shown.stdout)["joint"]["model"] == "miniature"
    loaded = vldebias.load_host(model="miniature")
    debias(loaded.host, "user/tiny-gender", tokenizer=loaded.tokenizer)


@pytest.mark.parametrize(
    "text", ["[]", "a: {model: miniature}", "../a: {prompts: gender}", "a: {prompts: gender, x: 1}", "a: 3"]
)
def test_a_list_that_is_none(text, tmp_path):
    (tmp_path / "models.yaml").write_text(text)
    with pytest.raises(InvalidInputError, match="expected"):
        CliRunner().invoke(app, ["shelf", "build", str(tmp_path / "models.yaml"), "--out", "o"], catch_exceptions=False)


@pytest.mark.filterwarnings("ignore:.*trust_remote_code.*")
def test_a_block_of_a_modular_pipeline_is_pushed_like_any(hub, monkeypatch):
    from diffusers import configuration_utils
    from diffusers.utils import hub_utils

    def upload(*, repo_id, folder_path, **_):
        Hub().upload_folder(repo_id=repo_id, folder_path=folder_path, commit_message="")

    monkeypatch.setattr(configuration_utils, "create_repo", lambda repo, **_: Hub().create_repo(repo, exist_ok=True))
    monkeypatch.setattr(hub_utils, "upload_folder", upload)
    pipe = modular.make("StableDiffusionXL")
    block = modular.DebiasPrompt(fit_projections(pipe, tiny.gender()), strength=0.5)
    block.save_pretrained("block", push_to_hub=True, repo_id="user/debias-gender")
    again = modular.DebiasPrompt.from_pretrained("user/debias-gender")
    assert again.settings == block.settings
    assert again.edits.keys() == block.edits.keys()
