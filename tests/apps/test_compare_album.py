"""What was drawn before, to leaf through: what is found, what is led with, and what no visitor can ask for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from compare_parts import built, module
from label_parts import draw

from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Measurement, Result, TaskProvenance
from vldebias.files import versions

Album = module("album").Album
MODEL = "by hand, professions-gender"


def row(metric: str, method: str, value: float, subset: str, change: Any = None) -> Measurement:
    better = "neither" if metric == "share" else "lower"
    return Measurement(
        task="gender", metric=metric, method=method, value=value, interval=(value - 0.1, value + 0.1), n={"images": 3},
        better=better, subset=subset, change=change,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a run lies: OUT/images/TASK, and OUT/result.json."""
    drawn = draw(tmp_path / "images" / "gender")
    told = TaskProvenance(
        task="gender", description="", model="by hand", fingerprint=None, prompts=drawn.plan.prompt_set,
        prompts_hash="0" * 12, split="generated", methods={}, seeds=[0], n={"images": 3}, settings={},
    )  # fmt: skip
    moved = {"doctor": -0.1, "nurse": -0.3, "pilot": -0.2, "baker": 0.0}
    rows = []
    for name, change in moved.items():
        rows.append(row("discrepancy", "none", 0.4, name))
        rows.append(row("discrepancy", "cali", 0.4 + change, name, (change, change - 0.1, change + 0.1)))
        rows += [row("share", "none", 0.83, f"{name}: male"), row("share", "cali", 0.33, f"{name}: male")]
    rows.append(row("discrepancy", "cali", 0.9, "unseen professions"))
    Result(name="x", rows=rows, provenance=[told], versions=versions(), commit=None, seconds=1.0).write(
        tmp_path / "result.json"
    )
    return tmp_path


def test_a_profession_is_shown_with_its_figures(folder: Path) -> None:
    album = Album.open(folder)
    assert list(album.sets) == [MODEL]
    assert album.methods == ("cali",)
    assert album.concepts[0] == "pilot"  # -0.3, -0.2, -0.1, 0: the lower median
    assert sorted(album.concepts) == ["baker", "doctor", "nurse", "pilot"]
    page = album.page(MODEL, "pilot", "cali")
    assert page.lead == ("male", 0.83, 0.33)
    assert len(page.pairs) == 3
    for before, after in page.pairs:
        assert before.name == after.name
        assert (before.parts[-3], after.parts[-3]) == ("none", "cali")
    assert [(one.method, one.subset) for _, one in page.rows] == [("none", "pilot"), ("cali", "pilot")]
    html = module("view").HTML
    assert "male <strong>83% → 33%</strong>" in html.album(page)
    assert "unclear" not in html.album_table(page)
    assert "better" in html.album_table(page)


def test_several_models_stand_side_by_side_and_figures_may_lack(folder: Path) -> None:
    draw(folder / "other")
    album = Album.open(folder)
    assert list(album.sets) == [MODEL, f"{MODEL} (other)"]
    assert album.page(f"{MODEL} (other)", "baker", "cali").lead is None
    assert {name for name, _ in album.page(f"{MODEL} (other)", "baker", "cali").rows} == {MODEL}
    bare = Album.open(folder / "other")
    assert bare.page(MODEL, "baker", "cali").rows == ()
    assert "there are no figures" in module("view").HTML.album(bare.page(MODEL, "baker", "cali"))


def test_what_is_not_there_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    album = Album.open(folder)
    for asked, told in (
        (("x", "pilot", "cali"), "model: expected one of by hand"),
        ((MODEL, "../../etc", "cali"), "profession: expected one of"),
        ((MODEL, "pilot", "none"), "method: expected one of cali, got 'none'"),
        ((None, None, None), "model: expected one of"),
        ((MODEL, ["pilot"], "cali"), "profession: expected one of"),
    ):
        with pytest.raises(InvalidInputError, match=told):
            album.page(*asked)
    outside = tmp_path_factory.mktemp("outside")
    home = album.page(MODEL, "pilot", "cali").pairs[0][0].parent
    shutil.move(home, outside / "pictures")
    home.symlink_to(outside / "pictures")  # a link leads out of the folder
    with pytest.raises(InvalidInputError, match="pilot is not drawn under cali by by hand"):
        album.page(MODEL, "pilot", "cali")
    empty = tmp_path_factory.mktemp("empty")
    for nothing in (empty, empty / "missing"):
        with pytest.raises(InvalidInputError, match=r"--gallery .*: no images of a generation task in it"):
            Album.open(nothing)


def test_the_tab_is_there_for_a_folder_alone(folder: Path) -> None:
    engine = module("engine").Engine
    tabs = [
        {block.label for block in built(one).blocks.values() if type(block).__name__ == "Tab"}
        for one in (engine(), engine(gallery=folder))
    ]
    assert "Gallery" not in tabs[0]
    assert tabs[1] - tabs[0] == {"Gallery"}
