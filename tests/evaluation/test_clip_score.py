"""CLIPScore against its definition and against torchmetrics."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vldebias.errors import InvalidInputError
from vldebias.evaluation.clip_score import SCALES, ClipScore, clip_score
from vldebias.evaluation.drawing import SharedImages
from vldebias.evaluation.plan import Drawn
from vldebias.evaluation.texts import Texts
from vldebias.hosts.images import image_encoder
from vldebias.miniature import load_clip, load_transformers_clip, portraits

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


@pytest.mark.parametrize("scale", SCALES)
def test_is_the_cut_off_cosine(scale: str) -> None:
    images, texts = torch.randn(20, 6), torch.randn(20, 6) * 3
    cosines = [float(i @ t / (i.norm() * t.norm())) for i, t in zip(images, texts, strict=True)]
    expected = [{"percent": 100, "hessel": 2.5}[scale] * max(c, 0) for c in cosines]
    np.testing.assert_allclose(clip_score(images, texts, scale=scale), expected, atol=1e-5)
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
    figures, protocol = evaluate(clip, drawn, records=records)
    assert figures["none"].n == {"prompts": 1, "images": 3}
    assert figures["none"].interval[0] < figures["none"].value < figures["none"].interval[1]
    assert protocol.settings["images left out (not drawn under every variant)"] == 1
    assert protocol.settings["resampled"] == "images of the one prompt"


def test_prefix_and_scale(clip, drawn) -> None:
    plain = evaluate(clip, drawn)[0]["none"].value
    assert evaluate(clip, drawn, scale="hessel")[0]["none"].value == pytest.approx(plain / 40)
    assert evaluate(clip, drawn, prefix="An old ")[0]["none"].value != pytest.approx(plain)


@pytest.mark.parametrize(
    ("images", "texts", "options", "text"),
    [
        ((2, 3), (3, 3), {}, r"expected features \(n, d\) of images and of texts, got \(\(2, 3\), \(3, 3\)\)"),
        ((3,), (3,), {}, r"expected features \(n, d\)"),
        ((2, 3), (2, 3), {"scale": "x"}, "scale: expected one of percent, hessel, got 'x'"),
    ],
)
def test_errors(images: tuple, texts: tuple, options: dict, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        clip_score(torch.ones(images), torch.ones(texts), **options)


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_features_without_a_cosine(bad: float) -> None:
    with pytest.raises(InvalidInputError, match="zero or not finite have no cosine"):
        clip_score(torch.tensor([[1.0, 1.0], [bad, bad]]), torch.ones(2, 2))


def test_files_and_records_that_do_not_fit(clip, drawn, tmp_path: Path) -> None:
    folder, records = drawn
    apart = [records[0], records[-1]]
    with pytest.raises(InvalidInputError, match=r"no prompt and seed was drawn under every variant \['none', 'cali'\]"):
        evaluate(clip, drawn, records=apart)
    with pytest.raises(InvalidInputError, match=r"none-nurse-0.png: cannot be read as an image"):
        evaluate(clip, (tmp_path, records[:1]))
    (tmp_path / "none-nurse-0.png").write_bytes((folder / "none-nurse-0.png").read_bytes()[:90])
    with pytest.raises(InvalidInputError, match=r"none-nurse-0.png: cannot be read as an image.*draw it again"):
        evaluate(clip, (tmp_path, records[:1]))
    with pytest.raises(InvalidInputError, match="batch_size: Input should be greater than or equal to 1, got 0"):
        evaluate(clip, drawn, batch_size=0)
