"""What every method keeps: fitted, attached, saved, loaded and merged through one path; refused by its needs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from matplotlib.colors import to_rgb
from torch import Tensor
from typer.testing import CliRunner

import vldebias
from tests.fewer import few
from vldebias import gone
from vldebias.cli import app
from vldebias.edit import Edit, Provenance
from vldebias.errors import InvalidInputError, PromptSetError, UnsupportedHostError, VldebiasError, VldebiasWarning
from vldebias.hosts import TextTable, resolve
from vldebias.methods import (
    METHODS,
    UCE,
    Auto,
    Bounded,
    DeAR,
    Method,
    Need,
    Problem,
    UCEAll,
    WeightedValues,
    get_method,
    load_edit,
    register_method,
)
from vldebias.projection import CalibratedProjection
from vldebias.prompts import load_prompts

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

NAMES = ["none", "orth", "orth-cali", "cali", "difference", "equalise", "cali+equalise", "difference+equalise"]
NAMES += ["paper", "default", "auto", "steer", "target-shares", "leace", "inlp", "clip-clip", "sfid", "dear"]
NAMES += ["roboshot", "prism", "bend-vlm", "each-value", "suffix", "entigen", "stated-value", "uce", "weighted-values"]
NAMES += ["lian", "spd", "fair-pca", "uce-all", "fair-diffusion"]
SET = few(load_prompts("professions-gender"), 8)
SCALES = dict.fromkeys(SET.classes[:4], (0.3, -0.3))
READ = {"uce": UCE(SCALES), "uce-all": UCEAll(SCALES), "weighted-values": WeightedValues(weight=0.3)}
QUICK = {"auto": Auto(lams=[100.0]), "dear": DeAR(steps=10)}
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

    def outputs(self, attachment: vldebias.Attachment | None = None) -> list[Tensor]:
        prompts = [*PLAIN, STATED]
        if attachment is not None:
            attachment.seeds = range(len(prompts))
        with torch.no_grad():
            return list(self._encode(self._bare, prompts))


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    from vldebias.miniature import load_clip, load_pipeline, portraits

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
    """The method, with what a judge read where it needs that; images only for those that use them."""
    method = {"method": (READ | QUICK).get(name, name)}
    return method if METHODS[name].uses_images or "reference" not in case.how else {"reference": None, **method}


ON = [(name, "model") for name in NAMES if METHODS[name].models]
ON += [(name, "pipeline") for name in NAMES if METHODS[name].pipelines]


def test_all_of_them_are_here() -> None:
    own = {name for name in METHODS if type(METHODS[name]).__module__.startswith("vldebias.")}
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
    attached = case.outputs(attachment)
    edits = case._fitted[name] = dict(attachment.projections)
    for role, edit in edits.items():
        origin = edit.provenance
        assert (origin.space, origin.fingerprint) == (case.host.space(role), case.host.fingerprint())
        assert (origin.prompts, origin.prompts_hash, origin.stated_words) == (SET.name, SET.hash, SET.stated_words)
        assert origin.uses_images == METHODS[name].uses_images
        assert origin.labels == ("zero-shot" if Need.LABELS in METHODS[name].needs else None)
        assert edit.side == (METHODS[name].side if on == "model" else "text")
        assert origin.method == name or name in ("paper", "default", "auto")
        assert edit.dim == attached[0].shape[-1]
    side = METHODS[name].side
    if on == "model":
        assert torch.equal(attached[1], base[1]) == (side == "text")
    idle = side == "image" or all(edit.guides or edit.method in ("none", "auto: none") for edit in edits.values())
    moved = [not torch.equal(a, b) for a, b in zip(attached[0], base[0], strict=True)]
    assert moved == [not idle, not idle, not idle, False]  # the last prompt states its attribute
    attachment.strength = 0.0
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(attachment), base, strict=True))
    attachment.strength = 1.0
    with attachment.disabled():
        assert all(torch.equal(a, b) for a, b in zip(case.outputs(attachment), base, strict=True))
    attachment.remove()
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(), base, strict=True))
    loaded = {role: load_edit(edit.save_pretrained(tmp_path / role)) for role, edit in edits.items()}
    for role, edit in loaded.items():
        assert (type(edit), edit.settings()) == (type(edits[role]), edits[role].settings())
        saved = {one.name for one in fields(edit) if one.init} - {*edit.axes, *edit.parts}
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
                with pytest.raises(InvalidInputError, match=rf"'{key}' .* holds 1 NaN or infinite values"):
                    type(edit).build(edit.tensors() | {key: broken}, edit.settings(), edit.provenance)
    with case.debias(loaded) as again:
        assert all(torch.equal(a, b) for a, b in zip(case.outputs(again), attached, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(), base, strict=True))


@pytest.mark.filterwarnings("ignore:.*two branches of guidance")
@pytest.mark.parametrize(("name", "on"), ON)
def test_merged_gives_what_it_gave_attached_or_a_sentence(cases: dict[str, Case], name: str, on: str) -> None:
    case, edits = cases[on], cases[on].fitted(name)
    merges = {type(edit) for edit in edits.values()} == {CalibratedProjection}
    case = case.copy() if merges else case
    attachment = case.debias(edits, keep_stated=False)
    if merges:
        attached = case.outputs(attachment)
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
        with pytest.raises(UnsupportedHostError, match=rf"method '{re.escape(name)}' is for image-text mod"):
            cases["pipeline"].debias(SET, method=name)
    if not method.models:
        with pytest.raises(UnsupportedHostError, match=rf"draws no images; method '{name}' is for pipelines"):
            cases["model"].debias(SET, method=name, reference=None)


LACKS: dict[Need, tuple[dict[str, Any], str]] = {
    Need.SPURIOUS: ({"spurious": ()}, "P0 needs spurious prompts and the set has none; use method="),
    Need.VALUES: ({"attributes": {}}, "words for each value|words for two or more values"),
    Need.IMAGES: ({}, "uses unlabelled images: pass reference=, image features"),
    Need.JUDGED: ({}, "uses judged images: what the pipeline draws for the prompts of the fit, read"),
    Need.LABELS: ({}, "uses labelled images: pass reference=, .* with labels= or the model's own"),
}


@pytest.mark.parametrize(
    ("name", "need"),
    [(name, need) for name in NAMES for need in sorted(METHODS[name].needs - {Need.PAIRS, Need.TRAINING})],
)
def test_a_need_that_is_not_met_is_said_before_anything_is_embedded(name: str, need: Need) -> None:
    change, message = LACKS[need]
    host = TextTable({"nothing": [1.0]})
    host.generative = not METHODS[name].models
    images = None if need in (Need.IMAGES, Need.LABELS) or not METHODS[name].uses_images else torch.ones(3, 1)
    problem = replace(Problem.of(host, replace(SET, **change)), reference=images)
    with pytest.raises(PromptSetError if need is Need.VALUES else InvalidInputError, match=message):
        problem.fit(name, "joint")


@pytest.mark.parametrize("name", ["cali", "orth", "difference", "paper", "default"])
def test_a_bound_wraps_any_projection(cases: dict[str, Case], name: str) -> None:
    case = cases["model"]
    problem = Problem.of(case.host, SET)
    free, bounded = problem.fit(name, "joint"), problem.fit(Bounded(name, 0.001), "joint")
    assert bounded.provenance.max_loss == 0.001
    assert free.provenance.max_loss is None
    rows = problem.embed(SET.classes, "joint")
    assert torch.cosine_similarity(rows, bounded(rows)).min() >= 0.999 - 1e-9
    assert torch.cosine_similarity(rows, free(rows)).min() < 0.999


def test_a_bound_says_what_it_cannot_wrap(cases: dict[str, Case]) -> None:
    with pytest.raises(InvalidInputError, match=r"max_loss: method 'steer' gives .*, which is no projection"):
        cases["pipeline"].debias(SET, method="steer", max_loss=0.1)


def test_terms_are_summed_in_any_order_and_once() -> None:
    one, other = METHODS["cali"] + METHODS["equalise"], METHODS["equalise"] + METHODS["cali"]
    assert one.name == "cali+equalise"
    assert set(one.terms) == set(other.terms)
    assert (one + METHODS["cali"]).terms == one.terms
    assert one.needs == {Need.PAIRS, Need.IMAGES}


# --- a method of one's own


class Halve(Method):
    name, title, source = "halve", "half of the calibration", "a test"
    needs, has_lam = frozenset({Need.PAIRS}), True

    def fit(self, problem: Problem, role: str) -> Edit:
        return METHODS["cali"].fit(problem, role).at_strength(0.5)


def test_a_method_of_ones_own_is_fitted_without_registering(cases: dict[str, Case]) -> None:
    host = cases["model"].host
    half, whole = (vldebias.fit_projection(host, SET, method=method) for method in (Halve(), "cali"))
    rows = torch.randn(3, half.dim)
    torch.testing.assert_close(half(rows), whole(rows, 0.5))
    assert half.space == whole.space


def test_an_object_that_only_looks_like_a_method_is_one() -> None:
    class Plain:
        name, title, source, needs = "plain", "no base class", "this test", frozenset({Need.PAIRS})

        def fit(self, problem: Problem, role: str) -> Edit:
            return problem.fit("cali", role)

    texts = {text: torch.randn(6) for text in (*SET.classes, *(text for pair in SET.pairs for text in pair))}
    edit = Problem.of(texts, SET).fit(Plain(), "joint")
    assert edit.method == "plain"


def test_what_cannot_be_registered() -> None:
    class Nameless(Method):
        def fit(self, problem: Problem, role: str) -> Edit:
            raise AssertionError

    with pytest.raises(InvalidInputError, match=r"expected an object with name, title, source.* without name, ti"):
        register_method(Nameless())
    with pytest.raises(InvalidInputError, match=r"expected an object with name, .* got <function"):
        register_method(lambda problem, role: None)  # type: ignore[arg-type]
    Nameless.name, Nameless.title, Nameless.source = "cali", "another", ""
    with pytest.raises(InvalidInputError, match=r"method 'cali': there is one of this name, ClosedForm"):
        register_method(Nameless())
    assert METHODS["cali"].title == "calibration"
    assert register_method(METHODS["cali"]) is METHODS["cali"]


@pytest.mark.parametrize("given", ["cail", "Cali", 3, None, ["cali"]])
def test_an_unknown_name_is_told_with_all_of_them(given: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"method: expected one of none, orth, .*, target-shares.*, got"):
        get_method(given)
    if isinstance(given, str):
        with pytest.raises(InvalidInputError, match="did you mean 'cali'"):
            get_method(given)


@pytest.mark.parametrize("name", gone.METHODS)
def test_a_name_that_went_says_what_to_take(name: str) -> None:
    assert name not in METHODS
    with pytest.raises(InvalidInputError, match=rf"method '{re.escape(name)}' went: .*take '") as caught:
        get_method(name)
    (first, *_) = re.findall(r"take '([^']*)'", str(caught.value))
    assert get_method(first).name == first
    done = CliRunner().invoke(app, ["debias", "gender", "--pipeline", "none", "--method", name, "--out", "none"])
    assert str(done.exception) == str(caught.value)


@pytest.mark.parametrize("name", gone.NAMES)
def test_a_class_that_went_says_what_to_take(name: str) -> None:
    module, _, own = name.rpartition(".")
    with pytest.raises(ImportError, match=rf"'{own}' went from '{module}': .*take '"):
        exec(f"from {module} import {own}")
    with pytest.raises(AttributeError, match=rf"no attribute '{own}s'$"):
        getattr(import_module(module), f"{own}s")


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

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Any = None) -> Tensor:
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
        flipped = case.outputs(one)[0]
        role, edit = next(iter(one.projections.items()))
    torch.testing.assert_close(flipped[..., 0], -base[..., 0])
    torch.testing.assert_close(flipped[..., 1:], base[..., 1:])
    loaded = load_edit(edit.save_pretrained(tmp_path))
    assert isinstance(loaded, Flip)
    with case.debias({role: loaded}, keep_stated=False) as two:
        assert torch.equal(case.outputs(two)[0], flipped)
    with pytest.raises(InvalidInputError, match=r"Flip \(mirror\): 'axis' \(\d+,\) holds 1 NaN or infinite values"):
        replace(edit, axis=edit.axis.index_fill(0, torch.tensor(1), torch.inf))
    with pytest.raises(InvalidInputError, match=r"^axis: expected a tensor \(d\), got \(\d+, 1\)$"):
        replace(edit, axis=edit.axis[:, None])


@pytest.mark.parametrize("kind", gone.KINDS)
def test_a_saved_edit_of_a_kind_that_went_says_what_to_take(kind: str, tmp_path: Path) -> None:
    type("Old", (Flip,), {"kind": kind})(torch.eye(3)[0], Provenance("old")).save_pretrained(tmp_path)
    del Edit.kinds[kind]
    with pytest.raises(InvalidInputError, match=rf"of kind '{kind}', of method 'old', which went: .*take '"):
        load_edit(tmp_path)


def test_inspect_and_diagnose_take_any_edit_but_one_that_draws(cases: dict[str, Case]) -> None:
    report = vldebias.inspect(cases["model"].host, SET, method=Mirror())["joint"]
    assert report.pair_distance[1] == pytest.approx(report.pair_distance[0], rel=1e-5)
    with pytest.raises(InvalidInputError, match=r"Steering\(steer, .* draws a value for each image; texts alone"):
        vldebias.inspect(cases["pipeline"].host, SET, method="steer")


def test_target_shares_are_attached_by_what_fit_shares_gives(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["model"]
    shares, images = {"male": 0.3, "female": 0.7}, case.how["reference"]
    move = vldebias.fit_shares(case.host, SET, shares, reference=images, top=0.1)
    base = case.base[0]
    for edit in (move, load_edit(move.save_pretrained(tmp_path))):
        with vldebias.debias(case.host, edit) as attachment:
            moved = case.outputs(attachment)[0]
            torch.testing.assert_close(moved[:-1], move(base[:-1]))
            assert torch.equal(moved[-1], base[-1])
        assert edit.shares.tolist() == pytest.approx([0.3, 0.7])


def test_warnings_point_at_the_line_of_the_user(cases: dict[str, Case]) -> None:
    case = cases["model"]
    few = replace(SET, groups=SET.groups[:2], held_out_groups=())
    with pytest.warns(VldebiasWarning, match="auto: none") as caught:
        case.debias(few, method="auto", reference=None).remove()
    assert {Path(one.filename).name for one in caught} == {"test_method_contract.py"}
