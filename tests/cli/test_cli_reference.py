"""`vldebias debias` with unlabelled images: the file, the method, lambda and the bound."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import vldebias
from eval.miniature import portraits
from tests.refusals import refused
from vldebias.cli import app
from vldebias.data import Embeddings, save_embeddings
from vldebias.errors import InvalidInputError
from vldebias.methods.reference import Reference
from vldebias.miniature import load_clip

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
    pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning"),  # 300 images, of whom the model doubts some
]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(
        app, ["debias", "fairface-gender", "--model", "miniature", *arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout if "--json" in arguments else done.stdout + done.stderr


@pytest.fixture(scope="module")
def features() -> np.ndarray:
    model, preprocess, _ = load_clip()
    images = portraits.sample(300, seed=78).images
    with torch.no_grad():
        return model.encode_image(torch.stack([preprocess(image) for image in images])).numpy()


@pytest.fixture(scope="module")
def file(features: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "images.npz"
    return save_embeddings(path, Embeddings(features, tuple(map(str, range(300))), {}))


def test_reference_gives_what_the_function_gives(file: Path, features: np.ndarray, tmp_path: Path) -> None:
    told = json.loads(run("--reference", str(file), "--confidence", "0.6", "--out", str(tmp_path), "--json"))
    saved = vldebias.CalibratedProjection.from_pretrained(tmp_path / "joint")
    model, _, tokenizer = load_clip()
    reference = Reference(features, confidence=0.6)
    fitted = vldebias.fit_projection(model, "fairface-gender", tokenizer=tokenizer, reference=reference)
    assert saved.method == "cali+equalise"
    torch.testing.assert_close(saved.matrix(), fitted.matrix(), atol=1e-6, rtol=0)
    report = told["reference"]["fairface-gender"]
    assert 0 < report["left_out"] < 300
    assert sum(n for row in report["counts"].values() for n in row.values()) == 300 - report["left_out"]


def test_the_split_is_told_in_words(file: Path, tmp_path: Path) -> None:
    told = " ".join(run("--reference", str(file), "--method", "equalise", "--out", str(tmp_path)).split())
    assert "fairface-gender, reference images:" in told
    assert "compared, 0 left out; stability 0." in told
    assert vldebias.CalibratedProjection.from_pretrained(tmp_path / "joint").method == "equalise"


def test_lam_and_bound_reach_the_fit(tmp_path: Path) -> None:
    run("--method", "cali", "--lam", "200", "--out", str(tmp_path / "free"))
    run("--method", "cali", "--lam", "200", "--max-loss", "0.001", "--out", str(tmp_path / "bound"))
    free, bound = (
        vldebias.CalibratedProjection.from_pretrained(tmp_path / name / "joint") for name in ("free", "bound")
    )
    assert free.lam == 200
    assert (free.matrix() - torch.eye(free.dim)).norm() > (bound.matrix() - torch.eye(free.dim)).norm()


@pytest.mark.filterwarnings("ignore::vldebias.errors.AutoDeclinedWarning")
def test_auto_says_what_it_chose(file: Path, tmp_path: Path) -> None:
    told = json.loads(run("--method", "auto", "--reference", str(file), "--out", str(tmp_path / "auto"), "--json"))
    choice = told["roles"]["joint"]["choice"]
    assert {candidate["method"] for candidate in choice["candidates"]} >= {"cali", "equalise"}
    assert choice["method"] in vldebias.CalibratedProjection.from_pretrained(tmp_path / "auto" / "joint").method


@refused(
    (("--confidence", "0.5"), "--confidence is about the images of --reference"),
    (("--reference", "nowhere.npz"), "nowhere.npz"),
    (("--max-loss", "2"), "max_loss: expected a loss of cosine"),
)
def test_errors(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run(*arguments, "--out", str(tmp_path))


def test_images_of_another_model_are_refused(tmp_path: Path) -> None:
    rows = np.ones((20, 7), dtype=np.float32)
    path = save_embeddings(tmp_path / "other.npz", Embeddings(rows, tuple(map(str, range(20))), {}))
    with pytest.raises(InvalidInputError, match="image features have width 7, texts 256; embed both with one model"):
        run("--reference", str(path), "--out", str(tmp_path / "out"))
