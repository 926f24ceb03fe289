"""Likeness to the images of "none": LPIPS and DINO with random weights, and the means by a stand-in."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vldebias.errors import InvalidInputError
from vldebias.evaluation.generation import Similarity
from vldebias.evaluation.plan import Drawn
from vldebias.evaluation.similarity import BACKBONES, Dino, Lpips, evaluate_similarity
from vldebias.metrics import Metric


class Red:
    """|difference of the red of the first pixel|."""

    name, metric, network = "red", Metric("red", "difference of red", "utility", "lower"), nn.Linear(2, 2)

    def __call__(self, images, others) -> torch.Tensor:
        red = [torch.tensor([image.getpixel((0, 0))[0] for image in side]) for side in (images, others)]
        return (red[0] - red[1]).abs().float()


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[Path, list[Drawn]]:
    """Two prompts with two images and with one, under two variants; the second is redder by 10, 20, 60."""
    records = []
    for prompt, seed, more in (("a nurse", 0, 10), ("a nurse", 1, 20), ("a chef", 0, 60)):
        for variant, red in (("none", 100), ("cali", 100 + more)):
            record = Drawn(f"{variant}-{prompt}-{seed}.png", variant, prompt, prompt, seed)
            Image.new("RGB", (64, 64), (red, 0, 0)).save(tmp_path / record.path)
            records.append(record)
    return tmp_path, records


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_means_of_prompts_are_averaged(drawn, batch_size) -> None:
    seen: list[int] = []
    result = evaluate_similarity(
        drawn[1], drawn[0], Red(), task="t", resamples=50, batch_size=batch_size, on_step=seen.append
    )
    (row,) = result.rows
    assert (row.method, row.metric, row.better) == ("cali", "red", "lower")
    assert row.value == (15 + 60) / 2
    assert sum(seen) == 3 == row.n["images"]
    assert result.provenance.settings["compared by"] == "red"


def test_none_is_needed(drawn) -> None:
    with pytest.raises(InvalidInputError, match=r"red: expected images of 'none' and of other variants"):
        evaluate_similarity([r for r in drawn[1] if r.variant == "cali"], drawn[0], Red(), task="t")


@pytest.fixture
def backbone(tmp_path: Path, monkeypatch) -> None:
    """Random weights where torchvision looks for its own."""
    from torchvision.models import squeezenet1_1

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(squeezenet1_1().state_dict(), tmp_path / "hub" / "checkpoints" / BACKBONES["squeeze"])


def noise_images(n: int, size: int = 64) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)) for _ in range(n)]


@pytest.mark.filterwarnings("ignore")  # torchvision's own
def test_lpips_is_that_of_torchmetrics(backbone) -> None:
    from torchmetrics.functional.image import learned_perceptual_image_patch_similarity as oracle

    lpips, images = Similarity(measure="lpips", model="squeeze").load("cpu"), noise_images(4)
    found = lpips(images[:2], images[2:])
    tensors = torch.stack([torch.from_numpy(np.array(i)).permute(2, 0, 1) / 255 for i in images])
    torch.testing.assert_close(
        found.mean(), oracle(tensors[:2], tensors[2:], net_type="squeeze", normalize=True), rtol=1e-4, atol=1e-6
    )
    assert (found > 0).all()
    assert (lpips(images[:2], images[:2]) == 0).all()


def test_weights_that_cannot_be_had_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    with pytest.raises(InvalidInputError, match=r"no route to host\. Offline, put squeezenet1_1-\w+\.pth .* into "):
        Lpips("squeeze")
    with pytest.raises(InvalidInputError, match=r"net: expected one of alex, squeeze, vgg, got 'resnet'"):
        Lpips("resnet")


def test_dino_is_the_cosine_of_class_tokens(tmp_path: Path) -> None:
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    config = Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    model, processor = (
        Dinov2Model(config).eval(),
        BitImageProcessor(size={"height": 28, "width": 28}, do_center_crop=False),
    )
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    images = noise_images(3)
    found = Dino(tmp_path)([images[0], images[0]], images[1:])
    with torch.no_grad():
        tokens = model(**processor(images=images, return_tensors="pt")).last_hidden_state[:, 0]
    torch.testing.assert_close(found, torch.cosine_similarity(tokens[:1], tokens[1:]), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInputError, match=r"dino: .*; expected a folder with a vision transformer"):
        Dino(tmp_path / "none")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InvalidInputError, match=r"expected a folder with a vision transformer in safetensors"):
        Dino(tmp_path)
