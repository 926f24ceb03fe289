"""debias() and its kin on a made-up host: presets, joint solution, lazily fitted roles, checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vldebias
from vldebias.edit import Fingerprint
from vldebias.errors import (
    AlreadyAttachedError,
    ClassSignalWarning,
    InvalidInputError,
    ProjectionMismatchError,
    PromptSetError,
    UnsupportedHostError,
)
from vldebias.hosts import Host, custom
from vldebias.hosts.base import Apply
from vldebias.projection import CalibratedProjection
from vldebias.prompts import load_prompts, make_prompt_set

DIM = 24
GENDER = make_prompt_set("g", {"m": ["male"], "f": ["female"]}, ["doctor", "nurse", "cook"], test_concepts=["pilot"])
AGE = make_prompt_set("a", {"o": ["old"], "y": ["young"]}, ["doctor", "nurse"])


class Words(Host):
    """Embeds a prompt as the mean of a random vector for each of its words."""

    name = "Words"
    roles: tuple[str, ...] = ("joint",)

    def __init__(self, seed: int = 0, roles: tuple[str, ...] = ("joint",), generative: bool = False) -> None:
        self.seed, self.roles, self.generative = seed, roles, generative
        self.exclusive_modules = (self,)
        self.seen: list[str] = []
        self.apply: Apply | None = None

    def _word(self, word: str) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 10_000 + sum(map(ord, word)))
        return torch.randn(DIM, dtype=torch.float64, generator=generator)

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        self.seen += prompts
        rows = [torch.stack([self._word(w + role) for w in p.strip(".").split()]).mean(0) for p in prompts]
        units = torch.nn.functional.normalize(torch.stack(rows), dim=-1)
        return {(role, prompt): row for prompt, row in zip(prompts, units, strict=True)}

    def space(self, role: str) -> str:
        return f"words.{role}"

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(str(self.seed), (1.0,), (0.5,))

    def install(self, apply: Apply) -> Callable[[], None]:
        self.apply = apply
        return lambda: setattr(self, "apply", None)

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        raise AssertionError


def pairs(host: Host, prompt_set: Any, role: str = "joint") -> Tensor:
    return torch.stack([host.embed(pair, role) for pair in prompt_set.pairs])


def differs(a: CalibratedProjection, b: CalibratedProjection) -> float:
    return float((a.matrix() - b.matrix()).abs().max())


@pytest.mark.parametrize(
    ("generative", "asked", "method", "lam"),
    [(False, "paper", "orth-cali", 1000.0), (True, "paper", "cali", 500.0), (False, None, "difference", 0.0)],
)
def test_presets_by_host(generative: bool, asked: str | None, method: str, lam: float) -> None:
    with vldebias.debias(Words(generative=generative), GENDER, method=asked) as attachment:
        projection = attachment.projections["joint"]
    assert (projection.method, projection.lam) == (method, lam)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")
@pytest.mark.parametrize(("asked", "fitted"), [(None, "cali+equalise"), ("paper", "orth-cali+equalise")])
def test_a_reference_equalises_the_preset_as_well(asked: str | None, fitted: str) -> None:
    images = torch.randn(60, DIM, generator=torch.Generator().manual_seed(3))
    assert vldebias.fit_projection(Words(), GENDER, method=asked, reference=images).method == fitted


@pytest.mark.parametrize("method", ["orth", "orth-cali", "cali"])
def test_a_method_is_fit_on_the_embedded_prompts(method: str) -> None:
    host = Words()
    spurious = None if method == "cali" else host.embed(GENDER.spurious, "joint")
    expected = CalibratedProjection.fit(None if method == "orth" else pairs(host, GENDER), spurious, 50.0)
    assert differs(vldebias.fit_projection(host, GENDER, method=method, lam=50.0), expected) < 1e-12


def test_several_sets_are_solved_jointly_in_any_order() -> None:
    host = Words()
    expected = CalibratedProjection.fit([pairs(host, GENDER), pairs(host, AGE)], None, [7.0, 3.0])
    found = vldebias.fit_projection(host, [GENDER, AGE], method="cali", lam=[7.0, 3.0])
    turned = vldebias.fit_projection(host, [AGE, GENDER], method="cali", lam=[3.0, 7.0])
    assert differs(found, expected) < 1e-12
    assert differs(found, turned) < 1e-12
    assert found.stated_words == (*GENDER.stated_words, *AGE.stated_words)
    assert found.provenance.prompts == "g+a"


def test_parts_of_a_set_have_a_term_each() -> None:
    host, whole = Words(), load_prompts("fairface")
    found = vldebias.fit_projection(host, whole, method="cali", lam=5.0)
    terms = [pairs(host, part) for part in whole.parts]
    assert len(terms) == 3
    assert differs(found, CalibratedProjection.fit(terms, None, 5.0)) < 1e-12


def test_every_prompt_is_embedded_once() -> None:
    host = Words()
    vldebias.inspect(host, GENDER, method="cali")
    assert len(host.seen) == len(set(host.seen))


def test_the_projection_says_where_it_belongs() -> None:
    host = Words()
    host.model_id = "words-1"
    projection = vldebias.fit_projection(host, GENDER)
    assert (projection.space, projection.model_id) == ("words.joint", "words-1")
    assert (projection.provenance.prompts_hash, projection.provenance.fingerprint) == (GENDER.hash, host.fingerprint())


def test_roles() -> None:
    host = Words(roles=("sequence", "pooled"))
    assert set(vldebias.fit_projections(host, GENDER)) == {"sequence", "pooled"}
    assert vldebias.fit_projection(host, GENDER, role="pooled").space == "words.pooled"
    with pytest.raises(InvalidInputError, match=r"has the roles \['sequence', 'pooled'\]: choose one with role="):
        vldebias.fit_projection(host, GENDER)


def test_a_role_that_a_call_needs_is_fitted_when_it_comes() -> None:
    host = Words()
    attachment = vldebias.debias(host, GENDER, keep_stated=False)
    z = host.embed(["A photo of a male doctor."], "late")
    assert host.apply is not None
    late = host.apply("late", z, None)
    assert list(attachment.projections) == ["joint", "late"]
    torch.testing.assert_close(late, vldebias.fit_projection(Words(), GENDER, role="late")(z))
    attachment.remove()


def test_keep_stated_leaves_stated_prompts_alone() -> None:
    host, texts = Words(), ["A photo of a Female doctor.", "A photo of a doctor."]
    z = host.embed(texts, "joint")
    with vldebias.debias(host, GENDER) as attachment:
        kept = attachment.apply("joint", z, lambda: texts)
    with vldebias.debias(host, GENDER, keep_stated=False) as attachment:
        all_projected = attachment.apply("joint", z, lambda: texts)
    assert torch.equal(kept[0], z[0])
    assert torch.equal(kept[1], all_projected[1])
    assert not torch.equal(all_projected[0], z[0])


def test_a_fitted_projection_attaches_with_its_gate() -> None:
    host = Words()
    projection = vldebias.fit_projection(host, GENDER)
    with vldebias.debias(host, projection) as attachment:
        assert attachment.projections == {"joint": projection}
        assert attachment.stated(["a male cook", "a cook"]) == [True, False]
    with vldebias.debias(host, {"joint": projection}, keep_stated=False) as attachment:
        assert attachment.stated(["a male cook"]) == [False]


def test_a_projection_of_other_weights_is_refused() -> None:
    projection = vldebias.fit_projection(Words(seed=1), GENDER)
    with pytest.raises(ProjectionMismatchError, match="fitted on other weights"):
        vldebias.debias(Words(seed=2), projection)
    with pytest.raises(ProjectionMismatchError, match=r"'words\.pooled', here it is 'words\.joint'"):
        vldebias.debias(Words(seed=1), projection.stamped(space="words.pooled"))


def test_a_missing_role_is_named() -> None:
    host = Words(roles=("sequence", "pooled"))
    with pytest.raises(InvalidInputError, match=r"missing \['pooled'\]"):
        vldebias.debias(host, vldebias.fit_projection(host, GENDER, role="sequence"))


def test_inspect_measures_unseen_pairs() -> None:
    host = Words()
    found = vldebias.inspect(host, GENDER, method="cali", lam=1000.0)["joint"]
    unseen = torch.stack([host.embed(pair, "joint") for pair in GENDER.held_out_pairs])
    before = float((unseen[:, 0] - unseen[:, 1]).norm(dim=-1).mean())
    assert found.held_out_distance is not None
    assert found.held_out_distance[0] == pytest.approx(before)
    assert found.held_out_distance[1] < before / 2


def test_inspect_reads_the_attribute_of_labelled_images_before_and_after() -> None:
    host = Words()
    values = list(GENDER.by_value())
    made, codes = torch.Generator().manual_seed(0), torch.arange(120) % len(values)
    texts = torch.stack([host.embed(several, "joint").mean(0) for several in GENDER.by_value().values()])
    images = texts[codes] + 0.1 * torch.randn(120, DIM, generator=made).double()
    named = vldebias.Reference(images, labels={"gender": [values[code] for code in codes]})
    found = vldebias.inspect(host, GENDER, method="cali", lam=1000.0, images=named)["joint"].readable
    assert found is not None
    before, after, chance = found["linear"]
    assert before > 0.9 > chance
    assert after < before
    assert set(found) == {"linear", "neighbour"}
    assert vldebias.inspect(host, GENDER, method="cali", images=images)["joint"].readable is None


HAIR = replace(GENDER, classes=("dark hair", "blond hair"), class_names=("dark", "blond"))


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_inspect_says_where_unlabelled_images_see_the_boundary() -> None:
    host = Words()
    images = torch.randn(200, DIM, generator=torch.Generator().manual_seed(3))
    found = vldebias.inspect(host, HAIR, method="cali", images=images)["joint"]
    assert found.boundary is not None
    texts = [host.embed(HAIR.classes, "joint")]
    texts.append(torch.nn.functional.normalize(vldebias.fit_projection(host, HAIR, method="cali")(texts[0]), dim=1))
    units = torch.nn.functional.normalize(images.double(), dim=1)
    taken = [float(((units @ rows.T).argmax(1) == 1).double().mean()) for rows in texts]
    assert found.boundary.second[:2] == pytest.approx(taken)
    assert (found.boundary.classes, found.boundary.images) == (HAIR.class_names, 200)
    assert found.to_dict()["boundary"]["offset"] == found.boundary.offset
    assert vldebias.inspect(host, HAIR, method="cali")["joint"] == replace(found, boundary=None)
    assert vldebias.inspect(host, GENDER, method="cali", images=images)["joint"].boundary is None  # three classes


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
@pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")
def test_images_to_classify_are_not_fitted_to_and_stand_before_the_reference() -> None:
    made = torch.Generator().manual_seed(3)
    images, reference = torch.randn(50, DIM, generator=made), torch.randn(60, DIM, generator=made)
    both = vldebias.inspect(Words(), HAIR, method="cali", images=images, reference=reference)["joint"]
    alone = vldebias.inspect(Words(), HAIR, method="cali", reference=reference)["joint"]
    assert both.boundary is not None
    assert alone.boundary is not None
    assert (both.boundary.images, alone.boundary.images) == (50, 60)
    assert replace(both, boundary=None) == replace(alone, boundary=None)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_a_class_prompt_that_states_its_attribute_keeps_its_boundary() -> None:
    """As an attachment leaves it alone."""
    stated = replace(GENDER, classes=("a male", "a female"), class_names=("m", "f"))
    images = torch.randn(50, DIM, generator=torch.Generator().manual_seed(3))
    found = vldebias.inspect(Words(), stated, method="difference", images=images)["joint"].boundary
    assert found is not None
    assert found.offset == found.middle


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"images: features have width 7, texts 24; embed both with one model"):
        vldebias.inspect(Words(), HAIR, method="difference", images=torch.ones(3, 7))
    with pytest.raises(InvalidInputError, match=r"Words: it classifies no images; leave images= away"):
        vldebias.inspect(Words(generative=True), HAIR, method="cali", images=torch.ones(3, DIM))
    with pytest.raises(InvalidInputError, match=r"images: expected at least one"):
        vldebias.inspect(Words(), HAIR, method="difference", images=torch.ones(0, DIM))


def test_lost_class_signal_is_said_with_its_numbers() -> None:
    same = {"m": "A male doctor.", "f": "A female doctor."}
    set_ = replace(GENDER, classes=tuple(same.values()), class_names=tuple(same))
    with pytest.warns(
        ClassSignalWarning, match=r"g: cali keeps \d+% of the distance between the classes and a cosine of"
    ):
        vldebias.fit_projection(Words(), set_, method="cali", lam=1e6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "svd"}, InvalidInputError, "method: expected one of none, orth, .*, target-shares, .*got 'svd'"),
        ({"prompts": []}, InvalidInputError, "at least one prompt set, got an empty list"),
        ({"prompts": "gendre"}, PromptSetError, "gender"),
        ({"prompts": None}, PromptSetError, "prompts: got None"),
        ({"method": "cali", "lam": True}, InvalidInputError, "lam: expected a number or one per prompt set, got True"),
        ({"lam": [1.0, 2.0]}, InvalidInputError, "one value or one per attribute"),
        ({"lam": -1.0}, InvalidInputError, ">= 0"),
        ({"prompts": vldebias.fit_projection(Words(), GENDER), "lam": 1.0}, InvalidInputError, "carries its own"),
        ({"strength": 1.5}, InvalidInputError, r"expected a number in \[0, 1\], got 1.5"),
        ({"host": torch.nn.Linear(2, 2)}, UnsupportedHostError, "no model of open_clip, transformers or diffusers"),
    ],
)
def test_errors(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    host = arguments.pop("host", Words())
    with pytest.raises(error, match=message):
        vldebias.debias(host, arguments.pop("prompts", GENDER), **arguments)


def test_a_second_attachment_is_refused_before_anything_is_embedded() -> None:
    host = Words()
    with vldebias.debias(host, GENDER):
        host.seen.clear()
        with pytest.raises(AlreadyAttachedError, match=r"\.remove\(\) .* pass a list of prompt sets"):
            vldebias.debias(host, AGE)
        assert host.seen == []


def test_a_model_of_ones_own_is_attached_as_the_refusal_says() -> None:
    """What the error names as the way for a model that no family knows, taken."""
    own = torch.nn.Linear(2, 24)
    with pytest.raises(UnsupportedHostError, match=r"vldebias\.hosts\.custom\(model, 'forward', embed=") as raised:
        vldebias.debias(own, GENDER)
    assert len(str(raised.value).splitlines()) == 3
    words, x = Words(), torch.randn(3, 2)
    plain = own(x)
    host = custom(own, "forward", embed=lambda prompts: words.embed(prompts, "joint"))
    with vldebias.debias(host, GENDER, keep_stated=False) as attachment:
        torch.testing.assert_close(own(x), attachment.projections["joint"](plain))
    assert torch.equal(own(x), plain)


def test_a_table_of_embeddings_is_fitted_and_not_attached_to() -> None:
    host = Words()
    table = {prompt: host.embed([prompt], "joint")[0].numpy() for prompt in GENDER.texts}
    fitted = vldebias.fit_projection(table, GENDER, method="orth-cali")
    assert differs(fitted, vldebias.fit_projection(host, GENDER, method="orth-cali")) < 1e-12
    with pytest.raises(UnsupportedHostError, match="attaching needs the model itself"):
        vldebias.debias(table, GENDER)


@pytest.mark.parametrize("strength", [np.float32(0.5), np.float64(0.5), 1, 0])
def test_any_real_number_is_a_strength(strength: Any) -> None:
    with vldebias.debias(Words(), GENDER, strength=strength) as attachment:
        assert attachment.strength == float(strength)
