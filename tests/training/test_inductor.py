"""A run whose towers torch compiles to code of the machine, which takes a minute of one core and a C++ compiler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file
from training_parts import picture

from vldebias.training.run import steps_done, train_model
from vldebias.training.settings import load_settings

TEXT = {"context_length": 24, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}  # open_clip's own words
VISION = {"image_size": 32, "patch_size": 16, "width": 32, "layers": 1, "head_width": 16}


def model(folder: Path) -> str:
    folder.mkdir()
    torch.manual_seed(0)
    weights = open_clip.CLIP(32, VISION, TEXT).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "open_clip_model.safetensors")
    about = {"model_cfg": {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(about))
    return f"local-dir:{folder}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile writes C++ for a CPU; g++ is needed")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of torch's own
def test_compiled_code_learns_the_same_and_its_checkpoint_is_read_without(tmp_path: Path) -> None:
    rows = []
    for i in range(16):
        picture(17 * i).resize((32, 32)).save(tmp_path / f"{i}.png")
        rows.append({"image": f"{i}.png", "caption": f"a photo of a thing, number {i}"})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"data": str(tmp_path / "pairs.jsonl"), "model": model(tmp_path / "clip"), "loss": "info_nce", "lr": 1e-3}
    given |= {"temperature": 0.2, "steps": 3, "batch_size": 8, "workers": 0, "score_pairs": False}
    for chosen in (False, True):
        train_model(load_settings(compile=chosen, **given), tmp_path / str(chosen), cpu=True)
    plain, other = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "history.jsonl").read_text().splitlines()]
        for name in ("False", "True")
    )
    assert other == pytest.approx(plain, rel=1e-4)
    assert len(set(plain)) == 3, "it learns"
    assert steps_done(tmp_path / "True") == (3, 3)
    train_model(load_settings(compile=False, **given), tmp_path / "True", cpu=True)  # from the checkpoint, as it was
    one, two = (load_file(tmp_path / name / "model" / "open_clip_model.safetensors") for name in ("False", "True"))
    assert one.keys() == two.keys()
    start = load_file(tmp_path / "clip" / "open_clip_model.safetensors")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-3, rtol=1e-2)  # lr times a sign that rounding turns
    assert any(not torch.equal(tensor, start[name]) for name, tensor in one.items())
