"""Test on a GPU what the CPU tests check: precision, resuming and identical pictures. The tests are
skipped without a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vldebias
from vldebias import miniature
from vldebias.errors import ProjectionMismatchError
from vldebias.losses import info_nce, rince
from vldebias.training.loop import Run
from vldebias.training.run import train_model
from vldebias.training.settings import load_settings

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: nothing is tried on one"
)
LOW = [torch.float32, torch.float16, torch.bfloat16]
PROMPTS = ["a photo of a doctor", "a nurse in a park", "a female doctor"]


def pictures(pipe: Any, prompts: list[str], **call: Any) -> Any:
    noise = [
        torch.Generator("cuda").manual_seed(i)
        for i in range(len(prompts) * call.get("num_images_per_prompt", 1))
    ]
    return pipe(prompts, num_inference_steps=2, output_type="pt", generator=noise, **call).images


def texts(model: Any, tokenizer: Any, prompts: list[str] = PROMPTS) -> torch.Tensor:
    with torch.no_grad():
        return model.encode_text(tokenizer(prompts).cuda(), normalize=True)


def fitted(model: Any, tokenizer: Any) -> Any:
    return vldebias.fit_projections(
        model, "professions-gender", method="cali", tokenizer=tokenizer
    ).only


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_an_edit_fitted_on_the_cpu_matches_the_model_on_the_gpu(dtype: torch.dtype) -> None:
    model, _, tokenizer = miniature.load_clip()
    edit = fitted(model, tokenizer)
    on_gpu = model.to("cuda", dtype)
    before = texts(on_gpu, tokenizer)
    with vldebias.debias(on_gpu, edit, tokenizer=tokenizer):
        after = texts(on_gpu, tokenizer)
    assert torch.equal(after[2], before[2])
    assert not torch.equal(after[:2], before[:2])
    expected = torch.nn.functional.normalize(edit(before[:2].double().cpu()), dim=-1)
    torch.testing.assert_close(
        after[:2].double().cpu(), expected, atol=8e-3 if dtype != torch.float32 else 1e-5, rtol=0
    )
    assert torch.equal(texts(on_gpu, tokenizer), before), "no trace remains"
    before = before.double().cpu()
    assert fitted(on_gpu, tokenizer)(before).sub(edit(before)).norm(dim=-1).max() < 0.05


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_changed_layer_settings_are_detected_on_the_gpu(dtype: torch.dtype) -> None:
    model, _, tokenizer = miniature.load_clip()
    edit = fitted(model, tokenizer)
    for layer in model.modules():
        if isinstance(layer, torch.nn.LayerNorm):
            layer.eps = 0.1
    with pytest.raises(ProjectionMismatchError):
        vldebias.debias(model.to("cuda", dtype), edit, tokenizer=tokenizer)


@pytest.mark.parametrize("dtype", LOW[:2], ids=str)
def test_a_pipeline_has_three_states_on_the_gpu(dtype: torch.dtype) -> None:
    pipe = miniature.load_pipeline().to("cuda", dtype)
    before = pictures(pipe, PROMPTS)
    attachment = vldebias.debias(pipe, "professions-gender", method="cali")
    edited = pictures(pipe, PROMPTS)
    assert not torch.equal(edited[:2], before[:2])
    with attachment.disabled():
        assert torch.equal(pictures(pipe, PROMPTS), before)
    attachment.strength = 0
    assert torch.equal(pictures(pipe, PROMPTS), before)
    attachment.remove()
    assert torch.equal(pictures(pipe, PROMPTS), before)


@pytest.mark.parametrize("dtype", LOW[:2], ids=str)
def test_values_depend_on_generators_and_pictures_on_the_written_prompts(
    dtype: torch.dtype,
) -> None:
    pipe = miniature.load_pipeline().to("cuda", dtype)
    with vldebias.debias(pipe, "professions-gender", method="balanced-prompts") as attachment:
        first = pictures(pipe, PROMPTS, num_images_per_prompt=2)
        values = attachment.sampled
        again = pictures(pipe, PROMPTS, num_images_per_prompt=2)
        assert attachment.sampled == values
        written = list(attachment.last_call.written)
    assert torch.equal(first, again)
    assert torch.equal(first, pictures(pipe, written))


def test_a_compiled_tower_is_edited_on_the_gpu() -> None:
    model, _, tokenizer = miniature.load_clip()
    model = model.cuda()
    with vldebias.debias(model, "professions-gender", method="cali", tokenizer=tokenizer):
        eager = texts(model, tokenizer)
        with torch.autocast("cuda", torch.bfloat16):
            assert texts(model, tokenizer).sub(eager).abs().max() < 0.05
        with torch.no_grad():
            compiled = torch.compile(model.encode_text)(tokenizer(PROMPTS).cuda(), True)
        torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "loss", [info_nce, lambda *args, **how: rince(*args, q=0.5, **how)], ids=["info_nce", "rince"]
)
def test_half_precision_losses_match_single_precision(loss: Any) -> None:
    torch.manual_seed(0)
    first, second = (
        torch.nn.functional.normalize(torch.randn(256, 64, device="cuda"), dim=-1) for _ in range(2)
    )
    for dtype in LOW[1:]:
        a = first.to(dtype).requires_grad_()
        b = second.to(dtype)
        value = loss(a, b, temperature=0.03)
        value.backward()
        exact = first.to(dtype).float().requires_grad_()
        loss(exact, second.to(dtype).float(), temperature=0.03).backward()
        assert torch.isfinite(a.grad).all()
        assert (
            torch.nn.functional.cosine_similarity(
                a.grad.float().flatten(), exact.grad.flatten(), dim=0
            )
            > 0.999
        )


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_training_resumes_where_it_stopped(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {
        "items": 64,
        "val_items": 12,
        "batch_size": 8,
        "workers": 0,
        "score_pairs": False,
    }
    settings = load_settings(
        **small, steps=6, seed=4, precision=precision, save_every=0, ema=0.9, temperature=0.2
    )
    train_model(settings, tmp_path / "whole")
    update = Run.update
    calls = iter(range(100))

    def fifth_fails(self: Any, *args: Any, **how: Any) -> Any:
        if next(calls) == 4:
            raise RuntimeError("killed")
        return update(self, *args, **how)

    monkeypatch.setattr(Run, "update", fifth_fails)
    with pytest.raises(RuntimeError, match="killed"):
        train_model(settings, tmp_path / "killed")
    monkeypatch.undo()
    train_model(settings, tmp_path / "killed")
    uninterrupted, resumed = (
        load_file(tmp_path / name / "model" / "clip.safetensors") for name in ("whole", "killed")
    )
    for name in uninterrupted:
        torch.testing.assert_close(resumed[name], uninterrupted[name], atol=1e-6, rtol=1e-5)
