"""Every evaluator takes every method, with a reference, on embeddings alone: from YAML, the command line and Python."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from any_method_parts import GENDER, METHODS, images, part, texts, write_suite
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.evaluation import Options, Result, Texts, evaluate, run_suite
from vldebias.methods import METHODS as REGISTRY
from vldebias.progress import SILENT

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning"),
    pytest.mark.usefixtures("no_charts"),
]
RETRIEVAL = {"queries": list(GENDER.classes), "k": 20, "resamples": 50}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images, texts and a reference in files of their own, and a suite that compares six methods."""
    people = {"task": "groups", "name": "people", "title": "People", "label": "job", "spurious": "gender"}
    common = {"data": {"name": "mine"}, "methods": METHODS, "reference": {"name": "mine", "split": "reference"}}
    write_suite(tmp_path, images(), people, **common, resamples=50)
    return tmp_path


def cli(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["eval", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def run(folder: Path, **options: object) -> Result:
    given = {"out": folder / "out", "embeddings": folder / "images.npz", "texts": folder / "texts.npz"}
    return run_suite(folder / "mine.yaml", Options(**{**given, **options}), progress=SILENT)


@pytest.mark.slow
def test_a_suite_of_six_methods_runs_on_embeddings_alone(folder: Path) -> None:
    files = ["--embeddings", str(folder / "images.npz"), "--texts", str(folder / "texts.npz")]
    told = json.loads(cli(str(folder / "mine.yaml"), *files, "--out", str(folder / "cli"), "--json"))
    result = run(folder)
    assert [row.model_dump(mode="json") for row in result.rows] == told["figures"]
    for task in ("jobs gender", "people"):
        frame = result.to_pandas().query("task == @task")
        assert set(frame.method) - {"random"} == set(METHODS)
        about = next(p for p in result.provenance if p.task == task)
        assert about.n["reference images"] == 100
        assert about.methods["auto"]["choice"]["candidates"]
        assert {"images", "texts", "reference"} <= set(about.data)
        assert about.fingerprint is None
    skew = {m: result.row("jobs gender", "max_skew@20", m).value for m in METHODS}
    assert skew["none"] > 0.5 > max(skew[m] for m in ("cali", "difference", "equalise"))


def test_groups_of_labels_in_tensors_and_lists() -> None:
    gallery = part("test")
    labels = {"job": torch.from_numpy(gallery.column("job").codes), "gender": gallery.column("gender").codes.tolist()}
    how = {"task": "groups", "label": "job", "spurious": "gender", "methods": ["cali", "difference"], "resamples": 20}
    result = evaluate(texts(), torch.from_numpy(gallery.features), prompts=GENDER, labels=labels, **how)
    assert {row.method for row in result.rows} == {"none", "cali", "difference"}
    assert result.row("groups", "average", "cali").n["images"] == 300


def test_fitted_edits_and_methods_are_measured_beside_names() -> None:
    gallery, side = part("test"), Texts(texts())
    labels = {"gender": gallery.column("gender")}
    fitted = side.fit(GENDER, "cali", 50.0)
    options = {"prompts": {"gender": GENDER}, "labels": labels, "k": 20, "resamples": 5}
    given = {"mine": fitted, "cali": "cali", "sum": REGISTRY["orth"] + REGISTRY["cali"]}
    result = evaluate(texts(), gallery.features, methods=given, **options)
    assert {row.method for row in result.rows} == {"none", "cali", "orth+cali", "mine", "random"}
    with pytest.raises(InvalidInputError, match="'cali', the name of a method"):
        evaluate(texts(), gallery.features, methods={"cali": fitted}, **options)


def test_a_saved_edit_is_measured_from_the_command_line(folder: Path) -> None:
    fitted = Texts(texts()).fit(GENDER, "cali", 50.0)
    assert fitted is not None
    fitted.save_pretrained(folder / "half" / "joint")
    result = run(folder, projections=(folder / "half",), methods=("cali",), lam=50.0)
    for row in result.rows:
        if row.method == "half":
            expected = result.row(row.task, row.metric, "cali", subset=row.subset).value
            assert row.value == pytest.approx(expected, abs=1e-6)  # the file has the texts in single precision
    assert any(row.method == "half" for row in result.rows)


def test_what_to_embed_is_listed_and_all_that_is_missing_is_named(folder: Path) -> None:
    listed = cli("show", str(folder / "mine.yaml"), "--texts").splitlines()
    assert set(listed) == set(texts())
    assert len(listed) == len(set(listed))
    rows = dict(list(texts().items())[4:])
    np.savez(folder / "few.npz", text=torch.stack(list(rows.values())).numpy(), prompts=np.array(list(rows)))
    with pytest.raises(InvalidInputError, match=r"4 of \d+ prompts are not in the file, .*eval show"):
        run(folder, texts=folder / "few.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "group"}, "task: expected one of .*groups, .*retrieval, .*got 'group'; did you mean 'groups'"),
        ({"priror": "uniform"}, "'priror', which is no option of retrieval; .* did you mean 'prior'"),
        ({"queries": []}, "queries: "),
        ({"classes": {"shoes": {"boot": "a boot"}}}, "shoes"),
        ({"prompts": {"gender": GENDER, "rcae": GENDER}}, "rcae"),
        ({"images": "no-such-data"}, "images: got 'no-such-data'; expected a folder"),
        ({"images": np.ones(4)}, r"features: expected floats \(n, d\), got \(4,\)"),
        ({"images": "birds"}, "a model without its preprocessing"),
    ],
)
def test_mistakes_of_a_notebook_are_answered(change: dict, message: str) -> None:
    gallery = part("test")
    given = {"images": gallery.features, "prompts": {"gender": GENDER}, "labels": {"gender": gallery.column("gender")}}
    given |= {"k": 20, "resamples": 5, **change}
    with pytest.raises(VldebiasError, match=message):
        evaluate(texts(), given.pop("images"), **given)


def test_a_model_by_name_embeds_a_folder_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setenv("VLDEBIAS_CACHE", str(tmp_path / "cache"))
    for i in range(24):
        (tmp_path / "pictures" / ("male", "female")[i % 2]).mkdir(parents=True, exist_ok=True)
        file = tmp_path / "pictures" / ("male", "female")[i % 2] / f"{i}.png"
        Image.new("RGB", (32, 32), (10 * i, 90, 40)).save(file)
    options = {"prompts": {"folder": "fairface-gender"}, "methods": ["cali"], "k": 8, "resamples": 5}
    result = evaluate("miniature", tmp_path / "pictures", **options)
    assert result.row("retrieval folder", "max_skew@8", "none").n == {"queries": 10, "images": 24}
    assert result.provenance[0].fingerprint is not None
    again = evaluate("miniature", tmp_path / "pictures", labels={"hair": ["dark"] * 12 + ["blond"] * 12}, **options)
    assert [row.value for row in again.rows] == [row.value for row in result.rows]


def test_the_columns_of_groups_are_found_by_their_names() -> None:
    """Three columns: the classes name one, the values of the attribute another."""
    gallery = part("test")
    labels = {"job": gallery.column("job"), "gender": gallery.column("gender"), "split": gallery.column("split")}
    result = evaluate(
        texts(), gallery.features, prompts=GENDER, labels=labels, task="groups", methods="cali", resamples=5
    )
    settings = result.provenance[0].settings
    assert (settings["label"], settings["spurious"]) == ("job", "gender")
    strange = ["x", "y", "z"] * 100
    with pytest.raises(InvalidInputError, match=r"give label= and spurious=, two of the columns \['a', 'b'\]"):
        evaluate(texts(), gallery.features, prompts=GENDER, labels={"a": strange, "b": strange}, task="groups")
    with pytest.raises(InvalidInputError, match="one prompt set"):
        evaluate(texts(), gallery.features, prompts=[GENDER, replace(GENDER, name="b")], labels=labels, task="groups")
