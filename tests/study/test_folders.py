"""Test folders of pictures that contain files added by operating systems: other files are skipped
and reported."""

import shutil
from pathlib import Path

import pytest

import vldebias
from vldebias.data.labelled_folder import images_of_folder
from vldebias.errors import SuspectInputWarning
from vldebias.miniature import open_world
from vldebias.report.result import Result
from vldebias.report.text import sentences

MAC = b"\0\5\26\7\0\2\0\0Mac OS X        "


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Save twelve pictures in female/ and male/."""
    world = open_world("portraits", n=12)
    gender = world.column("gender")
    for number in range(12):
        folder = tmp_path / "people" / gender.names[gender.codes[number]]
        folder.mkdir(parents=True, exist_ok=True)
        world.read(number).save(folder / f"{number}.png")
    return tmp_path / "people"


def litter(folder: Path) -> None:
    picture = next(folder.glob("female/*.png"))
    for name in (".ipynb_checkpoints/a-checkpoint.png", "@eaDir/b.png", "male/c.png~", "x/d.h5"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(picture, folder / name)
    for name in ("__MACOSX/female/._0.png", "female/._0.png", "Thumbs.db", "male/notes.pdf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(MAC)


def test_files_from_other_programs_do_not_change_rows_or_groups(people: Path) -> None:
    clean = images_of_folder(people)
    litter(people)
    data = images_of_folder(people)
    assert data.ids == clean.ids
    assert data.column("folder").counts == clean.column("folder").counts
    assert data.fingerprint == clean.fingerprint
    assert len(data.about["files left out"]) == 8


def test_a_result_begins_with_the_skipped_files(people: Path) -> None:
    def measured() -> Result:
        return vldebias.evaluate(
            "miniature",
            people,
            attribute="gender",
            queries=["a photo of a nurse."],
            k=5,
            methods=["difference"],
        )

    before = measured()
    litter(people)
    for number in range(2):
        (people / "male" / f"broken{number}.jpg").write_bytes(b"no picture")
    with pytest.warns(SuspectInputWarning, match=r"2 of 14 images \(14%\) cannot be read"):
        after = measured()
    assert [row.value for row in after.rows] == [row.value for row in before.rows]
    first, second = sentences(after)[:2]
    assert first.startswith("Left out 2 images that cannot be read: male/broken0.jpg")
    assert second.startswith("Left out 8 files without an image: ")
