"""The default of pipelines: prompts that the fit does not know stay what they are, and who goes further is warned."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from vldebias import api
from vldebias.api import debias, fit_projections
from vldebias.errors import WideEditWarning
from vldebias.evaluation.variants import Variant
from vldebias.hosts import Host, resolve
from vldebias.methods.closed_form import SPARES_OF_DEFAULT, pair_scatter
from vldebias.methods.method import LAM_OF_PIPELINES, WIDE, Problem
from vldebias.miniature import load_judge
from vldebias.miniature.world import WORLDS
from vldebias.projection import CalibratedProjection, PairScatter
from vldebias.prompts import load_prompts

SET = load_prompts("professions-gender")
FIVE = replace(SET, name="five", groups=SET.groups[:5])
TONES = replace(TONES := load_prompts("skin-tone"), groups=TONES.groups[:5])
OUTSIDE = ["A photo of a person.", "A photo of a good person.", "A photo of a criminal person."]


@pytest.fixture(scope="module")
def host(pipe) -> Host:
    """The pipeline, with what it has embedded."""
    return resolve(pipe)


def only(edits) -> CalibratedProjection:
    (edit,) = edits.values()
    assert isinstance(edit, CalibratedProjection)
    return edit


def portraits(pipe, images: int = 3) -> int:
    """How many images of prompts about a person show one."""
    prompts = [prompt for prompt in OUTSIDE for _ in range(images)]
    noise = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    drawn = pipe(prompts, generator=noise, num_inference_steps=8, guidance_scale=3.0, output_type="pt").images
    return int((load_judge().predict(drawn.float().clamp(0, 1))["world"] == WORLDS.index("portraits")).sum())


def test_a_person_stays_a_person_under_the_default(pipe, host: Host) -> None:
    """And not under the paper's lam, or the test could not fail."""
    without = portraits(pipe)
    assert without >= 7
    with debias(host, SET):
        assert portraits(pipe) >= without - 1
    with pytest.warns(WideEditWarning), debias(host, SET, method="paper"):
        assert portraits(pipe) <= without / 2


def test_the_default_removes_a_hundredth_of_the_space(host: Host) -> None:
    edit = only(fit_projections(host, SET))
    assert edit.removed == pytest.approx(edit.dim / SPARES_OF_DEFAULT, rel=1e-6)
    scatter = pair_scatter(Problem.of(host, SET), SET, host.roles[0])
    same = CalibratedProjection.solve([scatter], None, edit.lam)  # it is Lemma 7.2 at the lam that it says
    assert torch.allclose(edit.matrix(), same.matrix(), atol=1e-9)
    assert 0 < edit.lam < LAM_OF_PIPELINES


def test_the_default_of_several_attributes_leaves_each_one_direction(host: Host) -> None:
    sets = [FIVE, TONES]
    assert only(fit_projections(host, sets)).removed == pytest.approx(2, rel=1e-6)


def test_what_is_asked_for_by_name_or_lam_is_the_papers(host: Host) -> None:
    """Lemma 7.2 at lam = 500, at any width."""
    scatter = pair_scatter(Problem.of(host, SET), SET, host.roles[0])
    paper = CalibratedProjection.solve([scatter], None, LAM_OF_PIPELINES).matrix()
    for how in ({"method": "cali"}, {"method": "paper"}, {"lam": LAM_OF_PIPELINES}):
        assert torch.equal(only(fit_projections(host, SET, **how)).matrix(), paper), how


def test_what_is_measured_as_default_is_what_is_attached(host: Host) -> None:
    """A variant has the paper's lam where none is named; the default's is its own."""
    attached, (role,) = only(fit_projections(host, SET)), host.roles
    for how, lam in (({}, attached.lam), ({"lam": 50.0}, 50.0)):
        variant = Variant(prompts=(SET,), method="default", **how)
        edit = variant.fitted(host, role)
        assert isinstance(edit, CalibratedProjection)
        assert edit.lam == lam
        assert variant.planned.lam == how.get("lam")
    assert Variant(prompts=(SET,), method="cali").planned.lam == LAM_OF_PIPELINES


@pytest.mark.parametrize("method", ["cali", "orth-cali"])
def test_a_fit_that_shrinks_a_quarter_of_the_space_by_a_tenth_warns(host: Host, method: str) -> None:
    with pytest.warns(WideEditWarning) as told:
        fit_projections(host, SET, method=method)
    (one,) = told
    text = str(one.message)
    for part in (method, "of 128 directions", "outside the fit", "lower lam"):
        assert part in text
    assert one.filename == __file__


def test_what_spares_the_space_does_not_warn(host: Host) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for how in ({}, {"method": "difference"}, {"lam": 20.0}, {"method": "cali", "lam": 20.0}):
            edit = only(fit_projections(host, SET, **how))
            assert edit.removed < WIDE * edit.dim
        only(fit_projections(host, FIVE))


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_models_are_not_told_of_what_pipelines_draw() -> None:
    """Retrieval reads directions, and compares queries that all went through the same edit."""
    texts = {text: torch.randn(8, generator=torch.Generator().manual_seed(i)) for i, text in enumerate(SET.texts)}
    edit = only({"": Problem.of(texts, SET).fit("cali", resolve(texts).roles[0])})
    assert edit.removed > WIDE * edit.dim


def test_removed_is_the_trace_and_lam_is_lowered_to_it() -> None:
    rows = torch.randn(30, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scatter = PairScatter(rows, 30)
    for wide in (
        CalibratedProjection.solve([scatter], rows[:3], 100.0),
        CalibratedProjection.solve([scatter], None, 100.0),
    ):
        assert wide.removed == pytest.approx(64 - float(wide.matrix().trace()))
    assert wide.removing_at_most(wide.removed) is wide
    narrow = wide.removing_at_most(5.0)
    assert narrow.removed == pytest.approx(5.0, rel=1e-9)
    assert torch.allclose(narrow.matrix(), CalibratedProjection.solve([scatter], None, narrow.lam).matrix(), atol=1e-9)


def test_the_default_says_once_what_to_expect_and_what_moves_shares(pipe, caplog: pytest.LogCaptureFixture) -> None:
    api._say_what_to_expect.cache_clear()
    for method in ("cali", None, None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WideEditWarning)
            debias(pipe, FIVE, method=method).remove()
    (said,) = [record.message for record in caplog.records if record.name == "vldebias"]
    assert 'method="stated-value"' in said
    assert "hardly changes the shares" in said
    assert "\n" not in said
