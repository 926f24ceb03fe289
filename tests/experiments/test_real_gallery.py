"""The gallery of a real pipeline, drawn with a tiny one from a folder: told first, resumed, with its cost and sheet."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sd

from eval.experiments import real_gallery
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.result import Result
from vldebias.pictures import picture_metadata
from vldebias.prompts import load_prompts

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
PROFESSIONS, IMAGES = 2, 2
ALL = (PROFESSIONS + len(real_gallery.OUTSIDE)) * IMAGES * 4  # as it is and three methods


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("tiny") / "pipe"
    sd().save_pretrained(made)
    return made


def called(folder: Path, work: Path, *more: str) -> None:
    given = ["--pipeline", str(folder), "--work", str(work), "--images", str(IMAGES), "--professions", str(PROFESSIONS)]
    real_gallery.main([*given, "--steps", "2", "--size", "32", *more])


def test_it_says_what_it_takes_goes_on_and_writes_cost_and_sheet(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, path = tmp_path / "work", tmp_path / "real_gallery.json"
    called(folder, work, "--estimate")
    assert f"{ALL} images on cpu, of which 0 are there" in capsys.readouterr().out
    assert not list(work.rglob("*.png"))

    called(folder, work, "--json", str(path))
    drawn = DrawnSet.open(work)
    assert (len(drawn), drawn.missing) == (ALL, [])
    held_out = load_prompts(real_gallery.SET).held_out_classes
    prompts = [one.prompt for one in drawn.plan.prompts]
    assert prompts == [held_out[0], held_out[-1], *real_gallery.OUTSIDE]
    result = Result.read(path)
    cost = {(row.method, row.metric): row.value for row in result.rows}
    assert {method for method, _ in cost} == {"none", *real_gallery.METHODS}
    assert cost["none", "change of a pixel"] == 0 < cost["stated-value", "change of a pixel"]
    assert all(value > 0 for (_, metric), value in cost.items() if metric == "seconds of an image")
    assert result.provenance[0].settings["images of this run"] == ALL
    assert str(folder) not in json.dumps(result.to_dict())

    gone, calls = drawn.path(drawn.images[-1]), []
    before = gone.read_bytes()
    gone.unlink()
    original = real_gallery.draw
    monkeypatch.setattr(real_gallery, "draw", lambda *a, **k: calls.append(1) or original(*a, **k))
    called(folder, work, "--json", str(path))
    assert f"of which {ALL - 1} are there" in capsys.readouterr().out
    assert Result.read(path).provenance[0].settings["images of this run"] == len(calls) == 1
    assert picture_of(gone) == picture_of_bytes(before, tmp_path)


def picture_of(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image).tolist()


def picture_of_bytes(data: bytes, folder: Path) -> Any:
    (folder / "before.png").write_bytes(data)
    return picture_of(folder / "before.png")


def test_the_sheet_has_every_image_in_its_place(folder: Path, tmp_path: Path) -> None:
    called(folder, tmp_path, "--methods", "stated-value")
    with Image.open(tmp_path / "real_gallery.png") as image:
        sheet = np.asarray(image.convert("RGB")).astype(int)
    drawn, cell = DrawnSet.open(tmp_path), real_gallery.CELL
    assert picture_metadata(tmp_path / "real_gallery.png")["columns"] == ["none", "stated-value"]
    for column, method in enumerate(("none", "stated-value")):
        for row, prompt in enumerate(drawn.plan.prompts):
            own = [one for one in drawn.select(variant=method) if one.prompt == prompt.prompt]
            for place, one in enumerate(own):
                left = real_gallery.LABEL + column * (IMAGES * cell + real_gallery.GAP) + place * cell
                top = real_gallery.HEAD + row * cell
                there = np.asarray(drawn.read(one).resize((cell, cell), Image.Resampling.LANCZOS)).astype(int)
                assert np.abs(sheet[top : top + cell, left : left + cell] - there).max() <= 3  # in fewer colours
