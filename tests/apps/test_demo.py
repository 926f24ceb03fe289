"""The demo without a browser: what is asked, what is generated, what its line says, what is put on
and taken off."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vldebias.cli.apps import page
from vldebias.errors import InvalidInputError

requests, engines, rows, searches = map(
    page, ("demo.request", "demo.engine", "demo.generate", "demo.search")
)
Request, Row, Result = requests.Request, rows.Row, rows.Result
FORM = ("A photo of a doctor.", "gender", 12, 1, False, 0, 2, 3)
TWELVE = (True,) * 12


@pytest.fixture(scope="module")
def engine() -> Any:
    return engines.Engine()


def test_a_form_becomes_a_request() -> None:
    assert Request.of(*FORM) == Request("A photo of a doctor.", number=12, steps=2)
    assert Request.of("a\n\x00 b  c", *FORM[1:]).prompt == "a b c"


@pytest.mark.parametrize(
    ("at", "value", "named"),
    [
        (0, "", "prompt"),
        (1, "height", "attribute"),
        (2, 5, "images"),
        (3, float("nan"), "strength"),
        (5, -1, "seed"),
        (6, 1000, "steps"),
        (7, True, "guidance"),
    ],
)
def test_what_is_not_on_offer_is_refused_by_name(at: int, value: object, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        Request.of(*FORM[:at], value, *FORM[at + 1 :])


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("pipeline", "some/pipeline", "--model"),
        ("pretrained", "openai", "--model"),
        ("embeddings", Path("none.npz"), "--embeddings"),
        ("images", Path("none"), "--images"),
    ],
)
def test_options_that_do_not_go_together_are_refused(option: str, value: Any, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        engines.Engine(**{option: value})


def result(before: list[int], after: list[int], **changes: Any) -> Any:
    """Twelve pictures a row: 0 male, 1 female, -1 unknown."""
    request = Request("A photo of a doctor.", number=12)
    plain = Row(rows.PLAIN, codes=tuple(before), recognised=TWELVE)
    other = replace(Row(rows.PROJECTED, codes=tuple(after), recognised=TWELVE), **changes)
    return Result(request, ("male", "female"), (plain, other))


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ([1] * 12, "no image changed"),
        ([0] * 6 + [1] * 6, "a clear change"),  # 6 of 6 lost: p = .031
        ([0] * 5 + [1] * 7, "no clear change"),  # 5 of 5 lost: p = .0625
        ([0] * 3 + [-1] * 9, "too few"),
    ],
)
def test_a_projection_is_tested_over_pairs_of_the_same_noise(
    after: list[int], verdict: str
) -> None:
    ((line, _),) = result([1] * 12, after).sentences()
    assert verdict in line


def test_a_lost_subject_and_a_prompt_without_a_person_are_warnings() -> None:
    lost = result([1] * 12, [1] * 12, recognised=(True,) * 6 + (False,) * 6)
    left = replace(result([1] * 12, [1] * 12, name=rows.BALANCED), reason="no person")
    for found, said in ((lost, "recognised 12 → 6"), (left, "no person")):
        ((line, warning),) = found.sentences()
        assert warning
        assert said in line


class Painter:
    """A pipeline in which the noise gives the hue, and the prompt the brightness."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.ready = threading.Event()  # a step ends once it is set
        self.ready.set()

    def __call__(
        self, prompts: list[str], generator: Any, callback_on_step_end: Any = None, **_: Any
    ) -> Any:
        self.asked.append(tuple(prompts))
        assert self.ready.wait(10)
        if callback_on_step_end:
            callback_on_step_end(self, 0, 0, {})
        pixels = [
            (int(torch.randint(256, (1,), generator=one)), 255 if " male " in prompt else 9, 0)
            for prompt, one in zip(prompts, generator, strict=True)
        ]
        return SimpleNamespace(images=[Image.new("RGB", (4, 4), one) for one in pixels])


def read(images: Any, prompt: str) -> tuple[list[int], list[bool]]:
    return [int(one.getpixel((0, 0))[1] < 100) for one in images], [True] * len(images)


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> Any:
    engine = engines.Engine()
    engine._loaded["pipeline"] = Painter()
    read.values = ("male", "female")  # type: ignore[attr-defined]
    engine._loaded["judge professions-gender"] = read
    return engine


def run(engine: Any, request: Any) -> Any:
    *_, last = rows.generate(engine, request, threading.Event())
    return last


def test_rows_start_from_the_same_noise_and_half_gets_each_value(painted: Any) -> None:
    found = run(painted, Request("A photo of a doctor.", number=12, seed=5))
    plain, balanced = found.rows
    hue = [[one.getpixel((0, 0))[0] for one in row.images] for row in found.rows]
    assert hue[0] == hue[1]
    assert len(set(hue[0])) > 6
    assert (plain.count(1), balanced.count(1)) == (12, 6)
    assert balanced.dealt.count("female") == 6
    ((line, warning),) = found.sentences()
    assert line.startswith("Balanced prompts: 12 women of 12 → 6 of 12; dealt 6 / 6, seen 6 / 6")
    assert "p =" not in line, "values that were dealt are not tested"
    assert not warning
    calls = len(painted.pipe().asked)
    assert run(painted, found.request) is found, "remembered"
    assert len(painted.pipe().asked) == calls


@pytest.mark.parametrize(
    "prompt", ["A photo of a bird.", "A photo of a female doctor.", "A photo of Marie Curie."]
)
def test_a_prompt_that_is_left_alone_is_generated_once(painted: Any, prompt: str) -> None:
    found = run(painted, Request(prompt, number=12))
    assert found.reason
    assert found.sentences()[0][1]
    assert {one for call in painted.pipe().asked for one in call} == {prompt}
    assert sum(map(len, painted.pipe().asked)) == 12


def test_strength_is_the_share_of_images_with_a_value(painted: Any) -> None:
    found = run(painted, Request("A photo of a doctor.", number=12, strength=0.5))
    assert sum(one is not None for one in found.rows[1].dealt) == 6
    assert not found.reason


def test_closing_stops_at_the_next_step(painted: Any) -> None:
    painter = painted.pipe()
    painter.ready.clear()
    work = rows.generate(painted, Request("A photo of a doctor.", number=16), threading.Event())
    next(work)
    work.close()
    painter.ready.set()
    for thread in threading.enumerate():
        if thread.name == "generate":
            thread.join(10)
    assert len(painter.asked) <= 1  # the batch under way


def test_an_error_of_the_pipeline_comes_out(painted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    painted._loaded["pipeline"] = broken
    with pytest.raises(RuntimeError, match="memory"):
        run(painted, Request("A photo of a doctor.", number=12))


@pytest.mark.slow
def test_the_projection_is_fitted_once_and_comes_off(engine: Any) -> None:
    pipe = engine.pipe()
    with torch.no_grad():
        before = pipe.encode_prompt("A photo of a doctor.", "cpu", 1, False)[0]
        with engine.generating("professions-gender", "cali") as attached:
            during = attached.encode_prompt("A photo of a doctor.", "cpu", 1, False)[0]
        after = pipe.encode_prompt("A photo of a doctor.", "cpu", 1, False)[0]
    assert not torch.equal(before, during)
    assert torch.equal(before, after)
    assert engine.edits(pipe, "professions-gender", "cali") is engine.edits(
        pipe, "professions-gender", "cali"
    )


@pytest.mark.slow
def test_the_page_opens_with_what_is_generated_now(engine: Any) -> None:
    """The same verdict, and pictures that differ by rounding alone."""
    opening = page("demo.page").opening()
    now = run(engines.Engine(), opening.request)
    assert now.sentences() == opening.sentences()
    for one, other in zip(now.rows, opening.rows, strict=True):
        for a, b in zip(one.images, other.images, strict=True):
            assert np.abs(np.asarray(a, int) - np.asarray(b, int)).mean() < 2


@pytest.mark.slow
def test_a_search_and_a_classification_before_and_after(engine: Any) -> None:
    before, after, gallery = searches.search(engine, "A photo of a nurse.", "gender", "cali")
    assert before.rows != after.rows
    assert sum(before.shares.values()) == pytest.approx(1)
    assert gallery.picture(engine, before.rows[0]).size == (64, 64)
    again, same, _ = searches.search(engine, "A photo of a nurse.", "gender", "cali", 0.0)
    assert (again.rows, same.rows) == (before.rows, before.rows)  # strength 0 is the model as it is
    groups, mended, _ = searches.classify(engine, "default")
    assert len(groups) == 4
    assert groups[0].before[0] == min(one.before[0] for one in groups)
    assert groups[0].after[0] > groups[0].before[0]
    assert mended


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.AutoDeclinedWarning")
def test_a_search_says_why_the_default_changes_nothing(engine: Any) -> None:
    asked = ("A photo of a nurse.", "age", "default")
    before, after, _ = searches.search(engine, *asked)
    assert before.rows == after.rows
    assert "reference=" in searches.abstention(engine, "age", "default")
    assert searches.abstention(engine, "gender", "cali") == ""


@pytest.mark.parametrize(
    "given", [("", "gender", "cali"), ("a", "height", "cali"), ("a", "gender", "magic")]
)
def test_a_search_refuses_what_is_not_on_offer(
    given: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.Engine()
    monkeypatch.setattr(searches, "portraits", lambda _: None)
    with pytest.raises(InvalidInputError):
        searches.search(engine, *given)
