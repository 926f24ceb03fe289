"""Test folders of pictures that contain files added by operating systems: other files are skipped
and reported."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import vldebias
from vldebias.data.cache import embed_images
from vldebias.data.labelled_folder import images_of_folder
from vldebias.errors import ReferenceWarning, SuspectInputWarning
from vldebias.hosts.clip.images import image_encoder
from vldebias.methods import Reference
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


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Save 150 pictures of birds, 24 of which are labelled as `vldebias label` does."""
    folder = tmp_path_factory.mktemp("birds")
    world = open_world("birds", n=150, split="reference")
    kinds = world.column("label")
    labels = []
    answers = []
    for number in range(len(world)):
        world.read(number).save(folder / f"{number:03}.png")
        labels.append(kinds.names[kinds.codes[number]] if number < 24 else "")
        answer = {"format_version": 1, "image": f"{number:03}.png", "annotator": "me"}
        answer |= {"attribute": "class", "value": labels[-1], "time": "2026-01-01T00:00:00Z"}
        if labels[-1]:
            answers.append(json.dumps(answer))
    (folder / "answers.jsonl").write_text("\n".join(answers) + "\n")
    return folder, labels


def test_debias_reads_the_labels_of_a_folder(birds: tuple[Path, list[str]]) -> None:
    folder, labels = birds
    images = images_of_folder(folder)
    column = images.column("class")
    assert [column.names[code] if code >= 0 else "" for code in column.codes] == labels
    loaded = vldebias.load_host("miniature")
    rows = embed_images(images, image_encoder(loaded.host, loaded.preprocess, name=loaded.name))
    reference = Reference(rows.features, labels={"class": labels})
    expected = vldebias.fit_projections(loaded, "waterbirds", reference=reference).only
    with pytest.warns(ReferenceWarning, match="fitted to text alone"):
        unlabelled = vldebias.fit_projections(loaded, "waterbirds", reference=rows.features).only
    probe = torch.eye(expected.dim, dtype=torch.float64)
    with vldebias.debias(loaded, "waterbirds", reference=folder) as attached:
        edit = attached.projections["text"]
        assert torch.allclose(edit(probe), expected(probe), atol=1e-6)
        assert not torch.allclose(edit(probe), unlabelled(probe), atol=1e-3)


def test_answers_are_reported_as_unread_without_the_programs(
    birds: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vldebias.programs.hooks", lambda name: iter(()))
    with pytest.warns(SuspectInputWarning, match=r"answers\.jsonl: not read, because the programs"):
        images = images_of_folder(birds[0])
    assert len(images) == 150
    assert [*images.labels] == ["folder"]
