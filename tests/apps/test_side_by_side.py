"""Test values set in the miniature's cross-attention: they are assigned to all images of a plan at
once, visible in the pictures, and recorded."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from apps.generate.side_by_side import Request, side_by_side
from vldebias.api import debias, fit_projections
from vldebias.judge.judges import MiniatureJudge, predict
from vldebias.methods import CrossAttention
from vldebias.prompts import load_prompts, make_prompt_set
from vldebias.study.grids import grid
from vldebias.study.tasks.variants import Variant, prepared

JOBS = ("teacher", "baker", "doctor", "judge", "nurse", "pilot", "chef", "lawyer")
SET = make_prompt_set("gender", {"male": ["male"], "female": ["female"]}, JOBS)
HELD_OUT = ["A photo of an editor.", "A photo of a pharmacist."]
STATED = "A photo of a female editor."


@pytest.fixture(scope="module")
def pipe() -> Any:
    from vldebias.miniature import load_pipeline

    return load_pipeline()


@pytest.fixture(scope="module")
def edit(pipe: Any) -> Any:
    return fit_projections(pipe, SET, method=CrossAttention(concepts=8, steps=8)).only


def test_images_show_their_assigned_values(pipe: Any, edit: Any) -> None:
    """Values for held-out professions are even over all images, for any batch size."""
    prompts = [prompt for prompt in [*HELD_OUT, STATED] for _ in range(8)]
    noise = list(range(len(prompts)))
    options = {"num_inference_steps": 8, "guidance_scale": 7.5}
    with prepared(pipe, partial(debias, pipe, edit), prompts, noise, **options) as draw:
        pictures = [picture for picture, _ in draw(range(10))]
        pictures += [picture for picture, _ in draw(range(10, 16))]
    values = draw.values
    assert Counter(values[:8]) == Counter(values[8:16]) == {"male": 4, "female": 4}
    assert values[16:] == [None] * 8
    assert draw.left_unchanged == [False] * 16 + [True] * 8
    assert draw.texts == prompts
    judge = MiniatureJudge().ready()
    genders = predict(judge, pictures)["gender"].argmax(1)
    seen = [judge.names["gender"][code] for code in genders]
    agreeing = sum(value == assigned for value, assigned in zip(seen, values[:16], strict=True))
    assert agreeing >= 12


def test_a_plan_accepts_a_saved_edit_and_records_values(
    pipe: Any, edit: Any, tmp_path: Path
) -> None:
    saved = Variant(projection=edit.save_pretrained(tmp_path / "saved"))
    assert saved.assigns_values
    assert not saved.rewrites
    assert Variant(method="cross-attention", attribute=("gender",)).assigns_values
    assert not Variant(method="cali").assigns_values
    request = Request(
        HELD_OUT[0], (load_prompts("gender"),), methods=("cross-attention",), images=2
    )
    assert request.variants()["cross-attention"].planned["method"] == "cross-attention"
    picture = grid(
        pipe,
        "gender",
        methods={"bare": "none", "set": edit},
        prompts=HELD_OUT[:1],
        seeds=(0, 1),
        steps=2,
    )
    assert picture.width > picture.height / 4


def test_the_gate_supports_embeddings(pipe: Any, edit: Any) -> None:
    """Embeddings are passed instead of prompts. Open ones are assigned even values, and stated ones
    are unchanged. The call may start at any step and have any number of them."""
    assert edit.can_read
    prompts = HELD_OUT * 2 + [STATED, "A photo of a male chef."]
    with torch.no_grad():
        given, negative = pipe.encode_prompt(prompts, "cpu", 1, True, negative_prompt=[""] * 6)
    call = {"prompt_embeds": given, "negative_prompt_embeds": negative, "output_type": "latent"}

    def draw() -> torch.Tensor:
        generators = [torch.Generator().manual_seed(number) for number in range(6)]
        return pipe(num_inference_steps=2, generator=generators, **call).images

    bare = draw()
    with debias(pipe, edit) as attachment:
        attached = draw()
        assert attachment.reasons == [None] * 4 + ["stated"] * 2
        assert {*attachment.sampled[:4]} <= {"male", "female"}
    changed = [not torch.equal(before, after) for before, after in zip(bare, attached, strict=True)]
    assert changed == [True] * 4 + [False] * 2


def test_a_text_in_a_language_without_rules_is_read_by_the_gate(pipe: Any, edit: Any) -> None:
    with debias(pipe, edit) as attachment:
        pipe(["Ein Arzt", STATED], num_inference_steps=2, output_type="latent")
        assert attachment.reasons[1] == "stated"
        assert attachment.reasons[0] in (None, "stated")
        assert attachment.last_call.prompts == ("Ein Arzt", STATED)


@pytest.mark.slow
def test_generate_reports_the_requested_values(pipe: Any, tmp_path: Path) -> None:
    request = Request(
        HELD_OUT[0], (load_prompts("gender"),), methods=("cross-attention",), images=4, steps=4
    )
    made = side_by_side(pipe, request, tmp_path)
    values = [picture.values["gender"] for picture in made.row("cross-attention")]
    assert sorted(values) == ["female", "female", "male", "male"]
    assert {picture.prompt for picture in made.pictures} == {HELD_OUT[0]}
