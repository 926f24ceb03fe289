"""Test linear evaluation: readers for binary formats, and figures compared with scikit-learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import nn

from eval.experiments import linear
from tests.refusals import refused
from vldebias import miniature
from vldebias.data import Embeddings
from vldebias.data.binary import open_binary
from vldebias.hosts import resolve
from vldebias.hosts.clip.images import image_encoder
from vldebias.report.result import NONE, Result, TaskProvenance

NAMES = ("cat", "dog", "ship")


def pictures(n: int, side: int, seed: int) -> np.ndarray:
    """Return (n, side, side, 3) pixels."""
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def write_cifar(folder: Path, labels: np.ndarray, images: np.ndarray, files: list[str]) -> None:
    """Write records as described on the CIFAR-10 page: a label, followed by red, green and blue
    rows."""
    folder.mkdir(exist_ok=True)
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n")
    for part, file in enumerate(files):
        content = b""
        for label, image in list(zip(labels, images, strict=True))[part :: len(files)]:
            content += bytes([label]) + image.transpose(2, 0, 1).tobytes()
        (folder / file).write_bytes(content)


def write_stl(folder: Path, labels: np.ndarray, images: np.ndarray, split: str) -> None:
    """Write STL-10 files: channels with pixels in column-major order, and labels starting at 1."""
    folder.mkdir(exist_ok=True)
    (folder / "class_names.txt").write_text("\n".join(NAMES) + "\n")
    (folder / f"{split}_X.bin").write_bytes(images.transpose(0, 3, 2, 1).tobytes())
    (folder / f"{split}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())


def test_the_cifar_10_format_round_trips(
    tmp_path: Path,
) -> None:
    labels = np.array([2, 0, 1, 1])
    images = pictures(4, 32, 0)
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder, labels, images, ["test_batch.bin"])
    opened = open_binary("cifar10", folder, "test")
    assert opened.labels["label"].names == NAMES
    assert opened.labels["label"].codes.tolist() == labels.tolist()
    for row, image in enumerate(images):
        assert np.array_equal(np.asarray(opened.read(row)), image)


def test_the_cifar_100_format_has_the_fine_label_after_the_coarse_label(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("\n".join(NAMES))
    image = pictures(1, 32, 1)[0]
    (folder / "train.bin").write_bytes(bytes([7, 2]) + image.transpose(2, 0, 1).tobytes())
    opened = open_binary("cifar100", folder, "train")
    assert opened.labels["label"].codes.tolist() == [2]
    assert np.array_equal(np.asarray(opened.read(0)), image)


def test_the_stl_10_format_round_trips(
    tmp_path: Path,
) -> None:
    labels = np.array([0, 2])
    images = pictures(2, 96, 2)
    folder = tmp_path / "stl10_binary"
    write_stl(folder, labels, images, "train")
    opened = open_binary("stl10", folder, "train")
    assert opened.labels["label"].codes.tolist() == [0, 2]
    assert np.array_equal(np.asarray(opened.read(1)), images[1])


def test_pickled_and_damaged_files_are_rejected(tmp_path: Path) -> None:
    refused(lambda: open_binary("cifar10", tmp_path / "cifar-10-batches-py", "test"), "pickles")
    folder = tmp_path / "cifar-10-batches-bin"
    refused(lambda: open_binary("cifar10", folder, "test"), "test_batch.bin: not found")
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(b"1234")
    refused(lambda: open_binary("cifar10", folder, "test"), "expected records of 3073 bytes, got 4")
    refused(lambda: linear.open_folder(tmp_path, "test"), "expected test/CLASS/IMAGE")


@pytest.fixture
def mean_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode an image as the mean colours of four parts, which is easy to reproduce
    independently."""

    def embed(data: linear.ImageData, encoder: object) -> Embeddings:
        rows = [np.asarray(data.read(row), dtype=np.float64) for row in range(len(data))]
        parts = [image.reshape(2, image.shape[0] // 2, -1).mean(axis=1)[:, :6] for image in rows]
        features = np.stack([part.reshape(-1) for part in parts]) / 255
        return Embeddings.from_arrays(features, dict(data.labels), ids=data.ids)

    monkeypatch.setattr(linear, "embed_images", embed)


def coloured(labels: np.ndarray, side: int, seed: int) -> np.ndarray:
    """Return noisy pictures whose classes differ in colour."""
    tints = np.array([[90, 0, 0], [0, 90, 0], [0, 0, 90]])
    rng = np.random.default_rng(seed)
    noise = rng.normal(80, 60, (len(labels), side, side, 3))
    light = rng.normal(0, 60, (len(labels), 1, 1, 3))
    return (noise + light + tints[labels][:, None, None]).clip(0, 255).astype(np.uint8)


@pytest.mark.usefixtures("mean_colours")
@pytest.mark.parametrize("layout", ["cifar-10-batches-bin", "folder"])
def test_accuracy_matches_scikit_learn_on_the_same_features(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    folder = tmp_path / layout
    images = {}
    labels = {}
    for seed, (split, n) in enumerate({"train": 60, "test": 40}.items()):
        labels[split] = rng.integers(0, 3, n)
        images[split] = coloured(labels[split], 32, seed)
    if layout == "folder":
        for split, rows in images.items():
            for row, image in enumerate(rows):
                place = folder / split / NAMES[labels[split][row]]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(place / f"{row:03}.png")
    else:
        batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
        write_cifar(folder, labels["train"], images["train"], batches)
        write_cifar(folder, labels["test"], images["test"], ["test_batch.bin"])
    out = tmp_path / "linear.json"
    assert linear.main(["--data", str(folder), "--c", "10", "--json", str(out)]) == 0

    def features(split: str) -> np.ndarray:
        halves = images[split].astype(np.float64).reshape(len(images[split]), 2, 16, -1)
        rows = halves.mean(axis=2)[:, :, :6].reshape(len(images[split]), -1) / 255
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    model = LogisticRegression(C=10, max_iter=5000).fit(features("train"), labels["train"])
    expected = model.score(features("test"), labels["test"])
    row = Result.read(out).row("linear", "accuracy", NONE)
    assert row.value == pytest.approx(expected)
    assert 0.4 < expected < 1, "an accuracy that could differ"
    assert row.interval[0] < row.value < row.interval[1]


def test_the_worst_group_is_the_lowest_row_and_within_its_interval() -> None:
    rng = np.random.default_rng(0)
    n = 400
    classes = rng.integers(0, 2, n)
    places = rng.integers(0, 2, n)
    signal = np.where(places == 0, 2.0, 0.4) * (2 * classes - 1)
    rows = np.column_stack([signal + rng.normal(size=n), np.ones(n)])
    images = Embeddings.from_arrays(
        rows, {"label": np.array(["a", "b"])[classes], "place": np.array(["x", "y"])[places]}
    )
    train = linear.split_of(images[: n // 2], "label", None)
    test = linear.split_of(images[n // 2 :], "label", "place")
    provenance = TaskProvenance(task="linear", description="built groups")
    result = linear.measure(train, test, provenance, None)
    assert provenance.settings["C"] in linear.PENALTIES
    groups = [row for row in result.rows if row.metric == "accuracy" and row.subset]
    (worst,) = (row for row in result.rows if row.metric == "worst_group")
    assert len(groups) == 4
    assert worst.value == min(row.value for row in groups)
    assert worst.interval[0] <= worst.value <= worst.interval[1]


def test_features_before_the_head_are_its_inputs() -> None:
    """Multiplied by the head, which is a matrix or a layer, they give the embeddings in the joint
    space. A head that is never called is rejected."""
    model, preprocess, _ = miniature.load_clip()
    encoder = image_encoder(model, preprocess)
    head = resolve(model).image_head
    backbone = linear.before_head(encoder, head)
    images = [Image.fromarray(image) for image in pictures(3, 32, 0)]
    joint = encoder.encode(images)
    features = backbone.encode(images)
    product = features @ head.detach() if isinstance(head, nn.Parameter) else head(features)
    torch.testing.assert_close(product.detach(), joint, rtol=1e-4, atol=1e-5)
    assert torch.equal(encoder.encode(images), joint), "the model is unchanged"

    layer = nn.Linear(4, 2)
    called = replace(encoder, model=layer, tower=(layer,), forward=lambda batch: layer(batch["x"]))
    rows = torch.rand(5, 4)
    assert torch.equal(linear.before_head(called, layer).forward({"x": rows}), rows)
    unused = replace(called, forward=lambda batch: batch["x"] @ layer.weight.T)
    refused(lambda: linear.before_head(unused, layer).forward({"x": rows}), "without calling it")
    refused(lambda: linear.before_head(encoder, nn.Sequential()), "expected a head with one")


@pytest.mark.usefixtures("mean_colours")
def test_data_sets_are_read_by_name_from_their_root_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    labels = np.arange(30) % 3
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    write_cifar(folder, labels, coloured(labels, 32, 0), batches)
    write_cifar(folder, labels, coloured(labels, 32, 1), ["test_batch.bin"])
    out = tmp_path / "linear.json"
    words = ["--data", "cifar10", "--root", str(tmp_path), "--c", "10", "--json", str(out)]
    assert linear.main([*words, "--features", "backbone"]) == 0
    assert Result.read(out).provenance[0].settings["features"] == "backbone"
