"""Unified concept editing: the weights of its authors' formula, of one state or of all places, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.errors import InvalidInputError
from vldebias.hosts import resolve
from vldebias.methods import UCE, UCEAll
from vldebias.prompts import load_prompts

SET = load_prompts("professions-gender")
FEW = replace(SET, classes=SET.classes[:4], class_names=SET.class_names[:4], groups=SET.groups[:6], held_out_groups=())
PROMPTS = ["A photo of a nurse.", "A photo of a web developer."]


def encode(pipe, prompts: Sequence[str] = PROMPTS) -> Tensor:
    with torch.no_grad():
        return pipe.encode_prompt(list(prompts), "cpu", 1, False)[0]


def test_the_end_is_found_where_the_tokenizer_says(pipe) -> None:
    prompts = [*PROMPTS, "", "a painting of a very old and a very young judge in the rain"]
    ids = pipe.tokenizer(prompts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    expected = 1 + (ids[:, 1:] == pipe.tokenizer.eos_token_id).int().argmax(1)
    assert torch.equal(resolve(pipe).sequences(prompts, "sequence")[1], expected)


SCALES = {FEW.classes[0]: (0.3, -0.3), FEW.classes[1]: (-0.1, 0.4)}


class TestUCE:
    """Against the weights by the authors' sums, layer by layer."""

    def weights(self, pipe, layer, preserve: Sequence[str], erase: dict[str, str], places: int | None) -> Tensor:
        old, eye = layer.weight.double(), torch.eye(layer.in_features, dtype=torch.float64)

        def states(text: str) -> Tensor:
            """Of the last token, and perhaps of all places behind it."""
            ids = pipe.tokenizer(text, padding="max_length", truncation=True, return_tensors="pt")
            last = int(ids.attention_mask.sum()) - 2
            with torch.no_grad():
                return pipe.text_encoder(ids.input_ids)[0][0, last : last + (places or 99)].double()

        one, two = 0.5 * old, 0.5 * eye
        values = [states("a male person"), states("a female person")]
        for concept, alpha in SCALES.items():
            for c, *a in zip(states(concept), *values, strict=False):  # as far as all of them go
                v = old @ c + alpha[0] * old @ a[0] + alpha[1] * old @ a[1]
                one, two = one + torch.outer(v, c), two + torch.outer(c, c)
        for text, guide in erase.items():
            for c, g in zip(states(text), states(guide), strict=False):
                one, two = one + torch.outer(old @ g, c), two + torch.outer(c, c)
        for text in preserve:
            for c in states(text):
                one, two = one + torch.outer(old @ c, c), two + torch.outer(c, c)
        return one @ torch.linalg.inv(two)

    @pytest.mark.filterwarnings("ignore:.*two branches of guidance")
    @pytest.mark.parametrize("method", [UCE, UCEAll])
    @pytest.mark.parametrize(
        ("preserve", "erase"),
        [((), {}), (("A photo of a cat.",), {}), ((), {"A photo of a duck.": "A photo of a bird."})],
    )
    def test_merged_weights_are_those_of_the_formula(
        self, pipe, method: type[UCE], preserve: tuple[str, ...], erase: dict[str, str]
    ) -> None:
        import copy

        twin = copy.deepcopy(pipe)
        layers = [m for n, m in twin.unet.named_modules() if n.endswith(("attn2.to_k", "attn2.to_v"))]
        expected = [self.weights(twin, layer, preserve, erase, method.places) for layer in layers]
        attachment = debias(twin, FEW, method=method(SCALES, preserve, erase=erase))
        attachment.merge()
        assert len(layers) > 2
        for layer, weight in zip(layers, expected, strict=True):
            torch.testing.assert_close(layer.weight.double(), weight, rtol=1e-4, atol=1e-4)

    def test_one_state_of_a_concept_is_a_much_smaller_edit_than_all(self, pipe) -> None:
        one, every = (fit_projections(pipe, FEW, method=method(SCALES))["sequence"] for method in (UCE, UCEAll))
        sizes = [float((edit.matrix() - torch.eye(edit.dim)).norm()) for edit in (one, every)]
        assert sizes[0] < sizes[1]
        assert (one.method, every.method) == ("uce", "uce-all")

    def test_scales_move_by_what_is_missing(self) -> None:
        first, second = SCALES
        after = UCE(SCALES).update({first: (0.9, 0.1), second: (0.52, 0.48)})
        assert after.scales[first] == pytest.approx((-0.1, 0.1))
        assert after.scales[second] == SCALES[second]

    def test_what_it_refuses(self, pipe) -> None:
        with pytest.raises(InvalidInputError, match="expected concepts with their scales, and positive weights, got 0"):
            UCE({})
        with pytest.raises(InvalidInputError, match="expected 2 scales for each concept"):
            fit_projections(pipe, FEW, method=UCE({"A photo of a nurse.": (0.1,)}))
