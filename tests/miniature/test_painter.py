"""Test the frozen renderer and builder in `eval/miniature`: they still run, and rendered the
packaged pictures."""

import numpy as np
import pytest

from eval.miniature.builder import build
from eval.miniature.pack import painted
from vldebias.miniature import load_clip, load_judge, load_pipeline, open_world, words

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", words.WORLDS)
@pytest.mark.parametrize("split", ["test", "reference"])
def test_the_renderer_reproduces_the_packaged_pictures(name: str, split: str) -> None:
    fresh = painted(name, split, n=40)
    shipped = open_world(name, n=40, split=split)
    assert fresh.captions == shipped.captions
    for column in shipped.labels:
        assert fresh.column(column).names == shipped.column(column).names
        assert fresh.column(column).codes.tolist() == shipped.column(column).codes.tolist()
    for i in range(40):
        apart = np.abs(
            np.asarray(fresh.read(i)).astype(int) - np.asarray(shipped.read(i)).astype(int)
        )
        # Packaged pixels were rounded and clipped before noise was added, fresh ones afterwards.
        assert apart.max() <= 5
        assert apart.mean() < 0.5


def test_a_tiny_build_can_be_loaded(tmp_path) -> None:
    build(
        tmp_path,
        scale=1e-9,
        device="cpu",
        stages=["tokenizer", "narrow", "clip", "vae", "judge", "draft", "unet"],
    )
    assert load_clip(tmp_path)[0].visual.conv1.weight.shape == (128, 3, 8, 8)
    assert load_pipeline(tmp_path).unet.config.cross_attention_dim == 128
    assert load_judge(tmp_path).training is False
