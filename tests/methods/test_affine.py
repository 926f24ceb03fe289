"""Affine forms: what is set, to which level, at which tokens, and that the denoiser is balanced."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sdxl

from vldebias.api import debias, fit_projections
from vldebias.edit import Rows
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError
from vldebias.hosts import TextTable, resolve
from vldebias.methods import UCE, Affine, Balanced, Midpoint, Problem, load_edit
from vldebias.methods.affine import BEFORE
from vldebias.methods.balanced import PENALTIES, ridge
from vldebias.methods.steer import value_groups
from vldebias.prompts import load_prompts

SET = load_prompts("professions-gender")
FEW = replace(SET, classes=SET.classes[:4], class_names=SET.class_names[:4], groups=SET.groups[:6], held_out_groups=())
PROMPTS = ["A photo of a nurse.", "A photo of a web developer."]


@pytest.fixture(scope="module")
def pipe():
    from vldebias.miniature import load_pipeline

    made = load_pipeline()
    made.set_progress_bar_config(disable=True)
    return made


def encode(pipe, prompts: Sequence[str] = PROMPTS) -> Tensor:
    with torch.no_grad():
        return pipe.encode_prompt(list(prompts), "cpu", 1, False)[0]


def test_the_mean_state_of_the_values_is_the_level_at_every_place(pipe) -> None:
    """The law, against sums by hand: at each place from the end on, D^T z* = D^T mu; across D nothing moves."""
    (edit,) = fit_projections(pipe, FEW, method="midpoint").values()
    assert isinstance(edit, Affine)
    host, means, ends = resolve(pipe), [], []
    for value in zip(*value_groups(FEW), strict=True):
        tokens, end = host.sequences([text for group in value for text in group], "sequence")
        means.append([tokens[range(len(end)), end + k].mean(0) for k in range(-1, 3)])
        ends.append(tokens[range(len(end)), end].mean(0))
    direction = (ends[0] - ends[1]) / (ends[0] - ends[1]).norm()
    bare = encode(pipe)
    with debias(pipe, edit):
        moved = encode(pipe)
    _, at = host.sequences(PROMPTS, "sequence")
    for row, end in enumerate(at.tolist()):
        for place in range(-1, 3):
            midpoint = (means[0][place + 1] + means[1][place + 1]) / 2
            found = moved[row, end + place].double() @ direction
            torch.testing.assert_close(found, midpoint @ direction, rtol=1e-4, atol=1e-4)
        assert torch.equal(moved[row, : end - BEFORE], bare[row, : end - BEFORE])
    across = (moved - bare).double() - ((moved - bare).double() @ direction)[..., None] * direction
    assert float(across.abs().max()) < 1e-5


def test_the_end_is_found_where_the_tokenizer_says(pipe) -> None:
    prompts = [*PROMPTS, "", "a painting of a very old and a very young judge in the rain"]
    ids = pipe.tokenizer(prompts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    expected = 1 + (ids[:, 1:] == pipe.tokenizer.eos_token_id).int().argmax(1)
    assert torch.equal(resolve(pipe).sequences(prompts, "sequence")[1], expected)


def test_at_the_end_alone_the_words_of_a_prompt_keep_their_states(pipe) -> None:
    """Bit for bit before the end of the text; from there on it is the midpoint's, padding included."""
    prompts = [*PROMPTS, "", "a judge in the rain"]
    bare, found = encode(pipe, prompts), {}
    for method in ("midpoint", "midpoint-end"):
        with debias(pipe, FEW, method=method):
            found[method] = encode(pipe, prompts)
    ends = resolve(pipe).sequences(prompts, "sequence")[1].tolist()
    assert len(set(ends)) > 2
    for row, end in enumerate(ends):
        assert torch.equal(found["midpoint-end"][row, :end], bare[row, :end])
        assert torch.equal(found["midpoint-end"][row, end:], found["midpoint"][row, end:])
        assert not torch.equal(found["midpoint"][row, end - 1], bare[row, end - 1])
        assert (found["midpoint-end"][row, end:] != bare[row, end:]).any(-1).all()


def test_at_the_end_alone_a_pooled_state_is_moved_as_by_the_midpoint() -> None:
    """It is that of the end of the text."""
    pipe, pooled = sdxl(), []
    for method in (Midpoint(), Midpoint(tokens="end")):
        edit = fit_projections(pipe, FEW, method=method)["pooled"]
        pooled.append(edit(torch.arange(2.0 * edit.dim).reshape(2, -1)))
    assert torch.equal(*pooled)


@pytest.mark.parametrize("calibrated", [False, True])
def test_which_tokens_are_moved_is_kept(pipe, calibrated: bool, tmp_path) -> None:
    method = Midpoint(calibrated=calibrated, level=0.5, tokens="end").at(-0.5)
    assert (method.name, method.level) == ("cali-" * calibrated + "midpoint-end", -0.5)
    (edit,) = fit_projections(pipe, FEW, method=method).values()
    loaded = load_edit(edit.save_pretrained(tmp_path))
    with debias(pipe, edit):
        moved = encode(pipe)
    with debias(pipe, loaded):
        assert torch.equal(encode(pipe), moved)
    (whole,) = fit_projections(pipe, FEW, method=Midpoint(calibrated=calibrated, level=-0.5)).values()
    assert torch.equal(edit.levels, whole.levels[BEFORE:])
    with pytest.raises(InvalidInputError, match='tokens: expected "last" or "end", got \'first\''):
        Midpoint(tokens="first")


def test_an_edit_that_was_saved_without_saying_its_tokens_begins_at_the_last(pipe) -> None:
    (edit,) = fit_projections(pipe, FEW, method=Midpoint()).values()
    assert Affine.build(edit.tensors(), {}, edit.provenance).before == BEFORE
    with pytest.raises(InvalidInputError, match="before: expected 0 or 1 tokens before the end of the text, got 7"):
        Affine.build(edit.tensors(), {"before": 7}, edit.provenance)


@pytest.mark.parametrize("method", ["cali-midpoint", "midpoint-end"])
def test_three_states_and_strength(pipe, method: str, tmp_path) -> None:
    bare = encode(pipe)
    edits = fit_projections(pipe, FEW, method=method)
    attachment = debias(pipe, edits)
    full = encode(pipe)
    assert not torch.allclose(full, bare)
    attachment.strength = 0.5
    torch.testing.assert_close(encode(pipe), (full + bare) / 2)
    with attachment.disabled():
        assert torch.equal(encode(pipe), bare)
    with pytest.raises(VldebiasError, match="its levels depend on where the text ends"):
        attachment.merge()
    attachment.remove()
    assert torch.equal(encode(pipe), bare)
    edits["sequence"].save_pretrained(tmp_path)
    with debias(pipe, load_edit(tmp_path)):
        assert torch.equal(encode(pipe), full)


def test_stated_prompts_and_rows_that_are_not_told(pipe) -> None:
    bare, stated = encode(pipe, ["A photo of a female nurse."]), ["A photo of a female nurse."]
    (edit,) = fit_projections(pipe, FEW, method=Midpoint()).values()
    with debias(pipe, edit):
        assert torch.equal(encode(pipe, stated), bare)
    with debias(pipe, edit, keep_stated=False):
        assert not torch.allclose(encode(pipe, stated), bare)
    with pytest.raises(InvalidInputError, match="expected the prompt of each row, to find where it ends"):
        edit(torch.ones(1, 5, edit.dim), 1.0, Rows(("a nurse",)))
    table = TextTable({text: torch.randn(8) for group in SET.groups for text in group})
    with pytest.raises(UnsupportedHostError):
        Problem.of(table, FEW).fit("midpoint", "texts")


SCALES = {FEW.classes[0]: (0.3, -0.3), FEW.classes[1]: (-0.1, 0.4)}


class TestUCE:
    """Against the weights by the authors' sums over the states of all places, layer by layer."""

    def weights(self, pipe, layer, preserve: Sequence[str]) -> Tensor:
        old, eye = layer.weight.double(), torch.eye(layer.in_features, dtype=torch.float64)

        def states(text: str) -> Tensor:
            """Of the last token and all places behind it."""
            ids = pipe.tokenizer(text, padding="max_length", truncation=True, return_tensors="pt")
            last = int(ids.attention_mask.sum()) - 2
            with torch.no_grad():
                return pipe.text_encoder(ids.input_ids)[0][0, last:].double()

        one, two = 0.5 * old, 0.5 * eye
        values = [states("a male person"), states("a female person")]
        for concept, alpha in SCALES.items():
            for c, *a in zip(states(concept), *values, strict=False):  # as far as all of them go
                v = old @ c + alpha[0] * old @ a[0] + alpha[1] * old @ a[1]
                one, two = one + torch.outer(v, c), two + torch.outer(c, c)
        for text in preserve:
            for c in states(text):
                one, two = one + torch.outer(old @ c, c), two + torch.outer(c, c)
        return one @ torch.linalg.inv(two)

    @pytest.mark.filterwarnings("ignore:.*two branches of guidance")
    @pytest.mark.parametrize("preserve", [(), ("A photo of a cat.",)])
    def test_merged_weights_are_those_of_the_formula(self, pipe, preserve: tuple[str, ...]) -> None:
        import copy

        twin = copy.deepcopy(pipe)
        layers = [m for n, m in twin.unet.named_modules() if n.endswith(("attn2.to_k", "attn2.to_v"))]
        expected = [self.weights(twin, layer, preserve) for layer in layers]
        attachment = debias(twin, FEW, method=UCE(SCALES, preserve))
        attachment.merge()
        assert len(layers) > 2
        for layer, weight in zip(layers, expected, strict=True):
            torch.testing.assert_close(layer.weight.double(), weight, rtol=1e-4, atol=1e-4)

    def test_it_is_not_the_authors_edit_of_one_state(self, pipe) -> None:
        """Theirs, of the last token of each concept alone, is small beside it and points elsewhere."""

        def last(text: str) -> Tensor:
            ids = pipe.tokenizer(text, padding="max_length", truncation=True, return_tensors="pt")
            with torch.no_grad():
                return pipe.text_encoder(ids.input_ids)[0][0, int(ids.attention_mask.sum()) - 2].double()

        gram, moves = 0.5 * torch.eye(128, dtype=torch.float64), torch.zeros(128, 128, dtype=torch.float64)
        values = [last("a male person"), last("a female person")]
        for concept, alpha in SCALES.items():
            gram += torch.outer(last(concept), last(concept))
            moves += torch.outer(sum(a * v for a, v in zip(alpha, values, strict=True)), last(concept))
        theirs = moves @ torch.linalg.inv(gram)
        (edit,) = fit_projections(pipe, FEW, method=UCE(SCALES)).values()
        ours = edit.matrix() - torch.eye(128, dtype=torch.float64)
        assert ours.norm() > 2 * theirs.norm()
        assert (ours * theirs).sum() / (ours.norm() * theirs.norm()) < 0.5

    def test_three_states(self, pipe) -> None:
        bare = encode(pipe)
        attachment = debias(pipe, FEW, method=UCE(SCALES))
        assert not torch.allclose(encode(pipe), bare)
        with attachment.disabled():
            assert torch.equal(encode(pipe), bare)
        attachment.remove()
        assert torch.equal(encode(pipe), bare)

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


def test_a_level_is_that_of_a_value(pipe) -> None:
    """At 1 the prompts of the first value have on average the component that they had; at -1 those of the second."""
    (middle,) = fit_projections(pipe, FEW, method=Midpoint()).values()
    (first,) = fit_projections(pipe, FEW, method=Midpoint(level=1)).values()
    (second,) = fit_projections(pipe, FEW, method=Midpoint(level=-1)).values()
    torch.testing.assert_close((first.levels + second.levels) / 2, middle.levels)
    texts = [text for group in value_groups(FEW) for text in group[0]]
    tokens, ends = resolve(pipe).sequences(texts, "sequence")
    at_end = tokens[range(len(ends)), ends].mean(0) @ first.plain.right
    torch.testing.assert_close(first.levels[BEFORE], at_end)


class TestBalanced:
    @pytest.fixture
    def readings(self) -> dict[str, dict[float, float]]:
        """Shares that rise by .4 a level and fall along the list of professions."""
        return {p: {c: 0.5 + 0.4 * c + 0.1 * (2 - i) for c in (-0.5, 0.0)} for i, p in enumerate(SET.classes[:5])}

    def test_the_level_is_where_the_shares_are_expected_to_be_even(self, pipe, readings) -> None:
        """Where leave-one-out finds nothing to tell from texts, all levels are that of the mean share."""
        problem = Problem.of(pipe, SET)
        edit = Balanced(readings).fit(problem, "sequence")
        texts = problem.embed(SET.classes[:5], "sequence")
        assert float(edit.offsets(texts).mean()) == pytest.approx(0.0, abs=1e-6)
        same = {prompt: {-0.5: 0.5, 0.0: 0.7} for prompt in SET.classes[:5]}
        edit = Balanced(same).fit(problem, "sequence")
        torch.testing.assert_close(edit.offsets(texts), torch.full((5,), -0.5, dtype=torch.float64))

    def test_a_lean_that_the_text_tells_is_found_on_other_texts(self, pipe) -> None:
        problem = Problem.of(pipe, SET)
        torch.manual_seed(0)
        texts, others = (problem.embed(one, "sequence") for one in (SET.classes, SET.held_out_classes))
        told = 0.5 + 0.3 * torch.nn.functional.normalize((texts - texts.mean(0)) @ texts[0], dim=0) * 3
        truth = (others - texts.mean(0)) @ texts[0]
        readings = {p: {-0.1: float(s) - 0.03, 0.1: float(s) + 0.03} for p, s in zip(SET.classes, told, strict=True)}
        edit = Balanced(readings).fit(problem, "sequence")
        found = edit.offsets(others)
        assert float(torch.corrcoef(torch.stack([found, -truth]))[0, 1]) > 0.9

    def test_three_states_saved_and_at_one_level_an_affine_form(self, pipe, readings, tmp_path) -> None:
        bare = encode(pipe)
        edits = fit_projections(pipe, SET, method=Balanced(readings))
        attachment = debias(pipe, edits)
        full = encode(pipe)
        assert not torch.allclose(full, bare)
        with attachment.disabled():
            assert torch.equal(encode(pipe), bare)
        attachment.remove()
        edits["sequence"].save_pretrained(tmp_path)
        with debias(pipe, load_edit(tmp_path)):
            assert torch.equal(encode(pipe), full)
        level = Balanced({p: {-0.5: 0.5, 0.0: 0.7} for p in SET.classes[:3]})
        with debias(pipe, SET, method=level):
            found = encode(pipe)
        with debias(pipe, SET, method=Midpoint(level=-0.5)):
            torch.testing.assert_close(encode(pipe), found)

    def test_what_it_refuses(self, pipe, readings) -> None:
        with pytest.raises(InvalidInputError, match="each at two levels or more, got 5 prompts, 5 of them"):
            Balanced({p: {0.0: 0.5} for p in SET.classes[:5]})
        with pytest.raises(InvalidInputError, match=r"expected shares from 0 to 1"):
            Balanced({p: {0.0: 0.5, 1.0: 1.5} for p in SET.classes[:5]})
        with pytest.raises(InvalidInputError, match=r"falls by 0\.40 a level; expected a rise"):
            Balanced({p: {-c: s for c, s in shares.items()} for p, shares in readings.items()})
        (edit,) = fit_projections(pipe, SET, method=Balanced(readings)).values()
        with pytest.raises(InvalidInputError, match="expected the prompt of each row"):
            edit(torch.ones(1, edit.dim))
        with pytest.raises(InvalidInputError, match="a level apart from 0 is of one attribute with two values"):
            fit_projections(pipe, [SET, "skin-tone"], method=Balanced(readings))


@pytest.mark.parametrize("seed", range(40))
def test_the_penalty_is_that_of_leaving_each_prompt_out(seed: int) -> None:
    """Against one regression for each prompt left out, with a mean of its own; few prompts, where that weighs."""
    made = torch.Generator().manual_seed(seed)
    n = 3 + seed % 4
    x, y = (torch.randn(*shape, generator=made, dtype=torch.float64) for shape in ((n, 6), (n,)))
    scale = (x - x.mean(0)).square().sum(1).mean()

    def solved(rows: Tensor, shares: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
        apart = rows - rows.mean(0)
        slope = apart.T @ torch.linalg.solve(
            apart @ apart.T + penalty * scale * torch.eye(len(rows), dtype=rows.dtype), shares - shares.mean()
        )
        return slope, shares.mean() - slope @ rows.mean(0)

    errors = []
    for penalty in PENALTIES:
        others = [torch.arange(n) != i for i in range(n)]
        fits = [solved(x[kept], y[kept], penalty) for kept in others]
        errors.append(sum(float(y[i] - bias - slope @ x[i]) ** 2 for i, (slope, bias) in enumerate(fits)))
    slope, bias = solved(x, y, PENALTIES[errors.index(min(errors))])
    found = ridge(x, y)
    torch.testing.assert_close(found[0], slope)
    assert found[1] == pytest.approx(float(bias))
