"""The demo's page without a server: how it is laid out, who may stop what, what it refuses to start with."""

import argparse
import asyncio
import csv
import json
import threading
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from compare_parts import built, drawing, drawn, engine, mitigation, module


@pytest.fixture(scope="module")
def page() -> Any:
    return built(engine())


@pytest.mark.slow
def test_building_the_page_loads_nothing() -> None:
    fresh = module("engine").Engine()
    built(fresh)
    assert fresh._loaded == {}


def test_every_control_has_a_label_and_an_id_of_its_own(page: Any) -> None:
    shown = [
        block for block in page.blocks.values() if type(block).__name__ in ("Textbox", "Slider", "Number", "Dropdown")
    ]
    assert len(shown) > 20
    assert all(block.label for block in shown)
    ids = [block.elem_id for block in page.blocks.values() if getattr(block, "elem_id", None)]
    assert len(ids) == len(set(ids))


def test_drawing_waits_in_one_line(page: Any) -> None:
    line = [fn for fn in page.fns.values() if fn.concurrency_id == "pipeline"]
    assert len(line) == 3  # the comparison, the strip, the endpoint
    assert {fn.concurrency_limit for fn in line} == {1}


def test_a_second_press_is_not_dropped_while_the_first_run_goes_on(page: Any) -> None:
    """Gradio's "once" would ignore the start of a run while another is pending, though that one was told to stop."""
    runs = [fn for fn in page.fns.values() if fn.name in ("begin", "run", "run_strip") and fn.targets]
    assert {fn.name for fn in runs} == {"begin", "run", "run_strip"}
    generate = [fn for fn in runs if fn.concurrency_id == "pipeline" or fn.name == "begin"]
    assert {fn.trigger_mode for fn in generate} == {"multiple"}


def test_a_new_prompt_clears_the_strip_of_the_old_one(page: Any) -> None:
    (strengths,) = (block for block in page.blocks.values() if getattr(block, "elem_id", None) == "strengths")
    begins = [fn for fn in page.fns.values() if fn.name == "begin"]
    assert len(begins) == 2
    assert all(strengths in fn.outputs for fn in begins)


def test_the_picture_to_classify_is_shown_when_its_tab_opens(page: Any) -> None:
    (look,) = (fn for fn in page.fns.values() if fn.name == "look")
    assert "select" in {event for _, event in look.targets}


def test_a_new_press_supersedes_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that was told to stop says nothing over the new one."""
    layout, form = module("generate"), module("form")
    stops = form.Stops()
    monkeypatch.setattr(layout, "compare", lambda *_: stops.ask("ada") or iter([]))
    monkeypatch.setattr(layout.Generate, "_asked", lambda *_: (drawing(), mitigation()))
    stops.ask("ada")
    with gr.Blocks() as demo:
        tab = layout.Generate(engine(), stops, demo)
    shown = list(tab.run(argparse.Namespace(session_hash="ada"), {}))
    assert len(shown) == 1  # the download is closed, and no "Stopped"


def test_an_upload_is_not_lost_while_a_preview_is_made(page: Any) -> None:
    """Gradio's "once" drops an event that comes while one of its kind runs."""
    (preview,) = [block for block in page.blocks.values() if getattr(block, "elem_id", None) == "preview"]
    modes = {fn.trigger_mode for fn in page.fns.values() if fn.outputs == [preview]}
    assert modes == {"always_last"}


def test_every_registered_method_that_fits_is_on_offer(page: Any) -> None:
    from vldebias.methods import METHODS, Need

    offered = {block.elem_id: [name for _, name in block.choices] for block in page.blocks.values() if is_method(block)}
    needs = {name: METHODS[name].needs & {Need.IMAGES, Need.LABELS, Need.TRAINING, Need.JUDGED} for name in METHODS}
    needs |= {name: {"images"} for name, method in METHODS.items() if method.side != "text"}
    assert offered["generate-method"] == [n for n, m in METHODS.items() if m.pipelines and not needs[n]]
    assert offered["classify-method"] == [n for n, m in METHODS.items() if m.models and not needs[n]]
    assert offered["inspect-method"] == [n for n in METHODS if not needs[n]]
    assert {"default", "paper", "auto", "difference", "steer"} <= set(offered["inspect-method"])


def is_method(block: Any) -> bool:
    return type(block).__name__ == "Dropdown" and block.elem_id.endswith("-method")


def test_stops_belong_to_one_visitor() -> None:
    stops = module("form").Stops()
    stops.ask("ada")
    stops.ask("bo")
    ada, bo = stops.begin("ada"), stops.begin("bo")
    assert not stops.stop("ada")  # it was under way, and says itself that it stopped
    assert ada.is_set()
    assert not bo.is_set()
    assert not stops.stop("ada")
    stops.ask("bo")
    assert bo.is_set()  # a visitor has one work at a time
    assert stops.superseded("bo")
    assert not stops.superseded("ada")
    assert stops.stop("bo")  # it was waiting
    assert stops.begin("bo").is_set()  # and comes to its turn to find itself stopped
    stops.leave("bo")
    assert len(stops) == 0


def test_of_work_that_was_asked_for_three_times_the_last_is_done() -> None:
    stops = module("form").Stops()
    stops.ask("ada")
    first = stops.begin("ada")
    stops.ask("ada")
    stops.ask("ada")
    assert first.is_set()
    assert stops.begin("ada").is_set()  # the second was superseded while it waited
    assert not stops.begin("ada").is_set()
    assert stops.begin("ada").is_set()  # nobody asked for a fourth


@pytest.mark.parametrize("named", ["http://example.com/a.png", "HTTPS://x", "ftp://x/y", "/etc/passwd", "../a", None])
def test_only_uploads_are_read(named: str | None) -> None:
    """The method that is replaced belongs to Gradio: seen in 6.31 (that it is called: test_compare_server)."""
    assert asyncio.iscoroutinefunction(gr.File.async_move_resource_to_block_cache), gr.__version__
    field = module("form").uploads_alone(gr.File(render=False))
    with pytest.raises(gr.Error, match="paths and links are not read; upload the file itself"):
        asyncio.run(field.async_move_resource_to_block_cache(named))


@pytest.mark.parametrize("text", ["../../etc/passwd", "\U0001f469 doctor", "", "a" * 500, "A photo of a doctor."])
def test_a_download_is_named_without_a_path(text: str) -> None:
    name = module("form").filename(text, ".zip")
    assert name.startswith("vldebias-")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert len(name) < 60


def test_two_threads_load_a_model_once() -> None:
    made, loads = module("engine").Engine(), []
    threads = [threading.Thread(target=lambda: made.once("x", lambda: loads.append(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]


# ---- what the page opens with -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opening() -> Any:
    return module("generate").opening()


def named(page: Any, name: str) -> Any:
    (found,) = (block for block in page.blocks.values() if getattr(block, "elem_id", None) == name)
    return found


def test_the_page_opens_with_a_result_that_leads_with_its_figures(page: Any, opening: Any) -> None:
    for name, pictures in zip(("none", "mitigated", "beside-1"), opening.pictures.values(), strict=True):
        shown = named(page, f"pictures-{name}").value
        assert [one["caption"] for one in shown] == [f"seed {i}" for i in range(len(pictures))]
    told, change = named(page, "verdict").value, opening.changes["gender"]
    assert f"{change.value} <strong>{change.before / change.pairs:.0%} → {change.after / change.pairs:.0%}" in told
    assert "Clearly fewer show it" in told
    told = named(page, "comparison").value
    assert f"recognised as “{opening.subject}”" in told
    assert "Beside it, default" in told
    assert "No clear change" in told
    assert "Drawn before, not now" in named(page, "status").value


def test_what_it_opens_with_is_of_the_prompt_and_the_methods_in_the_form(page: Any, opening: Any) -> None:
    layout = module("generate")
    assert named(page, "prompt").value == opening.drawing.prompt
    assert named(page, "generate-method").value == opening.method == layout.STATED
    assert named(page, "beside").value == list(opening.drawing.beside) == [layout.ALONE]
    assert [named(page, f"pictures-{name}").visible for name in ("none", "mitigated", "beside-1", "beside-2")] == [
        True,
        True,
        True,
        False,
    ]
    assert (opening.drawing.steps, opening.drawing.guidance) == (layout.STEPS[True], layout.GUIDANCE[True])
    assert all(one.before - one.after > 0.3 * one.pairs for one in opening.changes.values())


def test_the_opening_is_the_most_one_sided_profession_of_all_that_were_drawn(opening: Any) -> None:
    from eval.experiments.opening import most_one_sided
    from vldebias.evaluation.result import Result

    result = Result.read(Path(__file__).parents[2] / "eval/results/opening.json")
    told, bare = result.provenance[0].settings, dict[str, dict[str, float]]()
    for row in result.rows:
        bare.setdefault(row.method, {})[row.metric] = row.value
    assert len(bare) == 20  # as the page says
    assert told["chosen"] == most_one_sided(bare) == opening.subject
    assert max(bare[told["chosen"]].values()) / sum(bare[told["chosen"]].values()) == max(
        max(counts.values()) / sum(counts.values()) for counts in bare.values()
    )
    for side, changes in told["drawn"]["change"].items():
        assert changes == json.loads(json.dumps({name: c.to_dict() for name, c in opening.changed(side).items()}))
    counts = {share.value: share.count for share in opening.measured["none"][0].shares[:-1]}
    assert counts == bare[told["chosen"]]


def test_a_pipeline_of_ones_own_opens_with_nothing_and_the_miniature_says_that_it_is_a_toy(page: Any) -> None:
    other = built(module("engine").Engine(pipeline="somewhere", model="ViT-B-32"))
    assert not named(other, "verdict").value
    assert not named(other, "pictures-none").value
    heads = ["".join(str(getattr(block, "value", "")) for block in one.blocks.values()) for one in (page, other)]
    assert all("What does a model draw" in head for head in heads)
    assert ["A toy world of cartoons" in head for head in heads] == [True, False]
    assert named(other, "generate-method").value == "stated-value"  # what moves the shares, there too


def test_each_finding_is_what_it_is_called() -> None:
    settings, layout = module("settings"), module("generate")
    how = {name: (one[0], settings.Mitigation.of(*one[1:])) for name, one in layout.FINDINGS.items()}
    prompt, kept = how["“female editor” is left alone"]
    assert kept.stated(prompt) == ("female",)
    assert how["Gender and age at once"][1].names == ("gender", "age")
    assert how["The paper's settings"][1].method == "paper"
    assert how["An attribute in your own words"][1].names == (settings.OWN,)
    assert len(how) == 4


# ---- what is kept of a visit --------------------------------------------------------------------------------------


@pytest.fixture
def tab() -> Any:
    with gr.Blocks() as demo:
        found = module("generate").Generate(engine(), module("form").Stops(), demo)
    return found


def test_runs_of_a_visit_are_kept_chosen_again_and_in_one_table(tab: Any) -> None:
    layout = module("generate")
    now = drawn(drawing(number=2, seed=3, steps=1, beside=("cali",)), mitigation(method="steer"))[-1]
    zipped, table, history, runs = tab._keeping(now, tab.runs.value)
    assert history["value"] == "2"
    assert [number for _, number in history["choices"]] == list(runs) == ["1", "2"]
    rows = list(csv.DictReader(Path(table["value"]).read_text().splitlines()))
    assert len(rows) == 3 * 16 + 3 * 2  # of what it opened with, then of this run
    assert [(r["seed"], r["side"], r["method"]) for r in rows[48:]] == [
        (seed, side, method)
        for side, method in (("none", "none"), ("mitigated", "steer"), ("cali", "cali"))
        for seed in ("3", "4")
    ]
    assert {row["value"] for row in rows} <= {"male", "female", "cannot tell"}
    status, verdict, *_ = tab.again("1", runs)
    assert "Run 1 of this visit" in status
    assert verdict == module("view").HTML.verdict(layout.opening())
    assert zipped["value"] == runs["2"].packed
    Path(runs["2"].packed).unlink()
    for gone in ("2", "9", "../../etc/passwd", None):
        with pytest.raises(gr.Error, match="cleared away"):
            tab.again(gone, runs)
    for _ in range(layout.RUNS):
        *_, runs = tab._keeping(now, runs)
    assert list(runs) == [str(i) for i in range(3, layout.RUNS + 3)]


def test_a_text_of_a_visitor_is_no_formula_in_the_table() -> None:
    packing = module("packing")
    rows = packing.readings(drawn(drawing("=1+1", steps=1), mitigation())[-1])
    assert "'=1+1" in packing.table({"1": rows})


def test_the_slider_shows_files_of_the_page_alone(tab: Any) -> None:
    files = tab.shown.value
    look = tab._looking(2)
    found = look(files, argparse.Namespace(index=4))
    assert found["value"] == (files["none"][4], files["default"][4])
    assert found["label"] == "Drag: before | default, 5"
    assert tab._looking(0)(files, argparse.Namespace(index=0))["value"] == (files["none"][0], files["mitigated"][0])
    for index in (-1, 16, None, "0", [0, 1]):
        assert "value" not in look(files, argparse.Namespace(index=index))
    assert "value" not in look({}, argparse.Namespace(index=0))
    assert "value" not in look(
        {"none": ["/nowhere"], "mitigated": ["/nowhere"], "cali": ["/nowhere"]}, argparse.Namespace(index=0)
    )


def test_it_begins_with_a_pair_that_differs(opening: Any) -> None:
    before, after = (opening.measured[side][0].codes for side in ("none", "mitigated"))
    assert before[opening.telling] != after[opening.telling]
    assert before[: opening.telling] == after[: opening.telling]
