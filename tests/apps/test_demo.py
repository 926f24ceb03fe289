"""Test the demo without a browser: requests, images, messages, and that edits are attached and
removed."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gradio as gr
import numpy as np
import pytest
import torch
from PIL import Image

from apps.demo import classify_tab, opening
from apps.demo import engine as engines
from apps.demo import generate as rows
from apps.demo import generate_tab as generate_tabs
from apps.demo import search as searches
from apps.demo import search_tab as tabs
from apps.demo.answers import Answer, Found
from apps.demo.events import with_messages
from apps.demo.generate import Result, Row
from apps.demo.request import Request
from eval.opening import first_gain
from eval.pages.front import counts_by_query
from vldebias.errors import InvalidInputError
from vldebias.miniature.photographs import open_thumbnails

FORM = ("A photo of a doctor.", "gender", 12, 1, "none", 0, 2, 3)
TWELVE = (True,) * 12


@pytest.fixture(scope="module")
def engine() -> Any:
    return engines.Engine()


def test_a_form_becomes_a_request() -> None:
    assert Request.from_form(*FORM) == Request("A photo of a doctor.", number=12, steps=2)
    assert Request.from_form("a\n\x00 b  c", *FORM[1:]).prompt == "a b c"


@pytest.mark.parametrize(
    ("position", "value", "named"),
    [
        (0, "", "prompt"),
        (1, "height", "attribute"),
        (2, 5, "images"),
        (3, float("nan"), "strength"),
        (4, "more", "third row"),
        (5, -1, "seed"),
        (6, 1000, "steps"),
        (7, True, "guidance"),
    ],
)
def test_unavailable_choices_are_rejected_by_name(position: int, value: object, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        Request.from_form(*FORM[:position], value, *FORM[position + 1 :])


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("pipelines", ("a/copy", "b/copy"), "pipelines with different names"),
        ("pretrained", "openai", "--model"),
        ("embeddings", Path("none.npz"), "--embeddings"),
        ("images", Path("none"), "--image-dir"),
    ],
)
def test_incompatible_options_are_rejected(option: str, value: Any, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        engines.Engine(**{option: value})


def test_a_missing_folder_is_reported_before_visitors_see_its_path() -> None:
    with pytest.raises(InvalidInputError, match="/nowhere/model: no such folder"):
        engines.Engine(pipelines=("miniature", "/nowhere/model"), model="miniature")


def result(codes_before: list[int], codes_after: list[int], **changes: Any) -> Any:
    """Return twelve images per row: 0 is male, 1 is female, -1 is unknown."""
    request = Request("A photo of a doctor.", number=12)
    plain = Row(rows.PLAIN, codes=tuple(codes_before), recognised=TWELVE)
    mitigated = replace(
        Row("projection (cali)", codes=tuple(codes_after), recognised=TWELVE), **changes
    )
    return Result(request, ("male", "female"), (plain, mitigated), subject="doctor")


def test_without_a_model_nobody_labels_the_images_of_other_pipelines() -> None:
    assigned = ("male", "female") * 6
    unjudged = replace(result([-1] * 12, [-1] * 12, assigned=assigned), is_judged=False)
    assert unjudged.sentences() == [
        (
            "Projection (cali): asked for 6 men and 6 women; labelled by nobody (--model labels)",
            False,
        )
    ]
    assert generate_tabs._named(unjudged, unjudged.rows[1], 0) == "seed 0"


def test_an_unexpected_error_is_named_without_its_text() -> None:
    def fail() -> Iterator[object]:
        raise RuntimeError("/home/ada/weights.pt is damaged")
        yield

    with pytest.raises(gr.Error, match=r"^'The server failed \(RuntimeError\)"):
        list(with_messages(fail)())


@pytest.mark.parametrize(
    ("codes_after", "verdict"),
    [
        ([1] * 12, "no image changed"),
        ([0] * 6 + [1] * 6, "a clear change"),  # 6 of 6 lost: p = 0.031
        ([0] * 5 + [1] * 7, "no clear change"),  # 5 of 5 lost: p = 0.0625
        ([0] * 3 + [-1] * 9, "too few"),
    ],
)
def test_a_projection_is_tested_over_pairs_with_the_same_noise(
    codes_after: list[int], verdict: str
) -> None:
    ((line, _),) = result([1] * 12, codes_after).sentences()
    assert verdict in line


def test_a_lost_subject_triggers_a_warning() -> None:
    lost = result([1] * 12, [1] * 12, recognised=(True,) * 6 + (False,) * 6)
    ((line, is_warning),) = lost.sentences()
    assert is_warning
    assert "recognised in 6 of 12 (before: 12). The subject is lost." in line


def test_a_prompt_without_a_person_is_reported_as_correctly_unchanged() -> None:
    left_unchanged = replace(result([1] * 12, [1] * 12, name=rows.BALANCED), reason="no person")
    assert left_unchanged.asks_for_nobody
    ((line, is_warning),) = left_unchanged.sentences()
    assert not is_warning
    assert line.startswith("Left unchanged: no person is asked for.")


class Painter:
    """Stand in for a pipeline: the noise determines the hue and the prompt the brightness."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.ready = threading.Event()  # set this to let a step finish
        self.ready.set()

    def __call__(
        self, prompts: list[str], generator: Any, callback_on_step_end: Any = None, **_: Any
    ) -> Any:
        self.asked.append(tuple(prompts))
        assert self.ready.wait(10)
        if callback_on_step_end:
            callback_on_step_end(self, 0, 0, {})
        pixels = [
            (
                int(torch.randint(256, (1,), generator=generator_of_image)),
                255 if " male " in prompt else 9,
                0,
            )
            for prompt, generator_of_image in zip(prompts, generator, strict=True)
        ]
        return SimpleNamespace(
            images=[Image.new("RGB", (4, 4), generator_of_image) for generator_of_image in pixels]
        )


def read(images: Any, prompt: str) -> tuple[list[int], list[bool]]:
    return [int(image.getpixel((0, 0))[1] < 100) for image in images], [True] * len(images)


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> Any:
    engine = engines.Engine()
    engine._loaded["pipeline"] = Painter()
    read.values = ("male", "female")  # type: ignore[attr-defined]
    read.subject = lambda prompt: "doctor"  # type: ignore[attr-defined]
    engine._loaded["judge professions-gender"] = read
    return engine


def run(engine: Any, request: Any) -> Any:
    *_, last = rows.generate(engine, request, threading.Event())
    return last


def test_rows_start_from_the_same_noise_and_half_of_the_images_get_each_value(painted: Any) -> None:
    outcome = run(painted, Request("A photo of a doctor.", number=12, seed=5))
    plain, balanced = outcome.rows
    hue = [[image.getpixel((0, 0))[0] for image in row.images] for row in outcome.rows]
    assert hue[0] == hue[1]
    assert len(set(hue[0])) > 6
    assert (plain.count(1), balanced.count(1)) == (12, 6)
    assert balanced.assigned.count("female") == 6
    ((line, is_warning),) = outcome.sentences()
    assert line.startswith("Balanced prompts: 6 men and 6 women, as asked ")
    assert "p =" not in line, "values that were assigned are not tested"
    assert not is_warning
    calls = len(painted.pipe().asked)
    assert run(painted, outcome.request) is outcome, "remembered"
    assert len(painted.pipe().asked) == calls


@pytest.mark.parametrize(
    "prompt",
    ["A photo of a gull on water.", "A photo of a female doctor.", "A photo of Marie Curie."],
)
def test_a_prompt_that_is_left_unchanged_is_generated_once(painted: Any, prompt: str) -> None:
    outcome = run(painted, Request(prompt, number=12))
    assert outcome.reason
    assert outcome.sentences()[0][0].startswith("Left unchanged: ")
    assert set(chain(*painted.pipe().asked)) == {prompt}
    assert sum(map(len, painted.pipe().asked)) == 12


def test_strength_is_the_share_of_images_that_get_a_value(painted: Any) -> None:
    outcome = run(painted, Request("A photo of a doctor.", number=12, strength=0.5))
    assert sum(value is not None for value in outcome.rows[1].assigned) == 6
    assert not outcome.reason


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
    assert len(painter.asked) <= 1  # the batch in progress


def test_an_error_of_the_pipeline_is_raised(painted: Any) -> None:
    painted._loaded["pipeline"] = Mock(side_effect=RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="memory"):
        run(painted, Request("A photo of a doctor.", number=12))


def test_a_third_row_has_the_values_of_the_second_and_an_unchanged_prompt(
    painted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    @contextmanager
    def generating(
        prompts: str, method: Any, strength: float, values: Any, pipeline: str
    ) -> Iterator[Any]:
        asked.append((method, values))
        yield painted.pipe()

    monkeypatch.setattr(painted, "generating", generating)
    request = Request("A photo of a doctor.", number=12, third_row="cross-attention")
    outcome = run(painted, request)
    assert [row.name for row in outcome.rows] == [rows.PLAIN, rows.BALANCED, "cross-attention"]
    assert outcome.rows[2].assigned == outcome.rows[1].assigned
    given = list(chain(*(values for method, values in asked if method == "cross-attention")))
    assert tuple(given) == outcome.rows[1].assigned
    assert sorted(given) == ["female"] * 6 + ["male"] * 6
    assert all(values is None for method, values in asked if method is None)
    asked.clear()
    outcome = run(painted, Request("A red chair", number=12, third_row="cross-attention"))
    assert {method for method, _ in asked} == {None}
    assert len(outcome.sentences()) == 1


@pytest.mark.slow
def test_the_projection_is_fitted_once_and_removed_afterwards(engine: Any) -> None:
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
def test_the_saved_opening_matches_what_is_generated_now(engine: Any) -> None:
    """The verdict is the same, and the images only differ by rounding."""
    saved = opening.saved_result()
    now = run(engines.Engine(), saved.request)
    assert now.sentences() == saved.sentences()
    for generated, opened_row in zip(now.rows, saved.rows, strict=True):
        for a, b in zip(generated.images, opened_row.images, strict=True):
            assert np.abs(np.asarray(a, int) - np.asarray(b, int)).mean() < 2


def test_the_saved_search_matches_what_is_found_now(engine: Any) -> None:
    saved = opening.saved_search()
    now, gallery = searches.search(engine, saved.query, saved.column)
    assert now.summary() == saved.summary()
    assert [found.rows for found in now.rows] == [found.rows for found in saved.rows]
    assert now.source == saved.source
    assert gallery.titles == open_thumbnails().captions


def test_placeholders_appear_first_and_images_fill_them(painted: Any) -> None:
    request = Request("A photo of a doctor.", number=12)
    results = list(rows.generate(painted, request, threading.Event()))
    assert [result.images for result in results] == [0, 8, 16, 20, 24]
    tab = generate_tabs.GenerateTab
    faces = [tab._faces(SimpleNamespace(is_small=True), "", result, 0) for result in results]
    assert [text.count("<li>") for text in faces] == [12] * 5
    assert [text.count("face empty") for text in faces] == [12, 4, 4, 0, 0]


def test_the_seconds_per_image_are_measured_and_shown(painted: Any) -> None:
    request = Request("A photo of a cook.", number=12)
    first, second, *_, last = rows.generate(painted, request, threading.Event())
    assert 0 < second.seconds <= last.seconds
    assert "0 of 24 images" in generate_tabs._status(first)
    assert "8 of 24 images" in generate_tabs._status(second)
    text = f"24 images in {last.seconds:.1f} s, {last.seconds / 24:.2f} s each."
    assert text in generate_tabs._status(last)
    assert "This is a saved example" in generate_tabs._status(replace(last, seconds=None))
    assert f"From an earlier request: {text}" in generate_tabs._status(last, is_remembered=True)


def test_reused_images_are_not_counted_as_generated(painted: Any) -> None:
    outcome = run(painted, Request("A red chair", number=12))
    assert outcome.generated == 12
    text = f"24 images, 12 of them generated, in {outcome.seconds:.1f} s"
    assert text in generate_tabs._status(outcome)
    assert f"{outcome.seconds / 12:.2f} s each." in generate_tabs._status(outcome)
    row = generate_tabs.GenerateTab._faces(SimpleNamespace(is_small=True), "", outcome, 0)
    assert "women" not in row, "nobody is counted if the prompt mentions no person"


def test_skin_tone_is_counted_with_the_values_of_the_prompt_set(engine: Any) -> None:
    reader = rows.Reader.for_attribute(engine, "skin tone")
    assert reader.values == ("pale", "light", "tan", "brown", "dark")


@pytest.mark.slow
def test_a_classification_shows_groups_and_birds_before_and_after(engine: Any) -> None:
    groups, corrected, newly_wrong, birds = searches.classify(engine, "default")
    assert len(groups) == 4
    assert groups[0].before[0] == min(group.before[0] for group in groups)
    assert groups[0].after[0] > groups[0].before[0]
    # Corrected minus newly wrong predictions equal the change over all groups.
    change = sum(group.n * (group.after[0] - group.before[0]) for group in groups)
    assert len(corrected) - len(newly_wrong) == pytest.approx(change)
    assert corrected
    assert newly_wrong
    assert not set(corrected) & set(newly_wrong)
    assert len(birds.labels["label"]) == sum(group.n for group in groups)


@pytest.fixture(scope="module")
def answers(engine: Any) -> dict[str, Answer]:
    return {query: searches.search(engine, query, "gender")[0] for query in counts_by_query()}


def test_the_images_that_are_shown_are_counted_by_labels(engine: Any, answers: Any) -> None:
    answer = answers["A photo of a factory worker."]
    gallery = searches.open_gallery(engine, "photographs")
    assert answer.edited is None
    for found, (_, counts, kept) in zip(answer.rows, answer.summary(), strict=True):
        remaining = set(answer.before.rows) & set(found.rows)
        assert kept == f"{len(remaining)} of 20"
        assert found.groups == tuple(gallery.labels["gender"][list(found.rows)])
        women = found.groups.count("female")
        assert counts == f"{women} women, {20 - women} men"
    assert "Library of Congress" in answer.source
    unchanged, _ = searches.search(engine, answer.query, "gender", "difference", 0.0)
    assert unchanged.edited == unchanged.before
    assert replace(unchanged, edited=None) == answer


def test_each_search_says_whether_it_gains(answers: Any) -> None:
    said = set()
    for answer in answers.values():
        gain = answer.gain(answer.reranked)
        words = tabs._lines(answer)
        assert (tabs.WORSE.format("Re-ranked") in words) == (gain < 0)
        can_gain = round(answer.before.skew, 2) > 0 and not answer.stated
        assert (tabs.NO_GAIN.format("Re-ranked") in words) == (gain == 0 and can_gain)
        said.add(np.sign(gain))
    assert said == {-1, 0, 1}


def test_the_first_search_is_the_first_with_mostly_one_gender_and_a_gain(answers: Any) -> None:
    """Nobody chose the example, and its counts are of the images that are shown."""
    counts = {}
    for query, answer in answers.items():
        before, after = (max(found.counts.values()) for found in answer.rows)
        counts[query] = (before, after)
    first = first_gain(counts)
    assert tabs.QUERIES[engines.PHOTOGRAPHS][0] == first
    assert opening.saved_search().query == first
    later = dict.fromkeys(counts, (16, 16)) | {"A photo of an x-ray nurse.": (16, 15)}
    assert first_gain(later | {"A photo of a zoologist.": (20, 10)}) == "A photo of an x-ray nurse."


def test_near_duplicates_are_left_out_and_counted(engine: Any) -> None:
    answer, gallery = searches.search(engine, "A photo of a riveter.", "gender", "difference")
    assert answer.edited is not None
    for found in answer.rows:
        features = gallery.features[list(found.rows)]
        alike = (features @ features.T).fill_diagonal_(0)
        assert alike.max() < searches.SAME_SCENE
    everything, _ = searches.search(engine, answer.query, "gender", gallery_name="miniature")
    assert everything.left_out == 0 < answer.left_out
    text = f"Left out: {answer.left_out} near-duplicate shot"
    images = dict.fromkeys(range(200), Image.new("RGB", (8, 8)))
    assert text in tabs._row("As found", answer, answer.before, images)
    assert text not in tabs._row("Re-ranked", answer, answer.reranked, images)


def test_images_without_a_label_are_neither_shown_nor_counted(engine: Any) -> None:
    gallery = searches.open_gallery(engine, "photographs")
    labels = gallery.labels["gender"].copy()
    labels[:-3] = searches.UNKNOWN
    few = replace(gallery, labels={"gender": labels}, same_scene=None)
    ranked = searches._ranked(few, "gender", np.arange(len(labels), dtype=np.float32))
    assert ranked.tolist() == [len(labels) - 1, len(labels) - 2, len(labels) - 3]
    assert sum(searches._found(few, "gender", ranked).counts.values()) == 3
    labels[:] = searches.UNKNOWN
    with pytest.raises(InvalidInputError, match="no image has a label"):
        searches._ranked(few, "gender", np.zeros(len(labels), np.float32))


def test_a_subject_that_the_judge_does_not_know_is_not_called_recognised() -> None:
    judge = SimpleNamespace(names={"profession": ("doctor", "nurse")})
    reader = rows.Reader(judge, "gender", ("male", "female"))
    assert reader.subject("A photo of a doctor.") == "doctor"
    for prompt in ("two doctors in a hospital", "a blacksmith at work"):
        assert reader.subject(prompt) == ""
    ((line, _),) = replace(result([1] * 12, [0] * 12), subject="").sentences()
    assert "a person is seen in 12 of 12" in line
    assert "recognised" not in line


def test_a_query_that_states_the_attribute_is_unchanged_and_explained(engine: Any) -> None:
    answer, _ = searches.search(engine, "A photo of a female pilot.", "gender", "difference")
    assert answer.before == answer.edited == answer.reranked
    assert answer.stated == ("female",)
    assert answer.reason().startswith("Left unchanged: the query states the gender (“female”)")
    assert "Left unchanged" in tabs._lines(answer)
    assert "no gain" not in tabs._lines(answer)
    nuns, _ = searches.search(engine, "two nuns", "gender", "difference")
    assert nuns.before == nuns.edited == nuns.reranked
    assert nuns.reason().startswith("Left unchanged: the query states the gender (“two nuns”)")
    neutral, _ = searches.search(engine, "A photo of a pilot.", "gender", "difference")
    assert neutral.reason() == ""
    assert neutral.before.rows != neutral.reranked.rows


def test_each_row_states_which_images_moved_came_and_left() -> None:
    values = {"male": 2, "female": 1}
    before = Found((4, 7, 9), ("male", "male", "female"), values, 0.0)
    after = replace(before, rows=(4, 9, 2), groups=("male", "female", "female"))
    answer = Answer("zzz", "gender", before, before, after)
    images = dict.fromkeys((2, 4, 9), Image.new("RGB", (8, 8))) | {7: None}
    row = tabs._row("Edited", answer, after, images)
    captions = re.findall(r"</label><span>(.*?)</span>", row)
    assert captions == ["1. man", "2. woman (was\N{NO-BREAK SPACE}3)", "3. woman (new)"]
    assert "No longer in the first 3: 2. man, ranked as found." in row
    assert "<figure>" not in row, "no thumbnail without an image"
    shown = tabs._row("Edited", answer, after, images | {7: images[4]})
    assert re.findall(r'<figure><img alt="(.*?)"', shown) == ["no longer shown: 2. man"]
    assert "<figcaption>2. man</figcaption>" in shown
    assert "was" not in (first := tabs._row("As found", answer, before, images))
    assert "No longer" not in first


def test_a_worse_query_triggers_a_warning() -> None:
    even = Found((0, 1), ("male", "female"), {"male": 1, "female": 1}, 0.0)
    uneven = replace(even, skew=0.15)
    for worse, title in (
        (Answer("zzz", "gender", even, even, uneven), "Edited"),
        (Answer("zzz", "gender", even, uneven), "Re-ranked"),
    ):
        warning = f'<p class="warning">{tabs.WORSE.format(title)}</p>'
        assert tabs._lines(worse).count("warning") == 1
        assert warning in tabs._lines(worse)
    for answer in (
        Answer("zzz", "gender", uneven, even, even),
        Answer("zzz", "gender", even, replace(even, skew=0.004)),  # shown as 0.00
    ):
        assert "warning" not in tabs._lines(answer)


def test_a_worse_group_is_marked_in_the_table() -> None:
    """As on result pages, a group is only worse if the interval of its change excludes zero."""
    low, high = (0.5, 0.4, 0.6), (0.9, 0.8, 0.95)
    groups = [
        searches.Group("gained", 10, low, high, is_worse=False),
        searches.Group("lost", 10, high, low, is_worse=True),
        searches.Group("unclear", 10, high, low, is_worse=False),
    ]
    rows_of_table = classify_tab._table(groups).split("<tr>")[2:]
    assert ["worse" in row for row in rows_of_table] == [False, True, False]


def test_newly_misclassified_birds_are_shown_with_their_number(engine: Any) -> None:
    tab = SimpleNamespace(engine=engine)
    gallery = SimpleNamespace(
        image=lambda engine, row: Image.new("RGB", (8, 8)),
        labels={"label": np.array(["landbird"] * 9)},
    )
    update = classify_tab.ClassifyTab._birds(tab, "Wrong only with the method", range(9), gallery)
    assert update["visible"]
    assert "Wrong only with the method: the first 8 of 9" in update["value"]
    nothing = classify_tab.ClassifyTab._birds(tab, "Wrong only with the method", [], gallery)
    assert not nothing["visible"]


def test_the_first_click_immediately_announces_that_the_model_is_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def generate(engine: Any, *_: Any) -> Iterator[Any]:
        calls.append(engine)
        return iter(())

    monkeypatch.setattr(generate_tabs, "generate", generate)
    cold = engines.Engine()
    tab = SimpleNamespace(engine=cold)
    outputs = generate_tabs.GenerateTab._run(tab, *FORM, "none")
    assert generate_tabs.LOADING in next(outputs)[0]
    assert not calls, "the visitor gets an answer before anything is loaded"
    assert list(outputs) == []
    assert calls == [cold]
    # A loaded pipeline has nothing left to announce.
    cold.once("pipeline", object)
    assert list(generate_tabs.GenerateTab._run(tab, *FORM, "none")) == []


def test_code_on_the_page_names_a_folder_without_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    assert engines.Engine(pipelines=(str(folder),), model="miniature").shown_source == "mine"
    assert engines.Engine(pipelines=("some/id",), model="miniature").shown_source == "some/id"


def test_a_visitor_sees_a_second_pipeline_side_by_side_and_chooses_from_the_list(
    engine: Any,
) -> None:
    two = engines.Engine(pipelines=("miniature", "copies/other"), model="miniature")
    assert list(two.pipelines) == ["miniature", "other"]
    # Both names stand for the same pipeline here.
    pipe = engine.pipe()
    two.once("pipeline", lambda: pipe)
    two.once("pipeline other", lambda: pipe)
    tab = SimpleNamespace(engine=two, is_small=True)
    for name in ("_row", "_faces"):
        setattr(tab, name, partial(getattr(generate_tabs.GenerateTab, name), tab))
    *_, last = generate_tabs.GenerateTab._run(tab, *FORM, "other")
    status, verdict, first_row, second_row, third_row = last
    assert status.startswith('<div role="status"><p class="about">other: 24 images in ')
    assert verdict.count("Balanced prompts: asked for 6 men and 6 women") == 2
    assert verdict.count("s per image") == 2
    for row in (first_row, second_row):
        assert row["visible"]
        assert row["value"].count('<ul class="faces pixels">') == 2
        assert row["value"].count("<img") == 24
    assert not third_row["visible"]
    with pytest.raises(InvalidInputError, match="second pipeline"):
        list(generate_tabs.GenerateTab._run(tab, *FORM, "copies/other"))


def test_visitors_who_open_a_tab_load_it_once() -> None:
    engine = engines.Engine()
    loads = []
    for name in ("generate", "search", "generate", "search"):
        engine.warm(name, partial(loads.append, name))
    for thread in threading.enumerate():
        if thread.name.startswith("load "):
            thread.join()
    assert sorted(loads) == ["generate", "search"]


def test_photographs_are_only_shown_with_their_own_model(tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    file.touch()
    assert engines.Engine().galleries == ("photographs", "miniature")
    assert engines.Engine(embeddings=file).galleries == ("miniature",)
    assert engines.Engine(model="some/model").galleries == ("some/model",)


@pytest.mark.parametrize(
    "query",
    [
        ("", "gender", "cali"),
        ("a", "height", "cali"),
        ("a", "age", "cali"),  # the photographs have no labels for this
        ("a", "gender", "magic"),
        ("a", "gender", "cali", 1.0, "attic"),
    ],
)
def test_unavailable_searches_are_rejected(
    query: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.Engine()
    monkeypatch.setattr(searches, "open_gallery", lambda *_: None)
    with pytest.raises(InvalidInputError):
        searches.search(engine, *query)
