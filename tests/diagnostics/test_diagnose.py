"""`vldebias.diagnose`, the task and the command: rows, what they say to do, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import vldebias
from vldebias.cli import app
from vldebias.data import Embeddings, load_embeddings, save_embeddings
from vldebias.errors import InvalidInputError
from vldebias.evaluation import Result
from vldebias.evaluation.diagnosis import DiagnoseTask
from vldebias.evaluation.run import verify
from vldebias.evaluation.task import TASKS
from vldebias.prompts import load_prompts

pytestmark = pytest.mark.usefixtures("no_charts")


@pytest.fixture(scope="module")
def world() -> tuple[Embeddings, dict[str, torch.Tensor]]:
    """Images of two classes and a gender that one direction tells, and the texts of one space."""
    rng = np.random.default_rng(0)
    prompts = load_prompts("gender")
    gender, smile = rng.integers(2, size=300), rng.integers(2, size=300)
    rows = rng.standard_normal((300, 16))
    rows[:, 0] += 3 * (2 * gender - 1)
    rows[:, 1] += 2 * (2 * smile - 1)
    texts = {}
    shared = {text: rng.standard_normal(16) for pair in prompts.pairs for text in pair}
    shared |= {text: shared[pair[0]] for pair in prompts.pairs for text in pair}  # a pair differs in gender alone
    for text in prompts.texts:
        row = 0.1 * shared.get(text, rng.standard_normal(16)) + np.eye(16)[2]
        row[0] += {("male",): 1.0, ("female",): -1.0}.get(prompts.values_in(text), 0.0)
        texts[text] = torch.from_numpy(row)
    columns = {"smile": np.where(smile, "yes", "no"), "gender": np.where(gender, "male", "female")}
    return Embeddings.of(rows, columns), texts


@pytest.fixture(scope="module")
def result(world: Any) -> Result:
    return vldebias.diagnose(
        world[0], "smile", groups="gender", texts=world[1], prompts="gender", methods=["cali"], seed=1
    )


class TestDiagnose:
    def test_probes_of_every_method_and_their_change(self, result: Result) -> None:
        none = result.row("diagnose", "linear_probe", "none", subset="gender")
        cali = result.row("diagnose", "linear_probe", "cali", subset="gender")
        assert none.value > 0.95
        assert cali.value < none.value
        assert cali.change is not None
        assert cali.change[0] == pytest.approx(cali.value - none.value)
        assert result.row("diagnose", "class_probe", "cali", subset="smile").value > 0.9

    def test_classes_that_are_points_have_margins_and_none_divided_by_their_variance(self) -> None:
        found = vldebias.diagnose(np.repeat(np.eye(5)[:2], 30, 0), ["a"] * 30 + ["b"] * 30)
        metrics = {row.metric for row in found.rows if np.isfinite(row.value)}
        assert {"margin", "gn_margin", "k_variance"} <= metrics == {row.metric for row in found.rows}

    def test_groups_labels_and_margins_have_rows(self, result: Result) -> None:
        subsets = {row.subset for row in result.rows if row.metric == "accuracy"}
        assert subsets == {"no/female", "no/male", "yes/female", "yes/male"}
        assert result.row("diagnose", "hidden_f1", "none", subset="by texts, mean").value > 0.9
        assert 0 <= result.row("diagnose", "suspect_labels", "none").value < 0.2
        assert result.row("diagnose", "kv_gn_margin", "none", subset="yes").value > 0
        assert result.row("diagnose", "within_variance", "none").value < 1

    def test_sentences_say_what_to_do(self, result: Result) -> None:
        said = result.provenance[0].description
        assert said.startswith("gender: a linear reader names it in ")
        assert "Worst group by gender: " in said
        assert "labels fit another class better" in said

    def test_removed_is_said_only_of_what_a_linear_reader_cannot_read(self, world: Any) -> None:
        rows = np.array(world[0].features)
        gone = rows.copy()
        gone[:, 0] = np.random.default_rng(1).standard_normal(len(rows))
        gender = world[0].column("gender")
        assert "there is nothing to remove" in vldebias.diagnose(gone, groups=gender).provenance[0].description
        assert "there is nothing to remove" not in vldebias.diagnose(rows, groups=gender).provenance[0].description

    def test_nothing_is_said_to_be_removed_that_was_not_there(self, world: Any) -> None:
        dealt = np.random.default_rng(2).permutation(np.repeat(["male", "female"], 150))
        found = vldebias.diagnose(world[0], groups=dealt, texts=world[1], prompts="gender", methods=["cali"], seed=3)
        said = found.provenance[0].description
        assert said.endswith("there is nothing to remove.")
        assert "cali" not in said

    def test_errors_are_counted_where_no_groups_are_known(self, world: Any) -> None:
        found = vldebias.diagnose(world[0].features, world[0].column("smile"))
        assert "misread by a classifier that did not see them" in found.provenance[0].description

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, r"expected labels= \(classes\), groups= \(an attribute\) or both"),
            ({"labels": "colour"}, "colour"),
            ({"labels": "smile", "methods": "cali"}, "are fitted on texts; expected prompts="),
            ({"labels": np.zeros(7)}, "300"),
        ],
    )
    def test_what_cannot_be_asked_is_refused(self, world: Any, options: Any, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            vldebias.diagnose(world[0], **options)

    def test_it_is_a_task(self, world: Any) -> None:
        assert TASKS["diagnose"] is DiagnoseTask
        found = vldebias.evaluate(None, world[0], task="diagnose", groups="gender", methods="none")
        assert {row.metric for row in found.rows} == {"linear_probe", "neighbour_probe"}


@pytest.fixture(scope="module")
def file(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_embeddings(tmp_path_factory.mktemp("features") / "features.npz", *world)


class TestCommand:
    def test_page_result_and_list(self, file: Path, tmp_path: Path) -> None:
        kept = tmp_path / "kept.npz"
        asked = ["diagnose", str(file), "--labels", "smile", "--groups", "gender", "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(app, [*asked, "--keep", "0.9", "--write", str(kept), "--json"])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert {"figures", "protocols", "files"} <= set(told)
        page = (tmp_path / "out" / "index.html").read_text()
        top = page[: page.index("<main>")]
        assert top.count("<li>") == 3
        assert "What features.npz holds: smile by gender</h1>" in top
        assert top.index("a linear reader names it") < top.index("Worst group") < top.index("fit another class better")
        assert "No method was compared" not in page
        assert page.count("a linear reader names it") == 1
        listed = pd.read_csv(tmp_path / "out" / "wrong-labels.csv")
        assert list(listed.columns) == ["rank", "percentile", "score", "id", "row", "given", "proposed", "path"]
        assert listed.score.is_monotonic_increasing
        rows = load_embeddings(kept)[0]
        assert len(rows) == 270
        assert not set(rows.ids) & set(listed.id[:30].astype(str))
        assert not any(verify(tmp_path / "out").values())

    def test_a_sheet_shows_the_pictures_of_the_least_credible_rows(self, file: Path, tmp_path: Path) -> None:
        data = load_embeddings(file)[0]
        (tmp_path / "pictures").mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / f"{data.ids[0]}.png")
        asked = ["diagnose", str(file), "--labels", "smile", "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(app, [*asked, "--images", str(tmp_path / "pictures")])
        assert done.exit_code == 0, done.output
        listed = pd.read_csv(tmp_path / "out" / "wrong-labels.csv", dtype=str, keep_default_na=False)
        assert set(listed.path[listed.id == data.ids[0]]) == {str(tmp_path / "pictures" / f"{data.ids[0]}.png")}
        page = (tmp_path / "out" / "wrong-labels.html").read_text()
        assert page.count("data:image/jpeg;base64,") == 200
        assert f"given {listed.given[0]}, fits {listed.proposed[0]}" in page

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "expected --labels COLUMN"),
            (["--groups", "gender", "--images", "."], "--images: needs --labels"),
            (["--labels", "smile", "--keep", "0.5"], "--keep and --write go together"),
            (["--groups", "gender", "--methods", "cali"], "add --prompts SET"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, file: Path, options: list[str], message: str) -> None:
        done = CliRunner().invoke(app, ["diagnose", str(file), *options])
        assert message in str(done.exception)
