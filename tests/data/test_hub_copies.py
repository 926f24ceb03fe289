"""FairFace, Waterbirds and CelebA in parquet, as on the Hugging Face hub, open at every door."""

from pathlib import Path

import pytest
from PIL import Image

from vldebias.data import open_data
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.study.inputs import Inputs
from vldebias.utils.options import Options

datasets = pytest.importorskip("datasets")

CLASSES = {
    "fairface": {
        "gender": ["Male", "Female"],
        "race": ["East Asian", "Indian", "Black"],
        "age": ["0-2", "20-29"],
    },
    "waterbirds": {"label": ["landbird", "waterbird"], "place": ["land", "water"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with a folder per data set, which contains a parquet file per split."""
    root = tmp_path_factory.mktemp("hub")
    images = [Image.new("RGB", (24, 24), (10 * n, 9, 9)) for n in range(12)]
    for name, classes in CLASSES.items():
        kinds = {column: datasets.ClassLabel(names=names) for column, names in classes.items()}
        features = datasets.Features({"image": datasets.Image(), **kinds})
        for split in ("train", "validation", "test"):
            rows = {
                column: [n // (1 + place) % len(names) for n in range(12)]
                for place, (column, names) in enumerate(classes.items())
            }
            table = datasets.Dataset.from_dict({"image": images, **rows}, features=features)
            (root / name).mkdir(exist_ok=True)
            table.to_parquet(str(root / name / f"{split}-00000-of-00001.parquet"))
    (root / "celeba").mkdir()
    cells = {"Blond_Hair": [True, False] * 6, "Male": [False] * 6 + [True] * 6}
    cells |= {"Smiling": [True] * 12, "celeb_id": list(range(12))}
    features = datasets.Features(
        {
            "image": datasets.Image(),
            **{name: datasets.Value("bool") for name in ("Blond_Hair", "Male", "Smiling")},
            "celeb_id": datasets.Value("int64"),
        }
    )
    celeba = datasets.Dataset.from_dict({"image": images, **cells}, features=features)
    celeba.to_parquet(str(root / "celeba" / "test-00000-of-00001.parquet"))
    return root


def test_fairface_has_its_values_in_the_released_order(folder):
    data = open_data("fairface", folder / "fairface")
    assert (data.name, data.split, len(data)) == ("fairface", "val", 12)
    assert data.labels["gender"].names == ("Male", "Female")
    assert data.labels["race"].counts["Black"] == 4
    assert data.labels["age"].names[:2] == ("0-2", "3-9")
    assert data.read(3).getpixel((0, 0)) == (30, 9, 9)


def test_waterbirds_has_the_groups_of_its_release(folder):
    data = open_data("waterbirds", folder / "waterbirds")
    assert data.labels["label"].counts == {"landbird": 6, "waterbird": 6}
    assert data.labels["place"].counts == {"land": 6, "water": 6}


def test_celeba_has_a_label_for_each_attribute_but_not_for_ids(folder):
    data = open_data("celeba", folder / "celeba")
    assert data.labels["label"].counts == {"dark": 6, "blond": 6}
    assert data.labels["gender"].counts == {"female": 6, "male": 6}
    assert data.labels["Smiling"].counts == {"no": 0, "yes": 12}
    assert "celeb_id" not in data.labels


def test_a_file_names_its_split_and_a_file_of_another_split_is_read_with_a_warning(folder):
    file = folder / "waterbirds" / "validation-00000-of-00001.parquet"
    assert len(open_data("waterbirds", file, "val")) == 12
    with pytest.warns(SuspectInputWarning, match="names no split 'test'; all of its rows are read"):
        assert len(open_data("waterbirds", file)) == 12
    with pytest.raises(InvalidInputError, match="pass the folder with the files of all splits"):
        open_data("waterbirds", file, "train")


def test_other_columns_are_refused_with_the_reader_that_takes_them(folder):
    with pytest.raises(InvalidInputError, match=r"expected a column gender.*'huggingface'"):
        open_data("fairface", folder / "waterbirds")


def test_a_manifest_may_contain_the_images(folder):
    file = folder / "fairface" / "validation-00000-of-00001.parquet"
    data = open_data("manifest", file, labels={"sex": "gender"})
    assert data.labels["sex"].counts == {"Male": 6, "Female": 6}
    assert data.read(2).getpixel((0, 0)) == (20, 9, 9)


def test_an_evaluation_opens_a_table_of_images_with_its_labels(folder):
    file = str(folder / "fairface" / "validation-00000-of-00001.parquet")
    images = Inputs(Options(model="miniature", out=None), {"images": file}).open("images")
    assert len(images) == 12
    assert images.labels["gender"].counts == {"Male": 6, "Female": 6}
