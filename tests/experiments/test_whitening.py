"""The span of cross-attention whitened: what it adds to "set" against LEACE of whole rows, and its
hooks on the miniature."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from eval.experiments.whitening import Spread, attached, fit
from vldebias.api import debias, fit_projections
from vldebias.methods import CrossAttention
from vldebias.methods.baselines.erasure import leace
from vldebias.methods.reference import Labelled
from vldebias.miniature import load_pipeline
from vldebias.projection.cross_attention import CrossAttentionEdit, span, steer
from vldebias.prompts import make_prompt_set


def test_set_and_what_is_added_are_the_least_change_that_erases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of three values that correlate with what lies outside of their span."""
    monkeypatch.setattr(
        "sklearn.covariance.ledoit_wolf", lambda rows: (np.cov(rows.T, bias=True), 0.0)
    )
    generator = torch.Generator().manual_seed(0)
    codes = torch.arange(300) % 3
    mixing = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    rows = torch.randn(300, 8, generator=generator, dtype=torch.float64) @ mixing
    rows[:, :3] += one_hot(codes, 3).double()
    means = torch.stack([rows[codes == code].mean(0) for code in range(3)])
    center = means.mean(0)
    within = rows - means[codes]
    basis = span(means - center)
    target = (center @ basis) @ basis.T
    plainly_set = steer(rows[None], basis, target[None], "set", 1.0)[0]
    spread = Spread(center, within.T @ within / len(rows))
    whitened = plainly_set + spread.correction(rows, basis)
    left, right, shift = leace(Labelled(rows, codes[:, None]))
    torch.testing.assert_close(whitened, rows - (rows @ right) @ left.T + shift)
    assert not torch.allclose(whitened, plainly_set)
    # With one variance in all directions nothing is left to explain.
    sphere = Spread(center, torch.eye(8, dtype=torch.float64))
    torch.testing.assert_close(sphere.correction(rows, basis), torch.zeros_like(rows))


@pytest.mark.slow
def test_the_hooks_whiten_what_the_edit_has_set() -> None:
    pipe = load_pipeline()
    pipe.set_progress_bar_config(disable=True)
    ages = make_prompt_set("age", {"young": ["young"], "old": ["old"]}, ("baker", "judge"))
    (edit,) = fit_projections(pipe, ages, method=CrossAttention(concepts=2, steps=2)).values()
    assert isinstance(edit, CrossAttentionEdit)
    texts = {value: [f"A photo of a {value} baker."] for value in edit.values}
    layers = [name for name, _ in edit.layers]
    spreads = fit(pipe, layers, texts, 2)
    assert {layer for _, layer in spreads} == set(layers)
    spheres = {
        place: Spread(spread.center, torch.eye(len(spread.center), dtype=torch.float64))
        for place, spread in spreads.items()
    }

    def picture() -> np.ndarray:
        generator = torch.Generator().manual_seed(1)
        prompt = "A photo of a judge."
        output = pipe(prompt, num_inference_steps=2, generator=generator, output_type="np")
        pixels: np.ndarray = output.images
        return pixels

    bare = picture()
    with debias(pipe, edit) as attachment:
        attachment.seed = 0
        plainly_set = picture()
    with attached(pipe, edit, spheres, 0):
        np.testing.assert_allclose(picture(), plainly_set, atol=1e-4)
    with attached(pipe, edit, spreads, 0):
        assert np.abs(picture() - plainly_set).max() > 1e-2
    np.testing.assert_array_equal(picture(), bare)
