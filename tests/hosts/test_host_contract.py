"""Test the properties that every host must have: three states on every code path, the gate, copies,
gradients, merging, and complete removal."""

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from models_tiny import PROMPTS, STATED, SUBJECTS, Subject, equal_outputs
from torch import Tensor

import vldebias
from vldebias.errors import (
    AlreadyAttachedError,
    ProjectionMismatchError,
    UnsupportedHostError,
    VldebiasError,
)
from vldebias.methods import load_edit
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import PromptSet

KINDS = (
    "open_clip:clip",
    "open_clip:hf-mlp",
    "open_clip:coca",
    "transformers:CLIPModel",
    "transformers:SiglipModel",
)
KINDS += ("diffusers:StableDiffusion", "diffusers:Flux")

# Every class of open_clip and transformers, and two pipelines, since test_pipeline_contract.py
# tests the others.
CLASSES = [name for name in SUBJECTS if name in KINDS or not name.startswith("diffusers:")]


@pytest.fixture(params=CLASSES)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()


@pytest.fixture(params=KINDS)
def example(request: pytest.FixtureRequest) -> Subject:
    """Return one host of each kind, for tests that do not depend on the class."""
    return SUBJECTS[request.param]()


@torch.no_grad()
def test_every_path_is_edited_in_three_states_and_removal_is_complete(
    subject: Subject, gender: PromptSet
) -> None:
    base = subject.outputs()
    before = subject.state()
    attachment = subject.debias(gender)
    attached = subject.outputs()
    for key in base:
        assert not torch.allclose(base[key], attached[key], atol=1e-4), key
    with attachment.disabled():
        assert equal_outputs(subject.outputs(), base)
    attachment.strength = 0
    assert equal_outputs(subject.outputs(), base)
    attachment.strength = 1
    assert equal_outputs(subject.outputs(), attached)
    assert subject.state().keys() == before.keys(), "no module was added or replaced"
    attachment.remove()
    assert equal_outputs(subject.outputs(), base)
    assert subject.state() == before
    attachment.remove()
    assert subject.state() == before


@torch.no_grad()
def test_rows_are_projected_unless_stated(subject: Subject, gender: PromptSet) -> None:
    base = subject.rows()
    with subject.debias(gender) as attachment:
        kept = subject.rows()
    with subject.debias(gender, keep_stated=False):
        rows = subject.rows()
        outputs = subject.outputs()
    for key in {"normalized", "forward", "text only", "dict"} & outputs.keys():
        unit = torch.nn.functional.normalize(rows["text"], dim=-1)
        torch.testing.assert_close(outputs[key], unit, atol=1e-5, rtol=1e-4, msg=key)
    plain = [i for i, stated in enumerate(STATED) if not stated]
    for role, projection in attachment.projections.items():
        assert projection.space == subject.resolve().space(role)
        torch.testing.assert_close(rows[role], projection(base[role]))
        assert [torch.equal(*pair) for pair in zip(kept[role], base[role], strict=True)] == STATED
        torch.testing.assert_close(kept[role][plain], rows[role][plain])


def test_an_empty_list_of_prompts_gives_no_rows(example: Subject) -> None:
    host = example.resolve()
    for role in host.roles:
        rows = host.embed([], role)
        row = host.embed(PROMPTS[:1], role)
        assert (rows.shape, rows.dtype) == ((0, row.shape[1]), row.dtype)


# The error message for a pipeline recommends this.
@pytest.mark.filterwarnings("ignore:.*two branches of guidance")
@torch.no_grad()
def test_merging_preserves_the_output_or_is_rejected(subject: Subject, gender: PromptSet) -> None:
    before = subject.state()
    weights = [parameter.clone() for parameter in subject.parameters()]
    attachment = subject.debias(gender, keep_stated=False, strength=0.5)
    attached = subject.outputs()
    if not subject.merges:
        with pytest.raises(UnsupportedHostError, match=r"merge|expected"):
            attachment.merge()
        assert attachment.state == "attached"
        now = subject.parameters()
        assert all(torch.equal(a, b) for a, b in zip(now, weights, strict=True))
        return
    attachment.merge()
    assert attachment.state == "merged"
    assert subject.state() == before
    if not subject.resolve().generative:  # in a pipeline, the denoiser changes; see test_diffusers
        for key, merged in subject.outputs().items():
            torch.testing.assert_close(merged, attached[key], atol=1e-5, rtol=1e-4, msg=key)
    with pytest.raises(VldebiasError, match="made the projection part of the weights"):
        attachment.remove()
    with pytest.raises(AlreadyAttachedError, match="already contain a merged projection"):
        subject.debias(gender)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_preserved(
    example: Subject, dtype: torch.dtype, gender: PromptSet
) -> None:
    for module in example.modules():
        module.to(dtype)
    base = example.rows()
    with example.debias(gender, keep_stated=False) as attachment:
        rows = example.rows()
    for role, projection in attachment.projections.items():
        assert rows[role].dtype == base[role].dtype
        wide = projection(base[role].double())
        atol = 4 * torch.finfo(base[role].dtype).eps * max(1.0, float(wide.abs().max()))
        torch.testing.assert_close(rows[role].double(), wide, atol=atol, rtol=1e-2)


def test_gradients_flow_through_the_projection(example: Subject, gender: PromptSet) -> None:
    attachment = example.debias(gender, keep_stated=False)
    parameters = [p for p in example.parameters() if p.requires_grad]

    def gradients(rows: dict[str, Tensor]) -> list[Tensor | None]:
        loss = sum(
            (part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum()
            for part in rows.values()
        )
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))

    attached = gradients(example.rows())
    with attachment.disabled():
        bare = example.rows()
    by_hand = gradients({role: attachment.projections[role](rows) for role, rows in bare.items()})
    assert any(gradient is not None and gradient.any() for gradient in attached)
    for gradient, gradient_by_hand in zip(attached, by_hand, strict=True):
        assert (gradient is None) == (gradient_by_hand is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, gradient_by_hand, atol=1e-4, rtol=1e-3)


def modes_of(subject: Subject) -> list[bool]:
    modes = []
    for module in subject.modules():
        modes += [part.training for part in module.modules()]
    return modes


def test_fitting_preserves_modes_and_gradients_and_ignores_edits(
    example: Subject, gender: PromptSet
) -> None:
    bare = {role: example.resolve().embed(PROMPTS, role) for role in example.resolve().roles}
    for module in example.modules():
        module.train()
        next(module.children()).eval()
    modes = modes_of(example)
    with torch.autocast("cpu", dtype=torch.bfloat16), example.debias(gender):
        for role, rows in bare.items():
            assert (rows.dtype, rows.device.type) == (torch.float64, "cpu")
            torch.testing.assert_close(
                rows.norm(dim=1), torch.ones(len(PROMPTS), dtype=torch.float64)
            )
            assert torch.equal(example.resolve().embed(PROMPTS, role), rows)
    assert modes_of(example) == modes
    assert all(parameter.grad is None for parameter in example.parameters())


def test_only_one_attachment_is_allowed_and_none_remains_after_an_error(
    example: Subject, gender: PromptSet, age: PromptSet
) -> None:
    before = example.state()
    attachment = example.debias(gender)
    assert vldebias.attachment_of(example.host) is attachment
    target = example.host.encode_prompt if example.resolve().generative else example.host
    with pytest.raises(VldebiasError, match=r"\.remove\(\)"):
        pickle.dumps(target)
    with pytest.raises(AlreadyAttachedError, match=r"already has .*tiny-gender.*list of prompt"):
        example.debias(age)
    with pytest.raises(ZeroDivisionError), attachment:
        _ = 1 / 0
    assert attachment.state == "removed"
    assert vldebias.attachment_of(example.host) is None
    assert example.state() == before
    example.debias(age).remove()


def test_no_reference_keeps_a_host_alive(example: Subject, gender: PromptSet) -> None:
    example.debias(gender)
    assert vldebias.attachment_of(example.host) is not None
    gone = weakref.ref(example.host)
    shared = example.resolve().shared_modules
    assert all(module._forward_pre_hooks for module in shared)
    example.host = None
    gc.collect()
    assert gone() is None
    assert not any(module._forward_pre_hooks for module in shared)


@torch.no_grad()
def test_saved_edits_can_be_attached_and_edits_for_other_models_are_rejected(
    example: Subject, gender: PromptSet, tmp_path: Any
) -> None:
    with example.debias(gender) as attachment:
        attached = example.rows()
    edits = {
        r: load_edit(edit.save_pretrained(tmp_path / r))
        for r, edit in attachment.projections.items()
    }
    with example.debias(edits):
        assert equal_outputs(example.rows(), attached)
    role, edit = next(iter(edits.items()))
    host = example.resolve()
    if len(edits) > 1:
        with pytest.raises(
            VldebiasError, match=rf"has the roles \['{role}', .*none for \['{[*edits][1]}'\]"
        ):
            example.debias({role: edit})
    with pytest.raises(ProjectionMismatchError, match=rf"space 'moon', not '{host.space(role)}'"):
        host.check(role, edit.with_provenance(space="moon"))
    with pytest.raises(
        ProjectionMismatchError, match=rf"has dim {edit.dim + 1}, but '{role}' has {edit.dim}"
    ):
        host.check(role, CalibratedProjection().fit(torch.randn(3, 2, edit.dim + 1)))
    for module in example.modules():
        module.bfloat16()
    example.resolve().check(role, edit)  # the same weights in another precision
    for module in example.modules():
        for parameter in module.float().parameters():
            parameter.mul_(1.1)
    with pytest.raises(
        ProjectionMismatchError, match=r"fitted on different weights .*fit it again on this host"
    ):
        example.resolve().check(role, edit)
