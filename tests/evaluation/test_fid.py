"""FID against the closed form of Gaussians, the jackknife against repeated draws, Inception without its download."""

import sys
import urllib.error
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.linalg import sqrtm

from vldebias.errors import InvalidInputError, MissingPackageError, VldebiasWarning
from vldebias.evaluation.drawing import SharedImages
from vldebias.evaluation.fid import Fid, FrechetReference, InceptionFeatures, Moments, jackknife
from vldebias.evaluation.plan import Drawn
from vldebias.hosts.images import image_encoder
from vldebias.miniature import load_clip, portraits

few = pytest.mark.filterwarnings("ignore:FID of:vldebias.errors.VldebiasWarning")


def closed_form(a: np.ndarray, b: np.ndarray) -> float:
    """|m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) with scipy's matrix root."""
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = np.real(sqrtm(ca @ cb))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb - 2 * root))


def gaussian(n: int, d: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + shift)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(2, 8), st.integers(0, 1000), st.floats(-5, 5))
def test_agrees_with_the_closed_form(d: int, seed: int, shift: float) -> None:
    a, b = gaussian(60, d, seed), gaussian(80, d, seed + 1, shift)
    found = FrechetReference([b[:30], b[30:]], d)
    assert found.distance(a) == pytest.approx(closed_form(a.numpy(), b.numpy()), rel=1e-6)


def test_zero_to_itself_and_the_squared_shift_of_the_mean() -> None:
    a = gaussian(200, 6, 0)
    target = FrechetReference([a], 6)
    assert target.distance(a) == pytest.approx(0, abs=1e-6)
    assert target.distance(a + 2) == pytest.approx(4 * 6, rel=1e-6)
    assert target.distance(a) == pytest.approx(0, abs=1e-6)  # nothing is left of the last one


@pytest.mark.parametrize(("n", "d", "rtol"), [(90, 5, 1e-6), (12, 30, 1e-3)])  # the latter with singular covariances
def test_what_is_left_out_is_what_the_rest_gives(n: int, d: int, rtol: float) -> None:
    """Moments with a block taken off against torchmetrics on the rows that are left."""
    a, b = gaussian(n, d, 1), gaussian(n + 5, d, 2)
    target, blocks = FrechetReference([b], d), np.arange(n) % 3
    expected = [target.distance(a[torch.from_numpy(blocks != block)]) for block in range(3)]
    np.testing.assert_allclose(target.left_out(a, blocks), expected, rtol=rtol)


def test_moments_add_and_take_off() -> None:
    a, b = gaussian(20, 4, 0), gaussian(30, 4, 1)
    both = Moments.of(a) + Moments.of(b)
    rows = torch.cat([a, b]).numpy()
    np.testing.assert_allclose(both.mean, rows.mean(0))
    np.testing.assert_allclose(both.covariance, np.cov(rows, rowvar=False))
    np.testing.assert_allclose((both - Moments.of(b)).covariance, np.cov(a.numpy(), rowvar=False))


def test_the_interval_has_the_width_of_repeated_draws() -> None:
    """Standard error of the jackknife against the spread of the distance over 100 new sets."""
    rng = np.random.default_rng(0)
    target = FrechetReference([torch.from_numpy(rng.normal(size=(20_000, 4)))], 4)
    found, widths = [], []
    for _ in range(100):
        drawn = torch.from_numpy(rng.normal(size=(400, 4)) * [1, 1, 1.5, 2] + 0.5)
        found.append(target.distance(drawn))
        low, high = jackknife(found[-1], target.left_out(drawn, np.arange(400) % 20))
        assert low < found[-1] < high
        widths.append((high - low) / 2 / 2.093)  # t with 19 degrees of freedom
    assert np.mean(widths) == pytest.approx(np.std(found), rel=0.25)


def test_jackknife_of_a_mean_is_the_interval_of_student() -> None:
    from scipy.stats import t

    values = np.random.default_rng(0).normal(size=12)
    left_out = np.array([np.delete(values, i).mean() for i in range(12)])
    expected = t.interval(0.95, 11, values.mean(), values.std(ddof=1) / np.sqrt(12))
    np.testing.assert_allclose(jackknife(values.mean(), left_out), expected)


# ---- drawn images ----------------------------------------------------------------------------------------------


class Colours:
    """Mean and spread of each channel: six features."""

    name, preprocessing, dim, fingerprint = "colours", "none", 6, None

    def encode(self, images) -> torch.Tensor:
        pixels = np.stack([np.asarray(image, dtype=np.float64).reshape(-1, 3) / 255 for image in images])
        return torch.from_numpy(np.concatenate([pixels.mean(1), pixels.std(1)], axis=1))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Drawn]]:
    folder = tmp_path_factory.mktemp("fid")
    pixels = (portraits.sample(96, seed=1).images * 255).byte().permute(0, 2, 3, 1).numpy()
    records = []
    for i, image in enumerate(pixels):
        variant, concept, seed = ("none", "cali")[i // 48], "abcdef"[i % 6], i % 48 // 6
        records.append(Drawn(f"{variant}-{concept}-{seed}.png", variant, f"A photo of {concept}.", concept, seed))
        image = image // 2 if variant == "cali" else image
        Image.fromarray(image).save(folder / records[-1].path)
    return folder, records


def real() -> list[Image.Image]:
    pixels = (portraits.sample(60, seed=2).images * 255).byte().permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(image) for image in pixels]


def fid(records, folder, extractor, **options):
    own = {name: options.pop(name) for name in Fid.model_fields if name in options}
    return Fid.build(own).measure(SharedImages(records, folder), extractor, task="t", **options)


@few
def test_variants_against_real_images(drawn) -> None:
    folder, records = drawn
    part = fid(records, folder, Colours(), reference=iter(real()), reference_name="renders")
    none, cali = part.rows
    features = {
        v: np.concatenate([Colours().encode([Image.open(folder / r.path)]) for r in records if r.variant == v])
        for v in ("none", "cali")
    }
    reference = Colours().encode(real()).numpy()
    assert none.value == pytest.approx(closed_form(features["none"], reference), rel=1e-4)
    assert cali.value == pytest.approx(closed_form(features["cali"], reference), rel=1e-4)
    assert cali.change[0] == pytest.approx(cali.value - none.value)
    assert cali.change[1] < cali.change[0] < cali.change[2]
    assert cali.change[1] > 0  # darker images are further away, and the jackknife is sure of it
    assert none.change is None
    assert none.interval[0] <= none.value <= none.interval[1]
    assert none.n == {"images": 48, "reference images": 60, "blocks": 6}
    assert part.provenance.settings["reference"] == "renders"
    assert part.provenance.settings["left out in turn"] == "prompts"


@few
def test_the_change_is_paired(drawn) -> None:
    """The same images under another name: no change, and no doubt about it."""
    folder, records = drawn
    none = [r for r in records if r.variant == "none"]
    twins = [replace(r, variant="twin") for r in none]
    part = fid([*none, *twins], folder, Colours(), reference=real())
    assert part.rows[1].change == pytest.approx((0, 0, 0), abs=1e-12)
    assert part.rows[1].interval[1] > part.rows[1].value > 1e-4


@few
def test_without_real_images_the_unprojected_ones_are_the_reference(drawn) -> None:
    folder, records = drawn
    part = fid(records, folder, Colours(), blocks=3, batch_size=7)
    (cali,) = part.rows
    assert (cali.method, cali.change, cali.n["blocks"]) == ("cali", None, 3)
    features = [
        np.concatenate([Colours().encode([Image.open(folder / r.path)]) for r in records if r.variant == v])
        for v in ("cali", "none")
    ]
    assert cali.value == pytest.approx(closed_form(*features), rel=1e-4)
    assert part.provenance.settings["reference"] == "the images of the unprojected pipeline"


@few
def test_one_prompt_leaves_out_images(drawn) -> None:
    folder, records = drawn
    of_one = [r for r in records if r.concept == "a"]
    part = fid(of_one, folder, Colours(), reference=real())
    assert part.rows[0].n["blocks"] == 8
    assert part.provenance.settings["left out in turn"] == "images of the one prompt"


def test_few_images_are_said(drawn) -> None:
    with pytest.warns(VldebiasWarning, match=r"FID of 48 images to 60: fewer than 2048 bias it upwards; compare"):
        fid(drawn[1], drawn[0], Colours(), reference=real())
    model, preprocess, _ = load_clip()
    encoder = image_encoder(model, preprocess)
    with pytest.warns(VldebiasWarning, match=r"with 256 dimensions their covariance is singular"):
        part = fid(drawn[1], drawn[0], encoder, reference=real(), blocks=3)
    assert part.rows[1].value > part.rows[0].value > 0
    assert part.provenance.settings["dimensions"] == encoder.dim == 256


@few
@pytest.mark.parametrize(
    ("select", "options", "text"),
    [
        (lambda r: r.variant == "none", {"reference": None}, r"compared with those of other variants, got \['none'\]"),
        (lambda r: r.variant == "cali", {"reference": None}, r"got \['cali'\]; draw both, or give images"),
        (
            lambda r: r.seed == 0 and r.concept == "a",
            {},
            "1 images were drawn under every variant; expected at least 4",
        ),
        (lambda r: (r.concept == "a") == (r.variant == "none"), {}, "0 images were drawn under every variant"),
        (lambda r: True, {"blocks": 1}, "blocks: Input should be greater than or equal to 2, got 1"),
        (lambda r: True, {"reference": []}, "expected two or more images in the reference, got 0"),
    ],
)
def test_errors(drawn, select, options: dict, text: str) -> None:
    chosen = [record for record in drawn[1] if select(record)]
    with pytest.raises(InvalidInputError, match=text):
        fid(chosen, drawn[0], Colours(), **{"reference": real()} | options)


def test_features_that_do_not_fit() -> None:
    with pytest.raises(InvalidInputError, match=r"features: expected finite \(n, 3\), got \(4, 2\)"):
        FrechetReference([torch.ones(4, 2)], 3)
    target = FrechetReference([gaussian(9, 3, 0)], 3)
    with pytest.raises(InvalidInputError, match=r"expected finite \(n, 3\)"):
        target.distance(torch.full((4, 3), float("nan")))
    with pytest.raises(InvalidInputError, match="expected two or more images, got 1"):
        target.distance(torch.ones(1, 3))


# ---- Inception -------------------------------------------------------------------------------------------------


def test_inception_offline_says_what_to_do(monkeypatch) -> None:
    import torch_fidelity.feature_extractor_inceptionv3 as inception

    def offline(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(inception, "load_state_dict_from_url", offline)
    with pytest.raises(
        InvalidInputError, match=r"cannot be had: .*no network.*Offline, pass a file.*features of a CLIP"
    ):
        InceptionFeatures()


def test_inception_without_torch_fidelity(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'vldebias\[fid\]'"):
        InceptionFeatures()


def test_inception_weights_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"w.pth: no such file; expected weights-inception"):
        InceptionFeatures(tmp_path / "w.pth")


@pytest.mark.slow
def test_inception_from_a_file(tmp_path: Path, monkeypatch) -> None:
    """Random weights in the layout of the real ones: images of different sizes; features are torchmetrics' own."""
    import torch_fidelity.feature_extractor_inceptionv3 as inception
    from torchmetrics.image.fid import FrechetInceptionDistance

    weights = tmp_path / "weights.pth"
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Module, "load_state_dict", lambda *_, **__: None)
        patch.setattr(inception, "load_state_dict_from_url", lambda *_, **__: {})
        torch.save(FrechetInceptionDistance(feature=2048).inception.state_dict(), weights)
    features = InceptionFeatures(weights)
    images = [
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (s, s, 3), dtype=np.uint8)) for s in (32, 32, 48)
    ]
    found = features.encode(images)
    assert found.shape == (3, features.dim)
    metric = FrechetInceptionDistance(feature=2048, feature_extractor_weights_path=str(weights))
    pixels = torch.from_numpy(np.array(images[2])).permute(2, 0, 1)[None]
    torch.testing.assert_close(found[2:], metric.inception(pixels), rtol=1e-4, atol=1e-4)
    assert features.fingerprint is not None
