"""Test what a page shows about the prompts of an audit."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from apps.audit.section import (
    AuditedPrompt,
    audited_prompts,
    commands_of_remedies,
    ends_of_ranges,
    ranges_of_prompts,
)
from tests.study.made_figures import figure, protocol, result
from vldebias.measure.rows import Measurement
from vldebias.report.page import render
from vldebias.report.result import Result
from vldebias.report.table import readable

COUNTED = figure("none", 0.2, task="audit", metric="counted_share", subset="a nurse: male")
MEASURED = {
    "values": ["male", "female"],
    "prompts": {"a nurse": "no clear lean: generate 4 more"},
    "advice": ["none leans"],
}


def audit_of(*rows: Measurement, **settings: Any) -> Result:
    """Return an audit with the settings of one measured prompt, unless others are given."""
    return result(list(rows), protocol("audit", settings={**MEASURED, **settings}))


def page_of(audited: Result, folder: Path) -> str:
    return render(audited, folder / "p.html", run_folder=folder).read_text(encoding="utf-8")


def test_the_range_for_a_prompt_contains_its_share() -> None:
    rows = [
        figure("none", 0.1, task="audit", metric="counted_share", subset="a nurse: male"),
        figure("none", 0.9, task="audit", metric="counted_share", subset="a: b: male"),
    ]
    settings = {"values": ["male", "female"], "prompts": {"a nurse": "leans female: rewrite it"}}
    audit = protocol("audit", settings=settings | {"advice": ["one leans"]})
    audited = result(rows, audit)
    frame = readable(audited)
    ranges = ranges_of_prompts(frame)
    assert ends_of_ranges(audited, frame) == ("all women", "all men")
    assert ranges["a nurse"][1] == 0.1, "left of the middle"
    assert set(ranges) == {"a nurse", "a: b"}
    (nurse,) = audited_prompts(audited, readable(audited))
    assert nurse.share.startswith("90% female")
    three = audit.model_copy(update={"settings": settings | {"values": ["male", "female", "x"]}})
    assert ends_of_ranges(result(rows, three), frame) is None


def test_an_audit_names_a_command_for_each_remedy(tmp_path: Path) -> None:
    advice = {
        "a nurse": "leans female: rewrite it or use a method",
        "a chair": "no person is asked for: nothing to predict",
    }
    audit = protocol("audit", settings={"prompts": advice, "advice": ["one leans"]})
    rows = [figure("none", 0.1, task="audit", metric="counted_share", subset="a nurse: male")]
    named = audit.model_copy(update={"attribute": "gender"})
    page = page_of(result(rows, named), tmp_path)
    assert "<code>vldebias prompts balance prompts.txt --attribute gender</code>" in page
    assert "<code>vldebias.debias(pipe, &#34;gender&#34;)</code>" in page
    assert "--measure 8" not in page, "no prompt needs images"


def test_a_measured_audit_shows_its_images_and_how_many_are_missing(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    images = []
    for i in range(8):
        Image.new("RGB", (300, 200)).save(tmp_path / "images" / f"{i}.png")
        images.append([f"images/{i}.png", "female" if i else "unclear", 0.9 if i else 0.5, i])
    audited = audit_of(COUNTED, images={"a nurse": images})
    (nurse,) = audited_prompts(audited, readable(audited))
    assert nurse.share.startswith("80% female")
    page = page_of(audited, tmp_path)
    assert "counted share [95%]" in page
    assert page.count('src="data:image/jpeg') == 8
    assert "<small>unclear 0.50</small>" in page
    assert "<small>female 0.90</small>" in page
    assert '<a href="images/7.png">seed 7</a>' in page
    assert "To sign, run the command again" in page
    assert "--measure 12<" in page, "4 more than the 8 images"
    assert "vldebias audit prompts.txt --attribute" in page
    command = "vldebias audit jobs.txt --attribute gender --pipeline DIR --measure 8 --out measured"
    page = page_of(audited.model_copy(update={"command": command}), tmp_path)
    repeated = command.replace("--measure 8", "--measure 12")
    assert "enough for the next verdict" in page
    assert f"get no more): <code>{repeated}</code>" in page
    assert "earlier images are kept" in page


@pytest.mark.parametrize(
    ("command", "prompts"),
    [
        ("vldebias audit jobs.txt --attribute gender", "jobs.txt"),
        ("python -m vldebias audit --attribute gender jobs.txt --json", "jobs.txt"),
        (
            "vldebias audit --attribute=gender 'my jobs.csv' --column text",
            "'my jobs.csv' --column text",
        ),
        ("", "prompts.txt"),
    ],
)
def test_the_command_that_rewrites_prompts_names_the_audited_file(
    command: str, prompts: str
) -> None:
    row = AuditedPrompt("a nurse", "90% female", "leans female", "rewrite it or use a method")
    (_, rewriting), _ = commands_of_remedies([row], "gender", command)
    assert rewriting == f"vldebias prompts balance {prompts} --attribute gender"


def test_a_measured_audit_does_not_propose_to_measure_again() -> None:
    row = AuditedPrompt("a nurse", "", "not counted", "add --pipeline DIR --measure 8")
    command = "vldebias audit jobs.txt --attribute gender --pipeline DIR"
    (proposed,) = commands_of_remedies([row], "gender", command)
    assert proposed[1] == f"{command} --measure 8"
    assert commands_of_remedies([row], "gender", f"{command} --measure 8") == []


def test_a_prompt_without_images_is_not_counted(tmp_path: Path) -> None:
    prompts = {**MEASURED["prompts"], "a chair": "no person: nothing"}
    page = page_of(audit_of(COUNTED, prompts=prompts), tmp_path)
    assert "counted share [95%]" in page
    assert "not counted" in page


@pytest.mark.parametrize(
    "path",
    [
        "https://elsewhere.example/a.png",
        "//elsewhere.example/a.png",
        "/etc/a.png",
        "images/../../a.png",
        "images/..\\..\\a.png",
        "\\\\elsewhere.example\\images\\a.png",
        "data:image/svg+xml,<svg/>",
        "javascript:alert(1)",
        "images",
        "",
        7,
        None,
    ],
)
def test_a_page_only_shows_images_in_its_folder(path: object, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "0.png")
    images = {"a nurse": [["images/0.png", "male", 0.9, 0], [path, "female", 0.9, 1]]}
    page = page_of(audit_of(COUNTED, images=images), tmp_path)
    assert page.count("<img") == page.count('<a href="images/') == 1
    assert '<a href="images/0.png">' in page


def test_a_link_to_an_image_outside_the_folder_is_not_embedded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "images").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "private.png")
    (folder / "images" / "0.png").symlink_to(tmp_path / "private.png")
    images = {"a nurse": [["images/0.png", "male", 0.9, 0]]}
    assert "<img" not in page_of(audit_of(COUNTED, images=images), folder)
