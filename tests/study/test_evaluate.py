"""Test `evaluate` and suites on embeddings: every method, labels in common formats, attached
models, and mistakes."""

import itertools
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vldebias
from tests.cli.conftest import call
from tests.fewer import few
from tests.refusals import refused
from tests.study.any_method_parts import GENDER, images, part, texts
from tests.study.made_figures import BIRDS, SUITE
from vldebias.data import save_embeddings
from vldebias.errors import InvalidInputError, SuspectInputWarning, VldebiasError
from vldebias.hosts import resolve
from vldebias.methods import METHODS as REGISTRY
from vldebias.methods import Problem
from vldebias.miniature import load_clip
from vldebias.prompts import load_prompts
from vldebias.study import Result, run_suite
from vldebias.study.evaluating import evaluate
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT

quiet = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
pytestmark = pytest.mark.usefixtures("no_charts")
METHODS = ("none", "orth-cali", "cali", "difference", "equalise")
GALLERY = part("test")
JOB = GALLERY.column("job").codes
SEX = GALLERY.column("gender").codes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write images, text and a reference to separate files, with a suite that compares six
    methods."""
    save_embeddings(tmp_path / "images.npz", images())
    rows = texts()
    np.savez(
        tmp_path / "texts.npz",
        text=torch.stack(list(rows.values())).numpy(),
        prompts=np.array(list(rows)),
    )
    common = {
        "data": {"name": "mine"},
        "methods": METHODS,
        "reference": {"name": "mine", "split": "reference"},
    }
    common |= {"resamples": 50}
    prompts = str(GENDER.to_yaml(tmp_path / "g.yaml"))
    jobs = {
        "task": "retrieval",
        "name": "jobs",
        "title": "Jobs",
        "k": 20,
        "queries": list(GENDER.classes),
    }
    people = BIRDS | {"name": "people", "label": "job", "spurious": "gender"}
    tasks = [
        jobs | {"attribute": {"gender": prompts}} | common,
        people | {"attribute": prompts} | common,
    ]
    (tmp_path / "mine.yaml").write_text(json.dumps({**SUITE, "tasks": tasks}))
    return tmp_path


def run(folder: Path, **options: object) -> Result:
    arguments = {
        "out": folder / "out",
        "embeddings": folder / "images.npz",
        "texts": folder / "texts.npz",
    }
    return run_suite(folder / "mine.yaml", Options(**{**arguments, **options}), progress=SILENT)


def measured(labels: object, **options: object) -> Result:
    """Return the gallery with one column of labels."""
    fields = {
        "attribute": {"group": GENDER},
        "methods": ["cali"],
        "k": 20,
        "resamples": 5,
        **options,
    }
    return evaluate(texts(), GALLERY.features, labels={"group": labels}, **fields)


def figures(result: Result) -> list[tuple[str, str, str, float]]:
    return [(row.metric, row.method, row.subset, row.value) for row in result.rows]


@quiet
def test_fitted_edits_and_methods_are_measured_next_to_named_ones(folder: Path) -> None:
    fitted = Problem(texts(), GENDER, lam=50.0).fit("cali", "text")
    methods = {"mine": fitted, "cali": "cali", "sum": REGISTRY["orth"] + REGISTRY["cali"]}
    result = measured(SEX, methods=methods)
    assert {row.method for row in result.rows} == {"none", "cali", "orth+cali", "mine", "random"}
    fitted.save_pretrained(folder / "half" / "text")
    result = run(folder, projections=(folder / "half",), methods=("cali",), lam=50.0)
    rows = [row for row in result.rows if row.method == "half"]
    expected = [result.row(row.task, row.metric, "cali", subset=row.subset).value for row in rows]
    # The file stores the text embeddings in float32.
    assert [row.value for row in rows] == pytest.approx(expected, abs=1e-6)
    assert rows
    fitted.save_pretrained(folder / "of a pipeline" / "text_encoder")
    with pytest.raises(InvalidInputError, match=r"\['text_encoder'\]"):
        run(folder, projections=(folder / "of a pipeline",))


@quiet
def test_title_and_colour_of_a_method_are_stored_when_it_is_measured() -> None:
    unregistered = REGISTRY["orth"] + REGISTRY["cali"]
    (provenance,) = measured(SEX, methods=["cali", unregistered]).provenance
    for method in (REGISTRY["none"], REGISTRY["cali"], unregistered):
        facts = provenance.methods[method.name]
        declared = method.declaration
        assert (facts["title"], facts["color"]) == (declared.title, declared.color)


PROFESSIONS = few(load_prompts("professions-gender"))


def of_miniature(model: object, **options: object) -> Result:
    """Evaluate the packaged model on noise images."""
    rng = np.random.default_rng(0)
    dim = vldebias.load_host("miniature").host.text_projection.shape[1]
    labels = {"gender": np.array(["female", "male"])[rng.integers(2, size=60)]}
    features = rng.standard_normal((60, dim)).astype(np.float32)
    return evaluate(model, features, attribute=PROFESSIONS, labels=labels, resamples=20, **options)


@quiet
def test_without_methods_the_default_and_the_attachment_of_the_model_are_measured() -> None:
    model, _, tokenizer = load_clip()
    bare = of_miniature(model, tokenizer=tokenizer, methods=["cali"], strength=0.5)
    unattached = of_miniature(model, tokenizer=tokenizer)
    assert {row.method for row in unattached.rows} == {"none", "rerank", "default", "random"}
    attachment = vldebias.debias(
        model, PROFESSIONS, method="cali", strength=0.5, tokenizer=tokenizer
    )
    tokens = tokenizer(["A photo of a nurse."])
    with torch.no_grad():
        before = model.encode_text(tokens)
    measured = of_miniature(model, tokenizer=tokenizer)
    compared = {"none", "rerank", "default", "attached cali", "random"}
    assert {row.method for row in measured.rows} == compared
    for row in measured.rows:
        if row.method in ("none", "attached cali"):
            name = row.method.removeprefix("attached ")
            expected = bare.row(row.task, row.metric, name, subset=row.subset)
            assert row.value == expected.value
            assert row.interval == expected.interval
            assert row.strength == expected.strength
    with torch.no_grad():
        assert torch.equal(model.encode_text(tokens), before), "it remains attached"
    attachment.remove()
    vldebias.debias(model, "gender", method="cali", side="image", tokenizer=tokenizer)
    with pytest.raises(InvalidInputError, match="side='image'"):
        of_miniature(model, tokenizer=tokenizer)


def images_of_both_values(model: object, tokenizer: object) -> np.ndarray:
    """Return features (n, d) close to prompts that state a value, like those of images that show
    it."""
    stated = list(itertools.chain.from_iterable(PROFESSIONS.variants)) * 3
    rows = resolve(model, tokenizer=tokenizer).embed(stated, "text").numpy()
    noise = np.random.default_rng(1).standard_normal(rows.shape)
    return (rows + 0.02 * noise).astype(np.float32)


@quiet
@pytest.mark.parametrize("method", ["cali", "difference+equalise"])
def test_with_a_reference_the_edit_that_debias_attaches_is_measured(method: str) -> None:
    model, _, tokenizer = load_clip()
    reference = images_of_both_values(model, tokenizer)
    edit = vldebias.fit_projections(
        model, PROFESSIONS, method=method, reference=reference, tokenizer=tokenizer
    ).only
    measured = of_miniature(model, tokenizer=tokenizer, methods=[method, edit], reference=reference)
    names = sorted(
        {row.method for row in measured.rows} - {"none", "random"},
        key=lambda name: "fitted" in name,
    )
    named, attached = ([r.value for r in measured.rows if r.method == name] for name in names)
    assert attached == named != [r.value for r in measured.rows if r.method == "none"]


def test_prompts_to_embed_are_listed_and_missing_prompts_are_named(folder: Path) -> None:
    shown = call("eval show --texts", str(folder / "mine.yaml"))
    assert sorted(shown.splitlines()) == sorted(texts())
    rows = dict(list(texts().items())[4:])
    np.savez(
        folder / "few.npz",
        text=torch.stack(list(rows.values())).numpy(),
        prompts=np.array(list(rows)),
    )
    for arguments in ({}, {"embeddings": None}):
        with pytest.raises(InvalidInputError, match=r"4 of \d+ prompts .*eval show"):
            run(folder, texts=folder / "few.npz", **arguments)


@quiet
def test_features_may_be_in_a_file_and_five_percent_of_them_are_checked(folder: Path) -> None:
    how = {"attribute": {"gender": GENDER}, "methods": ["none"], "resamples": 5}
    in_memory, read = (
        evaluate(texts(), features, **how) for features in (images(), folder / "images.npz")
    )
    assert figures(read) == figures(in_memory)
    assert read.provenance[0].settings["k"] == [20]
    assert "file" not in str(read.provenance[0].settings)


@quiet
def test_a_model_by_name_embeds_a_folder_of_pictures(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("VLDEBIAS_CACHE", str(tmp_path / "cache"))
    for i in range(24):
        file = tmp_path / "pictures" / ("male", "female")[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (10 * i, 90, 40)).save(file)
    (tmp_path / "pictures" / "male" / "broken.png").write_bytes(b"no picture")
    options = {
        "attribute": {"folder": "fairface-gender"},
        "methods": ["cali"],
        "k": 8,
        "resamples": 5,
    }
    result = evaluate("miniature", tmp_path / "pictures", progress=True, **options)
    assert "Left out 1 image that cannot be read: male/broken.png" in capsys.readouterr().err
    assert result.row("retrieval folder", "max_skew@8", "none").n == {"queries": 10, "images": 24}
    assert result.provenance[0].fingerprint is not None
    again = evaluate(
        "miniature",
        tmp_path / "pictures",
        labels={"hair": ["dark"] * 12 + ["blond"] * 12},
        **options,
    )
    assert [row.value for row in again.rows] == [row.value for row in result.rows]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("cosine", "n"), [(1.0, 60), (0.45, 60), (0.3, 60), (0.0, 20), (0.0, 19)])
def test_features_with_the_same_mean_as_the_text_are_accepted_as_the_same_model(
    cosine: float, n: int, recwarn: pytest.WarningsRecorder
) -> None:
    """CLIP photographs do not vary more along a few queries than elsewhere, so this alone does not
    indicate a different model."""
    rng = np.random.default_rng(1)
    prompts = vldebias.load_prompts("professions-gender")
    mean, orthogonal = np.eye(64)[:2]
    rows = {text: mean + 0.1 * rng.standard_normal(64) for text in prompts.texts}
    features = (
        cosine * mean + (1 - cosine**2) ** 0.5 * orthogonal + 0.1 * rng.standard_normal((n, 64))
    )
    labels = {"gender": (["female", "male"] * 30)[:n]}
    evaluate(rows, features, attribute=prompts, labels=labels, methods=["none"], resamples=5)
    assert any("unaligned" in str(warning.message) for warning in recwarn) == (
        cosine < 3 / 64**0.5 and n >= 20
    )


@pytest.mark.parametrize("values", [(-1, 0, 1), (7, 70, 700), ("a", "b", "c"), (-1.0, 0.0, 1.0)])
def test_figures_do_not_depend_on_the_value_names(values: tuple) -> None:
    """Regression test: -1 used to be read as unknown, which removed a group of three. Next to 0, it
    is ambiguous."""
    with pytest.warns(SuspectInputWarning, match="'-1'") if values[0] == -1 else nullcontext():
        result = measured(np.array(values)[JOB % 3])
    assert figures(result) == figures(measured((JOB % 3 + 1).tolist()))
    assert (result.provenance[0].n["groups"], result.provenance[0].n["unknown"]) == (3, 0)


@pytest.mark.parametrize(
    ("absent", "unknown"), [(-1, ["-1", "?"]), (float("nan"), ()), (None, ()), ("?", "?")]
)
def test_unknown_rows_are_excluded_and_counted(absent: object, unknown: object) -> None:
    column: list[object] = [str(sex) if isinstance(absent, str) else int(sex) for sex in SEX]
    column[::5] = [absent] * len(column[::5])
    result = measured(column, unknown=unknown)
    known = np.arange(len(SEX)) % 5 != 0
    options: dict[str, Any] = {"methods": "cali", "k": 20, "resamples": 5}
    expected = evaluate(
        texts(), GALLERY.features[known], attribute={"g": GENDER}, labels=SEX[known], **options
    )
    assert figures(result) == figures(expected)
    (protocol,) = result.provenance
    assert (protocol.n["unknown"], protocol.n["groups"]) == (60, 2)
    assert protocol.settings["gallery"].get("values read as unknown") == (
        [str(absent)] if unknown != () else None
    )


@quiet
def test_groups_find_their_columns_by_name_and_exclude_unknown_rows() -> None:
    """Of the three columns, the classes match one, and the attribute values match another."""
    sexes = np.where(np.arange(len(SEX)) % 5 == 0, "?", np.array(["male", "female"])[SEX]).tolist()
    labels = {"job": torch.from_numpy(JOB), "split": GALLERY.column("split"), "gender": sexes}
    how = {"attribute": GENDER, "task": "groups", "methods": "cali", "resamples": 5}
    (protocol, _) = evaluate(
        texts(), torch.from_numpy(GALLERY.features), labels=labels, unknown="?", **how
    ).provenance
    assert (protocol.settings["label"], protocol.settings["spurious"]) == ("job", "gender")
    assert protocol.n["unknown"] == 60
    assert protocol.settings["data"]["values read as unknown"] == ["?"]
    strange = ["x", "y", "z"] * 100
    with pytest.raises(InvalidInputError, match=r"pass label= and spurious=, .* \['a', 'b'\]"):
        evaluate(texts(), GALLERY.features, labels={"a": strange, "b": strange}, **how)
    with pytest.raises(InvalidInputError, match="one prompt set"):
        evaluate(
            texts(),
            GALLERY.features,
            labels=labels,
            **{**how, "attribute": [GENDER, replace(GENDER, name="b")]},
        )


@refused(
    ({"task": "group"}, "'groups'"),
    ({"priror": "uniform"}, "'prior'"),
    ({"queries": []}, "queries: "),
    ({"attribute": None}, "attribute: expected a prompt set"),
    ({"classes": {"shoes": {"boot": "a boot"}}}, "shoes"),
    ({"attribute": {"gender": GENDER, "rcae": GENDER}}, "rcae"),
    ({"images": None}, "images"),
    ({"images": "no-such-data"}, "no-such-data"),
    ({"images": np.ones(4)}, "features"),
    ({"images": "birds"}, "preprocessing"),
    ({"images": Path(__file__).parent}, "found no images"),
    ({"queries": "a photo of a nurse"}, r"use a list: \['a photo of a nurse'\]"),
    ({"task": ["retrieval"]}, r"got \['retrieval'\]; did you mean"),
    error=VldebiasError,
)
def test_mistakes_in_notebooks_get_helpful_messages(change: dict) -> None:
    arguments = {
        "images": GALLERY.features,
        "attribute": {"gender": GENDER},
        "labels": {"gender": GALLERY.column("gender")},
    }
    arguments |= {"k": 20, "resamples": 5, "methods": ["difference"], **change}
    evaluate(texts(), arguments.pop("images"), **arguments)
