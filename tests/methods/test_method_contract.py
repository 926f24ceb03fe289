"""What every method keeps: fitted, attached, saved, loaded and merged through one path; refused by its needs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from matplotlib.colors import to_rgb
from torch import Tensor

import vldebias
from tests.fewer import few
from vldebias.edit import Edit, Provenance
from vldebias.errors import InvalidInputError, PromptSetError, UnsupportedHostError, VldebiasError, VldebiasWarning
from vldebias.hosts import TextTable, resolve
from vldebias.methods import METHODS, Method, Need, Problem, load_edit
from vldebias.projection import CalibratedProjection
from vldebias.prompts import load_prompts

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

NAMES = ["none", "orth", "orth-cali", "cali", "difference", "equalise", "cali+equalise", "difference+equalise"]
NAMES += ["paper", "default", "auto", "target-shares", "leace", "sfid", "roboshot", "bend-vlm", "each-value", "suffix"]
NAMES += ["lian", "spd", "fair-pca"]
SET = few(load_prompts("professions-gender"), 8)
PLAIN = ["A photo of a nurse.", "A photo of a pilot.", "a picture of a judge"]
STATED = "A photo of a female nurse."
Encode = Callable[[Any, list[str]], Sequence[Tensor]]


class Case:
    """A model or a pipeline of the miniature, which embeds a prompt once, and what depends on its texts."""

    def __init__(self, bare: Any, encode: Encode, tokenizer: Any = None, **how: Any) -> None:
        self.host = resolve(bare, tokenizer=tokenizer)
        self._bare, self._encode, self._tokenizer, self.how = bare, encode, tokenizer, how
        self._fitted: dict[str, dict[str, Edit]] = {}

    def copy(self) -> Case:
        return Case(copy.deepcopy(self._bare), self._encode, self._tokenizer, **self.how)

    def debias(self, given: Any, **how: Any) -> vldebias.Attachment:
        return vldebias.debias(self.host, given, **({} if isinstance(given, dict) else self.how) | how)

    def fitted(self, name: str) -> dict[str, Edit]:
        if name not in self._fitted:
            self._fitted[name] = vldebias.fit_projections(self.host, SET, **self.how | how(self, name))
        return self._fitted[name]

    @cached_property
    def base(self) -> list[Tensor]:
        """What it gives without an attachment."""
        return self.outputs()

    def outputs(self) -> list[Tensor]:
        with torch.no_grad():
            return list(self._encode(self._bare, [*PLAIN, STATED]))


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    from eval.miniature import portraits
    from vldebias.miniature import load_clip, load_pipeline

    model, preprocess, tokenizer = load_clip()
    with torch.no_grad():
        pictures = torch.stack([preprocess(image) for image in portraits.sample(150, seed=77).images])
        features = model.encode_image(pictures)

    def encode_text(model: Any, prompts: list[str]) -> Sequence[Tensor]:
        return [model.encode_text(tokenizer(prompts)), model.encode_image(pictures[:1])]

    def encode_prompt(pipe: Any, prompts: list[str]) -> Sequence[Tensor]:
        return pipe.encode_prompt(prompts, "cpu", 1, False)[:1]

    return {
        "model": Case(model, encode_text, tokenizer, reference=features),
        "pipeline": Case(load_pipeline(), encode_prompt),
    }


def how(case: Case, name: str) -> dict[str, Any]:
    """The method, and images only for those that use them."""
    method = {"method": name}
    return method if METHODS[name].uses_images or "reference" not in case.how else {"reference": None, **method}


ON = [(name, "model") for name in NAMES if METHODS[name].models]
ON += [(name, "pipeline") for name in NAMES if METHODS[name].pipelines and name != "default"]  # which rewrites


def test_all_of_them_are_here() -> None:
    own = {n for n in METHODS if type(METHODS[n]).__module__.startswith("vldebias.") and not METHODS[n].rewrites}
    assert own == set(NAMES)


def test_what_methods_say_of_themselves_tells_them_apart() -> None:
    for name in NAMES:
        method = METHODS[name]
        assert method.name == name
        assert method.title
        assert isinstance(method.source, str)
        assert method.needs <= set(Need)
        assert method.models or method.pipelines
        assert name in repr(method)
    assert len({METHODS[name].title for name in NAMES}) == len(NAMES)
    assert len({to_rgb(METHODS[name].color) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(("name", "on"), ON)
def test_fitted_saved_loaded_and_attached_in_three_states(
    cases: dict[str, Case], name: str, on: str, tmp_path: Path
) -> None:
    case = cases[on]
    base = case.base
    attachment = case.debias(SET, **how(case, name))
    attached = case.outputs()
    edits = case._fitted[name] = dict(attachment.projections)
    for role, edit in edits.items():
        origin = edit.provenance
        assert (origin.space, origin.fingerprint) == (case.host.space(role), case.host.fingerprint(role))
        assert (origin.prompts, origin.prompts_hash, origin.stated_words) == (SET.name, SET.hash, SET.stated_words)
        assert origin.uses_images == METHODS[name].uses_images
        assert origin.labels == ("zero-shot" if Need.LABELS in METHODS[name].needs else None)
        assert edit.side == (METHODS[name].side if on == "model" else "text")
        assert origin.method == name or name in ("paper", "default", "auto")
        assert edit.dim == attached[0].shape[-1]
    side = METHODS[name].side
    if on == "model":
        assert torch.equal(attached[1], base[1]) == (side == "text")
    idle = side == "image" or all(edit.method in ("none", "auto: none") for edit in edits.values())
    moved = [not torch.equal(a, b) for a, b in zip(attached[0], base[0], strict=True)]
    assert moved == [not idle, not idle, not idle, False]  # the last prompt states its attribute
    attachment.strength = 0.0
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(), base, strict=True))
    attachment.strength = 1.0
    with attachment.disabled():
        assert all(torch.equal(a, b) for a, b in zip(case.outputs(), base, strict=True))
    attachment.remove()
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(), base, strict=True))
    loaded = {role: load_edit(edit.save_pretrained(tmp_path / role)) for role, edit in edits.items()}
    for role, edit in loaded.items():
        assert (type(edit), edit.settings()) == (type(edits[role]), edits[role].settings())
        saved = {one.name for one in fields(edit) if one.init} - {*edit.axes}
        assert {name: getattr(edit, name) for name in saved} == {name: getattr(edits[role], name) for name in saved}
        assert all(torch.equal(tensor, edits[role].tensors()[key]) for key, tensor in edit.tensors().items())
        for key, tensor in edit.tensors().items():
            wide, broken = tensor[None], tensor.clone()
            with pytest.raises(
                InvalidInputError, match=rf"^{key}: expected a tensor \(.*got {re.escape(str(tuple(wide.shape)))}"
            ):
                type(edit).build(edit.tensors() | {key: wide}, edit.settings(), edit.provenance)
            if tensor.is_floating_point() and tensor.numel():
                broken.view(-1)[-1] = float("nan")
                with pytest.raises(InvalidInputError, match=rf"{key.rpartition('.')[2]}' .* holds 1 NaN"):
                    type(edit).build(edit.tensors() | {key: broken}, edit.settings(), edit.provenance)
    with case.debias(loaded):
        assert all(torch.equal(a, b) for a, b in zip(case.outputs(), attached, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(), base, strict=True))


@pytest.mark.filterwarnings("ignore:.*two branches of guidance")
@pytest.mark.parametrize(("name", "on"), ON)
def test_merged_gives_what_it_gave_attached_or_a_sentence(cases: dict[str, Case], name: str, on: str) -> None:
    case, edits = cases[on], cases[on].fitted(name)
    merges = {type(edit) for edit in edits.values()} == {CalibratedProjection}
    case = case.copy() if merges else case
    attachment = case.debias(edits, keep_stated=False)
    if merges:
        attached = case.outputs()
        attachment.merge()
        assert attachment.state == "merged"
        if on == "model":
            torch.testing.assert_close(case.outputs(), attached, atol=1e-4, rtol=1e-4)
    else:
        with pytest.raises(VldebiasError, match=rf"\({name}\) is not one linear map .* keep it attached, or save it"):
            attachment.merge()
        assert attachment.state == "attached"
        attachment.remove()


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_refused_for_the_host_that_it_is_not_for(cases: dict[str, Case], name: str) -> None:
    method = METHODS[name]
    if not method.pipelines:
        with pytest.raises(UnsupportedHostError, match=rf"method '{re.escape(name)}' is only for image-text mod"):
            cases["pipeline"].debias(SET, method=name)
    if not method.models:
        with pytest.raises(UnsupportedHostError, match=rf"method '{name}' is only for pipelines"):
            cases["model"].debias(SET, method=name, reference=None)


LACKS: dict[Need, tuple[dict[str, Any], str]] = {
    Need.SPURIOUS: ({"spurious": ()}, "needs spurious prompts"),
    Need.VALUES: ({"attributes": {}}, "value"),
    Need.IMAGES: ({}, "needs images: pass reference="),
    Need.LABELS: ({}, "needs images: pass reference=.* with labels="),
}


@pytest.mark.parametrize(
    ("name", "need"),
    [(name, need) for name in NAMES for need in sorted(METHODS[name].needs - {Need.PAIRS})],
)
def test_a_need_that_is_not_met_is_said_before_anything_is_embedded(name: str, need: Need) -> None:
    change, message = LACKS[need]
    host = TextTable({"nothing": [1.0]})
    host.generative = not METHODS[name].models
    images = None if need in (Need.IMAGES, Need.LABELS) or not METHODS[name].uses_images else torch.ones(3, 1)
    problem = replace(Problem.of(host, replace(SET, **change)), reference=images)
    with pytest.raises(PromptSetError if need is Need.VALUES else InvalidInputError, match=message):
        problem.fit(name, "joint")


def test_a_bound_says_what_it_cannot_wrap(cases: dict[str, Case]) -> None:
    with pytest.raises(InvalidInputError, match=r"max_loss: expected a method that fits a projection, got .*suffix"):
        cases["pipeline"].debias(SET, method="suffix", max_loss=0.1)


def test_terms_are_summed_in_any_order_and_once() -> None:
    one, other = METHODS["cali"] + METHODS["equalise"], METHODS["equalise"] + METHODS["cali"]
    assert one.name == "cali+equalise"
    assert set(one.terms) == set(other.terms)
    assert (one + METHODS["cali"]).terms == one.terms
    assert one.needs == {Need.PAIRS, Need.IMAGES}


# --- a method of one's own


def test_entry_points_of_other_packages_are_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed beside this one: ten lines, and an entry point."""
    (tmp_path / "acme.py").write_text(
        "from vldebias.methods import METHODS, Method\n\n\n"
        "class Double(Method):\n"
        '    name, title, source = "acme-double", "twice the weight", "Acme, 2026"\n'
        "    has_lam = True\n\n"
        "    def fit(self, problem, role):\n"
        '        return METHODS["cali"].fit(problem, role).at_multiple(2.0).stamped(method=self.name)\n'
    )
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vldebias.methods]\ndouble = acme:Double\nbroken = acme:Nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "_searched", False)
    with pytest.warns(
        VldebiasWarning, match=r"entry point 'broken' of vldebias.methods \(acme:Nothing\): AttributeErr"
    ):
        assert METHODS["acme-double"].title == "twice the weight"
    words = {"a man": [1.0, 0.5], "a woman": [1.0, -0.5], "a doctor": [1.0, 0.1]}
    prompts = vldebias.PromptSet("g", groups=(("a man", "a woman"),))
    edit = vldebias.fit_projection(words, prompts, method="acme-double", lam=3.0)
    assert (edit.method, edit.lam) == ("acme-double", 6.0)


# --- an edit of one's own


@dataclass(frozen=True, eq=False, repr=False)
class Flip(Edit):
    """Mirrors one axis: an edit of another package, with a kind of its own."""

    kind = "test-flip"
    axes: ClassVar = {"axis": "d"}

    axis: Tensor
    provenance: Provenance

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        return z if strength == 0 else z - 2 * strength * (z @ self.axis.to(z))[..., None] * self.axis.to(z)


class Mirror(Method):
    name, title, source = "mirror", "one axis mirrored", "a test"

    def fit(self, problem: Problem, role: str) -> Edit:
        return Flip(torch.eye(problem.host.dim(role))[0], Provenance(self.name))


@pytest.mark.parametrize("on", ["model", "pipeline"])
def test_an_edit_of_another_package_is_attached_saved_and_loaded(
    cases: dict[str, Case], on: str, tmp_path: Path
) -> None:
    case = cases[on]
    base = case.base[0]
    with case.debias(SET, method=Mirror(), keep_stated=False, **({"reference": None} if on == "model" else {})) as one:
        flipped = case.outputs()[0]
        role, edit = next(iter(one.projections.items()))
    torch.testing.assert_close(flipped[..., 0], -base[..., 0])
    torch.testing.assert_close(flipped[..., 1:], base[..., 1:])
    loaded = load_edit(edit.save_pretrained(tmp_path))
    assert isinstance(loaded, Flip)
    with case.debias({role: loaded}, keep_stated=False):
        assert torch.equal(case.outputs()[0], flipped)
    with pytest.raises(InvalidInputError, match=r"Flip \(mirror\): 'axis' \(\d+,\) holds 1 NaN or infinite values"):
        replace(edit, axis=edit.axis.index_fill(0, torch.tensor(1), torch.inf))
    with pytest.raises(InvalidInputError, match=r"^axis: expected a tensor \(d\).* got \(\d+, 1\)$"):
        replace(edit, axis=edit.axis[:, None])


def test_target_shares_are_attached_by_what_fit_shares_gives(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["model"]
    shares, images = {"male": 0.3, "female": 0.7}, case.how["reference"]
    move = vldebias.fit_shares(case.host, SET, shares, reference=images, top=0.1)
    base = case.base[0]
    for edit in (move, load_edit(move.save_pretrained(tmp_path))):
        with vldebias.debias(case.host, edit):
            moved = case.outputs()[0]
            torch.testing.assert_close(moved[:-1], move(base[:-1]))
            assert torch.equal(moved[-1], base[-1])
        assert edit.shares.tolist() == pytest.approx([0.3, 0.7])
