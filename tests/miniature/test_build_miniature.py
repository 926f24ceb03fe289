import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import vldebias
from eval.miniature import builder
from eval.miniature.builder import build
from eval.miniature.vocabulary import DRAWN_BIRDS, DRAWN_PEOPLE
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.miniature import birds, load_clip, load_judge, load_pipeline, people
from vldebias.miniature.models import load_weights
from vldebias.miniature.world import WORLDS

MODELS = ("clip", "vae", "judge", "draft", "unet")
TINY = 0.002


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same(one: Path, other: Path, name: str) -> bool:
    first, second = (load_weights(folder / f"{name}.safetensors") for folder in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"stages": ["clip", "vea"]}, r"unknown stages \['vea'\]; expected some of \['tokenizer', 'clip'"),
        ({"scale": 0}, "scale must be positive, got 0"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, asked, text):
    with pytest.raises(InvalidInputError, match=text):
        build(tmp_path, **asked)


@pytest.mark.parametrize("name", ["build", "STAGES"])
def test_an_installed_package_says_where_the_builder_is(name):
    with pytest.raises(InvalidInputError, match=rf"miniature.{name} is not installed; use `python -m eval.miniature"):
        getattr(vldebias.miniature, name)
    done = CliRunner().invoke(app, ["miniature", "build", "--out", "x"])
    assert "use `python -m eval.miniature --out FOLDER` in a checkout" in str(done.exception)


@pytest.mark.slow
def test_a_tiny_build_can_be_loaded(tmp_path, capfd):
    build(tmp_path, scale=1e-9, device="cpu", stages=["tokenizer", *MODELS])
    assert load_clip(tmp_path)[0].visual.conv1.weight.shape == (96, 3, 8, 8)
    assert load_pipeline(tmp_path).unet.config.cross_attention_dim == 128
    assert load_judge(tmp_path).training is False
    printed = capfd.readouterr()
    assert printed.out == ""
    (last,) = [line for line in printed.err.splitlines() if line.startswith("unet")]
    assert "1/1" in last


def test_the_second_round_sees_mostly_birds_and_captions_that_say_more():
    usual = builder._Pictures(7, lean=birds.LEAN)
    said = replace(birds.LEAN, shares=DRAWN_BIRDS)
    more = builder._Pictures(7, lean=said, portrait_share=1 / 3, people_captions=DRAWN_PEOPLE)
    one, two = (pictures.batch(0, builder.BLOCK) for pictures in (usual, more))
    shares = [(seen.fields["world"] == WORLDS.index("portraits")).double().mean().item() for seen in (one, two)]
    assert shares == pytest.approx([2 / 3, 1 / 3])
    toned = [
        sum(any(tone in caption.split() for tone in people.TONES) for caption in seen.captions) / portraits
        for seen, portraits in ((one, 256), (two, 128))
    ]
    assert toned[1] > toned[0] + 0.05


@pytest.mark.slow
def test_the_unet_goes_on_from_its_draft(tmp_path):
    """Moved by one step at most from the draft that is there, and not from weights of its own."""
    stages = ["tokenizer", *MODELS]
    build(tmp_path, scale=1e-9, device="cpu", stages=stages)
    draft, unet = tmp_path / "draft.safetensors", tmp_path / "unet.safetensors"
    with safe_open(draft, "pt") as file:
        about = file.metadata()
    doubled = {name: 2 * tensor for name, tensor in load_file(draft).items()}
    save_file(doubled, draft, metadata=about)
    unet.unlink()
    build(tmp_path, scale=1e-9, device="cpu", stages=["unet"])
    for name, tensor in load_file(unet).items():
        assert (tensor.float() - doubled[name].float()).abs().max() < 0.01, name


@pytest.mark.slow
def test_finished_stages_are_kept(tmp_path):
    def clip_made() -> int:
        return (tmp_path / "clip.safetensors").stat().st_mtime_ns

    def again(**options) -> None:
        build(tmp_path, scale=1e-9, device="cpu", stages=["tokenizer", "clip"], **options)

    again()
    first = clip_made()
    again()
    assert clip_made() == first
    again(resume=False)
    assert clip_made() > first


@pytest.mark.slow
def test_the_seed_decides(tmp_path):
    for folder, seed in (("one", 0), ("again", 0), ("other", 1)):
        build(tmp_path / folder, scale=1e-9, device="cpu", stages=["tokenizer", "clip"], seed=seed)
    assert same(tmp_path / "one", tmp_path / "again", "clip")
    assert not same(tmp_path / "one", tmp_path / "other", "clip")


@pytest.mark.slow
def test_a_killed_build_ends_with_the_same_weights(tmp_path):
    """A real kill, in the middle of whatever stage the build has reached."""
    program = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from eval.miniature import training; training.CHECKPOINT_SECONDS = 0.0\n"
        "from eval.miniature.builder import build\n"
        f"build(sys.argv[1], scale={TINY}, device='cpu', stages=['tokenizer', *{MODELS}])\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(folder: Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", program, str(folder)], env=environment)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    for stage in ("clip", "unet"):
        process = start(killed)
        checkpoint = killed / "checkpoints" / f"{stage}.safetensors"
        while not checkpoint.exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, f"the build was over before {stage} could be killed"
    assert start(killed).wait() == 0
    for name in MODELS:
        assert same(whole, killed, name), name


@pytest.mark.slow
def test_measurements_and_cards_of_a_tiny_build(tmp_path):
    build(tmp_path, scale=TINY, device="cpu")
    assert (tmp_path / "metrics.json").is_file()
    assert "safetensors" in (tmp_path / "README.md").read_text()
    for card in ("clip.md", "diffusion.md"):
        assert "nan" not in (tmp_path / "cards" / card).read_text()
