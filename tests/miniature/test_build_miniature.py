from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import vldebias
from eval.miniature import builder
from eval.miniature.builder import build
from eval.miniature.vocabulary import DRAWN_BIRDS, DRAWN_PEOPLE
from tests.refusals import refused
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.miniature import birds, load_clip, load_judge, load_pipeline, people
from vldebias.miniature.models import load_weights
from vldebias.miniature.world import WORLDS

MODELS = ("narrow", "clip", "vae", "judge", "draft", "unet")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@refused(
    ({"stages": ["clip", "vea"]}, r"unknown stages \['vea'\]; expected some of \['tokenizer', 'narrow'"),
    ({"scale": 0}, "scale must be positive, got 0"),
)
def test_wrong_arguments_are_refused(tmp_path, asked):
    build(tmp_path, **asked)


@pytest.mark.parametrize("name", ["build", "STAGES"])
def test_an_installed_package_says_where_the_builder_is(name):
    with pytest.raises(InvalidInputError, match=rf"miniature.{name} is not installed; use `python -m eval.miniature"):
        getattr(vldebias.miniature, name)
    done = CliRunner().invoke(app, ["miniature", "build", "--out", "x"])
    assert "use `python -m eval.miniature --out FOLDER` in a checkout" in str(done.exception)


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
def test_a_tiny_build_can_be_loaded_and_its_unet_goes_on_from_its_draft(tmp_path, capfd):
    """Moved by one step at most from the draft that is there, and not from weights of its own."""
    build(tmp_path, scale=1e-9, device="cpu", stages=["tokenizer", *MODELS])
    assert load_clip(tmp_path)[0].visual.conv1.weight.shape == (128, 3, 8, 8)
    assert load_pipeline(tmp_path).unet.config.cross_attention_dim == 128
    assert load_judge(tmp_path).training is False
    printed = capfd.readouterr()
    assert printed.out == ""
    (last,) = [line for line in printed.err.splitlines() if line.startswith("unet")]
    assert "1/1" in last
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
def test_finished_stages_are_kept_and_the_seed_decides(tmp_path):
    def built(**options) -> tuple[int, dict[str, torch.Tensor]]:
        build(tmp_path, scale=1e-9, device="cpu", stages=["tokenizer", "narrow", "clip"], **options)
        path = tmp_path / "clip.safetensors"
        return path.stat().st_mtime_ns, load_weights(path)

    first, one = built()
    assert built()[0] == first
    later, again = built(resume=False)
    assert later > first
    assert one.keys() == again.keys()
    assert all(torch.equal(one[name], again[name]) for name in one)
    _, other = built(resume=False, seed=1)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_measurements_and_cards_of_a_tiny_build(tmp_path):
    build(tmp_path, scale=0.002, device="cpu")
    assert (tmp_path / "metrics.json").is_file()
    assert "safetensors" in (tmp_path / "README.md").read_text()
    for card in ("clip.md", "diffusion.md"):
        assert "nan" not in (tmp_path / "cards" / card).read_text()
