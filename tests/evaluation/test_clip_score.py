"""CLIPScore and FID against their definitions and against torchmetrics."""

import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.linalg import sqrtm

from eval.miniature import portraits
from eval.miniature.twin import load_transformers_clip
from vldebias.errors import InvalidInputError, MissingPackageError, VldebiasWarning
from vldebias.evaluation.drawing import Drawn
from vldebias.evaluation.scores import ClipScore, Fid, SharedImages, clip_score
from vldebias.evaluation.task import Texts
from vldebias.hosts.images import image_encoder
from vldebias.miniature import load_clip

PROMPTS = {"nurse": "A photo of a nurse.", "chef": "A photo of a chef.", "pilot": "A photo of a pilot."}


@pytest.fixture(scope="module")
def clip():
    return load_clip()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Drawn]]:
    """Portraits of the right profession in the place of drawn images: 3 prompts, 4 seeds, 2 variants."""
    folder = tmp_path_factory.mktemp("drawn")
    how = {"seed": 1, "balanced": True, "life": portraits.STUDIO}
    shown = torch.stack([portraits.sample(8, professions=[c], **how).images for c in PROMPTS])  # (3, 8, 3, h, w)
    world = shown.unflatten(1, (2, 4)).transpose(0, 1).flatten(0, 2)
    pixels = (world * 255).round().byte().permute(0, 2, 3, 1).numpy()
    records = [
        Drawn(f"{variant}-{concept}-{seed}.png", variant, prompt, concept, seed)
        for variant in ("none", "cali")
        for concept, prompt in PROMPTS.items()
        for seed in range(4)
    ]
    for record, image in zip(records, pixels, strict=True):
        Image.fromarray(image).save(folder / record.path)
    return folder, records


def evaluate(clip, drawn, **options):
    model, preprocess, tokenizer = clip
    folder, records = drawn
    texts, encoder = Texts(model, tokenizer), image_encoder(model, preprocess)
    options = {"task": "generation", "resamples": 100} | options
    score = ClipScore.build({name: options.pop(name) for name in ClipScore.model_fields if name in options})
    part = score.measure(SharedImages(options.pop("records", records), folder), encoder, texts, **options)
    return {row.method: row for row in part.rows}, part.provenance


def test_is_the_cut_off_cosine() -> None:
    images, texts = torch.randn(20, 6), torch.randn(20, 6) * 3
    cosines = [float(i @ t / (i.norm() * t.norm())) for i, t in zip(images, texts, strict=True)]
    expected = [100 * max(c, 0) for c in cosines]
    np.testing.assert_allclose(clip_score(images, texts), expected, atol=1e-5)
    assert min(cosines) < 0 == clip_score(images, texts).min()


def test_agrees_with_torchmetrics(drawn) -> None:
    """The same model in transformers, through torchmetrics' own processing of images and texts."""
    from torchmetrics.functional.multimodal import clip_score as oracle
    from transformers import CLIPProcessor

    model, tokenizer, processor = load_transformers_clip()
    folder, records = drawn

    class Tensors(torch.nn.Module):
        """What torchmetrics expects: tensors, which newer transformers wrap in an output."""

        def __init__(self) -> None:
            super().__init__()
            self.config = model.config

        def get_image_features(self, pixels):
            found = model.get_image_features(pixels)
            return getattr(found, "pooler_output", found)

        def get_text_features(self, ids, mask):
            found = model.get_text_features(input_ids=ids, attention_mask=mask)
            return getattr(found, "pooler_output", found)

    images = [torch.from_numpy(np.array(Image.open(folder / r.path))).permute(2, 0, 1) for r in records]
    for scored in (records[:1], records[:4]):
        theirs = oracle(
            images[: len(scored)],
            [r.prompt for r in scored],
            model_name_or_path=lambda: (Tensors(), CLIPProcessor(processor, tokenizer)),
        )
        texts, encoder = Texts(model, tokenizer), image_encoder(model, processor)
        part = ClipScore().measure(SharedImages(scored, folder), encoder, texts, task="t", resamples=10)
        assert part.rows[0].value == pytest.approx(float(theirs.detach()), abs=1e-3)
        assert part.rows[0].value > 5


def test_means_over_prompts_and_the_paired_change(clip, drawn) -> None:
    model, preprocess, tokenizer = clip
    folder, records = drawn
    figures, protocol = evaluate(clip, drawn)
    with torch.no_grad():
        score = {}
        for record in records:
            image = model.encode_image(preprocess(Image.open(folder / record.path))[None], normalize=True)
            text = model.encode_text(tokenizer([record.prompt]), normalize=True)
            score.setdefault((record.variant, record.concept), []).append(100 * max(float(image @ text.T), 0))
    mean = {v: np.mean([np.mean(score[v, c]) for c in PROMPTS]) for v in ("none", "cali")}
    assert figures["none"].value == pytest.approx(mean["none"], abs=1e-3)
    assert figures["cali"].change[0] == pytest.approx(mean["cali"] - mean["none"], abs=1e-3)
    assert figures["cali"].n == {"prompts": 3, "images": 12}
    assert figures["cali"].better == "higher"
    assert protocol.settings["scale"] == "percent: 100 max(cos, 0)"
    assert protocol.settings["preprocessing"].startswith("Preprocess(")


def test_batches_do_not_matter(clip, drawn) -> None:
    whole, small = evaluate(clip, drawn)[0], evaluate(clip, drawn, batch_size=5)[0]
    assert small["cali"].value == pytest.approx(whole["cali"].value, abs=1e-4)


def test_one_prompt_is_resampled_over_images_and_others_are_left_out(clip, drawn) -> None:
    records = [r for r in drawn[1] if r.concept == "nurse" and not (r.variant == "cali" and r.seed == 3)]
    figures, _ = evaluate(clip, drawn, records=records)
    assert figures["none"].n == {"prompts": 1, "images": 3}
    assert figures["none"].interval[0] < figures["none"].value < figures["none"].interval[1]


@pytest.mark.parametrize(
    ("images", "texts", "text"),
    [
        ((2, 3), (3, 3), r"expected features \(n, d\) of images and of texts, got \(\(2, 3\), \(3, 3\)\)"),
        ((3,), (3,), r"expected features \(n, d\)"),
    ],
)
def test_errors(images: tuple, texts: tuple, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        clip_score(torch.ones(images), torch.ones(texts))


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_features_without_a_cosine(bad: float) -> None:
    with pytest.raises(InvalidInputError, match="zero or not finite have no cosine"):
        clip_score(torch.tensor([[1.0, 1.0], [bad, bad]]), torch.ones(2, 2))


def test_files_and_records_that_do_not_fit(clip, drawn, tmp_path: Path) -> None:
    folder, records = drawn
    apart = [records[0], records[-1]]
    with pytest.raises(InvalidInputError, match=r"no prompt and seed was drawn under every variant \['none', 'cali'\]"):
        evaluate(clip, drawn, records=apart)
    with pytest.raises(InvalidInputError, match=r"none-nurse-0.png.*cannot be read as an image"):
        evaluate(clip, (tmp_path, records[:1]))
    (tmp_path / "none-nurse-0.png").write_bytes((folder / "none-nurse-0.png").read_bytes()[:90])
    with pytest.raises(InvalidInputError, match=r"none-nurse-0.png.*cannot be read as an image.*draw it again"):
        evaluate(clip, (tmp_path, records[:1]))
    with pytest.raises(InvalidInputError, match="batch_size: Input should be greater than or equal to 1; got 0"):
        evaluate(clip, drawn, batch_size=0)


# ---- FID -----------------------------------------------------------------------------------------------------


class Colours:
    """Mean and spread of each channel: six features."""

    name, preprocessing, dim, fingerprint = "colours", "none", 6, None

    def encode(self, images) -> torch.Tensor:
        pixels = np.stack([np.asarray(image, dtype=np.float64).reshape(-1, 3) / 255 for image in images])
        return torch.from_numpy(np.concatenate([pixels.mean(1), pixels.std(1)], axis=1))


@pytest.mark.filterwarnings("ignore:FID of:vldebias.errors.VldebiasWarning")
def test_fid_is_the_distance_of_gaussians_to_the_images_of_none(drawn) -> None:
    folder, records = drawn
    part = Fid(batch_size=5).measure(SharedImages(records, folder), Colours(), task="t")
    (cali,) = part.rows
    images = {v: [Image.open(folder / r.path) for r in records if r.variant == v] for v in ("none", "cali")}
    a, b = (Colours().encode(images[v]).numpy() for v in ("cali", "none"))
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = np.real(sqrtm(ca @ cb))
    assert cali.value == pytest.approx(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb - 2 * root), rel=1e-4)
    assert (cali.method, cali.change, cali.n["reference images"]) == ("cali", None, 12)


def test_fid_of_few_images_is_said_and_of_none_refused(drawn) -> None:
    folder, records = drawn
    with pytest.warns(VldebiasWarning, match="FID of 12"):
        Fid().measure(SharedImages(records, folder), Colours(), task="t")
    for chosen in ([r for r in records if r.variant == "none"], [records[0], records[12]]):
        with pytest.raises(InvalidInputError, match="FID: expected two or more images"):
            Fid().measure(SharedImages(chosen, folder), Colours(), task="t")


def test_inception_offline_or_without_its_package_says_what_to_do(drawn, monkeypatch) -> None:
    import torch_fidelity.feature_extractor_inceptionv3 as inception

    def offline(*_, **__):
        raise urllib.error.URLError("no network")

    folder, records = drawn
    monkeypatch.setattr(inception, "load_state_dict_from_url", offline)
    with pytest.raises(InvalidInputError, match=r"cannot be had: .*no network"):
        Fid(features="inception").measure(SharedImages(records, folder), task="t")
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(MissingPackageError, match="fid"):
        Fid(features="inception").measure(SharedImages(records, folder), task="t")
