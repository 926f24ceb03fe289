"""Test debias() and related functions on a fake host: presets, joint solution, roles, checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vldebias
from tests.refusals import refused
from tests.test_queries import rows_of
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    SuspectInputWarning,
    UnsupportedHostError,
)
from vldebias.hosts import Host, custom
from vldebias.methods.presets import log_once
from vldebias.projection.fingerprint import Fingerprint
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import load_prompts, make_prompt_set

GENDER = make_prompt_set(
    "g", {"m": ["male"], "f": ["female"]}, ["doctor", "nurse", "cook"], test_concepts=["pilot"]
)
AGE = make_prompt_set("a", {"o": ["old"], "y": ["young"]}, ["doctor", "nurse"])


class Words(Host):
    """Embed a prompt as the mean of one random vector per word."""

    name = "Words"
    roles: tuple[str, ...] = ("text",)

    def __init__(
        self, seed: int = 0, roles: tuple[str, ...] = ("text",), generative: bool = False
    ) -> None:
        self.seed = seed
        self.roles = roles
        self.generative = generative
        self.exclusive_modules = (self,)
        self.seen: list[str] = []
        self.apply: Any = None

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        self.seen += prompts
        # The words of each role have different vectors.
        rows = rows_of(prompts, seed=100 * self.seed + len(role))
        units = torch.nn.functional.normalize(rows, dim=-1)
        return {(role, prompt): row for prompt, row in zip(prompts, units, strict=True)}

    def space(self, role: str) -> str:
        return f"words.{role}"

    def fingerprint(self, role: str | None = None) -> Fingerprint:
        return Fingerprint(structure=str(self.seed), tensors=((1.0, 0.5),))

    def install(self, attachment: Any) -> Callable[[], None]:
        self.apply = attachment.apply
        return lambda: setattr(self, "apply", None)

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        raise AssertionError


def pairs(host: Host, prompt_set: Any, role: str = "text") -> Tensor:
    return torch.stack([host.embed(pair, role) for pair in prompt_set.pairs])


def differs(a: CalibratedProjection, b: CalibratedProjection) -> float:
    return float((a.matrix() - b.matrix()).abs().max())


def test_a_method_is_fitted_on_the_embedded_prompts() -> None:
    host = Words()
    spurious = host.embed(GENDER.spurious, "text")
    rows = pairs(host, GENDER)
    for method, lam, arguments in (
        ("orth", None, (None, spurious)),
        ("orth-cali", 50.0, (rows, spurious)),
        ("cali", 50.0, (rows,)),
    ):
        expected = CalibratedProjection(lam=50.0).fit(*arguments)
        assert (
            differs(vldebias.fit_projections(host, GENDER, method=method, lam=lam).only, expected)
            < 1e-12
        )


def test_several_sets_are_solved_jointly_in_any_order() -> None:
    host = Words()
    expected = CalibratedProjection(lam=[7.0, 3.0]).fit(
        [pairs(host, GENDER), pairs(host, AGE)], None
    )
    edit = vldebias.fit_projections(host, [GENDER, AGE], method="cali", lam=[7.0, 3.0]).only
    turned = vldebias.fit_projections(host, [AGE, GENDER], method="cali", lam=[3.0, 7.0]).only
    assert differs(edit, expected) < 1e-12
    assert differs(edit, turned) < 1e-12
    assert edit.stated_words == (*GENDER.stated_words, *AGE.stated_words)
    assert edit.provenance.attribute == "g+a"


def test_all_attributes_of_a_set_share_its_weight() -> None:
    host = Words()
    several = load_prompts("fairface")
    terms = [pairs(host, part) for part in several.parts]
    assert len(terms) > 1
    weights = [5.0] * len(terms) + [50.0]
    expected = CalibratedProjection(lam=weights).fit([*terms, pairs(host, GENDER)])
    edit = vldebias.fit_projections(host, [several, GENDER], method="cali", lam=[5.0, 50.0]).only
    assert differs(edit, expected) < 1e-12
    assert edit.lam == tuple(weights)
    with pytest.raises(InvalidInputError, match=r"one value or one per prompt set \(2\), got"):
        vldebias.fit_projections(host, [several, GENDER], method="cali", lam=weights)


def test_every_prompt_is_embedded_once() -> None:
    host = Words()
    vldebias.text_diagnostics(host, GENDER, method="cali")
    assert len(host.seen) == len(set(host.seen))


def test_a_fitted_projection_attaches_with_its_gate() -> None:
    host = Words()
    projection = vldebias.fit_projections(host, GENDER).only
    with vldebias.debias(host, projection) as attachment:
        assert attachment.projections == {"text": projection}
        assert attachment.stated(["a male cook", "a cook"]) == [True, False]
        assert attachment.stated("a male cook") == [True]
    with vldebias.debias(host, {"text": projection}, keep_stated=False) as attachment:
        assert attachment.stated(["a male cook"]) == [False]
    edit = CalibratedProjection().fit(pairs(host, GENDER))  # without a model
    with (
        pytest.warns(SuspectInputWarning, match="does not record which model"),
        vldebias.debias(host, edit) as attachment,
    ):
        assert attachment.projections == {"text": edit}


def test_a_pipeline_whose_prompts_cannot_be_rewritten_gets_an_edit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_once.cache_clear()
    with vldebias.debias(Words(generative=True), GENDER) as attachment:
        assert attachment.projections["text"].method == "cali"
    assert "does not rewrite prompts, so its prompts are not balanced" in caplog.text


def test_settings_that_do_not_apply_to_a_fitted_edit_are_rejected() -> None:
    host = Words()
    edit = vldebias.fit_projections(host, GENDER).only
    with pytest.raises(InvalidInputError, match="a fitted edit does not sample values"):
        vldebias.debias(host, edit, shares={"m": 0.3, "f": 0.7})
    with pytest.raises(InvalidInputError, match="find: a fitted edit does not sample values"):
        vldebias.debias(host, edit, find=lambda prompt: None)
    with pytest.raises(
        InvalidInputError, match="empty mapping; expected a mapping from role to fitted edit"
    ):
        vldebias.debias(host, {})


def test_a_function_instead_of_the_name_of_a_method_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="custom: got function; expected the name"):
        custom(Words(), Words.read)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"lam": True}, "lam: expected finite numbers"),
        ({"reference": 5}, "an ndarray, got int"),
        ({"reference": np.array(["a"])}, r"reference: got <U1 \(1,\); expected floats"),
    ],
)
def test_settings_of_the_wrong_type_are_rejected(how: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        vldebias.fit_projections(Words(), GENDER, method="cali", **how)


def test_weights_and_bounds_may_be_arrays_or_numpy_numbers() -> None:
    host = Words()
    expected = vldebias.fit_projections(host, [GENDER, AGE], method="cali", lam=[7.0, 3.0]).only
    for lam in (np.array([7.0, 3.0]), torch.tensor([7.0, 3.0])):
        edit = vldebias.fit_projections(host, [GENDER, AGE], method="cali", lam=lam).only
        assert differs(edit, expected) == 0
        assert edit.lam == (7.0, 3.0)
    edit = vldebias.fit_projections(host, GENDER, method="cali", max_loss=np.float32(0.125)).only
    assert edit.provenance.max_loss == 0.125


def test_a_missing_role_is_named() -> None:
    host = Words(roles=("sequence", "pooled"))
    with pytest.raises(InvalidInputError, match=r"\['pooled'\]"):
        vldebias.debias(host, vldebias.fit_projections(host, GENDER)["sequence"])
    with pytest.raises(InvalidInputError, match="the host has the roles"):
        _ = vldebias.fit_projections(host, GENDER).only


def test_inspect_measures_unseen_pairs() -> None:
    host = Words()
    diagnostics = vldebias.text_diagnostics(host, GENDER, method="cali", lam=1000.0)["text"]
    unseen = torch.stack([host.embed(pair, "text") for pair in GENDER.held_out_pairs])
    before = float((unseen[:, 0] - unseen[:, 1]).norm(dim=-1).mean())
    assert diagnostics.held_out_distance[0] == pytest.approx(before)
    assert diagnostics.held_out_distance[1] < before / 2


def test_a_lost_class_signal_is_reported_with_its_numbers() -> None:
    prompt_of_class = {"m": "A male doctor.", "f": "A female doctor."}
    set_ = replace(
        GENDER, classes=tuple(prompt_of_class.values()), class_names=tuple(prompt_of_class)
    )
    message = (
        r"g: cali keeps \d+% of the distance between the classes, and the mean cosine .* or use a"
        r" smaller lam"
    )
    with pytest.warns(vldebias.errors.ClassSignalWarning, match=message):
        vldebias.fit_projections(Words(), set_, method="cali", lam=1e6)


@refused(
    ({"method": "svd"}, r"got 'svd'; .*\(expected one of none, orth, "),
    ({"attribute": None}, "attribute: got None"),
    ({"method": "cali", "lam": [1.0, 2.0]}, r"one value or one per prompt set \(1\)"),
    ({"method": "cali", "lam": -1.0}, ">= 0"),
    ({"attribute": vldebias.fit_projections(Words(), GENDER).only, "lam": 1.0}, "leave these out"),
    ({"strength": 1.5}, r"\[0, 1\], got 1.5"),
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any]) -> None:
    vldebias.debias(Words(), **{"attribute": GENDER} | arguments)


def test_a_second_attachment_is_rejected_before_anything_is_embedded() -> None:
    host = Words()
    with vldebias.debias(host, GENDER):
        host.seen.clear()
        with pytest.raises(
            AlreadyAttachedError, match=r"\.remove\(\) .* pass a list of prompt sets"
        ):
            vldebias.debias(host, AGE)
        assert host.seen == []


def test_a_custom_model_is_attached_as_the_message_advises() -> None:
    """Follow the advice in the error for a model from an unknown family."""
    model = torch.nn.Linear(2, 24)
    with pytest.raises(UnsupportedHostError, match=r"vldebias\.hosts\.custom"):
        vldebias.debias(model, GENDER)
    words = Words()
    x = torch.randn(3, 2)
    plain = model(x)
    host = custom(model, "forward", embed=lambda prompts: words.embed(prompts, "text"))
    with vldebias.debias(host, GENDER, keep_stated=False) as attachment:
        torch.testing.assert_close(model(x), attachment.projections["text"](plain))
    assert torch.equal(model(x), plain)


def test_a_table_of_embeddings_can_be_fitted_but_not_attached() -> None:
    host = Words()
    table = {prompt: host.embed([prompt], "text")[0].numpy() for prompt in GENDER.texts}
    fitted = vldebias.fit_projections(table, GENDER, method="orth-cali").only
    assert differs(fitted, vldebias.fit_projections(host, GENDER, method="orth-cali").only) < 1e-12
    with pytest.raises(UnsupportedHostError, match="table of text embeddings"):
        vldebias.debias(table, GENDER)
