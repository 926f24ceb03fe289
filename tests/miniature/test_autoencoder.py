import pytest
import torch
from diffusers import StableDiffusionPipeline

from vldebias.miniature import load_pipeline
from vldebias.miniature.autoencoder import PatchAutoencoder


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return PatchAutoencoder((12, 8, 8), latent_channels=3, norm_num_groups=2, sample_size=16).eval()


def test_pictures_survive_encoding_and_decoding_with_a_saved_autoencoder(small, tmp_path):
    small.save_pretrained(tmp_path)
    again = PatchAutoencoder.from_pretrained(tmp_path)
    x = torch.rand(2, 3, 16, 16) * 2 - 1
    with torch.no_grad():
        z = small.encode(x).latent_dist.mean
        assert z.shape == (2, 3, 4, 4)
        (plain,) = small.decode(z, return_dict=False)
        assert torch.equal(small.decode(z).sample, plain)
        assert torch.allclose(again.decode(z).sample, plain, atol=1e-5)
        again.enable_tiling()  # the pictures are larger than those used in training
        assert torch.allclose(again.decode(z).sample, plain, atol=1e-5)
    assert (plain.shape, again.config.scaling_factor) == (x.shape, 1)


def test_the_first_level_rearranges_pixels_without_loss(small):
    """The inner network sees each patch as 2 x 2 pixels, and its output returns to the same
    place."""
    seen = []
    handle = small.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = torch.arange(3 * 16 * 16.0).view(1, 3, 16, 16)
    small.encode(x)
    handle.remove()
    assert torch.equal(seen[0][0, :4, 0, 0].sort().values, x[0, 0, :2, :2].flatten())
    assert torch.equal(torch.nn.functional.pixel_shuffle(seen[0], 2), x)


def test_a_pipeline_reads_the_picture_size_from_its_autoencoder():
    pipeline = load_pipeline()
    assert isinstance(pipeline, StableDiffusionPipeline)
    side = pipeline.unet.config.sample_size * pipeline.vae_scale_factor
    assert side == pipeline.vae.config.sample_size == 64
    # The factor was measured after training, and a new autoencoder has 1.
    assert pipeline.vae.config.scaling_factor > 1
    assert not any(weight.requires_grad for weight in pipeline.vae.parameters())
    assert pipeline.vae.config.latent_channels == pipeline.unet.config.in_channels
