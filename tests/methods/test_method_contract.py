"""Test that every method can be fitted, attached, saved, loaded and merged, or raises an error."""

import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from matplotlib.colors import to_rgb
from torch import Tensor

import vldebias
from tests.fewer import few
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError
from vldebias.hosts import Attachment, TextTable, resolve
from vldebias.methods import (
    DECLARED,
    METHODS,
    ClosedForm,
    Declaration,
    EditMethod,
    Method,
    Need,
    Problem,
    get_compared,
    get_method,
    load_edit,
)
from vldebias.methods.declared import MODELS, PIPELINES, RESULTS
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Provenance
from vldebias.prompts import load_prompts

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

# The remaining methods, which set values in prompts or in cross-attention, are tested in
# tests/hosts.
SAMPLING = [name for name, method in DECLARED.items() if "shares" in method.settings]
RERANKED = [name for name, method in DECLARED.items() if method.hosts == (RESULTS,)]
NAMES = [name for name in DECLARED if name not in (*SAMPLING, *RERANKED)]
SET = few(load_prompts("professions-gender"), 8)
PROMPTS = [
    "A photo of a nurse.",
    "A photo of a pilot.",
    "a picture of a judge",
    "A photo of a female nurse.",
]


class Case:
    """Store a miniature model or pipeline that embeds each prompt once, together with its
    outputs."""

    def __init__(
        self, bare: Any, encode: Any, tokenizer: Any = None, reference: Any = None
    ) -> None:
        self.host = resolve(bare, tokenizer=tokenizer)
        self.reference = reference
        self._bare = bare
        self._encode = encode
        self._tokenizer = tokenizer
        self.fitted: dict[str, dict[str, Edit]] = {}
        self.base = self.outputs()

    def copy(self) -> "Case":
        return Case(copy.deepcopy(self._bare), self._encode, self._tokenizer)

    def debias(self, method: Any, **how: Any) -> Attachment:
        """Attach a method, with images only for methods that use them."""
        needs = isinstance(method, str) and METHODS[method].uses_images
        return vldebias.debias(
            self.host, SET, method=method, reference=self.reference if needs else None, **how
        )

    def outputs(self) -> list[Tensor]:
        with torch.no_grad():
            return list(self._encode(self._bare))

    def unchanged(self) -> bool:
        return all(torch.equal(a, b) for a, b in zip(self.outputs(), self.base, strict=True))


@pytest.fixture(scope="module")
def cases(portraits: Any) -> dict[str, Case]:
    from vldebias.miniature import load_pipeline

    model, tokenizer, features, _ = portraits(150, seed=77)
    picture = torch.rand(1, 3, *model.visual.image_size, generator=torch.Generator().manual_seed(0))

    def both(model: Any) -> list[Tensor]:
        return [model.encode_text(tokenizer(PROMPTS)), model.encode_image(picture)]

    return {
        "model": Case(model, both, tokenizer, features),
        "pipeline": Case(
            load_pipeline(), lambda pipe: pipe.encode_prompt(PROMPTS, "cpu", 1, False)[:1]
        ),
    }


ON = [(name, "model") for name in NAMES if MODELS in DECLARED[name].hosts]
# The default for pipelines rewrites prompts.
ON += [
    (name, "pipeline") for name in NAMES if PIPELINES in DECLARED[name].hosts and name != "default"
]


def test_every_declared_method_is_registered_in_order_and_follows_its_declaration() -> None:
    of_this_package = [
        name for name, method in METHODS.items() if type(method).__module__.startswith("vldebias.")
    ]
    assert of_this_package == [name for name in DECLARED if name not in RERANKED]
    for name in DECLARED:
        assert get_compared(name).declaration == DECLARED[name]


def test_a_closed_form_declaration_lists_what_its_terms_need() -> None:
    for name, method in METHODS.items():
        if isinstance(method, ClosedForm):
            assert method.needs == {term.need for term in method.terms}, name
            has_scatters = any(term.scatters is not None for term in method.terms)
            assert method.declaration.has_lam == has_scatters, name


def test_titles_and_colors_are_unique_and_every_method_is_described() -> None:
    declared = list(DECLARED.values())
    assert len({method.title for method in declared}) == len(declared)
    fitted = [DECLARED[name] for name in NAMES]
    assert len({to_rgb(method.color) for method in fitted}) == len(fitted)
    for method in declared:
        assert method.about, method.name
        assert method.source or method.name == "none"
        assert set(method.hosts) <= {MODELS, PIPELINES, RESULTS}


@pytest.mark.parametrize(("name", "host_name"), ON)
def test_edits_survive_saving_and_attach_in_three_states(
    cases: dict[str, Case], name: str, host_name: str, tmp_path: Path
) -> None:
    case = cases[host_name]
    attachment = case.debias(name)
    attached = case.outputs()
    edits = dict(attachment.projections)
    case.fitted[name] = edits
    for role, edit in edits.items():
        assert_records_how_it_was_fitted(case, name, host_name, role, edit)
        assert edit.dim == attached[0].shape[-1]
    assert_only_edits_its_side(case, name, host_name, attached, edits)
    attachment.strength = 0.0
    assert case.unchanged()
    attachment.strength = 1.0
    with attachment.disabled():
        assert case.unchanged()
    attachment.remove()
    assert case.unchanged()
    if attachment.state == "declined":
        return  # the default attached nothing, so there is nothing to save
    assert edits
    loaded = {}
    for role, edit in edits.items():
        loaded[role] = load_edit(edit.save_pretrained(tmp_path / role))
        assert_same_edit(loaded[role], edit)
    with vldebias.debias(case.host, loaded):
        assert all(torch.equal(a, b) for a, b in zip(case.outputs(), attached, strict=True))
    assert case.unchanged()


def assert_records_how_it_was_fitted(
    case: Case, name: str, host_name: str, role: str, edit: Any
) -> None:
    method = METHODS[name]
    origin = edit.provenance
    assert origin.space == case.host.space(role)
    assert origin.fingerprint == case.host.fingerprint(role)
    assert origin.attribute == SET.name
    assert origin.attribute_hash == SET.hash
    assert origin.stated_words == SET.stated_words
    assert origin.uses_images == method.uses_images
    assert origin.labels == ("zero-shot" if Need.LABELS in method.needs else None)
    assert origin.method == name or name in ("paper", "default", "default+reference")
    assert edit.side == (method.declaration.side if host_name == "model" else "text")


def assert_only_edits_its_side(
    case: Case, name: str, host_name: str, attached: Any, edits: dict[str, Any]
) -> None:
    """Check that text embeddings change unless the method edits images or removes nothing, and that
    stated prompts never change."""
    side = DECLARED[name].side
    texts_before = case.base[0]
    if host_name == "model":
        assert torch.equal(attached[1], case.base[1]) == (side == "text")
    removes_nothing = all(edit.method in ("none", "default: none") for edit in edits.values())
    moves = side != "image" and not removes_nothing
    moved = [not torch.equal(a, b) for a, b in zip(attached[0], texts_before, strict=True)]
    assert moved == [moves, moves, moves, False]  # the last prompt states its attribute


def assert_same_edit(loaded: Any, fitted: Any) -> None:
    """Check that all fields are equal, and that tensors with a wrong shape or with NaN are rejected
    by name."""
    assert type(loaded) is type(fitted)
    assert loaded.settings() == fitted.settings()
    tensors = {key: getattr(loaded, key) for key in loaded.axes}
    for field in fields(loaded):
        if field.init and field.name not in loaded.axes:
            assert getattr(loaded, field.name) == getattr(fitted, field.name)
    for key, tensor in tensors.items():
        assert torch.equal(tensor, getattr(fitted, key))
        with pytest.raises(InvalidInputError, match=rf"^{key}: expected a .*tensor \("):
            replace(loaded, **{key: tensor[None]})
        if tensor.is_floating_point() and tensor.numel():
            broken = tensor.clone()
            broken.view(-1)[-1] = float("nan")
            with pytest.raises(InvalidInputError, match=rf"{key}' .* has 1 NaN"):
                replace(loaded, **{key: broken})


@pytest.mark.filterwarnings("ignore:.*two branches of guidance")
@pytest.mark.parametrize(("name", "host_name"), ON)
def test_merging_preserves_the_output_or_is_rejected_with_a_message(
    cases: dict[str, Case], name: str, host_name: str
) -> None:
    case = cases[host_name]
    if name not in case.fitted:
        with case.debias(name) as fitting:
            case.fitted[name] = dict(fitting.projections)
    edits = case.fitted[name]
    if not edits:
        pytest.skip("the default declined, so there is no edit to merge")
    merges = {type(edit) for edit in edits.values()} == {CalibratedProjection}
    case = case.copy() if merges else case
    attachment = vldebias.debias(case.host, edits, keep_stated=False)
    if merges:
        attached = case.outputs()
        attachment.merge()
        assert attachment.state == "merged"
        if host_name == "model":
            torch.testing.assert_close(case.outputs(), attached, atol=1e-4, rtol=1e-4)
    else:
        with pytest.raises(VldebiasError, match=rf"\({name}\) is not a single linear map"):
            attachment.merge()
        assert attachment.state == "attached"
        attachment.remove()


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_rejected_for_the_wrong_kind_of_host(cases: dict[str, Case], name: str) -> None:
    hosts = DECLARED[name].hosts
    for host_name, other_host, fits in (
        ("pipeline", "image-text m", PIPELINES in hosts),
        ("model", "pipelines", MODELS in hosts),
    ):
        if not fits:
            with pytest.raises(UnsupportedHostError, match=f"only supports {other_host}"):
                vldebias.debias(cases[host_name].host, SET, method=name)


MISSING_INPUTS: dict[Need, tuple[dict[str, Any], str]] = {
    Need.SPURIOUS: ({"spurious": ()}, "needs spurious prompts"),
    Need.VALUES: ({"attributes": {}}, "value"),
    Need.IMAGES: ({}, "pass reference="),
    Need.LABELS: ({}, "pass reference=.* with labels="),
}


def needs_of_methods() -> list[tuple[str, Need]]:
    needs = []
    for name in NAMES:
        needs += [(name, need) for need in sorted(METHODS[name].needs - {Need.PAIRS})]
    return needs


@pytest.mark.parametrize(("name", "need"), needs_of_methods())
def test_missing_inputs_are_reported_before_anything_is_embedded(name: str, need: Need) -> None:
    change, message = MISSING_INPUTS[need]
    host = TextTable({"nothing": [1.0]})
    host.generative = MODELS not in DECLARED[name].hosts
    images = (
        None
        if need in (Need.IMAGES, Need.LABELS) or not METHODS[name].uses_images
        else torch.ones(3, 1)
    )
    problem = replace(Problem(host, replace(SET, **change)), reference=images)
    with pytest.raises(InvalidInputError, match=message):
        problem.fit(name, "text")


def test_bounds_and_sides_that_do_not_apply_are_rejected(cases: dict[str, Case]) -> None:
    with pytest.raises(InvalidInputError, match="got an empty list"):
        Problem(TextTable({"nothing": [1.0]}), [])
    with pytest.raises(
        InvalidInputError, match="prompt set 'gender' twice in 'gender\\+age\\+gender'"
    ):
        Problem(TextTable({"nothing": [1.0]}), ["gender", "age", "gender"])
    with pytest.raises(InvalidInputError, match=r"max_loss: .*suffix"):
        cases["pipeline"].debias("suffix", max_loss=0.1)
    with pytest.raises(InvalidInputError, match="'roboshot' acts on images"):
        cases["model"].debias("roboshot", side="text")


def test_terms_are_summed_in_any_order_and_only_once() -> None:
    first = METHODS["cali"] + METHODS["equalise"]
    second = METHODS["equalise"] + METHODS["cali"]
    assert set(first.terms) == set(second.terms)
    assert (first + METHODS["cali"]).terms == first.terms
    assert (first.name, first.needs) == ("cali+equalise", {Need.PAIRS, Need.IMAGES})


@dataclass(frozen=True, eq=False, repr=False)
class Flip(Edit):
    """Mirror one axis, as an edit from another package with its own kind."""

    kind = "test-flip"
    axes: ClassVar = {"axis": "d"}

    axis: Tensor
    provenance: Provenance

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        return (
            z
            if strength == 0
            else z - 2 * strength * (z @ self.axis.to(z))[..., None] * self.axis.to(z)
        )


class Mirror(EditMethod):
    declaration = Declaration("mirror")

    def fit(self, problem: Problem, role: str) -> Edit:
        return Flip(torch.eye(problem.host.dim(role))[0], Provenance(self.name))


@pytest.mark.parametrize("host_name", ["model", "pipeline"])
def test_an_edit_from_another_package_can_be_attached_and_saved(
    cases: dict[str, Case], host_name: str, tmp_path: Path
) -> None:
    case = cases[host_name]
    with case.debias(Mirror(), keep_stated=False) as attachment:
        flipped = case.outputs()[0]
        role, edit = next(iter(attachment.projections.items()))
    expected = case.base[0].clone()
    expected[..., 0] *= -1
    torch.testing.assert_close(flipped, expected)
    loaded = load_edit(edit.save_pretrained(tmp_path))
    assert isinstance(loaded, Flip)
    with vldebias.debias(case.host, {role: loaded}, keep_stated=False):
        assert torch.equal(case.outputs()[0], flipped)


def test_following_the_advice_for_a_matrix_works() -> None:
    """Follow the advice in the error message for a matrix literally."""
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[0, 0] = 0.5
    u, sigma, vh = torch.linalg.svd(torch.eye(3, dtype=torch.float64) - matrix)
    edit = CalibratedProjection(0.0, u * sigma, vh.T.contiguous(), Provenance("mine"))
    torch.testing.assert_close(edit.matrix(), matrix)


def test_a_method_without_a_declaration_or_base_class_raises_a_helpful_error() -> None:
    class Undeclared(EditMethod):
        def fit(self, problem: Problem, role: str) -> Edit:
            raise NotImplementedError

    with pytest.raises(InvalidInputError, match="Undeclared has no declaration; add `declaration"):
        METHODS.register(Undeclared())
    with pytest.raises(InvalidInputError, match="Fitting defines fit but not attach; derive"):
        type("Fitting", (Method,), {"fit": lambda self, problem, role: None})


def test_a_reranking_method_cannot_be_attached() -> None:
    for name in RERANKED:
        assert name not in METHODS
        with pytest.raises(InvalidInputError, match=r"re-ranks search results instead of .*; use"):
            get_method(name)
