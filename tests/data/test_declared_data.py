"""Test the errors for invalid data set declarations, and that training and evaluation share the
declarations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.data import DATA, DataSet, open_data, register_data
from vldebias.errors import InvalidInputError
from vldebias.study.inputs import open_split


def nothing(root: Path | None, split: str | None) -> None:
    pass


def without_split(root: Path | None) -> None:
    pass


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATA, "data", {**DATA.data})


@pytest.mark.parametrize("options", [{"n": "five"}, {"n": 1.5}, {"start": "0"}, {"start": None}])
def test_options_of_packaged_data_must_be_whole_numbers(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match=r"birds: got n = .*; expected whole numbers"):
        open_split("birds", None, None, options)


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: register_data(nothing), r"got the function nothing; register DataSet\("),
        (lambda: register_data(DataSet("my set", nothing)), "without spaces or commas"),
        (lambda: register_data(DataSet("celeba", nothing)), "'celeba': this name is taken by"),
        (lambda: DataSet("new", without_split), r"of \(root, split\), got .* signature \(root: "),
        (lambda: DataSet("new", Path), "expected a function of"),
        (lambda: DataSet("new", nothing, training={"lr": "1"}), "training: got lr; expected only"),
        (lambda: DataSet("new", "vldebias.data:no").load_reader(), "'package.module:Name'"),
        (
            lambda: open_data(register_data(DataSet("new", nothing)).name),
            "data set 'new': its reader returned None; expected an ImageData",
        ),
        (
            lambda: open_data(register_data(DataSet("new", nothing, "a folder of images")).name),
            r"new: no data folder found; pass one \(root, --data-root\) with a folder of images",
        ),
    ],
)
def test_mistakes_in_a_data_set_declaration_raise_errors_that_explain_them(
    call: Callable[[], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_fewer_rows_than_a_batch_raise_an_error_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vldebias.cli.train._run", lambda *_, **__: None)
    rows = ["image,caption"]
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        # Each image has two captions, so there are more rows than images.
        rows += [f"{number}.png,a picture", f"{number}.png,the same picture"]
    table = tmp_path / "pairs.csv"
    table.write_text("\n".join(rows))
    command = ["train", "--data", str(table), "--steps", "1", "--batch-size"]
    with pytest.raises(InvalidInputError, match="got 3 images, but one batch contains 4"):
        CliRunner().invoke(app, [*command, "4"], catch_exceptions=False)
    assert CliRunner().invoke(app, [*command, "3"], catch_exceptions=False).exit_code == 0
    assert (
        CliRunner().invoke(app, [*command, "4", "--pairs"], catch_exceptions=False).exit_code == 0
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidInputError, match=r"but one batch contains 6 \(3 per process, 2"):
        CliRunner().invoke(app, [*command, "3"], catch_exceptions=False)
