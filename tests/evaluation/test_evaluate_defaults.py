"""Without `methods=` what a user has is measured: none, the default, and the attachment that the model carries."""

import warnings

import numpy as np
import pytest
import torch

import vldebias
from vldebias.evaluation.result import Result
from vldebias.miniature import load_clip

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")  # images are noise here


def measured(model: object, **given: object) -> Result:
    rng = np.random.default_rng(0)
    dim = vldebias.load_host("miniature").host.text_projection.shape[1]
    labels = {"gender": np.array(["female", "male"])[rng.integers(2, size=60)]}
    features = rng.standard_normal((60, dim)).astype(np.float32)
    return vldebias.evaluate(model, features, prompts="professions-gender", labels=labels, resamples=20, **given)


def test_a_bare_model_is_measured_with_the_default() -> None:
    model, _, tokenizer = load_clip()
    found = measured(model, tokenizer=tokenizer)
    assert {row.method for row in found.rows} == {"none", "default", "random"}


def test_the_attachment_that_the_model_carries_is_measured_by_name_and_strength() -> None:
    model, _, tokenizer = load_clip()
    bare = measured(model, tokenizer=tokenizer, methods=["cali"], strength=0.5)
    attachment = vldebias.debias(model, "professions-gender", method="cali", strength=0.5, tokenizer=tokenizer)
    tokens = tokenizer(["A photo of a nurse."])
    with torch.no_grad():
        before = model.encode_text(tokens)
    found = measured(model, tokenizer=tokenizer)
    assert {row.method for row in found.rows} == {"none", "default", "attached cali", "random"}
    for row in found.rows:
        if row.method in ("none", "attached cali"):
            name = row.method.removeprefix("attached ")
            same = bare.row(row.task, row.metric, name, subset=row.subset)
            assert (row.value, row.interval, row.strength) == (same.value, same.interval, same.strength)
    with torch.no_grad():
        assert torch.equal(model.encode_text(tokens), before), "it stays attached"
    attachment.remove()


@pytest.mark.parametrize("method", ["cali", "default", "orth"])
def test_with_a_reference_a_method_is_what_debias_attaches_with_it(method: str) -> None:
    model, _, tokenizer = load_clip()
    reference = np.random.default_rng(1).standard_normal((50, model.text_projection.shape[1])).astype(np.float32)
    edit = vldebias.fit_projection(model, "professions-gender", method=method, reference=reference, tokenizer=tokenizer)
    found = measured(model, tokenizer=tokenizer, methods=[method, edit], reference=reference)
    names = sorted({row.method for row in found.rows} - {"none", "random"}, key=lambda name: "fitted" in name)
    mine, attached = ([r.value for r in found.rows if r.method == name] for name in names)
    assert mine == attached
    assert mine != [r.value for r in found.rows if r.method == "none"]


def rows_about(mean: np.ndarray, n: int, seed: int) -> np.ndarray:
    """n rows around a mean (d,), which vary as noise does."""
    return mean + np.random.default_rng(seed).standard_normal((n, len(mean))) * 0.1


@pytest.mark.parametrize("shared", [True, False])
def test_features_that_share_a_mean_with_the_texts_are_of_their_model(shared: bool) -> None:
    """Photographs of CLIP vary along a few queries no more than elsewhere: that alone is no sign of another model."""
    d, prompts = 64, vldebias.load_prompts("professions-gender")
    mean, other = np.eye(d)[0], np.eye(d)[1]
    asked = [*prompts.classes, *prompts.spurious, *(text for group in prompts.groups for text in group)]
    rows = dict(zip(asked, rows_about(mean, len(asked), 1), strict=True))
    labels = {"gender": np.array(["female", "male"] * 30)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        features = rows_about(mean if shared else other, 60, 2).astype(np.float32)
        vldebias.evaluate(rows, features, prompts=prompts, labels={"gender": labels["gender"]}, methods=["none"])
    assert any("unaligned" in str(one.message) for one in caught) != shared
