"""Test attachments in cross-attention: only the prompt's rows change, values are sampled as for
balanced prompts, removal is bit-identical, and other pipelines are rejected."""

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import diffusers_tiny as tiny
import pytest
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from diffusers_tiny import FAMILIES
from torch import Tensor, nn
from typer.testing import CliRunner

from vldebias.api import debias, fit_projections
from vldebias.cli import app
from vldebias.errors import (
    InvalidInputError,
    ProjectionMismatchError,
    UnsupportedHostError,
    VldebiasError,
    VldebiasWarning,
)
from vldebias.hosts import resolve
from vldebias.hosts.loading import Loaded
from vldebias.hosts.pipelines.denoiser import CrossAttentionHost
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.hosts.pipelines.passes import EncodedPrompts
from vldebias.hosts.pipelines.responses import Recorder
from vldebias.methods import CrossAttention, Diagnostics, load_edit
from vldebias.methods.cross_attention import (
    AMOUNT_OF_TWO_VALUES,
    MAX_MOVEMENT,
    first_pass,
    first_passes,
    measured_clarity,
    root_mean_square,
    stated_texts,
)
from vldebias.prompts import make_prompt_set

JOBS = ["doctor", "nurse", "judge"]
SET = make_prompt_set("gender", {"male": ["male"], "female": ["female"]}, JOBS)
AGE = make_prompt_set("age", {"young": ["young"], "old": ["old"]}, JOBS)
OPEN = "A photo of a doctor."
STATED = "A photo of a female doctor."
SERVED = ["StableDiffusion", "StableDiffusionXL", "PixArt", "Sana"]


def few(name: str) -> CrossAttention:
    """Return the method fitted on two concepts at three times with small pictures."""
    size = {"height": 16, "width": 16} | FAMILIES[name][1]
    return CrossAttention(concepts=2, steps=3, seed=0, options=size)


class Fitted(NamedTuple):
    make: Callable[..., Any]
    draw: Callable[..., Tensor]
    edit: Any


@pytest.fixture(scope="module")
def fitted() -> Callable[[str], Fitted]:
    """Return the pictures and the fit of a family; each is computed once."""
    known: dict[str, Fitted] = {}

    def of_family(name: str) -> Fitted:
        if name not in known:
            make, call = FAMILIES[name]
            edit = fit_projections(make(), SET, method=few(name)).only

            def draw(pipe: Any, prompt: Any = OPEN, **options: Any) -> Tensor:
                return tiny.draw(pipe, prompt, **call | options)

            known[name] = Fitted(make, draw, edit)
        return known[name]

    return of_family


def noise(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in range(count)]


@pytest.mark.parametrize("images", [1, 4])
@pytest.mark.parametrize("guidance", [0.0, 7.5])
@pytest.mark.parametrize("name", SERVED)
def test_pictures_are_bit_identical_unless_the_edit_is_active(
    fitted: Callable[[str], Fitted], name: str, guidance: float, images: int
) -> None:
    """With strength 0, disabled or removed, pictures are unchanged; attached, every one changes."""
    make, draw, edit = fitted(name)
    pipe = make()
    pictures = partial(
        draw, pipe, guidance_scale=guidance, num_images_per_prompt=images, generator=noise(images)
    )

    def drawn() -> Tensor:
        return pictures(generator=noise(images))

    hooks = hooks_of(pipe)
    bare = drawn()
    attachment = debias(pipe, edit)
    given = ["female"] * images
    with attachment.giving(given):
        attached = drawn()
    assert all(tiny.changed(attached, bare))
    with attachment.disabled():
        assert torch.equal(drawn(), bare)
    attachment.strength = 0
    assert torch.equal(drawn(), bare)
    attachment.strength = 1
    with attachment.giving(given):
        assert torch.equal(drawn(), attached)
    with attachment.giving([None] * images):
        assert torch.equal(drawn(), bare)
    attachment.remove()
    assert torch.equal(drawn(), bare)
    assert hooks_of(pipe) == hooks
    assert "encode_prompt" not in vars(pipe)


def hooks_of(pipe: Any) -> dict[str, int]:
    """Return the number of hooks on each module of the denoiser."""
    counts = {}
    for name, component in pipe.components.items():
        if isinstance(component, nn.Module) and name in ("unet", "transformer"):
            for path, module in component.named_modules():
                hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
                counts[f"{name}.{path}"] = hooks + len(module._forward_hooks_with_kwargs)
    return counts


@pytest.mark.parametrize("name", SERVED)
def test_a_saved_and_loaded_edit_generates_the_same_pictures(
    fitted: Callable[[str], Fitted], name: str, tmp_path: Path
) -> None:
    make, draw, edit = fitted(name)
    pipe = make()
    with debias(pipe, edit) as attachment, attachment.giving(["male"]):
        expected = draw(pipe)
    loaded = load_edit(edit.save_pretrained(tmp_path / "edit"))
    assert loaded.words == edit.words
    with debias(pipe, loaded) as attachment, attachment.giving(["male"]):
        assert torch.equal(draw(pipe), expected)


def test_rows_are_found_in_any_order_of_the_guidance_branches() -> None:
    """Negative rows come first or last, twice as in perturbed attention, or not at all; equal
    prompts keep their order."""
    prompts = torch.randn(4, 3, 5)
    prompts[2] = prompts[0]  # the same prompt, two images
    negative = torch.randn(4, 3, 5)
    assert EncodedPrompts.from_rows([prompts]).images == [[0, 2], [1], [3]]

    def found(*parts: Tensor) -> dict[int, int]:
        encoded = EncodedPrompts.from_rows([prompts])
        return dict(sorted(encoded.rows((torch.cat(parts),), {}).items()))

    order = [0, 1, 2, 3]
    assert found(negative, prompts) == dict(zip(range(4, 8), order, strict=True))
    assert found(prompts, negative) == dict(zip(range(4), order, strict=True))
    assert found(negative, prompts, prompts) == dict(zip(range(4, 12), order * 2, strict=True))
    assert found(prompts) == dict(zip(range(4), order, strict=True))
    assert found(negative) == {}


def test_a_second_encoding_of_the_prompt_is_found() -> None:
    """HunyuanDiT encodes the prompt with two encoders; in other pipelines, a second call encodes
    the negative prompt."""
    first, second = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    rows = {}
    for encodes_again in (True, False):
        recorder = Recorder(encodes_again)
        recorder.note([first])
        recorder.note([second])
        recorder.begin(torch.nn.Identity(), (second,), {"timestep": torch.tensor(1.0)})
        rows[encodes_again] = recorder.rows
    assert rows == {True: {0: 0, 1: 1}, False: {}}


def test_values_are_sampled_as_for_balanced_prompts(
    fitted: Callable[[str], Fitted],
) -> None:
    make, draw, edit = fitted("StableDiffusion")
    pipe = make()
    prompts = [OPEN, STATED, "A photo of a red car."]
    bare = draw(pipe, prompts, num_images_per_prompt=4, generator=noise(12))
    attachment = debias(pipe, edit, shares={"female": 0.75, "male": 0.25})
    attached = draw(pipe, prompts, num_images_per_prompt=4, generator=noise(12))
    assert sorted(attachment.sampled[:4]) == ["female", "female", "female", "male"]
    assert attachment.sampled[4:] == [None] * 8
    assert attachment.reasons[4] == "stated"
    assert "cross-attention of gender, 2 values" in repr(attachment)
    assert "lam" not in repr(attachment)
    assert attachment.reasons[8].startswith("no person")
    changed = tiny.changed(attached, bare)
    assert changed == [True] * 4 + [False] * 8
    attachment.remove()


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("A photo of a doctor and a farmer.", "not plain"),
        ("A photo of a male doctor and a farmer.", "not plain"),
        ("A photo of a woman and a doctor.", "not plain"),
        ("A photo of two doctors and a nurse.", "not plain"),
        ("A photo of a woman and a man.", "stated"),
        ("A photo of two doctors.", "not plain"),
    ],
)
def test_a_prompt_about_several_people_is_left_unchanged_and_recorded_as_such(
    prompt: str, reason: str, fitted: Callable[[str], Fitted]
) -> None:
    make, draw, edit = fitted("StableDiffusion")
    pipe = make()
    bare = draw(pipe, [prompt, OPEN], num_images_per_prompt=2, generator=noise(4))
    with debias(pipe, edit) as attachment:
        attached = draw(pipe, [prompt, OPEN], num_images_per_prompt=2, generator=noise(4))
        assert attachment.sampled[:2] == [None, None]
        assert attachment.reasons == [reason, reason, None, None]
        assert attachment.people[:2] == [(), ()]
        assert [noun for ((noun, _),) in attachment.people[2:]] == ["doctor", "doctor"]
    assert tiny.changed(attached, bare) == [False, False, True, True]


def test_an_image_gets_values_for_several_attributes(tmp_path: Path) -> None:
    """Values of both attributes are crossed. If one is stated, only the other is set. Edits are
    saved by role."""
    make, call = FAMILIES["StableDiffusion"]
    pipe = make()
    edits = fit_projections(pipe, [SET, AGE], method=few("StableDiffusion"))
    assert list(edits) == ["gender", "age"]
    for role, edit in edits.items():
        edit.save_pretrained(tmp_path / role)
    attachment = debias(pipe, load_edit(tmp_path))
    prompts = [OPEN] * 4 + [STATED] * 2
    tiny.draw(pipe, prompts, generator=noise(6), **call)
    names = attachment.host.roles
    pairs = [dict(zip(names, values, strict=True)) for values in attachment.sampled]
    crossed = {(pair["gender"], pair["age"]) for pair in pairs[:4]}
    assert len(crossed) == 4
    assert all(pair["gender"] is None and pair["age"] for pair in pairs[4:])
    attachment.remove()


def test_the_values_of_several_attributes_add_up() -> None:
    make, call = FAMILIES["StableDiffusion"]
    pipe = make()
    edits = fit_projections(pipe, [SET, AGE], method=few("StableDiffusion"))
    name, _ = edits["gender"].layers[0]
    layer = dict(pipe.unet.named_modules())[name.removeprefix("unet.")]
    outputs: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        outputs.append(output)

    def change(*values: str | None) -> Tensor:
        outputs.clear()
        with debias(pipe, dict(edits)) as attachment, attachment.giving([values]):
            handle = layer.register_forward_hook(keep)
            tiny.draw(pipe, OPEN, generator=noise(1), **call)
            handle.remove()
        return outputs[0] - bare

    bare = torch.zeros(())
    bare = change(None, None)
    both = change("female", "old")
    assert float(both.abs().max()) > 1e-4
    torch.testing.assert_close(both, change("female", None) + change(None, "old"))


def test_the_amount_falls_from_the_first_step_to_the_last(
    fitted: Callable[[str], Fitted],
) -> None:
    edit = fitted("StableDiffusion").edit
    assert edit.times.tolist() == sorted(edit.times.tolist())  # the last step has the smallest time
    last, middle, first = edit.amounts.unbind(0)
    assert last.tolist() == [0, 0]
    torch.testing.assert_close(middle, first / 2)
    assert 0 < float(first.max()) <= AMOUNT_OF_TWO_VALUES
    pipe = FAMILIES["StableDiffusion"][0]()
    method = replace(few("StableDiffusion"), amount=1.3)
    constant = fit_projections(pipe, SET, method=method).only
    assert torch.equal(constant.amounts, torch.full_like(constant.amounts, 1.3))


@pytest.mark.parametrize("name", SERVED)
def test_the_first_step_moves_the_prediction_at_most_twice_as_far_as_the_words(
    fitted: Callable[[str], Fitted], name: str
) -> None:
    """The amount is the largest one that does so, except for the error of interpolating."""
    edit = fitted(name).edit
    host = CrossAttentionHost(DiffusersHost(FAMILIES[name][0]())).with_roles(["gender"])
    method = few(name)
    texts = stated_texts(SET, method.concepts)
    answers = first_passes(host, SET, texts, method)
    stated = torch.stack(list(answers.predictions))
    by_words = root_mean_square(stated - stated.mean(0))
    values = torch.arange(len(answers.neutral)) % 2
    added = (edit.amounts[-1, :, None] * edit.effects[-1]).double()[values]
    _, edited = first_pass(host, answers.neutral, method, added)
    moved = root_mean_square(edited - answers.open_predictions)
    assert moved <= 1.25 * MAX_MOVEMENT * by_words
    if float(edit.amounts.max()) < AMOUNT_OF_TWO_VALUES - 1e-6:
        assert moved >= 0.75 * MAX_MOVEMENT * by_words


@pytest.mark.parametrize("name", SERVED)
def test_an_effect_in_the_first_pass_changes_only_the_prediction_for_its_prompt(name: str) -> None:
    host = CrossAttentionHost(DiffusersHost(FAMILIES[name][0]()))
    method = few(name)
    rows, bare = first_pass(host, [OPEN, STATED], method)
    none = torch.zeros_like(rows)
    one = none.clone()
    one[1] = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0))
    assert torch.equal(first_pass(host, [OPEN, STATED], method, none)[1], bare)
    changed = first_pass(host, [OPEN, STATED], method, one)[1]
    torch.testing.assert_close(changed[0], bare[0])
    assert float((changed[1] - bare[1]).abs().max()) > 1e-4


def test_a_different_number_of_steps_interpolates_between_the_fitted_times(
    fitted: Callable[[str], Fitted],
) -> None:
    edit = fitted("StableDiffusion").edit
    low, high = edit.times[:2].tolist()
    name, width = edit.layers[0]
    at = [edit.at(time)[name] for time in (low, (low + high) / 2, high)]
    middle = (edit.effects[0] + edit.effects[1]).double()[:, :width] / 2
    expected = edit.amounts[:2, :, None].double().mean(0) * middle
    torch.testing.assert_close(at[1].double(), expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(edit.at(low - 50)[name], at[0])
    assert not torch.equal(at[0], at[2])


@pytest.mark.parametrize(
    "scheduler",
    [DPMSolverMultistepScheduler, EulerDiscreteScheduler, UniPCMultistepScheduler],
)
def test_a_fit_with_a_different_scheduler_does_not_warn(scheduler: Any) -> None:
    make, _ = FAMILIES["StableDiffusion"]
    pipe = make()
    with warnings.catch_warnings():
        # Some versions of diffusers warn when a scheduler is created.
        warnings.simplefilter("ignore", DeprecationWarning)
        pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
    edit = fit_projections(pipe, SET, method=few("StableDiffusion")).only
    assert len(edit.times) == 3


def test_the_fit_never_exceeds_its_batch_size_and_does_not_depend_on_it() -> None:
    make, _ = FAMILIES["StableDiffusion"]
    edits = []
    for batch_size in (1, 50):
        pipe = make()
        rows = []

        def count(_module: Any, args: Any, _kwargs: Any, rows: list[int] = rows) -> None:
            rows.append(len(args[0]))

        # The pipelines of these tests share their components, so the hook has to be removed.
        handle = pipe.unet.register_forward_pre_hook(count, with_kwargs=True)
        method = replace(few("StableDiffusion"), batch_size=batch_size)
        edits.append(fit_projections(pipe, SET, method=method).only)
        handle.remove()
        assert max(rows) == (2 if batch_size == 1 else 40)  # 20 texts without a person
    single, together = edits
    for name in ("amounts", "effects", "gate"):
        tensors = (getattr(single, name), getattr(together, name))
        torch.testing.assert_close(*tensors, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, None])
def test_a_batch_size_below_one_is_rejected(batch_size: Any) -> None:
    make, _ = FAMILIES["StableDiffusion"]
    method = replace(few("StableDiffusion"), batch_size=batch_size)
    with pytest.raises(InvalidInputError, match="batch_size: expected a whole number"):
        fit_projections(make(), SET, method=method)


def test_a_fit_warns_if_the_model_hardly_responds_to_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = FAMILIES["StableDiffusion"][0]()
    clear = fit_projections(pipe, SET, method=few("StableDiffusion")).only
    assert list(clear.clarity) == ["male", "female"]
    assert clear.unclear_values == []
    monkeypatch.setattr("vldebias.projection.cross_attention_edit.MIN_CLARITY", 100)
    with pytest.warns(VldebiasWarning, match="hardly responds to the words for 'male', 'female'"):
        unclear = fit_projections(pipe, SET, method=few("StableDiffusion")).only
    assert unclear.clarity == clear.clarity
    with debias(pipe, unclear) as attachment:
        assert f"clarity: {unclear.clarity_in_words}" in repr(attachment)
        assert unclear.clarity_in_words in unclear.card()


def test_times_that_do_not_increase_are_rejected(fitted: Callable[[str], Fitted]) -> None:
    edit = fitted("StableDiffusion").edit
    with pytest.raises(InvalidInputError, match="times"):
        replace(edit, times=edit.times.flip(0))


def test_different_weights_and_layers_are_rejected(fitted: Callable[[str], Fitted]) -> None:
    make, _, edit = fitted("StableDiffusion")
    pipe = tiny.with_own_components(make())
    with torch.no_grad():
        for parameter in pipe.unet.parameters():
            parameter.mul_(1.2)
    with pytest.raises(ProjectionMismatchError, match="different weights"):
        debias(pipe, edit)
    with pytest.raises(ProjectionMismatchError, match="layers that this denoiser lacks"):
        debias(fitted("PixArt").make(), edit)


def test_invalid_requests_are_rejected_with_a_message(fitted: Callable[[str], Fitted]) -> None:
    make, draw, edit = fitted("StableDiffusion")
    pipe = make()
    method = few("StableDiffusion")
    with pytest.raises(InvalidInputError, match="negative prompts"):
        debias(pipe, SET, method=method, negative=True)
    with pytest.raises(InvalidInputError, match="no words that describe people"):
        debias(pipe, "backgrounds", method=method)
    with pytest.raises(InvalidInputError, match="does not sample values"):
        debias(pipe, tiny.gender(), method="cali", shares={"female": 1})
    with pytest.raises(InvalidInputError, match="attach it with"):
        edit(torch.zeros(1, edit.dim))
    attachment = debias(pipe, edit)
    with pytest.raises(UnsupportedHostError, match="which weights cannot express"):
        attachment.merge()
    with pytest.raises(VldebiasError, match="cannot be copied"):
        copy.deepcopy(pipe.unet)
    with pytest.raises(InvalidInputError, match="'green'"), attachment.giving(["green"]):
        draw(pipe)
    two = attachment.giving(["male", "male"])
    with pytest.raises(InvalidInputError, match="2 values for 3 images"), two:
        draw(pipe, num_images_per_prompt=3, generator=noise(3))
    attachment.remove()
    assert resolve(pipe).roles


def test_the_command_inspects_and_saves_the_edit(
    fitted: Callable[[str], Fitted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report includes the gate's figures, the role is the name of the prompt set, and the card
    mentions the denoiser."""
    make, _, edit = fitted("StableDiffusion")
    edit.save_pretrained(tmp_path / "one")
    loaded = Loaded(make(), "tiny")
    monkeypatch.setattr("vldebias.hosts.loading.load_host", lambda **_: loaded)
    command = ["debias", "gender", "--pipeline", "tiny", "--projection", str(tmp_path / "one")]
    command += ["--out", str(tmp_path / "copy"), "--json"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["roles"]["gender"]["diagnostics"]["gender"]
    for kind, layers in edit.auroc.items():
        assert figures[f"AUROC of the gate, {kind}"] == max(layers.values())
    copied = load_edit(tmp_path / "copy")["gender"]
    assert torch.equal(copied.effects, edit.effects)
    card = (tmp_path / "copy" / "gender" / "README.md").read_text("utf-8")
    assert "set in every cross-attention" in card
    assert "text embeddings" not in card
    with pytest.raises(InvalidInputError, match="does not change text"):
        Diagnostics.from_edit(resolve(make()), "gender", edit, SET)


def test_clarity_is_empty_without_cross_attention_or_stated_values() -> None:
    """An audit measures it in passing, so it must not fail for such pipelines and sets."""
    joint = FAMILIES["StableDiffusion3"][0]()
    assert measured_clarity(joint, SET, FAMILIES["StableDiffusion3"][1]) == {}
    pipe = FAMILIES["StableDiffusion"][0]()
    unpaired = replace(SET, variants=((OPEN, "A photo of a nurse."),))
    assert measured_clarity(pipe, unpaired) == {}
    found = measured_clarity(pipe, SET, few("StableDiffusion").options)
    assert list(found) == ["male", "female"]
