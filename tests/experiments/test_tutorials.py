"""Test that each tutorial runs from start to finish in an empty folder, and prints the output it
shows.

`bash` and `python` blocks run in order on the embedded models. `console` blocks, and Python code
that loads pretrained models, show the same for real weights (test_readme.py runs the latter). A
line "..." in an output matches any lines. `VLDEBIAS_REWRITE=1` writes the printed output to the
pages.
"""

import os
import re
from pathlib import Path

import pytest

from apps.label.session import open_study
from eval.notebooks import NEAR, alike
from tests.processes import run_python
from tests.terminals import printed_in_terminal
from vldebias.miniature import open_world

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCKS = re.compile(
    r"```(?P<kind>bash|python)\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?"
    r"|<!-- answers: (?P<folder>\S+)(?: (?P<attribute>\S+))? -->",
    re.DOTALL,
)
COLUMNS = 100


def run_commands(code: str, folder: Path) -> str:
    """Return what the lines in a block print in a terminal with `COLUMNS` columns."""
    printed = ""
    for line in code.replace("\\\n", " ").splitlines():
        printed += printed_in_terminal(["bash", "-euc", line], COLUMNS, folder)
    return printed


def run_code(code: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    return run_python(code, cwd=folder, env=environment).stdout


def answer_as_two_people(folder: Path) -> None:
    """Answer the questions from `vldebias label` about the images in a folder as two annotators.
    Both give the judge's answers, but one of them is wrong about every tenth image."""
    from vldebias.judge.plan import GeneratedImages
    from vldebias.judge.stored import last_judgements

    study = open_study(folder, ["gender"], most=60)
    (question,) = study.questions
    generated = GeneratedImages.open(folder)
    _, seen, _ = last_judgements(generated, question.attribute, question.values)
    value_of_path = dict(zip([image.path for image in generated.images], seen, strict=True))
    for name, errs_every in (("ada", 0), ("ben", 10)):
        place = study.start(name)
        while place.step is not None:
            record, _ = study._asked(name, place.step)
            value = value_of_path[record.path]
            choice = len(question.values)  # "cannot tell"
            if value in question.values:
                choice = question.values.index(value)
            if errs_every and place.step % errs_every == 0:
                choice = (choice + 1) % len(question.values)
            place = study.answer(place, choice)


def answer_about_portraits(folder: Path, attribute: str | None) -> None:
    """Answer the questions from `vldebias label` about the true age of 20 portraits, or about the
    age and another attribute of all of them."""
    attributes = ["class", attribute] if attribute else ["class"]
    most = 200 if attribute else 20
    study = open_study(folder, attributes, [str(folder.parent / "ages.yaml")], most=most)
    portraits = open_world("portraits", n=60)
    place = study.start("ada")
    while place.step is not None:
        record, question = study._asked("ada", place.step)
        is_class = question.attribute == "class"
        column = portraits.column("age" if is_class else question.attribute)
        value = column.names[column.codes[int(Path(record.path).stem)]]
        values = ("young", "old") if is_class else question.values
        place = study.answer(place, values.index(value))


# The captioner on this page is trained for a few steps, and its captions depend on the CPU.
CPU_DEPENDENT = {"captions": 0.2}


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def kept_lines(printed: str, expected: str) -> str:
    """Return the printed lines that an expected output shows: all of them, or those around a
    "..."."""
    lines = lines_of(printed)
    shown = lines_of(expected)
    if "..." not in shown:
        return "\n".join(lines)
    first = shown.index("...")
    last = len(shown) - first - 1
    end = lines[len(lines) - last :] if last else []
    return "\n".join([*lines[:first], "...", *end])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_runs_from_start_to_finish(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    near = CPU_DEPENDENT.get(path.stem, NEAR)
    ran = 0
    for block in BLOCKS.finditer(text):
        if block["folder"]:
            if block["folder"] == "people":
                answer_about_portraits(tmp_path / "people", block["attribute"])
            else:
                answer_as_two_people(tmp_path / block["folder"])
            continue
        if "pretrained" in block["code"].replace("save_pretrained", ""):
            continue
        run = run_code if block["kind"] == "python" else run_commands
        printed = run(block["code"], tmp_path)
        ran += 1
        if block["output"] is None:
            continue
        kept = kept_lines(printed, block["output"])
        if os.environ.get("VLDEBIAS_REWRITE") and not alike(block["output"], kept, near):
            written = path.read_text(encoding="utf-8")
            old = block[0]
            assert written.count(old) == 1
            path.write_text(written.replace(old, old.replace(block["output"], kept + "\n")))
        else:
            assert alike(block["output"], kept, near), f"{block['code']}\nprints\n{kept}"
    assert ran
